"""A strided array inside a file, as a sink: through a mapping where nothing can go wrong in it, else at positions.

Writers at positions wait for one another, those in a mapping do not. But a page for which the disk has no room is a
signal there that kills the process, and one that is not in memory is read first. So a mapping is written where the
file's blocks are on the disk, and its pages in memory or never written yet.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from chunkflow.errors import WriteError
from chunkflow.grid import Region, Shape, describe
from chunkflow.host import cores
from chunkflow.spec import ArraySpec
from chunkflow.stores import layout
from chunkflow.stores.array import ArrayTarget
from chunkflow.stores.base import Footprint, Target
from chunkflow.stores.checks import matching
from chunkflow.stores.file import StridedFile

_WORTHWHILE = 4 << 10
"""Shortest runs, in bytes, that are written at positions."""

FEW_CORES = 4
"""Cores up to which long runs are written at positions all the same: too few write at once to get in one another's way,
and pages need not be mapped."""

_SAMPLES = 16
"""Pages that are looked at to tell whether a file is in memory."""

_CANNOT_RESERVE = {errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV}


class FileSink(StridedFile):
    """A strided array in a file. Bytes between its elements are left alone.

    `fresh` says that the file's blocks have been reserved, and not been written yet.
    """

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
        fresh: bool = False,
        mapping: np.ndarray | None = None,
    ) -> None:
        super().__init__(path, offset, shape, strides, dtype, name=name, writable=True, mapping=mapping)
        self._result = result
        self._maps = not self.missing and (fresh or self._is_in_memory())
        self._maps_all = cores() > FEW_CORES

    def write(self, region: Region, block: np.ndarray) -> None:
        """See `Sink.write`."""
        if not block.size:
            return
        try:
            start, strides, view = self.ascending(region, block)
            if self._maps and (self._maps_all or not self.is_long(strides, view)):
                np.copyto(self.mapped(region), block, casting="same_kind")
            else:
                self._spill(start, strides, view)
        except (OSError, EOFError) as error:
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

    def _is_in_memory(self) -> bool:
        """Whether the file has all of its blocks, and those of its pages that are looked at are in memory."""
        status, place = os.fstat(self.fd), self.footprint
        if place is None or _has_holes(status) or not hasattr(os, "RWF_NOWAIT"):
            return False
        byte = bytearray(1)
        try:
            for position in np.linspace(place.start, place.stop - 1, _SAMPLES, dtype=np.int64).tolist():
                os.preadv(self.fd, [byte], position, os.RWF_NOWAIT)
        except OSError:  # it would have to wait for the disk, or can't tell
            return False
        return True

    def _spill(self, start: int, strides: Shape, block: np.ndarray) -> None:
        """Store `block`, by the longest runs of the file that belong to it alone."""
        packed = layout.is_packed(block.shape, strides, self.dtype.itemsize)
        if packed and (block.ndim < 2 or block.flags.c_contiguous):
            run = block.astype(self.dtype, order="C", casting="same_kind", copy=False)
            self.put(start, run.reshape(-1).view(np.uint8))
            return
        for i in range(block.shape[0]):
            self._spill(start + i * strides[0], strides[1:], block[i, ...])

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
    """An array of the user's that lies in a mapped file."""

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

    def _sink(self, *, taking: bool = False) -> FileSink:
        """The sink; `taking` the file's place on the disk, if it has holes."""
        array = self._array
        try:
            status = os.stat(self._path)
            fresh = taking and _has_holes(status) and reserve(self._path, status.st_size)
            return FileSink(
                self._path,
                self._offset,
                array.shape,
                array.strides,
                array.dtype,
                result=array,
                fresh=fresh,
                mapping=array.view(np.ndarray),
            )
        except OSError as error:
            raise WriteError(f"cannot write {self._path}: {error}", path=self._path, cause=error) from error

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        """See `Target.describe`."""
        return matching(self._spec, shape, dtype)

    def open(self, spec: ArraySpec) -> FileSink:
        """See `Target.open`.

        Raises
        ------
        WriteError
            The disk has no room for a file that was not written yet.
        """
        return self._sink(taking=True)


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


def _has_holes(status: os.stat_result) -> bool:
    """Whether a file has fewer blocks on the disk than its size takes."""
    return status.st_blocks * 512 < status.st_size


def reserve(path: str, nbytes: int) -> bool:
    """Give a file its final size, and its blocks on the disk: whether the file system can do that.

    Where it can't, the C library would write into every block of the file instead, which takes as
    long as the run itself. It refuses to do so for a file opened for appending: hence the flag.
    """
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0))
    try:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(fd, 0, nbytes)
                return True
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
        os.ftruncate(fd, nbytes)
        return False
    finally:
        os.close(fd)
