"""Where lanes are threads a block goes to the one that is least behind, and results are the same whichever it is."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from devices import machine

import chunkflow as cf
from chunkflow.devices.numpy import NumpyDevice
from chunkflow.lanes import Lanes
from chunkflow.plan import Plan
from chunkflow.testing import filled

Call = Callable[..., Any]


def cores(lanes: int = 2) -> NumpyDevice:
    """The CPU with so many lanes."""
    return NumpyDevice(machine=machine(staged=False, lanes=lanes, depths=(2 * lanes,)))


def plan(fn: Call, device: Any, **options: Any) -> Plan:
    found: Plan = cf.explain(fn, filled((64, 50), "f4"), device=device, budget="40kB", **options)
    return found


def lanes(plan: Plan) -> Lanes:
    return Lanes(plan, [NumpyDevice(mode="eager").lane() for _ in range(plan.lanes)])


def test_each_has_its_turn_until_one_is_behind() -> None:
    found = lanes(plan(cf.sum, cores(3), chunks=(4, -1)))
    assert found.pick is not None
    assert [found.pick(n % 3) for n in range(6)] == [0, 1, 2, 0, 1, 2]
    for n in (1, 2, 1):
        found.computed(n)
    assert [found.pick(n % 3) for n in range(4)] == [1, 1, 2, 0]


def test_in_turn_where_something_passes_from_block_to_block_or_lanes_are_one_device_s() -> None:
    assert lanes(plan(cf.cumsum, cores(), axis=0)).pick is None
    staged = NumpyDevice(staged=True, machine=machine(staged=True, lanes=2))
    assert lanes(plan(cf.sum, staged, chunks=(4, -1))).pick is None


def test_a_slow_lane_gets_fewer_blocks() -> None:
    """Of two threads the first one computes a block only after the other has computed two more."""
    x, changed, counts = filled((120, 50), "f4"), threading.Condition(), Counter[int]()

    def work(block: np.ndarray) -> np.ndarray:
        here = threading.get_ident()
        with changed:
            if here == next(iter(counts), here):
                wanted = counts.total() - counts[here] + 2
                changed.wait_for(lambda: counts.total() - counts[here] >= wanted, timeout=0.5)
            counts[here] += 1
            changed.notify_all()
        return block + 1

    got = cf.map(work, x, chunks=(4, -1), dtype="f4", workspace=1, device=cores(), budget="100kB")
    np.testing.assert_array_equal(got, x + 1)
    first, second = counts.values()
    assert first + second == 30
    assert first < second - 2


class Late:
    """An array whose regions come as late as chance has it, and which threads they came to."""

    def __init__(self, array: np.ndarray, seed: int) -> None:
        self._array, self._draw = array, random.Random(seed)
        self.shape, self.dtype = array.shape, array.dtype
        self.by = dict[int, str]()

    def __getitem__(self, region: Any) -> np.ndarray:
        time.sleep(self._draw.choice([0, 0, 0.002]))
        self.by[region[0].start] = threading.current_thread().name + str(threading.get_ident())
        return self._array[region]


@pytest.mark.parametrize(("name", "axis"), [("sum", None), ("mean", 0), ("var", (0, 1)), ("min", 0)])
def test_the_same_bits_whichever_lane_computes_a_block(name: str, axis: Any) -> None:
    x = (np.random.default_rng(0).standard_normal((120, 50)) * 1e3).astype("f4")
    device, found, ways = cores(3), set[bytes](), set[tuple[int, ...]]()
    for seed in range(8):
        source = Late(x, seed)
        got = getattr(cf, name)(source, axis=axis, chunks=(4, -1), device=device, budget="100kB")
        found.add(np.asarray(got).tobytes())
        threads = [source.by[start] for start in range(0, 120, 4)]
        ways.add(tuple(threads.index(thread) for thread in threads))
    assert len(found) == 1
    assert len(ways) > 1, "blocks went to other lanes from run to run"
