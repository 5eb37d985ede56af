"""Axes as users give them: checked, and counted from the front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from chunkflow.errors import ArgumentError, ArgumentTypeError, AxisError


def normalize_axes(axes: int | Sequence[int] | None, ndim: int, name: str) -> tuple[int, ...]:
    """Sorted non-negative axes, each named once.

    >>> normalize_axes((-1, 0), 3, "drop_axis")
    (0, 2)
    """
    return tuple(sorted(ordered_axes(axes, ndim, name)))


def ordered_axes(axes: int | Sequence[int] | None, ndim: int, name: str) -> list[int]:
    """Non-negative axes in the order that they are given in, each named once."""
    found = []
    for axis in as_axes(axes, name):
        if not -ndim <= axis < ndim:
            raise AxisError(f"{name}={axis} is out of bounds for {ndim} dimensions")
        found.append(axis % ndim)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{name}={axes!r} names an axis twice")
    return found


def as_axes(axes: int | Sequence[int] | None, name: str) -> list[int]:
    """Axes as a list, whatever way they were written."""
    if axes is None:
        return []
    given: Any = axes[()] if isinstance(axes, np.ndarray) else axes  # NumPy's own axes may be arrays of no dimension
    several = isinstance(given, Iterable) and not isinstance(given, str) and getattr(given, "ndim", 1) > 0
    listed = list(given) if several else [given]
    for axis in listed:
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            way = "; dim= takes names of xarray's dimensions, once chunkflow.xarray is imported"
            raise ArgumentTypeError(
                f"{name} must be an int or ints, not {axes!r}{way if isinstance(axis, str) else ''}"
            )
    return [int(axis) for axis in listed]
