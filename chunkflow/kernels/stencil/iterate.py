"""Several steps of a stencil on one block, which is read with a deeper halo. Each step consumes a part of the halo.

This is overlapped tiling in time: neighbouring blocks both compute the region between them, and need not exchange
anything. The boundary beyond the array's edges is filled anew after each step, from that step's results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, shape_of, within
from chunkflow.core.halo import Boundary, fill
from chunkflow.core.nest import LoopNest, Operand, nest
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ResultError, ResultTypeError
from chunkflow.kernels.ranges import check_range
from chunkflow.kernels.stencil.overlap import Halo, Overlap, boundaries, depths, each, with_halo


@dataclass(frozen=True)
class Stepping:
    """A stencil that is applied repeatedly to the first of its arrays.

    Attributes
    ----------
    once : LoopNest
        The pass that takes a single step.
    wanted : tuple
        For each array and each of its dimensions the elements that the function sees before and after a block.
    cut : tuple of (int, int)
        For each axis the elements that are cut from the function's results, before and after.
    stored : tuple of Operand
        The operands of `once`, with blocks that end at the array's edges but continue across periodic ones.
    lone : bool
        Whether another array is not periodic along an axis where the first one is. Then values beyond the edge are
        unknown, and a pass takes one step.
    """

    once: LoopNest
    wanted: tuple[tuple[Halo, ...], ...]
    cut: tuple[Halo, ...]
    stored: tuple[Operand, ...]
    lone: bool

    @classmethod
    def of(cls, specs: Sequence[ArraySpec], depth: Any, boundary: Any) -> Stepping:
        """The stencil on these arrays, with `depth` and `boundary` as for `chunkflow.map_overlap`.

        Refuses an invalid depth or boundary, and a first array to which the others do not broadcast.
        """
        op = nest([s.shape for s in specs])
        first = specs[0]
        if first.shape != op.extents:
            raise ArgumentError(
                f"the first array has the shape {first.shape} and its result would have {op.extents}: with "
                "iterations the others must broadcast to it, for its result is the next step's first array"
            )
        wanted, operands = [], []
        both = zip(each(depth, len(specs), "depth"), each(boundary, len(specs), "boundary"), strict=True)
        for (deep, kind), spec, operand in zip(both, specs, op.operands, strict=True):
            wanted.append(depths(deep, len(spec.shape)))
            operands.append(with_halo(operand, spec, wanted[-1], boundaries(kind, spec)))
        cut = [(0, 0)] * len(op.extents)
        for operand, halo in zip(operands, wanted, strict=True):
            for axis, (before, after) in zip(operand.axes, halo, strict=True):
                if axis is not None:
                    cut[axis] = max(cut[axis][0], before), max(cut[axis][1], after)
        wraps = {a for a, side in enumerate(operands[0].boundary) if side == "periodic" and any(operands[0].halo[a])}
        lone, stored = False, []
        for i, (operand, spec) in enumerate(zip(operands, specs, strict=True)):
            halo = operand.halo or ((0, 0),) * len(spec.shape)
            true, kinds = list(operand.boundary or ("none",) * len(spec.shape)), []
            for d, axis in enumerate(operand.axes):
                around = i > 0 and axis in wraps
                if around and not any(halo[d]):
                    true[d] = "periodic"
                lone = lone or (around and true[d] != "periodic")
                kinds.append("periodic" if true[d] == "periodic" and (any(halo[d]) or around) else "none")
            if operand.halo:
                operands[i] = replace(operand, boundary=tuple(true))
            stored.append(Operand(operand.axes, halo, spec.shape, tuple(kinds)))
        return cls(replace(op, operands=tuple(operands)), tuple(wanted), tuple(cut), tuple(stored), lone)

    @property
    def most(self) -> int:
        """Most steps of one pass, since a halo may wrap around an axis once; 0 for any number."""
        if self.lone:
            return 1
        found = []
        for i, operand in enumerate(self.stored):
            for d, (axis, n) in enumerate(zip(operand.axes, operand.extents, strict=True)):
                if operand.boundary[d] != "periodic" or axis is None or not n:
                    continue
                for mine, first in zip(operand.halo[d], self.stored[0].halo[axis], strict=True):
                    if first:
                        found.append((n - mine) // first + 1 if i else n // first)
        return max(1, min(found)) if found else 0

    def deep(self, steps: int) -> LoopNest:
        """The pass that takes several steps at a time: the first array's halo is `steps` times as deep."""
        operands = []
        for i, operand in enumerate(self.stored):
            halo = []
            for axis, (before, after) in zip(operand.axes, operand.halo, strict=True):
                first = (0, 0) if axis is None else self.stored[0].halo[axis]
                more = steps if i == 0 else steps - 1
                mine = (0, 0) if i == 0 else (before, after)
                halo.append((mine[0] + more * first[0], mine[1] + more * first[1]))
            deeper = replace(operand, halo=tuple(halo))
            operands.append(deeper if any(map(sum, halo)) else Operand(operand.axes))
        return replace(self.once, operands=tuple(operands))

    def boxes(self, box: Region, steps: int) -> list[Region]:
        """The boxes that the steps compute on the way to a box: ever smaller, and never beyond an edge.

        >>> spec = ArraySpec("x", (9,), np.dtype("f4"))
        >>> Stepping.of([spec], 1, "nearest").boxes((slice(0, 4),), 3)
        [(slice(0, 6, None),), (slice(0, 5, None),), (slice(0, 4, None),)]
        """
        found = [box]
        for _ in range(steps - 1):
            found.append(self.stored[0].region(found[-1]))
        return found[::-1]

    def work(self, block: Sequence[int], steps: int) -> float:
        """Number of elements that the steps of a block compute, halos included."""
        halo, kinds = self.stored[0].halo, self.stored[0].boundary
        total = 0.0
        for step in range(1, steps + 1):
            volume = 1.0
            for side, n, (before, after), kind in zip(block, self.once.extents, halo, kinds, strict=True):
                width = side + step * (before + after)
                volume *= width if kind == "periodic" else min(width, n + before + after)
            total += volume
        return total


@dataclass(frozen=True)
class Steps(Overlap):
    """The user's function, applied several times to a block.

    Attributes
    ----------
    stepping : Stepping
        The stencil.
    steps : int
        Number of steps.
    dtype : numpy.dtype, optional
        Dtype of each step's result; None for a single step, whose result has its own.
    edges : tuple
        The first array's boundary in that dtype.
    copies : bool
        Whether blocks are always copied, as those between steps are, so that a trial measures the copies.
    """

    stepping: Stepping | None = None
    steps: int = 1
    dtype: np.dtype | None = None
    edges: tuple[Boundary, ...] = ()
    copies: bool = False

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """Step the first block, down to one box of the nest."""
        assert self.stepping is not None
        once = self.stepping.once
        boxes = self.stepping.boxes(box, self.steps)
        regions = [operand.region(boxes[0]) for operand in once.operands]
        given = [
            extended(block, operand.region(box), region, single, block.dtype if self.copies else None)
            for block, operand, region, single in zip(blocks, nest.operands, regions, once.operands, strict=True)
        ]
        for number, inner in enumerate(boxes):
            seen = [
                block[(*within(operand.region(inner), region), ...)]
                for block, operand, region in zip(given, once.operands, regions, strict=True)
            ]
            result = super().__call__(seen, once, grid, index, inner)
            del seen
            if isinstance(result, tuple):
                raise ResultError(
                    f"fn returned a tuple of {len(result)} arrays; with iterations it must return one, which is the "
                    "next step's first array"
                )
            if number == self.steps - 1:
                return result
            regions[0] = once.operands[0].region(boxes[number + 1])
            given[0] = None  # frees its memory for the next one
            given[0] = self._next(result, inner, regions[0])
            del result
        raise AssertionError("there is at least one step")

    def _next(self, result: Any, have: Region, wanted: Region) -> Any:
        """A step's result as the first block of the next step, in the steps' dtype and with its boundary filled."""
        assert self.stepping is not None
        assert self.dtype is not None
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise ResultTypeError(
                f"fn returned dtype {result.dtype}; expected {self.dtype}, or what casts to it by the same_kind rule: "
                "convert it in fn, by .astype, or name its dtype in dtype="
            )
        check_range(result, self.dtype, have)
        operand = self.stepping.once.operands[0]
        if operand.halo:
            operand = replace(operand, boundary=self._edges())
        return extended(result, have, wanted, operand, self.dtype)

    def _edges(self) -> tuple[Boundary, ...]:
        return self.edges


def extended(block: Any, have: Region, wanted: Region, operand: Operand, dtype: np.dtype | None) -> Any:
    """A region of an array from a block of its elements; the boundary beyond the edges is filled.

    With a dtype it is always a copy: a block that the function returned may be a buffer that it uses again.

    >>> operand = Operand((0,), ((2, 0),), (9,), (7,))
    >>> extended(np.arange(3), (slice(0, 3),), (slice(-2, 3),), operand, None)
    array([7, 7, 0, 1, 2])
    """
    inside = tuple([slice(max(w.start, h.start), min(w.stop, h.stop)) for w, h in zip(wanted, have, strict=True)])
    found = block[(*within(inside, have), ...)]
    if dtype is None and inside == wanted:
        return found
    made: Any = np.empty_like(block, dtype=dtype, shape=shape_of(wanted))
    made[(*within(inside, wanted), ...)] = found
    if inside != wanted:
        fill(made, wanted, operand.extents, operand.boundary)
    if isinstance(made, np.ndarray):
        made.flags.writeable = False
    return made
