"""The race detector: a device around another one, which finds accesses that nothing orders.

Every host thread and every lane has a vector clock (Fidge 1988, Mattern 1989): for each of the others, how far it is
known to have come. Enqueueing passes the thread's clock to the lane. Recording an event copies the lane's clock, and
waiting for the event takes it over. Each declared access of a buffer or a result is compared with the earlier accesses
of the same memory. If one of the two writes and the later one does not know of the earlier one, a `RaceError` is
raised, whether or not the data happened to come out right.

Orders are those of the program, taken when work is enqueued. So a race is found in every mode of the device.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from chunkflow.core.pieces import Piece
from chunkflow.devices.protocol import Block, Device, Edge, Event, HostBuffer, Lane, Latch, PartOf, Pending
from chunkflow.errors import RaceError

T = TypeVar("T")
Clock = dict[int, int]


def _join(clock: Clock, other: Clock) -> None:
    for actor, time in other.items():
        if clock.get(actor, 0) < time:
            clock[actor] = time


class _Actor:
    """A host thread or a lane. Its own actions are in order."""

    __slots__ = ("clock", "name", "number")

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.clock: Clock = {number: 1}

    def tick(self) -> None:
        self.clock[self.number] += 1


class _Memory:
    """The last accesses of one owner's memory, by part; None is all of it."""

    def __init__(self, owner: object) -> None:
        self.owner = owner  # kept alive, so that no other object gets its id
        self.writes: dict[object, tuple[_Actor, int]] = {}
        self.reads: dict[object, dict[_Actor, int]] = {}


class _Local(threading.local):
    """The actors of one thread."""

    acting: _Actor | None = None
    thread: _Actor | None = None


class RaceDetector:
    """The clocks and accesses so far."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._numbers = itertools.count()
        self._local = _Local()
        self._memory: dict[int, _Memory] = {}

    def actor(self, name: str) -> _Actor:
        """A new actor."""
        return _Actor(next(self._numbers), name)

    def here(self) -> _Actor:
        """The actor that the calling thread acts for: itself, or the lane whose call it makes."""
        local = self._local
        if local.acting is not None:
            return local.acting
        if local.thread is None:
            local.thread = self.actor(threading.current_thread().name)
        return local.thread

    @contextmanager
    def acting(self, actor: _Actor) -> Iterator[None]:
        """Let the calling thread act for `actor`."""
        before = self._local.acting
        self._local.acting = actor
        try:
            yield
        finally:
            self._local.acting = before

    def access(self, actor: _Actor, owner: object, part: object, *, write: bool) -> None:
        """Record an access; raise if it conflicts with an earlier one that is not ordered before it."""
        memory = self._memory.setdefault(id(owner), _Memory(owner))
        for other, (writer, time) in memory.writes.items():
            if part is None or other is None or part == other:
                self._check(actor, writer, time, owner, part, "write", write=write)
        if write:
            for other, readers in memory.reads.items():
                if part is None or other is None or part == other:
                    for reader, time in readers.items():
                        self._check(actor, reader, time, owner, part, "read", write=True)
        now = actor.clock[actor.number]
        if write:
            if part is None:
                memory.writes.clear()
                memory.reads.clear()
            memory.writes[part] = (actor, now)
            memory.reads.pop(part, None)
        else:
            memory.reads.setdefault(part, {})[actor] = now

    def _check(
        self, actor: _Actor, other: _Actor, time: int, owner: object, part: object, what: str, *, write: bool
    ) -> None:
        if actor.clock.get(other.number, 0) < time:
            raise RaceError(
                f"{actor.name} {'writes' if write else 'reads'} {type(owner).__name__} "
                f"{'' if part is None else part} while nothing orders it after the {what} by {other.name}"
            )


class ClockEvent:
    """An event with the clock of its latest mark."""

    def __init__(self, inner: Event, device: ClockDevice) -> None:
        self.inner, self._device = inner, device
        self.clock: Clock = {}

    def synchronize(self, edge: Edge) -> None:
        """Wait, and take over the lane's clock at the mark."""
        if edge is self._device.drop:
            return
        self.inner.synchronize(edge)
        with self._device.detector.lock:
            here = self._device.detector.here()
            self._device.detector.access(here, self, None, write=False)
            _join(here.clock, self.clock)

    def seconds(self) -> float:
        return self.inner.seconds()


class ClockLatch:
    """A latch with the clocks of those that have arrived."""

    def __init__(self, inner: Latch, device: ClockDevice) -> None:
        self._inner, self._device = inner, device
        self._clock: Clock = {}

    def arrive(self) -> None:
        """Pass on the calling thread's clock, then count its arrival."""
        with self._device.detector.lock:
            here = self._device.detector.here()
            _join(self._clock, here.clock)
            here.tick()
        self._inner.arrive()

    def wait(self, edge: Edge) -> None:
        """Wait, and take over the clocks of those that have arrived."""
        self._inner.wait(edge)
        if edge is not self._device.drop:
            with self._device.detector.lock:
                _join(self._device.detector.here().clock, self._clock)


class ClockLane:
    """A lane whose work is checked as it is enqueued."""

    def __init__(self, inner: Lane, actor: _Actor, device: ClockDevice) -> None:
        self._inner, self._actor, self._device = inner, actor, device
        self._detector = device.detector

    def _enqueue(self, reads: Sequence[tuple[object, object]], writes: Sequence[tuple[object, object]]) -> None:
        here = self._detector.here()
        if here is not self._actor:
            _join(self._actor.clock, here.clock)
            here.tick()
        self._actor.tick()
        for owner, part in reads:
            self._detector.access(self._actor, owner, part, write=False)
        for owner, part in writes:
            self._detector.access(self._actor, owner, part, write=True)

    def upload(self, buffer: HostBuffer, block: Block, piece: Piece, scratch: Any) -> None:
        with self._detector.lock:
            self._enqueue([(buffer.owner, None)], [(block.owner, _key(piece))])
        self._inner.upload(buffer, block, piece, scratch)

    def download(self, block: Block, piece: Piece, buffer: HostBuffer, scratch: Any) -> None:
        with self._detector.lock:
            self._enqueue([(block.owner, None)], [(buffer.owner, None)])
        self._inner.download(block, piece, buffer, scratch)

    def call(self, fn: Callable[[], T], reads: Sequence[object] = (), writes: Sequence[object] = ()) -> Pending[T]:
        """Check, then enqueue. Accesses that the call declares itself count as the lane's."""
        with self._detector.lock:
            self._enqueue([*map(_owned, reads)], [*map(_owned, writes)])
            now = _Actor(self._actor.number, self._actor.name)
            now.clock = dict(self._actor.clock)

        def acting() -> T:
            with self._detector.acting(now):
                return fn()

        return self._inner.call(acting, reads, writes)

    def record(self, event: Event) -> None:
        """Copy the lane's clock into the event."""
        assert isinstance(event, ClockEvent)
        with self._detector.lock:
            self._enqueue([], [])
            self._detector.access(self._detector.here(), event, None, write=True)
            event.clock = dict(self._actor.clock)
        self._inner.record(event.inner)

    def wait(self, events: Sequence[Event], edge: Edge) -> None:
        """Take over the events' clocks."""
        if edge is self._device.drop:
            return
        inner = []
        with self._detector.lock:
            for event in events:
                assert isinstance(event, ClockEvent)
                self._detector.access(self._detector.here(), event, None, write=False)
                self._enqueue([], [])
                _join(self._actor.clock, event.clock)
                inner.append(event.inner)
        self._inner.wait(inner, edge)

    def synchronize(self) -> None:
        """Wait, and take over the lane's clock."""
        self._inner.synchronize()
        with self._detector.lock:
            _join(self._detector.here().clock, self._actor.clock)

    def close(self) -> None:
        self._inner.close()
        with self._detector.lock:
            _join(self._detector.here().clock, self._actor.clock)


def _owned(used: object) -> tuple[object, object]:
    """Owner and part of what a call uses."""
    return used if isinstance(used, PartOf) else (used, None)


def _key(piece: Piece) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in piece.region)  # slices have no hash before Python 3.12


class ClockDevice:
    """A device whose accesses are checked by a race detector; `inner` does the work.

    The edge `drop` is left out, to show that its absence is noticed.
    """

    def __init__(self, inner: Device, *, drop: Edge | None = None) -> None:
        self._inner = inner
        self.drop = drop
        # A missing edge must show in the program's order, not only where lanes happen to be slow.
        self.in_turn = drop is not None or inner.in_turn
        self.detector = RaceDetector()
        self.job_queue = None  # compiled loops declare no accesses

    def __getattr__(self, name: str) -> Any:  # memory and arrays are those of the inner device
        return getattr(self._inner, name)

    def lane(self, *, kernels: bool = False) -> ClockLane:
        return ClockLane(self._inner.lane(kernels=kernels), self.detector.actor("lane"), self)

    def mover(self, lane: object, buffers: object, scratch: object) -> None:
        """No compiled loops, which declare no accesses."""

    def caller_lane(self) -> ClockLane:
        return ClockLane(self._inner.caller_lane(), self.detector.here(), self)

    def event(self, *, timed: bool = False) -> ClockEvent:
        return ClockEvent(self._inner.event(timed=timed), self)

    def latch(self, number: int) -> ClockLatch:
        return ClockLatch(self._inner.latch(number), self)

    def host_reads(self, owner: object, part: object = None) -> None:
        with self.detector.lock:
            self.detector.access(self.detector.here(), owner, part, write=False)

    def host_writes(self, owner: object, part: object = None) -> None:
        with self.detector.lock:
            self.detector.access(self.detector.here(), owner, part, write=True)
