"""NumPy's functions of expressions whose results have a shape or dtype that only the values tell: they run at once.

A ``with chunkflow.Budget(...)`` around them bounds that run. What has few elements is an array in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.api.lazy.compute import compute
from chunkflow.api.reductions import extremes
from chunkflow.api.statistics import unique as statistics
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.live import reads_live, refuse_several
from chunkflow.stores import is_dask_array


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    sorted: bool = True,
) -> Any:
    """As `numpy.unique` of all elements; the values are sorted in any case."""
    if axis is not None and not (ar.ndim == 1 and axis in (0, -1)):
        raise UnsupportedError(
            f"np.unique: axis={axis} asks for distinct slices, and distinct elements are what is found of expressions: "
            "leave axis= out, or give np.unique an array in memory, x.compute()"
        )
    told: dict[str, Any] = {
        "return_index": return_index,
        "return_inverse": return_inverse,
        "return_counts": return_counts,
    }
    return statistics.unique(ar, **told, equal_nan=equal_nan)


def unique_as(fn: Any, **told: Any) -> Callable[[Any], Any]:
    """``unique_values`` and so on: what they return is told by NumPy's, of no elements."""
    of_none: Any = fn(np.empty(0))

    def call(x: Any) -> Any:
        found = statistics.unique(x, **told, equal_nan=False)
        return type(of_none)(*found) if isinstance(of_none, tuple) else found

    return call


def _distinct(*arrays: Any, **told: bool) -> list[Any]:
    """The distinct values of each of some arrays: expressions, also of times, or arrays in memory."""
    if sum(map(len, map(reads_live, arrays))) > len(reads_live(*arrays)):
        refuse_several("a function of two sets", arrays)
    ours: Any = statistics.unique
    distinct: Any = np.unique
    return [(ours if is_dask_array(x) else distinct)(x, **told) for x in arrays]


def of_sets(fn: Any) -> Callable[..., Any]:
    """One of NumPy's functions of two sets: it is given the distinct values of both."""

    def call(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
        return fn(*_distinct(ar1, ar2), assume_unique=True)

    return call


def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False) -> Any:
    """As `numpy.intersect1d`."""
    if not return_indices:
        return of_sets(np.intersect1d)(ar1, ar2)
    (one, first), (other, second) = _distinct(ar1, ar2, return_index=True)
    values, *places = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    return values, first[places[0]], second[places[1]]


def union1d(ar1: Any, ar2: Any) -> Any:
    """As `numpy.union1d`."""
    return np.union1d(*_distinct(ar1, ar2))


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """As `numpy.trim_zeros`: a slice of the expression, of which it is counted what is not zero."""
    ends = trim.lower() if isinstance(trim, str) else ""
    if not ends or set(ends) - set("fb"):
        raise ArgumentError(f"trim={trim!r} must have 'f' for the front, 'b' for the back, or both")
    if not filt.ndim:
        raise ArgumentError("an array without axes has no end to trim")
    refuse_several("trim_zeros", [filt])
    axes = tuple(range(filt.ndim)) if axis is None else normalize_axes(axis, filt.ndim, "axis")
    others = [tuple(a for a in range(filt.ndim) if a != along) for along in axes]
    rows = compute(*(extremes.any(mapped(np.not_equal, filt, 0), axis=rest) for rest in others))
    cut = [slice(None)] * filt.ndim
    for along, row in zip(axes, rows if len(axes) > 1 else [rows], strict=True):
        kept = np.flatnonzero(row)
        first, last = (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (len(row), len(row))
        cut[along] = slice(first if "f" in ends else 0, last if "b" in ends else None)
        if not len(kept):
            cut[along] = slice(0, 0)
    return filt[tuple(cut)]


def real_if_close(a: Any, tol: float = 100) -> Any:
    """As `numpy.real_if_close`: whether it is close is computed at once."""
    if a.dtype.kind != "c":
        return a
    refuse_several("real_if_close", [a])
    most = tol * np.finfo(a.dtype).eps if tol > 1 else tol
    close = extremes.all(mapped(np.less, abs(a.imag), most))
    return a.real if compute(close) else a


def save(file: Any, arr: Any, allow_pickle: bool = True) -> None:
    """As `numpy.save`, to a path."""
    if not isinstance(file, str | os.PathLike):
        raise ArgumentTypeError(f"np.save of an expression writes to a path, not to a {type(file).__name__}")
    path = os.fspath(file)
    arr.to_npy(path if path.endswith(".npy") else f"{path}.npy", overwrite=True)
