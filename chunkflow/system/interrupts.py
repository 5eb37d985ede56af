"""Ctrl-C at safe places only, never between taking something and noting that it was taken.

Python raises KeyboardInterrupt between any two instructions of the main thread. Within `deferred`, the signal is
noted instead. The next `check` raises it, or `allowed`, or the end of `deferred`. A second Ctrl-C is raised at once.

`Since` tells clean-up code whether it runs because of an exception.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _Shield:
    """The signal's handler within `deferred`."""

    def __init__(self) -> None:
        self.before = signal.getsignal(signal.SIGINT)
        self.pending = False
        self.open = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.open or self.pending:
            self.deliver(number, frame)
        else:
            self.pending = True

    def deliver(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        self.pending = False
        if callable(self.before):
            self.before(number, frame)


class Since:
    """Tells whether an exception is being handled that was not when this was made.

    A run may be started in an ``except`` block; the exception there says nothing about the run.
    """

    def __init__(self) -> None:
        self._before = id(sys.exc_info()[1])  # not the exception itself, which would keep its frames alive

    @property
    def failed(self) -> bool:
        """Whether there is a new exception."""
        return id(sys.exc_info()[1]) not in (id(None), self._before)


_shield: _Shield | None = None  # only the main thread sets it, for only it gets signals


def _mine() -> _Shield | None:
    return _shield if threading.current_thread() is threading.main_thread() else None


@contextmanager
def deferred() -> Iterator[None]:
    """Put Ctrl-C off until the next safe place. Does nothing outside the main thread, or when nested."""
    global _shield
    main = threading.current_thread() is threading.main_thread()
    if _shield is not None or not main or not callable(signal.getsignal(signal.SIGINT)):
        yield
        return
    shield = _Shield()
    signal.signal(signal.SIGINT, shield.handle)
    _shield = shield
    try:
        yield
    finally:
        _shield = None
        signal.signal(signal.SIGINT, shield.before)
        if shield.pending:
            shield.deliver()


def pending() -> bool:
    """Whether a Ctrl-C was put off: what waits in any thread should give up."""
    shield = _shield
    return shield is not None and shield.pending


def check() -> None:
    """A safe place: raise a Ctrl-C that was put off."""
    shield = _mine()
    if shield is not None and shield.pending:
        shield.deliver()


@contextmanager
def allowed() -> Iterator[None]:
    """Let Ctrl-C through while the user's own code runs on the main thread."""
    shield = _mine()
    if shield is None or shield.open:
        yield
        return
    check()
    shield.open = True
    try:
        yield
    finally:
        shield.open = False
