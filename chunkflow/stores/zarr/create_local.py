"""Zarr arrays that a run creates at a path, by themselves or inside a group."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores import paths
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.kvstore.folder import remove_unfinished, temporary
from chunkflow.stores.new_array import NewArray, StoredLabels
from chunkflow.stores.protocol import Encoder
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.publish import publish
from chunkflow.stores.publication.rename import rename_new
from chunkflow.stores.zarr import consolidated, dimensions
from chunkflow.stores.zarr.array import METADATA, ZarrSink, encoder_for
from chunkflow.stores.zarr.dimensions import fitting
from chunkflow.stores.zarr.documents import read_document
from chunkflow.stores.zarr.encoding import Version, arguments, check_group, created_spec, described, dimensions_of
from chunkflow.stores.zarr.multiscales import group_attributes, images_in, level_at
from chunkflow.stores.zarr.node import SUFFIX, not_of_array, zarr_node
from chunkflow.system.files import create_hidden


class ZarrPathTarget:
    """A zarr array that the run creates: it appears under its name when it is complete.

    Directories above it that end in ``.zarr`` or are zarr groups already, and the one that it is given `within`, make
    it a member of a group: ``"result.zarr/speed"`` creates the group ``result.zarr`` if there is none. The array is
    zarr 3, or of the group's version, and its chunks are named as those beside it. Until it is complete it lies in a
    hidden directory beside the outermost of these.

    With `overwrite`, an array at the path is kept until then. The new one has the names of its dimensions, and
    its chunks are named likewise. Groups and other directories are never replaced. Consolidated metadata of the
    groups, where there are any, are kept true.
    """

    footprint: Footprint | None = None
    grows = True

    takes_labels = True

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, said: NewArray | None = None, within: str = ""
    ) -> None:
        self.name = paths.resolve(os.path.abspath(path))
        self.overwrite, self.said = overwrite, said or NewArray(path)
        # Zarr groups, or what will be, the outermost one first.
        above = [str(parent) for parent in reversed(Path(self.name).parents)][1:]
        within = within and paths.resolve(os.path.abspath(within))
        self.groups = list(
            dropwhile(lambda path: path != within and not path.endswith(SUFFIX) and zarr_node(path) is None, above)
        )
        self.root = self.groups[0] if self.groups else self.name
        paths.require_directory(os.path.dirname(self.root), self.name)
        for group in self.groups:
            if os.path.lexists(group) and not os.path.isdir(group):
                raise ArgumentError(f"the output {self.name} would lie inside {group}, which is a file")
        self._check_existing()
        if self._group_format is not None:
            check_group(self.name, self.said, self._group_format)

    def _check_existing(self) -> None:
        paths.refuse_existing(self.name, self.overwrite)
        if not os.path.lexists(self.name):
            return
        node = zarr_node(self.name)
        if node is None or node.kind != "array":
            what = "a zarr group" if node is not None else "not a zarr array"
            raise ArgumentError(f"{self.name} is {what}, and is not overwritten: remove it, or choose another output")
        if other := next(not_of_array(self.name), None):
            raise ArgumentError(
                f"{self.name} holds {other}, which is no part of the zarr array there, and would be lost with it: move "
                "it, or choose another output"
            )

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return created_spec(self.name, shape, dtype, chunks, self.said, self.version)

    def fitting(self, labels: StoredLabels, shape: Shape) -> StoredLabels:
        """Labels of another array as the new one has them: a level of an image has the names of the image's axes."""
        found, level = fitting(labels, shape), level_at(self.name, len(shape))
        return found if level is None else found._replace(dimension_names=level.names)

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
        return encoder_for(described(spec, self.said, self.version))

    @property
    def version(self) -> Version:
        """Zarr's format: that of the group, else the one that is said, else that of the array that it replaces."""
        node = zarr_node(self.name) if self.overwrite else None
        return 2 if (self._group_format or self.said.zarr_format or (node and node.format)) == 2 else 3

    @property
    def _group_format(self) -> int | None:
        """Zarr's format of the nearest group; None where there is none."""
        nodes = [node for group in self.groups if (node := zarr_node(group)) is not None]
        return nodes[-1].format if nodes else None

    def check(self) -> None:
        """Refuse what has appeared under the name meanwhile."""
        self._check_existing()


class BetweenTarget(ZarrPathTarget):
    """An array of uncompressed chunks, for intermediate results that a later run may go on with."""

    def __init__(self, path: str, chunks: Shape) -> None:
        super().__init__(path, overwrite=True)
        self._chunks = chunks

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        spec = created_spec(self.name, shape, dtype, self._chunks, self.said, self.version)
        return spec.with_storage(copies=1.0)  # raw bytes, gathered

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        return None

    def open(self, spec: ArraySpec, claim: Claim | None = None) -> ZarrPathSink:
        return ZarrPathSink(self, spec, claim, compressors=None)


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


GROUPS: dict[int, tuple[str, dict[str, Any]]] = {
    2: (".zgroup", {"zarr_format": 2}),
    3: ("zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {}}),
}
"""What makes a directory a group, by zarr's format: a document's name, and what it says."""


def _make_group(path: str, version: int) -> Callable[[], None]:
    """Make a directory a group, and give a function that undoes it if nothing has been put there.

    Another run may make the group in the same moment. The one that was first is kept.
    """
    name, said = GROUPS[2 if version == 2 else 3]
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
        if not os.path.isfile(document):
            return {}
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


def _keys_beside(target: ZarrPathTarget, version: int) -> dict[str, Any]:
    """How chunks are named: as those of the array that is replaced, else as those of another one in the group."""
    if os.path.lexists(target.name):
        return _keys(target.name, version)
    others = islice(dimensions.beside(target.name), dimensions.MOST) if target.groups else ()
    found = next(filter(None, (_keys(path, version) for path in others)), {})
    if found or version != 2 or not any(images_in(group_attributes(group)) for group in target.groups):
        return found
    return {"chunk_key_encoding": _key_encoding({"name": "v2", "separator": "/"})}  # which OME-Zarr wants


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
        made = arguments(spec, target.said, version)
        if target.said.dimension_names is None:
            level = level_at(target.name, len(spec.shape))
            member = bool(target.groups)
            names = dimensions.named(target.name, len(spec.shape), member=member) if level is None else level.names
            made |= dimensions_of(names, version, made["attributes"])
        made |= _keys_beside(target, version)
        *groups, (place, _) = claim.steps
        if os.path.lexists(target.name):
            os.makedirs(place, 0o700)
        elif groups:
            os.makedirs(os.path.dirname(place))
        for hidden, group in groups:
            if zarr_node(group) is None:
                _put_documents(hidden, partial(zarr.create_group, zarr_format=version))
        _put_documents(place, lambda store: zarr.create_array(store, **made | self._options))
        if os.path.lexists(target.name):
            shutil.copymode(target.name, place)
        return zarr.open_array(place, mode="r+")

    def write(self, region: Region, block: np.ndarray) -> None:
        self._sink.write(region, block)

    def so_far(self) -> Any:
        """See `Growing.so_far`."""
        return self.shared

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
