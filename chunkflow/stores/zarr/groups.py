"""Groups of zarr arrays, as other libraries make, empty and consolidate them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import zarr

from chunkflow.stores.zarr.array import location_of


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
