"""Objects of a zarr array in a remote store, fetched and put by many threads. Requests are retried.

Zarr itself fetches and decodes on one event loop, and gives up at the first error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import io
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import wait
from typing import Any, BinaryIO, TypeGuard, TypeVar

import numpy as np
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import _get_loop, sync
from zarr.storage import FsspecStore

from chunkflow.errors import ArgumentError, hidden
from chunkflow.stores.identity import Facts
from chunkflow.stores.kvstore import http
from chunkflow.stores.kvstore.http import TooLongError, fetched, is_http, told, url_at
from chunkflow.stores.kvstore.protocol import ChunkError
from chunkflow.stores.kvstore.retries import again
from chunkflow.system import interrupts

MOST = 4 << 20
"""Most bytes of an object of which nothing is known: of metadata."""

LISTED = 256 << 20
"""Bytes of a list of all objects, for the time that it may take."""

POLL = 0.2
"""Seconds between two looks at whether a request was given up."""

T = TypeVar("T")

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
        self.most = MOST
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
        again(lambda: sync(timed(self._store.set(self._prefix + name, found), len(found))))

    def create(self, name: str, raw: bytes) -> bool:
        """Put an object that is not there. False if it is, which stores with conditional requests know for certain."""
        path, files = f"{self._store.path}/{self._prefix}{name}", self._store.fs
        try:
            again(lambda: sync(timed(files._pipe_file(path, raw, mode="create"), len(raw))))
        except (NotImplementedError, TypeError):  # it has no such requests
            if self.get(name) is not None:
                return False
            again(lambda: sync(timed(files._pipe_file(path, raw), len(raw))))
        except Exception:
            if self.get(name) is None:
                raise
            return False
        return True

    def remove(self, name: str) -> None:
        # The store's own `delete` would take a bracket in the path for a pattern.
        path = f"{self._store.path}/{self._prefix}{name}"
        with contextlib.suppress(FileNotFoundError, KeyError):
            try:
                again(lambda: sync(timed(self._store.fs._rm_file(path))))
            except NotImplementedError as error:
                raise ChunkError(
                    "its file system cannot remove objects (that of http can't): write to a path, or to a bucket's URL"
                ) from error

    def facts(self, name: str) -> Facts:
        """What the server tells of an object, as one request answers it."""
        files, key = self._store.fs, self._prefix + name
        path = url_at(self._store.path, key) if is_http(files) else f"{self._store.path}/{key}"
        return facts_of(files, path, lambda: self.get(name) is None)

    def absent(self, name: str) -> None:
        """See `Objects.absent`: no server tells what it had."""

    def names(self) -> list[str]:
        """Names of all objects; none where they cannot be listed."""

        async def listed() -> list[str]:
            return [key.removeprefix(self._prefix) async for key in self._store.list_prefix(self._prefix)]

        self._store.fs.invalidate_cache()
        try:
            return again(lambda: sync(timed(listed(), MOST)))
        except (FileNotFoundError, NotImplementedError):
            return []

    def digest(self) -> str | None:
        """Digest of what the server tells of all objects as it lists them, their ETags or times among it.

        None where it does not tell that, or lists none: HTTP has no listing. A request lists some thousand objects.
        """
        files, sha = self._store.fs, hashlib.sha256()
        if is_http(files):
            return None
        files.invalidate_cache()
        path = f"{self._store.path}/{self._prefix}".rstrip("/")
        try:
            found = again(lambda: sync(timed(files._find(path, detail=True), LISTED)))
        except (FileNotFoundError, NotImplementedError):
            return None
        for name, info in sorted(found.items()):
            known = _known(info)
            if known.keys().isdisjoint(("etag", "modified")):
                return None
            sha.update(json.dumps([name, known]).encode())
        return sha.hexdigest()

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
            return again(lambda: sync(timed(listed(), MOST)))
        except (FileNotFoundError, NotImplementedError):
            return []

    def get(self, name: str, wanted: ByteRequest = _ALL, most: int | None = None) -> np.ndarray | None:
        """Bytes of an object; None where there is none. `TooLongError` if it has more bytes than an object may have."""
        most = self.most if most is None else most
        found = again(lambda: waited(get_object(self._store, self._prefix + name, wanted, most)))
        return None if found is None else np.frombuffer(found, np.uint8)

    def part(self, name: str, start: int, length: int) -> np.ndarray:
        """Bytes of a part of an object; fewer if it ends before."""
        if self._ranges:
            wanted = SuffixByteRequest(length) if start < 0 else RangeByteRequest(start, start + length)
            try:
                return _there(self.get(name, wanted, length), name)
            except TooLongError:
                self._ranges = False
        # The server answers any request with all of an object. Whatever their number, one at a time is kept.
        with self._lock:
            if self._whole is None or self._whole[0] != name:
                self._whole = name, _there(self.get(name), name)
            raw = self._whole[1]
        return raw[start:][:length]


async def get_object(store: FsspecStore, key: str, wanted: ByteRequest | None, most: int) -> Any:
    """Bytes of an object, or of the range that is wanted; None where there is none, `TooLongError` beyond `most`."""
    if is_http(store.fs):
        return await fetched(store.fs, url_at(store.path, key), _range(wanted), most)
    if wanted is None or wanted == _ALL:
        wanted = RangeByteRequest(0, most + 1)
    found = await timed(store.get(key, default_buffer_prototype(), wanted), most)
    if found is None:
        return None
    if len(found) > most:
        raise TooLongError(f"it has more than the {most} bytes that it may have")
    return found.as_numpy_array()


async def timed(request: Coroutine[Any, Any, T], nbytes: int = 0) -> T:
    """Await a request in which so many bytes travel; a `TimeoutError` if it takes too long."""
    try:
        async with asyncio.timeout(http.CONNECTING + http.SILENCE + nbytes / http.SLOWEST):
            return await request
    except TimeoutError:
        raise TimeoutError("the server does not answer in time") from None


def _range(wanted: ByteRequest | None) -> str | None:
    """A range in the words of HTTP; None for all of an object."""
    if isinstance(wanted, RangeByteRequest):
        return f"bytes={wanted.start}-{wanted.end - 1}"
    if isinstance(wanted, SuffixByteRequest):
        return f"bytes=-{wanted.suffix}"
    return f"bytes={wanted.offset}-" if isinstance(wanted, OffsetByteRequest) and wanted.offset else None


def waited(request: Coroutine[Any, Any, T]) -> T:
    """Result of a request on zarr's event loop, where its stores' connections are. A Ctrl-C ends it."""
    future = asyncio.run_coroutine_threadsafe(request, _get_loop())
    try:
        while not wait([future], timeout=POLL).done:
            if interrupts.pending():
                raise ChunkError("it was given up after Ctrl-C")
        return future.result()
    finally:
        future.cancel()


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
    "modified": ("created", "LastModified", "Last-Modified", "last_modified", "mtime", "updated"),
}
"""What is known of an object, and how file systems call it: of several the last."""


def facts_of(files: Any, path: str, is_gone: Callable[[], bool]) -> Facts:
    """What a file system tells of an object; nothing if it is not there, or if nobody can tell.

    Some take every failure for a missing object. So `is_gone` is asked, too.
    """
    files.invalidate_cache()
    try:
        found = again(lambda: waited(told(files, path) if is_http(files) else timed(files._info(path))))
    except FileNotFoundError:
        with contextlib.suppress(Exception):  # it does not answer at all
            return {} if is_gone() else {"there": 1}
        return {"there": 1}
    except Exception:  # it answers no such request
        return {"there": 1}
    return {"there": 1, **_known(found)}


def _known(info: Mapping[str, Any]) -> Facts:
    """What is known of an object by what a file system says of it."""
    known = {name: info[key] for name, keys in _TOLD.items() for key in keys if info.get(key) is not None}
    return {name: value if isinstance(value, int) else str(value) for name, value in known.items()}


def facts_of_url(url: str) -> Facts:
    """The same of an object behind a URL."""
    place, mark, query = url.partition("?")
    folder, _, name = place.rpartition("/")
    return Bucket(open_store(f"{folder}{mark}{query}", read_only=True), "").facts(name)


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
    return hidden(f"{protocol}://{place}/{path}".rstrip("/"))


def open_store(url: str, *, read_only: bool = False) -> FsspecStore:
    """The store behind a URL; `ArgumentError` if fsspec, or what it needs for the protocol, is not installed."""
    try:
        return FsspecStore.from_url(url, read_only=read_only)
    except (ImportError, ValueError) as error:
        raise ArgumentError(
            f"{hidden(url)} cannot be opened: {hidden(str(error))}. Remote arrays need fsspec and what it asks for: "
            "pip install 'chunkflow-stream[remote]', and s3fs or gcsfs for buckets"
        ) from error
