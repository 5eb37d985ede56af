"""Counts of integers."""

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
