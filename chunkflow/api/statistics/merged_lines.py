"""Sorted runs of lines as one array, of which parts are gathered: each holds the elements of its ranks."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of, within
from chunkflow.core.pieces import LEAST_ROW
from chunkflow.core.spec import ArraySpec, ByteRun
from chunkflow.kernels.statistics.merging import AT_ONCE, Merged
from chunkflow.stores import Source, open_source
from chunkflow.stores.protocol import Unviewed, run_of
from chunkflow.stores.strides import part

MOST = 1024
"""Pieces of a part from which on Python gathers them."""


class _Piece(NamedTuple):
    """Elements of a part that one run has: their place in the array, and in the runs, and where the run starts."""

    place: Region
    behind: Region
    start: int


@dataclass
class MergedLines:
    """An array whose parts along an axis are still to be sorted. Opens as a source.

    Attributes
    ----------
    runs : numpy.ndarray
        The lines, along the last axis: each piece of `length` elements is sorted.
    places : numpy.ndarray or None
        Where in its piece each element was; then the places in the whole lines are given instead.
    axis, length : int
        Of the result, and of the pieces.
    step : int
        Elements of a part along the axis. Bits of a part hold it together, in no order.
    """

    runs: np.ndarray
    places: np.ndarray | None
    axis: int
    length: int
    step: int
    _lines: dict[Shape, Merged] = field(default_factory=dict)

    def __chunkflow_spec__(self) -> ArraySpec:
        """Shaped as before the axis of the lines became the last one, in the order of the runs."""
        *others, n = self.runs.shape
        shape = (*others[: self.axis], n, *others[self.axis :])
        dtype = self.runs.dtype if self.places is None else np.dtype(np.intp)
        order = (*(axis for axis in range(len(shape)) if axis != self.axis), self.axis)
        return ArraySpec("sorted runs", shape, dtype, order=order)

    def __chunkflow_source__(self) -> Source:
        return MergedSource(self)

    def pieces(self, box: Region) -> Iterator[_Piece]:
        """Where the elements of a region are. It is quickest to ask for one after the other along the lines."""
        side = box[self.axis]
        start = side.start // self.step * self.step
        whole = slice(start, min(start + self.step, self.runs.shape[-1]))
        assert side.stop <= whole.stop, "a region lies in one part"
        begin = [side.start for axis, side in enumerate(box) if axis != self.axis]
        counts = [n for axis, n in enumerate(shape_of(box)) if axis != self.axis]
        wanted = [tuple(map(operator.add, begin, index)) for index in np.ndindex(*counts)]
        lines = self._lines  # other threads may put others in its place
        if wanted != [*lines]:
            at_once = max(1, AT_ONCE // max(1, len(wanted)))
            self._lines = lines = {line: Merged(self._runs(line), at_once) for line in wanted}
        for line in wanted:
            at = side.start
            for number, piece in lines[line].pieces(side, part=whole):
                others, after = [slice(i, i + 1) for i in line], at + piece.stop - piece.start
                place = (*others[: self.axis], slice(at, after), *others[self.axis :])
                first = number * self.length
                yield _Piece(place, (*others, slice(first + piece.start, first + piece.stop)), first)
                at = after

    def _runs(self, line: Shape) -> list[np.ndarray]:
        return [np.asarray(self.runs[line])[i : i + self.length] for i in range(0, self.runs.shape[-1], self.length)]


class MergedSource(Unviewed):
    """Source of `MergedLines`: a part is boxes of the runs, which compiled loops move, unless there are places."""

    def __init__(self, lines: MergedLines) -> None:
        self.spec, self.footprint = lines.__chunkflow_spec__(), None
        self._lines = lines
        self._behind = open_source(lines.runs if lines.places is None else lines.places)

    def read(self, region: Region, out: np.ndarray) -> None:
        for piece in self._lines.pieces(region):
            place = np.moveaxis(part(out, within(piece.place, region)), self._lines.axis, -1)
            self._behind.read(piece.behind, place)
            if self._lines.places is not None:
                place += piece.start

    def boxes(self, region: Region) -> Sequence[Region]:
        """See `chunkflow.stores.protocol.Boxes`."""
        if self._lines.places is not None:
            return [region]
        found = [piece.place for piece in self._lines.pieces(region)]
        total = self.spec.dtype.itemsize * math.prod(shape_of(region))
        return found if len(found) <= min(MOST, total // LEAST_ROW) else [region]

    def run(self, region: Region) -> ByteRun | None:
        """See `chunkflow.stores.protocol.ByteRuns`: of a region that one run has."""
        if self._lines.places is not None:
            return None
        pieces = [*self._lines.pieces(region)]
        return run_of(self._behind, pieces[0].behind) if len(pieces) == 1 else None

    def close(self) -> None:
        self._behind.close()
