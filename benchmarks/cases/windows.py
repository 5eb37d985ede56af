"""Moving statistics, gradients, boxes, differences, running sums and convolutions in memory, beside NumPy and dask.

bottleneck works on one core, in memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import chunkflow as cf
from benchmarks import beside
from benchmarks.beside import Beside, dask_array
from benchmarks.case import Bench, Case
from benchmarks.probe import installed

WIDTH, BOX, KERNEL = 7, 4, 31


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each operation, along the first axis."""
    x = bench.ram
    x = x[: len(x) // BOX * BOX]
    line, out, options = x.reshape(-1), np.empty_like(x), bench.options
    longer = out.reshape(-1)
    weights = np.hanning(KERNEL).astype(x.dtype)
    bottleneck = installed("bottleneck")[0]

    def lazy(array: np.ndarray = x) -> Any:
        """dask's array of it, in eight parts along the first axis."""
        rows = max(WIDTH * 4, len(array) // 8 // BOX * BOX)
        return dask_array().from_array(array, chunks=(rows, *(-1,) * (array.ndim - 1)))

    def written(make: Callable[[Any], Any]) -> Callable[[], Any]:
        """Of a lazy array of it, stored in a part of `out`."""

        def run() -> Any:
            found = make(cf.open(x))
            return cf.store(found, out[tuple(map(slice, found.shape))], **options)

        return run

    def moving(name: str) -> Beside:
        def of(windows: Any, xp: Any = np) -> Any:
            return getattr(xp, name)(windows, axis=-1)

        def by_bottleneck() -> Any:
            return getattr(importlib.import_module("bottleneck"), f"move_{name}")(x, WIDTH, axis=0)[WIDTH - 1 :]

        def by_cupy(xp: Any, a: Any) -> Any:
            if name != "median":
                return of(xp.lib.stride_tricks.sliding_window_view(a, WIDTH, 0), xp)
            filtered = importlib.import_module("cupyx.scipy.ndimage").median_filter(a, (WIDTH, 1, 1))
            return filtered[WIDTH // 2 : -(WIDTH // 2)]

        return Beside(
            2 * x.nbytes,
            written(lambda a: of(sliding_window_view(a, WIDTH, 0))),
            lambda: of(sliding_window_view(x, WIDTH, 0)),
            lambda: of(dask_array().lib.stride_tricks.sliding_window_view(lazy(), WIDTH, 0), dask_array()),
            {"bottleneck": by_bottleneck} if bottleneck and not bench.is_gpu else {},
            tolerance=1e-3,
            arrays=(x,),
            cupy=by_cupy,
        )

    def trapezoid(a: Any) -> Any:
        return ((a[1:] + a[:-1]) / 2).sum(axis=0)

    found = {f"moving {name}": moving(name) for name in ("mean", "min", "std", "median")}
    found["gradient"] = Beside(
        2 * x.nbytes,
        lambda: cf.gradient(x, axis=0, out=out, **options),
        lambda: np.gradient(x, axis=0),
        lambda: dask_array().gradient(lazy(), axis=0),
    )
    found["coarsen"] = Beside(
        x.nbytes,
        lambda: cf.coarsen(np.mean, x, {0: BOX}, out=out[: len(x) // BOX], **options),
        lambda: x.reshape(-1, BOX, *x.shape[1:]).mean(axis=1),
        lambda: dask_array().coarsen(np.mean, lazy(), {0: BOX}),
        arrays=(x,),
        cupy=lambda xp, a: a.reshape(-1, BOX, *a.shape[1:]).mean(axis=1),
    )
    found["diff"] = Beside(
        2 * x.nbytes,
        written(lambda a: np.diff(a, axis=0)),
        lambda: np.diff(x, axis=0),
        lambda: dask_array().diff(lazy(), axis=0),
    )
    found["trapezoid"] = Beside(
        x.nbytes,
        lambda: np.trapezoid(cf.open(x), axis=0).compute(**options),
        lambda: np.trapezoid(x, axis=0),
        lambda: trapezoid(lazy()),
        tolerance=1e-3,
    )
    found["running sum"] = Beside(
        2 * x.nbytes,
        lambda: cf.cumsum(x, axis=0, out=out, **options),
        lambda: np.cumsum(x, axis=0),
        lambda: dask_array().cumsum(lazy(), axis=0),
        tolerance=1e-3,
        arrays=(x,),
        cupy=lambda xp, a: xp.cumsum(a, axis=0),
    )
    found["convolution of a line"] = Beside(
        2 * line.nbytes,
        lambda: cf.store(np.convolve(cf.open(line), weights, "same"), longer, **options),
        lambda: np.convolve(line, weights, "same"),
        lambda: lazy(line).map_overlap(
            lambda block: np.convolve(block, weights, "same"), depth=KERNEL // 2, boundary=0, dtype=x.dtype
        ),
        tolerance=1e-3,
        arrays=(line, weights),
        cupy=lambda xp, a, w: xp.convolve(a, w, "same"),
    )
    yield from beside.cases(bench, f"float32 {x.shape} in memory", found)
