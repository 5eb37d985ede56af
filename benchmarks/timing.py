"""Timing: contenders in turns, and medians. Nothing else in the benchmarks reads the clock to compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Contender = Callable[[], Any]
Check = Callable[[str, Any], object]
Warm = Callable[[str, Contender], object]


def seconds_of(run: Contender) -> tuple[float, Any]:
    """Seconds that one run takes, and what it returns."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def in_turns(
    runs: Mapping[str, Contender], repeats: int, check: Check, warm: Warm = lambda name, run: run()
) -> dict[str, list[float]]:
    """Time each contender `repeats` times, in turn, after an uncounted round; its result is checked after every run.

    `warm` makes the uncounted runs, and may watch them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for name, run in runs.items():
        results: list[Any] = []
        warm(name, lambda run=run, results=results: results.append(run()))  # type: ignore[misc]
        check(name, results.pop())
    for _ in range(repeats):
        for name, run in runs.items():
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
