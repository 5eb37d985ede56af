"""Counts of integers, and of distinct ones."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np


@singledispatch
def counted(places: Any, number: int) -> Any:
    """How often each integer below `number` is in an array, which has no others.

    Devices with arrays of their own register what does it there, in memory for the counts alone.
    """
    return np.bincount(places.reshape(-1).astype(np.intp, copy=False), minlength=number)


@singledispatch
def distinct(keys: Any, known: int = 0) -> tuple[Any, Any]:
    """The different integers of an array without signs, sorted, and their counts; `known` says how many there may be.

    Devices with arrays of their own register what does it there.
    """
    possible = 1 << 8 * keys.dtype.itemsize
    if possible <= min(keys.size, 1 << 16):  # else counts of all that there may be would take more than sorting
        counts = counted(keys, possible)
        found = counts.nonzero()[0]
        return found.astype(keys.dtype), counts[found].astype("i8", copy=False)
    found, counts = np.unique(keys, return_counts=True)
    return found, counts.astype("i8", copy=False)
