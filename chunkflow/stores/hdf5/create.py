"""HDF5 datasets that a run creates at a path, in a new file or in one that exists.

A dataset's room in the file is reserved when it is created, so many threads write elements at positions. With filters,
which must be asked for, HDF5 can place a chunk only when its encoded size is known: it writes one after the other.
"""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import mul
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

from chunkflow.core import grid
from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec, ByteRun, default_chunks
from chunkflow.core.unknown import is_known_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, OutputExistsError, WriteError
from chunkflow.stores import checksums, paths
from chunkflow.stores.checks import conversion, numeric_dtype
from chunkflow.stores.codecs.step import encoded
from chunkflow.stores.commit import opened_all
from chunkflow.stores.failures import translated, unwritten
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.file.strided_sink import FileSink, reserve
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.hdf5 import scales
from chunkflow.stores.hdf5.encoding import attributes_of, fill_of, filters_of
from chunkflow.stores.hdf5.facts import PARTIAL
from chunkflow.stores.hdf5.filters import SHUFFLE, FilterPipeline, Hdf5Filter
from chunkflow.stores.hdf5.host import LOCK, Host, enter, opened
from chunkflow.stores.hdf5.index import Index, full_chunk, limited
from chunkflow.stores.hdf5.labels import fitting
from chunkflow.stores.new_array import NewArray, StoredLabels
from chunkflow.stores.paths import existing
from chunkflow.stores.protocol import Encoder
from chunkflow.stores.publication.claim import Claim, refuse_left
from chunkflow.stores.publication.publish import publish
from chunkflow.stores.publication.settle import hidden_by
from chunkflow.stores.touched import aligned, touched
from chunkflow.system import interrupts

UNKNOWN_TO_NETCDF = tuple(np.dtype(kind) for kind in ("float16", "longdouble", "clongdouble"))
"""Dtypes of HDF5 that netCDF lacks: its library opens no file with one, or takes its elements for pointers."""

PART = 1 << 18
"""Bytes of a contiguous dataset that are copied at a time: a small share of any budget."""


class Hdf5PathTarget:
    """A dataset that the run creates: it appears under its name when it is complete.

    ``"result.h5:/run/speed"`` creates the file ``result.h5`` if there is none, and the group ``run``. Until the array
    is complete a new file has a hidden name, and a dataset in a file that exists has one in that file. The dataset is
    contiguous, or has the chunks that are wished for; it has the filters that are said.

    With `overwrite`, a dataset of that name is kept until then, and what it took of the file is lost: HDF5 gives
    nothing back before ``h5repack``. Its dimension scales are those of the new one, if that has the same shape; its
    filters and other attributes are gone with it. A scale is replaced by one of the same shape only. Groups, and files
    in other formats, are never replaced.
    """

    footprint: Footprint | None = None

    takes_labels = True

    def __init__(self, path: str, *, overwrite: bool = False, said: NewArray | None = None) -> None:
        self.said = said or NewArray(path)
        parts = paths.hdf5_named(path) or _split(path)
        self.path, name = paths.resolve(parts[0]), parts[1]
        self.dataset = "/".join(part for part in (name or paths.DATASET).split("/") if part not in ("", "."))
        self.name = f"{self.path}:/{self.dataset}"
        self.writes = self.path
        self._overwrite = overwrite
        self._fixed: Shape | None = None
        self._named: dict[str, Shape | None] = {}
        attributes_of(self.said, self.name)  # a wrong one is refused
        self._of_netcdf = self.path.lower().endswith(".nc")
        if not self.dataset:
            raise ArgumentError(f"{self.path}:{name} names no dataset: add a name, as in '{self.path}:/name'")
        paths.require_directory(os.path.dirname(self.path), self.name)
        if os.path.lexists(self.path):
            self._check_file()

    def _check_file(self) -> None:
        with translated(WriteError, f"cannot look at {self.path}, which exists", self.path):
            if not os.path.isfile(self.path) or not h5py.is_hdf5(self.path):
                raise ArgumentError(
                    f"{self.path} is not an HDF5 file, and is not overwritten: remove it, or choose another output"
                )
            with LOCK, opened(self.path) as file:
                self.check(file)

    def check(self, file: Any) -> None:
        """Refuse a name that is taken in an open file, or that no dataset can have."""
        self._of_netcdf = self._of_netcdf or "_NCProperties" in file.attrs
        self._note_dimensions(file)
        *above, _ = parts = self.dataset.split("/")
        for i in range(len(above)):
            parent = "/".join(parts[: i + 1])
            if isinstance(file.get(parent, getlink=True), h5py.ExternalLink):
                raise ArgumentError(f"the output {self.name} would lie in another file, to which {parent!r} links")
            if parent in file and not isinstance(file[parent], h5py.Group):
                raise ArgumentError(f"the output {self.name} would lie inside {parent!r}, which is no group")
        if file.get(self.dataset, getlink=True) is None:
            return
        if self.dataset in file and not isinstance(file[self.dataset], h5py.Dataset):
            raise ArgumentError(
                f"{self.name} is no dataset, and is not overwritten: remove it, or choose another output"
            )
        if not self._overwrite:
            raise existing(self.name, "h5py.Dataset")
        self._fixed = scales.fixed(file[self.dataset]) if self.dataset in file else None

    def fitting(self, labels: StoredLabels, shape: Shape) -> StoredLabels:
        """Those labels of another array that the dataset can have in this file."""
        own = self.dataset.rpartition("/")[2]
        if not os.path.lexists(self.path):
            return fitting(labels, own, lambda name, n: True, shape)
        about = f"cannot look at {self.path}, which exists"
        with translated(WriteError, about, self.path), LOCK, opened(self.path) as file:

            def is_free(name: str, n: int) -> bool:
                found = scales.found(file, self.dataset, name)
                return found is None or (isinstance(found, h5py.Dataset) and scales.fixed(found) == (n,))

            return fitting(labels, own, is_free, shape)

    def _note_dimensions(self, file: Any) -> None:
        """Note what has the names of the dimensions that are said."""
        for name in self.said.dimension_names or ():
            if name is not None and name != self.dataset.rpartition("/")[2]:
                found = scales.found(file, self.dataset, name)
                if found is not None:
                    self._named[name] = scales.fixed(found) if isinstance(found, h5py.Dataset) else None

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        dtype, shape = numeric_dtype(dtype, "the result"), tuple(shape)
        if self._fixed not in (None, shape):
            raise ArgumentError(
                f"{self.name} is a dimension scale of shape {self._fixed}, by which other datasets know the length of "
                f"an axis: it is not replaced by a result of shape {shape}. Give the result another name"
            )
        try:
            h5t.py_create(dtype, logical=True)
        except TypeError:
            advice = conversion("complex128" if dtype.kind == "c" else "float64")
            raise ArgumentTypeError(f"the result has dtype {dtype}, which HDF5 cannot store: {advice}") from None
        if self._of_netcdf and dtype.newbyteorder("=") in UNKNOWN_TO_NETCDF:
            near = {2: "float32", 16: "float64", 32: "complex128"}[dtype.itemsize]
            raise ArgumentTypeError(
                f"the result has dtype {dtype}, which netCDF lacks, and its library opens no file with one: "
                f"{conversion(near)}, or name a file of HDF5 that does not end in .nc"
            )
        self.said.check_shape(shape, self.name)
        self._check_dimensions(shape)
        if is_known_dtype(dtype):
            fill_of(self.said, dtype, self.name)
        filters = self.filters
        if not shape:
            checksums.refuse_if_wanted(self.name, "an array without axes has no chunks")
            if filters:
                raise ArgumentError(
                    f"the output {self.name} has no axes, so it has no chunks to filter: leave compressors= and "
                    "filters= out"
                )
        if not shape or (0 in shape and self.said.maxshape is None):
            return ArraySpec(self.name, shape, dtype)
        if 0 in shape:  # it is to grow: its chunks are those of an array of one row
            full = tuple(max(n, 1) for n in shape)
            sides = self.said.chunks_of(full, None) or default_chunks(full, dtype.itemsize)
            return ArraySpec(self.name, shape, dtype, chunks=limited(full, sides, dtype.itemsize))
        chunks = self.said.chunks_of(shape, chunks)
        if chunks is None:
            if not filters and self.said.maxshape is None:
                return ArraySpec(self.name, shape, dtype)
            chunks = default_chunks(shape, dtype.itemsize)
        if len(chunks) != len(shape) or any(side < 1 for side in chunks):
            raise ArgumentError(f"chunks {tuple(chunks)} do not suit a result of shape {shape}")
        return ArraySpec(self.name, shape, dtype, chunks=limited(shape, chunks, dtype.itemsize))

    def _check_dimensions(self, shape: Shape) -> None:
        """Refuse names of dimensions that stand for others."""
        for name, n in zip(self.said.dimension_names or (), shape, strict=False):
            if name is not None and "/" in name:
                raise ArgumentError(f"dimension_names: {name!r} has a slash, which is no part of a name in HDF5")
            if name in self._named and self._named[name] != (n,):
                there = self._named[name]
                what = "which is no dimension scale" if there is None else f"a dimension scale of shape {there}"
                raise ArgumentError(
                    f"dimension_names: there is {name!r} in {self.path}, {what}, and the axis of the result has the "
                    f"length {n}"
                )
            if name == self.dataset.rpartition("/")[2] and len(shape) != 1:
                raise ArgumentError(
                    f"dimension_names: {name!r} is the name of the result itself, of {len(shape)} dimensions: only an "
                    "array of one dimension is a scale of its own"
                )

    @property
    def filters(self) -> tuple[Hdf5Filter, ...]:
        """Filters of the dataset's chunks."""
        return filters_of(self.said, self.name, checksums=checksums.wanted(default=False))

    def encoder(self, spec: ArraySpec) -> Encoder | None:
        pipeline = _pipeline(self.filters, spec)
        if not self.filters or spec.chunks is None or not pipeline.encodes:
            return None
        steps = pipeline.steps or ()
        return lambda block: encoded(np.ascontiguousarray(block, spec.dtype), steps)

    def finish(self, dataset: Any) -> None:
        """Give a dataset what is said of it besides its elements."""
        for name, value in attributes_of(self.said, self.name).items():
            # To netCDF a missing value is of the dtype of the elements.
            is_missing = name == "_FillValue" and dataset.dtype.kind in "iuf" and isinstance(value, int | float)
            dataset.attrs[name] = dataset.dtype.type(value) if is_missing else value

    def name_dimensions(self, dataset: Any) -> None:
        """Give a dataset the names of its dimensions, in the file where it has its own name."""
        if self.said.dimension_names is not None:
            scales.attach(dataset, self.said.dimension_names)

    @property
    def claimed(self) -> tuple[str, str]:
        """What the claim on its blocks is on."""
        return (paths.blocks_place(self.name),) * 2

    def claim(self) -> Claim:
        """The claim on the blocks of a run that a later one may go on with, or on those that are left."""
        with translated(WriteError, f"cannot keep blocks of {self.name}", self.name, foreign=OSError):
            return Claim(*self.claimed, resumes=True, called=self.name)

    def open(self, spec: ArraySpec, claim: Claim | None = None) -> Hdf5PathSink | StagedSink:
        """The sink; with a `claim` one that keeps blocks where a later run finds them."""
        if claim is not None:
            return StagedSink(self, spec, claim)
        with translated(WriteError, f"cannot create {self.name}", self.name, foreign=OSError):
            refuse_left(self.name)
        return Hdf5PathSink(self, spec)

    @property
    def is_there(self) -> bool:
        """Whether a dataset has the name."""
        with contextlib.suppress(OSError), LOCK, opened(self.path) as file:
            return self.dataset in file
        return False

    def is_made(self, spec: ArraySpec) -> bool:
        """Whether the dataset has the elements of the blocks that are left, to the bit: HDF5 knows it by no number."""
        blocks = hidden_by(self.claimed[0])
        if blocks is None or not os.path.isfile(blocks) or os.stat(blocks).st_size != spec.nbytes:
            return False
        place = Strided.packed(blocks, 0, spec.shape, spec.dtype, name=self.name)
        with translated(WriteError, f"cannot look at {self.name}", self.name), LOCK, opened(self.path) as file:
            found = file.get(self.dataset)
            if not isinstance(found, h5py.Dataset) or (found.shape, found.dtype) != (spec.shape, spec.dtype):
                return False
            return all(part.tobytes() == found[region].tobytes() for region, part in _parts(place, spec))

    def opened(self, spec: ArraySpec) -> Any:
        """The finished dataset, for the user."""
        return h5py.File(self.path, "r+")[self.dataset]


class Hdf5PathSink:
    """A dataset that is being written under a hidden name. Its file is taken meanwhile."""

    def __init__(self, target: Hdf5PathTarget, spec: ArraySpec) -> None:
        self.spec, self._target = spec, target
        self._hidden = f".{target.dataset.replace('/', '.')}.{uuid.uuid4().hex}{PARTIAL}"
        self._host: Host | None = None
        self._claims: list[Claim] = []
        self._locked = False
        self._sink: FileSink | None = None
        self._index: Index | None = None
        self._filters = target.filters if spec.chunks is not None else ()
        self._pipeline = _pipeline(self._filters, spec)
        self._opened: Any = None
        with translated(WriteError, f"cannot create {target.name}", target.name, self.abort), LOCK:
            self._host = enter(target.path, target.dataset)
            self._create(self._host)

    def _create(self, host: Host) -> None:
        spec = self.spec
        made = h5p.create(h5p.DATASET_CREATE)
        if spec.chunks is None:
            made.set_layout(h5d.CONTIGUOUS)
        else:
            made.set_chunk(spec.chunks)
        for each in self._filters:
            each.put(made)
        if not self._filters:
            made.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        fill = fill_of(self._target.said, spec.dtype, self._target.name)
        if fill is not None:
            made.set_fill_value(fill.reshape(1))
        made.set_fill_time(h5d.FILL_TIME_NEVER)
        made.set_obj_track_times(False)
        space = h5s.create_simple(spec.shape, self._most) if spec.shape else h5s.create(h5s.SCALAR)
        kind = h5t.py_create(spec.dtype, logical=True)
        inside = host.file.id
        try:
            dataset = h5py.Dataset(h5d.create(inside, self._hidden.encode(), kind, space, made))
        except ValueError as error:  # a filter that another program put on HDF5's path, and that fits another HDF5
            through = " + ".join(map(str, self._filters)) or "none"
            raise ValueError(f"{error}; its filters are {through}, and `import hdf5plugin` has most") from error
        self._target.finish(dataset)
        size, path = host.size, host.at
        if not spec.size or self._filters:  # HDF5 knows places of encoded chunks when they are written
            return
        fresh = reserve(path, size)
        if spec.chunks is not None:
            self._index = Index(dataset)
            self._sink = FileSink(Strided(path, 0, (0,), (1,), np.dtype("u1"), self._target.name))
            return
        offset, name = dataset.id.get_offset(), self._target.name
        self._sink = FileSink(Strided.packed(path, offset, spec.shape, spec.dtype, name=name), fresh=fresh)

    @property
    def _most(self) -> tuple[int, ...] | None:
        """Lengths to which the dataset may grow; None for those that it has."""
        most = self._target.said.maxshape
        if most is None or self.spec.chunks is None:
            return None
        return tuple(h5s.UNLIMITED if n is None else n for n in most)

    def write(self, region: Region, block: np.ndarray) -> None:
        if not block.size:
            return
        sink, index, spec = self._sink, self._index, self.spec
        if sink is not None and index is None:
            sink.write(region, block)
            return
        chunks, fill = spec.chunks or (), np.zeros((), spec.dtype)
        try:
            if self._filters and not self._pipeline.encodes:
                with LOCK:
                    assert self._host is not None
                    self._host.file[self._hidden][region] = block
                return
            if not aligned(region, chunks, spec.shape):
                raise ValueError(f"the region cuts chunks of {chunks}")
            for chunk, inner, place in touched(region, chunks):
                self._put(chunk, full_chunk(block[place], inner, chunks, spec.dtype, fill).reshape(-1).view(np.uint8))
        except (OSError, ValueError, RuntimeError) as error:  # of HDF5
            raise unwritten(region, spec.name, error) from error

    def _put(self, chunk: Shape, whole: np.ndarray) -> None:
        """Write a chunk: at its place, or encoded where HDF5 makes one."""
        if self._index is None:
            corner, raw = tuple(map(mul, chunk, self.spec.chunks or ())), bytes(self._pipeline.encode(whole))
            with LOCK:
                assert self._host is not None
                self._host.file[self._hidden].id.write_direct_chunk(corner, raw)
            return
        found = self._index.find(chunk)
        if found is None:
            raise OSError(f"chunk {chunk} has no place in the file")
        assert self._sink is not None
        self._sink.put(found.address, whole)

    def run(self, region: Region) -> ByteRun | None:
        return self._sink.run(region) if self._sink is not None and self._index is None else None

    def ready(self) -> list[Claim]:
        """See `Publishing.ready`. No other sink changes a file from here on to `published` or `abort`."""
        name = self._target.name
        with translated(WriteError, f"cannot finish {name}", name, self.abort):
            if self._sink is not None:
                self._sink.close()  # a network file system may report a failed write only now
            LOCK.acquire()
            self._locked = True
            assert self._host is not None
            if self._host.is_new and os.path.lexists(self._target.path):
                raise OutputExistsError(
                    f"another program made the file {self._target.path} while {name} was written: run again, with "
                    "another output"
                )
            self._place(self._host.file)
            self._claims = self._host.seal()
            return self._claims

    def published(self) -> Any:
        """The dataset, in a file that is open for writing until it is closed."""
        assert self._host is not None
        self._host.release()
        self._opened = h5py.File(self._target.path, "r+")
        found = self._opened[self._target.dataset]
        self._end()
        return found

    def unpublish(self) -> None:
        """See `Publishing.unpublish`."""
        if self._opened:
            self._opened.close()

    def commit(self) -> Any:
        name = self._target.name
        claims = self.ready()
        with translated(WriteError, f"cannot finish {name}", name, self.abort):
            return publish(claims, partial(opened_all, [self]))[0]

    def _place(self, file: Any) -> None:
        """Give the dataset its name."""
        target = self._target
        target.check(file)
        old = f".{self._hidden}" if file.get(target.dataset, getlink=True) is not None else None
        if old is not None:
            file.move(target.dataset, old)
        try:
            file.move(self._hidden, target.dataset)
            if old is not None and old in file:
                scales.hand_over(file[old], file[target.dataset])
            target.name_dimensions(file[target.dataset])
        except BaseException:
            if old is not None:
                if target.dataset in file:
                    file.move(target.dataset, self._hidden)
                file.move(old, target.dataset)
            raise
        if old is not None:
            del file[old]

    def _end(self) -> None:
        """Leave the file, and let others."""
        host, self._host = self._host, None
        try:
            if host is not None:
                with LOCK:
                    host.leave()
        finally:
            if self._locked:
                self._locked = False
                LOCK.release()

    def abort(self) -> None:
        with contextlib.suppress(Exception):
            if self._sink is not None:
                self._sink.close()
        with LOCK, contextlib.suppress(Exception):
            host = self._host
            if host is not None and not (self._locked and host.is_released) and self._hidden in host.file:
                del host.file[self._hidden]
        with contextlib.suppress(Exception):
            self._end()
        for claim in self._claims:
            claim.end()


class StagedSink:
    """A dataset whose blocks are kept in a hidden file beside its own, and copied into that when all are there.

    HDF5 says where elements lie only in metadata that it writes at the end: what a run that dies had written into the
    file itself, nobody finds.
    """

    def __init__(self, target: Hdf5PathTarget, spec: ArraySpec, claim: Claim) -> None:
        self.spec, self._target, self._claim = spec, target, claim
        self._blocks: FileSink | None = None
        self._dataset: Hdf5PathSink | None = None
        with translated(WriteError, f"cannot keep blocks of {target.name}", target.name, self.abort, OSError):
            fresh = False
            if not claim.is_left:
                os.close(os.open(claim.partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                fresh = bool(spec.size) and reserve(claim.partial, spec.nbytes)
            self._place = Strided.packed(claim.partial, 0, spec.shape, spec.dtype, name=target.name)
            self._blocks = FileSink(self._place, fresh=fresh)

    def write(self, region: Region, block: np.ndarray) -> None:
        assert self._blocks is not None
        self._blocks.write(region, block)

    def run(self, region: Region) -> ByteRun | None:
        return self._blocks.run(region) if self._blocks is not None else None

    def ready(self) -> list[Claim]:
        """See `Publishing.ready`. If this process dies, the next call makes the copy again."""
        name = self._target.name
        with translated(WriteError, f"cannot finish {name}", name, self._end_copy, OSError):
            self._close()
            self._dataset = Hdf5PathSink(self._target, self.spec)
            for region, part in _parts(self._place, self.spec):
                self._dataset.write(region, part)
                interrupts.check()
            return self._dataset.ready()

    def published(self) -> Any:
        assert self._dataset is not None
        return self._dataset.published()

    def unpublish(self) -> None:
        """See `Publishing.unpublish`."""
        if self._dataset is not None:
            self._dataset.unpublish()

    def commit(self) -> Any:
        """See `Sink.commit`: it has a claim, so `commit_all` publishes it."""
        raise NotImplementedError

    def end(self) -> None:
        """Remove the blocks: the dataset has its name."""
        self._claim.end()

    def leave(self) -> None:
        """Leave the blocks to a later run."""
        self._end_copy()
        with contextlib.suppress(OSError):
            self._close()
        self._claim.leave()

    def abort(self) -> None:
        self._end_copy()
        with contextlib.suppress(OSError):
            self._close()
        self._claim.end()

    def _close(self) -> None:
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.close()  # a network file system may report a failed write only now

    def _end_copy(self) -> None:
        dataset, self._dataset = self._dataset, None
        if dataset is not None:
            dataset.abort()


def _split(path: str) -> tuple[str, str | None]:
    """File and dataset of a path whose end tells no format."""
    file, mark, dataset = path.rpartition(":/")
    return (file, dataset) if mark else (path, None)


def _pipeline(filters: tuple[Hdf5Filter, ...], spec: ArraySpec) -> FilterPipeline:
    """What encodes chunks of a new dataset. A shuffle is told the size of what it turns."""
    nbytes = math.prod(spec.chunks or ()) * spec.dtype.itemsize
    told = [replace(f, values=(spec.dtype.itemsize,)) if f.code == SHUFFLE else f for f in filters]
    return FilterPipeline(tuple(told), nbytes)


def _parts(place: Strided, spec: ArraySpec) -> Iterator[tuple[Region, np.ndarray]]:
    """Blocks that are kept in a file: each chunk, or a few rows. The run that made them had more at once."""
    if not spec.size:
        return
    at_once = max(1, PART // spec.dtype.itemsize)
    sides = spec.chunks or grid.fit(spec.shape, (1,) * len(spec.shape), spec.order, at_once)
    with contextlib.closing(FileSource(place, guarded=False)) as source:
        for region in grid.regions(spec.shape, sides):
            part = np.empty(grid.shape_of(region), spec.dtype)
            source.read(region, part)
            yield region, part
