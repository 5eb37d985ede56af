"""How elements and mask of results come about: handlers that NumPy's functions of masked expressions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.handlers import Function, Handler
from chunkflow.api.lazy.masked_parts import WAYS_OUT, Masked, data_of, elementwise, mask_of, paired
from chunkflow.api.reductions import extremes, sums
from chunkflow.errors import UnsupportedError
from chunkflow.graph.elementwise import mapped
from chunkflow.stores import array_of
from chunkflow.stores.checks import loaded


def refusal(name: str, why: str = "is not supported") -> UnsupportedError:
    """The error of a function that masked expressions do not have, with the ways out."""
    return UnsupportedError(f"{name} of a masked expression {why}: {WAYS_OUT}")


def only(places: Sequence[Any], named: Mapping[str, Any], at: int = 0) -> Masked:
    """The one masked argument, which has this place."""
    others = [*places[:at], *places[at + 1 :], *named.values()]
    if not isinstance(places[at], Masked) or is_masked(others):
        raise UnsupportedError(f"an argument is masked that must not be: {WAYS_OUT}")
    found: Masked = places[at]
    return found


def moved(at: int) -> Handler:
    """The mask is moved as the elements are; `at` is the place of the array among the arguments."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named, at)
        found, mask = (ours(*places[:at], part, *places[at + 1 :], **named) for part in x.parts())
        return paired(x, found, mask)

    return call


def of_elements(at: int) -> Handler:
    """Each element gives one of the result, which has the mask; `at` is the place of the array."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named, at)
        return x.kept(ours(*places[:at], data_of(x), *places[at + 1 :], **named), mask_of(x))

    return call


def filled_like(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Arrays of one number keep the mask; of another shape too, where that has as many elements."""
    if named.get("shape") is None:
        return elementwise(ours, places, named)
    x = only(places, named)
    found = ours(data_of(x), *places[1:], **named)
    return x.kept(found, mask_of(x if found.size == x.size else type(x).unmasked(found)).reshape(found.shape))


def joined(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Arrays are joined: of those without a mask nothing is masked."""
    first = first_masked(places)
    of_bools = {key: value for key, value in named.items() if key not in ("dtype", "casting")}
    return paired(first, ours(*map(data_of, places), **named), ours(*map(mask_of, places), **of_bools))


def alike(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Arrays that are changed alike: each gives a result, so each becomes a masked expression."""
    kind = type(first_masked(places))
    return joined(ours, [value if isinstance(value, Masked) else as_masked(kind, value) for value in places], named)


def as_masked(kind: type[Masked], value: Any) -> Masked:
    """A masked expression of an array without a mask."""
    return kind.unmasked(value) if isinstance(value, Array) else kind.of(np.ma.asarray(loaded(value)))


def appended(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `joined`, of arrays one after the other, which may be lists."""
    return joined(ours, [as_one(value) for value in places], named)


def as_one(value: Any) -> Any:
    """An array in the place of a list."""
    return array_of(value) if isinstance(value, list | tuple) else value


def first_masked(values: Any) -> Masked:
    """The first masked expression in lists of them: there is one."""
    found = [each for value in values for each in ([value] if isinstance(value, Masked) else _inner(value))]
    return found[0]


def _inner(value: Any) -> list[Masked]:
    return [first_masked(value)] if isinstance(value, list | tuple) and is_masked(value) else []


def is_masked(value: Any) -> bool:
    """Whether a value, or one in lists, is a masked expression."""
    return isinstance(value, Masked) or (isinstance(value, list | tuple) and any(map(is_masked, value)))


def of_data(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """What is known of the elements alone."""
    return ours(*map(data_of, places), **named)


def of_filled(neutral: Callable[[np.dtype], Any]) -> Handler:
    """A plain result, of the elements with something neutral in the masked places."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named)
        return ours(x.filled(neutral(data_of(x).dtype)), *places[1:], **named)

    return call


def accumulated(neutral: int) -> Handler:
    """Masked places change nothing, and stay masked."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named)
        mask = mask_of(x) if named.get("axis") is not None else mask_of(x).reshape(-1)
        return x.kept(ours(x.filled(neutral), **named), mask)

    return call


def lines_of(named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that say along which axes an array is reduced."""
    return {key: named[key] for key in ("axis", "keepdims") if key in named}


def reduced(neutral: Callable[[np.dtype], Any] | None = None) -> Handler:
    """Masked elements are left out by ``where=``. Masked is what has too few others; an extreme begins with `neutral`.

    Whether there are is found in the same pass.
    """

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named)
        data, taken = data_of(x), ~mask_of(x)
        if ours is sums.mean and named.get("dtype") is not None and np.dtype(named["dtype"]).kind in "biu":
            raise refusal("a mean", f"has no dtype={named['dtype']!r}, which loses fractions: round it, or")
        if "where" in named:
            taken = mapped(np.logical_and, taken, named["where"])
        begun = {} if neutral is None else {"initial": neutral(data.dtype)}
        found = ours(data, **{**begun, **named, "where": taken})
        return x.kept(found, too_few(taken, named.get("correction", named.get("ddof", 0)), lines_of(named)))

    return call


def too_few(taken: Any, least: float, how: Mapping[str, Any]) -> Any:
    """Whether no more elements than `least` are taken along the axes."""
    return sums.sum(taken, **how) <= least if least else extremes.all(~taken, **how)
