"""A source that is a slice of another one, with any steps. Elements are moved when they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chunkflow.core.cuts import AxisSlice
from chunkflow.core.grid import Region, Shape, fit, regions, shape_of, shift
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.new_array import StoredLabels, labels_of
from chunkflow.stores.protocol import Source, boxes_of, keep_chunks, run_of, seen_of
from chunkflow.stores.strides import part, run_in_memory
from chunkflow.stores.views.spans import STRIP, strip_bytes


def sliced_spec(spec: ArraySpec, cuts: Sequence[AxisSlice]) -> ArraySpec:
    """Spec of a slice of an array."""
    shape = tuple(number for _, number, _ in cuts)
    if spec.chunks is None:
        return replace(spec, shape=shape)
    sides = list(zip(spec.chunks, cuts, strict=True))
    chunks = tuple(max(1, min(chunk // abs(step), max(n, 1))) for chunk, (_, n, step) in sides)
    # What is read has a place of its own if only some of the elements are wanted. A chunk is decoded whole.
    apart = any(abs(step) > 1 for _, _, step in cuts)
    if spec.by_parts:
        copies = spec.storage.copies + apart
        return replace(spec.with_storage(copies=copies, separate=False), shape=shape, chunks=chunks)
    share = math.prod(min(c, n) for c, n in zip(spec.chunks, spec.shape, strict=True)) / math.prod(chunks)
    copies = (spec.storage.copies + apart) * max(share, 1.0)
    return replace(spec.with_storage(copies=copies, separate=False), shape=shape, chunks=chunks)


class SlicedSource:
    """A slice of a source, which is closed with this one."""

    def __init__(self, source: Source, cuts: Sequence[AxisSlice]) -> None:
        self._source, self._cuts, self.parts = source, tuple(cuts), [source]
        self.how = self._cuts
        self.spec = sliced_spec(source.spec, cuts)
        place = source.footprint
        self.footprint: Footprint | None = None if place is None else place.sliced(self._cuts, source.spec.shape)

    def _behind(self, region: Region) -> tuple[Region, tuple[slice, ...]]:
        """The part of the source that holds a region, and the region's elements within that part."""
        behind, picks = [], []
        for side, (first, _, step) in zip(region, self._cuts, strict=True):
            number = side.stop - side.start
            if not number:
                behind.append(slice(0, 0))
                picks.append(slice(None))
                continue
            one, other = first + side.start * step, first + (side.stop - 1) * step
            behind.append(slice(min(one, other), max(one, other) + 1))
            picks.append(slice(None, None, step))
        return tuple(behind), tuple(picks)

    def read(self, region: Region, out: np.ndarray) -> None:
        behind, picks = self._behind(region)
        if all(abs(pick.step or 1) == 1 for pick in picks):
            # Read in place, from the other end where it goes backwards.
            self._source.read(behind, part(out, picks))
            return
        found = self._source.view(behind)
        if found is not None:
            out[...] = part(found, picks)
            return
        for piece in regions(out.shape, self._strip(out)):
            behind, picks = self._behind(shift(piece, [side.start for side in region]))
            strip = np.empty(shape_of(behind), self.spec.dtype)
            self._source.read(behind, strip)
            out[piece] = part(strip, picks)

    def run(self, region: Region) -> ByteRun | None:
        """See `chunkflow.stores.protocol.ByteRuns`: elements that are next to each other lie so in the source."""
        behind, picks = self._behind(region)
        if all((pick.step or 1) == 1 for pick in picks):
            return run_of(self._source, behind)
        found = self.seen(region)
        return None if found is None else run_in_memory(found, self.spec.order)

    def boxes(self, region: Region) -> Sequence[Region]:
        """See `chunkflow.stores.protocol.Boxes`: those of the source, where all of its elements are wanted."""
        behind, picks = self._behind(region)
        if any((pick.step or 1) != 1 for pick in picks):
            return [region]
        offset = [side.start - there.start for side, there in zip(region, behind, strict=True)]
        return [shift(box, offset) for box in boxes_of(self._source, behind)]

    def seen(self, region: Region) -> np.ndarray | None:
        """See `chunkflow.stores.protocol.Boxes`."""
        behind, picks = self._behind(region)
        found = seen_of(self._source, behind)
        return None if found is None else part(found, picks)

    def _strip(self, out: np.ndarray) -> Shape:
        """Sides of what is read at a time, unwanted elements included: a chunk, or a box without large gaps."""
        if self.spec.chunks is not None and not self.spec.by_parts:
            return self.spec.chunks
        longest, each, behind = list(out.shape), self.spec.dtype.itemsize, self.spec.dtype.itemsize
        for axis in reversed(self.spec.order):
            step = abs(self._cuts[axis][2])
            if (step - 1) * behind > STRIP:
                longest[axis] = 1
            else:
                each *= step
            behind *= step * out.shape[axis]
        return fit(longest, (1,) * out.ndim, self.spec.order, strip_bytes(self.spec, out.nbytes) // each)

    def labels(self) -> StoredLabels:
        """Names of the dimensions, which are the source's."""
        return StoredLabels(None, labels_of(self._source).dimension_names)

    def keep(self, lately: DecodedChunks) -> None:
        keep_chunks(self._source, lately)

    def cold(self, region: Region) -> int:
        """See `Filed.cold`: of rows that are skipped nothing is read, unless they are in a chunk."""
        cold = getattr(self._source, "cold", None)
        if cold is None:
            return 0
        outer = self._source.spec.order[:-1] if self._source.spec.by_parts else ()
        return int(cold(self._behind(region)[0])) // math.prod(abs(self._cuts[axis][2]) for axis in outer)

    def view(self, region: Region) -> np.ndarray | None:
        behind, picks = self._behind(region)
        found = self._source.view(behind)
        return None if found is None else part(found, picks)

    def close(self) -> None:
        self._source.close()
