"""A step of a run: its block, the regions that it reads and stores, and the partial results that it adds to. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Region, Shape
from chunkflow.core.halo import parts, rest
from chunkflow.core.nest import Operand


@dataclass(frozen=True, slots=True)
class FoldPosition:
    """Place of a block among those that are combined to one result, or that one carry passes through.

    They belong to the block `key` of the part's results, or to the line `key`.
    """

    part: int
    key: Shape
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One block of a run.

    Attributes
    ----------
    number : int
        Position in the plan's order, from 0.
    index : tuple of int
        The block's place in the grid.
    box : region
        Its part of the loop nest.
    loads : tuple of int
        For each operand the number, from 0, of the load that this step uses.
    fresh : tuple of bool
        For each operand whether that load first appears in this step (else it is on the device already).
    kept : tuple of region or None
        For each operand the part of its block that the block before it holds too, so that it is not loaded again.
    sources : tuple of region
        The operands' parts of the box, halos and all.
    stores : tuple of (int, region)
        What is stored: outputs, by number, and their parts of the box. Of those that are combined there is none
        before the last of their steps.
    turns : tuple of FoldPosition
        One for each part that combines results, or one for the carry.
    lane : int
        Which of the plan's lanes computes it.
    chain : int
        Whose partial results it adds to: those of every so many-th block, whichever lanes compute them.
    """

    number: int
    index: Shape
    box: Region
    loads: tuple[int, ...]
    fresh: tuple[bool, ...]
    sources: tuple[Region, ...]
    stores: tuple[tuple[int, Region], ...]
    turns: tuple[FoldPosition, ...] = ()
    lane: int = 0
    chain: int = 0
    kept: tuple[Region | None, ...] = ()

    def parts(self, number: int, operand: Operand) -> list[tuple[Region, Shape]]:
        """What of an operand's block is read: parts of the array, and where in the block each goes."""
        region = self.sources[number]
        if not operand.halo:
            return [(region, (0,) * len(region))]
        new = rest(region, self.kept[number])
        start = [n.start - r.start for n, r in zip(new, region, strict=True)]
        return [
            (part, tuple([p + s for p, s in zip(place, start, strict=True)]))
            for part, place in parts(new, operand.extents, operand.boundary)
        ]

    def nbytes(self, number: int, operand: Operand, itemsize: int) -> int:
        """Bytes that are read for an operand's block."""
        if not self.fresh[number]:
            return 0
        return itemsize * sum(math.prod(_grid.shape_of(part)) for part, _ in self.parts(number, operand))
