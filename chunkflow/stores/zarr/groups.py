"""Groups of zarr arrays, as other libraries make, empty and consolidate them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import zarr

from chunkflow.stores.zarr import consolidated
from chunkflow.stores.zarr.array import location_of
from chunkflow.stores.zarr.node import zarr_node


def location_of_group(store: Any, path: str, options: Mapping[str, Any]) -> str | None:
    """The location of a group in a store; None if none is there that can be opened."""
    with suppress(Exception):
        return location_of(zarr.open_group(store, mode="r", path=path or None, **options))
    return None


def default_format() -> int:
    """The format of new groups."""
    return int(zarr.config.get("default_zarr_format", 3))


def consolidate(group: Any) -> None:
    """Consolidate the metadata of a group anew."""
    zarr.consolidate_metadata(group.store, path=group.path, zarr_format=group.metadata.zarr_format)


def consolidate_at(path: str) -> None:
    """Consolidate the metadata of a group in a directory, so that readers find all of it in one file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")  # which format 3 has by custom
        consolidate(zarr.open_group(path, mode="r+", use_consolidated=False))


def outermost(group: str) -> str:
    """The outermost of the groups in directories in which a group lies."""
    above = os.path.dirname(group)
    return group if above == group or zarr_node(above) is None else outermost(above)


def cut_back(group: str, root: str, lengths: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Give arrays of a group in a directory the shapes back that they had before they were made longer.

    Parameters
    ----------
    group, root : str
        Paths of the group, and of the outermost group around it.
    lengths : mapping
        For each name the shape before, and the longer one. An array that has another shape by now is left as it is.
    """
    for name, (before, longer) in lengths.items():
        path = os.path.join(group, name)
        if zarr_node(path) is None:
            continue
        array = zarr.open_array(path, mode="r+")
        if array.shape == tuple(longer):
            array.resize(tuple(before))
        above = group
        while True:
            consolidated.renew_local(above, os.path.relpath(path, above))
            if above in (root, os.path.dirname(above)):
                break
            above = os.path.dirname(above)
