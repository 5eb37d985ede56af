"""chunkflow's tasks beside plain dask's on a local cluster of processes: a map, a sum and a stencil, zarr to zarr.

Run ``python -m benchmarks.cluster [--mib 512] [--workers 2] [--repeats 3] [--directory DIR]``. It needs dask and
distributed, room for three times the size on disk, and page cache for it. The cluster is started once, one thread to a
worker; contenders take turns on it, what they wrote is removed after each run, and a part of it is compared with
NumPy's. Peak memory is the most anonymous memory that any worker takes, beyond what it had when the run began; tasks
are those that the scheduler has seen done, its seconds the time that its thread takes of a core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin

import chunkflow as cf
from benchmarks.harness import Watch, anonymous, blur, machine, table, timed
from chunkflow.dask import store

CHUNKS = (64, 128, 128)
BUDGET = "128MB"  # of a worker


def work(x):
    """What is mapped."""
    return np.sqrt(np.abs(x)) * 2 + 1


class Tasks(SchedulerPlugin):
    """Counts the tasks that have been done."""

    def __init__(self) -> None:
        self.done = 0

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.done += (start, finish) == ("processing", "memory")


def begin_watching(dask_worker: Any) -> None:
    """Look at the memory of the worker that this process is."""
    dask_worker.benchmark_watch = Watch(anonymous)


def end_watching(dask_worker: Any) -> float:
    """Its peak, in MB."""
    return dask_worker.benchmark_watch.end() / 1e6


class Case:
    """The array, and what each contender does with it."""

    def __init__(self, directory: Path, mib: int, workers: int) -> None:
        side = 512
        self.shape = (max(CHUNKS[0], mib * 2**20 // (4 * side * side) // CHUNKS[0] * CHUNKS[0]), side, side)
        self.path, self.out = str(directory / "x.zarr"), str(directory / "out.zarr")
        array = zarr.create_array(self.path, shape=self.shape, chunks=CHUNKS, dtype="f4")
        noise = np.random.default_rng(0).standard_normal((CHUNKS[0], side, side), dtype="f4")
        for first in range(0, self.shape[0], CHUNKS[0]):
            array[first : first + CHUNKS[0]] = noise + np.float32(first / self.shape[0])
        self.plane = array[: CHUNKS[0]]
        self.nbytes = array.nbytes
        self.partition = array.nbytes // (2 * workers)

    def store(self, array: Any) -> None:
        """Write an array by chunkflow's tasks."""
        store(array, self.out, partition=self.partition, budget=BUDGET, device="cpu")

    def cases(self) -> dict[str, dict[str, Callable[[], Any]]]:
        d, x = da.from_zarr(self.path), cf.open(self.path)
        options: dict[str, Any] = {"depth": 1, "boundary": "nearest"}
        how: dict[str, Any] = {"partition": self.partition, "budget": BUDGET, "device": "cpu"}
        return {
            "map": {
                "dask": lambda: work(d).to_zarr(self.out),
                "chunkflow": lambda: self.store(work(x)),
            },
            "sum": {
                "dask": lambda: float(d.sum(dtype="f8").compute()),
                "chunkflow": lambda: float(x.sum(dtype="f8").to_dask(**how).compute()),
            },
            "7-point stencil": {
                "dask": lambda: d.map_overlap(padded_blur, **options, dtype="f4").to_zarr(self.out),
                "chunkflow": lambda: self.store(x.map_overlap(blur, **options, trim=False, dtype="f4")),
            },
        }

    def check(self, case: str, result: Any) -> None:
        """Compare a part of what was written with NumPy's, and remove it."""
        if case == "sum":
            expected = float(zarr.open_array(self.path)[...].sum(dtype="f8"))
            np.testing.assert_allclose(result, expected, rtol=1e-9)
            return
        found = zarr.open_array(self.out)[: CHUNKS[0] - 1]
        whole = work(self.plane) if case == "map" else blur(np.pad(self.plane, 1, "edge"))
        np.testing.assert_allclose(found, whole[:-1], rtol=1e-5)
        shutil.rmtree(self.out)


def padded_blur(block):
    """The stencil as dask wants it: of its block's shape, with a rim that is cut off."""
    return np.pad(blur(block), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", default=None)
    given = parser.parse_args()
    os.environ["CHUNKFLOW_DEVICE"] = "cpu"
    cluster = LocalCluster(n_workers=given.workers, threads_per_worker=1, processes=True, dashboard_address=None)
    with tempfile.TemporaryDirectory(dir=given.directory) as folder, cluster, Client(cluster) as client:
        case = Case(Path(folder), given.mib, given.workers)
        rows = []
        for name, runs in case.cases().items():
            peaks: dict[str, float] = {}
            counts: dict[str, int] = {}
            busy: dict[str, float] = {}

            def watched(contender: str, run: Callable[[], Any], peaks=peaks, counts=counts, busy=busy) -> None:
                tasks = Tasks()
                cluster.scheduler.add_plugin(tasks, name="tasks")
                client.run(begin_watching)
                before = client.run_on_scheduler(time.thread_time)
                run()
                busy[contender] = client.run_on_scheduler(time.thread_time) - before
                peaks[contender] = max(client.run(end_watching).values())
                cluster.scheduler.remove_plugin("tasks")
                counts[contender] = tasks.done

            seconds = timed(runs, given.repeats, lambda _, result, name=name: case.check(name, result), watched)
            for contender, times in seconds.items():
                middle = statistics.median(times)
                spread = f"{min(times):.2f}-{max(times):.2f}"
                figures = f"{peaks[contender]:.0f}", counts[contender], f"{busy[contender]:.2f}"
                rows.append((name, contender, f"{middle:.2f}", spread, *figures))
        head = ("case", "contender", "seconds", "range", "MB of memory of a worker", "tasks", "scheduler seconds")
        title = f"Tasks of {case.partition / 1e6:.0f} MB of {case.nbytes / 1e6:.0f} MB of zarr, {given.workers} workers"
        print(table(title, rows, head))
        print(machine())


if __name__ == "__main__":
    main()
