"""Functions of NumPy's that other array modules compute by other rules: written so that they give NumPy's values there.

CuPy's own give other values for NaN and infinities, or take no arrays of the host's. A block that is NumPy's gets
NumPy's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_NUMPYS = (np.ufunc, type(np.clip))


def suited(fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """The function that gives NumPy's values for these arguments: `fn` itself for arrays of NumPy's.

    >>> suited(np.angle, [np.ones(3)]) is np.angle
    True
    """
    if isinstance(fn, _NUMPYS) and fn in _TWINS and any(_is_foreign(a) for a in args):
        return _TWINS[fn]
    return fn


def refuse_negative(exponent: Any, base: Any) -> None:
    """Refuse integers to negative integer powers, as NumPy does."""
    signed = getattr(exponent, "dtype", np.dtype("?")).kind == "i" and getattr(base, "dtype", None) is not None
    if signed and base.dtype.kind in "iub" and bool((exponent < 0).any()):
        raise ValueError("Integers to negative integer powers are not allowed.")


def _is_foreign(value: Any) -> bool:
    return hasattr(value, "__array_function__") and not isinstance(value, np.ndarray | np.generic)


def _power(base: Any, exponent: Any, **kwargs: Any) -> Any:
    refuse_negative(exponent, base)
    return np.power(base, exponent, **kwargs)


def _angle(z: Any, deg: bool = False) -> Any:
    if z.dtype.kind != "f":
        return np.angle(z, deg)
    found = np.arctan2(0, z)
    return found * (180 / np.pi) if deg else found


def _sinc(x: Any) -> Any:
    scaled = np.pi * x
    tiny = np.finfo(scaled.dtype).eps if scaled.dtype.kind == "f" else 1e-20
    safe = np.where(scaled == 0, scaled.dtype.type(tiny), scaled)
    return np.sin(safe) / safe


def _clip(a: Any, a_min: Any = None, a_max: Any = None, **kwargs: Any) -> Any:
    low, high = kwargs.pop("min", a_min), kwargs.pop("max", a_max)
    if kwargs or np.result_type(a, *(b for b in (low, high) if b is not None)).kind != "f":
        return np.clip(a, low, high, **kwargs)
    if low is not None:
        a = np.maximum(a, low)
    return a if high is None else np.minimum(a, high)


def _remainder(a: Any, b: Any, **kwargs: Any) -> Any:
    if kwargs or np.result_type(a, b).kind != "f":
        return np.remainder(a, b, **kwargs)
    rest = np.fmod(a, b)
    return np.where(rest == 0, np.copysign(np.zeros_like(rest), b), np.where(_turns(rest, b), rest + b, rest))


def _floor_divide(a: Any, b: Any, **kwargs: Any) -> Any:
    """By the remainder, as C's standard functions allow, so that large quotients are whole numbers too."""
    if kwargs or np.result_type(a, b).kind != "f":
        return np.floor_divide(a, b, **kwargs)
    rest, quotient = np.fmod(a, b), np.true_divide(a, b)
    exact = (a - rest) / b - _turns(rest, b)
    whole = np.floor(exact)
    whole = np.where(exact - whole > 0.5, whole + 1, whole)
    whole = np.where(exact == 0, np.copysign(np.zeros_like(whole), quotient), whole)
    return np.where(np.equal(b, 0), quotient, whole).astype(rest.dtype)


def _divmod(a: Any, b: Any, **kwargs: Any) -> Any:
    if kwargs or np.result_type(a, b).kind != "f":
        return np.divmod(a, b, **kwargs)
    return _floor_divide(a, b), _remainder(a, b)


def _turns(rest: Any, b: Any) -> Any:
    """Where C's remainder has the other sign than Python's."""
    return (rest != 0) & (np.less(b, 0) != (rest < 0))


def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    return np.digitize(x, np.asarray(bins, like=x), right)


def _isin(element: Any, test_elements: Any, **kwargs: Any) -> Any:
    return np.isin(element, np.asarray(test_elements, like=element), **kwargs)


def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    numbers = x.astype(np.float64)
    return np.interp(numbers, np.asarray(xp, np.float64, like=x), np.asarray(fp, like=x) * 1.0, left, right, period)


_TWINS: dict[Any, Callable[..., Any]] = {
    np.power: _power,
    np.angle: _angle,
    np.sinc: _sinc,
    np.clip: _clip,
    np.remainder: _remainder,
    np.floor_divide: _floor_divide,
    np.divmod: _divmod,
    np.digitize: _digitize,
    np.isin: _isin,
    np.interp: _interp,
}
