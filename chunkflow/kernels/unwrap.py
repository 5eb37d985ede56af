"""Unwrapping: a scan whose carry is a line's last element and what was added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Carry
from chunkflow.kernels.scan import running_total, wide


@dataclass(frozen=True)
class Unwrapped(Carry):
    """Elements along an axis, with multiples of a period added where one follows another by too large a step.

    Attributes
    ----------
    axis : int
        Along which.
    discont : float or None
        Steps of less than it stay; None for half the period.
    period : float
        What is added a number of times.
    dtype : numpy.dtype
        Of the results.
    """

    axis: int
    discont: float | None
    period: float
    dtype: np.dtype

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        (block,) = blocks
        before = (slice(None),) * self.axis
        first, end = (*before, slice(1)), (*before, slice(-1, None))
        last, added = (block[first], None) if carry is None else carry
        added_here = self._correction(np.diff(block, axis=self.axis, prepend=last))
        if carry is None:  # an infinity less itself is no step
            added_here[first] = 0
        total = running_total(np.add, wide(self.dtype))(added_here, added, self.axis)
        passed = block[end].copy(), total[end].copy()
        return (block + total.astype(self.dtype)).astype(self.dtype, copy=False), passed

    def _correction(self, steps: Any) -> Any:
        """What is added where one element follows another by too large a step."""
        whole = self.dtype.kind in "iu"
        high, rest = divmod(self.period, 2) if whole else (self.period / 2, 0)
        found = np.mod(steps + high, self.period) - high
        if rest == 0:  # both ends of the interval are the same
            found = np.where((found == -high) & (steps > 0), found.dtype.type(high), found)
        least = self.period / 2 if self.discont is None else self.discont
        return np.where(abs(steps) < least, 0, found - steps).astype(self.dtype)
