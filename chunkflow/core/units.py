"""What people read and write: bytes, ``"4GB"`` for 4 * 10**9 and ``"4GiB"`` for 4 * 2**30, lists of names, calls."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from chunkflow.errors import ArgumentError, ArgumentTypeError

_UNITS = {"": 1, "b": 1} | {
    prefix + infix + end: base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for infix, base in (("", 1000), ("i", 1024))
    for end in ("b", "")
}
_DTYPES = [np.dtype(kind).name for kind in "?bhiqBHIQefdFD"]
_TEXT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*|%)\s*", re.IGNORECASE)


def parse_bytes(value: str | float | SupportsIndex, *, whole: int | None = None) -> int:
    """Turn a budget as written by a person into bytes.

    Parameters
    ----------
    value : int, float or str
        Bytes (an int), a fraction of `whole` (a float in (0, 1]), a percentage of `whole`
        (``"80%"``), or a number with a unit: decimal (``"4GB"`` or ``"4G"`` = 4 * 10**9) or binary
        (``"4GiB"`` = 4 * 2**30) ones up to P, in any case.
    whole : int, optional
        What fractions and percentages are of, in bytes.

    Returns
    -------
    int
        Bytes, at least 1.

    Raises
    ------
    ArgumentError
        The value is not positive, its unit is unknown, or it is a fraction of nothing.
    ArgumentTypeError
        The value is neither a number nor a string.

    Examples
    --------
    >>> parse_bytes("4GB"), parse_bytes("1.5 GiB"), parse_bytes("80%", whole=1000)
    (4000000000, 1610612736, 800)
    """
    if isinstance(value, bool):
        raise ArgumentTypeError(f"a byte count must be an int, a float or a string, not {value!r}")
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            if value.lstrip().startswith("-"):
                raise ArgumentError(f"{value!r} is negative: a number of bytes is positive, as '4GB', '4GiB' or '80%'")
            raise ArgumentError(f"cannot read {value!r} as bytes: write an int, '4GB', '4GiB' or '80%'")
        number, unit = float(match[1]), match[2].lower()
        if unit == "%":
            return _share(number / 100, value, whole)
        if unit not in _UNITS:
            raise ArgumentError(
                f"unknown unit {match[2]!r} in {value!r}: use B, kB, MB, GB, TB (powers of 1000) "
                "or KiB, MiB, GiB, TiB (powers of 1024)"
            )
        count = number * _UNITS[unit]
    elif isinstance(value, float):
        return _share(value, value, whole)
    else:
        try:
            count = operator.index(value)
        except TypeError:
            raise ArgumentTypeError(
                f"a byte count must be an int, a float or a string, not {type(value).__name__}"
            ) from None
    if not 1 <= count < 1 << 63:
        raise ArgumentError(f"a byte count must be positive, and less than 2**63, not {value!r}")
    return int(count)


def as_dtype(value: Any) -> np.dtype:
    """The dtype that a user gives, or an `ArgumentTypeError` that says what was meant, perhaps.

    >>> as_dtype("f4")
    dtype('float32')
    """
    try:
        found: np.dtype = np.dtype(value)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ArgumentTypeError(f"dtype={value!r} is no dtype: {error}{_meant(value)}") from None
    return found


def _meant(value: object) -> str:
    """A hint, where what is no dtype is a number of bytes, or a misspelt name.

    >>> _meant("4MB"), _meant("flaot32"), _meant("f9")
    ("; a budget is given by name: budget='4MB'", "; did you mean 'float32'?", '')
    """
    if not isinstance(value, str | int):
        return ""
    if isinstance(value, str) and (close := difflib.get_close_matches(value.lower(), _DTYPES, 1, 0.7)):
        return f"; did you mean {close[0]!r}?"
    try:
        parse_bytes(value, whole=100)
    except (ArgumentError, TypeError):
        return ""
    return f"; a budget is given by name: budget={value!r}"


def _share(fraction: float, written: object, whole: int | None) -> int:
    if not (math.isfinite(fraction) and 0 < fraction <= 1):
        raise ArgumentError(
            f"{written!r} is no fraction of the free memory: a float must lie in (0, 1], a percentage "
            "in (0%, 100%]; write bytes as an int or with a unit, such as '4GB'"
        )
    if whole is None:
        raise ArgumentError(
            f"{written!r} is a fraction, and it is not known here of what: give bytes, as an int or with a unit, such "
            "as '4GB'"
        )
    return max(1, int(fraction * whole))


def format_bytes(count: float) -> str:
    """Bytes for a person to read, in powers of 1000.

    >>> format_bytes(4_000_000_000), format_bytes(1536), format_bytes(12)
    ('4.00 GB', '1.54 kB', '12 B')
    """
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


NAMED = 3
"""Names that are listed, at most; of many the first one alone."""


def numbered(times: float) -> str:
    """A number for people, of three digits at least.

    >>> numbered(2.5), numbered(4000.2)
    ('2.5', '4,000')
    """
    return f"{times:.3g}" if times < 1000 else f"{times:,.0f}"


def rounded_up(nbytes: int) -> int:
    """A number of bytes, rounded up to two digits.

    >>> rounded_up(1234567), rounded_up(7)
    (1300000, 7)
    """
    unit: int = 10 ** max(len(str(nbytes)) - 2, 0)
    return -(-nbytes // unit) * unit


def listed(names: Sequence[str]) -> str:
    """Names for a person to read, each once: of many the first, and how many more there are.

    >>> listed(["a.npy", "b.npy", "a.npy"]), listed([f"{i}.npy" for i in range(9)])
    ('a.npy, b.npy', '0.npy and 8 more')
    """
    different = list(dict.fromkeys(names))
    if len(different) <= NAMED:
        return ", ".join(different)
    return f"{different[0]} and {len(different) - 1} more"


LONG = 40
"""Letters of a value beyond which a message leaves it out."""


def written(words: Mapping[str, Any]) -> str:
    """Arguments by name as a call has them, for a message; one without a name is given by position.

    What is long, or cannot be written, is three dots.

    >>> written({"": "y.zarr", "chunks": (1, 2), "x": object()})
    "'y.zarr', chunks=(1, 2), x=..."
    """
    texts = {key: repr(value) for key, value in words.items()}
    short = {key: text if len(text) <= LONG and not text.startswith("<") else "..." for key, text in texts.items()}
    return ", ".join(f"{key}={text}" if key else text for key, text in short.items())
