"""A source whose axes are split: the elements of one axis are those of several, in C order. Elements are not copied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint, Scattered
from chunkflow.stores.protocol import Source, keep_chunks, run_of
from chunkflow.stores.strides import merged_view

GAP = 16 << 10
"""Bytes between two runs of a file that are read rather than skipped."""


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
        for combs in itertools.product(*self._along_each(region, together=True)):
            behind = tuple([slice(c.start, c.start + (c.number - 1) * c.step + c.length) for c in combs])
            places: tuple[Any, ...] = (..., *[side for c in combs for side in c.place])  # also without axes a view
            part = out[places]
            if all(c.number == 1 for c in combs):
                merged = merged_view(part, shape_of(behind), [len(axes) for axes in self._parts])
                if merged is not None:
                    self._source.read(behind, merged)
                    continue
            found = self._source.view(behind)
            if found is None:
                found = np.empty(shape_of(behind), self.spec.dtype)
                self._source.read(behind, found)
            sides = [n for c in combs for n in (c.number, c.length)]
            strides = [
                step for c, stride in zip(combs, found.strides, strict=True) for step in (c.step * stride, stride)
            ]
            part[...] = np.lib.stride_tricks.as_strided(found, sides, strides).reshape(part.shape)

    def view(self, region: Region) -> np.ndarray | None:
        """A view of what lies between the region's first element and its last one, with the steps of split axes."""
        sides = shape_of(region)
        if not math.prod(sides):
            return np.empty(sides, self.spec.dtype)
        at, behind, steps = 0, [], []
        for part in self._parts:
            own = [math.prod(part[i + 1 :]) for i in range(len(part))]
            along = region[at : at + len(part)]
            first = sum(side.start * step for side, step in zip(along, own, strict=True))
            last = sum((side.stop - 1) * step for side, step in zip(along, own, strict=True))
            behind.append(slice(first, last + 1))
            steps.append(own)
            at += len(part)
        found = self._source.view(tuple(behind))
        if found is None:
            return None
        strides = [step * stride for own, stride in zip(steps, found.strides, strict=True) for step in own]
        return np.lib.stride_tricks.as_strided(found, sides, strides, writeable=False)

    def run(self, region: Region) -> ByteRun | None:
        """See `chunkflow.stores.protocol.ByteRuns`: the elements of one box of the source lie as its own do."""
        behind = self._behind(region)
        return None if behind is None else run_of(self._source, behind)

    def _behind(self, region: Region) -> Region | None:
        """The box of the source that holds a region's elements and no others; None if there is none."""
        each = [list(itertools.islice(combs, 2)) for combs in self._along_each(region, together=False)]
        if any(len(combs) != 1 for combs in each):
            return None
        return tuple([slice(c.start, c.start + c.length) for (c,) in each])

    def _along_each(self, region: Region, *, together: bool) -> Iterator[Iterator[_Comb]]:
        """The combs of each of the source's axes.

        Runs that are read `together` have others between them, but no more than the region has in all. Of chunks these
        are decoded anyway; between others they are short.
        """
        at, gap = 0, GAP // self.spec.dtype.itemsize if self._source.spec.by_parts else math.inf
        for part in self._parts:
            sides = region[at : at + len(part)]
            yield _along(sides, part, math.prod(shape_of(sides)) if together else 0, gap)
            at += len(part)

    def keep(self, lately: DecodedChunks) -> None:
        keep_chunks(self._source, lately)

    def close(self) -> None:
        self._source.close()


class _Comb(NamedTuple):
    """Runs of an axis, each of `length` elements, `step` elements after the one before, and their place in a box."""

    start: int
    number: int
    step: int
    length: int
    place: tuple[slice, ...]


def _along(sides: Region, shape: Shape, most: int, gap: float) -> Iterator[_Comb]:
    """Runs of an axis that hold a box of the axes into which it is split.

    A comb spans at most so many elements, or has one run; those of larger gaps have one.

    >>> [comb[:4] for comb in _along((slice(1, 3), slice(0, 2)), (4, 3), 5, 8)]
    [(3, 2, 3, 2)]
    """
    if not shape:  # an axis of one element that is left out
        yield _Comb(0, 1, 1, 1, ())
        return
    last = len(shape) - 1
    while last > 0 and sides[last] == slice(0, shape[last]):
        last -= 1
    inner = math.prod(shape[last + 1 :])
    length, step = (sides[last].stop - sides[last].start) * inner, shape[last] * inner
    fitting = (most - length) // step + 1 if most > length and step - length <= gap else 1
    # Runs follow one another at the same step along an axis, and over the ones behind it that are wanted in full.
    axis, full = max(last - 1, 0), 1
    while axis > 0 and sides[axis] == slice(0, shape[axis]) and full * shape[axis] <= fitting:
        full *= shape[axis]
        axis -= 1
    before = sides[:axis] if last else ()
    along = sides[axis] if last else slice(0, 1)
    behind = [slice(0, side.stop - side.start) for side in sides[axis + 1 if last else 0 :]]
    together = max(1, fitting // full)
    for outer in itertools.product(*(range(side.start, side.stop) for side in before)):
        for first in range(along.start, along.stop, together):
            number = min(together, along.stop - first)
            start = 0
            for i, n in zip((*outer, first), shape, strict=False):
                start = start * n + i
            start *= math.prod(shape[len(outer) + 1 : last]) * step if last else 0
            place = [slice(i - side.start, i - side.start + 1) for i, side in zip(outer, before, strict=True)]
            place += [slice(first - along.start, first - along.start + number)] if last else []
            yield _Comb(start + sides[last].start * inner, number * full, step, length, (*place, *behind))
