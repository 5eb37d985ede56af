"""What devices share: host latches, and defaults for what a device may lack."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from chunkflow.devices.protocol import Device, Edge
from chunkflow.system.context import run_variable

WORKER = "chunkflow-lane"
"""Name of the threads on which a device runs functions."""


class HostLatch:
    """The latch of the real devices: a lock that whoever arrives last opens."""

    __slots__ = ("_arrivals", "_lock", "_number")

    def __init__(self, number: int) -> None:
        self._number = number
        self._arrivals = itertools.count(1)  # its ``next`` is atomic
        self._lock = threading.Lock()  # a bare one: an Event takes longer to make, and to wait for
        if number:
            self._lock.acquire()

    def arrive(self) -> None:
        if next(self._arrivals) == self._number:
            self._lock.release()

    def wait(self, edge: Edge) -> None:
        with self._lock:  # once the latch is open, one thread after another gets it
            pass


class Done:
    """The outcome of a call that was made at once, such as the host part of a kernel launch."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error = value, error

    def result(self) -> Any:
        """Return the value, or raise the error, once."""
        error, self._error = self._error, None  # kept, it would keep the failed call's arrays alive
        if error is not None:
            try:
                raise error
            finally:
                del error
        return self._value


_kept: ContextVar[int] = run_variable("chunkflow_kept", 0)


class DeviceDefaults(Device):
    """Defaults of devices without a race detector, beside those of the protocol."""

    in_turn = False
    elementwise: Callable[..., Any] | None = None
    unshuffle: Callable[[int, int, int, Any], None] | None = None
    job_queue: Callable[[], Any] | None = None

    @property
    def reserve(self) -> int:
        """None of libraries'."""
        return _kept.get()

    @contextmanager
    def keeping(self, nbytes: int) -> Iterator[None]:
        """See `Device.keeping`."""
        before = _kept.set(_kept.get() + (0 if self.machine.staged else nbytes))
        try:
            yield
        finally:
            _kept.reset(before)

    def address(self, array: Any) -> int:
        """Address of an array, for the compiled loops."""
        return int(array.ctypes.data)

    def latch(self, number: int) -> HostLatch:
        """A latch between host threads."""
        return HostLatch(number)

    def rounding(self) -> AbstractContextManager[None]:
        """Nothing to do: nothing is faster with less precision."""
        return nullcontext()
