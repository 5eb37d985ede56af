"""The request of a reduction, and the checks of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.api.operation import ArraySpec, ChunkedRunOptions, Chunks, Declared, Options, Request, bare, family
from chunkflow.core.axes import normalize_axes
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest, Strips, nest
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.reductions import aggregation
from chunkflow.kernels.reductions.aggregation import Aggregation, Reduction
from chunkflow.kernels.reductions.tiled import Axes

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
    ddof : float
        The centred sum of squares is divided by the number of elements less `ddof`.
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
    dtype: Any = None,
    squeezed: bool = False,
    fn: Callable[..., Any] | None = None,
    chunks: Chunks = None,
    **options: Any,
) -> Request:
    """Request of a reduction of the first array.

    `nested` makes the loop nest of several arrays. `squeezed` says that the aggregation itself heeds `keepdims`. `fn`
    is the user's own function, if there is one.
    """
    known = Keywords.__annotations__
    if unknown := options.keys() - known:
        hint = ". Of an expression where= and initial= are taken by np.sum(chunkflow.open(x), where=mask) and the like"
        raise ArgumentTypeError(
            f"unknown arguments {', '.join(sorted(unknown))}: besides its own a reduction takes {', '.join(known)}"
            f"{hint if unknown & {'where', 'initial'} else ''}"
        )

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        axes = reduced_axes(axis, len(shape))
        how = make(specs, axes)
        kept = tuple(None if a in axes else a for a in range(len(shape)) if keepdims or a not in axes)
        op = nest([shape]) if nested is None else nested(specs)
        kernel = Reduction(how, axes, bool(keepdims or squeezed))
        block = block_sides(chunks, shape)
        return Declared(op, kernel, kept, block=block, strips=Strips(staged=how.strip), copies=how.copies)

    chosen = Options(**options, dtype=dtype)
    return Request(declare, arrays, chosen, lambda result: bare(result, chosen.out), fn=fn, keeps=True)


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
    try:
        found = np.dtype(given)
    except TypeError as error:
        raise ArgumentTypeError(f"dtype={given!r} is no dtype: {error}") from None
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


def total_of(fn: Callable[..., Any], dtype: Any, *, skip: bool = False) -> Make:
    """Sum or product, as `fn` of NumPy's."""
    how = aggregation.total if fn is np.sum else aggregation.product
    return lambda specs, axes: how(*asked(fn, specs[0].dtype, dtype), skip=skip and has_nan(specs[0]))


def mean_of(dtype: Any, *, skip: bool = False) -> Make:
    """Mean."""

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        if skip and dtype is not None and specs[0].dtype.kind in "fc" and np.dtype(dtype).kind not in "fc":
            raise ArgumentTypeError(f"dtype={dtype!r}: a mean without NaN of {specs[0].dtype} is not an integer")
        wide, result = asked(np.mean, specs[0].dtype, dtype)
        return aggregation.average(wide, result, count_of(specs[0].shape, axes), skip=skip and has_nan(specs[0]))

    return make


def spread_of(dtype: Any, ddof: Any, *, root: bool, skip: bool = False) -> Make:
    """Variance, or with `root` standard deviation, with checked arguments."""
    less = number_of("ddof", ddof)

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        wide, result = asked(np.mean, specs[0].dtype, dtype)
        if result.kind not in "fc":
            raise ArgumentTypeError(f"dtype={dtype!r}: a variance is not an integer, use a floating-point dtype")
        if dtype is None:
            result = np.empty(0, result).real.dtype
        return aggregation.moments(wide, result, less, root=root, skip=skip and has_nan(specs[0]))

    return make


def choosing(name: str, how: Callable[[], Aggregation]) -> Make:
    """A reduction that needs an element."""

    def make(specs: Sequence[ArraySpec], axes: Axes) -> Aggregation:
        no_empty(name, specs[0].shape, axes)
        if name == "ptp" and specs[0].dtype.kind == "b":
            raise ArgumentTypeError("ptp of bools: there is no difference of two; convert them, or use max and min")
        return how()

    return make


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
