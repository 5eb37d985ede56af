"""Threads that move pieces through pinned memory: a crew of feeders and one of drainers.

A block is moved in pieces. Feeders take the next piece, wait until one of their own pinned slots has been
uploaded, fill it and enqueue its upload on their own lane; drainers do the reverse. Each thread keeps
its slots in turn, so that one is filled (or stored) while the other is on the link.

Where there are compiled loops (`chunkflow.devices.moving`), a thread takes its share of a block in one call that does
the same; what follows here is then for blocks that are no run in their store, and for errors. Every call that gives
Python's lock away has to wait for it again while other threads have it, so there are few of them for a piece.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue

from chunkflow.devices.base import Block, Device, Edge, HostSlot, Lane, Pool
from chunkflow.devices.moving import Mover, Share, tabled
from chunkflow.grid import Piece, Region, shift
from chunkflow.interrupts import Since
from chunkflow.memory import Ring
from chunkflow.staging import Transfer, Work
from chunkflow.stores.base import Sink, Source, keeping, run_of
from chunkflow.threads import Borrowed
from chunkflow.trace import Stage, Trace

FEW = 3
"""Pieces that a thread should find in a share: to take one up it needs Python's lock, for which others then wait."""

Pieces = tuple[Piece, ...]


class Crew:
    """Threads that take pieces from one queue, with a lane and pinned slots each."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace, name: str) -> None:
        self.device, self.pool, self.ring, self.trace, self.name = device, pool, ring, trace, name
        self.queue: SimpleQueue[Work | None] = SimpleQueue()
        self.stopping = False
        self.error: BaseException | None = None
        self.since = Since()
        self.begun = device.latch(1)
        self.threads: list[Borrowed] = []
        self.over = self.shut = False
        self.gate = threading.Lock()
        self.shares: deque[Share] = deque(maxlen=ring.threads)  # that threads have taken lately
        self.slots = pool.host_slots(ring.threads * ring.slots, ring.slot_bytes)
        self.scratch = [pool.allocate(ring.scratch) if ring.scratch else None for _ in range(ring.threads)]
        for slot in self.slots:
            device.host_writes(slot.owner)

    def _start(self) -> None:
        """Start the threads: with something to do each, so that the first is at work before the last one begins."""
        self.begun.arrive()
        for number in range(self.ring.threads):
            thread = Borrowed(self._main, (number,), f"chunkflow-{self.name}-{number}")
            self.threads.append(thread)
            thread.start()

    def _main(self, number: int) -> None:
        self.begun.wait(Edge.PUBLISHED)
        with self.gate:
            if self.shut:  # whoever started the thread was interrupted, and has given up
                return
        with self.device.attach():
            lane: Lane | None = None
            try:
                lane = self.device.lane()
                mine = self.slots[number * self.ring.slots : (number + 1) * self.ring.slots]
                stations = [Station(i, slot, self.device, self.trace.timed) for i, slot in enumerate(mine)]
                mover = self.device.mover(lane, [(s.slot, s.done, s.begun) for s in stations], self.scratch[number])
            except BaseException as error:
                if lane is not None:
                    lane.close()
                self._refuse(error)
                return
            try:
                try:
                    with keeping():
                        self.work(number, lane, stations, mover)
                finally:
                    lane.close()
            except BaseException as error:  # of what was still on its way: each piece's own errors are kept with it
                self.error = error

    def _refuse(self, error: BaseException) -> None:
        """Fail whatever comes: nobody may wait for it."""
        while (work := self.queue.get()) is not None:
            work[0].fail(error)
            work[0].left.arrive()

    def work(self, number: int, lane: Lane, stations: list[Station], mover: Mover | None) -> None:
        """Move pieces, and shares by the `mover`, until the queue says None."""
        raise NotImplementedError

    def share(self, store: Source | Sink, region: Region, block: Block, pieces: Pieces, places: Pieces) -> Share | None:
        """What the compiled loops must know to move a region as `pieces`, that lie at `places` in the block.

        None where there are no such loops, or more is to be done than they can.
        """
        item, landing = block.array.dtype.itemsize, self.ring.scratch > 0
        tables = tabled(pieces, places, item, landing=landing) if self.device.compiled else None
        if tables is None or tables.landing > self.ring.scratch:
            return None
        run = run_of(store, region) if tables.runs and store.spec.order == block.order else None
        return Share(tables, run, self.device.address(block.array))

    def parcels(self, share: Share | None, pieces: Pieces) -> int:
        """How many entries of the queue a transfer takes: its pieces, or a share for each thread that may have some."""
        if share is None or not share.streams:
            return len(pieces)
        return min(-(-len(pieces) // FEW), self.ring.threads)

    def publish(self, transfer: Transfer, share: Share | None, pieces: Pieces) -> None:
        """Let the threads have a transfer."""
        transfer.share, transfer.pieces = share, pieces
        transfer.published.arrive()
        streams = share is not None and share.streams
        for number in range(self.parcels(share, pieces)):
            self.queue.put((transfer, -1 if streams else number))
        if not self.threads:
            self._start()

    def finish(self) -> None:
        """Nothing more will be published: threads end when all is done."""
        if not self.over:
            self.over = True
            for _ in self.threads:
                self.queue.put(None)

    def _join(self) -> None:
        self.finish()
        if self.stopping:
            for share in tuple(self.shares):  # atomic, as appending is
                share.stop()
        for shut in (False, True):  # none passes the gate any more; one that just did is waited for
            with self.gate:
                self.shut = shut
            for thread in self.threads:
                if thread.ident is not None:  # else it could not be started, or will find the gate shut
                    thread.join()

    def close(self) -> None:
        """End the threads. They know addresses and files that are given back next, so none may be left behind."""
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                self._join()
                break
            except KeyboardInterrupt as error:
                interrupt, self.stopping = error, True
        self.pool.release_host(self.slots)
        for scratch in self.scratch:
            if scratch is not None:
                self.pool.free(scratch)
        self.scratch.clear()
        failure, self.error = self.error, None
        if interrupt is not None:
            raise interrupt
        if failure is not None and not self.since.failed:  # else the run has failed already, and says why
            raise failure


class Station:
    """A thread's pinned slot, with the event that tells when its copy is done (and began, if anyone asks)."""

    __slots__ = ("begun", "busy", "done", "number", "slot")

    def __init__(self, number: int, slot: HostSlot, device: Device, timed: bool) -> None:
        self.number, self.slot = number, slot
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.busy: tuple[Transfer, Piece] | None = None

    def mark_begin(self, lane: Lane) -> None:
        """Mark where the copy begins, if anyone asks."""
        if self.begun is not None:
            lane.record(self.begun)

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


class Feeders(Crew):
    """Fill slots from the store and upload them."""

    def work(self, number: int, lane: Lane, stations: list[Station], mover: Mover | None) -> None:
        """See `Crew.work`."""
        turns = itertools.cycle(stations)
        previous: Transfer | None = None
        shared = False  # whether copies of a share may be on their way
        while (work := self.queue.get()) is not None:
            transfer, piece = work
            try:
                if self.stopping or transfer.error is not None:
                    continue
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    if piece >= 0:
                        lane.wait(transfer.after, Edge.OVERWRITE)
                    previous = transfer
                if mover is not None and shared and piece >= 0:
                    mover.finish(self.trace.span)
                    shared = False
                if piece >= 0:
                    self._feed(number, lane, next(turns), transfer, piece, mover)
                else:
                    assert mover is not None
                    shared = True
                    self._feed_share(number, lane, stations, transfer, mover)
            except BaseException as error:
                transfer.fail(error)
            finally:
                transfer.left.arrive()
        for station in stations:
            station.wait(Edge.REFILL, self.trace)
        if mover is not None and shared:
            mover.finish(self.trace.span)

    def _feed_share(self, number: int, lane: Lane, stations: list[Station], transfer: Transfer, mover: Mover) -> None:
        """Let the compiled loop move what is left of a share; a piece that it can't read is read here, or raises."""
        share, slot = transfer.share, transfer.slot
        assert share is not None
        assert slot is not None
        self.shares.append(share)
        for station in stations:
            station.wait(Edge.REFILL, self.trace)
            station.slot.pin()
        while failed := mover.feed(share, self.trace.span, transfer.after, slot.uploaded[number]):
            mover.finish(self.trace.span)
            for _, piece in failed:
                self._feed(number, lane, stations[0], transfer, piece, mover)
            stations[0].wait(Edge.REFILL, self.trace)
        slot.fillers.add(number)

    def _feed(
        self, number: int, lane: Lane, station: Station, transfer: Transfer, index: int, mover: Mover | None
    ) -> None:
        block, slot, share, piece = transfer.block, transfer.slot, transfer.share, transfer.pieces[index]
        assert slot is not None
        station.wait(Edge.REFILL, self.trace)
        out = station.slot.view(block.array.dtype, piece, block.inverse)
        self.device.host_writes(station.slot.owner)
        begin = time.perf_counter() if self.trace.timed else 0.0
        transfer.store.read(shift(piece.region, transfer.start), out)
        if self.trace.timed:
            self.trace.span("read", begin, time.perf_counter(), out.nbytes)
        station.slot.pin()
        if mover is not None and share is not None:
            mover.send(share, station.number, index, slot.uploaded[number])
        else:
            station.mark_begin(lane)
            lane.upload(station.slot, block, piece, self.scratch[number])
            lane.record(station.done)
            lane.record(slot.uploaded[number])
        station.busy = transfer, piece
        slot.fillers.add(number)


class Drainers(Crew):
    """Download results into slots and store them."""

    def work(self, number: int, lane: Lane, stations: list[Station], mover: Mover | None) -> None:
        """See `Crew.work`."""
        turns = itertools.cycle(stations)
        flying: list[Station] = []
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
            while len(flying) == len(stations) or (flying and piece < 0):
                self._store(flying.pop(0))
            if self.stopping or transfer.error is not None:
                transfer.left.arrive()
                continue
            try:
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    if piece >= 0:
                        lane.wait(transfer.after, Edge.COMPUTED)
                    previous = transfer
                if piece < 0:
                    assert mover is not None
                    self._drain_share(stations, transfer, mover)
                    transfer.left.arrive()
                    continue
                station = next(turns)
                station.slot.pin()
                if mover is not None and transfer.share is not None:
                    mover.fetch(transfer.share, station.number, piece)
                else:
                    station.mark_begin(lane)
                    lane.download(transfer.block, transfer.pieces[piece], station.slot, self.scratch[number])
                    lane.record(station.done)
                station.busy = transfer, transfer.pieces[piece]
                flying.append(station)
            except BaseException as error:
                transfer.fail(error)
                with suppress(Exception):  # what is on the link still reads the result, which is freed next
                    lane.synchronize()
                transfer.left.arrive()
        for station in flying:
            self._store(station)

    def _drain_share(self, stations: list[Station], transfer: Transfer, mover: Mover) -> None:
        """Let the compiled loop store what is left of a share; a piece that it can't is stored here, or raises."""
        assert transfer.share is not None
        self.shares.append(transfer.share)
        for station in stations:
            station.slot.pin()
        while failed := mover.drain(transfer.share, self.trace.span, transfer.after):
            for number, piece in failed:
                self._write(stations[number], transfer, transfer.pieces[piece])

    def _store(self, station: Station) -> None:
        assert station.busy is not None
        transfer, piece = station.busy
        try:
            station.wait(Edge.LANDED, self.trace)
            self._write(station, transfer, piece)
        except BaseException as error:
            transfer.fail(error)
        finally:
            station.busy = None
            transfer.left.arrive()

    def _write(self, station: Station, transfer: Transfer, piece: Piece) -> None:
        view = station.slot.view(transfer.block.array.dtype, piece, transfer.block.inverse)
        self.device.host_reads(station.slot.owner)
        begin = time.perf_counter() if self.trace.timed else 0.0
        transfer.store.write(shift(piece.region, transfer.start), view)
        if self.trace.timed:
            self.trace.span("write", begin, time.perf_counter(), view.nbytes)
