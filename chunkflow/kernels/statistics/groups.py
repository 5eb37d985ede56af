"""Statistics by label: a fold with partial results for each label that occurs.

A block is cut into runs of one label along its last axis. Elements are reduced over each run, then over the runs of
each label, which are brought together by sorting. So the cost is that of a few passes over the block, and few runs are
sorted if labels are contiguous. Partial results are sorted by label and merge like sorted lists. Their length is the
number of labels, however large the labels are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold
from chunkflow.kernels.statistics.distinct import TooManyValuesError
from chunkflow.kernels.statistics.segments import segmented
from chunkflow.kernels.subnest import on_host

STATISTICS = ("count", "sum", "mean", "var", "std", "min", "max", "center_of_mass", "bounding_box")
"""All statistics."""

PLACED = ("moments", "start", "stop")
"""Fields that depend on the elements' positions."""

SPREAD = ("mean", "rest", "squares")
"""Fields of the variance: the mean in two parts, and the sum of squares about it."""

_MERGE: dict[str, Any] = {
    "count": np.add,
    "exact": np.add,
    "total": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "moments": np.add,
    "start": np.minimum,
    "stop": np.maximum,
}

Fields = Mapping[str, tuple[np.dtype, Shape]]
"""Dtype and shape of each partial result of a label, by name."""


def fields_of(statistics: Sequence[str], dtype: np.dtype, ndim: int) -> Fields:
    """The fields that are kept for each label to compute some statistics of arrays of a dtype.

    >>> sorted(fields_of(("sum", "max"), np.dtype("i4"), 3))
    ['count', 'exact', 'max']
    """
    wide, place = np.dtype("f8"), np.dtype("i8")
    native = np.dtype("u1") if dtype.kind == "b" else dtype.newbyteorder("=")
    whole = dtype.kind in "biu"
    made: dict[str, dict[str, tuple[np.dtype, Shape]]] = {
        "count": {},
        "sum": {"exact": (np.dtype("u8" if dtype.kind == "u" else "i8"), ())} if whole else {"total": (wide, ())},
        "mean": {"total": (wide, ())},
        **dict.fromkeys(("var", "std"), dict.fromkeys(SPREAD, (wide, ()))),
        "min": {"min": (native, ())},
        "max": {"max": (native, ())},
        "center_of_mass": {"total": (wide, ()), "moments": (wide, (ndim,))},
        "bounding_box": {"start": (place, (ndim,)), "stop": (place, (ndim,))},
    }
    fields: dict[str, tuple[np.dtype, Shape]] = {"count": (place, ())}
    for name in statistics:
        fields |= made[name]
    return fields


def bytes_of(fields: Fields) -> int:
    """Bytes of the fields of each label, without the label."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in fields.values())


@dataclass(frozen=True, eq=False)
class GroupPartial:
    """Partial results of some labels, which are sorted: for each field an array whose first axis follows the labels."""

    labels: Any
    fields: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(a.nbytes) for a in (self.labels, *self.fields.values()))

    def on_host(self) -> GroupPartial:
        """A copy in NumPy arrays."""
        return GroupPartial(on_host(self.labels), on_host(self.fields))


Value = tuple[GroupPartial, ...]


@dataclass(frozen=True, eq=False)
class Grouped(Fold):
    """A fold over all elements to the partial results of each label.

    The value is a stack of partial results, each at least twice as long as the next one. So a long one is not copied to
    add a few labels, and sums are added up pairwise.

    Attributes
    ----------
    fields : mapping
        Fields that are kept for each label.
    room : int
        Most labels that may be kept.
    wanted : numpy.ndarray, optional
        Labels to keep, sorted; all by default.
    background : int, optional
        Label to leave out.
    found : list of GroupPartial
        Takes the partial results of the whole array, on the host. They are no result for a sink, since the number of
        labels is unknown before the first block is read.
    """

    fields: Fields
    room: int
    wanted: np.ndarray | None = None
    background: int | None = None
    found: list[GroupPartial] = field(default_factory=list)

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        labels, *values = blocks
        if not nest.outputs:  # the trial call measures the memory of as many labels as there may be
            self._of_block(self._varied(labels), values, box)
            return (self._nothing(plain(labels), 0),)
        return self._stacked((*(value or ()), self._of_block(labels, values, box)))

    def combine(self, left: Value, right: Value) -> Value:
        return (self._checked(_all_merged((*left, *right))),)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        """The number of labels. Their partial results are in `found`."""
        whole = _all_merged(value)
        if nest.outputs:
            self.found[:] = [whole.on_host()]
        return np.full_like(whole.labels, len(whole.labels), dtype="i8", shape=(1,))

    def _stacked(self, parts: Value) -> Value:
        stack = list(parts)
        while len(stack) > 1 and len(stack[-2].labels) < 2 * len(stack[-1].labels):
            right, left = stack.pop(), stack.pop()
            stack.append(merged(left, right))
        if sum(len(part.labels) for part in stack) > self.room:
            return (self._checked(_all_merged(stack)),)
        return tuple(stack)

    def _checked(self, part: GroupPartial) -> GroupPartial:
        self._check(len(part.labels))
        return part

    def _check(self, number: int) -> None:
        if number > self.room:
            raise TooManyValuesError(number)

    def _varied(self, labels: Any) -> Any:
        """Labels for the trial call, whose block may have a single one: as many as there may be, unsorted."""
        number = np.arange(labels.size, like=labels).reshape(labels.shape)
        number = (number * 2654435761) % (1 << 32)
        if self.wanted is None:
            return (number % self.room).astype(labels.dtype)
        return np.asarray(self.wanted, like=labels)[number % len(self.wanted)] if len(self.wanted) else labels

    def _nothing(self, like: Any, number: int) -> GroupPartial:
        """Zero partial results of that many labels."""
        labels = np.zeros_like(like, shape=(number,))
        made = {n: np.zeros_like(like, dtype=d, shape=(number, *shape)) for n, (d, shape) in self.fields.items()}
        return GroupPartial(labels, made)

    def _of_block(self, labels: Any, values: Sequence[Any], box: Region) -> GroupPartial:
        if not labels.size:
            return self._nothing(plain(labels), 0)
        runs = LabelRuns(labels, values[0] if values else None, box, placed=any(name in self.fields for name in PLACED))
        kept = self._kept(runs.labels)
        self._check(len(runs.labels) if kept is None else int(kept.sum()))
        with np.errstate(all="ignore"):
            fields = runs.fields(self.fields)
        if kept is None:
            return GroupPartial(runs.labels, fields)
        return GroupPartial(runs.labels[kept], {name: array[kept] for name, array in fields.items()})

    def _kept(self, labels: Any) -> Any:
        """Mask of the labels that are kept; None for all."""
        if self.wanted is not None:
            if not len(self.wanted):
                return np.zeros_like(labels, dtype=bool)
            wanted = np.asarray(self.wanted, like=labels)
            return wanted[np.minimum(np.searchsorted(wanted, labels), len(wanted) - 1)] == labels
        return None if self.background is None else labels != self.background


class LabelRuns:
    """A block as runs of one label, and the runs of each label; `labels` are the distinct ones, sorted."""

    def __init__(self, labels: Any, values: Any, box: Region, *, placed: bool) -> None:
        self._shape, self._box = labels.shape, box
        self._values: Any = None if values is None else plain(values)
        labels = plain(labels)
        self._head = _heads(labels)
        if placed and self._shape:  # then a run is in one row
            self._head.reshape(-1, self._shape[-1])[:, 0] = True
        self._starts = np.flatnonzero(self._head)
        names = labels[self._starts]
        self._order = order_of(names)
        names = names[self._order]
        self._first = _heads(names)
        self._groups = np.flatnonzero(self._first)
        self.labels = names[self._groups]

    def fields(self, wanted: Fields) -> dict[str, Any]:
        """Partial results by label."""
        lengths = np.diff(np.concatenate((self._starts, np.full_like(self._starts, len(self._head), shape=(1,)))))
        found: dict[str, Any] = {"count": self._by_label(np.add, lengths).astype("i8", copy=False)}
        for name in wanted.keys() & {"min", "max"}:
            found[name] = self._by_label(_MERGE[name], self._by_run(_MERGE[name], self._values))
        if "exact" in wanted:
            whole = self._values.astype(wanted["exact"][0], copy=False)
            found["exact"] = self._by_label(np.add, self._by_run(np.add, whole))
        if wanted.keys() & {"total", *SPREAD}:
            wide = self._values.astype("f8", copy=False)
            totals = self._by_run(np.add, wide)
            found["total"] = self._by_label(np.add, totals)
            if "squares" in wanted:
                found |= self._spread(wide, found["count"], found["total"])
            if "moments" in wanted:
                found["moments"] = self._by_label(np.add, self._moments(wide, totals))
        if "start" in wanted:
            found["start"] = self._by_label(np.minimum, self._corners())
            found["stop"] = self._by_label(np.maximum, self._corners(lengths))
        return {name: found[name] for name in wanted}

    def _by_run(self, ufunc: Any, elements: Any) -> Any:
        return segmented(elements, ufunc, self._starts)

    def _by_label(self, ufunc: Any, of_runs: Any) -> Any:
        return segmented(of_runs[self._order], ufunc, self._groups)

    def _spread(self, wide: Any, count: Any, total: Any) -> dict[str, Any]:
        """Means, their rounding errors, and sums of squares about them."""
        mean = total / count
        group = np.empty_like(self._order)
        group[self._order] = np.cumsum(self._first) - 1
        off = mean[group][np.cumsum(self._head) - 1]
        np.subtract(wide, off, out=off)
        rest = self._by_label(np.add, self._by_run(np.add, off)) / count
        off *= off
        return {"mean": mean, "rest": rest, "squares": self._by_label(np.add, self._by_run(np.add, off))}

    def _moments(self, wide: Any, totals: Any) -> Any:
        """Sums over each run of values times positions."""
        corners = self._corners()
        found = corners * totals[:, None]
        if self._shape:
            side = self._box[-1]
            along = np.arange(side.start, side.stop, like=corners)
            found[:, -1] = self._by_run(np.add, (wide.reshape(self._shape) * along).reshape(-1))
        return found

    def _corners(self, lengths: Any = None) -> Any:
        """The position where each run begins; with `lengths`, the first position beyond it along each axis."""
        found = np.empty_like(self._starts, dtype="i8", shape=(len(self._starts), len(self._shape)))
        rest = self._starts
        for axis in reversed(range(len(self._shape))):
            found[:, axis] = rest % self._shape[axis] + self._box[axis].start
            rest = rest // self._shape[axis]
        if lengths is not None:
            found += 1
            found[:, -1:] += lengths[:, None] - 1
        return found


def merged(left: GroupPartial, right: GroupPartial) -> GroupPartial:
    """Merge two partial results.

    Means and squares merge as in T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise
    algorithm for computing sample variances", Report STAN-CS-79-773, Stanford 1979. The rounding error of the mean is
    kept, or differences of large means would be wrong.
    """
    labels = np.concatenate((left.labels, right.labels))
    order = order_of(labels)
    labels = labels[order]
    first = _heads(labels)
    ones = np.flatnonzero(first)
    after = np.minimum(ones + 1, len(labels) - 1)
    one, other, two = order[ones], order[after], ~first[after]

    def pair(name: str) -> tuple[Any, Any]:
        both = np.concatenate((left.fields[name], right.fields[name]))
        return both[one], both[other]

    def kept(new: Any, old: Any) -> Any:
        return np.where(two.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

    fields = {}
    with np.errstate(all="ignore"):
        for name in left.fields:
            if name not in SPREAD:
                a, b = pair(name)
                fields[name] = kept(_MERGE[name](a, b), a)
        if "squares" in left.fields:
            n, m = pair("count")
            (mean, another), (rest, remains), (squares, more) = (pair(name) for name in SPREAD)
            share = m / (n + m)
            off = (another - mean) + (remains - rest)
            step = off * share
            middle = mean + step
            fields["mean"] = kept(middle, mean)
            fields["rest"] = kept((mean - middle) + step + rest, rest)
            fields["squares"] = kept(squares + more + off * off * n * share, squares)
    return GroupPartial(labels[ones], fields)


def _all_merged(parts: Sequence[GroupPartial]) -> GroupPartial:
    """Merge several partial results, the shortest first, which are the last ones."""
    whole = parts[-1]
    for part in reversed(parts[:-1]):
        whole = merged(part, whole)
    return whole


# -- Array functions ----------------------------------------------------------------------------------------


def order_of(labels: Any) -> Any:
    """Indices that sort labels stably."""
    if isinstance(labels, np.ndarray) and labels.size and labels.dtype.itemsize > 2:
        low = labels.min()
        if int(labels.max()) - int(low) < 1 << 16:  # NumPy sorts 16 bits by counting
            labels = (labels - low).astype("u2")
    return np.argsort(labels, kind="stable")


def _heads(x: Any) -> Any:
    """Mask of the elements that differ from the one before."""
    head = np.ones_like(x, dtype=bool)
    head[1:] = x[1:] != x[:-1]
    return head


def plain(block: Any) -> Any:
    """A flattened block in native byte order, with bools as 0 and 1."""
    flat = block.reshape(-1)
    flat = flat.astype(flat.dtype.newbyteorder("="), copy=False)
    return flat.view("u1") if flat.dtype.kind == "b" else flat
