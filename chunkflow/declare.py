"""What an operation says of itself once its arrays' shapes are known: the pass, the kernel, the results' axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chunkflow.errors import ArgumentTypeError
from chunkflow.kernel import Kernel
from chunkflow.ops.blockwise import Blockwise
from chunkflow.ops.map import Kernel as MapKernel
from chunkflow.ops.map import nest, output_axes
from chunkflow.spec import ArraySpec


@dataclass(frozen=True)
class Declared:
    """An operation on arrays whose shapes are known.

    Attributes
    ----------
    nest : Blockwise
        The pass, without its outputs, which a trial call of the kernel shows.
    kernel : Kernel or None
        What is computed on a box of the nest; None where only the blocks are wanted.
    axes : tuple of int or None
        For each dimension of the results the axis of the nest that it follows, None for one that every block
        fills whole.
    block : tuple of int or None, optional
        Sides of the blocks, as far as they are fixed.
    tiles : bool
        Whether the kernel may be called on parts of a block.
    copies : float
        Partial results that a lane holds at once while it combines them.
    """

    nest: Blockwise
    kernel: Kernel | None
    axes: tuple[int | None, ...]
    block: tuple[int | None, ...] | None = None
    tiles: bool = True
    copies: float = 3.0


Declare = Callable[[Sequence[ArraySpec], tuple[Any, ...]], Declared]
"""Declares an operation, given the arrays' specs and the arguments, with `SLOT` where the arrays were."""


def declare_map(
    fn: Callable[..., Any],
    kwargs: dict[str, Any],
    drop: int | Sequence[int] | None = None,
    new: int | Sequence[int] | None = None,
) -> Declare:
    """Declare `map`."""
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}")

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = nest([s.shape for s in specs], drop)
        axes = output_axes(len(op.extents), drop, new)
        kernel = MapKernel(fn, args, kwargs, axes)
        return Declared(op, kernel, axes, tiles=not kernel.wants)

    return declare


def declare_blocks(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
    """Declare that the blocks of one array are wanted, and nothing else."""
    op = nest([s.shape for s in specs])
    return Declared(op, None, output_axes(len(op.extents)))
