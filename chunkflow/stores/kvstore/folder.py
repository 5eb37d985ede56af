"""A local folder: files as the objects of an array."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from chunkflow.core.encoded_chunks import Stamp
from chunkflow.stores.caches.fetch_buffer import NOTHING, kept
from chunkflow.stores.identity import Guard
from chunkflow.stores.kvstore.protocol import ChunkError, GoneError
from chunkflow.system.files import create_hidden, open_regular
from chunkflow.system.native import read_file

CHANGED = "it was changed after the array was opened, so a result could mix what it held before and after"


def stamped(found: os.stat_result) -> Stamp:
    """Identity of a file's content (see `StoredObject.stamp`)."""
    return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)


class _File:
    """An open file."""

    def __init__(self, fd: int, guard: Guard | None) -> None:
        self._fd, found = fd, os.fstat(fd)
        if guard is not None and 0 < guard.since < found.st_ctime_ns:
            raise GoneError(CHANGED + guard.advice)
        self.stamp = stamped(found)
        self.size = self.stamp.size

    def read(self, start: int, length: int, out: np.ndarray | None = None) -> np.ndarray:
        if start < 0:
            if self.size < -start:
                raise ChunkError(f"truncated: {self.size} bytes, where the last {-start} are wanted")
            start += self.size
        if out is None:
            out = np.empty(length, np.uint8)
        return pread(self._fd, out, start)


class Folder:
    """The files of a local array. With a guard, none is read that was changed after the array was opened."""

    gap = 16 << 10

    def __init__(self, path: str, guard: Guard | None = None) -> None:
        self._path, self._guard = path, guard

    @property
    def since(self) -> int:
        """Time in nanoseconds after which no file may have been changed; 0 if any may."""
        return 0 if self._guard is None else self._guard.since

    @property
    def _advice(self) -> str:
        return "" if self._guard is None else self._guard.advice

    def path(self, name: str) -> str:
        """Path of an object."""
        return f"{self._path}{os.sep}{name}"  # not a pathlib.Path: it would intern every name for good

    def fetch(self, name: str, check: Callable[[int], None], out: np.ndarray | None = None) -> np.ndarray:
        path = self.path(name)
        into = out if out is not None else NOTHING if kept.memory is None else kept.memory
        size = self._read(path, into)
        check(size)
        while size > len(into):  # once, unless a longer one takes its name meanwhile
            into = NOTHING  # given back before more is taken
            into = kept.room(size)
            size = self._read(path, into)
            check(size)
        return into[:size]

    def _read(self, path: str, into: np.ndarray) -> int:
        try:
            return read_file(path, into, self.since)
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise GoneError(CHANGED + self._advice) from error
            raise

    def status(self, name: str) -> os.stat_result:
        """Status of an object's file, which has not been changed too late."""
        found = os.stat(self.path(name))
        if 0 < self.since < found.st_ctime_ns:
            raise GoneError(CHANGED + self._advice)
        return found

    def absent(self, name: str) -> None:
        """See `Objects.absent`: the first folder above it that exists tells whether a file was removed from there."""
        if not self.since:
            return
        folder = os.path.dirname(self.path(name))
        while len(folder) >= len(self._path):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if os.stat(folder).st_ctime_ns > self.since:
                    raise GoneError(
                        "it is missing, and the folder where it would lie was changed after the array was opened: it "
                        f"may have been removed{self._advice}"
                    )
                return
            folder = os.path.dirname(folder)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[_File]:
        with open(open_regular(self.path(name)), "rb", buffering=0) as file:
            yield _File(file.fileno(), self._guard)

    def put(self, name: str, write: Callable[[BinaryIO], bool]) -> None:
        put(self.path(name), write)

    def remove(self, name: str) -> None:
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
    """Let `write` fill a file, which appears when it is complete. If `write` returns False, the file is removed."""
    hidden = temporary(path)
    try:
        try:
            file = open(create_hidden(hidden), "wb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = open(create_hidden(hidden), "wb", buffering=0)  # noqa: SIM115
        with file:
            wanted = write(file)
        if wanted:
            os.replace(hidden, path)
            return
    except BaseException:
        remove(hidden)
        raise
    remove(hidden)
    remove(path)


def temporary(path: str) -> str:
    """Name of a file while this thread writes it."""
    return f"{path}.{os.getpid()}-{threading.get_ident()}.partial"


def remove_unfinished(folder: str, pid: int | None = None) -> None:
    """Remove the files in a folder that the threads of a dead process were writing; by default, of any process."""
    ours = re.compile(rf".+\.{pid or '[0-9]+'}-\d+\.partial")
    for above, _, names in os.walk(folder):
        for name in names:
            if ours.fullmatch(name):
                os.unlink(os.path.join(above, name))


def append(file: BinaryIO, raw: Any) -> int:
    """Write all of a buffer. Returns its length in bytes."""
    left = memoryview(raw).cast("B")
    total = len(left)
    while len(left):
        left = left[file.write(left) :]
    return total


def remove(path: str) -> None:
    """Remove a file, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
