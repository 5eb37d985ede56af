"""Threads are lent from run to run, end when nobody wants them, and never hold up the interpreter's end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
import pytest
from support.devices import numpy_device

import chunkflow as cf
from chunkflow.system import thread_pool
from chunkflow.system.thread_pool import PooledThread, in_threads

Waiting = tuple[threading.Thread, SimpleQueue[PooledThread | None]]


def run(fn: Callable[[], object], name: str = "one") -> int:
    """Let a thread run a function, and wait; which thread it was."""
    borrowed = PooledThread(fn, (), name)
    assert borrowed.ident is None
    borrowed.start()
    borrowed.join()
    assert borrowed.ident is not None
    return borrowed.ident


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Of the test's own threads those that wait."""
    mine: list[object] = []
    monkeypatch.setattr(thread_pool, "_idle", mine)
    return mine


def test_a_thread_is_lent_again_under_another_name(idle: list[object]) -> None:
    names: list[str] = []

    def note() -> None:
        names.append(threading.current_thread().name)

    first = run(note, "one")
    until(lambda: len(idle) == 1)
    assert run(note, "two") == first
    assert names == ["one", "two"]


def test_as_many_threads_as_run_at_once(idle: list[object]) -> None:
    meeting = threading.Barrier(3, timeout=30)
    several = [PooledThread(meeting.wait, (), str(i)) for i in range(3)]
    for each in several:
        each.start()
    for each in several:
        each.join()
    assert len({each.ident for each in several}) == 3


def test_a_thread_that_nobody_wants_ends(idle: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "KEPT", 0.01)
    before = threading.active_count()
    run(lambda: None)
    until(lambda: threading.active_count() <= before)
    assert not idle


def test_a_thread_that_is_wanted_just_when_it_would_end_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "KEPT", 0.01)
    waiting: list[Waiting] = []

    class Taken(list[Waiting]):
        """Of which somebody takes the only one at the last moment."""

        def remove(self, here: Waiting) -> None:
            super().remove(here)
            waiting.append(here)
            raise ValueError

    monkeypatch.setattr(thread_pool, "_idle", Taken())
    first = run(lambda: None)
    until(lambda: len(waiting) == 1)
    late = PooledThread(lambda: None, (), "late")
    waiting[0][1].put(late)
    late.join()
    assert late.ident == first


def test_a_function_that_fails_is_over_too(idle: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: failed.set())
    run(lambda: 1 / 0)
    assert failed.wait(30)
    assert run(lambda: None)
    until(lambda: len(idle) == 1)


def test_runs_follow_one_another_with_the_same_threads(idle: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    lent: list[PooledThread] = []

    class Noted(PooledThread):
        def start(self) -> None:
            lent.append(self)
            super().start()

    monkeypatch.setattr("chunkflow.engine.staged.workers.PooledThread", Noted)
    runs = []
    for _ in range(2):
        lent.clear()
        cf.map(np.negative, np.ones((40, 50), "f4"), device=numpy_device("eager", staged=True), budget=20_000)
        runs.append({each.ident for each in lent} - {None})
        until(lambda: len(idle) >= len(runs[0]))
    assert runs[0] & runs[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_process_has_threads_of_its_own() -> None:
    code = """
import os, time
from chunkflow.system.thread_pool import PooledThread, _idle
PooledThread(int, (), "one").start()
while not _idle:
    time.sleep(0.001)
child = os.fork()
if not child:
    two = PooledThread(int, (), "two")
    two.start()
    two.join()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_waits_for_no_thread_of_its_parent() -> None:
    code = """
import os, threading
from chunkflow.system.thread_pool import PooledThread, in_threads
going, one = threading.Event(), None
one = PooledThread(going.wait, (), "one")
one.start()
child = os.fork()
if not child:
    one.join()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
going.set()
one.join()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_threads_that_wait_end_before_the_interpreter_does() -> None:
    code = """
import atexit, threading

@atexit.register  # exit handlers are called in the opposite order: this one after those of chunkflow
def check():
    print(*[thread.name for thread in threading.enumerate()])

from chunkflow.system.thread_pool import PooledThread, _idle
several = [PooledThread(meeting.wait, (), "one") for meeting in [threading.Barrier(3)] for _ in range(3)]
for one in several:
    one.start()
while len(_idle) < 3:
    pass
assert threading.active_count() == 4
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert found.stdout.split() == ["MainThread"]


def test_a_run_that_nobody_ends_does_not_keep_the_interpreter() -> None:
    code = """
import threading
from chunkflow.system.thread_pool import PooledThread, in_threads
PooledThread(threading.Event().wait, (), "endless").start()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("number", [1, 3, 40])
def test_each_item_is_worked_on_once_by_as_many_threads(number: int) -> None:
    seen, met = [], threading.Barrier(min(number, 12))

    def work(item: int) -> None:
        met.wait(timeout=20)  # none goes on alone
        seen.append((item, threading.get_ident()))

    in_threads(work, range(12), number)
    assert sorted(item for item, _ in seen) == list(range(12))
    assert len({ident for _, ident in seen}) <= number
    assert threading.get_ident() in {ident for _, ident in seen}


def test_no_item_is_begun_after_an_error() -> None:
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 3:
            raise KeyError(item)
        time.sleep(0.01)

    with pytest.raises(KeyError, match="3"):
        in_threads(work, range(1000), 4)
    assert len(begun) < 20
