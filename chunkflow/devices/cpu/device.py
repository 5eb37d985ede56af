"""The CPU as a device: NumPy arrays, lanes that are threads, events that are flags.

It shares the host's memory, so by default nothing is staged: each lane reads a block, computes it and stores the
result itself, while the block is in the cache of its core. For tests it can behave like a GPU. `staged` makes data go
through pinned buffers. `poison` fills fresh and freed memory with NaN. `mode` chooses when enqueued work runs:
``"eager"`` at once, ``"threaded"`` on a thread for each lane, ``"lazy"`` only when somebody waits for it, so that a
missing wait shows as stale data.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from chunkflow.core.machine import Machine
from chunkflow.core.memory import Projection
from chunkflow.core.pieces import Piece
from chunkflow.devices import rates
from chunkflow.devices.common import WORKER, DeviceDefaults
from chunkflow.devices.cpu import allocations
from chunkflow.devices.measured_rates import kept
from chunkflow.devices.protocol import Block, Edge, Event, HostBuffer, Lane, Loan
from chunkflow.system.context import callers_context
from chunkflow.system.host import available_memory, cores, keep_freed

T = TypeVar("T")
Mode = Literal["eager", "threaded", "lazy"]

POISON = 0xFF
"""Byte that fills fresh and freed memory. It makes NaN of floats and -1 of signed integers."""

KEPT_SHARE = 16
"""A lane's freed memory that is kept for its next allocations is at most two such parts of its share of the budget."""


class _Mark:
    """A place in a lane's work, with the time when it was reached. Until then it holds a lock, to wait for."""

    __slots__ = ("_lock", "lane", "reached", "time")

    def __init__(self, lane: _NumpyLane) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.lane = lane
        self.reached = False
        self.time = 0.0

    def reach(self) -> None:
        self.time = time.perf_counter()
        self.reached = True
        self._lock.release()

    def wait(self) -> None:
        if not self.reached:
            self.lane.run_to(self)
            with self._lock:
                pass


class NumpyEvent:
    """An event: the latest mark recorded in it."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: _Mark | None = None

    def synchronize(self, edge: Edge) -> None:
        if self.mark is not None:
            self.mark.wait()

    def seconds(self) -> float:
        return self.mark.time if self.mark is not None else 0.0


class _Pending(Generic[T]):
    """The outcome of a call."""

    __slots__ = ("_error", "_mark", "_value")

    def __init__(self, mark: _Mark) -> None:
        self._mark = mark
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self, fn: Callable[[], T]) -> None:
        try:
            self._value = fn()
        except BaseException as error:
            self._error = error
        finally:
            self._mark.reach()

    def result(self) -> T:
        self._mark.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class _NumpyLane:
    """What all kinds of lane share. They differ in when an enqueued call is made."""

    def _enqueue(self, call: Callable[[], object]) -> None:
        raise NotImplementedError

    def run_to(self, mark: _Mark) -> None:
        """Somebody waits for a mark."""

    def upload(self, buffer: HostBuffer, block: Block, piece: Piece, scratch: Any) -> None:
        _has_room(block, piece, scratch)
        target, source = block.array[(*piece.region, ...)], buffer.view(block.array.dtype, piece, block.inverse)
        self._enqueue(lambda: np.copyto(target, source))

    def download(self, block: Block, piece: Piece, buffer: HostBuffer, scratch: Any) -> None:
        _has_room(block, piece, scratch)
        target, source = buffer.view(block.array.dtype, piece, block.inverse), block.array[(*piece.region, ...)]
        self._enqueue(lambda: np.copyto(target, source))

    def call(self, fn: Callable[[], T], reads: Sequence[object] = (), writes: Sequence[object] = ()) -> _Pending[T]:
        pending: _Pending[T] = _Pending(_Mark(self))
        self._enqueue(lambda: pending.run(fn))
        return pending

    def record(self, event: Event) -> None:
        assert isinstance(event, NumpyEvent)
        event.mark = mark = _Mark(self)
        self._enqueue(mark.reach)

    def wait(self, events: Sequence[Event], edge: Edge) -> None:
        for event in events:
            assert isinstance(event, NumpyEvent)
            if (mark := event.mark) is not None and not mark.reached and mark.lane is not self:
                self._enqueue(mark.wait)

    def synchronize(self) -> None:
        mark = _Mark(self)
        self._enqueue(mark.reach)
        mark.wait()

    def close(self) -> None:
        self.synchronize()


def _has_room(block: Block, piece: Piece, scratch: Any) -> None:
    """Check that a piece fits the scratch memory where it lands, which a GPU's lanes do not check."""
    item = block.array.dtype.itemsize
    if piece.lands(item, landing=scratch is not None):
        assert scratch is not None
        assert piece.size * item <= scratch.nbytes


class _EagerLane(_NumpyLane):
    def _enqueue(self, call: Callable[[], object]) -> None:
        call()


class _CallerLane(_NumpyLane):
    """Makes calls in the caller's thread, in a context of their own, as in other threads."""

    def __init__(self) -> None:
        self._context = callers_context()

    def _enqueue(self, call: Callable[[], object]) -> None:
        self._context.copy().run(call)


class _ThreadLane(_NumpyLane):
    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._error: BaseException | None = None
        here = callers_context()
        self._thread = threading.Thread(target=here.run, args=(self._work,), name=WORKER, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except BaseException as error:  # as on a GPU, the error of a copy is raised by a wait for the lane
                self._error = self._error or error
            del call  # a finished call must not keep its block alive until the next one comes

    def _enqueue(self, call: Callable[[], object]) -> None:
        self._queue.put(call)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error


class _LazyLane(_NumpyLane):
    """Runs nothing until somebody waits for a mark, and then only the work before it."""

    def __init__(self, lock: threading.RLock) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._lock = lock

    def _enqueue(self, call: Callable[[], object]) -> None:
        self._calls.append(call)

    def run_to(self, mark: _Mark) -> None:
        """Run what was enqueued before `mark`, the lanes that it waits for first."""
        with self._lock:
            while not mark.reached:
                self._calls.popleft()()


class NumpyPool:
    """Counts the bytes of buffers and results. NumPy has no hook to limit what a function allocates."""

    def __init__(self, limit: int, *, poison: bool = False) -> None:
        self.limit = limit
        self.used = self.peak = 0
        self._poison = poison
        self._lock = threading.Lock()

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.used += nbytes
            self.peak = max(self.peak, self.used)

    def begin(self, memory: Projection) -> None:
        """Nothing to do: NumPy allocates from the system."""

    def claim(self, apart: Sequence[int], nbytes: int, most: int) -> None:
        """Nothing to do: NumPy allocates from the system."""

    def trim(self) -> None:
        """Nothing to do: nothing is kept."""

    def allocate(self, nbytes: int) -> np.ndarray:
        if self.used + nbytes > self.limit:
            raise MemoryError(f"{nbytes} bytes asked for, {self.used} of {self.limit} in use")
        array = np.empty(nbytes, np.uint8)
        if self._poison:
            array.fill(POISON)
        self._count(nbytes)
        return array

    def adopt(self, array: np.ndarray) -> None:
        self._count(array.nbytes)

    def free(self, array: np.ndarray) -> None:
        self._count(-array.nbytes)
        if self._poison and array.flags.writeable:
            array[...] = np.frombuffer(bytes([POISON]) * array.dtype.itemsize, array.dtype)[0]

    def active(self) -> AbstractContextManager[None]:
        """Nothing to do: NumPy allocates from the system."""
        return nullcontext()

    def measure(self, fn: Callable[[], T], most: int | None = None) -> tuple[T, int]:
        """Peak of NumPy's allocations during a call, by the calling thread where `_transfer` was built."""
        return allocations.peak(fn, most)

    def host_buffers(self, number: int, nbytes: int) -> list[HostBuffer]:
        buffers = [HostBuffer(np.empty(nbytes, np.uint8)) for _ in range(number)]
        if self._poison:
            for buffer in buffers:
                buffer.array.fill(POISON)
        return buffers

    def release_host(self, buffers: list[HostBuffer]) -> None:
        """Nothing to do: host memory is quick to allocate."""

    def rest(self) -> None:
        """Nothing to do."""

    close = rest


class NumpyDevice(DeviceDefaults):
    """The CPU, of which as many cores compute at the same time as there are `lanes` (by default, all).

    `mode`, `staged` and `poison` are for tests; see the module's docstring. `machine` replaces the default rates.
    """

    xp: Any = np

    def __init__(
        self,
        *,
        lanes: int | None = None,
        mode: Mode = "threaded",
        staged: bool = False,
        poison: bool = False,
        machine: Machine | None = None,
    ) -> None:
        self.name = self.model = "cpu"
        self.machine = machine or kept(rates.cpu(lanes or cores()), self.model)
        if self.machine.staged != staged:
            raise ValueError("machine.staged and staged= disagree")
        self._mode, self.in_turn = mode, mode == "lazy"
        self._poison = poison
        self._lock = threading.RLock()

    def free_memory(self) -> int:
        return available_memory() or 1 << 40

    def pool(self, limit: int) -> NumpyPool:
        keep_freed(limit // (KEPT_SHARE * self.machine.lanes))
        return NumpyPool(limit, poison=self._poison)

    def lane(self, *, kernels: bool = False) -> Lane:
        if self._mode == "eager":
            return _EagerLane()
        return _ThreadLane() if self._mode == "threaded" else _LazyLane(self._lock)

    def caller_lane(self) -> Lane:
        return _CallerLane()

    def event(self, *, timed: bool = False) -> NumpyEvent:
        return NumpyEvent()

    def attach(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def to_device(self, array: np.ndarray) -> np.ndarray:
        """The array itself, read-only."""
        array = array.view()
        array.flags.writeable = False
        return array

    def lend(self, loan: Loan) -> Any:
        """Let NumPy make one whose base the loan is, so that views of it refer to the loan."""
        return np.asarray(loan)

    def is_array(self, value: object) -> bool:
        """Whether `value` is a NumPy array or scalar (for a 0-d array), without a mask."""
        return isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray)

    def supports(self, dtype: np.dtype) -> bool:
        return True

    def counted(self, fn: Callable[[], T]) -> tuple[T, int | None]:
        return allocations.counted(fn)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def bytes_asked(self, error: BaseException) -> int | None:
        return getattr(error, "_total_size", None)  # of NumPy's, which says it in its message too


@cache
def device(lanes: int | None = None) -> NumpyDevice:
    """The host as a device, or so many of its cores."""
    return NumpyDevice(lanes=lanes)


def count() -> int:
    """Number of devices: the host is one."""
    return 1
