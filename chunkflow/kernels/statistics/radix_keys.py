"""Radix keys: unsigned integers of the width of the values, in the same order, so that one kernel serves all dtypes.

The order-preserving key of a float is well known: all bits are inverted if the sign is set, else the sign bit alone
(M. Herf, "Radix tricks", 2001).
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import numpy as np


def key_dtype(dtype: np.dtype) -> np.dtype:
    """The unsigned dtype of the width of a real dtype."""
    return np.dtype(f"u{dtype.itemsize}")


@singledispatch
def to_keys(x: Any) -> Any:
    """Keys of real numbers, in their order; NaN is larger than any number, whatever its sign.

    Devices with arrays of their own register what does it there.

    >>> to_keys(np.array([-2, -1, 0, 1], "i1"))
    array([126, 127, 128, 129], dtype=uint8)
    """
    dtype = x.dtype
    if not dtype.isnative:
        x = x.astype(dtype.newbyteorder("="))
    keys = x.view(key_dtype(dtype))
    if dtype.kind in "bu":
        return keys
    top = _top(keys.dtype)
    if dtype.kind == "i":
        return keys ^ top
    found, signed = np.empty_like(keys), f"i{dtype.itemsize}"
    # All bits of negative numbers, and no bit of others.
    np.right_shift(x.view(signed), 8 * dtype.itemsize - 1, out=found.view(signed))
    found |= top
    found ^= keys
    np.copyto(found, ~keys.dtype.type(0), where=np.isnan(x))
    return found


def from_keys(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers that have these keys."""
    dtype = dtype.newbyteorder("=")
    top = _top(keys.dtype)
    if dtype.kind == "i":
        keys = keys ^ top
    elif dtype.kind == "f":
        keys = np.where(keys & top, keys ^ top, ~keys)
    return keys.view(dtype)


def coarse(dtype: np.dtype, error: float) -> tuple[np.dtype, int]:
    """A dtype whose keys tell real numbers within a relative error, and how many low bits of these may be left out.

    They are low bits of the mantissa, so integers are told as floats. Of 16 bits none are left out.

    >>> coarse(np.dtype("f8"), 0.01), coarse(np.dtype("i8"), 0.01), coarse(np.dtype("u1"), 0.01)
    ((dtype('float64'), 45), (dtype('float64'), 45), (dtype('uint8'), 0))
    """
    floats = dtype if dtype.kind == "f" else np.dtype("f8")
    low = np.finfo(floats).nmant - max(1, math.ceil(-math.log2(error)))
    few = 8 * floats.itemsize - low
    return (floats, low) if max(few, 16) < 8 * dtype.itemsize else (dtype, 0)


def without_low_bits(prefixes: np.ndarray, low: int) -> np.ndarray:
    """The keys of the floats nearest to 0 of all whose keys have these bits above the low ones."""
    keys: np.ndarray = prefixes << prefixes.dtype.type(low)
    return np.where(keys & _top(keys.dtype), keys, keys | keys.dtype.type((1 << low) - 1))


def as_dtype(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats that stand for numbers of another dtype, in it; those that are rounded beyond its range at its ends."""
    if dtype.kind not in "iu" or numbers.dtype == dtype:
        return numbers
    info = np.iinfo(dtype)
    least, most = float(info.min), np.nextafter(float(info.max) + 1, 0)
    found: np.ndarray = numbers.clip(least, most).astype(dtype)
    return found


def _top(dtype: np.dtype) -> Any:
    return dtype.type(1 << (8 * dtype.itemsize - 1))
