"""Streaming on a GPU beside its peers: a RAM-to-RAM map, and a sum over a page-cached memmap.

Run ``python -m benchmarks.gpu [--gib 16] [--repeats 3] [--directory DIR]``: it needs a CUDA device, CuPy, dask, room
for one array on disk and for three in host memory. Contenders take turns within one process; every output is
poisoned before each run and compared with NumPy's after it. Device memory is the driver's own figure, sampled
during the uncounted first run of each.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cupy as cp
import dask.array as da
import numpy as np

import chunkflow as cf
from benchmarks.gpu_probe import PeakWatch, link_rate
from benchmarks.harness import Contender, alternate, machine, rate_rows, table

BUDGET = "4GB"
PLANE = (2048, 2048)


def work(a):
    """What every contender computes."""
    return np.sqrt(np.abs(a)) * 2 + 1


def make(path: Path, planes: int) -> np.memmap:
    """A page-cached memmap of random planes."""
    x = np.memmap(path, "f4", "w+", shape=(planes, *PLANE))
    base = np.random.default_rng(0).standard_normal((16, *PLANE), dtype="f4")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: np.copyto(x[i], base[i % 16] + np.float32(i)), range(planes)))
    return np.memmap(path, "f4", "r", shape=x.shape)


def main() -> None:
    """Run the contenders and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--report", action="store_true", help="print the plan and the profile too")
    options = parser.parse_args()
    planes = options.gib * 64
    print(machine(), flush=True)
    link = link_rate()
    cp.get_default_memory_pool().free_all_blocks()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        x = make(Path(directory) / "x.bin", planes)
        ram = np.array(x)
        out = np.empty_like(ram)
        samples = [0, planes // 3, planes - 1]
        expected = {i: work(ram[i]) for i in samples}
        device_block = 256 << 20

        def poison() -> None:
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda part: part.fill(np.nan), np.array_split(out, 16)))

        def check_map() -> None:
            for i in samples:
                np.testing.assert_allclose(out[i], expected[i], rtol=1e-6)
            assert not np.isnan(out[:, ::97, ::89]).any()
            poison()

        def naive_map() -> None:
            step = device_block // (4 * PLANE[0] * PLANE[1])
            for i in range(0, planes, step):
                out[i : i + step] = cp.asnumpy(work(cp.asarray(ram[i : i + step])))

        def dask_map(planes: int, workers: int) -> None:
            lazy = da.from_array(ram, chunks=(planes, *PLANE), name=False)
            gpu = lazy.map_blocks(cp.asarray).map_blocks(work).map_blocks(cp.asnumpy)
            gpu.store(out, scheduler="threads", num_workers=workers, lock=False)

        def chunkflow_map() -> None:
            cf.map(work, ram, out=out, budget=BUDGET, device="cuda")

        def chunkflow_map_shared() -> None:
            cf.map(work, ram, out=out, device="cuda")

        poison()
        watch = PeakWatch()
        contenders: dict[str, Contender] = {
            "naive CuPy loop, 256 MiB": naive_map,
            "dask + CuPy, 4 threads, 256 MiB": lambda: dask_map(16, 4),
            "dask + CuPy, 16 threads, 1 GiB": lambda: dask_map(64, 16),
            "dask + CuPy, 16 threads, 256 MiB": lambda: dask_map(16, 16),
            "chunkflow.map, a budget of its own": chunkflow_map,
        }
        maps = alternate(contenders, options.repeats, check_map, watch)
        cp.get_default_memory_pool().free_all_blocks()
        with cf.Budget(BUDGET):
            name = "chunkflow.map, within one Budget"
            maps |= alternate({name: chunkflow_map_shared}, options.repeats, check_map, watch)

        total = float(ram.sum(dtype="f8"))
        got: list[float] = []

        def check_sum() -> None:
            assert abs(got.pop() - total) <= 1e-9 * abs(total)

        def naive_sum() -> None:
            step = device_block // (4 * PLANE[0] * PLANE[1])
            got.append(sum(float(cp.asarray(x[i : i + step]).sum(dtype="f8")) for i in range(0, planes, step)))

        def dask_sum(planes: int, workers: int) -> None:
            lazy = da.from_array(x, chunks=(planes, *PLANE), name=False).map_blocks(cp.asarray)
            got.append(float(lazy.sum(dtype="f8").compute(scheduler="threads", num_workers=workers)))

        def chunkflow_sum(budget: str | None = BUDGET) -> None:
            acc = cp.zeros((), "f8")
            for chunk in cf.chunks(x, budget=budget, device="cuda"):
                acc += chunk.data.sum(dtype="f8")
            got.append(float(acc))

        contenders = {
            "naive CuPy loop, 256 MiB": naive_sum,
            "dask + CuPy, 4 threads, 256 MiB": lambda: dask_sum(16, 4),
            "dask + CuPy, 16 threads, 256 MiB": lambda: dask_sum(16, 16),
            "chunkflow.chunks, a budget of its own": chunkflow_sum,
        }
        sums = alternate(contenders, options.repeats, check_sum, watch)
        cp.get_default_memory_pool().free_all_blocks()
        with cf.Budget(BUDGET):
            name = "chunkflow.chunks, within one Budget"
            sums |= alternate({name: lambda: chunkflow_sum(None)}, options.repeats, check_sum, watch)
        if options.report:
            print(cf.explain(work, ram, out=out, budget=BUDGET, device="cuda"))
            with cf.Profile() as profile:
                chunkflow_map()
            print(profile.report)
            with cf.Profile() as profile:
                chunkflow_sum()
            print(profile.report)
        size = ram.nbytes
        print(f"\npinned link, host to device: {link:.1f} GB/s; {size / 1e9:.1f} GB of float32, budget {BUDGET}\n")
        for title, seconds in (("map, RAM to RAM (each way)", maps), ("sum of a page-cached memmap", sums)):
            rows = [(*row, f"{watch.peaks[row[0]]:.2f}") for row in rate_rows(seconds, size)]
            print(table(title, rows, ["contender", "GB/s", "range", "last / this", "device GB"]))


if __name__ == "__main__":
    main()
