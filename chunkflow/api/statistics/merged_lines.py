"""Sorted runs of lines as one array, of which parts are gathered: each holds the elements of its ranks."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.kernels.statistics.merging import AT_ONCE, PLACES, Merged
from chunkflow.stores import Source
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Unviewed

KEPT = 4
"""Of so many times as many lines as are read at once it is known where parts end: threads are at several of them."""


class MergedLines(Unviewed):
    """A source whose parts along an axis are still to be sorted, read by as many threads as there are.

    Parameters
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

    footprint: Footprint | None = None

    def __init__(self, runs: np.ndarray, places: np.ndarray | None, axis: int, length: int, step: int) -> None:
        self._runs, self._places, self._axis, self._length, self._step = runs, places, axis, length, step
        self._known: dict[Shape, Merged] = {}
        self._lock = threading.Lock()
        *others, n = runs.shape
        shape = (*others[:axis], n, *others[axis:])
        dtype = runs.dtype if places is None else np.dtype(np.intp)
        order = (*(a for a in range(len(shape)) if a != axis), axis)
        self.spec = ArraySpec("sorted runs", shape, dtype, order=order)

    def __chunkflow_spec__(self) -> ArraySpec:
        return self.spec

    def __chunkflow_source__(self) -> Source:
        return self

    def read(self, region: Region, out: np.ndarray) -> None:
        """Gather a region, which lies in one part. It is quickest to ask for one after the other along the lines."""
        rows, side = np.moveaxis(out, self._axis, -1), region[self._axis]
        start = side.start // self._step * self._step
        whole = slice(start, min(start + self._step, self._runs.shape[-1]))
        assert side.stop <= whole.stop, "a region lies in one part"
        begin = [side.start for axis, side in enumerate(region) if axis != self._axis]
        wanted = {index: tuple(map(operator.add, begin, index)) for index in np.ndindex(*rows.shape[:-1])}
        for (index, line), merged in zip(wanted.items(), self._merged([*wanted.values()]), strict=True):
            places = None if self._places is None else self._pieces(self._places, line)
            merged.gather(rows[index], side, places, part=whole)

    def _merged(self, lines: Sequence[Shape]) -> list[Merged]:
        """The runs of some lines. What is known of others is kept, until there are many."""
        at_once = max(1, AT_ONCE // max(1, len(lines)))
        with self._lock:
            for line in lines:
                if line not in self._known:
                    self._known[line] = Merged(self._pieces(self._runs, line), at_once)
            found = [self._known[line] for line in lines]
            runs = -(-self._runs.shape[-1] // self._length)
            for line in [*self._known][: -max(KEPT * len(lines), PLACES // (KEPT * runs))]:
                del self._known[line]
        return found

    def _pieces(self, array: np.ndarray, line: Shape) -> list[np.ndarray]:
        return [np.asarray(array[line])[i : i + self._length] for i in range(0, array.shape[-1], self._length)]

    def close(self) -> None: ...
