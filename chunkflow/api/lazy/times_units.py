"""Units of datetime64 and timedelta64: integers that count one unit as those that count another.

It is written in NumPy's words, so that the integers may be an expression as well as an array in memory. The calendar is
the proleptic Gregorian one, as NumPy's. Source of its algorithm: H. Hinnant, "chrono-Compatible Low-Level Date
Algorithms" (2013): years begin in March, so that the day that may be missing is a year's last.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy
from chunkflow.stores.times import NAT

SECONDS = {
    "W": Fraction(604800),
    "D": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    **{unit: Fraction(1, 1000**k) for k, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), 1)},
}
"""Length of the units that have one."""

MONTHS = {"Y": 12, "M": 1}
"""Length of the others, in months."""

GENERIC = "generic"
"""NumPy's word for no unit, which becomes any."""

_DAYS_OF_400_YEARS = 146097
_MONTHS_OF_400_YEARS = 4800
_SHIFT = 719468
"""Days from the 1st of March of the year 0 to the epoch."""


def is_nat(counts: Any) -> Any:
    """Where times are NaT."""
    return counts == NAT


def in_unit(counts: Any, old: np.dtype, new: np.dtype) -> Any:
    """Counts of a dtype's unit as those of another's, rounded down; NaT where the integers do not reach so far.

    Raises
    ------
    ArgumentTypeError
        One is a number of months or years, whose length is not known, and the other is not.
    ArgumentError
        Times in memory that the new unit does not reach.

    Examples
    --------
    >>> in_unit(np.array([0, 59, NAT]), np.dtype("M8[D]"), np.dtype("M8[M]"))
    array([                   0,                    2, -9223372036854775808])
    """
    (one, many), (other, more) = np.datetime_data(old), np.datetime_data(new)
    if GENERIC in (one, other) or (one, many) == (other, more):
        return counts
    if (one in MONTHS) is (other in MONTHS):
        table: Any = MONTHS if one in MONTHS else SECONDS
        found = _scaled(counts, Fraction(table[one] * many) / (table[other] * more))
    elif "m" in (old.kind, new.kind):
        raise ArgumentTypeError(f"{old} does not become {new}: months and years have no fixed length")
    elif one in MONTHS:
        days = _days_of_months(_scaled(counts, Fraction(MONTHS[one] * many)))
        found = _scaled(days, SECONDS["D"] / (SECONDS[other] * more))
    else:
        months = _months_of_days(_scaled(counts, SECONDS[one] * many / SECONDS["D"]))
        found = _scaled(months, Fraction(1, MONTHS[other] * more))
    if not isinstance(found, Lazy) and bool(np.any(is_nat(found) & ~is_nat(counts))):
        times = np.asarray(counts).view(old)
        first = times[np.nonzero(is_nat(found) & ~is_nat(counts))] if times.ndim else times[None]
        raise ArgumentError(
            f"{first[0]!s} is beyond {new}, which reaches from {np.array(NAT + 1).view(new)} to "
            f"{np.array(-NAT - 1).view(new)}: convert what it goes with to a coarser unit, x.astype('{old.kind}8[s]')"
        )
    return found


def _scaled(counts: Any, factor: Fraction) -> Any:
    """Counts times a factor, rounded down; NaT stays, and stands for what is too large."""
    if factor == 1:
        return counts
    above, below = factor.numerator, factor.denominator
    whole, rest = (counts, 0) if below == 1 else (counts // below, counts % below)
    if above == 1:
        return np.where(is_nat(counts), NAT, whole)
    most = (-NAT - 1) // above - (below > 1)
    fits = (whole >= -most) & (whole <= most)
    found = np.where(fits, whole, 0) * above
    if below > 1:
        found = found + rest * above // below
    return np.where(fits & ~is_nat(counts), found, NAT)


def _days_of_months(months: Any) -> Any:
    """Days since the epoch of the first days of months, counted from the epoch's."""
    least, most = (sign * (-NAT // _DAYS_OF_400_YEARS) for sign in (-1, 1))
    fits = (months > least) & (months < most)
    march = np.where(fits, months, 0) - 2 + 1970 * 12
    era, month = march // _MONTHS_OF_400_YEARS, march % _MONTHS_OF_400_YEARS
    year = month // 12
    days = era * _DAYS_OF_400_YEARS + year * 365 + year // 4 - year // 100 + (month % 12 * 153 + 2) // 5
    return np.where(fits, days - _SHIFT, NAT)


def _months_of_days(days: Any) -> Any:
    """Months since the epoch's in which days lie, counted from the epoch."""
    fits = ~is_nat(days) & (days < -NAT - _SHIFT)
    march = np.where(fits, days, 0) + _SHIFT
    era, day = march // _DAYS_OF_400_YEARS, march % _DAYS_OF_400_YEARS
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    month = (5 * (day - (365 * year + year // 4 - year // 100)) + 2) // 153
    return np.where(fits, era * _MONTHS_OF_400_YEARS + year * 12 + month + 2 - 1970 * 12, NAT)
