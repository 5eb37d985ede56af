"""Pieces that the compiled loops of `_transfer` move: their tables, and the results of the loops.

A thread takes Python's lock once for its share of a block, instead of several times for each piece. The loops can move
a block if it is one run or rows in the store and its pieces are runs, rows or planes on the device, or if its chunks
travel as they are stored. Where the store is less simple, `chunkflow.engine.staged.workers` reads or writes each piece
and only enqueues the copies of a piece here, in one call. It also handles all errors of stores.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.encoded_chunks import Packed
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ByteRun, ChunkFiles
from chunkflow.errors import DeviceError
from chunkflow.system import native

staging: Any = native.staging  # without it nothing is made here

STAGES = ("read", "upload", "download", "write")
SPANS = 1 << 8
"""Times that a thread collects before it reports them, which takes Python's lock; there are two for each piece."""

_NEXT, _NUMBER = 0, 1  # of a share's table
_FAILED = 4  # of a buffer's row
_MEMORY, _FILES, _PACKED = -1, -2, -3  # to the loops, in place of a file descriptor


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Where pieces lie, in numbers of 64 bits. All figures but counts are in bytes.

    `pieces` has a row for each piece: its offset in a run of the store, its bytes, its first copy, the number of its
    copies, and whether it lands in one place on the device, from which these copies spread it (or into which they
    gather it). `copies` has a row for each copy: its offsets in the pinned buffer and in the block; and in the block
    the distance of rows, their width and number, the distance of planes and their number. `runs` says whether all
    pieces have an offset in a run; the largest piece that lands has `landing` bytes.
    """

    pieces: np.ndarray
    copies: np.ndarray
    runs: bool
    landing: int


class PieceShare:
    """The pieces of a block, which threads take one after the other until none is left.

    `there` is where the block lies in the store, or its chunks as they are stored. None if that is less simple: then
    Python reads or writes the pieces, and the loops only copy them. `device` is the address of the block there.
    """

    __slots__ = ("device", "fill", "names", "packed", "rows", "streams", "table", "tables")

    def __init__(self, tables: Tables, there: ByteRun | ChunkFiles | Packed | None, device: int) -> None:
        self.tables, self.device, self.streams = tables, device, there is not None
        run, since = there if isinstance(there, ByteRun) else ByteRun(0), 0
        if isinstance(there, ChunkFiles):
            names = [os.fsencode(name) for name in there.names]
            row = np.dtype([("at", np.int64), ("name", f"S{max(map(len, names)) + 1}")])  # with a zero behind it
            self.names = np.array([*zip(there.places, names, strict=True)], row)
            self.fill = np.frombuffer(there.fill, np.uint8)
            run = ByteRun(
                self.names.ctypes.data,
                width=self.names.itemsize,
                pitch=self.fill.size,
                plane=self.fill.ctypes.data,
                fd=_FILES,
                size=there.size,
                swap=there.swap,
            )
            since = there.since
        if isinstance(there, Packed):
            self.packed, (chunks, fetch) = there, there.address
            run = ByteRun(chunks, fd=_PACKED, plane=fetch, size=int(tables.pieces[0, 1]) // there.room)
        fd, mapped = (_MEMORY if of is None else of for of in (run.fd, run.mapped))
        self.rows = run.rows  # which lives as long as its address is in use
        rows_at = 0 if run.rows is None else run.rows.ctypes.data
        where = mapped, run.size, run.width, run.height, run.pitch, run.plane, since, rows_at, run.swap
        self.table = np.array([0, len(tables.pieces), run.position, fd, device, *where], np.int64)

    def stop(self) -> None:
        """Let no thread take another piece."""
        self.table[_NEXT] = self.table[_NUMBER]


DRIVER = (
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy3DAsync_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuStreamWaitEvent",
)


@cache
def cuda_driver() -> tuple[int, ...] | None:
    """Addresses of the CUDA driver's functions that a `Mover` needs; None without the driver or the compiled loops."""
    if staging is None:
        return None
    try:
        library = ctypes.CDLL("libcuda.so.1")
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in DRIVER]
    except (OSError, AttributeError):
        return None
    return tuple([address for address in found if address])


@lru_cache(256)
def tabled(pieces: tuple[Piece, ...], places: tuple[Piece, ...], itemsize: int, *, landing: bool) -> Tables | None:
    """Tables of pieces of a region of the store, which lie in a block as `places`; None if they are too scattered.

    `landing` says whether there is memory on the device where pieces may land.
    """
    runs: list[tuple[int, ...]] = []
    copies: list[tuple[int, ...]] = []
    largest = 0
    for piece, place in zip(pieces, places, strict=True):
        nbytes, rows, lands = piece.size * itemsize, place.rows, False
        if place.offset is not None:
            found = [(0, place.offset * itemsize, 0, nbytes, 1, 0, 1)]
        elif rows is None:
            return None
        else:
            lands = place.lands(itemsize, landing=landing)
            largest = max(largest, nbytes if lands else 0)
            starts, depth = (rows.starts, rows.depth) if lands else (rows.all_starts, 1)
            width, pitch, plane = rows.width * itemsize, rows.pitch * itemsize, rows.plane * itemsize
            each = width * rows.height * depth
            found = [
                (i * each, start * itemsize, pitch, width, rows.height, plane, depth) for i, start in enumerate(starts)
            ]
        offset = -1 if piece.offset is None else piece.offset * itemsize
        runs.append((offset, nbytes, len(copies), len(found), lands))
        copies += found
    return _tables(runs, copies, all(run[0] >= 0 for run in runs), largest)


def _tables(pieces: Sequence[Sequence[int]], copies: Sequence[Sequence[int]], runs: bool, landing: int = 0) -> Tables:
    return Tables(np.array(pieces, np.int64).reshape(-1, 5), np.array(copies, np.int64).reshape(-1, 7), runs, landing)


def one_run(start: int, nbytes: int, device: int) -> PieceShare:
    """A piece of any length that is one run on the device, from `start` on."""
    return PieceShare(_tables([[-1, nbytes, 0, 1, 0]], [[0, start, 0, nbytes, 1, 0, 1]], False), None, device)


@lru_cache(256)
def in_parts(start: int, nbytes: int, most: int) -> Tables:
    """Tables of a run in memory that goes to one run on the device, from `start` on, in parts of up to `most` bytes.

    >>> in_parts(100, 25, 10).copies[:, [1, 3]].tolist()
    [[100, 10], [110, 10], [120, 5]]
    """
    sizes = [(at, min(most, nbytes - at)) for at in range(0, nbytes, most)]
    pieces = [(at, size, i, 1, 0) for i, (at, size) in enumerate(sizes)]
    copies = [(0, start + at, 0, size, 1, 0, 1) for at, size in sizes]
    return _tables(pieces, copies, True)


def gathered(runs: np.ndarray, start: int, most: int) -> Tables:
    """Tables of runs in memory, by address and bytes, that go to one run on the device, in parts of up to `most` bytes.

    >>> tables = gathered(np.array([[5000, 25], [3000, 5]]), 100, 10)
    >>> np.column_stack((tables.pieces[:, :2], tables.copies[:, 1])).tolist()
    [[5000, 10, 100], [5010, 10, 110], [5020, 5, 120], [3000, 5, 125]]
    """
    counts = -(-runs[:, 1] // most)
    first, (addresses, nbytes) = np.repeat(counts.cumsum() - counts, counts), np.repeat(runs, counts, axis=0).T
    done = (np.arange(len(first)) - first) * most
    sizes = np.minimum(most, nbytes - done)
    pieces, copies = (np.zeros((len(sizes), width), np.int64) for width in (5, 7))
    pieces[:, 0], pieces[:, 1], pieces[:, 2], pieces[:, 3] = addresses + done, sizes, np.arange(len(sizes)), 1
    copies[:, 1], copies[:, 3], copies[:, 4], copies[:, 6] = start + sizes.cumsum() - sizes, sizes, 1, 1
    return Tables(pieces, copies, True, 0)


_NONE = in_parts(0, 0, 1)


class BufferAddresses(NamedTuple):
    """Addresses of a pinned buffer, and of the events that mark the end and the begin (or 0) of its copy."""

    host: int
    done: int
    begun: int


class FailedPiece(NamedTuple):
    """A piece that the loops could not read or store, and the number of the thread's buffer that it has."""

    buffer: int
    piece: int


class Served(NamedTuple):
    """What comes next in a job queue, the number of its job if it is one, its failed pieces, the error of all of it."""

    what: int
    job: int | None = None
    failed: Sequence[FailedPiece] = ()
    error: BaseException | None = None


class Mover:
    """The compiled loops, with the stream and the pinned buffers of one thread.

    `driver` has the addresses of the driver's functions (`DRIVER`), `clock` an event and the time in seconds when it
    was reached, `landing` address and bytes of device memory where scattered pieces land. `pointer` gives the address
    of an event.
    """

    def __init__(
        self,
        driver: Sequence[int],
        stream: int,
        buffers: Sequence[BufferAddresses],
        clock: tuple[int, float] = (0, 0.0),
        landing: tuple[int, int] = (0, 0),
        pointer: Callable[[Any], int] = attrgetter("pointer"),
    ) -> None:
        self._driver = _table(tuple(driver))
        rows = [stream, 0, len(buffers), clock[0], *landing]
        self._head = len(rows)
        for host, done, begun in buffers:
            rows += [host, done, begun, 0, -1]
        self._thread = np.array(rows, np.int64)
        self._buffers = self._thread[self._head :].reshape(-1, 5)
        self._timed = bool(buffers and buffers[0].begun)
        self._start, self._pointer = clock[1], pointer
        self._spans = np.empty((SPANS, 4)) if self._timed else None

    def feed(
        self, share: PieceShare, span: Callable[..., Any], after: Sequence[Any], uploaded: Any
    ) -> list[FailedPiece]:
        """Upload pieces until none is left or the store fails; return those that failed.

        The uploads wait for the events `after`, and the event `uploaded` is recorded after them.
        """
        return self._run(staging.feed, share, span, after, self._pointer(uploaded))

    def finish(self, span: Callable[..., Any]) -> None:
        """Wait for the copies that `feed` left pending: the run ends, or Python needs the buffers."""
        self._run(staging.finish, PieceShare(_NONE, ByteRun(0), 0), span)

    def drain(self, share: PieceShare, span: Callable[..., Any], after: Sequence[Any]) -> list[FailedPiece]:
        """Store pieces until none is left or the store fails; return those that failed.

        The downloads wait for the events `after`.
        """
        return self._run(staging.drain, share, span, after)

    def serve(self, jobs: object, thread: int, span: Callable[..., Any], *, up: bool, wait: bool) -> Served:
        """Move shares of a job queue until Python has something to do."""
        what, number, status, failed, spanned = staging.serve(
            jobs, self._driver, self._thread, self._spans, self._start, thread, up, wait
        )
        job = None if number < 0 else number
        try:  # the job that was taken must not get lost
            self._report(self._spans, spanned, span)
            return Served(what, job, self._failed() if failed else (), self._refused(status))
        except BaseException as error:
            return Served(what, job, error=error)

    def _failed(self) -> list[FailedPiece]:
        found = [FailedPiece(k, int(piece)) for k, piece in enumerate(self._buffers[:, _FAILED]) if piece >= 0]
        self._buffers[:, _FAILED] = -1
        return found

    def send(self, share: PieceShare, buffer: int, piece: int, uploaded: Any, *, keep: bool = False) -> None:
        """Enqueue a piece's copies from a buffer, and record the event `uploaded` after them.

        With `keep` the loops wait for these copies before they use the buffer again; otherwise the caller does.
        """
        self._one(staging.send, share, buffer, piece, self._pointer(uploaded), keep)

    def fetch(self, share: PieceShare, buffer: int, piece: int) -> None:
        """Enqueue a piece's copies into a buffer."""
        self._one(staging.fetch, share, buffer, piece, 0, False)

    def _one(
        self, copy: Callable[..., int], share: PieceShare, buffer: int, piece: int, after: int, keep: bool
    ) -> None:
        pieces, copies = share.tables.pieces, share.tables.copies
        _check(copy(self._driver, self._thread, pieces, copies, share.device, buffer, piece, after, keep))

    def _run(
        self,
        loop: Callable[..., Any],
        share: PieceShare,
        span: Callable[..., Any],
        after: Sequence[Any] = (),
        mark: int = 0,
    ) -> list[FailedPiece]:
        tables, waits = share.tables, array("q", map(self._pointer, after))
        spans = np.empty((2 * (len(tables.pieces) + len(self._buffers)), 4)) if self._timed else None
        status, _, failed, spanned = loop(
            self._driver, self._thread, share.table, tables.pieces, tables.copies, spans, self._start, waits, mark
        )
        self._report(spans, spanned, span)
        if error := self._refused(status):
            raise error
        return self._failed() if failed else []

    @staticmethod
    def _report(spans: np.ndarray | None, number: int, span: Callable[..., Any]) -> None:
        if spans is not None:
            for stage, begin, end, nbytes in spans[:number].tolist():
                span(STAGES[int(stage)], begin, end, int(nbytes))

    def _refused(self, status: int) -> DeviceError | None:
        if status:
            self._buffers[:, _FAILED] = -1
        return _error(status)


@cache
def _table(driver: tuple[int, ...]) -> bytes:
    return array("q", driver).tobytes()


def wait_all(stream: int, events: Sequence[int], wait: Callable[[int, int], Any]) -> None:
    """Let a stream wait for events: for several in one compiled call, otherwise by `wait` for each."""
    driver = cuda_driver() if len(events) > 1 else None
    if staging is not None and driver is not None:
        _check(staging.wait(_table(driver), stream, array("q", events)), "the wait of a stream for others")
        return
    for event in events:
        wait(stream, event)


def _error(status: int, what: str = "a copy between host and device") -> DeviceError | None:
    return DeviceError(f"the CUDA driver's error {status} ended {what}") if status else None


def _check(status: int, what: str = "a copy between host and device") -> None:
    if error := _error(status, what):
        raise error
