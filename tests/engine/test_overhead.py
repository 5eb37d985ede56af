"""What a run costs besides its data: counted, for a test that measured time would fail on a busy machine."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from support.devices import MODES, at_work, machine, same
from support.positions import at_positions

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine import trial
from chunkflow.testing import filled

LATE = 2 * 3 * 2
"""Events that threads of both directions make at most, and do not where they come when all is done."""


class _CountingPool:
    def __init__(self, inner: Any, counts: Counter[str]) -> None:
        self._inner, self._counts = inner, counts

    def host_buffers(self, number: int, nbytes: int) -> Any:
        self._counts["host slots"] += number
        return self._inner.host_buffers(number, nbytes)

    def allocate(self, nbytes: int) -> Any:
        self._counts["allocations"] += 1
        return self._inner.allocate(nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class CountingDevice:
    """A device that counts what is made on it."""

    def __init__(self, inner: NumpyDevice) -> None:
        self._inner = inner
        self.counts: Counter[str] = Counter()

    def event(self, *, timed: bool = False) -> Any:
        self.counts["timed events" if timed else "events"] += 1
        return self._inner.event(timed=timed)

    def latch(self, number: int) -> Any:
        self.counts["latches"] += 1
        self.counts["arrivals"] += number
        return self._inner.latch(number)

    def lane(self, *, kernels: bool = False) -> Any:
        self.counts["lanes"] += 1
        return self._inner.lane(kernels=kernels)

    def pool(self, limit: int) -> Any:
        return _CountingPool(self._inner.pool(limit), self.counts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def counts(x: np.ndarray, mode: str = "eager", *, piece: int = 4096, block: int = 8, staged: bool = True) -> Any:
    inner = NumpyDevice(mode=mode, staged=staged, machine=machine(staged=staged, piece=piece))  # type: ignore[arg-type]
    device = CountingDevice(inner)
    options = {"chunks": (block, -1), "dtype": "f4", "workspace": 0, "budget": "1MB"}
    same(cf.map(lambda x: x + 1, x, device=device, **options), x + 1)
    return device.counts


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_made_for_each_piece(mode: str) -> None:
    x = filled((80, 1000), "f4")
    few, many = counts(x, mode, piece=8000), counts(x, mode, piece=400)
    assert many["arrivals"] > 10 * few["arrivals"], "there are many more pieces"
    for what in ("latches", "host slots", "allocations"):
        assert many[what] == few[what] > 0, what
    for what in ("events", "lanes"):
        assert abs(many[what] - few[what]) <= LATE, what
    assert many["timed events"] == few["timed events"] == 0, "nobody asks for times"


def test_little_is_made_for_each_block() -> None:
    few, many = counts(filled((80, 100), "f4")), counts(filled((800, 100), "f4"))
    blocks = (800 - 80) // 8
    assert many["events"] - few["events"] <= blocks + LATE, "one says that its kernel is done"
    assert many["latches"] - few["latches"] <= 4 * blocks, "published and done, on the way in and on the way out"
    assert many["lanes"] - few["lanes"] <= LATE
    for what in ("host slots", "allocations"):
        assert many[what] == few[what], what


def test_a_device_that_shares_the_hosts_memory_makes_no_slots_for_arrays_in_memory() -> None:
    made = counts(filled((800, 100), "f4"), "threaded", staged=False)
    assert made["host slots"] == made["allocations"] == 0
    assert made["lanes"] == 2


def test_a_block_of_a_file_is_read_and_written_by_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    lock = threading.Lock()

    def counted(name: str) -> None:
        inner = getattr(os, name)

        def call(*args: Any) -> Any:
            with lock:
                calls[name] += 1
            return inner(*args)

        monkeypatch.setattr(os, name, call)

    np.save(tmp_path / "x.npy", filled((80, 1000), "f4"))
    at_positions(monkeypatch)
    counted("preadv")
    counted("pwritev")
    options = {"chunks": (8, -1), "dtype": "f4", "workspace": 0, "budget": "1MB", "device": "cpu"}
    cf.map(lambda x: x + 1, tmp_path / "x.npy", out=tmp_path / "y.npy", **options)
    assert calls == {"preadv": 10, "pwritev": 10}


def test_the_function_is_called_once_more_than_there_are_blocks() -> None:
    calls = []

    def note(x: Any) -> Any:
        calls.append(x.size)
        return x

    x = filled((400, 500), "f4")
    plan = cf.explain(lambda x: x, x, budget="300kB", device="cpu", chunks=(20, -1))
    cf.map(note, x, budget="300kB", device="cpu", chunks=(20, -1))
    assert len(calls) == len(plan.grid) + 1 == 21


def trials(monkeypatch: pytest.MonkeyPatch, workspaces: Iterator[float]) -> MagicMock:
    """Calls of a function before its runs, of which nobody knows any yet; what they allocate is given."""
    real = trial.run_trial

    def tried(*args: Any, **kwargs: Any) -> trial.Trial:
        return replace(real(*args, **kwargs), workspace=next(workspaces), state=(8.0,))

    monkeypatch.setattr(trial, "_known", trial._Known())
    monkeypatch.setattr(trial, "run_trial", mock := MagicMock(wraps=tried))
    return mock


@pytest.mark.parametrize("name", ["sum", "mean", "var", "max", "count_nonzero", "norm"])
def test_a_reduction_is_tried_until_two_calls_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single one may count what other threads allocate."""
    tried, x = trials(monkeypatch, itertools.chain([9.0, 3.0], itertools.repeat(5.0))), filled((40, 50), "f4")
    called = []
    for array, axis in [(x, 0), (x + 1, 0), *[(x, 0)] * 3, *[(x, 1)] * 3, *[(x.astype("f8"), 0)] * 3]:
        before = tried.call_count
        reduce = np.linalg.norm if name == "norm" else getattr(np, name)
        np.testing.assert_allclose(
            getattr(cf, name)(array, axis=axis, device="cpu"), reduce(array, axis=axis), rtol=1e-6
        )
        called.append(tried.call_count - before)
    assert called == [1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0], "another axis and another dtype are something else"


def test_a_small_array_is_one_block_and_starts_one_lane() -> None:
    names = set()

    def note(x: Any) -> Any:
        names.update(at_work())
        return x

    same(cf.map(note, np.ones(10), device="cpu"), np.ones(10))
    assert len(names) <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.sqrt(x) + 1,
        lambda x: np.where(x > 2, x, 0).astype("f4"),
        lambda x: x[np.array([3, 40, 7]), np.array([5, 1, 30])],
        lambda x: (x - 1).sum(axis=0),
    ],
)
def test_a_trial_of_numpys_ufuncs_reads_nothing(make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x, read = Counting(np.arange(64.0 * 64).reshape(64, 64)), []
    monkeypatch.setattr("chunkflow.engine.trial.read_whole", lambda *args: read.append(args))
    with np.errstate(all="raise"):
        np.testing.assert_allclose(make(cf.open(x)).compute(device="cpu"), make(x.values), rtol=1e-6)
    assert not read
    assert cf.map(lambda block: block * 2, x, device="cpu").shape == (64, 64)
    assert read


class Counting:
    """An array that is no file and is not in memory."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.values[key].copy()


def test_ufuncs_are_tried_until_two_trials_agree() -> None:
    x = np.arange(1000, dtype="i4").reshape(10, 100)

    def tried(*call: Any) -> int:
        with patch.object(trial, "run_trial", wraps=trial.run_trial) as seen:
            found = cf.map(*call, device="cpu")
        np.testing.assert_array_equal(found, call[0](*call[1:]))
        assert found.dtype == call[0](*call[1:]).dtype
        return seen.call_count

    for call in ((np.negative, x), (np.multiply, x, 2), (np.multiply, x, 2.0), (np.multiply, x, np.float32(2))):
        assert [tried(*call) for _ in range(4)] == [1, 1, 0, 0]
    assert tried(np.negative, x.astype("f4")) == 1
    assert [tried(lambda b: -b, x) for _ in range(3)] == [1, 1, 1]
    with patch.object(trial, "run_trial", wraps=trial.run_trial) as seen:
        for _ in range(4):
            np.testing.assert_array_equal(cf.map_overlap(np.negative, x, depth=1, device="cpu"), -x)
    assert seen.call_count == 2
