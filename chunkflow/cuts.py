"""How blocks are cut into the pieces in which they are moved. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chunkflow import grid as _grid
from chunkflow.batches import Batch
from chunkflow.grid import Piece, Region, Shape


@dataclass(frozen=True)
class Cut:
    """How a block of one array is cut into pieces: memory order, elements per piece, units kept whole.

    Where there is a `batch`, pieces are chunks as they are stored, and the device decodes them. Where there are
    `chunks`, pieces are parts of these, and come chunk after chunk.
    """

    order: Shape
    limit: int
    units: Shape | None
    batch: Batch | None = None
    chunks: Shape | None = None

    def pieces(self, region: Region) -> tuple[Piece, ...]:
        """Pieces of the block at `region`."""
        shape = _grid.shape_of(region)
        if self.units is None:
            return _grid.pieces(shape, self.order, self.limit)
        phase = tuple(s.start % u for s, u in zip(region, self.units, strict=True))
        found = _grid.pieces(shape, self.order, self.limit, self.units, phase)
        if self.chunks is None:
            return found
        corner = tuple(s.start % c for s, c in zip(region, self.chunks, strict=True))
        return _by_chunk(found, self.order, self.chunks, corner)

    def in_units(self, region: Region) -> tuple[Piece, ...]:
        """The block in one piece if any region will do, else in pieces: a store holds a chunk twice to code it."""
        if self.units is not None:
            return self.pieces(region)
        shape = _grid.shape_of(region)
        return _grid.pieces(shape, self.order, max(math.prod(shape), 1))

    def box(self, shape: Shape) -> Shape:
        """Extents of a full piece of a block of `shape`."""
        return _grid.piece_box(shape, self.units or (1,) * len(shape), self.order, self.limit)

    def scatters(self, shape: Shape) -> bool:
        """Whether a piece of a block of `shape` is not contiguous in it."""
        return not _grid.contiguous(self.box(shape), shape, self.order)

    def lands(self, shape: Shape, itemsize: int) -> bool:
        """Whether such a piece is worth a landing place: it is many rows, or short ones, or no planes of rows."""
        sides = [self.box(shape)[axis] for axis in self.order]
        many = math.prod(sides[:-2]) > _grid.MOST_GROUPS
        return len(shape) > 3 or many or sides[-1] * itemsize < _grid.LEAST_ROW


def parts_of(chunks: Shape, order: Shape, limit: int) -> Cut:
    """Parts of chunks, of at most so many elements, whose sides divide the chunks'.

    >>> parts_of((6, 4, 4), (0, 1, 2), 40).units, parts_of((6, 9, 4), (0, 1, 2), 20).units
    ((2, 4, 4), (1, 3, 4))
    """
    fits = _grid.fit(chunks, (1,) * len(chunks), order, limit)
    units = tuple([next(n for n in range(side, 0, -1) if c % n == 0) for c, side in zip(chunks, fits, strict=True)])
    return Cut(order, math.prod(units), units, chunks=chunks)


@lru_cache(maxsize=256)
def _by_chunk(found: tuple[Piece, ...], order: Shape, chunks: Shape, phase: Shape) -> tuple[Piece, ...]:
    """Pieces in the order of their chunks, in a block that begins `phase` elements after the corner of one."""
    return tuple(sorted(found, key=lambda p: [(p.region[a].start + phase[a]) // chunks[a] for a in order]))


def keeps_whole(chunks: Shape | None, axes: Sequence[int | None], block: Shape, extents: Shape) -> bool:
    """Whether blocks of a nest cut none of an array's chunks, but where they have a halo, or the array begins later.

    >>> keeps_whole((4, 8), (0, 1), (8, 20), (16, 20)), keeps_whole((4, 8), (1, None), (1, 6), (8, 12))
    (True, False)
    """
    sides = zip(chunks or (), axes, strict=False)
    return all(a is None or block[a] % chunk == 0 or block[a] == extents[a] for chunk, a in sides)
