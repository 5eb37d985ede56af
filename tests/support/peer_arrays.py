"""The arrays of the tables in `tests/peers/`."""

from __future__ import annotations

import numpy as np

rng = np.random.default_rng(37)

DTYPES = ("?", "i1", "u1", "i2", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")


def of(dtype: str, shape: tuple[int, ...] = (4, 9, 3)) -> np.ndarray:
    """Small numbers with ties; negative where the dtype has them, whole unless it is of floats."""
    kind = np.dtype(dtype).kind
    values = rng.integers(0 if kind in "bu" else -4, 5, shape)
    if kind == "b":
        return np.asarray(values % 2, dtype)
    if kind == "c":
        return np.asarray(values / 2 + 1j * rng.integers(-4, 5, shape) / 2, dtype)
    return np.asarray(values / 2 if kind == "f" else values, dtype)


X = of("f8")
I = of("i8")  # noqa: E741
Z = of("c16")
M = of("?")
V = of("f8", (40,))
A, B = of("f8", (6, 8)), of("f8", (8, 5))
NAN = np.where(of("i1") == 0, np.nan, X)
ENDS = np.where(of("i1") == 1, np.inf, np.where(of("i1") == 2, -np.inf, NAN))
ALL_NAN = np.full((3, 4), np.nan)
SCALAR = np.array(2.5)
WHOLE = np.array(3)
EMPTY = np.empty((0, 4))
NOTHING = np.empty((3, 0, 2), "i4")
BIG_ENDIAN = X.astype(">f4")

NO_AXES = (3, -4, (0, 3), (0, 0), (0, -3), 1.5, "x")
"""None of which is an axis, or axes, of an array of three dimensions."""

AXES = (None, 0, 1, -1, (0,), (0, 2), (-1, 0), (0, 1, 2), ())
"""Axes that an array of three dimensions has."""
