"""Several GPUs of one machine, a dask worker on each, beside one: a map that computes much, a product and a sum.

Each worker is a process that sees one GPU only. The cluster of all of them and that of the first alone stay up, and
take turns; arrays are files in the page cache, outputs too: they are there before, poisoned, and compared with NumPy's.
Device memory is the most that is in use on each worker's GPU beyond what was in use when the run began: the process has
its context and libraries by then.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import Bench, Case, MissingError, close_to
from benchmarks.data import in_threads, mapped, matrix, matrix_side, poison, volume, volume_shape
from benchmarks.probe import Accelerator, Watch, gpus, installed
from benchmarks.timing import median_seconds

STEPS = 600
TASKS = 4


def many_operations(x: Any, steps: int = STEPS) -> Any:
    """Much arithmetic for each byte."""
    y = x + 0  # the block itself is not for writing
    for _ in range(steps):
        y *= np.float32(0.999)
        y += np.float32(0.001)
    return y


def begin_watching(dask_worker: Any) -> None:
    """Look at the memory of the GPU of the worker that this process is."""
    dask_worker.benchmark_watch = Watch(Accelerator("cuda").in_use)


def end_watching(dask_worker: Any) -> float:
    """The peak, in GB."""
    return float(dask_worker.benchmark_watch.end() / 1e9)


def cluster(number: int) -> Any:
    """Workers of one thread, each of which sees one GPU."""
    distributed = importlib.import_module("distributed")
    here: dict[str, Any] = {"host": "127.0.0.1"}
    options = [{**here, "nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": str(i)}} for i in range(number)]
    workers = {i: {"cls": distributed.Nanny, "options": {**o, "memory_limit": 0}} for i, o in enumerate(options)}
    scheduler = {"cls": distributed.Scheduler, "options": {**here, "dashboard": False, "dashboard_address": ":0"}}
    return distributed.SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.WARNING)


def link_rate() -> float:
    """GB/s of large copies from pinned memory to a worker's GPU."""
    return Accelerator("cuda").link()


def host_rate(path: str) -> float:
    """GB/s at which a worker's threads read a page-cached file, without a GPU: what the host's memory allows."""
    piece, number = 4 << 20, max(1, min(1 << 30, Path(path).stat().st_size) // (4 << 20))
    kept = threading.local()

    def read(i: int) -> None:
        if not hasattr(kept, "buffer"):
            kept.buffer = np.ones(piece, np.uint8)
        os.preadv(file.fileno(), [kept.buffer], i * piece)

    with open(path, "rb") as file:
        return number * piece / median_seconds(lambda: in_threads(read, number), 5, warm=False) / 1e9


class Clusters:
    """The clusters, and what runs on them; `clients` are by name, that of one GPU first."""

    def __init__(self, bench: Bench, clients: Mapping[str, Any]) -> None:
        self.bench, self.clients = bench, clients
        self.how = {"budget": bench.budget, **bench.options}
        self.store: Callable[..., Any] = importlib.import_module("chunkflow.dask").store

    def output(self, shape: tuple[int, ...]) -> np.memmap:
        """A poisoned output."""
        out = mapped(self.bench.directory / f"out{len(shape)}.bin", "f4", shape)
        poison(out)
        return out

    def case(self, name: str, what: str, run: Callable[[], Any], check: Any, amount: float, **more: Any) -> Case:
        """One thing done by each cluster."""
        columns: dict[str, dict[str, str]] = {"device GB": {}}

        def on(client: Any) -> Any:
            with client.as_current():
                return run()

        def watched(name: str, contender: Callable[[], Any]) -> None:
            contender()
            if not self.bench.is_gpu:
                return
            time.sleep(1)  # what the workers keep for a next task has been given back by then
            self.clients[name].run(begin_watching)
            contender()
            peaks = self.clients[name].run(end_watching).values()
            columns["device GB"][name] = ", ".join(f"{peak:.2f}" for peak in peaks)

        runs = {name: lambda client=client: on(client) for name, client in self.clients.items()}
        more = {"limit": None, "ours": list(runs)[-1], "watch": watched, "columns": columns, **more}
        return Case(f"gpus, {name}", what, amount, runs, check, **more)

    def map(self) -> Case:
        """A map that is bound by its arithmetic."""
        x = volume(self.bench.directory / "x.bin", volume_shape(self.bench.gib))
        planes = [0, len(x) // 2, len(x) - 1]
        expected = many_operations(np.asarray(x[planes, :64]))
        out = self.output(x.shape)

        def check(name: str, _: Any) -> None:
            np.testing.assert_allclose(out[planes, :64], expected, rtol=1e-4)
            assert np.isfinite(out[::7, ::63, ::63]).all()
            poison(out)

        def run() -> None:
            self.store(cf.open(x).map(many_operations), out, partition=x.nbytes // TASKS, **self.how)

        what = f"{x.nbytes / 1e9:.2g} GB, {2 * STEPS} operations an element"
        return self.case("map", what, run, check, x.nbytes / 1e9)

    def product(self) -> Case:
        """A product of float32 matrices."""
        side = int(self.bench.settings["side"]) or matrix_side(4 * self.bench.gib, 32768)
        a, b = (matrix(self.bench.directory / f"{name}.bin", "f4", side, i) for i, name in enumerate("ab"))
        lines = [0, side // 3, side - 1]
        expected = np.asarray(a[lines], "f8") @ np.asarray(b[:, :512], "f8")
        out = self.output((side, side))

        def check(name: str, _: Any) -> None:
            np.testing.assert_allclose(out[lines][:, :512], expected, rtol=1e-2, atol=1e-1)
            assert np.isfinite(out[::97, ::89]).all()
            poison(out)

        def run() -> None:
            self.store(cf.open(a) @ cf.open(b), out, partition=a.nbytes // TASKS + b.nbytes, **self.how)

        return self.case("product", f"float32 matrices of {side}^2", run, check, 2 * side**3 / 1e12, unit="TFLOP/s")

    def sum(self) -> Case:
        """A sum, which is bound by what the links and the host's memory give."""
        x = volume(self.bench.directory / "y.bin", volume_shape(4 * self.bench.gib))
        expected = sum(in_threads(lambda i: float(x[i].sum(dtype="f8")), len(x)))

        def run() -> float:
            lazy = cf.open(x).sum(dtype="f8").to_dask(partition=x.nbytes // TASKS, **self.how)
            return float(lazy.compute())

        rates = {"reads into memory, all at once, GB/s": self.together(host_rate, str(x.filename))}
        if self.bench.is_gpu:
            rates["links, all at once, GB/s"] = self.together(link_rate)
        last = list(self.clients)[-1]
        bound = min(rates, key=lambda head: rates[head][last])
        columns = {head: {name: f"{rate:.1f}" for name, rate in found.items()} for head, found in rates.items()}
        case = self.case("sum", f"{x.nbytes / 1e9:.3g} GB", run, close_to(expected, 1e-9), x.nbytes / 1e9,
                         limit=(bound.removesuffix(", GB/s"), rates[bound][last]))  # fmt: skip
        case.columns.update(columns)
        return case

    def together(self, rate: Callable[..., float], *args: Any) -> dict[str, float]:
        """What the workers of each cluster reach together, all of them at the same time."""
        return {name: sum(client.run(rate, *args).values()) for name, client in self.clients.items()}


def cases(bench: Bench) -> Iterator[Case]:
    """All three, on the clusters that stay up."""
    missing = installed("distributed")[1]
    if missing:
        raise MissingError("distributed")
    if bench.is_gpu and not gpus():
        raise MissingError("a GPU")
    number = int(bench.settings["gpus"]) or (gpus() if bench.is_gpu else 2)
    with ExitStack() as stack:
        clients = {}
        for n in dict.fromkeys((1, number)):
            running = stack.enter_context(cluster(n))
            name = "one worker" if n == 1 else f"{n} workers"
            client = importlib.import_module("distributed").Client(running, set_as_default=False)
            clients[name] = stack.enter_context(client)
            clients[name].wait_for_workers(n)
        clusters = Clusters(bench, clients)
        yield clusters.map()
        yield clusters.product()
        yield clusters.sum()
