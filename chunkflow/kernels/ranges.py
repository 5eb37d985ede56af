"""Whether numbers fit a narrower dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.core.grid import Region, describe
from chunkflow.errors import ResultTypeError, ValueRangeError


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


def check_narrowed(array: Any, seen: np.dtype, box: Region) -> None:
    """Refuse numbers of a box that the dtype which a function gave in its trial call does not hold: they would change.

    >>> check_narrowed(np.array([0.5, np.nan]), np.dtype("f4"), (slice(0, 2),))
    """
    own = np.dtype(array.dtype)
    if np.can_cast(own, seen, "safe") or not array.size:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = array.astype(seen)
        same = narrowed.astype(own) == array
    if own.kind in "iu":  # what is beyond the integers becomes the largest one on some processors
        same &= narrowed < float(np.iinfo(own).max)
    if not bool((same | (array != array)).all()):
        raise ResultTypeError(
            f"fn returned dtype {own} for the region {describe(box)}, and {seen} in its trial call, which does not "
            f"hold its values: name what it returns, as dtype={str(own)!r}, or convert it in fn"
        )
