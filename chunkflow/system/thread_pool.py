"""Threads that stay for a while, since runs follow one another: to start those of a crew takes 4 ms."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

KEPT = 1.0
"""Seconds that a thread waits for something to do before it ends."""

NAME = "idle (chunkflow)"


class PooledThread:
    """A function's run by a thread that may be there already; used as `threading.Thread` is.

    Threads are daemons, so that a run which nobody ends does not keep the interpreter from ending.

    Attributes
    ----------
    name : str
        Of the thread, as long as it runs the function.
    ident : int, optional
        Of the thread, once it runs the function.
    """

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        self.ident: int | None = None
        self.name, self._target, self._args = name, target, args
        self._over, self._process = threading.Event(), os.getpid()

    def start(self) -> None:
        """Let a thread run the function."""
        try:
            _idle.pop()[1].put(self)
        except IndexError:
            threading.Thread(target=_serve, args=(self,), name=NAME, daemon=True).start()

    def join(self) -> None:
        """Wait until it has. In a child that was forked meanwhile there is no such thread."""
        if os.getpid() == self._process:
            self._over.wait()

    def _run(self) -> None:
        thread = threading.current_thread()
        self.ident, thread.name = thread.ident, self.name
        try:
            self._target(*self._args)
        finally:
            thread.name = NAME
            del self._target, self._args  # what they know is not to live as long as the thread
            self._over.set()


_idle: list[tuple[threading.Thread, SimpleQueue[PooledThread | None]]] = []
"""Threads that wait, and where, the latest last: the others are for the time when they end. Its methods are atomic."""

os.register_at_fork(after_in_child=_idle.clear)


def _serve(task: PooledThread | None) -> None:
    here = threading.current_thread(), SimpleQueue[PooledThread | None]()
    while task is not None:
        task._run()
        task = None  # nobody's run is to live as long as the thread
        _idle.append(here)
        try:
            task = here[1].get(timeout=KEPT)
        except Empty:
            try:
                _idle.remove(here)
            except ValueError:  # somebody has taken it just now
                task = here[1].get()


@atexit.register
def _end() -> None:
    """Let those that wait end: the interpreter would stop them wherever they are while it takes all else away."""
    ending = []
    with suppress(IndexError):
        while True:
            thread, queue = _idle.pop()
            queue.put(None)
            ending.append(thread)
    for thread in ending:
        thread.join()
