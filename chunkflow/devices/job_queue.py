"""What a crew's threads are to do, in order, in a line of `_staging`: they move shares there without Python's lock.

A thread comes back for what Python does itself, and for what there is to say of a share.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from chunkflow.devices.mover import Mover, PieceShare
from chunkflow.devices.protocol import Edge, Latch
from chunkflow.system import native

staging: Any = native.staging  # without it there are no lines

OVER, NOTHING, TOKEN, SHARE, SERVED = range(5)
"""What comes next: nothing ever, nothing yet, a token, a share to be moved, or one that something is to be said of."""

MOVERS = 64
"""Threads that can serve a line; others take shares to move them by themselves."""


class Moved(Protocol):
    """What is moved by threads that share it."""

    share: PieceShare | None
    left: Latch


@dataclass(frozen=True)
class Served:
    """What comes next in a line, of what, which pieces of that the store could not move, and what went wrong."""

    what: int
    moved: Moved | None = None
    failed: Sequence[tuple[int, int]] = ()
    error: BaseException | None = None


class Job:
    """A share in a line: a latch that opens when every part of it is done."""

    __slots__ = ("_job",)

    def __init__(self, job: object) -> None:
        self._job = job

    def put(self) -> None:
        """Let the line's threads have it."""
        staging.put(self._job)

    def arrive(self) -> None:
        """See `chunkflow.devices.protocol.Latch`."""
        staging.arrive(self._job)

    def wait(self, edge: Edge) -> None:
        """See `chunkflow.devices.protocol.Latch`."""
        self._done(wait=True)

    @property
    def is_done(self) -> bool:
        """Whether the latch is open."""
        return self._done(wait=False)[0] == 0

    @property
    def movers(self) -> list[int]:
        """Threads that have moved some of it in the line."""
        _, bits = self._done(wait=False)
        return [i for i in range(bits.bit_length()) if bits >> i & 1]

    def _done(self, *, wait: bool) -> tuple[int, int]:
        found: tuple[int, int] = staging.done(self._job, wait)
        return found


class Line:
    """A queue of shares, and of tokens for what Python does; `pointer` gives the address of an event."""

    def __init__(self, pointer: Callable[[Any], int] = attrgetter("pointer")) -> None:
        self._line, self._pointer, self._numbers = staging.line(), pointer, itertools.count()
        self._jobs: dict[int, tuple[Job, Moved]] = {}  # that may not be done: the line only refers to them

    def job(self, moved: Moved, share: PieceShare, parts: int, after: Sequence[Any], marks: Sequence[Any]) -> Job:
        """A job that is still to be `put`: as many threads as it has parts may move some of a share.

        Nothing is moved before the events `after`; behind what it has uploaded each thread marks its own of `marks`.
        """
        while self._jobs:
            number = next(iter(self._jobs))
            if not self._jobs[number][0].is_done:
                break
            del self._jobs[number]
        number, tables = next(self._numbers), share.tables
        events = [array("q", map(self._pointer, some)) for some in (after, marks)]
        job = Job(staging.job(self._line, number, parts, share.table, tables.pieces, tables.copies, *events))
        self._jobs[number] = job, moved
        return job

    def token(self) -> None:
        """Let a thread come back to Python."""
        staging.token(self._line)

    def over(self) -> None:
        """Nothing follows."""
        staging.over(self._line)

    def stop(self) -> None:
        """Let no thread take another piece."""
        for _, moved in tuple(self._jobs.values()):
            if moved.share is not None:
                moved.share.stop()

    def clear(self) -> None:
        """Forget what was moved: no thread is left."""
        self._jobs.clear()

    def take(self, *, wait: bool) -> Served:
        """What comes next, whatever it is: of a share, one part."""
        what, number = staging.take(self._line, wait)
        return Served(what, self._moved(number))

    def serve(self, mover: Mover, thread: int, span: Callable[..., Any], *, up: bool, wait: bool) -> Served:
        """Let a thread move shares until something else is next, or there is something to say of one.

        A part of that share is still to be ended.
        """
        what, number, failed, error = mover.serve(self._line, thread, span, up=up, wait=wait)
        return Served(what, self._moved(number), failed, error)

    def _moved(self, number: int) -> Moved | None:
        return self._jobs[number][1] if number >= 0 else None
