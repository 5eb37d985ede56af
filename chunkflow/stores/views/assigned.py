"""What an assignment ``x[index] = values`` sets in any region of an array, made while it is read.

A source of bools says which elements are set, and another one has their values, with zeros elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.cuts import AxisSlice
from chunkflow.core.grid import Region, Shape, regions, shape_of, shift
from chunkflow.core.spec import ArraySpec
from chunkflow.stores.protocol import Source, Unviewed
from chunkflow.stores.views.marked import BITS, STRIP, Marks, rows_of, sides_of


@dataclass(frozen=True)
class Picked:
    """The elements that an index picks: of some axes at points, of the others each n-th one.

    Attributes
    ----------
    shape : tuple of int
        Of the array.
    cuts : tuple of AxisSlice
        For each axis; all of it where there are points.
    axes : tuple of int
        Axes of the points.
    points : numpy.ndarray
        A column for each point, sorted by the first of the axes. Of equal ones the last one counts.
    """

    shape: Shape
    cuts: tuple[AxisSlice, ...]
    axes: tuple[int, ...]
    points: np.ndarray

    def within(self, region: Region) -> _Part:
        """The part of them in a region."""
        into, which = [], []
        for axis, (side, cut) in enumerate(zip(region, self.cuts, strict=True)):
            if axis not in self.axes:
                own = _steps(side, cut)
                into.append(_stepping(cut.start + cut.step * own.start - side.start, own.stop - own.start, cut.step))
                which.append(own)
        if not self.axes:
            return _Part((), np.empty(0, np.int64), tuple(into), tuple(which))
        first = region[self.axes[0]]
        start, stop = np.searchsorted(self.points[0], (first.start, first.stop)).tolist()
        some = self.points[:, start:stop]
        inside = np.ones(stop - start, bool)
        for axis, own in zip(self.axes[1:], some[1:], strict=True):
            inside &= (own >= region[axis].start) & (own < region[axis].stop)
        met = np.flatnonzero(inside)
        corner = [region[axis].start for axis in self.axes]
        places = tuple(p[met] - at for p, at in zip(some, corner, strict=True))
        return _Part(places, met + start, tuple(into), tuple(which))

    def put(self, out: np.ndarray, part: _Part, values: Any) -> None:
        """Set the elements of a part. The values' axes are the points, and then the axes without any."""
        moved: Any = np.moveaxis(out, self.axes, range(len(self.axes)))
        moved[(*part.points, *part.into)] = values


@dataclass(frozen=True)
class _Part:
    """Picked elements in a region: where they are in it, and which ones of all they are."""

    points: tuple[np.ndarray, ...]
    numbers: np.ndarray
    into: tuple[slice, ...]
    which: tuple[slice, ...]


def _steps(side: slice, cut: AxisSlice) -> slice:
    """Which elements of a cut lie in a side.

    >>> _steps(slice(3, 9), AxisSlice(0, 10, 2)), _steps(slice(3, 9), AxisSlice(9, 10, -2))
    (slice(2, 5, None), slice(1, 4, None))
    """
    start, number, step = cut
    if step > 0:
        first, last = -((start - side.start) // step), -((start - side.stop) // step)
    else:
        first, last = (start - side.stop) // -step + 1, (start - side.start) // -step + 1
    first = min(max(first, 0), number)
    return slice(first, max(first, min(last, number)))


def _stepping(start: int, number: int, step: int) -> slice:
    if not number:
        return slice(0, 0)
    last = start + (number - 1) * step
    return slice(start, last + 1 if step > 0 else last - 1 if last else None, step)


class AssignedMask(Unviewed):
    """Whether each element is set."""

    footprint = None

    def __init__(self, places: Picked) -> None:
        self._places = self.how = places
        self.held, self.parts = [places.points], list[Source]()
        self.spec = ArraySpec("an index", places.shape, np.dtype(bool))

    def read(self, region: Region, out: np.ndarray) -> None:
        out[...] = False
        self._places.put(out, self._places.within(region), True)

    def close(self) -> None:
        """See `Source.close`."""


class AssignedValues(Unviewed):
    """The values of the elements that are set.

    `values` is an array with the axes of `Picked.put` where there are points. Else it is a source, in which axes may be
    of length 1; those that are None in `along` it lacks.
    """

    footprint = None

    def __init__(self, places: Picked, values: Source | np.ndarray, along: tuple[int | None, ...] = ()) -> None:
        self._places, self._values, self._along = places, values, along
        self.parts = [] if isinstance(values, np.ndarray) else [values]
        self.held = [places.points, *([values] if isinstance(values, np.ndarray) else [])]
        self.how = (places, values if isinstance(values, np.ndarray) else None, along)
        dtype = values.dtype if isinstance(values, np.ndarray) else values.spec.dtype
        self.spec = ArraySpec("values", places.shape, dtype)

    def read(self, region: Region, out: np.ndarray) -> None:
        out[...] = 0
        part = self._places.within(region)
        if isinstance(self._values, np.ndarray):
            ones = [slice(0, 1) if n == 1 else own for n, own in zip(self._values.shape[1:], part.which, strict=True)]
            numbers = part.numbers if len(self._values) != 1 else np.zeros(1, np.int64)
            self._places.put(out, part, self._values[(numbers, *ones)])
            return
        shape = self._values.spec.shape
        box = [slice(0, 1)] * len(shape)
        for own, d in zip(part.which, self._along, strict=True):
            if d is not None:
                box[d] = own if shape[d] != 1 else slice(0, min(1, own.stop - own.start))
        found = np.empty(shape_of(tuple(box)), self.spec.dtype)
        if all(own.stop > own.start for own in part.which):
            self._values.read(tuple(box), found)
            self._places.put(out, part, found.reshape([1 if d is None else found.shape[d] for d in self._along]))

    def close(self) -> None:
        for part in self.parts:
            part.close()


class MarkedMask(Unviewed):
    """Whether each element is marked."""

    footprint = None

    def __init__(self, marks: Marks) -> None:
        self._marks = self.how = marks
        self.held = [marks]
        self.parts: list[Source] = []
        self.spec = ArraySpec("marks", marks.shape, np.dtype(bool)).with_storage(beside=2 * BITS)

    def read(self, region: Region, out: np.ndarray) -> None:
        for part in regions(out.shape, sides_of(out.shape, BITS)):
            out[part] = self._marks.box(shift(part, [side.start for side in region]))

    def close(self) -> None:
        """See `Source.close`."""


class MarkedValues(Unviewed):
    """Values of marked elements, in C order, at their places."""

    footprint = None

    def __init__(self, marks: Marks, values: Source) -> None:
        self._marks, self._values, self.how, self.parts = marks, values, marks, [values]
        self.held = [marks]
        spec = values.spec
        decoded = min(math.prod(spec.chunks or (0,)), spec.size) * spec.storage.copies * spec.dtype.itemsize
        beside = spec.storage.beside + 3 * STRIP + 4 * BITS + math.ceil(decoded)
        self.spec = ArraySpec("values", marks.shape, spec.dtype).with_storage(beside=beside)

    def read(self, region: Region, out: np.ndarray) -> None:
        out[...] = 0
        sides = sides_of(out.shape, min(BITS, STRIP // out.itemsize))
        for part in regions(out.shape, sides):
            cell = shift(part, [side.start for side in region])
            wanted = self._marks.box(cell)
            counts = np.count_nonzero(wanted.reshape(-1, wanted.shape[-1]), axis=1)
            met = np.flatnonzero(counts)
            if not len(met):
                continue
            ranks, counts = self._marks.rank(rows_of(met, cell, self._marks.shape)), counts[met]
            low, high, total = int(ranks[0]), int(ranks[-1] + counts[-1]), int(counts.sum())
            if high - low > 2 * total:  # rows are cut, and what lies between them is much
                found, end = np.empty(total, self.spec.dtype), 0
                for rank, count in zip(ranks.tolist(), counts.tolist(), strict=True):
                    self._values.read((slice(rank, rank + count),), found[end : end + count])
                    end += count
            else:
                found = np.empty(high - low, self.spec.dtype)
                self._values.read((slice(low, high),), found)
                if high - low > total:
                    ours = np.zeros(high - low + 1, np.int8)  # 1 where a row's begin, -1 where they end
                    ours[ranks - low] = 1
                    ours[ranks + counts - low] -= 1
                    found = found[ours[:-1].cumsum(dtype=np.int8).view(bool)]
            out[part][wanted] = found

    def close(self) -> None:
        self._values.close()
