"""Objects that hold a zarr array's chunks or shards, by name: what is asked of them, and files as such objects."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

import numpy as np

from chunkflow.core.encoded_chunks import Stamp
from chunkflow.stores.protocol import NOTHING, kept
from chunkflow.system.native import read_file


class ChunkError(ValueError):
    """A chunk or a shard that is not what the array's metadata say; the store makes a `ReadError` of it."""


class Stored(Protocol):
    """An object that is being read."""

    @property
    def size(self) -> int | None:
        """Bytes that it has; None where only a further request would tell."""

    @property
    def stamp(self) -> Hashable:
        """What is another one once the object is, as far as that can be known."""

    def read(self, start: int, length: int, out: np.ndarray | None = None) -> np.ndarray:
        """So many bytes from a place, counted from the end if negative; in `out`, if given.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        ChunkError
            It is too short.
        """


class Objects(Protocol):
    """An array's objects: files of a folder, or what a store has under keys."""

    @property
    def gap(self) -> int:
        """Bytes between two parts of an object that are fetched with them rather than skipped."""

    def fetch(self, name: str, check: Callable[[int], None], out: np.ndarray | None = None) -> np.ndarray:
        """All of an object, whose number of bytes is checked first; in `out`, if given, which has as many at least.

        Else it may be in memory into which the thread fetches the next one.

        Raises
        ------
        FileNotFoundError
            There is no such object.
        """

    def open(self, name: str) -> AbstractContextManager[Stored]:
        """Open an object for reading in parts; `FileNotFoundError` may come now, or when it is read."""

    def put(self, name: str, write: Callable[[BinaryIO], bool]) -> None:
        """Let `write` fill an object, which has its name when it is complete; if it says no, none has that name."""

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Say in errors which chunk or shard they are about."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, f"{what}: {error.strerror or error}") from error
        raise ChunkError(f"{what}: {error or type(error).__name__}") from error


def stamped(found: os.stat_result) -> Stamp:
    """What is another one once the file is (see `Stored`)."""
    return found.st_ino, found.st_mtime_ns, found.st_size


class _File:
    """A file that is open."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.stamp = stamped(os.fstat(fd))
        self.size = self.stamp[-1]

    def read(self, start: int, length: int, out: np.ndarray | None = None) -> np.ndarray:
        """See `Stored.read`."""
        if start < 0:
            if self.size < -start:
                raise ChunkError(f"truncated: {self.size} bytes, where the last {-start} are wanted")
            start += self.size
        if out is None:
            out = np.empty(length, np.uint8)
        return pread(self._fd, out, start)


class Folder:
    """Files of a local array."""

    gap = 16 << 10

    def __init__(self, path: str) -> None:
        self._path = path

    def path(self, name: str) -> str:
        """Where an object is."""
        return f"{self._path}{os.sep}{name}"  # not a pathlib.Path: it would intern every name for good

    def fetch(self, name: str, check: Callable[[int], None], out: np.ndarray | None = None) -> np.ndarray:
        """See `Objects.fetch`."""
        path = self.path(name)
        into = out if out is not None else NOTHING if kept.memory is None else kept.memory
        size = read_file(path, into)
        check(size)
        while size > len(into):  # once, unless a longer one takes its name meanwhile
            into = NOTHING  # given back before more is taken
            into = kept.room(size)
            size = read_file(path, into)
            check(size)
        return into[:size]

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[_File]:
        """See `Objects.open`."""
        with open(self.path(name), "rb", buffering=0) as file:
            yield _File(file.fileno())

    def put(self, name: str, write: Callable[[BinaryIO], bool]) -> None:
        """See `Objects.put`."""
        put(self.path(name), write)

    def remove(self, name: str) -> None:
        """See `Objects.remove`."""
        remove(self.path(name))


def pread(fd: int, out: np.ndarray, offset: int) -> np.ndarray:
    """Fill `out`, which is flat bytes, from an offset of a file."""
    done = 0
    while done < out.size:
        count = os.preadv(fd, [out[done:].data], offset + done)
        if not count:
            raise ChunkError(f"the file ends {out.size - done} bytes early")
        done += count
    return out


def put(path: str, write: Callable[[BinaryIO], bool]) -> None:
    """Let `write` fill a file, which takes its name when it is complete; if `write` says no, none has that name."""
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.partial"
    try:
        try:
            file = open(temporary, "wb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = open(temporary, "wb", buffering=0)  # noqa: SIM115
        with file:
            wanted = write(file)
        if wanted:
            os.replace(temporary, path)
            return
    except BaseException:
        remove(temporary)
        raise
    remove(temporary)
    remove(path)


def append(file: BinaryIO, raw: Any) -> int:
    """Write all of a buffer; its length in bytes."""
    left = memoryview(raw).cast("B")
    total = len(left)
    while len(left):
        left = left[file.write(left) :]
    return total


def remove(path: str) -> None:
    """Remove a file, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
