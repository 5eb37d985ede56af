"""NumPy's functions that look each element of an expression up in a table, which is in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chunkflow.api.operation import check_eager
from chunkflow.api.rearrange import take as places
from chunkflow.core.axes import as_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.elementwise import applied, mapped
from chunkflow.graph.nodes import Lazy


def choose(a: Any, choices: Any, mode: str = "raise") -> Any:
    """As `numpy.choose`."""
    if mode not in places.MODES:
        raise ArgumentError(f"mode={mode!r} is none of {', '.join(places.MODES)}")
    given = list(choices)
    if not given:
        raise ArgumentError("np.choose without choices: give one at least")
    return mapped(_chosen, a, *given, mode=mode)


def _chosen(which: Any, *choices: Any, mode: str) -> Any:
    if which.dtype.kind not in "iub":
        raise ArgumentTypeError(f"np.choose by an array of {which.dtype}: which choice to take is an integer")
    n = len(choices)
    which = which.astype(np.int64)
    if mode == "wrap":
        which = which % n
    elif mode == "clip":
        which = which.clip(0, n - 1)
    elif bool(((which < 0) | (which >= n)).any()):
        raise ValueError("invalid entry in choice array")
    dtype = np.result_type(*(getattr(choice, "dtype", choice) for choice in choices))
    first = choices[0].astype(dtype) if hasattr(choices[0], "astype") else np.full_like(which, choices[0], dtype=dtype)
    for number, choice in enumerate(choices[1:], 1):
        first = np.where(which == number, choice, first)
    return first.astype(dtype, copy=False)


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """As `numpy.searchsorted`, of a table in memory."""
    table = places.in_memory(a, "np.searchsorted: the sorted array")
    if table.ndim != 1:
        raise ArgumentError(f"np.searchsorted in an array of {table.ndim} dimensions: give one of 1 dimension")
    if side not in ("left", "right"):
        raise ArgumentError(f"side={side!r} must be 'left' or 'right'")
    if sorter is not None:
        table = table[np.asarray(sorter)]
    if not isinstance(v, Lazy):
        raise UnsupportedError("np.searchsorted: places are those of an expression's elements, v")
    return applied(_sorted_in, (v,), {}, {"table": table, "side": side})


def _sorted_in(block: Any, table: np.ndarray, side: Any) -> Any:
    return np.searchsorted(np.asarray(table, like=block), block, side=side)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """As `numpy.interp`."""
    check_eager("np.interp", xp=xp, fp=fp, left=left, right=right, period=period)
    table = {"xp": np.asarray(xp), "fp": np.asarray(fp), "left": left, "right": right, "period": period}
    return applied(np.interp, (x,), {}, table)


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """As `numpy.unravel_index`."""
    sides = tuple(as_axes(shape, "shape"))
    if order not in ("C", "F"):
        raise ArgumentError(f"order={order!r} must be 'C' or 'F'")
    slower = [math.prod(sides[d + 1 :] if order == "C" else sides[:d]) for d in range(len(sides))]
    whole = [{"size": math.prod(sides), "step": step, "side": side} for step, side in zip(slower, sides, strict=True)]
    return tuple(applied(_unraveled, (indices,), {}, given) for given in whole)


def _unraveled(block: Any, size: int, step: int, side: int) -> Any:
    if block.dtype.kind not in "iu":
        raise ArgumentTypeError(f"np.unravel_index of {block.dtype}: places are integers")
    if bool((outside := (block < 0) | (block >= size)).any()):
        raise ValueError(f"index {int(block[outside][0])} is out of bounds for array with size {size}")
    return block.astype(np.int64) // step % side


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """As `numpy.digitize`."""
    check_eager("np.digitize", bins=bins)
    return applied(np.digitize, (x,), {}, {"bins": np.asarray(bins), "right": right})


def isin(element: Any, test_elements: Any, **kwargs: Any) -> Any:
    """As `numpy.isin`."""
    check_eager("np.isin", test_elements=test_elements)
    return applied(np.isin, (element,), {}, {"test_elements": np.asarray(test_elements), **kwargs})
