"""Quantiles for a cluster: passes that are declared beforehand. Each takes the result of the one before as an operand.

`order_statistics.reduced` decides on each pass when the one before is done, as the machine's budget asks for. On a
cluster nobody waits between passes: the number of bits that each determines follows from the array alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chunkflow.api.reductions.request import Axis, count_of, reduced_axes
from chunkflow.api.statistics.order_statistics import BITS, BITS_OF_LINES, COPIES, SMALL, Make
from chunkflow.cluster.partition import PARTIAL
from chunkflow.core.nest import LoopNest, Operand, Strips, nest
from chunkflow.engine.options import Options
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import Lazy, Node, OpNode, node_of
from chunkflow.graph.request import Request
from chunkflow.kernels.declare import Declared
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.quantile import WholeLines
from chunkflow.kernels.statistics.radix_select import Found, NextDigits


def counted(make: Make, x: Lazy, axis: Axis, keepdims: bool, name: str) -> Node | None:
    """Quantiles as a chain of expressions of one pass each; None if there are no elements or no quantiles.

    Lines of at most `SMALL` bytes are partitioned whole. Where NaN are left out of longer ones, the first pass counts
    how many numbers each line has, and so finds its ranks.
    """
    shape, dtype = node_of(x).shape, node_of(x).spec.dtype
    axes = reduced_axes(axis, len(shape))
    wanted = make(dtype)
    if not math.prod(shape) or not len((rule := wanted.rule(count_of(shape, axes))).below):
        return None
    kept = [a for a in range(len(shape)) if a not in axes]
    if kept and count_of(shape, axes) * dtype.itemsize <= SMALL:
        along = [None if a in axes else a for a in range(len(shape)) if keepdims or a not in axes]
        dims = tuple(along if wanted.single else [None, *along])
        kernel = MapKernel(WholeLines(rule, axes, wanted.single, keepdims, wanted.of_lines), (SLOT,), {}, dims)
        return _op([x], Declared(nest([shape], axes), kernel, dims), name)
    of_lines = wanted.of_lines
    ranks = rule.ranks() if of_lines is None else np.zeros_like(of_lines(np.full((), 1)).all_ranks())
    follows = (0, *(1 + a for a in kept))
    operands = (Operand(tuple(range(1, 1 + len(shape)))), Operand(follows))
    rows = 2 * len(ranks) + (of_lines is not None)
    extents, left, state = (rows, *shape), 8 * dtype.itemsize, None
    most = int(math.log2(max(2, PARTIAL // len(ranks))))
    while left:
        bits = min(left, BITS_OF_LINES if kept and math.prod(shape[a] for a in kept) > 1 else BITS, most)
        left -= bits
        digits = NextDigits(axes, ranks, dtype, left, bits, of_lines if state is None else None)
        given = [x] if state is None else [x, Lazy(state)]
        op = LoopNest(extents, operands[: len(given)], (), frozenset({0}))
        declared = Declared(op, digits, follows, strips=Strips(shared=digits.strip), copies=COPIES / 2)
        state = _op(given, declared, f"{name} digits")
    assert state is not None
    places = [None if a in axes else 1 + kept.index(a) for a in range(len(shape)) if keepdims or a not in axes]
    places = places if wanted.single else [0, *places]
    dims = tuple(a or None for a in places)
    kernel = MapKernel(Found(rule, dtype, tuple(places), of_lines), (SLOT,), {}, dims)
    return _op([Lazy(state)], Declared(nest([state.shape], 0), kernel, dims), name)


def _op(arrays: Sequence[Lazy], declared: Declared, name: str) -> OpNode:
    """The node of an operation on some arrays, given its declaration."""
    return op_node(Request(lambda specs, args: declared, arrays, Options()), name)
