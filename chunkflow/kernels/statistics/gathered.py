"""Keys that begin with known bits, gathered: a fold with room for just so many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.errors import ReadError
from chunkflow.kernels.protocol import Fold
from chunkflow.kernels.statistics.quantile import STRIP, strips
from chunkflow.kernels.statistics.radix_keys import to_keys

Value = tuple[Any, np.ndarray]

FEW = 8
"""Prefixes that are looked for one by one."""


@dataclass(frozen=True, eq=False)
class Gathered(Fold):
    """A fold over all elements to those keys, in order, of which the bits from `shift` on are one of some `prefixes`.

    Attributes
    ----------
    prefixes : numpy.ndarray
        The different ones, sorted, in the dtype of the keys.
    shift : int
        Number of lower bits.
    room : int
        How many such keys there are.
    dtype : numpy.dtype, optional
        The dtype of which keys are gathered, if it is another one than the array's.
    """

    prefixes: np.ndarray
    shift: int
    room: int
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
            where = self._are_wanted(keys)
            if trial:  # all of them, which takes most
                where[...] = True
            chosen = keys[where]
            if value is None:
                value = np.empty_like(keys, shape=(self.room,)), np.zeros(1, np.intp)
            value = self._added(value, chosen[: self.room - int(value[1][0])] if trial else chosen)
        assert value is not None
        return value

    def combine(self, left: Value, right: Value) -> Value:
        keys, number = right
        return self._added(left, keys[: number[0]])

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        keys, number = value
        if nest.outputs and number[0] != self.room:
            raise self._changed()
        return np.sort(keys)

    def _are_wanted(self, keys: Any) -> Any:
        known = keys >> keys.dtype.type(self.shift)
        if len(self.prefixes) > FEW:
            prefixes = np.asarray(self.prefixes, like=keys)
            return prefixes[np.minimum(np.searchsorted(prefixes, known), len(prefixes) - 1)] == known
        where = known == self.prefixes[0]
        for prefix in self.prefixes[1:]:
            where |= known == prefix
        return where

    def _added(self, value: Value, more: Any) -> Value:
        """The value with more keys, behind its own: it stays as it was."""
        keys, number = value
        end = int(number[0]) + len(more)
        if end > self.room:
            raise self._changed()
        keys[int(number[0]) : end] = more
        return keys, np.array([end], np.intp)

    def _changed(self) -> ReadError:
        return ReadError("the array was changed between two passes over it: take quantiles of a copy")
