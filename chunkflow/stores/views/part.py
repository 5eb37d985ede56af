"""A part of an array as a target: blocks of it cut chunks, of which the rest stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.core.cuts import AxisSlice
from chunkflow.core.grid import Region, Shape, shape_of, shift
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, WriteError
from chunkflow.stores.chunk_locks import ChunkLocks
from chunkflow.stores.existing_array import ExistingArray
from chunkflow.stores.failures import translated
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.foreign.generic import GenericTarget
from chunkflow.stores.ndarray import ndarray_target
from chunkflow.stores.protocol import Sink, Source, Target, written_by
from chunkflow.stores.touched import aligned, touched
from chunkflow.system.deferred import at


def existing_target(said: ExistingArray) -> Target:
    """Target of a part of an array in memory, of a ``.npy`` file, or of an object with slice assignment."""
    array = said.where
    if said.append is not None:
        if said.path is not None:
            target: Target = at("chunkflow.stores.file.grow:NpyAppendTarget")(said)
            return target
        raise ArgumentError(
            f"append={said.append}: a {type(array).__name__} has a fixed length. What grows is a .npy file given by "
            "its path, a zarr array, and a resizable dataset of HDF5"
        )
    if said.path is not None:
        with translated(WriteError, f"cannot open {said.path} to write", said.path):
            array = np.load(said.path, mmap_mode="r+", allow_pickle=False)
    if isinstance(array, np.ndarray):
        name = said.path or "the output"
        return ndarray_target(array[said.bounds(array.shape, name)], array)
    target = GenericTarget(array)
    spec = target.describe(tuple(array.shape), np.dtype(np.bool_), None)
    return PartTarget(target, said.bounds(spec.shape, target.name), spec, None)


class PartTarget:
    """A region of an array.

    Where a block cuts a chunk, the chunk is read, changed and written whole, if `source` opens the array. Else the
    array does that itself. `shared` is how other processes name the part, if they can, and `file` one of the array's
    in which they lock chunks.
    """

    def __init__(
        self,
        target: Target,
        region: Region,
        spec: ArraySpec,
        source: Callable[[], Source] | None,
        shared: ExistingArray | None = None,
        file: str | None = None,
    ) -> None:
        self._target, self._region, self._spec, self._source = target, region, spec, source
        self._shared, self._file = shared, file
        self.name = target.name

    @property
    def writes(self) -> str:
        """See `Changing.writes`."""
        return "".join(written_by([self._target]))

    @property
    def footprint(self) -> Footprint | None:
        """See `Target.footprint`. In place of the same elements a result may be written, though they share chunks."""
        whole = self._target.footprint
        cuts = [AxisSlice(side.start, side.stop - side.start, 1) for side in self._region]
        return None if whole is None else whole.sliced(cuts, self._spec.shape)

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        if tuple(shape) != shape_of(self._region):
            raise ArgumentError(
                f"the result has shape {tuple(shape)}, but the region of {self.name} that it is for has "
                f"{shape_of(self._region)}"
            )
        spec = replace(self._target.describe(self._spec.shape, dtype, None), shape=tuple(shape))
        return spec.with_storage(copies=spec.storage.copies + 1, separate=False, raw=False)  # a chunk that is changed

    def shared(self, shape: Shape) -> ExistingArray | None:
        """What other processes open to write to it."""
        return self._shared

    def open(self, spec: ArraySpec) -> PartSink:
        source = self._source and self._source()
        return PartSink(self._target.open(self._spec), source, self._region, self._spec, spec, ChunkLocks(self._file))


class PartSink:
    """Sink of a `PartTarget`."""

    def __init__(
        self, sink: Sink, source: Source | None, region: Region, whole: ArraySpec, spec: ArraySpec, locks: ChunkLocks
    ) -> None:
        self.spec, self._sink, self._source, self._whole = spec, sink, source, whole
        self._start, self._locks = tuple(side.start for side in region), locks

    def write(self, region: Region, block: np.ndarray) -> None:
        if not block.size:
            return
        there, chunks, extents = shift(region, self._start), self._whole.chunks, self._whole.shape
        if self._source is None or chunks is None or aligned(there, chunks, extents):
            self._sink.write(there, block)
            return
        for chunk, inner, place in touched(there, chunks):
            corner = [i * side for i, side in zip(chunk, chunks, strict=True)]
            sides = zip(corner, chunks, extents, strict=True)
            box = tuple(slice(at, min(at + side, n)) for at, side, n in sides)
            if tuple(shape_of(inner)) == shape_of(box):
                self._sink.write(box, block[place])
                continue
            with self._locks.changing(chunk):
                held = np.empty(shape_of(box), self._whole.dtype)
                self._source.read(box, held)
                held[inner] = block[place]
                self._sink.write(box, held)

    def commit(self) -> Any:
        self._close()
        return self._sink.commit()

    def abort(self) -> None:
        """See `Sink.abort`: what was written stays, as in any assignment that fails half-way."""
        self._close()
        self._sink.abort()

    def _close(self) -> None:
        self._locks.close()
        if self._source is not None:
            self._source.close()
