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
