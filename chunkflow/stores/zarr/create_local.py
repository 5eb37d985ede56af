"""Zarr arrays that a run creates at a path, by themselves or inside a group."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal

import numcodecs
import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import COPIES, ArraySpec, Storage, default_chunks
from chunkflow.errors import ArgumentError, ArgumentTypeError, WriteError
from chunkflow.stores import checksums, paths
from chunkflow.stores.checks import conversion, numeric_dtype
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.kvstore.folder import remove_unfinished, temporary
from chunkflow.stores.kvstore.fsspec import SENT
from chunkflow.stores.protocol import Encoder
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish
from chunkflow.stores.publication.rename import rename_new
from chunkflow.stores.zarr import consolidated, dimensions
from chunkflow.stores.zarr.array import METADATA, ZarrSink, encoder_for
from chunkflow.stores.zarr.documents import read_document
from chunkflow.stores.zarr.node import SUFFIX, zarr_node
from chunkflow.system.files import create_hidden


def created_spec(name: str, shape: Shape, dtype: np.dtype, chunks: Shape | None, *, remote: bool = False) -> ArraySpec:
    """Spec of an array that is to be created, with the desired chunks."""
    dtype = numeric_dtype(dtype, "the result")
    if dtype.itemsize > {"f": 8, "c": 16}.get(dtype.kind, dtype.itemsize):
        advice = conversion("complex128" if dtype.kind == "c" else "float64")
        raise ArgumentTypeError(f"the result has dtype {dtype}, which zarr cannot store: {advice}")
    if chunks is None:
        chunks = default_chunks(shape, dtype.itemsize)
    elif len(chunks) != len(shape) or any(side < 1 for side in chunks):
        raise ArgumentError(f"chunks {tuple(chunks)} do not suit a result of shape {tuple(shape)}")
    sides = tuple(min(side, max(1, n)) for side, n in zip(chunks, shape, strict=True))
    storage = Storage(remote=remote, copies=COPIES + SENT * remote)
    return ArraySpec(name, tuple(shape), dtype, chunks=sides, storage=storage)


class ZarrPathTarget:
    """A zarr array that the run creates: it appears under its name when it is complete.

    Directories above it that end in ``.zarr`` or are zarr groups already make it a member of a group:
    ``"result.zarr/speed"`` creates the group ``result.zarr`` if there is none. The array is zarr 3, or of
    the group's version. Until it is complete it lies in a hidden directory beside the outermost of these.

    With `overwrite`, an array at the path is kept until then. The new one has the names of its dimensions, and
    its chunks are named likewise. Groups and other directories are never replaced. Consolidated metadata of the
    groups, where there are any, are kept true.
    """

    footprint: Footprint | None = None

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.name = paths.resolve(os.path.abspath(path))
        self.overwrite = overwrite
        # Zarr groups, or what will be, the outermost one first.
        above = [str(parent) for parent in reversed(Path(self.name).parents)][1:]
        self.groups = list(dropwhile(lambda path: not path.endswith(SUFFIX) and zarr_node(path) is None, above))
        self.root = self.groups[0] if self.groups else self.name
        paths.require_directory(os.path.dirname(self.root), self.name)
        for group in self.groups:
            node = zarr_node(group)
            if node is not None and node.kind == "array":
                raise ArgumentError(f"the output {self.name} would lie inside the zarr array {group}")
            if os.path.lexists(group) and not os.path.isdir(group):
                raise ArgumentError(f"the output {self.name} would lie inside {group}, which is a file")
        self._check_existing()

    def _check_existing(self) -> None:
        paths.refuse_existing(self.name, self.overwrite)
        if not os.path.lexists(self.name):
            return
        node = zarr_node(self.name)
        if node is None or node.kind != "array":
            what = "a zarr group" if node is not None else "not a zarr array"
            raise ArgumentError(f"{self.name} is {what}, and is not overwritten for that reason")

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return created_spec(self.name, shape, dtype, chunks)

    @property
    def claimed(self) -> tuple[str, str]:
        """What its claim is on, and the outermost thing that it creates."""
        return self.name, self.root

    def claim(self) -> Claim:
        """The claim of a run that a later one may go on with, or of one that is left."""
        with translated(WriteError, f"cannot create {self.name}", self.name):
            return Claim(*self.claimed, overwrite=self.overwrite, resumes=True)

    def open(self, spec: ArraySpec, claim: Claim | None = None) -> ZarrPathSink:
        """The sink; with a `claim` that is left it goes on with what lies there."""
        return ZarrPathSink(self, spec, claim)

    def opened(self, spec: ArraySpec) -> Any:
        """The finished array, for the user."""
        return zarr.open_array(self.name, mode="r+")

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        return encoder_for(_created({}, spec, self.version))

    @property
    def version(self) -> Literal[2, 3]:
        """Zarr's format: that of the group."""
        nodes = [node for group in self.groups if (node := zarr_node(group)) is not None]
        return 2 if nodes and nodes[-1].format == 2 else 3

    def check(self) -> None:
        """Refuse what has appeared under the name meanwhile."""
        self._check_existing()


class BetweenTarget(ZarrPathTarget):
    """An array of uncompressed chunks, for intermediate results that a later run may go on with."""

    def __init__(self, path: str, chunks: Shape) -> None:
        super().__init__(path, overwrite=True)
        self._chunks = chunks

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        spec = created_spec(self.name, shape, dtype, self._chunks)
        return spec.with_storage(copies=1.0)  # raw bytes, gathered

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        return None

    def open(self, spec: ArraySpec, claim: Claim | None = None) -> ZarrPathSink:
        return ZarrPathSink(self, spec, claim, compressors=None)


def _created(store: Any, spec: ArraySpec, version: int, **options: Any) -> Any:
    """A new array in a store of zarr's."""
    return zarr.create_array(
        store=store,
        shape=spec.shape,
        chunks=spec.chunks or "auto",
        dtype=spec.dtype,
        zarr_format=2 if version == 2 else 3,
        **{**compressors(spec.dtype, version), **options},
    )


def compressors(dtype: np.dtype, version: int) -> dict[str, Any]:
    """How chunks of a new array are compressed, as an argument of `zarr.create_array`: as zarr does, with a checksum.

    It is of the encoded bytes, so it costs less than one of the elements, and a device can still decode the chunks.
    Format 2 has none of that kind: there zstd's own is of the elements, and only asked for.
    """
    if version == 2:
        return {"compressors": numcodecs.Zstd(checksum=True)} if checksums.wanted(default=False) else {}
    if not checksums.wanted(default=True):
        return {}
    return {"compressors": (*_defaults(dtype), Crc32cCodec())}


@cache
def _defaults(dtype: np.dtype) -> tuple[Any, ...]:
    """What zarr compresses chunks of format 3 with."""
    return tuple(zarr.create_array({}, shape=(1,), chunks=(1,), dtype=dtype, zarr_format=3).compressors)


def _put_documents(folder: str, create: Callable[[Any], object]) -> None:
    """Put into a directory what `create` makes in a store of zarr's.

    Zarr writes several documents at once. Where one fails, others would come after all has been removed.
    """
    documents: dict[str, Any] = {}
    create(documents)
    os.makedirs(folder, exist_ok=True)
    for name, document in documents.items():
        with open(create_hidden(os.path.join(folder, name)), "wb") as file:
            file.write(document.to_bytes())


_GROUPS: dict[int, tuple[str, dict[str, Any]]] = {
    2: (".zgroup", {"zarr_format": 2}),
    3: ("zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {}}),
}
"""What makes a directory a group, by zarr's format: a document's name, and what it says."""


def _make_group(path: str, version: int) -> Callable[[], None]:
    """Make a directory a group, and give a function that undoes it if nothing has been put there.

    Another run may make the group in the same moment. The one that was first is kept.
    """
    name, said = _GROUPS[2 if version == 2 else 3]
    there, document = os.path.isdir(path), os.path.join(path, name)
    os.makedirs(path, exist_ok=True)
    hidden = temporary(document)
    try:
        with open(create_hidden(hidden), "w", encoding="utf-8") as file:
            json.dump(said, file)
        rename_new(hidden, document)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(hidden)
        if isinstance(error, FileExistsError):
            return lambda: None
        raise

    def undo() -> None:
        with suppress(OSError):
            if os.listdir(path) == [name]:
                os.unlink(document)
            if not there:
                os.rmdir(path)

    return undo


def _keys(path: str, version: int) -> dict[str, Any]:
    """How chunks are named, if the array at a path has the same format: OME-Zarr, for one, wants them in folders.

    Only its metadata are read: zarr would load the codecs that are named there.
    """
    document = os.path.join(path, METADATA[version == 2])
    try:
        known = read_document(document)
        if known.get("node_type", "array") != "array":
            return {}
        if version == 2:
            given = {"name": "v2", "separator": known.get("dimension_separator", ".")}
        else:
            given = known["chunk_key_encoding"]
        return {"chunk_key_encoding": _key_encoding(given)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # nothing that is understood
        return {}


def _key_encoding(given: Any) -> dict[str, Any]:
    """A naming of chunks that zarr has; `ValueError` for all else."""
    how: dict[str, Any] = {"name": given} if isinstance(given, str) else dict(given)
    name, settings = how["name"], how if "separator" in how else how.get("configuration") or {}
    separator = settings.get("separator", "/" if name == "default" else ".")
    if name not in ("default", "v2") or separator not in ("/", "."):
        raise ValueError(f"{given!r} names chunks in a way that is not known")
    return {"name": name, "configuration": {"separator": separator}}


class ZarrPathSink:
    """A zarr array that is being written under a hidden name. Other processes write into `shared`.

    Groups that are not there yet are made around it, so that they appear with it.
    """

    shared: Any

    def __init__(self, target: ZarrPathTarget, spec: ArraySpec, claim: Claim | None = None, **options: Any) -> None:
        self.spec, self._target, self._options = spec, target, options
        self._claim = claim
        self._renewed = False
        self._undo = ExitStack()
        with translated(WriteError, f"cannot create {target.name}", target.name, self.abort):
            if self._claim is None:
                self._claim = Claim(target.name, target.root, overwrite=target.overwrite)
            if self._claim.is_left:
                place = self._claim.steps[-1][0]
                remove_unfinished(place)
                self.shared = zarr.open_array(place, mode="r+")
            else:
                self.shared = self._made(self._claim)
        self._sink = ZarrSink(self.shared, spec)

    def _made(self, claim: Claim) -> Any:
        """The array, under the hidden name of the outermost group."""
        target, spec = self._target, self.spec
        version = target.version
        named = dimensions.named(target.name, len(spec.shape), version, member=bool(target.groups))
        if version == 2:
            named["fill_value"] = None  # else xarray takes elements of that value for missing ones
        *groups, (place, _) = claim.steps
        if os.path.lexists(target.name):
            os.makedirs(place, 0o700)
        elif groups:
            os.makedirs(os.path.dirname(place))
        for hidden, group in groups:
            if zarr_node(group) is None:
                _put_documents(hidden, partial(zarr.create_group, zarr_format=version))
        keys = _keys(target.name, version) if target.overwrite else {}
        _put_documents(place, lambda store: _created(store, spec, version, **named, **keys, **self._options))
        if os.path.lexists(target.name):
            shutil.copymode(target.name, place)
        return zarr.open_array(place, mode="r+")

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(region, block)

    def ready(self) -> list[Claim]:
        path = self._target.name
        assert self._claim is not None
        with translated(WriteError, f"cannot finish {path}", path):
            self._target.check()
        return [self._claim]

    def published(self) -> Any:
        array = zarr.open_array(self._target.name, mode="r+")
        for group in self._target.groups:
            if zarr_node(group) is None:  # a directory that was there, and is none yet
                self._undo.callback(_make_group(group, array.metadata.zarr_format))
        self._renew()
        return array

    def _renew(self) -> None:
        """Collect the metadata of the groups above anew."""
        self._renewed = True
        for group in reversed(self._target.groups):
            if os.path.isdir(group):
                consolidated.renew_local(group, os.path.relpath(self._target.name, group))

    def unpublish(self) -> None:
        """See `Publishing.unpublish`."""

    def commit(self) -> Any:
        path = self._target.name
        with translated(WriteError, f"cannot finish {path}", path, self.abort):
            return publish(self.ready(), self.published)

    def leave(self) -> None:
        """Leave the array to a later run."""
        assert self._claim is not None
        self._claim.leave()

    def abort(self) -> None:
        with suppress(Exception):
            if self._renewed:  # another output of the call failed
                self._renew()
            self._undo.close()
        if self._claim is not None:
            self._claim.end()


def scratch_array(path: str, shape: Shape, dtype: np.dtype, chunks: Shape) -> Any:
    """A new array of uncompressed chunks, for intermediate results."""
    with translated(WriteError, f"cannot create {path}", path):
        return zarr.create_array(store=path, shape=shape, chunks=chunks, dtype=dtype, compressors=None)
