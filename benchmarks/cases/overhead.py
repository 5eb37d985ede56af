"""What a run and a block cost on the CPU, whatever their size."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import work
from benchmarks.probe import installed

KNOWN = {"dtype": np.dtype("f4"), "workspace": 8.0}


def dasked(x: np.ndarray, rows: int) -> np.ndarray:
    """dask's threads, with blocks of so many rows."""
    da = importlib.import_module("dask.array")
    lazy = da.from_array(x, chunks=(rows, -1), name=False).map_blocks(work, dtype="f4")
    return np.asarray(lazy.compute(scheduler="threads"))


def cases(bench: Bench) -> Iterator[Case]:
    """A map of 1 MB, and one of 4 MB in 10 and in 1000 blocks: the difference is what 990 blocks cost."""
    there, missing = installed("dask")
    small = np.random.default_rng(0).standard_normal((256, 1024), dtype="f4")
    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda out: cf.map(work, small, out=out, device="cpu"),
        "chunkflow, dtype= and workspace= given": lambda out: cf.map(work, small, out=out, device="cpu", **KNOWN),
        "NumPy": lambda out: work(small),
    }
    if there:
        runs["dask, one block"] = lambda out: dasked(small, 256)
    yield filled("overhead, 1 MB", "one block", small, runs, missing)

    large = np.random.default_rng(0).standard_normal((1000, 1024), dtype="f4")

    def looped(rows: int, out: np.ndarray) -> None:
        for i in range(0, 1000, rows):
            out[i : i + rows] = work(large[i : i + rows])

    for rows in (100, 1):
        runs = {
            OURS: lambda out, n=rows: cf.map(work, large, out=out, device="cpu", chunks=(n, -1), **KNOWN),
            "NumPy": lambda out, n=rows: looped(n, out),
        }
        if there:
            runs["dask"] = lambda out, n=rows: dasked(large, n)
        yield filled(f"overhead, {1000 // rows} blocks", "4 MB", large, runs, missing)


def filled(name: str, what: str, x: np.ndarray, runs: dict[str, Any], missing: tuple[str, ...]) -> Case:
    """A case whose contenders fill one output."""
    out, expected = np.full_like(x, np.nan), work(x)

    def check(_: str, got: Any) -> None:
        np.testing.assert_allclose(out if got is None else got, expected, rtol=1e-6)
        out.fill(np.nan)

    contenders = {contender: lambda run=run: run(out) for contender, run in runs.items()}
    return Case(name, what, x.nbytes / 1e9, contenders, check, ("NumPy", None), missing=missing)
