"""Part of a nest as a nest of its own: blocks are counted from its corner, and kernels see where they really lie.

So a machine that has a part of an array to compute plans it as a whole one, and halos at its edges are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, shape_of, shift
from chunkflow.core.nest import LoopNest


def part_of(nest: LoopNest, kernel: Any, box: Region, **options: Any) -> tuple[LoopNest, SubNestKernel]:
    """The nest of a box, and its kernel; options are `SubNestKernel`'s.

    >>> from chunkflow.core.nest import nest
    >>> inner, _ = part_of(nest([(10, 4)]), None, (slice(5, 10), slice(0, 4)))
    >>> inner.extents, inner.operands[0].region((slice(0, 2), slice(0, 4)))
    ((5, 4), (slice(5, 7, None), slice(0, 4, None)))
    """
    start = tuple(side.start for side in box)
    operands = tuple(
        replace(operand, start=tuple(0 if a is None else start[a] for a in operand.axes)) for operand in nest.operands
    )
    kinds = {"parts": SubNestMulti, "fold": SubNestFold, "advance": SubNestCarry}
    kind = next((kind for word, kind in kinds.items() if hasattr(kernel, word)), SubNestKernel)
    return replace(nest, extents=shape_of(box), operands=operands), kind(kernel, nest.extents, start, **options)


@lru_cache(maxsize=64)
def _whole(nest: LoopNest, extents: Shape) -> LoopNest:
    """The nest that one is part of."""
    return replace(nest, extents=extents, operands=tuple(replace(operand, start=()) for operand in nest.operands))


@dataclass(frozen=True)
class SubNestKernel:
    """A kernel on part of its nest.

    Attributes
    ----------
    kernel : Kernel
        What computes a box of the whole nest.
    extents, start : tuple of int
        Of the whole nest; and where in it the part begins.
    merged : list, optional
        Takes what all blocks of the part came to, in host memory, each time that they are finished.
    check : callable, optional
        Called before each block; what it raises ends the run.
    """

    kernel: Any
    extents: Shape
    start: Shape
    merged: list[Any] | None = None
    check: Callable[[], None] | None = None

    @property
    def tf32(self) -> bool:
        """Whether the device may round products."""
        return bool(getattr(self.kernel, "tf32", False))

    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        """The whole nest, and where in it a box lies that is computed next."""
        if self.check is not None:
            self.check()
        return _whole(nest, self.extents), shift(box, self.start)

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """See `chunkflow.kernels.protocol.Kernel`."""
        whole, place = self.where(nest, box)
        return self.kernel(blocks, whole, grid, index, place)

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> SubNestKernel:
        """See `chunkflow.kernels.protocol.Informed`."""
        if not hasattr(self.kernel, "informed"):
            return self
        return replace(self, kernel=self.kernel.informed(_whole(nest, self.extents), dtypes))


@dataclass(frozen=True)
class SubNestFold(SubNestKernel):
    """A fold of part of its nest, which keeps the value that it finishes."""

    def fold(self, value: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """See `chunkflow.kernels.protocol.Fold`."""
        whole, place = self.where(nest, box)
        return self.kernel.fold(value, blocks, whole, grid, index, place)

    def combine(self, left: Any, right: Any) -> Any:
        """See `chunkflow.kernels.protocol.Fold`."""
        return self.kernel.combine(left, right)

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        """See `chunkflow.kernels.protocol.Fold`."""
        if self.merged is not None:
            self.merged.append(on_host(value))
        return self.kernel.finish(value, *self.where(nest, box))


@dataclass(frozen=True)
class SubNestCarry(SubNestKernel):
    """A scan of part of its nest, which has all of the axis that is scanned."""

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        """See `chunkflow.kernels.protocol.Carry`."""
        whole, place = self.where(nest, box)
        found: tuple[Any, Any] = self.kernel.advance(carry, blocks, whole, grid, index, place)
        return found


@dataclass(frozen=True)
class SubNestMulti(SubNestKernel):
    """A kernel of several parts on part of its nest."""

    @property
    def parts(self) -> tuple[SubNestFold | None, ...]:
        """See `chunkflow.kernels.protocol.MultiKernel`."""
        return tuple(
            None if fold is None else SubNestFold(fold, self.extents, self.start, self.merged)
            for fold in self.kernel.parts
        )

    def step(
        self, values: Sequence[Any], blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[list[Any], list[Any]]:
        """See `chunkflow.kernels.protocol.MultiKernel`."""
        whole, place = self.where(nest, box)
        found: tuple[list[Any], list[Any]] = self.kernel.step(values, blocks, whole, grid, index, place)
        return found


def placed(kernel: Any, box: Region) -> Region:
    """A box where it really lies."""
    return shift(box, kernel.start) if isinstance(kernel, SubNestKernel) else box


def on_host(value: Any) -> Any:
    """A copy of partial results in host memory, which nobody else knows."""
    if isinstance(value, tuple | list):
        return type(value)([on_host(entry) for entry in value])
    if isinstance(value, dict):
        return {key: on_host(entry) for key, entry in value.items()}
    if hasattr(value, "get"):  # CuPy's
        return value.get()
    return np.array(value) if isinstance(value, np.ndarray | np.generic) else value
