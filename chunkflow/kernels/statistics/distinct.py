"""Distinct values and their counts: a fold with limited room."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Became, Fold
from chunkflow.kernels.statistics.counting import distinct
from chunkflow.kernels.statistics.radix_keys import to_keys

Value = tuple[Any, ...]


class TooManyValuesError(Exception):
    """There are more distinct values than there is room for."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{number} different values")
        self.number = number


def _placed(keys: Any, shape: Shape, nest: LoopNest, box: Region) -> Value:
    """The different keys of a block, sorted, their counts, and where in the whole array each is first."""
    found, local, counts = np.unique(keys, return_index=True, return_counts=True)
    first = np.zeros_like(counts, dtype="i8")
    for place, along, n in zip(np.unravel_index(local, shape) if shape else (), box, nest.extents, strict=True):
        first = first * n + (place + along.start)
    return found, counts.astype("i8", copy=False), first


def places_among(block: Any, values: np.ndarray) -> Any:
    """Which of the sorted distinct values of the whole array each element of a block is."""
    return np.searchsorted(np.asarray(values, like=block), block)


@dataclass(frozen=True)
class Distinct(Fold):
    """A fold over all elements to their distinct keys and counts, of which at most `room` are held.

    The results are keys and counts, both padded to the length `room`, and an array of one with their number. With
    `places` there comes, after the counts, where each key is first, counted in C order.
    """

    room: int
    places: bool = False

    @property
    def most_counts(self) -> int:
        return self.room

    def with_fewer(self, share: float) -> tuple[Distinct, Sequence[Became]]:
        few = max(2, math.ceil(share * self.room))
        return replace(self, room=few), [{few: self.room}]

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        x = blocks[0]
        if x.dtype.kind == "f":  # both zeros are one value
            x = x + x.dtype.type(0)
        keys = to_keys(x).reshape(-1)
        if not nest.outputs:  # in the trial call: all differ, which takes most, also where it is then found too many
            keys = np.arange(keys.size, like=keys).astype(keys.dtype)
        new = (
            _placed(keys, x.shape, nest, box) if self.places else distinct(keys, 0 if value is None else len(value[0]))
        )
        if not nest.outputs:  # later values may be as long as there is room
            return self._padded(tuple([a[: self.room] for a in new]))
        if (number := len(new[0])) > self.room:
            del x, keys, new  # the error would keep them while other blocks go on
            raise self.too_many(number)
        return new if value is None else self.combine(value, new)

    def combine(self, left: Value, right: Value) -> Value:
        keys, counts, *places = (np.concatenate(both) for both in zip(left, right, strict=True))
        order = np.argsort(keys)
        keys, total = keys[order], counts[order].cumsum()
        last = np.concatenate((keys[1:] != keys[:-1], np.ones_like(keys[:1], dtype=bool)))
        total = total[last]
        total[1:] -= total[:-1].copy()
        if not places:
            return self._checked((keys[last], total))
        first = places[0][order]
        first[1:] = np.where(last[:-1], first[1:], np.minimum(first[1:], first[:-1]))
        return self._checked((keys[last], total, first[last]))

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        return (*self._padded(value), np.full_like(value[1], len(value[0]), shape=(1,)))

    def too_many(self, number: int) -> Exception:
        """What is raised where there are so many distinct values, more than there is room for."""
        return TooManyValuesError(number)

    def _checked(self, value: Value) -> Value:
        if len(value[0]) > self.room:
            raise self.too_many(len(value[0]))
        return value

    def _padded(self, value: Value) -> Value:
        padded = tuple([np.zeros_like(a, shape=(self.room,)) for a in value])
        for whole, a in zip(padded, value, strict=True):
            whole[: len(a)] = a
        return padded
