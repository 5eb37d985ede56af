"""Feeders of pieces that fit no slot of pinned memory: large chunks, which go through it in parts.

A chunk is decoded by one thread, into memory of its own, while other threads decode others. Slots for whole ones
would take as long to pin as they are used, and lie in no cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chunkflow.crews import Feeders
from chunkflow.cuts import parts
from chunkflow.devices.base import Device, Edge, Lane, Pool, shaped
from chunkflow.devices.moving import Mover
from chunkflow.memory import Ring
from chunkflow.staging import Transfer
from chunkflow.stations import Station
from chunkflow.trace import Trace


class SplittingFeeders(Feeders):
    """Feeders with a room each for what fits none of their slots (`Ring.room`)."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace, name: str) -> None:
        super().__init__(device, pool, ring, trace, name)
        self._rooms: list[np.ndarray | None] = [None] * ring.threads

    def room(self, number: int) -> np.ndarray:
        """A thread's room; its pages are those that it first writes to."""
        room = self._rooms[number]
        if room is None:
            room = self._rooms[number] = np.empty(self.ring.room, np.uint8)
        return room

    def free(self, turns: Iterator[Station]) -> Station:
        """The next slot, once its last copy is done."""
        station = next(turns)
        station.wait(Edge.REFILL, self.trace)
        self.device.host_writes(station.slot.owner)
        return station

    def close(self) -> None:
        """See `Crew.close`."""
        super().close()
        self._rooms.clear()

    def _feed(
        self, number: int, lane: Lane, turns: Iterator[Station], transfer: Transfer, index: int, mover: Mover | None
    ) -> None:
        block, slot, piece = transfer.block, transfer.slot, transfer.pieces[index]
        dtype = block.array.dtype
        if piece.size * dtype.itemsize <= self.ring.slot_bytes:
            super()._feed(number, lane, turns, transfer, index, mover)
            return
        assert slot is not None
        whole = shaped(self.room(number), dtype, piece.shape, block.inverse)
        transfer.read(piece, whole, self.trace)
        for part, place in parts(piece, block.array.shape, block.order, self.ring.slot_bytes // dtype.itemsize):
            station = self.free(turns)
            station.slot.view(dtype, part, block.inverse)[...] = whole[part.region]
            station.slot.pin()
            station.upload(lane, transfer, place, self.scratch[number])
        lane.record(slot.uploaded[number])
        slot.fillers.add(number)
