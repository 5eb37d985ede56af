"""Functions of NumPy's that other array modules compute by other rules: written so that they give NumPy's values there.

CuPy's own give other values for NaN and infinities, or take no arrays of the host's. A block that is NumPy's gets
NumPy's function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.kernels import complex_twins

_NUMPYS = (np.ufunc, type(np.clip))


def suited(fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """The function that gives NumPy's values for these arguments: `fn` itself for arrays of NumPy's.

    >>> suited(np.angle, [np.ones(3)]) is np.angle
    True
    """
    if not isinstance(fn, _NUMPYS) or not any(_is_foreign(a) for a in args):
        return fn
    return partial(_ufunc, fn) if isinstance(fn, np.ufunc) else _TWINS.get(fn, fn)


def refuse_negative(exponent: Any, base: Any) -> None:
    """Refuse integers to negative integer powers, as NumPy does where the result is of integers."""
    signed = getattr(exponent, "dtype", np.dtype("?")).kind == "i" and getattr(base, "dtype", None) is not None
    if signed and np.result_type(exponent, base).kind == "i" and base.size and bool((exponent < 0).any()):
        raise ValueError("Integers to negative integer powers are not allowed.")


def _is_foreign(value: Any) -> bool:
    return hasattr(value, "__array_function__") and not isinstance(value, np.ndarray | np.generic)


def _ufunc(fn: np.ufunc, *args: Any, **kwargs: Any) -> Any:
    """A ufunc of arguments that others take: none of layout and subclasses, no loop by name, no integers of 65 bits."""
    own = ("order", "subok", "signature", "sig", "dtype", "casting")
    options = {name: value for name, value in kwargs.items() if name not in own}
    given = [_fitting(fn, a, args) if type(a) is int else a for a in args]
    loop = kwargs.get("signature", kwargs.get("sig"))
    if loop is None and kwargs.get("dtype") is not None:
        loop = (*[None] * fn.nin, *[kwargs["dtype"]] * fn.nout)
    if loop is not None:
        given = cast(fn, given, signature=loop, casting=kwargs.get("casting", "same_kind"))
    twin = _TWINS.get(fn, fn)
    if fn in _OF_COMPLEX and any(_kind(a) == "c" for a in given):
        twin, given = _OF_COMPLEX[fn], cast(fn, given)
    return twin(*given, **options)


def cast(fn: np.ufunc, args: Sequence[Any], **how: Any) -> list[Any]:
    """The arguments as arrays in the dtypes in which NumPy's ufunc computes them.

    >>> cast(np.true_divide, [np.arange(2, dtype="i1"), True])
    [array([0., 1.]), array(1.)]
    """
    kinds = [np.dtype(bool) if type(a) is bool else getattr(a, "dtype", type(a)) for a in args]
    dtypes = fn.resolve_dtypes((*kinds, *[None] * fn.nout), **how)
    like = next((a for a in args if _is_foreign(a)), np.empty(1))
    # CuPy's asarray loses the sign of a zero, and its full_like takes no empty shape.
    return [
        a.astype(t, copy=False) if hasattr(a, "__array_function__") else np.full_like(like, a, t, shape=1).reshape(())
        for a, t in zip(args, dtypes, strict=False)
    ]


def _kind(value: Any) -> str:
    return value.dtype.kind if hasattr(value, "dtype") else np.dtype(type(value)).kind


def _fitting(fn: np.ufunc, number: int, args: Sequence[Any]) -> int | float:
    """An integer of Python's as what a processor takes; one beyond all others is as good as infinite to compare."""
    if -(2**63) <= number < 2**64:
        return number
    whole = all(a.dtype.kind in "iub" for a in args if hasattr(a, "dtype"))
    return float(np.copysign(np.inf, number)) if whole and fn in _COMPARISONS else float(number)


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
    low, high = kwargs.get("min", a_min), kwargs.get("max", a_max)
    if kwargs.get("dtype") is not None:
        a = a.astype(kwargs["dtype"])
    if a.dtype.kind in "iu":  # limits beyond the dtype's are none
        ends = np.iinfo(a.dtype)
        low = None if type(low) is int and low < ends.min else low
        high = None if type(high) is int and high > ends.max else high
    if np.result_type(a, *(b for b in (low, high) if b is not None)).kind not in "fc":
        return a.copy() if low is None and high is None else np.clip(a, low, high)
    if low is not None:
        a = np.maximum(a, low)
    return a if high is None else np.minimum(a, high)


def _logical(fn: np.ufunc) -> Callable[..., Any]:
    """Of numbers of several dtypes none is cast to another's."""

    def of(*args: Any, **kwargs: Any) -> Any:
        alike = len({getattr(a, "dtype", None) for a in args}) == 1 and _kind(args[0]) != "c"
        return fn(*(args if alike else [a != 0 for a in args]), **kwargs)

    return of


def _spacing(x: Any, **kwargs: Any) -> Any:
    """To the next number away from zero; NumPy's of half precision is to the next greater one."""
    (x,) = cast(np.spacing, [x])
    least = x.dtype.type(np.inf if x.dtype == np.float16 else -np.inf)
    return np.nextafter(x, np.where(x < 0, least, x.dtype.type(np.inf)), **kwargs) - x


def _float_power(a: Any, b: Any, **kwargs: Any) -> Any:
    """In double precision, which the name promises."""
    wide = np.result_type(a, b, np.float64)
    return np.power(*(v.astype(wide) if hasattr(v, "astype") else wide.type(v) for v in (a, b)), **kwargs)


def _round(a: Any, decimals: int = 0, **kwargs: Any) -> Any:
    """In the numbers' own precision, step by step."""
    if kwargs or a.dtype.kind != "f" or decimals == 0:
        return np.round(a, decimals, **kwargs)
    power = a.dtype.type(float(f"1e{abs(decimals)}"))  # infinite beyond the dtype, as NumPy's
    return np.rint(a * power) / power if decimals > 0 else np.rint(a / power) * power


def _i0(x: Any) -> Any:
    return np.i0(x if x.dtype.kind == "f" else x.astype(np.float64))


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
    kwargs.pop("kind", None)  # how they are looked up
    if not _is_foreign(test_elements) and np.asarray(test_elements).dtype.kind not in "biufc":
        return np.full_like(element, bool(kwargs.get("invert")), dtype=bool)
    return np.isin(element, np.asarray(test_elements, like=element), **kwargs)


def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    numbers = x.astype(np.float64, order="C")
    return np.interp(numbers, np.asarray(xp, np.float64, like=x), np.asarray(fp, like=x) * 1.0, left, right, period)


def _nextafter(a: Any, b: Any, **kwargs: Any) -> Any:
    """Of half precision from infinities too; a zero has the sign of the number that it follows, or of an equal `b`."""
    a, b = cast(np.nextafter, [a, b])
    found = np.nextafter(a, b, **kwargs)
    if found.dtype == np.float16:
        bits = a.view(np.uint16)
        found = np.where((b > a) == (a > 0), bits + np.uint16(1), bits - np.uint16(1)).view(np.float16)
        found = np.where(a == 0, np.copysign(np.float16(6e-8), b), found)
        found = np.where(np.isnan(a) | np.isnan(b), np.float16(np.nan), found)
    return np.where(np.equal(a, b), b, np.where(found == 0, np.copysign(found, a), found))


def _fmod(a: Any, b: Any, **kwargs: Any) -> Any:
    """Of integers without a way through floats."""
    a, b = cast(np.fmod, [a, b])
    if kwargs or a.dtype.kind not in "iu":
        return np.fmod(a, b, **kwargs)
    rest = np.remainder(a, b)
    return np.where((rest != 0) & (np.less(rest, 0) != np.less(a, 0)), rest - b, rest)


def _shifted(fn: np.ufunc) -> Callable[..., Any]:
    """By more bits than there are, or by fewer than none, nothing but the sign is left."""

    def of(a: Any, b: Any, **kwargs: Any) -> Any:
        a, b = cast(fn, [a, b])
        bits = 8 * a.dtype.itemsize
        beyond = fn(a, a.dtype.type(bits - 1)) if fn is np.right_shift and a.dtype.kind == "i" else a.dtype.type(0)
        within = (b >= 0) & (b < bits)
        return np.where(within, fn(a, np.where(within, b, b.dtype.type(0)), **kwargs), beyond)

    return of


def _ldexp(x: Any, exponent: Any, **kwargs: Any) -> Any:
    """With exponents of more than 32 bits."""
    x, exponent = cast(np.ldexp, [x, exponent])
    return np.ldexp(x, np.clip(exponent, -_FAR, _FAR).astype(np.int32), **kwargs)


def _logaddexp2(a: Any, b: Any, **kwargs: Any) -> Any:
    """Exact for small sums too."""
    a, b = cast(np.logaddexp2, [a, b])
    wide = [v.astype(np.float32) if v.dtype == np.float16 else v for v in (a, b)]
    small = np.log1p(np.exp2(-np.abs(wide[0] - wide[1]), **kwargs)) * wide[0].dtype.type(1 / np.log(2))
    return np.where(np.equal(*wide), wide[0] + 1, np.maximum(*wide) + small).astype(a.dtype, copy=False)


_COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)

_FAR = 100_000
"""An exponent of two beyond those of all numbers."""

_OF_COMPLEX: dict[Any, Callable[..., Any]] = complex_twins.UFUNCS

_TWINS: dict[Any, Callable[..., Any]] = {
    np.power: _power,
    np.float_power: _float_power,
    np.nextafter: _nextafter,
    np.spacing: _spacing,
    np.fmod: _fmod,
    np.left_shift: _shifted(np.left_shift),
    np.right_shift: _shifted(np.right_shift),
    np.ldexp: _ldexp,
    np.logaddexp2: _logaddexp2,
    np.i0: _i0,
    np.round: _round,
    np.around: _round,
    **{fn: _logical(fn) for fn in (np.logical_and, np.logical_or, np.logical_xor, np.logical_not)},
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
