"""Three exact quantiles of a zarr array on the CPU, beside NumPy with all of it in memory, and dask's approximate ones.

dask's percentiles are of one dimension: it gets the flattened volume.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.cases.passes import compressed, normal
from benchmarks.data import cube_side
from benchmarks.probe import installed

WANTED = (0.01, 0.5, 0.99)
APPROXIMATE = "dask, approximate"


def cases(bench: Bench) -> Iterator[Case]:
    """The three contenders."""
    side, path = cube_side(bench.gib, 32), bench.directory / "u.zarr"
    if not path.exists():
        compressed(str(path), normal(0, side))
    there, missing = installed("dask")

    def in_memory() -> Any:
        return np.quantile(zarr.open_array(path, mode="r")[...], WANTED)

    def dasked() -> Any:
        dask, da = importlib.import_module("dask"), importlib.import_module("dask.array")
        with dask.config.set(scheduler="threads"):
            return da.percentile(da.from_zarr(str(path)).ravel(), [100 * q for q in WANTED]).compute()

    expected = cache(in_memory)

    def check(name: str, returned: Any) -> None:
        np.testing.assert_allclose(returned, expected(), rtol=0, atol=0.1 if name == APPROXIMATE else 0.0)

    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: cf.quantile(str(path), WANTED, device="cpu"),
        "NumPy, all in memory": in_memory,
    }
    if there:
        runs[APPROXIMATE] = dasked
    what, amount = f"{WANTED} of {side}^3, zarr", 4 * side**3 / 1e9
    yield Case("quantiles", what, amount, runs, check, None, missing=missing, apart=True)
