"""What libraries take of a card that other processes use too, over a driver that is not there."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.devices.cuda.taken import MOST, USUAL, LibraryMemory, taken_here

MIB = 1 << 20


class Card:
    """Bytes of this process, of its libraries among them, and of others."""

    def __init__(self, tells: bool) -> None:
        self.tells, self.context, self.libraries, self.others = tells, 500 * MIB, 0, 0
        self.memory = LibraryMemory(lambda: self.own if tells else None, lambda: self.own + self.others)

    @property
    def own(self) -> int:
        return self.context + self.libraries

    def tried(self, libraries: int, others: int) -> None:
        """A trial, during which libraries and other processes take or give back."""
        before = self.memory.taken()
        self.libraries += libraries
        self.others = max(0, self.others + others)
        self.memory.note_growth(self.memory.taken() - before)


@given(st.lists(st.tuples(st.integers(0, 90 * MIB), st.integers(-(40 << 30), 40 << 30)), max_size=9))
def test_other_processes_are_not_counted_where_the_driver_tells_them_apart(trials: list[tuple[int, int]]) -> None:
    card = Card(tells=True)
    for libraries, others in trials:
        card.tried(libraries, others)
    assert card.memory.noted == card.libraries


@given(st.lists(st.tuples(st.integers(0, 9 * MIB), st.integers(0, 40 << 30)), max_size=9))
def test_they_are_counted_up_to_a_limit_where_it_does_not(trials: list[tuple[int, int]]) -> None:
    card = Card(tells=False)
    for libraries, others in trials:
        card.tried(libraries, others)
    assert card.libraries <= card.memory.noted <= MOST


def test_what_is_given_back_is_no_longer_counted() -> None:
    card = Card(tells=True)
    card.tried(USUAL + 300 * MIB, 0)
    card.libraries = 70 * MIB
    assert card.memory.noted == 70 * MIB
    shared = Card(tells=False)
    shared.context = 0
    shared.tried(0, 2 << 30)
    assert shared.memory.noted == MOST
    shared.others = 100 * MIB
    assert shared.memory.noted == 100 * MIB


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ([(1, 7), (os.getpid(), 5)], 5),
        ([(1, 7)], None),  # a container hides process numbers
        ([(os.getpid(), None)], None),
        ([], None),
    ],
)
def test_the_driver_is_asked_for_this_process(
    processes: list[tuple[int, int | None]], found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml: Any = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetComputeRunningProcesses=lambda card: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes if card == "0000:01:00.0"
        ],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert taken_here("0000:01:00.0")() == found


def test_without_the_package_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert taken_here("0000:01:00.0")() is None
