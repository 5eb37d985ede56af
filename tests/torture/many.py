"""``python -m torture.many``: hundreds of runs in one process, after which no more is held than before.

Each scenario has its turn, also runs whose function fails, in random order. When all have run twice no further
descriptor and thread may be there after a run. Memory may grow by `MOST`, a third of an array of 24 kB for each run: so
none keeps an array or a buffer. It may grow by `ONCE` besides, since caches are not full by then, and the C library's
memory has gaps.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.system.thread_pool import NAME
from torture.scenarios import BUDGET, NEW, SCENARIOS, Scenario, prepare

MOST = 24_000 // 3
"""Bytes of memory for each run that may be held in the end."""

ONCE = 500_000
"""Bytes that may be held however many runs there were."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.many", description=__doc__)
    parser.add_argument("--number", type=int, default=500, help="runs that are counted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of the scenarios' names")
    options = parser.parse_args()
    chosen = [each for each in (*SCENARIOS, FAILING) if options.only in each.name]
    draw, wrong = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory(prefix="torture") as home:
        for scenario in chosen * 2:
            _run(scenario, Path(home) / "place")
        descriptors, threads, memory = _descriptors(), _threads(), _memory()
        for i in range(options.number):
            scenario = draw.choice(chosen)
            _run(scenario, Path(home) / "place")
            if more := (_descriptors() - descriptors) | (_threads(but=threads) - threads):
                wrong += 1
                print(f"run {i}, {scenario.name}: {sorted(more)}", flush=True)
                descriptors, threads = _descriptors(), _threads()
    grown = _memory() - memory
    wrong += grown > ONCE + MOST * options.number
    print(f"{options.number} runs: {grown / 1e6:.1f} MB more, {wrong} wrong")
    return int(wrong > 0)


def _fails(folder: Path) -> Any:
    def fail(block: np.ndarray) -> np.ndarray:
        raise ArithmeticError

    for out in ("f.npy", "f.zarr", "f.h5:/a"):
        with suppress(ArithmeticError):
            cf.map(fail, NEW, out=str(folder / out), budget=BUDGET, dtype="f8", workspace=0)


FAILING = Scenario("runs that fail", _fails, ())


def _run(scenario: Scenario, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    prepare(folder, scenario)
    scenario.run(folder)
    gc.collect()


def _descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
    return found


def _threads(but: Collection[str] = ()) -> set[str]:
    """Threads, without those that wait a moment for the next run. Others `but` the known ones may be about to end."""
    found = {f"{each.name}, {each.ident}": each for each in threading.enumerate() if each.name != NAME}
    for name, thread in found.items():
        if but and name not in but:
            thread.join(10)
    return {name for name, thread in found.items() if thread.is_alive()}


def _memory() -> int:
    """Bytes that the process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


if __name__ == "__main__":
    sys.exit(main())
