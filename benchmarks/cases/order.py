"""Sorting, distinct values, counts in boxes, groups, modes and quantiles in memory, beside NumPy, SciPy, flox and dask.

flox's groups are those that xarray's `groupby` makes.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

import chunkflow as cf
from benchmarks import beside
from benchmarks.beside import Beside, dask_array
from benchmarks.case import Bench, Case
from benchmarks.data import cube_side

GROUPS, BINS, RANGE, MOST = 12, 64, (-8.0, 16.0), 10
QUANTILES, ERROR = (0.1, 0.5, 0.9), 1e-3
LONG, PASSES = 8, 2
"""How many times the budget a line takes that is sorted in pieces, and how often all of it is read and written.

Less often no line can be that does not fit: A. Aggarwal and J. S. Vitter, "The input/output complexity of sorting and
related problems", Communications of the ACM, 1988.
"""


def cases(bench: Bench) -> Iterator[Case]:
    """One case for each operation."""
    x = 3 * np.random.default_rng(0).standard_normal((cube_side(bench.gib, 16),) * 3, dtype="f4") + 4
    holes = np.where(x > 9, np.nan, x)
    whole, steps = (x * 8).astype("i2"), np.round(x * 64) / 64
    line, weights = x.reshape(-1), 1 + np.random.default_rng(1).random(len(x))
    labels = np.arange(len(x)) % GROUPS
    out, longer, options = np.empty_like(x), np.empty_like(line), bench.options
    pieces = {**options, "budget": max(128 << 20 if bench.is_gpu else 1 << 20, line.nbytes // LONG)}
    boxes: dict[str, Any] = {"bins": BINS, "range": [RANGE] * 2}
    few: dict[str, Any] = {"bins": 16, "range": [RANGE] * 3}
    middle = len(x) // 2

    def lazy(array: np.ndarray = x, *, whole: bool = False) -> Any:
        """dask's array of it, in eight parts along the first axis, or with that axis whole."""
        rows, columns = len(array) if whole else -(-len(array) // 8), -(-array.shape[1] // 8) if whole else -1
        return dask_array().from_array(array, chunks=(rows, columns, -1))

    def grouped(array: Any, func: str) -> Any:
        return importlib.import_module("flox").groupby_reduce(np.moveaxis(array, 0, -1), labels, func=func)[0]

    def groups(func: str) -> Beside:
        return Beside(
            x.nbytes,
            lambda: cf.groupby_reduce(np.moveaxis(holes, 0, -1), labels, func=func, **options)[0],
            lambda: grouped(holes, func),
            lambda: grouped(lazy(holes), func),
            arrays=(
                holes,
                labels,
            ),
            cupy=lambda xp, a, by: summed_by(xp, a, by, func),
            needs=("flox",),
        )

    def weighted(a: np.ndarray) -> Any:
        shares = np.broadcast_to(weights[:, None, None], a.shape)
        return np.quantile(a, 0.3, axis=0, weights=shares, method="inverted_cdf")

    def about(got: Any, expected: Any) -> None:
        """The ranks of approximate quantiles are near those that were asked for; dask's have no bound."""
        np.testing.assert_allclose(got, expected, atol=0.3)

    def modes(a: np.ndarray) -> Any:
        return importlib.import_module("scipy.stats").mode(a, axis=-1).mode

    found = {
        "sort": Beside(
            2 * x.nbytes,
            lambda: cf.sort(x, out=out, **options),
            lambda: np.sort(x),
            lambda: lazy().map_blocks(np.sort),
            arrays=(x,),
            cupy=lambda xp, a: xp.sort(a),
        ),
        "sort one line": Beside(
            PASSES * 2 * line.nbytes,
            lambda: cf.sort(line, out=longer, **pieces),
            lambda: np.sort(line),
            arrays=(line,),
            cupy=lambda xp, a: xp.sort(a),
        ),
        "argsort": Beside(
            3 * x.nbytes,
            lambda: cf.argsort(x, stable=True, **options),
            lambda: np.argsort(x, stable=True),
            lambda: lazy().map_blocks(lambda block: np.argsort(block, stable=True), dtype="i8"),
            arrays=(x,),
            cupy=lambda xp, a: xp.argsort(a, kind="stable"),
        ),
        "partition": Beside(
            2 * x.nbytes,
            lambda: cf.store(np.partition(cf.open(x), middle), out, **options)[..., middle],
            lambda: np.partition(x, middle)[..., middle],
            lambda: lazy().map_blocks(lambda block: np.partition(block, middle), dtype=x.dtype)[..., middle],
            arrays=(x,),
            cupy=lambda xp, a: xp.partition(a, middle)[..., middle],
        ),
        "topk": Beside(
            x.nbytes,
            lambda: cf.topk(x, MOST, axis=-1, **options),
            lambda: np.sort(x, axis=-1)[..., : -MOST - 1 : -1],
            lambda: dask_array().topk(lazy(), MOST, axis=-1),
            arrays=(x,),
            cupy=lambda xp, a: xp.sort(a)[..., : -MOST - 1 : -1],
        ),
        "unique": Beside(
            whole.nbytes,
            lambda: cf.unique(whole, return_counts=True, **options),
            lambda: np.unique(whole, return_counts=True),
            lambda: dask_array().unique(lazy(whole), return_counts=True),
            arrays=(whole,),
            cupy=lambda xp, a: xp.unique(a, return_counts=True),
        ),
        "unique of floats": Beside(
            x.nbytes,
            lambda: cf.unique(steps, return_counts=True, **options),
            lambda: np.unique(steps, return_counts=True),
            lambda: dask_array().unique(lazy(steps), return_counts=True),
            arrays=(steps,),
            cupy=lambda xp, a: xp.unique(a, return_counts=True),
        ),
        "mode": Beside(
            whole.nbytes,
            lambda: cf.mode(whole, axis=-1, **options)[0],
            lambda: modes(whole),
            lambda: lazy(whole).map_blocks(modes, drop_axis=2, dtype=whole.dtype),
            arrays=(whole,),
            cupy=modes_by,
            needs=("scipy",),
        ),
        "histogram2d": Beside(
            2 * x.nbytes,
            lambda: cf.histogram2d(x, holes, **boxes, **options)[0],
            lambda: np.histogram2d(line, holes.reshape(-1), **boxes)[0],
            lambda: dask_array().histogram2d(lazy().ravel(), lazy(holes).ravel(), **boxes)[0],
            arrays=(
                line,
                holes.reshape(-1),
            ),
            cupy=lambda xp, a, b: xp.histogram2d(a, b, **boxes)[0],
        ),
        "histogramdd": Beside(
            3 * x.nbytes,
            lambda: cf.histogramdd((x, holes, steps), **few, **options)[0],
            lambda: np.histogramdd((line, holes.reshape(-1), steps.reshape(-1)), **few)[0],
            lambda: dask_array().histogramdd(tuple(lazy(a).ravel() for a in (x, holes, steps)), **few)[0],
            arrays=(
                line,
                holes.reshape(-1),
                steps.reshape(-1),
            ),
            cupy=lambda xp, *a: xp.histogramdd(a, **few)[0],
        ),
        "groupby_reduce, nanmean": groups("nanmean"),
        "groupby_reduce, sum": groups("sum"),
        "groupby_reduce, nanvar": groups("nanvar"),
        "nanmedian": Beside(
            x.nbytes,
            lambda: cf.nanmedian(holes, axis=0, **options),
            lambda: np.nanmedian(holes, axis=0),
            lambda: dask_array().nanmedian(lazy(holes, whole=True), axis=0),
            arrays=(holes,),
            cupy=lambda xp, a: xp.nanmedian(a, axis=0),
        ),
        "weighted quantile": Beside(
            x.nbytes,
            lambda: cf.quantile(x, 0.3, axis=0, weights=weights, method="inverted_cdf", **options),
            lambda: weighted(x),
            lambda: lazy(whole=True).map_blocks(weighted, drop_axis=0, dtype=x.dtype),
            arrays=(
                x,
                weights,
            ),
            cupy=lambda xp, a, w: weighted_by(xp, a, w, 0.3),
        ),
        "approximate quantiles": Beside(
            x.nbytes,
            lambda: cf.quantile(x, QUANTILES, approx=ERROR, **options),
            lambda: np.quantile(line, QUANTILES),
            lambda: dask_array().percentile(lazy().ravel(), [100 * q for q in QUANTILES]),
            arrays=(line,),
            cupy=lambda xp, a: xp.quantile(a, xp.asarray(QUANTILES)),
            close=about,
        ),
    }
    yield from beside.cases(bench, f"float32 {x.shape} in memory", found)


def summed_by(xp: Any, values: Any, by: Any, func: str) -> Any:
    """Groups of the first axis, as they are last in xarray's results: sums, means or variances of what is no NaN."""

    def added(rows: Any) -> Any:
        found = xp.zeros((GROUPS, *rows.shape[1:]), rows.dtype)
        xp.add.at(found, by, rows)
        return found

    if func == "sum":
        return xp.moveaxis(added(values), 0, -1)
    there = ~xp.isnan(values)
    kept, counts = xp.where(there, values, 0), added(there.astype(values.dtype))
    means = added(kept) / counts
    if func == "nanmean":
        return xp.moveaxis(means, 0, -1)
    return xp.moveaxis(added(xp.where(there, (values - means[by]) ** 2, 0)) / counts, 0, -1)


def modes_by(xp: Any, values: Any) -> Any:
    """The most frequent element of each line along the last axis, the smallest of several: by the lengths of runs."""
    ordered = xp.sort(values)
    first = xp.ones(ordered.shape, bool)
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    starts = xp.flatnonzero(first)
    lengths = xp.zeros(ordered.size, "i4")
    lengths[starts] = xp.diff(starts, append=xp.asarray([ordered.size]))
    best = lengths.reshape(ordered.shape).argmax(-1)
    return xp.take_along_axis(ordered, best[..., None], -1)[..., 0]


def weighted_by(xp: Any, values: Any, weights: Any, q: float) -> Any:
    """The smallest values along the first axis whose weights, with those of smaller ones, reach a share `q`."""
    order = xp.argsort(values, axis=0)
    sums = xp.cumsum(weights[order], axis=0)
    place = xp.argmax(sums >= q * sums[-1:], axis=0)
    return xp.take_along_axis(xp.take_along_axis(values, order, 0), place[None], 0)[0]
