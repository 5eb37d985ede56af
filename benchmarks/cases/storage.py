"""Maps of one and of three arrays on the CPU, by kind of storage, beside NumPy and dask's threaded scheduler.

Every output is poisoned before each run and compared with all of NumPy's after it. Peak memory is measured in a process
of its own for each contender.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import mapped, work
from benchmarks.probe import installed

PLANE = (512, 512)  # of float32: 1 MiB
CHUNKS = (128, 128, 128)
DASK_MIB = (1, 4, 16)


def speed(u: Any, v: Any, w: Any) -> Any:
    """What every contender computes from three arrays."""
    return np.sqrt(u * u + v * v + w * w)


def block_shape(kib: int) -> tuple[int, int, int]:
    """Shape of a contiguous block of so many KiB."""
    return (kib // 1024, *PLANE) if kib >= 1024 else (1, PLANE[0] * kib // 1024, PLANE[1])


class Sliced:
    """An array without a method ``copy``: dask's ``from_array`` copies what has one, a memmap too."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, region: Any) -> Any:
        return self._array[region]


class InMemory:
    """From host memory to host memory."""

    kind = "memory to memory"

    def __init__(self, directory: Path, planes: int, fn: Callable[..., Any]) -> None:
        self.directory, self.fn = directory, fn
        self.names = ["x"] if fn is work else ["u", "v", "w"]
        self.shape = (max(2, planes), *PLANE)
        self.nbytes = (len(self.names) + 1) * 4 * self.shape[0] * PLANE[0] * PLANE[1]
        self.create()

    def path(self, name: str) -> Path:
        """Where an array lies."""
        return self.directory / f"{self.kind.partition(' ')[0]}-{self.fn.__name__}-{name}"

    def values(self, name: str) -> np.ndarray:
        """An array's values: noise over a gradient."""
        rng = np.random.default_rng(ord(name))
        base = rng.standard_normal((16, *PLANE), dtype="f4")
        return base[np.arange(self.shape[0]) % 16] + np.linspace(0, 4, self.shape[0], dtype="f4")[:, None, None]

    def create(self) -> None:
        """Make the data, or open what is there."""
        self.arrays: list[Any] = [self.values(name) for name in self.names]
        self.out = np.full(self.shape, np.nan, "f4")

    def poison(self) -> None:
        """Make sure that no output can be an earlier one's."""
        self.out.fill(np.nan)

    def output(self, region: slice) -> np.ndarray:
        """A part of the output."""
        return self.out[region]

    def check(self, name: str, _: Any) -> None:
        """Compare the output with NumPy's, then poison it."""
        for start in range(0, self.shape[0], CHUNKS[0]):
            region = slice(start, start + CHUNKS[0])
            np.testing.assert_array_equal(self.output(region), self.fn(*(a[region] for a in self.arrays)))
        self.poison()

    def dask(self, chunks: object, wrap: Callable[[Any], Any] = Sliced) -> None:
        """A dask graph with these blocks, stored without a lock."""
        da = importlib.import_module("dask.array")
        lazy = [da.from_array(wrap(a), chunks=chunks, name=False) for a in self.arrays]
        da.map_blocks(self.fn, *lazy, dtype="f4").store(self.out, lock=False, scheduler="threads")

    def numpy(self) -> None:
        self.out[...] = self.fn(*self.arrays)

    def chunkflow(self, chunks: object = None) -> None:
        cf.map(self.fn, *self.arrays, out=self.out, chunks=chunks, device="cpu")

    def dasks(self) -> dict[str, Callable[[], Any]]:
        """dask's contenders."""
        found: dict[str, Callable[[], Any]] = {
            "dask": lambda: self.dask("auto", lambda a: a),
            "dask, 4 MiB": lambda: self.dask(block_shape(4096), lambda a: a),
        }
        for mib in DASK_MIB:
            found[f"dask, {mib} MiB, spared its copy"] = lambda mib=mib: self.dask(block_shape(1024 * mib))
        return found


class InFiles(InMemory):
    """From a page-cached file to another."""

    kind = "file to file"

    def create(self) -> None:
        for name in self.names:
            if not self.path(name).exists():
                self.values(name).tofile(self.path(name))
        if not self.path("out").exists():
            mapped(self.path("out"), "f4", self.shape, lambda x, i: x[i].fill(np.nan))
        self.arrays = [np.memmap(self.path(name), "f4", "r", shape=self.shape) for name in self.names]
        self.out = np.memmap(self.path("out"), "f4", "r+", shape=self.shape)


class InZarr(InMemory):
    """From zarr to zarr, with its default codec."""

    kind = "zarr to zarr"

    def create(self) -> None:
        for name in self.names:
            if not self.path(name).exists():
                store = zarr.create_array(self.path(name), shape=self.shape, dtype="f4", chunks=CHUNKS)
                store[...] = self.values(name)
        self.arrays = [zarr.open_array(self.path(name), mode="r") for name in self.names]

    def path(self, name: str) -> Path:
        return super().path(name).with_suffix(".zarr")

    def poison(self) -> None:
        shutil.rmtree(self.path("out"), ignore_errors=True)

    def output(self, region: slice) -> np.ndarray:
        return np.asarray(zarr.open_array(self.path("out"), mode="r")[region])

    def sink(self) -> zarr.Array:
        """A new output."""
        return zarr.create_array(self.path("out"), shape=self.shape, dtype="f4", chunks=CHUNKS)

    def numpy(self) -> None:
        self.sink()[...] = self.fn(*(a[...] for a in self.arrays))

    def chunkflow(self, chunks: object = None) -> None:
        cf.map(self.fn, *map(self.path, self.names), out=self.path("out"), device="cpu")

    def by_chunks(self) -> None:
        """dask with blocks of the store's chunks."""
        dask, da = importlib.import_module("dask"), importlib.import_module("dask.array")
        lazy = [da.from_zarr(a) for a in self.arrays]
        with dask.config.set(scheduler="threads"):
            da.map_blocks(self.fn, *lazy, dtype="f4").to_zarr(str(self.path("out")))

    def by_rows(self) -> None:
        """dask with blocks of whole rows of chunks."""
        da = importlib.import_module("dask.array")
        lazy = [da.from_zarr(a, chunks=(CHUNKS[0], *PLANE)) for a in self.arrays]
        da.map_blocks(self.fn, *lazy, dtype="f4").store(self.sink(), lock=False, scheduler="threads")

    def dasks(self) -> dict[str, Callable[[], Any]]:
        return {"dask": self.by_chunks, "dask, 128 MiB": self.by_rows}


def cases(bench: Bench) -> Iterator[Case]:
    """Arrays of the size asked for, three of half of it, and half as much in zarr."""
    mib, missing = round(bench.gib * 1024), installed("dask")[1]
    for kind, planes in ((InFiles, mib), (InMemory, mib), (InZarr, mib // 2)):
        for fn, number in ((work, planes), (speed, planes // 2)):
            data = kind(bench.directory, number, fn)
            data.poison()
            runs = {OURS: data.chunkflow, "NumPy, one expression": data.numpy} | ({} if missing else data.dasks())
            count = "one array" if fn is work else "three arrays"
            what = f"`{fn.__name__}` of {len(data.names)} x {data.shape[0]} MiB; bytes read and written"
            name, amount = f"{data.kind}, {count}", data.nbytes / 1e9
            yield Case(name, what, amount, runs, data.check, None, missing=missing, apart=True)
