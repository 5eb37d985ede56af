"""NumPy's functions of expressions that combine several operations, with NumPy's signatures."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.api import scan
from chunkflow.api.lazy.fill import check_layout
from chunkflow.api.linalg import product
from chunkflow.api.rearrange import join, masks, rearrange
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.reductions.request import begins
from chunkflow.api.stencil.windows import added
from chunkflow.core.axes import as_axes, normalize_axes, ordered_axes
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, PlaceError, UnsupportedError, refused_by
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy, node_of, remembered
from chunkflow.graph.reshaping import reshaped
from chunkflow.graph.slicing import viewed
from chunkflow.kernels.declare import declare_broadcast
from chunkflow.kernels.map import is_scalar
from chunkflow.stores.checks import elements_of
from chunkflow.system.deferred import at

Function = Callable[..., Any]


def beginning(reduce: Function, ufunc: np.ufunc) -> Function:
    """A reduction to bools with the ``initial=`` that the ufunc's ``reduce`` has."""

    def call(x: Any, *args: Any, initial: Any = None, **kwargs: Any) -> Any:
        first = begins(reduce.__name__, ufunc, initial)(np.dtype(bool))
        found = reduce(x, *args, **kwargs)
        return found if first is None else mapped(ufunc, found, first.value)

    return call


def astype(x: Any, dtype: Any, **kwargs: Any) -> Any:
    """Elements in another dtype."""
    wanted = as_dtype(dtype).newbyteorder("=")
    if wanted.kind in "mM" and x.dtype.kind in "biuf":
        return at("chunkflow.api.lazy.times:times_of")(x, wanted, **kwargs)
    if wanted.kind not in "biufc":
        raise UnsupportedError(
            f"astype({dtype!r}) of an expression: its elements are numbers; compute() first, or where NaN is to stand "
            "beside bools astype('f4') first"
        )
    casting = kwargs.pop("casting", "unsafe")
    if not np.can_cast(x.dtype, wanted, casting):
        raise ArgumentTypeError(
            f"elements of {x.dtype} cannot be cast to {wanted} according to the rule casting={casting!r}: give another "
            "dtype, or casting='unsafe'"
        )
    check_layout(kwargs.pop("order", "K"), kwargs.pop("device", None))
    kwargs.pop("copy", None)
    if kwargs:
        raise UnsupportedError(f"astype of an expression has no {', '.join(kwargs)}: give dtype and casting")
    return x if wanted == x.dtype else mapped(_cast, x, dtype=wanted)


def _cast(block: Any, dtype: np.dtype) -> Any:
    return block.astype(dtype)


_cast.any_data = True  # type: ignore[attr-defined]


def reshape(x: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """As `numpy.reshape`; expressions are in C order, so that "A" means that."""
    if order not in tuple("CFA"):
        raise ArgumentError(f"order={order!r} must be 'C', 'F' or 'A'")
    if order == "F":
        sides = as_axes(shape, "shape")
        return rearrange.transpose(reshape(rearrange.transpose(x), sides[::-1]))
    return remembered(type(x)(reshaped(node_of(x), shape)), reshape, (x, shape), {}, ())


def squeeze(x: Any, axis: Any = None) -> Any:
    """As `numpy.squeeze`."""
    gone = [a for a, n in enumerate(x.shape) if n == 1] if axis is None else normalize_axes(axis, x.ndim, "axis")
    if any(x.shape[a] != 1 for a in gone):
        raise ArgumentError(f"axis={axis} of shape {x.shape}: only axes of length 1 can be squeezed out")
    return x[tuple(0 if a in gone else slice(None) for a in range(x.ndim))] if gone else x


def expand_dims(x: Any, axis: Any) -> Any:
    """As `numpy.expand_dims`."""
    if axis is None:
        raise ArgumentTypeError("axis=None: expand_dims needs an int, or several")
    count = len(as_axes(axis, "axis"))
    new = normalize_axes(axis, x.ndim + count, "axis")
    return x[tuple(None if a in new else slice(None) for a in range(x.ndim + count))]


def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """As `numpy.moveaxis`."""
    sources = ordered_axes(source, x.ndim, "source")
    places = ordered_axes(destination, x.ndim, "destination")
    if len(sources) != len(places):
        raise ArgumentError(f"source={source!r} and destination={destination!r} must have as many axes")
    order = [a for a in range(x.ndim) if a not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return rearrange.transpose(x, order)


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """As `numpy.rollaxis`."""
    (along,) = normalize_axes(axis, a.ndim, "axis")
    if not -a.ndim <= start <= a.ndim:
        raise ArgumentError(f"start={start} must be from {-a.ndim} to {a.ndim}")
    place = start + a.ndim if start < 0 else start
    return moveaxis(a, along, place - 1 if along < place else place)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """As `numpy.swapaxes`."""
    order = list(range(x.ndim))
    one, other = (normalize_axes(a, x.ndim, "axis")[0] for a in (axis1, axis2))
    order[one], order[other] = other, one
    return rearrange.transpose(x, order)


def broadcast_to(x: Any, shape: Any) -> Any:
    """As `numpy.broadcast_to`."""
    if not isinstance(x, Lazy):
        return np.broadcast_to(x, shape)
    node, wanted = node_of(x), tuple(as_axes(shape, "shape"))
    if wanted == node.shape:
        return x
    found = type(x)(viewed(node, declare_broadcast(wanted), "broadcast_to", wanted))
    return remembered(found, broadcast_to, (x, wanted), {}, ())


def element(x: Any, place: tuple[Any, ...]) -> Any:
    """The element that `numpy.ndarray.item` takes: at an index for each axis, or a place in the flat array."""
    index = place[0] if len(place) == 1 and isinstance(place[0], tuple) else place
    with refused_by(f"item{place}"):
        index = tuple(map(operator.index, index))
    if len(index) == 1 and x.ndim != 1:
        if not -x.size <= index[0] < x.size:
            raise PlaceError(f"item({index[0]}): the array of shape {x.shape} has {x.size} elements")
        index = tuple(map(int, np.unravel_index(index[0] % x.size, x.shape)))
    if len(index) != x.ndim:
        raise ArgumentError(f"item{index}: give a place in the flat array, or an index for each of {x.ndim} axes")
    return x[index]


def at_least(number: int) -> Function:
    """``atleast_1d`` and so on."""

    def call(*arrays: Any) -> Any:
        found = []
        for x in arrays:
            while x.ndim < number:
                x = x[..., None] if number == 3 and x.ndim == 2 else x[None]
            found.append(x)
        return found[0] if len(found) == 1 else tuple(found)

    return call


def as_array(x: Any) -> Any:
    """An expression, or an array in memory."""
    return x if isinstance(x, Lazy) else elements_of(x)


def joined(axis: int, least: int) -> Function:
    """``hstack`` and so on: concatenation along `axis` of arrays of at `least` so many dimensions."""

    def call(arrays: Sequence[Any], dtype: Any = None, casting: str = "same_kind") -> Any:
        some = [at_least(least)(as_array(a)) for a in arrays]
        return join.concatenate(some, axis if some[0].ndim > axis else 0, dtype=dtype, casting=casting)

    return call


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """As `numpy.split`."""
    (along,) = normalize_axes(axis, x.ndim, "axis")
    n = x.shape[along]
    if isinstance(indices_or_sections, int | np.integer) and indices_or_sections > 0 and n % indices_or_sections:
        raise ArgumentError(f"{n} elements do not split into {indices_or_sections} equal parts: use np.array_split")
    return array_split(x, indices_or_sections, axis)


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> Any:
    """As `numpy.array_split`."""
    (along,) = normalize_axes(axis, x.ndim, "axis")
    n = x.shape[along]
    if isinstance(indices_or_sections, int | np.integer):
        if indices_or_sections < 1:
            raise ArgumentError(f"indices_or_sections={indices_or_sections} must be at least 1")
        each, more = divmod(n, int(indices_or_sections))
        ends = np.cumsum([0] + [each + 1] * more + [each] * (int(indices_or_sections) - more)).tolist()
    else:
        ends = [0, *map(int, indices_or_sections), n]
    before = (slice(None),) * along
    return [x[(*before, slice(a, b))] for a, b in itertools.pairwise(ends)]


def tile(x: Any, reps: Any) -> Any:
    """As `numpy.tile`."""
    times = [operator.index(n) for n in ([reps] if np.ndim(reps) == 0 else reps)]
    while len(times) < x.ndim:
        times.insert(0, 1)
    while x.ndim < len(times):
        x = x[None]
    for axis, number in enumerate(times):
        if number < 0:
            raise ArgumentError(f"reps={reps!r} must not be negative: it says how often the array comes")
        if number == 0:
            x = x[(*(slice(None),) * axis, slice(0))]
        x = join.concatenate([x] * number, axis) if number > 1 else x
    return x


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """As `numpy.allclose`."""
    return extremes.all(mapped(np.isclose, a, b, rtol=rtol, atol=atol, equal_nan=equal_nan))


def array_equal(a: Any, b: Any, equal_nan: bool = False) -> Any:
    """As `numpy.array_equal`."""
    if np.shape(a) != np.shape(b):
        return False
    return extremes.all(mapped(_same if equal_nan else np.equal, a, b))


def _same(a: Any, b: Any) -> Any:
    """Whether elements are equal, or both NaN."""
    return (a == b) | ((a != a) & (b != b))


def cumulative(scanned: Function, neutral: int) -> Function:
    """As `numpy.cumulative_sum` and so on, which begin with `neutral` if they include what is initial."""

    def call(x: Any, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
        if axis is None and x.ndim > 1:
            raise ArgumentError(f"axis=None of {x.ndim} dimensions: say along which, or use np.ravel(x)")
        (along,) = normalize_axes(0 if axis is None else axis, x.ndim, "axis")
        found = scanned(x, along, dtype)
        if not include_initial:
            return found
        first = np.full((*x.shape[:along], 1, *x.shape[along + 1 :]), neutral, found.dtype)
        return join.concatenate([first, found], along)

    return call


cumulative_sum, cumulative_prod = cumulative(scan.cumsum, 0), cumulative(scan.cumprod, 1)
"""As NumPy's, which has them since 2.1."""


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """As `numpy.trapezoid`."""
    y = y if isinstance(y, Lazy) else elements_of(y)
    (along,) = normalize_axes(axis, np.ndim(y), "axis")
    width = dx
    if x is not None:
        x = x if isinstance(x, Lazy) else elements_of(x)
        width = (scan.diff if isinstance(x, Lazy) else np.diff)(x, axis=along if x.ndim > 1 else 0)
        width = width[(..., *(None,) * (y.ndim - along - 1))] if x.ndim == 1 else width
    both = added(y, along) if isinstance(y, Lazy) else y[_beside(along, 1)] + y[_beside(along, 0)]
    return sums.sum(mapped(np.multiply, width, both) / 2.0, axis=along)


def _beside(axis: int, first: int) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, slice(first, None if first else -1))


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """As `numpy.unstack`."""
    (along,) = normalize_axes(axis, x.ndim, "axis")
    return tuple(x[(*(slice(None),) * along, i)] for i in range(x.shape[along]))


def from_list(value: Any) -> Any:
    """The array of a list of numbers. Anything else stays as it is, a list of expressions too."""
    return elements_of(value) if isinstance(value, list | tuple) and not _has_expression(value) else value


def _has_expression(value: Any) -> bool:
    return any(map(_has_expression, value)) if isinstance(value, list | tuple) else isinstance(value, Lazy)


def inner(a: Any, b: Any) -> Any:
    """As `numpy.inner`."""
    if not (np.ndim(a) and np.ndim(b)):
        return mapped(np.multiply, a, b)
    return product.tensordot(a, b, axes=(-1, -1))


def require_dims(x: Any, number: int) -> Any:
    """The array, refused with fewer dimensions than NumPy asks for."""
    if x.ndim < number:
        raise ArgumentError(f"the array has {x.ndim} dimensions, and {number} are needed")
    return x


def where(condition: Any, *branches: Any) -> Any:
    """As `numpy.where`; of one argument as `numpy.nonzero`."""
    if len(branches) == 1:
        raise ArgumentError(
            "np.where got a condition and one branch: give both, as np.where(condition, a, b), or neither"
        )
    if not branches:
        return masks.nonzero(condition)
    return mapped(np.where, condition, *branches)


def append(x: Any, values: Any, axis: int | None = None) -> Any:
    """As `numpy.append`."""
    given: list[Any] = [a if isinstance(a, Lazy) else elements_of(a) for a in (x, values)]
    return join.concatenate([a.reshape(-1) if axis is None else a for a in given], 0 if axis is None else axis)


def column_stack(arrays: Sequence[Any]) -> Any:
    """As `numpy.column_stack`."""
    given: list[Any] = [a if isinstance(a, Lazy) else elements_of(a) for a in arrays]
    return join.concatenate([a[None, None] if a.ndim == 0 else a[:, None] if a.ndim == 1 else a for a in given], 1)


def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Any:
    """As `numpy.select`."""
    if len(conditions) != len(choices):
        raise ArgumentError(f"{len(conditions)} conditions and {len(choices)} choices: give one choice for each")
    if not conditions:
        raise ArgumentError("np.select without a condition: give one at least, with its choice")
    if any(value is None for value in (*conditions, *choices, default)):
        raise ArgumentTypeError("np.select of None: conditions are arrays of bools, choices arrays or numbers")
    return mapped(_selected, *conditions, *choices, default)


def _selected(*given: Any) -> Any:
    """What `select` gives of blocks: conditions, as many choices, and the default."""
    number = len(given) // 2
    conditions, choices, default = given[:number], given[number:-1], given[-1]
    for place, condition in enumerate(conditions):
        found = getattr(condition, "dtype", np.dtype(type(condition)))
        if found.kind != "b":
            raise ArgumentTypeError(f"np.select: condition {place} is of {found}, and conditions are of bools")
    dtype = np.result_type(*(getattr(value, "dtype", value) for value in (*choices, default)))
    found = _of_dtype(default, dtype, "unsafe")
    for condition, choice in zip(reversed(conditions), reversed(choices), strict=True):
        found = np.where(condition, _of_dtype(choice, dtype, "same_kind"), found)
    return found


def _of_dtype(value: Any, dtype: np.dtype, casting: Any) -> Any:
    if is_scalar(value):
        return np.asarray(value).astype(dtype, casting=casting)[()]
    return value.astype(dtype, copy=False)  # which arrays have been promoted to; CuPy's know of no casting


def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """As `numpy.rot90`."""
    require_dims(x, 2)
    if np.shape(axes) != (2,):
        raise ArgumentError(f"axes={axes!r} must be two axes")
    one, other = (normalize_axes(a, x.ndim, "axes")[0] for a in axes)
    if one == other:
        raise ArgumentError(f"axes={axes!r} must be two different axes")
    quarters = operator.index(k) % 4  # NumPy's versions differ in what they make of 1.5
    if quarters == 0:
        return x
    if quarters == 2:
        return rearrange.flip(x, (one, other))
    turned = swapaxes(rearrange.flip(x, other), one, other)
    return turned if quarters == 1 else rearrange.flip(swapaxes(x, one, other), other)


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """As `numpy.broadcast_arrays`."""
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)
