"""Names of an array's dimensions, which xarray needs of each array in a group: with one missing it opens none."""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from chunkflow.stores.new_array import StoredLabels
from chunkflow.stores.zarr.documents import parsed, read_document

ATTRIBUTE = "_ARRAY_DIMENSIONS"
"""The attribute with the names, in arrays of zarr 2."""

MOST = 16
"""Arrays of a group that are looked at."""

Names = tuple[str, ...]


def named(path: str, ndim: int, *, member: bool) -> Names | None:
    """Names for an array at a path: those of the array that it replaces.

    A new `member` of a group, among arrays that have names, gets names of its own. Otherwise there are none.
    """
    others = map(_names, beside(path)) if member else ()
    return chosen(os.path.basename(path), ndim, _names(path), others)


def chosen(stem: str, ndim: int, old: Names | None, beside: Iterable[Names | None]) -> Names | None:
    """Names for an array: those of the `old` one in its place, else its own if an array `beside` it has some.

    >>> chosen("u", 2, ("x", "y"), []), chosen("u", 1, None, [None, ("x",)]), chosen("u", 1, None, [None])
    (('x', 'y'), ('u_0',), None)
    """
    if old is not None and len(old) == ndim:
        return old
    if any(names is not None for names in islice(beside, MOST)):
        return tuple(f"{stem}_{axis}" for axis in range(ndim))
    return None


def names_in(metadata: bytes, version: int = 3) -> Names | None:
    """Names in the metadata of an array of zarr 3, or the attributes of one of zarr 2; None if it has none.

    >>> names_in(b'{"node_type": "array", "dimension_names": ["x", null]}')
    >>> names_in(b'{"node_type": "array", "dimension_names": ["x", "y"]}')
    ('x', 'y')
    """
    try:
        found = parsed(metadata)
    except ValueError:
        return None
    return _all_text(found.get(ATTRIBUTE if version == 2 else "dimension_names")) if isinstance(found, dict) else None


def attributes_of(array: Any, *, fills: bool = True) -> dict[str, Any]:
    """Attributes of a zarr array, with the ``_FillValue`` that xarray has written elsewhere, or as text.

    In format 2 it is the fill value of an array whose dimensions have names, if that `fills` what is missing. In format
    3 it is a double of little-endian bytes in base64, if the elements are floating point numbers.
    """
    attributes: dict[str, Any] = array.attrs.asdict()
    text, kind = attributes.get("_FillValue"), np.dtype(array.dtype).kind
    if array.metadata.zarr_format == 2:
        if fills and ATTRIBUTE in attributes and array.fill_value is not None and kind in "iuf":
            attributes.setdefault("_FillValue", np.asarray(array.fill_value).item())
    elif isinstance(text, str) and kind == "f":
        with suppress(ValueError, struct.error):  # else it is some other text
            (attributes["_FillValue"],) = struct.unpack("<d", base64.b64decode(text, validate=True))
    return attributes


def labels_of(array: Any, *, fills: bool = True) -> StoredLabels:
    """Attributes of a zarr array, and names of its dimensions, which format 2 has among them."""
    attributes, metadata = attributes_of(array, fills=fills), array.metadata
    if metadata.zarr_format == 2:
        return StoredLabels(attributes, _all_text(attributes.pop(ATTRIBUTE, None)))
    names = metadata.dimension_names
    return StoredLabels(attributes, None if names is None else tuple(names))


def fitting(labels: StoredLabels, shape: tuple[int, ...]) -> StoredLabels:
    """Labels of another array as a new array of zarr has them.

    Xarray takes a ``_FillValue`` for the code of a number if it is one of floats: ``missing_value`` says the same. It
    opens no array of which only some dimensions have names: the others get those that it would give them.
    """
    attributes = dict(labels.attributes or {})
    if isinstance(attributes.get("_FillValue"), float):
        missing = attributes.pop("_FillValue")
        if missing == missing:
            attributes.setdefault("missing_value", missing)
    names = labels.dimension_names
    if names is not None:
        names = tuple(name or f"dim_{axis}" for axis, name in enumerate(names)) if any(names) else None
    return StoredLabels({k: v for k, v in attributes.items() if _is_json(v)}, names)


def _is_json(value: Any) -> bool:
    """Whether JSON has such values. It has no NaN and no infinity: other programs open no array whose metadata do."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _all_text(found: Any) -> Names | None:
    if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
        return None
    return tuple(str(name) for name in found)


def _names(path: str) -> Names | None:
    """Names of the dimensions of an array; None if it has none, or there is no array."""
    try:  # zarr would load the codecs that are named there
        array = _document(path, "zarr.json")
        if array.get("node_type") == "array":
            attributes = array.get("attributes") or {}
        else:
            array = {}
            attributes = _document(path, ".zattrs") if os.path.isfile(os.path.join(path, ".zarray")) else {}
        return _all_text(attributes.get(ATTRIBUTE, array.get("dimension_names")))
    except (OSError, ValueError, AttributeError):  # nothing that is understood: then there is nothing to keep
        return None


def _document(path: str, name: str) -> Any:
    """What a file of metadata says; empty if there is none."""
    found = os.path.join(path, name)
    return read_document(found) if os.path.isfile(found) else {}


def beside(path: str) -> Iterator[str]:
    """What lies beside a path in the same group: arrays, and whatever else has a directory."""
    try:
        found = [entry.path for entry in os.scandir(os.path.dirname(path)) if entry.is_dir()]
    except OSError:
        return
    yield from (other for other in found if not os.path.basename(other).startswith("."))
