"""Histograms and top-k: folds over all elements of an array, or along one of its axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold

Value = tuple[Any, ...]

SINGLE = 2.0**24
"""Numbers from here on are further apart than 1 in single precision."""


def added(left: Value, right: Value) -> Value:
    """Sums of two tuples of counts."""
    return tuple([a + b for a, b in zip(left, right, strict=True)])


def extremes(block: Any) -> Value:
    """Smallest and largest element of a block, each in an array of one; NaN if one of them is."""
    return block.min().reshape(1), block.max().reshape(1)


def outermost(left: Value, right: Value) -> Value:
    """Smallest and largest of two pairs."""
    return np.minimum(left[0], right[0]), np.maximum(left[1], right[1])


def histogrammed(block: Any, bins: Any, limits: Any, edges: np.ndarray, weights: Any) -> Any:
    """Counts, or sums of weights, of a block's elements in the bins of the whole array.

    NumPy gets the user's arguments, which may be faster than edges. Other array modules get NumPy's edges, without the
    elements that they would count in another way than NumPy.
    """
    if isinstance(block, np.ndarray):
        return np.histogram(block, bins, limits, weights=weights)[0]
    if len(edges) < 2:  # no bins
        return np.asarray(np.histogram(np.empty(0), edges, weights=None if weights is None else [])[0], like=block)
    x = block.reshape(-1)
    if x.dtype.char not in "fd":  # CuPy counts integers beyond the last edge if that is not an integer
        x = x.astype("f8")
    weights = None if weights is None else weights.reshape(-1)
    numbers = ~np.isnan(x)  # with weights CuPy counts NaN in the first bin
    if not numbers.all():
        x, weights = x[numbers], None if weights is None else weights[numbers]
    if x.dtype.char == "f" and abs(edges).max() >= SINGLE:  # CuPy leaves so large an edge out of single-precision bins
        x, edges = x.astype("f8"), edges.astype("f8")
    last = np.float64(edges[-1])
    if edges[-2] < last < np.inf and np.spacing(abs(last)) >= 1:  # CuPy leaves so large an edge out of the last bin
        x = np.where(x == last, np.nextafter(last, -np.inf), x)
    if np.isinf(edges[-1]):  # CuPy leaves infinity out of the last bin
        x = np.minimum(x, np.finfo(x.dtype).max)
    return np.histogram(x, np.asarray(edges, like=x), weights=weights)[0]


BEYOND = np.iinfo(np.intp).max
"""What stands for no integer: larger than all."""


def counts_from(block: Any, weights: Any, first: int, number: int) -> Value:
    """How often each of a number of integers from `first` on is in a block; and the least one beyond them.

    With weights their sums. The memory that it takes does not depend on the integers.
    """
    places = block.astype(np.intp)
    beyond = np.where(places < first + number, BEYOND, places).min().reshape(1)
    places -= first
    np.clip(places, -1, number, out=places)
    places += 1
    return np.bincount(places, weights, number + 2)[1:-1], beyond


def counts_between(block: Any, edges: np.ndarray) -> Value:
    """How many elements of a block are in each bin, without its right edge; and the least element beyond all bins.

    The memory that it takes does not depend on the elements.
    """
    x, number = block.reshape(-1).astype(edges.dtype, copy=False), len(edges) - 1
    places = np.searchsorted(np.asarray(edges, like=x), x, side="right")
    beyond = np.where((places > number) & (x == x), x, np.inf).min().reshape(1)
    return np.bincount(places, minlength=number + 2)[1:-1], beyond


def counts_added(left: Value, right: Value) -> Value:
    """Of two such results the sums of counts, and what is next after all of them."""
    return (left[0] + right[0], *map(np.minimum, left[1:], right[1:]))


def same(value: Value) -> Any:
    """The value itself, as the result."""
    return value if len(value) > 1 else value[0]


@dataclass(frozen=True)
class Tally(Fold):
    """A fold over all axes, as three functions.

    ``count(*blocks)`` is the value of one block, a tuple of arrays in new memory; ``merge(left, right)`` is the merged
    value, and ``result(value)`` what is stored. Where there are `number` counts, ``fewer(number)`` is the tally of so
    many of them, whose memory a trial measures in place of this one's.
    """

    count: Callable[..., Value]
    merge: Callable[[Value, Value], Value] = added
    result: Callable[[Value], Any] = same
    number: int = field(default=0, metadata={"fleeting": True})
    fewer: Callable[[int], Tally] | None = field(default=None, metadata={"fleeting": True})

    @property
    def most_counts(self) -> int:
        return self.number if self.fewer is not None else 0

    def with_fewer(self, share: float) -> tuple[Tally, dict[int, int]]:
        if self.fewer is None:
            return self, {}
        few = max(2, math.ceil(share * self.number))
        return self.fewer(few), {few: self.number}

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        found = self.count(*blocks)
        return found if value is None else self.merge(value, found)

    def combine(self, left: Value, right: Value) -> Value:
        return self.merge(left, right)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        return self.result(value)


@dataclass(frozen=True)
class TopK(Fold):
    """The `k` largest elements along an axis, largest first; if negative the smallest ones, smallest first.

    NaN counts as larger than any number, as in NumPy's sorting.
    """

    axis: int
    k: int

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        found = self._selected(blocks[0])
        if value is not None:
            found = self._selected(np.concatenate((value[0], found), self.axis))
        if not nest.outputs and found.shape[self.axis] < abs(self.k):
            # The trial call's block may have too few elements, but its results must be as long as a run's.
            taken = blocks[0].copy()  # the trial measures the memory of a selection from a longer block
            longer = (*found.shape[: self.axis], abs(self.k), *found.shape[self.axis + 1 :])
            found = np.zeros_like(found, shape=longer)
            del taken
        return (found,)

    def combine(self, left: Value, right: Value) -> Value:
        return (self._selected(np.concatenate((left[0], right[0]), self.axis)),)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        found = np.sort(value[0], axis=self.axis)
        lacking = abs(self.k) - found.shape[self.axis]
        if lacking > 0:  # of a partition, whose value counts and is combined with others': results have their length
            shape = (*found.shape[: self.axis], lacking, *found.shape[self.axis + 1 :])
            found = np.concatenate((found, np.zeros_like(found, shape=shape)), self.axis)
        return np.flip(found, self.axis) if self.k > 0 else found

    def _selected(self, candidates: Any) -> Any:
        """The candidates that may be among the `k`, in any order, in new memory."""
        number = abs(self.k)
        if candidates.shape[self.axis] <= number:
            return candidates.copy()
        if not isinstance(candidates, np.ndarray):
            found = np.sort(candidates, self.axis)  # CuPy's partition does not know where NaN belongs
        else:
            found = np.partition(candidates, -number if self.k > 0 else number - 1, self.axis)
        chosen = slice(-number, None) if self.k > 0 else slice(None, number)
        return found[(*(slice(None),) * self.axis, chosen)].copy()


def counts_in_boxes(columns: Sequence[Any], edges: Sequence[np.ndarray], weights: Any, number: int) -> Any:
    """Counts, or sums of weights, of points in the first boxes of a grid, in C order: at most `number` of them.

    A box has its lower edges; the last one along an axis its upper edge too.
    """
    places: Any = None
    outside: Any = None
    for column, ends in zip(columns, edges, strict=True):
        x = column.reshape(-1)
        dtype = np.result_type(x, ends)  # in which NumPy compares; CuPy asks for one dtype
        x, ends = x.astype(dtype, copy=False), np.asarray(ends.astype(dtype), like=x)
        place = np.searchsorted(ends, x, side="right") - 1
        place -= x == ends[-1]
        beyond = (place < 0) | (place >= len(ends) - 1) | (x != x)
        outside = beyond if outside is None else outside | beyond
        places = place if places is None else places * (len(ends) - 1) + place
    places = np.where(outside, number, np.minimum(places, number))
    counts = np.bincount(places, None if weights is None else weights.reshape(-1), number + 1)
    return counts[:number].copy()
