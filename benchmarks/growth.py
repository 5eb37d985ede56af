"""What runs cost as the work grows: by size, by number of blocks and of chunks, by budget, by the size of a chunk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.cases import Bench, dask_map, dask_sum, installed, work
from benchmarks.harness import median_seconds, table
from chunkflow.core.units import parse_bytes

DASK = bool(installed("dask")[0])


@dataclass
class Growth:
    """Milliseconds that contenders took for more and more of something: `curves` are pairs of how much, and they."""

    title: str
    head: list[str]
    rows: list[tuple[object, ...]] = field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, amount: float, *cells: object, **seconds: float) -> None:
        """A row of the table, and a point of each curve whose contender was there."""
        self.rows.append(cells)
        for name, took in seconds.items():
            if took == took:
                self.curves.setdefault(name, []).append((amount, took * 1e3))

    def __str__(self) -> str:
        return table(self.title, self.rows, self.head)

    def draw(self, path: Path) -> None:
        """A picture of the curves, both axes logarithmic."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 4))
        for name, points in self.curves.items():
            axes.loglog(*zip(*points, strict=True), marker="o", label=name)
        axes.set_title(self.title, fontsize="medium")
        axes.set_xlabel(self.head[0])
        axes.set_ylabel("milliseconds")
        axes.grid(visible=True, which="both", linewidth=0.3)
        axes.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def _checked(out: np.ndarray, array: np.ndarray) -> None:
    line = (0, slice(None), slice(0, 64))
    np.testing.assert_allclose(out[line], work(array[line]), rtol=1e-5)
    np.testing.assert_allclose(out[-1, -1], work(array[-1, -1]), rtol=1e-5)
    out.fill(np.nan)


def sizes(bench: Bench, repeats: int) -> Growth:
    """Seconds of a map in memory of a thousandth of the volume up to all of it."""
    found = Growth("map, RAM to RAM, by size", ["MB", "ms", "GB/s each way", "dask, ms"])
    for n in (1000, 300, 100, 30, 10, 3, 1):
        planes = len(bench.ram) / n
        array = bench.ram[: round(planes)] if planes >= 1 else bench.ram[:1, : round(planes * bench.ram.shape[1])]
        out = np.full_like(array, np.nan)
        seconds = median_seconds(
            lambda a=array, o=out: cf.map(work, a, out=o, budget=bench.budget, **bench.options), repeats
        )
        _checked(out, array)
        beside = float("nan")
        if DASK:
            beside = median_seconds(dask_map(bench, array, out, (max(1, len(array) // 16), -1, -1)), repeats)
            _checked(out, array)
        size = array.nbytes / 1e6
        cells = f"{size:.0f}", f"{seconds * 1e3:.1f}", f"{size / seconds / 1e3:.2f}", f"{beside * 1e3:.1f}"
        found.add(size, *cells, chunkflow=seconds, dask=beside)
    return found


def chunks(bench: Bench, repeats: int) -> Growth:
    """Seconds of a map of 268 MB in eight blocks up to 65536."""
    array = np.ones((1024, 256, 256), "f4")
    out = np.full_like(array, np.nan)
    found = Growth("map of 268 MB, by number of blocks", ["blocks", "ms", "us each", "dask, ms"])
    for number, shape in (
        (8, (128, 256, 256)),
        (64, (16, 256, 256)),
        (1024, (1, 256, 256)),
        (8192, (1, 32, 256)),
        (65536, (1, 4, 256)),
    ):

        def run(shape: Any = shape) -> None:
            cf.map(work, array, out=out, chunks=shape, dtype="f4", workspace=8, budget=bench.budget, **bench.options)

        many = number > 8192  # these take a minute on a GPU, and those before have warmed it
        seconds = median_seconds(run, 1 if many else repeats, warm=not many)
        _checked(out, array)
        beside = float("nan")
        if DASK and not many:
            beside = median_seconds(dask_map(bench, array, out, shape), 1)
        found.add(number, *_each(number, seconds, beside), chunkflow=seconds, dask=beside)
    return found


def _each(number: int, seconds: float, beside: float) -> tuple[object, ...]:
    dask = f"{beside * 1e3:.0f}" if beside == beside else "-"
    return number, f"{seconds * 1e3:.0f}", f"{seconds / number * 1e6:.0f}", dask


def stored_chunks(bench: Bench, repeats: int) -> Growth:
    """Seconds of a sum of zarr arrays of ten chunks of 32 KiB up to a hundred thousand."""
    found = Growth("sum of zarr chunks of 32 KiB, by their number", ["chunks", "ms", "us each", "dask, ms"])
    for number in (10, 100, 1000, 10_000, 100_000):
        path = bench.directory / "chunks.zarr"
        array = np.broadcast_to(np.arange(8192, dtype="f4"), (number, 8192))
        cf.copy(array, path, chunks=(1, 8192), device="cpu")
        total = float(array.sum(dtype="f8"))

        def run(path: Path = path, total: float = total) -> None:
            assert abs(float(cf.sum(path, dtype="f8", budget=bench.budget, **bench.options)) - total) <= 1e-9 * total

        seconds = median_seconds(run, repeats)
        beside = float("nan")
        if DASK and number <= 1000:
            beside = median_seconds(dask_sum(bench, zarr.open_array(path), (1, 8192)), 1)
        found.add(number, *_each(number, seconds, beside), chunkflow=seconds, dask=beside)
        shutil.rmtree(path)
    return found


def chunk_sizes(bench: Bench, repeats: int) -> Growth:
    """Seconds of sums of a quarter of the volume, 2 GiB at most, in zarr chunks of 1 MiB up to 1 GiB."""
    number = max(2, min(2048, round(bench.gib * 256)))
    planes = np.round(np.random.default_rng(0).standard_normal((64, 1024, 256), dtype="f4") * 64) / 64
    array = np.tile(planes, (-(-number // 64), 1, 1))[:number]
    total, size = float(array.sum(dtype="f8")), array.nbytes / 1e9
    codecs = {"raw": None, "lz4": zarr.codecs.BloscCodec(cname="lz4"), "zstd": zarr.codecs.ZstdCodec(level=1)}
    head = ["MiB a chunk", *(f"{codec}, {what}" for codec in codecs for what in ("ms", "GB/s", "dask, ms"))]
    found = Growth(f"sum of {size:.2f} GB of zarr, by the size of a chunk", head)
    for side in (n for n in (1, 8, 64, 256, 1024) if n <= number // 2):
        cells: list[str] = []
        seconds: dict[str, float] = {}
        for codec, compressors in codecs.items():
            path, chunk = bench.directory / "sizes.zarr", (side, 1024, 256)
            store = zarr.create_array(path, data=array, chunks=chunk, compressors=compressors, overwrite=True)

            def run(path: Path = path) -> None:
                got = float(cf.sum(path, dtype="f8", budget=bench.budget, **bench.options))
                assert abs(got - total) <= 1e-9 * abs(total)

            seconds[codec] = median_seconds(run, repeats)
            beside = median_seconds(dask_sum(bench, store, chunk), 1) if DASK else float("nan")
            cells += [f"{seconds[codec] * 1e3:.0f}", f"{size / seconds[codec]:.2f}", f"{beside * 1e3:.0f}"]
            shutil.rmtree(path)
        found.add(side, side, *cells, **seconds)
    return found


def budgets(bench: Bench, repeats: int) -> Growth:
    """Rates of a map under budgets from 64 MB to 32 GB."""
    found = Growth(f"map, RAM to RAM {bench.ram.shape}, by budget", ["budget, MB", "ms", "GB/s each way"])
    array, out = bench.ram, np.full_like(bench.ram, np.nan)
    for budget in ("64MB", "256MB", "1GB", "4GB", "16GB", "32GB"):
        megabytes = parse_bytes(budget) // 10**6
        try:
            seconds = median_seconds(lambda b=budget: cf.map(work, array, out=out, budget=b, **bench.options), repeats)
        except cf.BudgetError as error:
            found.add(0, megabytes, "-", f"{str(error)[:60]}...")
            continue
        _checked(out, array)
        cells = megabytes, f"{seconds * 1e3:.0f}", f"{array.nbytes / seconds / 1e9:.2f}"
        found.add(megabytes, *cells, chunkflow=seconds)
    return found


def found(bench: Bench, repeats: int) -> Iterator[tuple[str, Growth]]:
    """All of them, by name; budgets first, since what the others' libraries take on a device counts in small ones."""
    for part in (budgets, sizes, chunks, stored_chunks, chunk_sizes):
        yield part.__name__, part(bench, repeats)
