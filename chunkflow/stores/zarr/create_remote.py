"""Zarr arrays that a run creates at a URL.

An object store has no rename, but shows an object only when all of it has come. So chunks are put under their final
keys, where nobody looks for them, and the metadata last: that one object makes the array appear. An array that is
replaced has its chunks under keys of another kind (``c/0/1`` or ``0.1``), and is there, whole, until its metadata are
replaced in the same way.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, OutputExistsError, ReadError, WriteError, hidden
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.kvstore.folder import append
from chunkflow.stores.kvstore.fsspec import Bucket, open_store
from chunkflow.stores.new_array import NewArray
from chunkflow.stores.paths import existing
from chunkflow.stores.publication.settle import Left, beside
from chunkflow.stores.zarr import consolidated, dimensions
from chunkflow.stores.zarr.array import METADATA, ZarrSink
from chunkflow.stores.zarr.create_local import GROUPS
from chunkflow.stores.zarr.dimensions import fitting
from chunkflow.stores.zarr.encoding import Version, check_group, created_spec, described, dimensions_of
from chunkflow.stores.zarr.remote_claim import (
    CALL,
    KEYS,
    OWN,
    Maker,
    RemoteClaim,
    forget,
    has_begun,
    has_published,
    left,
    refuse,
    told,
)

_METADATA = "zarr.json"
_ENCODINGS = ({"name": "default", "separator": "/"}, {"name": "v2", "separator": "."})
_REQUESTS = 16


class ZarrUrlTarget:
    """A zarr array that the run creates at a URL: it appears when its metadata are put, after all of its chunks.

    Names above it that end in ``.zarr``, and what lies below the outermost of these, are made groups when the array
    appears, where there is none: ``"s3://bucket/result.zarr/speed"`` is a member of ``result.zarr``. Of an array that
    is given by a store and a path `inside` of it, the store's root is the outermost group. An array of format 2
    replaces nothing: its chunks would have the old one's names. A process that is killed leaves chunks behind, which
    the next run removes.
    """

    footprint: Footprint | None = None

    takes_labels = True
    fitting = staticmethod(fitting)

    def __init__(
        self,
        url: str,
        *,
        overwrite: bool = False,
        said: NewArray | None = None,
        inside: tuple[Any, str] | None = None,
    ) -> None:
        self.name, self.said = hidden(url.rstrip("/")), said or NewArray(url)
        if inside is not None:
            self.store, self.path = inside
            names = [name for name in self.path.split("/") if name]
        else:
            names = url.rstrip("/").split("/")
            above = [i for i, name in enumerate(names[:-1], 1) if name.endswith(".zarr")]
            root = above[0] if above else len(names)
            self.store, self.path = open_store("/".join(names[:root])), "/".join(names[root:])
            names = names[root:]
        self.groups = [Bucket(self.store, "/".join(names[:i])) for i in range(len(names))]
        self.bucket, self.overwrite = Bucket(self.store, self.path), overwrite
        found: int | None = self.said.zarr_format
        for group in self.groups:
            if (kind := self._kind(group)) is not None and not kind.startswith("group"):
                raise ArgumentError(f"the output {self.name} would lie inside a zarr {kind}")
            if kind is not None:
                found = 2 if kind.endswith("2") else 3
                check_group(self.name, self.said, found)
        self.version: Version = 2 if found == 2 else 3
        self.document = METADATA[self.version == 2]
        self.check()
        with self._looking():
            self._is_left = told(self.bucket, CALL) is not None
            stranger = None
            if self._kind(self.bucket) is None and not self._is_left and not has_begun(self.bucket):
                stranger = next((name for name in self.bucket.names() if not name.startswith(OWN)), None)
        if stranger:
            raise (ArgumentError if overwrite else OutputExistsError)(
                f"{self.name} is no zarr array, and is not overwritten for that reason: there is {stranger!r}, of a "
                "run that is at work or was killed, perhaps. Remove it, or choose another URL"
            )

    def check(self) -> None:
        """Refuse an array that may not be replaced (`OutputExistsError`), and a group (`ArgumentError`)."""
        kind = self._kind(self.bucket)
        if kind is not None and not self.overwrite:
            raise existing(self.name, "array")
        if kind is not None and "array" not in kind:
            raise ArgumentError(
                f"{self.name} is a zarr {kind}, and is not overwritten: remove it, or choose another output"
            )

    def _kind(self, bucket: Bucket) -> str | None:
        """What lies there to zarr, if anything does."""
        with self._looking():
            if (found := bucket.get(_METADATA)) is not None:
                return str(json.loads(found.tobytes())["node_type"])
            kinds = {".zarray": "array of format 2", ".zgroup": "group of format 2"}
            return next((kind for name, kind in kinds.items() if bucket.get(name) is not None), None)

    def _looking(self) -> AbstractContextManager[None]:
        return translated(ReadError, f"cannot look at {self.name}", self.name)

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return created_spec(self.name, shape, dtype, chunks, self.said, self.version, remote=True)

    def claim(self) -> RemoteClaim:
        """The claim of a run that a later one may go on with, or of one that is left."""
        with translated(WriteError, f"cannot create {self.name}", self.name):
            return RemoteClaim(self.bucket, self.name, partial(_remove, self.bucket))

    def refuse_left(self) -> None:
        """Refuse what an earlier run has left, and can be gone on with."""
        with self._looking():
            refuse(self.bucket, self.name)

    def left(self) -> dict[str, str] | None:
        """What the call was of a dead run that has left something; None if there is none."""
        with self._looking():
            found = left(self.bucket) if self._is_left else None
        return None if found is None else dict(found["call"])

    @property
    def is_there(self) -> bool:
        """Whether an array is there."""
        return self._kind(self.bucket) is not None

    def is_made(self, spec: ArraySpec) -> bool:
        """Whether the array that is there is the one of the run that has left something."""
        with self._looking():
            there = self.bucket.get(self.document)
            return there is not None and has_published(self.bucket, there.tobytes())

    def tidy(self) -> None:
        """Remove what tells of the run that has made the array."""
        with contextlib.suppress(Exception):
            maker = Maker(self.bucket, self.name)
            forget(self.bucket)
            maker.end()

    def opened(self, spec: ArraySpec) -> Any:
        """The finished array, for the user."""
        with self._looking():
            return zarr.open_array(StorePath(self.store, self.path), mode="r+")

    def open(self, spec: ArraySpec, claim: RemoteClaim | None = None) -> ZarrUrlSink:
        """See `Target.open`. Nothing is put yet. With a `claim` that is left it goes on with what lies there."""
        if claim is None:
            self.refuse_left()
        with translated(WriteError, f"cannot create {self.name}", self.name):
            self.bucket.remove(".chunkflow")  # an error where objects can't be removed, as a run that fails must
            maker = Maker(self.bucket, self.name) if claim is None else claim.maker
            try:
                return self._begun(spec, claim, maker)
            except BaseException:
                if claim is None:
                    maker.end()
                raise

    def _begun(self, spec: ArraySpec, claim: RemoteClaim | None, maker: Maker) -> ZarrUrlSink:
        if self.version == 2 and self._kind(self.bucket) is not None and (claim is None or not claim.is_left):
            raise ArgumentError(
                f"{self.name} exists, and an array of format 2 at a URL replaces nothing: its chunks would have the "
                "names of the old one's. Remove that, or choose another URL, or format 3"
            )
        found = None if self.version == 2 else self.bucket.get(_METADATA)
        old = None if found is None else found.tobytes()
        kind = (
            1
            if self.version == 2
            else int(old is not None and json.loads(old)["chunk_key_encoding"]["name"] == "default")
        )
        if maker.follows and (claim is None or not claim.is_left):
            _remove(self.bucket, [name for name in self.bucket.names() if KEYS[kind].fullmatch(name)])
        if claim is not None:
            kind = claim.made.setdefault("kind", kind)
        names = self.said.dimension_names or self._names(len(spec.shape), old)
        how = dimensions_of(names, self.version, self.said.attributes or {})
        how |= {"chunk_key_encoding": _ENCODINGS[kind]} if self.version == 3 else {}
        made = described(spec, self.said, self.version, **how)
        texts = {}
        for name in (".zattrs", self.document):
            if (found := sync(made.store.get(name, default_buffer_prototype()))) is not None:
                texts[name] = found.to_bytes().decode()
        if claim is not None:
            texts[self.document] = claim.made.setdefault("metadata", texts[self.document])
        documents = {name: text.encode() for name, text in texts.items()}
        array = zarr.Array(zarr.AsyncArray(made.metadata, StorePath(self.store, self.path)))
        return ZarrUrlSink(self, spec, array, documents, old, KEYS[1 - kind], claim, maker)

    def _names(self, ndim: int, old: bytes | None) -> tuple[str, ...] | None:
        """Names of the array's dimensions, as for an array in a directory."""
        stem, known = self.path.rpartition("/")[2], None if old is None else dimensions.names_in(old)
        return dimensions.chosen(stem, ndim, known, self._beside() if self.groups else ())

    def _beside(self) -> Iterator[tuple[str, ...] | None]:
        """Names of the dimensions of the arrays in the same group."""
        group = self.groups[-1]
        if self._kind(group) is None:
            return
        document = ".zattrs" if self.version == 2 else _METADATA
        with ThreadPoolExecutor(_REQUESTS, "chunkflow-look") as threads:
            names = [f"{name}/{document}" for name in group.folders(dimensions.MOST)]
            for found in threads.map(group.get, names):
                yield None if found is None else dimensions.names_in(found.tobytes(), self.version)


class ZarrUrlSink:
    """A zarr array at a URL whose chunks are being put, and whose metadata are not."""

    def __init__(
        self,
        target: ZarrUrlTarget,
        spec: ArraySpec,
        array: Any,
        documents: dict[str, bytes],
        old: bytes | None,
        old_keys: re.Pattern[str],
        claim: RemoteClaim | None,
        maker: Maker,
    ) -> None:
        self.spec, self._target, self._array, self._sink = spec, target, array, ZarrSink(array, spec)
        self._documents, self._old, self._old_keys = documents, old, old_keys
        self._claim, self._maker = claim, maker
        self._sides = array.shards or array.chunks
        self._written = np.zeros([-(-n // c) for n, c in zip(spec.shape, self._sides, strict=True)], bool)
        self._undo: list[Callable[[], None]] = []

    def write(self, region: Region, block: np.ndarray) -> None:
        chunks = zip(region, self._sides, strict=True)
        self._written[tuple(slice(side.start // n, -(-side.stop // n)) for side, n in chunks)] = True
        self._sink.write(region, block)

    def commit(self) -> Any:
        target = self._target
        undo = self.abort if self._claim is None else self._take_back  # the chunks are what a later run goes on with
        with translated(WriteError, f"cannot finish {target.name}", target.name, undo):
            self._check()
            for group in target.groups:
                name, said = GROUPS[target.version]
                if group.get(name) is None:
                    self._undo.append(lambda group=group, name=name: group.remove(name))  # type: ignore[misc]
                    _put(group, name, json.dumps(said).encode())
            self._undo.append(self._restore)
            if self._claim is not None:
                self._claim.publishes()
            for name, document in self._documents.items():  # what makes it an array comes last
                _put(target.bucket, name, document)
            for group in reversed(target.groups):
                member = target.path.removeprefix(group.path).strip("/")
                consolidated.renew(partial(_get, group), partial(_put, group), member)
        self._undo, self._written = [], np.zeros(0, bool)
        with contextlib.suppress(Exception):  # the array is there: what remains of an older one is in nobody's way
            if target.overwrite:
                _remove(target.bucket, [name for name in target.bucket.names() if self._old_keys.fullmatch(name)])
        self._ended()
        return self._array

    def end(self) -> None:
        """Remove what tells of the run: the array is there."""
        if self._claim is not None:
            self._claim.end(published=True)

    def leave(self) -> None:
        """Leave the chunks to a later run. Metadata that speak of them are taken back."""
        assert self._claim is not None
        self._take_back()
        self._claim.leave()

    def _check(self) -> None:
        if self._claim is not None:
            self._claim.check()
        try:
            self._target.check()
        except OutputExistsError:  # made by others, whose chunks may have taken the place of ours
            self._written = np.zeros(0, bool)
            raise

    def _restore(self) -> None:
        """Put back the metadata that were there: a request that failed may have been obeyed all the same."""
        if self._old is None:
            for name in reversed(self._documents):
                self._target.bucket.remove(name)
        else:
            _put(self._target.bucket, self._target.document, self._old)

    def _take_back(self) -> None:
        with contextlib.suppress(Exception):
            while self._undo:
                self._undo.pop()()

    def abort(self) -> None:
        """See `Sink.abort`. Chunks are removed only after metadata that speak of them."""
        with contextlib.suppress(Exception):
            while self._undo:
                self._undo.pop()()
            key = self._array.metadata.encode_chunk_key
            if self._claim is None:
                _remove(self._target.bucket, (key(tuple(index)) for index in np.argwhere(self._written).tolist()))
            self._written = np.zeros(0, bool)
        if self._claim is not None:
            self._claim.end()
        self._ended()

    def _ended(self) -> None:
        if self._claim is None:
            self._maker.end()


def _get(bucket: Bucket, name: str) -> bytes | None:
    found = bucket.get(name)
    return None if found is None else found.tobytes()


def _put(bucket: Bucket, name: str, metadata: bytes) -> None:
    bucket.put(name, lambda file: append(file, metadata) >= 0)


def _remove(bucket: Bucket, names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_REQUESTS, "chunkflow-remove") as threads:
        for _ in threads.map(bucket.remove, names):
            pass


def left_at(url: str) -> list[Left]:
    """What a dead run left of an array at a URL, whose bytes are not known, and of the passes to it."""
    target = ZarrUrlTarget(url, overwrite=True)
    resumes = target.left() is not None
    is_left = resumes or has_begun(target.bucket)
    return [*([Left(url, target.name, 0, resumes=resumes)] if is_left else []), *beside(target.name)]


def clean_at(url: str) -> bool:
    """Remove what a dead run left of an array at a URL. False if there is nothing of that kind, or its run is alive."""
    target = ZarrUrlTarget(url, overwrite=True)
    spec = target.describe((), np.dtype("u1"), None)
    if target.left() is not None:
        target.claim().end(published=target.is_made(spec))
    elif has_begun(target.bucket):
        target.open(spec).abort()
    else:
        return False
    return True
