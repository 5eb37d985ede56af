"""Several GPUs of one machine, a dask worker on each, beside one: a map that computes much, a product and a sum.

Run ``python -m benchmarks.gpus [--gib 2] [--side 32768] [--gpus N] [--repeats 3] [--budget 4GB] [--device cpu]``.
Each worker is a process that sees one GPU only. The cluster of all of them and that of the first alone stay up, and
take turns; arrays are files in the page cache, outputs too: they are there before, poisoned, and compared with NumPy's.
Device memory is the most that is in use on each worker's GPU beyond what was in use when the run began: the process has
its context and libraries by then.
"""

from __future__ import annotations

import importlib
import logging
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Nanny, Scheduler, SpecCluster

import chunkflow as cf
from benchmarks.harness import (
    Accelerator,
    Watch,
    gpu_parser,
    has_gpu,
    in_threads,
    machine,
    poison,
    sections,
    table,
    timed,
    volume,
    volume_shape,
)
from chunkflow.dask import store

ROWS = 256
STEPS = 600
TASKS = 4


def work(x: Any, steps: int = STEPS) -> Any:
    """Much arithmetic for each byte."""
    y = x + 0  # the block itself is not for writing
    for _ in range(steps):
        y *= np.float32(0.999)
        y += np.float32(0.001)
    return y


def in_use() -> int:
    """Bytes in use on the GPU of the worker that this process is."""
    free, total = importlib.import_module("cupy").cuda.runtime.memGetInfo()
    return int(total - free)


def begin_watching(dask_worker: Any) -> None:
    """Look at its GPU's memory."""
    dask_worker.benchmark_watch = Watch(in_use)


def end_watching(dask_worker: Any) -> float:
    """The peak, in GB."""
    return dask_worker.benchmark_watch.end() / 1e9


def cluster(gpus: int) -> SpecCluster:
    """Workers of one thread, each of which sees one GPU."""
    here: dict[str, Any] = {"host": "127.0.0.1"}
    options = [{**here, "nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": str(i)}} for i in range(gpus)]
    workers = {i: {"cls": Nanny, "options": {**o, "memory_limit": 0}} for i, o in enumerate(options)}
    scheduler = {"cls": Scheduler, "options": {**here, "dashboard": False, "dashboard_address": ":0"}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.WARNING)


def link_rate() -> float:
    """GB/s of large copies from pinned memory to a worker's GPU."""
    return Accelerator("cuda").link()


def host_rate(path: str) -> float:
    """GB/s at which a worker's threads read a page-cached file, without a GPU: what the host's memory allows."""
    piece, number = 4 << 20, min(1 << 30, Path(path).stat().st_size) // (4 << 20)
    kept = threading.local()

    def read(i: int) -> None:
        if not hasattr(kept, "buffer"):
            kept.buffer = np.ones(piece, np.uint8)
        os.preadv(file.fileno(), [kept.buffer], i * piece)

    with open(path, "rb") as file:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            in_threads(read, number)
            times.append(time.perf_counter() - begin)
    return number * piece / statistics.median(times) / 1e9


class Bench:
    """The clusters, and what runs on them."""

    def __init__(self, options: Any, directory: Path, clients: dict[str, Client]) -> None:
        self.directory, self.clients, self.options = directory, clients, options

    def output(self, shape: tuple[int, ...]) -> np.memmap:
        """A poisoned output."""
        out = np.memmap(self.directory / f"out{len(shape)}.bin", "f4", "w+", shape=shape)
        poison(out)
        return out

    def timed(
        self, title: str, run: Callable[[], Any], check: Callable[[Any], object], amount: float, unit: str
    ) -> str:
        """A table of one thing done by each cluster."""
        peaks: dict[str, str] = {}

        def on(client: Client) -> Any:
            with client.as_current():
                return run()

        def watched(name: str, contender: Callable[[], Any]) -> None:
            contender()
            if self.options.device == "cpu":
                return
            time.sleep(1)  # what the workers keep for a next task has been given back by then
            self.clients[name].run(begin_watching)
            contender()
            peaks[name] = ", ".join(f"{peak:.2f}" for peak in self.clients[name].run(end_watching).values())

        def checked(_: str, result: Any) -> None:
            check(result)

        runs = {name: lambda client=client: on(client) for name, client in self.clients.items()}
        seconds = timed(runs, self.options.repeats, checked, watched)
        first = statistics.median(next(iter(seconds.values())))
        rows = []
        for name, times in seconds.items():
            middle = statistics.median(times)
            spread = f"{min(times):.3g}-{max(times):.3g}"
            figures = f"{middle:.3g}", spread, f"{amount / middle:.3g}", f"{first / middle:.2f}", peaks.get(name, "-")
            rows.append((name, *figures))
        return table(title, rows, ["workers", "seconds", "range", unit, "times one", "device GB"])

    def store(self, array: Any, out: np.memmap, partition: int) -> None:
        """Write an array by the workers' tasks."""
        store(array, out, partition=partition, budget=self.options.budget, device=self.options.device)

    def map(self) -> str:
        """A map that is bound by its arithmetic."""
        x = volume(self.directory / "x.bin", volume_shape(self.options.gib))
        planes = [0, len(x) // 2, len(x) - 1]
        expected = work(np.asarray(x[planes, :64]))

        out = self.output(x.shape)

        def check(_: Any) -> None:
            np.testing.assert_allclose(out[planes, :64], expected, rtol=1e-4)
            assert np.isfinite(out[::7, ::63, ::63]).all()
            poison(out)

        title = f"map of {x.nbytes / 1e9:.2g} GB, {2 * STEPS} operations an element"
        return self.timed(
            title, lambda: self.store(cf.open(x).map(work), out, x.nbytes // TASKS), check, x.nbytes / 1e9, "GB/s"
        )

    def product(self) -> str:
        """A product of float32 matrices."""
        side = self.options.side
        a, b = (np.memmap(self.directory / f"{name}.bin", "f4", "w+", shape=(side, side)) for name in "ab")

        def fill(i: int) -> None:
            for j, m in enumerate((a, b)):
                part = m[i * ROWS : (i + 1) * ROWS]
                part[...] = np.random.default_rng((i, j)).random(part.shape, "f4") - np.float32(0.5)

        in_threads(fill, -(-side // ROWS))
        lines = [0, side // 3, side - 1]
        expected = np.asarray(a[lines], "f8") @ np.asarray(b[:, :512], "f8")

        out = self.output((side, side))

        def check(_: Any) -> None:
            np.testing.assert_allclose(out[lines][:, :512], expected, rtol=1e-2, atol=1e-1)
            assert np.isfinite(out[::97, ::89]).all()
            poison(out)

        partition = a.nbytes // TASKS + b.nbytes
        title = f"product of float32 matrices of {side}^2"
        return self.timed(
            title, lambda: self.store(cf.open(a) @ cf.open(b), out, partition), check, 2 * side**3 / 1e12, "TFLOP/s"
        )

    def sum(self) -> str:
        """A sum, which is bound by what the links and the host's memory give."""
        x = volume(self.directory / "y.bin", volume_shape(4 * self.options.gib))
        expected = sum(in_threads(lambda i: float(x[i].sum(dtype="f8")), len(x)))
        options = {"partition": x.nbytes // TASKS, "budget": self.options.budget, "device": self.options.device}

        def run() -> float:
            return float(cf.open(x).sum(dtype="f8").to_dask(**options).compute())

        def check(found: Any) -> None:
            np.testing.assert_allclose(found, expected, rtol=1e-9)

        rates = [f"by workers that read the file into memory, {self.together(host_rate, x.filename)}"]
        if self.options.device != "cpu":
            rates.append(f"from pinned memory to the GPUs, {self.together(link_rate)}")
        title = f"sum of {x.nbytes / 1e9:.3g} GB"
        return self.timed(title, run, check, x.nbytes / 1e9, "GB/s") + f"\nAll at once, GB/s: {'; '.join(rates)}.\n"

    def together(self, rate: Callable[..., float], *args: Any) -> str:
        """What the workers of each cluster reach together, all of them at the same time."""
        totals = {name: sum(client.run(rate, *args).values()) for name, client in self.clients.items()}
        return ", ".join(f"{total:.1f} with {name}" for name, total in totals.items())


def main() -> None:
    parser = gpu_parser(__doc__, 2.0)
    parser.add_argument("--side", type=int, default=32768, help="of the matrices")
    parser.add_argument("--gpus", type=int, default=None, help="how many; all, if it is not said")
    options = parser.parse_args()
    if options.device != "cpu" and not has_gpu():
        parser.error("there is no GPU; --device cpu tries the script")
    gpus = options.gpus or importlib.import_module("cupy").cuda.runtime.getDeviceCount()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        clients = {}
        for number in dict.fromkeys((1, gpus)):
            running = stack.enter_context(cluster(number))
            clients[f"{number}"] = stack.enter_context(Client(running, set_as_default=False))
            clients[f"{number}"].wait_for_workers(number)
        bench = Bench(options, directory, clients)
        sections({"map": bench.map, "product": bench.product, "sum": bench.sum}, options.only)
        print(machine())


if __name__ == "__main__":
    main()
