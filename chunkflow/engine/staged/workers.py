"""Threads that move pieces through pinned memory: upload workers and download workers.

A block is moved in pieces. An upload worker takes the next piece, waits until one of its pinned buffers has been
uploaded, fills it and enqueues its upload on its own lane. A download worker does the reverse. Each thread uses its
buffers in turn, so that one is filled (or stored) while the other is being copied.

Where there are compiled loops (`chunkflow.devices.mover`), threads take shares of blocks from a job queue
(`chunkflow.devices.job_queue`) and move them without Python's lock. With the lock, a dozen threads would keep each
other waiting, and the run. Python does the rest: the first share of each thread, blocks that are less simple in their
store, and errors.
"""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np

from chunkflow.core.grid import Region, shift
from chunkflow.core.memory import Ring
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ByteRun, ChunkFiles
from chunkflow.devices.job_queue import MOVERS, NOTHING, OVER, SERVED, TOKEN
from chunkflow.devices.mover import Mover, PieceShare, Tables, gathered, tabled
from chunkflow.devices.protocol import Block, Device, Edge, Event, HostBuffer, Lane, Pool, shaped
from chunkflow.engine.trace import Stage, Trace
from chunkflow.engine.transfer import PieceTask, ShareTask, Transfer
from chunkflow.planner.transfer_cut import parts
from chunkflow.stores.caches.fetch_buffer import Kept, keeping
from chunkflow.stores.protocol import Sink, Source, files_of, memory_runs, run_of
from chunkflow.system.interrupts import Since
from chunkflow.system.thread_pool import PooledThread

Pieces = tuple[Piece, ...]


class PinnedBuffer:
    """A pinned buffer of one transfer thread, with the events of its pending copy.

    `host` is the memory, `done` marks the end of the copy, and `begun` its begin if times are asked for. `busy` is what
    is being copied.
    """

    __slots__ = ("begun", "busy", "done", "host", "number")

    def __init__(self, number: int, host: HostBuffer, device: Device, timed: bool) -> None:
        self.number, self.host = number, host
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.busy: tuple[Transfer, Piece] | None = None

    def mark_begin(self, lane: Lane) -> None:
        """Mark where the copy begins, if times are asked for."""
        if self.begun is not None:
            lane.record(self.begun)

    def upload(self, lane: Lane, transfer: Transfer, piece: Piece, scratch: Any) -> None:
        """Enqueue the copy of the piece in the buffer."""
        self.mark_begin(lane)
        lane.upload(self.host, transfer.block, piece, scratch)
        lane.record(self.done)
        self.busy = transfer, piece

    def wait(self, edge: Edge, trace: Trace) -> None:
        """Wait for the pending copy, if there is one, and report its time."""
        if self.busy is None:
            return
        self.done.synchronize(edge)
        if self.begun is not None:
            transfer, piece = self.busy
            nbytes = piece.size * transfer.block.array.dtype.itemsize
            stage: Stage = "upload" if transfer.result is None else "download"
            trace.span(stage, self.begun.seconds(), self.done.seconds(), nbytes)
        self.busy = None


class Worker:
    """What a transfer thread has of its own: its number and lane, its buffers (`turns` gives one after the other)."""

    __slots__ = ("_nbytes", "_room", "buffers", "lane", "mover", "number", "scratch", "turns")

    def __init__(self, number: int, lane: Lane, workers: TransferWorkers) -> None:
        device, ring = workers.device, workers.ring
        mine = workers.buffers[number * ring.slots : (number + 1) * ring.slots]
        self.number, self.lane, self.scratch = number, lane, workers.scratch[number]
        self.buffers = [PinnedBuffer(i, host, device, workers.trace.timed) for i, host in enumerate(mine)]
        self.turns, self.mover = itertools.cycle(self.buffers), device.mover(lane, self.buffers, self.scratch)
        self._nbytes = ring.room
        self._room: mmap.mmap | None = None

    @property
    def room(self) -> np.ndarray:
        """Memory for a chunk that fits no pinned buffer. Its pages are made when the thread first writes to them."""
        if self._room is None:
            self._room = mmap.mmap(-1, self._nbytes)
            with suppress(OSError, AttributeError):
                self._room.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(self._room, np.uint8)

    def close(self) -> None:
        """Give back the room, though an error may refer to views of it."""
        if self._room is not None:
            with suppress(OSError, AttributeError):
                self._room.madvise(mmap.MADV_DONTNEED)


class TransferWorkers:
    """Threads that take pieces from one queue. Where there is a job queue, each piece in `queue` has a token in it."""

    up: bool
    """Whether pieces go to the device."""

    def __init__(self, device: Device, pool: Pool, ring: Ring, trace: Trace) -> None:
        self.device, self.pool, self.ring, self.trace = device, pool, ring, trace
        self.queue: SimpleQueue[PieceTask | None] = SimpleQueue()
        self.stopping = False
        self.error: BaseException | None = None
        self.since = Since()
        self.begun = device.latch(1)
        self.threads: list[PooledThread] = []
        self.over = self.shut = False
        self.gate = threading.Lock()
        self.jobs = None if device.job_queue is None else device.job_queue()
        self.buffers = pool.host_buffers(ring.threads * ring.slots, ring.slot_bytes)
        self.scratch = [pool.allocate(ring.scratch) if ring.scratch else None for _ in range(ring.threads)]
        for buffer in self.buffers:
            device.host_writes(buffer.owner)

    def _start(self) -> None:
        """Start the threads once there is something to do, so that the first works before the last one has begun."""
        self.begun.arrive()
        for number in range(self.ring.threads):
            thread = PooledThread(self._main, (number,), f"chunkflow-{'feed' if self.up else 'drain'}-{number}")
            self.threads.append(thread)
            thread.start()

    def _main(self, number: int) -> None:
        self.begun.wait(Edge.PUBLISHED)
        with self.gate:
            if self.shut:  # whoever started the thread was interrupted, and has given up
                return
        worker: Worker | None = None
        try:
            with (
                self.device.attach(),
                closing(self.device.lane()) as lane,
                closing(Worker(number, lane, self)) as worker,
                keeping(Kept()),
            ):
                self.work(worker)
        except BaseException as error:  # of a copy that was still pending: a transfer keeps its own errors
            if worker is not None:
                self.error = error
            if worker is None or self.jobs is not None:  # if no other thread is left, the run would wait for these jobs
                self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """Fail every further task, so that nobody waits for it."""
        while (task := self.next()) is not None:
            task.transfer.fail(error)
            task.transfer.left.arrive()

    def work(self, worker: Worker) -> None:
        """Move pieces, and shares by the compiled loops, until nothing follows."""
        raise NotImplementedError

    def next(self, number: int = 0, mover: Mover | None = None, *, wait: bool = True) -> PieceTask | ShareTask | None:
        """The next task for Python; None if nothing follows.

        With a `mover`, which needs all of the thread's buffers, the thread first moves shares that need no Python. An
        error there fails the share. `Empty` is raised if there is no task yet, and the thread is not to `wait`.
        """
        if self.jobs is None:
            return self.queue.get(wait)
        while True:
            if mover is None or number >= MOVERS:
                served = self.jobs.take(wait=wait)
            else:
                served = self.jobs.serve(mover, number, self.trace.span, up=self.up, wait=wait)
            task: PieceTask | ShareTask | None = None
            if served.what == TOKEN:
                task = self.queue.get()
            elif served.job is not None:
                task = ShareTask(cast(Transfer, self.jobs.moved(served.job)), served.failed)
            if served.error is not None:
                if task is None:
                    raise served.error
                task.transfer.fail(served.error)
            elif served.what == OVER:
                return None
            elif served.what == NOTHING and not wait:
                raise Empty
            elif served.what == NOTHING:  # the thread only had times to report
                continue
            elif served.what == SERVED and not served.failed:
                assert task is not None
                task.transfer.left.arrive()
                continue
            return task

    def share(
        self, store: Source | Sink, region: Region, block: Block, pieces: Pieces, places: Pieces
    ) -> PieceShare | None:
        """Describe a region to the compiled loops: its `pieces`, and their `places` in the block.

        None where there are no compiled loops, or they cannot move such pieces.
        """
        tables = self.tables(pieces, places, block.array.dtype.itemsize) if self.jobs is not None else None
        if tables is None:
            return None
        there: ByteRun | ChunkFiles | None = None
        if store.spec.order == block.order:
            if (runs := memory_runs(store, region)) is not None and (start := _start(places)) is not None:
                item = block.array.dtype.itemsize
                found = gathered(runs, start * item, self.ring.slot_bytes)
                return PieceShare(found, ByteRun(0), self.device.address(block.array))
            there = run_of(store, region) if tables.runs else None
            there = files_of(store, region, pieces) if there is None else there
        return PieceShare(tables, there, self.device.address(block.array))

    def tables(self, pieces: Pieces, places: Pieces, item: int) -> Tables | None:
        """Tables of pieces and their places in a block; None if the compiled loops cannot move them."""
        tables = tabled(pieces, places, item, landing=self.ring.scratch > 0)
        return tables if tables is not None and tables.landing <= self.ring.scratch else None

    def publish(self, transfer: Transfer, share: PieceShare | None, pieces: Pieces) -> None:
        """Give a transfer to the threads."""
        transfer.share, transfer.pieces = share, pieces
        transfer.published.arrive()
        if self.jobs is not None and share is not None and share.streams:
            parts = min(len(share.tables.pieces), self.ring.threads)
            marks = transfer.buffer.uploaded if transfer.buffer is not None else ()
            job = self.jobs.job(transfer, share, parts, transfer.after, marks)
            transfer.left = job
            job.put()
        else:
            transfer.left = self.device.latch(len(pieces))
            for number in range(len(pieces)):
                self.queue.put(PieceTask(transfer, number))
                if self.jobs is not None:
                    self.jobs.token()
        if not self.threads:
            self._start()

    def finish(self) -> None:
        """Say that nothing more will be published: threads end when all is done."""
        if not self.over:
            self.over = True
            if self.jobs is not None:
                self.jobs.over()
                return
            for _ in self.threads:
                self.queue.put(None)

    def _join(self) -> None:
        self.finish()
        if self.stopping and self.jobs is not None:
            self.jobs.stop()
        for shut in (False, True):  # once the gate is shut no thread begins; one that has just begun is waited for
            with self.gate:
                self.shut = shut
            for thread in self.threads:
                if thread.ident is not None:  # else it was not started, or will find the gate shut
                    thread.join()

    def close(self) -> None:
        """End all threads. They use addresses and files that are given back next."""
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                self._join()
                break
            except KeyboardInterrupt as error:
                interrupt, self.stopping = error, True
        if self.jobs is not None:
            self.jobs.clear()
        self.pool.release_host(self.buffers)
        for scratch in self.scratch:
            if scratch is not None:
                self.pool.free(scratch)
        self.scratch.clear()
        failure, self.error = self.error, None
        if interrupt is not None:
            raise interrupt
        if failure is not None and not self.since.failed:  # else the run has failed already with another error
            raise failure


def _start(places: Pieces) -> int | None:
    """Where pieces that follow one another begin in a block, in elements; None if they don't."""
    sizes = itertools.accumulate([place.size for place in places], initial=places[0].offset or 0)
    return places[0].offset if all(place.offset == at for place, at in zip(places, sizes, strict=False)) else None


class UploadWorkers(TransferWorkers):
    """Fill buffers from the store and upload them.

    A chunk that fits no buffer goes through several in parts. One thread decodes it into its room, while others decode
    others. Pinned buffers for whole chunks would take as long to pin as they are used, and would not stay in the cache.
    """

    up = True

    def work(self, worker: Worker) -> None:
        number, lane, buffers, mover = worker.number, worker.lane, worker.buffers, worker.mover
        previous: Transfer | None = None
        shared = False  # whether copies of shares, and no others, may be pending
        while (task := self.next(number, mover if shared and not any(b.busy for b in buffers) else None)) is not None:
            transfer = task.transfer
            try:
                if mover is not None and shared and isinstance(task, PieceTask):
                    mover.finish(self.trace.span)
                    shared = False
                if self.stopping or transfer.error is not None:
                    continue
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    if isinstance(task, PieceTask):
                        lane.wait(transfer.after, Edge.OVERWRITE)
                    previous = transfer
                if isinstance(task, PieceTask):
                    self._upload(worker, task)
                else:
                    assert mover is not None
                    shared = True
                    self._upload_share(worker, task, mover)
            except BaseException as error:
                transfer.fail(error)
            finally:
                transfer.left.arrive()
        for buffer in buffers:
            buffer.wait(Edge.REFILL, self.trace)
        if mover is not None and shared:
            mover.finish(self.trace.span)

    def _upload_share(self, worker: Worker, task: ShareTask, mover: Mover) -> None:
        """Let the compiled loop move the rest of a share. Pieces that it cannot read are read here, or raise."""
        transfer, failed = task.transfer, task.failed
        share, target = transfer.share, transfer.buffer
        assert share is not None
        assert target is not None
        mark = target.uploaded[worker.number]
        for buffer in worker.buffers:
            buffer.wait(Edge.REFILL, self.trace)
            buffer.host.pin()
        while failed := failed or mover.feed(share, self.trace.span, transfer.after, mark):
            for which, piece in failed:  # their buffers are free
                self._resend(worker.buffers[which], transfer, piece, mover, mark)
            failed = ()
        target.fillers.add(worker.number)

    def _resend(self, buffer: PinnedBuffer, transfer: Transfer, piece: int, mover: Mover, mark: Event) -> None:
        """Read and upload a piece that the compiled loop could not read."""
        assert transfer.share is not None
        self._fill(buffer, transfer, transfer.pieces[piece])
        mover.send(transfer.share, buffer.number, piece, mark, keep=True)

    def _fill(self, buffer: PinnedBuffer, transfer: Transfer, piece: Piece) -> None:
        """Read a piece into a buffer."""
        self.device.host_writes(buffer.host.owner)
        transfer.read(piece, buffer.host.view(transfer.block.array.dtype, piece, transfer.block.inverse), self.trace)
        buffer.host.pin()

    def free(self, worker: Worker) -> PinnedBuffer:
        """The worker's next buffer, once its last copy is done."""
        buffer = next(worker.turns)
        buffer.wait(Edge.REFILL, self.trace)
        self.device.host_writes(buffer.host.owner)
        return buffer

    def _upload(self, worker: Worker, task: PieceTask) -> None:
        """Read a piece, and enqueue its upload."""
        transfer, piece = task.transfer, task.transfer.pieces[task.piece]
        target, share = transfer.buffer, transfer.share
        assert target is not None
        if piece.size * transfer.block.array.dtype.itemsize > self.ring.slot_bytes:
            self._upload_large(worker, transfer, piece)
            return
        buffer = next(worker.turns)
        buffer.wait(Edge.REFILL, self.trace)
        self._fill(buffer, transfer, piece)
        if worker.mover is not None and share is not None:
            worker.mover.send(share, buffer.number, task.piece, target.uploaded[worker.number])
            buffer.busy = transfer, piece
        else:
            buffer.upload(worker.lane, transfer, piece, worker.scratch)
            worker.lane.record(target.uploaded[worker.number])
        target.fillers.add(worker.number)

    def _upload_large(self, worker: Worker, transfer: Transfer, piece: Piece) -> None:
        """Read a piece into the room, and upload it in parts."""
        block, target = transfer.block, transfer.buffer
        assert target is not None
        dtype = block.array.dtype
        whole = shaped(worker.room, dtype, piece.shape, block.inverse)
        transfer.read(piece, whole, self.trace)
        found = parts(piece, block.array.shape, block.order, self.ring.slot_bytes // dtype.itemsize)
        inner, places = map(tuple, zip(*found, strict=True))
        tables = self.tables(inner, places, dtype.itemsize) if worker.mover is not None else None
        if tables is not None and tables.runs:
            self.move(worker, transfer, tables)
        else:
            for part, place in found:
                buffer = self.free(worker)
                buffer.host.view(dtype, part, block.inverse)[...] = whole[part.region]
                buffer.host.pin()
                buffer.upload(worker.lane, transfer, place, worker.scratch)
            worker.lane.record(target.uploaded[worker.number])
        target.fillers.add(worker.number)

    def move(self, worker: Worker, transfer: Transfer, tables: Tables) -> None:
        """Upload the contents of a room by one call: with one for each part, threads would wait for Python's lock."""
        assert transfer.buffer is not None
        assert worker.mover is not None
        for _ in worker.buffers:
            self.free(worker).host.pin()
        run = ByteRun(worker.room.ctypes.data)
        share = PieceShare(tables, run, self.device.address(transfer.block.array))
        try:
            worker.mover.feed(share, self._copied, (), transfer.buffer.uploaded[worker.number])
        finally:
            worker.mover.finish(self._copied)

    def _copied(self, stage: Stage, begin: float, end: float, nbytes: int) -> None:
        """Report a copy. Copies to pinned buffers are part of reading, whose bytes are counted already."""
        self.trace.span(stage, begin, end, 0 if stage == "read" else nbytes)


class DownloadWorkers(TransferWorkers):
    """Download results into buffers and store them."""

    up = False

    def work(self, worker: Worker) -> None:
        number, lane, buffers, mover = worker.number, worker.lane, worker.buffers, worker.mover
        pending: list[PinnedBuffer] = []
        previous: Transfer | None = None
        shared = False
        while True:
            try:  # store what has landed rather than wait for more tasks
                task = self.next(number, mover if shared and not pending else None, wait=not pending)
            except Empty:
                self._store(pending.pop(0))
                continue
            if task is None:
                break
            transfer = task.transfer
            while len(pending) == len(buffers) or (pending and isinstance(task, ShareTask)):
                self._store(pending.pop(0))
            if self.stopping or transfer.error is not None:
                self._end(lane)
                transfer.left.arrive()
                continue
            try:
                if transfer is not previous:
                    transfer.published.wait(Edge.PUBLISHED)
                    if isinstance(task, PieceTask):
                        lane.wait(transfer.after, Edge.COMPUTED)
                    previous = transfer
                if isinstance(task, ShareTask):
                    assert mover is not None
                    self._download_share(buffers, task, mover)
                    shared = True
                    transfer.left.arrive()
                    continue
                buffer = next(worker.turns)
                buffer.host.pin()
                if mover is not None and transfer.share is not None:
                    mover.fetch(transfer.share, buffer.number, task.piece)
                else:
                    buffer.mark_begin(lane)
                    lane.download(transfer.block, transfer.pieces[task.piece], buffer.host, worker.scratch)
                    lane.record(buffer.done)
                buffer.busy = transfer, transfer.pieces[task.piece]
                pending.append(buffer)
            except BaseException as error:
                transfer.fail(error)
                self._end(lane)
                transfer.left.arrive()
        for buffer in pending:
            self._store(buffer)

    @staticmethod
    def _end(lane: Lane) -> None:
        """Wait for pending copies. They read a result that nobody will store, and that is freed next."""
        with suppress(Exception):
            lane.synchronize()

    def _download_share(self, buffers: list[PinnedBuffer], task: ShareTask, mover: Mover) -> None:
        """Let the compiled loop move the rest of a share. Pieces that it cannot store are stored here, or raise."""
        transfer, failed = task.transfer, task.failed
        assert transfer.share is not None
        for buffer in buffers:
            buffer.host.pin()
        while failed := failed or mover.drain(transfer.share, self.trace.span, transfer.after):
            for number, piece in failed:
                self._write(buffers[number], transfer, transfer.pieces[piece])
            failed = ()

    def _store(self, buffer: PinnedBuffer) -> None:
        assert buffer.busy is not None
        transfer, piece = buffer.busy
        try:
            buffer.wait(Edge.LANDED, self.trace)
            self._write(buffer, transfer, piece)
        except BaseException as error:
            transfer.fail(error)
        finally:
            buffer.busy = None
            transfer.left.arrive()

    def _write(self, buffer: PinnedBuffer, transfer: Transfer, piece: Piece) -> None:
        view = buffer.host.view(transfer.block.array.dtype, piece, transfer.block.inverse)
        self.device.host_reads(buffer.host.owner)
        begin = time.perf_counter() if self.trace.timed else 0.0
        transfer.store.write(shift(piece.region, transfer.start), view)
        if self.trace.timed:
            self.trace.span("write", begin, time.perf_counter(), view.nbytes)
