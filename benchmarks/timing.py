"""Timing: contenders in turns, and medians. Nothing else in the benchmarks reads the clock to compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Any

Contender = Callable[[], Any]
Check = Callable[[str, Any], object]
Warm = Callable[[str, Contender], object]


LONG, SLOWER = 4.0, 8
"""A first run of so many seconds, and so many times slower than another, counts, and is not repeated."""


def seconds_of(run: Contender) -> tuple[float, Any]:
    """Seconds that one run takes, and what it returns."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def in_turns(
    runs: Mapping[str, Contender],
    repeats: int,
    check: Check,
    warm: Warm | None = None,
    peers: Container[str] = (),
) -> dict[str, list[float]]:
    """Time each contender `repeats` times, in turn, after an uncounted round; its result is checked after every run.

    `warm` makes the uncounted runs, and may watch them. Those of `peers` that are much slower count, and suffice.
    """
    first, warm = {}, warm or (lambda name, run: run())
    for name, run in runs.items():
        results: list[Any] = []
        first[name] = seconds_of(partial(warm, name, lambda run=run, results=results: results.append(run())))[0]  # type: ignore[misc]
        check(name, results.pop())
    slow = {name for name, took in first.items() if name in peers and took > max(LONG, SLOWER * min(first.values()))}
    seconds: dict[str, list[float]] = {name: [first[name]] if name in slow else [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            if name in slow:
                continue
            took, result = seconds_of(run)
            seconds[name].append(took)
            check(name, result)
            del result
    return seconds


def median_seconds(run: Contender, repeats: int = 3, *, warm: bool = True) -> float:
    """Median of some runs, after one that is not counted if they are to be warm."""
    if warm:
        run()
    return statistics.median(seconds_of(run)[0] for _ in range(repeats))


def core_seconds(run: Contender, repeats: int = 3) -> float:
    """Least seconds of work of all cores together: more than the run's where a library shares its work out."""
    took = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        took.append(time.process_time() - begin)
    return min(took)  # a bound: the first runs wait for new memory
