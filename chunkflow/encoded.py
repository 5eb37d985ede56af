"""Chunks of a block that travel as they are stored, to be decoded on the device: which they are, and their feeders.

A chunk that the source does not hand out encoded is decoded by its feeder, and travels decoded beside the others.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from chunkflow.devices.base import Block, Event, Lane, shaped
from chunkflow.devices.moving import Mover, one_run
from chunkflow.grid import Piece, Region, Shape, permuted, shape_of, shift
from chunkflow.packed import ALIGNMENT, Packed
from chunkflow.splitting import SplittingFeeders
from chunkflow.staging import Transfer
from chunkflow.stations import Station
from chunkflow.trace import Trace


class Chunk:
    """A chunk of a part of a block, by its index in the array.

    Its feeder notes where it lies in the buffer, and what is there: None if it is decoded.
    """

    __slots__ = ("index", "packed", "part", "start")

    packed: Packed | None

    def __init__(self, part: Part, index: Shape) -> None:
        self.part, self.index = part, index
        self.start, self.packed = 0, None

    @property
    def region(self) -> Region:
        """What of the array is wanted of it. Made when it is asked for: few chunks are read one by one."""
        return tuple(
            [
                slice(max(s.start, i * c), min(s.stop, (i + 1) * c))
                for s, i, c in zip(self.part.region, self.index, self.part.sides, strict=True)
            ]
        )

    @property
    def place(self) -> Region:
        """Where in the block that goes."""
        offset = [p - s.start for p, s in zip(self.part.place, self.part.region, strict=True)]
        return shift(self.region, offset)


class Part:
    """Chunks of a part of a block, which begins at `place`: a box of them, from the one numbered `first` on."""

    __slots__ = ("box", "first", "place", "region", "sides")

    def __init__(self, region: Region, place: Shape, sides: Shape, first: int) -> None:
        self.region, self.place, self.sides, self.first = region, place, sides, first
        self.box = [range(s.start // c, -(-s.stop // c)) for s, c in zip(region, sides, strict=True)]

    def chunks(self) -> list[Chunk]:
        """Each of them."""
        return [Chunk(self, index) for index in itertools.product(*self.box)]

    def spread(self, decoded: Any, block: Any, order: Shape) -> None:
        """Put decoded chunks, which lie one after the other in memory order `order`, in their places in the block.

        Whole chunks that are neighbours along every axis go in one copy.
        """
        counts, ndim = tuple(map(len, self.box)), len(order)
        back = sorted(range(ndim), key=order.__getitem__)
        number = int(np.prod(counts, dtype=np.int64))
        boxes = decoded[self.first : self.first + number].reshape((*counts, *permuted(self.sides, order)))
        boxes = boxes.transpose((*range(ndim), *[ndim + axis for axis in back]))
        for runs in itertools.product(*map(_runs, self.region, self.sides)):
            which, inner, place = (tuple(one) for one in zip(*runs, strict=True)) if runs else ((), (), ())
            target = block[(*shift(place, self.place), ...)]
            sides = [(w.stop - w.start, i.stop - i.start) for w, i in zip(which, inner, strict=True)]
            target = target.reshape([n for pair in sides for n in pair])  # a view: axes are only cut
            target = target.transpose((*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2)))
            target[...] = boxes[(*which, *inner, ...)]


def _runs(side: slice, chunk: int) -> list[tuple[slice, slice, slice]]:
    """Chunks along one axis of a region, whole ones together: which, what is wanted of each, and where that goes.

    >>> for run in _runs(slice(3, 13), 4):
    ...     print(*((s.start, s.stop) for s in run))
    (0, 1) (3, 4) (0, 1)
    (1, 3) (0, 4) (1, 9)
    (3, 4) (0, 1) (9, 10)
    """
    start, stop = side.start, side.stop
    marks = {start, -(-start // chunk) * chunk, stop // chunk * chunk, stop}
    found = []
    for a, b in itertools.pairwise(sorted(m for m in marks if start <= m <= stop)):
        first, last = a // chunk, -(-b // chunk)
        inner = slice(a % chunk, a % chunk + b - a) if last - first == 1 else slice(0, chunk)
        found.append((slice(first - start // chunk, last - start // chunk), inner, slice(a - start, b - start)))
    return found


class EncodedTransfer(Transfer):
    """The chunks of a block on their way to a buffer; pieces of it are runs of chunks, by their numbers."""

    __slots__ = ("chunks", "items", "operand", "order", "parts", "readers", "room", "target")

    chunks: list[Chunk]
    parts: list[Part]
    operand: int
    order: Shape
    """Memory order of the chunks and of the block."""
    target: Block
    readers: list[Event]
    """Those of the block that was in the target's memory before."""
    room: int
    items: int

    def fill(self, piece: Piece, out: np.ndarray, trace: Trace) -> tuple[int, int]:
        """Read a piece's chunks into `out`, one behind the other; where in the buffer they go, and their bytes."""
        since = time.perf_counter() if trace.timed else 0.0
        (numbers,) = piece.region
        dtype, at = self.target.array.dtype, 0
        begin = numbers.start * self.room
        chunks = self.chunks[numbers]
        found = self.store.encoded([chunk.index for chunk in chunks], out, self.room, self.items)
        for chunk, packed in zip(chunks, found, strict=True):
            chunk.packed = packed
            if packed is not None:
                chunk.start = begin + packed.start
                at = packed.start + packed.nbytes
        for chunk in chunks:  # behind those that are there
            if chunk.packed is None:
                at = -(-at // ALIGNMENT) * ALIGNMENT
                region = chunk.region
                view = shaped(out[at:], dtype, permuted(shape_of(region), self.order), self.target.inverse)
                self.store.read(region, view)
                chunk.start = begin + at
                at += view.nbytes
        if trace.timed:
            trace.span("read", since, time.perf_counter(), at)
        return begin, at


class EncodedFeeders(SplittingFeeders):
    """Feeders that also upload chunks as they are stored."""

    def _feed(
        self, number: int, lane: Lane, turns: Iterator[Station], transfer: Transfer, index: int, mover: Mover | None
    ) -> None:
        if not isinstance(transfer, EncodedTransfer):
            super()._feed(number, lane, turns, transfer, index, mover)
            return
        slot, piece, most = transfer.slot, transfer.pieces[index], self.ring.slot_bytes
        assert slot is not None
        if piece.size * transfer.room <= most:
            station = self.free(turns)
            start, nbytes = transfer.fill(piece, station.slot.array, self.trace)
            self._send(number, lane, station, transfer, run(start, nbytes), mover)
        else:
            room = self.room(number)
            start, nbytes = transfer.fill(piece, room, self.trace)
            for at in range(0, nbytes, most):
                station, sent = self.free(turns), run(start + at, min(nbytes - at, most))
                station.slot.array[: sent.size] = room[at : at + sent.size]
                self._send(number, lane, station, transfer, sent, mover)
        slot.fillers.add(number)

    def _send(
        self, number: int, lane: Lane, station: Station, transfer: Transfer, sent: Piece, mover: Mover | None
    ) -> None:
        """Upload what is in a slot."""
        assert transfer.slot is not None
        station.slot.pin()
        if mover is not None:
            share = one_run(sent.offset or 0, sent.size, self.device.address(transfer.block.array))
            mover.send(share, station.number, 0, transfer.slot.uploaded[number])
            station.busy = transfer, sent
        else:
            station.upload(lane, transfer, sent, None)
            lane.record(transfer.slot.uploaded[number])


def run(start: int, size: int) -> Piece:
    """A run of something flat: of a buffer's bytes, or of a block's chunks by their numbers."""
    return Piece((slice(start, start + size),), (size,), size, start)
