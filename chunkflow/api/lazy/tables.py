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
from chunkflow.kernels.statistics.sorting import kind_of
from chunkflow.kernels.twins import suited

LONG = 1 << 13
"""Elements of a table from which NumPy's functions would take much for each block."""


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
        raise ArgumentTypeError(
            f"np.choose: a is of {which.dtype}, and must hold integers, the numbers of choices: convert it"
        )
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
        raise UnsupportedError("np.searchsorted: v is in memory, and must be an expression: give chunkflow.open(v)")
    return applied(_sorted_in, (v,), {}, {"table": table, "side": side})


def _sorted_in(block: Any, table: np.ndarray, side: Any) -> Any:
    return np.searchsorted(np.asarray(table, like=block), block, side=side)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """As `numpy.interp`."""
    check_eager("np.interp", xp=xp, fp=fp, left=left, right=right, period=period)
    table = {"xp": np.asarray(xp), "fp": np.asarray(fp), "left": left, "right": right, "period": period}
    return applied(_interpolated if len(table["xp"]) > LONG and period is None else np.interp, (x,), {}, table)


def _interpolated(block: Any, **table: Any) -> Any:
    """As `numpy.interp` in a long table, of which it makes another one for as many elements as that has."""
    if not isinstance(block, np.ndarray):
        return suited(np.interp, [block])(block, **table)
    flat = block.reshape(-1)
    found = np.empty(flat.shape, np.interp(flat[:1], **table).dtype)
    for start in range(0, flat.size, LONG):
        found[start : start + LONG] = np.interp(flat[start : start + LONG], **table)
    return found.reshape(block.shape)


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """As `numpy.unravel_index`."""
    sides = tuple(as_axes(shape, "shape"))
    steps = _steps(sides, order)
    whole = [{"size": math.prod(sides), "step": step, "side": side} for step, side in zip(steps, sides, strict=True)]
    return tuple(applied(_unraveled, (indices,), {}, given) for given in whole)


def _unraveled(block: Any, size: int, step: int, side: int) -> Any:
    if block.dtype.kind not in "iu":
        raise ArgumentTypeError(f"np.unravel_index: indices are of {block.dtype}, and must be integers: convert them")
    if bool((outside := (block < 0) | (block >= size)).any()):
        raise ValueError(f"index {int(block[outside][0])} is out of bounds for array with size {size}")
    return block.astype(np.int64) // step % side


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """As `numpy.ravel_multi_index`."""
    sides = tuple(as_axes(dims, "dims"))
    along = list(multi_index) if isinstance(multi_index, tuple | list) else [multi_index[d] for d in range(len(sides))]
    modes = (mode,) * len(sides) if isinstance(mode, str) else tuple(mode)
    if not len(along) == len(modes) == len(sides):
        raise ArgumentError(f"np.ravel_multi_index: {len(along)} indices and {len(modes)} modes for dims={sides}")
    if unknown := set(modes) - set(places.MODES):
        raise ArgumentError(f"mode={unknown.pop()!r} is none of {', '.join(places.MODES)}")
    if math.prod(sides) > np.iinfo(np.int64).max:
        raise ArgumentError(f"dims={sides} have more elements than int64 counts")
    return applied(_raveled, along, {}, {"sides": sides, "steps": _steps(sides, order), "modes": modes})


def _raveled(*blocks: Any, sides: tuple[int, ...], steps: list[int], modes: tuple[str, ...]) -> Any:
    found: Any = 0
    for block, side, step, mode in zip(blocks, sides, steps, modes, strict=True):
        own = np.asarray(block) if np.isscalar(block) else block
        if own.dtype.kind not in "iu":
            raise ArgumentTypeError(
                f"np.ravel_multi_index: indices are of {own.dtype}, and must be integers: convert them"
            )
        if mode == "raise" and bool(((own < 0) | (own >= side)).any()):
            raise ValueError("invalid entry in coordinates array")
        own = own.astype(np.int64)
        found = found + (own % side if mode == "wrap" else own.clip(0, side - 1)) * step
    return found


def _steps(sides: tuple[int, ...], order: str) -> list[int]:
    """How far apart elements are that follow one another along each axis."""
    if order not in ("C", "F"):
        raise ArgumentError(f"order={order!r} must be 'C' or 'F'")
    return [math.prod(sides[d + 1 :] if order == "C" else sides[:d]) for d in range(len(sides))]


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """As `numpy.digitize`."""
    check_eager("np.digitize", bins=bins)
    return applied(np.digitize, (x,), {}, {"bins": np.asarray(bins), "right": right})


def isin(element: Any, test_elements: Any, **kwargs: Any) -> Any:
    """As `numpy.isin`."""
    check_eager("np.isin", test_elements=test_elements)
    test = np.asarray(test_elements)
    if test.size > LONG and kwargs.keys() <= {"assume_unique", "invert"} and isinstance(element, Lazy):
        dtype = np.result_type(element._node.spec.dtype, test)
        if dtype.kind in "biuf" and dtype.kind in (element._node.spec.dtype.kind, test.dtype.kind):
            table = test.astype(dtype).reshape(-1)
            table.sort(kind=kind_of(dtype))  # in its place: `np.unique` would have two more copies
            return applied(_is_in, (element,), {}, {"table": table, "invert": bool(kwargs.get("invert", False))})
    return applied(np.isin, (element,), {}, {"test_elements": test, **kwargs})


def _is_in(block: Any, table: np.ndarray, invert: bool) -> Any:
    """As `numpy.isin`, which would sort the table for each block, beside it."""
    ordered = np.asarray(table, like=block)
    block = block.astype(table.dtype, copy=False)
    found = ordered[np.minimum(np.searchsorted(ordered, block), len(table) - 1)] == block
    return ~found if invert else found
