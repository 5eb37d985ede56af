"""Ctrl-C and SIGTERM at safe places only, never between taking something and noting that it was taken.

Python raises KeyboardInterrupt between any two instructions of the main thread. Within `deferred`, the signal is
noted instead. The next `check` raises it, or `allowed`, or the end of `deferred`. A second Ctrl-C is raised at once.

So is SIGTERM, if nobody else handles it: what runs is undone, as by Ctrl-C, and then the process ends by the signal.

`Since` tells clean-up code whether it runs because of an exception.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Terminated(SystemExit):
    """SIGTERM came. The end of `deferred` makes it what it would have been."""


farewell: Callable[[BaseException], None] | None = None
"""Is given the error of a run that SIGTERM ends, before the process ends."""


class _Shield:
    """The signals' handler within `deferred`."""

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        if callable(handler := signal.getsignal(signal.SIGINT)):  # in the background shells let it be ignored
            self.before[signal.SIGINT] = handler
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self.before[signal.SIGTERM] = signal.SIG_DFL
        self.pending = 0
        self.open = False

    def put_up(self) -> None:
        """Begin to handle the signals."""
        for number in self.before:
            signal.signal(number, self.handle)

    def take_down(self) -> None:
        """Let them be handled as before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.open or self.pending:
            self.deliver(number, frame)
        else:
            self.pending = number

    def deliver(self, number: int, frame: FrameType | None = None) -> None:
        self.pending = 0
        if number == signal.SIGTERM:
            raise _Terminated(128 + number)
        if callable(self.before[number]):
            self.before[number](number, frame)


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
    """Put Ctrl-C off until the next safe place. Does nothing outside the main thread, or when nested.

    A run within the user's own code, where it is `allowed`, puts it off to its own end at most.
    """
    global _shield
    if (outer := _mine()) is not None and outer.open:
        outer.open = False
        try:
            yield
        finally:
            outer.open = True
            if outer.pending:
                outer.deliver(outer.pending)
        return
    main = threading.current_thread() is threading.main_thread()
    shield = _Shield() if main and _shield is None else None
    if shield is None or not shield.before:
        yield
        return
    _shield = shield
    ended = False
    try:
        shield.put_up()
        yield
    except _Terminated as error:
        ended = True
        if farewell is not None:
            farewell(error)
    finally:
        _shield = None
        shield.take_down()
        if ended or shield.pending == signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)
        elif shield.pending:
            shield.deliver(shield.pending)


def pending() -> bool:
    """Whether a Ctrl-C was put off: what waits in any thread should give up."""
    shield = _shield
    return shield is not None and bool(shield.pending)


def check() -> None:
    """A safe place: raise a Ctrl-C that was put off."""
    shield = _mine()
    if shield is not None and shield.pending:
        shield.deliver(shield.pending)


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
