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
from chunkflow.stores.kvstore.http import url_at
from chunkflow.stores.paths import listed
from chunkflow.stores.zarr.allowed import check_metadata
from chunkflow.stores.zarr.documents import parsed

DOCUMENTS = ("zarr.json", ".zarray", ".zattrs", ".zgroup")
"""What may describe an array or a group, in either format."""

GROUPS = ("zarr.json", ".zgroup", ".zmetadata")
"""What describes a group, and perhaps its members, in either format."""

MOST_LISTED = 50

MOST_MEMBERS, DEEPEST, LOOKING = 10_000, 16, 16
"""Members of a group that are looked at, levels of groups, and requests at a time, where a server lists a group."""


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
                raise ArgumentError(f"{url} is a zarr group: {_which(url)}")
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


def _which(url: str) -> str:
    """How to name an array of a group."""
    if found := _members(url):
        return f"add the name of one of its arrays{found}"
    return (
        "the server lists no members of it, and it has no consolidated metadata that do. Add the path of one of its "
        f"arrays in the group, as {url_at(url, 'name')}"
    )


def _members(url: str) -> str:
    """Names of a group's own members, in brackets; empty if the store cannot tell."""
    with contextlib.suppress(Exception):  # an error is being told already
        bucket = Bucket(open_store(url, read_only=True), "")
        if (documents := _of_group(bucket)) is not None:
            known = _consolidated(documents)
            names = bucket.folders(MOST_LISTED) if known is None else [name.partition("/")[0] for name in known]
            return f" (its members: {listed(set(names))})" if names or known is not None else ""
    return ""


def inside_url(url: str) -> list[str]:
    """URLs of the arrays in the zarr group behind a URL, and in the groups inside it; none of an array.

    They are those that its consolidated metadata name, or else those that the server lists. There are none where it
    lists nothing.
    """
    try:
        store = open_store(url, read_only=True)
        documents = _of_group(Bucket(store, ""))
        if documents is None:
            return []
        known = _consolidated(documents)
        names = _listed(store) if known is None else [name for name, kind in known.items() if kind == "array"]
    except ChunkflowError:
        raise
    except Exception as error:
        raise ReadError(f"cannot look into the zarr group at {url}: {error}", path=url, cause=error) from error
    return [url_at(url, name) for name in sorted(names)]


def _of_group(bucket: Bucket) -> list[Any] | None:
    """What describes a group; None where something else is, or nothing."""
    found = [parsed(raw.tobytes()) for name in GROUPS if (raw := bucket.get(name)) is not None]
    there = all(isinstance(each, dict) for each in found) and found
    return found if there and any(each.get("node_type", "group") == "group" for each in found) else None


def _consolidated(documents: Sequence[Any]) -> dict[str, str] | None:
    """Kinds of all nodes below a group, by name, where its metadata describe them; None where they do not."""
    found: dict[str, str] | None = None
    for each in documents:
        described = (each.get("consolidated_metadata") or each).get("metadata")
        if not isinstance(described, dict):
            continue
        found = {} if found is None else found
        for name, said in described.items():
            above, _, last = name.rpartition("/")
            if last in _KINDS:  # format 2 names documents, format 3 nodes
                name, kind = above, _KINDS[last]
            else:
                kind = said.get("node_type", "") if isinstance(said, dict) else ""
            if kind and _is_below(name):
                found[name] = kind
    return found


_KINDS = {".zarray": "array", ".zgroup": "group", ".zattrs": ""}
"""Kind of what a document of format 2 describes."""


def _is_below(name: str) -> bool:
    """Whether a name that a server gives is one of something below the group."""
    return not {"", ".", ".."} & set(name.split("/")) and not set(name) & set("?#")


def _listed(store: Any) -> list[str]:
    """Names of the arrays that a server lists below a group, level by level."""
    found, groups = [], [""]
    with ThreadPoolExecutor(LOOKING, "chunkflow-look") as threads:
        for _ in range(DEEPEST):
            members = [
                f"{group}/{name}".lstrip("/")
                for group, names in zip(groups, threads.map(lambda g: _folders(store, g), groups), strict=True)
                for name in names
            ]
            kinds = list(zip(members, threads.map(lambda name: _kind(Bucket(store, name)), members), strict=True))
            found += [name for name, kind in kinds if kind == "array"]
            groups = [name for name, kind in kinds if kind == "group"]
    return found


def _folders(store: Any, group: str) -> list[str]:
    """Names of folders in a group; none where the server refuses to list the group that was asked for."""
    try:
        names = Bucket(store, group).folders(MOST_MEMBERS)
    except Exception:
        if group:  # which it has listed
            raise
        return []
    return [name for name in names if "/" not in name and _is_below(name)]


def _kind(bucket: Bucket) -> str:
    """Whether a folder is an array or a group; empty of others."""
    raw = bucket.get("zarr.json")
    if raw is not None:
        said = parsed(raw.tobytes())
        return str(said.get("node_type", "")) if isinstance(said, dict) else ""
    return next((_KINDS[name] for name in (".zarray", ".zgroup") if bucket.get(name) is not None), "")
