"""Sorted runs as one sorted array: any part of it is found by ranks, without what comes before.

The elements of a range of ranks lie in one piece of each run. Where the pieces end is found by bisection of the values,
as P. J. Varman, S. D. Scheufler, B. R. Iyer and G. R. Ricard do, "Merging multiple lists on hierarchical-memory
multiprocessors", Journal of Parallel and Distributed Computing 12, 1991.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.kernels.statistics.radix_keys import from_keys, to_keys


@dataclass
class Merged:
    """The elements of sorted runs in order, computed where they are asked for; equal ones in the order of the runs.

    With `places`, which says where in its run each element of a run was, it is the places in the whole array instead.
    """

    runs: Sequence[np.ndarray]
    places: Sequence[np.ndarray] | None = None
    _last: tuple[int, list[int]] = field(default=(-1, []))

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *itertools.accumulate(map(len, self.runs))]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of all elements."""
        return (self._starts[-1],)

    @property
    def dtype(self) -> np.dtype:
        """Of what is given."""
        return self.runs[0].dtype if self.places is None else np.dtype(np.intp)

    def __getitem__(self, box: Region) -> np.ndarray:
        (side,) = box
        pieces = [slice(a, b) for a, b in zip(self._ends(side.start), self._ends(side.stop), strict=True)]
        values = np.concatenate([run[piece] for run, piece in zip(self.runs, pieces, strict=True)])
        if self.places is None:
            values.sort(kind="stable")  # which merges what is sorted
            return values
        order = np.argsort(values, kind="stable")
        del values
        each = zip(self.places, pieces, self._starts, strict=False)
        found: np.ndarray = np.concatenate([places[piece] + start for places, piece, start in each])[order]
        return found

    def _ends(self, rank: int) -> list[int]:
        """How many elements of each run are among so many smallest ones."""
        if rank in (0, self._starts[-1]):
            return [len(run) if rank else 0 for run in self.runs]
        if rank != self._last[0]:  # where one part ends, the next one begins
            self._last = rank, self._found(rank)
        return self._last[1]

    def _found(self, rank: int) -> list[int]:
        dtype = self.runs[0].dtype
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        ends = (info.min, info.max) if info else (-np.inf, np.nan) if dtype.kind == "f" else (False, True)
        low, high = map(int, to_keys(np.array(ends, dtype)))
        keys = to_keys(np.zeros(1, dtype)).dtype
        while low < high:  # the key of the largest of them
            middle = (low + high) // 2
            value = from_keys(np.array([middle], keys), dtype)[0]
            if sum(int(run.searchsorted(value, "right")) for run in self.runs) < rank:
                low = middle + 1
            else:
                high = middle
        value = from_keys(np.array([low], keys), dtype)[0]
        found = [int(run.searchsorted(value, "left")) for run in self.runs]
        left = rank - sum(found)
        for number, run in enumerate(self.runs):  # equal ones from the first runs
            more = min(left, int(run.searchsorted(value, "right")) - found[number])
            found[number] += more
            left -= more
        return found
