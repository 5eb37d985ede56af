"""Statistics of the elements within a range, from which rules choose the bins of a histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Value = tuple[Any, ...]


@dataclass(frozen=True)
class Within:
    """Count, extremes and central moments of a block's elements, or of those within limits.

    A value is a tuple of arrays of one element: the number of elements, the number below the limits, the least and the
    greatest; with `moments` also the mean, and the sums of the squares and cubes of the distances from it.
    """

    limits: tuple[Any, Any] | None
    moments: bool

    def count(self, block: Any) -> Value:
        """The value of one block."""
        x, below = block.reshape(-1), 0
        if self.limits is not None:
            low, high = self.limits
            below = (x < low).sum()
            x = x[(x >= low) & (x <= high)]

        def one(number: Any, dtype: Any = "f8") -> Any:
            found = np.zeros_like(block, dtype=dtype, shape=(1,))
            found[...] = number
            return found

        native = block.dtype.newbyteorder("=")
        least, most = (x.min(), x.max()) if x.size else _neutral(native)
        found = (one(x.size, "i8"), one(below, "i8"), one(least, native), one(most, native))
        if not self.moments:
            return found
        wide = x.astype("f8")
        with np.errstate(all="ignore"):
            mean = wide.sum() / max(x.size, 1)
            wide -= mean
            squares = wide * wide
            total = squares.sum()
            squares *= wide
            return *found, one(mean), one(total), one(squares.sum())

    def merge(self, left: Value, right: Value) -> Value:
        """The merged value.

        Moments are merged as in P. Pebay, "Formulas for robust, one-pass parallel computation of covariances and
        arbitrary-order statistical moments", Report SAND2008-6212, Sandia 2008.
        """
        n, m = left[0], right[0]
        found = (n + m, left[1] + right[1], np.minimum(left[2], right[2]), np.maximum(left[3], right[3]))
        if not self.moments:
            return found
        a, b = n.astype("f8"), m.astype("f8")
        both = np.maximum(a + b, 1)
        (mean, squares, cubes), (other, more, rest) = left[4:], right[4:]
        with np.errstate(all="ignore"):
            off = other - mean
            cubes = cubes + rest + off**3 * (a * b * (a - b) / both**2) + 3 * off * (a * more - b * squares) / both
            return *found, mean + off * (b / both), squares + more + off * off * (a * b / both), cubes


def _neutral(dtype: np.dtype) -> tuple[Any, Any]:
    """Neutral elements of min and max."""
    if dtype.kind == "f":
        return np.inf, -np.inf
    info = np.iinfo(dtype)
    return info.max, info.min
