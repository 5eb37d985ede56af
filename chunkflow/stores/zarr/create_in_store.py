"""Zarr arrays that a run creates in a group or store of the user's: in memory, in an object store, in icechunk."""

from __future__ import annotations

import contextlib
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
from chunkflow.errors import ArgumentError, OutputExistsError, ReadError, WriteError
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.kvstore.fsspec import is_remote, url_of
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.protocol import Encoder, Target
from chunkflow.stores.zarr import consolidated
from chunkflow.stores.zarr.array import ZarrSink, encoder_for
from chunkflow.stores.zarr.create_local import GROUPS, ZarrPathTarget
from chunkflow.stores.zarr.create_remote import ZarrUrlTarget
from chunkflow.stores.zarr.dimensions import fitting
from chunkflow.stores.zarr.encoding import Version, check_group, created_spec, described

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup", ".zattrs")


def store_target(where: Any, *, overwrite: bool = False, said: NewArray | None = None) -> Target:
    """Target of a new array in a group or store of zarr's: by its path or URL where it has one."""
    said = said or NewArray(where)
    place = where.store_path if isinstance(where, zarr.Group) else where
    if isinstance(where, zarr.Group) and said.name is None:
        raise ArgumentError(
            f"the output is the zarr group {where.name!r}, which holds arrays: name one, as "
            "chunkflow.NewArray(group, 'speed')"
        )
    store, above = (place.store, place.path) if isinstance(place, StorePath) else (place, "")
    path = "/".join(part for part in f"{above}/{said.name or ''}".split("/") if part)
    if store.read_only:
        raise ArgumentError(f"the output lies in {store}, which was opened read-only: open it with mode='r+'")
    said.check_format("zarr", f"in {store}")
    if said.format not in (None, "zarr"):
        raise ArgumentError(f"format={said.format!r}: the output lies in a store of zarr's")
    if isinstance(store, LocalStore):
        return ZarrPathTarget(os.path.join(store.root, path), overwrite=overwrite, said=said, within=str(store.root))
    if is_remote(store):
        return ZarrUrlTarget(url_of(store, path), overwrite=overwrite, said=said, inside=(store, path))
    return ZarrStoreTarget(store, path, said, overwrite=overwrite)


class ZarrStoreTarget:
    """A zarr array that the run creates in a store that only zarr knows.

    Its metadata are put last, with those of groups that are missing above it, so it appears when it is complete. A
    store of icechunk's takes no chunks before: there they are put first, and nobody sees anything before the user
    commits the session.
    """

    footprint: Footprint | None = None

    takes_labels = True
    fitting = staticmethod(fitting)

    def __init__(self, store: Any, path: str, said: NewArray, *, overwrite: bool = False) -> None:
        self.store, self.path, self.said = store, path, said
        self.is_transaction = type(store).__module__.partition(".")[0] == "icechunk"
        self.name = f"{type(store).__name__ if self.is_transaction else store}/{path}".rstrip("/")
        parts = path.split("/") if path else []
        self.groups = ["/".join(parts[:i]) for i in range(len(parts))]
        with translated(ReadError, f"cannot look at {self.name}", self.name):
            self._version: Version = self._look(overwrite)

    def _look(self, overwrite: bool) -> Version:
        """Refuse a place that is taken; zarr's format of the nearest group."""
        version: int | None = self.said.zarr_format
        for group in self.groups:
            kind, found = self._node(group)
            if kind == "array":
                raise ArgumentError(f"the output {self.name} would lie inside the zarr array {group!r}")
            if kind is not None:
                check_group(self.name, self.said, found)
                version = found
        if self._node(self.path)[0] is not None or self._is_taken():
            raise (ArgumentError if overwrite else OutputExistsError)(
                f"{self.name} exists, and is not replaced in a store of this kind: remove it, or give the zarr.Array "
                "itself to write into it"
            )
        return 2 if version == 2 else 3

    def _is_taken(self) -> bool:
        """Whether there are chunks without metadata, which icechunk has not."""

        async def any_key() -> bool:
            async for _ in self.store.list_prefix(f"{self.path}/" if self.path else ""):
                return True
            return False

        return not self.is_transaction and bool(self.store.supports_listing and sync(any_key()))

    def _node(self, path: str) -> tuple[str | None, int]:
        """What lies there, and its format."""
        if (found := self.get(f"{path}/zarr.json")) is not None:
            return str(json.loads(found)["node_type"]), 3
        for name, kind in ((".zarray", "array"), (".zgroup", "group")):
            if self.get(f"{path}/{name}") is not None:
                return kind, 2
        return None, 0

    def get(self, key: str) -> bytes | None:
        """A document; None where there is none."""
        found = sync(self.store.get(key.lstrip("/"), default_buffer_prototype()))
        return None if found is None else found.to_bytes()

    def put(self, key: str, document: bytes) -> None:
        """Put a document."""
        sync(self.store.set(key.lstrip("/"), cpu.Buffer.from_bytes(document)))

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        spec = created_spec(self.name, shape, dtype, chunks, self.said, self._version)
        return spec.with_storage(how="through zarr", copies=3.0, raw=False, separate=False)

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        return encoder_for(described(spec, self.said, self._version))

    def open(self, spec: ArraySpec) -> ZarrStoreSink:
        return ZarrStoreSink(self, spec)

    def documents(self, spec: ArraySpec) -> tuple[Any, dict[str, bytes]]:
        """The array, and what describes it and the missing groups above it, the outermost first."""
        made = described(spec, self.said, self._version)
        found: dict[str, bytes] = {}
        for group in self.groups:
            if self._node(group)[0] is None:
                name, text = GROUPS[self._version]
                found[f"{group}/{name}".lstrip("/")] = json.dumps(text).encode()
        for name in reversed(_DOCUMENTS):  # what makes it an array comes last
            document = sync(made.store.get(name, default_buffer_prototype()))
            if document is not None:
                found[f"{self.path}/{name}".lstrip("/")] = document.to_bytes()
        return zarr.Array(zarr.AsyncArray(made.metadata, StorePath(self.store, self.path))), found


class ZarrStoreSink:
    """A zarr array in a store whose chunks are being put, and whose metadata are not."""

    def __init__(self, target: ZarrStoreTarget, spec: ArraySpec) -> None:
        self.spec, self._target = spec, target
        self._put: list[str] = []
        self._is_over = False
        with translated(WriteError, f"cannot create {target.name}", target.name, self.abort):
            self._array, self._documents = target.documents(spec)
            if target.is_transaction:
                self._describe()
        self._sink = ZarrSink(self._array, spec)

    def _describe(self) -> None:
        for key, document in self._documents.items():
            self._put.append(key)
            self._target.put(key, document)

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(region, block)

    def commit(self) -> Any:
        target = self._target
        with translated(WriteError, f"cannot finish {target.name}", target.name, self.abort):
            if not target.is_transaction:
                if target._node(target.path)[0] is not None:
                    raise OutputExistsError(
                        f"another program made {target.name} while it was written: run again, with another output"
                    )
                self._describe()
            for group in reversed(target.groups):
                member = target.path.removeprefix(group).strip("/")
                consolidated.renew(
                    lambda name, group=group: target.get(f"{group}/{name}"),  # type: ignore[misc]
                    partial(self._renew, group),
                    member,
                )
        self._is_over = True
        return self._array

    def _renew(self, group: str, name: str, document: bytes) -> None:
        self._target.put(f"{group}/{name}", document)

    def abort(self) -> None:
        """See `Sink.abort`. Nothing lay there before."""
        if self._is_over:
            return
        self._is_over = True
        target = self._target
        with contextlib.suppress(Exception):
            for key in reversed(self._put):
                sync(target.store.delete(key))
        with contextlib.suppress(Exception):
            sync(target.store.delete_dir(target.path))
