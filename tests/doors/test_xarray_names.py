"""Labelled arrays that go with elements of another one are laid out by their dimensions' names, as by xarray."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ArgumentError

xr = pytest.importorskip("xarray")

RNG = np.random.default_rng(0)
SQUARE = xr.DataArray(RNG.random((3, 4, 4)), dims=("t", "y", "x"))
TURNED = xr.DataArray(RNG.random((4, 4)), dims=("x", "y"))
LINE = xr.DataArray(RNG.random(4), dims=("y",))
WEIGHTS = {"turned": TURNED, "a line": LINE, "of other axes": xr.DataArray(RNG.random((4, 3)), dims=("y", "t"))}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_of_averages(name: str) -> None:
    weights = WEIGHTS[name]
    got = cf.average(SQUARE, weights=weights, dim=("y", "x"), device="cpu")
    xr.testing.assert_allclose(got, SQUARE.weighted(weights).mean(("y", "x")))


def test_conditions() -> None:
    got = cf.where(TURNED > 0.5, SQUARE, 0.0, device="cpu")
    xr.testing.assert_identical(
        got.transpose("t", "y", "x"), xr.where(TURNED > 0.5, SQUARE, 0.0).transpose("t", "y", "x")
    )


def test_weights_of_counts() -> None:
    weights = TURNED.transpose("y", "x").to_numpy()
    got, _ = cf.histogram(SQUARE[0], bins=4, range=(0, 1), weights=TURNED, device="cpu")
    want, _ = np.histogram(SQUARE[0].to_numpy(), 4, (0, 1), weights=weights)
    np.testing.assert_allclose(got, want)


def test_groups() -> None:
    labels = (TURNED * 3).astype(int)
    got, names = cf.groupby_reduce(SQUARE[0], labels, func="sum", device="cpu")
    by_name = labels.transpose("y", "x").to_numpy()
    np.testing.assert_allclose(np.asarray(got), [SQUARE[0].to_numpy()[by_name == k].sum() for k in np.asarray(names)])


@pytest.mark.parametrize("name", ["mean", "sum"])
def test_masks(name: str) -> None:
    mask = TURNED > 0.5
    got = getattr(cf, name)(SQUARE[0], dim="y", where=mask, device="cpu")
    want = getattr(np, name)(SQUARE[0].to_numpy(), axis=0, where=mask.transpose("y", "x").to_numpy())
    np.testing.assert_allclose(np.asarray(got), want)


def test_weighted_quantiles() -> None:
    x = SQUARE[0]
    how: dict[str, Any] = {"method": "inverted_cdf"}
    got = cf.quantile(x, 0.5, dim="y", weights=TURNED, device="cpu", **how)
    want = np.quantile(x.to_numpy(), 0.5, axis=0, weights=TURNED.transpose("y", "x").to_numpy(), **how)
    np.testing.assert_array_equal(np.asarray(got), want)


def test_a_dimension_that_the_array_lacks_is_named() -> None:
    with pytest.raises(ArgumentError, match="'z' is a dimension of an array that goes with elements"):
        cf.average(SQUARE, weights=xr.DataArray(np.ones(4), dims=("z",)), dim="x", device="cpu")


def test_coordinates_that_differ_are_refused() -> None:
    x, labels = SQUARE[0].assign_coords(y=[0, 1, 2, 3]), (LINE * 3).astype(int).assign_coords(y=[1, 2, 3, 4])
    with pytest.raises(ArgumentError, match="coordinates of the arrays differ"):
        cf.groupby_reduce(x, labels, func="sum", axis=0, device="cpu")


def months(lazy: bool) -> Any:
    days = np.arange("2001-01-01", "2001-04-11", dtype="M8[D]").astype("M8[ns]")
    values = np.random.default_rng(1).random((100, 3, 4))
    coords = {"time": days, "lat": [1, 2, 3], "run": 7}
    x = xr.DataArray(values, coords, ("time", "lat", "lon"), name="t", attrs={"units": "K"})
    return x, cf.open(x) if lazy else x


@pytest.mark.parametrize("lazy", [False, True])
def test_results_of_groups_have_names_and_groups(lazy: bool, tmp_path: Path) -> None:
    x, given = months(lazy)
    how: dict[str, Any] = {} if lazy else {"device": "cpu", "out": tmp_path / "y.zarr"}
    found, labels = cf.groupby_reduce(given, x.time.dt.month, func="mean", dim="time", **how)
    assert labels.tolist() == [1, 2, 3, 4]
    right = x.groupby("time.month").mean().transpose("lat", "lon", "month")
    xr.testing.assert_allclose(found.compute(), right)
    assert found.attrs == {"units": "K"}
    (most, number), *_ = cf.groupby_reduce(given, x.time.dt.month.values, func=("max", "count"), dim="time")
    assert (most.dims, number.dims) == (("lat", "lon", "group"),) * 2
    np.testing.assert_array_equal(number.group, [1, 2, 3, 4])
    edges = [0.0, 0.25, 1.0]
    bins, _ = cf.groupby_reduce(given, x, func="count", expected_groups=edges, isbin=True)
    counted = x.groupby_bins(x, edges).count(...)
    assert bins.dims == ("t_bins",)
    np.testing.assert_array_equal(bins, counted)
    assert list(bins.t_bins.values) == list(counted.t_bins.values)
    both, *_ = cf.groupby_reduce(given[:, 0], x.time.dt.month, np.arange(100) % 2, func="sum", dim="time")
    assert (both.dims, both.shape) == (("lon", "month", "group"), (4, 4, 2))
    halves, _ = cf.groupby_reduce(given, x.time.dt.month.values, func="quantile", q=[0.25, 0.5], dim="time")
    assert halves.dims == ("quantile", "lat", "lon", "group")
    np.testing.assert_array_equal(halves["quantile"], [0.25, 0.5])
    plain, _ = cf.groupby_reduce(x.values, x.time.dt.month, func="sum", axis=0, device="cpu")
    assert type(plain) is np.ndarray
    named, _ = cf.groupby_reduce(x.variable, x.time.dt.month.values, func="sum", axis=0, device="cpu")
    assert named.dims == ("lat", "lon", "group")


def test_the_accessor_has_each_function_that_leaves_out_nan() -> None:
    x, _ = months(False)
    importlib.import_module("chunkflow.xarray")
    for name in [name for name in cf.__all__ if name.startswith("nan")]:
        given = {"q": 50} if name == "nanpercentile" else {"q": 0.5} if name == "nanquantile" else {}
        found = getattr(x.chunkflow, name)(dim="time", device="cpu", **given)
        np.testing.assert_array_equal(found, getattr(cf, name)(x.values, axis=0, device="cpu", **given))
        assert found.dims == ("lat", "lon")
