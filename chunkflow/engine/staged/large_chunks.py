"""Feeders of pieces that fit no slot of pinned memory: large chunks, which go through it in parts.

A chunk is decoded by one thread, into memory of its own, while other threads decode others. Slots for whole ones
would take as long to pin as they are used, and lie in no cache. A compiled loop moves all its parts in one call: with
one for each a dozen threads had waited for Python's lock most of the time.
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
from chunkflow.engine.staged.stations import PinnedBuffer
from chunkflow.engine.staged.workers import UploadWorkers
from chunkflow.engine.trace import Stage, Trace
from chunkflow.engine.transfer import Transfer
from chunkflow.planner.transfer_cut import parts


class SplittingFeeders(UploadWorkers):
    """Feeders with a room each for what fits none of their slots (`Ring.room`)."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace, name: str) -> None:
        super().__init__(device, pool, ring, trace, name)
        self._rooms: list[mmap.mmap | None] = [None] * ring.threads

    def room(self, number: int) -> np.ndarray:
        """A thread's room; its pages are made where it first writes to them."""
        room = self._rooms[number]
        if room is None:
            room = self._rooms[number] = mmap.mmap(-1, self.ring.room)
            with suppress(OSError, AttributeError):
                room.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(room, np.uint8)

    def free(self, turns: Iterator[PinnedBuffer]) -> PinnedBuffer:
        """The next slot, once its last copy is done."""
        station = next(turns)
        station.wait(Edge.REFILL, self.trace)
        self.device.host_writes(station.slot.owner)
        return station

    def close(self) -> None:
        """See `Crew.close`."""
        try:
            super().close()
        finally:
            for room in filter(None, self._rooms):  # an error may know views of them
                with suppress(OSError, AttributeError):
                    room.madvise(mmap.MADV_DONTNEED)
            self._rooms.clear()

    def _feed(
        self,
        number: int,
        lane: Lane,
        turns: Iterator[PinnedBuffer],
        transfer: Transfer,
        index: int,
        mover: Mover | None,
    ) -> None:
        block, slot, piece = transfer.block, transfer.slot, transfer.pieces[index]
        dtype = block.array.dtype
        if piece.size * dtype.itemsize <= self.ring.slot_bytes:
            super()._feed(number, lane, turns, transfer, index, mover)
            return
        assert slot is not None
        room = self.room(number)
        whole = shaped(room, dtype, piece.shape, block.inverse)
        transfer.read(piece, whole, self.trace)
        found = parts(piece, block.array.shape, block.order, self.ring.slot_bytes // dtype.itemsize)
        if mover is not None and (tables := self._tables(found, dtype.itemsize)) is not None:
            self._move(number, turns, transfer, mover, tables, room)
        else:
            for part, place in found:
                station = self.free(turns)
                station.slot.view(dtype, part, block.inverse)[...] = whole[part.region]
                station.slot.pin()
                station.upload(lane, transfer, place, self.scratch[number])
            lane.record(slot.uploaded[number])
        slot.fillers.add(number)

    def _tables(self, found: Sequence[tuple[Piece, Piece]], item: int) -> Tables | None:
        """Of parts, as they lie in a room and in a block; None where that is not as simple as the loops need it."""
        scratch = self.ring.scratch
        tables = tabled(*map(tuple, zip(*found, strict=True)), item, landing=scratch > 0)
        return tables if tables is not None and tables.runs and tables.landing <= scratch else None

    def _move(
        self,
        number: int,
        turns: Iterator[PinnedBuffer],
        transfer: Transfer,
        mover: Mover,
        tables: Tables,
        room: np.ndarray,
    ) -> None:
        """Upload what is in a room."""
        assert transfer.slot is not None
        for _ in range(self.ring.slots):
            self.free(turns).slot.pin()
        share = PieceShare(tables, ByteRun(room.ctypes.data), self.device.address(transfer.block.array))
        try:
            mover.feed(share, self._copied, (), transfer.slot.uploaded[number])
        finally:
            mover.finish(self._copied)

    def _copied(self, stage: Stage, begin: float, end: float, nbytes: int) -> None:
        """Note what copies took: those from a room to the slots are part of reading, whose bytes are known already."""
        self.trace.span(stage, begin, end, 0 if stage == "read" else nbytes)
