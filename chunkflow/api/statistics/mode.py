"""The most frequent element of an array, or of lines along axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from chunkflow import stores
from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    Declared,
    MultiPass,
    Options,
    Request,
    RunOptions,
    bare,
    operation,
)
from chunkflow.api.reductions.request import Axis, count_of, reduced_axes
from chunkflow.api.statistics.bins import in_memory
from chunkflow.api.statistics.order_statistics import all_stored, folded
from chunkflow.api.statistics.unique import DistinctKeys, check_countable, distinct
from chunkflow.core.chunking import block_sides
from chunkflow.core.nest import nest
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import ArgumentError
from chunkflow.graph.elementwise import applied
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import MultiPassNode, Node, has_lazy, node_of
from chunkflow.graph.reshaping import reshaped
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.mode import ModeOfLines, MostFrequent, most_frequent
from chunkflow.kernels.statistics.radix_keys import from_keys, key_dtype
from chunkflow.stores import spec_of

ROOM = 1 << 20
"""Number of different elements that a task of a cluster's has room for."""

POLICIES = ("propagate", "omit")
"""What is done with NaN."""


@operation
def mode(
    x: Any,
    axis: Axis = None,
    nan_policy: str = "propagate",
    keepdims: bool = False,
    *,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> Request | MultiPass:
    """Most frequent element and its count, of an array or along axes, as `scipy.stats.mode`.

    Of equally frequent elements it is the smallest. Along axes whole lines are sorted in a block, in one pass. Of all
    elements the distinct ones are counted, as `chunkflow.unique` does. Zeros of both signs are one value, 0.0.

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`, of bools or real numbers of at most 64 bits.
    axis : int or sequence of int, optional
        Along which; all by default, where SciPy has the first one.
    nan_policy : {"propagate", "omit"}
        SciPy's: with "propagate" NaN is a value like others, and larger; "omit" leaves NaN out.
    keepdims : bool
        Whether reduced axes stay, with one element.
    out : array, str, path or None
        As for `chunkflow.map`; a pair of them.

    Returns
    -------
    mode : array or scalar
        In the dtype of `x`; with "omit" NaN where all of a line is NaN.
    count : array or scalar
        Int64: how often it occurs.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Lines without elements, an unknown policy, a bad axis; complex or wider numbers; `out` is no pair.
    BudgetError
        A line along the axes, or of all elements the distinct ones, do not fit the budget.

    Examples
    --------
    >>> x = np.array([[3, 1, 3], [2, 1, 2]])
    >>> cf.mode(x, device="cpu")
    (np.int64(1), np.int64(2))
    >>> cf.mode(x, axis=1, device="cpu")
    (array([3, 2]), array([2, 2]))
    """
    if nan_policy not in POLICIES:
        raise ArgumentError(f"nan_policy={nan_policy!r} is none of {', '.join(POLICIES)}")
    spec, omit, chosen = spec_of(x), nan_policy == "omit", Options(**options)
    check_countable(spec, "mode")
    shape, dtype = spec.shape, spec.dtype.newbyteorder("=")
    axes, block = reduced_axes(axis, len(shape)), block_sides(chunks, shape)
    if not count_of(shape, axes):
        raise ArgumentError(f"mode of no elements: the shape is {shape}, axes {axes} are reduced")
    if chosen.out is not None and not (has_lazy(x) or (isinstance(chosen.out, tuple) and len(chosen.out) == 2)):
        raise ArgumentError("out must be a pair, for the mode and its count")
    if len(axes) < len(shape):
        dims = tuple([None if a in axes else a for a in range(len(shape)) if keepdims or a not in axes])
        kernel = MapKernel(ModeOfLines(axes, keepdims, omit), (SLOT,), {}, dims)

        def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
            return Declared(nest([shape], axes), kernel, dims, block)

        return Request(declare, (x,), replace(chosen, dtype=(dtype, np.dtype("i8"))))

    last = (1,) * len(shape) if keepdims else ()

    omits = omit and dtype.kind == "f"

    def found_of(known: DistinctKeys) -> tuple[np.ndarray, np.ndarray]:
        return most_frequent(known.keys, known.counts, omits)

    def unrolled() -> Node:
        room = min(ROOM, spec.size, 1 << 8 * dtype.itemsize)
        declare = functools.partial(folded, MostFrequent(room, omit=omits), (None,), block, 6.0)
        return op_node(Request(declare, [x], Options()), "mode")

    def run() -> Any:
        outs = chosen.out or (None, None)
        targets = [stores.open_target(out, overwrite=chosen.overwrite) for out in outs]
        for target, of in zip(targets, (dtype, np.dtype("i8")), strict=True):
            target.describe(last, of, None)
        known = distinct(x, chunks, chosen)
        if is_dry():
            return None
        key, count = found_of(known)
        found = (from_keys(key.reshape(last), dtype), count.reshape(last))
        return tuple(bare(a, out) for a, out in zip(all_stored(found, targets, chosen), outs, strict=True))

    def expressions(array: Callable[[Node], Any]) -> Any:
        def found(x: Any, **options: Any) -> Any:
            at = Options(**options)
            known = distinct(x, chunks, in_memory(at))
            pair = (np.zeros(1, "u8"), np.ones(1, "i8")) if is_dry() else found_of(known)
            target = stores.open_target(at.out, overwrite=at.overwrite)
            return all_stored([np.concatenate([a.astype("u8") for a in pair])], [target], at)[0]

        both_spec = ArraySpec("mode", (2,), np.dtype("u8"))
        both = array(MultiPassNode("mode", found, [node_of(x)], both_spec, streams=True, unroll=unrolled))
        results = (applied(_value, (both[:1],), {}, {"dtype": dtype}), both[1:].astype("i8"))
        return tuple(array(reshaped(node_of(a), last)) for a in results)

    return MultiPass((x,), run, chosen, alone=True, expressions=expressions)


def _value(key: Any, dtype: np.dtype) -> Any:
    return from_keys(key.astype(key_dtype(dtype)), dtype)
