"""Stored numbers that stand for times, by the CF conventions, as expressions of times."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.times import TimeArray
from chunkflow.api.lazy.times_parts import seen
from chunkflow.api.lazy.times_ufuncs import whole
from chunkflow.api.lazy.times_units import SECONDS
from chunkflow.graph.elementwise import applied
from chunkflow.stores.cf import CfCoding, decoded
from chunkflow.stores.cf_times import REFORM, TimeCoding
from chunkflow.stores.times import NAT

FINEST_OF_FLOATS = "us"
"""Unit of times that are stored as floats: double precision tells no finer differences a century from its epoch."""


def decoded_times(stored: Array, how: CfCoding | None, times: TimeCoding) -> TimeArray:
    """The times of stored numbers; NaT where `how` says that they are missing, and where the calendar is another."""
    unit = np.datetime_data(times.dtype)[0]
    if stored.dtype.kind in "iu" and (how is None or (how.scale is None and how.offset is None and not how.bits)):
        counts: Any = stored.astype("i8")
        if stored.dtype == np.dtype("u8"):
            counts = np.where(counts < 0, NAT, counts)  # beyond what an integer of 64 bits with a sign has
        for value in () if how is None else how.missing:
            counts = np.where(stored == value, NAT, counts)
    else:
        values = (stored if how is None else applied(decoded, (stored,), {}, dict(vars(how)))).astype("f8")
        finer = unit if unit == "ns" else FINEST_OF_FLOATS
        many = int(SECONDS[unit] / SECONDS[finer])
        below = np.floor(values)
        # The whole units and the rest by themselves: their product has more digits than a double.
        rest = np.rint((values - below) * many)
        found = TimeArray(whole(below), f"m8[{unit}]").astype(f"m8[{finer}]") + TimeArray(whole(rest), f"m8[{finer}]")
        counts, unit = found.view("i8"), finer
    span = TimeArray(counts, f"m8[{unit}]")
    if times.since is None:
        return span
    since = _exactly(times.since, f"M8[{unit}]")
    found = span + (times.since if since is None else since)
    if times.reformed and _exactly(REFORM, found.dtype) is not None:  # else the unit reaches no such day
        found = np.where(found < REFORM, seen(NAT, found.dtype), found)
    return found  # type: ignore[no-any-return]


def _exactly(time: Any, dtype: Any) -> Any:
    """A time in another unit; None if that does not have it, or does not reach it.

    >>> _exactly(np.datetime64("2000-01-01"), "M8[ns]")
    np.datetime64('2000-01-01T00:00:00.000000000')
    >>> _exactly(np.datetime64("1582-10-15"), "M8[ns]"), _exactly(np.datetime64("2000-01-01T12"), "M8[D]")
    (None, None)
    """
    try:
        found = time.astype(dtype)
        return found if found.astype(time.dtype) == time else None
    except OverflowError:  # since NumPy 2.5; before, integers wrap around
        return None
