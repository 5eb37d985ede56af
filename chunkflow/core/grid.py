"""Regions, boxes and the ways to cut them. Pure: knows no dtype, no byte and no store.

A *region* is a tuple of slices with explicit, non-negative bounds and step 1, one per axis. An
*order* lists axes from the slowest to the fastest varying in memory; C order is ``(0, 1, 2, ...)``.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

Region = tuple[slice, ...]
Shape = tuple[int, ...]


def shape_of(region: Region) -> Shape:
    """Extents of a region.

    >>> shape_of((slice(2, 5), slice(0, 7)))
    (3, 7)
    """
    return tuple([s.stop - s.start for s in region])


def whole(shape: Sequence[int]) -> Region:
    """Region that covers an array of `shape`."""
    return tuple(slice(0, n) for n in shape)


def shift(region: Region, start: Sequence[int]) -> Region:
    """Region moved by `start` along each axis."""
    return tuple([slice(s.start + o, s.stop + o) for s, o in zip(region, start, strict=True)])


def within(inner: Region, outer: Region) -> Region:
    """`inner` as seen from the corner of `outer`.

    >>> within((slice(5, 7),), (slice(4, 9),))
    (slice(1, 3, None),)
    """
    return tuple([slice(i.start - o.start, i.stop - o.start) for i, o in zip(inner, outer, strict=True)])


def describe(region: Region) -> str:
    """Region as it would be written in an index.

    >>> describe((slice(0, 4), slice(8, 16)))
    '[0:4, 8:16]'
    """
    return "[" + ", ".join(f"{s.start}:{s.stop}" for s in region) + "]"


def count(extent: int, size: int) -> int:
    """Number of blocks of `size` that cover `extent`."""
    return -(-extent // size) if extent else 0


def permuted(values: Sequence[int], order: Sequence[int]) -> Shape:
    """`values` rearranged so that the slowest axis of `order` comes first."""
    return tuple([values[axis] for axis in order])


def fit(extents: Sequence[int], units: Sequence[int], order: Sequence[int], target: int) -> Shape:
    """Largest box of at most `target` elements, grown along the fastest axis first.

    Each side is a multiple of its unit or the whole extent. One unit per axis is the least
    returned, even where it has more than `target` elements.

    >>> fit((100, 64, 32), (1, 1, 1), (0, 1, 2), 5000)
    (2, 64, 32)
    >>> fit((100, 64, 32), (8, 8, 8), (0, 1, 2), 5000)
    (8, 16, 32)
    """
    box = [min(u, n) for u, n in zip(units, extents, strict=True)]
    for axis in reversed(order):
        rest = math.prod(n for a, n in enumerate(box) if a != axis)
        room = target // max(rest, 1)
        if room >= extents[axis]:
            box[axis] = extents[axis]
        else:
            box[axis] = max(box[axis], room // units[axis] * units[axis])
            break
    return tuple(box)


@lru_cache(1 << 14)  # a search for blocks asks for the same again and again
def touched(extent: int, size: int, unit: int, halo: tuple[int, int] = (0, 0), *, reused: bool = False) -> int:
    """Elements along one axis that are read in whole units by blocks of `size`, repeats counted.

    With a halo, what lies beyond the edges is left out; `reused` says that blocks load only what the one before
    did not.

    >>> touched(10, 5, 5), touched(10, 4, 5)
    (10, 20)
    >>> touched(12, 4, 4, (1, 1)), touched(12, 4, 4, (1, 1), reused=True)
    (28, 20)
    """
    if not extent:
        return 0
    blocks, (before, behind) = count(extent, size), halo
    if reused:  # the last blocks may have nothing of their own to load
        blocks = max(min(blocks, (extent - behind - 1) // size + 1), 1)
    # Where a block ends: at a unit's end, or at the array's, as the last blocks do.
    inner = (extent - 1) // unit * unit
    within = max(min((inner - size - behind) // size + 1, blocks), 0)
    stops = unit * floor_sum(within, size, size + behind + unit - 1, unit) + (blocks - within) * extent
    # Where it begins: at a unit's start, which for the first blocks is the array's.
    first, start = (1, size + behind) if reused else (-(-before // size), -before % size)
    return stops - unit * floor_sum(max(blocks - first, 0), size, start, unit)


def floor_sum(number: int, step: int, start: int, unit: int) -> int:
    """Sum of ``(start + i * step) // unit`` for `i` below `number`, in as few steps as Euclid's algorithm takes.

    >>> floor_sum(4, 3, 2, 5), sum((2 + 3 * i) // 5 for i in range(4))
    (4, 4)
    """
    total, sign = 0, 1
    while number:
        total += sign * (number * (number - 1) // 2 * (step // unit) + number * (start // unit))
        step, start = step % unit, start % unit
        # Points below a line are counted along the other axis: all of the rectangle, less those above the line.
        rows = (start + step * (number - 1)) // unit
        total += sign * rows * number
        number, step, start, unit, sign = rows, unit, unit - start + step - 1, step, -sign
    return total


class Interleave(NamedTuple):
    """How a walk over a product begins: with so many tiles in turn, and with blocks of these sides along each axis."""

    together: int = 1
    heads: tuple[Shape, ...] = ()


ONE_BY_ONE = Interleave()


@dataclass(frozen=True)
class Grid:
    """An index space cut into equal boxes, the last ones along each axis ragged.

    Where `heads` are given, these are the sides of the first boxes along each axis, and no longer than the others.

    >>> grid = Grid((10,), (4,))
    >>> grid.counts, [grid.region((i,))[0].stop for i in range(3)]
    ((3,), [4, 8, 10])
    >>> grid = Grid((10,), (4,), ((1, 3),))
    >>> grid.counts, [grid.region((i,))[0].stop for i in range(4)]
    ((4,), [1, 4, 8, 10])
    """

    extents: Shape
    block: Shape
    heads: tuple[Shape, ...] = ()

    @property
    def counts(self) -> Shape:
        """Number of blocks along each axis."""
        if self.heads:
            sides = zip(self.extents, self.block, self.heads, strict=True)
            return tuple(len(h) + count(max(n - sum(h), 0), b) if n else 0 for n, b, h in sides)
        return tuple(count(n, b) for n, b in zip(self.extents, self.block, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def sides(self, axis: int) -> Counter[int]:
        """How many boxes have which side along an axis.

        >>> sorted(Grid((10,), (4,)).sides(0).items())
        [(2, 1), (4, 2)]
        """
        heads = self.heads[axis] if self.heads else ()
        whole, rest = divmod(self.extents[axis] - sum(heads), self.block[axis])
        return Counter(heads) + Counter({self.block[axis]: whole}) + Counter([rest] if rest else [])

    def walk(self, order: Sequence[int]) -> Iterator[Shape]:
        """Block indices, the last axis of `order` varying fastest."""
        place = [order.index(axis) for axis in range(len(self.extents))]
        for index in itertools.product(*(range(self.counts[axis]) for axis in order)):
            yield tuple(index[p] for p in place)

    def in_turn(self, order: Sequence[int], axis: int, number: int) -> Iterator[Shape]:
        """Block indices as of `walk`, but for the first `number` along `axis`, which vary fastest before the others.

        >>> list(Grid((3, 2), (1, 1)).in_turn((0, 1), 0, 2))
        [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
        """
        inmost = (*(a for a in order if a != axis), axis)
        yield from (index for index in self.walk(inmost) if index[axis] < number)
        yield from (index for index in self.walk(order) if index[axis] >= number)

    def abreast(self, order: Sequence[int], axis: int, number: int) -> Iterator[Shape]:
        """Block indices of rows along an axis, as of `walk`, where each `number` rows take turns.

        >>> list(Grid((3, 2), (1, 1)).abreast((0, 1), 1, 2))
        [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
        """
        rows = (index for index in self.walk(order) if index[axis] == 0)
        while together := tuple(itertools.islice(rows, number)):
            for i in range(self.counts[axis]):
                yield from ((*index[:axis], i, *index[axis + 1 :]) for index in together)

    def region(self, index: Shape) -> Region:
        """Region of the block at `index`."""
        sides = zip(index, self.block, self.extents, strict=True)
        if self.heads:
            return tuple(_side(i, h, b, n) for (i, b, n), h in zip(sides, self.heads, strict=True))
        return tuple([slice(i * b, min((i + 1) * b, n)) for i, b, n in sides])


def _side(index: int, heads: Shape, size: int, extent: int) -> slice:
    """A box's side along an axis whose first boxes have the sides `heads`."""
    start = sum(heads[:index]) + max(index - len(heads), 0) * size
    return slice(start, min(start + (heads[index] if index < len(heads) else size), extent))


def regions(shape: Shape, sides: Shape) -> Iterator[Region]:
    """Regions of boxes with these sides that make up an array, in C order.

    >>> list(regions((3,), (2,)))
    [(slice(0, 2, None),), (slice(2, 3, None),)]
    """
    boxes = Grid(shape, sides)
    return (boxes.region(index) for index in boxes.walk(range(len(shape))))
