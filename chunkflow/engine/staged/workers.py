"""Threads that move pieces through pinned memory: a crew of feeders and one of drainers.

A block is moved in pieces. Feeders take the next piece, wait until one of their own pinned slots has been
uploaded, fill it and enqueue its upload on their own lane; drainers do the reverse. Each thread keeps
its slots in turn, so that one is filled (or stored) while the other is on the link.

Where there are compiled loops (`chunkflow.devices.mover`), threads stand in a line (`chunkflow.devices.job_queue`) and
move one block after the other by these, without Python's lock: for that a dozen threads would keep each other waiting,
and the run. What follows here is for the first share of each, for blocks that are less simple in their store, and
errors.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import cast

from chunkflow.core.grid import Region, shift
from chunkflow.core.memory import Ring
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ByteRun, ChunkFiles
from chunkflow.devices.job_queue import MOVERS, NOTHING, OVER, SERVED, TOKEN
from chunkflow.devices.mover import Mover, PieceShare, tabled
from chunkflow.devices.protocol import Block, Device, Edge, Event, Lane, Pool
from chunkflow.engine.staged.stations import PinnedBuffer
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Failed, Transfer, Work
from chunkflow.stores.caches.fetch_buffer import Kept, keeping
from chunkflow.stores.protocol import Sink, Source, files_of, run_of
from chunkflow.system.interrupts import Since
from chunkflow.system.thread_pool import PooledThread

Pieces = tuple[Piece, ...]


class TransferWorkers:
    """Threads that take pieces from one queue, with a lane and pinned slots each. In a line a token stands for each."""

    up: bool
    """Whether pieces go to the device."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace, name: str) -> None:
        self.device, self.pool, self.ring, self.trace, self.name = device, pool, ring, trace, name
        self.queue: SimpleQueue[Work | None] = SimpleQueue()
        self.stopping = False
        self.error: BaseException | None = None
        self.since = Since()
        self.begun = device.latch(1)
        self.threads: list[PooledThread] = []
        self.over = self.shut = False
        self.gate = threading.Lock()
        self.line = None if device.lines is None else device.lines()
        self.slots = pool.host_buffers(ring.threads * ring.slots, ring.slot_bytes)
        self.scratch = [pool.allocate(ring.scratch) if ring.scratch else None for _ in range(ring.threads)]
        for slot in self.slots:
            device.host_writes(slot.owner)

    def _start(self) -> None:
        """Start the threads: with something to do each, so that the first is at work before the last one begins."""
        self.begun.arrive()
        for number in range(self.ring.threads):
            thread = PooledThread(self._main, (number,), f"chunkflow-{self.name}-{number}")
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
                stations = [PinnedBuffer(i, slot, self.device, self.trace.timed) for i, slot in enumerate(mine)]
                mover = self.device.mover(lane, [(s.slot, s.done, s.begun) for s in stations], self.scratch[number])
            except BaseException as error:
                if lane is not None:
                    lane.close()
                self._refuse(error)
                return
            try:
                try:
                    with keeping(Kept()):
                        self.work(number, lane, stations, mover)
                finally:
                    lane.close()
            except BaseException as error:  # of what was still on its way: each piece's own errors are kept with it
                self.error = error
                if self.line is not None:  # else, if no other thread is left, the run would wait for what is in it
                    self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """Fail whatever comes: nobody may wait for it."""
        while (work := self.next()) is not None:
            work[0].fail(error)
            work[0].left.arrive()

    def work(self, number: int, lane: Lane, stations: list[PinnedBuffer], mover: Mover | None) -> None:
        """Move pieces, and shares by the `mover`, until nothing follows."""
        raise NotImplementedError

    def next(self, number: int = 0, mover: Mover | None = None, *, wait: bool = True) -> Work | None:
        """The next piece, or share of which Python has something to do; None if nothing follows.

        A thread with a `mover`, whose stations are free, moves other shares meanwhile. What goes wrong then fails the
        share.

        Raises
        ------
        Empty
            There is none yet, and nobody is to `wait`.
        """
        if self.line is None:
            return self.queue.get(wait)
        while True:
            if mover is None or number >= MOVERS:
                served = self.line.take(wait=wait)
            else:
                served = self.line.serve(mover, number, self.trace.span, up=self.up, wait=wait)
            work: Work | None = None
            if served.what == TOKEN:
                work = self.queue.get()
            elif served.moved is not None:
                work = cast(Transfer, served.moved), -1, served.failed
            if served.error is not None:
                if work is None:
                    raise served.error
                work[0].fail(served.error)
            elif served.what == OVER:
                return None
            elif served.what == NOTHING and not wait:
                raise Empty
            elif served.what == NOTHING:  # the thread just had times to tell
                continue
            elif served.what == SERVED and not served.failed:
                assert work is not None
                work[0].left.arrive()
                continue
            return work

    def share(
        self, store: Source | Sink, region: Region, block: Block, pieces: Pieces, places: Pieces
    ) -> PieceShare | None:
        """What the compiled loops must know to move a region as `pieces`, that lie at `places` in the block.

        None where there are no such loops, or more is to be done than they can.
        """
        item, landing = block.array.dtype.itemsize, self.ring.scratch > 0
        tables = tabled(pieces, places, item, landing=landing) if self.line is not None else None
        if tables is None or tables.landing > self.ring.scratch:
            return None
        there: ByteRun | ChunkFiles | None = None
        if store.spec.order == block.order:
            there = run_of(store, region) if tables.runs else None
            there = files_of(store, region, pieces) if there is None else there
        return PieceShare(tables, there, self.device.address(block.array))

    def publish(self, transfer: Transfer, share: PieceShare | None, pieces: Pieces) -> None:
        """Let the threads have a transfer."""
        transfer.share, transfer.pieces = share, pieces
        transfer.published.arrive()
        if self.line is not None and share is not None and share.streams:
            parts = min(len(pieces), self.ring.threads)
            marks = transfer.slot.uploaded if transfer.slot is not None else ()
            job = self.line.job(transfer, share, parts, transfer.after, marks)
            transfer.left = job
            job.put()
        else:
            transfer.left = self.device.latch(len(pieces))
            for number in range(len(pieces)):
                self.queue.put((transfer, number, ()))
                if self.line is not None:
                    self.line.token()
        if not self.threads:
            self._start()

    def finish(self) -> None:
        """Nothing more will be published: threads end when all is done."""
        if not self.over:
            self.over = True
            if self.line is not None:
                self.line.over()
                return
            for _ in self.threads:
                self.queue.put(None)

    def _join(self) -> None:
        self.finish()
        if self.stopping and self.line is not None:
            self.line.stop()
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
        if self.line is not None:
            self.line.clear()
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


class UploadWorkers(TransferWorkers):
    """Fill slots from the store and upload them."""

    up = True

    def work(self, number: int, lane: Lane, stations: list[PinnedBuffer], mover: Mover | None) -> None:
        """See `TransferWorkers.work`."""
        turns = itertools.cycle(stations)
        previous: Transfer | None = None
        shared = False  # whether copies of shares, and no others, may be on their way
        while (work := self.next(number, mover if shared and not any(s.busy for s in stations) else None)) is not None:
            transfer, piece, failed = work
            try:
                if mover is not None and shared and piece >= 0:
                    mover.finish(self.trace.span)
                    shared = False
                if self.stopping or transfer.error is not None:
                    continue
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    if piece >= 0:
                        lane.wait(transfer.after, Edge.OVERWRITE)
                    previous = transfer
                if piece >= 0:
                    self._feed(number, lane, turns, transfer, piece, mover)
                else:
                    assert mover is not None
                    shared = True
                    self._feed_share(number, lane, stations, transfer, mover, failed)
            except BaseException as error:
                transfer.fail(error)
            finally:
                transfer.left.arrive()
        for station in stations:
            station.wait(Edge.REFILL, self.trace)
        if mover is not None and shared:
            mover.finish(self.trace.span)

    def _feed_share(
        self, number: int, lane: Lane, stations: list[PinnedBuffer], transfer: Transfer, mover: Mover, failed: Failed
    ) -> None:
        """Let the compiled loop move what is left of a share; a piece that it can't read is read here, or raises."""
        share, slot = transfer.share, transfer.slot
        assert share is not None
        assert slot is not None
        mark = slot.uploaded[number]
        for station in stations:
            station.wait(Edge.REFILL, self.trace)
            station.slot.pin()
        failed = failed or mover.feed(share, self.trace.span, transfer.after, mark)
        while failed:
            for which, piece in failed:  # whose slots are free
                self._resend(stations[which], transfer, piece, mover, mark)
            failed = mover.feed(share, self.trace.span, transfer.after, mark)
        slot.fillers.add(number)

    def _resend(self, station: PinnedBuffer, transfer: Transfer, piece: int, mover: Mover, mark: Event) -> None:
        """Read and upload a piece that the compiled loop could not read."""
        assert transfer.share is not None
        self._fill(station, transfer, transfer.pieces[piece])
        mover.send(transfer.share, station.number, piece, mark, keep=True)

    def _fill(self, station: PinnedBuffer, transfer: Transfer, piece: Piece) -> None:
        """Read a piece into a slot."""
        self.device.host_writes(station.slot.owner)
        transfer.read(piece, station.slot.view(transfer.block.array.dtype, piece, transfer.block.inverse), self.trace)
        station.slot.pin()

    def _feed(
        self,
        number: int,
        lane: Lane,
        turns: Iterator[PinnedBuffer],
        transfer: Transfer,
        index: int,
        mover: Mover | None,
    ) -> None:
        slot, share, piece = transfer.slot, transfer.share, transfer.pieces[index]
        assert slot is not None
        station = next(turns)
        station.wait(Edge.REFILL, self.trace)
        self._fill(station, transfer, piece)
        if mover is not None and share is not None:
            mover.send(share, station.number, index, slot.uploaded[number])
            station.busy = transfer, piece
        else:
            station.upload(lane, transfer, piece, self.scratch[number])
            lane.record(slot.uploaded[number])
        slot.fillers.add(number)


class DownloadWorkers(TransferWorkers):
    """Download results into slots and store them."""

    up = False

    def work(self, number: int, lane: Lane, stations: list[PinnedBuffer], mover: Mover | None) -> None:
        """See `TransferWorkers.work`."""
        turns = itertools.cycle(stations)
        flying: list[PinnedBuffer] = []
        previous: Transfer | None = None
        shared = False
        while True:
            try:  # store what has landed rather than wait for more work
                work = self.next(number, mover if shared and not flying else None, wait=not flying)
            except Empty:
                self._store(flying.pop(0))
                continue
            if work is None:
                break
            transfer, piece, failed = work
            while len(flying) == len(stations) or (flying and piece < 0):
                self._store(flying.pop(0))
            if self.stopping or transfer.error is not None:
                self._end(lane)
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
                    self._drain_share(stations, transfer, mover, failed)
                    shared = True
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
                self._end(lane)
                transfer.left.arrive()
        for station in flying:
            self._store(station)

    @staticmethod
    def _end(lane: Lane) -> None:
        """Wait for what is on the link, and still reads a result of which nobody will store it: that is freed next."""
        with suppress(Exception):
            lane.synchronize()

    def _drain_share(self, stations: list[PinnedBuffer], transfer: Transfer, mover: Mover, failed: Failed) -> None:
        """Let the compiled loop store what is left of a share; a piece that it can't is stored here, or raises."""
        assert transfer.share is not None
        for station in stations:
            station.slot.pin()
        failed = failed or mover.drain(transfer.share, self.trace.span, transfer.after)
        while failed:
            for number, piece in failed:
                self._write(stations[number], transfer, transfer.pieces[piece])
            failed = mover.drain(transfer.share, self.trace.span, transfer.after)

    def _store(self, station: PinnedBuffer) -> None:
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

    def _write(self, station: PinnedBuffer, transfer: Transfer, piece: Piece) -> None:
        view = station.slot.view(transfer.block.array.dtype, piece, transfer.block.inverse)
        self.device.host_reads(station.slot.owner)
        begin = time.perf_counter() if self.trace.timed else 0.0
        transfer.store.write(shift(piece.region, transfer.start), view)
        if self.trace.timed:
            self.trace.span("write", begin, time.perf_counter(), view.nbytes)
