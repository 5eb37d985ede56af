"""Ctrl-C comes at safe places, however runs are nested."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext

import pytest

from chunkflow.system import interrupts


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_put_off_to_the_end_or_to_a_safe_place() -> None:
    passed = []

    def run() -> None:
        with interrupts.deferred():
            press()
            passed.append(1)
            interrupts.check()
            passed.append(2)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert passed == [1]


@pytest.mark.parametrize("within", [nullcontext, interrupts.deferred])
def test_it_is_let_through_in_code_of_the_users_own_but_not_in_runs_there(within: object) -> None:
    passed = []

    def run() -> None:
        with interrupts.deferred(), interrupts.allowed():
            with within():  # type: ignore[operator]
                press()
                passed.append("inside")
            passed.append("behind it")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert passed == ([] if within is nullcontext else ["inside"])


def test_one_in_a_nested_run_is_raised_once() -> None:
    with interrupts.deferred():
        with pytest.raises(KeyboardInterrupt), interrupts.allowed(), interrupts.deferred():
            press()
        assert not interrupts.pending()


def test_a_second_one_is_raised_at_once() -> None:
    passed = []

    def run() -> None:
        with interrupts.deferred(), interrupts.allowed(), interrupts.deferred():
            press()
            passed.append(1)
            press()
            passed.append(2)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert passed == [1]
