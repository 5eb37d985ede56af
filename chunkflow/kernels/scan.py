"""Scans: running results along an axis. Each block passes its last result to the next block, as the carry.

The carry is combined with a block's first element before anything else. So sums and products are computed in the
array's order, as in NumPy, and do not depend on how the array is cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Carry, Kernel
from chunkflow.kernels.twins import suited

LONG_SLICE = 512
"""Elements of a slice from which on one NumPy call per slice is faster."""

Run = Callable[[Any, Any, int], Any]
"""Running results of a block along an axis, given the carry (None for the first block), in new memory."""


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype of sums: double precision or more for floats; their own for integers, so that they wrap.

    >>> wide(np.dtype("f4")), wide(np.dtype("c8")), wide(np.dtype("i2"))
    (dtype('float64'), dtype('complex128'), dtype('int16'))
    """
    return np.result_type(dtype, "f8") if dtype.kind in "fc" else dtype


@dataclass(frozen=True)
class Scan(Carry):
    """Running results along one axis.

    Attributes
    ----------
    axis : int
        Axis of the scan.
    run : callable
        Running results of one block, in the carry's dtype.
    dtype : numpy.dtype
        Dtype of the stored results.
    flat : bool
        Whether blocks are flattened in C order first. They are then cut along the first axis only.
    """

    axis: int
    run: Run
    dtype: np.dtype
    flat: bool = False

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        block = blocks[0].reshape(-1) if self.flat else blocks[0]
        running = self.run(block, carry, self.axis)
        # A copy: the results' memory is used again while the next block is computed.
        last = running[(*_before(self.axis), slice(-1, None))].copy()
        return running.astype(self.dtype, copy=False), last


@singledispatch
def accumulated(x: Any, ufunc: Any, carry: Any, axis: int, dtype: np.dtype) -> Any:
    """``ufunc.accumulate`` along an axis in a dtype, the carry first; None where NumPy's functions are to do it.

    Devices with arrays of their own register what does it there.
    """
    return None


def running_total(ufunc: np.ufunc, dtype: np.dtype) -> Run:
    """Running sums in `dtype` by ``np.add``, or products by ``np.multiply``."""
    accumulate = np.cumsum if ufunc is np.add else np.cumprod

    def run(block: Any, carry: Any, axis: int) -> Any:
        if (found := accumulated(block, ufunc, carry, axis, dtype)) is not None:
            return found
        running = block.astype(dtype)
        if carry is not None:
            first = running[(*_before(axis), slice(0, 1))]
            first[...] = ufunc(carry, first)
        if _in_slices(running, axis):
            return sliced(ufunc, running, axis)
        # CuPy has a faster scan of the only axis for None.
        return accumulate(running, axis=None if running.ndim == 1 else axis, dtype=dtype, out=running)

    return run


def running_fold(ufunc: Any, dtype: np.dtype) -> Run:
    """Running results of a ufunc that may be applied in any grouping, such as ``np.maximum``."""

    def run(block: Any, carry: Any, axis: int) -> Any:
        if (found := accumulated(block, ufunc, carry, axis, dtype)) is not None:
            return found
        if _in_slices(block, axis):
            running = sliced(ufunc, block.astype(dtype), axis)
        elif isinstance(block, np.ndarray):
            running = ufunc.accumulate(block.astype(dtype, copy=False), axis=axis)
        else:
            running = doubled(ufunc, block.astype(dtype, copy=False), axis)
        return running if carry is None else suited(ufunc, (running, carry))(carry, running)

    return run


def sliced(ufunc: np.ufunc, running: np.ndarray, axis: int) -> np.ndarray:
    """``ufunc.accumulate`` in place, slice by slice: the same operations in the same order."""
    slices = np.moveaxis(running, axis, 0)
    for last, this in itertools.pairwise(slices):
        ufunc(last, this, out=this)
    return running


def doubled(ufunc: Any, block: Any, axis: int) -> Any:
    """``ufunc.accumulate`` for array modules that lack it: log2(n) steps, each over twice the distance.

    The algorithm is Hillis and Steele's, "Data Parallel Algorithms" (1986).

    >>> doubled(np.maximum, np.array([3, 1, 4, 1, 5, 2]), 0)
    array([3, 3, 4, 4, 5, 5])
    """
    running, step, fn = block.copy(), 1, suited(ufunc, (block, block))
    while step < block.shape[axis]:
        later = running[(*_before(axis), slice(step, None))]
        # The results are new arrays, because the places that they go to are still read.
        later[...] = fn(later, running[(*_before(axis), slice(None, -step))])
        step *= 2
    return running


@dataclass(frozen=True)
class ForwardFill(Carry):
    """Each NaN becomes the last number before it along an axis, as far as `limit` elements on; None: however far.

    The carry is that number, and how many elements ago it was.
    """

    axis: int
    limit: int | None

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        (block,) = blocks
        along = tuple(-1 if a == self.axis else 1 for a in range(block.ndim))
        places = np.arange(block.shape[self.axis], like=block).reshape(along)
        last = running_fold(np.maximum, np.dtype(np.intp))(np.where(np.isnan(block), -1, places), None, self.axis)
        filled, ago = np.take_along_axis(block, np.maximum(last, 0), self.axis), places - last
        if carry is not None:
            number, before = carry
            filled = np.where(last < 0, number, filled)
            ago += np.where(last < 0, before, 0)
        end = (*_before(self.axis), slice(-1, None))
        passed = filled[end].copy(), ago[end].copy()
        if self.limit is not None:
            filled[ago > self.limit] = np.nan
        return filled, passed


@dataclass(frozen=True)
class Difference(Kernel):
    """Differences along an axis. A block has `order` more elements than its results."""

    axis: int
    order: int

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        side = box[self.axis]
        # A block may be longer than asked for, up to the end of a store's chunk.
        block = blocks[0][(*_before(self.axis), slice(0, side.stop - side.start + self.order))]
        return np.diff(block, n=self.order, axis=self.axis)


def _before(axis: int) -> tuple[slice, ...]:
    return (slice(None),) * axis


def _in_slices(block: Any, axis: int) -> bool:
    """Whether slices are faster than NumPy, which walks along the axis for each element across it."""
    if not isinstance(block, np.ndarray) or block.size < LONG_SLICE * block.shape[axis]:
        return False
    return abs(block.strides[axis]) > block.itemsize
