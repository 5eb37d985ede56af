"""A thread pool whose threads wait a while for the next run: to start those of one run takes 4 ms."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from chunkflow.system.context import callers_context

T = TypeVar("T")

KEPT = 1.0
"""Seconds that an idle thread waits before it ends."""

NAME = "idle (chunkflow)"


class PooledThread:
    """A call of a function on a thread of the pool, with the methods of `threading.Thread`.

    The threads are daemons, so that a run which nobody ends does not stop the interpreter from ending. A thread has the
    `name` while it runs the function, and `ident` is its identifier once it does.
    """

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...], name: str) -> None:
        self.ident: int | None = None
        self.name, self._target, self._args = name, target, args
        self._over, self._process = threading.Event(), os.getpid()
        self._context = callers_context()  # a user's source that is read there sees his variables

    def start(self) -> None:
        """Let a thread run the function."""
        try:
            _idle.pop()[1].put(self)
        except IndexError:
            threading.Thread(target=_serve, args=(self,), name=NAME, daemon=True).start()

    def join(self) -> None:
        """Wait until it has ended. A forked child has no such thread, and does not wait."""
        if os.getpid() == self._process:
            self._over.wait()

    def _run(self) -> None:
        thread = threading.current_thread()
        self.ident, thread.name = thread.ident, self.name
        try:
            self._context.run(self._target, *self._args)
        finally:
            thread.name = NAME
            del self._target, self._args, self._context  # their objects must not live as long as the thread
            self._over.set()


def in_threads(work: Callable[[T], object], items: Sequence[T], number: int) -> None:
    """Do the work on every item, by up to so many threads, the caller's among them.

    After an error no item is begun, and the first one is raised once all threads have stopped.
    """
    left, errors = iter(items), list[BaseException]()

    def some() -> None:
        try:
            for item in left:
                work(item)
        except BaseException as error:
            errors.append(error)
            for _ in left:
                pass

    others = list[PooledThread]()
    try:
        with suppress(RuntimeError):  # there may be no more threads: fewer do
            while len(others) + 1 < min(number, len(items)):
                helper = PooledThread(some, (), "chunkflow-item")
                helper.start()
                others.append(helper)
        some()
    finally:
        for helper in others:
            helper.join()
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # they would keep this frame, and it them


_idle: list[tuple[threading.Thread, SimpleQueue[PooledThread | None]]] = []
"""Idle threads with their queues, the latest last, so that the others can time out. The list's methods are atomic."""

os.register_at_fork(after_in_child=_idle.clear)


def _serve(task: PooledThread | None) -> None:
    here = threading.current_thread(), SimpleQueue[PooledThread | None]()
    while task is not None:
        task._run()
        task = None  # a run must not live as long as the thread
        _idle.append(here)
        try:
            task = here[1].get(timeout=KEPT)
        except Empty:
            try:
                _idle.remove(here)
            except ValueError:  # it was taken just now
                task = here[1].get()


@atexit.register
def _end() -> None:
    """End the idle threads, before the interpreter shuts down around them."""
    ending = []
    with suppress(IndexError):
        while True:
            thread, queue = _idle.pop()
            queue.put(None)
            ending.append(thread)
    for thread in ending:
        thread.join()
