"""What runs cost as the work grows: by budget, by size, by number of blocks and of chunks, by the size of a chunk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import Bench, Listing
from benchmarks.data import work
from benchmarks.peers.streams import dask_map, dask_sum
from benchmarks.probe import installed
from benchmarks.timing import Contender, median_seconds

BUDGETS = {64: "64MB", 256: "256MB", 1000: "1GB", 4000: "4GB", 16000: "16GB", 32000: "32GB"}


def cases(bench: Bench) -> Iterator[Listing]:
    """Budgets first, since what the others' libraries take on a device counts in small ones."""
    dask = bool(installed("dask")[0])
    yield budgets(bench)
    yield sizes(bench, dask)
    yield blocks(bench, dask)
    yield stored_chunks(bench, dask)
    yield chunk_sizes(bench, dask)


def check_map(out: np.ndarray, array: np.ndarray) -> None:
    """Compare two lines with NumPy's, then poison the output."""
    line = (0, slice(None), slice(0, 64))
    np.testing.assert_allclose(out[line], work(array[line]), rtol=1e-5)
    np.testing.assert_allclose(out[-1, -1], work(array[-1, -1]), rtol=1e-5)
    out.fill(np.nan)


def checked_map(bench: Bench, array: np.ndarray, out: np.ndarray, repeats: int = 0, **options: Any) -> float:
    """Median seconds of a map."""
    options = {"budget": bench.budget, **bench.options, **options}
    seconds = median_seconds(
        lambda: cf.map(work, array, out=out, **options), repeats or bench.repeats, warm=repeats != 1
    )
    check_map(out, array)
    return seconds


def milliseconds(seconds: float | None, digits: int = 0) -> str:
    """As a cell of a table."""
    return "-" if seconds is None else f"{seconds * 1e3:.{digits}f}"


def budgets(bench: Bench) -> Listing:
    """Rates of a map under budgets from 64 MB to 32 GB."""
    title = f"map, RAM to RAM {bench.ram.shape}, by budget"
    found = Listing("growth-budgets", title, ["budget, MB", "ms", "GB/s each way"])
    array, out = bench.ram, np.full_like(bench.ram, np.nan)
    for megabytes, budget in BUDGETS.items():
        try:
            seconds = checked_map(bench, array, out, budget=budget)
        except cf.BudgetError as error:
            found.add(0, megabytes, "-", f"{str(error)[:60]}...")
            continue
        rate = f"{array.nbytes / seconds / 1e9:.2f}"
        found.add(megabytes, megabytes, milliseconds(seconds), rate, chunkflow=seconds)
    return found


def sizes(bench: Bench, dask: bool) -> Listing:
    """Seconds of a map in memory of a thousandth of the volume up to all of it."""
    found = Listing("growth-sizes", "map, RAM to RAM, by size", ["MB", "ms", "GB/s each way", "dask, ms"])
    for n in (1000, 300, 100, 30, 10, 3, 1):
        planes = len(bench.ram) / n
        array = bench.ram[: round(planes)] if planes >= 1 else bench.ram[:1, : round(planes * bench.ram.shape[1])]
        out = np.full_like(array, np.nan)
        seconds, beside = checked_map(bench, array, out), None
        if dask:
            beside = median_seconds(dask_map(bench, array, out, (max(1, len(array) // 16), -1, -1)), bench.repeats)
            check_map(out, array)
        size = array.nbytes / 1e6
        cells = f"{size:.0f}", milliseconds(seconds, 1), f"{size / seconds / 1e3:.2f}", milliseconds(beside, 1)
        found.add(size, *cells, chunkflow=seconds, dask=beside)
    return found


def each(number: int, seconds: float, beside: float | None) -> tuple[object, ...]:
    """Cells: how many, milliseconds of all, microseconds of each, and dask's."""
    return number, milliseconds(seconds), f"{seconds / number * 1e6:.0f}", milliseconds(beside)


def blocks(bench: Bench, dask: bool) -> Listing:
    """Seconds of a map of 268 MB in eight blocks up to 65536; of less where the volume is smaller than a GiB."""
    planes = 1024 if bench.gib >= 1 else 8
    array = np.ones((planes, 256, 256), "f4")
    out = np.full_like(array, np.nan)
    title = f"map of {array.nbytes / 1e6:.0f} MB, by number of blocks"
    found = Listing("growth-blocks", title, ["blocks", "ms", "us each", "dask, ms"])
    for shape in ((planes // 8, 256, 256), (planes // 64, 256, 256), (1, 256, 256), (1, 32, 256), (1, 4, 256)):
        if not shape[0]:
            continue
        number = planes * 256 // (shape[0] * shape[1])
        many = number > 8192  # these take a minute on a GPU, and those before have warmed it
        seconds = checked_map(bench, array, out, 1 if many else 0, chunks=shape, dtype="f4", workspace=8)
        beside = median_seconds(dask_map(bench, array, out, shape), 1) if dask and not many else None
        found.add(number, *each(number, seconds, beside), chunkflow=seconds, dask=beside)
    return found


def summed(bench: Bench, path: Path, total: float) -> Contender:
    """A sum of a zarr array that must be the one expected."""

    def run() -> None:
        got = float(cf.sum(path, dtype="f8", budget=bench.budget, **bench.options))
        assert abs(got - total) <= 1e-9 * abs(total)

    return run


def stored_chunks(bench: Bench, dask: bool) -> Listing:
    """Seconds of a sum of zarr arrays of ten chunks of 32 KiB up to 100000, or 100 in small trials."""
    head = ["chunks", "ms", "us each", "dask, ms"]
    found = Listing("growth-stored_chunks", "sum of zarr chunks of 32 KiB, by their number", head)
    path = bench.directory / "chunks.zarr"
    for number in (10, 100, 1000, 10_000, 100_000)[: 5 if bench.gib >= 1 else 2]:
        array = np.broadcast_to(np.arange(8192, dtype="f4"), (number, 8192))
        cf.copy(array, path, chunks=(1, 8192), device="cpu")
        seconds = median_seconds(summed(bench, path, float(array.sum(dtype="f8"))), bench.repeats)
        beside = None
        if dask and number <= 1000:
            beside = median_seconds(dask_sum(bench, zarr.open_array(path), (1, 8192)), 1)
        found.add(number, *each(number, seconds, beside), chunkflow=seconds, dask=beside)
        shutil.rmtree(path)
    return found


def chunk_sizes(bench: Bench, dask: bool) -> Listing:
    """Seconds of sums of a quarter of the volume, 2 GiB at most, in zarr chunks of 1 MiB up to 1 GiB."""
    number = max(2, min(2048, round(bench.gib * 256)))
    planes = np.round(np.random.default_rng(0).standard_normal((64, 1024, 256), dtype="f4") * 64) / 64
    array = np.tile(planes, (-(-number // 64), 1, 1))[:number]
    total, size = float(array.sum(dtype="f8")), array.nbytes / 1e9
    codecs = {"raw": None, "lz4": zarr.codecs.BloscCodec(cname="lz4"), "zstd": zarr.codecs.ZstdCodec(level=1)}
    head = ["MiB a chunk", *(f"{codec}, {what}" for codec in codecs for what in ("ms", "GB/s", "dask, ms"))]
    found = Listing("growth-chunk_sizes", f"sum of {size:.2f} GB of zarr, by the size of a chunk", head)
    path = bench.directory / "sizes.zarr"
    for side in (n for n in (1, 8, 64, 256, 1024) if n <= number // 2):
        cells: list[str] = []
        seconds: dict[str, float | None] = {}
        for codec, compressors in codecs.items():
            chunk = (side, 1024, 256)
            store = zarr.create_array(path, data=array, chunks=chunk, compressors=compressors, overwrite=True)
            took = seconds[codec] = median_seconds(summed(bench, path, total), bench.repeats)
            beside = median_seconds(dask_sum(bench, store, chunk), 1) if dask else None
            cells += [milliseconds(took), f"{size / took:.2f}", milliseconds(beside)]
            shutil.rmtree(path)
        found.add(side, side, *cells, **seconds)
    return found
