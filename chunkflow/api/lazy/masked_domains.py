"""Where numpy.ma masks the result of a ufunc or an operator, because it is not defined there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from chunkflow.graph.elementwise import applied, mapped

_TINY = np.finfo(float).tiny
_EDGE = 1 - 1e-15
"""Beyond which numpy.ma masks ``arctanh``."""


def _at_most(x: Any, bound: float) -> Any:
    return x <= bound


def _below(x: Any, bound: float) -> Any:
    return x < bound


def _beyond(x: Any, low: float, high: float) -> Any:
    return (x > high) | (x < low)


def _at_pole(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return abs(np.cos(x)) < 1e-35


def _by_nothing(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.absolute(a) * _TINY >= np.absolute(b)


def _is_not_finite(x: Any) -> Any:
    return ~np.isfinite(x)


class Domain(NamedTuple):
    """What a ufunc does not define.

    Attributes
    ----------
    outside : callable
        Where that is, of the ufunc's arguments and `bounds`.
    safe : int
        What its last argument is set to there: nothing is computed of which NumPy warns.
    bounds : dict
        Arguments by name.
    """

    outside: Callable[..., Any]
    safe: int
    bounds: dict[str, float]


DOMAINS: dict[Any, Domain] = {
    np.sqrt: Domain(_below, 0, {"bound": 0.0}),
    **dict.fromkeys((np.log, np.log2, np.log10), Domain(_at_most, 1, {"bound": 0.0})),
    np.tan: Domain(_at_pole, 0, {}),
    **dict.fromkeys((np.arcsin, np.arccos), Domain(_beyond, 0, {"low": -1.0, "high": 1.0})),
    np.arccosh: Domain(_below, 1, {"bound": 1.0}),
    np.arctanh: Domain(_beyond, 0, {"low": -_EDGE, "high": _EDGE}),
    **dict.fromkeys((np.divide, np.floor_divide, np.remainder, np.fmod), Domain(_by_nothing, 1, {})),
}
"""The ufuncs of which numpy.ma has a domain."""

_UFUNCS = {operator.truediv: np.divide, operator.floordiv: np.floor_divide, operator.mod: np.remainder}

_STRICT = (operator.truediv, operator.floordiv, operator.pow)
"""Operators of which numpy.ma masks whatever is not finite, too."""


def defined(fn: Any, arrays: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Arguments for which a ufunc or an operator is defined, and the masks, one or none, of where it was not."""
    domain = DOMAINS.get(_UFUNCS.get(fn, fn))
    if domain is None:
        return list(arrays), []
    hidden, last = applied(domain.outside, arrays, {}, domain.bounds), arrays[-1]
    if not isinstance(last, int | float | complex):  # Python's own have no dtype to keep
        last = mapped(np.where, hidden, last.dtype.type(domain.safe), last)
    return [*arrays[:-1], last], [hidden]


def not_finite(fn: Any, found: Any) -> list[Any]:
    """The mask of what an operator makes that is not finite, if that is to be masked."""
    return [mapped(_is_not_finite, found)] if fn in _STRICT else []
