"""Pinned slots of a thread that moves pieces, and the copies that are on their way from or to them."""

from __future__ import annotations

from typing import Any

from chunkflow.core.pieces import Piece
from chunkflow.devices.protocol import Device, Edge, HostBuffer, Lane
from chunkflow.engine.trace import Stage, Trace
from chunkflow.engine.transfer import Transfer


class PinnedBuffer:
    """A thread's pinned slot, with the event that tells when its copy is done (and began, if anyone asks)."""

    __slots__ = ("begun", "busy", "done", "number", "slot")

    def __init__(self, number: int, slot: HostBuffer, device: Device, timed: bool) -> None:
        self.number, self.slot = number, slot
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.busy: tuple[Transfer, Piece] | None = None

    def mark_begin(self, lane: Lane) -> None:
        """Mark where the copy begins, if anyone asks."""
        if self.begun is not None:
            lane.record(self.begun)

    def upload(self, lane: Lane, transfer: Transfer, piece: Piece, scratch: Any) -> None:
        """Enqueue the copy of a piece that is in the slot."""
        self.mark_begin(lane)
        lane.upload(self.slot, transfer.block, piece, scratch)
        lane.record(self.done)
        self.busy = transfer, piece

    def wait(self, edge: Edge, trace: Trace) -> None:
        """Wait for the copy, if there is one, and report its time."""
        if self.busy is None:
            return
        self.done.synchronize(edge)
        if self.begun is not None:
            transfer, piece = self.busy
            nbytes = piece.size * transfer.block.array.dtype.itemsize
            stage: Stage = "upload" if transfer.result is None else "download"
            trace.span(stage, self.begun.seconds(), self.done.seconds(), nbytes)
        self.busy = None
