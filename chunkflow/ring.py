"""Pieces on their way through pinned memory: a crew of feeders and one of drainers.

A block is moved in pieces. Feeders take the next piece, wait until one of their own pinned slots has been
uploaded, fill it and enqueue its upload on their own lane; drainers do the reverse. Each thread keeps
its slots in turn, so that one is filled (or stored) while the other is on the link.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from functools import partial
from queue import Empty, SimpleQueue

from chunkflow.devices.base import Block, Device, Edge, HostSlot, Lane, Pool
from chunkflow.grid import placed, shape_of, shift
from chunkflow.memory import Ring
from chunkflow.plan import Plan, Step
from chunkflow.staging import Loaded, Result, Transfer, Work, make_slots
from chunkflow.stores.base import Sink, Source
from chunkflow.trace import Stage, Trace


class _Crew:
    """Threads that take pieces from one queue, with a lane and pinned slots each."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace, name: str) -> None:
        self.device, self.pool, self.ring, self.trace = device, pool, ring, trace
        self.queue: SimpleQueue[Work | None] = SimpleQueue()
        self.stopping = False
        self.begun = device.latch(1)
        self.threads: list[threading.Thread] = []
        self.scratch = [pool.allocate(ring.scratch) if ring.scratch else None for _ in range(ring.threads)]
        self.slots = pool.host_slots(ring.threads * ring.slots, ring.slot_bytes)
        try:
            for slot in self.slots:
                device.host_writes(slot.owner)
            for number in range(ring.threads):
                thread = threading.Thread(
                    target=self._main, args=(number,), name=f"chunkflow-{name}-{number}", daemon=True
                )
                self.threads.append(thread)
                thread.start()
        except BaseException:
            self.begun.arrive()
            self.close()
            raise
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
            if thread.ident is not None:  # one that could not be started is not waited for
                thread.join()
        self.pool.release_host(self.slots)
        for scratch in self.scratch:
            if scratch is not None:
                self.pool.free(scratch)
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
            stage: Stage = "upload" if transfer.result is None else "download"
            trace.span(stage, self.begun.seconds(), self.done.seconds(), nbytes)


class _Feeders(_Crew):
    def work(self, number: int, lane: Lane, stations: list[_Station]) -> None:
        turns = itertools.cycle(stations)
        previous: Transfer | None = None
        while (work := self.queue.get()) is not None:
            transfer = work[0]
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
        self.device.host_writes(station.slot.owner)
        begin = time.perf_counter() if self.trace.timed else 0.0
        transfer.store.read(shift(piece.region, transfer.start), out)
        if self.trace.timed:
            self.trace.span("read", begin, time.perf_counter(), out.nbytes)
        station.slot.pin()
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
                station.slot.pin()
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
            self.device.host_reads(station.slot.owner)
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

    def __init__(self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_in is not None
        self.ahead = plan.depth - plan.reuses  # a block stays until the next has copied its halo from it
        self._plan, self._sources, self._device, self._pool = plan, sources, device, pool
        self._slots = [make_slots(plan, device, pool, i, plan.ring_in.threads) for i in range(len(plan.operands))]
        self._crew = _Feeders(device, pool, plan.ring_in, trace, "feed")

    def load(self, step: Step, operand: int, lane: Lane) -> Loaded:
        """Publish the pieces of an operand's block."""
        slots = self._slots[operand]
        slot = slots[step.loads[operand] % len(slots)]
        region = step.sources[operand]
        cut, spec = self._plan.cuts_in[operand], self._plan.operands[operand]
        block = slot.block(cut.order)
        slot.place(block, spec.dtype, shape_of(region), self._pool)
        readers, slot.readers, slot.fillers = slot.readers, [], set()
        transfers = []
        for part, place in step.parts(operand, self._plan.op.operands[operand]):
            pieces = cut.pieces(part)
            if part is not region:
                pieces = placed(pieces, place, shape_of(region), cut.order)
            transfer = Transfer(
                self._sources[operand],
                tuple([s.start - p for s, p in zip(part, place, strict=True)]),
                block,
                self._device.latch(1),
                self._device.latch(len(pieces)),
                readers,
                slot=slot,
            )
            transfer.published.arrive()
            for piece in pieces:
                self._crew.queue.put((transfer, piece))
            transfers.append(transfer)
        return Loaded(block, region, slot, transfers)

    def close(self) -> None:
        """Drop what is queued, finish what is on the link, and give threads and memory back."""
        self._crew.stopping = True
        self._crew.close()
        for slot in itertools.chain.from_iterable(self._slots):
            slot.release(self._pool)


class RingDrainer:
    """Stores results through the pinned ring."""

    def __init__(self, plan: Plan, sinks: Sequence[Sink], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_out is not None
        self._plan, self._sinks, self._device, self._pool = plan, sinks, device, pool
        self._crew = _Drainers(device, pool, plan.ring_out, trace, "drain")

    def store(self, result: Result, lane: Lane) -> None:
        """Publish the pieces of a result."""
        assert result.pending is not None
        result.arrays = result.pending.result()
        for array in result.arrays:
            self._pool.adopt(array)
        if not result.step.stores:
            result.wait = partial(result.done.synchronize, Edge.STORED)
            return
        cuts = [self._plan.cuts_out[i] for i, _ in result.step.stores]
        parts = [
            cut.pieces(region) if array.size else ()
            for cut, (_, region), array in zip(cuts, result.step.stores, result.arrays, strict=True)
        ]
        stored = self._device.latch(sum(map(len, parts)))
        result.wait = partial(stored.wait, Edge.STORED)
        for (i, region), cut, array, pieces in zip(result.step.stores, cuts, result.arrays, parts, strict=True):
            block = Block(array, cut.order, result)
            result.blocks.append(block)
            transfer = Transfer(
                self._sinks[i],
                tuple([side.start for side in region]),
                block,
                self._device.latch(1),
                stored,
                (result.done,),
                result=result,
            )
            transfer.published.arrive()
            for piece in pieces:
                self._crew.queue.put((transfer, piece))

    def close(self) -> None:
        """Store what is queued, and give threads and memory back."""
        self._crew.close()
