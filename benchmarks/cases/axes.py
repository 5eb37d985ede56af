"""Sum, mean, variance and maximum along each axis of a page-cached memmap; what is read once is bound by the link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case


def cases(bench: Bench) -> Iterator[Case]:
    """A case for each, into an output that is poisoned before."""
    x = bench.x
    for op in ("sum", "mean", "var", "max"):
        for axis in range(3):
            yield along(bench, x, op, axis)


def along(bench: Bench, x: np.ndarray, op: str, axis: int) -> Case:
    """One operation along one axis; some lines of the result, which are its first axis, are compared."""
    out = np.full(x.shape[:axis] + x.shape[axis + 1 :], np.nan, "f4")
    kept = 1 if axis == 0 else 0
    lines = [0, x.shape[kept] // 3, x.shape[kept] - 1]
    part = np.take(x, lines, axis=kept)
    expected = getattr(np, op)(part if op == "max" else part.astype("f8"), axis=axis)

    def check(name: str, got: Any) -> None:
        np.testing.assert_allclose(out[lines], expected, rtol=1e-4, atol=1e-3)
        assert np.isfinite(out).all()
        out.fill(np.nan)

    runs = {OURS: lambda: getattr(cf, op)(x, axis=axis, out=out, **bench.options)}
    what, limit = f"page-cached memmap {x.shape}", ("the link", bench.link)
    return Case(f"axes, {op}, axis {axis}", what, x.nbytes / 1e9, runs, check, limit)
