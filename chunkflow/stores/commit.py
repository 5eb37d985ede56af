"""The end of a run: all its outputs appear, or none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from chunkflow.errors import WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.protocol import Publishing, Sink
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish


def commit_all(sinks: Sequence[Sink]) -> tuple[Any, ...]:
    """What `Sink.commit` of each sink gives. Those that publish get their names together, and last.

    Where this raises, the sinks are to be aborted.
    """
    hidden = {i: cast(Publishing, sink) for i, sink in enumerate(sinks) if hasattr(sink, "published")}
    found = {i: sink.commit() for i, sink in enumerate(sinks) if i not in hidden}
    claims: dict[int, Claim] = {}
    for sink in hidden.values():
        claims |= {id(claim): claim for claim in sink.ready()}
    names = ", ".join(sink.spec.name for i, sink in enumerate(sinks) if i in hidden)
    with translated(WriteError, f"cannot finish {names}", names):
        found |= publish([*claims.values()], lambda: {i: sink.published() for i, sink in hidden.items()})
    return tuple(found[i] for i in range(len(sinks)))
