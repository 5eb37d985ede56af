"""Pieces on their way through pinned memory: a crew of feeders and one of drainers. Knows bytes, not operations.

A block is moved in pieces. Feeders take the next piece, wait until one of their own pinned slots has been
uploaded, fill it and enqueue its upload on their own lane; drainers do the reverse. Each thread keeps
its slots in turn, so that one is filled (or stored) while the other is on the link.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from chunkflow.devices.base import Block, Device, Edge, Event, HostSlot, Latch, Lane, Pending, Pool, shaped
from chunkflow.grid import Piece, Region, Shape, permuted, shape_of, shift
from chunkflow.memory import Ring
from chunkflow.plan import Plan, Step
from chunkflow.stores.base import Sink, Source
from chunkflow.trace import Trace


class Slot:
    """Device memory that takes one operand's blocks in turn.

    `uploaded` has an event for each thread (or lane) that may fill it, `fillers` says which of them did,
    and `readers` are the events of the kernels that read the present block.
    """

    __slots__ = ("buffer", "fillers", "readers", "uploaded")

    def __init__(self, buffer: Any, uploaded: list[Event]) -> None:
        self.buffer = buffer
        self.uploaded = uploaded
        self.fillers: set[int] = set()
        self.readers: list[Event] = []

    def block(self, dtype: np.dtype, shape: Shape, order: Shape) -> Block:
        """The slot as a block of natural `shape` that lies in memory order `order`."""
        block = Block(None, order, self)
        block.array = shaped(self.buffer, dtype, permuted(shape, order), block.inverse)
        return block


def make_slots(plan: Plan, device: Device, pool: Pool, operand: int, fillers: int) -> list[Slot]:
    """An operand's slots: as many as the plan has, no more than there are loads."""
    spec = plan.operands[operand]
    nbytes = int(np.prod(plan.slot_shape(operand), dtype=np.int64)) * spec.dtype.itemsize
    slots = []
    for _ in range(min(plan.depth, max(plan.loads(operand), 1))):
        slot = Slot(pool.allocate(nbytes), [device.event() for _ in range(fillers)])
        device.host_writes(slot)
        slots.append(slot)
    return slots


class Loaded:
    """An operand's block on the device, or on its way there."""

    __slots__ = ("block", "pending", "slot", "transfer")

    def __init__(
        self,
        block: Block,
        slot: Slot | None = None,
        transfer: Transfer | None = None,
        pending: Pending[None] | None = None,
    ) -> None:
        self.block, self.slot, self.transfer, self.pending = block, slot, transfer, pending

    def enqueued(self) -> None:
        """Wait until every upload is enqueued, so that its events can be waited for; raise what failed."""
        if self.transfer is not None:
            self.transfer.left.wait(Edge.ENQUEUED)
            if self.transfer.error is not None:
                raise self.transfer.error

    def check(self) -> None:
        """Raise what went wrong while the block was read on a lane."""
        if self.pending is not None:
            self.pending.result()

    def order_before(self, lane: Lane) -> None:
        """Let what follows on `lane` wait for the block's uploads."""
        if self.slot is not None:
            for filler in sorted(self.slot.fillers):
                lane.wait(self.slot.uploaded[filler], Edge.UPLOADED)


class Result:
    """What a step computed, until it is stored."""

    __slots__ = ("arrays", "done", "error", "pending", "started", "step", "stored")

    def __init__(self, step: Step, started: Event | None, done: Event) -> None:
        self.step, self.started, self.done = step, started, done
        self.pending: Pending[tuple[Any, ...]] | None = None
        self.arrays: tuple[Any, ...] = ()
        self.stored: Latch | None = None
        self.error: BaseException | None = None

    def landed(self, device: Device, pool: Pool) -> None:
        """Wait until the result is stored, then free it; raise what failed."""
        assert self.stored is not None
        self.stored.wait(Edge.STORED)
        arrays, self.arrays, self.pending = self.arrays, (), None
        if self.error is not None:
            raise self.error
        device.host_writes(self)
        for array in arrays:
            pool.free(array)


class Transfer:
    """A block that a crew moves piece by piece, between `store` at `start` and `block`.

    `after` are the events to wait for before the first piece; `left` counts the pieces that are done.
    """

    __slots__ = ("after", "block", "error", "left", "published", "result", "slot", "start", "store")

    def __init__(
        self,
        store: Any,
        region: Region,
        block: Block,
        published: Latch,
        left: Latch,
        after: Sequence[Event],
        *,
        slot: Slot | None = None,
        result: Result | None = None,
    ) -> None:
        self.store, self.block, self.published, self.left = store, block, published, left
        self.start = tuple([s.start for s in region])
        self.after, self.slot, self.result = after, slot, result
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Keep the first error; the pieces that follow are dropped."""
        self.error = self.error or error
        if self.result is not None:
            self.result.error = self.result.error or error


Work = tuple[Transfer, Piece]


class _Crew:
    """Threads that take pieces from one queue, with a lane and pinned slots each."""

    def __init__(
        self, device: Device, pool: Pool, ring: Ring, scratch_bytes: int, trace: Trace, name: str
    ) -> None:
        self.device, self.pool, self.ring, self.trace = device, pool, ring, trace
        self.queue: SimpleQueue[Work | None] = SimpleQueue()
        self.stopping = False
        self.slots = pool.host_slots(ring.threads * ring.slots, ring.slot_bytes)
        for slot in self.slots:
            device.host_writes(slot)
        self.scratch = [pool.allocate(scratch_bytes) if scratch_bytes else None for _ in range(ring.threads)]
        self.begun = device.latch(1)
        self.threads = [
            threading.Thread(target=self._main, args=(n,), name=f"chunkflow-{name}-{n}")
            for n in range(ring.threads)
        ]
        for thread in self.threads:
            thread.start()
        self.begun.arrive()

    def _main(self, number: int) -> None:
        self.begun.wait(Edge.PUBLISHED)
        with self.device.attach():
            lane = self.device.lane()
            mine = self.slots[number * self.ring.slots : (number + 1) * self.ring.slots]
            try:
                self.work(number, lane, [_Station(slot, self.device, self.trace.timed) for slot in mine])
            finally:
                lane.close()

    def work(self, number: int, lane: Lane, stations: list[_Station]) -> None:
        """Move pieces until the queue says None."""
        raise NotImplementedError

    def close(self) -> None:
        for _ in self.threads:
            self.queue.put(None)
        for thread in self.threads:
            thread.join()
        self.pool.release_host(self.slots)
        self.scratch.clear()


class _Station:
    """A pinned slot with the event that tells when its copy is done (and began, if anyone asks)."""

    __slots__ = ("begun", "busy", "done", "slot")

    def __init__(self, slot: HostSlot, device: Device, timed: bool) -> None:
        self.slot = slot
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.busy: Work | None = None

    def mark_begin(self, lane: Lane) -> None:
        if self.begun is not None:
            lane.record(self.begun)

    def wait(self, edge: Edge, trace: Trace) -> None:
        """Wait for the copy and report its time."""
        self.done.synchronize(edge)
        if self.begun is not None and self.busy is not None:
            transfer, piece = self.busy
            nbytes = piece.size * transfer.block.array.dtype.itemsize
            stage = "upload" if transfer.result is None else "download"
            trace.span(stage, self.begun.seconds(), self.done.seconds(), nbytes)


class _Feeders(_Crew):
    def work(self, number: int, lane: Lane, stations: list[_Station]) -> None:
        turns = itertools.cycle(stations)
        previous: Transfer | None = None
        while (work := self.queue.get()) is not None:
            transfer, piece = work
            try:
                if self.stopping or transfer.error is not None:
                    continue
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    for event in transfer.after:
                        lane.wait(event, Edge.OVERWRITE)
                    previous = transfer
                self._feed(number, lane, next(turns), work)
            except BaseException as error:
                transfer.fail(error)
            finally:
                transfer.left.arrive()
        for station in stations:
            if station.busy is not None:
                station.wait(Edge.REFILL, self.trace)

    def _feed(self, number: int, lane: Lane, station: _Station, work: Work) -> None:
        transfer, piece = work
        block, slot = transfer.block, transfer.slot
        assert slot is not None
        if station.busy is not None:
            station.wait(Edge.REFILL, self.trace)
            station.busy = None
        out = station.slot.view(block.array.dtype, piece, block.inverse)
        self.device.host_writes(station.slot)
        begin = time.perf_counter() if self.trace.timed else 0.0
        transfer.store.read(shift(piece.region, transfer.start), out)
        if self.trace.timed:
            self.trace.span("read", begin, time.perf_counter(), out.nbytes)
        station.mark_begin(lane)
        lane.upload(station.slot, block, piece, self.scratch[number])
        lane.record(station.done)
        station.busy = work
        lane.record(slot.uploaded[number])
        slot.fillers.add(number)


class _Drainers(_Crew):
    def work(self, number: int, lane: Lane, stations: list[_Station]) -> None:
        turns = itertools.cycle(stations)
        flying: list[_Station] = []
        previous: Transfer | None = None
        while True:
            try:  # store what has landed rather than wait for more work
                work = self.queue.get_nowait() if flying else self.queue.get()
            except Empty:
                self._store(flying.pop(0))
                continue
            if work is None:
                break
            transfer, piece = work
            if len(flying) == len(stations):
                self._store(flying.pop(0))
            if transfer.error is not None:
                transfer.left.arrive()
                continue
            try:
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    for event in transfer.after:
                        lane.wait(event, Edge.COMPUTED)
                    previous = transfer
                station = next(turns)
                station.mark_begin(lane)
                lane.download(transfer.block, piece, station.slot, self.scratch[number])
                lane.record(station.done)
                station.busy = work
                flying.append(station)
            except BaseException as error:
                transfer.fail(error)
                transfer.left.arrive()
        for station in flying:
            self._store(station)

    def _store(self, station: _Station) -> None:
        assert station.busy is not None
        transfer, piece = station.busy
        try:
            station.wait(Edge.LANDED, self.trace)
            view = station.slot.view(transfer.block.array.dtype, piece, transfer.block.inverse)
            self.device.host_reads(station.slot)
            begin = time.perf_counter() if self.trace.timed else 0.0
            transfer.store.write(shift(piece.region, transfer.start), view)
            if self.trace.timed:
                self.trace.span("write", begin, time.perf_counter(), view.nbytes)
        except BaseException as error:
            transfer.fail(error)
        finally:
            station.busy = None
            transfer.left.arrive()


class RingFeeder:
    """Loads blocks through the pinned ring."""

    def __init__(
        self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace
    ) -> None:
        assert plan.ring_in is not None
        self.ahead = plan.depth
        self._plan, self._sources, self._device = plan, sources, device
        self._slots = [
            make_slots(plan, device, pool, i, plan.ring_in.threads) for i in range(len(plan.operands))
        ]
        self._crew = _Feeders(device, pool, plan.ring_in, plan.ring_in.scratch, trace, "feed")

    def load(self, step: Step, operand: int, lane: Lane) -> Loaded:
        """Publish the pieces of an operand's block."""
        slots = self._slots[operand]
        slot = slots[step.loads[operand] % len(slots)]
        region = step.sources[operand]
        cut, spec = self._plan.cuts_in[operand], self._plan.operands[operand]
        pieces = cut.pieces(region)
        transfer = Transfer(
            self._sources[operand],
            region,
            slot.block(spec.dtype, shape_of(region), cut.order),
            self._device.latch(1),
            self._device.latch(len(pieces)),
            slot.readers,
            slot=slot,
        )
        slot.readers, slot.fillers = [], set()
        transfer.published.arrive()
        for piece in pieces:
            self._crew.queue.put((transfer, piece))
        return Loaded(transfer.block, slot, transfer)

    def close(self) -> None:
        """Drop what is queued, finish what is on the link, and give threads and memory back."""
        self._crew.stopping = True
        self._crew.close()
        self._slots.clear()


class RingDrainer:
    """Stores results through the pinned ring."""

    def __init__(self, plan: Plan, sinks: Sequence[Sink], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_out is not None
        self._plan, self._sinks, self._device, self._pool = plan, sinks, device, pool
        self._crew = _Drainers(device, pool, plan.ring_out, plan.ring_out.scratch, trace, "drain")

    def store(self, result: Result, lane: Lane) -> None:
        """Publish the pieces of a result."""
        assert result.pending is not None
        result.arrays = result.pending.result()
        cuts = [
            cut.pieces(region) if array.size else ()
            for cut, region, array in zip(
                self._plan.cuts_out, result.step.stores, result.arrays, strict=True
            )
        ]
        result.stored = self._device.latch(sum(map(len, cuts)))
        for sink, region, cut, array, pieces in zip(
            self._sinks, result.step.stores, self._plan.cuts_out, result.arrays, cuts, strict=True
        ):
            self._pool.adopt(array)
            transfer = Transfer(
                sink,
                region,
                Block(array, cut.order, result),
                self._device.latch(1),
                result.stored,
                (result.done,),
                result=result,
            )
            transfer.published.arrive()
            for piece in pieces:
                self._crew.queue.put((transfer, piece))

    def close(self) -> None:
        """Store what is queued, and give threads and memory back."""
        self._crew.close()

