"""The events of a run, passed on to its observers. An observer that fails is logged and dropped; the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, Protocol

from chunkflow.system.context import run_variable

Stage = Literal["read", "upload", "decode", "compute", "download", "write"]
STAGES: tuple[Stage, ...] = ("read", "upload", "decode", "compute", "download", "write")


class Observer(Protocol):
    """Callbacks of a run. `span` is called from worker threads, the others from the run's own.

    A subclass needs no method for `span`, `held`, `landed` and `noted`.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> class Runs(cf.Observer):
    ...     wants_spans = False
    ...     def started(self, plan, run=None):
    ...         print("begins, with blocks of", plan.block)
    ...     def finished(self, error, peak):
    ...         print("ends", "well" if error is None else error)
    >>> with cf.observing(Runs()):
    ...     _ = cf.map(np.sqrt, np.ones((4, 4)), chunks=(4, 4), device="cpu")
    begins, with blocks of (4, 4)
    ends well
    """

    wants_spans: bool
    """Whether `span` and `held` are to be called: taking the times costs a little per piece."""

    def started(self, plan: Any, run: Any = None) -> None:
        """A run begins; `plan` is its `chunkflow.Plan`, `run` the `chunkflow.engine.prepare.Prepared`."""

    def span(
        self, stage: Stage, start: float, stop: float, nbytes: int, block: int | None = None, lane: int | None = None
    ) -> None:
        """A stage was busy from `start` to `stop` (seconds, `time.perf_counter`) moving `nbytes`.

        They are of the block of that number, if it is known, and were moved by the device's lane of that number, or by
        the thread that calls.
        """
        return

    def held(self, nbytes: int) -> None:
        """So many bytes of device memory are in use now."""
        return

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        """A block is done: bytes read for it, and bytes of it stored."""
        return

    def noted(self, text: str) -> None:
        """Something happened that belongs in the report, for example that a block was halved."""
        return

    def finished(self, error: BaseException | None, peak: int) -> None:
        """The run ended, with the error that ended it; `peak` is in bytes of device memory."""


class Trace:
    """Passes each event of a run on to all observers."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)
        self.timed = any(o.wants_spans for o in observers)

    def _tell(self, method: str, *args: Any) -> None:
        for observer in tuple(self._observers):
            try:
                getattr(observer, method)(*args)
            except Exception:
                import logging  # not at the top: it takes 2 ms

                logging.getLogger("chunkflow").exception("observer %r failed in %s() and is dropped", observer, method)
                if observer in self._observers:
                    self._observers.remove(observer)

    def started(self, plan: Any, run: Any = None) -> None:
        self._tell("started", plan, run)

    def span(
        self, stage: Stage, start: float, stop: float, nbytes: int, block: int | None = None, lane: int | None = None
    ) -> None:
        self._tell("span", stage, start, stop, nbytes, block, lane)

    def held(self, nbytes: int) -> None:
        self._tell("held", nbytes)

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        self._tell("landed", nbytes_in, nbytes_out)

    def noted(self, text: str) -> None:
        self._tell("noted", text)

    def finished(self, error: BaseException | None, peak: int) -> None:
        self._tell("finished", error, peak)


_active: ContextVar[tuple[Observer, ...]] = run_variable("chunkflow_observers", ())


def active() -> tuple[Observer, ...]:
    """Observers that watch every run of the present context."""
    return _active.get()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let `observer` watch every run inside the block.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> class Bytes(cf.Observer):
    ...     wants_spans, nbytes = False, 0
    ...     def started(self, plan, run=None): ...
    ...     def finished(self, error, peak): ...
    ...     def landed(self, nbytes_in, nbytes_out):
    ...         self.nbytes += nbytes_in
    >>> seen = Bytes()
    >>> with cf.observing(seen):
    ...     _ = cf.sum(np.ones(1000), device="cpu")
    >>> seen.nbytes
    8000
    """
    token = _active.set((*_active.get(), observer))
    try:
        yield
    finally:
        _active.reset(token)
