"""Medians, quantiles, places of extremes and gradients of times, of which NaT is what NaN is among floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api.lazy.handlers import Function, Handler
from chunkflow.api.lazy.times_rules import OF_A_RUN, only, takes
from chunkflow.api.lazy.times_ufuncs import key, unkey, whole
from chunkflow.api.lazy.times_units import is_nat
from chunkflow.api.rearrange import along as places_along
from chunkflow.api.rearrange import rearrange
from chunkflow.api.reductions import extremes, nan, sums
from chunkflow.api.statistics import quantile, sort
from chunkflow.api.stencil import gradient
from chunkflow.core.axes import normalize_axes
from chunkflow.graph.elementwise import mapped
from chunkflow.kernels.statistics.quantile import Rule, rule_of_lines
from chunkflow.stores.times import NAT

Ranks = Callable[[Any], Sequence[Any]]
"""Gives the places in the order of so many times."""


def place(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Where the first or the last time is: NaT is left out, and a line of nothing else is an error, as one of NaN."""
    x = only(places)
    takes("a place", named, "axis", "keepdims")
    (counts,) = x.parts()
    fn, values = (extremes.argmin, key(counts)) if ours is nan.nanargmin else (extremes.argmax, counts)
    return mapped(_found, fn(values, **named), extremes.any(~is_nat(counts), **named))


def _found(places: Any, there: Any) -> Any:
    if not bool(there.all()):
        raise ValueError("a line has nothing but NaT: np.argmin and np.argmax give the place of the first")
    return places


# -- Quantiles -------------------------------------------------------------------------------------------------------


def median(skips: bool) -> Handler:
    """The time in the middle, or the mean of two, which rounds towards zero as that of NumPy's timedelta64."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places)
        takes("a median", named, "axis", "keepdims", *OF_A_RUN)
        (counts,) = x.parts()
        how = _lines(named)
        if not counts.size:
            return x.kept(np.full_like(extremes.any(is_nat(counts), **how), NAT, dtype="i8"))
        low, high = _ranked(counts, lambda n: ((n - 1) // 2, n // 2), how, skips)
        return x.kept(_middle(low, high))

    return call


def _middle(low: Any, high: Any) -> Any:
    """The mean of two integers, rounded towards zero, without their sum; NaT of two of them."""
    rest = low % 2 + high % 2
    found = low // 2 + high // 2 + rest // 2
    return found + ((rest % 2 != 0) & (found < 0))


def _lines(named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that say along which axes."""
    return {name: value for name, value in named.items() if name in ("axis", "keepdims")}


def quantiles(skips: bool) -> Handler:
    """Quantiles as NumPy makes them of times: it cuts what it adds to the lower one, as C does."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x, wanted = only(places), np.asarray(places[1])
        takes("a quantile", named, "axis", "keepdims", "method", *OF_A_RUN)
        (counts,) = x.parts()
        how = _lines(named)
        method = named.get("method", "linear")
        refused = ours(counts, places[1], **named)  # what is refused of integers is refused here
        if not counts.size:
            return x.kept(np.full_like(refused, NAT, dtype="i8"))
        levels = wanted.reshape(-1) / (100 if "percentile" in ours.__name__ else 1)
        results = [_quantile(counts, float(level), how, method, skips) for level in levels]
        if not results:
            return x.kept(refused.astype("i8"))
        return x.kept(np.stack(results).reshape((*wanted.shape, *results[0].shape)) if wanted.ndim else results[0])

    return call


def _quantile(counts: Any, level: float, how: dict[str, Any], method: str, skips: bool) -> Any:
    rule = partial(_rule, level=level, method=method)
    parts = 1 if rule(np.asarray(1)).above is None else 3
    found: list[Any] = []

    def ranks(number: Any) -> Sequence[Any]:
        found.extend(
            mapped(_part, number, rule=rule, which=which) if skips else _part(number, rule, which)
            for which in range(parts)
        )
        return found[:2]

    ranked = _ranked(counts, ranks, how, skips)
    low, high = ranked[0], ranked[-1]
    if parts == 1:
        return low
    weight = found[2].reshape(low.shape) if skips else found[2]
    return np.where(is_nat(low), NAT, _between(low, high, weight))


def _rule(number: Any, level: float, method: str) -> Rule:
    return rule_of_lines(number, np.asarray([level], like=number), method, weak=False, dtype=np.dtype("f8"))


def _part(number: Any, rule: Callable[[Any], Rule], which: int) -> Any:
    """Of lines that have so many elements the place of one beside the quantile, of the next, or the weight of that."""
    found = rule(number)
    parts: tuple[Any, ...] = (found.below, found.above, found.weight)
    return parts[which][0]


def _between(low: Any, high: Any, part: Any) -> Any:
    step = high - low
    return np.where(part >= 0.5, high - whole(step * (1 - part)), low + whole(step * part))


def _ranked(counts: Any, ranks: Ranks, how: dict[str, Any], skips: bool) -> list[Any]:
    """The times at places in the order of each line: NaT if there is one in it, or nothing else if it `skips` them."""
    ndim = len(counts.shape)
    axes = range(ndim) if how.get("axis") is None else normalize_axes(how["axis"], ndim, "axis")
    length = math.prod(counts.shape[axis] for axis in axes)
    if not skips:
        lost = extremes.any(is_nat(counts), **how)
        levels = [int(rank) / max(length - 1, 1) for rank in ranks(np.asarray(length))]
        found = quantile.quantile(key(counts), levels, method="nearest", **how)
        return [np.where(lost, NAT, unkey(found[place])) for place in range(len(levels))]
    kept = [axis for axis in range(ndim) if axis not in axes]
    lines = rearrange.transpose(counts, (*kept, *axes)).reshape((*(counts.shape[axis] for axis in kept), length))
    number = sums.sum(~is_nat(lines), axis=-1, dtype="i8", keepdims=True)
    ordered = sort.sort(key(lines), axis=-1)
    shape = [1 if axis in axes else n for axis, n in enumerate(counts.shape) if how.get("keepdims") or axis in kept]
    at = [np.where(number == 0, 0, rank) for rank in ranks(number)]
    # where all are NaT the first is
    return [unkey(places_along.take_along_axis(ordered, place, axis=-1)).reshape(shape) for place in at]


# -- Gradients -------------------------------------------------------------------------------------------------------


def gradients(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.gradient` of times, which are spans: each product and quotient is cut to a whole number of units."""
    x, order = only(places), named.get("edge_order", 1)
    takes("a gradient", named, "axis", "edge_order")
    (counts,) = x.parts()
    several = ours(counts, *places[1:], **named)  # what is refused of integers is refused here
    axes = gradient.axes_of(named.get("axis"), len(counts.shape))
    spans = type(x)(counts, x.dtype.str.replace("M8", "m8"))
    steps = gradient.spacings(places[1:], axes, counts.shape)
    found = [_gradient(spans, axis, step, order) for axis, step in zip(axes, steps, strict=True)]
    return type(several)(found) if isinstance(several, tuple | list) else found[0]


def _gradient(x: Any, axis: int, step: Any, order: int) -> Any:
    def at(start: int | None, stop: int | None) -> Any:
        return x[(*(slice(None),) * axis, slice(start, stop))]

    distances = np.diff(step) if isinstance(step, np.ndarray) else None
    if distances is None:
        inner = (at(2, None) - at(None, -2)) / (2.0 * step)
    else:
        before, after = distances[:-1], distances[1:]
        weights = (
            -after / (before * (before + after)),
            (after - before) / (before * after),
            before / (after * (before + after)),
        )
        column = (-1, *[1] * (len(x.shape) - axis - 1))
        inner = _weighed([at(None, -2), at(1, -1), at(2, None)], [weight.reshape(column) for weight in weights])
    if order == 2:
        ends = _ends(at, step, distances)
    else:
        near, far = (step, step) if distances is None else (distances[0], distances[-1])
        ends = (at(1, 2) - at(0, 1)) / near, (at(-1, None) - at(-2, -1)) / far
    return np.concatenate([ends[0], *([inner] if x.shape[axis] > 2 else []), ends[1]], axis=axis)


def _weighed(values: Sequence[Any], weights: Sequence[Any]) -> Any:
    one, two, three = (value * weight for value, weight in zip(values, weights, strict=True))
    return one + two + three


def _ends(at: Callable[[int | None, int | None], Any], step: Any, distances: Any) -> tuple[Any, Any]:
    """One-sided differences of three elements at both ends, with NumPy's weights."""
    if distances is None:
        left, right = (-1.5 / step, 2.0 / step, -0.5 / step), (0.5 / step, -2.0 / step, 1.5 / step)
    else:
        one, two = distances[:2]
        left = (-(2.0 * one + two) / (one * (one + two)), (one + two) / (one * two), -one / (two * (one + two)))
        one, two = distances[-2:]
        right = (two / (one * (one + two)), -(two + one) / (one * two), (2.0 * two + one) / (two * (one + two)))
    return (
        _weighed([at(0, 1), at(1, 2), at(2, 3)], left),
        _weighed([at(-3, -2), at(-2, -1), at(-1, None)], right),
    )
