"""Sorted runs of lines as one array, of which parts are gathered: each holds the elements of its ranks."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.kernels.statistics.merging import AT_ONCE, Merged
from chunkflow.stores import Source
from chunkflow.stores.protocol import Unviewed


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

    def read(self, region: Region, out: np.ndarray) -> None:
        """Gather a region, which lies in one part. It is quickest to ask for one after the other along the lines."""
        rows, side = np.moveaxis(out, self.axis, -1), region[self.axis]
        start = side.start // self.step * self.step
        whole = slice(start, min(start + self.step, self.runs.shape[-1]))
        assert side.stop <= whole.stop, "a region lies in one part"
        begin = [side.start for axis, side in enumerate(region) if axis != self.axis]
        wanted = {index: tuple(map(operator.add, begin, index)) for index in np.ndindex(*rows.shape[:-1])}
        lines = self._lines  # other threads may put others in its place
        if [*wanted.values()] != [*lines]:
            at_once = max(1, AT_ONCE // max(1, len(wanted)))
            self._lines = lines = {line: Merged(self._pieces(self.runs, line), at_once) for line in wanted.values()}
        for index, line in wanted.items():
            places = None if self.places is None else self._pieces(self.places, line)
            lines[line].gather(rows[index], side, places, part=whole)

    def _pieces(self, array: np.ndarray, line: Shape) -> list[np.ndarray]:
        return [np.asarray(array[line])[i : i + self.length] for i in range(0, array.shape[-1], self.length)]


class MergedSource(Unviewed):
    """Source of `MergedLines`, read by as many threads as there are."""

    def __init__(self, lines: MergedLines) -> None:
        self.spec, self.footprint = lines.__chunkflow_spec__(), None
        self._lines = lines

    def read(self, region: Region, out: np.ndarray) -> None:
        self._lines.read(region, out)

    def close(self) -> None: ...
