"""What the ``chunks`` argument says: for each axis of a result a block length, the whole axis, or free choice.

Pure, as planning is.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.nest import Along
from chunkflow.errors import ArgumentError, ArgumentTypeError

Chunks = int | Sequence[int | Sequence[int] | str | None] | None
Length = int | Literal["whole", "auto"]


def lengths(chunks: Chunks, ndim: int) -> tuple[Length, ...]:
    """Entry for each of `ndim` axes.

    >>> lengths((64, -1, "auto", (8, 8, 3)), 4)
    (64, 'whole', 'auto', 8)
    >>> lengths(None, 2)
    ('auto', 'auto')
    """
    if isinstance(chunks, Sequence) and not isinstance(chunks, str):
        entries: list[Any] = list(chunks)
    else:
        entries = ["auto" if chunks is None else chunks] * ndim
    if len(entries) != ndim:
        raise ArgumentError(f"chunks={chunks!r} has {len(entries)} entries and the result has {ndim} dimensions")
    return tuple(_length(entry, chunks) for entry in entries)


def _length(entry: Any, chunks: Chunks) -> Length:
    if entry == "auto":
        return "auto"
    if isinstance(entry, Sequence) and not isinstance(entry, str) and entry:
        if any(n != entry[0] for n in entry[:-1]) or entry[-1] > entry[0]:
            raise ArgumentError(f"chunks={chunks!r}: all blocks along an axis but the last must have the same length")
        entry = entry[0]
    if entry is None or (not isinstance(entry, bool) and isinstance(entry, int | np.integer) and entry == -1):
        return "whole"
    if isinstance(entry, bool) or not isinstance(entry, int | np.integer):
        raise ArgumentTypeError(f"chunks={chunks!r}: {entry!r} is no length; use an int, -1 (whole axis) or 'auto'")
    if entry < 1:
        raise ArgumentError(f"chunks={chunks!r}: a block has at least one element along each axis, not {entry}")
    return int(entry)


def sides(
    entries: Sequence[Length], axes: Sequence[int | None], dims: Sequence[Along | int], ndim: int
) -> tuple[int | None, ...]:
    """Sides of the blocks of a loop nest with `ndim` axes; None where the planner chooses.

    Parameters
    ----------
    entries, axes, dims
        For each axis of the result: what the user wants, the nest's axis that it follows (None for a new one),
        and how it does so.
    """
    found: list[int | None] = [None] * ndim
    for i, (entry, axis, dim) in enumerate(zip(entries, axes, dims, strict=True)):
        if isinstance(entry, str):
            continue
        if axis is None or isinstance(dim, int):
            if entry != dim:
                raise ArgumentError(f"chunks says {entry} for the new axis {i}, along which fn returns {dim}")
            continue
        side = Fraction(entry) / dim.ratio
        if side.denominator != 1:
            raise ArgumentError(
                f"fn returns {dim.ratio} elements for each one along axis {i}, so a block of {entry} in chunks "
                f"would need {float(side):g} elements: use a multiple of {dim.ratio.numerator}"
            )
        found[axis] = int(side)
    return tuple(found)


def check_sums(chunks: Chunks, shape: Shape) -> None:
    """Refuse lengths given one by one that do not add up to the result's."""
    for entry, n in zip(chunks if isinstance(chunks, Sequence) else (), shape, strict=False):
        if isinstance(entry, Sequence) and not isinstance(entry, str) and sum(entry) != n:
            raise ArgumentError(f"chunks={chunks!r}: {tuple(entry)} add up to {sum(entry)}, not to the result's {n}")


def wish(entries: Sequence[Length], shape: Shape) -> Shape | None:
    """Chunks for a result that the run creates, where the user has said any."""
    if all(isinstance(entry, str) for entry in entries):
        return None
    sides = [max(n, 1) for n in shape]
    return tuple(n if isinstance(e, str) else min(e, n) for e, n in zip(entries, sides, strict=True))


def block_sides(chunks: Chunks, extents: Shape) -> tuple[int | None, ...] | None:
    """Sides of the blocks of an array, as `chunks` fixes them as for `map`; None where the planner chooses.

    >>> block_sides((4, -1, "auto"), (10, 20, 30))
    (4, 20, None)
    """
    if chunks is None:
        return None
    if isinstance(chunks, Sequence) and not isinstance(chunks, str) and len(chunks) != len(extents):
        raise ArgumentError(f"chunks={chunks!r} has {len(chunks)} entries and the array has {len(extents)} dimensions")
    check_sums(chunks, extents)
    pairs = zip(lengths(chunks, len(extents)), extents, strict=True)
    return tuple(None if n == "auto" else max(1, side) if n == "whole" else n for n, side in pairs)
