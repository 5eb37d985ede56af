"""Consolidated metadata of groups, which readers believe: kept true when an array is created below."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import zarr


def says(metadata: bytes | None) -> bool:
    """Whether the metadata of a group of zarr 3 have its members' in them.

    >>> says(b'{"consolidated_metadata": null}'), says(None)
    (False, False)
    """
    found = {} if metadata is None else json.loads(metadata)
    return isinstance(found, dict) and found.get("consolidated_metadata") is not None


def renew_local(group: str) -> None:
    """Collect the metadata of a group in a directory anew, in the format in which they are collected."""
    folder = Path(group)
    if (folder / ".zmetadata").is_file():
        _consolidate(group, "", 2)
    document = folder / "zarr.json"
    if document.is_file() and says(document.read_bytes()):
        _consolidate(group, "", 3)


def renew_remote(store: Any, path: str, metadata: bytes) -> None:
    """Collect the metadata of a group of a store anew, if its own metadata say that they are collected."""
    if says(metadata):
        _consolidate(store, path, 3)


def _consolidate(store: Any, path: str, version: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that consolidated metadata are no part of the specification of zarr 3
        zarr.consolidate_metadata(store, path=path or None, zarr_format=version)  # type: ignore[arg-type]
