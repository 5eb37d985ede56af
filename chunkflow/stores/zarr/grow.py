"""Zarr arrays that are there: a part of one is written, or elements are added at its end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from functools import partial
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, StorePath

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ReadError, WriteError
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.kvstore.folder import append, put
from chunkflow.stores.protocol import Source, Target
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.views.part import PartSink, PartTarget
from chunkflow.stores.zarr import consolidated
from chunkflow.stores.zarr.array import METADATA, ZarrSource, ZarrTarget, open_zarr, open_zarr_url
from chunkflow.stores.zarr.create_local import ZarrPathTarget
from chunkflow.stores.zarr.create_remote import ZarrUrlTarget


def existing_target(said: ExistingArray) -> Target:
    """Target of what is said of a zarr array that is there."""
    array = _opened(said)
    if said.append is not None:
        return AppendTarget(array, said)
    return _part(array, said.bounds(tuple(array.shape), ZarrTarget(array).name))


def _part(array: Any, region: Region) -> PartTarget:
    target = ZarrTarget(array)
    spec = target.describe(tuple(array.shape), np.dtype(np.bool_), None)
    document = METADATA[array.metadata.zarr_format == 2]
    file = os.path.join(array.store.root, array.path, document) if isinstance(array.store, LocalStore) else None
    return PartTarget(target, region, spec, partial(_source, array), ExistingArray(array, region=region), file)


def _opened(said: ExistingArray) -> Any:
    """The array, open for writing. What its metadata name is checked before zarr sees it."""
    if said.path is None:
        return said.where
    path = said.path.removeprefix("file://")
    with translated(ReadError, f"cannot open {path}", path, foreign=OSError):
        if "://" in path:
            open_zarr_url(path).close()
            place = ZarrUrlTarget(path, overwrite=True)
            return zarr.open_array(StorePath(place.store, place.path), mode="r+")
        open_zarr(path).close()
        return zarr.open_array(os.path.realpath(path), mode="r+")


def _source(array: Any) -> Source:
    """What reads chunks that are changed in part: it knows that the run itself changes them."""
    source = ZarrSource(array)
    if source.guard is not None:
        source.guard.release()
    return source


class AppendTarget:
    """The end of a zarr array along an axis.

    Chunks are written under the names that they have in the longer array. Readers of the old one look at none of them
    but those that its end cuts, and there at the old elements, which are written with the new ones. Then the length is
    put. A run that fails removes what lies beyond the old end; one that is killed leaves it, where nobody looks, and
    the next one writes over it.
    """

    def __init__(self, array: Any, said: ExistingArray) -> None:
        self._array, self._said = array, said
        self.store, self.path = array.store, array.path
        known = ZarrTarget(array)
        self.name, self.writes = known.name, known.writes
        self.footprint: Footprint | None = known.footprint
        said.axis(len(array.shape), self.name)

    def grown(self, shape: Shape) -> tuple[Any, Region]:
        """The array with its new shape, and where the result goes."""
        new, region = self._said.grown(tuple(self._array.shape), tuple(shape), self.name)
        metadata = self._array.metadata.update_shape(new)
        config = getattr(self._array, "config", None)
        return zarr.Array(zarr.AsyncArray(metadata, self._array.store_path, config=config)), region

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return self._part(shape).describe(shape, dtype, chunks)

    def _part(self, shape: Shape) -> PartTarget:
        return _part(*self.grown(shape))

    def shared(self, shape: Shape) -> ExistingArray | None:
        """See `PartTarget.shared`."""
        return self._part(shape).shared(shape)

    def open(self, spec: ArraySpec) -> AppendSink:
        return AppendSink(self, self._part(spec.shape), spec)

    @property
    def document(self) -> str:
        """Key of the metadata that have the shape."""
        return f"{self.path}/{METADATA[self._array.metadata.zarr_format == 2]}".lstrip("/")

    def get(self, key: str) -> bytes | None:
        """A document; None where there is none."""
        found = sync(self.store.get(key.lstrip("/"), default_buffer_prototype()))
        return None if found is None else found.to_bytes()

    def put(self, key: str, document: bytes) -> None:
        """Put a document in the place of another, in one step."""
        if isinstance(self.store, LocalStore):
            put(os.path.join(self.store.root, key.lstrip("/")), lambda file: append(file, document) >= 0)
        else:
            sync(self.store.set(key.lstrip("/"), cpu.Buffer.from_bytes(document)))

    @property
    def shape(self) -> Shape:
        """The shape of the array when it was opened."""
        return tuple(self._array.shape)


class AppendSink:
    """Sink of an `AppendTarget`."""

    def __init__(self, target: AppendTarget, part: PartTarget, spec: ArraySpec) -> None:
        self.spec, self._target, self._is_longer = spec, target, False
        self._claim: Claim | None = None
        with translated(WriteError, f"cannot write to {target.name}", target.name, self._end):
            if isinstance(target.store, LocalStore):
                self._claim = Claim(*ZarrPathTarget(target.name, overwrite=True).claimed, overwrite=True)
                self._claim.say({"added": {}})  # a chunk may be left that a thread was writing
            self._check()
            self._array, self._region = target.grown(spec.shape)
            self._sink: PartSink = part.open(spec)

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(region, block)

    def _check(self) -> dict[str, Any]:
        """The metadata, which must still say what they said."""
        target = self._target
        found: dict[str, Any] = json.loads(target.get(target.document) or b"{}")
        if tuple(found.get("shape", ())) != target.shape:
            raise ArgumentError(
                f"{target.name} has another shape now, {found.get('shape')}, than when it was opened, {target.shape}: "
                "open it again"
            )
        return found

    def commit(self) -> Any:
        target = self._target
        with translated(WriteError, f"cannot finish {target.name}", target.name, self.abort):
            self._sink.commit()
            document = self._check() | {"shape": list(self._array.shape)}
            target.put(target.document, json.dumps(document, indent=2).encode())
            self._is_longer = True
            self._renew()
        self._end()
        return self._array

    def _renew(self) -> None:
        """Put the new length into consolidated metadata of the groups above."""
        target = self._target
        if isinstance(target.store, LocalStore):
            for group in reversed(ZarrPathTarget(target.name, overwrite=True).groups):
                consolidated.renew_local(group, os.path.relpath(target.name, group))
            return
        parts = target.path.split("/") if target.path else []
        for i in reversed(range(len(parts))):
            group = "/".join(parts[:i])
            consolidated.renew(partial(self._get, group), partial(self._put, group), "/".join(parts[i:]))

    def _get(self, group: str, name: str) -> bytes | None:
        return self._target.get(f"{group}/{name}")

    def _put(self, group: str, name: str, document: bytes) -> None:
        self._target.put(f"{group}/{name}", document)

    def _shorten(self) -> None:
        """Put the old length back, where another output of the call has failed."""
        target = self._target
        found = json.loads(target.get(target.document) or b"{}")
        if found.get("shape") != list(self._array.shape):
            raise WriteError(
                f"another program changed the length of {target.name} during the run, so the old length is not put "
                "back",
                path=target.name,
            )
        target.put(target.document, json.dumps(found | {"shape": list(target.shape)}, indent=2).encode())
        self._renew()

    def abort(self) -> None:
        """See `Sink.abort`: chunks beyond the old end are removed."""
        with contextlib.suppress(Exception):
            self._sink.abort()
        with contextlib.suppress(Exception):
            if self._is_longer:
                self._shorten()
            sides = tuple(self._array.shards or self._array.chunks)
            old = [-(-n // side) for n, side in zip(self._target.shape, sides, strict=True)]
            new = [-(-n // side) for n, side in zip(self._array.shape, sides, strict=True)]
            added = [range(a if a < b else 0, b) for a, b in zip(old, new, strict=True)]
            if any(a < b for a, b in zip(old, new, strict=True)):
                for index in itertools.product(*added):
                    key = f"{self._target.path}/{self._array.metadata.encode_chunk_key(index)}".lstrip("/")
                    sync(self._target.store.delete(key))
        self._end()

    def _end(self) -> None:
        if self._claim is not None:
            self._claim.end()
