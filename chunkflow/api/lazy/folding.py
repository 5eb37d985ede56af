"""The `reduce` of ufuncs that can be applied in any grouping and order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chunkflow.api import scan
from chunkflow.api.lazy import numpy_functions
from chunkflow.api.reductions import sums
from chunkflow.api.reductions.request import check_mask, is_mask
from chunkflow.core.axes import normalize_axes
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError
from chunkflow.graph.create import filled, integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy
from chunkflow.kernels.twins import suited

ASSOCIATIVE = frozenset(
    (
        *(np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.fmin, np.fmax),
        *(np.gcd, np.lcm, np.logaddexp, np.logaddexp2, np.hypot),
    )
)


def reduced(
    fn: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """As `numpy.ufunc.reduce`."""
    axes = tuple(range(x.ndim)) if axis is None else normalize_axes(axis, x.ndim, "axis")
    given = x.dtype if dtype is None else as_dtype(dtype)
    found_dtype = fn.resolve_dtypes((given, given, None))[-1]
    start = fn.identity if initial is None else initial
    neutral = None if start is None else np.asarray(start).astype(found_dtype)[()]
    if is_mask(where):
        where = where if isinstance(where, Lazy) else np.asarray(where)
        check_mask(where, x.shape)
        if neutral is None:
            raise ArgumentError("with where= the first element is not known: give initial=")
        # What has no identity gives the same however often it meets `initial`.
        x = mapped(
            np.where, where, x, neutral if fn.identity is None else np.asarray(fn.identity).astype(found_dtype)[()]
        )
    if any(not x.shape[a] for a in axes):
        if neutral is None:
            raise ArgumentError(f"no element along axis {axis} of shape {x.shape}: give initial=")
        sides = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
        return filled(type(x), tuple(sides), np.asarray(neutral))
    whole = partial(_halved, fn=fn, dtype=found_dtype)
    found = sums.reduction(x, whole, whole, axis=axes, keepdims=keepdims, dtype=found_dtype) if axes else x
    found = found if axes or x.dtype == found_dtype else numpy_functions.astype(x, found_dtype)
    return found if neutral is None else mapped(fn, found, neutral)  # also of one element, of which gcd is positive


def subtracted(
    x: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True
) -> Any:
    """As `numpy.subtract.reduce`: the first element less the sum of the others."""
    along = normalize_axes(tuple(range(x.ndim)) if axis is None else axis, x.ndim, "axis")
    if len(along) > 1:
        raise ArgumentError(f"axis={axis!r} are {len(along)} axes, in no order of their own: give one")
    own = np.subtract.resolve_dtypes((x.dtype, x.dtype, None))[-1] if dtype is None else as_dtype(dtype)
    if initial is None and (where is not True or any(not x.shape[a] for a in along)):
        raise ArgumentError("the first element is not known, with where= or of none at all: give initial=")
    cast = numpy_functions.astype(x, own)
    if initial is None:
        return sums.sum(_signs_turned(cast, along[0]), along, own, keepdims) if along else cast
    return mapped(np.subtract, own.type(initial), sums.sum(cast, along, own, keepdims, where=where))


def subtractions(x: Any, axis: int = 0, dtype: Any = None) -> Any:
    """As `numpy.subtract.accumulate`."""
    (along,) = normalize_axes(axis, x.ndim, "axis")
    own = np.subtract.resolve_dtypes((x.dtype, x.dtype, None))[-1] if dtype is None else as_dtype(dtype)
    return scan.cumsum(_signs_turned(numpy_functions.astype(x, own), along), along, own)


def _signs_turned(x: Any, axis: int) -> Any:
    """The elements, but for the first along an axis with the other sign: their sum is what subtractions give."""
    places = integers(type(x), 0, x.shape[axis])[(slice(None), *(None,) * (x.ndim - axis - 1))]
    return mapped(_turned, x, places)


def _turned(block: Any, places: Any) -> Any:
    return np.where(places > 0, -block, block)


def _halved(block: Any, axis: tuple[int, ...], keepdims: bool, *, fn: np.ufunc, dtype: np.dtype) -> Any:
    """A block reduced by halves: devices have the ufunc, and not each its `reduce`."""
    found = block.astype(dtype, copy=False)
    for along in axis:
        before = (slice(None),) * along
        while (n := found.shape[along]) > 1:
            one, other = found[(*before, slice(n // 2))], found[(*before, slice(n // 2, n // 2 * 2))]
            joined = suited(fn, (one, other))(one, other)
            rest = found[(*before, slice(n // 2 * 2, n))]
            found = np.concatenate([joined, rest], axis=along) if n % 2 else joined
    return found if keepdims else found.reshape([n for a, n in enumerate(found.shape) if a not in axis])
