"""The kernel that reduces segments of rows: `chunkflow.kernels.statistics.segments.segmented` on a GPU.

A thread reduces up to `PIECE` rows of one column, one after the other. Longer segments are cut into pieces, whose
results are segments again. No thread waits for another one, so a sum is the same in each run.
"""

from __future__ import annotations

from collections.abc import Callable
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
BODY = """
const long long piece = i / columns, column = i - piece * columns;
if (piece < pieces[segments]) {
    long long low = 0, high = segments;
    while (high - low > 1) {
        const long long middle = (low + high) / 2;
        if (pieces[middle] <= piece) low = middle; else high = middle;
    }
    const long long first = bounds[low] + (piece - pieces[low]) * most, last = min(bounds[low + 1], first + most);
    A acc = (A)x[first * columns + column];
    #pragma unroll 4
    for (long long row = first + 1; row < last; row++) {
        const A v = (A)x[row * columns + column];
        acc = FORM;
    }
    out[i] = acc;
}
"""


INPUTS: Parameters = (
    *(("raw T", "x"), ("raw int64", "bounds"), ("raw int64", "pieces")),
    *(("int64", "columns"), ("int64", "segments"), ("int64", "most")),
)
OUTPUTS: Parameters = (("raw A", "out"),)


def accumulated(ufunc: Any, dtype: np.dtype) -> np.dtype:
    """The dtype of partial results: floats are added and multiplied in double precision."""
    if dtype.kind in "fc" and ufunc in (np.add, np.multiply):
        return np.result_type(dtype, "f8")
    return np.dtype("f4") if dtype == np.dtype("f2") else dtype


def reducer(make: Elementwise) -> Callable[[Any, np.ufunc, Any], Any]:
    """`segmented` for arrays of a device that compiles kernels with `make`."""

    def segmented(x: Any, ufunc: np.ufunc, starts: Any) -> Any:
        rows, dtype = x.reshape(len(x), -1), x.dtype
        rows = rows if rows.flags.c_contiguous else rows.copy()
        columns = rows.shape[1]
        bounds = np.concatenate((starts, np.full_like(starts, len(x), shape=(1,)))).astype("i8", copy=False)
        longest = len(x) - len(starts) + 1
        while True:
            whole = longest <= PIECE or columns >= WIDE
            most = longest if whole else PIECE
            pieces = np.zeros_like(bounds)
            np.cumsum((bounds[1:] - bounds[:-1] + most - 1) // most, out=pieces[1:])
            number = len(starts) if whole else len(starts) + longest // most
            found = np.empty_like(rows, accumulated(ufunc, dtype), shape=(number, columns))
            kernel = make(INPUTS, OUTPUTS, BODY.replace("FORM", FORMS[ufunc]))
            kernel(rows, bounds, pieces, columns, len(starts), most, found, size=found.size)
            if whole:
                return found.astype(dtype, copy=False).reshape(len(starts), *x.shape[1:])
            rows, bounds, longest = found, pieces, -(-longest // most)

    return segmented
