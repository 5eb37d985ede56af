"""Sorting, distinct values, counts in boxes, groups and medians without NaN, beside NumPy or flox in memory, and dask.

The limit is the same on one core, in memory. flox's groups are those that xarray's `groupby` makes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import cube_side
from benchmarks.probe import installed

GROUPS, BINS, RANGE = 12, 64, (-8.0, 16.0)
LIMIT, DASK = "in memory, one core", "dask"
LONG = 8
"""How many times the budget a line takes that is sorted in pieces."""


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each operation."""
    x = 3 * np.random.default_rng(0).standard_normal((cube_side(bench.gib, 16),) * 3, dtype="f4") + 4
    there, missing = installed(DASK, "flox")
    holes = np.where(x > 9, np.nan, x)
    whole = (x * 8).astype("i2")
    line = x.reshape(-1)
    labels = np.arange(len(x)) % GROUPS
    out, longer = np.empty_like(x), np.empty_like(line)
    pieces = {**bench.options, "budget": max(1 << 20, line.nbytes // LONG)}
    boxes: dict[str, Any] = {"bins": BINS, "range": [RANGE] * 2}

    def lazy(array: np.ndarray, *, whole: bool = False) -> Any:
        """dask's array of it, in eight parts along the first axis, or with that axis whole."""
        rows, columns = len(array) if whole else -(-len(array) // 8), -(-array.shape[1] // 8) if whole else -1
        return importlib.import_module("dask.array").from_array(array, chunks=(rows, columns, -1))

    def grouped(array: Any) -> Any:
        return importlib.import_module("flox").groupby_reduce(array, labels, func="nanmean")[0]

    found: dict[str, dict[str, Callable[[], Any]]] = {
        "sort": {
            OURS: lambda: cf.sort(x, out=out, **bench.options),
            LIMIT: lambda: np.sort(x),
            DASK: lambda: lazy(x).map_blocks(np.sort).compute(),
        },
        "sort one line": {OURS: lambda: cf.sort(line, out=longer, **pieces), LIMIT: lambda: np.sort(line)},
        "unique": {
            OURS: lambda: cf.unique(whole, return_counts=True, **bench.options),
            LIMIT: lambda: np.unique(whole, return_counts=True),
            DASK: lambda: importlib.import_module("dask").compute(
                *importlib.import_module("dask.array").unique(lazy(whole), return_counts=True)
            ),
        },
        "histogram2d": {
            OURS: lambda: cf.histogram2d(x, holes, **boxes, **bench.options)[0],
            LIMIT: lambda: np.histogram2d(line, holes.reshape(-1), **boxes)[0],
            DASK: lambda: (
                importlib.import_module("dask.array")
                .histogram2d(lazy(x).ravel(), lazy(holes).ravel(), **boxes)[0]
                .compute()
            ),
        },
        "groupby_reduce": {
            OURS: lambda: cf.groupby_reduce(np.moveaxis(holes, 0, -1), labels, func="nanmean", **bench.options)[0],
            LIMIT: lambda: grouped(np.moveaxis(holes, 0, -1)),
            DASK: lambda: grouped(np.moveaxis(lazy(holes), 0, -1)).compute(),
        },
        "nanmedian": {
            OURS: lambda: cf.nanmedian(holes, axis=0, **bench.options),
            LIMIT: lambda: np.nanmedian(holes, axis=0),
            DASK: lambda: importlib.import_module("dask.array").nanmedian(lazy(holes, whole=True), axis=0).compute(),
        },
    }
    for name, runs in found.items():
        if DASK not in there:
            runs.pop(DASK, None)
        if name == "groupby_reduce" and "flox" not in there:
            continue
        expected = runs[LIMIT]()

        def check(who: str, got: Any, expected: Any = expected) -> None:
            for one, other in zip(*(a if isinstance(a, tuple) else (a,) for a in (got, expected)), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

        what = f"{name} of {'float32' if name != 'unique' else 'int16'} {x.shape} in memory"
        amount = (whole.nbytes if name == "unique" else 2 * x.nbytes if name == "histogram2d" else x.nbytes) / 1e9
        yield Case(name, what, amount, runs, check, (LIMIT, None), missing=missing)
