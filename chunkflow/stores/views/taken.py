"""Sources that have some elements of another one: at places along axes, or at points.

Elements are moved when they are read. Of a chunk that holds no wanted one nothing is read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Region, Shape, count, fit, regions, shape_of, whole
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.footprint import Footprint, Scattered
from chunkflow.stores.protocol import Source, Unviewed, cold_bytes, keep_chunks, lasting_view
from chunkflow.stores.strides import part, rows, swapped
from chunkflow.stores.views.spans import STRIP, strip_bytes
from chunkflow.system.host import cores
from chunkflow.system.thread_pool import in_threads

GAP = 16 << 10
"""Bytes between two wanted elements of a file that are read rather than skipped."""

NARROW = 256
"""Bytes of a row from which on compiled loops copy it; NumPy takes elements one by one as fast."""

AT_ONCE = 8 << 10
"""Places that are looked at together."""

PLACE = 24
"""Bytes that a place takes while those of a chunk are read: its own, sorted, and in which order."""

POINT = 32
"""Bytes that a point takes while those of a block are read: its chunk's number, sorted, and in which order."""

Places = Sequence[np.ndarray | None]
"""Places along each axis; None for all of them."""


def taken_spec(spec: ArraySpec, places: Places) -> ArraySpec:
    """Spec of the elements at some places along axes.

    Where places are not sorted they count as one chunk: any block of them may read all of the source's, unless parts of
    these are read by themselves.
    """
    shape = tuple(n if p is None else len(p) for p, n in zip(places, spec.shape, strict=True))
    sides = spec.chunks and tuple(
        max(1, min(chunk, n))
        if p is None
        else _share(len(p), _touched(p, chunk, n) if _is_sorted(p) or spec.by_parts else 1)
        for p, chunk, n in zip(places, spec.chunks, spec.shape, strict=True)
    )
    if sides is None or spec.chunks is None or spec.by_parts:
        moved, files = _moved(spec, spec.storage.copies + 1), not spec.storage.in_memory
        sorts = sum(len(p) for p in places if p is not None and files and not _is_sorted(p))
        return replace(moved.with_storage(beside=spec.storage.beside + PLACE * sorts), shape=shape, chunks=sides)
    each = sum(side for p, side in zip(places, sides, strict=True) if p is not None)
    # A block of places that are not sorted may have some of each chunk.
    pieces = math.prod(
        _touched(p, chunk, n)
        for p, chunk, n in zip(places, spec.chunks, spec.shape, strict=True)
        if p is not None and not _is_sorted(p)
    )
    moved = decoding(_moved(spec, _copies(spec, sides, each)), spec, sides, pieces)
    return replace(moved, shape=shape, chunks=sides)


def pointed_spec(spec: ArraySpec, axes: Sequence[int], points: np.ndarray, at: int) -> ArraySpec:
    """Spec of the elements at points along some axes, the columns of `points`, which lie along a new axis `at`."""
    kept = [a for a in range(len(spec.shape)) if a not in axes]
    shape = [spec.shape[a] for a in kept]
    shape.insert(at, points.shape[1])
    order = tuple(range(len(shape)))
    if spec.chunks is None or spec.by_parts:
        return replace(_moved(spec, spec.storage.copies), shape=tuple(shape), chunks=None, order=order)
    sides = [max(1, min(spec.chunks[a], spec.shape[a])) for a in kept]
    touched, first = _touched_at(points, spec, axes), points[0]
    # Where points follow one another along their first axis, as those of a mask do, a block has them of many chunks
    # that lie beside one another: these are read once if no block ends among them.
    rows = _touched(first, spec.chunks[axes[0]], spec.shape[axes[0]]) if _is_sorted(first) else touched
    decoded = math.prod(map(min, spec.chunks, spec.shape)) * spec.dtype.itemsize
    # What sorts them is counted for all points of a row, and had better stay little beside a chunk.
    most = max(STRIP, decoded // 8) // POINT
    share = min(_share(points.shape[1], rows), max(most, _share(points.shape[1], touched)))
    sides.insert(at, share)
    copies = _copies(spec, sides, share * POINT // PLACE)
    moved = decoding(_moved(spec, copies), spec, sides, _share(touched, rows))
    return replace(moved, shape=tuple(shape), chunks=tuple(sides), order=order)


def _touched(places: np.ndarray, chunk: int, n: int) -> int:
    """How many chunks hold some of the places."""
    found = np.zeros(-(-n // chunk), bool)
    for start in range(0, len(places), AT_ONCE):
        found[places[start : start + AT_ONCE] // chunk] = True
    return int(found.sum())


def _touched_at(points: np.ndarray, spec: ArraySpec, axes: Sequence[int]) -> int:
    """How many chunks along some axes hold some of the points."""
    assert spec.chunks is not None
    sides = [spec.chunks[a] for a in axes]
    counts = [-(-spec.shape[a] // side) for a, side in zip(axes, sides, strict=True)]

    def chunks(some: np.ndarray) -> np.ndarray:
        found = np.zeros(some.shape[1], np.int64)
        for own, side, number in zip(some, sides, counts, strict=True):
            found = found * number + own // side
        return found

    number, total = points.shape[1], math.prod(counts)
    if total > 8 * number:  # to mark them takes more than to sort them
        return len(np.unique(chunks(points)))
    there = np.zeros(total, bool)
    for start in range(0, number, AT_ONCE):
        there[chunks(points[:, start : start + AT_ONCE])] = True
    return int(there.sum())


def _share(number: int, chunks: int) -> int:
    """Elements that a chunk has on average."""
    return max(1, -(-number // max(chunks, 1)))


def _copies(spec: ArraySpec, sides: Sequence[int], places: int) -> float:
    """Memory that reading a chunk takes, and moving what is wanted, in boxes with these sides at so many places."""
    assert spec.chunks is not None
    decoded = math.prod(min(c, n) for c, n in zip(spec.chunks, spec.shape, strict=True))
    beside = PLACE * places / (math.prod(sides) * spec.dtype.itemsize)
    return (spec.storage.copies + 1) * decoded / math.prod(sides) + 1 + beside


def decoding(view: ArraySpec, spec: ArraySpec, sides: Sequence[int], pieces: int) -> ArraySpec:
    """The spec of a view of a source with chunks, of which so many are decoded for a box with these sides."""
    assert spec.chunks is not None
    decoded = pieces * math.prod(min(c, n) for c, n in zip(spec.chunks, spec.shape, strict=True))
    return view.with_storage(
        pieces=pieces * spec.storage.pieces,
        decoded=spec.storage.decoded * decoded / math.prod(sides),
        kept=pieces == 1 and spec.storage.kept,  # else others come in between
    )


def _moved(spec: ArraySpec, copies: float) -> ArraySpec:
    return spec.with_storage(copies=copies, in_memory=False, separate=False, codec="")


class _Run(NamedTuple):
    """Places along an axis that are read together, from `start` up to `stop`.

    `picks` are the wanted ones among them, and `into` is where these go; slices where neighbours go to neighbours.
    """

    start: int
    stop: int
    picks: slice | np.ndarray
    into: slice | np.ndarray


ALL = slice(None)


def _runs(places: np.ndarray, unit: int, gap: int) -> Iterator[_Run]:
    """Runs of places within `unit` places from a multiple of it on, and without gaps of more than `gap` places."""
    order = None if _is_sorted(places) else np.argsort(places, kind="stable")
    if order is not None:
        places = places[order]
    begin = 0
    while begin < len(places):
        until = int(np.searchsorted(places, (int(places[begin]) // unit + 1) * unit))
        steps = np.diff(places[begin:until])
        ends = [begin, *(np.flatnonzero(steps > gap) + begin + 1).tolist(), until]
        for first, end in itertools.pairwise(ends):
            start, stop = int(places[first]), int(places[end - 1]) + 1
            follow = end - first == stop - start and bool((steps[first - begin : end - begin - 1] == 1).all())
            into = slice(first, end) if order is None else order[first:end]
            yield _Run(start, stop, ALL if follow else places[first:end] - start, into)
        begin = until


def _is_sorted(places: np.ndarray) -> bool:
    some = (places[start : start + AT_ONCE + 1] for start in range(0, len(places), AT_ONCE))
    return all(bool((each[1:] >= each[:-1]).all()) for each in some)


def _parts(side: slice, unit: int) -> Iterator[_Run]:
    """Runs of all places of a side."""
    start = side.start
    while start < side.stop:
        stop = min(side.stop, (start // unit + 1) * unit)
        yield _Run(start, stop, ALL, slice(start - side.start, stop - side.start))
        start = stop


def _units(spec: ArraySpec, sides: Sequence[int], most: int = STRIP) -> Shape:
    """Sides of what is read at once: a chunk, or a box of at most so many bytes, which has `sides` at most."""
    if spec.chunks is not None and not spec.by_parts:
        return spec.chunks
    return tuple(max(1, n) for n in fit(sides, [1] * len(sides), spec.order, most // spec.dtype.itemsize))


def _gaps(spec: ArraySpec, sides: Sequence[int]) -> list[int]:
    """How many places may be skipped along each axis before skipping pays: of chunks all is decoded anyway."""
    if spec.chunks is not None and not spec.by_parts:
        return list(spec.chunks)
    nbytes, gaps = spec.dtype.itemsize, [1] * len(sides)
    for axis in reversed(spec.order):
        gaps[axis] = max(1, GAP // nbytes)
        nbytes *= max(1, sides[axis])
    return gaps


def _picked(box: np.ndarray, picks: Sequence[slice | np.ndarray]) -> np.ndarray:
    for axis, pick in enumerate(picks):
        if isinstance(pick, np.ndarray):
            box = np.take(box, pick, axis)
    return box


def _put(out: np.ndarray, into: Sequence[slice | np.ndarray], box: np.ndarray) -> None:
    """Write a box to places along axes."""
    arrays = sum(isinstance(i, np.ndarray) for i in into)
    if arrays > 1:
        sides = [i if isinstance(i, np.ndarray) else np.arange(n)[i] for i, n in zip(into, out.shape, strict=True)]
        out[np.ix_(*sides)] = box
    else:
        out[tuple(into)] = box


class Some(Unviewed):
    """Some elements of a source, which is closed with this one. `how` says which."""

    def __init__(self, source: Source, spec: ArraySpec, how: Any) -> None:
        self._source, self.spec, self.how, self.parts = source, spec, how, [source]
        self.footprint: Footprint | None = Scattered.of([source.footprint])

    def keep(self, lately: DecodedChunks) -> None:
        keep_chunks(self._source, lately)

    def cold(self, region: Region) -> int:
        """See `Filed.cold`: as much of the source as is wanted of it."""
        share = math.prod(shape_of(region)) / max(1, self._source.spec.size)
        return int(cold_bytes([self._source]) * min(1.0, share))

    def close(self) -> None:
        self._source.close()


class TakenSource(Some):
    """The elements of a source at some places along axes."""

    def __init__(self, source: Source, places: Places) -> None:
        super().__init__(source, taken_spec(source.spec, places), tuple(places))
        self._places = places
        self.held = [p for p in places if p is not None]

    def _taken_at_once(self, found: np.ndarray, region: Region, out: np.ndarray) -> bool:
        """Fill an array by one call, which holds no lock: of places along one axis, where nothing is copied before."""
        axes = [axis for axis, p in enumerate(self._places) if p is not None]
        if len(axes) != 1 or not out.flags.c_contiguous:
            return False
        (axis,) = axes
        box = part(found, tuple(ALL if a == axis else side for a, side in enumerate(region)))
        if not box.flags.c_contiguous or box.dtype != out.dtype:
            return False
        places = self._places[axis]
        assert places is not None
        np.take(box, places[region[axis]], axis, out=out, mode="clip")  # all are within: "raise" would buffer
        return True

    def run(self, region: Region) -> ByteRun | None:
        """See `chunkflow.stores.protocol.ByteRuns`: of an array in memory, rows at places along one axis."""
        axes = [axis for axis, p in enumerate(self._places) if p is not None]
        spec = self._source.spec
        found = lasting_view(self._source, whole(spec.shape)) if len(axes) == 1 and spec.storage.in_memory else None
        if found is None:
            return None
        (axis,), order = axes, self.spec.order
        places, at = self._places[axis], order.index(axis)
        assert places is not None
        box = part(found, tuple(ALL if a == axis else side for a, side in enumerate(region))).transpose(order)
        inner = rows(box.shape[at + 1 :], box.strides[at + 1 :], box.itemsize)
        outer = _step(box.shape[:at], box.strides[:at])
        if inner is None or inner.height > 1 or inner.width < NARROW or outer is None or 0 in shape_of(region):
            return None
        starts = places[region[axis]] * np.int64(box.strides[at])
        address = box.__array_interface__["data"][0]
        return ByteRun(address, inner.width, len(starts), plane=outer, swap=swapped(box.dtype), rows=starts)

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        found = self._source.view(whole(self._source.spec.shape))
        if found is not None:
            if self._taken_at_once(found, region, out):
                return
            for piece in regions(out.shape, _strips(out)):
                cuts = [slice(p.start + s.start, p.start + s.stop) for p, s in zip(region, piece, strict=True)]
                kept = tuple(cut if p is None else ALL for p, cut in zip(self._places, cuts, strict=True))
                picks = [ALL if p is None else p[cut] for p, cut in zip(self._places, cuts, strict=True)]
                out[piece] = _picked(part(found, kept), picks)
            return
        spec = self._source.spec
        sides = [
            side.stop - side.start if p is None else int(np.ptp(p[side])) + 1
            for p, side in zip(self._places, region, strict=True)
        ]
        each: list[Iterator[_Run]] = []
        units = _units(spec, sides, strip_bytes(spec, out.nbytes))
        for p, side, unit, gap in zip(self._places, region, units, _gaps(spec, sides), strict=True):
            each.append(_parts(side, unit) if p is None else _runs(p[side], unit, gap))
        for runs in itertools.product(*each):
            box = tuple(slice(run.start, run.stop) for run in runs)
            picks, into = [run.picks for run in runs], [run.into for run in runs]
            if all(pick is ALL for pick in picks) and all(isinstance(place, slice) for place in into):
                self._source.read(box, out[tuple(into)])
                continue
            strip = np.empty(shape_of(box), spec.dtype)
            self._source.read(box, strip)
            _put(out, into, _picked(strip, picks))


class PointsSource(Some):
    """The elements of a source at points, along the axes of `pointed_spec`."""

    def __init__(self, source: Source, axes: Sequence[int], points: np.ndarray, at: int) -> None:
        super().__init__(source, pointed_spec(source.spec, axes, points, at), (tuple(axes), points, at))
        self._axes, self._points, self._at = tuple(axes), points, at
        self.held = [points]

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        side = region[self._at]
        # Chunks are decoded once for a block. What has none is read in small boxes, whose points need little memory.
        most = AT_ONCE if self._source.spec.by_parts else side.stop - side.start
        for start in range(side.start, side.stop, most):
            stop = min(side.stop, start + most)
            some = (*region[: self._at], slice(start, stop), *region[self._at + 1 :])
            within = (*(slice(None),) * self._at, slice(start - side.start, stop - side.start))
            self._read_some(some, out[within])

    def _read_some(self, region: Region, out: np.ndarray) -> None:
        spec, axes = self._source.spec, self._axes
        points = self._points[:, region[self._at]]
        rest = [side for axis, side in enumerate(region) if axis != self._at]
        kept = [a for a in range(len(spec.shape)) if a not in axes]
        place = np.moveaxis(out, self._at, 0)
        found = self._source.view(whole(spec.shape))
        if found is not None:
            found = np.moveaxis(found, axes, range(len(axes)))
            for piece in regions(place.shape, _strips(place)):
                cuts = [slice(r.start + s.start, r.start + s.stop) for r, s in zip(rest, piece[1:], strict=True)]
                place[piece] = found[(*(p[piece[0]] for p in points), *cuts)]
            return
        sides = [1] * len(spec.shape)
        for axis, side in zip(kept, rest, strict=True):
            sides[axis] = side.stop - side.start
        for axis, own in zip(axes, points, strict=True):
            sides[axis] = int(np.ptp(own)) + 1
        units = _units(spec, sides)
        boxes = np.zeros(points.shape[1], np.int64)
        for axis, own in zip(axes, points, strict=True):
            boxes *= -(-spec.shape[axis] // units[axis])
            boxes += own // units[axis]
        order = np.argsort(boxes, kind="stable")
        boxes = boxes[order]
        ends = [0, *(np.flatnonzero(boxes[1:] != boxes[:-1]) + 1).tolist(), len(order)]
        del boxes
        others = [list(_parts(side, units[axis])) for axis, side in zip(kept, rest, strict=True)]

        def fill(ends: tuple[int, int]) -> None:
            which = order[slice(*ends)]
            own = points[:, which]
            low, high = own.min(axis=1), own.max(axis=1) + 1
            for runs in itertools.product(*others):
                box: list[slice] = [ALL] * len(spec.shape)
                for axis, start, stop in zip(axes, low.tolist(), high.tolist(), strict=True):
                    box[axis] = slice(start, stop)
                for axis, run in zip(kept, runs, strict=True):
                    box[axis] = slice(run.start, run.stop)
                strip = np.empty(shape_of(tuple(box)), spec.dtype)
                self._source.read(tuple(box), strip)
                into = (which, *(run.into for run in runs))
                place[into] = np.moveaxis(strip, axes, range(len(axes)))[tuple(own - low[:, None])]

        # The memory of a block of points counts a decoded chunk for each box with the sides of the spec's chunks.
        counted = 1 if self.spec.chunks is None else count(points.shape[1], self.spec.chunks[self._at])
        in_threads(fill, list(itertools.pairwise(ends)), min(cores(), counted))


def _step(shape: Shape, strides: Shape) -> int | None:
    """Bytes from one place of some axes to the next, the last axis fastest; None where these differ.

    >>> _step((2, 3), (60, 20)), _step((2, 3), (80, 20)), _step((1, 1), (9, 9))
    (20, None, 0)
    """
    step = reach = 0
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if step and stride != reach:
            return None
        step, reach = step or stride, stride * n
    return step


def _strips(out: np.ndarray) -> Shape:
    """Sides of the parts in which an array is filled."""
    return fit(out.shape, [1] * out.ndim, tuple(range(out.ndim)), STRIP // out.itemsize)
