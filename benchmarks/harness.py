"""Shared by the benchmarks: alternating repetitions, medians, peak memory, and a description of the machine."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf

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


def timed(
    runs: Mapping[str, Callable[[], Any]],
    repeats: int,
    check: Callable[[str, Any], object],
    warm: Callable[[str, Contender], object] = lambda name, run: run(),
) -> dict[str, list[float]]:
    """As `alternate`, with a check that is handed the contender's name and what it returned."""
    last: list[tuple[str, Any]] = []

    def keeping(name: str, run: Callable[[], Any]) -> Contender:
        return lambda: last.append((name, run()))

    contenders = {name: keeping(name, run) for name, run in runs.items()}
    return alternate(contenders, repeats, lambda: check(*last.pop()), warm)


def median_seconds(run: Callable[[], object], repeats: int = 3, *, warm: bool = True) -> float:
    """Median of some runs, after one that is not counted if they are to be warm."""
    if warm:
        run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def has_gpu() -> bool:
    """Whether there is a GPU that CuPy can use."""
    try:
        return int(importlib.import_module("cupy").cuda.runtime.getDeviceCount()) > 0
    except Exception:  # CuPy raises an error of its own where there is no driver
        return False


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


def blur(block):
    """A 7-point stencil: the mean of an element and its neighbours, without the block's rim."""
    inner = block[1:-1, 1:-1, 1:-1]
    total = block[:-2, 1:-1, 1:-1] + block[2:, 1:-1, 1:-1]
    total += block[1:-1, :-2, 1:-1]
    total += block[1:-1, 2:, 1:-1]
    total += block[1:-1, 1:-1, :-2]
    total += block[1:-1, 1:-1, 2:]
    total += inner
    total *= np.float32(1 / 7)
    return total


def in_threads(fn: Callable[[int], object], number: int) -> list[Any]:
    """What a function gives for 0, 1, 2 ..., by several threads: NumPy lets them work at once."""
    with ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as threads:
        return list(threads.map(fn, range(number)))


def poison(array: np.ndarray) -> None:
    """Fill an output with NaN, so that no value of an earlier run can pass for a result."""
    in_threads(lambda i: array[i].fill(np.nan), len(array))


def volume(path: Path, shape: tuple[int, int, int]) -> np.memmap:
    """A page-cached memmap of float32 noise over a gradient."""
    x = np.memmap(path, "f4", "w+", shape=shape)
    base = np.random.default_rng(0).standard_normal((16, *shape[1:]), dtype="f4")
    in_threads(lambda i: np.copyto(x[i], base[i % 16] + np.float32(8 * i / shape[0])), len(x))
    return np.memmap(path, "f4", "r", shape=shape)


def volume_shape(gib: float) -> tuple[int, int, int]:
    """Shape of a float32 volume of so many GiB, in planes of 16 MiB, or of 256 KiB where it is small."""
    plane = (2048, 2048) if gib >= 1 else (256, 256)
    return (max(16, round(gib * 2**30 / (4 * plane[0] * plane[1]))), *plane)


class Unwatched:
    """Stands for `benchmarks.gpu_probe.PeakWatch` where there is no GPU."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}

    def __call__(self, name: str, run: Contender) -> None:
        """Run."""
        run()


class Accelerator:
    """The library whose arrays blocks are on a device; on the CPU NumPy, so that a script can be tried anywhere."""

    def __init__(self, device: str) -> None:
        self.device, self.is_gpu = device, device != "cpu"
        self.xp = importlib.import_module("cupy" if self.is_gpu else "numpy")

    def wait(self) -> None:
        """Wait for what has been started."""
        if self.is_gpu:
            self.xp.cuda.get_current_stream().synchronize()

    def free(self) -> None:
        """Give back device memory that the library keeps."""
        if self.is_gpu:
            self.xp.get_default_memory_pool().free_all_blocks()
            self.xp.get_default_pinned_memory_pool().free_all_blocks()

    def free_memory(self) -> int:
        """Bytes that the device has left; on the CPU a figure for small trials."""
        return int(self.xp.cuda.runtime.memGetInfo()[0]) if self.is_gpu else 1 << 30

    def watch(self) -> Any:
        """What runs a contender and sees how much device memory it takes."""
        return importlib.import_module("benchmarks.gpu").PeakWatch() if self.is_gpu else Unwatched()

    def within(
        self,
        budget: str | int,
        runs: Mapping[str, Callable[[], Any]],
        repeats: int,
        check: Callable[[str, Any], object],
    ) -> tuple[dict[str, list[float]], dict[str, str]]:
        """Seconds of contenders, and the most GB of device memory of each: each within a budget of its own."""
        seconds, watch = {}, self.watch()
        for name, run in runs.items():
            self.free()
            with cf.Budget(budget):
                seconds |= timed({name: run}, repeats, check, watch)
        return seconds, {name: f"{watch.peaks[name]:.2f}" if name in watch.peaks else "-" for name in runs}

    def link(self) -> float:
        """GB/s of large copies from pinned memory; on the CPU of copies in memory."""
        if self.is_gpu:
            rate: float = importlib.import_module("benchmarks.gpu").link_rate()
            self.free()
            return rate
        there, back = np.ones(1 << 26, np.uint8), np.ones(1 << 26, np.uint8)
        times = []
        for _ in range(6):
            begin = time.perf_counter()
            np.copyto(back, there)
            times.append(time.perf_counter() - begin)
        return there.nbytes / statistics.median(times) / 1e9


def anonymous() -> int:
    """Bytes of memory that this process has taken and that are no file's, shared ones too, by the kernel's account."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


class Watch:
    """Most bytes that `taken` tells, by a look every millisecond, beyond what it told at first."""

    def __init__(self, taken: Callable[[], int]) -> None:
        self._taken = taken
        self._before = self._most = taken()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)  # what fails must not wait for it
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.001):
            self._most = max(self._most, self._taken())

    def end(self) -> int:
        """Stop looking."""
        self._over.set()
        self._thread.join()
        return self._most - self._before


def peak_memory(run: Contender) -> float:
    """MB of anonymous memory that a run takes at most, beyond what was there before."""
    watch = Watch(anonymous)
    run()
    return watch.end() / 1e6


def sections(named: Mapping[str, Callable[[], str]], only: Sequence[str] | None) -> None:
    """Print what each section returns, or why it has nothing to print, and go on; exit with 1 if one had nothing."""
    failed = []
    if unknown := sorted(set(only or ()) - set(named)):
        sys.exit(f"no section is called {', '.join(unknown)}: there are {', '.join(named)}")
    for name, section in named.items():
        if only and name not in only:
            continue
        try:
            print(section(), flush=True)
        except Exception as error:
            traceback.print_exc()
            print(f"### {name}\n\nNo figures: {type(error).__name__}: {str(error).strip()[:500]}\n", flush=True)
            failed.append(name)
    if failed:
        sys.exit(f"no figures of: {', '.join(failed)}")


def gpu_parser(description: str | None, gib: float) -> argparse.ArgumentParser:
    """Options of the scripts for a GPU."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--gib", type=float, default=gib, help="size of a volume")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", default="4GB")
    parser.add_argument("--device", default="cuda", help="cpu, to try the script")
    parser.add_argument("--directory", default=None, help="where the files lie for a while")
    parser.add_argument("--only", nargs="*", default=None, help="sections to run")
    return parser


def machine() -> str:
    """What ran, where and when."""
    versions = []
    for package in ("numpy", "cupy-cuda13x", "cupy-cuda12x", "zarr", "dask", "cubed", "blosc2", "numcodecs"):
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
