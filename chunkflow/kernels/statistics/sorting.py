"""Sorted lines of a block, and the places from which their elements come."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any, Literal

import numpy as np

from chunkflow.kernels.protocol import is_trial


def in_order(lines: Any, axis: int = -1, **how: Any) -> Any:
    """Lines in order along an axis, NaN last; `how` are NumPy's arguments."""
    if isinstance(lines, np.ndarray) and kind_of(lines.dtype) is not None:
        how = {"kind": kind_of(lines.dtype)}
    found = None if is_trial() else short_lines(lines, axis, places=False)  # in a trial, what takes most
    return np.sort(lines, axis, **how) if found is None else found


def order_along(lines: Any, axis: int = -1, kind: Literal["stable"] | None = None) -> Any:
    """Places of the elements of lines in order along an axis, NaN last; on a GPU equal ones always keep their order."""
    found = None if is_trial() else short_lines(lines, axis, places=True)
    return np.argsort(lines, axis, kind=kind) if found is None else found


def order_by_keys(*keys: Any) -> Any:
    """Places of elements along the last axis in the order of several keys, the last one first, as `numpy.lexsort`."""
    if isinstance(keys[0], np.ndarray):
        return np.lexsort(keys)
    found = None
    for key in keys:  # each order keeps that of the key before among equal elements
        last = key if found is None else np.take_along_axis(key, found, -1)
        step = order_along(last, kind="stable")
        found = step if found is None else np.take_along_axis(found, step, -1)
    return found


@singledispatch
def short_lines(lines: Any, axis: int, *, places: bool) -> Any:
    """Lines in order along an axis, or the places of their elements; None where nothing does it at once.

    Places are those of a stable sort. Among values, negative zeros come before others, and all NaN are one.
    Devices with arrays of their own register what does it there.
    """
    return None


def kind_of(dtype: np.dtype) -> Literal["stable"] | None:
    """The kind of NumPy's sort that is right for a dtype.

    Its quick sort of float16 misplaces elements among zeros of both signs and NaN (NumPy 2.4, with AVX-512). Its stable
    sort does not, nor do its partition and the sorting of places.
    """
    return "stable" if dtype == np.dtype("f2") else None


def of_lines(block: Any, fn: Callable[..., Any], axis: int, how: dict[str, Any]) -> Any:
    """What one of NumPy's functions that sort gives of whole lines.

    On a GPU sorting is stable, and stands for partitions: CuPy's do not know where NaN belongs.
    """
    if not isinstance(block, np.ndarray):
        return (in_order if fn in (np.sort, np.partition) else order_along)(block, axis)
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
    order = order_along(block, -1, "stable")
    del spare
    return np.take_along_axis(block, order, -1), order


def sorted_parts(block: Any, axis: int, how: dict[str, Any]) -> Any:
    """Sorted parts of lines along an axis."""
    return of_lines(block, np.sort, axis, how)


def places_in_order(block: Any, places: Any, axis: int) -> Any:
    """The places that belong to elements, in the order of these along an axis; equal ones keep their order."""
    spare = np.empty(block.shape[axis] * (block.itemsize + 8), "u1") if is_trial() else None  # as above
    order = order_along(block, axis, "stable")
    del spare
    return np.take_along_axis(places, order, axis)


# What they take of memory depends on no element.
sorted_lines.any_data = True  # type: ignore[attr-defined]
with_places.any_data = True  # type: ignore[attr-defined]
sorted_parts.any_data = True  # type: ignore[attr-defined]
places_in_order.any_data = True  # type: ignore[attr-defined]
