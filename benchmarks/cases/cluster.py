"""chunkflow's tasks beside plain dask's on a local cluster of processes: a map, a sum and a stencil, zarr to zarr.

The cluster is started once, one thread to a worker, and contenders take turns on it. Settings are `workers` and
`plane`, the sides of the array's planes. What they wrote is removed after each run, and a part of it is compared with
NumPy's. Peak memory is the most anonymous memory that any worker takes, beyond what it had when the run began. Tasks
are those that the scheduler has seen done, its seconds the time that its thread takes of a core.
"""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, MissingError
from benchmarks.data import blur, work
from benchmarks.probe import Watch, anonymous, installed

CHUNKS = (64, 128, 128)
BUDGET = "128MB"  # of a worker
STENCIL = "7-point stencil"


def begin_watching(dask_worker: Any) -> None:
    """Look at the memory of the worker that this process is."""
    dask_worker.benchmark_watch = Watch(anonymous)


def end_watching(dask_worker: Any) -> float:
    """Its peak, in MB."""
    return float(dask_worker.benchmark_watch.end() / 1e6)


def padded_blur(block: Any) -> Any:
    """The stencil as dask wants it: of its block's shape, with a rim that is cut off."""
    return np.pad(blur(block), 1)


class Watched:
    """Memory, tasks and the scheduler's seconds of a run on a cluster, in the columns of its case."""

    def __init__(self, cluster: Any, client: Any) -> None:
        self.cluster, self.client = cluster, client
        self.columns: dict[str, dict[str, str]] = {"MB of a worker": {}, "tasks": {}, "scheduler seconds": {}}

    def __call__(self, contender: str, run: Callable[[], Any]) -> None:
        plugin = importlib.import_module("distributed.diagnostics.plugin").SchedulerPlugin

        class Tasks(plugin):  # type: ignore[misc, valid-type]
            """Counts the tasks that have been done."""

            done = 0

            def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
                self.done += (start, finish) == ("processing", "memory")

        tasks = Tasks()
        self.cluster.scheduler.add_plugin(tasks, name="tasks")
        self.client.run(begin_watching)
        before = self.client.run_on_scheduler(time.thread_time)
        run()
        busy = self.client.run_on_scheduler(time.thread_time) - before
        peak = max(self.client.run(end_watching).values())
        self.cluster.scheduler.remove_plugin("tasks")
        for column, figure in zip(self.columns.values(), (f"{peak:.0f}", tasks.done, f"{busy:.2f}"), strict=True):
            column[contender] = str(figure)


class Task:
    """The array, and what each contender does with it."""

    def __init__(self, bench: Bench) -> None:
        side = int(bench.settings["plane"])
        planes = int(bench.gib * 2**30) // (4 * side * side) // CHUNKS[0] * CHUNKS[0]
        shape = (max(CHUNKS[0], planes), side, side)
        self.path, self.out = str(bench.directory / "x.zarr"), str(bench.directory / "out.zarr")
        array = zarr.create_array(self.path, shape=shape, chunks=CHUNKS, dtype="f4")
        noise = np.random.default_rng(0).standard_normal((CHUNKS[0], side, side), dtype="f4")
        for first in range(0, shape[0], CHUNKS[0]):
            array[first : first + CHUNKS[0]] = noise + np.float32(first / shape[0])
        self.plane, self.nbytes = array[: CHUNKS[0]], array.nbytes
        self.partition = array.nbytes // (2 * int(bench.settings["workers"]))

    def store(self, array: Any) -> None:
        """Write an array by chunkflow's tasks."""
        store = importlib.import_module("chunkflow.dask").store
        store(array, self.out, partition=self.partition, budget=BUDGET, device="cpu")

    def runs(self) -> dict[str, dict[str, Callable[[], Any]]]:
        """Contenders, by what they do."""
        d, x = importlib.import_module("dask.array").from_zarr(self.path), cf.open(self.path)
        options: dict[str, Any] = {"depth": 1, "boundary": "nearest", "dtype": "f4"}
        how: dict[str, Any] = {"partition": self.partition, "budget": BUDGET, "device": "cpu"}
        return {
            "map": {
                OURS: lambda: self.store(work(x)),
                "dask": lambda: work(d).to_zarr(self.out),
            },
            "sum": {
                OURS: lambda: float(x.sum(dtype="f8").to_dask(**how).compute()),
                "dask": lambda: float(d.sum(dtype="f8").compute()),
            },
            STENCIL: {
                OURS: lambda: self.store(x.map_overlap(blur, **options, trim=False)),
                "dask": lambda: d.map_overlap(padded_blur, **options).to_zarr(self.out),
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


def cases(bench: Bench) -> Iterator[Case]:
    """All three on one cluster."""
    missing = installed("dask", "distributed")[1]
    if missing:
        raise MissingError(", ".join(missing))
    os.environ["CHUNKFLOW_DEVICE"] = "cpu"
    distributed, workers = importlib.import_module("distributed"), int(bench.settings["workers"])
    cluster = distributed.LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        task = Task(bench)
        what = f"tasks of {task.partition / 1e6:.0f} MB of {task.nbytes / 1e6:.0f} MB of zarr, {workers} workers"
        for name, runs in task.runs().items():
            watched = Watched(cluster, client)
            yield Case(
                f"cluster, {name}",
                what,
                task.nbytes / 1e9,
                runs,
                lambda _, result, name=name: task.check(name, result),
                None,
                watch=watched,
                columns=watched.columns,
            )
