"""Elements at places along lines of which a block has a part: a fold over the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.errors import PlaceError
from chunkflow.kernels.protocol import Fold, is_trial

Value = tuple[Any]


@dataclass(frozen=True)
class TakenAlong(Fold):
    """A fold of an array's lines along its dimension `axis` to their elements at the places of another array.

    The lines' axis is the last one of the nest. Each place lies in one part of its line: until that has come, all bits
    of the element are zero.
    """

    axis: int

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        lines, places = blocks
        part, number = box[-1], nest.extents[-1]
        places = self._checked(places, number)
        if value is None and part.stop - part.start == number and not is_trial():  # which is to tell of parts, too
            return (np.take_along_axis(lines, places, self.axis),)
        places = np.where(places < 0, places + number, places)
        here = (places >= part.start) & (places < part.stop)
        local = np.where(here, places - part.start, 0)
        found = np.take_along_axis(lines, local, self.axis)
        return (np.where(here, found, np.zeros_like(found, shape=()) if value is None else value[0]),)

    def combine(self, left: Value, right: Value) -> Value:
        one, other = (np.ascontiguousarray(a).view("u1") for a in (left[0], right[0]))
        return ((one | other).view(left[0].dtype),)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        return value[0]

    def _checked(self, places: Any, number: int) -> Any:
        """Places in lines of so many elements, as int64."""
        outside = places >= number
        if places.dtype.kind == "i":
            outside |= places < -number
        if is_trial():  # its places may be made up
            places = np.where(outside, 0, places)
        elif bool(outside.any()):  # arrays of a GPU wrap
            raise PlaceError(
                f"index {int(places[outside][0])} is out of bounds for axis {self.axis} with size {number}"
            )
        return places.astype(np.int64, copy=False)
