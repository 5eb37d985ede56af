"""Calls of the chapters of xarray's user guide, on arrays that `open_zarr` gives as expressions: what xarray gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import chunkflow as cf

xr = pytest.importorskip("xarray")

INDEXING: dict[str, Any] = {
    "a slice": lambda d: d.t.isel(time=slice(5, 40, 3)),
    "a list": lambda d: d.t.isel(time=[7, 3, 3], lon=[-1, 0]),
    "labels": lambda d: d.t.sel(lat=[30.0, 10.0]),
    "a range of times": lambda d: d.t.sel(time=slice("2000-03", "2000-07")),
    "the nearest": lambda d: d.t.sel(lat=[12.0, 28.0], method="nearest"),
    "points": lambda d: d.t.sel(lat=xr.DataArray([10.0, 40.0], dims="p"), lon=xr.DataArray([0.0, 60.0], dims="p")),
    "a mask": lambda d: d.t[d.t.time.dt.month == 3],
    "where": lambda d: d.t.where(d.t > 0, -1),
    "where, dropped": lambda d: d.t.where(d.t.lat > 15, drop=True),
    "head and thin": lambda d: d.t.head(time=9).thin(lon=2),
    "squeeze": lambda d: d.t.isel(lat=[2]).squeeze("lat"),
    "the warmest day": lambda d: d.full.idxmax("time"),
    "its index": lambda d: d.full.argmax("time"),
    "the value there": lambda d: d.full.isel(time=d.full.argmax("time")),
}

INTERPOLATION: dict[str, Any] = {
    "along an axis": lambda d: d.full.interp(lat=[12.0, 33.3]),
    "at times": lambda d: d.full.interp(time=pd.to_datetime(["2000-01-05T12", "2000-06-01T18"])),
    "on a grid": lambda d: d.full.interp(lat=[12.0, 33.3], lon=[5.0, 55.0]),
    "as another array": lambda d: d.full.interp_like(d.full.isel(lat=[0, 2]).assign_coords(lat=[11.0, 31.0])),
    "the nearest": lambda d: d.full.interp(lat=[12.0, 33.3], method="nearest"),
}

COMPUTATION: dict[str, Any] = {
    "arithmetic": lambda d: (d.t - 273.15) * 2 + abs(d.t) ** 0.5,
    "of datasets": lambda d: (d[["t", "full"]] * 2).t,
    "mean": lambda d: d.t.mean("time"),
    "mean of all": lambda d: d.t.mean(),
    "std": lambda d: d.t.std(["lat", "lon"], ddof=1),
    "sum, at least two": lambda d: d.t.sum("time", min_count=2),
    "count": lambda d: d.t.count("time"),
    "max and min": lambda d: d.t.max("time") - d.t.min("time"),
    "median": lambda d: d.t.median("time"),
    "quantile": lambda d: d.t.quantile([0.1, 0.9], "time"),
    "rank": lambda d: d.full.rank("lat"),
    "rank of what is there": lambda d: d[["t"]].rank("time", pct=True).t,
    "cumsum": lambda d: d.t.cumsum("time"),
    "cumprod": lambda d: (1 + d.t / 1000).cumprod("time"),
    "cumulative": lambda d: d.t.cumulative("time").sum(),
    "weighted mean": lambda d: d.t.weighted(np.cos(np.deg2rad(d.t.lat))).mean(["lat", "lon"]),
    "weighted quantile": lambda d: d.full.weighted(np.cos(np.deg2rad(d.t.lat))).quantile([0.5], dim="lat"),
    "rolling mean": lambda d: d.t.rolling(time=5).mean(),
    "rolling, centred": lambda d: d.t.rolling(time=5, center=True, min_periods=2).mean(),
    "rolling max": lambda d: d.t.rolling(time=4).max(),
    "rolling std": lambda d: d.full.rolling(time=4).std(),
    "rolling median": lambda d: d.full.rolling(time=5).median(),
    "rolling in two": lambda d: d.full.rolling(lat=2, lon=3, min_periods=1).sum(),
    "windows": lambda d: d.full.rolling(time=4).construct("window", stride=2),
    "coarsen": lambda d: d.t.coarsen(time=4, lon=2, boundary="trim").mean(),
    "coarsen, constructed": lambda d: d.full.isel(time=slice(60)).coarsen(time=6).construct(time=("week", "day")),
    "diff": lambda d: d.t.diff("time"),
    "differentiate": lambda d: d.full.differentiate("lat"),
    "integrate": lambda d: d.full.integrate("lon"),
    "cumulative integral": lambda d: d.full.cumulative_integrate("lat"),
    "polyfit": lambda d: d.full.polyfit("time", 1).polyfit_coefficients,
    "polyfit of what is there": lambda d: d.t.polyfit("time", 2).polyfit_coefficients,
    "its residuals": lambda d: d.t.polyfit("time", 1, full=True, w=np.linspace(1, 2, 130)).polyfit_residuals,
    "trend removed": lambda d: d.full - xr.polyval(d.time, d.full.polyfit("time", 1).polyfit_coefficients),
    "dot": lambda d: xr.dot(d.full, d.t.lat, dim="lat"),
    "cov": lambda d: xr.cov(d.full, d.full.isel(lon=0), dim="time"),
    "corr": lambda d: xr.corr(d.full, d.full.isel(lat=0), dim="time"),
    "clip and round": lambda d: d.full.clip(-1, 1).round(2),
    "astype": lambda d: (d.full * 10).astype("i4"),
    "a ufunc": lambda d: np.hypot(d.full, d.t),
    "apply_ufunc": lambda d: xr.apply_ufunc(
        lambda x: x - x.mean(-1, keepdims=True),
        d.full,
        input_core_dims=[["time"]],
        output_core_dims=[["time"]],
        dask="parallelized",
        output_dtypes=["f8"],
    ),
}

MISSING: dict[str, Any] = {
    "isnull": lambda d: d.t.isnull(),
    "fillna": lambda d: d.t.fillna(d.t.mean("time")),
    "ffill": lambda d: d.t.ffill("time"),
    "bfill": lambda d: d.t.bfill("time", limit=1),
    "dropna": lambda d: d.t.dropna("time", how="any"),
    "interpolate_na": lambda d: d.t.interpolate_na("time"),
    "combine_first": lambda d: d.t.combine_first(d.full),
}

GROUPS: dict[str, Any] = {
    "mean of months": lambda d: d.t.groupby("time.month").mean(),
    "anomalies": lambda d: d.t.groupby("time.month") - d.t.groupby("time.month").mean(),
    "seasons": lambda d: d.t.groupby("time.season").std(),
    "median of months": lambda d: d.full.groupby("time.month").median(),
    "first": lambda d: d.full.groupby("time.month").first(),
    "a function": lambda d: d.full.groupby("time.month").map(lambda x: x - x.min("time")),
    "bins": lambda d: d.full.groupby_bins("lat", [0, 25, 50]).sum(),
    "resample": lambda d: d.t.resample(time="MS").mean(),
    "resample, max": lambda d: d.t.resample(time="10D").max(),
    "upsample": lambda d: d.full.isel(time=slice(9)).resample(time="12h").ffill(),
}

SHAPES: dict[str, Any] = {
    "transpose": lambda d: d.t.transpose("lon", ...),
    "stack": lambda d: d.t.stack(place=("lat", "lon")).mean("time"),
    "unstack": lambda d: d.full.stack(place=("lat", "lon")).unstack("place"),
    "expand_dims": lambda d: d.t.expand_dims(run=3) + 1,
    "concat": lambda d: xr.concat([d.t, d.full], "run"),
    "merge": lambda d: xr.merge([d[["t"]], (d[["full"]] * 2)]).full,
    "to_dataarray": lambda d: d[["t", "full"]].to_dataarray("name"),
    "shift": lambda d: d.t.shift(time=2),
    "roll": lambda d: d.t.roll(lon=2),
    "pad": lambda d: d.t.pad(lat=1, mode="edge"),
    "sortby": lambda d: d.t.sortby("lat", ascending=False),
    "reindex": lambda d: d.t.reindex(lat=[20.0, 25.0, 40.0]),
    "broadcast": lambda d: xr.broadcast(d.full.isel(time=0, drop=True), d.t)[0] * 1,
}

CHAPTERS = {
    "indexing": INDEXING,
    "interpolation": INTERPOLATION,
    "computation": COMPUTATION,
    "missing values": MISSING,
    "groups": GROUPS,
    "shapes": SHAPES,
}
CALLS = {f"{chapter}: {name}": call for chapter, calls in CHAPTERS.items() for name, call in calls.items()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A year of days on a small grid: `t` has missing values, `full` has none."""
    r = np.random.default_rng(0)
    times, lat, lon = pd.date_range("2000-01-01", periods=130), np.arange(10.0, 50, 10), np.arange(0.0, 70, 10)
    full = r.standard_normal((len(times), len(lat), len(lon)))
    dims = ("time", "lat", "lon")
    data = xr.Dataset(
        {"t": (dims, np.where(full < 1, full, np.nan)), "full": (dims, full)},
        coords={"time": times, "lat": lat, "lon": lon},
    )
    path = tmp_path_factory.mktemp("guide") / "x.zarr"
    data.to_zarr(path, consolidated=False)
    return path


AT_ONCE = {"indexing: the warmest day"}
"""Labels that are no numbers are of places that are computed."""

NEEDED = {"missing values: ffill": "numbagg", "missing values: bfill": "numbagg", "computation: rank": "bottleneck"}
NEEDED["computation: rank of what is there"] = "bottleneck"
"""Libraries with which xarray computes what it has in memory."""


@pytest.mark.parametrize("name", CALLS)
def test_a_call_of_the_guide(stored: Path, name: str) -> None:
    call = CALLS[name]
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    lazy = xr.open_zarr(stored, chunks={}, chunked_array_type="chunkflow", consolidated=False)
    by_numpy = name not in NEEDED  # which decides ties otherwise than bottleneck, and knows ddof
    with (
        xr.open_zarr(stored, chunks=None, consolidated=False) as plain,
        xr.set_options(use_numbagg=not by_numpy, use_bottleneck=not by_numpy),
    ):
        expected = call(plain.load())
    with xr.set_options(use_numbagg=True, use_bottleneck=True):
        got = call(lazy)
    assert isinstance(got.data, cf.Array) or name in AT_ONCE
    xr.testing.assert_allclose(got.compute(budget="8MB", device="cpu"), expected)
    assert got.dtype == expected.dtype
