"""An array in memory through a function into another; the bound is the link, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import BLOCK, OURS, Bench, Case, Goal
from benchmarks.data import poison, sample_planes, work
from benchmarks.peers.streams import dask_map, loop_map
from benchmarks.probe import installed


def cases(bench: Bench) -> Iterator[Case]:
    """An array in memory through a function into another."""
    ram = bench.ram
    out = bench.out
    planes, step = sample_planes(ram), max(1, BLOCK // ram[0].nbytes)
    expected = {i: work(ram[i]) for i in planes}

    def check(name: str, got: Any) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], expected[i], rtol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all(), f"{name} left something out"
        poison(out)

    runs: dict[str, Callable[[], Any]] = {OURS: lambda: cf.map(work, ram, out=out, **bench.options)}
    runs["a loop over blocks"] = loop_map(bench, ram, out, step)
    there, missing = installed("dask")
    if there:
        runs["dask, threads"] = dask_map(bench, ram, out, (step, -1, -1))
    poison(out)
    limit, what = ("the link, both ways", bench.both), f"RAM to RAM {ram.shape}, each way"
    yield Case("map", what, ram.nbytes / 1e9, runs, check, limit, Goal(0.70), missing=missing)
