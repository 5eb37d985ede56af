"""Radix selection in passes that are all declared beforehand: each has the results of the last as an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold
from chunkflow.kernels.statistics.quantile import STRIP, Digits, LineRule, Rule
from chunkflow.kernels.statistics.radix_keys import from_keys, key_dtype
from chunkflow.kernels.subnest import on_host

STATE = np.dtype("u8")
"""Dtype of the state between passes.

Along its first axis it has the known bits of each order statistic, then their ranks. Where NaN are left out, the last
row is how many numbers each line has.
"""


@dataclass(frozen=True, eq=False)
class NextDigits(Fold):
    """A fold like `Digits`, of an array and the state of the pass before; in the first pass of the array alone.

    Attributes
    ----------
    axes : tuple of int
        Reduced axes of the array. The nest has one more axis before the array's, that of the state.
    ranks : numpy.ndarray
        Ranks of the order statistics, in one dimension.
    dtype : numpy.dtype
        Dtype of the array.
    shift, bits : int
        As for `Digits`.
    of_lines : callable, optional
        As for `Digits`: for the first pass, if NaN are left out. The values of `ranks` are not used then.
    """

    axes: tuple[int, ...]
    ranks: np.ndarray
    dtype: np.dtype
    shift: int
    bits: int
    of_lines: LineRule | None = None

    @property
    def state_size(self) -> float:
        """See `Kernel.state_size`. Half of the numbers have counts, at most."""
        return (1 << self.bits) / 2

    @property
    def strip(self) -> int:
        return STRIP

    def fold(self, value: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        state = self._begun(blocks[0]) if len(blocks) == 1 else on_host(blocks[1])
        digits, local = self._digits(state)
        counts = digits.fold(None if value is None else value[:-1], blocks[:1], nest, grid, index, local)
        return *counts, state

    def combine(self, left: Any, right: Any) -> Any:
        return *[one + other for one, other in zip(left[:-1], right[:-1], strict=True)], left[-1]

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        *counts, state = value
        digits, local = self._digits(state)
        prefixes, ranks, *more = digits.finish(tuple(counts), nest, local)
        numbers = state[2 * len(self.ranks) :] if self.of_lines is None else more[-1]
        return np.concatenate([np.asarray(part, STATE, like=prefixes) for part in (prefixes, ranks, numbers)])

    def _begun(self, block: Any) -> np.ndarray:
        """The state of a block's lines before the first pass: no bits are known."""
        lines = tuple(n for a, n in enumerate(block.shape) if a not in self.axes)
        state = np.zeros((2, len(self.ranks), *lines), STATE)
        state[1] = self.ranks.reshape(-1, *(1,) * len(lines))
        return state.reshape(-1, *lines)

    def _digits(self, state: np.ndarray) -> tuple[Digits, Region]:
        """The fold for the lines of a state, and the box of all of them."""
        prefixes, ranks = state[: len(self.ranks)], state[len(self.ranks) : 2 * len(self.ranks)]
        known = prefixes.astype(key_dtype(self.dtype)), ranks.astype("i8")
        whole = (slice(None),) * (state.ndim - 1 + len(self.axes))
        return Digits(self.axes, self.shift, self.bits, *known, self.of_lines), whole


@dataclass(frozen=True, eq=False)
class Found:
    """Quantiles of an array of this dtype from the state of the last pass: a function for `map`.

    `dims` are for each dimension of the result the one of the state that it follows; 0 for the quantiles, None for
    length 1. With `of_lines` NaN are left out: it gives the rule of lines with so many numbers each.
    """

    rule: Rule
    dtype: np.dtype
    dims: tuple[int | None, ...]
    of_lines: LineRule | None = None

    def __call__(self, state: Any) -> Any:
        known = on_host(state)
        if self.of_lines is None:
            rule, ranks = self.rule, self.rule.ranks()
            statistics = self._statistics(known[: len(ranks)])
            found = rule.result(lambda wanted: statistics[np.searchsorted(ranks, wanted)])
        else:
            rule = self.of_lines(known[-1].astype(np.intp))
            statistics, number = self._statistics(known[: len(known) // 2]), len(rule.below)
            found = rule.result(lambda wanted: statistics[:number] if wanted is rule.below else statistics[number:])
        sides = [1 if a is None else state.shape[a] if a else len(found) for a in self.dims]
        return np.asarray(found.reshape(sides), like=state)

    def _statistics(self, bits: np.ndarray) -> np.ndarray:
        """Order statistics, all bits of which are known."""
        return from_keys(bits.astype(key_dtype(self.dtype)), self.dtype)
