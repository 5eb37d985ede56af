"""Means of what xarray opened of zarr, packed into int16 or plain, beside xarray itself, in memory and with dask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks import beside
from benchmarks.beside import Beside
from benchmarks.case import Bench, Case
from benchmarks.data import cube_side
from benchmarks.probe import installed

CHUNKS = (16, 128, 128)

PACKED = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1, "chunks": CHUNKS}


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each encoding."""
    _there, missing = installed("xarray")
    if missing:
        yield from beside.cases(bench, "", {})
        return
    import xarray

    side = max(CHUNKS[-1], cube_side(bench.gib, CHUNKS[-1]))
    values = np.random.default_rng(0).integers(0, 3000, (side,) * 3, dtype="i2") * np.float32(0.01)

    def means(name: str, encoding: dict[str, Any]) -> Beside:
        path = str(bench.directory / f"{name}.zarr")

        def stored() -> None:
            given = xarray.Dataset({"v": (("time", "lat", "lon"), values)})
            given.to_zarr(path, mode="w", encoding={"v": encoding}, consolidated=False)

        bench.once(f"{name}.zarr", stored)

        def opened(chunks: Any = None) -> Any:
            return xarray.open_zarr(path, chunks=chunks, consolidated=False).v

        return Beside(
            values.nbytes,
            lambda: cf.nanmean(opened(), dim="time", **bench.options).values,
            lambda: opened().mean("time").values,
            lambda: opened({}).mean("time").data,
            tolerance=1e-3,
        )

    found = {"mean of packed": means("packed", PACKED), "mean of plain": means("plain", {"chunks": CHUNKS})}
    yield from beside.cases(bench, f"float32 {values.shape}, by xarray of zarr", found, link=False)
