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
from chunkflow.core.settings import temporary_directory
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.errors import ArgumentTypeError, WriteError
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.foreign.generic import GenericTarget
from chunkflow.stores.protocol import Source, Target, Unviewed
from chunkflow.stores.views.taken import Some, decoding

SEGMENT = 64
"""Bytes of bits for which is kept how many are set before."""

STRIP = 64 << 10
"""Bytes that are read together where there are no chunks."""

AT_ONCE = 8 << 10
"""Elements that are moved together."""

PLACES = 2 << 10
"""Places that are made together."""

BITS = 64 << 10
"""Bits that are looked at together."""

ROWS = 512
"""Rows whose first elements are counted together."""

GRAIN, COARSEST = 2 << 20, 8
"""Bytes of room for which these numbers are taken once, and how often they are taken at most. More at a time takes less
time: eight times as many, half of it."""

ALL: tuple[Any, ...] = (slice(None),)

SENT = 64_000_000
"""Bytes of marks that a message may hold."""

PLACE = 24
"""Bytes that an element's mark and the places from and to which it is moved take meanwhile, beside the element."""


class Marks:
    """A bit for each element of an array, which is set where the element is wanted.

    It is written as any array of bools, and then asked after `counted`. Rows along the last axis begin with a byte of
    their own.

    Parameters
    ----------
    shape : tuple of int
        Of the array; one axis at least.
    room : int
        Bytes that it may take in memory: more are kept in a temporary file, which is gone with this object.
    dry : bool
        Whether no mark will be set. Then there is no file.
    grain : int, optional
        How much is worked on at a time, as of `COARSEST`. By default it follows from `room`.

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
                f"{format_bytes(SENT)} are pickled"
            )
        return _received, (self.shape, self._flat.tobytes(), self.grain)

    def __init__(self, shape: Shape, room: int, *, dry: bool = False, grain: int | None = None) -> None:
        self.shape, self.width = shape, count(shape[-1], 8)
        size = math.prod(shape[:-1]) * self.width
        segments = count(size, SEGMENT)
        nbytes = max(1, segments) * SEGMENT + 8 * segments
        self.held = nbytes if nbytes <= room else 0  # of memory
        self.grain = grain or min(COARSEST, max(1, room // GRAIN))
        self._flat = _zeros(max(1, segments) * SEGMENT, np.dtype("u1"), filed=nbytes > room and not dry)
        self._before = _zeros(segments, np.dtype("i8"), filed=nbytes > room and not dry)
        self._bits = self._flat[:size].reshape(*shape[:-1], self.width)
        self.number = 0

    def __setitem__(self, region: Region, block: np.ndarray) -> None:
        *rows, side = region
        for part in regions(block.shape, sides_of(block.shape, self.grain * BITS)):
            *some, cut = part
            start, stop = side.start + cut.start, side.start + cut.stop
            first, last = start // 8, count(stop, 8)
            place = (*(slice(r.start + s.start, r.start + s.stop) for r, s in zip(rows, some, strict=True)),)
            bits = np.unpackbits(self._bits[(*place, slice(first, last))], axis=-1, bitorder="little")
            bits[..., start - 8 * first : stop - 8 * first] = block[part]
            self._bits[(*place, slice(first, last))] = np.packbits(bits, axis=-1, bitorder="little")

    def __chunkflow_target__(self) -> Target:
        return MarksTarget(self)

    def counted(self) -> Marks:
        """Count the marks, which are all set by now: `number`, and what `place` and `rank` need."""
        rows, total, step = self._flat.view("<u8").reshape(-1, SEGMENT // 8), 0, self.grain * ROWS
        for start in range(0, len(self._before), step):
            set_bits = np.bitwise_count(rows[start : start + step]).sum(axis=1, dtype=np.int64)
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
        words, found = self._flat.view("<u8").reshape(-1, SEGMENT // 8), np.empty(len(places), np.int64)
        step = self.grain * ROWS
        for start in range(0, len(places), step):
            row, column = np.divmod(places[start : start + step], self.shape[-1])
            bits = row * (self.width * 8) + column
            segment, word, bit = bits // (SEGMENT * 8), bits // 64 % (SEGMENT // 8), bits % 64
            own = words[segment]
            # Of the words before the bit's all bits count, of its own those below it.
            counts = np.bitwise_count(own) * (np.arange(SEGMENT // 8) < word[:, None])
            below = own[np.arange(len(own)), word] & ((np.uint64(1) << bit.astype(np.uint64)) - np.uint64(1))
            some = self._before[segment] + counts.sum(axis=1, dtype=np.int64) + np.bitwise_count(below)
            found[start : start + step] = some
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

    def any(self, region: Region) -> bool:
        """Whether some element of a region may be wanted: one of it is, or of the few beside it."""
        *rows, side = region
        return bool(self._bits[(*rows, slice(side.start // 8, count(side.stop, 8)))].any())

    def places(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Places in C order of the wanted elements from one number up to another one, some at a time."""
        if start >= stop:
            return
        segment = int(np.searchsorted(self._before, start, side="right")) - 1
        number = int(self._before[segment])
        while number < stop:
            enough = int(np.searchsorted(self._before, number + self.grain * PLACES, side="right")) - 1
            after = max(segment + 1, min(enough, segment + self.grain * BITS // 8 // SEGMENT))
            some = self._flat[segment * SEGMENT : after * SEGMENT]
            found = np.flatnonzero(np.unpackbits(some, bitorder="little"))
            cut = slice(max(0, start - number), stop - number)
            if len(found[cut]):
                yield self._places(found[cut] + segment * SEGMENT * 8)
            segment, number = after, number + len(found)

    def _places(self, bits: np.ndarray) -> np.ndarray:
        """Places of elements by the numbers of their bits, of which rows have a few more."""
        row, column = np.divmod(bits, self.width * 8)
        found: np.ndarray = row * self.shape[-1] + column
        return found


class MarksTarget(GenericTarget):
    """Marks that are set: they count in the plan of the pass that does so, with what that takes."""

    def __init__(self, marks: Marks) -> None:
        super().__init__(marks, "marks")
        self.held = [marks]
        self._spec = self._spec.with_storage(beside=2 * marks.grain * BITS)


def _received(shape: Shape, bits: bytes, grain: int) -> Marks:
    """Marks that came in a message."""
    marks = Marks(shape, 2 * len(bits), grain=grain)
    marks._flat[:] = np.frombuffer(bits, np.uint8)
    return marks.counted()


def sides_of(shape: Shape, most: int) -> Shape:
    """Sides of parts of a box, of at most so many elements. Rows are as many as if each had a few more.

    >>> sides_of((9, 1000, 100), 65536), sides_of((100_000, 1), 65536), sides_of((100_000,), 65536)
    ((1, 564, 100), (3855, 1), (65536,))
    """
    wide = (*shape[:-1], shape[-1] + 16 * (len(shape) > 1))
    return tuple(map(min, shape, fit(wide, [1] * len(wide), range(len(wide)), most)))


def _zeros(number: int, dtype: np.dtype, *, filed: bool) -> np.ndarray:
    """Zeros in memory, or in a file without a name."""
    if not filed:
        return np.zeros(number, dtype)
    if not number:
        return np.zeros(0, dtype)
    try:
        with tempfile.TemporaryFile(prefix="chunkflow-", dir=temporary_directory()) as file:
            file.truncate(number * dtype.itemsize)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, number * dtype.itemsize)
            return np.memmap(file, dtype, "r+", shape=(number,))
    except OSError as error:
        folder = temporary_directory()
        raise WriteError(
            f"cannot write {format_bytes(number * dtype.itemsize)} of a mask to {folder}: {error}. Free space there, "
            "or name another directory by chunkflow.config.set(temporary_directory=)",
            path=folder,
        ) from error


def marked_spec(spec: ArraySpec, marks: Marks, at: int) -> ArraySpec:
    """Spec of the wanted elements of an array, whose axes from `at` on are those of the marks."""
    axes = range(at, at + len(marks.shape))
    kept = [a for a in range(len(spec.shape)) if a not in axes]
    shape = [spec.shape[a] for a in kept]
    shape.insert(at, marks.number)
    how = f"{marks.number} of {math.prod(marks.shape)} marked, which were counted before"
    beside = spec.storage.beside + marks.grain * AT_ONCE * (PLACE + spec.dtype.itemsize)
    if spec.by_parts and not spec.storage.in_memory:
        beside += marks.grain * STRIP
    moved = replace(
        spec.with_storage(in_memory=False, separate=False, codec="", how=how, beside=beside),
        shape=tuple(shape), order=tuple(range(len(shape))),
    )  # fmt: skip
    if spec.chunks is None or spec.by_parts:
        return replace(moved, chunks=None)
    sides = [max(1, min(c, n)) for c, n in zip(spec.chunks, spec.shape, strict=True)]
    # A row of chunks along the first axis of the marks is read once if no block ends in it.
    row = max(1, -(-marks.number // max(1, count(spec.shape[at], sides[at]))))
    chunks = [sides[a] for a in kept]
    chunks.insert(at, row)
    decoded = math.prod(sides) * spec.dtype.itemsize
    copies = (spec.storage.copies + 1) * decoded / (math.prod(chunks) * spec.dtype.itemsize)
    pieces = math.prod(count(spec.shape[a], sides[a]) for a in axes[1:])
    return replace(decoding(moved.with_storage(copies=copies), spec, chunks, pieces), chunks=tuple(chunks))


class MarkedSource(Some):
    """The wanted elements of a source, whose axes from `at` on are those of the marks. They lie along the axis `at`."""

    def __init__(self, source: Source, marks: Marks, at: int) -> None:
        super().__init__(source, marked_spec(source.spec, marks, at), (marks, at))
        self._marks, self._at = marks, at
        self.held = [marks]

    def read(self, region: Region, out: np.ndarray) -> None:
        if not out.size:
            return
        found = self._source.view(whole(self._source.spec.shape))
        others = (*region[: self._at], *region[self._at + 1 :])
        for box in self._boxes(region[self._at], others):
            self._read_box(box, found, region, out)

    def _read_box(self, box: Region, found: np.ndarray | None, region: Region, out: np.ndarray) -> None:
        """Move the wanted elements of a box, which is read if there is any."""
        at, end = self._at, self._at + len(self._marks.shape)
        shape, strip = shape_of(box), None if found is None else found[box]
        follow = _follow(shape_of(box[at:end]), self._marks.shape)
        sides, rest = sides_of(shape, (1 + follow) * self._marks.grain * AT_ONCE), (*shape[:at], *shape[end:])
        places = shift((*box[:at], *box[end:]), [-side.start for side in (*region[:at], *region[at + 1 :])])
        corner = [side.start for side in places]
        for part, wanted, into in _wanted(self._marks, box[at:end], sides[at:end], region[at]):
            if strip is None:
                strip = np.empty(shape, self._source.spec.dtype)
                self._source.read(box, strip)
            for own in regions(rest, (*sides[:at], *sides[end:])):
                some, place = strip[(*own[:at], *part, *own[at:])], shift(own, corner)
                picked = np.compress(wanted, some, at) if at and end - at == 1 else some[(*ALL * at, wanted)]
                out[(*place[:at], into, *place[at:])] = picked

    def _boxes(self, side: slice, others: Sequence[slice]) -> Iterator[Region]:
        """Boxes of the source that have the wanted elements of a side: in single chunks, or of few bytes."""
        marks, spec, at = self._marks, self._source.spec, self._at
        around = (*others[:at], *self._around(side), *others[at:])
        if spec.chunks is not None and not spec.by_parts:
            cuts = [_cut(own, unit) for own, unit in zip(around, spec.chunks, strict=True)]
            yield from (box for box in itertools.product(*cuts) if marks.any(box[at : at + len(marks.shape)]))
            return
        if spec.storage.in_memory:
            yield around
            return
        sides = fit(shape_of(around), [1] * len(around), spec.order, marks.grain * STRIP // spec.dtype.itemsize)
        corner = [own.start for own in around]
        yield from (shift(part, corner) for part in regions(shape_of(around), tuple(max(1, n) for n in sides)))

    def _around(self, side: slice) -> Region:
        """The box around the wanted elements of a side, of the marks' axes."""
        shape = self._marks.shape
        first, last = (np.unravel_index(self._marks.place(n), shape) for n in (side.start, side.stop - 1))
        around: list[slice] = []
        for axis, (low, high) in enumerate(zip(first, last, strict=True)):
            around.append(slice(int(low), int(high) + 1))
            if low != high:
                return (*around, *whole(shape[axis + 1 :]))
        return tuple(around)


def _cut(side: slice, unit: int) -> list[slice]:
    """A side, cut at multiples of a unit."""
    edges = [side.start, *range((side.start // unit + 1) * unit, side.stop, unit), side.stop]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _wanted(
    marks: Marks, cell: Region, sides: Shape, side: slice
) -> Iterator[tuple[Region, np.ndarray, slice | np.ndarray]]:
    """Parts of a cell, which of their elements are wanted, and where these go within a side; none without any."""
    length, corner = side.stop - side.start, [own.start for own in cell]
    into: slice | np.ndarray
    follow, rows = _follow(shape_of(cell), marks.shape), _RowRanks(marks, cell)
    row, after = 0, int(rows.of(0, 1)[0]) - side.start
    for part in regions(shape_of(cell), sides):
        own = shift(part, corner)
        wanted = marks.box(own)
        total, number = int(np.count_nonzero(wanted)), wanted.size // wanted.shape[-1]
        first, row = row, row + number
        if not total:
            continue
        if follow:
            low, high = after, after + total
            after = high
        else:
            counts = np.count_nonzero(wanted.reshape(number, -1), axis=1)
            whole_rows = wanted.shape[-1] == cell[-1].stop - cell[-1].start
            ranks = (rows.of(first, number) if whole_rows else _RowRanks(marks, own).of(0, number)) - side.start
            met = np.flatnonzero(counts)
            low, high = int(ranks[met[0]]), int(ranks[met[-1]] + counts[met[-1]])
        if high <= 0 or low >= length:
            continue
        if high - low == total:
            if low < 0 or high > length:
                wanted[wanted] = (np.arange(low, high) >= 0) & (np.arange(low, high) < length)
            into = slice(max(low, 0), min(high, length))
        else:
            each = np.repeat(ranks - (counts.cumsum() - counts), counts)
            each += np.arange(total)
            if low < 0 or high > length:
                inside = (each >= 0) & (each < length)
                if not inside.any():
                    continue
                wanted[wanted] = inside
                each = each[inside]
            into = each
        yield part, wanted, into


class _RowRanks:
    """The numbers of the first elements of a cell's rows, of which some are counted ahead."""

    def __init__(self, marks: Marks, cell: Region) -> None:
        self._marks, self._cell, self._number = marks, cell, math.prod(shape_of(cell[:-1]))
        self._first, self._ranks = 0, np.empty(0, np.int64)

    def of(self, first: int, number: int) -> np.ndarray:
        """Those of some rows that follow one another."""
        if first + number > self._first + len(self._ranks):
            rows = np.arange(first, min(first + max(number, self._marks.grain * ROWS), self._number))
            self._first, self._ranks = first, self._marks.rank(rows_of(rows, self._cell, self._marks.shape))
        return self._ranks[first - self._first :][:number]


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
        self.held = [marks]
        shape = (marks.number, len(marks.shape)) if axes else (marks.number,)
        beside = marks.grain * (BITS + (SEGMENT * 8 + PLACES) * 8 * (5 + (len(marks.shape) + 1) * axes))
        self.spec = ArraySpec("places", shape, np.dtype(np.int64)).with_storage(beside=beside)

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
