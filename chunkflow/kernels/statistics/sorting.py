"""Sorted lines of a block, and the places from which their elements come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.kernels.protocol import is_trial

OTHERS: dict[Callable[..., Any], Callable[..., Any]] = {np.partition: np.sort, np.argpartition: np.argsort}
"""CuPy's functions in place of its partitions, which do not know where NaN belongs."""


def in_order(lines: Any) -> Any:
    """Lines in order along the last axis, NaN last.

    NumPy's quick sort of float16 may misplace elements among NaN and zeros; its stable sort does not.
    """
    return np.sort(lines, -1, **_kind(lines, {}))


def _kind(block: Any, how: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(block, np.ndarray) or block.dtype != np.dtype("f2"):
        return how
    return {key: value for key, value in how.items() if key not in ("kind", "stable")} | {"kind": "stable"}


def of_lines(block: Any, fn: Callable[..., Any], axis: int, how: dict[str, Any]) -> Any:
    """What one of NumPy's functions that sort gives of whole lines.

    CuPy's sorting is stable, and has no other kind.
    """
    if not isinstance(block, np.ndarray):
        return OTHERS.get(fn, fn)(block, axis=axis)
    # NumPy's sorting takes copies of a line and of its places from the system, where a trial does not see them.
    spare = np.empty(block.shape[axis] * (block.itemsize + 8), "u1") if is_trial() else None
    if is_trial() and "kth" in how:  # of longer lines
        how = how | {"kth": 0}
    found = fn(block, axis=axis, **(_kind(block, how) if fn in (np.sort, np.argsort) else how))
    del spare
    return found


of_lines.any_length = True  # type: ignore[attr-defined]


def sorted_lines(block: Any, axis: int, how: dict[str, Any]) -> Any:
    """Sorted lines along an axis, which is the result's last one."""
    return np.moveaxis(of_lines(block, np.sort, axis, how), axis, -1)


def with_places(block: Any, axis: int) -> tuple[Any, Any]:
    """The same, and where in its line each element was; equal ones keep their order."""
    block = np.moveaxis(block, axis, -1)
    spare = np.empty(block.shape[-1] * (block.itemsize + 8), "u1") if is_trial() else None  # as above
    order = np.argsort(block, axis=-1, kind="stable")
    del spare
    return np.take_along_axis(block, order, -1), order


def sorted_parts(block: Any, axis: int, how: dict[str, Any]) -> Any:
    """Sorted parts of lines along an axis."""
    return of_lines(block, np.sort, axis, how)


def places_in_order(block: Any, places: Any, axis: int) -> Any:
    """The places that belong to elements, in the order of these along an axis; equal ones keep their order."""
    spare = np.empty(block.shape[axis] * (block.itemsize + 8), "u1") if is_trial() else None  # as above
    order = np.argsort(block, axis=axis, kind="stable")
    del spare
    return np.take_along_axis(places, order, axis)
