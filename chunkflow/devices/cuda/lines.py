"""Kernels that walk along the lines of an axis: running results of a scan, and sums and moments of windows.

They are `chunkflow.kernels.scan.accumulated`, and `weighted` and `window_moments` of
`chunkflow.kernels.stencil.windows`, on a GPU. Neighbouring threads have neighbouring elements, so that each step of a
walk is one access for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.windows import Windows
from chunkflow.devices.cuda.segments import FORMS, MERGE, MOMENTS, TRIPLE, TRIPLES, triple
from chunkflow.kernels.fusion.codegen import Elementwise, Parameters

LINES = 1 << 14
"""Lines from which on a thread for each keeps a GPU busy."""

# Thread i walks along line i.
RUNNING = """
const long long first = i / inner * length * inner + i % inner;
long long row = 0;
A acc = started ? (A)carry[i] : (A)x[first];
if (!started) out[first + inner * row++] = acc;
#pragma unroll 4
for (; row < length; row++) {
    const A v = (A)x[first + row * inner];
    acc = FORM;
    out[first + row * inner] = acc;
}
"""
RUNNING_INPUTS: Parameters = (
    *(("raw T", "x"), ("raw A", "carry")),
    *(("int64", "length"), ("int64", "inner"), ("int64", "started")),
)

# Thread i makes element i.
WEIGHTED = """
const long long line = i / inner, outer = line / number;
const long long first = (outer * (number + width - 1) + line % number) * inner + i % inner;
A acc = x[first] * weights[0];
for (long long at = 1; at < width; at++) acc = acc + x[first + at * inner] * weights[at];
out[i] = acc;
"""
WEIGHTED_INPUTS: Parameters = (
    *(("raw A", "x"), ("raw A", "weights")),
    *(("int64", "number"), ("int64", "width"), ("int64", "inner")),
)
OUTPUTS: Parameters = (("raw A", "out"),)

# Thread i finds the moments of window i, of the rows from `first` to `last`; or merges those that other windows have.
WINDOW = """
const long long line = i / columns, column = i - line * columns;
const long long first = line / windows * (windows + width - 1) + line % windows, last = first + width;
LOOP
"""
SIDES: Parameters = (("int64", "columns"), ("int64", "windows"), ("int64", "width"))
WIDEST = 64
"""Elements of a window up to which a thread walks along it: doubling reads wider ones less often."""


def accumulator(make: Elementwise) -> Callable[..., Any]:
    """`accumulated` for arrays of a device that compiles kernels with `make`."""

    def accumulated(x: Any, ufunc: Any, carry: Any, axis: int, dtype: np.dtype) -> Any:
        if ufunc not in FORMS:
            return None
        order = lying_order(x)
        lying, place = x.transpose(order), order.index(axis)
        inner, length = math.prod(lying.shape[place + 1 :]), lying.shape[place]
        lines = x.size // max(length, 1)
        if lines < LINES or inner == 1 or dtype == np.dtype("f2") or not lying.flags.c_contiguous:
            return None
        found = np.empty_like(lying, dtype=dtype, order="C")
        before = found if carry is None else carry.transpose(order).reshape(-1)
        kernel = make(RUNNING_INPUTS, OUTPUTS, RUNNING.replace("FORM", FORMS[ufunc]))
        kernel(lying, before, length, inner, int(carry is not None), found, size=lines)
        return found.transpose(np.argsort(order).tolist())

    return accumulated


def weigher(make: Elementwise) -> Callable[..., Any]:
    """`weighted` for arrays of a device that compiles kernels with `make`."""

    def weighted(x: Any, axis: int, weights: np.ndarray) -> Any:
        order = lying_order(x)
        lying, place, dtype = x.transpose(order), order.index(axis), np.result_type(x, weights)
        lying = lying.astype(dtype, order="C", copy=not lying.flags.c_contiguous)
        number = lying.shape[place] - len(weights) + 1
        found = np.empty_like(lying, shape=(*lying.shape[:place], number, *lying.shape[place + 1 :]))
        if found.size:
            factors = np.asarray(weights.astype(dtype), like=lying)
            inner = math.prod(lying.shape[place + 1 :])
            kernel = make(WEIGHTED_INPUTS, OUTPUTS, WEIGHTED)
            kernel(lying, factors, number, len(weights), inner, found, size=found.size)
        return found.transpose(np.argsort(order).tolist())

    return weighted


def window_momenter(make: Elementwise) -> Callable[..., Any]:
    """`window_moments` for arrays of a device that compiles kernels with `make`."""

    def window_moments(x: Any, windows: Windows, *, skip: bool) -> Any:
        if x.dtype.kind not in "biuf" or max(windows.widths) > WIDEST:
            return None
        order = lying_order(x)
        rows = x.transpose(order).astype("f4" if x.dtype == np.dtype("f2") else x.dtype, order="C", copy=False)
        shape, found = list(rows.shape), None
        for axis, width in zip(windows.axes, windows.widths, strict=True):
            place = order.index(axis)
            shape[place] -= width - 1
            new = triple(rows, shape)
            sides = (math.prod(shape[place + 1 :]), shape[place], width)
            if found is None:
                kernel = make((("raw T", "x"), *SIDES, ("bool", "skip")), TRIPLE, WINDOW.replace("LOOP", MOMENTS))
                kernel(rows, *sides, skip, *new, size=new[0].size)
            else:
                kernel = make((*TRIPLES, *SIDES), TRIPLE, WINDOW.replace("LOOP", MERGE))
                kernel(*found, *sides, *new, size=new[0].size)
            found = new
        assert found is not None
        return tuple([one.transpose(np.argsort(order).tolist()) for one in found])

    return window_moments


def lying_order(x: Any) -> Shape:
    """The axes as they lie in memory, the fastest last."""
    return tuple(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))
