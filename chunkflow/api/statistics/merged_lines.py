"""Sorted runs of lines as one array, of which parts are gathered: each holds the elements of its ranks."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Sequence

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.spec import ArraySpec
from chunkflow.kernels.statistics.merging import AT_ONCE, PLACES, Merged
from chunkflow.stores import Source
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Unviewed

LEAST_RUN = 1 << 18
"""Bytes of a run in a part, on average, from which on compiled loops gather it run by run."""

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
        whole = self._part(side)
        begin = [side.start for axis, side in enumerate(region) if axis != self._axis]
        wanted = {index: tuple(map(operator.add, begin, index)) for index in np.ndindex(*rows.shape[:-1])}
        for (index, line), merged in zip(wanted.items(), self._merged([*wanted.values()]), strict=True):
            places = None if self._places is None else self._pieces(self._places, line)
            merged.gather(rows[index], side, places, part=whole)

    def runs(self, region: Region) -> np.ndarray | None:
        """See `chunkflow.stores.protocol.MemoryRuns`: of a part of one line, if what each run has of it is long."""
        side, begin = region[self._axis], [side.start for axis, side in enumerate(region) if axis != self._axis]
        length = side.stop - side.start
        if self._places is not None or math.prod(shape_of(region)) != length:
            return None
        [merged] = self._merged([tuple(begin)])
        found = merged.pieces(side, self._part(side))
        if length * self.spec.dtype.itemsize < LEAST_RUN * len(found):
            return None
        places = [(merged.runs[run][piece].ctypes.data, piece.stop - piece.start) for run, piece in found]
        return np.array(places, np.int64).reshape(-1, 2) * (1, self.spec.dtype.itemsize)

    def _part(self, side: slice) -> slice:
        """The part in which a bit lies."""
        start = side.start // self._step * self._step
        whole = slice(start, min(start + self._step, self._runs.shape[-1]))
        assert side.stop <= whole.stop, "a region lies in one part"
        return whole

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
