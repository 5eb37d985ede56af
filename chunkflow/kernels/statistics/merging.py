"""Sorted runs as one sorted array: any part of it is found by ranks, without what comes before.

The elements of a range of ranks lie in one piece of each run. Where the pieces end is found by bisection of the values,
as P. J. Varman, S. D. Scheufler, B. R. Iyer and G. R. Ricard do, "Merging multiple lists on hierarchical-memory
multiprocessors", Journal of Parallel and Distributed Computing 12, 1991.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.kernels.statistics.radix_keys import from_keys, to_keys

AT_ONCE = 1 << 14
"""Numbers of places in runs that are found at once, for the parts to come."""


@dataclass
class Merged:
    """The elements of sorted runs in order, computed where they are asked for.

    With `places`, which says where in its run each element of a run was, it is the places in the whole array instead.
    Equal elements are in the order of the runs; only of zeros of both signs is that seen, and costs more (`stable`).
    `at_once` is how many places in runs are found for the parts to come.
    """

    runs: Sequence[np.ndarray]
    places: Sequence[np.ndarray] | None = None
    stable: bool = True
    at_once: int = AT_ONCE
    _known: dict[int, list[int]] = field(default_factory=dict)

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
        step = side.stop - side.start
        pieces = [slice(*ends) for ends in zip(self._ends(side.start, step), self._ends(side.stop, step), strict=True)]
        values = np.concatenate([run[piece] for run, piece in zip(self.runs, pieces, strict=True)])
        if self.places is None:
            values.sort(kind="stable" if self.stable else None)
            return values
        order = np.argsort(values, kind="stable")
        del values
        each = zip(self.places, pieces, self._starts, strict=False)
        found: np.ndarray = np.concatenate([places[piece] + start for places, piece, start in each])[order]
        return found

    def _ends(self, rank: int, step: int) -> list[int]:
        """How many elements of each run are among so many smallest ones. Those of the next parts are found with it."""
        if rank in (0, self._starts[-1]):
            return [len(run) if rank else 0 for run in self.runs]
        known = self._known  # another thread may put others in its place
        if rank not in known:
            most = rank + step * max(1, self.at_once // len(self.runs))
            ranks = np.arange(rank, min(most, self._starts[-1]), step)
            self._known = known = dict(zip(ranks.tolist(), self._found(ranks).tolist(), strict=True))
        return known[rank]

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
    """An array whose lines along an axis are in order, given runs of these lines: any part of it is found.

    Attributes
    ----------
    runs : numpy.ndarray
        The lines, along the last axis: each piece of `length` elements is sorted.
    places : numpy.ndarray or None
        Where in its piece each element was; then the places in the whole lines are given instead.
    axis, length : int
        Of the result, and of the pieces.
    stable : bool
        See `Merged`.
    """

    runs: np.ndarray
    places: np.ndarray | None
    axis: int
    length: int
    stable: bool = True
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
        if [*wanted.values()] != [*self._lines]:
            self._lines = {line: self._line(line, AT_ONCE // len(wanted)) for line in wanted.values()}
        for index, line in wanted.items():
            rows[index] = self._lines[line][(box[self.axis],)]
        return found

    def _line(self, index: Shape, at_once: int) -> Merged:
        runs, places = (
            None if a is None else [a[index][i : i + self.length] for i in range(0, a.shape[-1], self.length)]
            for a in (self.runs, self.places)
        )
        assert runs is not None
        return Merged(runs, places, self.stable, at_once)
