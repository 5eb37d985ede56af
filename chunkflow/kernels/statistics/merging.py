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
from chunkflow.system.native import join

AT_ONCE, PLACES = 32, 1 << 13
"""Parts whose ends are found at once, and in how many places of runs these lie at most."""

FEW, SAMPLE, NEAR = 1 << 13, 1 << 10, 8
"""Elements among which one is found by partition; of more so many lie apart; and how near its share it is looked for.

Of r runs the share is off by a third of the root of r places. More on one side than it are left out all the same.
"""

GOLDEN = 0.618033988749895
"""Multiples of it, without what is before the point, lie evenly however many there are."""


@dataclass
class Merged:
    """Sorted runs, of which the elements of a range of ranks are gathered, run by run.

    Sorted stably, they are that part of the merged whole: equal elements are in the order of the runs. No run is longer
    than the first one. The ends of up to `at_once` parts are found at once.
    """

    runs: Sequence[np.ndarray]
    at_once: int = AT_ONCE
    _known: dict[int, np.ndarray] = field(default_factory=dict)
    _looked: int = field(default=1)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @cached_property
    def starts(self) -> list[int]:
        """Where each run begins in the whole array, and where the last one ends."""
        return [0, *itertools.accumulate(map(len, self.runs))]

    def gather(
        self, out: np.ndarray, side: slice, places: Sequence[np.ndarray] | None = None, *, part: slice | None = None
    ) -> None:
        """Fill `out` with the elements of some ranks; given the `places` in the runs, with those in the whole array.

        Of a `part` that is gathered bit by bit, `side` is one of these: a place in the part is no rank then.
        """
        pieces = self.pieces(side, part or side)
        of = self.runs if places is None else places
        join([of[run][piece] for run, piece in pieces], out)
        if places is not None:
            cuts = [0, *itertools.accumulate(piece.stop - piece.start for _, piece in pieces)]
            for (run, _), start, stop in zip(pieces, cuts, cuts[1:], strict=False):
                out[start:stop] += self.starts[run]

    def pieces(self, side: slice, part: slice) -> list[tuple[int, slice]]:
        """What runs have of a bit of a part: their numbers and pieces, in order."""
        step = part.stop - part.start
        begins, ends = self._ends(part.start, step), self._ends(part.stop, step)
        before = np.cumsum(ends - begins) - (ends - begins)  # elements of the part that earlier runs have
        low, high = (np.clip(begins + (at - part.start - before), begins, ends) for at in (side.start, side.stop))
        return [(run, slice(int(low[run]), int(high[run]))) for run in np.flatnonzero(low < high).tolist()]

    def _ends(self, rank: int, step: int) -> np.ndarray:
        """How many elements of each run are among so many smallest ones. Those of the next parts are found with it."""
        if rank in (0, self.starts[-1]):
            return np.array([len(run) if rank else 0 for run in self.runs])
        found = self._known.get(rank)
        if found is None:  # nobody waits for what is known while another thread looks ahead
            with self._lock:
                if rank not in self._known:
                    self._look(rank, step)
                found = self._known[rank]
        soon = rank + step * (self._looked // 2)
        if soon < self.starts[-1] and soon not in self._known and self._lock.acquire(blocking=False):
            try:  # while other threads gather
                self._look(soon, step)
            finally:
                self._lock.release()
        return found

    def _look(self, rank: int, step: int) -> None:
        """Find the ends of some parts. Other threads may be at parts a little before these, which are kept.

        They are twice as many each time: all threads wait for the first.
        """
        most = max(1, min(self.at_once, PLACES // len(self.runs)))
        self._looked = min(most, 2 * self._looked)
        ranks = np.arange(rank, min(rank + step * self._looked, self.starts[-1]), step)
        found = dict(zip(ranks.tolist(), self._found(ranks), strict=True))
        self._known = dict([*self._known.items()][-2 * most :]) | found

    def _found(self, ranks: np.ndarray) -> np.ndarray:
        """The same for several ranks, a row for each."""
        last = self._last(ranks)
        found = self._counted(last, "left")
        equal = self._counted(last, "right") - found  # they are taken from the first runs
        left = ranks[:, None] - found.sum(1, keepdims=True)
        found += np.clip(left - (equal.cumsum(1) - equal), 0, equal)
        return found

    def _last(self, ranks: np.ndarray) -> np.ndarray:
        """The largest of so many smallest elements, for several ranks.

        It is a cut, or in the pieces of the runs between two of them. There, of elements that lie apart, two around its
        share of the pieces narrow these, until they are few.
        """
        places = self._within.searchsorted(ranks)
        last = self._cuts[places]
        begins, ends = self._counted(self._cuts[places - 1], "right"), self._counted(last, "left")
        wanted = np.flatnonzero(ends.sum(1) >= ranks)
        while len(wanted):
            few = (ends[wanted] - begins[wanted]).sum(1) <= FEW
            for number in wanted[few]:
                last[number] = self._among(begins[number], ends[number], int(ranks[number]))
            wanted = wanted[~few]
            around = [self._around(begins[number], ends[number], int(ranks[number])) for number in wanted]
            looked = np.full(len(wanted), True)
            for values in np.array(around, last.dtype).reshape(-1, 2).T:
                below, most = self._counted(values, "left"), self._counted(values, "right")
                before, after = ranks[wanted] <= below.sum(1), ranks[wanted] > most.sum(1)
                ends[wanted[before]] = np.minimum(ends[wanted], below)[before]
                begins[wanted[after]] = np.maximum(begins[wanted], most)[after]
                here = ~(before | after)
                last[wanted[here]], looked = values[here], looked & ~here
            wanted = wanted[looked]
        return last

    def _around(self, begins: np.ndarray, ends: np.ndarray, rank: int) -> np.ndarray:
        """Two elements of pieces of the runs, the one of a rank likely between them."""
        left = int((ends - begins).sum())
        some = in_order(self._apart(left // SAMPLE, begins, ends))
        some = some if len(some) else self._apart(1, begins, ends)
        place = (rank - int(begins.sum())) * len(some) // (left + 1)
        return some[[max(place - NEAR, 0), min(place + NEAR, len(some) - 1)]]

    def _among(self, begins: np.ndarray, ends: np.ndarray, rank: int) -> Any:
        """The largest of so many smallest elements, which is in one of these pieces of the runs."""
        between = np.concatenate([run[begin:end] for run, begin, end in zip(self.runs, begins, ends, strict=True)])
        place = rank - int(begins.sum()) - 1
        return np.partition(between, place)[place]

    def _counted(self, values: np.ndarray, side: Literal["left", "right"]) -> np.ndarray:
        """How many elements of each run are below some values, a row for each, or at most them."""
        return np.stack([run.searchsorted(values, side) for run in self.runs], 1)

    @cached_property
    def _cuts(self) -> np.ndarray:
        """Some elements in order, from the first one to the last: two for each run, or fewer if runs are short."""
        few = min(len(self.runs) ** 2, 4 * len(self.runs[0]))  # a run is as long as the budget allows
        ends = [run[[0, -1]] for run in self.runs]
        found = self._apart(self.starts[-1] // few, [0] * len(self.runs), [len(run) for run in self.runs])
        first, *_, last = np.split(in_order(np.concatenate(ends)), [1, 2 * len(ends) - 1])
        return np.concatenate((first, in_order(found)[:: max(1, len(found) // (2 * len(ends)))], last))

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
