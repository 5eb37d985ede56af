"""Whether integers fit a narrower dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.core.grid import Region, describe
from chunkflow.errors import ValueRangeError


def check_range(array: Any, dtype: np.dtype, box: Region) -> None:
    """Refuse integers of a box that another dtype of integers does not hold: a cast would wrap them.

    >>> check_range(np.array([3, 255]), np.dtype("u1"), (slice(0, 2),))
    """
    own, dtype = np.dtype(array.dtype), np.dtype(dtype)
    if own.kind not in "iu" or dtype.kind not in "iu" or np.can_cast(own, dtype, "safe") or not array.size:
        return
    held = np.iinfo(dtype)
    for value in (int(array.min()), int(array.max())):
        if not held.min <= value <= held.max:
            raise ValueRangeError(
                f"{value} is a value of the region {describe(box)}, and {dtype} holds {held.min} to {held.max}: give a "
                f"wider dtype, scale the values, or wrap them by .astype({str(dtype)!r})"
            )
