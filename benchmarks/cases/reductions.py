"""Variance and maximum along each axis of a page-cached memmap; the bound is the link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case, Goal


def cases(bench: Bench) -> Iterator[Case]:
    """var and max along each axis of the same."""
    x, limit = bench.x, ("link", bench.link)
    index = [0, len(x) // 2, len(x) - 1]
    for name in ("var", "max"):
        for axis in range(3):
            near = getattr(np, name)(x[index].astype("f8"), axis=axis) if axis else None

            def check(who: str, got: Any, axis: int = axis, near: Any = near, name: str = name) -> None:
                if axis:
                    np.testing.assert_allclose(got[index], near, rtol=1e-4)
                else:
                    line = np.asarray(x[:, 7, 11], "f8")
                    np.testing.assert_allclose(got[7, 11], getattr(np, name)(line), rtol=1e-4)

            def run(name: str = name, axis: int = axis) -> Any:
                return getattr(cf, name)(x, axis=axis, **bench.options)

            what = f"page-cached memmap {x.shape}"
            yield Case(f"{name}, axis {axis}", what, x.nbytes / 1e9, {OURS: run}, check, limit, Goal(0.90))
