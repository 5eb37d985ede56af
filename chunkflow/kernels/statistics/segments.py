"""Reductions of segments of rows."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np


@singledispatch
def segmented(x: Any, ufunc: np.ufunc, starts: Any) -> Any:
    """``ufunc.reduceat(x, starts)`` along the first axis, for `starts` that increase from 0.

    Devices with arrays of their own register what does it there. Their sums of floats may be more accurate.
    """
    return ufunc.reduceat(x, starts, axis=0)


@singledispatch
def moments(x: Any, starts: Any, *, skip: bool) -> tuple[Any, Any, Any] | None:
    """Of each column of each segment the number of elements, their mean, and the sum of squares about it, as float64.

    With `skip` NaN are left out; of no elements the mean is 0. None where nothing does all of it at once.
    """
    return None
