"""Shared by the benchmarks: alternating repetitions, medians, and a description of the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

Contender = Callable[[], object]


def alternate(
    contenders: Mapping[str, Contender],
    repeats: int,
    check: Contender,
    warm: Callable[[str, Contender], object] = lambda name, run: run(),
) -> dict[str, list[float]]:
    """Time each contender `repeats` times, in turn, after an uncounted round; `check` follows every run.

    `warm` makes the uncounted runs, and may watch them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for name, run in contenders.items():
        warm(name, run)
        check()
    for _ in range(repeats):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
            check()
    return seconds


def table(title: str, rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """Markdown table."""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def rate_rows(seconds: Mapping[str, Sequence[float]], nbytes: int) -> list[tuple[str, str, str, str]]:
    """Name, median GB/s, its range, and the ratio to the last contender."""
    last = statistics.median(list(seconds.values())[-1])
    rows = []
    for name, times in seconds.items():
        middle = statistics.median(times)
        spread = f"{nbytes / max(times) / 1e9:.1f}-{nbytes / min(times) / 1e9:.1f}"
        rows.append((name, f"{nbytes / middle / 1e9:.1f}", spread, f"{last / middle:.2f}"))
    return rows


def machine() -> str:
    """What ran, where and when."""
    versions = []
    for package in ("numpy", "cupy-cuda13x", "cupy-cuda12x", "zarr", "dask", "numcodecs"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    gpu = ""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
        gpu = "; " + found.stdout.strip().replace("\n", " / ")
    except (OSError, subprocess.CalledProcessError):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{datetime.now(UTC):%Y-%m-%d}; {cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB{gpu}; "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )
