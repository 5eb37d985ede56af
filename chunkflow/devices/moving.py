"""Pieces moved by the compiled loops of `_staging`, where they were built: tables for them, and what came of it.

Python's lock is taken once for a thread's share of a block instead of several times for each piece. A block takes part
if it is a run or rows in the store and its pieces are runs or rows on the device. All else, and all errors
of stores, are the affair of `chunkflow.crews`. ``CHUNKFLOW_COMPILED=0`` in the environment does without.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from chunkflow.errors import DeviceError
from chunkflow.grid import Piece
from chunkflow.spec import Run

staging: ModuleType | None = None
if os.environ.get("CHUNKFLOW_COMPILED") != "0":
    with suppress(ImportError):  # built without a compiler
        staging = importlib.import_module("chunkflow.devices._staging")

LEAST_ROW = 1 << 10
"""Bytes of rows on the device that the copy engines take one by one."""

STAGES = ("read", "upload", "download", "write")
_NEXT, _NUMBER = 0, 1  # of a share's table
_FAILED = 4  # of a station's row


class Share:
    """A block's pieces, that threads take until there are none.

    Parameters
    ----------
    tables : pair of ndarray
        Of `tabled`.
    run : Run
        Where the block lies in the store.
    device : int
        Address of the block on the device.
    """

    __slots__ = ("copies", "pieces", "table")

    def __init__(self, tables: tuple[np.ndarray, np.ndarray], run: Run, device: int) -> None:
        self.pieces, self.copies = tables
        rows = run.width, run.height, run.pitch, run.plane, run.swap
        self.table = np.array(
            [0, len(self.pieces), run.position, run.fd, device, run.mapped, run.size, *rows], np.int64
        )

    def stop(self) -> None:
        """Let nobody take another piece."""
        self.table[_NEXT] = self.table[_NUMBER]


DRIVER = (
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpy2DAsync_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
)


@cache
def cuda_driver() -> tuple[int, ...] | None:
    """Addresses of the CUDA driver's functions that a `Mover` takes; None where they or the loops are not to be had."""
    if staging is None:
        return None
    try:
        library = ctypes.CDLL("libcuda.so.1")
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in DRIVER]
    except (OSError, AttributeError):
        return None
    return tuple([address for address in found if address])


@lru_cache(256)
def tabled(pieces: tuple[Piece, ...], places: tuple[Piece, ...], itemsize: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Where pieces lie in a run of the store and, as `places`, in a block on the device; None where that isn't simple.

    The first table has a row for each piece: its offset in the run, its bytes, its first copy and the number of its
    copies. The second has one for each copy: offsets in the slot and in the block, distance of rows in the block, their
    width and number. All but numbers are bytes.
    """
    runs: list[tuple[int, ...]] = []
    copies: list[tuple[int, ...]] = []
    for piece, place in zip(pieces, places, strict=True):
        if piece.offset is None:
            return None
        nbytes = piece.size * itemsize
        if place.offset is not None:
            found = [(0, place.offset * itemsize, 0, nbytes, 1)]
        elif place.rows is not None and place.rows.width * itemsize >= LEAST_ROW:
            rows = place.rows
            each = rows.width * rows.height * itemsize
            found = [
                (i * each, start * itemsize, rows.pitch * itemsize, rows.width * itemsize, rows.height)
                for i, start in enumerate(rows.starts)
            ]
        else:
            return None
        runs.append((piece.offset * itemsize, nbytes, len(copies), len(found)))
        copies += found
    return np.array(runs, np.int64).reshape(-1, 4), np.array(copies, np.int64).reshape(-1, 5)


class Mover:
    """One thread's share in moving pieces.

    Parameters
    ----------
    driver : sequence of int
        Addresses of the driver's functions: copies to the device, from it and of rows, and for events record,
        synchronize and elapsed time.
    stream : int
        What copies are enqueued in.
    stations : sequence of (int, int, int)
        Addresses of pinned slots, each with its events: when its copy is done and, where times are asked for, when it
        begins (else 0).
    clock : (int, float)
        An event, and when it was reached in seconds.
    """

    def __init__(
        self,
        driver: Sequence[int],
        stream: int,
        stations: Sequence[tuple[int, int, int]],
        clock: tuple[int, float] = (0, 0.0),
    ) -> None:
        self._driver = np.array(driver, np.int64).tobytes()
        rows = [stream, 0, len(stations), clock[0]]
        for slot, done, begun in stations:
            rows += [slot, done, begun, 0, -1]
        self._thread = np.array(rows, np.int64)
        self._stations = self._thread[4:].reshape(-1, 5)
        self._timed = bool(stations and stations[0][2])
        self._start = clock[1]

    def feed(self, share: Share, span: Callable[..., Any]) -> list[tuple[int, int]]:
        """Upload pieces until none is left, or the store fails. Stations and pieces of those that failed."""
        assert staging is not None
        return self._run(staging.feed, share, span)

    def finish(self, span: Callable[..., Any]) -> None:
        """Wait for what `feed` left on its way: the run ends, or somebody else needs the stations."""
        assert staging is not None
        self._run(staging.finish, Share((np.empty((0, 4), np.int64), np.empty((0, 5), np.int64)), Run(0), 0), span)

    def drain(self, share: Share, span: Callable[..., Any]) -> list[tuple[int, int]]:
        """Store pieces until none is left, or the store fails. Pieces that failed, with the stations that hold them."""
        assert staging is not None
        return self._run(staging.drain, share, span)

    def _run(self, loop: Callable[..., Any], share: Share, span: Callable[..., Any]) -> list[tuple[int, int]]:
        spans = np.empty((2 * (len(share.pieces) + len(self._stations)), 4)) if self._timed else None
        status, _, failed, spanned = loop(
            self._driver, self._thread, share.table, share.pieces, share.copies, spans, self._start
        )
        if spans is not None:
            for stage, begin, end, nbytes in spans[:spanned].tolist():
                span(STAGES[int(stage)], begin, end, int(nbytes))
        if status:
            self._stations[:, _FAILED] = -1
            raise DeviceError(f"the CUDA driver's error {status} ended a copy between host and device")
        if not failed:
            return []
        found = [(k, int(piece)) for k, piece in enumerate(self._stations[:, _FAILED]) if piece >= 0]
        self._stations[:, _FAILED] = -1
        return found
