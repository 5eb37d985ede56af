"""The end of a run: all its outputs appear, or none does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from chunkflow.core.settings import setting
from chunkflow.errors import WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.protocol import Publishing, Sink
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish
from chunkflow.system import interrupts


def commit_all(sinks: Sequence[Sink], *, sync: bool | None = None) -> tuple[Any, ...]:
    """What `Sink.commit` of each sink gives. Those that publish get their names together, and last.

    Where this raises, the sinks are to be aborted. A Ctrl-C that was put off is raised while that is possible.

    Parameters
    ----------
    sync : bool, optional
        Whether what is new is on the disk at the end; as the setting says by default.
    """
    synced = setting("sync") if sync is None else bool(sync)
    hidden = {i: cast(Publishing, sink) for i, sink in enumerate(sinks) if hasattr(sink, "published")}
    found = {i: sink.commit() for i, sink in enumerate(sinks) if i not in hidden}
    claims: dict[int, Claim] = {}
    for sink in hidden.values():
        claims |= {id(claim): claim for claim in sink.ready()}
    names = ", ".join(dict.fromkeys(sink.spec.name for i, sink in enumerate(sinks) if i in hidden))
    with translated(WriteError, f"cannot finish {names}", names):
        opened = publish([*claims.values()], partial(opened_all, [*hidden.values()]), sync=synced)
    found |= dict(zip(hidden, opened, strict=True))
    return tuple(found[i] for i in range(len(sinks)))


def opened_all(sinks: Sequence[Publishing]) -> list[Any]:
    """What `Publishing.published` of each sink gives."""
    try:
        opened = [sink.published() for sink in sinks]
        interrupts.check()
    except BaseException:
        for sink in sinks:
            sink.unpublish()
        raise
    return opened
