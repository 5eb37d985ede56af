"""The request of a reduction, and the checks of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.api.operation import (
    ArraySpec,
    ChunkedRunOptions,
    Chunks,
    Declared,
    Options,
    Request,
    bare,
    check_eager,
    check_stretch,
    family,
)
from chunkflow.api.stencil.windows import declare_windows, reduced_by, slid
from chunkflow.core.axes import as_axes, normalize_axes
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest, Strips, nest
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, ValueRangeError
from chunkflow.kernels.reductions import aggregation
from chunkflow.kernels.reductions.aggregation import Aggregation, Begin, Reduction
from chunkflow.kernels.reductions.tiled import UFUNCS, Axes

Axis = int | Sequence[int] | None
Make = Callable[[Sequence[ArraySpec], Axes], Aggregation]
"""Makes an aggregation from the specs of the arrays and the axes of the first that are reduced."""


class Keywords(ChunkedRunOptions, total=False):
    """Keywords of all reductions, which `chunkflow.sum` describes: `help` shows them as ``**options``."""


reduction_operation = family(
    """A reduction of an array along axes.

    Parameters
    ----------
    axis : int or sequence of int, optional
        Axes that are reduced, all of them by default; negative ones count from the last.
    dtype : dtype, optional
        Of the result, NumPy's by default. Floating-point sums run in double precision whatever it is (in
        extended precision for ``longdouble``); integers wrap as in NumPy.
    ddof, correction : float
        The centred sum of squares is divided by the number of elements less this. One of the two names is given.
    initial : number, optional
        With what the sum, product or extreme begins: one more element, and the result where there is no other.
    where : array of bool, optional
        Elements where it is false are left out. It broadcasts to the shape of `x`, and is a source like `x`.
    keepdims : bool
        Whether reduced axes stay, with length 1.
    chunks : int or tuple, optional
        Sides of the blocks of `x` that are on the device at once: for each axis an int, or -1 or None for the
        whole axis, or "auto". The planner chooses by default. The result depends on it within rounding.

    Returns
    -------
    scalar or array
        A NumPy scalar if all axes are reduced and `out` is None, else an array of the remaining axes, or `out`.
        The same call gives the same bits again on the same device.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that is out of bounds or named twice, or a dtype that cannot hold the result, before any data
        is read.
    """
)


def request(
    make: Make,
    arrays: Sequence[Any],
    axis: Axis,
    keepdims: bool,
    nested: Callable[[Sequence[ArraySpec]], LoopNest] | None = None,
    *,
    where: Any = True,
    dtype: Any = None,
    squeezed: bool = False,
    fn: Callable[..., Any] | None = None,
    results: int = 1,
    chunks: Chunks = None,
    **options: Any,
) -> Request:
    """Request of a reduction of the first array.

    `nested` makes the loop nest of several arrays. `where` is a mask, which the aggregation gets as one more array.
    `squeezed` says that the aggregation itself heeds `keepdims`. `fn` is the user's own function, if there is one.
    `results` is how many it gives.
    """
    if not isinstance(keepdims, bool | np.bool_ | int | np.integer):
        raise ArgumentTypeError(f"keepdims={keepdims!r} must be True or False")
    if is_mask(where):
        arrays = (*arrays, np.asarray(where) if isinstance(where, bool | np.bool_ | list | tuple) else where)

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        axes = reduced_axes(axis, len(shape))
        if is_mask(where):
            check_mask(specs[-1], shape)
        how = make(specs, axes)
        kept = tuple(None if a in axes else a for a in range(len(shape)) if keepdims or a not in axes)
        op = nest([spec.shape for spec in specs]) if nested is None else nested(specs)
        kernel = Reduction(how, axes, bool(keepdims or squeezed))
        block = block_sides(chunks, shape)
        return Declared(op, kernel, kept, block=block, strips=Strips(staged=how.strip), copies=how.copies)

    chosen = Options(**options, dtype=dtype)
    which = None if len(arrays) > 1 or nested is not None or fn is not None else slid(arrays[0], _listed(axis))
    if which is not None and chunks is None:
        dims = which.windows.dims
        over = declare_windows(lambda spec, windows: reduced_by(make([spec], dims), windows), which, bool(keepdims))
        return Request(over, (type(arrays[0])(which.node),), chosen, keeps=True, results=results)
    return Request(declare, arrays, chosen, lambda result: bare(result, chosen.out), fn=fn, keeps=True, results=results)


def _listed(axis: Axis) -> list[int] | None:
    return None if axis is None else as_axes(axis, "axis")


def is_mask(where: Any) -> bool:
    """Whether an argument leaves elements out, or may."""
    if where is None or (isinstance(where, int | float | complex | np.number) and not isinstance(where, bool)):
        raise ArgumentTypeError(f"where={where!r} must be an array of bools: elements where it is true are taken")
    return where is not True and not (isinstance(where, np.bool_) and bool(where))


def check_mask(mask: Any, shape: Shape) -> None:
    """Refuse a mask, an array or what is known of one, that is not of bools, or does not broadcast to the array."""
    if mask.dtype.kind != "b":
        raise ArgumentTypeError(f"where= is of {mask.dtype}, and a mask is of bools: give mask != 0, say")
    check_stretch("where", mask.shape, shape)


def begins(name: str, ufunc: np.ufunc, initial: Any) -> Callable[[np.dtype], Begin | None]:
    """What a reduction begins with, as NumPy casts it to the dtype in which it is found; None if nothing is given."""
    check_eager(f"np.{name}", initial=initial)
    if np.ndim(initial):
        raise ArgumentError(f"initial={initial!r} has the shape {np.shape(initial)}: give one number")

    def cast(dtype: np.dtype) -> Begin | None:
        if initial is None:
            return None
        native = dtype.newbyteorder("=")
        try:
            found = ufunc.reduce(np.empty(0, native), dtype=native, initial=initial)
        except OverflowError as error:
            raise ValueRangeError(f"initial={initial!r} of {name} in {native}: {error}") from None
        except (TypeError, ValueError) as error:
            kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
            raise kind(f"initial={initial!r} of {name} in {native}: {error}") from None
        return Begin(found.tobytes(), found.dtype)

    return cast


def reduced_axes(axis: Axis, ndim: int) -> Axes:
    """Axes to reduce, sorted; None means all."""
    return tuple(range(ndim)) if axis is None else normalize_axes(axis, ndim, "axis")


def asked(fn: Callable[..., Any], dtype: np.dtype, given: Any = None) -> tuple[np.dtype, np.dtype]:
    """The dtype in which `fn` of an array of a dtype is accumulated here, and the dtype of NumPy's result."""
    given = None if given is None else checked_dtype(given, dtype)
    sample = np.ones(2, dtype)
    result = fn(sample).dtype if given is None else fn(sample, dtype=given).dtype
    wide = np.result_type(given or result, "f8") if result.kind in "fc" else result
    return wide, result


def checked_dtype(given: Any, dtype: np.dtype) -> np.dtype:
    """The dtype that a user gives for results, in native byte order: numeric, and complex if `dtype` is."""
    found = as_dtype(given)
    if found.kind not in "biufc":
        raise ArgumentTypeError(f"dtype={found} is not numeric: results are bool, int, float or complex")
    if dtype.kind == "c" and found.kind != "c":
        raise ArgumentTypeError(
            f"dtype={found} would drop the imaginary part of an array of {dtype}: use a complex one, or pass the real "
            "part"
        )
    native: np.dtype = found.newbyteorder("=")
    return native


def no_empty(name: str, shape: Shape, axes: Axes) -> None:
    """Refuse to reduce no elements where the reduction has no identity."""
    if not count_of(shape, axes):
        raise ArgumentError(
            f"{name} of no elements: the array's shape is {shape} and the axes {axes} are reduced, so there is nothing "
            "to choose from"
        )


def number_of(name: str, value: Any) -> float:
    """A real number that was checked to be one."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ArgumentTypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value):
        raise ArgumentError(f"{name}={value} must be finite: it is taken from the number of elements")
    return float(value)


def count_of(shape: Shape, axes: Axes) -> int:
    """Elements along axes."""
    return math.prod(shape[a] for a in axes)


def has_nan(spec: ArraySpec) -> bool:
    """Whether elements may be NaN. Of others NumPy's functions that pass over NaN are the plain ones."""
    return spec.dtype.kind in "fc"


def total_of(fn: Callable[..., Any], dtype: Any, initial: Any, *, skip: bool = False) -> Make:
    """Sum or product, as `fn` of NumPy's."""
    how = aggregation.total if fn is np.sum else aggregation.product
    given = None if initial is np._NoValue else initial
    begin = begins(fn.__name__, np.add if fn is np.sum else np.multiply, given)

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        wide, result = asked(fn, specs[0].dtype, dtype)
        if initial is None and (len(specs) > 1 or not count_of(specs[0].shape, axes)):
            raise ArgumentError("initial=None begins with the first element, and there may be none: leave it out")
        return how(wide, result, skip=skip and has_nan(specs[0]), masked=len(specs) > 1, begin=begin(result))

    return make


def mean_of(dtype: Any, *, skip: bool = False, counted: bool = False) -> Make:
    """Mean; with `counted` the number of elements beside it."""

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        given = None if dtype is None else checked_dtype(dtype, specs[0].dtype)
        if skip and given is not None and specs[0].dtype.kind in "fc" and given.kind not in "fc":
            raise ArgumentTypeError(
                f"dtype={dtype!r}: a mean without NaN of {specs[0].dtype} is not an integer, use a floating-point dtype"
            )
        wide, result = asked(np.mean, specs[0].dtype, dtype)
        count, skips = count_of(specs[0].shape, axes), skip and has_nan(specs[0])
        return aggregation.average(wide, result, count, skip=skips, masked=len(specs) > 1, counted=counted)

    return make


def spread_of(dtype: Any, ddof: Any, correction: Any, *, root: bool, skip: bool = False) -> Make:
    """Variance, or with `root` standard deviation, with checked arguments."""
    if correction is not None and ddof != 0:
        raise ArgumentError(f"ddof={ddof!r} and correction={correction!r} say the same: give one of them")
    less = number_of("ddof", ddof) if correction is None else number_of("correction", correction)

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        wide, result = asked(np.mean, specs[0].dtype, dtype)
        if result.kind not in "fc":
            raise ArgumentTypeError(f"dtype={dtype!r}: a variance is not an integer, use a floating-point dtype")
        if dtype is None:
            result = np.empty(0, result).real.dtype
        return aggregation.moments(
            wide, result, less, root=root, skip=skip and has_nan(specs[0]), masked=len(specs) > 1
        )

    return make


def extreme_of(name: str, kernel: str, initial: Any, where: Any) -> Make:
    """Least or greatest element; `initial` is one more."""
    begin = begins(name, UFUNCS[kernel], initial)
    if initial is None and is_mask(where):
        raise ArgumentError(f"{name} with where= needs initial=: there may be no element, and then it is the result")

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        first = begin(specs[0].dtype)
        if first is None:
            no_empty(name, specs[0].shape, axes)
            return aggregation.extreme(kernel)
        return aggregation.begun_extreme(kernel, first, masked=len(specs) > 1)

    return make


def truth_of(name: str) -> Make:
    """Whether any element, or all of them, are not zero."""
    return lambda specs, axes: aggregation.truth(name, masked=len(specs) > 1)


def where_is(name: str, axis: Any, *, skip: bool = False) -> Make:
    """Position of an extreme, with a checked axis."""
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int | np.integer)):
        raise ArgumentTypeError(f"axis of arg{name} must be an int or None, not {axis!r}: a position is along one axis")

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        shape = specs[0].shape
        no_empty(f"arg{name}", shape, axes)
        skips = skip and has_nan(specs[0])
        return aggregation.position(name, shape, count_of(shape, axes), flat=axis is None, skip=skips)

    return make
