"""Whether new arrays get checksums: `checksum=` of the present call, else what the format has by default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from chunkflow.core.settings import setting
from chunkflow.errors import ArgumentError
from chunkflow.system.context import run_variable

_wanted: ContextVar[bool | None] = run_variable("chunkflow_checksum", None)


def said() -> bool | None:
    """What the present call says of them."""
    return _wanted.get()


def wanted(*, default: bool) -> bool:
    """Whether an array that is created now gets checksums; `default` where neither the call nor a setting says."""
    found = next((asked for asked in (_wanted.get(), setting("checksum")) if asked is not None), default)
    return bool(found)


def refuse_if_wanted(path: str, why: str, way: str = "Write a .zarr") -> None:
    """Refuse an output that can have no checksums, if the call asks for them."""
    if _wanted.get():
        raise ArgumentError(f"checksum=True: {path} would have none, since {why}. {way}, or leave it out")


@contextmanager
def asked(checksum: Any, outs: Any = None) -> Iterator[None]:
    """Let arrays that are created inside have checksums or not; None for the default of each format.

    Raises
    ------
    ArgumentError
        It is something else than a bool or None, or is True, and no array is to be created at a path.
    """
    if checksum is not None and not isinstance(checksum, bool):
        raise ArgumentError(f"checksum={checksum!r} must be True, False, or None for the format's default")
    places = outs if isinstance(outs, list | tuple) else (outs,)
    if checksum and not all(isinstance(out, str | os.PathLike) or getattr(out, "has_path", False) for out in places):
        raise ArgumentError(
            "checksum=True is for arrays that are created at a path: an array that exists keeps its codecs, and "
            "one in memory has none"
        )
    if checksum is None:  # an inner call keeps what the outer one said
        yield
        return
    token = _wanted.set(checksum)
    try:
        yield
    finally:
        _wanted.reset(token)
