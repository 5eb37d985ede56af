"""Reductions, a stencil and a product on the CPU, all zarr, beside dask's threaded scheduler and cubed.

All read the same arrays with the same chunks, and write what is large to zarr. Results are compared with NumPy's; peak
memory is measured in a process of its own for each contender.
"""

from __future__ import annotations

import importlib
import math
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import blur, cube_side
from benchmarks.peers.streams import cubed_spec
from benchmarks.probe import installed

CHUNKS = (128, 128, 128)
SQUARE = (1024, 1024)
STENCIL = "7-point stencil"
SMALL = "64 MB"
"""A budget that leaves a run less memory than it would take by itself."""

Runs = dict[str, Callable[[], Any]]


class Arrays:
    """The arrays, and what each contender does with them."""

    def __init__(self, directory: Path, side: int) -> None:
        self.directory, self.side = directory, side
        self.n = min(4096, max(256, round(math.sqrt(side**3) / 3) // 256 * 256))
        if not Path(self.path("b")).exists():
            self.create()

    def create(self) -> None:
        """Make the data: noise over a gradient."""
        rng = np.random.default_rng(0)
        x = zarr.create_array(self.path("x"), shape=(self.side,) * 3, dtype="f4", chunks=CHUNKS)
        for start in range(0, self.side, CHUNKS[0]):
            block = rng.standard_normal((min(CHUNKS[0], self.side - start), self.side, self.side), dtype="f4")
            x[start : start + CHUNKS[0]] = block + np.float32(start)
        for name in "ab":
            array = zarr.create_array(self.path(name), shape=(self.n, self.n), dtype="f4", chunks=SQUARE)
            array[...] = rng.standard_normal((self.n, self.n), dtype="f4")

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.zarr")

    def out(self, name: str) -> str:
        """Where a result goes; what was there is removed."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        return self.path(name)

    def chunkflow(self, **options: Any) -> Runs:
        x, a, b = self.path("x"), self.path("a"), self.path("b")
        options["device"] = "cpu"
        halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "trim": False}
        return {
            "sum": lambda: cf.sum(x, **options),
            "mean, axis 0": lambda: cf.mean(x, axis=0, **options),
            "var": lambda: cf.var(x, **options),
            STENCIL: lambda: cf.map_overlap(blur, x, out=self.out("y"), **halo, **options),
            "product": lambda: cf.matmul(a, b, out=self.out("c"), **options),
        }

    def dask(self) -> Runs:
        dask, da = importlib.import_module("dask"), importlib.import_module("dask.array")

        def x() -> Any:
            return da.from_zarr(self.path("x"))

        def matrices() -> list[Any]:
            return [da.from_zarr(self.path(name)) for name in "ab"]

        def store(lazy: Any, name: str) -> None:
            lazy.to_zarr(self.out(name))

        def stencil() -> Any:
            return da.map_overlap(blur, x(), depth=1, boundary="nearest", trim=False, dtype="f4")

        def threaded(run: Callable[[], Any]) -> Callable[[], Any]:
            def with_threads() -> Any:
                with dask.config.set(scheduler="threads"):
                    return run()

            return with_threads

        runs: Runs = {
            "sum": lambda: x().sum().compute(),
            "mean, axis 0": lambda: x().mean(axis=0).compute(),
            "var": lambda: x().var().compute(),
            STENCIL: lambda: store(stencil(), "y"),
            "product": lambda: store(da.matmul(*matrices()), "c"),
        }
        return {name: threaded(run) for name, run in runs.items()}

    def cubed(self) -> Runs:
        cubed, xp = importlib.import_module("cubed"), importlib.import_module("cubed.array_api")
        spec = cubed_spec(self.directory)

        def x() -> Any:
            return cubed.from_zarr(self.path("x"), spec=spec)

        def product() -> None:
            a, b = (cubed.from_zarr(self.path(name), spec=spec) for name in "ab")
            cubed.to_zarr(xp.matmul(a, b), self.out("c"))

        def stencil() -> None:
            y = cubed.map_overlap(blur, x(), dtype=np.float32, chunks=x().chunks, depth=1, boundary=0, trim=False)
            cubed.to_zarr(y, self.out("y"))

        return {
            "sum": lambda: xp.sum(x()).compute(),
            "mean, axis 0": lambda: xp.mean(x(), axis=0).compute(),
            "var": lambda: xp.var(x()).compute(),
            STENCIL: stencil,
            "product": product,
        }

    def expected(self, name: str) -> Any:
        """What NumPy makes of it, in float64 where it is small."""
        if name == "product":
            return np.matmul(*(zarr.open_array(self.path(name), mode="r")[...] for name in "ab"))
        x = zarr.open_array(self.path("x"), mode="r")[...]
        if name == STENCIL:
            return blur(x)  # inside, where no boundary matters
        return x.mean(axis=0, dtype="f8") if name.startswith("mean") else getattr(x, name)(dtype="f8")

    def result(self, name: str, returned: Any) -> np.ndarray:
        if name == STENCIL:
            return np.asarray(zarr.open_array(self.path("y"), mode="r")[1:-1, 1:-1, 1:-1])
        if name == "product":
            return np.asarray(zarr.open_array(self.path("c"), mode="r")[...])
        return np.asarray(returned)


def cases(bench: Bench) -> Iterator[Case]:
    """One for each operation."""
    arrays = Arrays(bench.directory, cube_side(bench.gib, CHUNKS[0]))
    there, missing = installed("dask", "cubed")
    everyone = {OURS: arrays.chunkflow(), f"chunkflow, {SMALL}": arrays.chunkflow(budget=SMALL)}
    everyone |= {name: getattr(arrays, name)() for name in there}
    for name in everyone[OURS]:
        runs = {contender: operations[name] for contender, operations in everyone.items()}
        if name == "product":
            what, amount, unit = f"matrices of {arrays.n}^2 in chunks of {SQUARE}", 2 * arrays.n**3 / 1e12, "TFLOP/s"
        else:
            what, amount, unit = f"{arrays.side}^3 in chunks of {CHUNKS}", 4 * arrays.side**3 / 1e9, "GB/s"
        expected = cache(arrays.expected)

        def check(_: str, returned: Any, name: str = name, expected: Callable[[str], Any] = expected) -> None:
            np.testing.assert_allclose(arrays.result(name, returned), expected(name), rtol=1e-3, atol=1e-3)

        full = f"operations, {name}"
        yield Case(full, what, amount, runs, check, None, unit=unit, missing=missing, apart=True)
