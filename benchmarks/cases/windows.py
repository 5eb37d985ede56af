"""Moving means, extremes and medians, a gradient and boxes of a page-cached volume, beside a copy of it and peers.

The limit is a plain map of the same array. bottleneck works on one core, in memory.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import chunkflow as cf
from benchmarks.case import OURS, Bench, Case

WIDTH, BOX = 7, 4
MAP = "chunkflow's map"


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each operation."""
    x = bench.ram
    x = x[: len(x) // BOX * BOX]
    out, smaller = np.empty_like(x), np.empty((len(x) // BOX, *x.shape[1:]), x.dtype)

    def moving(name: str) -> Any:
        windows = sliding_window_view(np.pad(cf.open(x), ((WIDTH - 1, 0), (0, 0), (0, 0)), mode="edge"), WIDTH, 0)
        return getattr(np, name)(windows, axis=-1)

    ours: dict[str, Callable[[], Any]] = {
        f"moving {name}": lambda name=name: cf.store(moving(name), out, **bench.options)
        for name in ("mean", "min", "median")
    }
    ours["gradient"] = lambda: cf.gradient(x, axis=0, out=out, **bench.options)
    ours["coarsen"] = lambda: cf.coarsen(np.mean, x, {0: BOX}, out=smaller, **bench.options)
    plain: dict[str, Callable[[np.ndarray], Any]] = {
        **{
            f"moving {name}": lambda a, name=name: getattr(np, name)(sliding_window_view(a, WIDTH, 0), axis=-1)
            for name in ("mean", "min", "median")
        },
        "gradient": lambda a: np.gradient(a, axis=0),
        "coarsen": lambda a: a.reshape(-1, BOX, *a.shape[1:]).mean(axis=1),
    }
    for name, run in ours.items():
        runs: dict[str, Callable[[], Any]] = {
            OURS: run,
            MAP: lambda: cf.map(np.positive, x, out=out, **bench.options),
            "NumPy": lambda name=name: plain[name](x),
        }
        if name.startswith("moving") and importlib.util.find_spec("bottleneck"):
            move = getattr(importlib.import_module("bottleneck"), f"move_{name.split()[1]}")
            runs["bottleneck"] = lambda move=move: move(x, WIDTH, axis=0)
        if importlib.util.find_spec("dask"):
            runs["dask"] = _of_dask(name, x)

        def check(who: str, got: Any, name: str = name) -> None:
            if who == MAP:
                np.testing.assert_array_equal(got[:8], x[:8])
                return
            some = np.asarray(got[-2:])  # the others of a moving one are padded, or left out
            first = {"coarsen": 2 * BOX, "gradient": 3}.get(name, 1 + WIDTH)
            np.testing.assert_allclose(some, plain[name](x[-first:])[-2:], rtol=1e-4)

        yield Case(name, f"{name} along the first axis, {x.shape}", x.nbytes / 1e9, runs, check, (MAP, None))


def _of_dask(name: str, x: np.ndarray) -> Callable[[], Any]:
    da = importlib.import_module("dask.array")
    a = da.from_array(x, chunks=(max(WIDTH * 4, len(x) // 8 // BOX * BOX), -1, -1))
    if name == "gradient":
        return lambda: da.gradient(a, axis=0).compute()
    if name == "coarsen":
        return lambda: da.coarsen(np.mean, a, {0: BOX}).compute()
    windows = da.lib.stride_tricks.sliding_window_view(a, WIDTH, 0)
    return lambda: getattr(da, name.split()[1])(windows, axis=-1).compute()
