"""Batches: the chunks of a block that the device decodes all at once, and what memory that takes. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

from chunkflow.core import grid as _grid
from chunkflow.core.encoded_chunks import ALIGNMENT, FACTS, KEPT, ROWS
from chunkflow.core.grid import Grid, Shape
from chunkflow.core.machine import Decoding, Machine
from chunkflow.core.memory import rounded
from chunkflow.core.nest import Operand
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.loop_order import walked_last

TURNS = 2
"""Buffers for a block's encoded chunks: one is filled while the other is decoded, even where blocks have one slot."""


PIECES = 2
"""Usual pieces in one that has several chunks, which are read by a single call."""

FEW = 32
"""Items that a chunk may have, however short."""


@dataclass(frozen=True)
class Batch:
    """How an operand's blocks are decoded on the device.

    Attributes
    ----------
    codec : str
    number : int
        Chunks of a block, at most.
    nbytes : int
        Bytes of a decoded chunk.
    items : int
        Parts that a chunk may be cut into; the host decodes those that are cut into more.
    shuffled : bool
        Whether chunks are put together of these parts, once they are decoded.
    group : int
        Chunks that one thread reads and uploads in one go.
    temporary : int
        Bytes that the decoder takes besides.
    seconds : float
        Time that it takes, by the model.
    """

    codec: str
    number: int
    nbytes: int
    items: int
    shuffled: bool
    group: int
    temporary: int
    seconds: float

    @property
    def room(self) -> int:
        """Bytes that an encoded chunk may have; the host decodes those that have more."""
        return room(self.nbytes)

    @property
    def piece(self) -> int:
        """Bytes that one thread uploads in one go, at most."""
        return self.group * self.room

    @property
    def encoded(self) -> int:
        """Bytes of a buffer for a block's encoded chunks."""
        return self.number * self.room

    @property
    def decoded(self) -> int:
        """Bytes of a block's decoded chunks, one after the other."""
        return self.number * self.nbytes

    @property
    def plain(self) -> int:
        """Bytes for the same, put together."""
        return self.decoded if self.shuffled else 0

    @property
    def table(self) -> int:
        """Bytes of the table that tells the decoder where each item lies, and us what came of it.

        Behind that it has the place of each item once it is decoded, and each chunk's layout, where these are needed.
        """
        rows = self.number * self.items * ROWS * 8
        return rows + self.shuffled * self.number * (self.items + FACTS) * 8


def device_bytes(batches: Collection[Batch], page: int) -> int:
    """Device memory of a plan's batches. Operands share what is decoded, for one is decoded after the other."""
    if not batches:
        return 0
    own = TURNS * sum(rounded(b.encoded, page) + rounded(b.table, page) for b in batches)
    return own + sum(rounded(nbytes, page) for nbytes in shared(batches))


class SharedBytes(NamedTuple):
    """Bytes of what operands share: decoded chunks, these put together, and the decoder's own."""

    decoded: int
    plain: int
    temporary: int


def shared(batches: Collection[Batch]) -> SharedBytes:
    """What these operands share: the most that one of them needs."""
    most = (max(getattr(batch, what) for batch in batches) for what in SharedBytes._fields)
    decoded, plain, temporary = most
    return SharedBytes(decoded, plain, max(temporary, 1))


def room(nbytes: int) -> int:
    """Bytes that a chunk of so many may take encoded: no less than the codecs' own bounds for what can't be compressed.

    >>> room(8 << 20) - (8 << 20)
    66048
    """
    return -(-(nbytes + nbytes // 128 + 512) // ALIGNMENT) * ALIGNMENT


def decoding(spec: ArraySpec, machine: Machine) -> Decoding | None:
    """How the device decodes an array's chunks; None where the host must, as half a GiB and more of one: few fit."""
    found = machine.decoding(spec.storage.codec) if machine.staged and spec.chunks is not None else None
    if found is None or room(_chunk(spec)) * machine.slots > machine.host_limit:
        return None
    return found


def batch_of(spec: ArraySpec, operand: Operand, block: Shape, extents: Shape, machine: Machine) -> Batch:
    """The batches of an operand of which the device decodes the chunks, in a plan with such blocks."""
    found = decoding(spec, machine)
    assert found is not None
    nbytes = _chunk(spec)
    number = touched(spec, operand, block, extents)
    group = max(1, min(PIECES * machine.piece // room(nbytes), number))
    items = nbytes // found.item + FEW if found.item else 1
    temporary = found.temporary(number * items, nbytes, number * nbytes)
    seconds = found.seconds(number, nbytes, spec.storage.matches)
    return Batch(spec.storage.codec, number, nbytes, items, bool(found.item), group, temporary, seconds)


def _chunk(spec: ArraySpec) -> int:
    """Bytes of a decoded chunk, which reaches beyond the array's edge if need be."""
    return math.prod(spec.chunks or ()) * spec.dtype.itemsize


def keeps_chunks(spec: ArraySpec, operand: Operand, grid: Grid, walk: Shape, depth: int) -> bool:
    """Whether it is worth keeping decoded chunks for the next blocks, which have the same ones if blocks cut chunks.

    Blocks find their halos in the ones before, if there are slots for these.
    """
    if spec.chunks is None:
        return False
    if operand.halo and depth > 1:
        inner = walked_last(operand, grid, walk)
        halo = [(0, 0) if axis == inner else sides for axis, sides in zip(operand.axes, operand.halo, strict=True)]
        operand = replace(operand, halo=tuple(halo))
    return touched(spec, operand, grid.block, grid.extents) <= KEPT


def finds_last(spec: ArraySpec, operand: Operand, grid: Grid, walk: Shape) -> bool:
    """Whether each block begins in the chunk that the block before has read last: across their order they lie in one.

    >>> import numpy as np
    >>> from chunkflow.core.nest import nest
    >>> x = ArraySpec("x", (8, 8), np.dtype("f4"), chunks=(4, 4))
    >>> operand = nest([x.shape]).operands[0]
    >>> [finds_last(x, operand, Grid(x.shape, block), (0, 1)) for block in ((2, 1), (4, 6), (8, 1))]
    [True, True, False]
    """
    if spec.chunks is None or operand.halo:
        return False
    inner = walked_last(operand, grid, walk)
    sides = zip(operand.axes, operand.shape(grid.block), spec.chunks, spec.shape, strict=True)
    return all(axis == inner or chunk >= n or chunk % side == 0 for axis, side, chunk, n in sides)


def touched(spec: ArraySpec, operand: Operand, block: Shape, extents: Shape) -> int:
    """Chunks that a block touches, at most."""
    number = 1
    for dim, (side, chunk) in enumerate(zip(operand.shape(block), spec.chunks or (), strict=True)):
        axis, start = operand.axes[dim], operand.start[dim] if operand.start else 0
        if not operand.halo and start % chunk == 0 and (axis is None or block[axis] % chunk == 0):
            number *= _grid.count(side, chunk)
            continue
        if not operand.halo and axis is not None and block[axis] == extents[axis]:
            number *= _grid.count(start % chunk + side, chunk)
            continue
        here = _wherever(side, chunk)
        if not operand.start:
            here = min(here, _grid.count(spec.shape[dim], chunk))
        if operand.halo and operand.boundary[dim] == "periodic":  # what wraps around is read apart
            here += sum(_wherever(n, chunk) for n in operand.halo[dim])
        number *= here
    return number


def _wherever(side: int, chunk: int) -> int:
    """Chunks that a side touches at most, wherever it begins."""
    return (side + chunk - 2) // chunk + 1 if side else 0
