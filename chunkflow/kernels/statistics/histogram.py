"""Histograms: folds over all elements of an array."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Became, Fold
from chunkflow.kernels.statistics.counting import counted, in_bins

Value = tuple[Any, ...]

SINGLE = 2.0**24
"""Numbers from here on are further apart than 1 in single precision."""


STRIP = 1 << 16
"""Points that are counted at a time on the CPU: what is known of them stays in its cache."""


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
        alike = np.ndim(bins) == 0
        found = in_bins(block, edges, alike=alike) if weights is None and block.size else None
        return np.histogram(block, bins, limits, weights=weights)[0] if found is None else found
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
    return weighed(places, weights, number + 2)[1:-1], beyond


def counts_between(block: Any, edges: np.ndarray) -> Value:
    """How many elements of a block are in each bin, without its right edge; and the least element beyond all bins.

    The memory that it takes does not depend on the elements.
    """
    x, number = block.reshape(-1).astype(edges.dtype, copy=False), len(edges) - 1
    places = np.searchsorted(np.asarray(edges, like=x), x, side="right")
    beyond = np.where((places > number) & (x == x), x, np.inf).min().reshape(1)
    return counted(places, number + 2)[1:-1], beyond


def weighed(places: Any, weights: Any, number: int) -> Any:
    """How often each integer below `number` is in an array, which has no others; with weights their sums."""
    return counted(places, number) if weights is None else np.bincount(places, weights, number)


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

    def with_fewer(self, share: float) -> tuple[Tally, Sequence[Became]]:
        if self.fewer is None:
            return self, [{}]
        few = max(2, math.ceil(share * self.number))
        return self.fewer(few), [{few: self.number}]

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        found = self.count(*blocks)
        return found if value is None else self.merge(value, found)

    def combine(self, left: Value, right: Value) -> Value:
        return self.merge(left, right)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        return self.result(value)


def counts_in_boxes(columns: Sequence[Any], edges: Sequence[np.ndarray], weights: Any, number: int) -> Any:
    """Counts, or sums of weights, of points in the first boxes of a grid, in C order: at most `number` of them.

    A box has its lower edges; the last one along an axis its upper edge too.
    """
    flat = [a.reshape(-1) for a in (*columns, *([] if weights is None else [weights]))]
    on_cpu = isinstance(flat[0], np.ndarray)
    steps = [_steps(ends) if on_cpu else 0.0 for ends in edges]  # a GPU searches quicker than it rounds step by step
    strip = max(STRIP, number) if on_cpu else max(1, flat[0].size)
    found: Any = None
    for start in range(0, max(1, flat[0].size), strip):
        part = [a[start : start + strip] for a in flat]
        places: Any = None
        outside: Any = False
        for column, each, step in zip(part, edges, steps, strict=False):  # weights come last
            dtype = np.result_type(column, each)  # in which NumPy compares; CuPy asks for one dtype
            ends = np.asarray(each.astype(dtype), like=column)
            place, beyond = _places_between(column.astype(dtype, copy=False), ends, float(each[0]), step)
            outside = beyond | outside
            if places is None:
                places = place
            else:
                places *= len(ends) - 1
                places += place
        np.minimum(places, number, out=places)
        np.copyto(places, number, where=outside)
        counts = weighed(places, part[-1] if weights is not None else None, number + 1)
        found = counts if found is None else found + counts
    return found[:number].copy()


def _steps(edges: np.ndarray) -> float:
    """How many bins there are in a length of 1, if that tells an element's bin or the one beside it; else 0.

    Each edge is at most half a bin from where it would be if all were as wide.
    """
    with np.errstate(all="ignore"):
        ends = edges.astype("f8")
        steps = (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else 0.0
        off = abs((ends - ends[0]) * steps - np.arange(len(ends)))
    return float(steps) if np.isfinite(steps) and (off <= 0.5).all() else 0.0


def _places_between(x: Any, ends: Any, low: float, steps: float) -> tuple[Any, Any]:
    """The bin of each element, of which the last one has its upper edge; and whether it is beyond all bins."""
    last = len(ends) - 2
    if not steps:
        place = np.searchsorted(ends, x, side="right")
        place -= 1
        place -= x == ends[-1]
        return place, place.view("u8") >= np.uint64(last + 1)  # below the bins it is -1
    beyond = ~((x >= ends[0]) & (x <= ends[-1]))
    with np.errstate(all="ignore"):
        place = (x.astype("f8") - low) * steps
        place = np.fmin(np.fmax(place, 0, out=place), last, out=place).astype(np.intp)
    place -= x < ends[place]
    np.maximum(place, 0, out=place)
    place += x >= ends[place + 1]
    return np.minimum(place, last, out=place), beyond
