"""What runs cost as the work grows: by size, by number of blocks, by budget."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.cases import Bench, dask_map, dask_sum, installed, work
from benchmarks.harness import median_seconds, table

DASK = bool(installed("dask")[0])


def _checked(out: np.ndarray, array: np.ndarray) -> None:
    line = (0, slice(None), slice(0, 64))
    np.testing.assert_allclose(out[line], work(array[line]), rtol=1e-5)
    np.testing.assert_allclose(out[-1, -1], work(array[-1, -1]), rtol=1e-5)
    out.fill(np.nan)


def sizes(bench: Bench, repeats: int) -> str:
    """Seconds of a map in memory of a thousandth of the volume up to all of it."""
    rows = []
    for planes in sorted({max(1, len(bench.ram) // n) for n in (1000, 300, 100, 30, 10, 3, 1)}):
        array = bench.ram[:planes]
        out = np.full_like(array, np.nan)
        seconds = median_seconds(
            lambda a=array, o=out: cf.map(work, a, out=o, budget=bench.budget, **bench.options), repeats
        )
        _checked(out, array)
        beside = float("nan")
        if DASK:
            beside = median_seconds(dask_map(bench, array, out, (max(1, planes // 16), -1, -1)), repeats)
            _checked(out, array)
        rows.append(
            (
                f"{array.nbytes / 1e6:.0f}",
                f"{seconds * 1e3:.1f}",
                f"{array.nbytes / seconds / 1e9:.2f}",
                f"{beside * 1e3:.1f}",
            )
        )
    return table("map, RAM to RAM, by size", rows, ["MB", "ms", "GB/s each way", "dask, ms"])


def chunks(bench: Bench, repeats: int) -> str:
    """Seconds of a map of 268 MB in eight blocks up to 65536."""
    array = np.ones((1024, 256, 256), "f4")
    out = np.full_like(array, np.nan)
    rows = []
    for number, shape in (
        (8, (128, 256, 256)),
        (64, (16, 256, 256)),
        (1024, (1, 256, 256)),
        (8192, (1, 32, 256)),
        (65536, (1, 4, 256)),
    ):

        def run(shape: Any = shape) -> None:
            cf.map(work, array, out=out, chunks=shape, dtype="f4", workspace=8, budget=bench.budget, **bench.options)

        seconds = median_seconds(run, repeats)
        _checked(out, array)
        beside = "-"
        if DASK and number <= 8192:
            beside = f"{median_seconds(dask_map(bench, array, out, shape), 1) * 1e3:.0f}"
        rows.append((number, f"{seconds * 1e3:.0f}", f"{seconds / number * 1e6:.0f}", beside))
    return table("map of 268 MB, by number of blocks", rows, ["blocks", "ms", "us each", "dask, ms"])


def stored_chunks(bench: Bench, repeats: int) -> str:
    """Seconds of a sum of zarr arrays of ten chunks of 32 KiB up to a hundred thousand."""
    rows = []
    for number in (10, 100, 1000, 10_000, 100_000):
        path = bench.directory / "chunks.zarr"
        array = np.broadcast_to(np.arange(8192, dtype="f4"), (number, 8192))
        cf.copy(array, path, chunks=(1, 8192), device="cpu")
        total = float(array.sum(dtype="f8"))

        def run(path: Path = path, total: float = total) -> None:
            assert abs(float(cf.sum(path, dtype="f8", budget=bench.budget, **bench.options)) - total) <= 1e-9 * total

        seconds = median_seconds(run, repeats)
        beside = "-"
        if DASK and number <= 1000:
            beside = f"{median_seconds(dask_sum(bench, zarr.open_array(path), (1, 8192)), 1) * 1e3:.0f}"
        rows.append((number, f"{seconds * 1e3:.0f}", f"{seconds / number * 1e6:.0f}", beside))
        shutil.rmtree(path)
    return table("sum of zarr chunks of 32 KiB, by their number", rows, ["chunks", "ms", "us each", "dask, ms"])


def budgets(bench: Bench, repeats: int) -> str:
    """Rates of a map under budgets from 64 MB to 32 GB."""
    rows = []
    array, out = bench.ram, np.full_like(bench.ram, np.nan)
    for budget in ("64MB", "256MB", "1GB", "4GB", "16GB", "32GB"):
        try:
            seconds = median_seconds(lambda b=budget: cf.map(work, array, out=out, budget=b, **bench.options), repeats)
        except cf.BudgetError as error:
            rows.append((budget, "-", f"{str(error)[:60]}..."))
            continue
        _checked(out, array)
        rows.append((budget, f"{seconds * 1e3:.0f}", f"{array.nbytes / seconds / 1e9:.2f}"))
    return table(f"map, RAM to RAM {array.shape}, by budget", rows, ["budget", "ms", "GB/s each way"])


def report(bench: Bench, repeats: int) -> str:
    """All of them."""
    return "\n".join(part(bench, repeats) for part in (sizes, chunks, stored_chunks, budgets))
