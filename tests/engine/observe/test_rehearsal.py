"""What a few calls before a run say of it: each thread's while all others are at work, and blocks as it makes them."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine.observe.rehearsal import BEYOND, CALLS, Calls, Seen, _at_once, _Frame, framed
from chunkflow.planner.plan import Plan


def test_each_thread_is_at_it_until_all_have_enough() -> None:
    """One whose calls are short would be alone for all of them, before the others are woken or when they have ended."""
    begun, enough = itertools.count(), threading.Event()

    def short() -> Seen:
        if next(begun) > 5 * CALLS:
            enough.set()
        return 1.0, 2.0

    def long() -> Seen:
        assert enough.wait(10), "the other thread has stopped"
        return 2.0, 1.0

    assert _at_once([lambda: (short, (10.0, 0.5)), lambda: (long, (3.0, 4.0))]) == (10.0, 1.0)


def test_calls_count_once_all_are_at_work() -> None:
    """A thread that prepares for long keeps the others waiting, which are faster without it."""
    together = threading.Event()

    def early() -> Calls:
        return lambda: (time.sleep(1e-3), (2.0 if together.is_set() else 1.0,))[1], (1.0,)

    def late() -> Calls:
        time.sleep(0.05)

        def call() -> Seen:
            together.set()
            return (2.0,)

        return call, (1.0,)

    assert _at_once([early, late]) == (2.0,)


def test_a_moment_in_which_the_system_does_something_else_does_not_count() -> None:
    seconds = itertools.cycle([0.001, 0.002, 0.04, 0.001, 0.002])
    assert _at_once([lambda: (lambda: (next(seconds),), (100.0,))]) == (pytest.approx(0.2),)
    calls = itertools.count(1)
    assert _at_once([lambda: (lambda: (float(next(calls)),), (1.0,))]) == (2.5,), "of long ones two are enough"


@pytest.mark.parametrize("when", ["preparing", "calling"])
@pytest.mark.parametrize("which", [0, 1])
def test_an_error_of_one_ends_all(which: int, when: str) -> None:
    def fails() -> Seen:
        raise ValueError("no such tile")

    def failing() -> Calls:
        if when == "preparing":
            fails()
        return fails, (1.0,)

    each: list[Callable[[], Calls]] = [lambda: (lambda: (1.0,), (1.0,))] * 2
    each[which] = failing
    with pytest.raises(ValueError, match="no such tile"):
        _at_once(each)


def stencil(source: Any, chunks: tuple[int, ...], boundary: Any) -> Plan:
    plan: Plan = cf.explain(
        cf.map_overlap, np.negative, source, depth=1, boundary=boundary, chunks=chunks, device="cpu"
    )
    return plan


@pytest.fixture
def volume(tmp_path: Path) -> str:
    np.save(tmp_path / "x.npy", np.full((16, 8, 8), 7.0))
    return str(tmp_path / "x.npy")


@pytest.mark.parametrize("boundary", [7.0, "nearest", "reflect", "mirror", "periodic", "none"])
@pytest.mark.parametrize("chunks", [(4, -1, -1), (4, 4, 8), (16, 8, 3)])
def test_all_of_a_block_with_a_halo_is_made_anew(volume: str, chunks: tuple[int, ...], boundary: Any) -> None:
    plan = stencil(volume, chunks, boundary)
    (operand,) = plan.op.operands
    for step in plan.steps():
        shape, itemsize = [s.stop - s.start for s in step.sources[0]], 8
        frame = _Frame(np.full(shape, 7.0), 0, plan, step)
        for _ in range(3):
            frame._before[...] = np.nan
            assert min(frame.make()) > 0
            np.testing.assert_array_equal(frame.block, 7.0)
        known = step.kept[0]
        held = 0 if known is None else itemsize * math.prod(s.stop - s.start for s in known)
        assert frame.nbytes == (step.nbytes(0, operand, itemsize), held)


def test_rows_of_a_block_come_from_more_memory_than_the_cache_holds(volume: str) -> None:
    plan = stencil(volume, (4, -1, -1), 7.0)
    step = next(iter(plan.steps()))
    block = np.full([s.stop - s.start for s in step.sources[0]], 7.0)
    frame = _Frame(block, 0, plan, step)
    rows = {id(next(frame._rows)) for _ in range(3 * (BEYOND * plan.machine.cache // block.nbytes + 1))}
    assert plan.machine.cache < len(rows) * block.nbytes <= plan.budget // 4


def test_what_is_read_into_blocks_with_halos_and_what_they_take_over(volume: str) -> None:
    plan = stencil(volume, (4, -1, -1), "nearest")
    assert framed(plan) == {0: (16 * 8 * 8 * 8, (4 * 6 * 10 * 10 - 16 * 8 * 8) * 8)}
    assert framed(stencil(np.load(volume), (4, -1, -1), "none")) == {}, "these are views"
    assert framed(cf.explain(cf.sum, volume, device="cpu")) == {}
    # Only the first and the last lie beyond the edges.
    ((read, passed),) = framed(stencil(np.load(volume), (4, -1, -1), (7.0, "none", "none"))).values()
    assert (read, passed) == (16 * 8 * 8 * 8 / 2, (4 * 6 - 16) * 8 * 8 * 8 / 2)


def test_a_few_blocks_stand_for_all(volume: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen counts as often as there are such bytes; what nothing was seen of, as if it were read."""
    monkeypatch.setattr("chunkflow.engine.observe.rehearsal._at_once", lambda each, crowd: each[0]()[1])

    def times(chunks: tuple[int, ...]) -> tuple[float, float]:
        options = {"depth": 1, "boundary": "nearest", "chunks": chunks, "device": "cpu", "analyze": True}
        run = cf.explain(cf.map_overlap, np.negative, volume, **options).runs[0]
        return run.framing, run.computing

    made_up = 4 * 6 * 10 * 10 - 16 * 8 * 8
    assert times((4, -1, -1)) == (4 + made_up / (2 * 10 * 10), 4)
    assert times((-1, -1, -1)) == (18 * 10 * 10 / (16 * 8 * 8), 1)


def test_blocks_that_read_nothing_do_not_stand_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a large block is tried. The parts before it may have read all chunks that it needs."""
    import zarr

    monkeypatch.setattr("chunkflow.engine.observe.rehearsal._at_once", lambda each, crowd: each[-1]()[1])
    shape, path = (12_800, 4096), str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=shape, chunks=(800, 1024), dtype="f4", compressors=None)
    device = NumpyDevice(machine=replace(NumpyDevice().machine, cache=2 << 20))  # in a large one the block is one part
    options = {"depth": 1, "boundary": "nearest", "device": device, "analyze": True}
    run = cf.explain(cf.map_overlap, lambda block: np.roll(block, 1, 0) + np.roll(block, 1, 0), path, **options).runs[0]
    assert run.plan.tile != run.plan.block
    assert 1 <= run.framing < 100
