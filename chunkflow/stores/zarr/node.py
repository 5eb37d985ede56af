"""Whether a directory is a zarr array, a group or neither, by its metadata files. Does not load zarr."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chunkflow.errors import ArgumentError, ReadError
from chunkflow.stores.zarr.documents import is_large_group, read_document

SUFFIX = ".zarr"
"""How names of zarr arrays and groups end, if nothing else says what they are."""

_OF_ARRAY = re.compile(r"[.].*|zarr[.]json|c|(c[.])?[0-9]+([.][0-9]+)*")
"""Names of the metadata and the chunks of an array, or of hidden files."""


@dataclass(frozen=True)
class ZarrNode:
    """Kind and zarr format (2 or 3) of a directory."""

    kind: Literal["array", "group"]
    format: int


def zarr_node(path: str) -> ZarrNode | None:
    """The array or group that a directory holds; None for any other directory or file.

    Where files of both formats describe a directory, an array comes before a group.
    `ReadError` if there is a ``zarr.json`` that does not say which of the two it describes.
    """
    if os.path.isfile(os.path.join(path, ".zarray")):
        return ZarrNode("array", 2)
    metadata = os.path.join(path, "zarr.json")
    if not os.path.isfile(metadata):
        return ZarrNode("group", 2) if os.path.isfile(os.path.join(path, ".zgroup")) else None
    try:
        kind: Any = "group" if is_large_group(metadata) else read_document(metadata)["node_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ReadError(f"cannot read {metadata}: {error!r}", path=path, cause=error) from error
    if kind not in ("array", "group"):
        raise ReadError(f"{metadata} describes a {kind!r}, not an array or a group", path=path)
    return ZarrNode(kind, 3)


def refuse_inside_array(name: str) -> None:
    """Refuse an output in the directory of a zarr array, with which it would be replaced."""
    for folder in map(str, Path(name).parents):
        with suppress(ReadError):  # what nobody can read is no array
            if (node := zarr_node(folder)) is not None and node.kind == "array":
                raise ArgumentError(f"the output {name} would lie inside the zarr array {folder}: choose another path")


def not_of_array(path: str) -> Iterator[str]:
    """Names in the directory of an array that are of neither metadata nor chunks, but for hidden ones."""
    with suppress(OSError), os.scandir(path) as entries:
        yield from (entry.name for entry in entries if not _OF_ARRAY.fullmatch(entry.name))


def belongs_to_zarr(path: str) -> bool:
    """Whether a new array at an absolute path becomes a zarr array: it, or a directory above, is zarr's.

    >>> belongs_to_zarr("/nowhere/u.zarr"), belongs_to_zarr("/nowhere/sim.zarr/u"), belongs_to_zarr("/nowhere/u")
    (True, True, False)
    """
    while not path.endswith(SUFFIX) and zarr_node(path) is None:
        above = os.path.dirname(path)
        if above == path:
            return False
        path = above
    return True
