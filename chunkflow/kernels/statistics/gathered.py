"""Keys in some intervals, gathered: a fold with room for so many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.errors import ReadError
from chunkflow.kernels.protocol import Fold
from chunkflow.kernels.statistics.quantile import STRIP, strips
from chunkflow.kernels.statistics.radix_keys import to_keys

Value = tuple[Any, np.ndarray, Any]
"""Keys, how many of them are taken, and how many keys are below each interval."""

FEW = 16
"""Intervals that are looked for one by one."""


class TooManyKeysError(Exception):
    """More keys lie in the intervals than there is room for."""


@singledispatch
def among(keys: Any, lows: np.ndarray, highs: np.ndarray) -> tuple[Any, Any]:
    """Keys that lie in one of some intervals, in any order, and how many are below each, and less than the greatest.

    Devices with arrays of their own register what does it there. Of more than `FEW` intervals nothing is counted.

    >>> among(np.array([1, 5, 9, 3], "u1"), np.array([3], "u1"), np.array([5], "u1"))
    (array([5, 3], dtype=uint8), array([1, 4]))
    """
    below = np.zeros_like(keys, np.intp, shape=(len(lows) + 1,))
    if len(lows) > FEW:
        lows, highs = (np.asarray(ends, like=keys) for ends in (lows, highs))
        place = np.searchsorted(highs, keys).clip(max=len(highs) - 1)
        return keys[(lows[place] <= keys) & (keys <= highs[place])], np.zeros_like(
            keys, np.intp, shape=(len(lows) + 1,)
        )
    where, below = np.zeros_like(keys, bool), np.zeros_like(keys, np.intp, shape=(len(lows) + 1,))
    for number, (low, high) in enumerate(zip(lows, highs, strict=True)):
        here = keys >= low
        below[number] = len(keys) - np.count_nonzero(here)
        here &= keys <= high
        where |= here
    below[-1] = np.count_nonzero(keys != ~keys.dtype.type(0))
    return keys[where], below


@dataclass(frozen=True, eq=False)
class Gathered(Fold):
    """A fold over all elements to those keys, in order, that lie in one of some intervals.

    With `counted` it is not known how many these are: they are followed by the greatest key, as far as there is room. A
    second result is how many keys are below each interval, how many are less than the greatest one, which NaN have, and
    how many were gathered.

    Attributes
    ----------
    lows, highs : numpy.ndarray
        The least and the greatest key of each interval, sorted, in the dtype of the keys. None meet.
    room : int
        How many such keys there are, or may be.
    counted : bool
        Whether it is not known how many.
    dtype : numpy.dtype, optional
        The dtype of which keys are gathered, if it is another one than the array's.
    """

    lows: np.ndarray
    highs: np.ndarray
    room: int
    counted: bool = False
    dtype: np.dtype | None = None

    @property
    def data_independent(self) -> bool:
        return True

    @property
    def strip(self) -> int:
        return STRIP

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        trial = not nest.outputs
        for part in strips(blocks[0], tuple(np.arange(blocks[0].ndim).tolist())):
            x = part if self.dtype is None else part.astype(self.dtype, copy=False)
            keys = to_keys(x).reshape(-1)
            ends = self.lows, self.highs
            if trial:  # all of them, which takes most
                ends = np.zeros_like(self.lows), np.full_like(self.highs, ~self.highs.dtype.type(0))
            chosen, below = among(keys, *ends)
            if value is None:
                value = np.empty_like(keys, shape=(self.room,)), np.zeros(1, np.intp), np.zeros_like(below)
            kept = chosen[: self.room - int(value[1][0])] if trial else chosen
            value = self._added(value, kept, below)
        assert value is not None
        return value

    def combine(self, left: Value, right: Value) -> Value:
        keys, number, below = right
        return self._added(left, keys[: number[0]], below)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        keys, number, below = value
        if self.counted:
            keys[number[0] :] = ~keys.dtype.type(0)
            return np.sort(keys), np.concatenate((below, np.asarray(number, like=below)))
        if nest.outputs and number[0] != self.room:
            raise self._overrun()
        return np.sort(keys)

    def _added(self, value: Value, more: Any, below: Any) -> Value:
        """The value with more keys, behind its own: it stays as it was."""
        keys, number, counts = value
        end = int(number[0]) + len(more)
        if end > self.room:
            raise self._overrun()
        keys[int(number[0]) : end] = more
        return keys, np.array([end], np.intp), counts + below

    def _overrun(self) -> Exception:
        if self.counted:
            return TooManyKeysError(f"more than {self.room} keys")
        return ReadError("the array was changed between two passes over it: take quantiles of a copy")
