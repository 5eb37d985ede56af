"""Reductions, a stencil and a product on the CPU, beside dask's threaded scheduler and cubed: seconds and peak memory.

Run ``python -m benchmarks.operations [--side 512] [--repeats 3] [--directory DIR]``. It needs dask and cubed,
and room for about four times ``4 * side ** 3`` bytes. All read the same zarr arrays with the same chunks, and write
what is large to zarr. Contenders take turns within one process, results are compared with NumPy's; peak memory is
measured in a process of its own for each, beyond what it had taken when all was imported and had run once, small.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cubed
import cubed.array_api as xp
import dask
import dask.array as da
import numpy as np
import zarr

import chunkflow as cf
from benchmarks.harness import alternate, blur, machine, peak_memory, table

CHUNKS = (128, 128, 128)
SQUARE = (1024, 1024)

SMALL = "64 MB"
"""A budget that leaves a run less memory than it would take by itself."""


class Work:
    """The arrays, and what each contender does with them."""

    def __init__(self, directory: Path, side: int) -> None:
        self.directory, self.side = directory, side
        self.n = min(4096, max(256, round(math.sqrt(side**3) / 3) // 256 * 256))
        self.spec = cubed.Spec(work_dir=str(directory / "cubed"), allowed_mem="4GB", executor_name="threads")

    def create(self) -> None:
        """Make the data: noise over a gradient."""
        rng = np.random.default_rng(0)
        shape = (self.side,) * 3
        x = zarr.create_array(self.path("x"), shape=shape, dtype="f4", chunks=CHUNKS, overwrite=True)
        for start in range(0, self.side, CHUNKS[0]):
            block = rng.standard_normal((min(CHUNKS[0], self.side - start), self.side, self.side), dtype="f4")
            x[start : start + CHUNKS[0]] = block + np.float32(start)
        for name in "ab":
            array = zarr.create_array(
                self.path(name), shape=(self.n, self.n), dtype="f4", chunks=SQUARE, overwrite=True
            )
            array[...] = rng.standard_normal((self.n, self.n), dtype="f4")

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}-{self.side}.zarr")

    def out(self, name: str) -> str:
        shutil.rmtree(self.path(name), ignore_errors=True)
        return self.path(name)

    def chunkflow(self, **options: Any) -> dict[str, Callable[[], Any]]:
        x, a, b = self.path("x"), self.path("a"), self.path("b")
        options["device"] = "cpu"
        return {
            "sum": lambda: cf.sum(x, **options),
            "mean, axis 0": lambda: cf.mean(x, axis=0, **options),
            "var": lambda: cf.var(x, **options),
            "7-point stencil": lambda: cf.map_overlap(
                blur, x, depth=1, boundary="nearest", trim=False, out=self.out("y"), **options
            ),
            "product": lambda: cf.matmul(a, b, out=self.out("c"), **options),
        }

    def dask(self) -> dict[str, Callable[[], Any]]:
        def x() -> Any:
            return da.from_zarr(self.path("x"))

        def matrices() -> list[Any]:
            return [da.from_zarr(self.path(name)) for name in "ab"]

        def store(lazy: Any, name: str) -> None:
            lazy.to_zarr(self.out(name))

        def stencil() -> Any:
            return da.map_overlap(blur, x(), depth=1, boundary="nearest", trim=False, dtype="f4")

        return {
            "sum": lambda: x().sum().compute(),
            "mean, axis 0": lambda: x().mean(axis=0).compute(),
            "var": lambda: x().var().compute(),
            "7-point stencil": lambda: store(stencil(), "y"),
            "product": lambda: store(da.matmul(*matrices()), "c"),
        }

    def cubed(self) -> dict[str, Callable[[], Any]]:
        def x() -> Any:
            return cubed.from_zarr(self.path("x"), spec=self.spec)

        def product() -> None:
            a, b = (cubed.from_zarr(self.path(name), spec=self.spec) for name in "ab")
            cubed.to_zarr(xp.matmul(a, b), self.out("c"))

        def stencil() -> None:
            y = cubed.map_overlap(blur, x(), dtype=np.float32, chunks=x().chunks, depth=1, boundary=0, trim=False)
            cubed.to_zarr(y, self.out("y"))

        return {
            "sum": lambda: xp.sum(x()).compute(),
            "mean, axis 0": lambda: xp.mean(x(), axis=0).compute(),
            "var": lambda: xp.var(x()).compute(),
            "7-point stencil": stencil,
            "product": product,
        }

    def contenders(self) -> dict[str, dict[str, Callable[[], Any]]]:
        return {
            "dask": self.dask(),
            "cubed": self.cubed(),
            "chunkflow": self.chunkflow(),
            f"chunkflow, {SMALL}": self.chunkflow(budget=SMALL),
        }

    def expected(self) -> dict[str, Any]:
        """What NumPy makes of it, in float64 where it is small."""
        x = zarr.open_array(self.path("x"), mode="r")[...]
        return {
            "sum": x.sum(dtype="f8"),
            "mean, axis 0": x.mean(axis=0, dtype="f8"),
            "var": x.var(dtype="f8"),
            "7-point stencil": blur(x),  # inside, where no boundary matters
            "product": np.matmul(*(zarr.open_array(self.path(name), mode="r")[...] for name in "ab")),
        }

    def result(self, name: str, returned: Any) -> np.ndarray:
        if name == "7-point stencil":
            return zarr.open_array(self.path("y"), mode="r")[1:-1, 1:-1, 1:-1]
        if name == "product":
            return zarr.open_array(self.path("c"), mode="r")[...]
        return np.asarray(returned)


def peak(directory: Path, side: int, contender: str, name: str) -> float:
    """Peak of anonymous memory in MB beyond what was there before the run, in this process."""
    small = Work(directory / "small", 128)
    small.create()
    small.contenders()[contender][name]()
    run = Work(directory, side).contenders()[contender][name]
    return peak_memory(run)


def main() -> None:
    """Run everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--only", nargs="*", default=None, help="operations to run")
    parser.add_argument("--measure", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    dask.config.set(scheduler="threads")
    if options.measure:
        print(f"{peak(Path(options.directory), options.side, *options.measure):.0f}")
        return
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        work = Work(Path(directory), options.side)
        work.create()
        expected, contenders, rows = work.expected(), work.contenders(), []
        for name, value in expected.items():
            if options.only and name not in options.only:
                continue
            returned: dict[str, Any] = {}

            def keeping(contender: str, name: str = name, returned: dict[str, Any] = returned) -> Callable[[], None]:
                def run() -> None:
                    returned["value"] = contenders[contender][name]()

                return run

            def check(name: str = name, value: Any = value, returned: dict[str, Any] = returned) -> None:
                np.testing.assert_allclose(work.result(name, returned.pop("value")), value, rtol=1e-3, atol=1e-3)

            seconds = alternate({c: keeping(c) for c in contenders}, options.repeats, check)
            medians = {c: sorted(times)[len(times) // 2] for c, times in seconds.items()}
            for contender, median in medians.items():
                arguments = ["--side", str(options.side), "--directory", directory, "--measure", contender, name]
                command = [sys.executable, "-m", "benchmarks.operations", *arguments]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                ratio = f"{medians['chunkflow'] / median:.2f}"
                rows.append((name, contender, f"{median:.2f}", ratio, done.stdout.strip()))
        volume, matrices = f"volume of {options.side}^3 in chunks of {CHUNKS}", f"matrices of {work.n}^2 of {SQUARE}"
        title = f"float32 {volume}, {matrices}, all zarr"
        print(table(title, rows, ["operation", "contender", "seconds", "chunkflow / this", "peak memory, MB"]))


if __name__ == "__main__":
    main()
