"""NumPy's functions of expressions that change values, or hold them to others, with NumPy's signatures."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import numpy as np

from chunkflow.api import mapping, scan
from chunkflow.api.core_axes import whole_axes
from chunkflow.api.lazy import numpy_functions
from chunkflow.api.lazy.compute import compute
from chunkflow.api.lazy.numpy_functions import as_array
from chunkflow.api.linalg import lstsq, product
from chunkflow.api.rearrange import join, rearrange
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.reductions.request import reduced_axes
from chunkflow.api.statistics import sort
from chunkflow.core.axes import as_axes, normalize_axes
from chunkflow.core.nest import nest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import as_dtype
from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.create import filled, integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import Lazy
from chunkflow.graph.request import Request
from chunkflow.kernels.declare import Declared
from chunkflow.kernels.statistics.sorting import order_by_keys
from chunkflow.kernels.unwrap import Unwrapped
from chunkflow.stores.checks import elements_of, loaded


def unwrap(p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * np.pi) -> Any:
    """As `numpy.unwrap`."""
    (along,) = normalize_axes(axis, p.ndim, "axis")
    kernel = Unwrapped(along, discont, period, np.result_type(p.dtype, period))

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = replace(nest([p.shape]), scan=along)
        return Declared(op, kernel, tuple(range(p.ndim)), copies=scan.COPIES)

    return type(p)(op_node(Request(declare, [p], Options()), "unwrap"))


def piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kw: Any) -> Any:
    """As `numpy.piecewise`. Functions are called with elements of a block, on the device that computes."""
    if isinstance(condlist, list | tuple):
        condlist = [loaded(c) for c in condlist]
        single = x.ndim > 0 and not any(isinstance(c, Lazy | np.ndarray | list) for c in condlist[:1])
    else:
        single = len(np.shape(condlist)) < 1 + (x.ndim > 0)
    conditions = [condlist] if single else list(condlist)
    if not isinstance(funclist, list | tuple | np.ndarray):
        raise ArgumentTypeError(
            f"funclist={funclist!r} is no list: give one of a function or number for each condition"
        )
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"{len(conditions)} conditions and {len(funclist)} functions: give one for each, or one more for the rest"
        )
    functions = [f if callable(f) else _number(f, x.dtype) for f in funclist]
    arrays: list[Any] = [c if isinstance(c, Lazy) else elements_of(c) for c in conditions]
    for condition in arrays:
        if condition.shape != x.shape[: condition.ndim]:
            raise ArgumentError(f"a condition of shape {condition.shape} does not fit an array of shape {x.shape}")
    arrays = [c[(..., *(None,) * (x.ndim - c.ndim))] for c in arrays]
    if any(map(callable, functions)) or not any(isinstance(c, Lazy) for c in arrays):
        work = partial(_piecewise, functions=tuple(functions), args=args, kw=kw)
        return mapping.map(work, x, *arrays, dtype=x.dtype)
    found = functions[-1] if len(functions) > len(arrays) else x.dtype.type(0)
    for condition, value in zip(arrays, functions, strict=False):
        chooses = condition if condition.dtype == np.dtype("?") else condition != 0
        found = np.where(chooses, value, found)
    return numpy_functions.broadcast_to(found, x.shape)


def _number(value: Any, dtype: np.dtype) -> Any:
    """A number as it is set among elements of a dtype."""
    if np.ndim(value):
        raise ArgumentError("a function is an array: give a number, or what makes one of the elements it is for")
    found = np.zeros(1, dtype)
    try:
        found[...] = value
    except (OverflowError, TypeError, ValueError):
        raise ArgumentError(f"{value!r} is no number that {dtype} holds, the dtype of x: give x.astype(...)") from None
    return found[0]


def _piecewise(x: Any, *conditions: Any, functions: tuple[Any, ...], args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
    masks = [np.broadcast_to(c.astype(bool), x.shape) for c in conditions]
    if len(functions) > len(masks):
        rest = np.ones_like(x, dtype=bool)
        for mask in masks:
            rest &= ~mask
        masks.append(rest)
    found = np.zeros_like(x)
    for mask, function in zip(masks, functions, strict=True):
        chosen = x[mask] if callable(function) else None
        if chosen is None:
            found[mask] = function
        elif chosen.size:
            found[mask] = function(chosen, *args, **kw)
    return found


def array_equiv(a1: Any, a2: Any) -> Any:
    """As `numpy.array_equiv`."""
    try:
        np.broadcast_shapes(np.shape(a1), np.shape(a2))
    except ValueError:
        return False
    return extremes.all(mapped(np.equal, a1, a2))


def vdot(a: Any, b: Any) -> Any:
    """As `numpy.vdot`."""
    flat = [numpy_functions.reshape(x, -1) if isinstance(x, Lazy) else np.ravel(x) for x in (a, b)]
    return product.vecdot(*flat)


def polyfit(
    x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """As `numpy.polyfit`, of coordinates in memory; the values are read once."""
    if full or cov is not False:
        raise UnsupportedError("np.polyfit of an expression takes no full or cov: it gives the coefficients")
    if isinstance(x, Lazy) or isinstance(w, Lazy) or not isinstance(y, Lazy):
        raise UnsupportedError("np.polyfit: x and w are in memory, and y is the expression: compute() them first")
    order, values = operator.index(deg) + 1, numpy_functions.require_dims(y, 1)
    places = elements_of(x) + 0.0
    if order < 1:
        raise ArgumentError(f"deg={deg} must not be negative")
    if values.ndim > 2:
        raise ArgumentError(
            f"np.polyfit takes y of one or two dimensions, not of shape {values.shape}: give "
            f"y.reshape({values.shape[0]}, -1), and reshape the coefficients to ({order}, "
            f"{', '.join(map(str, values.shape[1:]))})"
        )
    if places.ndim != 1 or not places.size or values.shape[0] != len(places):
        raise ArgumentError(f"x, of shape {places.shape}, must have one dimension, as long as y {values.shape}")
    matrix = np.vander(places, order)
    if w is not None:
        weights = elements_of(w) + 0.0
        if weights.shape != places.shape:
            raise ArgumentError(f"w of shape {weights.shape} must have the shape of x, {places.shape}")
        matrix = matrix * weights[:, None]
        values = values * (weights[:, None] if values.ndim == 2 else weights)
    scale = np.sqrt((matrix * matrix).sum(axis=0))
    found = lstsq.lstsq(matrix / scale, values, len(places) * np.finfo(places.dtype).eps if rcond is None else rcond)[0]
    return found / (scale[:, None] if values.ndim == 2 else scale)


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """As `numpy.apply_along_axis`. What the function gives of the first line, which is computed at once, tells shapes.

    Blocks have whole lines, on the device that computes.
    """
    (along,) = normalize_axes(axis, arr.ndim, "axis")
    if not all(n for a, n in enumerate(arr.shape) if a != along):
        raise ArgumentError(f"an array of shape {arr.shape} has no line along axis {axis} that the function could take")
    lines = numpy_functions.moveaxis(arr, along, -1)
    first = np.asarray(func1d(compute(lines[(0,) * (arr.ndim - 1)]), *args, **kwargs))
    work = partial(_along_lines, fn=func1d, args=args, kwargs=kwargs)
    found = whole_axes(work, "apply_along_axis", [(lines, ("line",))], first.shape, first.dtype)
    return numpy_functions.moveaxis(found, list(range(-first.ndim, 0)), list(range(along, along + first.ndim)))


def _along_lines(block: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return np.apply_along_axis(fn, -1, block, *args, **kwargs)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """As `numpy.lexsort`. Blocks have whole lines."""
    some = [as_array(key) for key in (keys if isinstance(keys, list | tuple) else numpy_functions.unstack(keys))]
    if not some or any(key.shape != some[0].shape for key in some):
        shapes = ", ".join(str(key.shape) for key in some)
        raise ArgumentError(f"keys of shapes {shapes or '()'}: give one at least, all of one shape")
    if axis is None or not some[0].ndim:
        raise ArgumentError(f"axis={axis!r} of keys of shape {some[0].shape}: give an axis that they have")
    (along,) = normalize_axes(axis, some[0].ndim, "axis")
    lines = [(numpy_functions.moveaxis(key, along, -1), ("line",)) for key in some]
    found = whole_axes(order_by_keys, "lexsort", lines, some[0].shape[along : along + 1], np.dtype(np.intp))
    return numpy_functions.moveaxis(found, -1, along)


def sort_complex(a: Any) -> Any:
    """As `numpy.sort_complex`."""
    dtype = a.dtype if a.dtype.kind == "c" else np.dtype("c8" if a.dtype.char in "bhBH" else "c16")
    return numpy_functions.astype(sort.sort(a), dtype)


def outer(a: Any, b: Any) -> Any:
    """As `numpy.outer`: of the elements in C order."""
    one, other = (as_array(x).reshape(-1) for x in (a, b))
    return product.outer(one, other)


def quantiles(ours: Callable[..., Any]) -> Callable[..., Any]:
    """A quantile whose `q` may have several dimensions, which come first in the result."""

    @wraps(ours)
    def call(a: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = as_array(q)
        if wanted.ndim < 2:
            return ours(a, q, *args, **kwargs)
        found = ours(a, wanted.reshape(-1), *args, **kwargs)
        return numpy_functions.reshape(found, (*wanted.shape, *found.shape[1:]))

    return call


def resize(a: Any, new_shape: Any) -> Any:
    """As `numpy.resize`: the elements come again and again."""
    shape = tuple(as_axes(new_shape, "new_shape"))
    if any(n < 0 for n in shape):
        raise ArgumentError(f"new_shape={new_shape!r} must not be negative")
    flat, number = numpy_functions.reshape(a, -1), int(np.prod(shape, dtype=object))
    if not flat.size or not number:
        return filled(type(a), shape, np.zeros((), a.dtype))
    whole = join.concatenate([flat] * -(-number // flat.size)) if number > flat.size else flat
    return numpy_functions.reshape(whole[:number], shape)


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """As `numpy.packbits`."""
    if a.dtype.kind not in "biu":
        raise ArgumentTypeError(f"an array of {a.dtype}: bits are made of integers or bools")
    if axis is None and a.ndim and a.shape[-1] % 8 == 0:  # no byte has bits of two lines
        return numpy_functions.reshape(packbits(a, -1, bitorder), -1)
    x, along = (numpy_functions.reshape(a, -1), 0) if axis is None else (a, normalize_axes(axis, a.ndim, "axis")[0])
    missing = [(0, -n % 8 if axis == along else 0) for axis, n in enumerate(x.shape)]
    whole = join.pad(x, missing) if any(after for _, after in missing) else x
    split = numpy_functions.reshape(whole, (*x.shape[:along], whole.shape[along] // 8, 8, *x.shape[along + 1 :]))
    _check_order(bitorder)
    eights = numpy_functions.moveaxis(split, along + 1, -1)
    return whole_axes(partial(_packed, bitorder=bitorder), "packbits", [(eights, ("bit",))], (), np.dtype(np.uint8))


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """As `numpy.unpackbits`."""
    if a.dtype != np.uint8:
        raise ArgumentTypeError(f"an array of {a.dtype}: bits are those of uint8")
    x, along = (numpy_functions.reshape(a, -1), 0) if axis is None else (a, normalize_axes(axis, a.ndim, "axis")[0])
    each = rearrange.repeat(x, 8, along)
    found = mapped(_bit, each, _shifts(each, along, bitorder))
    if count is None:
        return found
    number = operator.index(count)
    if number < 0 and -number > each.shape[along]:
        raise ArgumentError(f"count={count}: there are no more than {each.shape[along]} bits along the axis")
    if number > each.shape[along]:
        missing = [(0, number - each.shape[along] if axis == along else 0) for axis in range(x.ndim)]
        return join.pad(found, missing)
    return found[(*(slice(None),) * along, slice(number))]


def _shifts(x: Any, axis: int, bitorder: str) -> Any:
    """By how much bits are shifted, shaped to go along an axis."""
    _check_order(bitorder)
    places = integers(type(x), 0, x.shape[axis])
    shifts = 7 - places % 8 if bitorder == "big" else places % 8
    return numpy_functions.astype(shifts, np.uint8)[(slice(None), *(None,) * (x.ndim - axis - 1))]


def _check_order(bitorder: str) -> None:
    if bitorder not in ("big", "little"):
        raise ArgumentError(f"bitorder={bitorder!r} must be 'big' or 'little'")


def _packed(block: Any, bitorder: str) -> Any:
    """The bytes of eight bits along the last axis. All are in a row: so NumPy is quick, and CuPy can do it."""
    rows: Any = np.packbits(block.reshape(-1), bitorder=bitorder)  # type: ignore[call-overload]
    return rows.astype(np.uint8, copy=False).reshape(block.shape[:-1])


_packed.any_data = True  # type: ignore[attr-defined]  # its trial may be of zeros


def _bit(block: Any, shifts: Any) -> Any:
    return np.right_shift(block, shifts) & np.uint8(1)


def spread(reduce: Callable[..., Any], *, root: bool, skips_nan: bool = False) -> Callable[..., Any]:
    """``var`` and so on, which take means that are known already."""

    def call(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        ddof: Any = 0,
        keepdims: bool = False,
        *,
        where: Any = True,
        mean: Any = None,
        correction: Any = None,
    ) -> Any:
        if mean is None:
            return reduce(a, axis, dtype, ddof, keepdims, where=where, correction=correction)
        if correction is not None and ddof:
            raise ArgumentError(f"ddof={ddof} and correction={correction} are the same: give one of them")
        freedom = ddof if correction is None else correction
        if dtype is None and where is True and not skips_nan and _is_number_for(mean, a.dtype):
            return sums.spread_about(a, float(a.dtype.type(mean)), axis, freedom, keepdims, root=root)
        away = (numpy_functions.astype(a, np.float64) if a.dtype.kind in "biu" else a) - mean
        squares = mapped(_magnitudes, away) if away.dtype.kind == "c" else mapped(np.square, away)
        wanted = squares.dtype if dtype is None else as_dtype(dtype)
        counted = mapped(_is_number, a, where) if skips_nan else where
        total = sums.sum(squares, axis, wanted, keepdims, where=counted)
        number: Any = math.prod(a.shape[along] for along in reduced_axes(axis, a.ndim))
        if counted is not True:
            number = sums.sum(filled(type(a), a.shape, np.ones((), np.int64)), axis, keepdims=keepdims, where=counted)
        least = np.nan if skips_nan else 0  # of no more elements than that NumPy's two functions give NaN and infinity
        if isinstance(number, int):
            divisor = number - freedom if number > freedom else least
        else:
            divisor = mapped(_freedom, number, ddof=freedom, least=least)
        found = mapped(_over, total, divisor, dtype=wanted)
        return np.sqrt(found) if root else found

    return call


def _is_number_for(mean: Any, dtype: np.dtype) -> bool:
    """Whether a mean is one real number, and differences from it are of the elements' dtype: float32 or float64."""
    known = isinstance(mean, float | int | np.floating) and dtype in (np.dtype("f4"), np.dtype("f8"))
    return known and np.result_type(dtype, mean) == dtype


def _magnitudes(block: Any) -> Any:
    return block.real**2 + block.imag**2


def _is_number(block: Any, where: Any) -> Any:
    return (block == block) & where


def _freedom(number: Any, ddof: Any, least: float) -> Any:
    return np.where(number > ddof, number - ddof, least)


def _over(total: Any, divisor: Any, dtype: np.dtype) -> Any:
    return (total / divisor).astype(dtype)
