"""What kernels do for arrays that are not NumPy's, held to NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata
from support.foreign_arrays import Foreign

from chunkflow.core.grid import Grid, whole
from chunkflow.core.nest import Along, Output, nest
from chunkflow.core.windows import Windows
from chunkflow.kernels.linalg.lines import fitted
from chunkflow.kernels.reductions import aggregation, exact_means
from chunkflow.kernels.reductions.tiled import UFUNCS, reduce
from chunkflow.kernels.scan import running_fold
from chunkflow.kernels.statistics.histogram import counts_in_boxes, histogrammed
from chunkflow.kernels.statistics.ranks import ranked
from chunkflow.kernels.statistics.sorting import of_lines
from chunkflow.kernels.statistics.topk import ArgTopK, TopK
from chunkflow.kernels.stencil.windows import ByWeights

rng = np.random.default_rng(4)
X = rng.integers(-9, 9, (6, 7)) / 2
HOLES = np.where(X > 2, np.nan, X)
HOLES[2], HOLES[:, 3] = np.nan, np.nan


def same(got: Any, expected: np.ndarray) -> None:
    assert isinstance(got, Foreign)
    np.testing.assert_array_equal(got.array, expected)
    assert got.array.dtype == expected.dtype


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", UFUNCS)
def test_reductions(name: str, axes: tuple[int, ...]) -> None:
    for x in (X, HOLES, X.astype("i4"), np.full((2, 3), np.nan)):
        same(reduce(name, Foreign(x), axes), UFUNCS[name].reduce(x, axis=axes, keepdims=True))


@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("name", UFUNCS)
def test_reductions_of_a_block_with_gaps(name: str, axes: tuple[int, ...]) -> None:
    x = (np.arange(5 * 41 * 6) % 5 + 1.0).reshape(5, 41, 6)[:, :, ::2]
    x[2, 30, 1] = np.nan
    wide = np.dtype("f8") if name in ("sum", "prod") else None
    for y in (x, np.nan_to_num(x).astype("u1")):
        y = y % 2 + 1 if name == "prod" else y
        y = np.repeat(y, 2, axis=2)[:, :, ::2]  # the arithmetic above left no gaps
        expected = UFUNCS[name].reduce(y, axis=axes, keepdims=True, **({} if wide is None else {"dtype": wide}))
        same(reduce(name, Foreign(y), axes, wide), expected)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["min", "max"])
def test_the_first_nan_is_the_extreme(name: str, axis: int) -> None:
    for x in (X, HOLES, X.astype("i4")):
        how = aggregation.position(name, x.shape, x.shape[axis], flat=False)
        found = how.chunk(Foreign(x), (axis,), whole(x.shape))
        same(how.aggregate(*found), getattr(np, f"arg{name}")(x, axis=axis, keepdims=True))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), ()])
def test_exact_means(axes: tuple[int, ...], skip: bool) -> None:
    x = rng.integers(-(1 << 63), (1 << 63) - 1, (5, 6), endpoint=True)
    x[1, 2] = -(1 << 63)
    for where in (None, x % 3 > 0):
        number = int(np.prod([x.shape[a] for a in axes]))
        how = exact_means.mean(number, skip=skip, masked=where is not None)
        blocks = [x] if where is None else [x, where]
        found, wanted = (how.chunk(*each, axes, whole(x.shape)) for each in (map(Foreign, blocks), blocks))
        same(how.aggregate(*found), how.aggregate(*wanted))
        same(how.aggregate(*how.merge(found, found)), how.aggregate(*how.merge(wanted, wanted)))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), ()])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_spreads_about_a_number(axes: tuple[int, ...], dtype: str) -> None:
    how = aggregation.about(0.5, np.dtype(dtype), 2.0, root=True)
    x = X.astype(dtype)
    found, wanted = (how.chunk(each, axes, whole(x.shape)) for each in (Foreign(x), x))
    same(how.aggregate(*how.merge(found, found)), how.aggregate(*how.merge(wanted, wanted)))


@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_folds(ufunc: np.ufunc, axis: int) -> None:
    run = running_fold(ufunc, np.dtype("f8"))
    for x in (X, HOLES):
        same(run(Foreign(x), None, axis), ufunc.accumulate(x, axis=axis))


@pytest.mark.parametrize("k", [1, 3, 7, -1, -4])
def test_the_largest_and_smallest(k: int) -> None:
    op = replace(nest([X.shape]), outputs=(Output((Along(0), abs(k))),))
    for x in (X, HOLES):
        kernel, box = TopK(1, k), whole(X.shape)
        found = kernel.fold(None, [Foreign(x)], op, Grid(X.shape, X.shape), (0, 0), box)
        same(kernel.finish(found, op, box), np.flip(np.sort(x, 1), 1)[:, :k] if k > 0 else np.sort(x, 1)[:, :-k])
        places, ordered = ArgTopK(1, k), np.argsort(x, 1, stable=True)
        if k > 0:
            ordered = 6 - np.argsort(x[:, ::-1], 1, stable=True)[:, ::-1]
        found = places.fold(None, [Foreign(x)], op, Grid(X.shape, X.shape), (0, 0), box)
        same(places.finish(found, op, box), ordered[:, : abs(k)])


def test_counts_in_boxes() -> None:
    edges = [np.array([-3, -1, 0.5, 2]), np.array([-4, 0, 1])]
    expected = np.histogramdd((HOLES.ravel(), X.ravel()), edges)[0]
    found = counts_in_boxes([Foreign(HOLES), Foreign(X)], edges, Foreign(np.ones(X.shape)), 6)
    same(found, expected.reshape(-1))


def test_weighted_windows() -> None:
    for width in (2, 9):  # NumPy's own leave long ones to BLAS
        weights, windows = rng.random((2, width)), Windows(2, (0, 1), (2, width))
        x = rng.random((6, 20))
        found = ByWeights(weights, windows, np.dtype("f8"), np.dtype("f8"))(Foreign(x))
        assert isinstance(found, Foreign)
        every = np.lib.stride_tricks.sliding_window_view(x, weights.shape)
        np.testing.assert_allclose(found.array, np.einsum("ijuv,uv->ij", every, weights))


@pytest.mark.parametrize("residuals", [False, True])
def test_fits_of_lines(residuals: bool) -> None:
    matrix = np.vander(np.arange(6.0), 2)
    for x in (X, HOLES):
        found = fitted(Foreign(x), matrix, residuals=residuals)
        assert isinstance(found, Foreign)
        np.testing.assert_allclose(found.array, fitted(x, matrix, residuals=residuals), atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
def test_ranks(axis: int) -> None:
    for x in (X, HOLES, X.astype("i4"), np.empty((0, 3))):
        same(ranked(Foreign(x), axis), rankdata(x, axis=axis, nan_policy="omit"))


def test_sorted_lines() -> None:
    for fn, sorts in ((np.sort, np.sort), (np.partition, np.sort), (np.argsort, np.argsort)):
        same(of_lines(Foreign(HOLES), fn, 0, {"kind": "stable", "kth": 2}), sorts(HOLES, 0))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("edges", [[-2, 0, 1, 3], [-3.5, np.inf], [0, 2.0**60], [-1, 2.0**54, 2.0**60], [-4, 4.5]])
@pytest.mark.parametrize("weighted", [False, True])
def test_histograms(dtype: str, edges: list[float], weighted: bool) -> None:
    x = (X if dtype == "i4" else HOLES).astype(dtype)
    x.flat[:2] = 2.0**30 if dtype == "i4" else 2.0**60
    weights = rng.integers(1, 9, X.shape) / 4 if weighted else None
    expected = np.histogram(x, edges, weights=weights)[0]
    given = None if weights is None else Foreign(weights)
    same(histogrammed(Foreign(x), edges, None, np.asarray(edges, "f8"), given), expected)
