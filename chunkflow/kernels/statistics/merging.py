"""Sorted runs, merged part by part: the elements of any range of ranks are gathered, without what comes before.

The elements of a range of ranks lie in one piece of each run. Where the pieces end is found by counting what is below
samples of the runs, and then among the elements between two samples. Samples split runs so in D. J. DeWitt, J. F.
Naughton and D. A. Schneider, "Parallel sorting on a shared-nothing architecture using probabilistic splitting",
Parallel and Distributed Information Systems, 1991; here the ranks are exact.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from chunkflow.kernels.statistics.sorting import in_order

AT_ONCE, PLACES = 32, 1 << 13
"""Parts whose ends are found at once, and in how many places of runs these lie at most."""

GOLDEN = 0.618033988749895
"""Multiples of it, without what is before the point, lie evenly however many there are."""


@dataclass
class Merged:
    """Sorted runs, of which the elements of a range of ranks are gathered, run by run.

    Sorted stably, they are that part of the merged whole: equal elements are in the order of the runs. No run is longer
    than the first one. The ends of `at_once` parts are found at once.
    """

    runs: Sequence[np.ndarray]
    at_once: int = AT_ONCE
    _known: dict[int, np.ndarray] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @cached_property
    def starts(self) -> list[int]:
        """Where each run begins in the whole array, and where the last one ends."""
        return [0, *itertools.accumulate(map(len, self.runs))]

    def pieces(self, side: slice, *, part: slice | None = None) -> list[tuple[int, slice]]:
        """Where the elements of some ranks are: numbers of runs, and the places in them.

        Of a `part` that is gathered bit by bit, `side` is one of these: a place in the part is no rank then.
        """
        part = part or side
        step = part.stop - part.start
        begins, ends = self._ends(part.start, step), self._ends(part.stop, step)
        before = np.cumsum(ends - begins) - (ends - begins)  # elements of the part that earlier runs have
        low, high = (np.clip(begins + (at - part.start - before), begins, ends) for at in (side.start, side.stop))
        return [(run, slice(int(low[run]), int(high[run]))) for run in np.flatnonzero(low < high).tolist()]

    def _ends(self, rank: int, step: int) -> np.ndarray:
        """How many elements of each run are among so many smallest ones. Those of the next parts are found with it."""
        if rank in (0, self.starts[-1]):
            return np.array([len(run) if rank else 0 for run in self.runs])
        with self._lock:
            if rank not in self._known:
                most = rank + step * max(1, min(self.at_once, PLACES // len(self.runs)))
                ranks = np.arange(rank, min(most, self.starts[-1]), step)
                found = dict(zip(ranks.tolist(), self._found(ranks), strict=True))
                # Other threads may be at parts a little before these.
                kept = list(self._known.items())[-len(found) :]
                self._known = dict(kept) | found
            return self._known[rank]

    def _found(self, ranks: np.ndarray) -> np.ndarray:
        """The same for several ranks, a row for each."""
        last = self._last(ranks)
        found = self._counted(last, "left")
        equal = self._counted(last, "right") - found  # they are taken from the first runs
        left = ranks[:, None] - found.sum(1, keepdims=True)
        found += np.clip(left - (equal.cumsum(1) - equal), 0, equal)
        return found

    def _last(self, ranks: np.ndarray) -> np.ndarray:
        """The largest of so many smallest elements, for several ranks."""
        places = self._within.searchsorted(ranks)
        last = self._cuts[places]
        begins, ends = self._counted(self._cuts[places - 1], "right"), self._counted(last, "left")
        for number in np.flatnonzero(ends.sum(1) >= ranks):  # it lies between two cuts
            last[number] = self._between(begins[number], ends[number], int(ranks[number]))
        return last

    def _between(self, begins: np.ndarray, ends: np.ndarray, rank: int) -> Any:
        """The largest of so many smallest elements, which is in one of these pieces of the runs.

        Of elements that lie apart one is chosen, until the pieces are no longer than a run.
        """
        while (left := int((ends - begins).sum())) > len(self.runs[0]):
            some = self._apart(-(-left // len(self.runs[0])), begins, ends)
            some = some if len(some) else self._apart(1, begins, ends)
            place = (rank - int(begins.sum())) * len(some) // (left + 1)
            value = np.partition(some, place)[place : place + 1]
            low, high = self._counted(value, "left")[0], self._counted(value, "right")[0]
            if low.sum() < rank <= high.sum():
                return value[0]
            begins, ends = (begins, low) if rank <= low.sum() else (high, ends)
        pieces = map(slice, begins, ends)
        between = np.concatenate([run[piece] for run, piece in zip(self.runs, pieces, strict=True)])
        place = rank - int(begins.sum()) - 1
        return np.partition(between, place)[place]

    def _counted(self, values: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """How many elements of each run are below some values, a row for each, or at most them."""
        return np.stack([run.searchsorted(values, side) for run in self.runs], 1)

    @cached_property
    def _cuts(self) -> np.ndarray:
        """Some elements in order, from the first one to the last: eight for each run, or fewer if runs are short."""
        few = min(len(self.runs) ** 2, 4 * len(self.runs[0]))  # a run is as long as the budget allows
        ends = [run[[0, -1]] for run in self.runs]
        found = self._apart(self.starts[-1] // few, [0] * len(self.runs), [len(run) for run in self.runs])
        first, *_, last = np.split(in_order(np.concatenate(ends)), [1, 2 * len(ends) - 1])
        return np.concatenate((first, in_order(found)[:: max(1, len(found) // (8 * len(ends)))], last))

    def _apart(self, apart: int, begins: Any, ends: Any) -> np.ndarray:
        """Elements of pieces of the runs that lie `apart`. They begin elsewhere in each, as runs may be alike."""
        pieces = [
            slice(begin + int(apart * (number * GOLDEN % 1)), end, max(apart, 1))
            for number, (begin, end) in enumerate(zip(begins, ends, strict=True))
        ]
        return np.concatenate([run[piece] for run, piece in zip(self.runs, pieces, strict=True)])

    @cached_property
    def _within(self) -> np.ndarray:
        """How many elements are at most the cuts."""
        found = np.zeros(len(self._cuts), np.intp)
        for run in self.runs:
            found += run.searchsorted(self._cuts, "right")
        return found
