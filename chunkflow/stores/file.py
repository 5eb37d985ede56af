"""A strided array inside a file, read at positions, never through a mapping.

A read of a page that cannot be delivered is a signal that kills the process when it happens in a
mapping, and an exception here. It also goes straight into the staging buffer, without a page fault.
"""

from __future__ import annotations

import math
import os
import threading

import numpy as np

from chunkflow.errors import ReadError
from chunkflow.grid import Region, Shape, contiguous, describe, permuted
from chunkflow.spec import ArraySpec
from chunkflow.stores import layout
from chunkflow.stores.base import Footprint
from chunkflow.stores.checks import numeric_dtype

SCRATCH = 128 << 10
"""Bytes of a covering span that are read or gathered at once where a transfer can't be direct."""

_GAP = 16 << 10
"""A system call from Python costs about as much as copying this many bytes."""


class StridedFile:
    """Shape, strides (bytes) and dtype of an array whose element at index 0 lies at `offset`."""

    def __init__(
        self,
        path: str,
        offset: int,
        shape: Shape,
        strides: Shape,
        dtype: np.dtype,
        *,
        name: str | None = None,
        writable: bool = False,
    ) -> None:
        self.offset, self.strides, self.dtype = offset, tuple(strides), dtype
        self.spec = ArraySpec(
            name=name or path,
            shape=tuple(shape),
            dtype=numeric_dtype(dtype, path),
            order=layout.memory_order(shape, strides),
        )
        order = self.spec.order
        self._packed = dtype.isnative and layout.is_packed(
            permuted(shape, order), permuted(strides, order), dtype.itemsize
        )
        self.spare: list[np.ndarray] = []
        self._lock = threading.Lock()
        flags = (os.O_WRONLY if writable else os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0)
        self.fd = os.open(path, flags)
        stat = os.fstat(self.fd)
        space = ("file", stat.st_dev, stat.st_ino)
        self.footprint: Footprint | None = layout.footprint(space, offset, shape, strides, dtype)

    @property
    def missing(self) -> str:
        """What to say if the file ends before the array does; empty if it does not."""
        assert self.footprint is not None
        size = os.fstat(self.fd).st_size
        if self.footprint.stop <= size or not self.spec.size:
            return ""
        return f"{self.spec.name} holds {size} bytes, but its array ends at byte {self.footprint.stop}"

    def close(self) -> None:
        """Close the file and free the scratch. Idempotent."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
        self.spare.clear()

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

    def borrow(self, nbytes: int) -> np.ndarray:
        """Scratch of at least `nbytes`, to be put back into `spare`: one per thread at work."""
        try:
            spare = self.spare.pop()
        except IndexError:
            spare = np.empty(0, np.uint8)
        return spare if spare.nbytes >= nbytes else np.empty(nbytes, np.uint8)

    def over(self, scratch: np.ndarray, shape: Shape, strides: Shape) -> np.ndarray:
        """The region's elements as they lie in a scratch that holds their span of the file."""
        return np.ndarray(shape, self.dtype, scratch, strides=strides)

    def span(self, shape: Shape, strides: Shape) -> int:
        """Bytes of the file from the first element to the last, for positive strides."""
        return layout.bounds(shape, strides, self.dtype.itemsize)[1]


class FileSource(StridedFile):
    """A strided array in a file, read by ``preadv``.

    Raises
    ------
    ReadError
        The file is too short to hold the array.
    """

    def __init__(
        self, path: str, offset: int, shape: Shape, strides: Shape, dtype: np.dtype, *, name: str | None = None
    ) -> None:
        try:
            super().__init__(path, offset, shape, strides, dtype, name=name)
        except OSError as error:
            raise ReadError(f"cannot open {path}: {error}", path=path, cause=error) from error
        if missing := self.missing:
            self.close()
            raise ReadError(f"truncated file: {missing}", path=path)

    def read(self, region: Region, out: np.ndarray) -> None:
        """See `Source.read`."""
        if not out.size:
            return
        try:
            if self._is_run(out):
                start = self.offset
                for side, stride in zip(region, self.strides, strict=True):
                    start += side.start * stride
                self._pread(start, out.transpose(self.spec.order).reshape(-1).view(np.uint8))
            else:
                self._fill(*self.ascending(region, out))
        except EOFError as error:
            raise ReadError(
                f"short read of {describe(region)} from {self.spec.name}: {error}",
                path=self.spec.name,
                region=region,
            ) from None
        except OSError as error:
            raise ReadError(
                f"cannot read {describe(region)} from {self.spec.name}: {error}",
                path=self.spec.name,
                region=region,
                cause=error,
            ) from error

    def _is_run(self, out: np.ndarray) -> bool:
        """Whether `out` is one run of the file as it lies: the common case, decided in a few microseconds."""
        order = self.spec.order
        return (
            self._packed and contiguous(out.shape, self.spec.shape, order) and out.transpose(order).flags.c_contiguous
        )

    def view(self, region: Region) -> np.ndarray | None:
        """See `Source.view`: a file has none."""
        return None

    def _fill(self, start: int, strides: Shape, out: np.ndarray) -> None:
        """Fill `out` from the file, by the longest runs that are worth it."""
        while out.ndim and out.shape[0] == 1:
            out, strides = out[0, ...], strides[1:]
        shape = out.shape
        packed = layout.is_packed(shape, strides, self.dtype.itemsize)
        if packed and out.flags.c_contiguous:
            self._pread(start, out.reshape(-1).view(np.uint8))
            if not self.dtype.isnative:
                out.byteswap(inplace=True)
            return
        rows = self._rows(strides, out, packed)
        for first in range(0, shape[0], rows or 1):
            part = out[first : first + (rows or 1)]
            position = start + first * strides[0]
            if not rows:
                self._fill(position, strides, part)
                continue
            span = self.span(part.shape, strides)
            scratch = self.borrow(span)
            self._pread(position, scratch[:span])
            np.copyto(part, self.over(scratch, part.shape, strides))
            self.spare.append(scratch)

    def _rows(self, strides: Shape, out: np.ndarray, packed: bool) -> int:
        """Rows (of the slowest axis) to read in one covering span; 0 to take each row by itself."""
        itemsize = self.dtype.itemsize
        row, inner = out.shape[1:], strides[1:]
        span = self.span(row, inner)
        useful = itemsize * math.prod(n for n, stride in zip(row, inner, strict=True) if stride)
        direct = useful >= 2 * _GAP and layout.is_packed(row, inner, itemsize) and out[0, ...].flags.c_contiguous
        dense = packed or strides[0] <= max(2 * useful, _GAP)
        if direct or not dense or span > SCRATCH:
            return 0
        return 1 + (SCRATCH - span) // strides[0] if strides[0] else out.shape[0]

    def _pread(self, position: int, into: np.ndarray) -> None:
        buffer = into.data
        done = 0
        while done < len(buffer):
            count = os.preadv(self.fd, [buffer[done:]], position + done)
            if not count:
                raise EOFError(
                    f"expected {len(buffer)} bytes at offset {position} and got {done}; "
                    f"the file has {os.fstat(self.fd).st_size} bytes now"
                )
            done += count
