"""Sorted runs, merged part by part: the elements of any range of ranks are gathered, without what comes before.

The elements of a range of ranks lie in one piece of each run. Where the pieces end is found by bisection of the values,
as P. J. Varman, S. D. Scheufler, B. R. Iyer and G. R. Ricard do, "Merging multiple lists on hierarchical-memory
multiprocessors", Journal of Parallel and Distributed Computing 12, 1991.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.kernels.statistics.radix_keys import from_keys, to_keys

AT_ONCE = 1 << 13
"""Numbers of places in runs that are found at once, for the parts to come."""


@dataclass
class Merged:
    """Sorted runs, of which the elements of a range of ranks are gathered, run by run.

    Sorted stably, they are that part of the merged whole: equal elements are in the order of the runs. `at_once` is how
    many places in runs are found for the parts to come.
    """

    runs: Sequence[np.ndarray]
    at_once: int = AT_ONCE
    _known: dict[int, list[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @cached_property
    def starts(self) -> list[int]:
        """Where each run begins in the whole array, and where the last one ends."""
        return [0, *itertools.accumulate(map(len, self.runs))]

    def gathered(self, side: slice, places: Sequence[np.ndarray] | None = None) -> np.ndarray:
        """The elements of some ranks; with `places`, where each is in the whole array, given where it is in its run."""
        step = side.stop - side.start
        pieces = [slice(*ends) for ends in zip(self._ends(side.start, step), self._ends(side.stop, step), strict=True)]
        if places is None:
            return np.concatenate([run[piece] for run, piece in zip(self.runs, pieces, strict=True)])
        each = zip(places, pieces, self.starts, strict=False)
        return np.concatenate([place[piece] + start for place, piece, start in each])

    def _ends(self, rank: int, step: int) -> list[int]:
        """How many elements of each run are among so many smallest ones. Those of the next parts are found with it."""
        if rank in (0, self.starts[-1]):
            return [len(run) if rank else 0 for run in self.runs]
        with self._lock:
            if rank not in self._known:
                most = rank + step * max(1, self.at_once // len(self.runs))
                ranks = np.arange(rank, min(most, self.starts[-1]), step)
                found = dict(zip(ranks.tolist(), self._found(ranks).tolist(), strict=True))
                # Other threads may be at parts a little before these.
                kept = list(self._known.items())[-len(found) :]
                self._known = dict(kept) | found
            return self._known[rank]

    def _found(self, ranks: np.ndarray) -> np.ndarray:
        """The same for several ranks, a row for each."""
        dtype = self.runs[0].dtype
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        ends = (info.min, info.max) if info else (-np.inf, np.nan) if dtype.kind == "f" else (False, True)
        low, high = (np.full(len(ranks), key) for key in to_keys(np.array(ends, dtype)))
        while (low < high).any():  # the keys of the largest of these elements
            middle = low + (high - low) // low.dtype.type(2)
            values = from_keys(middle, dtype)
            few = sum(run.searchsorted(values, "right") for run in self.runs) < ranks
            low, high = np.where(few, middle + low.dtype.type(1), low), np.where(few, high, middle)
        values = from_keys(low, dtype)
        found = np.stack([run.searchsorted(values, "left") for run in self.runs], 1)
        left = ranks - found.sum(1)
        for number, run in enumerate(self.runs):  # equal ones from the first runs
            more = np.minimum(left, run.searchsorted(values, "right") - found[:, number])
            found[:, number] += more
            left -= more
        return found


@dataclass
class MergedLines:
    """An array whose parts along an axis are still to be sorted: each has the elements of its ranks in the lines.

    Attributes
    ----------
    runs : numpy.ndarray
        The lines, along the last axis: each piece of `length` elements is sorted.
    places : numpy.ndarray or None
        Where in its piece each element was; then the places in the whole lines are given instead.
    axis, length : int
        Of the result, and of the pieces.
    """

    runs: np.ndarray
    places: np.ndarray | None
    axis: int
    length: int
    _lines: dict[Shape, Merged] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """As before the axis of the lines became the last one."""
        *others, n = self.runs.shape
        return (*others[: self.axis], n, *others[self.axis :])

    @property
    def dtype(self) -> np.dtype:
        """Of what is given."""
        return self.runs.dtype if self.places is None else np.dtype(np.intp)

    def __getitem__(self, box: Region) -> np.ndarray:
        """A part. It is quickest to ask for one after the other along the lines."""
        found = np.empty(shape_of(box), self.dtype)
        begin = [side.start for axis, side in enumerate(box) if axis != self.axis]
        rows = np.moveaxis(found, self.axis, -1)
        wanted = {index: tuple(map(operator.add, begin, index)) for index in np.ndindex(*rows.shape[:-1])}
        lines = self._lines  # other threads may put others in its place
        if [*wanted.values()] != [*lines]:
            at_once = AT_ONCE // max(1, len(wanted))
            self._lines = lines = {line: Merged(self._pieces(self.runs, line), at_once) for line in wanted.values()}
        for index, line in wanted.items():
            places = None if self.places is None else self._pieces(self.places, line)
            rows[index] = lines[line].gathered(box[self.axis], places)
        return found

    def _pieces(self, array: np.ndarray, line: Shape) -> list[np.ndarray]:
        return [array[line][i : i + self.length] for i in range(0, array.shape[-1], self.length)]
