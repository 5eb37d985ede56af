"""Foreign exceptions as the errors of a store, which name the array and the region."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from chunkflow.core.grid import Region, describe
from chunkflow.errors import ChunkflowError, ReadError, WriteError

Foreign = type[Exception] | tuple[type[Exception], ...]


def unread(region: Region, name: str, error: Exception, doing: str = "read", what: str = "from") -> ReadError:
    """The error for a region that could not be read; `what` stands before the array's name."""
    return ReadError(f"cannot {doing} {describe(region)} {what} {name}: {error}", path=name, region=region, cause=error)


def unwritten(region: Region, name: str, error: Exception, what: str = "to") -> WriteError:
    """The error for a region that could not be written; `what` stands before the array's name."""
    return WriteError(f"cannot write {describe(region)} {what} {name}: {error}", path=name, region=region, cause=error)


@contextmanager
def translated(
    kind: type[ReadError | WriteError],
    doing: str,
    path: str,
    undo: Callable[[], None] | None = None,
    foreign: Foreign = Exception,
) -> Iterator[None]:
    """Raise `kind` for exceptions that are `foreign`, and not errors of ours. After any failure `undo` is called first.

    >>> with translated(ReadError, "cannot open x", "x"):
    ...     raise KeyError("shape")
    Traceback (most recent call last):
    chunkflow.errors.ReadError: cannot open x: 'shape'
    """
    try:
        yield
    except BaseException as error:
        if undo is not None:
            undo()
        if isinstance(error, ChunkflowError) or not isinstance(error, foreign):
            raise
        raise kind(f"{doing}: {error}", path=path, cause=error) from error
