"""The largest or smallest elements along an axis, and where they are: folds that keep as many as are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold, is_trial
from chunkflow.kernels.statistics.sorting import in_order, order_along

Value = tuple[Any, ...]

COPIES = 4
"""Times that a trial has what it keeps: it is made, ordered and copied."""


@dataclass(frozen=True)
class Selection(Fold):
    """What folds share that keep, of each line along an axis, the `k` largest elements; if negative the smallest ones.

    In a trial they may keep no more than `few`.
    """

    axis: int
    k: int
    few: int | None = None

    kept_bytes = 8
    """Bytes of each kept element, at most."""

    @property
    def number(self) -> int:
        """Number of elements that are kept of a line."""
        return abs(self.k) if self.few is None else self.few

    def keeping(self, nbytes: int, elements: int) -> Selection:
        few = max(1, nbytes // (COPIES * self.kept_bytes * elements))
        return self if few >= self.number else replace(self, few=few)

    def lengthened(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(*shape[: self.axis], abs(self.k), *shape[self.axis + 1 :]) for shape in shapes]

    def _lacking(self, found: Any) -> Shape:
        """Shape of what a line lacks of a result's length: a partition's value counts, and is combined with others'."""
        return (*found.shape[: self.axis], self.number - found.shape[self.axis], *found.shape[self.axis + 1 :])

    def _whole(self, found: Any) -> Any:
        """Results of their full length, in the wanted order, of ascending ones."""
        if (lacking := self._lacking(found))[self.axis] > 0:
            found = np.concatenate((found, np.zeros_like(found, shape=lacking)), self.axis)
        return np.flip(found, self.axis) if self.k > 0 else found


class TopK(Selection):
    """The `k` largest elements along an axis, largest first; if negative the smallest ones, smallest first.

    NaN counts as larger than any number, as in NumPy's sorting.
    """

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        found = self._selected(blocks[0])
        if value is not None:
            found = self._selected(np.concatenate((value[0], found), self.axis))
        if not nest.outputs and found.shape[self.axis] < self.number:
            # The trial call's block may have too few elements, but its results must be as long as a run's.
            taken = blocks[0].copy()  # the trial measures the memory of a selection from a longer block
            longer = (*found.shape[: self.axis], self.number, *found.shape[self.axis + 1 :])
            found = np.zeros_like(found, shape=longer)
            del taken
        return (found,)

    def combine(self, left: Value, right: Value) -> Value:
        return (self._selected(np.concatenate((left[0], right[0]), self.axis)),)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        return self._whole(in_order(value[0], self.axis))

    def _selected(self, candidates: Any) -> Any:
        """The candidates that may be among the `k`, in any order, in new memory."""
        number = self.number
        if candidates.shape[self.axis] <= number:
            return candidates.copy()
        if not isinstance(candidates, np.ndarray):
            found = in_order(candidates, self.axis)  # CuPy's partition does not know where NaN belongs
        else:
            found = np.partition(candidates, -number if self.k > 0 else number - 1, self.axis)
        chosen = slice(-number, None) if self.k > 0 else slice(None, number)
        return found[(*(slice(None),) * self.axis, chosen)].copy()


class ArgTopK(Selection):
    """Places of the `k` largest elements along an axis, largest first; if negative of the smallest ones.

    Of equal elements the first ones are taken, and come first. NaN are equal, and larger than any number. A value has
    elements and their places, in the order of these.
    """

    kept_bytes = 16

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        x, side = blocks[0], box[self.axis]
        shape = [1] * x.ndim
        shape[self.axis] = x.shape[self.axis]
        places = np.arange(side.start, side.start + x.shape[self.axis], dtype=np.intp, like=x).reshape(shape)
        places = np.broadcast_to(places, x.shape)
        found = self._selected(x, places, self.number)
        if not nest.outputs and found[0].shape[self.axis] < self.number:
            # The trial call's block may have too few elements, but its results must be as long as a run's.
            self._selected(x, places, max(1, x.shape[self.axis] - 1))  # the trial measures what a longer block takes
            longer = (*x.shape[: self.axis], self.number, *x.shape[self.axis + 1 :])
            found = (np.zeros_like(x, shape=longer), np.zeros_like(found[1], shape=longer))
        return found if value is None else self.combine(value, found)

    def combine(self, left: Value, right: Value) -> Value:
        x, places = (np.concatenate(both, self.axis) for both in zip(left, right, strict=True))
        if is_trial() or not places.size or left[1].max() > right[1].min():  # else the right ones come after all others
            order = order_along(places, self.axis)
            x, places = (np.take_along_axis(a, order, self.axis) for a in (x, places))
        return self._selected(x, places, self.number)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        x, places = value if self.k < 0 else (np.flip(a, self.axis) for a in value)
        found = np.take_along_axis(places, order_along(x, self.axis, "stable"), self.axis)
        return self._whole(found)

    def _selected(self, x: Any, places: Any, number: int) -> Value:
        """The candidates that are among so many, and their places, in new memory; places ascend, and stay so."""
        if x.shape[self.axis] <= number:
            return x.copy(), places.copy()
        at = x.shape[self.axis] - number if self.k > 0 else number - 1
        # CuPy's partition does not know where NaN belongs.
        ordered = np.partition(x, at, self.axis) if isinstance(x, np.ndarray) else in_order(x, self.axis)
        last = ordered[(*(slice(None),) * self.axis, slice(at, at + 1))]  # of those that are wanted
        beyond, equal = x > last if self.k > 0 else x < last, x == last
        if x.dtype.kind == "f":
            nan, last_is_nan = np.isnan(x), np.isnan(last)
            beyond |= nan & ~last_is_nan if self.k > 0 else last_is_nan & ~nan
            equal |= nan & last_is_nan
        chosen = beyond | equal
        if is_trial() or (chosen.sum(axis=self.axis) > number).any():  # of equal ones the first
            lacking = number - beyond.sum(axis=self.axis, keepdims=True)
            chosen = beyond | (equal & (equal.cumsum(axis=self.axis) <= lacking))
        block_places = list(np.nonzero(chosen))
        lines = tuple(n for a, n in enumerate(x.shape) if a != self.axis)
        if self.axis < x.ndim - 1:  # line by line
            line = np.zeros_like(block_places[0])
            for a, n in enumerate(x.shape):
                line = line if a == self.axis else line * n + block_places[a]
            order = np.argsort(line, kind="stable")
            block_places = [each[order] for each in block_places]
        x, places = (np.moveaxis(a[tuple(block_places)].reshape(*lines, number), -1, self.axis) for a in (x, places))
        return x.copy(), places.copy()
