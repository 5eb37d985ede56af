"""CF conventions: times as numbers of a unit since a date, and spans as numbers of a unit.

Source of the rules: "NetCDF Climate and Forecast (CF) Metadata Conventions", version 1.11, section 4.4. Units finer
than seconds are named as xarray does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores.times import NAT

OF_TIMES = ("units", "calendar", "dtype")
"""Attributes that say that an array's numbers are times, and which; the last is xarray's, of spans."""

NAMES = {
    "D": "days",
    "h": "hours",
    "m": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
"""CF's names of NumPy's units."""

_UNITS = {
    **{name: unit for unit, full in NAMES.items() for name in (full, full[:-1])},
    "d": "D",
    "hr": "h",
    "hrs": "h",
    "h": "h",
    "min": "m",
    "mins": "m",
    "sec": "s",
    "secs": "s",
    "s": "s",
    "msec": "ms",
    "msecs": "ms",
    "ms": "ms",
    "us": "us",
    "ns": "ns",
}

_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
"""Calendars of NumPy's, as long as dates are later than the reform."""

REFORM = np.datetime64("1582-10-15")
"""The first day of the calendar that NumPy has for all days."""

_SINCE = re.compile(
    r"\s*(\w+)\s+since\s+([+-]?\d{1,4})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[T\s]+(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?)?)?)?"
    r"\s*(?:Z|UTC|GMT|([+-]\d{1,2})(?::?([0-5]\d))?)?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TimeCoding:
    """What numbers mean that are stored: so many of a unit after `since`; of spans it is None.

    With `reformed` they are dates of a calendar that is not NumPy's before the reform of 1582.
    """

    dtype: np.dtype
    since: np.datetime64 | None
    reformed: bool = False


def encoding_of(dtype: np.dtype) -> tuple[np.dtype, dict[str, Any]]:
    """The dtype whose integers are stored for times of another, and the attributes that say what they mean.

    Raises
    ------
    ArgumentTypeError
        CF has no name for the unit.

    Examples
    --------
    >>> encoding_of(np.dtype("M8[10s]"))[1]["units"]
    'seconds since 1970-01-01'
    """
    unit = np.datetime_data(dtype)[0]
    unit = "D" if unit == "W" else unit
    if unit not in NAMES:
        raise ArgumentTypeError(
            f"{dtype} is not stored: units of files are {', '.join(NAMES.values())}: x.astype({dtype.kind + '8[ns]'!r})"
        )
    if dtype.kind == "M":
        units = {"units": f"{NAMES[unit]} since 1970-01-01", "calendar": "proleptic_gregorian"}
    else:
        unit = "s" if unit in ("D", "h", "m") else unit  # the coarsest that xarray has for spans
        units = {"units": NAMES[unit], "dtype": f"timedelta64[{unit}]"}
    return np.dtype(f"{dtype.kind}8[{unit}]"), {**units, "_FillValue": NAT}


def time_coding(attributes: Mapping[str, Any], name: str) -> TimeCoding | None:
    """What attributes say of times; None if they say nothing of them.

    Raises
    ------
    ArgumentError
        A date that cannot be read, or a calendar that NumPy does not have.

    Examples
    --------
    >>> time_coding({"units": "hours since 1900-1-1 12:00"}, "t")
    TimeCoding(dtype=dtype('<M8[h]'), since=np.datetime64('1900-01-01T12:00:00'), reformed=True)
    >>> time_coding({"units": "days since 2000-01-01 00:00 -6:00"}, "t").since
    np.datetime64('2000-01-01T06:00:00')
    """
    said = {key: _text(attributes[key]) for key in OF_TIMES if attributes.get(key) is not None}
    units = said.get("units", "")
    if said.get("dtype", "").startswith("timedelta64") and units in _UNITS:
        return TimeCoding(np.dtype(f"m8[{_UNITS[units]}]"), None)
    if " since " not in units:
        return None
    found, calendar = _SINCE.fullmatch(units), said.get("calendar", "standard").lower()
    if found is None or found[1].lower() not in _UNITS:
        raise ArgumentError(f"{name}: units={units!r} is no date that is read here: decode='raw' gives the numbers")
    year, month, day = (int(part or 1) for part in found.groups()[1:4])
    hour, minute, second = (int(part or 0) for part in found.groups()[4:7])
    try:
        since: np.datetime64 = np.datetime64(
            f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}", "s"
        )
    except ValueError as error:
        raise ArgumentError(f"{name}: units={units!r}: {error}: decode='raw' gives the numbers") from None
    if calendar not in _CALENDARS or (calendar != "proleptic_gregorian" and since < REFORM):
        raise ArgumentError(
            f"{name}: times of the calendar {calendar!r} since {since} are not NumPy's: decode='raw' gives the "
            "numbers, xarray.decode_cf dates of cftime"
        )
    if found[9]:  # so many hours and minutes before that of the zone
        minutes = 60 * abs(int(found[9])) + int(found[10] or 0)
        since = since - np.timedelta64(-minutes if found[9].startswith("-") else minutes, "m")
    if found[8]:
        since = since + np.timedelta64(int(found[8].ljust(9, "0")), "ns")
    return TimeCoding(np.dtype(f"M8[{_UNITS[found[1].lower()]}]"), since, calendar != "proleptic_gregorian")


def _text(value: Any) -> str:
    """An attribute as text; HDF5 may have it as bytes, and as an array of one."""
    found = np.asarray(value).reshape(-1)[:1].tolist()
    return found[0].decode(errors="replace") if found and isinstance(found[0], bytes) else str(*found)
