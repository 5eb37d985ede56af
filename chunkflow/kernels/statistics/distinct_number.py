"""About how many different numbers an array has, in little memory.

Each number has a hash, as if drawn at random. The smallest ones are kept: that the `KEPT`-th of them is small says that
there are many (Z. Bar-Yossef et al., "Counting distinct elements in a data stream", RANDOM 2002). It is mostly
right within 3 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np

KEPT = 1024
"""Hashes that are kept."""

NONE = np.iinfo("u8").max
"""Where fewer were met."""

STRIP = 1 << 13
"""Elements whose hashes are made at once."""


def hashes_of(block: Any) -> tuple[Any]:
    """The smallest hashes of a block's real numbers, each once, sorted."""
    flat = block.reshape(-1)
    flat = flat.astype("f8").view("u8") if flat.dtype.kind == "f" else flat
    strip = STRIP if isinstance(flat, np.ndarray) else max(1, flat.size)
    found = (np.full_like(flat, NONE, dtype="u8", shape=(KEPT,)),)
    for start in range(0, flat.size, strip):
        mixed = _mixed(flat[start : start + strip].astype("u8"))
        few = np.unique(mixed[mixed <= found[0][-1]])[:KEPT]
        found = smallest(found, (few,))
    return found


def smallest(left: tuple[Any], right: tuple[Any]) -> tuple[Any]:
    """The smallest hashes of two parts."""
    both = np.unique(np.concatenate((left[0], right[0])))[:KEPT]
    whole = np.full_like(both, NONE, shape=(KEPT,))
    whole[: len(both)] = both
    return (whole,)


def number_of(hashes: np.ndarray) -> int:
    """About how many numbers have these smallest hashes; exactly, if all of them are here.

    >>> number_of(hashes_of(np.array([7, 5, 7]))[0])
    2
    """
    met = int(np.searchsorted(hashes, NONE))
    return met if met < KEPT else round((KEPT - 1) / (int(hashes[-1]) / 2.0**64))


def _mixed(numbers: Any) -> Any:
    """Hashes, by the last steps of SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed
