"""Reductions: what a block gives, how two such results combine, and what comes of them in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chunkflow.grid import Grid, Region, Shape
from chunkflow.ops.blockwise import Blockwise

Value = tuple[Any, ...]


@dataclass(frozen=True)
class Reduction:
    """A reduction as three functions of tuples of arrays, all with the reduced axes kept at length 1.

    Attributes
    ----------
    axes : tuple of int
        That are reduced.
    chunk : callable
        ``chunk(*blocks, axes, box)``: partial results of one block; `box` is its place in the array.
    combine : callable
        ``combine(left, right)``: partial results of both; `left` comes before `right`.
    aggregate : callable
        ``aggregate(value)``: the result, or a tuple of them, with the reduced axes still at length 1.
    keepdims : bool
        Whether results keep those axes.
    """

    axes: tuple[int, ...]
    chunk: Callable[..., Value]
    merge: Callable[[Value, Value], Value]
    aggregate: Callable[[Value], Any]
    keepdims: bool = False

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: Blockwise, grid: Grid, index: Shape, box: Region
    ) -> Value:
        """See `chunkflow.kernel.Fold`."""
        found = self.chunk(*blocks, self.axes, box)
        return found if value is None else self.merge(value, found)

    def combine(self, left: Value, right: Value) -> Value:
        """See `chunkflow.kernel.Fold`."""
        return self.merge(left, right)

    def finish(self, value: Value, nest: Blockwise, box: Region) -> Any:
        """See `chunkflow.kernel.Fold`."""
        result = self.aggregate(value)
        if self.keepdims:
            return result
        if isinstance(result, tuple):
            return tuple(r.squeeze(self.axes) for r in result)
        return result.squeeze(self.axes)

    def __call__(self, blocks: Sequence[Any], nest: Blockwise, grid: Grid, index: Shape, box: Region) -> Any:
        """The reduction of one block alone."""
        return self.finish(self.fold(None, blocks, nest, grid, index, box), nest, box)
