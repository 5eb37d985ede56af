"""Upload of chunks as they are stored, to be decoded on the device.

A chunk that the source does not give encoded is decoded by its upload worker. It travels decoded beside the others.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import numpy as np

from chunkflow.core.encoded_chunks import ALIGNMENT, Packed
from chunkflow.core.grid import Region, Shape, permuted, shape_of, shift
from chunkflow.core.pieces import Piece
from chunkflow.devices.mover import Mover, PieceShare, in_parts, one_run
from chunkflow.devices.protocol import Block, Event, shaped
from chunkflow.engine.staged.workers import PinnedBuffer, UploadWorkers, Worker
from chunkflow.engine.transfer import PieceTask, Transfer


class ChunkBox:
    """The box of chunks of a part of a block, numbered from `first`. The part begins at `place` in the block."""

    __slots__ = ("box", "first", "place", "region", "sides")

    def __init__(self, region: Region, place: Shape, sides: Shape, first: int) -> None:
        self.region, self.place, self.sides, self.first = region, place, sides, first
        self.box = [range(s.start // c, -(-s.stop // c)) for s, c in zip(region, sides, strict=True)]

    @property
    def indices(self) -> Iterator[Shape]:
        """The chunks, by their indices in the array."""
        return itertools.product(*self.box)

    def chunk(self, index: Shape) -> tuple[Region, Region]:
        """The region of the array that is wanted of a chunk, and its region in the block."""
        region = tuple(
            [
                slice(max(s.start, i * c), min(s.stop, (i + 1) * c))
                for s, i, c in zip(self.region, index, self.sides, strict=True)
            ]
        )
        return region, shift(region, [p - s.start for p, s in zip(self.place, self.region, strict=True)])

    def spread(self, decoded: Any, block: Any, order: Shape) -> None:
        """Copy decoded chunks to their places in the block. They lie one after the other, in memory order `order`.

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
    """Chunks along one axis of a region, whole ones together: their range, what is wanted of each, and its place.

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
    """The upload of a block's chunks to a buffer. Its pieces are runs of chunks, by their numbers.

    `plain` has the chunks that the source does not give encoded: the number of each, and its offset in the buffer.
    """

    __slots__ = ("indices", "operand", "order", "packed", "parts", "plain", "readers", "target")

    indices: list[Shape]
    parts: list[ChunkBox]
    packed: Packed
    plain: list[tuple[int, int]]
    operand: int
    order: Shape
    """Memory order of the chunks and of the block."""
    target: Block
    readers: list[Event]
    """Events of the readers of the block that was in the target's memory before."""

    def chunk(self, number: int) -> tuple[Region, Region]:
        """See `ChunkBox.chunk`; `number` counts the chunks of all boxes."""
        which = bisect_right(self.parts, number, key=attrgetter("first")) - 1
        return self.parts[which].chunk(self.indices[number])

    def read_missed(self, piece: Piece, out: np.ndarray) -> tuple[int, int]:
        """Read the chunks of a piece that the source does not give encoded, into `out` behind the others.

        Returns the offset of the piece in the buffer, and its bytes.
        """
        (numbers,) = piece.region
        dtype, begin = self.target.array.dtype, numbers.start * self.packed.room
        at, missed = self.packed.missed(numbers.start, piece.size)
        for number in missed:
            at = -(-at // ALIGNMENT) * ALIGNMENT
            region, _ = self.chunk(number)
            view = shaped(out[at:], dtype, permuted(shape_of(region), self.order), self.target.inverse)
            self.store.read(region, view)
            self.plain.append((number, begin + at))
            at += view.nbytes
        return begin, at


class EncodedUploadWorkers(UploadWorkers):
    """Upload workers that also upload chunks as they are stored."""

    def share_packed(self, transfer: EncodedTransfer, group: int) -> PieceShare | None:
        """Describe chunks to the compiled loops, which move `group` of them at a time.

        None where there are no compiled loops, or so many chunks fit no pinned buffer.
        """
        packed, most = transfer.packed, group * transfer.packed.room
        if self.jobs is None or not packed.number or most > self.ring.slot_bytes:
            return None
        tables = in_parts(
            0, packed.number * packed.room, most
        )  # each as long as there is room: who knows how long it is
        return PieceShare(tables, packed, self.device.address(transfer.block.array))

    def _upload(self, worker: Worker, task: PieceTask) -> None:
        transfer = task.transfer
        if not isinstance(transfer, EncodedTransfer):
            super()._upload(worker, task)
            return
        target, piece, most = transfer.buffer, transfer.pieces[task.piece], self.ring.slot_bytes
        assert target is not None
        if piece.size * transfer.packed.room <= most:
            buffer = self.free(worker)
            self._send(worker, buffer, transfer, self._read(transfer, piece, buffer.host.array))
        else:
            room = worker.room
            whole = self._read(transfer, piece, room)
            start, nbytes = whole.offset or 0, whole.size
            if worker.mover is not None:
                self.move(worker, transfer, in_parts(start, nbytes, most))
            else:
                for at in range(0, nbytes, most):
                    buffer, sent = self.free(worker), run(start + at, min(nbytes - at, most))
                    buffer.host.array[: sent.size] = room[at : at + sent.size]
                    self._send(worker, buffer, transfer, sent)
        target.fillers.add(worker.number)

    def _read(self, transfer: EncodedTransfer, piece: Piece, out: np.ndarray, *, fetched: bool = False) -> Piece:
        """Read a piece's chunks, or what the compiled loop missed if it `fetched` them; return what to upload."""
        since = time.perf_counter() if self.trace.timed else 0.0
        if not fetched:
            (numbers,) = piece.region
            transfer.packed.fetch(numbers.start, piece.size, out)
        start, nbytes = transfer.read_missed(piece, out)
        if self.trace.timed:
            self.trace.span("read", since, time.perf_counter(), nbytes)
        return run(start, nbytes)

    def _resend(self, buffer: PinnedBuffer, transfer: Transfer, piece: int, mover: Mover, mark: Event) -> None:
        if not isinstance(transfer, EncodedTransfer):
            super()._resend(buffer, transfer, piece, mover, mark)
            return
        self.device.host_writes(buffer.host.owner)
        sent = self._read(transfer, transfer.pieces[piece], buffer.host.array, fetched=True)
        buffer.host.pin()
        share = one_run(sent.offset or 0, sent.size, self.device.address(transfer.block.array))
        mover.send(share, buffer.number, 0, mark, keep=True)

    def _send(self, worker: Worker, buffer: PinnedBuffer, transfer: Transfer, sent: Piece) -> None:
        assert transfer.buffer is not None
        mark = transfer.buffer.uploaded[worker.number]
        buffer.host.pin()
        if worker.mover is not None:
            share = one_run(sent.offset or 0, sent.size, self.device.address(transfer.block.array))
            worker.mover.send(share, buffer.number, 0, mark)
            buffer.busy = transfer, sent
        else:
            buffer.upload(worker.lane, transfer, sent, None)
            worker.lane.record(mark)


def run(start: int, size: int) -> Piece:
    """A run of bytes of a buffer, or of chunks of a block by their numbers."""
    return Piece((slice(start, start + size),), (size,), size, start)
