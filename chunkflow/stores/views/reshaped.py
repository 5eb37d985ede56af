"""A source that is another one in another shape, in C order. Elements are moved when they are read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of, whole
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint, Scattered
from chunkflow.stores.protocol import Source, Unviewed, keep_chunks
from chunkflow.stores.views.spans import spans

GAP = 16 << 10
"""Bytes of chunks that are read together rather than by parts: for each part a file is looked up."""


def boxes(start: int, stop: int, shape: Shape) -> Iterator[Region]:
    """Regions with the elements from `start` up to `stop` of an array that is counted in C order, in this order.

    >>> list(boxes(2, 7, (3, 4)))
    [(slice(0, 1, None), slice(2, 4, None)), (slice(1, 2, None), slice(0, 3, None))]
    """
    if start >= stop:
        return
    if not shape:
        yield ()
        return
    inner = math.prod(shape[1:])
    (first, skipped), (last, more) = divmod(start, inner), divmod(stop, inner)
    if skipped:
        end = min(stop, (first + 1) * inner) - first * inner
        yield from ((slice(first, first + 1), *box) for box in boxes(skipped, end, shape[1:]))
        first += 1
    if first < last:
        yield (slice(first, last), *whole(shape[1:]))
    if more and first <= last:
        yield from ((slice(last, last + 1), *box) for box in boxes(0, more, shape[1:]))


class ReshapedSource(Unviewed):
    """A source in another shape, which is closed with this one. No element is read twice for a region.

    `chunks` is a box that is read without cutting chunks.
    """

    def __init__(self, source: Source, shape: Shape, chunks: Shape | None = None) -> None:
        self._source, self.parts, copies = source, [source], source.spec.storage.copies + 1.0
        self.how = shape
        self.spec = replace(
            source.spec.with_storage(copies=copies, in_memory=False, separate=False, codec=""),
            shape=shape, chunks=chunks, order=tuple(range(len(shape))),
        )  # fmt: skip
        self.footprint: Footprint | None = Scattered.of([source.footprint])

    def read(self, region: Region, out: np.ndarray) -> None:
        shape, sides = self.spec.shape, shape_of(region)
        # Along the last axes, from `cut` on, what is read is contiguous.
        cut = len(shape)
        while cut and sides[cut:] == shape[cut:]:
            cut -= 1
        most = out.size
        if self._source.spec.by_parts:
            most = 0 if self._source.spec.chunks is None else GAP // out.itemsize
        for span, inner in spans(self._runs(region, cut), most):
            found, filled = np.empty(span.stop - span.start, self.spec.dtype), 0
            for box in boxes(span.start, span.stop, self._source.spec.shape):
                number = math.prod(shape_of(box))
                self._source.read(box, found[filled : filled + number].reshape(shape_of(box)))
                filled += number
            for run, index in inner:
                out[index] = found[run].reshape(sides[cut:])

    def _runs(self, region: Region, cut: int) -> Iterator[tuple[slice, Shape]]:
        """Runs of the elements in C order that hold a region, contiguous from an axis on, and their places in it."""
        shape = self.spec.shape
        length = math.prod(shape_of(region)[cut:])
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        behind = sum(side.start * step for side, step in zip(region[cut:], steps[cut:], strict=True))
        for index in itertools.product(*(range(side.stop - side.start) for side in region[:cut])):
            before = sum((i + s.start) * step for i, s, step in zip(index, region, steps, strict=False))
            yield slice(before + behind, before + behind + length), index

    def keep(self, lately: DecodedChunks) -> None:
        keep_chunks(self._source, lately)

    def close(self) -> None:
        self._source.close()
