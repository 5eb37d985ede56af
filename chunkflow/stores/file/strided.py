"""A strided array inside a file: long runs are read at positions, short ones are copied from a mapping.

A read at a position goes straight into the staging buffer, without a page fault, and what can't be delivered is an
exception, where a mapping has a signal that kills the process. But each costs a system call, and Python lets only one
thread at a time prepare one. So rows that are short are copied by one call from a mapping, once the file is seen to
reach so far.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from chunkflow.core.grid import Region, Shape, describe, permuted, shape_of
from chunkflow.core.pieces import contiguous
from chunkflow.core.spec import RUN, ArraySpec, ByteRun
from chunkflow.errors import ReadError
from chunkflow.stores import footprint
from chunkflow.stores import strides as layout
from chunkflow.stores.caches import page_cache
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.failures import translated, unread
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.identity import Guard
from chunkflow.stores.protocol import Unviewed
from chunkflow.system.files import open_regular

LEAST_READ = 4 << 10
"""`RUN` for a compiled loop, which does not hold Python's lock."""


@dataclass(frozen=True)
class Strided:
    """Where an array lies: shape, strides (bytes) and dtype, and the `offset` in a file of its element at index 0.

    `name` stands for the path in messages. `mapping` is the array, where somebody has mapped it already: to map a file
    again costs time for every page.
    """

    path: str
    offset: int
    shape: Shape
    strides: Shape
    dtype: np.dtype
    name: str = ""
    mapping: np.ndarray | None = None

    @classmethod
    def packed(
        cls, path: str, offset: int, shape: Shape, dtype: np.dtype, *, fortran: bool = False, name: str = ""
    ) -> Strided:
        """An array without gaps, in C order or in Fortran order. A side that is no int or is negative is a ValueError.

        >>> Strided.packed("volume.raw", 16, (3, 4), np.dtype("f4")).strides
        (16, 4)
        """
        if any(not isinstance(n, int | np.integer) or n < 0 for n in shape):
            raise ValueError(f"{tuple(shape)} is no shape")
        return cls(path, offset, shape, layout.packed_strides(shape, dtype.itemsize, fortran=fortran), dtype, name)


class StridedFile:
    """The open file of a strided array."""

    def __init__(self, array: Strided, *, writable: bool = False) -> None:
        path, offset, shape, strides, dtype = array.path, array.offset, array.shape, array.strides, array.dtype
        self._path = path
        self.offset, self.strides, self.dtype = offset, tuple(strides), dtype
        self.spec = ArraySpec(
            name=array.name or path,
            shape=tuple(shape),
            dtype=numeric_dtype(dtype, path),
            order=layout.memory_order(shape, strides),
        )
        order = self.spec.order
        self._packed = dtype.isnative and layout.is_packed(
            permuted(shape, order), permuted(strides, order), dtype.itemsize
        )
        self._mapping = array.mapping
        self._lock = threading.Lock()
        self._told = False
        self._access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        flags = os.O_RDWR if writable else os.O_RDONLY
        self.fd = open_regular(path, flags)
        try:
            stat = os.fstat(self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        space = ("file", stat.st_dev, stat.st_ino)
        self.footprint: Footprint | None = footprint.footprint(space, offset, shape, strides, dtype)

    @property
    def missing(self) -> str:
        """Message if the file ends before the array does; else empty."""
        assert self.footprint is not None
        size = os.fstat(self.fd).st_size
        if self.footprint.stop <= size or not self.spec.size:
            return ""
        return (
            f"{self.spec.name} holds {size} bytes, but its array ends at byte {self.footprint.stop}: it was not copied "
            "or written to its end"
        )

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            fd, self.fd, self._mapping = self.fd, -1, None
        if fd >= 0:
            os.close(fd)

    def mapped(self, region: Region) -> np.ndarray:
        """A region's elements in a mapping of the file; `EOFError` if that has become too short."""
        assert self.footprint is not None
        size, stop = os.fstat(self.fd).st_size, self.footprint.stop
        if size < stop:
            raise EOFError(f"its array ends at byte {stop}; the file has {size} bytes now")
        with self._lock:
            if self._mapping is None:
                whole = mmap.mmap(self.fd, stop, access=self._access)
                self._mapping = np.ndarray(self.spec.shape, self.dtype, whole, self.offset, self.strides)
        return layout.part(self._mapping, region)

    def run(self, region: Region) -> ByteRun | None:
        rows = self.rows(region)
        if rows is None:
            return None
        if rows.width >= min(LEAST_READ, math.prod(shape_of(region)) * self.dtype.itemsize):
            self._foresee(rows.width)
            position = layout.position(self.offset, region, self.strides)
            return ByteRun(position, *rows, fd=self.fd, swap=layout.swapped(self.dtype))
        return self.mapped_run(region, rows)

    def _foresee(self, nbytes: int, *, in_order: bool = False) -> None:
        """Turn the system's read-ahead off if the file is read in long runs: a run is requested at once anyway.

        It stays on for runs that come in order from few threads, if it reads far ahead: then the disk works while they
        compute.
        """
        if nbytes < RUN or self._told:
            return
        self._told = True
        with suppress(OSError, AttributeError):  # it has no such call, or the file is none of those
            far = in_order and page_cache.read_ahead(self.fd) >= page_cache.FAR
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL if far else os.POSIX_FADV_RANDOM)

    def rows(self, region: Region) -> layout.PitchedRows | None:
        """A region's rows; None if they are irregular, or too short to be worth it."""
        shape, order = shape_of(region), self.spec.order
        rows = layout.rows(permuted(shape, order), permuted(self.strides, order), self.dtype.itemsize)
        worth = rows is not None and rows.width >= min(layout.LEAST_ROW, math.prod(shape) * self.dtype.itemsize)
        return rows if worth else None

    def mapped_run(self, region: Region, rows: layout.PitchedRows) -> ByteRun | None:
        """The run in a mapping of the file."""
        assert self.footprint is not None
        try:
            address = self.mapped(region).ctypes.data
        except (OSError, EOFError):
            return None  # whoever reads or writes there says what is wrong
        return ByteRun(address, *rows, mapped=self.fd, size=self.footprint.stop, swap=layout.swapped(self.dtype))

    def ascending(self, region: Region, array: np.ndarray) -> tuple[int, Shape, np.ndarray]:
        """Position, strides and view of a region with its strides positive, the largest one first."""
        start = self.offset
        flips = []
        strides = []
        for side, stride in zip(region, self.strides, strict=True):
            start += side.start * stride
            if stride < 0:
                start += (side.stop - side.start - 1) * stride
            flips.append(slice(None, None, -1 if stride < 0 else 1))
            strides.append(abs(stride))
        order = layout.memory_order(array.shape, strides)
        view = layout.part(array, tuple(flips)).transpose(order)
        return start, tuple(strides[axis] for axis in order), view

    def is_long(self, strides: Shape, view: np.ndarray) -> bool:
        """Whether runs that are gapless both in the file and in memory are worth a system call each."""
        run = layout.shared_run(view.shape, strides, view.strides, self.dtype.itemsize)
        return run >= min(RUN, view.nbytes)


class FileSource(StridedFile, Unviewed):
    """A strided array in a file; `ReadError` if that is too short to hold it.

    `guard` was made before the file was looked at. Without `guarded` others may write to it meanwhile.
    """

    def __init__(self, array: Strided, guard: Guard | None = None, *, guarded: bool = True) -> None:
        self.guard = guard or (Guard.of_files(array.name or array.path, array.path) if guarded else None)
        with translated(ReadError, f"cannot open {array.path}", array.path, foreign=OSError):
            super().__init__(array)
        if missing := self.missing:
            self.close()
            raise ReadError(f"truncated file: {missing}", path=array.path)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # nothing was written
            super().close()

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        try:
            if self._is_run(out):
                self._foresee(out.nbytes, in_order=True)
                position = layout.position(self.offset, region, self.strides)
                pread(self.fd, position, out.transpose(self.spec.order).reshape(-1).view(np.uint8))
            else:
                start, strides, view = self.ascending(region, out)
                if self.is_long(strides, view):
                    self._foresee(RUN)
                    self._fill(start, strides, view)
                else:
                    np.copyto(out, self.mapped(region))
        except EOFError as error:
            name = self.spec.name
            message = f"short read of {describe(region)} from {name}: {error}"
            raise ReadError(message, path=name, region=region) from None
        except OSError as error:
            raise unread(region, self.spec.name, error) from error

    def where(self, region: Region) -> str:
        return f"{self._path}, from byte {layout.position(self.offset, region, self.strides)} on"

    def _is_run(self, out: np.ndarray) -> bool:
        """Whether `out` is one run of the file with the same layout: the common case, decided in a few microseconds."""
        order = self.spec.order
        return (
            self._packed and contiguous(out.shape, self.spec.shape, order) and out.transpose(order).flags.c_contiguous
        )

    def cold(self, region: Region) -> int:
        shape, itemsize = shape_of(region), self.dtype.itemsize
        nbytes = layout.paged(shape, self.strides, itemsize, page_cache.PAGE)
        if nbytes < page_cache.LEAST:
            return 0
        first = layout.position(self.offset, region, self.strides)
        low, high = layout.bounds(shape, self.strides, itemsize)
        return int(nbytes * (page_cache.absent(self.fd, first + low, first + high) or 0.0))

    def _fill(self, start: int, strides: Shape, out: np.ndarray) -> None:
        if layout.is_packed(out.shape, strides, self.dtype.itemsize) and out.flags.c_contiguous:
            pread(self.fd, start, out.reshape(-1).view(np.uint8))
            if not self.dtype.isnative:
                out.byteswap(inplace=True)
            return
        for i in range(out.shape[0]):
            self._fill(start + i * strides[0], strides[1:], out[i, ...])


def pread(fd: int, position: int, into: np.ndarray) -> None:
    """Fill flat bytes from a position of a file on; `EOFError` if it ends before."""
    buffer, done = into.data, 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], position + done)
        if not count:
            raise EOFError(
                f"expected {len(buffer)} bytes at offset {position} and got {done}; "
                f"the file has {os.fstat(fd).st_size} bytes now"
            )
        done += count
