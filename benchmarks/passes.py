"""Several results in one pass, exact quantiles and rechunking on the CPU, beside dask, cubed, python-blosc2 and NumPy.

Run ``python -m benchmarks.passes [--side 384] [--repeats 3] [--directory DIR]``. It needs dask, cubed and blosc2, and
room for about nine times ``4 * side ** 3`` bytes. Contenders take turns within one process; what they wrote is removed
after each run, and results are compared with NumPy's. Peak memory is measured in a process of its own for each, beyond
what it had taken when all was imported and had run once, small.

The energy is ``(u**2 + v**2 + w**2) / 2`` of three float32 volumes, zarr in blosc's zstd with bytes shuffled.
python-blosc2 reads copies of them in its own format, in files, with the same chunks, codec, level and filter; its
reductions are made one after the other, each from the files ("lazy reductions"), or by NumPy from slabs of the lazy
expression ("by slabs"), which needs one pass. Neither it nor cubed has a histogram, so there is a row of two results
too. dask's percentiles are approximate, and of one dimension: it gets the flattened volume.

The array that is rechunked is zarr as it is by default. Without a budget chunkflow takes it whole, as dask does; with
one of an eighth of the array, and cubed with as much memory for a task, it makes two passes. The package rechunker is
not here: its newest version, 0.5.4, does not work with zarr 3.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import blosc2
import cubed
import cubed.array_api as xp
import dask
import dask.array as da
import numpy as np
import zarr
from zarr.codecs import BloscCodec

import chunkflow as cf
from benchmarks.harness import machine, peak_memory, table, timed

CHUNKS = (128, 128, 128)
THIN = 8  # planes of a slab, and lines of a column
BINS, RANGE = 256, (0, 50)
WANTED = (0.01, 0.5, 0.99)
SHARE = 8  # the array is so many times as large as the budget to rechunk it in
APPROXIMATE = "dask, approximate"

Runs = Mapping[str, Mapping[str, Callable[[], Any]]]


def energy(u, v, w):
    """What is reduced; all libraries have these operators."""
    return (u**2 + v**2 + w**2) / 2


class Work:
    """The arrays, and what each contender does with them."""

    def __init__(self, directory: Path, side: int) -> None:
        self.directory, self.side = directory, side
        self.slabs, self.columns = (THIN, side, side), (side, side, THIN)
        self.budget = max(4 * side**3 // SHARE, 8 * 4 * THIN * side**2)  # at least of a few chunks
        self.spec, self.small_spec = (
            cubed.Spec(work_dir=str(directory / "cubed"), allowed_mem=allowed, executor_name="threads")
            for allowed in ("4GB", self.budget)
        )

    def create(self) -> None:
        """Make the data: noise, of which few energies lie beyond the histogram's range."""
        codec = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")
        params = {"codec": blosc2.Codec.ZSTD, "clevel": 1, "filters": [blosc2.Filter.SHUFFLE]}
        for seed, name in enumerate("uvw"):
            x = np.random.default_rng(seed).standard_normal((self.side,) * 3, dtype="f4") * 3
            options: dict[str, Any] = {"shape": x.shape, "dtype": "f4", "overwrite": True}
            zarr.create_array(self.path(name), chunks=CHUNKS, compressors=codec, **options)[...] = x
            blosc2.asarray(x, urlpath=self.path(name, "b2nd"), mode="w", chunks=CHUNKS, cparams=params)
            if name == "u":
                zarr.create_array(self.path("x"), chunks=self.slabs, **options)[...] = x

    def path(self, name: str, kind: str = "zarr") -> str:
        return str(self.directory / f"{name}-{self.side}.{kind}")

    def remove(self) -> None:
        """Remove what the last run wrote."""
        shutil.rmtree(self.path("out"), ignore_errors=True)

    def energy(self, library: str) -> Any:
        """The energy, as a library's expression."""
        opened: dict[str, Callable[[str], Any]] = {
            "dask": lambda name: da.from_zarr(self.path(name)),
            "cubed": lambda name: cubed.from_zarr(self.path(name), spec=self.spec),
            "blosc2": lambda name: blosc2.open(self.path(name, "b2nd"), mode="r"),
            "chunkflow": lambda name: cf.open(self.path(name)),
        }
        return energy(*map(opened[library], "uvw"))

    def by_slabs(self, histogram: bool) -> tuple[Any, ...]:
        """NumPy's results of slabs that python-blosc2 works out."""
        e, total, most = self.energy("blosc2"), 0.0, []
        counts = np.zeros(BINS, np.intp)
        for start in range(0, self.side, CHUNKS[0]):
            slab = e[start : start + CHUNKS[0]]
            total += slab.sum(dtype="f8")
            most.append(slab.max(axis=(1, 2)))
            if histogram:
                counts += np.histogram(slab, BINS, RANGE)[0]
        return (total / self.side**3, np.concatenate(most), *((counts,) if histogram else ()))

    def two(self) -> dict[str, Callable[[], Any]]:
        """Mean, and maximum of each plane."""

        def of(library: str, compute: Callable[..., Any], lib: Any) -> Any:
            e = self.energy(library)
            return compute(lib.mean(e), lib.max(e, axis=(1, 2)))

        def reductions() -> tuple[Any, ...]:
            e = self.energy("blosc2")
            return e.mean(), e.max(axis=(1, 2))

        return {
            "dask": lambda: of("dask", da.compute, da),
            "cubed": lambda: of("cubed", cubed.compute, xp),
            "blosc2, lazy reductions": reductions,
            "blosc2, by slabs": lambda: self.by_slabs(False),
            "chunkflow": lambda: of("chunkflow", self.compute, np),
        }

    def three(self) -> dict[str, Callable[[], Any]]:
        """The histogram too."""

        def dasked() -> Any:
            e = self.energy("dask")
            return da.compute(e.mean(), e.max(axis=(1, 2)), da.histogram(e, bins=BINS, range=RANGE)[0])

        def chunkflow() -> Any:
            e = self.energy("chunkflow")
            return self.compute(e.mean(), e.max(axis=(1, 2)), np.histogram(e, BINS, RANGE)[0])

        return {"dask": dasked, "blosc2, by slabs": lambda: self.by_slabs(True), "chunkflow": chunkflow}

    def compute(self, *values: Any) -> Any:
        return cf.compute(*values, device="cpu")

    def quantiles(self) -> dict[str, Callable[[], Any]]:
        u = self.path("u")
        return {
            "NumPy, all in memory": lambda: np.quantile(zarr.open_array(u, mode="r")[...], WANTED),
            APPROXIMATE: lambda: da.percentile(da.from_zarr(u).ravel(), [100 * q for q in WANTED]).compute(),
            "chunkflow": lambda: cf.quantile(u, WANTED, device="cpu"),
        }

    def rechunk(self) -> dict[str, Callable[[], Any]]:
        x, out, chunks = self.path("x"), self.path("out"), self.columns

        def cubed_rechunk(spec: cubed.Spec) -> None:
            cubed.to_zarr(cubed.rechunk(cubed.from_zarr(x, spec=spec), chunks), out)

        def limited() -> None:
            cf.rechunk(x, chunks, out, budget=self.budget, device="cpu")

        return {
            "dask": lambda: da.from_zarr(x).rechunk(chunks).to_zarr(out),
            "cubed": lambda: cubed_rechunk(self.spec),
            "cubed, allowed_mem of an eighth": lambda: cubed_rechunk(self.small_spec),
            "chunkflow, budget of an eighth": limited,
            "chunkflow": lambda: cf.rechunk(x, chunks, out, device="cpu"),
        }

    def runs(self) -> Runs:
        """What is timed: by operation, by contender; chunkflow comes last."""
        return {
            "two results of an energy": self.two(),
            "three results of an energy": self.three(),
            "three quantiles": self.quantiles(),
            "rechunk": self.rechunk(),
        }

    def expected(self, operation: str) -> Sequence[Any]:
        """What NumPy makes of it."""
        if operation == "rechunk":
            return (zarr.open_array(self.path("x"), mode="r")[...],)
        if operation == "three quantiles":
            return (np.quantile(zarr.open_array(self.path("u"), mode="r")[...], WANTED),)
        e = energy(*(zarr.open_array(self.path(name), mode="r")[...] for name in "uvw"))
        results = (e.mean(dtype="f8"), e.max(axis=(1, 2)), np.histogram(e, BINS, RANGE)[0])
        return results if operation.startswith("three") else results[:2]

    def check(self, operation: str, contender: str, returned: Any, expected: Sequence[Any]) -> None:
        """Compare results with NumPy's, then remove them. Rounding may move an element to the next bin."""
        if operation == "rechunk":
            out = zarr.open_array(self.path("out"), mode="r")
            assert out.chunks == self.columns, out.chunks
            np.testing.assert_array_equal(out[...], expected[0])
            self.remove()
            return
        if operation == "three quantiles":
            tolerance = 0.1 if contender == APPROXIMATE else 0.0
            np.testing.assert_allclose(returned, expected[0], rtol=0, atol=tolerance)
            return
        for got, want in zip(returned[:2], expected, strict=False):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5)
        if len(expected) > 2:
            assert np.abs(np.asarray(returned[2]) - expected[2]).sum() <= 1e-5 * self.side**3


def peak(directory: Path, side: int, operation: str, contender: str) -> float:
    """Most anonymous memory in MB that a contender takes, in this process."""
    small = Work(directory / "small", 32)
    (directory / "small").mkdir(exist_ok=True)
    small.create()
    small.remove()
    small.runs()[operation][contender]()
    work = Work(directory, side)
    work.remove()
    return peak_memory(work.runs()[operation][contender])


def rows(work: Work, operation: str, repeats: int) -> list[tuple[str, ...]]:
    """Seconds and peak memory of each contender."""
    expected, runs = work.expected(operation), work.runs()[operation]
    seconds = timed(runs, repeats, lambda name, returned: work.check(operation, name, returned, expected))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    found: list[tuple[str, ...]] = []
    for name, median in medians.items():
        arguments = ["--side", str(work.side), "--directory", str(work.directory), "--measure", operation, name]
        command = [sys.executable, "-m", "benchmarks.passes", *arguments]
        memory = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        spread = f"{min(seconds[name]):.2f}-{max(seconds[name]):.2f}"
        ratio = f"{medians['chunkflow'] / median:.2f}"
        found.append((operation, name, f"{median:.2f}", spread, ratio, memory))
    return found


def main() -> None:
    """Run everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=384)
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
        found = []
        for operation in work.runs():
            if not options.only or operation in options.only:
                found += rows(work, operation, options.repeats)
        title = (
            f"float32 volumes of {options.side}^3 in chunks of {CHUNKS}, rechunked from {work.slabs} to {work.columns}"
        )
        head = ["operation", "contender", "seconds", "range", "chunkflow / this", "peak memory, MB"]
        print(table(title, found, head))


if __name__ == "__main__":
    main()
