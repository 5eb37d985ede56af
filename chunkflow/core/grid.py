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


def piece_box(shape: Sequence[int], units: Sequence[int], order: Sequence[int], limit: int) -> Shape:
    """Sides of a piece of a block: as many whole units as `limit` elements hold, at least one.

    A unit that is larger than the block counts whole: it is read whole.

    >>> piece_box((2, 8, 8), (4, 4, 4), (0, 1, 2), 64)
    (2, 4, 4)
    """
    padded = [-(-n // u) * u for n, u in zip(shape, units, strict=True)]
    return tuple(min(b, n) for b, n in zip(fit(padded, units, order, limit), shape, strict=True))


LEAST_ROW = 1 << 10
"""Bytes of rows on a device that its copy engines take one by one."""

MOST_GROUPS = 16
"""Groups of rows, or of planes of them, in a piece beyond which it is not worth copying them one by one."""


@dataclass(frozen=True)
class Rows:
    """Runs of a block at equal distances, in elements.

    At each of `starts` begin `depth` planes, by `plane` apart, of `height` rows, by `pitch` apart, of `width`.
    """

    starts: tuple[int, ...]
    pitch: int
    width: int
    height: int
    plane: int = 0
    depth: int = 1

    @property
    def all_starts(self) -> list[int]:
        """Where planes begin, as they follow one another in the piece."""
        return [start + i * self.plane for start in self.starts for i in range(self.depth)]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a block that is moved in one go.

    `region` is relative to the block's corner; `shape` is the same extents in memory order; `offset`
    is the first element's position in the block where the piece is contiguous there, else None; `rows` says how
    it lies where it is not, if that is simple.
    """

    region: Region
    shape: Shape
    size: int
    offset: int | None
    rows: Rows | None = None

    def lands(self, itemsize: int, *, landing: bool) -> bool:
        """Whether it goes through a landing place on the device: where it is scattered, and its rows not worth a copy.

        Without such a place (`landing`) only what lies in no rows has to.
        """
        rows = self.rows
        if self.offset is not None or rows is None:
            return self.offset is None
        return landing and (rows.width * itemsize < LEAST_ROW or len(rows.all_starts) > MOST_GROUPS)


@lru_cache(maxsize=256)
def pieces(
    shape: Shape, order: Shape, limit: int, units: Shape | None = None, phase: Shape | None = None
) -> tuple[Piece, ...]:
    """Cut a block into pieces of at most `limit` elements.

    Parameters
    ----------
    shape : tuple of int
        Extents of the block.
    order : tuple of int
        Memory order in which the block lies on the device.
    limit : int
        Elements a piece may have. A single unit is never cut, even if it is larger.
    units, phase : tuple of int, optional
        Cut along multiples of `units` only, in an array in which the block starts `phase` elements
        after such a multiple. Without them a piece may start anywhere.

    Examples
    --------
    >>> [p.region[0] for p in pieces((5, 4), (0, 1), 8)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    ndim = len(shape)
    units = units or (1,) * ndim
    phase = phase or (0,) * ndim
    box = piece_box(shape, units, order, limit)
    sides = [_cuts(n, size, p) for n, size, p in zip(shape, box, phase, strict=True)]
    found = []
    for region in itertools.product(*(sides[axis] for axis in order)):
        natural: list[slice] = [slice(0)] * ndim
        for axis, side in zip(order, region, strict=True):
            natural[axis] = side
        extents = tuple(s.stop - s.start for s in region)
        found.append(Piece(tuple(natural), extents, math.prod(extents), *_lies(natural, shape, order)))
    return tuple(found)


@lru_cache(maxsize=256)
def placed(found: tuple[Piece, ...], start: Shape, shape: Shape, order: Shape) -> tuple[Piece, ...]:
    """Pieces of a part that begins at `start` of a block of `shape`, as pieces of the block."""
    moved = []
    for piece in found:
        region = shift(piece.region, start)
        moved.append(Piece(region, piece.shape, piece.size, *_lies(region, shape, order)))
    return tuple(moved)


def _lies(region: Sequence[slice], shape: Shape, order: Shape) -> tuple[int | None, Rows | None]:
    """Where a region's first element lies in a block, if it is one run there; else in what rows it lies.

    >>> _lies((slice(1, 3), slice(0, 4)), (5, 4), (0, 1)), _lies((slice(1, 3), slice(1, 3)), (5, 4), (0, 1))
    ((4, None), (None, Rows(starts=(5,), pitch=4, width=2, height=2, plane=0, depth=1)))
    """
    start, step = 0, 1
    dims = []  # lengths and distances, fastest first
    for axis in reversed(order):
        side = region[axis]
        start += side.start * step
        if side.stop - side.start != 1:
            dims.append((side.stop - side.start, step))
        step *= shape[axis]
    width = 1
    while dims and dims[0][1] == width:
        width *= dims.pop(0)[0]
    if not dims:
        return start, None
    height, pitch = _merged(dims)
    depth, plane = _merged(dims) if dims else (1, 0)
    if math.prod(n for n, _ in dims) > MOST_GROUPS:
        return None, None
    starts = [start]
    for n, distance in dims:
        starts = [i * distance + s for i in range(n) for s in starts]
    return None, Rows(tuple(starts), pitch, width, height, plane, depth)


def _merged(dims: list[tuple[int, int]]) -> tuple[int, int]:
    """Take the fastest dimension, and those that go on at its distance."""
    number, distance = dims.pop(0)
    while dims and dims[0][1] == distance * number:
        number *= dims.pop(0)[0]
    return number, distance


def _cuts(extent: int, size: int, phase: int) -> list[slice]:
    if size >= extent:
        return [slice(0, extent)]
    marks = [0, *range(size - phase % size, extent, size), extent]
    return [slice(a, b) for a, b in itertools.pairwise(marks)]


def contiguous(extents: Shape, shape: Shape, order: Shape) -> bool:
    """Whether a box of these extents is one run of an array of `shape` that lies in memory in `order`.

    >>> contiguous((2, 4), (5, 4), (0, 1)), contiguous((2, 4), (5, 4), (1, 0))
    (True, False)
    """
    partial = False
    for axis in reversed(order):
        if partial and extents[axis] != 1:
            return False
        partial = partial or extents[axis] != shape[axis]
    return True


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
    blocks = count(extent, size)

    def of(block: int) -> int:
        start = block * size
        low = max(start - halo[0], min(start + halo[1], extent) if reused and block else 0)
        stop = min(start + size + halo[1], extent)
        return min(-(-stop // unit) * unit, extent) - low // unit * unit if low < stop else 0

    # Away from the edges a block reads as much as any other that begins as far from a unit's start.
    period = unit // math.gcd(size, unit)
    first = min(count(halo[0], size) + 1, blocks)
    last = max(min((extent - halo[1] - unit) // size - 1, blocks), first)
    rounds, more = divmod(last - first, period)
    total = sum(map(of, range(first))) + sum(map(of, range(last, blocks)))
    if rounds:
        total += rounds * sum(map(of, range(first, first + period)))
    return total + sum(map(of, range(first, first + more)))


class Turns(NamedTuple):
    """How a walk over a product begins: with so many tiles in turn, and with blocks of these sides along each axis."""

    together: int = 1
    heads: tuple[Shape, ...] = ()


ONE_BY_ONE = Turns()


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
