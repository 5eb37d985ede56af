"""Upload of large chunks, which fit no pinned buffer and go through one in parts.

One thread decodes a chunk into memory of its own, while other threads decode others. Pinned buffers for whole chunks
would take as long to pin as they are used, and would not stay in the cache. A compiled loop moves all parts in one
call: with a call for each, a dozen threads waited for Python's lock most of the time.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from chunkflow.core.memory import Ring
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ByteRun
from chunkflow.devices.mover import Mover, PieceShare, Tables, tabled
from chunkflow.devices.protocol import Device, Edge, Lane, Pool, shaped
from chunkflow.engine.staged.workers import PinnedBuffer, UploadWorkers
from chunkflow.engine.trace import Stage, Trace
from chunkflow.engine.transfer import PieceTask, Transfer
from chunkflow.planner.transfer_cut import parts


class SplittingUploadWorkers(UploadWorkers):
    """Upload workers, each with extra memory for pieces that fit no pinned buffer (`Ring.room`)."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace, name: str) -> None:
        super().__init__(device, pool, ring, trace, name)
        self._rooms: list[mmap.mmap | None] = [None] * ring.threads

    def room(self, number: int) -> np.ndarray:
        """The extra memory of a thread. Its pages are made when it first writes to them."""
        room = self._rooms[number]
        if room is None:
            room = self._rooms[number] = mmap.mmap(-1, self.ring.room)
            with suppress(OSError, AttributeError):
                room.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(room, np.uint8)

    def free(self, cycle: Iterator[PinnedBuffer]) -> PinnedBuffer:
        """The next pinned buffer, once its last copy is done."""
        buffer = next(cycle)
        buffer.wait(Edge.REFILL, self.trace)
        self.device.host_writes(buffer.host.owner)
        return buffer

    def close(self) -> None:
        try:
            super().close()
        finally:
            for room in filter(None, self._rooms):  # an error may refer to views of them
                with suppress(OSError, AttributeError):
                    room.madvise(mmap.MADV_DONTNEED)
            self._rooms.clear()

    def _upload(
        self, number: int, lane: Lane, cycle: Iterator[PinnedBuffer], task: PieceTask, mover: Mover | None
    ) -> None:
        transfer, piece = task.transfer, task.transfer.pieces[task.piece]
        block, target = transfer.block, transfer.buffer
        dtype = block.array.dtype
        if piece.size * dtype.itemsize <= self.ring.slot_bytes:
            super()._upload(number, lane, cycle, task, mover)
            return
        assert target is not None
        room = self.room(number)
        whole = shaped(room, dtype, piece.shape, block.inverse)
        transfer.read(piece, whole, self.trace)
        found = parts(piece, block.array.shape, block.order, self.ring.slot_bytes // dtype.itemsize)
        if mover is not None and (tables := self._tables(found, dtype.itemsize)) is not None:
            self._move(number, cycle, transfer, mover, tables, room)
        else:
            for part, place in found:
                buffer = self.free(cycle)
                buffer.host.view(dtype, part, block.inverse)[...] = whole[part.region]
                buffer.host.pin()
                buffer.upload(lane, transfer, place, self.scratch[number])
            lane.record(target.uploaded[number])
        target.fillers.add(number)

    def _tables(self, found: Sequence[tuple[Piece, Piece]], item: int) -> Tables | None:
        """Tables of parts, with their places in a block; None if the compiled loops cannot move them."""
        scratch = self.ring.scratch
        tables = tabled(*map(tuple, zip(*found, strict=True)), item, landing=scratch > 0)
        return tables if tables is not None and tables.runs and tables.landing <= scratch else None

    def _move(
        self,
        number: int,
        cycle: Iterator[PinnedBuffer],
        transfer: Transfer,
        mover: Mover,
        tables: Tables,
        room: np.ndarray,
    ) -> None:
        """Upload the contents of a thread's extra memory."""
        assert transfer.buffer is not None
        for _ in range(self.ring.slots):
            self.free(cycle).host.pin()
        share = PieceShare(tables, ByteRun(room.ctypes.data), self.device.address(transfer.block.array))
        try:
            mover.feed(share, self._copied, (), transfer.buffer.uploaded[number])
        finally:
            mover.finish(self._copied)

    def _copied(self, stage: Stage, begin: float, end: float, nbytes: int) -> None:
        """Report a copy. Copies to pinned buffers are part of reading, whose bytes are counted already."""
        self.trace.span(stage, begin, end, 0 if stage == "read" else nbytes)
