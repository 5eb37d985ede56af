"""Sums, means and variances with NumPy's names, arguments and results, and reductions of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import ArraySpec, Options, Request
from chunkflow.api.reductions.request import (
    Axis,
    Keywords,
    count_of,
    mean_of,
    reduction_operation,
    request,
    spread_of,
    total_of,
)
from chunkflow.api.stencil.windows import Slid, slid, weighted
from chunkflow.core.axes import as_axes
from chunkflow.core.grid import Region, Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError, ZeroWeightsError
from chunkflow.kernels.index_notation import copied
from chunkflow.kernels.map import is_scalar
from chunkflow.kernels.reductions import aggregation
from chunkflow.kernels.reductions.aggregation import Aggregation, Value
from chunkflow.kernels.reductions.tiled import Axes
from chunkflow.stores.checks import elements_of


@reduction_operation
def sum(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = np._NoValue,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Sum of the elements along axes, as `numpy.sum`.

    Examples
    --------
    >>> x = np.arange(24.0).reshape(2, 3, 4)
    >>> cf.sum(x, axis=(0, 2), device="cpu")
    array([ 60.,  92., 124.])
    """
    return request(total_of(np.sum, dtype, initial), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def prod(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = np._NoValue,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Product of the elements along axes, as `numpy.prod`.

    Examples
    --------
    >>> cf.prod(np.arange(1, 6), device="cpu")
    np.int64(120)
    """
    return request(total_of(np.prod, dtype, initial), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def mean(
    x: Any,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    *,
    where: Any = True,
    **options: Unpack[Keywords],
) -> Request:
    """Mean of the elements along axes, as `numpy.mean`: float64 for integers, NaN where there is none.

    Examples
    --------
    >>> cf.mean(np.array([[1, 2], [3, 5]]), axis=0, device="cpu")
    array([2. , 3.5])
    """
    return request(mean_of(dtype), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def var(
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
    """Variance along axes, as `numpy.var`, in one pass: blocks are centred on their own means, then merged.

    It is in the square of the unit of `x`; real for a complex `x`, NaN where there is no element.

    Raises
    ------
    ArgumentTypeError
        `ddof` is no number, `dtype` is no floating-point dtype.

    References
    ----------
    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    Report STAN-CS-79-773, Stanford 1979.

    Examples
    --------
    >>> cf.var(np.array([1.0, 2.0, 6.0]), ddof=1, device="cpu")
    np.float64(7.0)
    """
    return request(spread_of(dtype, ddof, correction, root=False), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def std(
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
    """Standard deviation along axes, as `numpy.std`: the square root of `var`, in the unit of `x`.

    Examples
    --------
    >>> cf.std(np.array([[1.0, 3.0], [2.0, 8.0]]), axis=1, device="cpu")
    array([1., 3.])
    """
    return request(spread_of(dtype, ddof, correction, root=True), (x,), axis, keepdims, where=where, **options)


@reduction_operation
def spread_about(
    x: Any,
    mean: float,
    axis: Axis = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    root: bool,
    **options: Unpack[Keywords],
) -> Request:
    """Variance of float32 or float64 about a number, or with `root` its square root; of too few elements infinite.

    Examples
    --------
    >>> spread_about(np.array([1.0, 2.0, 6.0]), 3.0, ddof=1, root=False, device="cpu")
    np.float64(7.0)
    """

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        number = count_of(specs[0].shape, axes)
        return aggregation.about(mean, specs[0].dtype, max(number - ddof, 0), root=root)

    return request(make, (x,), axis, keepdims, **options)


@reduction_operation
def average(
    x: Any,
    axis: Axis = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
    **options: Unpack[Keywords],
) -> Request:
    """Weighted mean along axes, as `numpy.average`: the sum of products over the sum of weights, float64 for integers.

    Parameters
    ----------
    weights : array_like, str or path, optional
        Of the shape of `x`, or of its shape along `axis`, in the order in which `axis` names them; a source like
        `x`. By default all weights are equal.
    returned : bool
        Whether the sum of the weights is a second result, of the shape of the first; without weights the number of
        elements. `out` is then a pair.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Weights of another shape.
    ZeroWeightsError
        The weights sum to zero. It is a ZeroDivisionError too.

    Examples
    --------
    >>> cf.average(np.array([[1.0, 2.0], [3.0, 7.0]]), axis=1, weights=np.array([3.0, 1.0]), device="cpu")
    array([1.25, 4.  ])
    """
    if weights is None:
        return request(
            mean_of(None, counted=bool(returned)), (x,), axis, keepdims, results=1 + bool(returned), **options
        )
    if is_scalar(weights):
        kind = ArgumentTypeError if axis is None else ArgumentError  # as NumPy's are
        raise kind(f"weights={weights!r} must be an array of the shape of x, or of its shape along axis")
    if isinstance(weights, list | tuple):
        weights = elements_of(weights)

    if not (returned or keepdims) and (found := _of_windows(x, axis, weights)) is not None:
        return weighted(*found, type(x), Options(**options))

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        shape = specs[0].shape
        along = weighed(shape, specs[1].shape, axis)
        lying = np.argsort(along)
        wider = tuple(slice(None) if a in along else None for a in range(len(shape)))
        result = np.result_type(specs[0].dtype, specs[1].dtype, *(["f8"] if specs[0].dtype.kind in "biu" else []))
        wide = np.result_type(result, "f8")
        return aggregation.weighted(
            wide, result, count_of(shape, axes), lambda w: w.transpose(*lying)[wider], bool(returned)
        )

    def nested(specs: Sequence[ArraySpec]) -> LoopNest:
        shape = specs[0].shape
        along = weighed(shape, specs[1].shape, axis)
        return LoopNest(shape, (Operand(tuple(range(len(shape)))), Operand(along)), ())

    return request(make, (x, weights), axis, keepdims, nested, results=1 + bool(returned), **options)


def _of_windows(x: Any, axis: Axis, weights: Any) -> tuple[Slid, np.ndarray] | None:
    """Windows that are averaged along just their own axes, and the weights by which they are summed up."""
    which = slid(x, None if axis is None else as_axes(axis, "axis")) if isinstance(weights, np.ndarray) else None
    if which is None or weights.dtype.kind not in "biufc" or weights.shape == x.shape:
        return None
    shares = weights.transpose(np.argsort(weighed(x.shape, weights.shape, axis)))
    shares = shares.astype(np.result_type(x.dtype, weights.dtype, *(["f8"] if x.dtype.kind in "biu" else [])))
    if not (total := shares.sum()):
        raise ZeroWeightsError("the weights sum to zero, so there is no average: give weights that do not")
    return which, shares / total


def weighed(shape: Shape, weights: Shape, axis: Axis) -> Axes:
    """The axis of the array that each dimension of the weights follows."""
    if weights == shape:
        return tuple(range(len(shape)))
    if axis is None:
        raise ArgumentTypeError(
            f"the weights' shape is {weights} and the array's is {shape}: axis= must say along which axes they weigh"
        )
    along = tuple(a % len(shape) for a in as_axes(axis, "axis"))
    if weights != tuple(shape[a] for a in along):
        raise ArgumentError(
            f"the weights' shape is {weights}: it must be that of the array, {shape}, or that of its axes {axis}, "
            f"{tuple(shape[a] for a in along)}"
        )
    return along


def custom(
    chunk: Callable[..., Any], combine: Callable[..., Any], aggregate: Callable[..., Any], axes: Axes, keepdims: bool
) -> Aggregation:
    """A reduction by functions of the user's own: the three of dask's ``reduction``."""

    def call(x: Any, axes: Axes, box: Region) -> Value:
        try:
            kind, *found = packed(chunk(x, axis=axes, keepdims=True))
        except TypeError as error:
            if any(word in str(error) for word in ("axis", "keepdims", "tuple")):
                error.add_note(f"chunk, combine and aggregate are called as chunk(block, axis={axes}, keepdims=True)")
            raise
        return kind, *map(copied, found)

    def merge(left: Value, right: Value) -> Value:
        both = [np.concatenate([a, b], axis=axes[0]) for a, b in zip(left[1:], right[1:], strict=True)]
        merged = packed(combine(unpacked((left[0], *both)), axis=axes, keepdims=True))
        if (merged[0], len(merged)) != (left[0], len(left)):
            raise ResultError(
                f"combine gave {_form(merged)}, and chunk {_form(left)}: combine joins what chunk gives to the same, "
                "and without combine= it is aggregate that does: give combine="
            )
        return merged

    return Aggregation(call, merge, lambda *v: aggregate(unpacked(v), axis=axes, keepdims=keepdims), copies=5.0)


def packed(result: Any) -> Value:
    """Partial results (an array, or a tuple or dict of arrays) as one tuple, whose first entry says which of these."""
    if isinstance(result, dict):
        return tuple(result), *result.values()
    return (tuple, *result) if isinstance(result, tuple) else (None, result)


def _form(value: Value) -> str:
    kind, *arrays = value
    if kind is None:
        return "an array"
    return f"a tuple of {len(arrays)}" if kind is tuple else f"a dict of {', '.join(map(repr, kind))}"


def unpacked(value: Value) -> Any:
    """The partial results in the form that `packed` was given."""
    kind, *arrays = value
    if kind is None:
        return arrays[0]
    return tuple(arrays) if kind is tuple else dict(zip(kind, arrays, strict=True))


@reduction_operation
def reduction(
    x: Any,
    chunk: Callable[..., Any],
    aggregate: Callable[..., Any],
    combine: Callable[..., Any] | None = None,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: Any = None,
    **options: Unpack[Keywords],
) -> Request:
    """Reduce along axes by functions of one's own, those of dask's ``reduction``.

    Parameters
    ----------
    chunk : callable
        ``chunk(block, axis=axes, keepdims=True)``: partial results of a block, an array or a tuple or dict of
        arrays, with the reduced axes at length 1. They are copied, so they may be views of the block.
    aggregate : callable
        ``aggregate(partial, axis=axes, keepdims=keepdims)``: the result from the partial results of all blocks.
    combine : callable, optional
        ``combine(partials, axis=axes, keepdims=True)``: one partial result from two, concatenated along the first
        of the axes. Which two, and in what order, depends on the plan: it must be associative and commutative.
        `aggregate` by default.
    dtype : dtype, optional
        Of the result; what `aggregate` returns is cast by the ``same_kind`` rule.

    Raises
    ------
    ArgumentTypeError
        One of the three cannot be called.
    ResultError, ResultTypeError
        `aggregate` returned another shape or kind of array than it should.

    Examples
    --------
    >>> x = np.array([[1.0, -3.0], [2.0, 5.0]])
    >>> cf.reduction(x, lambda b, **k: np.abs(b).max(**k), np.max, axis=1, device="cpu")
    array([3., 5.])
    """
    for name, fn in (("chunk", chunk), ("aggregate", aggregate), ("combine", combine or aggregate)):
        if not callable(fn):
            raise ArgumentTypeError(f"{name} must be callable, not a {type(fn).__name__}")
    return request(
        lambda specs, axes: custom(chunk, combine or aggregate, aggregate, axes, keepdims),
        (x,),
        axis,
        keepdims,
        squeezed=True,
        fn=chunk,
        dtype=dtype,
        **options,
    )
