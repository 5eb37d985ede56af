"""What is on the way: slots, loaded blocks, results and transfers. Knows bytes, not operations or stores' kinds.

`chunkflow.engine.staged.ring` moves these through pinned memory, `chunkflow.engine.direct` where the device shares the
host's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from chunkflow.core.grid import Piece, Region, Shape, permuted, shift, within
from chunkflow.core.halo import fill, parts
from chunkflow.core.nest import Operand
from chunkflow.devices.job_queue import Job
from chunkflow.devices.mover import Share
from chunkflow.devices.protocol import Block, Device, Edge, Event, Lane, Latch, Pending, Pool, shaped
from chunkflow.engine.trace import Trace
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Source


class Slot:
    """Device memory that takes one operand's blocks in turn.

    `uploaded` has an event for each thread (or lane) that may fill it, `fillers` says which of them did,
    and `readers` are the events of the kernels that read the present block. A slot may give its memory
    back after a block (`release`) and take new memory for the next.
    """

    __slots__ = ("_blocks", "buffer", "fillers", "nbytes", "readers", "uploaded")

    def __init__(self, nbytes: int, uploaded: list[Event]) -> None:
        self.nbytes = nbytes
        self.buffer: Any = None
        self.uploaded = uploaded
        self.fillers: set[int] = set()
        self.readers: list[Event] = []
        self._blocks: deque[Block] = deque(maxlen=2)  # with a halo the one before is known until the next is computed

    def block(self, order: Shape) -> Block:
        """A block that lies in the slot in memory order `order`; `place` gives it its array."""
        self._blocks.append(Block(None, order, self))
        return self._blocks[-1]

    def fill(self, pool: Pool) -> None:
        """Take new memory if the slot has none."""
        if self.buffer is None:
            self.buffer = pool.allocate(self.nbytes)

    def place(self, block: Block, dtype: np.dtype, shape: Shape, pool: Pool) -> None:
        """Give a block of natural `shape` its array, in new memory if the slot has none."""
        self.fill(pool)
        block.array = shaped(self.buffer, dtype, permuted(shape, block.order), block.inverse)

    def release(self, pool: Pool) -> None:
        """Free the memory, even if a failed run's traceback still knows the slot or its blocks."""
        while self._blocks:
            self._blocks.pop().array = None
        if self.buffer is not None:
            pool.free(self.buffer)
        self.buffer = None


def make_slots(plan: Plan, device: Device, pool: Pool, operand: int, fillers: int) -> list[Slot]:
    """An operand's slots."""
    spec = plan.operands[operand]
    slots = []
    for shape in plan.slot_shapes(operand):
        slot = Slot(math.prod(shape) * spec.dtype.itemsize, [device.event() for _ in range(fillers)])
        device.host_writes(slot)
        slots.append(slot)
    return slots


class Loaded:
    """An operand's block on the device, or on its way there."""

    __slots__ = ("after", "block", "calls", "failed", "fleeting", "ready", "region", "slot", "transfers")

    def __init__(
        self,
        block: Block,
        region: Region,
        slot: Slot | None = None,
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


class State:
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
        slot: Slot | None = None,
        result: Result | None = None,
    ) -> None:
        self.store, self.block, self.published = store, block, published
        self.start = start
        self.after, self.slot, self.result = after, slot, result
        self.share: Share | None = None
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
