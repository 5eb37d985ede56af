"""Radix keys: unsigned integers of the width of the values, in the same order, so that one kernel serves all dtypes.

The order-preserving key of a float is well known: all bits are inverted if the sign is set, else the sign bit alone
(M. Herf, "Radix tricks", 2001).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def key_dtype(dtype: np.dtype) -> np.dtype:
    """The unsigned dtype of the width of a real dtype."""
    return np.dtype(f"u{dtype.itemsize}")


def to_keys(x: Any) -> Any:
    """Keys of real numbers, in their order; NaN is larger than any number, whatever its sign.

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
    keys = np.where((keys & top).astype(bool), ~keys, keys | top)
    keys[np.isnan(x)] = ~keys.dtype.type(0)
    return keys


def from_keys(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers that have these keys."""
    dtype = dtype.newbyteorder("=")
    top = _top(keys.dtype)
    if dtype.kind == "i":
        keys = keys ^ top
    elif dtype.kind == "f":
        keys = np.where(keys & top, keys ^ top, ~keys)
    return keys.view(dtype)


def _top(dtype: np.dtype) -> Any:
    return dtype.type(1 << (8 * dtype.itemsize - 1))
