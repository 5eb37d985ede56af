"""An array in memory through a function into a new .npy file and a new zarr array; the bound is to write such files."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, Goal
from benchmarks.data import in_threads, work

CHUNK = 128  # side of a zarr chunk


def cases(bench: Bench) -> Iterator[Case]:
    """RAM through a function into a new .npy file, and a new zarr array; the bound is to write such files."""
    ram, path, written = bench.ram, bench.directory / "y.npy", "writing at positions"

    def write() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, ram.nbytes)
        in_threads(lambda i: os.pwrite(fd, ram[i].data.cast("B"), i * ram[i].nbytes), len(ram))
        os.close(fd)

    def check(name: str, got: Any) -> None:
        if name == written:
            assert path.stat().st_size == ram.nbytes
        else:
            found = np.load(path, mmap_mode="r")
            for i in (0, len(ram) - 1):
                np.testing.assert_allclose(found[i], work(ram[i]), rtol=1e-5)
            del found
        path.unlink()

    def run() -> None:
        cf.map(work, ram, out=path, **bench.options)

    runs = {OURS: run, written: write}
    yield Case("new .npy", f"RAM {ram.shape} to a file", ram.nbytes / 1e9, runs, check, (written, None), Goal(0.95))
    yield new_zarr(bench)


def new_zarr(bench: Bench) -> Case:
    """The same into chunks as they are; the bound is to write the same bytes to as many files."""
    ram, path, files = bench.ram, bench.directory / "y.zarr", "writing such files"
    sides = tuple(min(CHUNK, n) for n in ram.shape)
    number = math.prod(-(-n // side) for n, side in zip(ram.shape, sides, strict=True))
    parts = np.array_split(ram.reshape(-1).view("u1"), number)

    def created() -> Any:
        return zarr.create_array(path, shape=ram.shape, chunks=sides, dtype=ram.dtype, compressors=None)

    def write() -> None:
        path.mkdir()
        in_threads(lambda i: (path / str(i)).write_bytes(parts[i].data), number)

    def slabs() -> None:
        store = created()
        for i in range(0, len(ram), CHUNK):
            store[i : i + CHUNK] = bench.host(work(bench.xp.asarray(ram[i : i + CHUNK])))

    def check(name: str, got: Any) -> None:
        if name == files:
            assert sum(file.stat().st_size for file in path.iterdir()) == ram.nbytes
        else:
            store = zarr.open_array(path, mode="r")
            for i in (0, len(ram) - 1):
                np.testing.assert_allclose(store[i], work(ram[i]), rtol=1e-5)
        shutil.rmtree(path)

    runs = {
        OURS: lambda: cf.map(work, ram, out=created(), **bench.options),
        files: write,
        "zarr-python, by slabs": slabs,
    }
    what = f"RAM {ram.shape} to chunks of {sides}"
    return Case("new zarr, raw", what, ram.nbytes / 1e9, runs, check, (files, None), Goal(0.95))
