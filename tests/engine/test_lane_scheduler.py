"""Where lanes are threads a block goes to the one that is least behind, and results are the same whichever it is."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.devices import machine

import chunkflow as cf
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine.lane_scheduler import LaneScheduler
from chunkflow.engine.transfer import Result
from chunkflow.planner.step import Step
from chunkflow.testing import filled

Call = Callable[..., Any]


def cores(lanes: int = 2) -> NumpyDevice:
    """The CPU with so many lanes."""
    return NumpyDevice(machine=machine(staged=False, lanes=lanes, depths=(2 * lanes,)))


def lanes(number: int, *, deals: bool) -> LaneScheduler:
    return LaneScheduler([NumpyDevice(mode="eager").lane() for _ in range(number)], deals=deals)


def result(lane: int) -> Result:
    return Result(Step(0, (), (), (), (), (), (), lane=lane), None, NumpyDevice().event())


def test_each_has_its_turn_until_one_is_behind() -> None:
    found = lanes(3, deals=True)
    assert [found.pick(n % 3) for n in range(6)] == [0, 1, 2, 0, 1, 2]
    for lane in (1, 2, 1):
        ended = result(lane)
        assert not ended.over
        found.follow(ended)
        assert ended.over
    assert [found.pick(n) for n in range(3)] == [1, 1, 2]


def test_a_lane_has_two_blocks_at_most() -> None:
    found = lanes(2, deals=True)
    for n in range(4):
        found.pick(n % 2)
    picked = list[int]()
    thread = threading.Thread(target=lambda: picked.append(found.pick(0)), daemon=True)
    thread.start()
    thread.join(0.05)
    assert not picked
    found.follow(result(1))
    thread.join(30)
    assert picked == [1]


def test_in_turn_where_something_passes_from_block_to_block_or_lanes_are_one_device_s() -> None:
    x = filled((64, 50), "f4")
    staged = NumpyDevice(staged=True, machine=machine(staged=True, lanes=2))
    assert cf.explain(cf.sum, x, chunks=(4, -1), device=cores()).deals
    assert not cf.explain(cf.cumsum, x, axis=0, device=cores()).deals
    assert not cf.explain(cf.sum, x, chunks=(4, -1), device=staged, budget="40kB").deals
    found = lanes(2, deals=False)
    assert [found.pick(n % 2) for n in range(9)] == [0, 1, 0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize("fold", [False, True])
def test_a_slow_lane_gets_few_blocks(fold: bool) -> None:
    """Of two threads the first one computes a block only after the other has computed five more."""
    x, changed, counts = filled((240, 50), "f4"), threading.Condition(), Counter[int]()

    def work(block: np.ndarray) -> np.ndarray:
        if threading.current_thread() is threading.main_thread():  # the trial call
            return block + 1
        here = threading.get_ident()
        with changed:
            if here == next(iter(counts), here):
                wanted = counts.total() - counts[here] + 5
                changed.wait_for(lambda: counts.total() - counts[here] >= wanted or counts.total() > 50, timeout=1)
            counts[here] += 1
            changed.notify_all()
        return block + 1

    options = {"chunks": (4, -1), "device": cores(), "budget": "100kB"}
    if fold:
        total = cf.reduction(x, lambda b, axis, keepdims: work(b).sum(axis=axis, keepdims=keepdims), np.sum, **options)
        np.testing.assert_allclose(total, (x + 1).sum(), rtol=1e-5)
    else:
        np.testing.assert_array_equal(cf.map(work, x, **options), x + 1)
    first, second = counts.values()
    assert first + second == 60
    assert 2 * first < second


def test_after_a_failure_no_block_is_begun_and_nothing_is_kept_of_those_that_failed() -> None:
    """While the first block computes, all that follow fail."""
    begun, left = list[str](), list[weakref.ref[np.ndarray]]()

    def work(block: np.ndarray) -> np.ndarray:
        if threading.current_thread() is threading.main_thread():  # the trial call
            return block + 1
        begun.append(threading.current_thread().name)
        temporary = block + 1
        left.append(weakref.ref(temporary))
        if block[0, 0] == 0:
            time.sleep(0.3)
            return temporary
        raise ValueError("no such block")

    x = np.arange(240.0)[:, None] + np.zeros(50)
    with pytest.raises(ValueError, match="no such block") as failed:
        cf.map(work, x, chunks=(4, -1), device=cores(), budget="100kB")
    assert any("in block (1, 0)" in note for note in failed.value.__notes__), "the first of them in the array's order"
    assert len(begun) <= 2 * 2 + 1
    gc.collect()
    assert sum(temporary() is not None for temporary in left) == 1, "that of the error's own frame"


class Described:
    """An array that is never read."""

    dtype = np.dtype("f4")

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __getitem__(self, region: Any) -> np.ndarray:
        return np.zeros([len(range(*side.indices(n))) for side, n in zip(region, self.shape, strict=True)], self.dtype)


def test_chains_do_not_depend_on_the_block() -> None:
    """Else the smallest blocks, with more chains, could take more than larger ones, and plans that fit be missed."""
    x, many = Described(50_000, 50_000), NumpyDevice(lanes=16)
    (together,) = cf.explain(cf.open(x).sum(axis=0), cf.open(x).sum(axis=1), device=many, budget="60MB").plans
    assert together.bytes_in == 4 * 50_000**2
    assert together.chains == together.lanes > 1
    for wanted, axis, shape in ((8, None, (50_000, 50_000)), (8, 0, (50_000_000, 2)), (1, 0, (50_000, 50_000))):
        plan = cf.explain(cf.sum, Described(*shape), axis=axis, device=many, budget="60MB")
        assert plan.chains == wanted * plan.lanes > 1
    assert cf.explain(cf.sum, x, device=NumpyDevice(lanes=1), budget="60MB").chains == 1


class Late:
    """An array one row of whose blocks comes late; and by which threads all were read."""

    def __init__(self, array: np.ndarray, late: int) -> None:
        self._array, self._late = array, late
        self.shape, self.dtype = array.shape, array.dtype
        self.by = dict[int, int]()

    def __getitem__(self, region: Any) -> np.ndarray:
        if region[0].start == self._late:
            time.sleep(0.05)
        self.by[region[0].start] = threading.get_ident()
        return self._array[region]


@pytest.mark.parametrize(("name", "axis"), [("sum", None), ("mean", 0), ("var", (0, 1)), ("min", 0)])
def test_the_same_bits_whichever_lane_computes_a_block(name: str, axis: Any) -> None:
    x = (np.random.default_rng(0).standard_normal((120, 50)) * 1e3).astype("f4")
    device, found, ways = cores(3), set[bytes](), set[tuple[int, ...]]()
    for late in range(0, 80, 8):
        source = Late(x, late)
        got = getattr(cf, name)(source, axis=axis, chunks=(4, -1), device=device, budget="100kB")
        found.add(np.asarray(got).tobytes())
        threads = [source.by[start] for start in range(0, 120, 4)]
        ways.add(tuple(threads.index(thread) for thread in threads))
    assert len(found) == 1
    assert len(ways) > 1, "blocks went to other lanes from run to run"
