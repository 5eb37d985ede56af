"""Sources of HDF5 datasets. Bytes are read from the file at positions if possible, else through h5py.

h5py does one thing at a time, under a lock of its own, so any thread may call it. As a rule it only says where
bytes are. It reads elements itself if they are not bytes of a plain file (a file in memory, another driver), if a
filter is unknown here, or if HDF5 has to convert their type.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from contextlib import closing, suppress
from functools import partial
from typing import Any

import h5py
import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of, shift, whole, within
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ReadError, SourceNotFoundError
from chunkflow.stores.caches import page_cache
from chunkflow.stores.caches.decoded_chunks import PARTED, DecodedChunks, is_part
from chunkflow.stores.cf import NAMES
from chunkflow.stores.cf_times import OF_TIMES
from chunkflow.stores.codecs.step import NotDirectError, checksum_of
from chunkflow.stores.failures import blamed, translated, unread
from chunkflow.stores.file.strided import FileSource, Strided, pread
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.gaps import Gaps
from chunkflow.stores.hdf5 import scales
from chunkflow.stores.hdf5.facts import (
    Facts,
    broken_link,
    datasets,
    facts_of,
    flush,
    inode,
    lacking,
    members,
    open_file,
)
from chunkflow.stores.hdf5.filters import ChunkLocation, FilterPipeline
from chunkflow.stores.hdf5.index import Index
from chunkflow.stores.hdf5.labels import conventions_of, labels_of
from chunkflow.stores.hdf5.together import SMALL, read_together, slabs
from chunkflow.stores.identity import Guard
from chunkflow.stores.kvstore.protocol import ChunkError, named
from chunkflow.stores.new_array import StoredLabels
from chunkflow.stores.paths import hdf5_parts
from chunkflow.stores.protocol import Source, Unviewed
from chunkflow.stores.touched import TouchedChunk, touched
from chunkflow.system.files import open_regular

SLABS = 64 << 10
"""Least bytes of an unencoded chunk of which parts are read by themselves, if parts along its first long side are runs
of the file: to read a whole one takes as long as to open the file."""


def open_hdf5(path: str) -> Source:
    """Source of the dataset with a path, as ``"x.h5:/u"``; its name may be left out if the file holds a single one.

    Raises
    ------
    SourceNotFoundError
        There is no such file, or no such dataset in it.
    ArgumentError
        The file is in another format, the name is a group's, or the dataset's elements lie in other files.
    ArgumentTypeError
        The dataset's dtype cannot be processed.
    ReadError
        The file cannot be read.
    """
    parts = hdf5_parts(path)
    assert parts is not None, path
    path, name = os.path.abspath(parts[0]), parts[1]
    guard = Guard.of_files(path, path)
    file = open_file(path, name)
    with translated(ReadError, f"cannot open {path}:{name or ''}", path, file.close):
        dataset = _found(file, path, name)
        attributes = conventions_of(dataset, (*NAMES, *OF_TIMES))
        short, dataset_name = scales.shortage(dataset), dataset.name
        source = _opened(dataset, file, guard)  # which may close the file
        source.attributes, source.short = attributes, short
        source.labels = partial(_labels_at, path, dataset_name)
        return source


def inside(path: str) -> list[str]:
    """Paths of the datasets in a file, or in one of its groups; none of a dataset."""
    parts = hdf5_parts(path)
    assert parts is not None, path
    file, name = parts[0], (parts[1] or "").strip("/")
    with translated(ReadError, f"cannot look into {path}", path), open_file(os.path.abspath(file)) as opened:
        group = opened.get(name) if name else opened
        if not isinstance(group, h5py.Group):
            return []
        return [f"{file}:/{name}/{each}" if name else f"{file}:/{each}" for each in datasets(group, sys.maxsize)]


def _labels_at(path: str, name: str) -> StoredLabels:
    """Labels of a dataset in a file, which is opened for it: copies alone ask for them."""
    with translated(ReadError, f"cannot read attributes of {path}:{name}", path), closing(open_file(path)) as file:
        return labels_of(file[name])


def _found(file: Any, path: str, name: str | None) -> Any:
    if name is None:
        names = datasets(file, 2)
        if len(names) != 1:
            raise ArgumentError(
                f"{path} does not hold a single dataset: add the name of one, as in '{path}:/name' ({members(file)})"
            )
        name = names[0]
    broken = broken_link(file, path, name)
    if broken:
        raise SourceNotFoundError(f"there is no dataset {name!r} in {path}: {broken}")
    node = file.get(name)
    if node is None:
        raise SourceNotFoundError(f"there is no dataset {name!r} in {path}, but: {members(file)}")
    if not isinstance(node, h5py.Dataset):
        raise ArgumentError(f"{name!r} in {path} is a group: pass the path of one of its datasets ({members(node)})")
    return node


def dataset_source(dataset: Any) -> Source:
    """Source of an `h5py.Dataset` of the user's."""
    if not dataset:
        raise ArgumentError(
            "the file of an HDF5 dataset was closed before it could be read: keep it open until the run is over"
        )
    source = _opened(dataset, None, None)
    source.labels = partial(labels_of, dataset)
    return source


def _opened(dataset: Any, file: Any, guard: Guard | None) -> FileSource | Hdf5Source:
    """Source of a dataset. `file`, if given, was opened for it and is closed with it or before."""
    flush(dataset)
    facts = facts_of(dataset)
    guard = _guard(dataset, facts, guard)
    if facts.elsewhere and file is not None:
        raise ArgumentError(
            f"the elements of {facts.name} lie in other files (a virtual dataset, or external storage), which are not "
            "opened because a file says so: open it with h5py and pass the h5py.Dataset"
        )
    if facts.offset is not None and facts.path is not None:
        source = FileSource(Strided.packed(facts.path, facts.offset, facts.shape, facts.dtype, name=facts.name), guard)
        if file is not None:
            file.close()
        return source
    return Hdf5Source(_Handle(dataset, file, facts.path), facts, guard)


def _guard(dataset: Any, facts: Facts, made: Guard | None) -> Guard | None:
    """Guard of a dataset's file, as `made` before that was opened, or now if it is the user's own."""
    if facts.path is None:
        return None
    paths = [facts.path, *(_other_files(dataset, facts.path) if facts.elsewhere else ())]
    guard = made if made and len(paths) == 1 else Guard.of_files(facts.name, *paths)
    file = dataset.file
    if file.mode != "r" or file.swmr_mode:  # this process writes to it, or a single writer that HDF5 knows of
        guard = Guard.of_files(facts.name, facts.path)
        guard.release()
    return guard


def _other_files(dataset: Any, path: str) -> list[str]:
    """The files in which the elements of a virtual dataset lie, or of one in external storage, as far as they exist."""
    if dataset.is_virtual:
        names = [source.file_name for source in dataset.virtual_sources()]
    else:
        names = [name for name, _, _ in dataset.external or ()]
    found = (os.path.join(os.path.dirname(path), os.fsdecode(name)) for name in names if name != ".")
    return [each for each in dict.fromkeys(found) if os.path.exists(each)]


class _Handle:
    """A dataset: the user's own, or one whose file is opened when it is needed."""

    def __init__(self, dataset: Any, file: Any, path: str | None) -> None:
        self._dataset, self._file = dataset, file
        self._where = None if file is None else (path or file.filename, dataset.name)
        self._inode = path and inode(path)
        self._lock = threading.Lock()

    def get(self) -> Any:
        """The open dataset."""
        with self._lock:
            if self._dataset is None:
                assert self._where is not None
                path, name = self._where
                self._file = h5py.File(path, "r")
                if self._inode and inode(path) != self._inode:
                    raise OSError("another file was put in its place")
                self._dataset = self._file[name]
            return self._dataset

    def release(self) -> None:
        """Close what was opened here. Idempotent."""
        with self._lock:
            if self._file is not None:
                self._dataset, file, self._file = None, self._file, None
                with suppress(OSError, RuntimeError):  # it was only read
                    file.close()


def _how(facts: Facts) -> str:
    """How elements are read, for people."""
    if facts.chain is not None and facts.chain.decodes:
        return f"directly: {facts.chain}"
    unindexed = "not chunked" if facts.chunks is None else "it grows along an axis that is not the first"
    reason = facts.chain or (unindexed if facts.plain else "HDF5 converts its type")
    return f"through h5py, by one thread at a time: {reason}"


def _is_parted(facts: Facts) -> bool:
    """Whether parts of unencoded chunks are read by themselves: they are long runs of the file, or chunks are large."""
    if facts.path is None or facts.chunks is None:
        return False
    nbytes = math.prod(facts.chunks) * facts.dtype.itemsize
    cut = next((axis for axis, side in enumerate(facts.chunks) if side > 1), 0)
    slabs = facts.chunks[cut + 1 :] == facts.shape[cut + 1 :]
    return nbytes >= (SLABS if slabs else PARTED)


class Hdf5Source(Unviewed):
    """A dataset that is read chunk by chunk, or by h5py. Chunks that were never written read as the fill value."""

    def __init__(self, handle: _Handle, facts: Facts, guard: Guard | None) -> None:
        self._handle, self._facts, self.guard, self.gaps = handle, facts, guard, Gaps()
        self._chain = facts.chain if facts.chain is not None and facts.chain.decodes else None
        raw = self._chain is not None and not self._chain.filters
        self._parted = raw and _is_parted(facts)
        self.spec: ArraySpec = facts.spec.with_storage(
            how=_how(facts),
            kept=self._chain is not None and not self._parted,
            raw=raw,
            parted=self._parted,
            copies=1.0 - self._parted if raw else facts.spec.storage.copies,
        )
        self.footprint: Footprint | None = facts.footprint
        self._index: Index | None = None
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._lately: DecodedChunks | None = None
        if self._chain is None:
            return
        if facts.path is not None:
            with translated(ReadError, f"cannot open {facts.path}", facts.path):
                self._fd = open_regular(facts.path)
            # An open handle would keep a result from being written into the same file.
            handle.release()

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        try:
            if self._chain is None:
                self._through_h5py(region, out)
                return
            index = self._index or self._learn()
            if self._fd is None or self._chain.nbytes > SMALL:
                self._one_by_one(self._chain, index, region, out)
                return
            for slab in slabs(region, self._facts.chunks or (), self._chain.nbytes):
                into = out[within(slab, region)]
                if not read_together(self._fd, index, self._chain, self._facts, slab, into):
                    self._one_by_one(self._chain, index, slab, into)
        except Exception as error:
            raise unread(region, self.spec.name, error, what="of the HDF5 dataset") from error

    def _one_by_one(self, chain: FilterPipeline, index: Index, region: Region, out: np.ndarray) -> None:
        for part in touched(region, self._facts.chunks or ()):
            with named(f"chunk {part.chunk}"):
                self._read(chain, index, part, region, out[part.place])

    @property
    def checksums(self) -> str:
        steps = (self._chain and self._chain.steps) or ()
        return " and ".join(filter(None, map(checksum_of, steps)))

    def where(self, region: Region) -> str:
        facts = self._facts
        if facts.path is None or self._chain is None or facts.chunks is None:
            return facts.name
        index = self._index or self._learn()
        place = index.find(tuple(s.start // side for s, side in zip(region, facts.chunks, strict=True)))
        return facts.path if place is None else f"{facts.path}, from byte {place.address} on"

    def keep(self, lately: DecodedChunks) -> None:
        self._lately = lately

    def learn(self) -> None:
        if self._chain is None:
            return
        try:
            self._learn()
        except Exception as error:
            everything = whole(self.spec.shape)
            raise unread(everything, self.spec.name, error, what="of the HDF5 dataset") from error

    def _learn(self) -> Index:
        with self._lock:
            if self._index is None:
                dataset = self._handle.get()
                flush(dataset)
                self._index = Index(dataset)
                if self._fd is not None:
                    self._handle.release()
            return self._index

    def _read(
        self, chain: FilterPipeline, index: Index, part: TouchedChunk, region: Region, target: np.ndarray
    ) -> None:
        """Put a chunk, or the wanted part of it, into `target`."""
        facts = self._facts
        chunks = facts.chunks or ()
        place = index.find(part.chunk)
        if place is None:
            self.gaps.note(part.chunk, facts.shape, chunks)
            target[...] = facts.fill
            return
        straight = shape_of(part.inner) == chunks and target.flags.c_contiguous and facts.dtype.isnative
        corner = tuple(i * c for i, c in zip(part.chunk, chunks, strict=True))
        partial = any(at + c > n for at, c, n in zip(corner, chunks, facts.shape, strict=True))

        def fetch(raw: np.ndarray) -> None:
            if self._fd is not None:
                pread(self._fd, place.address, raw)
            else:
                _, found = self._handle.get().id.read_direct_chunk(corner)
                raw[...] = np.frombuffer(found, np.uint8)

        def decoded(out: np.ndarray) -> np.ndarray:
            chain.decode(place, fetch, out.reshape(-1).view(np.uint8), partial=partial)
            return out

        try:
            if straight:
                decoded(target)
                return
            if self._parted:
                chain.checked(place, partial=partial)
                self._read_part(place, part.inner, target)
                return
            if self._lately is not None and is_part(part.chunk, part.inner, chunks, facts.shape):
                whole = self._lately.get((id(self), *part.chunk), lambda: decoded(np.empty(chunks, facts.dtype)))
            else:
                whole = decoded(np.empty(chunks, facts.dtype))
        except NotDirectError as reason:
            try:
                self._elements(shift(part.place, [side.start for side in region]), target)
            except Exception as error:
                raise ChunkError(f"{reason}. HDF5 says: {error}{lacking(self._handle.get())}") from error
            return
        target[...] = whole[part.inner]

    def _read_part(self, place: ChunkLocation, inner: Region, target: np.ndarray) -> None:
        facts = self._facts
        assert facts.path is not None
        lying = Strided.packed(facts.path, place.address, facts.chunks or (), facts.dtype, name=self.spec.name)
        with closing(FileSource(lying, guarded=False)) as file:
            file.read(inner, target)

    def _check(self, region: Region) -> None:
        """Raise if HDF5 would decode more than a chunk has."""
        pipeline, chunks, dataset = self._facts.pipeline, self._facts.chunks, self._handle.get()
        if pipeline is None or not chunks or not pipeline.filters:
            return
        index = None if self._facts.misplaced else self._index or self._learn()
        for part in touched(region, chunks):
            corner = tuple(i * c for i, c in zip(part.chunk, chunks, strict=True))
            partial = any(at + c > n for at, c, n in zip(corner, chunks, self._facts.shape, strict=True))

            def load(corner: Shape = corner) -> tuple[int, bytes]:
                mask, raw = dataset.id.read_direct_chunk(corner)
                return mask, raw

            with named(f"chunk {part.chunk}"):
                if index is None:  # HDF5 finds it by its place, but does not tell its size beforehand
                    try:
                        mask, raw = load()
                    except (OSError, ValueError, RuntimeError):  # it was never written
                        continue
                    pipeline.check(len(raw), mask, lambda raw=raw: raw, partial=partial)  # type: ignore[misc]
                elif (place := index.find(part.chunk)) is not None:
                    pipeline.check(place.size, place.mask, lambda: load()[1], partial=partial)

    def _through_h5py(self, region: Region, out: np.ndarray) -> None:
        if self.gaps.refuses:
            self._refuse_gaps(region)
        self._check(region)
        try:
            self._elements(region, out)
        except Exception as error:
            dataset = self._handle.get()
            found = blamed(error, region, self._facts.chunks, dataset.__getitem__)
            raise ChunkError(f"{found}{lacking(dataset)}") from error

    def refuse_doubtful(self) -> None:
        """See `Sparse.refuse_doubtful`: the file's own index says what there is."""

    def _refuse_gaps(self, region: Region) -> None:
        """Raise if a part of a region was never written, of a dataset that HDF5 reads."""
        facts, dataset = self._facts, self._handle.get()
        if facts.chunks is None:
            if not facts.stored and not facts.elsewhere:
                raise ChunkError("nothing of it was ever written, and missing='error' was asked for")
            return
        for part in touched(region, facts.chunks):
            corner = tuple(i * c for i, c in zip(part.chunk, facts.chunks, strict=True))
            if dataset.id.get_chunk_info_by_coord(corner).byte_offset is None:
                self.gaps.note(part.chunk, facts.shape, facts.chunks)

    def _elements(self, region: Region, out: np.ndarray) -> None:
        np.copyto(out, np.asarray(self._handle.get()[region]), casting="same_kind")

    def cold(self, region: Region) -> int:
        """See `Filed.cold`: all parts of a file are assumed to be cached alike."""
        nbytes = int(self._facts.stored * math.prod(shape_of(region)) / max(self.spec.size, 1))
        if self._fd is None or nbytes < page_cache.LEAST:
            return 0
        return int(nbytes * (page_cache.absent(self._fd, 0, os.fstat(self._fd).st_size) or 0.0))

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        self._handle.release()
        if self._lately is not None:
            self._lately.clear()
