"""The kernels that reduce segments of rows: what `chunkflow.kernels.statistics.segments` has, on a GPU.

A thread reduces up to `PIECE` rows of one column, one after the other. Longer segments are cut into pieces, whose
results are segments again. No thread waits for another one, so a sum is the same in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.kernels.fusion.codegen import Elementwise, Parameters

PIECE = 64
"""Rows that a thread reduces, where segments are cut."""

WIDE = 1 << 16
"""Columns from which the threads of a single segment keep a GPU busy: none is cut."""

FORMS: dict[Any, str] = {
    np.add: "acc + v",
    np.multiply: "acc * v",
    np.logical_or: "acc || v",
    np.logical_and: "acc && v",
    np.minimum: "v < acc || v != v ? v : acc",
    np.maximum: "v > acc || v != v ? v : acc",
    np.fmin: "v < acc || acc != acc ? v : acc",
    np.fmax: "v > acc || acc != acc ? v : acc",
}

# Thread i takes column i % columns of piece i / columns. A segment has the pieces from one of `pieces` to the next, and
# the rows from one of `bounds` to the next. There may be more threads than pieces.
ROWS = """
const long long piece = i / columns, column = i - piece * columns;
if (piece < pieces[segments]) {
    long long low = 0, high = segments;
    while (high - low > 1) {
        const long long middle = (low + high) / 2;
        if (pieces[middle] <= piece) low = middle; else high = middle;
    }
    const long long first = bounds[low] + (piece - pieces[low]) * most, last = min(bounds[low + 1], first + most);
    LOOP
}
"""

REDUCE = """
    A acc = (A)x[first * columns + column];
    #pragma unroll 4
    for (long long row = first + 1; row < last; row++) {
        const A v = (A)x[row * columns + column];
        acc = FORM;
    }
    out[i] = acc;
"""

# About the first element, which is one of those that are counted: so nothing is lost where they are far from 0.
MOMENTS = """
    double count = 0, origin = 0, sum = 0, squared = 0;
    for (long long row = first; row < last; row++) {
        const double v = (double)x[row * columns + column];
        if (skip && v != v) continue;
        if (count == 0) origin = v;
        const double off = v - origin;
        count += 1;
        sum += off;
        squared += off * off;
    }
    const double off = count > 0 ? sum / count : 0;
    const double about = squared - sum * off;
    number[i] = count;
    mean[i] = origin + off;
    squares[i] = about < 0 ? 0 : about;
"""

# T. F. Chan, G. H. Golub and R. J. LeVeque, 1979.
MERGE = """
    double count = 0, middle = 0, squared = 0;
    for (long long row = first; row < last; row++) {
        const long long at = row * columns + column;
        const double more = numbers[at];
        if (more == 0) continue;
        const double share = more / (count + more), off = means[at] - middle;
        squared += count > 0 ? found[at] + off * off * count * share : found[at];
        middle = count > 0 ? middle + off * share : means[at];
        count += more;
    }
    number[i] = count;
    mean[i] = middle;
    squares[i] = squared;
"""

CUT: Parameters = (
    *(("raw int64", "bounds"), ("raw int64", "pieces")),
    *(("int64", "columns"), ("int64", "segments"), ("int64", "most")),
)
INPUTS: Parameters = (("raw T", "x"), *CUT)
OUTPUTS: Parameters = (("raw A", "out"),)
TRIPLE: Parameters = (("raw float64", "number"), ("raw float64", "mean"), ("raw float64", "squares"))
TRIPLES: Parameters = (("raw float64", "numbers"), ("raw float64", "means"), ("raw float64", "found"))


def accumulated(ufunc: Any, dtype: np.dtype) -> np.dtype:
    """The dtype of partial results: floats are added and multiplied in double precision."""
    if dtype.kind in "fc" and ufunc in (np.add, np.multiply):
        return np.result_type(dtype, "f8")
    return np.dtype("f4") if dtype == np.dtype("f2") else dtype


class Pieces:
    """Segments that are cut into pieces of a thread each, so that many threads work on a long one.

    Attributes
    ----------
    bounds, pieces : array
        Where segments begin among the rows, and among the pieces; and where the last one ends.
    most, number : int
        Rows of a piece, and how many pieces there are at most.
    whole : bool
        Whether each segment is a piece.
    """

    def __init__(self, bounds: Any, longest: int, columns: int) -> None:
        self.bounds, self._longest, self._columns, self.segments = bounds, longest, columns, len(bounds) - 1
        self.whole = longest <= PIECE or columns >= WIDE
        self.most = longest if self.whole else PIECE
        self.pieces = np.zeros_like(bounds)
        np.cumsum((bounds[1:] - bounds[:-1] + self.most - 1) // self.most, out=self.pieces[1:])
        self.number = self.segments if self.whole else self.segments + longest // self.most

    @classmethod
    def of(cls, starts: Any, rows: Any) -> Pieces:
        """The rows of a table, cut: segments begin at `starts`."""
        ends = np.full_like(starts, len(rows), shape=(1,))
        return cls(np.concatenate((starts, ends)).astype("i8", copy=False), len(rows) - len(starts) + 1, rows.shape[1])

    def again(self) -> Pieces:
        """The results of the pieces, cut again: a segment has as many rows now as it had pieces."""
        return Pieces(self.pieces, -(-self._longest // self.most), self._columns)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a kernel is told of them."""
        return self.bounds, self.pieces, self._columns, self.segments, self.most


def _table(x: Any) -> Any:
    rows = x.reshape(len(x), -1)
    return rows if rows.flags.c_contiguous else rows.copy()


def reducer(make: Elementwise) -> Callable[[Any, np.ufunc, Any], Any]:
    """`segmented` for arrays of a device that compiles kernels with `make`."""

    def segmented(x: Any, ufunc: np.ufunc, starts: Any) -> Any:
        rows = _table(x)
        cut, shape = Pieces.of(starts, rows), (len(starts), *x.shape[1:])
        kernel = make(INPUTS, OUTPUTS, ROWS.replace("LOOP", REDUCE.replace("FORM", FORMS[ufunc])))
        while True:
            found = np.empty_like(rows, accumulated(ufunc, x.dtype), shape=(cut.number, rows.shape[1]))
            kernel(rows, *cut.arguments, found, size=found.size)
            if cut.whole:
                return found.astype(x.dtype, copy=False).reshape(shape)
            rows, cut = found, cut.again()

    return segmented


def momenter(make: Elementwise) -> Callable[..., Any]:
    """`moments` for arrays of a device that compiles kernels with `make`."""

    def moments(x: Any, starts: Any, *, skip: bool) -> Any:
        if x.dtype.kind not in "biuf":
            return None
        rows = _table(x.astype("f4") if x.dtype == np.dtype("f2") else x)
        cut = Pieces.of(starts, rows)
        kernel = make((*INPUTS, ("bool", "skip")), TRIPLE, ROWS.replace("LOOP", MOMENTS))
        merge = make((*TRIPLES, *CUT), TRIPLE, ROWS.replace("LOOP", MERGE))
        found = triple(rows, (cut.number, rows.shape[1]))
        kernel(rows, *cut.arguments, skip, *found, size=found[0].size)
        while not cut.whole:
            parts, cut = found, cut.again()
            found = triple(rows, (cut.number, rows.shape[1]))
            merge(*parts, *cut.arguments, *found, size=found[0].size)
        return found

    return moments


def triple(like: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """Room for moments, on the device of an array."""
    return tuple([np.empty_like(like, "f8", shape=shape) for _ in TRIPLE])
