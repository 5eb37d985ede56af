"""What the engine asks of an operation's kernel: to compute, to fold, or to pass something on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest


class Kernel(Protocol):
    """What an operation computes on one box of the loop nest: an array, or a tuple of them."""

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """Results of `blocks`, which are not to be written to."""


@runtime_checkable
class Informed(Protocol):
    """A kernel that wants to know of its results before it runs."""

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> Kernel:
        """The kernel, told the pass with its outputs, and their dtypes."""


@runtime_checkable
class DataIndependent(Protocol):
    """A kernel that if `settled` takes and returns as much for all blocks of one layout, whatever they hold.

    It is tried on zeros, and where it is equal to others of its kind only until two trials say the same.
    """

    @property
    def settled(self) -> bool:
        """Whether it does."""


class Fold(Kernel, Protocol):
    """A kernel whose blocks' results are combined along the axes that no output follows.

    The value between blocks is a tuple of arrays. Calling the kernel computes one block to its end.
    """

    def fold(self, value: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        """`value` with a block added; None is the value of no block. If memory runs out `value` stays as it was."""

    def combine(self, left: Any, right: Any) -> Any:
        """Value of what two chains of blocks have added up."""

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        """Results from the value of all the blocks."""


class MultiKernel(Kernel, Protocol):
    """A kernel of several parts that share what they compute on a box. Calling it computes one block to its end.

    `parts` has a fold for each part, None for one whose results are stored block by block.
    """

    parts: Sequence[Fold | None]

    def step(
        self, values: Sequence[Any], blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[list[Any], list[Any]]:
        """Values of the parts that fold, with a block added, and the results of those that do not.

        If memory runs out the given values stay as they were.
        """


class Carry(Kernel, Protocol):
    """A kernel that passes something on to the next block along the scanned axis."""

    def advance(
        self, carry: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, Any]:
        """Results of a block, and what the next one gets; None is what the first one gets."""
