"""Arrays that are computed from the places of their elements alone, where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.kernels.declare import Declare, Declared
from chunkflow.kernels.protocol import Kernel


@dataclass(frozen=True)
class Line(Kernel):
    """``start + step * place`` along a line, of a dtype that has each exactly. The one operand says on which device."""

    start: int
    step: int
    dtype: np.dtype

    data_independent = True

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        (side,), (n,) = box, nest.extents
        if side.start >= 0 and side.stop <= n:
            first, last = (self.start + self.step * place for place in (side.start, side.stop))
            return np.arange(first, last, self.step, dtype=self.dtype, like=blocks[0])
        # Beyond a periodic edge the line begins again.
        places = np.arange(side.start, side.stop, dtype=np.int64, like=blocks[0]) % n
        return (places * self.step + self.start).astype(self.dtype, copy=False)


def declare_line(start: int, number: int, step: int, dtype: np.dtype) -> Declare:
    """Declare `number` integers from `start` on, `step` apart."""

    def declare(specs: Sequence[Any], args: tuple[Any, ...]) -> Declared:
        return Declared(LoopNest((number,), (Operand(()),), ()), Line(start, step, dtype), (0,))

    return declare
