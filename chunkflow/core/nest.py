"""A pass over arrays, declared: named axes, and which of them each operand and output uses.

An axis of the loop nest is known by its position. The declaration says which region of each array
belongs to a box of the nest; it knows no dtype, budget, device or store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

from chunkflow.core.axes import as_axes, normalize_axes
from chunkflow.core.grid import Region, Shape, shift
from chunkflow.core.halo import Boundary, reach
from chunkflow.errors import ArgumentError


@dataclass(frozen=True)
class Operand:
    """An input.

    Attributes
    ----------
    axes : tuple
        For each of its dimensions the axis it runs along, None where it is broadcast.
    halo : tuple of (int, int)
        For each dimension the elements before and after a block that belong to it too; empty for none at all.
    extents, boundary : tuple
        With a halo: the operand's own extents, and what lies beyond them along each dimension.
    ahead : tuple of int
        With a halo: blocks go on to a multiple of this along each dimension, so that a store's chunks are read
        once, and kept until the next block needs the rest of them.
    start : tuple of int
        Where the nest is part of another: the place along each dimension at which it begins.
    """

    axes: tuple[int | None, ...]
    halo: tuple[tuple[int, int], ...] = ()
    extents: Shape = ()
    boundary: tuple[Boundary, ...] = ()
    ahead: tuple[int, ...] = ()
    start: Shape = ()

    def region(self, box: Region) -> Region:
        """Part of the operand that belongs to a box of the nest; it may reach beyond the operand's edges."""
        inner = tuple([slice(0, 1) if a is None else box[a] for a in self.axes])
        if self.start:
            inner = shift(inner, self.start)
        if not self.halo:
            return inner
        ahead = self.ahead or (1,) * len(inner)
        sides = zip(inner, self.halo, self.extents, self.boundary, ahead, strict=True)
        return tuple([reach(*side) for side in sides])

    def different(self, counts: Sequence[int]) -> int:
        """Number of different blocks, of so many of the nest along each axis."""
        return math.prod(counts[a] for a in self.axes if a is not None)

    @property
    def padded(self) -> bool:
        """Whether blocks at the edges hold more than the array does."""
        return any(sum(h) and kind != "none" for h, kind in zip(self.halo, self.boundary, strict=True))

    def spreads(self, order: Shape, counts: Sequence[int]) -> bool:
        """Whether what is loaded may not be contiguous in its block, which lies in memory order `order`."""
        return bool(self.halo) and any(
            sum(self.halo[d]) and (self.boundary[d] != "none" or counts[self.axes[d] or 0] > 1) for d in order[1:]
        )

    def wraps(self, order: Shape) -> bool:
        """Whether a few elements of each of its rows come from their other end, in an array of memory order `order`."""
        return bool(self.halo) and self.boundary[order[-1]] == "periodic" and any(self.halo[order[-1]])

    def shape(self, sides: Sequence[int]) -> Shape:
        """Extents of the operand's part of a box with these sides, at most."""
        inner = [1 if a is None else sides[a] for a in self.axes]
        if not self.halo:
            return tuple(inner)
        ahead = self.ahead or (1,) * len(inner)
        return tuple(
            min(n + before + -(-after // unit) * unit, extent + (0 if kind == "none" else before + after))
            for n, (before, after), extent, kind, unit in zip(
                inner, self.halo, self.extents, self.boundary, ahead, strict=True
            )
        )


@dataclass(frozen=True)
class Along:
    """An output dimension that follows an axis, `ratio` elements for each one of the axis."""

    axis: int
    ratio: Fraction = Fraction(1)

    def __call__(self, position: int) -> int:
        """Position along the output of a position along the axis."""
        ratio = self.ratio  # a fraction's own product, rounded up, takes ten times as long, and is asked for each block
        return -(-position * ratio.numerator // ratio.denominator)


@dataclass(frozen=True)
class Output:
    """A result: each dimension follows an axis, or has a fixed length that every block fills whole."""

    dims: tuple[Along | int, ...]

    def region(self, box: Region) -> Region:
        """Part of the output that a box of the nest yields."""
        sides = [(0, d) if isinstance(d, int) else (d(box[d.axis].start), d(box[d.axis].stop)) for d in self.dims]
        return tuple([slice(*side) for side in sides])

    def shape(self, sides: Sequence[int]) -> Shape:
        """Extents of what a box with these sides, placed at the origin, yields."""
        return tuple(d if isinstance(d, int) else d(sides[d.axis]) for d in self.dims)


@dataclass(frozen=True)
class OutputGroup:
    """Outputs that a kernel gives together: they follow the same axes, and the others are folded.

    Attributes
    ----------
    outputs : tuple of Output
    first : int
        Number of the first of them among the pass's.
    kept : tuple of int
        Axes that they follow.
    folded : frozenset of int
        Axes along which what the blocks give is combined.
    state : float
        Bytes that a lane holds between blocks (partial results, or a carry), per element of the first one's block.
    """

    outputs: tuple[Output, ...]
    first: int
    kept: Shape
    folded: frozenset[int]
    state: float

    @property
    def numbers(self) -> range:
        """Which of the pass's outputs they are."""
        return range(self.first, self.first + len(self.outputs))

    def alive(self, counts: Sequence[int], walk: Sequence[int]) -> int:
        """Blocks of partial results that are begun and not ended yet, at most, when the nest is walked so.

        >>> part = OutputGroup((Output((Along(1),)),), 0, (1,), frozenset({0}), 8.0)
        >>> part.alive((3, 5), (1, 0)), part.alive((3, 5), (0, 1))
        (1, 5)
        """
        several = [a for a in walk if counts[a] > 1]
        outermost = next((i for i, a in enumerate(several) if a in self.folded), len(several))
        return math.prod(counts[a] for a in several[outermost:] if a not in self.folded)

    def holds(self, sides: Sequence[int]) -> int:
        """Bytes that a chain keeps for one block of these sides."""
        return math.ceil(self.state * math.prod(self.outputs[0].shape(sides)))


class Strips(NamedTuple):
    """Elements of a block that a kernel works on at once; 0 for all.

    `shared` is for a device that shares the host's memory, `staged` for one with memory of its own.
    """

    shared: int = 0
    staged: int = 0


NO_STRIPS = Strips()
"""Kernels that work on whole blocks."""


@dataclass(frozen=True)
class LoopNest:
    """One pass over a loop nest.

    Attributes
    ----------
    extents : tuple of int
        Of the nest's axes.
    operands, outputs : tuple
        What is read and what is stored.
    whole : frozenset of int
        Axes that must not be cut.
    scan : int, optional
        Axis along which a carry travels from block to block, so that it is walked in order.
    together : tuple of int
        How many outputs each part of the kernel gives; empty for one part that gives all.
    state : tuple of float
        For each part the bytes that a lane holds between blocks, as `OutputGroup` has it; empty for none.
    views : bool
        Whether results are the operand's very blocks, or views of them.
    work : int
        Multiply-adds of the whole pass, of a product.
    single : bool
        Whether a product adds matrices to a tile, no stacks of them, in a dtype of BLAS: a device may need no panel.
    looked_up : frozenset of int
        Axes along which elements are looked up at places of another operand: what the kernel takes does not grow with
        them.
    """

    is_product: ClassVar[bool] = False
    """Whether it is a `ProductNest`, which is cut into squares and shares a pass with no other operation."""

    extents: Shape
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    whole: frozenset[int] = frozenset()
    scan: int | None = None
    together: Shape = ()
    state: tuple[float, ...] = ()
    views: bool = False
    work: int = 0
    single: bool = False
    looked_up: frozenset[int] = frozenset()

    @cached_property
    def has_halo(self) -> bool:
        """Whether blocks of an operand overlap."""
        return any(o.halo for o in self.operands)

    @property
    def tile_alone(self) -> bool:
        """Whether a lane keeps one array between blocks, and nothing that a product needs besides."""
        return True

    @cached_property
    def anywhere(self) -> Self:
        """The pass, wherever in another one it lies: what is the same for all parts of one size."""
        return replace(self, operands=tuple(replace(o, start=()) for o in self.operands))

    def volume(self, sides: Sequence[int]) -> int:
        """Elements of the largest block of a box with these sides, halo and all: the unit of a kernel's memory."""
        return self.largest(sides, [o.shape(sides) for o in self.operands])

    def largest(self, sides: Sequence[int], blocks: Iterable[Shape]) -> int:
        """Elements of the largest of these blocks of a box with these sides."""
        if self.looked_up:
            return max(1, math.prod(n for a, n in enumerate(sides) if a not in self.looked_up))
        return max([1, math.prod(sides), *map(math.prod, blocks)])

    @cached_property
    def parts(self) -> tuple[OutputGroup, ...]:
        """The outputs, as the kernel gives them."""
        found, first = [], 0
        for i, number in enumerate(self.together or (len(self.outputs),)):
            outputs = self.outputs[first : first + number]
            kept = {d.axis for o in outputs for d in o.dims if isinstance(d, Along)}
            folded = frozenset(range(len(self.extents))) - kept - self.whole if outputs else frozenset()
            found.append(OutputGroup(outputs, first, tuple(sorted(kept)), folded, self.state[i] if self.state else 0.0))
            first += number
        return tuple(found)

    def across(self, counts: Sequence[int]) -> list[int]:
        """Axes along which there are several results, where there are so many blocks along each."""
        return [a for a, n in enumerate(counts) if n > 1 and a not in self.folded]

    @cached_property
    def folded(self) -> frozenset[int]:
        """Axes that no output follows: what the blocks along them give is combined."""
        return frozenset.intersection(*(part.folded for part in self.parts))

    @cached_property
    def folds(self) -> bool:
        """Whether anything is combined."""
        return any(part.folded for part in self.parts)

    def holds(self, sides: Sequence[int]) -> int:
        """Bytes that a chain keeps between blocks of these sides, for one block of each output."""
        return sum(part.holds(sides) for part in self.parts if part.outputs)

    @property
    def divisible_by_ratio(self) -> list[int]:
        """Axes that every output follows, at whatever ratio, or along which it is combined, in order."""
        return [
            a
            for a in range(len(self.extents))
            if a not in self.whole
            and all(
                a in p.folded
                or (not p.folded and all(any(isinstance(d, Along) and d.axis == a for d in o.dims) for o in p.outputs))
                for p in self.parts
            )
        ]

    def step(self, axis: int) -> int:
        """What a place along an axis must be a multiple of, for every output to have an element begin there."""
        ratios = [d.ratio.denominator for o in self.outputs for d in o.dims if isinstance(d, Along) and d.axis == axis]
        return math.lcm(*ratios)

    @property
    def divisible(self) -> frozenset[int]:
        """Axes along which part of a block gives just the same part of every output, or is combined."""
        resized = {d.axis for o in self.outputs for d in o.dims if isinstance(d, Along) and d.ratio != 1}
        return frozenset(a for a in self.divisible_by_ratio if a not in resized and a != self.scan)

    def rows(self, counts: Sequence[int]) -> int:
        """Number of blocks that can be computed beside one another: of a scan one of each row along its axis.

        >>> LoopNest((6, 4), (), (), scan=1).rows((3, 2))
        3
        """
        return math.prod(n for a, n in enumerate(counts) if a != self.scan)

    def loads(self, operand: Operand, counts: Sequence[int], walk: Sequence[int]) -> int:
        """How often an operand's block changes when the nest is walked, the last axis fastest.

        >>> row = Operand((None, 1))
        >>> nest = LoopNest((6, 4), (row,), ())
        >>> nest.loads(row, (3, 2), (0, 1)), nest.loads(row, (3, 2), (1, 0))
        (6, 2)
        """
        total = product = 1
        for axis in walk:
            product *= counts[axis]
            if counts[axis] > 1 and axis in operand.axes:
                total = product
        return total


def _reduced(shapes: Sequence[Shape]) -> str:
    """A hint, where a shape is the longest one without some of its axes: that of a reduction.

    >>> _reduced([(3, 4, 5), (3,)]), _reduced([(3, 4, 5), (3, 6)])
    ('; if that of shape (3,) is a reduction, keepdims=True keeps its axes, of length 1', '')
    """
    longest = max(shapes, key=len)
    for shape in shapes:
        sides = iter(longest)
        if 0 < len(shape) < len(longest) and all(any(side == n for side in sides) for n in shape):
            return f"; if that of shape {shape} is a reduction, keepdims=True keeps its axes, of length 1"
    return ""


def nest(shapes: Sequence[Shape], drop: int | Sequence[int] | None = None) -> LoopNest:
    """Loop nest of arrays that broadcast together, or else an `ArgumentError`; dropped axes are not cut.

    It has no outputs yet.
    """
    extents: list[int] = []
    for sides in itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        longer = [n for n in sides if n != 1] or [1]  # NumPy's function would make plain numbers of unknown lengths
        if longer.count(longer[0]) < len(longer):
            listed = ", ".join(map(str, shapes))
            raise ArgumentError(
                f"arrays of shapes {listed} do not broadcast: aligned from the right, extents must be equal or 1"
                f"{_reduced(shapes)}"
            )
        extents.insert(0, longer[0])
    operands = [
        Operand(tuple([None if n == 1 != extents[a] else a for a, n in enumerate(shape, len(extents) - len(shape))]))
        for shape in shapes
    ]
    whole = normalize_axes(drop, len(extents), "drop_axis")
    return LoopNest(tuple(extents), tuple(operands), (), frozenset(whole))


def output_axes(
    ndim: int, drop: int | Sequence[int] | None = None, new: int | Sequence[int] | None = None
) -> tuple[int | None, ...]:
    """For each dimension of a result the axis of the nest that it follows, None for a new one.

    >>> output_axes(2, drop=0, new=0)
    (None, 1)
    """
    dropped = normalize_axes(drop, ndim, "drop_axis")
    kept: list[int | None] = [a for a in range(ndim) if a not in dropped]
    for axis in normalize_axes(new, len(kept) + len(as_axes(new, "new_axis")), "new_axis"):
        kept.insert(axis, None)
    return tuple(kept)


def outputs_like(axes: Sequence[int | None], lengths: Sequence[Along | int | None]) -> Output:
    """Output that follows `axes`; `lengths` gives what differs: a new one's length, a resized one's ratio."""
    own = [1 if axis is None else Along(axis) for axis in axes]
    return Output(tuple(n if given is None else given for n, given in zip(own, lengths, strict=True)))
