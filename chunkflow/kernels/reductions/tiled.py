"""NumPy's reductions of a block, tile by tile where that is faster or takes less memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape, fit, regions
from chunkflow.kernels.reductions import double_sums

Axes = tuple[int, ...]

TILE = 128 << 10
"""Elements of a tile on the CPU. Smaller ones fit the cache, but then threads wait for Python's lock at each."""

STRIP = 32 << 20
"""Elements of a tile on a device with memory of its own, so that the copy does not fill it."""

SHORT = 16
"""Length of the fastest axis up to which it is quicker to transpose a tile than to let NumPy loop along it."""

FEW, LONG = 1 << 12, 1 << 5
"""Results of a block with gaps up to which a GPU reduces it along one axis first, and the least length of that one."""

UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
    "fmin": np.fmin,
    "fmax": np.fmax,
}


def reduce(name: str, x: Any, axes: Axes, dtype: np.dtype | None = None) -> Any:
    """NumPy's reduction of that name, with the reduced axes kept; tile by tile if that is faster."""
    given = {} if dtype is None else {"dtype": dtype}
    if not isinstance(x, np.ndarray):
        if name in ("fmin", "fmax"):
            return _beside_nan(name[1:], x, axes)
        return getattr(np, name)(_along_one(name, x, axes, given), axis=axes, keepdims=True, **given)
    in_double = dtype == (np.dtype("c16") if x.dtype.kind == "c" else np.dtype("f8"))
    if name == "sum" and in_double and (found := double_sums.summed(x, axes)) is not None:
        return found
    ufunc = UFUNCS[name]
    order = _memory_order(x)
    if axes and x.size and (dtype or name not in ("sum", "prod")) and all(x.shape[a] == 1 for a in axes):
        found = x.astype(bool if name in ("any", "all") else dtype or x.dtype.newbyteorder("="))  # ten times as quick
        if name == "sum" and found.dtype.kind in "fc":
            found += 0  # a sum begins with it, and so -0.0 is none
        return found
    if not axes or not x.size:
        return ufunc.reduce(x, axis=axes, keepdims=True, **given)
    if name == "sum" and x.dtype == np.dtype("?") and dtype is not None and dtype.kind in "iu" and dtype.itemsize > 1:
        return _counted(x, axes, dtype)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    fastest = next((a for a in reversed(order) if x.shape[a] > 1), order[-1])
    short = fastest in axes and math.prod(x.shape[a] for a in axes) == x.shape[fastest] <= SHORT
    if not short and (fastest in axes or math.prod(shape) <= TILE):
        return ufunc.reduce(x, axis=axes, keepdims=True, **given)
    result = np.empty(shape, bool if name in ("any", "all") else dtype or x.dtype)
    for region in regions(x.shape, _whole_along(axes, x.shape, order, TILE // (x.shape[fastest] if short else 1))):
        tile = x[region]
        if short:  # the short axis first: then the loop runs along a long one
            tile = np.moveaxis(np.moveaxis(tile, fastest, 0).astype(dtype or x.dtype, order="C"), 0, fastest)
        place = result[tuple(slice(0, 1) if a in axes else s for a, s in enumerate(region))]
        ufunc.reduce(tile, axis=axes, keepdims=True, out=place, **given)
    return result


def _counted(x: np.ndarray, axes: Axes, dtype: np.dtype) -> np.ndarray:
    """Number of true elements along axes: first of as many as a byte can count, which is ten times as quick."""
    slowest = max(axes, key=lambda a: (x.shape[a] > 1, abs(x.strides[a])))
    before, most = (slice(None),) * slowest, np.iinfo("u1").max
    many = x.shape[slowest] // most
    some = x[(*before, slice(many * most))].reshape(*x.shape[:slowest], many, most, *x.shape[slowest + 1 :])
    rest = x[(*before, slice(many * most, None))][(*before, None)]
    found = np.zeros([1 if a in axes else n for a, n in enumerate(x.shape)], dtype)
    for part in (some, rest):
        few = np.add.reduce(part, axis=slowest + 1, dtype="u1")
        found += np.add.reduce(few, axis=axes, keepdims=True, dtype=dtype)
    return found


def _beside_nan(name: str, x: Any, axes: Axes) -> Any:
    """``fmin`` or ``fmax`` for array modules that lack ``fmin.reduce``: NaN only where all elements are NaN."""
    clean, mask = without(x, np.inf if name == "min" else -np.inf, skip=True)
    found = getattr(np, name)(clean, axis=axes, keepdims=True)
    return found if mask is None else np.where(mask.all(axis=axes, keepdims=True), x.dtype.type(np.nan), found)


def summed(of: Callable[..., Any], blocks: Sequence[Any], axes: Axes, dtype: np.dtype) -> Any:
    """Sum along axes of a function of blocks that broadcast to the first one, computed tile by tile."""
    x = blocks[0]
    size, once = (TILE, 2 * TILE) if isinstance(x, np.ndarray) else (STRIP, STRIP)  # no short tile is left over
    if x.size <= once or not axes:
        return reduce("sum", of(*blocks), axes, dtype)
    shape = tuple([1 if a in axes else n for a, n in enumerate(x.shape)])
    result = np.zeros_like(x, dtype, shape=shape, order="C")
    for region in regions(x.shape, fit(x.shape, (1,) * x.ndim, _memory_order(x), size)):
        parts = [b[tuple(slice(0, 1) if n == 1 else s for n, s in zip(b.shape, region, strict=True))] for b in blocks]
        result[tuple(slice(0, 1) if a in axes else s for a, s in enumerate(region))] += reduce(
            "sum", of(*parts), axes, dtype
        )
    return result


def _along_one(name: str, x: Any, axes: Axes, given: dict[str, Any]) -> Any:
    """A block of a GPU reduced along one axis first, if it has gaps and few results: CuPy has few threads for these."""
    results = math.prod(n for a, n in enumerate(x.shape) if a not in axes)
    longest = max(axes, key=lambda axis: x.shape[axis], default=0)
    if len(axes) < 2 or results > FEW or x.flags.c_contiguous or x.flags.f_contiguous or x.shape[longest] < LONG:
        return x
    return getattr(np, name)(x, axis=longest, keepdims=True, **given)


def _memory_order(x: Any) -> Axes:
    """Axes from the slowest in memory to the fastest."""
    return tuple(sorted(range(x.ndim), key=lambda a: -abs(x.strides[a])))


def _whole_along(axes: Axes, shape: Shape, order: Axes, target: int) -> Shape:
    """Sides of tiles that are whole along some axes and have about `target` results."""
    sides = fit(tuple(1 if a in axes else n for a, n in enumerate(shape)), (1,) * len(shape), order, target)
    return tuple(n if a in axes else side for a, (n, side) in enumerate(zip(shape, sides, strict=True)))


def without(x: Any, fill: Any, where: Any = None, *, skip: bool) -> tuple[Any, Any]:
    """The elements with `fill` for those that are left out, and the mask of these; None if there are none.

    Left out are those where `where` is false, and with `skip` NaN.
    """
    mask = None
    if skip and x.dtype.kind in "fc":
        mask = np.isnan(x)
        if isinstance(x, np.ndarray) and not mask.any():  # the check is cheaper than a copy; on a GPU it would wait
            mask = None
    if where is not None:
        mask = np.broadcast_to(~where, x.shape) if mask is None else mask | ~where
    return (x, None) if mask is None else (_filled(x, mask, fill), mask)


def _filled(x: Any, mask: Any, fill: Any) -> Any:
    """The elements, with `fill` where a mask is true."""
    if fill or not isinstance(x, np.ndarray) or x.dtype not in (np.dtype("f4"), np.dtype("f8")):
        return np.where(mask, x.dtype.type(fill), x)
    bits = np.dtype(f"i{x.itemsize}")  # a bit of zero has no branch: three times as quick
    kept = np.subtract(mask.view("i1"), 1, dtype="i1").astype(bits)
    kept &= x.view(bits)
    return kept.view(x.dtype)
