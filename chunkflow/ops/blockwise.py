"""A pass over arrays, declared: named axes, and which of them each operand and output uses.

An axis of the loop nest is known by its position. The declaration says which region of each array
belongs to a box of the nest; it knows no dtype, budget, device or store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from chunkflow.grid import Region, Shape


@dataclass(frozen=True)
class Operand:
    """An input: for each of its dimensions the axis it runs along, None where it is broadcast."""

    axes: tuple[int | None, ...]

    def region(self, box: Region) -> Region:
        """Part of the operand that belongs to a box of the nest."""
        return tuple(slice(0, 1) if a is None else box[a] for a in self.axes)

    def shape(self, sides: Sequence[int]) -> Shape:
        """Extents of the operand's part of a box with these sides."""
        return tuple(1 if a is None else sides[a] for a in self.axes)


@dataclass(frozen=True)
class Along:
    """An output dimension that follows an axis, `ratio` elements for each one of the axis."""

    axis: int
    ratio: Fraction = Fraction(1)

    def __call__(self, position: int) -> int:
        """Position along the output of a position along the axis."""
        return math.ceil(position * self.ratio)


@dataclass(frozen=True)
class Output:
    """A result: each dimension follows an axis, or has a fixed length that every block fills whole."""

    dims: tuple[Along | int, ...]

    def region(self, box: Region) -> Region:
        """Part of the output that a box of the nest yields."""
        return tuple(
            slice(0, d) if isinstance(d, int) else slice(d(box[d.axis].start), d(box[d.axis].stop)) for d in self.dims
        )

    def shape(self, sides: Sequence[int]) -> Shape:
        """Extents of what a box with these sides, placed at the origin, yields."""
        return tuple(d if isinstance(d, int) else d(sides[d.axis]) for d in self.dims)


@dataclass(frozen=True)
class Blockwise:
    """One pass: the nest's extents, its operands and outputs, and the axes that must not be cut."""

    extents: Shape
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    whole: frozenset[int] = frozenset()

    @property
    def divisible(self) -> frozenset[int]:
        """Axes along which part of a block gives just the same part of every output."""
        return frozenset(
            a for a in range(len(self.extents)) if a not in self.whole and all(Along(a) in o.dims for o in self.outputs)
        )

    def loads(self, operand: Operand, counts: Sequence[int], walk: Sequence[int]) -> int:
        """How often an operand's block changes when the nest is walked, the last axis fastest.

        >>> row = Operand((None, 1))
        >>> nest = Blockwise((6, 4), (row,), ())
        >>> nest.loads(row, (3, 2), (0, 1)), nest.loads(row, (3, 2), (1, 0))
        (6, 2)
        """
        total = product = 1
        for axis in walk:
            product *= counts[axis]
            if counts[axis] > 1 and axis in operand.axes:
                total = product
        return total
