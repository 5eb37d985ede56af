"""Blockwise operations in index notation: the loop nest of the indices, and folds along those that the result lacks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError
from chunkflow.kernels.protocol import Fold, Kernel

Index = tuple[Hashable, ...]


def as_index(index: Any, name: str) -> Index:
    """An index: one name for each dimension, all different.

    >>> as_index("ij", "out_ind")
    ('i', 'j')
    """
    try:
        found: Index = tuple(index)
        distinct = len(set(found)) == len(found)
    except TypeError:
        raise ArgumentTypeError(f'{name}={index!r} must be a str such as "ij", or a tuple of names') from None
    if not distinct:
        raise ArgumentError(f"{name}={index!r} names a dimension twice: diagonals are not supported, name each once")
    return found


def spanned(
    out: Index, operands: Sequence[tuple[Index, Shape]], new: Mapping[Hashable, int], *, whole: bool
) -> tuple[LoopNest, tuple[int | None, ...]]:
    """The loop nest over all indices, and for each dimension of the result its axis; None for a new one.

    Parameters
    ----------
    out : tuple
        Indices of the result.
    operands : sequence of (tuple, tuple of int)
        Indices and shape of each operand. An extent of 1 broadcasts.
    new : mapping
        Lengths of the result's own dimensions.
    whole : bool
        Whether blocks must have the indices that the result lacks in full.

    Raises
    ------
    ArgumentError
        The indices do not fit the shapes or each other.

    Examples
    --------
    >>> op, axes = spanned(("i", "k"), [(("i", "j"), (4, 5)), (("j", "k"), (5, 6))], {}, whole=False)
    >>> op.extents, axes, [operand.axes for operand in op.operands]
    ((4, 6, 5), (0, 1), [(0, 2), (2, 1)])
    """
    extents: dict[Hashable, int] = {}
    first: dict[Hashable, Shape] = {}
    for index, shape in operands:
        if len(index) != len(shape):
            raise ArgumentError(f"index {_written(index)} has {len(index)} names and its array the shape {shape}")
        for name, n in zip(index, shape, strict=True):
            if extents.get(name, 1) == 1:
                extents[name], first[name] = n, shape
            elif n not in (1, extents[name]):
                raise ArgumentError(
                    f"index {name!r} is {extents[name]} long in an array of shape {first[name]} and {n} in one of "
                    f"shape {shape}: extents must be equal or 1"
                )
    for name in new:
        if name in extents or name not in out:
            where = "is one of an array" if name in extents else f"is not in out_ind={_written(out)}"
            raise ArgumentError(f"new_axes: index {name!r} {where}; it must be in out_ind alone")
    for name in out:
        if name not in extents and name not in new:
            raise ArgumentError(
                f"out_ind={_written(out)}: no array has the index {name!r}; give its length in new_axes"
            )
    gone = [name for name in extents if name not in out]
    place = {name: axis for axis, name in enumerate([*(n for n in out if n in extents), *gone])}
    nest = LoopNest(
        tuple(extents[name] for name in place),
        tuple(
            Operand(
                tuple(None if n == 1 != extents[name] else place[name] for name, n in zip(index, shape, strict=True))
            )
            for index, shape in operands
        ),
        (),
        frozenset(place[name] for name in gone) if whole else frozenset(),
    )
    return nest, tuple(place.get(name) for name in out)


def _written(index: Index) -> str:
    return repr("".join(map(str, index)) if all(isinstance(n, str) for n in index) else index)


@dataclass(frozen=True)
class Widened(Kernel):
    """The kernel `block`, whose results have new dimensions: those of known `lengths` are checked."""

    block: Callable[..., Any]
    lengths: tuple[int | None, ...]

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        results = self.block(blocks, nest, grid, index, box)
        for result in results if isinstance(results, tuple) else (results,):
            shape = tuple(getattr(result, "shape", self.lengths))
            for axis, (got, expected) in enumerate(zip(shape, self.lengths, strict=False)):
                if expected is not None and got != expected:
                    raise ResultError(
                        f"fn returned shape {shape}; new_axes, or output_sizes, says {expected} along axis {axis}, "
                        f"not {got}"
                    )
        return results

    def shortened(self, nest: LoopNest, short: LoopNest) -> Widened | None:
        block = self.block.shortened(nest, short) if isinstance(self.block, Kernel) else None
        lengths = {nest.extents[a]: short.extents[a] for a in nest.whole}
        known = tuple(None if n is None else lengths.get(n, n) for n in self.lengths)
        return None if block is None else replace(self, block=block, lengths=known)

    def of_whole_lines(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [
            tuple(n if known is None else known for n, known in zip(shape, self.lengths, strict=True))
            for shape in shapes
        ]


@dataclass(frozen=True)
class CombinedBlocks(Widened, Fold):
    """A kernel whose results the user's function `merge` combines along the folded axes, two at a time.

    The left one is of earlier blocks, but each lane takes every n-th block.
    """

    merge: Callable[[Any, Any], Any]

    def fold(self, value: Any, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        found = self(blocks, nest, grid, index, box)
        if value is None:
            return tuple([copied(a) for a in found]) if isinstance(found, tuple) else copied(found)
        return self.combine(value, found)

    def combine(self, left: Any, right: Any) -> Any:
        if isinstance(left, tuple):
            return tuple([self._merged(a, b) for a, b in zip(left, right, strict=True)])
        return self._merged(left, right)

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        return value

    def _merged(self, left: Any, right: Any) -> Any:
        both = self.merge(left, right)
        return copied(both) if both is right or getattr(both, "base", None) is not None else both


def copied(result: Any) -> Any:
    """A copy of a result. The function may have returned its block, or a buffer that it keeps: a value outlives both.

    A result that is no array is refused later, when it is stored.
    """
    return result.copy() if hasattr(result, "copy") and not isinstance(result, np.generic) else result
