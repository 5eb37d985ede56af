"""Histograms of several variables are NumPy's, of arrays in any store and of expressions, in one pass over all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.devices import Place, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.testing import CountingSource

POINTS = np.random.default_rng(0).integers(-9, 9, (4000, 3)) / 4
FAR = 1.7e308


def both_same(got: tuple[Any, Any], expected: tuple[Any, Any], run: dict[str, Any]) -> None:
    found = [a.compute(**run) if isinstance(a, cf.Array) else a for a in (got[0], *got[1])]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    assert found[0].dtype == expected[0].dtype
    for edges, right in zip(found[1:], expected[1], strict=True):
        same(np.asarray(edges), right)


@st.composite
def points_of_a_dtype(draw: Any) -> np.ndarray:
    dtype = draw(st.sampled_from(["f8", "f4", "i2", "?"]))
    values = st.booleans() if dtype == "?" else st.integers(-8, 8)
    found: np.ndarray = draw(npst.arrays(dtype, st.tuples(st.integers(0, 40), st.integers(1, 3)), elements=values))
    return found


@given(points_of_a_dtype(), st.data())
@settings(max_examples=examples(1 / 2), deadline=None)
def test_as_numpy(points: np.ndarray, data: Any) -> None:
    number = points.shape[1]
    one = st.integers(1, 5) | st.lists(st.integers(-9, 9), min_size=2, max_size=5).map(sorted)
    bins = data.draw(st.integers(1, 5) | st.lists(one, min_size=number, max_size=number))
    limits = st.none() | st.sampled_from([(-2.0, 3.0), (0, 1)])
    asked: dict[str, Any] = {"range": data.draw(st.none() | st.lists(limits, min_size=number, max_size=number))}
    if data.draw(st.booleans()):
        asked["weights"] = np.arange(len(points)) / 2
    asked["density"] = data.draw(st.booleans())
    run = {"budget": data.draw(st.sampled_from(["64kB", "64MB"])), "device": "cpu"}
    with np.errstate(all="ignore"):
        expected = np.histogramdd(points, bins, **asked)
        both_same(cf.histogramdd(points, bins, **asked, **run), expected, run)
        both_same(cf.histogramdd(list(points.T), bins, **asked, **run), expected, run)
        both_same(np.histogramdd(cf.open(points)[...], bins, **asked), expected, run)


@pytest.mark.parametrize("edges", [np.linspace(-1, 1e9, 7), 0.1 * np.arange(12), [0, 1, 2.4, 3, 4.3], [0, 1, 1e300]])
def test_elements_beside_edges_are_in_their_bins(edges: Any) -> None:
    ends = np.asarray(edges, "f8")
    x = np.concatenate([ends, np.nextafter(ends, np.inf), np.nextafter(ends, -np.inf), [np.nan, np.inf, -np.inf]])
    same(cf.histogramdd([x], [ends], device="cpu")[0], np.histogramdd([x], [ends])[0])


@on_cpu_and_gpu
def test_two_variables_in_stores(place: Place, tmp_path: Path) -> None:
    x, y = (POINTS[:, i].reshape(40, 100).copy() for i in (0, 1))
    x[3, 4] = np.nan
    np.save(tmp_path / "x.npy", x)
    zarr.create_array(tmp_path / "y.zarr", shape=y.shape, dtype="f8", chunks=(7, 30))[...] = y
    edges = [[-1.5, 0, 1, 2.0], [-2, 0, 2]]
    expected, *_ = np.histogram2d(x.ravel(), y.ravel(), edges)
    run = {"budget": place.budget(300_000), "device": place.device()}
    same(cf.histogram2d(tmp_path / "x.npy", tmp_path / "y.zarr", edges, **run)[0], expected)
    lazy, *_ = np.histogram2d(cf.open(tmp_path / "x.npy") * 1, cf.open(tmp_path / "y.zarr"), edges)
    same(lazy.compute(**run), expected)
    out, *_ = cf.histogram2d(tmp_path / "x.npy", tmp_path / "y.zarr", edges, out=tmp_path / "h.zarr", **run)
    same(out[...], expected)
    with pytest.raises(errors.ArgumentError, match="not finite"):
        cf.histogram2d(x, y, 3, **run)


def test_all_arrays_are_read_once() -> None:
    many = np.tile(POINTS, (50, 1))
    x, y = CountingSource(many[:, 0].copy()), CountingSource(many[:, 1].copy())
    hist, *_ = np.histogram2d(cf.open(x), cf.open(y), 3, [(-2, 2), (-1, 2)])
    found = cf.compute(hist, np.mean(cf.open(x)), budget="1MB", device="cpu")
    same(found[0], np.histogram2d(many[:, 0], many[:, 1], 3, [(-2, 2), (-1, 2)])[0])
    assert max(x.bytes_read, y.bytes_read) < 1.2 * 8 * len(many)  # with the block of a trial


def test_counts_that_do_not_fit() -> None:
    with pytest.raises(cf.BudgetError, match="raise budget= to at least"):
        cf.histogramdd(POINTS, 200, budget="10MB", device="cpu")


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: cf.histogram2d(POINTS[:, 0], POINTS[1:, 1]), errors.ArgumentError, "one shape"),
        (lambda: cf.histogramdd(POINTS, [2, 3]), errors.ArgumentError, "bins has 2 entries"),
        (lambda: cf.histogramdd(POINTS, 2, [(0, 1)]), errors.ArgumentError, "range has 1 entries"),
        (lambda: cf.histogramdd(POINTS, [2, [3, 1], 2]), errors.ArgumentError, "increasing"),
        (lambda: cf.histogramdd(POINTS, 0), errors.ArgumentError, "positive"),
        (lambda: cf.histogramdd(POINTS / 2.25 * FAR, 3), errors.ArgumentError, "wider than float64 holds"),
        (lambda: cf.histogramdd(POINTS, 3, [(-FAR, FAR)] * 3), errors.ArgumentError, "wider than float64 holds"),
        (lambda: cf.histogramdd(POINTS, 2.5), errors.ArgumentTypeError, "integer"),
        (lambda: cf.histogramdd(POINTS + 1j), errors.ArgumentTypeError, "complex"),
        (lambda: cf.histogramdd(POINTS, weights=np.ones(3)), errors.ArgumentError, "weights have the shape"),
        (lambda: cf.histogramdd(POINTS, weights=POINTS[:, 0] * 1j), errors.ArgumentTypeError, "float64"),
        (lambda: cf.histogramdd(POINTS, cf.open(POINTS[0])), errors.UnsupportedError, "bins="),
    ],
)
def test_refusals(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
