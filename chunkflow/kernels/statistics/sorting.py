"""Sorted lines of a block, and the places from which their elements come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from chunkflow.kernels.protocol import is_trial

OTHERS: dict[Callable[..., Any], Callable[..., Any]] = {np.partition: np.sort, np.argpartition: np.argsort}
"""CuPy's functions in place of its partitions, which do not know where NaN belongs."""


def in_order(lines: Any, axis: int = -1, **how: Any) -> Any:
    """Lines in order along an axis, NaN last; `how` are NumPy's arguments."""
    if isinstance(lines, np.ndarray) and kind_of(lines.dtype) is not None:
        how = {"kind": kind_of(lines.dtype)}
    return np.sort(lines, axis, **how)


def kind_of(dtype: np.dtype) -> Literal["stable"] | None:
    """The kind of NumPy's sort that is right for a dtype.

    Its quick sort of float16 misplaces elements among zeros of both signs and NaN (NumPy 2.4, with AVX-512). Its stable
    sort does not, nor do its partition and the sorting of places.
    """
    return "stable" if dtype == np.dtype("f2") else None


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
    found = in_order(block, axis, **how) if fn is np.sort else fn(block, axis=axis, **how)
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
