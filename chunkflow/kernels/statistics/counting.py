"""Counts of integers, and of distinct ones."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from chunkflow.system.native import bins as loops

_COUNTED = "".join(np.dtype(name).char for name in ("u1", "u2", "u4", "u8", "i8"))
_BINNED = "".join(np.dtype(name).char for name in ("f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4"))
"""Dtypes for which there are compiled loops. Others have none for their bytes are swapped, or they are rare."""

ALIKE = 1 << 16
"""Bins of one width beyond which NumPy may be off by more than one."""


@singledispatch
def counted(places: Any, number: int) -> Any:
    """How often each integer below `number` is in an array, which has no others.

    Devices with arrays of their own register what does it there, in memory for the counts alone.
    """
    flat = places.reshape(-1)
    is_plain = type(flat) is np.ndarray and flat.flags.c_contiguous and flat.dtype.isnative
    if loops is not None and is_plain and flat.dtype.char in _COUNTED:
        counts = np.zeros(number, np.int64)
        loops.add(flat.dtype.kind, flat.itemsize, flat, counts)
        return counts
    return np.bincount(flat.astype(np.intp, copy=False), minlength=number)


def in_bins(x: np.ndarray, edges: np.ndarray, *, alike: bool) -> np.ndarray | None:
    """How many elements are in each bin, as `numpy.histogram` counts them; None where NumPy does it.

    All but the last bin are without their right edge. `alike` says that the edges are those of one width.

    >>> found = in_bins(np.arange(8, dtype="f4"), np.array([0.0, 2, 4, 7]), alike=False)
    >>> found is None or found.tolist() == [2, 2, 4]  # None where nothing was compiled
    True
    """
    if loops is None or x.dtype.char not in _BINNED or not (x.dtype.isnative and len(edges) > 1):
        return None
    wide = edges.astype("f8")
    steps = np.diff(wide)
    exact = edges.dtype.char in "efd" if edges.dtype.kind == "f" else bool((np.abs(wide) < 2**53).all())
    if not exact or not np.isfinite(wide).all() or not (steps >= 0).all() or (alike and not (steps > 0).all()):
        return None
    if alike and len(steps) > ALIKE:
        return None
    if x.dtype.kind in "iu" and x.itemsize <= 2 and x.size > 1 << 8 * x.itemsize:
        return _by_value(x, wide)
    counts = np.zeros(len(steps), np.int64)
    scale = len(steps) / (wide[-1] - wide[0]) if alike else 0.0
    loops.add(x.dtype.kind, x.itemsize, np.ascontiguousarray(x), counts, wide, scale if np.isfinite(scale) else 0.0)
    return counts


def _by_value(x: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The same of short integers, of which each value is looked up once: how often it comes is counted before."""
    each = np.arange(1 << 8 * x.itemsize).astype(f"u{x.itemsize}")
    times = counted(np.ascontiguousarray(x).view(each.dtype), len(each))
    values = each.view(x.dtype).astype("f8")
    within = (values >= edges[0]) & (values <= edges[-1])
    places = np.minimum(np.searchsorted(edges, values[within], "right") - 1, len(edges) - 2)
    counts = np.zeros(len(edges) - 1, np.int64)
    np.add.at(counts, places, times[within])
    return counts


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
