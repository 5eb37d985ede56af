"""Pieces: the parts of a block that are moved one by one, and where each lies in a store and in the block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chunkflow.core.grid import Region, Shape, fit, shift


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
