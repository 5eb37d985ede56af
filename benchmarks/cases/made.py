"""Arrays that are made on the device: integers, random numbers and coordinates, reduced at once.

They are held to the same numbers made and reduced in core, by the array library in blocks that fit the cache or the
card; random numbers are other ones, so that only their means agree.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.beside import CUPY, DASK, NUMPY, computed, dask_array, on_host
from benchmarks.case import OURS, Bench, Case, Goal
from benchmarks.probe import installed
from benchmarks.timing import median_seconds

BLOCK = 1 << 22
"""Elements that are made at once in core: of any more the card or the cache gains nothing."""


def cases(bench: Bench) -> Iterator[Case]:
    """One for each kind of numbers."""
    number = max(1, int(bench.gib * 2**30) // 8 // BLOCK) * BLOCK
    side = math.isqrt(number)
    xp = bench.xp
    packages, missing = installed(DASK)
    da: Any = dask_array() if packages else None
    each: dict[str, tuple[Callable[[], Any], Callable[[int], Any], Callable[[], Any], float, float]] = {
        "arange": (
            lambda: np.sum(cf.arange(number)),
            lambda start: xp.arange(start, start + BLOCK).sum(),
            lambda: da.arange(number, chunks=BLOCK).sum(),
            number * (number - 1) // 2,
            0,
        ),
        "random": (
            lambda: np.sum(cf.random.default_rng(0).random(number)),
            lambda start: xp.random.default_rng(start).random(BLOCK).sum(),
            lambda: da.random.default_rng(0).random(number, chunks=BLOCK).sum(),
            number / 2,
            9 * math.sqrt(number / 12),
        ),
        "normal": (
            lambda: np.sum(cf.random.default_rng(0).standard_normal(number) ** 2),
            lambda start: (xp.random.default_rng(start).standard_normal(BLOCK) ** 2).sum(),
            lambda: (da.random.default_rng(0).standard_normal(number, chunks=BLOCK) ** 2).sum(),
            number,
            9 * math.sqrt(2 * number),
        ),
        "fromfunction": (
            lambda: np.sum(cf.fromfunction(_plane, (side, side))),
            lambda start: (xp.arange(start, start + BLOCK) * 2.0 + xp.arange(BLOCK)).sum(),
            lambda: da.fromfunction(_plane, shape=(side, side), chunks=(BLOCK // side, side), dtype="f8").sum(),
            1.5 * side * side * (side - 1),
            1e-6 * side**3,
        ),
    }
    for short, (lazy, block, by_dask, total, within) in each.items():
        name = f"made, {short}"
        if bench.wanted(name):
            yield _case(bench, name, number, lazy, block, by_dask if packages else None, (total, within), missing)


def _plane(i: Any, j: Any) -> Any:
    return i * 2.0 + j


def _case(
    bench: Bench,
    name: str,
    number: int,
    lazy: Callable[[], Any],
    block: Callable[[int], Any],
    by_dask: Callable[[], Any] | None,
    expected: tuple[float, float],
    missing: tuple[str, ...],
) -> Case:
    total, within = expected

    def in_core() -> Any:
        found = [block(start) for start in range(0, number, BLOCK)]
        bench.accelerator.wait()
        return sum(on_host(part) for part in found)

    def shared() -> Any:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return sum(pool.map(block, range(0, number, BLOCK)))

    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: lazy().compute(budget=bench.budget, **bench.options),
        CUPY if bench.is_gpu else NUMPY: in_core if bench.is_gpu else shared,
    }
    if by_dask is not None:
        runs[DASK] = lambda: computed(by_dask())
    seconds = median_seconds(in_core if bench.is_gpu else shared, 2, warm=True)

    def check(who: str, got: Any) -> None:
        if who == OURS or not name.endswith("fromfunction"):
            assert abs(float(on_host(got)) - total) <= within, (who, got, total)

    label = CUPY if bench.is_gpu else "NumPy, on all cores"
    amount = number * 8 / 1e9
    return Case(
        *(name, f"{name}: {number} numbers of 8 bytes, made and summed up", amount, runs, check),
        *((label, amount / seconds), Goal(0.6)),
        missing=missing,
    )
