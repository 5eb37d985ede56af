"""chunkflow on the CPU beside dask's threaded scheduler and one NumPy expression: rates, peak memory, overhead.

Run ``python -m benchmarks.cpu [--mib 512] [--repeats 5] [--directory DIR] [--sweep]``. It needs dask,
room for about five times the size on disk, and page cache for it. Contenders take turns within one process;
every output is poisoned before each run and compared with NumPy's after it. Peak memory is measured in a
process of its own for each contender, beyond what it had taken when the data were open and all was imported.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr

import chunkflow as cf
from benchmarks.harness import Contender, alternate, machine, median_seconds, rate_rows, table

PLANE = (512, 512)  # of float32: 1 MiB
CHUNKS = (128, 128, 128)
DASK_MIB = (1, 4, 16)
SWEEP_KIB = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)


def work(a):
    """What every contender computes from one array."""
    return np.sqrt(np.abs(a)) * 2 + 1


def speed(u, v, w):
    """What every contender computes from three."""
    return np.sqrt(u * u + v * v + w * w)


def block_shape(kib: int) -> tuple[int, int, int]:
    """Shape of a contiguous block of so many KiB."""
    return (kib // 1024, *PLANE) if kib >= 1024 else (1, PLANE[0] * kib // 1024, PLANE[1])


class Sliced:
    """An array without a method ``copy``: dask's ``from_array`` copies what has one, a memmap too."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, region):
        return self._array[region]


class Case:
    """One function and one kind of storage: its data, its contenders, and the check of their output."""

    suffix = ""

    def __init__(self, directory: Path, planes: int, fn: Callable) -> None:
        self.directory, self.fn = directory, fn
        self.names = ["x"] if fn is work else ["u", "v", "w"]
        self.shape = (planes, *PLANE)
        self.nbytes = (len(self.names) + 1) * 4 * planes * PLANE[0] * PLANE[1]

    def path(self, name: str) -> Path:
        """Where an array lies."""
        return self.directory / f"{type(self).__name__}-{self.fn.__name__}-{self.shape[0]}-{name}{self.suffix}"

    def values(self, name: str) -> np.ndarray:
        """An array's values: noise over a gradient."""
        rng = np.random.default_rng(ord(name))
        base = rng.standard_normal((16, *PLANE), dtype="f4")
        return base[np.arange(self.shape[0]) % 16] + np.linspace(0, 4, self.shape[0], dtype="f4")[:, None, None]

    def create(self) -> None:
        """Make the data."""

    def open(self) -> None:
        """Open the data, as every contender gets them."""
        raise NotImplementedError

    def contenders(self) -> dict[str, Contender]:
        """What is compared; chunkflow comes last."""
        raise NotImplementedError

    def poison(self) -> None:
        """Make sure that no output can be an earlier one's."""
        self.out.fill(np.nan)

    def output(self, region: slice) -> np.ndarray:
        """A part of the output."""
        return self.out[region]

    def check(self) -> None:
        """Compare the output with NumPy's, then poison it."""
        for start in range(0, self.shape[0], CHUNKS[0]):
            region = slice(start, start + CHUNKS[0])
            np.testing.assert_array_equal(self.output(region), self.fn(*(a[region] for a in self.arrays)))
        self.poison()


class Ndarray(Case):
    """From host memory to host memory."""

    def open(self) -> None:
        self.arrays = [self.values(name) for name in self.names]
        self.out = np.full(self.shape, np.nan, "f4")

    def dask(self, chunks: object, wrap: Callable = Sliced) -> None:
        """A dask graph with these blocks, stored without a lock."""
        lazy = [da.from_array(wrap(a), chunks=chunks, name=False) for a in self.arrays]
        da.map_blocks(self.fn, *lazy, dtype="f4").store(self.out, lock=False, scheduler="threads")

    def numpy(self) -> None:
        self.out[...] = self.fn(*self.arrays)

    def chunkflow(self, chunks: object = None) -> None:
        cf.map(self.fn, *self.arrays, out=self.out, chunks=chunks, device="cpu")

    def contenders(self) -> dict[str, Contender]:
        found: dict[str, Contender] = {
            "NumPy, one expression": self.numpy,
            "dask, automatic blocks": lambda: self.dask("auto", lambda a: a),
            "dask, 4 MiB": lambda: self.dask(block_shape(4096), lambda a: a),
        }
        for mib in DASK_MIB:
            found[f"dask, {mib} MiB, spared its copy"] = lambda mib=mib: self.dask(block_shape(1024 * mib))
        return found | {"chunkflow": self.chunkflow}


class Memmap(Ndarray):
    """From a page-cached file to another."""

    def create(self) -> None:
        for name in self.names:
            self.values(name).tofile(self.path(name))
        np.full(self.shape, np.nan, "f4").tofile(self.path("out"))

    def open(self) -> None:
        self.arrays = [np.memmap(self.path(name), "f4", "r", shape=self.shape) for name in self.names]
        self.out = np.memmap(self.path("out"), "f4", "r+", shape=self.shape)


class Zarr(Case):
    """From zarr to zarr, with its default codec."""

    suffix = ".zarr"

    def create(self) -> None:
        for name in self.names:
            store = zarr.create_array(self.path(name), shape=self.shape, dtype="f4", chunks=CHUNKS, overwrite=True)
            store[...] = self.values(name)

    def open(self) -> None:
        self.arrays = [zarr.open_array(self.path(name), mode="r") for name in self.names]

    def poison(self) -> None:
        shutil.rmtree(self.path("out"), ignore_errors=True)

    def output(self, region: slice) -> np.ndarray:
        return zarr.open_array(self.path("out"), mode="r")[region]

    def sink(self) -> zarr.Array:
        """A new output."""
        return zarr.create_array(self.path("out"), shape=self.shape, dtype="f4", chunks=CHUNKS)

    def numpy(self) -> None:
        self.sink()[...] = self.fn(*(a[...] for a in self.arrays))

    def dask(self) -> None:
        lazy = [da.from_zarr(a) for a in self.arrays]
        with dask.config.set(scheduler="threads"):
            da.map_blocks(self.fn, *lazy, dtype="f4").to_zarr(str(self.path("out")))

    def dask_rows(self) -> None:
        """The same with blocks of whole rows of chunks."""
        lazy = [da.from_zarr(a, chunks=(CHUNKS[0], *PLANE)) for a in self.arrays]
        da.map_blocks(self.fn, *lazy, dtype="f4").store(self.sink(), lock=False, scheduler="threads")

    def chunkflow(self) -> None:
        cf.map(self.fn, *map(self.path, self.names), out=self.path("out"), device="cpu")

    def contenders(self) -> dict[str, Contender]:
        return {
            "NumPy, one expression": self.numpy,
            "dask, the store's chunks": self.dask,
            "dask, 128 MiB": self.dask_rows,
            "chunkflow": self.chunkflow,
        }


def cases(directory: Path, mib: int) -> Iterator[Case]:
    """What is measured: arrays of `mib` MiB, three of half of it, and half as much in zarr."""
    for kind, planes in ((Memmap, mib), (Ndarray, mib), (Zarr, mib // 2)):
        yield kind(directory, planes, work)
        yield kind(directory, planes // 2, speed)


def memory(field: str) -> int:
    """Bytes from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(case: Case, name: str) -> tuple[float, float]:
    """Peak of resident and of anonymous memory in MB beyond what is there before the run, in this process."""
    small = type(case)(case.directory, 2, case.fn)
    small.create()
    small.open()
    small.poison()
    small.contenders()[name]()  # what is imported when first used is nobody's peak
    small.poison()
    case.open()
    contender = case.contenders()[name]
    before = memory("VmRSS"), memory("RssAnon")
    # getrusage's figure would begin with the parent's; this one can be reset.
    Path("/proc/self/clear_refs").write_text("5")
    anonymous, done = before[1], threading.Event()

    def sample() -> None:
        nonlocal anonymous
        while not done.wait(0.001):
            anonymous = max(anonymous, memory("RssAnon"))

    thread = threading.Thread(target=sample, daemon=True)  # a contender that fails must not wait for it
    thread.start()
    contender()
    done.set()
    thread.join()
    return (memory("VmHWM") - before[0]) / 1e6, (anonymous - before[1]) / 1e6


def measured_apart(options: argparse.Namespace, number: int, name: str) -> list[str]:
    """`measure` in a process of its own."""
    arguments = ["--mib", str(options.mib), "--directory", options.directory, "--measure", str(number), name]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cpu", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def compare(options: argparse.Namespace) -> None:
    """Print a table for each case."""
    for number, case in enumerate(cases(Path(options.directory), options.mib)):
        case.create()
        case.open()
        case.poison()
        seconds = alternate(case.contenders(), options.repeats, case.check)
        rows = []
        for row in rate_rows(seconds, case.nbytes):
            case.poison()
            rows.append((*row, *measured_apart(options, number, row[0])))
        title = f"{type(case).__doc__} `{case.fn.__name__}`, {len(case.names)} x {case.shape[0]} MiB in"
        head = ["contender", "GB/s in + out", "range", "chunkflow / this", "peak RSS, MB", "anonymous, MB"]
        print(table(title, rows, head), flush=True)


def median_ms(run: Contender, repeats: int) -> float:
    """Median milliseconds."""
    return median_seconds(run, repeats) * 1e3


def overheads() -> None:
    """Print what a run and a block cost, whatever their size."""
    x = np.random.default_rng(0).standard_normal((256, 1024), dtype="f4")
    out = np.empty_like(x)
    learned = {"dtype": np.dtype("f4"), "workspace": 8.0}

    def dasked(x: np.ndarray, rows: int) -> None:
        da.from_array(x, chunks=(rows, -1), name=False).map_blocks(work, dtype="f4").compute(scheduler="threads")

    rows = [
        ("NumPy", f"{median_ms(lambda: work(x), 50):.2f}"),
        ("dask, one block", f"{median_ms(lambda: dasked(x, 256), 50):.2f}"),
        ("chunkflow", f"{median_ms(lambda: cf.map(work, x, out=out, device='cpu'), 50):.2f}"),
        (
            "chunkflow, dtype= and workspace= given",
            f"{median_ms(lambda: cf.map(work, x, out=out, device='cpu', **learned), 50):.2f}",
        ),
    ]
    print(table("A map of 1 MB", rows, ["contender", "ms"]))

    large = np.random.default_rng(0).standard_normal((1000, 1024), dtype="f4")
    result = np.empty_like(large)

    def looped(rows: int) -> None:
        for i in range(0, 1000, rows):
            result[i : i + rows] = work(large[i : i + rows])

    def mapped(rows: int) -> None:
        cf.map(work, large, out=result, device="cpu", chunks=(rows, -1), **learned)

    rows = []
    for name, run in (("NumPy, in a loop", looped), ("dask", lambda n: dasked(large, n)), ("chunkflow", mapped)):
        few, many = (median_ms(lambda run=run, n=n: run(n), 15) for n in (100, 1))
        rows.append((name, f"{few:.2f}", f"{many:.2f}", f"{(many - few) / 990 * 1e3:.0f}"))
    print(table("4 MB in 10 or 1000 blocks", rows, ["contender", "10 blocks, ms", "1000, ms", "us per block"]))


def sweep(options: argparse.Namespace) -> None:
    """Print chunkflow's rate by the size of a block, to set the default machine's figures by."""
    for kind in (Memmap, Ndarray):
        for fn in (work, speed):
            case = kind(Path(options.directory), options.mib // len([*"xy"]), fn)
            case.create()
            case.open()
            case.poison()
            runs: dict[str, Contender] = {
                f"{kib} KiB": lambda kib=kib: case.chunkflow(block_shape(kib))  # noqa: B023 (run within the turn)
                for kib in SWEEP_KIB
            }
            runs["chosen"] = case.chunkflow
            seconds = alternate(runs, options.repeats, case.check)
            title = f"{kind.__doc__} `{fn.__name__}`, by bytes of a block of one array"
            print(table(title, rate_rows(seconds, case.nbytes), ["block", "GB/s in + out", "range", "chosen / this"]))


def main() -> None:
    """Run what was asked for and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--sweep", action="store_true", help="rates by size of block instead")
    parser.add_argument("--measure", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        case = list(cases(Path(options.directory), options.mib))[int(options.measure[0])]
        print(*(f"{megabytes:.0f}" for megabytes in measure(case, options.measure[1])))
        return
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        options.directory = directory
        if options.sweep:
            sweep(options)
        else:
            compare(options)
            overheads()


if __name__ == "__main__":
    main()
