"""Opening the zarr array behind a URL. What its metadata say is checked before zarr sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zarr
from zarr.storage import StorePath

from chunkflow.errors import ArgumentError, ChunkflowError, ReadError, SourceNotFoundError
from chunkflow.stores.kvstore.fsspec import Bucket, open_store
from chunkflow.stores.paths import listed
from chunkflow.stores.zarr.allowed import check_metadata
from chunkflow.stores.zarr.documents import parsed

DOCUMENTS = ("zarr.json", ".zarray", ".zattrs", ".zgroup")
"""What may describe an array or a group, in either format."""

GROUPS = ("zarr.json", ".zgroup", ".zmetadata")
"""What describes a group, and perhaps its members, in either format."""

MOST_LISTED = 50


def open_url(url: str, as_read: Callable[[Any], dict[str, Any]]) -> zarr.Array[Any]:
    """The zarr array behind a URL, by metadata `as_read`.

    Raises
    ------
    ArgumentError
        The URL cannot be opened, or is a group's.
    SourceNotFoundError
        There is no zarr array.
    ReadError
        The server does not answer, or the metadata are damaged or name what is not allowed.
    """
    store = open_store(url, read_only=True)
    try:
        found = _documents(Bucket(store, ""))
        metadata = found.get("zarr.json")
        if not isinstance(metadata, dict) or metadata.get("node_type") != "array":
            metadata = found.get(".zarray")
            if metadata is not None:
                metadata = {**metadata, "attributes": found.get(".zattrs") or {}}
            elif "zarr.json" in found or ".zgroup" in found:
                raise ArgumentError(f"{url} is a zarr group: add the name of one of its arrays{_members(url)}")
            else:
                raise SourceNotFoundError(f"there is no zarr array at {url}{_others(url) or _other_kind(url)}")
        metadata = as_read(metadata)
        check_metadata(metadata, url)
        return zarr.Array.from_dict(StorePath(store), metadata)
    except ChunkflowError:
        raise
    except Exception as error:
        public = (
            ": of a public bucket pass zarr.open_array(url, mode='r', storage_options={'anon': True})"
            if "credentials" in str(error).lower()
            else ""
        )
        raise ReadError(f"cannot open the zarr array at {url}: {error}{public}", path=url, cause=error) from error


def _documents(bucket: Bucket) -> dict[str, Any]:
    """What describes an array, by name. The first one is enough as a rule."""
    first, *others = DOCUMENTS
    raw = bucket.get(first)
    found = {first: parsed(raw.tobytes())} if raw is not None else {}
    if found and found[first]["node_type"] == "array":
        return found
    with ThreadPoolExecutor(len(others), "chunkflow-look") as threads:
        more = zip(others, threads.map(bucket.get, others), strict=True)
        return found | {name: parsed(each.tobytes()) for name, each in more if each is not None}


def _others(url: str) -> str:
    """What the group has that an array should be in, as the end of a sentence; empty if that is not known."""
    above, _, name = url.rstrip("/").rpartition("/")
    return f", which would be {name!r} of a zarr group{found}" if (found := _members(above)) else ""


def _other_kind(url: str) -> str:
    """That files of other formats are read from paths alone, as the end of a sentence; empty if it is no such URL."""
    if not url.lower().endswith((".npy", ".h5", ".hdf5", ".nc", ".tif", ".tiff")):
        return ""
    return ": URLs are of zarr arrays, and files in other formats are read after a download"


def _members(url: str) -> str:
    """Names of a group's own members, in brackets; empty if the store cannot tell."""
    with contextlib.suppress(Exception):  # an error is being told already
        bucket = Bucket(open_store(url, read_only=True), "")
        found = [parsed(raw.tobytes()) for name in GROUPS if (raw := bucket.get(name)) is not None]
        if any(each.get("node_type", "group") == "group" for each in found):
            return f" (its members: {listed(sorted(_consolidated(found) or bucket.folders(MOST_LISTED)))})"
    return ""


def _consolidated(documents: Sequence[Any]) -> set[str]:
    """Names of a group's own members, where its metadata describe all of them."""
    described = (each.get("consolidated_metadata") or each for each in documents)
    names = (name for each in described for name in each.get("metadata") or ())
    return {first for first, below, _ in (name.partition("/") for name in names) if below or first[:1] != "."}
