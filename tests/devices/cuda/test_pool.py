"""What a GPU's pools count, over a driver that is not there: budgets are kept in its pages, and used."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fakecupy import PAGE, CUDARuntimeError, Driver, FakeDevice, OutOfMemoryError, cupy_over

MIB = 1 << 20
RESERVE = 14 * MIB


class Bench:
    """A driver, a device and a pool with a limit."""

    def __init__(self, limit: int, total: int = 1 << 30) -> None:
        self.driver = Driver(total)
        self.device = FakeDevice(self.driver, RESERVE)
        with cupy_over(self.driver) as module:
            self.pool: Any = module.CupyPool(self.device, limit)
            self.module = module

    def fill(self, nbytes: int) -> int:
        """Buffers that a measured call gets, until there are no more."""
        held = []

        def fn() -> None:
            while True:
                held.append(self.pool._malloc(nbytes))

        with pytest.raises(OutOfMemoryError):
            self.pool.measure(fn)
        return len(held)


@pytest.fixture
def bench() -> Bench:
    return Bench(64 * MIB)


@pytest.mark.parametrize("nbytes", [512, 300_000, 700_000, MIB, MIB + 1024, 4_000_000, 5 * MIB])
def test_a_trial_gets_no_more_than_the_limit_and_most_of_it(bench: Bench, nbytes: int) -> None:
    number = bench.fill(nbytes)
    assert bench.pool.peak <= 64 * MIB
    pages = number / max(PAGE // nbytes, 1) * (-(-nbytes // PAGE) if nbytes > PAGE // 2 else 1)
    assert 40 * MIB <= pages * PAGE <= 48 * MIB


@pytest.mark.parametrize("nbytes", [512, 300_000, 700_000, MIB, MIB + 1024, 4_000_000])
def test_the_driver_gives_no_more_than_the_limit(bench: Bench, nbytes: int) -> None:
    most, driver = 0, bench.driver
    real = driver.malloc

    def malloc(size: int) -> Any:
        nonlocal most
        found = real(size)
        most = max(most, driver.given)
        return found

    driver.malloc = malloc  # type: ignore[method-assign]
    bench.fill(nbytes)
    assert 40 * MIB < most <= 64 * MIB
    bench.pool.close()
    assert driver.given == RESERVE
    assert bench.pool._tried[0] == 0


def test_what_earlier_runs_have_left_makes_way_for_a_trial(bench: Bench) -> None:
    with bench.pool.active():
        bench.pool._malloc(46 * MIB)
    assert bench.pool._pool.total_bytes() == 46 * MIB
    bench.pool.measure(lambda: [bench.pool._malloc(8 * MIB) for _ in range(3)])
    assert bench.pool._pool.total_bytes() == 0
    assert bench.device.reserve == RESERVE, "what is given back is nobody's growth, nor does it hide any"


def test_what_is_in_use_does_not_make_way(bench: Bench) -> None:
    with bench.pool.active():
        kept = bench.pool._malloc(30 * MIB)
    assert bench.fill(2 * MIB) == 8
    del kept


@pytest.mark.parametrize("left", [2 * MIB, 16 * MIB, 40 * MIB])
def test_what_a_library_takes_is_noted_also_where_a_pool_gives_back(bench: Bench, left: int) -> None:
    with bench.pool.active():
        bench.pool._malloc(left)
    bench.pool.measure(lambda: [bench.pool._malloc(8 * MIB) for _ in range(2)])

    def fn() -> None:
        big = bench.pool._malloc(42 * MIB)  # of which there is not so much beside what is kept
        bench.driver.libraries += 6 * MIB
        del big

    bench.pool.measure(fn)
    assert bench.device.reserve == RESERVE + 6 * MIB


def test_a_driver_that_has_no_more_is_out_of_memory_and_counts_stay_right() -> None:
    bench = Bench(1 << 30, total=40 * MIB)
    assert bench.fill(2 * MIB) == 13
    assert bench.pool._tried[0] == 26 * MIB
    bench.pool.close()
    assert bench.pool._tried[0] == 0
    assert bench.module.CupyDevice.is_out_of_memory(bench.device, CUDARuntimeError(2))


SIZES = st.sampled_from([512, 100_000, 400_000, 700_000, MIB, MIB + 512, 3 * MIB, 4_000_000, 9 * MIB])


@example(calls=[[None] * 3, [None] * 21], runs=[512, 3 * MIB], begins=False)  # libraries grow beside what runs left
@given(
    calls=st.lists(st.lists(st.none() | SIZES, max_size=30), max_size=5),
    runs=st.lists(SIZES, max_size=12),
    begins=st.booleans(),
)
def test_trials_and_runs_by_turns_keep_the_limit(calls: list[list[int | None]], runs: list[int], begins: bool) -> None:
    """And all that libraries take meanwhile, for which None stands, is noted to the byte."""
    bench = Bench(64 * MIB)
    kept: list[Any] = []
    for sizes in calls:

        def fn(sizes: list[int | None] = sizes) -> None:
            held = []
            for nbytes in sizes:
                if nbytes is None:
                    bench.driver.libraries += PAGE
                    held.clear()  # what of this is not used again is given back where memory is short
                else:
                    held.append(bench.pool._malloc(nbytes))
                    grown = bench.driver.libraries - bench.device.reserve  # nobody knows of it before the call ends
                    assert bench.driver.given - grown <= 64 * MIB + PAGE

        try:
            bench.pool.measure(fn)
        except OutOfMemoryError:
            assert sum((n or 0) + PAGE for n in sizes) + bench.driver.libraries > 60 * MIB
        assert bench.device.reserve == bench.driver.libraries
        if begins:
            bench.pool._trial.free_all_blocks()
        with bench.pool.active():
            for nbytes in runs:
                try:
                    kept.append(bench.pool._malloc(nbytes))
                except OutOfMemoryError:
                    kept.clear()
        assert bench.driver.given <= max(64 * MIB, bench.driver.libraries + PAGE) + PAGE
        kept.clear()
    bench.pool.close()
    assert bench.driver.given == bench.driver.libraries
    assert bench.pool._tried[0] == 0
