"""NumPy's functions that look each element up in a table. A block has the whole of a table that is an expression."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api.core_axes import whole_axes
from chunkflow.api.lazy import numpy_functions
from chunkflow.api.operation import check_eager
from chunkflow.api.rearrange import take as places
from chunkflow.api.statistics import sort
from chunkflow.core.axes import as_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.elementwise import applied, mapped
from chunkflow.graph.nodes import Lazy, first_lazy, has_lazy, node_of, source_of
from chunkflow.kernels.statistics.sorting import kind_of
from chunkflow.kernels.twins import suited
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of

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
    """As `numpy.searchsorted`."""
    if np.ndim(a) != 1:
        raise ArgumentError(f"np.searchsorted in an array of {np.ndim(a)} dimensions: give one of 1 dimension")
    if side not in ("left", "right"):
        raise ArgumentError(f"side={side!r} must be 'left' or 'right'")
    if sorter is not None:
        check_eager("np.searchsorted", sorter=sorter)
        a = numpy_functions.as_array(a)[elements_of(sorter)]
    return _looked_up(_sorted_in, v, {"table": a}, np.dtype(np.intp), side=side)


def _looked_up(fn: Any, x: Any, tables: dict[str, Any], dtype: np.dtype, **how: Any) -> Any:
    """What a function of blocks and tables gives, which it takes by name.

    Tables that are expressions, or large, are operands, which each block has whole: the budget counts them.
    """
    known = {name: _known(table) for name, table in tables.items()}
    x = _lazily(x, *tables.values())
    if not has_lazy(list(known.values())) and sum(table.nbytes for table in known.values()) <= places.LARGEST:
        return applied(fn, (x,), {}, {**known, **how})
    work = partial(_with_tables, fn=fn, names=tuple(known), how=how)
    lines = [(table, ("table",)) for table in known.values()]
    return whole_axes(work, fn.__name__.strip("_"), [(x, ()), *lines], (), dtype)


def _lazily(x: Any, *tables: Any) -> Any:
    """What is looked up as an expression, of the kind that a table is."""
    if isinstance(x, Lazy):
        return x
    kind: Any = type(first_lazy(*tables))
    return kind(node_of(elements_of(x)))


def _known(table: Any) -> Any:
    """A table as an array, if it is in memory, or has no elements."""
    if isinstance(table, Lazy) and not (spec := spec_of(table)).size:
        return np.empty(spec.shape, spec.dtype)
    found = source_of(node_of(table)) if isinstance(table, Lazy) else elements_of(table)
    return found if isinstance(found, np.ndarray) else table


def _with_tables(block: Any, *tables: Any, fn: Any, names: tuple[str, ...], how: dict[str, Any]) -> Any:
    return fn(block, **dict(zip(names, tables, strict=True)), **how)


def _sorted_in(block: Any, table: Any, side: Any) -> Any:
    return np.searchsorted(np.asarray(table, like=block), block, side=side)


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """As `numpy.interp`."""
    check_eager("np.interp", left=left, right=right, period=period)
    xp, fp = map(numpy_functions.as_array, (xp, fp))
    if has_lazy([xp, fp]) and (xp.ndim, fp.ndim, xp.size) != (1, 1, fp.size):
        raise ArgumentError(f"xp and fp of shapes {xp.shape} and {fp.shape}: give two lines of one length")
    if not xp.size:
        raise ArgumentError("xp has no elements: there is nothing to interpolate between")
    tables = {"xp": xp, "fp": fp}
    fn = _interpolated if xp.size > LONG and period is None else np.interp
    dtype = np.dtype("c16" if spec_of(fp).dtype.kind == "c" else "f8")
    return _looked_up(fn, x, tables, dtype, left=left, right=right, period=period)


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
    if isinstance(bins, Lazy) and len(shape := node_of(bins).shape) != 1:
        raise ArgumentError(f"bins= of shape {shape}: give a line of edges")
    return _looked_up(np.digitize, x, {"bins": bins}, np.dtype(np.intp), right=right)


def isin(element: Any, test_elements: Any, **kwargs: Any) -> Any:
    """As `numpy.isin`."""
    element, test = _lazily(element, test_elements), _known(test_elements)
    test = numpy_functions.reshape(test, -1) if isinstance(test, Lazy) else test.reshape(-1)
    if test.size > LONG and kwargs.keys() <= {"assume_unique", "invert"}:
        kinds = [spec_of(a).dtype for a in (element, test)]
        dtype = np.result_type(*kinds)
        if dtype.kind in "biuf" and dtype.kind in [kind.kind for kind in kinds]:
            return _looked_up(
                _is_in, element, {"table": _ordered(test, dtype)}, np.dtype(bool), invert=bool(kwargs.get("invert"))
            )
    return _looked_up(np.isin, element, {"test_elements": test}, np.dtype(bool), **kwargs)


def _ordered(test: Any, dtype: np.dtype) -> Any:
    if isinstance(test, Lazy):
        return sort.sort(numpy_functions.astype(test, dtype))
    table = test.astype(dtype).reshape(-1)
    table.sort(kind=kind_of(dtype))  # in its place: `np.unique` would have two more copies
    return table


def _is_in(block: Any, table: Any, invert: bool) -> Any:
    """As `numpy.isin`, which would sort the table for each block, beside it."""
    ordered = np.asarray(table, like=block)
    block = block.astype(table.dtype, copy=False)
    found = ordered[np.minimum(np.searchsorted(ordered, block), len(table) - 1)] == block
    return ~found if invert else found
