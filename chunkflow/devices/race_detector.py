"""The referee: a device around another one that finds accesses which nothing orders.

Every host thread and every lane has a vector clock (Fidge 1988, Mattern 1989): how far it knows each of
the others to have come. Enqueueing passes the thread's knowledge to the lane, recording an event copies the
lane's, waiting takes it over. Each declared access of a slot or a result is compared with the earlier ones of
the same memory: where one of the two writes and the later one does not know of the earlier, a `RaceError`
says so, whether or not the data happened to come out right.

Orders are taken from the program, when work is enqueued, so a race is found in every mode of the device.
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
    """A host thread or a lane: something whose own actions are in order."""

    __slots__ = ("clock", "name", "number")

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.clock: Clock = {number: 1}

    def tick(self) -> None:
        self.clock[self.number] += 1


class _Memory:
    """Last accesses of one owner's memory, by part; None is the whole."""

    def __init__(self, owner: object) -> None:
        self.owner = owner  # kept alive, so that its id stays its own
        self.writes: dict[object, tuple[_Actor, int]] = {}
        self.reads: dict[object, dict[_Actor, int]] = {}


class Referee:
    """The clocks and the accesses seen so far."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._numbers = itertools.count()
        self._local = threading.local()
        self._memory: dict[int, _Memory] = {}

    def actor(self, name: str) -> _Actor:
        """A new actor."""
        return _Actor(next(self._numbers), name)

    def here(self) -> _Actor:
        """The actor on whose behalf the calling thread acts: itself, or the lane whose call it makes."""
        acting = getattr(self._local, "acting", None)
        if acting is not None:
            return acting  # type: ignore[no-any-return]
        if not hasattr(self._local, "thread"):
            self._local.thread = self.actor(threading.current_thread().name)
        return self._local.thread  # type: ignore[no-any-return]

    @contextmanager
    def acting(self, actor: _Actor) -> Iterator[None]:
        """Let the calling thread act for `actor`."""
        before = getattr(self._local, "acting", None)
        self._local.acting = actor
        try:
            yield
        finally:
            self._local.acting = before

    def access(self, actor: _Actor, owner: object, part: object, *, write: bool) -> None:
        """Note an access; raise if it is not ordered after an earlier one that it conflicts with."""
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
        """Wait, and learn what the lane knew."""
        if edge is self._device.drop:
            return
        self.inner.synchronize(edge)
        with self._device.referee.lock:
            here = self._device.referee.here()
            self._device.referee.access(here, self, None, write=False)
            _join(here.clock, self.clock)

    def seconds(self) -> float:
        """When the mark was reached."""
        return self.inner.seconds()


class ClockLatch:
    """A latch that passes on what those who arrived knew."""

    def __init__(self, inner: Latch, device: ClockDevice) -> None:
        self._inner, self._device = inner, device
        self._clock: Clock = {}

    def arrive(self) -> None:
        """Tell what the calling thread knows, then count its arrival."""
        with self._device.referee.lock:
            here = self._device.referee.here()
            _join(self._clock, here.clock)
            here.tick()
        self._inner.arrive()

    def wait(self, edge: Edge) -> None:
        """Wait, and learn what those who arrived knew."""
        self._inner.wait(edge)
        if edge is not self._device.drop:
            with self._device.referee.lock:
                _join(self._device.referee.here().clock, self._clock)


class ClockLane:
    """A lane whose work is checked as it is enqueued."""

    def __init__(self, inner: Lane, actor: _Actor, device: ClockDevice) -> None:
        self._inner, self._actor, self._device = inner, actor, device
        self._referee = device.referee

    def _enqueue(self, reads: Sequence[tuple[object, object]], writes: Sequence[tuple[object, object]]) -> None:
        here = self._referee.here()
        if here is not self._actor:
            _join(self._actor.clock, here.clock)
            here.tick()
        self._actor.tick()
        for owner, part in reads:
            self._referee.access(self._actor, owner, part, write=False)
        for owner, part in writes:
            self._referee.access(self._actor, owner, part, write=True)

    def upload(self, slot: HostBuffer, block: Block, piece: Piece, scratch: Any) -> None:
        """Check, then enqueue."""
        with self._referee.lock:
            self._enqueue([(slot.owner, None)], [(block.owner, _key(piece))])
        self._inner.upload(slot, block, piece, scratch)

    def download(self, block: Block, piece: Piece, slot: HostBuffer, scratch: Any) -> None:
        """Check, then enqueue."""
        with self._referee.lock:
            self._enqueue([(block.owner, None)], [(slot.owner, None)])
        self._inner.download(block, piece, slot, scratch)

    def call(self, fn: Callable[[], T], reads: Sequence[object] = (), writes: Sequence[object] = ()) -> Pending[T]:
        """Check, then enqueue; what the call declares itself counts as the lane's."""
        with self._referee.lock:
            self._enqueue([*map(_owned, reads)], [*map(_owned, writes)])
            turn = _Actor(self._actor.number, self._actor.name)
            turn.clock = dict(self._actor.clock)

        def acting() -> T:
            with self._referee.acting(turn):
                return fn()

        return self._inner.call(acting, reads, writes)

    def record(self, event: Event) -> None:
        """Copy the lane's clock into the event."""
        assert isinstance(event, ClockEvent)
        with self._referee.lock:
            self._enqueue([], [])
            self._referee.access(self._referee.here(), event, None, write=True)
            event.clock = dict(self._actor.clock)
        self._inner.record(event.inner)

    def wait(self, events: Sequence[Event], edge: Edge) -> None:
        """Take over the events' clocks."""
        if edge is self._device.drop:
            return
        inner = []
        with self._referee.lock:
            for event in events:
                assert isinstance(event, ClockEvent)
                self._referee.access(self._referee.here(), event, None, write=False)
                self._enqueue([], [])
                _join(self._actor.clock, event.clock)
                inner.append(event.inner)
        self._inner.wait(inner, edge)

    def synchronize(self) -> None:
        """Wait, and learn what the lane knows."""
        self._inner.synchronize()
        with self._referee.lock:
            _join(self._referee.here().clock, self._actor.clock)

    def close(self) -> None:
        """Finish and give the lane back."""
        self._inner.close()
        with self._referee.lock:
            _join(self._referee.here().clock, self._actor.clock)


def _owned(used: object) -> tuple[object, object]:
    """Owner and part of what a call uses."""
    return used if isinstance(used, PartOf) else (used, None)


def _key(piece: Piece) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in piece.region)  # slices have no hash before Python 3.12


class ClockDevice:
    """`inner` under the referee's eyes.

    Parameters
    ----------
    inner : Device
        The device that does the work.
    drop : Edge, optional
        Leave this edge out, to show that its absence is noticed.
    """

    def __init__(self, inner: Device, *, drop: Edge | None = None) -> None:
        self._inner = inner
        self.drop = drop
        # That an edge is missing must show in the program's order, and not only where lanes happen to be slow.
        self.in_turn = drop is not None or getattr(inner, "in_turn", False)
        self.referee = Referee()
        self.lines = None  # what no call announces can't be judged

    def __getattr__(self, name: str) -> Any:  # memory and arrays are the inner device's affair
        return getattr(self._inner, name)

    def lane(self) -> ClockLane:
        """A checked lane."""
        return ClockLane(self._inner.lane(), self.referee.actor("lane"), self)

    def mover(self, lane: object, stations: object, scratch: object) -> None:
        """No compiled loops under the referee's eyes."""

    def caller_lane(self) -> ClockLane:
        """The calling thread's lane, checked."""
        return ClockLane(self._inner.caller_lane(), self.referee.here(), self)

    def event(self, *, timed: bool = False) -> ClockEvent:
        """An event with a clock."""
        return ClockEvent(self._inner.event(timed=timed), self)

    def latch(self, number: int) -> ClockLatch:
        """A latch with a clock."""
        return ClockLatch(self._inner.latch(number), self)

    def host_reads(self, owner: object, part: object = None) -> None:
        """Check an access of the calling thread."""
        with self.referee.lock:
            self.referee.access(self.referee.here(), owner, part, write=False)

    def host_writes(self, owner: object, part: object = None) -> None:
        """Check an access of the calling thread."""
        with self.referee.lock:
            self.referee.access(self.referee.here(), owner, part, write=True)
