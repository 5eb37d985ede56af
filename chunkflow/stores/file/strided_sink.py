"""A strided array inside a file, as a sink: through a mapping where nothing can go wrong in it, else at positions.

Writers at positions wait for one another, those in a mapping do not. But a page for which the disk has no room is a
signal there that kills the process, and one that is not in memory is read first. So a mapping is written where the
array's part of the file has its blocks on the disk, and its pages are in memory. Pages that were never written would
come one by one, at half the rate at which a single writer makes them: there only short runs go through a mapping. In
memory for good (tmpfs) it is the other way round.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import RUN, ArraySpec, ByteRun
from chunkflow.errors import WriteError
from chunkflow.stores import strides as layout
from chunkflow.stores.caches.page_cache import present
from chunkflow.stores.checks import ExistingTarget
from chunkflow.stores.failures import translated, unwritten
from chunkflow.stores.file.strided import LEAST_READ, Strided, StridedFile
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.memory import ArrayTarget
from chunkflow.stores.paths import file_system_of
from chunkflow.stores.protocol import Target
from chunkflow.system.host import cores

_WORTHWHILE = 4 << 10
"""Shortest runs, in bytes, that are written at positions."""

FEW_CORES = 4
"""Cores up to which long runs are written at positions all the same: too few write at once to get in one another's way,
and pages need not be mapped."""

IN_PLACE = {"ext2", "ext3", "ext4", "overlay", "xfs"}
"""File systems that overwrite a block in place. Others may need new room for it, page by page."""

_CANNOT_RESERVE = {errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV}


class FileSink(StridedFile):
    """A strided array in a file. Bytes between its elements are left alone.

    `fresh` says that the file's blocks have been reserved, and not been written yet.
    """

    def __init__(self, array: Strided, *, result: Any = None, fresh: bool = False) -> None:
        super().__init__(array, writable=True)
        self._result, self._path = result, array.path
        self._many = cores() > FEW_CORES
        self._maps, self._maps_all = fresh, fresh and self._many and _file_system(self.fd) == "tmpfs"

    def write(self, region: Region, block: np.ndarray) -> None:
        if not block.size:
            return
        try:
            start, strides, view = self.ascending(region, block)
            if self._maps and (self._maps_all or not self.is_long(strides, view)):
                np.copyto(self.mapped(region), block, casting="same_kind")
            else:
                self._spill(start, strides, view)
        except (OSError, EOFError) as error:
            raise unwritten(region, self.spec.name, error) from error

    def run(self, region: Region) -> ByteRun | None:
        rows = self.rows(region)
        if rows is None:
            return None
        if self._maps and (self._maps_all or rows.width < RUN):
            return self.mapped_run(region, rows)
        return super().run(region) if rows.width >= LEAST_READ else None

    def commit(self) -> Any:
        name = self.spec.name
        with translated(WriteError, f"cannot finish {name}", name, foreign=OSError):
            self.close()
        return self._result

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self.close()

    def settle(self) -> None:
        """Decide whether an existing file can be written through a mapping. Missing blocks are reserved."""
        place = self.footprint
        if place is None or not self.spec.size or self.missing or not hasattr(os, "SEEK_HOLE"):
            return
        kind = _file_system(self.fd)
        if os.lseek(self.fd, place.start, os.SEEK_HOLE) < place.stop:
            self._maps_all = self._many and kind == "tmpfs"
            self._maps = self._has_room(place) and _allocate(self._path, place.start, place.stop)
        else:
            self._maps = kind == "tmpfs" or (kind in IN_PLACE and present(self.fd, place.start, place.stop))
            self._maps_all = self._many

    def _has_room(self, place: Footprint) -> bool:
        """Whether the disk has room for all of the array. A part would take room from others and never free it."""
        found = os.fstatvfs(self.fd)
        return found.f_bavail * found.f_frsize > 2 * (place.stop - place.start)

    def _spill(self, start: int, strides: Shape, block: np.ndarray) -> None:
        """Store `block` in the longest runs of the file that are its own, gathered first if its layout differs."""
        while block.ndim and block.shape[0] == 1:
            block, strides = block[0, ...], strides[1:]
        packed = layout.is_packed(block.shape, strides, self.dtype.itemsize)
        if packed and (block.nbytes <= RUN or (block.flags.c_contiguous and block.dtype == self.dtype)):
            run = block.astype(self.dtype, order="C", casting="same_kind", copy=False)
            self.put(start, run.reshape(-1).view(np.uint8))
            return
        rows = max(1, RUN // strides[0]) if packed else 1
        for first in range(0, block.shape[0], rows):
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


class FileTarget(ExistingTarget):
    """An array of the user's that lies in a mapped file. If it is a part of a `whole` one, the user gets that."""

    def __init__(self, array: np.ndarray, path: str, offset: int, whole: np.ndarray | None = None) -> None:
        self.array, self._path, self._offset = array, path, offset
        self._whole = array if whole is None else whole
        self.name = self.writes = path
        probe = self._sink()
        missing = probe.missing
        self._spec = probe.spec
        self.footprint: Footprint | None = probe.footprint
        probe.abort()
        if missing:
            raise WriteError(f"truncated file: {missing}", path=path)

    def _sink(self) -> FileSink:
        array = self.array
        whole = array.view(np.ndarray)
        place = Strided(self._path, self._offset, array.shape, array.strides, array.dtype, mapping=whole)
        with translated(WriteError, f"cannot write {self._path}", self._path, foreign=OSError):
            return FileSink(place, result=self._whole)

    def open(self, spec: ArraySpec) -> FileSink:
        sink = self._sink()
        with translated(WriteError, f"cannot write {self._path}", self._path, sink.abort, OSError):
            sink.settle()
        return sink


def mapped_target(array: np.ndarray, path: str, offset: int, whole: np.ndarray | None = None) -> Target:
    """Target of an array that lies in a mapped file.

    An array whose elements have gaps between them all is written through its mapping after all: a
    system call for every few bytes would take a thousand times as long.
    """
    target = FileTarget(array, path, offset, whole)
    run = layout.longest_run(array.shape, array.strides, array.dtype.itemsize)
    if run < min(_WORTHWHILE, array.nbytes):
        return ArrayTarget(array, target.footprint, path, whole)
    return target


def reserve(path: str, nbytes: int) -> bool:
    """Give a file its final size and, if the file system can, its blocks on the disk. Returns whether it could."""
    if _allocate(path, 0, nbytes, required=True):
        return True
    os.truncate(path, nbytes)
    return False


def _allocate(path: str, start: int, stop: int, *, required: bool = False) -> bool:
    """Reserve blocks on the disk for a part of a file. Returns whether it has them.

    Where the file system can't, the C library would write into every block instead, which takes as long as the run
    itself. It refuses to do so for a file opened for appending: hence the flag.
    """
    if not hasattr(os, "posix_fallocate"):
        return False
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.posix_fallocate(fd, start, stop - start)
    except OSError as error:
        if required and error.errno not in _CANNOT_RESERVE:
            raise
        return False
    finally:
        os.close(fd)
    return True


def _file_system(fd: int) -> str:
    """Kind of the file system that a file lies on; empty if unknown."""
    return file_system_of(os.fstat(fd).st_dev)
