"""Reductions that pass over NaN, with NumPy's names, arguments and results."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import Request
from chunkflow.api.reductions.request import (
    Axis,
    Keywords,
    extreme_of,
    mean_of,
    reduction_operation,
    request,
    spread_of,
    total_of,
    where_is,
)


@reduction_operation
def nansum(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = np._NoValue,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Sum of the elements that are not NaN, as `numpy.nansum`: 0 where all is NaN.

    Examples
    --------
    >>> cf.nansum(np.array([1.0, np.nan, 2.0]), device="cpu")
    np.float64(3.0)
    """
    return request(total_of(np.sum, dtype, initial, skip=True), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def nanprod(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = np._NoValue,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Product of the elements that are not NaN, as `numpy.nanprod`: 1 where all is NaN.

    Examples
    --------
    >>> cf.nanprod(np.array([3.0, np.nan, 2.0]), device="cpu")
    np.float64(6.0)
    """
    return request(total_of(np.prod, dtype, initial, skip=True), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def nanmean(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Mean of the elements that are not NaN, as `numpy.nanmean`: float64 for integers, NaN where all is NaN.

    Examples
    --------
    >>> cf.nanmean(np.array([[1.0, np.nan], [3.0, 5.0]]), axis=0, device="cpu")
    array([2., 5.])
    """
    return request(mean_of(dtype, skip=True), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def nanvar(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    correction: float | None = None,
    **options: Unpack[Keywords],
) -> Request:
    """Variance of the elements that are not NaN, as `numpy.nanvar`: NaN where no more than `ddof` are left; see `var`.

    Examples
    --------
    >>> cf.nanvar(np.array([1.0, np.nan, 3.0]), device="cpu")
    np.float64(1.0)
    """
    return request(
        spread_of(dtype, ddof, correction, root=False, skip=True), (x,), axis, keepdims, where=where, **options
    )


@reduction_operation
def nanstd(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    where: Any = True,
    correction: float | None = None,
    **options: Unpack[Keywords],
) -> Request:
    """Standard deviation of the elements that are not NaN, as `numpy.nanstd`: the square root of `nanvar`.

    Examples
    --------
    >>> cf.nanstd(np.array([1.0, np.nan, 5.0]), device="cpu")
    np.float64(2.0)
    """
    return request(
        spread_of(dtype, ddof, correction, root=True, skip=True), (x,), axis, keepdims, where=where, **options
    )


@reduction_operation
def nanmin(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Least element that is not NaN, as `numpy.nanmin`: NaN where all is NaN; see `min`.

    Examples
    --------
    >>> cf.nanmin(np.array([np.nan, 4.0, 3.0]), device="cpu")
    np.float64(3.0)
    """
    return request(extreme_of("nanmin", "fmin", initial, where), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def nanmax(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Greatest element that is not NaN, as `numpy.nanmax`: NaN where all is NaN; see `min`.

    Examples
    --------
    >>> cf.nanmax(np.array([np.nan, 4.0, 3.0]), device="cpu")
    np.float64(4.0)
    """
    return request(extreme_of("nanmax", "fmax", initial, where), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def nanargmin(x: Any, axis: int | None = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Where the first of the least elements is that are not NaN, as `numpy.nanargmin`; see `argmin`.

    Raises
    ------
    ArgumentError
        All is NaN along the axis.

    Examples
    --------
    >>> cf.nanargmin(np.array([np.nan, 4.0, 3.0]), device="cpu")
    np.int64(2)
    """
    return request(where_is("min", axis, skip=True), (x,), axis, keepdims, **options)


@reduction_operation
def nanargmax(x: Any, axis: int | None = None, keepdims: bool = False, **options: Unpack[Keywords]) -> Request:
    """Where the first of the greatest elements is that are not NaN, as `numpy.nanargmax`; see `argmin`.

    Raises
    ------
    ArgumentError
        All is NaN along the axis.

    Examples
    --------
    >>> cf.nanargmax(np.array([np.nan, 4.0, 3.0]), device="cpu")
    np.int64(1)
    """
    return request(where_is("max", axis, skip=True), (x,), axis, keepdims, **options)
