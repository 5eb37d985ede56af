"""Sums and maps of large arrays by loops, dask, cubed and KvikIO."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import BLOCK, OURS, Bench
from benchmarks.data import work
from benchmarks.probe import installed


def loop_sum(bench: Bench, x: Any, step: int) -> Callable[[], float]:
    """Block after block, as people write it."""
    return lambda: sum(float(bench.xp.asarray(x[i : i + step]).sum(dtype="f8")) for i in range(0, len(x), step))


def loop_map(bench: Bench, array: np.ndarray, out: np.ndarray, step: int) -> Callable[[], None]:
    """The same for a map."""

    def run() -> None:
        for i in range(0, len(array), step):
            out[i : i + step] = bench.host(work(bench.xp.asarray(array[i : i + step])))

    return run


def dask_sum(bench: Bench, x: Any, chunks: Any, workers: int | None = None) -> Callable[[], float]:
    """dask's threads, with CuPy blocks on a GPU."""

    def run() -> float:
        da = importlib.import_module("dask.array")
        lazy = da.from_array(x, chunks=chunks, name=False, inline_array=True)
        if bench.is_gpu:
            lazy = lazy.map_blocks(bench.xp.asarray)
        return float(lazy.sum(dtype="f8").compute(scheduler="threads", num_workers=workers))

    return run


def dask_map(
    bench: Bench, array: np.ndarray, out: np.ndarray, chunks: Any, workers: int | None = None
) -> Callable[[], None]:
    """The same for a map."""

    def run() -> None:
        lazy = importlib.import_module("dask.array").from_array(array, chunks=chunks, name=False)
        if bench.is_gpu:
            lazy = lazy.map_blocks(bench.xp.asarray).map_blocks(work).map_blocks(bench.xp.asnumpy)
        else:
            lazy = lazy.map_blocks(work)
        lazy.store(out, scheduler="threads", num_workers=workers, lock=False)

    return run


def cubed_spec(directory: Path, allowed: str | int = "4GB") -> Any:
    """How cubed is to run: with threads."""
    cubed = importlib.import_module("cubed")
    return cubed.Spec(work_dir=str(directory / "cubed"), allowed_mem=allowed, executor_name="threads")


def cubed_sum(bench: Bench, path: str) -> Callable[[], float]:
    """cubed's threads."""

    def run() -> float:
        cubed, xp = importlib.import_module("cubed"), importlib.import_module("cubed.array_api")
        return float(xp.sum(cubed.from_zarr(path, spec=cubed_spec(bench.directory)), dtype=xp.float64).compute())

    return run


def kvikio_sum(bench: Bench, path: str, nbytes: int) -> Callable[[], float]:
    """KvikIO's parallel reads into device buffers."""

    def run() -> float:
        kvikio, buffer, total = importlib.import_module("kvikio"), bench.xp.empty(BLOCK // 4, "f4"), 0.0
        threads = importlib.import_module("kvikio.defaults").set({"num_threads": os.cpu_count()})
        with threads, kvikio.CuFile(path, "r") as file:
            for start in range(0, nbytes, BLOCK):
                size = min(BLOCK, nbytes - start)
                file.pread(buffer, size, start).get()
                total += float(buffer[: size // 4].sum(dtype="f8"))
        return total

    return run


def file_sums(
    bench: Bench, path: Path, shape: tuple[int, ...], opened: Callable[[], np.ndarray]
) -> tuple[dict[str, Callable[[], Any]], tuple[str, ...]]:
    """Who can sum a raw file, which is mapped by `opened` for each run; and who is not installed."""
    nbytes = 4 * math.prod(shape)
    planes = max(1, BLOCK // (nbytes // shape[0]))
    runs: dict[str, Callable[[], Any]] = {OURS: lambda: cf.sum(opened(), **bench.options)}
    runs["a loop over blocks"] = lambda: loop_sum(bench, opened(), planes)()
    there, missing = installed("dask", *(["kvikio"] if bench.is_gpu else []))
    if "dask" in there:
        runs["dask, threads"] = lambda: dask_sum(bench, opened(), (planes, -1, -1))()
    if "kvikio" in there:
        runs["KvikIO"] = kvikio_sum(bench, str(path), nbytes)
    return runs, missing
