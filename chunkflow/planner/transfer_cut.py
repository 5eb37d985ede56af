"""How blocks are cut into the pieces in which they are moved. Pure arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from chunkflow.core import grid as _grid
from chunkflow.core import pieces
from chunkflow.core.grid import Region, Shape
from chunkflow.core.machine import Machine
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.cost import FETCHERS
from chunkflow.planner.decode_batch import Batch


@dataclass(frozen=True)
class Cut:
    """How a block of one array is cut into pieces: memory order, elements per piece, units kept whole.

    Where there is a `batch`, pieces are chunks as they are stored, and the device decodes them. Where there are
    `chunks`, pieces are parts of these. Where `through` is given, pieces may be too large for a slot of pinned memory,
    through which so many elements go at once.
    """

    order: Shape
    limit: int
    units: Shape | None
    batch: Batch | None = None
    chunks: Shape | None = None
    through: int = 0

    def pieces(self, region: Region) -> tuple[Piece, ...]:
        """Pieces of the block at `region`."""
        shape, units = _grid.shape_of(region), self.chunks or self.units
        if units is None:
            return pieces.pieces(shape, self.order, self.limit)
        phase = tuple(s.start % u for s, u in zip(region, units, strict=True))
        if self.chunks is not None:
            return _in_chunks(shape, self.order, self.limit, units, phase)
        return pieces.pieces(shape, self.order, self.limit, units, phase)

    def in_units(self, region: Region) -> tuple[Piece, ...]:
        """The block in one piece if any region will do, else in pieces: a store holds a chunk twice to code it."""
        shape = _grid.shape_of(region)
        if self.units is None:
            return pieces.pieces(shape, self.order, max(math.prod(shape), 1))
        phase = tuple(s.start % u for s, u in zip(region, self.units, strict=True))
        return _in_units(shape, self.order, self.limit, self.units, phase)

    def decoded(self, spec: ArraySpec, shape: Shape) -> int:
        """Bytes of memory that the store takes to read a piece of a block of `shape` that cuts chunks: for one of them.

        Where blocks have whole chunks, these are decoded in their places.
        """
        chunks = self.units or ()
        whole = all(n % c == 0 or n == extent for n, c, extent in zip(shape, chunks, spec.shape, strict=True))
        return 0 if whole else math.prod(chunks) * spec.dtype.itemsize

    def box(self, shape: Shape) -> Shape:
        """Extents of a full piece of a block of `shape`."""
        if self.chunks is not None:
            shape = tuple(map(min, shape, self.chunks))
        return pieces.piece_box(shape, self.units or (1,) * len(shape), self.order, self.limit)

    def lands(self, box: Shape, shape: Shape, itemsize: int) -> bool:
        """Whether a piece of the extents `box` is worth a landing place where a block of `shape` has it in rows.

        It is many rows, or short ones, or no planes of rows.
        """
        sides = [box[axis] for axis in self.order]
        many = math.prod(sides[:-2]) > pieces.MOST_GROUPS
        return len(shape) > 3 or many or sides[-1] * itemsize < pieces.LEAST_ROW


SMALL = 256 << 10
"""Bytes of a piece, below which more threads bring no more: Python takes as long for one as its decoder."""


def cut_of(
    spec: ArraySpec, machine: Machine, shape: Shape, *, strict: bool, batch: Batch | None = None, whole: bool
) -> Cut:
    """Pieces of blocks of `shape`: of about the machine's size, or of a thread's share of a block that is decoded.

    They keep the array's chunks whole.

    A sink's chunks must stay whole, and so must a source's that are to be decoded: large ones go through the ring in
    parts. Of those that are files as they are parts are read. `whole` says whether blocks have whole chunks.
    """
    itemsize = spec.dtype.itemsize
    piece = max(1, machine.piece // itemsize)
    if spec.chunks is None:
        return Cut(spec.order, piece, None, batch)
    size = math.prod(min(u, n) for u, n in zip(spec.chunks, spec.shape, strict=True))
    large = machine.staged and not strict and size * itemsize > machine.most
    if large and spec.storage.separate:
        return Cut(spec.order, piece, None, chunks=spec.chunks)
    limit = piece
    if spec.storage.remote:  # chunk by chunk, or by as many parts of shards as are fetched at once
        limit = min(piece, spec.size // FETCHERS) if spec.storage.sharded else 1
    elif spec.storage.separate and whole and 0 < machine.apart <= size * itemsize:
        limit = 1
    elif machine.staged and not strict and batch is None and not spec.storage.raw:
        limit = min(piece, max(math.prod(shape) // machine.threads, SMALL // itemsize))
    return Cut(spec.order, max(limit, size), spec.chunks, batch, through=piece if large else 0)


_in_units = lru_cache(maxsize=32)(pieces.pieces.__wrapped__)
"""`pieces.pieces`, of which fewer are kept: they lie in the memory that a budget of the host's bounds."""


@lru_cache(maxsize=256)
def parts(piece: Piece, shape: Shape, order: Shape, limit: int) -> tuple[tuple[Piece, Piece], ...]:
    """A piece of a block of `shape` in parts of at most so many elements: as they lie in the piece, and in the block.

    >>> whole = pieces.pieces((6, 4), (0, 1), 12)[1]
    >>> [(inner.region[0].start, place.region[0].start) for inner, place in parts(whole, (6, 4), (0, 1), 8)]
    [(0, 3), (2, 5)]
    """
    return _parts(piece.region, shape, order, limit)


def _parts(region: Region, shape: Shape, order: Shape, limit: int) -> tuple[tuple[Piece, Piece], ...]:
    found = pieces.pieces(_grid.shape_of(region), order, limit)
    corner = tuple([side.start for side in region])
    return tuple(zip(found, pieces.placed(found, corner, shape, order), strict=True))


@lru_cache(maxsize=256)
def _in_chunks(shape: Shape, order: Shape, limit: int, chunks: Shape, phase: Shape) -> tuple[Piece, ...]:
    """Parts of the chunks of a block that begins `phase` elements after the corner of one, chunk after chunk."""
    sides = [
        [slice(max(i * chunk - p, 0), min((i + 1) * chunk - p, n)) for i in range(-(-(p + n) // chunk))]
        for n, chunk, p in zip(shape, chunks, phase, strict=True)
    ]
    found = list[Piece]()
    for region in itertools.product(*(sides[axis] for axis in order)):
        natural = tuple([region[order.index(axis)] for axis in range(len(shape))])
        found += [place for _, place in _parts(natural, shape, order, limit)]
    return tuple(found)


def keeps_whole(chunks: Shape | None, axes: Sequence[int | None], block: Shape, extents: Shape) -> bool:
    """Whether blocks of a nest cut none of an array's chunks, but where they have a halo, or the array begins later.

    >>> keeps_whole((4, 8), (0, 1), (8, 20), (16, 20)), keeps_whole((4, 8), (1, None), (1, 6), (8, 12))
    (True, False)
    """
    sides = zip(chunks or (), axes, strict=False)
    return all(a is None or block[a] % chunk == 0 or block[a] == extents[a] for chunk, a in sides)
