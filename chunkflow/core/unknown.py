"""Lengths and dtypes that are not known yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

ENDLESS = 1 << 20
"""Numbers that stand for unknown lengths are at least as large."""


def _kept(fn: Callable[[int, int], int]) -> Callable[[Unknown, int], int]:
    """Arithmetic whose large results are unknown too. What is small is a part of it: the side of a block."""

    def of(self: Unknown, other: int) -> int:
        found = fn(int(self), int(other)) if isinstance(other, int) else NotImplemented
        return Unknown(found) if found is not NotImplemented and abs(found) >= ENDLESS else found

    return of


class Unknown(int):
    """A length that is not known yet. A number that no array has stands for it, and people see "unknown".

    Examples
    --------
    >>> n = Unknown(1 << 40)
    >>> (2 * n, 3), n // (1 << 39)
    ((unknown, 3), 2)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "unknown"

    def __neg__(self) -> int:
        return Unknown(-int(self))

    __add__ = __radd__ = _kept(lambda n, other: n + other)
    __sub__ = _kept(lambda n, other: n - other)
    __rsub__ = _kept(lambda n, other: other - n)
    __mul__ = __rmul__ = _kept(lambda n, other: n * other)
    __floordiv__ = _kept(lambda n, other: n // other)


def is_known(shape: Iterable[int]) -> bool:
    """Whether all lengths of a shape are known."""
    return not any(isinstance(n, Unknown) for n in shape)


ANY_DTYPE = np.dtype(np.bool_, metadata={"chunkflow": "not known yet"})  # a bool can be cast to each other dtype
"""Stands for the dtype of a result that is not known yet."""


def is_known_dtype(dtype: np.dtype) -> bool:
    """Whether a dtype is that of a result.

    >>> is_known_dtype(np.dtype(bool)), is_known_dtype(ANY_DTYPE.newbyteorder("="))
    (True, False)
    """
    return dtype.metadata != ANY_DTYPE.metadata
