"""Loaded blocks, results, and the transfers that move them piece by piece. Knows no operation and no kind of store.

`chunkflow.engine.staged.ring` moves them through pinned memory. `chunkflow.engine.direct` is for devices that share the
host's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from chunkflow.core.grid import Region, Shape, shift, within
from chunkflow.core.halo import fill, parts
from chunkflow.core.nest import Operand
from chunkflow.core.pieces import Piece
from chunkflow.devices.job_queue import Job
from chunkflow.devices.mover import FailedPiece, PieceShare
from chunkflow.devices.protocol import Block, Device, Edge, Event, Lane, Latch, Pending, Pool
from chunkflow.engine.buffers import DeviceBuffer
from chunkflow.engine.trace import Trace
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Source


class Loaded:
    """A block of an operand, on the device or being uploaded."""

    __slots__ = ("after", "block", "buffer", "calls", "failed", "fleeting", "ready", "region", "transfers")

    def __init__(
        self,
        block: Block,
        region: Region,
        buffer: DeviceBuffer | None = None,
        transfers: Sequence[Transfer] = (),
        pending: Pending[None] | None = None,
        *,
        after: list[Event] | None = None,
        fleeting: bool = False,
    ) -> None:
        self.block, self.region, self.buffer, self.transfers = block, region, buffer, transfers
        self.after = [] if after is None else after
        """Events to wait for before anything is written to the buffer."""
        self.fleeting = fleeting
        self.calls = [] if pending is None else [pending]
        """Calls on lanes that make the block."""
        self.failed = False
        self.ready: Event | None = None
        """Marks when the block is complete, where it has a halo."""

    def enqueued(self) -> None:
        """Wait until every upload is enqueued, for only then can its events be waited for; raise what failed."""
        for transfer in self.transfers:
            transfer.enqueued()
        for transfer in self.transfers:
            if transfer.error is not None:
                raise_once(transfer)

    def check(self) -> None:
        """Raise what went wrong while lanes made the block. It is then `failed`, for a call raises only once."""
        try:
            for call in self.calls:
                call.result()
        except BaseException:
            self.failed = True
            raise

    def spent(self, results: Sequence[Any], pool: Pool) -> None:
        """Give the block's memory back if nothing else will read it and no result is a view of it."""
        block = self.block.array
        if self.fleeting and not any(np.may_share_memory(block, result) for result in results):
            assert self.buffer is not None
            self.buffer.release(pool)

    def order_before(self, lane: Lane) -> None:
        """Let later work on `lane` wait for the block's uploads."""
        if self.buffer is not None:
            lane.wait([self.buffer.uploaded[filler] for filler in sorted(self.buffer.fillers)], Edge.UPLOADED)
        if self.ready is not None:
            lane.wait([self.ready], Edge.COMPLETE)

    def take_over(self, known: Region, before: Loaded) -> None:
        """Copy the region that the block before has too."""
        self.block.array[within(known, self.region)] = before.block.array[within(known, before.region)]

    def complete(self, operand: Operand) -> None:
        """Fill the halo beyond the array's edges."""
        fill(self.block.array, self.region, operand.extents, operand.boundary)
        if isinstance(self.block.array, np.ndarray):
            self.block.array.flags.writeable = False


class Result:
    """The result of a step until it is stored; `wait` waits for that."""

    __slots__ = ("arrays", "blocks", "done", "error", "over", "pending", "started", "step", "stored", "wait")

    def __init__(self, step: Step, started: Event | None, done: Event) -> None:
        self.step, self.started, self.done = step, started, done
        self.pending: Pending[tuple[Any, ...]] | None = None
        self.arrays: tuple[Any, ...] = ()
        self.blocks: list[Block] = []
        self.wait: Callable[[], None] | None = None
        self.stored: Event | None = None
        """Marks when it is stored, where the lane itself stores it."""
        self.error: BaseException | None = None
        self.over = False
        """Whether it is stored or has failed. Set only where `chunkflow.engine.lane_scheduler` deals out blocks."""

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
            block.array = None  # a thread that waits for work still refers to its last block
        for array in arrays:
            pool.free(array)


class Accumulator:
    """The value kept between steps: partial results, or a carry. `done` marks its latest update, on `lane`."""

    __slots__ = ("done", "lane", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.done: Event | None = None
        self.lane: int | None = None


class Transfer:
    """A block, or a part of one, that threads move piece by piece; `start` is where in `store` the block begins.

    `after` are the events to wait for before the first piece. `left` counts arrivals: of pieces, or of threads if they
    take pieces from the `share`.
    """

    left: Latch

    __slots__ = (
        "after",
        "block",
        "buffer",
        "error",
        "left",
        "pieces",
        "published",
        "result",
        "share",
        "start",
        "store",
    )

    def __init__(
        self,
        store: Any,
        start: Shape,
        block: Block,
        published: Latch,
        after: Sequence[Event],
        *,
        buffer: DeviceBuffer | None = None,
        result: Result | None = None,
    ) -> None:
        self.store, self.block, self.published = store, block, published
        self.start = start
        self.after, self.buffer, self.result = after, buffer, result
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
        if self.buffer is not None and isinstance(self.left, Job):
            self.buffer.fillers.update(self.left.movers)

    def fail(self, error: BaseException) -> None:
        """Keep the first error; the pieces that follow are dropped."""
        self.error = self.error or error
        if self.share is not None:
            self.share.stop()
        if self.result is not None:
            self.result.error = self.result.error or error


def raise_once(holder: Result | Transfer) -> NoReturn:
    """Raise a holder's error and drop it: the two would keep each other, and the run's arrays, alive."""
    error, holder.error = holder.error, None
    assert error is not None
    try:
        raise error
    finally:
        del error


def read_whole(source: Source, operand: Operand, region: Region, out: np.ndarray) -> None:
    """Read a region that may reach beyond the source's edges, and fill the halo there."""
    if not operand.halo:
        source.read(region, out)
        return
    for part, place in parts(region, operand.extents, operand.boundary):
        target = tuple([slice(p, p + s.stop - s.start) for p, s in zip(place, part, strict=True)])
        source.read(part, out[target])
    fill(out, region, operand.extents, operand.boundary)


class PieceTask(NamedTuple):
    """A piece that Python moves, by its number in the transfer."""

    transfer: Transfer
    piece: int


class ShareTask(NamedTuple):
    """A thread's share of a transfer, which the compiled loops move, and the pieces that they could not move."""

    transfer: Transfer
    failed: Sequence[FailedPiece]
