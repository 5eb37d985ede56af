"""`numpy.pad` of expressions in all its modes: what is added is joined to the array, one axis after the other."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from chunkflow.api.lazy import numpy_functions
from chunkflow.api.operation import check_eager
from chunkflow.api.rearrange import join, rearrange
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.statistics import quantile
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.create import integers
from chunkflow.graph.elementwise import mapped
from chunkflow.stores.checks import elements_of

STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": extremes.max,
    "minimum": extremes.min,
    "mean": sums.mean,
    "median": quantile.median,
}

OPTIONS = {
    **dict.fromkeys(STATISTICS, "stat_length"),
    **dict.fromkeys(("reflect", "symmetric"), "reflect_type"),
    "linear_ramp": "end_values",
    "constant": "constant_values",
}
"""The one argument that a mode takes."""


def pad(array: Any, pad_width: Any, mode: Any = "constant", **given: Any) -> Any:
    """As `numpy.pad`."""
    if callable(mode):
        raise ArgumentTypeError("np.pad: mode is a function that writes to lines of the padded array: give a name")
    if unknown := given.keys() - {OPTIONS.get(mode)}:
        raise ArgumentError(f"{', '.join(sorted(unknown))} has no meaning in mode={mode!r}: leave it out")
    if mode not in (known := (*join.MODES, *STATISTICS, "linear_ramp", "empty")):
        raise ArgumentError(f"mode={mode!r} is unknown: give one of {', '.join(known)}")
    check_eager("pad", pad_width=pad_width, **given)
    widths = _widths(pad_width, array.ndim)
    kind = given.pop("reflect_type", "even")
    if kind not in ("even", "odd"):
        raise ArgumentError(f"reflect_type={kind!r} must be 'even' or 'odd'")
    pairs = {name: _pairs(name, value, array.ndim) for name, value in given.items()}
    if any(length is not None and operator.index(length) < 1 for length in _flat(given.get("stat_length"))):
        raise ArgumentError(f"stat_length={given['stat_length']!r} must be at least 1")
    if not widths:  # an array without axes has no edge
        return array
    if mode in STATISTICS:
        return _with_statistics(array, widths, STATISTICS[mode], pairs.get("stat_length"))
    if mode == "linear_ramp":
        return _with_ramps(array, widths, pairs.get("end_values", [(0, 0)] * array.ndim))
    if mode == "empty":
        return join.pad(array, widths)
    if kind == "odd":
        return _with_odd_images(array, widths, with_edge=mode == "symmetric")
    return join.pad(array, widths, mode, **given)


def _widths(given: Any, ndim: int) -> list[tuple[int, int]]:
    """How many elements come before and after along each axis."""
    widths = list(given.values()) if isinstance(given, Mapping) else [given]
    if any(np.asarray(width).dtype.kind not in "iu" for width in widths):
        raise ArgumentTypeError(f"pad_width={given!r} must be of ints")
    if any(np.any(np.asarray(width) < 0) for width in widths):
        raise ArgumentError(f"pad_width={given!r} must not be negative: slice the array to make it smaller")
    if not isinstance(given, Mapping):
        return _pairs("pad_width", given, ndim)
    found = [(0, 0)] * ndim
    for axis, width in given.items():
        (along,) = normalize_axes(axis, ndim, "axis")
        found[along] = _pairs("pad_width", width, 1)[0]
    return found


def _flat(given: Any) -> list[Any]:
    return elements_of(given).reshape(-1).tolist()


def _pairs(name: str, given: Any, ndim: int) -> list[tuple[Any, Any]]:
    """A pair for each axis, of one number, one pair, or all."""
    values = elements_of(given)
    try:
        return [tuple(pair) for pair in np.broadcast_to(values, (ndim, 2)).tolist()]
    except ValueError:
        raise ArgumentError(
            f"{name}={given!r} of shape {values.shape} must be a number, a pair of them, or one for each of {ndim} axes"
        ) from None


def _part(x: Any, axis: int, places: slice) -> Any:
    return x[(*(slice(None),) * axis, places)]


def _joined(parts: list[Any], axis: int) -> Any:
    kept = [part for part in parts if part.shape[axis]]
    return join.concatenate(kept, axis) if len(kept) > 1 else kept[0] if kept else parts[0]


def _places(x: Any, axis: int) -> Any:
    """The places along an axis, shaped to go along it."""
    return integers(type(x), 0, x.shape[axis])[(slice(None), *(None,) * (x.ndim - axis - 1))]


def _check_elements(x: Any, widths: list[tuple[int, int]]) -> None:
    for axis, (n, pair) in enumerate(zip(x.shape, widths, strict=True)):
        if not n and any(pair):
            raise ArgumentError(f"axis {axis} has no element to pad it with")


def _with_statistics(x: Any, widths: list[tuple[int, int]], statistic: Any, given: list[tuple[Any, Any]] | None) -> Any:
    """The array between statistics of it along each axis in turn.

    They are of the array and of what was put beside it along the axes before, each of which is a part by itself: so the
    array is read once for the statistics along all axes.
    """
    _check_elements(x, widths)
    lengths = given or [(None, None)] * x.ndim
    parts: dict[tuple[int, ...], Any] = {(): x}  # by their places along the axes before: 0 is the array's own
    for axis, ((before, after), own) in enumerate(zip(widths, lengths, strict=True)):
        n = x.shape[axis]
        first, last = (n if length is None else min(operator.index(length), n) for length in own)
        longer: dict[tuple[int, ...], Any] = {}
        for place, part in parts.items():
            longer[*place, 0] = part
            for side, width, of in ((-1, before, slice(first)), (1, after, slice(n - last, n))):
                if width:
                    value = statistic(part if of == slice(n) else _part(part, axis, of), axis=axis, keepdims=True)
                    value = mapped(np.rint, value) if x.dtype.kind in "iu" and value.dtype.kind == "f" else value
                    shape = [width if a == axis else m for a, m in enumerate(part.shape)]
                    longer[*place, side] = np.broadcast_to(numpy_functions.astype(value, x.dtype), shape)
        parts = longer
    for axis in reversed(range(x.ndim)):
        rows: dict[tuple[int, ...], list[Any]] = {}
        for place in sorted(parts):
            rows.setdefault(place[:axis], []).append(parts[place])
        parts = {place: _joined(row, axis) for place, row in rows.items()}
    return parts[()]


def _between(block: Any, left: Any, right: Any, places: Any, start: int, stop: int) -> Any:
    """A block from `start` to `stop`, and what comes on either side of it."""
    return np.where(places < start, left, np.where(places >= stop, right, block))


def _with_ramps(x: Any, widths: list[tuple[int, int]], given: list[tuple[Any, Any]]) -> Any:
    _check_elements(x, widths)
    found = join.pad(x, widths)
    for axis, ((before, after), ends) in enumerate(zip(widths, given, strict=True)):
        if before + after:
            stop = before + x.shape[axis]
            left, right = (_part(found, axis, slice(at, at + 1)) for at in (before, stop - 1))
            places = _places(found, axis)
            left = mapped(_linear, left, places, end=ends[0], number=before)
            right = mapped(_linear, right, found.shape[axis] - 1 - places, end=ends[1], number=after)
            found = mapped(_between, found, left, right, places, start=before, stop=stop)
    return found


def _linear(edge: Any, places: Any, end: Any, number: int) -> Any:
    """As `numpy.linspace` from a number to an array, without the last ones."""
    wide = np.result_type(edge.dtype, np.float64)
    first = wide.type(end)
    step = (edge.astype(wide) - first) / max(number, 1)
    found = places * step + first
    return (np.floor(found) if edge.dtype.kind in "iu" else found).astype(edge.dtype)


def _with_odd_images(x: Any, widths: list[tuple[int, int]], *, with_edge: bool) -> Any:
    """Images that are turned around the edge: twice the edge's value, less the image's."""
    skip = 0 if with_edge else 1
    for axis, (before, after) in enumerate(widths):
        if not x.shape[axis] and before + after:
            raise ArgumentError(f"axis {axis} has no element to pad it with")
        if x.shape[axis] == 1 and skip:  # there is nothing but the edge
            x = join.pad(x, [(before, after) if a == axis else (0, 0) for a in range(x.ndim)], "edge")
            continue
        period = x.shape[axis] - skip
        while before + after:
            n = x.shape[axis]
            most = (n - skip) // period * period
            left, right = min(before, most), min(after, most)
            first, last = _part(x, axis, slice(0, 1)), _part(x, axis, slice(n - 1, n))
            images = (
                2 * first - rearrange.flip(_part(x, axis, slice(skip, skip + left)), axis),
                2 * last - rearrange.flip(_part(x, axis, slice(n - skip - right, n - skip)), axis),
            )
            x = _joined(
                [numpy_functions.astype(images[0], x.dtype), x, numpy_functions.astype(images[1], x.dtype)], axis
            )
            before, after = before - left, after - right
    return x
