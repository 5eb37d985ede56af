"""Chunks of a zarr array behind a network: fetched as they are by many threads, and decoded straight into their places.

Zarr fetches and decodes on one event loop and gives up at the first error; here a request that fails for a while is
made again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore

from chunkflow.errors import ArgumentError, ReadError, SourceNotFoundError
from chunkflow.grid import Region, Shape
from chunkflow.stores.retries import again
from chunkflow.stores.zarrchain import Chain
from chunkflow.stores.zarrchunks import touched
from chunkflow.stores.zarrfiles import named


@dataclass(frozen=True)
class RemoteChunks:
    """An array's chunks under `prefix` of a store: `key` names each, `chain` says what is in it."""

    store: Any
    prefix: str
    key: Callable[[Shape], str]
    chain: Chain

    def __str__(self) -> str:
        return f"{self.chain}, fetched"

    def read(self, region: Region, out: np.ndarray) -> None:
        """Fill `out` with a region."""
        for index, inner, place in touched(region, self.chain.shape):
            name = self.key(index)
            raw = again(lambda name=name: self._fetch(name))  # type: ignore[misc]
            if raw is None:
                out[place] = self.chain.fill
                continue
            with named(f"chunk {name}"):
                self.chain.decode(raw, inner, out[place])

    def write(self, region: Region, block: np.ndarray) -> bool:
        """Writing is zarr's affair."""
        return False

    def _fetch(self, name: str) -> np.ndarray | None:
        key = f"{self.prefix}/{name}" if self.prefix else name
        found = sync(self.store.get(key, default_buffer_prototype()))
        return None if found is None else np.frombuffer(found.as_numpy_array(), np.uint8)


def is_remote(store: Any) -> bool:
    """Whether what a store gives comes over a network, for all that is known."""
    return isinstance(store, FsspecStore)


def url_of(store: Any, path: str) -> str:
    """URL of an array in a remote store, whichever way that was opened."""
    files = getattr(store.fs, "sync_fs", store.fs)  # a file system that zarr has wrapped
    protocol = files.protocol if isinstance(files.protocol, str) else files.protocol[0]
    place = store.path.split("://", 1)[-1].lstrip("/")
    return f"{protocol}://{place}/{path}".rstrip("/")


def open_url(url: str) -> zarr.Array[Any]:
    """The zarr array behind a URL, for any protocol that fsspec knows.

    Raises
    ------
    ArgumentError
        fsspec, or what it needs for the protocol, is not installed; or there is a group.
    SourceNotFoundError
        There is no zarr array.
    ReadError
        The server does not answer.
    """
    try:
        store = FsspecStore.from_url(url, read_only=True)
    except (ImportError, ValueError) as error:
        raise ArgumentError(
            f"{url} cannot be opened: {error}. Remote arrays need fsspec and what it asks for: "
            "pip install 'chunkflow-stream[remote]', and s3fs or gcsfs for buckets"
        ) from error
    try:
        return again(lambda: zarr.open_array(store, mode="r"))
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"there is no zarr array at {url}") from error
    except Exception as error:
        if "group" in str(error):  # the kind of error differs with the format, and from release to release
            raise ArgumentError(f"{url} is a zarr group: add the name of one of its arrays") from error
        raise ReadError(f"cannot open the zarr array at {url}: {error}", path=url, cause=error) from error
