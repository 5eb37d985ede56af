"""Running sums, products and extremes along an axis, and differences, with NumPy's names, arguments and results.

Blocks along the axis are computed in order: each passes its last result on to the next, as a carry. Lines beside one
another are computed at the same time. Floats are added up in double precision and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import (
    Chunks,
    Declared,
    Options,
    Request,
    RunOptions,
    check_int,
    family,
    operation,
)
from chunkflow.api.rearrange import join
from chunkflow.api.reductions.request import checked_dtype
from chunkflow.core.axes import normalize_axes
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest, nest
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError
from chunkflow.graph.nodes import Lazy, node_of
from chunkflow.graph.slicing import viewed
from chunkflow.kernels.declare import declare_broadcast
from chunkflow.kernels.map import is_scalar
from chunkflow.kernels.scan import Difference, ForwardFill, Scan, running_fold, running_total, wide
from chunkflow.stores import spec_of

COPIES = 2.0
"""Carries that a lane holds at the same time: the one that it received, and the one that it passes on."""


scan_operation = family(
    """A running result along an axis.

    Parameters
    ----------
    axis : int, optional
        None scans the flattened array, in C order; only its first axis is cut then, so one of the largest
        possible index along it must fit the budget.
    dtype : dtype, optional
        Of the results; by default that of `x`, and for integers smaller than the platform's int, that one.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have; a dtype that is not numeric, or real for complex `x`.
    """
)


@scan_operation
def cumsum(
    x: Any, axis: int | None = None, dtype: Any = None, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> Request:
    """Cumulative sums along an axis.

    On the CPU they are added up in the array's order, so real doubles and integers are NumPy's to the bit, however
    the array is cut. Floats of less than double precision are added up in doubles: the error is smaller than NumPy's.

    Examples
    --------
    >>> x = np.arange(6, dtype="i1").reshape(2, 3)
    >>> cf.cumsum(x, axis=1, device="cpu")
    array([[ 0,  1,  3],
           [ 3,  7, 12]])
    >>> cf.cumsum(x, device="cpu")
    array([ 0,  1,  3,  6, 10, 15])
    """
    return _accumulated(np.add, x, axis, dtype, chunks, Options(**options))


@scan_operation
def cumprod(
    x: Any, axis: int | None = None, dtype: Any = None, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> Request:
    """Cumulative products along an axis.

    Examples
    --------
    >>> cf.cumprod(np.arange(1.0, 6.0), device="cpu")
    array([  1.,   2.,   6.,  24., 120.])
    """
    return _accumulated(np.multiply, x, axis, dtype, chunks, Options(**options))


@scan_operation
def maximum_accumulate(
    x: Any, axis: int = 0, dtype: Any = None, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> Request:
    """Largest value so far along an axis: ``np.maximum.accumulate``. From a NaN on, all is NaN.

    Parameters
    ----------
    axis : int
        The axis along which values are compared.
    dtype : dtype, optional
        To which `x` is cast first.

    Examples
    --------
    >>> cf.maximum_accumulate(np.array([3, 1, 4, 1, 5]), device="cpu")
    array([3, 3, 4, 4, 5])
    """
    return _accumulated(np.maximum, x, check_int("axis", axis), dtype, chunks, Options(**options))


@scan_operation
def minimum_accumulate(
    x: Any, axis: int = 0, dtype: Any = None, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> Request:
    """Smallest value so far along an axis: ``np.minimum.accumulate``. From a NaN on, all is NaN.

    Parameters
    ----------
    x, axis, dtype
        As for `maximum_accumulate`.

    Examples
    --------
    >>> cf.minimum_accumulate(np.array([3, 1, 4, 1, 0]), device="cpu")
    array([3, 1, 1, 1, 0])
    """
    return _accumulated(np.minimum, x, check_int("axis", axis), dtype, chunks, Options(**options))


@scan_operation
def accumulate(
    x: Any, ufunc: np.ufunc, axis: int = 0, dtype: Any = None, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> Request:
    """Running results of a ufunc that may be applied in any grouping: ``ufunc.accumulate``.

    Parameters
    ----------
    ufunc : numpy.ufunc
        Such as ``np.fmax`` or ``np.hypot``.
    x, axis, dtype
        As for `maximum_accumulate`.

    Examples
    --------
    >>> accumulate(np.array([3.0, 4.0, 12.0]), np.hypot, device="cpu")
    array([ 3.,  5., 13.])
    """
    return _accumulated(ufunc, x, check_int("axis", axis), dtype, chunks, Options(**options))


@operation
def ffill(
    x: Any, axis: int = -1, limit: int | None = None, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> Request:
    """ForwardFill each NaN with the last number before it along an axis; those before the first number stay.

    Blocks along the axis are computed in order, as those of `cumsum`: lines may be of any length. For the next number
    after each NaN flip the array before and after.

    Parameters
    ----------
    axis : int
        Along which.
    limit : int, optional
        Most NaN in a row that are filled, at least 1; all of them by default.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have; a limit below 1.

    Examples
    --------
    >>> x = np.array([np.nan, 1, np.nan, np.nan, 4])
    >>> cf.ffill(x, device="cpu"), cf.ffill(x, limit=1, device="cpu")
    (array([nan,  1.,  1.,  1.,  4.]), array([nan,  1.,  1., nan,  4.]))
    """
    check_int("axis", axis)
    if limit is not None:
        check_int("limit", limit, 1, ": it says how many NaN in a row are filled")

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        (along,) = normalize_axes(axis, len(shape), "axis")
        op, kernel = (
            replace(nest([shape]), scan=along),
            ForwardFill(along, limit if specs[0].dtype.kind in "fc" else None),
        )
        return Declared(op, kernel, tuple(range(len(shape))), block_sides(chunks, shape), tiles=False, copies=COPIES)

    return Request(declare, (x,), Options(**options), keeps=True)


@operation
def diff(
    x: Any,
    n: int = 1,
    axis: int = -1,
    prepend: Any = None,
    append: Any = None,
    *,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> Request:
    """Differences of neighbours along an axis, `n` times over.

    Blocks overlap by `n` elements. There is no carry, so they are computed in any order.

    Parameters
    ----------
    n : int
        How often differences are taken. The result is so much shorter than `x`.
    axis : int
        Along which.
    prepend, append : number or array_like, optional
        Elements before the first ones and after the last ones along the axis, as NumPy's; sources like `x`, or one
        number for all.
    chunks : int or sequence of int, optional
        Sides of the blocks of the result, otherwise as for `cumsum`.
    out : array, str, path or None
        As for `chunkflow.map`; it may not be `x`: neighbours are still to read it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A negative `n`, an axis that `x` does not have, what is prepended or appended and does not fit.

    Examples
    --------
    >>> x = np.array([1, 2, 4, 7, 0])
    >>> cf.diff(x, device="cpu"), cf.diff(x, n=2, device="cpu")
    (array([ 1,  2,  3, -7]), array([  1,   1, -10]))
    """
    check_int("axis", axis)
    times = check_int("n", n, 0, ": it says how often differences are taken")
    given = {"prepend": prepend, "append": append}
    ends = [None if a is None else _edge(a, spec_of(x).shape, axis, name) for name, a in given.items()]
    parts = [a for a in (ends[0], x, ends[1]) if a is not None] if times else [x]  # NumPy adds to what it subtracts
    array = x if len(parts) == 1 else join.joined(parts, axis)

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        along, every = normalize_axes(axis, len(shape), "axis")[0], tuple(range(len(shape)))
        op = _overlapping(shape, along, times)
        return Declared(op, Difference(along, times), every, block_sides(chunks, op.extents), tiles=True)

    return Request(declare, (array,), Options(**options), keeps=True)


def _edge(given: Any, shape: Shape, axis: int, name: str) -> Any:
    """What `diff` puts before or after an array; one number stands beside each of its lines."""
    value = np.asarray(given) if isinstance(given, list | tuple) or is_scalar(given) else given
    (along,) = normalize_axes(axis, len(shape), "axis")
    if sides := spec_of(value).shape:
        if (*sides[:along], *sides[along + 1 :]) != (*shape[:along], *shape[along + 1 :]) or len(sides) != len(shape):
            raise ArgumentError(
                f"{name} of shape {sides} does not fit an array of shape {shape}: all axes but axis {along} must have "
                "the same lengths, and one number stands for all"
            )
        return value
    side = (*shape[:along], 1, *shape[along + 1 :])
    if isinstance(value, Lazy):
        return type(value)(viewed(node_of(value), declare_broadcast(side), "broadcast_to", side))
    return np.broadcast_to(value, side) if isinstance(value, np.ndarray) else value


# -- Declarations -------------------------------------------------------------------------------------------


def _accumulated(ufunc: np.ufunc, x: Any, axis: int | None, dtype: Any, chunks: Chunks, options: Options) -> Request:
    if axis is not None:
        check_int("axis", axis)
    else:  # a flattened result has as many elements for each index of the first axis as that one's rows
        options = replace(options, chunks=("auto",))

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        (spec,) = specs
        if dtype is None:
            result = np.dtype(ufunc.accumulate(np.empty(0, spec.dtype)).dtype)
        else:
            result = checked_dtype(dtype, spec.dtype)
        is_total = ufunc in (np.add, np.multiply)
        run = running_total(ufunc, wide(result)) if is_total else running_fold(ufunc, result)
        block = block_sides(chunks, spec.shape)
        if axis is not None:
            along = normalize_axes(axis, len(spec.shape), "axis")[0]
            op, axes = replace(nest([spec.shape]), scan=along), tuple(range(len(spec.shape)))
            return Declared(op, Scan(along, run, result), axes, block, tiles=False, copies=COPIES)
        return _flattened(spec, Scan(0, run, result, flat=True), block)

    return Request(declare, (x,), options, keeps=axis is not None)


def _flattened(spec: ArraySpec, kernel: Scan, block: tuple[int | None, ...] | None) -> Declared:
    """Declare a scan of all elements in C order. Blocks are cut along the first axis alone: each is one run."""
    op, every = nest([spec.shape]), frozenset(range(len(spec.shape)))
    if not spec.size or not spec.shape:  # there is no carry
        return Declared(replace(op, whole=every), kernel, (None,), tiles=False)
    for axis, side in enumerate(block or ()):
        if axis and side is not None and side < spec.shape[axis]:
            raise ArgumentError(
                f"blocks of {side} along axis {axis}: the flattened array {spec.shape} is cut along its first axis "
                "alone; leave the others to the planner, or pass axis="
            )
    return Declared(replace(op, scan=0, whole=every - {0}), kernel, (0,), block, tiles=False, copies=COPIES)


def _overlapping(shape: Shape, axis: int, depth: int) -> LoopNest:
    """Loop nest whose result is `depth` shorter than its operand along an axis. The halo lies after each block."""
    op = nest([shape])
    if not depth:
        return op
    (operand,) = op.operands
    halo = tuple((0, depth if a == axis else 0) for a in range(len(shape)))
    operand = replace(operand, halo=halo, extents=shape, boundary=("none",) * len(shape))
    extents = tuple(max(n - depth, 0) if a == axis else n for a, n in enumerate(shape))
    return replace(op, extents=extents, operands=(operand,))
