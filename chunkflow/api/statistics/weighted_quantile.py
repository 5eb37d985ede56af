"""The request of quantiles whose elements have weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.api.operation import ArraySpec, Chunks, Declared, Options, Request, bare
from chunkflow.api.reductions.request import Axis, no_empty, reduced_axes
from chunkflow.api.statistics.order_statistics import check_numbers
from chunkflow.core.axes import ordered_axes
from chunkflow.core.chunking import block_sides
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.weighted_quantile import WeightedLines
from chunkflow.stores import spec_of


def weighted(
    x: Any,
    weights: Any,
    q: np.ndarray,
    method: str,
    axis: Axis,
    keepdims: bool,
    chunks: Chunks,
    options: Options,
    *,
    skip: bool,
) -> Request:
    """Quantiles `q`, which are from 0 to 1, of elements with weights: one pass, in which no line is cut."""
    if method != "inverted_cdf":
        raise ArgumentError(f"weights= with method={method!r}: only method='inverted_cdf' has weights")
    weights = np.asarray(weights) if isinstance(weights, list | tuple) else weights

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        spec, given = specs
        check_numbers(spec)
        if given.dtype.kind not in "biuf":
            raise ArgumentTypeError(f"weights are of {given.dtype}, and must be real numbers")
        shape = spec.shape
        axes = reduced_axes(axis, len(shape))
        no_empty("a quantile", shape, axes)
        follow = tuple(range(len(shape)))
        if given.shape != shape:
            if axis is None:
                raise ArgumentTypeError(
                    f"weights have the shape {given.shape} and the array has {shape}: axis= must say along which axes "
                    "they weigh"
                )
            follow = tuple(ordered_axes(axis, len(shape), "axis"))
            if given.shape != tuple(shape[a] for a in follow):
                raise ArgumentError(
                    f"weights of shape {given.shape} must have the array's shape {shape}, or that of axis={axis}"
                )
        along: list[int | None] = [None if a in axes else a for a in range(len(shape)) if keepdims or a not in axes]
        dims = tuple(along if q.ndim == 0 else [None, *along])
        fn = WeightedLines(np.atleast_1d(q), axes, follow, q.ndim == 0, bool(keepdims), skip and spec.dtype.kind == "f")
        op = LoopNest(shape, (Operand(tuple(range(len(shape)))), Operand(follow)), (), frozenset(axes))
        return Declared(op, MapKernel(fn, (SLOT, SLOT), {}, dims), dims, block_sides(chunks, shape))

    declare([spec_of(x), spec_of(weights)], ())  # wrong arguments are refused before anything is read
    return Request(declare, (x, weights), options, lambda result: bare(result, options.out), keeps=True)
