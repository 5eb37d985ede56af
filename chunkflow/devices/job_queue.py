"""The job queue of transfer threads: shares that the compiled loops of `_transfer` move without Python's lock.

A thread comes back to Python for pieces that Python reads or writes itself, and to report on a share.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from chunkflow.devices.mover import Mover, PieceShare, Served
from chunkflow.devices.protocol import Edge, Latch
from chunkflow.system import native

staging: Any = native.staging  # without it there are no job queues

OVER, NOTHING, TOKEN, SHARE, SERVED = range(5)
"""What comes next: nothing ever, nothing yet, a token, a share that is to be moved, or a share to report on."""

MOVERS = 64
"""Threads that the compiled loop can serve; further ones take shares and move them by themselves."""


class Moved(Protocol):
    """A transfer that several threads move together."""

    share: PieceShare | None
    left: Latch


class Job:
    """A share in a job queue, and the latch that opens when every part of it is done."""

    __slots__ = ("_job",)

    def __init__(self, job: object) -> None:
        self._job = job

    def put(self) -> None:
        """Put the job into its queue."""
        staging.put(self._job)

    def arrive(self) -> None:
        staging.arrive(self._job)

    def wait(self, edge: Edge) -> None:
        self._done(wait=True)

    @property
    def is_done(self) -> bool:
        """Whether the latch is open."""
        return self._done(wait=False)[0] == 0

    @property
    def movers(self) -> list[int]:
        """Numbers of the threads that moved some of it in the compiled loop."""
        _, bits = self._done(wait=False)
        return [i for i in range(bits.bit_length()) if bits >> i & 1]

    def _done(self, *, wait: bool) -> tuple[int, int]:
        found: tuple[int, int] = staging.done(self._job, wait)
        return found


class JobQueue:
    """A queue of shares, and of tokens for what Python does; `pointer` gives the address of an event."""

    def __init__(self, pointer: Callable[[Any], int] = attrgetter("pointer")) -> None:
        self._queue, self._pointer, self._numbers = staging.line(), pointer, itertools.count()
        self._jobs: dict[int, tuple[Job, Moved]] = {}  # those that may not be done: the queue only has their numbers

    def job(self, moved: Moved, share: PieceShare, parts: int, after: Sequence[Any], marks: Sequence[Any]) -> Job:
        """A job that is still to be `put`. It has `parts`, and as many threads may move some of its share.

        Copies wait for the events `after`. Each thread records its own of the events `marks` after its uploads.
        """
        while self._jobs:
            number = next(iter(self._jobs))
            if not self._jobs[number][0].is_done:
                break
            del self._jobs[number]
        number, tables = next(self._numbers), share.tables
        events = [array("q", map(self._pointer, some)) for some in (after, marks)]
        job = Job(staging.job(self._queue, number, parts, share.table, tables.pieces, tables.copies, *events))
        self._jobs[number] = job, moved
        return job

    def token(self) -> None:
        """Let one thread come back to Python."""
        staging.token(self._queue)

    def over(self) -> None:
        """Say that nothing follows."""
        staging.over(self._queue)

    def stop(self) -> None:
        """Let the threads take no further piece."""
        for _, moved in tuple(self._jobs.values()):
            if moved.share is not None:
                moved.share.stop()

    def clear(self) -> None:
        """Forget all transfers, once no thread is left."""
        self._jobs.clear()

    def take(self, *, wait: bool) -> Served:
        """Take what comes next: a token, or one part of a share."""
        what, number = staging.take(self._queue, wait)
        return Served(what, None if number < 0 else number)

    def serve(self, mover: Mover, thread: int, span: Callable[..., Any], *, up: bool, wait: bool) -> Served:
        """Let a thread move shares until a token is next or there is a share to report on.

        The caller counts the arrival for its part of that share.
        """
        return mover.serve(self._queue, thread, span, up=up, wait=wait)

    def moved(self, number: int) -> Moved:
        """The transfer of a job that may not be done."""
        return self._jobs[number][1]
