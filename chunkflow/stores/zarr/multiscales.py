"""What OME-Zarr says of an image in several resolutions: its axes, their units, and the scale of each level.

It stands in the attributes of a group above the arrays: ``multiscales`` to version 0.4, ``ome`` from 0.5 on. Source:
"Next-generation file formats (NGFF)", version 0.5, sections 2.2 and 2.4.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from chunkflow.stores.kvstore.fsspec import is_remote
from chunkflow.stores.zarr.documents import MOST, parsed
from chunkflow.system.files import open_regular

HIGHEST = 2
"""How many groups above an array are looked at: a level may be ``image.zarr/scale0/image``."""


class Level(NamedTuple):
    """An array of an image: names of its axes, their units, and the length of a step along each, as far as known."""

    names: tuple[str, ...]
    units: tuple[str | None, ...]
    scale: tuple[float, ...] | None


def level_in(attributes: Any, path: str, ndim: int) -> Level | None:
    """The level of an image that lies at a path in a group with these attributes; None if the group names none.

    >>> axes = [{"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space"}]
    >>> levels = [{"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [1, 0.5]}]}]
    >>> said = {"multiscales": [{"axes": axes, "datasets": levels}]}
    >>> level_in({"ome": {"version": "0.5", **said}}, "1", 2)
    Level(names=('y', 'x'), units=('micrometer', None), scale=(1.0, 0.5))
    >>> level_in(said, "2", 2)  # one beside the others, which is not named yet
    Level(names=('y', 'x'), units=('micrometer', None), scale=None)
    >>> level_in(said, "1", 3), level_in(said, "labels/2", 2), level_in({"multiscales": 0}, "1", 2)
    (None, None, None)
    """
    beside = None
    for image in images_in(attributes):
        for level in _all_mappings(image.get("datasets")):
            place = level.get("path")
            if isinstance(place, str) and os.path.dirname(place.strip("/")) == os.path.dirname(path):
                axes = [{"name": each} if isinstance(each, str) else each for each in _items(image.get("axes"))]
                names = [name for each in _all_mappings(axes) if isinstance(name := each.get("name"), str)]
                if len(axes) != ndim or len(set(names)) != ndim:
                    return None
                units = [each.get("unit") for each in axes]
                beside = Level(tuple(names), tuple(unit if isinstance(unit, str) else None for unit in units), None)
                if place.strip("/") != path:
                    continue
                scales = [_scale(each.get("coordinateTransformations"), ndim) for each in (image, level)]
                known = [scale for scale in scales if scale is not None]
                return beside._replace(scale=tuple(map(math.prod, zip(*known, strict=True))) if known else None)
    return beside


def images_in(attributes: Any) -> list[Mapping[str, Any]]:
    """The images that the attributes of a group describe, each in several resolutions."""
    if not isinstance(attributes, Mapping):
        return []
    said = attributes.get("ome", attributes)
    return _all_mappings(said.get("multiscales")) if isinstance(said, Mapping) else []


def _scale(steps: Any, ndim: int) -> tuple[float, ...] | None:
    """How long a step along each axis is, by transformations of coordinates; None if they do not say."""
    for step in _all_mappings(steps):
        scale = _items(step.get("scale"))
        if step.get("type") == "scale" and len(scale) == ndim and all(type(n) in (int, float) for n in scale):
            return tuple(map(float, scale))
    return None


def _items(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _all_mappings(found: Any) -> list[Mapping[str, Any]]:
    return [each for each in _items(found) if isinstance(each, Mapping)]


def level_at(path: str, ndim: int) -> Level | None:
    """The level of an image that is, or is to be, at a path. Only metadata of groups above it are read."""
    above, inner = os.path.split(os.path.abspath(path))
    for _ in range(HIGHEST):
        if (found := level_in(group_attributes(above), inner, ndim)) is not None:
            return found
        above, name = os.path.split(above)
        inner = f"{name}/{inner}"
    return None


def group_attributes(path: str) -> Any:
    """Attributes of the group in a directory that describes images; empty where there is none that is understood.

    A group without images is not parsed: it may describe many members.
    """
    for name in ("zarr.json", ".zattrs"):
        try:
            with open(open_regular(os.path.join(path, name)), "rb") as file:
                raw = file.read(MOST + 1)
            found = parsed(raw) if b'"multiscales"' in raw else {}
            return found if name == ".zattrs" else found.get("attributes")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError):
            break
    return {}


def level_in_store(array: Any) -> Level | None:
    """The level of an image that an array in a store is, by metadata of groups above it.

    They are asked for where the store has them, and in a remote one that begins at the array.
    """
    document, store = ".zattrs" if array.metadata.zarr_format == 2 else "zarr.json", array.store
    names = array.path.split("/") if array.path else []
    if is_remote(store):
        above = store.path.rstrip("/").split("/")
        names = [*above[-HIGHEST:], *names]
        store = type(store)(store.fs, read_only=True, path="/".join(above[:-HIGHEST]))
    for i in reversed(range(max(0, len(names) - HIGHEST), len(names))):
        raw = sync(store.get("/".join([*names[:i], document]), default_buffer_prototype()))
        said: Any = {} if raw is None else parsed(raw.to_bytes())
        said = said if array.metadata.zarr_format == 2 else said.get("attributes")
        if (found := level_in(said, "/".join(names[i:]), len(array.shape))) is not None:
            return found
    return None
