"""Elements by lists, masks and tables: zarr to memory, beside dask, zarr-python and NumPy.

The limit is that of the run itself: zarr-python reads what is wanted and NumPy picks the elements, in memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import cube_side
from benchmarks.probe import installed

CHUNK = 64
LIMIT = "zarr-python and NumPy, in memory"
DASK = "dask"


def cases(bench: Bench) -> Iterator[Case]:
    """Rows in order and at random, every tenth chunk, a mask, a table, places along an axis."""
    side = max(2 * CHUNK, cube_side(bench.gib, CHUNK))
    path, rng = str(bench.directory / "x.zarr"), np.random.default_rng(0)
    x = rng.standard_normal((side,) * 3, dtype="f4")
    stored = zarr.create_array(path, data=x, chunks=(CHUNK,) * 3)
    labels = (x * 8).astype("i2").clip(-32, 31) + np.int16(32)
    zarr.create_array(str(bench.directory / "labels.zarr"), data=labels, chunks=(CHUNK,) * 3)
    table = rng.standard_normal(64)
    along = x.argmax(axis=0, keepdims=True)
    there, missing = installed(DASK)

    def lazy(name: str = "x") -> Any:
        return importlib.import_module("dask.array").from_zarr(str(bench.directory / f"{name}.zarr"))

    def dasked(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: make().compute(scheduler="threads")

    def ours(make: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: make(cf.open(path)).compute(**bench.options)

    rows = np.sort(rng.choice(side, side // 4, replace=False))
    mixed = rng.permutation(rows)
    chunks = np.concatenate([np.arange(n, min(side, n + CHUNK)) for n in range(0, side, 10 * CHUNK)])
    wanted = x > 1
    labelled = str(bench.directory / "labels.zarr")
    found: dict[str, tuple[int, np.ndarray, dict[str, Callable[[], Any]]]] = {
        name: (
            x[places].nbytes,
            x[places],
            {
                OURS: lambda places=places: cf.take(path, places, 0, device="cpu"),  # type: ignore[dict-item, misc]
                DASK: dasked(lambda places=places: lazy()[places]),  # type: ignore[misc]
                LIMIT: lambda places=places: stored.oindex[places],  # type: ignore[dict-item, misc]
            },
        )
        for name, places in (("sorted rows", rows), ("random rows", mixed), ("every tenth chunk", chunks))
    }
    found["mask of the whole"] = (
        2 * x.nbytes,
        x[wanted],
        {
            OURS: ours(lambda a: a[a > 1]),
            DASK: dasked(lambda: (lambda a: a[a > 1])(lazy())),
            LIMIT: lambda: (lambda a: a[a > 1])(stored[...]),
        },
    )
    found["table"] = (
        labels.nbytes + 8 * labels.size,
        table[labels],
        {
            OURS: lambda: cf.take(table, cf.open(labelled)).compute(**bench.options),
            DASK: dasked(lambda: lazy("labels").map_blocks(lambda block: table[block], dtype="f8")),
            LIMIT: lambda: table[zarr.open_array(labelled)[...]],
        },
    )
    found["take_along_axis"] = (
        x.nbytes,
        x.max(axis=0, keepdims=True),
        {
            OURS: lambda: cf.take_along_axis(path, along, 0, **bench.options),
            LIMIT: lambda: np.take_along_axis(stored[...], along, 0),
        },
    )
    for name, (nbytes, expected, runs) in found.items():
        if not there:
            runs.pop(DASK, None)

        def check(_: str, got: Any, expected: np.ndarray = expected) -> None:
            np.testing.assert_array_equal(got, expected)

        what = f"zarr, float32 {side}^3 in chunks of {CHUNK}^3, to memory"
        yield Case(name, what, nbytes / 1e9, runs, check, (LIMIT, None), missing=missing)
