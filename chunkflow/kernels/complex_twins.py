"""Ufuncs of complex numbers that other array modules compute by other rules for zeros, infinities and NaN.

Arguments are arrays in the dtype in which NumPy computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def _of_parts(real: Any, imag: Any) -> Any:
    """Complex numbers of both parts, which no arithmetic mixes."""
    dtype = np.result_type(real.dtype, np.complex64)
    return np.stack((real, imag), -1).view(dtype)[..., 0]


def _divide(a: Any, b: Any) -> Any:
    """By R. L. Smith (1962), "Algorithm 116: complex division", CACM 5, 435."""
    by_real = np.abs(b.real) >= np.abs(b.imag)
    large, small = np.where(by_real, b.real, b.imag), np.where(by_real, b.imag, b.real)
    first, second = np.where(by_real, a.real, a.imag), np.where(by_real, a.imag, a.real)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    imag = np.where(by_real, second - first * ratio, first * ratio - second)
    zero = (b.real == 0) & (b.imag == 0)
    above = np.abs(b.real)
    return _of_parts(
        np.where(zero, a.real / above, (first + second * ratio) * scale), np.where(zero, a.imag / above, imag * scale)
    )


def _reciprocal(z: Any) -> Any:
    by_imag = np.abs(z.real) <= np.abs(z.imag)
    large, small = np.where(by_imag, z.imag, z.real), np.where(by_imag, z.real, z.imag)
    ratio = small / large
    length = large + small * ratio
    one, rest = 1 / length, ratio / length
    return _of_parts(np.where(by_imag, rest, one), np.where(by_imag, -one, -rest))


def _sign(z: Any) -> Any:
    """Of one infinite part it is that part's; of two there is none."""
    infinite = np.isinf(z.real) | np.isinf(z.imag)
    parts = [np.where(infinite, np.where(np.isinf(p), np.copysign(1, p), 0), p) for p in (z.real, z.imag)]
    length = np.hypot(*parts)
    length = np.where(np.isinf(z.real) & np.isinf(z.imag), np.nan, length)
    return _of_parts(*(np.where(length == 0, 0, p / length).astype(z.real.dtype, copy=False) for p in parts))


def _log2(z: Any) -> Any:
    found, scale = np.log(z), z.real.dtype.type(1 / np.log(2))
    return _of_parts(found.real * scale, found.imag * scale)


def _log1p(z: Any) -> Any:
    above = z.real + 1
    return _of_parts(np.log(np.hypot(above, z.imag)), np.arctan2(z.imag, above))


def _exp2(z: Any) -> Any:
    scale = z.real.dtype.type(np.log(2))
    return np.exp(_of_parts(z.real * scale, z.imag * scale))


def _expm1(z: Any) -> Any:
    half = np.sin(z.imag / 2)
    return _of_parts(np.expm1(z.real) * np.cos(z.imag) - 2 * half * half, np.exp(z.real) * np.sin(z.imag))


def _ordered(fn: np.ufunc, strictly: np.ufunc) -> Callable[..., Any]:
    """By the real parts, then by the imaginary ones, as NumPy orders them."""

    def of(a: Any, b: Any) -> Any:
        known = ~(np.isnan(a.imag) | np.isnan(b.imag))
        return (strictly(a.real, b.real) & known) | (np.equal(a.real, b.real) & fn(a.imag, b.imag))

    return of


UFUNCS: dict[Any, Callable[..., Any]] = {
    np.divide: _divide,
    np.reciprocal: _reciprocal,
    np.sign: _sign,
    np.log2: _log2,
    np.log1p: _log1p,
    np.exp2: _exp2,
    np.expm1: _expm1,
    np.less: _ordered(np.less, np.less),
    np.less_equal: _ordered(np.less_equal, np.less),
    np.greater: _ordered(np.greater, np.greater),
    np.greater_equal: _ordered(np.greater_equal, np.greater),
}
