"""NumPy's ufuncs of times. A rule says what becomes of the integers; NaT is put in, and kept out, around it.

Which dtypes go together, and which unit comes out, is NumPy's own answer (``ufunc.resolve_dtypes``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from chunkflow.api.lazy.times_parts import WAYS_OUT, Times, operand
from chunkflow.api.lazy.times_units import is_nat
from chunkflow.errors import ArgumentTypeError, UnsupportedError
from chunkflow.stores.times import NAT

Rule = Callable[..., Any]

_MOST = float(1 << 63)


def key(counts: Any) -> Any:
    """Integers in the order of times in which NaT is the last: the lowest one wraps around."""
    return np.subtract(counts, 1)


def unkey(keys: Any) -> Any:
    """The counts of keys."""
    return np.add(keys, 1)


def whole(values: Any) -> Any:
    """Numbers cut to integers, as C does it; NaT for NaN and what is too large."""
    fits = (values > -_MOST) & (values < _MOST)
    return np.where(fits, np.where(fits, values, 0).astype("i8"), NAT)


def truncated(counts: Any, number: Any) -> Any:
    """Integers divided by others, rounded towards zero; NaT for a divisor of zero."""
    divisor = np.where(number == 0, 1, number)
    down, rest = counts // divisor, counts % divisor
    found = down + ((rest != 0) & ((rest < 0) != (counts < 0)))
    return np.where(number == 0, NAT, found)


def _times(one: Any, other: Any) -> Any:
    if "f" in (one.dtype.kind, other.dtype.kind):
        return whole(np.multiply(one, other))
    return np.multiply(one, other)


def _divided(counts: Any, other: Any, spans: bool) -> Any:
    if spans:
        return np.true_divide(counts, other)
    return whole(np.true_divide(counts, other)) if other.dtype.kind == "f" else truncated(counts, other)


def _floor_divided(counts: Any, other: Any, spans: bool) -> Any:
    if spans:
        return np.where(other == 0, 0, counts // np.where(other == 0, 1, other))
    return _divided(counts, other, spans)  # NumPy rounds towards zero here, too


def _rest(counts: Any, other: Any) -> Any:
    return np.where(other == 0, NAT, counts % np.where(other == 0, 1, other))


_ARITHMETIC: dict[np.ufunc, Rule] = {
    **{fn: fn for fn in (np.add, np.subtract, np.negative, np.positive, np.absolute, np.sign)},
    np.multiply: _times,
    np.remainder: _rest,
}
"""Rules of counts of which none is NaT, and of numbers. What they give counts too."""

_QUOTIENTS: dict[np.ufunc, Rule] = {np.true_divide: _divided, np.floor_divide: _floor_divided}

_ORDER: dict[np.ufunc, Rule] = {
    np.minimum: np.minimum,
    np.maximum: lambda a, b: unkey(np.maximum(key(a), key(b))),
    np.fmin: lambda a, b: unkey(np.minimum(key(a), key(b))),
    np.fmax: np.maximum,
}
"""Rules of counts with NaT, which is the lowest."""

_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)

_TESTS: dict[np.ufunc, Rule] = {
    np.isnat: is_nat,
    np.isnan: is_nat,
    np.isfinite: lambda a: ~is_nat(a),
    np.isinf: lambda a: is_nat(a) & False,
}


def called(kind: type[Times], fn: np.ufunc, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a ufunc gives of times."""
    name = f"np.{fn.__name__}"
    if kwargs:
        raise UnsupportedError(f"{name} of times takes no {', '.join(kwargs)}: {WAYS_OUT}")
    if fn is np.divmod:
        return tuple(called(kind, part, inputs, kwargs) for part in (np.floor_divide, np.remainder))
    known = [*_ARITHMETIC, *_QUOTIENTS, *_ORDER, *_COMPARISONS, *_TESTS]
    if fn not in known:
        raise UnsupportedError(f"{name} of times is not supported: {WAYS_OUT}")
    given = [operand(value) for value in inputs]
    try:
        dtypes = fn.resolve_dtypes((*(each.dtype for each in given), *[None] * fn.nout))
    except (TypeError, OverflowError):
        kinds = " and ".join(getattr(each.dtype, "__name__", str(each.dtype)) for each in given)
        raise ArgumentTypeError(f"{name}: NumPy has none of {kinds}: {WAYS_OUT}") from None
    values = [each.to(dtype) for each, dtype in zip(given, dtypes, strict=False)]
    result = dtypes[fn.nin]
    if fn in _TESTS:
        return _TESTS[fn](*values)
    if fn in _ORDER:
        return kind(_ORDER[fn](*values), result)
    missing = [is_nat(value) for value, dtype in zip(values, dtypes, strict=False) if dtype.kind in "mM"]
    lost = reduce(np.logical_or, missing)
    if fn in _COMPARISONS:
        return fn(*values) | lost if fn is np.not_equal else fn(*values) & ~lost
    present = [
        np.where(is_nat(value), 0, value) if dtype.kind in "mM" else value
        for value, dtype in zip(values, dtypes, strict=False)
    ]
    found = _QUOTIENTS[fn](*present, dtypes[1].kind == "m") if fn in _QUOTIENTS else _ARITHMETIC[fn](*present)
    if result.kind in "mM":
        counts: Any = np.where(lost, NAT, found)
        return kind(counts, result)
    return np.where(lost, np.nan if result.kind == "f" else 0, found)
