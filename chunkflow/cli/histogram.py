"""Histogram of an array whose range nobody knows before: one pass finds its range, its bins and their counts.

Bins are as wide as a power of two, and their edges are multiples of the width. So two neighbours are one bin of twice
the width, and counts of two blocks are added up exactly, in the wider of their bins. The result is the same however the
array is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.operation import Options, Request, op_node
from chunkflow.api.statistics.bins import over_everything
from chunkflow.kernels.statistics import counting
from chunkflow.kernels.statistics.histogram import STRIP, Tally

BINS = 1024
"""Most bins. At least half of them are between the extremes, unless elements are too close together for that."""

FINEST = 52
"""Bits of the number of bins between 0 and the largest magnitude: no bin is narrower than doubles are apart there."""

LEAST = -1074
"""Exponent of the smallest double."""

MOST = float(np.finfo("f8").max)
"""The last edge, at most."""

COPIES = 8.0
"""Arrays as long as there are bins while two blocks' counts are merged."""

Counts = tuple[Any, ...]
"""Counts of bins; and in an array of two the number of the first bin, and the exponent of their width."""


@dataclass(frozen=True)
class Bars:
    """Counts between edges, of which there is one more.

    Attributes
    ----------
    edges : numpy.ndarray
        Of the bars, in ascending order.
    counts : numpy.ndarray
        Elements of each bar: from its lower edge on, below its upper edge.
    """

    edges: np.ndarray
    counts: np.ndarray

    def fewer(self, most: int) -> Bars:
        """The same in at most so many bars of equal width.

        >>> Bars(np.arange(6.0), np.arange(5)).fewer(3)
        Bars(edges=array([0., 2., 4., 6.]), counts=array([1, 5, 4]))
        """
        number = len(self.counts)
        each = -(-number // most) or 1
        bars = -(-number // each)
        counts = np.zeros(bars * each, self.counts.dtype)
        counts[:number] = self.counts
        width = self.edges[1] - self.edges[0] if number else 0.0
        with np.errstate(over="ignore"):
            edges = self.edges[0] + each * width * np.arange(bars + 1)
        return Bars(np.minimum(edges, MOST), counts.reshape(bars, each).sum(axis=1))


def histogram(x: Any) -> Any:
    """Lazy array of the finite elements' counts, for `bars`. It shares a pass with other reductions of `x`."""
    tally = Tally(counted, merged, lambda value: np.concatenate(value[::-1]))
    return Array(op_node(Request(over_everything(tally, None, COPIES), (x,), Options()), "histogram"))


def bars(found: np.ndarray) -> Bars:
    """Bars from the computed result of `histogram`: none without finite elements."""
    first, exponent, *counts = (int(n) for n in found)
    used = np.flatnonzero(counts)
    if not len(used):
        return Bars(np.zeros(1), np.zeros(0, np.int64))
    some = slice(int(used[0]), int(used[-1]) + 1)
    with np.errstate(over="ignore"):
        edges = np.ldexp(np.arange(first + some.start, first + some.stop + 1).astype("f8"), exponent)
    return Bars(np.clip(edges, -MOST, MOST), np.asarray(counts[some], np.int64))


def counted(block: Any) -> Counts:
    """Counts of a block: of the CPU's in strips that stay in its cache."""
    flat = block.reshape(-1)
    strip = STRIP if isinstance(flat, np.ndarray) else max(flat.size, 1)
    return reduce(merged, (_binned(flat[i : i + strip]) for i in range(0, max(flat.size, 1), strip)))


def _binned(x: Any) -> Counts:
    least = 0 if x.dtype.kind in "iu" else LEAST
    x = x[np.isfinite(x)].astype("f8")
    if not x.size:
        return np.zeros(BINS, np.int64, like=x), np.asarray([0, least], like=x)
    low, high = float(x.min()), float(x.max())
    exponent = max(math.frexp(max(-low, high))[1] - FINEST, least)
    while _place(high, exponent) - _place(low, exponent) >= BINS:
        exponent += 1
    first = _place(low, exponent)
    places = np.floor(np.ldexp(x, -exponent)).astype(np.int64) - first
    return counting.counted(places, BINS), np.asarray([first, exponent], like=x)


def _place(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


def merged(left: Counts, right: Counts) -> Counts:
    """Counts of two blocks together."""
    if not (left[0].any() and right[0].any()):
        return left if left[0].any() else right
    exponent = max(int(left[1][1]), int(right[1][1]))
    while True:
        pair = [_coarsened(each, exponent) for each in (left, right)]
        first, last = min(each[1] for each in pair), max(each[2] for each in pair)
        if last - first < BINS:
            break
        exponent += 1
    total = np.zeros_like(left[0])
    for counts, start, _ in pair:
        total[start - first :] += counts[: BINS + first - start]
    return total, np.asarray([first, exponent], like=total)


def _coarsened(value: Counts, exponent: int) -> tuple[Any, int, int]:
    """Counts of wider bins, with the numbers of the first one and of the last one that is not empty."""
    counts, (first, before) = value[0], map(int, value[1])
    wider = min(exponent - before, 63)
    places = (first + np.arange(BINS, like=counts) >> wider) - (first >> wider)
    found = np.bincount(places, counts, BINS).astype(counts.dtype)
    return found, first >> wider, (first + int(np.flatnonzero(counts)[-1])) >> wider
