"""What is on the way: slots, loaded blocks, results and transfers. Knows bytes, not operations or stores' kinds.

`chunkflow.engine.staged.ring` moves these through pinned memory, `chunkflow.engine.direct` where the device shares the
host's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from chunkflow.core.grid import Region, Shape, shift, within
from chunkflow.core.halo import fill, parts
from chunkflow.core.nest import Operand
from chunkflow.core.pieces import Piece
from chunkflow.devices.job_queue import Job
from chunkflow.devices.mover import PieceShare
from chunkflow.devices.protocol import Block, Device, Edge, Event, Lane, Latch, Pending, Pool
from chunkflow.engine.buffers import DeviceBuffer
from chunkflow.engine.trace import Trace
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Source


class Loaded:
    """An operand's block on the device, or on its way there."""

    __slots__ = ("after", "block", "calls", "failed", "fleeting", "ready", "region", "slot", "transfers")

    def __init__(
        self,
        block: Block,
        region: Region,
        slot: DeviceBuffer | None = None,
        transfers: Sequence[Transfer] = (),
        pending: Pending[None] | None = None,
        *,
        after: list[Event] | None = None,
        fleeting: bool = False,
    ) -> None:
        self.block, self.region, self.slot, self.transfers = block, region, slot, transfers
        self.after = [] if after is None else after
        """What is still to end before anything is written to the slot."""
        self.fleeting = fleeting
        self.calls = [] if pending is None else [pending]
        """What lanes do to make the block."""
        self.failed = False
        self.ready: Event | None = None
        """With a halo: when the block is complete."""

    def enqueued(self) -> None:
        """Wait until every upload is enqueued, so that its events can be waited for; raise what failed."""
        for transfer in self.transfers:
            transfer.enqueued()
        for transfer in self.transfers:
            if transfer.error is not None:
                raise_once(transfer)

    def check(self) -> None:
        """Raise what went wrong while lanes made the block, which then has `failed`: not every call says so twice."""
        try:
            for call in self.calls:
                call.result()
        except BaseException:
            self.failed = True
            raise

    def spent(self, results: Sequence[Any], pool: Pool) -> None:
        """Give the block's memory back where nobody else will read it; not if a result is a view of it."""
        block = self.block.array
        if self.fleeting and not any(np.may_share_memory(block, result) for result in results):
            assert self.slot is not None
            self.slot.release(pool)

    def order_before(self, lane: Lane) -> None:
        """Let what follows on `lane` wait for the block's uploads."""
        if self.slot is not None:
            lane.wait([self.slot.uploaded[filler] for filler in sorted(self.slot.fillers)], Edge.UPLOADED)
        if self.ready is not None:
            lane.wait([self.ready], Edge.COMPLETE)

    def take_over(self, known: Region, before: Loaded) -> None:
        """Copy what the block before holds too."""
        self.block.array[within(known, self.region)] = before.block.array[within(known, before.region)]

    def complete(self, operand: Operand) -> None:
        """Make up what lies beyond the array's edges."""
        fill(self.block.array, self.region, operand.extents, operand.boundary)
        if isinstance(self.block.array, np.ndarray):
            self.block.array.flags.writeable = False


class Result:
    """What a step computed, until it is stored: `wait` waits for that."""

    __slots__ = ("arrays", "blocks", "done", "error", "over", "pending", "started", "step", "stored", "wait")

    def __init__(self, step: Step, started: Event | None, done: Event) -> None:
        self.step, self.started, self.done = step, started, done
        self.pending: Pending[tuple[Any, ...]] | None = None
        self.arrays: tuple[Any, ...] = ()
        self.blocks: list[Block] = []
        self.wait: Callable[[], None] | None = None
        self.stored: Event | None = None
        """Where the lane itself stores it: when it has."""
        self.error: BaseException | None = None
        self.over = False
        """Where lanes are told of (`chunkflow.engine.lane_scheduler`): whether it has been stored, or has failed."""

    def landed(self, device: Device, pool: Pool) -> None:
        """Wait until the result is stored, then free it; raise what failed."""
        assert self.wait is not None
        self.wait()
        if self.error is None:
            device.host_writes(self)
        self.release(pool)
        if self.error is not None:
            raise_once(self)

    def release(self, pool: Pool) -> None:
        """Free the arrays."""
        arrays, self.arrays, self.pending = self.arrays, (), None
        for block in self.blocks:
            block.array = None  # a thread that waits for work still knows the last one it had
        for array in arrays:
            pool.free(array)


class Accumulator:
    """What is kept between steps: partial results, or a carry. `done` marks the end of the latest one, on a `lane`."""

    __slots__ = ("done", "lane", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.done: Event | None = None
        self.lane = -1


class Transfer:
    """A block, or a part of one, that a crew moves piece by piece; `start` is where in `store` the block begins.

    `after` are the events to wait for before the first piece; `left` counts the pieces that are done, or the threads
    that are where these take pieces by themselves from the `share`.
    """

    left: Latch

    __slots__ = ("after", "block", "error", "left", "pieces", "published", "result", "share", "slot", "start", "store")

    def __init__(
        self,
        store: Any,
        start: Shape,
        block: Block,
        published: Latch,
        after: Sequence[Event],
        *,
        slot: DeviceBuffer | None = None,
        result: Result | None = None,
    ) -> None:
        self.store, self.block, self.published = store, block, published
        self.start = start
        self.after, self.slot, self.result = after, slot, result
        self.share: PieceShare | None = None
        self.pieces: Sequence[Piece] = ()
        self.error: BaseException | None = None

    def read(self, piece: Piece, out: np.ndarray, trace: Trace) -> None:
        """Read a piece from the store."""
        begin = time.perf_counter() if trace.timed else 0.0
        self.store.read(shift(piece.region, self.start), out)
        if trace.timed:
            trace.span("read", begin, time.perf_counter(), out.nbytes)

    def enqueued(self) -> None:
        """Wait until every upload is enqueued."""
        self.left.wait(Edge.ENQUEUED)
        if self.slot is not None and isinstance(self.left, Job):
            self.slot.fillers.update(self.left.movers)

    def fail(self, error: BaseException) -> None:
        """Keep the first error; the pieces that follow are dropped."""
        self.error = self.error or error
        if self.share is not None:
            self.share.stop()
        if self.result is not None:
            self.result.error = self.result.error or error


def raise_once(holder: Result | Transfer) -> NoReturn:
    """Raise a holder's error and let go of it: both would keep each other, and the run's arrays, alive."""
    error, holder.error = holder.error, None
    assert error is not None
    try:
        raise error
    finally:
        del error


def read_whole(source: Source, operand: Operand, region: Region, out: np.ndarray) -> None:
    """Read a region that may reach beyond the source's edges, and make up what lies there."""
    if not operand.halo:
        source.read(region, out)
        return
    for part, place in parts(region, operand.extents, operand.boundary):
        target = tuple([slice(p, p + s.stop - s.start) for p, s in zip(place, part, strict=True)])
        source.read(part, out[target])
    fill(out, region, operand.extents, operand.boundary)


Failed = Sequence[tuple[int, int]]
"""Stations of a thread, and pieces that compiled loops could not move."""

Work = tuple[Transfer, int, Failed]
"""A transfer, and the number of the piece to be moved, or -1 for a thread's share of them all and what failed of it."""
