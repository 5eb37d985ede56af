"""A source whose axes are split: the elements of one axis are those of several, in C order. Elements are not copied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.spec import ArraySpec
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint, Scattered
from chunkflow.stores.protocol import Source, keep_chunks
from chunkflow.stores.strides import merged_view
from chunkflow.stores.views.spans import spans


def split_axes(shape: Shape, wanted: Shape) -> tuple[Shape, ...] | None:
    """For each axis what it is split into; None if another shape splits no axes, or has no elements.

    >>> split_axes((12, 5), (4, 3, 5)), split_axes((12, 5), (3, 20))
    (((4, 3), (5,)), None)
    """
    if not math.prod(shape):
        return None
    found, rest = [], list(wanted)
    for n in shape:
        part: list[int] = []
        while rest and (not part or math.prod(part) < n):
            part.append(rest.pop(0))
        if math.prod(part) != n:
            return None
        found.append(part)
    if rest and (not found or any(n != 1 for n in rest)):
        return None
    if rest:
        found[-1] += rest
    return tuple(map(tuple, found))


def split_spec(spec: ArraySpec, parts: Sequence[Shape]) -> ArraySpec:
    """Spec of an array with split axes."""
    chunks: list[int] | None = None if spec.chunks is None else []
    if chunks is not None and spec.chunks is not None:
        for side, part in zip(spec.chunks, parts, strict=True):
            inner = [max(1, min(n, side // math.prod(part[i + 1 :]))) for i, n in enumerate(part)]
            chunks += inner
    places = itertools.accumulate(map(len, parts), initial=0)
    dims = [range(at, at + len(part)) for at, part in zip(places, parts, strict=False)]
    copies = spec.storage.copies + 1.0
    return replace(
        spec.with_storage(copies=copies, separate=False, codec=""),
        shape=tuple(n for part in parts for n in part),
        chunks=None if chunks is None else tuple(chunks),
        order=tuple(d for axis in spec.order for d in dims[axis]),
    )


class SplitSource:
    """A source with split axes, which is closed with this one."""

    def __init__(self, source: Source, parts: Sequence[Shape]) -> None:
        self._source, self._parts, self.parts = source, tuple(parts), [source]
        self.how = self._parts
        self.spec = split_spec(source.spec, self._parts)
        self.footprint: Footprint | None = Scattered.of([source.footprint])

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        for behind, inner in self._runs(region, together=self._source.spec.chunks is not None):
            if len(inner) == 1:
                part, sides = out[inner[0][1]], shape_of(behind)
                merged = merged_view(part, sides, [len(axes) for axes in self._parts])
                if merged is not None:
                    self._source.read(behind, merged)
                    continue
            found = np.empty(shape_of(behind), self.spec.dtype)
            self._source.read(behind, found)
            for within, place in inner:
                part = out[place]
                part[...] = found[within].reshape(part.shape)

    def view(self, region: Region) -> np.ndarray | None:
        runs = list(self._runs(region))
        if len(runs) != 1:
            return None
        found = self._source.view(runs[0][0])
        return None if found is None else found.reshape(shape_of(region))

    def _runs(self, region: Region, *, together: bool = False) -> Iterator[tuple[Region, list[tuple[Region, Region]]]]:
        """Boxes of the source that hold a region: of each what is wanted, and its place in the region.

        Boxes that are read `together` have more than is wanted, but no more than the region has.
        """
        each: list[list[tuple[slice, list[tuple[slice, tuple[slice, ...]]]]]] = []
        at = 0
        for part in self._parts:
            runs = list(_along(region[at : at + len(part)], part))
            most = sum(run.stop - run.start for run, _ in runs) if together else 0
            each.append(list(spans(runs, most)))
            at += len(part)
        for chosen in itertools.product(*each):
            inner = [
                (tuple(within for within, _ in one), tuple(side for _, place in one for side in place))
                for one in itertools.product(*(runs for _, runs in chosen))
            ]
            yield tuple(span for span, _ in chosen), inner

    def keep(self, lately: DecodedChunks) -> None:
        keep_chunks(self._source, lately)

    def close(self) -> None:
        self._source.close()


def _along(sides: Region, shape: Shape) -> Iterator[tuple[slice, tuple[slice, ...]]]:
    """Runs of an axis that hold a box of the axes into which it is split, each with its place in the box.

    >>> [run for run, _ in _along((slice(1, 3), slice(0, 2)), (4, 3))]
    [slice(3, 5, None), slice(6, 8, None)]
    """
    if not shape:  # an axis of one element that is left out
        yield slice(0, 1), ()
        return
    last = len(shape) - 1
    while last > 0 and sides[last] == slice(0, shape[last]):
        last -= 1
    inner = math.prod(shape[last + 1 :])
    for outer in itertools.product(*(range(side.start, side.stop) for side in sides[:last])):
        start = 0
        for i, n in zip(outer, shape, strict=False):
            start = start * n + i
        start *= shape[last]
        begin, stop = (start + sides[last].start) * inner, (start + sides[last].stop) * inner
        place = [slice(i - side.start, i - side.start + 1) for i, side in zip(outer, sides, strict=False)]
        yield slice(begin, stop), (*place, *(slice(0, side.stop - side.start) for side in sides[last:]))
