"""The loop nest of a product of two arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.nest import LoopNest


@dataclass(frozen=True)
class ProductNest(LoopNest):
    """The pass of a product.

    Attributes
    ----------
    buffers : tuple of (axes, float)
        What a lane holds: for each buffer the axes that it extends along, and bytes per element.
    panel : tuple of (axes, axes, int, axes, int), optional
        Of a panel: the axes of the tile, those of a row of it, and bytes per element; then the axes of the operand
        whose rows may be copied for a panel, and bytes per element.
    """

    is_product: ClassVar[bool] = True

    buffers: tuple[tuple[Axes, float], ...] = ()
    panel: tuple[Axes, Axes, int, Axes, int] | None = None

    def held(self, sides: Sequence[Any]) -> Any:
        """Bytes that a lane holds; `sides` may be arrays, for many blocks at once."""

        def size(axes: Axes, nbytes: float) -> Any:
            return math.prod((sides[axis] for axis in axes), start=nbytes)

        total: Any = sum(size(*buffer) for buffer in self.buffers)
        if self.panel is not None:
            axes, row, nbytes, rows, each = self.panel
            tile = size(axes, nbytes)
            panel = np.minimum(tile, np.maximum(tile / SHARE, 2 * PANEL) + size(row, nbytes))
            total = total + panel + size(rows, each) * (panel / np.maximum(tile, 1))
        return total

    def holds(self, sides: Sequence[int]) -> int:
        """Bytes that a lane holds between blocks of these sides, and while it computes one."""
        whole: int = math.ceil(self.held(sides))
        return whole

    @property
    def tile_alone(self) -> bool:
        """Whether a lane holds a tile and nothing else."""
        return len(self.buffers) == 1 and self.panel is None

    @property
    def reuses(self) -> bool:
        """Whether each operand lacks an axis of the nest, so that how it is cut decides how often they are read."""
        long = {a for a, n in enumerate(self.extents) if n > 1}
        return bool(self.folded) and not any(long <= set(o.axes) for o in self.operands)


SHARE, PANEL = 8, 1 << 20
"""A product is added to its tile in panels of one part in this many, or this many bytes if those are more."""

Axes = tuple[int, ...]
