"""Extremes, their positions, `any` and `all`, and norms, with NumPy's names, arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import ArraySpec, Request
from chunkflow.api.reductions.request import (
    Axis,
    Keywords,
    extreme_of,
    no_empty,
    number_of,
    reduced_axes,
    reduction_operation,
    request,
    truth_of,
    where_is,
)
from chunkflow.core.nest import LoopNest, nest
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.reductions import aggregation
from chunkflow.kernels.reductions.aggregation import Aggregation
from chunkflow.kernels.reductions.tiled import Axes


@reduction_operation
def min(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Least element along axes, as `numpy.min`, in the dtype of `x`.

    It is NaN where there is one; complex numbers are compared by their real, then their imaginary parts.

    Raises
    ------
    ArgumentError
        There is no element along the axes.

    Examples
    --------
    >>> cf.min(np.array([[3, 1], [2, 5]]), axis=1, device="cpu")
    array([1, 2])
    """
    return request(extreme_of("min", "min", initial, where), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def max(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Greatest element along axes, as `numpy.max`; see `min`.

    Examples
    --------
    >>> cf.max(np.array([[3, 1], [2, 5]]), axis=0, device="cpu")
    array([3, 5])
    """
    return request(extreme_of("max", "max", initial, where), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def ptp(x: Any, axis: Axis = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Greatest less least element along axes, as `numpy.ptp`; see `min`. Small integers wrap, as in NumPy.

    Examples
    --------
    >>> cf.ptp(np.array([3.0, 1.0, 8.0]), device="cpu")
    np.float64(7.0)
    """

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        no_empty("ptp", specs[0].shape, axes)
        if specs[0].dtype.kind == "b":
            raise ArgumentTypeError("ptp of bools: there is no difference of two; convert them, or use max and min")
        return aggregation.spread()

    return request(make, (x,), axis, keepdims, **options)


@reduction_operation
def any(
    x: Any, axis: Axis = None, keepdims: bool = False, *, where: Any = True, **options: Unpack[Keywords]
) -> Request:
    """Whether an element along axes is not zero, as `numpy.any`, of bool; NaN is not zero.

    Examples
    --------
    >>> cf.any(np.array([[0, 1], [0, 0]]), axis=1, device="cpu")
    array([ True, False])
    """
    return request(truth_of("any"), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def all(
    x: Any, axis: Axis = None, keepdims: bool = False, *, where: Any = True, **options: Unpack[Keywords]
) -> Request:
    """Whether no element along axes is zero, as `numpy.all`, of bool.

    Examples
    --------
    >>> cf.all(np.array([[0, 1], [2, 3]]), axis=1, device="cpu")
    array([False,  True])
    """
    return request(truth_of("all"), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def count_nonzero(x: Any, axis: Axis = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Number of elements along axes that are not zero, as `numpy.count_nonzero`, in int64; NaN counts.

    Examples
    --------
    >>> cf.count_nonzero(np.array([[0, 1], [2, 3]]), axis=0, device="cpu")
    array([1, 2])
    """
    return request(lambda specs, axes: aggregation.nonzero(), (x,), axis, keepdims, **options)


@reduction_operation
def argmin(x: Any, axis: int | None = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Where the first of the least elements is, as `numpy.argmin`; the first NaN, if there is one.

    Positions are along the axis, or in the flat array, and of int64.

    Parameters
    ----------
    axis : int, optional
        Axis that is searched; by default all of the array, laid out flat in C order.

    Raises
    ------
    ArgumentError
        There is no element to choose from.

    Examples
    --------
    >>> cf.argmin(np.array([[3, 1], [1, 5]]), device="cpu")
    np.int64(1)
    """
    return request(where_is("min", axis), (x,), axis, keepdims, **options)


@reduction_operation
def argmax(x: Any, axis: int | None = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Where the first of the greatest elements is, as `numpy.argmax`; see `argmin`.

    Examples
    --------
    >>> cf.argmax(np.array([[3, 1], [1, 5]]), axis=0, device="cpu")
    array([0, 1])
    """
    return request(where_is("max", axis), (x,), axis, keepdims, **options)


ORDERS_OF_LINES = (1, -1, np.inf, -np.inf)
"""Orders of a matrix norm that is the greatest or least sum of a row or column."""


@reduction_operation
def norm(x: Any, ord: Any = None, axis: Axis = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Norm of vectors along an axis, or of matrices or a whole array, as `numpy.linalg.norm`.

    It is real, and in the unit of `x` (but for `ord` 0).

    Parameters
    ----------
    ord : float or str, optional
        The root of the sum of squares for None, 2 and, along two axes, "fro". Of vectors also 1, 0 (the number of
        elements that are not zero), any other power, inf and -inf (the greatest and the least absolute value).
        Of matrices also 1 and -1 (the greatest and least sum of absolute values of a column), inf and -inf (of a
        row); blocks then hold whole rows, or whole columns.
    axis : int or two of them, optional
        Along which the vectors or matrices lie. By default all of a vector or of a matrix; with `ord` None of an
        array of any number of dimensions.

    Raises
    ------
    ArgumentError
        An order that has no meaning there, or that of a matrix for which it takes its singular values (2, -2,
        "nuc").

    Examples
    --------
    >>> cf.norm(np.array([[3.0, 4.0], [5.0, 12.0]]), axis=1, device="cpu")
    array([ 5., 13.])
    """
    check_order(ord)

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        dtype = specs[0].dtype if specs[0].dtype.kind in "fc" else np.dtype("f8")
        result = np.empty(0, dtype).real.dtype
        if len(axes) == 2 and ord in ORDERS_OF_LINES:
            no_empty(f"norm of order {ord}", specs[0].shape, axes)
            lines = (lines_axis(ord, axis, len(specs[0].shape)),)
            (summed,) = set(axes) - set(lines)
            sums = norm_of_vectors(1, dtype, np.result_type(result, "f8"))
            best = np.max if ord > 0 else np.min
            return aggregation.Aggregation(
                lambda x, axes, box: sums.chunk(x, (summed,), box),
                sums.merge,
                lambda *value: best(sums.aggregate(*value), axis=lines, keepdims=True).astype(result),
                sums.copies,
            )
        kind = norm_kind(ord, axis, axes)
        if kind in (np.inf, -np.inf):
            no_empty(f"norm of order {kind}", specs[0].shape, axes)
        return norm_of_vectors(kind, dtype, result)

    def whole_lines(specs: Sequence[ArraySpec]) -> LoopNest:
        ndim = len(specs[0].shape)
        op = nest([specs[0].shape])
        two = len(reduced_axes(axis, ndim)) == 2 and ord in ORDERS_OF_LINES
        return replace(op, whole=frozenset({lines_axis(ord, axis, ndim)})) if two else op

    return request(make, (x,), axis, keepdims, whole_lines, **options)


@lru_cache
def norm_of_vectors(kind: float, dtype: np.dtype, result: np.dtype) -> Aggregation:
    """Norm of vectors. Cached: two aggregations are the same only if they hold the very same functions."""
    wide = np.result_type(result, "f8")
    full = np.result_type(dtype, wide)
    if kind in (np.inf, -np.inf):
        return aggregation.extreme("max" if kind > 0 else "min", of=lambda x: abs(x.astype(dtype, copy=False)))
    if kind == 0:
        return aggregation.total(wide, result, of=lambda x: x != 0)
    if kind == 1:
        return aggregation.total(wide, result, of=lambda x: abs(x.astype(full)))
    if kind == 2:
        return aggregation.total(wide, result, of=lambda x: aggregation.squares(x.astype(full)), power=0.5)
    return aggregation.total(wide, result, of=lambda x: abs(x.astype(full)) ** kind, power=1 / kind)


def check_order(ord: Any) -> None:
    """Refuse an order that is neither a number nor a name."""
    if ord is not None and not isinstance(ord, str | int | float | np.integer | np.floating):
        raise ArgumentTypeError(f"ord={ord!r} is neither a number nor a name")


def lines_axis(ord: float, axis: Axis, ndim: int) -> int:
    """Axis along which the sums of a matrix's columns (order 1, -1) or rows (inf, -inf) follow one another."""
    rows, columns = (a % ndim for a in (axis if isinstance(axis, Sequence) else (0, 1)))
    return columns if abs(ord) == 1 else rows


def norm_kind(ord: Any, axis: Axis, axes: Axes) -> float:
    """Order of a vector's norm that is the one asked for."""
    if ord is None and (axis is None or len(axes) in (1, 2)):
        return 2.0
    if len(axes) not in (1, 2):
        raise ArgumentError(
            f"a norm is of vectors or matrices, along one or two axes, not along {axes}: name them in axis="
        )
    if len(axes) == 2:
        if ord in ("fro", "f"):
            return 2.0
        reason = "has no meaning"
        if ord in (2, -2, "nuc"):  # from the squares, small singular values would be noise
            reason = "needs singular values, which np.linalg.norm of chunkflow.open(x) takes of whole matrices"
        raise ArgumentError(f"ord={ord!r} of a matrix {reason}: along two axes use None, 'fro', 1, -1, inf or -inf")
    if isinstance(ord, str):
        raise ArgumentError(f"ord={ord!r} has no meaning for vectors: use a number, inf or -inf, or two axes")
    return float(ord) if ord in (np.inf, -np.inf) else number_of("ord", ord)
