"""Marks say which elements of an array are wanted, with a bit each; sources that have these elements, or their places.

The result's elements are in C order. Marks tell in which place of it an element goes, so any part of it can be read by
itself, chunk by chunk of what lies behind. Of a chunk that holds no wanted element nothing is read.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, count, fit, regions, shape_of, shift, whole
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.errors import ArgumentTypeError, WriteError
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Source, Unviewed
from chunkflow.stores.views.taken import Some

SEGMENT = 64
"""Bytes of bits for which is kept how many are set before."""

STRIP = 256 << 10
"""Bytes that are looked at together where there are no chunks."""

ALL: tuple[Any, ...] = (slice(None),)

SENT = 64_000_000
"""Bytes of marks that a message may hold."""

ROW = 16
"""Bytes that the place of a wanted element takes while it is moved, beside the element."""


class Marks:
    """A bit for each element of an array, which is set where the element is wanted.

    It is written as any array of bools, and then asked after `counted`. Rows along the last axis begin with a byte of
    their own.

    Parameters
    ----------
    shape : tuple of int
        Of the array; one axis at least.
    room : int
        Bytes that the bits may take in memory: more are kept in a temporary file, which is gone with this object.

    Examples
    --------
    >>> marks = Marks((2, 3), 1 << 20)
    >>> marks[0:2, 0:3] = np.array([[True, False, True], [False, False, True]])
    >>> marks.counted().number, [marks.place(n) for n in range(3)]
    (3, [0, 2, 5])
    """

    dtype = np.dtype(bool)

    def __reduce__(self) -> Any:
        if self._flat.nbytes > SENT:
            raise ArgumentTypeError(
                f"a mask that was counted, of {format_bytes(self._flat.nbytes)}, is not pickled: pickle the array and "
                "the expression of the mask, and index the one by the other where both are unpickled. Up to "
                f"{format_bytes(SENT)} travel"
            )
        return _received, (self.shape, self._flat.tobytes())

    def __init__(self, shape: Shape, room: int) -> None:
        self.shape, self.width = shape, count(shape[-1], 8)
        size = math.prod(shape[:-1]) * self.width
        segments = count(size, SEGMENT)
        self._flat = _zeros(max(1, segments) * SEGMENT, np.dtype("u1"), room)
        self._before = _zeros(segments, np.dtype("i8"), room)
        self._bits = self._flat[:size].reshape(*shape[:-1], self.width)
        self.number = 0

    def __setitem__(self, region: Region, block: np.ndarray) -> None:
        *rows, side = region
        sides = fit(block.shape, [1] * block.ndim, tuple(range(block.ndim)), STRIP)
        for part in regions(block.shape, sides):
            *some, cut = part
            start, stop = side.start + cut.start, side.start + cut.stop
            first, last = start // 8, count(stop, 8)
            place = (*(slice(r.start + s.start, r.start + s.stop) for r, s in zip(rows, some, strict=True)),)
            bits = np.unpackbits(self._bits[(*place, slice(first, last))], axis=-1, bitorder="little")
            bits[..., start - 8 * first : stop - 8 * first] = block[part]
            self._bits[(*place, slice(first, last))] = np.packbits(bits, axis=-1, bitorder="little")

    def counted(self) -> Marks:
        """Count the marks, which are all set by now: `number`, and what `place` and `rank` need."""
        rows, total = self._flat.reshape(-1, SEGMENT), 0
        for start in range(0, len(self._before), STRIP // SEGMENT):
            set_bits = np.bitwise_count(rows[start : start + STRIP // SEGMENT]).sum(axis=1, dtype=np.int64)
            after = set_bits[: len(self._before) - start].cumsum() + total
            self._before[start] = total
            self._before[start + 1 : start + len(after)] = after[:-1]
            total = int(after[-1])
        self.number = total
        return self

    def place(self, number: int) -> int:
        """The place in C order of the wanted element with this number."""
        segment = int(np.searchsorted(self._before, number, side="right")) - 1
        some = self._flat[segment * SEGMENT : (segment + 1) * SEGMENT]
        left = number - int(self._before[segment])
        within = int(np.flatnonzero(np.unpackbits(some, bitorder="little"))[left])
        return int(self._places(np.array(segment * SEGMENT * 8 + within)))

    def rank(self, places: np.ndarray) -> np.ndarray:
        """How many wanted elements there are before each of some places in C order."""
        row, column = np.divmod(places, self.shape[-1])
        segment, bit = np.divmod(row * self.width * 8 + column, SEGMENT * 8)
        words = self._flat.view("<u8").reshape(-1, SEGMENT // 8)[segment]
        # Of the words before the bit's all bits count, of its own those below it.
        below = (bit[:, None] - 64 * np.arange(SEGMENT // 8)).clip(0, 64).astype(np.uint64)
        few = (np.uint64(1) << (below & np.uint64(63))) - np.uint64(1)
        words &= np.where(below == 64, ~np.uint64(0), few)
        found: np.ndarray = self._before[segment] + np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        return found

    def box(self, region: Region) -> np.ndarray:
        """The marks of a region, as bools."""
        *rows, side = region
        first = side.start // 8
        bits = np.ascontiguousarray(self._bits[(*rows, slice(first, count(side.stop, 8)))])
        if not bits.any():
            return np.zeros(shape_of(region), bool)
        found = np.unpackbits(bits, axis=-1, bitorder="little").view(bool)
        return found[..., side.start - 8 * first : side.stop - 8 * first]

    def places(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Places in C order of the wanted elements from one number up to another one, some at a time."""
        if start >= stop:
            return
        byte = int(np.searchsorted(self._before, start, side="right") - 1) * SEGMENT
        number = int(self._before[byte // SEGMENT])
        while number < stop:
            some = self._flat[byte : byte + STRIP // 32]
            found = np.flatnonzero(np.unpackbits(some, bitorder="little"))
            cut = slice(max(0, start - number), stop - number)
            if len(found[cut]):
                yield self._places(found[cut] + byte * 8)
            byte, number = byte + len(some), number + len(found)

    def _places(self, bits: np.ndarray) -> np.ndarray:
        """Places of elements by the numbers of their bits, of which rows have a few more."""
        row, column = np.divmod(bits, self.width * 8)
        found: np.ndarray = row * self.shape[-1] + column
        return found


def _received(shape: Shape, bits: bytes) -> Marks:
    """Marks that came in a message."""
    marks = Marks(shape, len(bits))
    marks._flat[:] = np.frombuffer(bits, np.uint8)
    return marks.counted()


def _zeros(number: int, dtype: np.dtype, room: int) -> np.ndarray:
    """Zeros in memory, or in a file without a name if they take more room."""
    if number * dtype.itemsize <= room:
        return np.zeros(number, dtype)
    try:
        with tempfile.TemporaryFile(prefix="chunkflow-") as file:
            file.truncate(number * dtype.itemsize)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, number * dtype.itemsize)
            return np.memmap(file, dtype, "r+", shape=(number,))
    except OSError as error:
        folder = tempfile.gettempdir()
        raise WriteError(f"marks of {number * dtype.itemsize} bytes in {folder}: {error}", path=folder) from error


def marked_spec(spec: ArraySpec, marks: Marks, at: int) -> ArraySpec:
    """Spec of the wanted elements of an array, whose axes from `at` on are those of the marks."""
    axes = range(at, at + len(marks.shape))
    kept = [a for a in range(len(spec.shape)) if a not in axes]
    shape = [spec.shape[a] for a in kept]
    shape.insert(at, marks.number)
    how = f"{marks.number} of {math.prod(marks.shape)} marked, which were counted before"
    moved = replace(
        spec.with_storage(in_memory=False, separate=False, codec="", how=how),
        shape=tuple(shape), order=tuple(range(len(shape))),
    )  # fmt: skip
    if spec.chunks is None:
        return moved
    sides = [max(1, min(c, n)) for c, n in zip(spec.chunks, spec.shape, strict=True)]
    # A row of chunks along the first axis of the marks is read once if no block ends in it.
    row = max(1, -(-marks.number // max(1, count(spec.shape[at], sides[at]))))
    chunks = [sides[a] for a in kept]
    chunks.insert(at, row)
    decoded = math.prod(sides) * spec.dtype.itemsize
    wanted = min(math.prod(sides[a] for a in axes), marks.number)
    taken = (spec.storage.copies + 2) * decoded + math.prod(sides) + ROW * wanted
    copies = taken / (math.prod(chunks) * spec.dtype.itemsize)
    return replace(moved.with_storage(copies=copies), chunks=tuple(chunks))


class MarkedSource(Some):
    """The wanted elements of a source, whose axes from `at` on are those of the marks. They lie along the axis `at`."""

    def __init__(self, source: Source, marks: Marks, at: int) -> None:
        super().__init__(source, marked_spec(source.spec, marks, at), (marks, at))
        self._marks, self._at = marks, at

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        at, marks, spec = self._at, self._marks, self._source.spec
        ndim, side = len(marks.shape), region[at]
        others = (*region[:at], *region[at + 1 :])
        found = self._source.view(whole(spec.shape))
        for cell in self._cells(side):
            wanted = marks.box(cell)
            into = _into(wanted, cell, marks, side)
            if into is None:
                continue
            for rest in self._parts(others):
                box = (*rest[:at], *cell, *rest[at:])
                strip = np.empty(shape_of(box), spec.dtype) if found is None else found[box]
                if found is None:
                    self._source.read(box, strip)
                within = shift(rest, [-other.start for other in others])
                picked = strip[(*ALL * at, wanted)] if ndim > 1 else np.compress(wanted, strip, at)
                out[(*within[:at], into, *within[at:])] = picked

    def _cells(self, side: slice) -> Iterator[Region]:
        """Boxes of the marks' axes that hold the wanted elements of a side: chunks, or boxes of few bytes."""
        marks, spec, at = self._marks, self._source.spec, self._at
        axes = range(at, at + len(marks.shape))
        first, last = (np.unravel_index(marks.place(n), marks.shape) for n in (side.start, side.stop - 1))
        around = []
        for axis, (low, high) in enumerate(zip(first, last, strict=True)):
            around.append(slice(int(low), int(high) + 1))
            if low != high:
                around += whole(marks.shape[axis + 1 :])
                break
        if spec.chunks is None:
            order = [a - at for a in spec.order if a in axes]
            sides = fit(shape_of(tuple(around)), [1] * len(axes), order, STRIP // spec.dtype.itemsize)
            for part in regions(shape_of(tuple(around)), tuple(max(1, n) for n in sides)):
                yield tuple(slice(a.start + p.start, a.start + p.stop) for a, p in zip(around, part, strict=True))
            return
        yield from itertools.product(*(_cut(a, spec.chunks[axis]) for a, axis in zip(around, axes, strict=True)))

    def _parts(self, rest: Sequence[slice]) -> Iterator[Region]:
        """Boxes of the other axes."""
        spec, at = self._source.spec, self._at
        kept = [a for a in range(len(spec.shape)) if not at <= a < at + len(self._marks.shape)]
        if spec.chunks is None:
            yield tuple(rest)
            return
        yield from itertools.product(*(_cut(r, spec.chunks[axis]) for r, axis in zip(rest, kept, strict=True)))


def _cut(side: slice, unit: int) -> list[slice]:
    """A side, cut at multiples of a unit."""
    edges = [side.start, *range((side.start // unit + 1) * unit, side.stop, unit), side.stop]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _into(wanted: np.ndarray, cell: Region, marks: Marks, side: slice) -> slice | np.ndarray | None:
    """Where a cell's wanted elements go within a side; others are struck out of `wanted`. None if there is none."""
    total, length = int(np.count_nonzero(wanted)), side.stop - side.start
    if not total:
        return None
    if _follow(wanted.shape, marks.shape):
        low = int(marks.rank(rows_of(np.zeros(1, np.int64), cell, marks.shape))[0]) - side.start
        high = low + total
        ranks = counts = np.empty(0, np.int64)
    else:
        counts = np.count_nonzero(wanted.reshape(-1, wanted.shape[-1]), axis=1)
        met = np.flatnonzero(counts)
        counts = counts[met]
        ranks = marks.rank(rows_of(met, cell, marks.shape)) - side.start
        low, high = int(ranks[0]), int(ranks[-1] + counts[-1])
    if high <= 0 or low >= length:
        return None
    if high - low == total:
        if low < 0 or high > length:
            wanted[wanted] = (np.arange(low, high) >= 0) & (np.arange(low, high) < length)
        return slice(max(low, 0), min(high, length))
    into = np.repeat(ranks - (counts.cumsum() - counts), counts) + np.arange(total)
    if low < 0 or high > length:
        inside = (into >= 0) & (into < length)
        if not inside.any():
            return None
        wanted[wanted] = inside
        into = into[inside]
    return into


def _follow(sides: Shape, shape: Shape) -> bool:
    """Whether the elements of a box follow one another in C order."""
    first = next((a for a, n in enumerate(sides) if n > 1), len(sides) - 1)
    return sides[first + 1 :] == shape[first + 1 :]


def rows_of(rows: np.ndarray, cell: Region, shape: Shape) -> np.ndarray:
    """Places in C order of the first elements of some rows of a box along its last axis."""
    sides, step = shape_of(cell[:-1]), shape[-1]
    places = np.full(len(rows), cell[-1].start, np.int64)
    along = np.unravel_index(rows, sides) if sides else ()
    for axis in reversed(range(len(sides))):
        places += (along[axis] + cell[axis].start) * step
        step *= shape[axis]
    return places


class PlacesSource(Unviewed):
    """Where the wanted elements are: their places in C order, or with `axes` a row of places along each axis."""

    footprint: Footprint | None = None

    def __init__(self, marks: Marks, *, axes: bool) -> None:
        self._marks, self._axes = marks, axes
        shape = (marks.number, len(marks.shape)) if axes else (marks.number,)
        self.spec = ArraySpec("places", shape, np.dtype(np.int64))

    def read(self, region: Region, out: np.ndarray) -> None:
        done = 0
        if not out.size:
            return
        for places in self._marks.places(region[0].start, region[0].stop):
            to = slice(done, done + len(places))
            if self._axes:
                for number, own in enumerate(np.unravel_index(places, self._marks.shape)):
                    if region[1].start <= number < region[1].stop:
                        out[to, number - region[1].start] = own
            else:
                out[to] = places
            done += len(places)

    def close(self) -> None:
        """See `Source.close`."""


class WantedPlaces:
    """The places of wanted elements, as an array to open."""

    def __init__(self, marks: Marks, *, axes: bool) -> None:
        self.marks, self.axes = marks, axes

    def __chunkflow_source__(self) -> Any:
        return PlacesSource(self.marks, axes=self.axes)
