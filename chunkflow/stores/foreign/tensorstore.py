"""Arrays that tensorstore has opened, as sources and targets: N5, neuroglancer's, zarr in its database, and others."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.errors import ArgumentError
from chunkflow.stores.checks import ExistingTarget, numeric_dtype
from chunkflow.stores.failures import unwritten
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.foreign.generic import GenericSource


class TensorStoreSource(GenericSource):
    """A `tensorstore.TensorStore`, read by as many threads as the run has: the library takes care of that."""

    def __init__(self, store: Any) -> None:
        name = _name(store)
        if not store.readable:
            raise ArgumentError(f"{name} was opened for writing only: open it with read=True")
        self._obj, self._lock = _from_zero(store), nullcontext()
        self.spec = _spec(self._obj, name, lambda layout: layout.read_chunk.shape)
        self.footprint: Footprint | None = _footprint(store)

    def _get(self, region: Region) -> Any:
        return self._obj[region].read().result()


class TensorStoreTarget(ExistingTarget):
    """A `tensorstore.TensorStore` of the user's."""

    def __init__(self, store: Any) -> None:
        self.name = _name(store)
        if not store.writable:
            raise ArgumentError(f"the output {self.name} was opened read-only: open it with write=True")
        self._store = store
        self._spec = _spec(_from_zero(store), self.name, lambda layout: layout.write_chunk.shape)
        self.footprint: Footprint | None = _footprint(store)

    def open(self, spec: ArraySpec) -> TensorStoreSink:
        return TensorStoreSink(self._store, spec)


class TensorStoreSink:
    """A `tensorstore.TensorStore` that is being written."""

    def __init__(self, store: Any, spec: ArraySpec) -> None:
        self._store, self._zero, self.spec = store, _from_zero(store), spec

    def write(self, region: Region, block: np.ndarray) -> None:
        try:
            # It converts no dtypes that may lose something, which the target has allowed.
            self._zero[region].write(block.astype(self.spec.dtype, copy=False)).result()
        except Exception as error:
            raise unwritten(region, self.spec.name, error) from error

    def commit(self) -> Any:
        return self._store

    def abort(self) -> None:
        """See `Sink.abort`: what was written stays, as in any assignment that fails half-way."""


def _from_zero(store: Any) -> Any:
    """The array with indices that begin at 0: tensorstore's may begin anywhere."""
    return store.translate_to[(0,) * store.rank] if store.rank else store


def _url(store: Any) -> str:
    """Where it lies; empty for an array in memory that lies nowhere."""
    place = store.kvstore
    if place is None:
        return ""
    try:
        return str(place.url)
    except ValueError:  # a relative path
        return f"file://{os.path.abspath(place.path)}"


def _name(store: Any) -> str:
    return f"TensorStore {_url(store)}".rstrip()


def _spec(store: Any, name: str, chunk: Callable[[Any], Any]) -> ArraySpec:
    shape: Shape = tuple(int(n) for n in store.shape)
    url, sides = _url(store), chunk(store.chunk_layout)
    chunks = tuple(max(1, int(side or n)) for side, n in zip(sides, shape, strict=True)) if url and sides else None
    storage = Storage(how="through tensorstore", remote=not url.startswith(("file:", "memory:")) and bool(url))
    return ArraySpec(name, shape, numeric_dtype(store.dtype.numpy_dtype, name), chunks=chunks, storage=storage)


def _footprint(store: Any) -> Footprint:
    """Footprint that is equal for two handles of the same elements. A zarr array's is in the place of that array."""
    url = _url(store)
    if not url:
        return Footprint(("object", id(store)), 0, 1, None)
    told = store.spec().to_json()
    zarr = url.startswith("file://") and told["driver"] in ("zarr", "zarr2", "zarr3")
    space = ("zarr", os.path.realpath(url.removeprefix("file://"))) if zarr else ("tensorstore", url)
    return Footprint(space, 0, 1, ("tensorstore", str(told.get("transform"))))
