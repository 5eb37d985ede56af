"""zarr as it is by default, from slabs to columns, on the CPU, beside dask and cubed.

Without a budget chunkflow takes the array whole, as dask does; with one of an eighth of the array, and cubed with as
much memory for a task, it makes two passes. The package rechunker is not here: its newest version, 0.5.4, does not work
with zarr 3.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.cases.passes import normal
from benchmarks.data import cube_side
from benchmarks.peers.streams import cubed_spec
from benchmarks.probe import installed

THIN = 8  # planes of a slab, and lines of a column
SHARE = 8  # the array is so many times as large as the smaller budget


def cases(bench: Bench) -> Iterator[Case]:
    """Both budgets of each."""
    side = cube_side(bench.gib, 32)
    slabs, columns = (THIN, side, side), (side, side, THIN)
    budget = max(4 * side**3 // SHARE, 8 * 4 * THIN * side**2)  # at least of a few chunks
    place, out = bench.directory / "x.zarr", str(bench.directory / "out.zarr")
    x = str(place)
    if not place.exists():
        zarr.create_array(x, shape=(side,) * 3, dtype="f4", chunks=slabs)[...] = normal(0, side)
    shutil.rmtree(out, ignore_errors=True)
    there, missing = installed("dask", "cubed")

    @cache
    def expected() -> np.ndarray:
        return np.asarray(zarr.open_array(x, mode="r")[...])

    def check(_: str, returned: Any) -> None:
        found = zarr.open_array(out, mode="r")
        assert found.chunks == columns, found.chunks
        np.testing.assert_array_equal(found[...], expected())
        shutil.rmtree(out)

    def dasked() -> None:
        dask, da = importlib.import_module("dask"), importlib.import_module("dask.array")
        with dask.config.set(scheduler="threads"):
            da.from_zarr(x).rechunk(columns).to_zarr(out)

    def cubed_rechunk(allowed: str | int) -> None:
        cubed = importlib.import_module("cubed")
        spec = cubed_spec(bench.directory, allowed)
        cubed.to_zarr(cubed.rechunk(cubed.from_zarr(x, spec=spec), columns), out)

    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: cf.rechunk(x, columns, out, device="cpu"),
        "chunkflow, budget of an eighth": lambda: cf.rechunk(x, columns, out, budget=budget, device="cpu"),
    }
    if "dask" in there:
        runs["dask"] = dasked
    if "cubed" in there:
        runs["cubed"] = lambda: cubed_rechunk("4GB")
        runs["cubed, allowed_mem of an eighth"] = lambda: cubed_rechunk(budget)
    what, amount = f"zarr, float32 {side}^3, {slabs} to {columns}", 4 * side**3 / 1e9
    yield Case("rechunk", what, amount, runs, check, None, missing=missing, apart=True)
