"""What a few calls before a run say of it: each thread's while all others are at work as well."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from chunkflow.rehearsal import CALLS, Calls, _at_once


def test_each_thread_is_at_it_until_all_have_enough() -> None:
    """One whose calls are short would be alone for all of them, before the others are woken or when they have ended."""
    begun, enough = itertools.count(), threading.Event()

    def short() -> float:
        if next(begun) > 5 * CALLS:
            enough.set()
        return 1.0

    def long() -> float:
        assert enough.wait(10), "the other thread has stopped"
        return 2.0

    assert _at_once([lambda: (short, 10.0), lambda: (long, 3.0)]) == 10.0


def test_calls_count_once_all_are_at_work() -> None:
    """A thread that prepares for long keeps the others waiting, which are faster without it."""
    together = threading.Event()

    def early() -> Calls:
        return lambda: (time.sleep(1e-3), 2.0 if together.is_set() else 1.0)[1], 1.0

    def late() -> Calls:
        time.sleep(0.05)

        def call() -> float:
            together.set()
            return 2.0

        return call, 1.0

    assert _at_once([early, late]) == 2.0


@pytest.mark.parametrize("when", ["preparing", "calling"])
@pytest.mark.parametrize("which", [0, 1])
def test_an_error_of_one_ends_all(which: int, when: str) -> None:
    def fails() -> float:
        raise ValueError("no such tile")

    def failing() -> Calls:
        if when == "preparing":
            fails()
        return fails, 1.0

    each: list[Callable[[], Calls]] = [lambda: (lambda: 1.0, 1.0)] * 2
    each[which] = failing
    with pytest.raises(ValueError, match="no such tile"):
        _at_once(each)
