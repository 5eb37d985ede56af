"""Names of an array's dimensions, which xarray needs of each array in a group: with one missing it opens none."""

from __future__ import annotations

import os
from typing import Any

import zarr

ATTRIBUTE = "_ARRAY_DIMENSIONS"
"""The attribute with the names, in arrays of zarr 2."""

MOST = 16
"""Arrays of a group that are looked at."""


def named(path: str, ndim: int, version: int, *, member: bool) -> dict[str, Any]:
    """Arguments of `zarr.create_array` for an array at a path: those of the array that it replaces.

    A new `member` of a group, among arrays that have names, gets names of its own. Otherwise there are none.
    """
    names = _names(path)
    if names is None or len(names) != ndim:
        if not (member and _beside(path)):
            return {}
        stem = os.path.basename(path)
        names = tuple(f"{stem}_{axis}" for axis in range(ndim))
    return {"attributes": {ATTRIBUTE: list(names)}} if version == 2 else {"dimension_names": names}


def _names(path: str) -> tuple[str, ...] | None:
    """Names of the dimensions of an array; None if it has none, or there is no array."""
    try:
        array = zarr.open_array(path, mode="r")
    except Exception:  # nothing is there, or what another version of zarr understands: then there is nothing to keep
        return None
    found = array.attrs.get(ATTRIBUTE, getattr(array.metadata, "dimension_names", None))
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        return None
    return tuple(str(name) for name in found)


def _beside(path: str) -> bool:
    """Whether an array in the same group has names of its dimensions."""
    folder = os.path.dirname(path)
    try:
        others = [entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return False
    return any(_names(other) is not None for other in others[:MOST])
