"""Existing zarr arrays of versions 2 and 3, sharded or not. What is not coded directly goes through zarr's pipeline.

One `zarr.Array` may be used from several threads: each call waits for zarr's event loop, which decodes
in a pool of threads of its own. Writes are safe as long as no two of them touch one chunk (one shard).
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, StorePath

from chunkflow.core.encoded_chunks import Place
from chunkflow.core.grid import Region, Shape, describe, shape_of
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ArraySpec, ChunkFiles, Storage
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError
from chunkflow.stores.caches import page_cache
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.checks import ExistingTarget, numeric_dtype
from chunkflow.stores.codecs.step import NotBuiltError, NotDirectError
from chunkflow.stores.failures import blamed, translated, unread, unwritten
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.gaps import Gaps
from chunkflow.stores.identity import Guard, Identity
from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.kvstore.fsspec import SENT, Bucket, is_remote, url_of
from chunkflow.stores.kvstore.http import url_at
from chunkflow.stores.kvstore.protocol import ChunkError, named
from chunkflow.stores.kvstore.retries import again
from chunkflow.stores.new_array import StoredLabels
from chunkflow.stores.protocol import Encoder, Unviewed
from chunkflow.stores.touched import touched
from chunkflow.stores.zarr.allowed import check_array, check_metadata, no_dtype
from chunkflow.stores.zarr.bounded import bounded
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.stores.zarr.device_codecs import codec_of, is_checked, matches_in
from chunkflow.stores.zarr.dimensions import attributes_of, labels_of
from chunkflow.stores.zarr.documents import read_document
from chunkflow.stores.zarr.metadata import direct
from chunkflow.stores.zarr.multiscales import Level, level_at, level_in_store
from chunkflow.stores.zarr.node import zarr_node
from chunkflow.stores.zarr.open_remote import open_url
from chunkflow.stores.zarr.shards import Shards
from chunkflow.stores.zarr.times import counted

try:
    from zarr.buffer import cpu as _buffers
except ImportError:  # zarr 3.0 decodes into an array of its own only
    _buffers = None  # type: ignore[assignment]

if TYPE_CHECKING:
    AnyArray = zarr.Array[Any]


METADATA = ("zarr.json", ".zarray")
"""Files of metadata. Every array's folder holds one of them."""


def open_zarr(path: str, *, times: np.dtype | None = None) -> ZarrSource:
    """Source of the zarr array in a directory. Elements of the dtype `times` are read as integers.

    Raises
    ------
    ArgumentError
        It is a group.
    ArgumentTypeError
        Zarr-python does not have its dtype.
    ReadError
        Zarr cannot open the array.
    """
    given, path = path, os.path.abspath(path)
    node = zarr_node(path)
    if node is not None and node.kind == "group":
        names = ", ".join(repr(os.path.join(given, name)) for name in members(path)) or "none"
        raise ArgumentError(f"{path} is a zarr group: pass the path of one of its arrays ({names})")
    guard = _folder_guard(path)
    with translated(ReadError, f"cannot open the zarr array {path}", path):
        try:
            array = _described(path, partial(counted, times=times, name=path))
        except ValueError as error:
            if "data type" not in str(error):
                raise
            raise no_dtype(error, path) from None
    return ZarrSource(array, guard)


def open_zarr_url(url: str, *, times: np.dtype | None = None) -> ZarrSource:
    """Source of the zarr array behind a URL. Elements of the dtype `times` are read as integers."""
    return ZarrSource(open_url(url, partial(counted, times=times, name=url)))


def open_times(array: AnyArray, times: np.dtype) -> ZarrSource:
    """Source of an array of the dtype `times`, which is read as integers."""
    metadata = counted(array.metadata.to_dict(), times, location_of(array))
    return ZarrSource(zarr.Array.from_dict(array.store_path, metadata))


def _described(path: str, as_read: Callable[[Any], dict[str, Any]]) -> AnyArray:
    """The array that files describe, by metadata `as_read`.

    Zarr's event loop and threads take turns so often to read that file that a run begins 3 ms later. What it says is
    checked before zarr sees it.
    """
    found = [read_document(file) for name in METADATA if os.path.isfile(file := os.path.join(path, name))]
    # What became part of a group of the other format may have that group's metadata too.
    arrays = [each for each in found if not isinstance(each, dict) or each.get("node_type", "array") == "array"]
    arrays = [as_read(each) if isinstance(each, dict) else each for each in arrays]
    for metadata in arrays:
        check_metadata(metadata, path)
    if len(arrays) != 1:
        return zarr.open_array(path, mode="r")
    (metadata,) = arrays
    if metadata.get("zarr_format") == 2 and os.path.isfile(beside := os.path.join(path, ".zattrs")):
        metadata = {**metadata, "attributes": read_document(beside)}
    return zarr.Array.from_dict(StorePath(LocalStore(path, read_only=True)), metadata)


def members(path: str, above: tuple[str, ...] = ()) -> list[str]:
    """Names of the arrays in a zarr group and the groups inside it, ones that zarr does not understand too.

    Links back to the group, or to one of those `above` it, are left out.
    """
    found: list[str] = []
    above = (*above, os.path.realpath(path))
    with translated(ReadError, f"cannot look into the zarr group {path}", path):
        for entry in os.scandir(path):
            node = zarr_node(entry.path) if entry.is_dir() and not entry.name.startswith(".") else None
            if node is not None and node.kind == "group":
                if not entry.is_symlink() or os.path.realpath(entry.path) not in above:
                    found += [f"{entry.name}/{name}" for name in members(entry.path, above)]
            elif node is not None:
                found.append(entry.name)
    return sorted(found)


def inside(path: str) -> list[str]:
    """Paths of the arrays in a zarr group; none of an array."""
    node = zarr_node(os.path.abspath(path))
    assert node is not None
    return [f"{path.rstrip('/')}/{name}" for name in members(path)] if node.kind == "group" else []


def location_of(array: Any) -> str:
    """Path of the directory of an array or a group, or another unique name."""
    store = array.store
    if isinstance(store, LocalStore):
        return os.path.realpath(os.path.join(store.root, array.path))
    if is_remote(store):
        return url_of(store, array.path)
    return f"{store}/{array.path}".rstrip("/")


def path_of(array: AnyArray) -> Any:
    """The path of an array in a folder; else the array, if its store can be sent to another process."""
    if isinstance(array.store, MemoryStore):
        raise ArgumentTypeError(
            f"an expression of the zarr array {location_of(array)} cannot be pickled: its store is in this process's "
            "memory. Store its elements in a file, and open that"
        )
    folder = _folder(array)
    return array if folder is None else str(folder)


def _folder(array: AnyArray) -> Path | None:
    """Directory of the array, if it has one."""
    store = array.store
    return Path(os.path.abspath(store.root)) / array.path if isinstance(store, LocalStore) else None


def level_of(array: AnyArray) -> Level | None:
    """The level of an image of OME-Zarr that an array is; None if no group above it says so."""
    folder = _folder(array)
    if folder is not None:
        return level_at(str(folder), len(array.shape))
    with suppress(Exception):  # a server may refuse what lies above the array
        return level_in_store(array)
    return None


def _labels_of(array: AnyArray, *, fills: bool) -> StoredLabels:
    """Labels of an array. Where it names no dimensions, a group above it may name the axes of an image."""
    found = labels_of(array, fills=fills)
    if found.dimension_names is not None or (level := level_of(array)) is None:
        return found
    return found._replace(dimension_names=level.names)


def _folder_guard(path: str) -> Guard:
    """Guard of the array in a folder."""
    return Guard.of_files(path, *(os.path.join(path, name) for name in METADATA), folder=path)


def _guard(array: AnyArray) -> Guard | None:
    """Guard of an array of the user's, or behind a URL."""
    folder = _folder(array)
    if folder is not None:
        return _folder_guard(str(folder))
    if not is_remote(array.store):
        return None
    name, bucket = location_of(array), Bucket(array.store, array.path)
    document = METADATA[0] if array.metadata.zarr_format == 3 else METADATA[1]

    def look() -> Identity:
        return Identity(name, {url_at(name, document): bucket.facts(document)}, time.time_ns())

    return Guard(look(), look)


def _direct(array: AnyArray, guard: Guard | None = None) -> tuple[Chunks | Shards | None, str]:
    """What reads and writes the array's chunks directly (None for zarr), and a description for people."""
    folder = _folder(array)
    try:
        if folder is not None:
            found = direct(array, Folder(str(folder), guard))
            return found, f"directly: {found}"
        if is_remote(array.store):
            bucket = Bucket(array.store, array.path)
            found = direct(array, bucket)
            bucket.most = found.most
            return found, f"directly: {found}, over the network"
        raise NotDirectError(type(array.store).__name__)
    except NotDirectError as reason:
        return None, f"through zarr: {reason}"
    except NotBuiltError as reason:
        raise ArgumentError(
            f"the zarr array {location_of(array)} can be neither read nor written: {reason}. Open it with "
            "tensorstore.open, and pass the TensorStore"
        ) from None


def _spec(
    array: AnyArray, chunks: Shape | None, guard: Guard | None = None
) -> tuple[ArraySpec, Chunks | Shards | None]:
    name = location_of(array)
    dtype = numeric_dtype(array.dtype, name)
    check_array(array, name)
    found, how = _direct(array, guard)
    order = tuple(range(len(array.shape)))
    if found is not None:
        order = found.chain.order
    elif array.metadata.zarr_format == 2 and array.order == "F":
        order = order[::-1]
    spec = ArraySpec(
        name=name,
        shape=tuple(array.shape),
        dtype=dtype,
        chunks=chunks and tuple(max(1, side) for side in chunks),
        order=order,
        storage=Storage(
            how=how,
            remote=is_remote(array.store),
            sharded=isinstance(found, Shards),
            copies=3.0 if found is None else found.chain.copies,
            raw=found is not None and not found.chain.steps,
            separate=isinstance(found, Chunks) and found.separate,
            kept=isinstance(found, Chunks) and bool(found.chain.steps),
        ),
    )
    return spec, found


def spec_of_new(array: AnyArray, spec: ArraySpec) -> ArraySpec:
    """The spec of an array that will have these metadata in a folder, where `spec` has its chunks."""
    return replace(_spec(array, spec.chunks)[0], name=spec.name)


def encoder_for(array: AnyArray) -> Encoder | None:
    """See `chunkflow.stores.protocol.Encoding.encoder`."""
    try:
        chain = direct(array, Folder("")).chain
    except (NotDirectError, NotBuiltError):
        return None
    return chain.encode_part if chain.steps else None


def _footprint(array: AnyArray) -> Footprint:
    location = ("zarr", location_of(array))
    return Footprint(location, 0, 1, location)


def _asked(spec: ArraySpec, request: Callable[[], Any]) -> Any:
    """Result of a request to the array's store. Requests to a remote store are retried."""
    return again(request) if spec.storage.remote else request()


class ZarrSource(Unviewed):
    """A zarr array that is read. Chunks that were never written read as the fill value."""

    kind = "of the zarr array"
    """What stands before its name in a message."""

    fills = True
    """Whether the fill value of format 2 stands for missing values, as it does to xarray."""

    def __init__(self, array: AnyArray, guard: Guard | None = None) -> None:
        self._array = array
        self.guard = guard or _guard(array)
        try:
            chunks = array.chunks
        except NotImplementedError:  # chunks of unequal sizes: any region can be read all the same
            chunks = None
        spec, self._direct = _spec(array, chunks, self.guard)
        self.stored_chunks = spec.chunks
        """See `chunkflow.stores.protocol.stored_chunks_of`."""
        self.gaps = self._direct.gaps if self._direct is not None else Gaps()
        if isinstance(self._direct, Chunks) and self._direct.by_parts:
            spec = spec.with_storage(parted=True, copies=0.0)
        if isinstance(self._direct, Chunks) and self._direct.parted:
            spec = replace(spec, chunks=None)  # any part of a file can be read by itself
        self.spec = spec
        self.codec, self.checked = codec_of(self._direct), is_checked(self._direct)
        self.footprint: Footprint | None = _footprint(array)
        self._folder = _folder(array)
        self.attributes = attributes_of(array, fills=self.fills)
        self.labels, self.level = partial(_labels_of, array, fills=self.fills), partial(level_of, array)
        fill = array.fill_value if self.fills and array.metadata.zarr_format == 2 else None
        self.masked = None if fill is None else np.asarray(fill).item()
        """In format 2 the fill value, which stands for missing values to xarray."""
        self._bucket = Bucket(array.store, array.path) if is_remote(array.store) else None
        self._looking, self._looked = threading.Lock(), -math.inf
        self._piped = bounded(array) if self._direct is None else array

    def digest(self) -> str | None:
        """Digest of what is known of an array behind a URL and its chunks; None if that does not say what they are."""
        return None if self._bucket is None else self._bucket.digest()

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        array, native, there = self._piped, np.dtype(self._piped.dtype).isnative, False
        try:
            if self._direct is not None:
                there = self._direct.read(region, out)
            elif _buffers is None or not native or not region:
                np.copyto(out, np.asarray(_asked(self.spec, lambda: array[region])))
            else:  # chunks are decoded and put into their places in `out`, with no copy in between
                place, kind = _buffers.NDBuffer.from_numpy_array(out), _buffers.buffer_prototype
                _asked(self.spec, lambda: array.get_basic_selection(region, out=place, prototype=kind))
            if self._direct is None:
                self._look_after(region)
        except Exception as error:
            if self._direct is None and native and not isinstance(error, ChunkError):
                error = blamed(error, region, self.spec.chunks, array.get_basic_selection)
            raise unread(region, self.spec.name, error, what=self.kind) from error
        if not there and self._bucket is not None:
            self._look(self._bucket, region)
        if there or self._folder is None:
            return
        # Without its files every chunk reads as the fill value.
        if not any(os.path.exists(self._folder / name) for name in METADATA):
            name = self.spec.name
            message = f"the zarr array {name} was removed while {describe(region)} was read"
            raise ReadError(message, path=name, region=region)

    def _look(self, bucket: Bucket, region: Region) -> None:
        """Raise if a server that says that a chunk is not there says so of the array too.

        One request does for all threads that wait for one.
        """
        name, asked = self.spec.name, time.monotonic()
        with self._looking:
            if asked <= self._looked:
                return
            began = time.monotonic()
            try:
                found = bucket.get(METADATA[self._array.metadata.zarr_format == 2])
            except Exception as error:
                raise unread(region, name, error, what="of the zarr array") from error
            if found is None:
                raise ReadError(
                    f"the server answers that there is no zarr array {name}, while {describe(region)} of it was read: "
                    "it was removed, or the server gives this answer to other faults too",
                    path=name,
                    region=region,
                )
            self._looked = began

    def _look_after(self, region: Region) -> None:
        """Look at the chunks that zarr has read: whether any was changed or is missing."""
        array, folder = self._array, None if self._folder is None else Folder(str(self._folder), self.guard)
        try:
            sides = tuple(array.shards or array.chunks)
        except NotImplementedError:  # chunks of unequal sizes
            return
        if folder is None and not self.gaps.refuses:
            return
        for part in touched(region, sides):
            name = array.metadata.encode_chunk_key(part.chunk)
            try:
                with named(f"chunk {name}"):
                    if folder is not None:
                        folder.status(name)
                    elif not sync(array.store.exists(f"{array.path}/{name}".lstrip("/"))):
                        raise FileNotFoundError(errno.ENOENT, "there is no such object")
            except FileNotFoundError:
                if folder is not None:
                    with named(f"chunk {name}"):
                        folder.absent(name)
                self.gaps.note(part.chunk, tuple(array.shape), sides)

    def refuse_doubtful(self) -> None:
        """See `Sparse.refuse_doubtful`: a server may answer that there is nothing, whatever it is asked for."""
        gaps, store, name = self.gaps, self._array.store, self.spec.name
        if gaps.accepts or not gaps.number or gaps.number < gaps.total or not is_remote(store):
            return
        listed = Bucket(store, self._array.path).folders(1)
        if listed or name.startswith("http"):
            why = f"it lists {listed[0]!r}" if listed else "it lists nothing by which to tell"
            raise ReadError(
                f"every chunk of {name} is missing, says its server, but {why}: a result would be of the fill value "
                f"alone. If that is right, read cf.open({name!r}, missing='fill')",
                path=name,
            )

    @property
    def checksums(self) -> str:
        if self._direct is not None:
            return self._direct.chain.checksums
        return "crc32c" if "crc32c" in str(self._array.metadata.to_dict()) else ""

    def where(self, region: Region) -> str:
        name = self.spec.name
        if self._direct is None:
            return name
        key = self._direct.key(tuple(s.start // side for s, side in zip(region, self._direct.sides, strict=True)))
        return f"{name}/{key}{self._direct.offset(region)}"

    def keep(self, lately: DecodedChunks) -> None:
        """See `Keeping.keep`. Chunks in shards are not kept."""
        if isinstance(self._direct, Chunks):
            self._direct = replace(self._direct, lately=lately)

    def files(self, start: Shape, pieces: tuple[Piece, ...]) -> ChunkFiles | None:
        return self._direct.files(start, pieces, parts=True) if isinstance(self._direct, Chunks) else None

    def matches(self) -> float:
        return matches_in(self._direct)

    @property
    def since(self) -> int:
        return 0 if self.guard is None else self.guard.since

    def places(self, indices: Sequence[Shape]) -> Sequence[Place | None]:
        assert self._direct is not None
        return self._direct.places(indices)

    def cold(self, region: Region) -> int:
        """See `Filed.cold`: estimated from a sample of the chunks' files, so a guess if few chunks exist."""
        found = self._direct
        nbytes = math.prod(shape_of(region)) * self.spec.dtype.itemsize
        if found is None or self._folder is None or nbytes < page_cache.LEAST:
            return 0
        ends = [(r.start // side, -(-r.stop // side)) for r, side in zip(region, found.sides, strict=True)]
        number = math.prod(stop - start for start, stop in ends)
        indices = (tuple(page_cache.draw.randrange(*end) for end in ends) for _ in range(page_cache.SAMPLES))
        return page_cache.absent_files((str(self._folder / found.key(index)) for index in indices), number)

    def close(self) -> None:
        """See `Source.close`: zarr keeps no file open."""
        if isinstance(self._direct, Chunks) and self._direct.lately is not None:
            self._direct.lately.clear()


class ZarrTarget(ExistingTarget):
    """A `zarr.Array` of the user's."""

    def __init__(self, array: AnyArray) -> None:
        self.name = location_of(array)
        if array.read_only:
            raise ArgumentError(f"the output {self.name} was opened read-only: open it with mode='r+'")
        try:
            chunks = array.shards or array.chunks
        except NotImplementedError:
            raise ArgumentError(
                f"the output {self.name} has chunks of unequal sizes, to which blocks cannot be aligned"
            ) from None
        spec = _spec(array, chunks)[0]
        if spec.storage.remote:
            spec = spec.with_storage(copies=spec.storage.copies + SENT)
        self._array, self._spec = array, spec
        self.writes = str(_folder(array) or "")
        self.footprint: Footprint | None = _footprint(array)

    def open(self, spec: ArraySpec) -> ZarrSink:
        return ZarrSink(self._array, spec)

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        return encoder_for(self._array)


class ZarrSink:
    """A zarr array that is being written, chunk by chunk or shard by shard."""

    def __init__(self, array: AnyArray, spec: ArraySpec) -> None:
        self._array, self.spec = array, spec
        # A store in memory keeps an uncompressed chunk as the very array it was given, and ours is a
        # staging buffer that is filled again. A file has been written once the call returns.
        self._copies = not isinstance(array.store, LocalStore)
        self._direct = _direct(array)[0]

    def write(self, region: Region, block: np.ndarray) -> None:
        if not block.size:
            return
        try:
            if self._direct is None or not self._direct.write(region, block):
                _asked(self.spec, lambda: self._array.__setitem__(region, block.copy() if self._copies else block))
        except Exception as error:
            raise unwritten(region, self.spec.name, error, "to the zarr array") from error

    def files(self, start: Shape, pieces: tuple[Piece, ...]) -> ChunkFiles | None:
        return self._direct.files(start, pieces, parts=False) if isinstance(self._direct, Chunks) else None

    def commit(self) -> Any:
        return self._array

    def abort(self) -> None: ...
