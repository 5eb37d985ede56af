"""A strided array inside a file, written at positions, never through a mapping.

A page of a mapping for which the disk has no room is a signal that kills the process; here it is an
exception.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from chunkflow.errors import WriteError
from chunkflow.grid import Region, Shape, describe
from chunkflow.spec import ArraySpec
from chunkflow.stores import layout
from chunkflow.stores.array import ArrayTarget
from chunkflow.stores.base import Footprint, Target
from chunkflow.stores.checks import matching
from chunkflow.stores.file import SCRATCH, StridedFile

_WORTHWHILE = 4 << 10
"""Shortest runs, in bytes, that are written at positions."""

_CANNOT_RESERVE = {errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV}


class FileSink(StridedFile):
    """A strided array in a file, written by ``pwritev``. Bytes between its elements are left alone."""

    def __init__(
        self,
        path: str,
        offset: int,
        shape: Shape,
        strides: Shape,
        dtype: np.dtype,
        *,
        name: str | None = None,
        result: Any = None,
    ) -> None:
        super().__init__(path, offset, shape, strides, dtype, name=name, writable=True)
        self._result = result

    def write(self, region: Region, block: np.ndarray) -> None:
        """See `Sink.write`."""
        if not block.size:
            return
        start, strides, view = self.ascending(region, block)
        try:
            self._spill(start, strides, view)
        except OSError as error:
            raise WriteError(
                f"cannot write {describe(region)} to {self.spec.name}: {error}",
                path=self.spec.name,
                region=region,
                cause=error,
            ) from error

    def commit(self) -> Any:
        """See `Sink.commit`."""
        self.close()
        return self._result

    def abort(self) -> None:
        """See `Sink.abort`."""
        self.close()

    def _spill(self, start: int, strides: Shape, block: np.ndarray) -> None:
        """Store `block`, by the longest runs of the file that belong to it alone."""
        while block.ndim and block.shape[0] == 1:
            block, strides = block[0, ...], strides[1:]
        shape, itemsize = block.shape, self.dtype.itemsize
        packed = layout.is_packed(shape, strides, itemsize)
        if packed and block.flags.c_contiguous and block.dtype == self.dtype:
            self.put(start, block.reshape(-1).view(np.uint8))
            return
        span = self.span(shape, strides)
        if packed and (span <= SCRATCH):
            scratch = self.borrow(span)
            np.copyto(self.over(scratch, shape, strides), block, casting="same_kind")
            self.put(start, scratch[:span])
            self.spare.append(scratch)
            return
        rows = max(1, SCRATCH // strides[0]) if packed else 1
        for first in range(0, shape[0], rows):
            self._spill(start + first * strides[0], strides, block[first : first + rows])

    def put(self, position: int, source: np.ndarray) -> None:
        """Write contiguous bytes at a position of the file."""
        buffer = source.data
        done = 0
        while done < len(buffer):
            count = os.pwritev(self.fd, [buffer[done:]], position + done)
            if not count:
                raise OSError(f"nothing more could be stored at offset {position + done}")
            done += count


class FileTarget:
    """An array of the user's that lies in a mapped file: written at positions all the same."""

    def __init__(self, array: np.ndarray, path: str, offset: int) -> None:
        self._array, self._path, self._offset = array, path, offset
        self.name = path
        probe = self._sink()
        missing = probe.missing
        self._spec = probe.spec
        self.footprint: Footprint | None = probe.footprint
        probe.close()
        if missing:
            raise WriteError(f"truncated file: {missing}", path=path)

    def _sink(self) -> FileSink:
        array = self._array
        try:
            return FileSink(self._path, self._offset, array.shape, array.strides, array.dtype, result=array)
        except OSError as error:
            raise WriteError(f"cannot write {self._path}: {error}", path=self._path, cause=error) from error

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        """See `Target.describe`."""
        return matching(self._spec, shape, dtype)

    def open(self, spec: ArraySpec) -> FileSink:
        """See `Target.open`."""
        return self._sink()


def mapped_target(array: np.ndarray, path: str, offset: int) -> Target:
    """Target of an array that lies in a mapped file.

    An array whose elements have gaps between them all is written through its mapping after all: a
    system call for every few bytes would take a thousand times as long.
    """
    target = FileTarget(array, path, offset)
    run = layout.longest_run(array.shape, array.strides, array.dtype.itemsize)
    if run < min(_WORTHWHILE, array.nbytes):
        return ArrayTarget(array, target.footprint)
    return target


def reserve(path: str, nbytes: int) -> None:
    """Give a file its final size, and its blocks on the disk where the file system can do that.

    Where it can't, the C library would write into every block of the file instead, which takes as
    long as the run itself. It refuses to do so for a file opened for appending: hence the flag.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
    try:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(fd, 0, nbytes)
                return
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
        os.ftruncate(fd, nbytes)
    finally:
        os.close(fd)
