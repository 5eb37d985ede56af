"""New chunks for half a volume: a cube of bytes in zarr, from chunks of (64, n, n) to (n, n, 64).

Beside dask, which holds it whole, and dask's copy with the chunks as they are. chunkflow does it on the CPU unless told
otherwise.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import cube_side, in_threads
from benchmarks.probe import installed

THIN = 64  # planes of a slab, and lines of a column
KEPT = "dask, chunks as they are"


def cases(bench: Bench) -> Iterator[Case]:
    """New chunks beside dask's way."""
    side = max(2 * THIN, cube_side(bench.gib / 2, THIN, 1))
    slabs, columns = (THIN, side, side), (side, side, THIN)
    path, out = str(bench.directory / "x.zarr"), str(bench.directory / "out.zarr")
    x = zarr.create_array(path, shape=(side,) * 3, dtype="u1", chunks=slabs)

    def noise(i: int) -> np.ndarray:
        return np.random.default_rng(i).integers(0, 256, slabs, "u1")

    def fill(i: int) -> None:
        x[i * THIN : (i + 1) * THIN] = noise(i)

    in_threads(fill, side // THIN)

    def check(name: str, _: Any) -> None:
        found = zarr.open_array(out, mode="r")
        assert found.chunks == (slabs if name == KEPT else columns), found.chunks
        ends = found[..., :THIN], found[..., -THIN:]  # whole columns, and so a part of each slab
        assert all(in_threads(lambda i: same(i, ends), side // THIN))
        shutil.rmtree(out)

    def same(i: int, ends: tuple[np.ndarray, np.ndarray]) -> bool:
        part, want = slice(i * THIN, (i + 1) * THIN), noise(i)
        return all(np.array_equal(a[part], b) for a, b in zip(ends, (want[..., :THIN], want[..., -THIN:]), strict=True))

    def dasked(chunks: tuple[int, ...] | None) -> None:
        dask, da = importlib.import_module("dask"), importlib.import_module("dask.array")
        with dask.config.set(scheduler="threads"):
            lazy = da.from_zarr(path)
            (lazy if chunks is None else lazy.rechunk(chunks)).to_zarr(out)

    runs: dict[str, Callable[[], Any]] = {OURS: lambda: cf.rechunk(path, columns, out, device="cpu")}
    if bench.is_gpu:
        runs[f"chunkflow, on {bench.device}"] = lambda: cf.rechunk(path, columns, out, device=bench.device)
    there, missing = installed("dask")
    if there:
        runs |= {"dask": lambda: dasked(columns), KEPT: lambda: dasked(None)}
    passes = cf.rechunk_plan(path, columns, bench.budget).passes
    what = f"zarr, uint8 {side}^3, {slabs} to {columns}, budget {bench.budget}, {passes} passes on the CPU"
    limit = (KEPT, None) if there else None
    yield Case("copies", what, x.nbytes / 1e9, runs, check, limit, missing=missing)
