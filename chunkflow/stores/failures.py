"""Foreign exceptions as the errors of a store, which name the array and the region."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from chunkflow.core.grid import Region, Shape, describe, shift
from chunkflow.errors import ChunkflowError, ReadError, WriteError
from chunkflow.stores.kvstore.protocol import ChunkError, FileError, GoneError
from chunkflow.stores.touched import touched

Foreign = type[Exception] | tuple[type[Exception], ...]


def unread(region: Region, name: str, error: Exception, doing: str = "read", what: str = "from") -> ReadError:
    """The error for a region that could not be read; `what` stands before the array's name."""
    said = f"cannot {doing} {describe(region)} {what} {name}: {error}{_remedy(name, error)}"
    return ReadError(said, path=name, region=region, cause=error)


def _remedy(name: str, error: Exception) -> str:
    """What finds all damage, where a chunk or one of several files is damaged."""
    is_of_a_chunk = isinstance(error, ChunkError) and str(error).startswith("chunk ") and "://" not in name
    is_of_a_file = isinstance(error, FileError)
    if not (is_of_a_chunk or is_of_a_file) or any(
        isinstance(e, GoneError | OSError | MemoryError) for e in (error, error.__cause__)
    ):
        return ""
    what = "all files like it" if is_of_a_file else "all chunks that are damaged"
    return f". `chunkflow verify {shlex.quote(name)}` finds {what}"


def unwritten(region: Region, name: str, error: Exception, what: str = "to") -> WriteError:
    """The error for a region that could not be written; `what` stands before the array's name."""
    return WriteError(f"cannot write {describe(region)} {what} {name}: {error}", path=name, region=region, cause=error)


def blamed(error: Exception, region: Region, chunks: Shape | None, read: Callable[[Region], object]) -> Exception:
    """The error of the first chunk in a region that cannot be read by itself, with its index. Else it is `error`."""
    if chunks is None or 0 in chunks or (isinstance(error, OSError) and error.errno is not None):
        return error  # there are no chunks, or it is not their fault
    for part in touched(region, chunks):
        try:
            read(shift(part.place, [side.start for side in region]))
        except Exception as found:
            return ChunkError(f"chunk {part.chunk}: {str(found) or type(found).__name__}")
    return error


@contextmanager
def translated(
    kind: type[ReadError | WriteError],
    doing: str,
    path: str,
    undo: Callable[[], None] | None = None,
    foreign: Foreign = Exception,
) -> Iterator[None]:
    """Raise `kind` for exceptions that are `foreign`, and not errors of ours. After any failure `undo` is called first.

    What fails in that is not told: the first error tells more.

    >>> with translated(ReadError, "cannot open x", "x"):
    ...     raise KeyError("shape")
    Traceback (most recent call last):
    chunkflow.errors.ReadError: cannot open x: 'shape'
    """
    try:
        yield
    except BaseException as error:
        if undo is not None:
            with suppress(Exception):
                undo()
        if isinstance(error, ChunkflowError) or not isinstance(error, foreign):
            raise
        raise kind(f"{doing}: {error}", path=path, cause=error) from error
