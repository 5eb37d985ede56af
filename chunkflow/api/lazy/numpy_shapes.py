"""NumPy's functions of expressions that put arrays together, or leave parts of them out, with NumPy's signatures."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api import scan
from chunkflow.api.core_axes import whole_axes
from chunkflow.api.lazy import numpy_functions
from chunkflow.api.lazy.numpy_functions import as_array
from chunkflow.api.rearrange import join, rearrange
from chunkflow.api.rearrange.take import in_memory, take
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError, PlaceError
from chunkflow.graph.create import integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy
from chunkflow.stores.checks import loaded

FEW = 32
"""Most pieces of an array with others between them that are joined: of more the places are read."""


def tril(m: Any, k: int = 0) -> Any:
    """As `numpy.tril`."""
    return _triangle(m, k, 0)


def triu(m: Any, k: int = 0) -> Any:
    """As `numpy.triu`."""
    return _triangle(m, operator.index(k) - 1, 1)


def _triangle(m: Any, k: int, above: int) -> Any:
    """The elements of matrices up to a diagonal, or `above` it, and zeros elsewhere; of a line for each row of one."""
    k, x = operator.index(k), numpy_functions.require_dims(m, 1)
    x = numpy_functions.broadcast_to(x, (*x.shape, *x.shape)) if x.ndim == 1 else x
    rows, columns = (integers(type(x), 0, n) for n in x.shape[-2:])
    return mapped(_kept, x, rows[:, None], columns, k=k, above=above)


def _kept(block: Any, rows: Any, columns: Any, k: int, above: int) -> Any:
    return np.where((columns > rows + k) == bool(above), block, block.dtype.type(0))


def block(arrays: Any) -> Any:
    """As `numpy.block`."""
    depth = _depth(arrays)
    least = max(depth, *(np.ndim(a) for a in _leaves(arrays)))
    return _joined(arrays, depth, least)


def _depth(arrays: Any) -> int:
    """How deep lists are nested: as deep everywhere."""
    if isinstance(arrays, tuple):
        raise ArgumentTypeError("np.block takes arrays in lists, and got a tuple: give [*values]")
    if not isinstance(arrays, list):
        return 0
    depths = {_depth(a) for a in arrays}
    if len(depths) != 1:
        raise ArgumentError("np.block: lists must not be empty, and must be nested as deep everywhere")
    return depths.pop() + 1


def _leaves(arrays: Any) -> list[Any]:
    return [leaf for a in arrays for leaf in _leaves(a)] if isinstance(arrays, list) else [arrays]


def _joined(arrays: Any, depth: int, least: int) -> Any:
    if not isinstance(arrays, list):
        x = as_array(arrays)
        return x[(None,) * (least - x.ndim)]
    return join.concatenate([_joined(a, depth - 1, least) for a in arrays], -depth)


def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """As `numpy.delete`."""
    x, along = _along(arr, axis)
    left = _placed("np.delete", np.delete, x.shape[along], obj)
    return take(x, left, along)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """As `numpy.insert`."""
    x, along = _along(arr, axis)
    n = x.shape[along]
    at = np.arange(*obj.indices(n)) if isinstance(obj, slice) else in_memory(obj, "obj")
    at = np.flatnonzero(at) if at.dtype == bool else at
    new: Any = values if isinstance(values, Lazy) else np.array(loaded(values), x.dtype)
    new = new[(None,) * (x.ndim - new.ndim)]
    if at.ndim == 0:
        new = numpy_functions.moveaxis(new, 0, along) if isinstance(new, Lazy) else np.moveaxis(new, 0, along)
    # At a single place come all values, one after the other.
    number = new.shape[along] if at.size == 1 else at.size
    order = _placed("np.insert", np.insert, n, at, n + np.arange(number))
    while new.ndim > x.ndim and new.shape[0] == 1:  # as in an assignment
        new = new[0]
    new = numpy_functions.broadcast_to(new, (*x.shape[:along], number, *x.shape[along + 1 :]))
    new = numpy_functions.astype(new, x.dtype) if isinstance(new, Lazy) else new
    if not len(order):
        return x
    breaks = np.flatnonzero((np.diff(order) != 1) | (order[1:] == n)) + 1
    if len(breaks) > FEW:
        return take(join.concatenate([x, new], along), order, along)
    parts = []
    for run in np.split(order, breaks):
        source, first = (new, run[0] - n) if run[0] >= n else (x, run[0])
        parts.append(source[(*(slice(None),) * along, slice(first, first + len(run)))])
    if not any(isinstance(part, Lazy) for part in parts):
        parts.insert(0, x)  # which has no element
    return join.concatenate(parts, along)


def _along(x: Any, axis: int | None) -> tuple[Any, int]:
    """An expression, flat if no axis is given, and the axis."""
    found: Any = x
    if not isinstance(x, Lazy):
        raise ArgumentTypeError("arr is in memory, and other arguments are expressions: give chunkflow.open(arr)")
    if axis is None:
        return numpy_functions.reshape(x, (-1,)), 0
    return found, normalize_axes(axis, found.ndim, "axis")[0]


def _placed(name: str, fn: Any, n: int, obj: Any, *values: Any) -> np.ndarray:
    """What one of NumPy's functions makes of the places along an axis."""
    if not isinstance(obj, slice):
        given = in_memory(obj, "obj")
        obj = given if given.size else given.astype(np.intp)  # of an empty list NumPy makes floats
    try:
        found: np.ndarray = fn(np.arange(n), obj, *values)
    except (IndexError, ValueError, TypeError) as error:
        kind = PlaceError if isinstance(error, IndexError) else ArgumentError
        raise kind(f"{name}: {error} (the axis has {n} places)") from None
    return found


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """As `numpy.ediff1d`."""
    x = numpy_functions.reshape(ary, (-1,)) if isinstance(ary, Lazy) else np.ravel(ary)
    if x.dtype == bool:
        raise ArgumentTypeError("np.ediff1d of bools, which have no difference: np.diff says where they differ")
    parts = [scan.diff(x) if isinstance(x, Lazy) else np.diff(x)]
    for name, value, place in (("to_begin", to_begin, 0), ("to_end", to_end, len(parts) + 1)):
        if value is None:
            continue
        added = as_array(value)
        if not np.can_cast(added.dtype, x.dtype, casting="same_kind"):
            raise ArgumentTypeError(f"{name} of {added.dtype} cannot be cast to {x.dtype}, that of the array")
        flat = numpy_functions.reshape(added, (-1,)) if isinstance(added, Lazy) else added.ravel().astype(x.dtype)
        parts.insert(place, flat)
    return join.concatenate(parts, dtype=x.dtype) if len(parts) > 1 else parts[0]


def polyval(p: Any, x: Any) -> Any:
    """As `numpy.polyval`, of coefficients in memory."""
    if not isinstance(x, Lazy):
        raise ArgumentTypeError("np.polyval: the coefficients are an expression: compute() them first")
    found = mapped(np.zeros_like, x)
    for coefficient in np.atleast_1d(in_memory(p, "p")):
        found = found * x + coefficient
    return found


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    """As `numpy.vander`."""
    if x.ndim != 1:
        raise ArgumentError(f"x has {x.ndim} dimensions, and must have one")
    number = len(x) if N is None else operator.index(N)
    dtype = np.promote_types(x.dtype, int)
    if number < 1:
        return numpy_functions.astype(x[:, None][:, :0], dtype)
    work = partial(_powers, number=number, dtype=dtype, increasing=increasing)
    return whole_axes(work, "vander", [(x, ())], (number,), dtype)


def _powers(block: Any, number: int, dtype: np.dtype, increasing: bool) -> Any:
    """Powers of elements, along a last axis."""
    found = np.empty((*block.shape, number), dtype, like=block)
    ordered = found if increasing else found[..., ::-1]
    ordered[..., 0] = 1
    ordered[..., 1:2] = block[..., None]
    for k in range(2, number):
        np.multiply(ordered[..., k - 1], block, out=ordered[..., k], casting="unsafe")
    return found


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    """As `numpy.meshgrid`; of arrays in memory they are views."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"indexing={indexing!r} must be 'xy' or 'ij'")
    places = list(range(len(xi)))
    if indexing == "xy" and len(xi) > 1:
        places[:2] = 1, 0
    flat = [numpy_functions.reshape(a, (-1,)) if isinstance(a, Lazy) else np.ravel(a) for a in xi]
    apart = [
        a[tuple(slice(None) if i == at else None for i in range(len(xi)))] for a, at in zip(flat, places, strict=True)
    ]
    if sparse:
        return tuple(apart)
    shape = np.broadcast_shapes(*(a.shape for a in apart))
    return tuple(numpy_functions.broadcast_to(a, shape) for a in apart)


def outer(fn: np.ufunc, a: Any, b: Any) -> Any:
    """As `numpy.ufunc.outer`."""
    one, other = map(as_array, (a, b))
    return mapped(fn, one[(..., *(None,) * other.ndim)], other)


def kron(a: Any, b: Any) -> Any:
    """As `numpy.kron`."""
    one, other = map(as_array, (a, b))
    ndim = max(one.ndim, other.ndim)
    one, other = (x[(None,) * (ndim - x.ndim)] for x in (one, other))
    shape = tuple(map(operator.mul, one.shape, other.shape))
    between = (slice(None), None) * ndim, (None, slice(None)) * ndim
    return numpy_functions.reshape(mapped(np.multiply, one[between[0]], other[between[1]]), shape)


def cross(
    a: Any,
    b: Any,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
    *,
    lengths: tuple[int, ...] = (2, 3),
) -> Any:
    """As `numpy.cross`. Vectors of two elements are taken to have a third one, which is 0."""
    if axis is not None:
        axisa = axisb = axisc = axis
    vectors: list[Any] = []
    for x, at in ((as_array(a), axisa), (as_array(b), axisb)):
        (along,) = normalize_axes(at, x.ndim, "axis")
        if x.shape[along] not in lengths:
            known = " or ".join(map(str, lengths))
            raise ArgumentError(
                f"vectors of {x.shape[along]} elements along axis {at} have no product: those of {known} have one"
            )
        vectors.append(numpy_functions.moveaxis(x, along, -1) if isinstance(x, Lazy) else np.moveaxis(x, along, -1))
    one, other = (np.zeros(3, x.dtype) for x in vectors)
    try:
        dtype = np.cross(one, other).dtype
    except TypeError as error:
        raise ArgumentTypeError(f"np.cross: {error}") from None
    sides = [x.shape[-1] for x in vectors]
    own: tuple[int, ...] = () if sides == [2, 2] else (3,)
    work = np.cross if sides == [3, 3] else _of_planes
    found = whole_axes(work, "cross", [(x, (f"element{n}",)) for x, n in zip(vectors, sides, strict=True)], own, dtype)
    return numpy_functions.moveaxis(found, -1, axisc) if own else found


def _of_planes(a: Any, b: Any) -> Any:
    """The product of vectors, one of which at least has two elements, in the order of NumPy's operations."""
    last = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    if a.shape[-1] == b.shape[-1]:
        return last
    if a.shape[-1] == 2:
        return np.stack([a[..., 1] * b[..., 2], -(a[..., 0] * b[..., 2]), last], axis=-1)
    return np.stack([-(a[..., 2] * b[..., 1]), a[..., 2] * b[..., 0], last], axis=-1)


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """As `numpy.apply_over_axes`."""
    found = a
    for axis in np.atleast_1d(in_memory(axes, "axes")).tolist():
        (along,) = normalize_axes(axis, a.ndim, "axes")
        reduced = func(found, along)
        reduced = numpy_functions.expand_dims(reduced, along) if reduced.ndim == found.ndim - 1 else reduced
        if reduced.ndim != found.ndim:
            raise ArgumentError(f"func made {reduced.ndim} dimensions of {found.ndim}: it must keep them, or lose one")
        found = reduced
    return found


def fftshift(x: Any, axes: Any = None) -> Any:
    """As `numpy.fft.fftshift`."""
    return _shifted(x, axes, 1)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """As `numpy.fft.ifftshift`."""
    return _shifted(x, axes, -1)


def _shifted(x: Any, axes: Any, way: int) -> Any:
    chosen = tuple(range(x.ndim)) if axes is None else normalize_axes(axes, x.ndim, "axes")
    return rearrange.roll(x, [way * (x.shape[a] // 2) for a in chosen], list(chosen)) if chosen else x
