"""Mean, variance, extremes and a histogram of a page-cached memmap in one `cf.compute`, beside its sum alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case
from benchmarks.data import in_threads

BINS, RANGE = 512, (-6, 14)
SUM = "its sum"


def cases(bench: Bench) -> Iterator[Case]:
    """Five statistics beside one."""
    x = bench.x

    def of_plane(i: int) -> tuple[Any, ...]:
        plane = x[i].astype("f8")
        return plane.sum(), plane.mean(), plane.var(), x[i].min(), x[i].max(), np.histogram(x[i], BINS, RANGE)[0]

    sums, means, variances, least, most, counts = (
        np.array(each) for each in zip(*in_threads(of_plane, len(x)), strict=True)
    )
    five = means.mean(), variances.mean() + means.var(), least.min(), most.max(), counts.sum(axis=0)

    def all_five() -> Any:
        a = cf.open(x)
        results = (a.mean(), a.var(), a.min(), a.max(), np.histogram(a, BINS, RANGE)[0])
        return cf.compute(*results, **bench.options)

    def check(name: str, got: Any) -> None:
        if name == SUM:
            np.testing.assert_allclose(got, sums.sum(), rtol=1e-6)
            return
        np.testing.assert_allclose(got[:2], five[:2], rtol=1e-6)
        assert got[2:4] == five[2:4], (got[2:4], five[2:4])
        np.testing.assert_array_equal(got[4], five[4])

    runs: dict[str, Callable[[], Any]] = {
        OURS: all_five,
        SUM: lambda: cf.compute(cf.open(x).sum(), **bench.options),
    }
    what = f"mean, var, min, max, histogram of a page-cached memmap {x.shape}"
    yield Case("statistics", what, x.nbytes / 1e9, runs, check, (SUM, None))
