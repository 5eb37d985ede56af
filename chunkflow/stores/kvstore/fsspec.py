"""Objects of a zarr array in a remote store, fetched and put by many threads. Requests are retried.

Zarr itself fetches and decodes on one event loop, and gives up at the first error.
"""

from __future__ import annotations

import contextlib
import errno
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeGuard

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore

from chunkflow.errors import ArgumentError, ReadError, SourceNotFoundError
from chunkflow.stores.identity import Facts
from chunkflow.stores.kvstore.protocol import ChunkError
from chunkflow.stores.kvstore.retries import again
from chunkflow.stores.paths import listed

SENT = 2.0
"""Memory for sending an object, as a multiple of its bytes: it is assembled, and copied by the file system."""

BEYOND = 416
"""HTTP's status for a range that lies beyond the end of an object (RFC 9110, section 15.5.17)."""

_ALL = OffsetByteRequest(0)
"""A range: without one s3fs first asks for the size, and looks for a folder if there is no object."""


class Bucket:
    """The objects of a store under a prefix."""

    gap = 128 << 10

    def __init__(self, store: FsspecStore, prefix: str) -> None:
        self.path, self._store, self._prefix = prefix, store, f"{prefix}/" if prefix else ""
        self._ranges, self._lock = True, threading.Lock()
        self._whole: tuple[str, np.ndarray] | None = None

    def fetch(self, name: str, check: Callable[[int], None], out: np.ndarray | None = None) -> np.ndarray:
        raw = _there(self.get(name), name)
        check(len(raw))
        if out is None:
            return raw
        out[...] = raw
        return out

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[_Key]:
        yield _Key(self, name)

    def put(self, name: str, write: Callable[[BinaryIO], bool]) -> None:
        """See `Objects.put`: a store shows an object when it has received all of it."""
        file = io.BytesIO()
        if not write(file):
            self.remove(name)
            return
        found = cpu.Buffer.from_bytes(file.getbuffer())
        again(lambda: sync(self._store.set(self._prefix + name, found)))

    def remove(self, name: str) -> None:
        # The store's own `delete` would take a bracket in the path for a pattern.
        path = f"{self._store.path}/{self._prefix}{name}"
        with contextlib.suppress(FileNotFoundError, KeyError):
            try:
                again(lambda: sync(self._store.fs._rm_file(path)))
            except NotImplementedError as error:
                raise ChunkError("its file system cannot remove objects (that of http can't)") from error

    def facts(self, name: str) -> Facts:
        """What the server tells of an object, as one request answers it."""
        files = self._store.fs
        return facts_of(files, f"{self._store.path}/{self._prefix}{name}", lambda: self.get(name) is None)

    def absent(self, name: str) -> None:
        """See `Objects.absent`: no server tells what it had."""

    def names(self) -> list[str]:
        """Names of all objects; none where they cannot be listed."""

        async def listed() -> list[str]:
            return [key.removeprefix(self._prefix) async for key in self._store.list_prefix(self._prefix)]

        self._store.fs.invalidate_cache()
        try:
            return again(lambda: sync(listed()))
        except (FileNotFoundError, NotImplementedError):
            return []

    def folders(self, most: int) -> list[str]:
        """Names of folders, at most so many; none where they cannot be listed. Some may be objects."""

        async def listed() -> list[str]:
            found: list[str] = []
            async for name in self._store.list_dir(self.path):
                if len(found) == most:
                    break
                if not name.startswith(".") and not name.endswith(".json"):
                    found.append(name.strip("/"))
            return found

        self._store.fs.invalidate_cache()
        try:
            return again(lambda: sync(listed()))
        except (FileNotFoundError, NotImplementedError):
            return []

    def get(self, name: str, wanted: ByteRequest = _ALL) -> np.ndarray | None:
        """Bytes of an object; None where there is none."""
        found = again(lambda: sync(self._store.get(self._prefix + name, default_buffer_prototype(), wanted)))
        return None if found is None else np.frombuffer(found.as_numpy_array(), np.uint8)

    def part(self, name: str, start: int, length: int) -> np.ndarray:
        """Bytes of a part of an object; fewer if it ends before."""
        if self._ranges:
            wanted = SuffixByteRequest(length) if start < 0 else RangeByteRequest(start, start + length)
            raw = _there(self.get(name, wanted), name)
            if len(raw) <= length:
                return raw
            self._ranges = False
        # The server answers any request with all of an object. Whatever their number, one at a time is kept.
        with self._lock:
            if self._whole is None or self._whole[0] != name:
                self._whole = name, _there(self.get(name), name)
            raw = self._whole[1]
        return raw[start:][:length]


class _Key:
    """An object whose parts are fetched when they are read."""

    size = stamp = None

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._bucket, self._name = bucket, name

    def read(self, start: int, length: int, out: np.ndarray | None = None) -> np.ndarray:
        try:
            raw = self._bucket.part(self._name, start, length)
        except Exception as error:
            if getattr(error, "status", None) != BEYOND:
                raise
            raise ChunkError(f"truncated: {length} bytes from byte {start} on are beyond its end ({error})") from error
        if len(raw) != length:
            raise ChunkError(f"truncated: {len(raw)} bytes, where {length} were asked for from byte {start}")
        if out is None:
            return raw
        out[...] = raw
        return out


_TOLD = {
    "size": ("size",),
    "etag": ("ETag", "etag"),
    "modified": ("LastModified", "Last-Modified", "last_modified", "mtime", "updated"),
}
"""What is known of an object, and how file systems call it."""


def facts_of(files: Any, path: str, is_gone: Callable[[], bool]) -> Facts:
    """What a file system tells of an object; nothing if it is not there, or if nobody can tell.

    That of http takes every failure for a missing object. So `is_gone` is asked, too.
    """
    files.invalidate_cache()
    try:
        found = again(lambda: sync(files._info(path)))
    except FileNotFoundError:
        with contextlib.suppress(Exception):  # it does not answer at all
            return {} if is_gone() else {"there": 1}
        return {"there": 1}
    except Exception:  # it answers no such request
        return {"there": 1}
    told = {name: found[key] for name, keys in _TOLD.items() for key in keys if found.get(key) is not None}
    return {"there": 1} | {name: value if isinstance(value, int) else str(value) for name, value in told.items()}


def facts_of_url(url: str) -> Facts:
    """The same of an object behind a URL."""
    folder, _, name = url.rpartition("/")
    return Bucket(open_store(folder, read_only=True), "").facts(name)


def _there(raw: np.ndarray | None, name: str) -> np.ndarray:
    if raw is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", name)
    return raw


def is_remote(store: Any) -> TypeGuard[FsspecStore]:
    """Whether a store is remote, as far as that is known."""
    return isinstance(store, FsspecStore)


def url_of(store: Any, path: str) -> str:
    """URL of an array in a remote store, however the store was opened."""
    files = getattr(store.fs, "sync_fs", store.fs)  # a file system that zarr has wrapped
    protocol = files.protocol if isinstance(files.protocol, str) else files.protocol[0]
    place = store.path.split("://", 1)[-1].lstrip("/")
    return f"{protocol}://{place}/{path}".rstrip("/")


def open_store(url: str, *, read_only: bool = False) -> FsspecStore:
    """The store behind a URL; `ArgumentError` if fsspec, or what it needs for the protocol, is not installed."""
    try:
        return FsspecStore.from_url(url, read_only=read_only)
    except (ImportError, ValueError) as error:
        raise ArgumentError(
            f"{url} cannot be opened: {error}. Remote arrays need fsspec and what it asks for: "
            "pip install 'chunkflow-stream[remote]', and s3fs or gcsfs for buckets"
        ) from error


def open_url(url: str) -> zarr.Array[Any]:
    """The zarr array behind a URL.

    Raises
    ------
    ArgumentError
        The URL cannot be opened, or is a group's.
    SourceNotFoundError
        There is no zarr array.
    ReadError
        The server does not answer.
    """
    store = open_store(url, read_only=True)
    try:
        return again(lambda: zarr.open_array(store, mode="r"))
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"there is no zarr array at {url}{_others(url)}") from error
    except Exception as error:
        if "group" in str(error):  # the kind of error differs with the format, and from release to release
            raise ArgumentError(f"{url} is a zarr group: add the name of one of its arrays{_members(url)}") from error
        raise ReadError(f"cannot open the zarr array at {url}: {error}", path=url, cause=error) from error


def _others(url: str) -> str:
    """What the group has that an array should be in, as the end of a sentence; empty if that is not known."""
    above, _, name = url.rstrip("/").rpartition("/")
    return f", which would be {name!r} of a zarr group{found}" if (found := _members(above)) else ""


def _members(url: str) -> str:
    """Names of a group's own members, in brackets; empty if the store cannot tell."""
    with contextlib.suppress(Exception):  # an error is being told already
        names = sorted(zarr.open_group(open_store(url, read_only=True), mode="r").keys())
        return f" (its members: {listed(names)})"
    return ""
