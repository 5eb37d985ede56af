"""xarray's arrays go in and come out with their names; what is in a store is read by regions, decoded by xarray."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.devices import Place, on_cpu_and_gpu
from support.examples import each

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.labels import Labels, axis_of
from chunkflow.stores.registry import open_source
from chunkflow.stores.views.decoded import DecodedSource
from chunkflow.testing import CountingSource

xr = pytest.importorskip("xarray")

TIMES = np.arange("2001-01-30", "2001-02-08", dtype="M8[D]").astype("M8[ns]")
LAT, LON = np.linspace(-60, 60, 5), np.arange(0.0, 360, 60)


def dataset() -> Any:
    """A month's end on a globe: values packed and plain, some missing, coordinates of one and two dimensions."""
    rng = np.random.default_rng(3)
    air = rng.uniform(230, 310, (len(TIMES), len(LAT), len(LON))).round(2)
    air[::4, 1] = np.nan
    return xr.Dataset(
        {
            "air": (("time", "lat", "lon"), air, {"units": "K", "long_name": "air temperature"}),
            "rain": (("time", "lat", "lon"), np.abs(air - 270).round(1), {"units": "mm"}),
            "raw": (("time", "lat", "lon"), rng.random(air.shape, dtype="f4")),
            "height": (("lon", "lat"), rng.integers(0, 4000, (len(LON), len(LAT)))),
        },
        {
            "time": TIMES,
            "lat": ("lat", LAT, {"units": "degrees_north"}),
            "lon": LON,
            "area": (("lat", "lon"), np.cos(np.radians(LAT))[:, None] * np.ones(len(LON))),
            "month": ("time", TIMES.astype("M8[M]").astype(int) % 12 + 1),
            "run": 7,
        },
    )


ENCODING = {
    "air": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 270.0, "_FillValue": -32768, "chunks": (4, 5, 6)},
    "rain": {"dtype": "u1", "scale_factor": 0.5, "_FillValue": 255, "chunks": (2, 2, 3)},
    "raw": {"chunks": (3, 5, 2)},
}


@pytest.fixture(params=["zarr", "netcdf"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The dataset as it is opened from a file: nothing is loaded."""
    if request.param == "zarr":
        dataset().to_zarr(tmp_path / "x.zarr", encoding=ENCODING, consolidated=False)
        yield xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False)
    else:
        plain = {name: {k: v for k, v in e.items() if k != "chunks"} for name, e in ENCODING.items()}
        dataset().to_netcdf(tmp_path / "x.nc", engine="scipy", encoding={**plain, "rain": {}})
        with xr.open_dataset(tmp_path / "x.nc", engine="scipy", chunks=None) as opened:
            yield opened


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of all that is decoded while a test runs."""
    shapes: list[tuple[int, ...]] = []
    values = xr.Variable.values.fget

    def watched(variable: Any) -> Any:
        shapes.append(variable.shape)
        return values(variable)

    monkeypatch.setattr(xr.Variable, "values", property(watched))
    read = DecodedSource.read

    def watched_too(source: DecodedSource, region: Any, out: np.ndarray) -> None:
        shapes.append(out.shape)
        read(source, region, out)

    monkeypatch.setattr(DecodedSource, "read", watched_too)
    return shapes


@on_cpu_and_gpu
@pytest.mark.parametrize("name", ["air", "rain", "raw", "height"])
def test_what_is_in_a_store_is_mapped_as_decoded(stored: Any, name: str, place: Place) -> None:
    x = stored[name]
    got = cf.map(lambda b: b * 2, x, device=place.device())
    xr.testing.assert_identical(got, (x * 2).assign_attrs(x.attrs))
    assert not got.encoding


@pytest.mark.parametrize("dim", ["time", ("lat", "lon"), ["lon"], ..., None])
@pytest.mark.parametrize("fn", ["nanmean", "nansum", "nanmax", "nanstd", "sum", "min", "var", "count_nonzero"])
def test_reductions_keep_what_is_not_reduced(stored: Any, fn: str, dim: Any) -> None:
    x = stored.air
    got = getattr(cf, fn)(x, dim=dim, device="cpu")
    axis = axis_of(x, dim)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a place may have no value at all
        values = getattr(np, fn)(x.values, axis=axis)
    expected = x.isel(dict.fromkeys(x.dims if dim in (..., None) else [dim] if isinstance(dim, str) else dim, 0))
    gone = [c for c in x.coords if set(x[c].dims) - set(expected.dims)]
    expected = expected.drop_vars(gone, errors="ignore")
    xr.testing.assert_allclose(got, expected.copy(data=values))
    assert got.attrs == x.attrs
    assert got.name == "air"
    assert set(got.coords) == set(expected.coords)


def test_blocks_are_decoded_as_the_budget_allows(tmp_path: Path, unloaded: list[tuple[int, ...]]) -> None:
    values = np.random.default_rng(0).random((1000, 20, 20), dtype="f4").round(3)
    given = xr.DataArray(values, dims=("time", "lat", "lon"), name="x")
    packed = {"x": {"dtype": "i2", "scale_factor": 0.001, "_FillValue": -1, "chunks": (10, 20, 20)}}
    given.to_dataset().to_zarr(tmp_path / "x.zarr", encoding=packed, consolidated=False)
    x = xr.open_zarr(tmp_path / "x.zarr", chunks=None, consolidated=False).x
    budget = x.nbytes // 10
    unloaded.clear()
    lazy = (cf.open(x) - 273).mean("time")
    assert not unloaded
    got = cf.mean(x, dim="time", budget=budget, device="cpu")
    cf.compute(lazy.data, budget=budget, device="cpu")
    assert 0 < max(np.prod(shape) for shape in unloaded) * x.dtype.itemsize <= budget
    assert not x._in_memory
    np.testing.assert_allclose(got, x.values.mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("names", [("raw", "area"), ("area", "raw"), ("height", "air"), ("air", "lat"), ("lat", "lon")])
def test_arrays_broadcast_by_the_names_of_their_dimensions(stored: Any, names: tuple[str, str]) -> None:
    x, y = (stored[n] for n in names)
    got = cf.map(np.add, x, y, device="cpu")
    expected = x + y
    expected.attrs = x.attrs
    xr.testing.assert_identical(got, expected)


def test_one_array_may_have_two_names() -> None:
    values = np.arange(3.0)
    x, y = xr.Variable(("a",), values), xr.Variable(("b",), values)
    for got in (cf.map(np.add, x, y, device="cpu"), cf.map(np.add, y, x, device="cpu").transpose()):
        xr.testing.assert_identical(got, xr.Variable(("a", "b"), np.add.outer(values, values)))


def test_a_plain_array_and_a_scalar_join_as_numpys_do(stored: Any) -> None:
    x = stored.raw
    got = cf.map(lambda a, b, c: a * b + c, x, LON, 2.0, device="cpu")
    xr.testing.assert_allclose(got, x * LON + 2.0)


def test_slices_and_transposes_of_what_is_stored(stored: Any) -> None:
    for x in (stored.air[1:7:2, :, ::-1], stored.air.sel(lat=slice(-30, 30)), stored.raw.transpose("lon", ...)):
        xr.testing.assert_identical(cf.map(np.copy, x, device="cpu"), x)
    one = stored.air.isel(time=3)
    xr.testing.assert_identical(cf.map(np.copy, one, device="cpu"), one)
    places = stored.air.isel(lat=[3, 0, 1])
    xr.testing.assert_identical(cf.map(np.copy, places, device="cpu"), places)


def test_variables_give_variables(stored: Any) -> None:
    x = stored.air.variable
    xr.testing.assert_identical(cf.map(np.copy, x, device="cpu"), x)
    assert cf.nanmax(x, dim="lat", device="cpu").dims == ("time", "lon")


def test_scans_stencils_and_quantiles(stored: Any) -> None:
    x = stored.raw
    xr.testing.assert_allclose(cf.cumsum(x, dim="time", device="cpu"), x.cumsum("time"))
    assert set(cf.diff(x, dim="time", device="cpu").coords) == {"lat", "lon", "area", "run"}
    for iterations in (1, 3):
        same = cf.map_overlap(np.copy, x, depth=1, boundary="nearest", iterations=iterations, device="cpu")
        xr.testing.assert_identical(same, x)
    xr.testing.assert_identical(cf.transpose(x, device="cpu"), x.transpose(transpose_coords=False))
    got = cf.quantile(x, [0.25, 0.5], dim="time", device="cpu")
    np.testing.assert_array_equal(got, np.quantile(x.values, [0.25, 0.5], axis=0))
    assert got.dims == ("quantile", "lat", "lon")
    assert cf.median(x, dim=("lat", "lon"), device="cpu").dims == ("time",)
    assert cf.mean(x, dim="lat", keepdims=True, device="cpu").sizes == {"time": len(TIMES), "lat": 1, "lon": len(LON)}


def test_coordinates_along_what_a_function_resizes_are_dropped(stored: Any) -> None:
    got = cf.map(lambda b: b[:, :, ::2], stored.raw, chunks=(4, 5, 1), device="cpu")
    assert got.sizes == {"time": len(TIMES), "lat": len(LAT), "lon": len(LON) // 2}
    assert set(got.coords) == {"time", "lat", "month", "run"}
    got = cf.map(lambda b: b.sum(axis=2), stored.raw, drop_axis=2, device="cpu")
    assert got.dims == ("time", "lat")
    assert set(got.coords) == {"time", "lat", "month", "run"}
    several = cf.map(lambda b: (b, b.astype("f8")), stored.raw, device="cpu")
    assert [a.dtype for a in several] == ["f4", "f8"]
    xr.testing.assert_identical(several[0], stored.raw)


@pytest.mark.parametrize(
    ("move", "coords"),
    [
        (lambda x: cf.flip(x, 0, device="cpu"), {"b"}),
        (lambda x: cf.roll(x, 1, 1, device="cpu"), {"a"}),
        (lambda x: cf.roll(x, 1, device="cpu"), set()),
        (lambda x: cf.pad(x, ((0, 0), (1, 2)), device="cpu"), {"a"}),
        (lambda x: cf.repeat(x, 2, axis=1, device="cpu"), {"a"}),
        (lambda x: cf.diff(x, axis=1, prepend=0, device="cpu"), {"a"}),
    ],
    ids=["flip", "roll", "roll all", "pad", "repeat", "diff"],
)
def test_what_is_moved_keeps_its_names_and_no_coordinates(move: Any, coords: set[str]) -> None:
    x = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("a", "b"), coords={"a": [1, 2], "b": [3, 4, 5]}, name="u")
    found = move(x)
    assert (found.dims, set(found.coords), found.name) == (("a", "b"), coords, "u")
    np.testing.assert_array_equal(found, move(x.to_numpy()))


def test_an_output_in_a_store_is_opened_and_not_loaded(stored: Any, tmp_path: Path) -> None:
    got = cf.map(np.sqrt, stored.raw, out=tmp_path / "root.zarr", device="cpu")
    assert not got._in_memory
    xr.testing.assert_identical(got.isel(time=2), np.sqrt(stored.raw.isel(time=2)))
    np.testing.assert_array_equal(cf.map(np.square, got, device="cpu"), np.square(np.sqrt(stored.raw.values)))


def test_open_gives_xarray_something_to_calculate_with(stored: Any) -> None:
    x = cf.open(stored.air)
    assert isinstance(x.data, cf.Array)
    anomaly = (x - x.mean("time")).max(("lat", "lon"))
    assert isinstance(anomaly.data, cf.Array)
    expected = (stored.air - stored.air.mean("time")).max(("lat", "lon"))
    xr.testing.assert_allclose(anomaly.copy(data=cf.compute(anomaly.data, device="cpu")), expected)
    mapped = cf.map(np.sqrt, x)
    assert isinstance(mapped.data, cf.Array)
    assert mapped.dims == x.dims


def test_memory_is_not_copied_and_the_budget_holds() -> None:
    x = xr.DataArray(np.arange(4096.0).reshape(64, 64), dims=("a", "b"))
    seen: list[Any] = []
    cf.map(lambda b: seen.append(b) or b.copy(), x, device="cpu", dtype="f8", workspace=8)
    assert any(np.shares_memory(b, x.values) for b in seen)
    assert cf.explain(cf.sum, x, dim="a", device="cpu").bytes_in == x.nbytes
    with pytest.raises(errors.BudgetError):
        cf.sum(x, dim="a", budget=1, device="cpu")


def test_wrong_names_are_refused_before_anything_is_read(stored: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"'tme'.*\('time', 'lat', 'lon'\)"):
        cf.sum(stored.air, dim="tme")
    with pytest.raises(errors.ArgumentError, match="give one of them"):
        cf.sum(stored.air, dim="time", axis=0)
    with pytest.raises(errors.ArgumentError, match=r"lat.*align"):
        cf.map(np.add, stored.raw, stored.area.assign_coords(lat=LAT + 1), device="cpu")
    with pytest.raises(errors.ArgumentTypeError, match="datetime64"):
        cf.map(np.copy, stored.time)
    with pytest.raises(errors.ArgumentTypeError, match="dim"):
        cf.sum(np.ones(3), dim="time")


def test_dask_backed_arrays_are_read_by_slices() -> None:
    pytest.importorskip("dask.array")
    x = dataset().air.chunk(time=2)
    got = cf.nanmean(x, dim="time", device="cpu")
    xr.testing.assert_allclose(got, dataset().air.mean("time"))


def test_plans_know_that_a_read_through_xarray_takes_long() -> None:
    """Blocks of few rows were read, as if a hundred reads cost no more than one."""
    from chunkflow.stores.foreign.xarray import stored as in_store

    x = xr.Variable(("a", "b"), in_store(np.ones((1000, 100))))
    assert open_source(x).spec.storage.asking >= 1e-3
    plan = cf.explain(cf.mean, x, axis=0, budget="100kB", device="cpu")
    assert plan.estimate.asking >= 1e-3 * len(plan.grid)


def test_labels_take_the_place_of_nothing_else() -> None:
    x = xr.DataArray(np.ones((2, 3)), dims=("a", "b"))
    labels = Labels((x, 1.0, None), {"chunks": 2}, by_axis=True)
    assert labels.args[1:] == (1.0, None)
    assert labels.kwargs == {"chunks": 2}
    assert np.shares_memory(labels.args[0], x.values)


def test_dim_is_the_functions_own_where_nothing_is_counted() -> None:
    x = xr.DataArray(np.ones((2, 3)), dims=("a", "b"))

    def scaled(block: np.ndarray, dim: int = 1) -> np.ndarray:
        return block * dim

    xr.testing.assert_equal(cf.map(scaled, x, dim=3, device="cpu"), x * 3)
    with pytest.raises(TypeError, match="'dim'"):
        cf.transpose(x, dim=("b", "a"))


@pytest.mark.parametrize("kind", ["dask", None])
def test_an_expression_that_gets_chunks_is_stored_in_them(kind: Any, tmp_path: Path) -> None:
    pytest.importorskip("dask.array")
    values = np.random.default_rng(0).random((60, 5, 4))
    xr.Dataset({"t": (("time", "y", "x"), values)}).to_zarr(tmp_path / "t.zarr", consolidated=False)
    opened = xr.open_zarr(tmp_path / "t.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False)
    scaled = (opened.t * 2).chunk(time=20, chunked_array_type=kind)
    assert isinstance(scaled.data, cf.Array) == (kind is None)
    encoding = {"t": {"chunks": (20, 5, 4)}} if kind else {}
    scaled.to_dataset(name="t").to_zarr(tmp_path / "s.zarr", encoding=encoding, consolidated=False)
    stored = zarr.open_array(tmp_path / "s.zarr" / "t", mode="r")
    assert stored.chunks == (20, 5, 4)
    np.testing.assert_array_equal(stored[...], values * 2)


def test_coordinates_in_chunks_of_dask_are_no_hindrance() -> None:
    da = pytest.importorskip("dask.array")
    area = da.arange(12.0, chunks=3).reshape(3, 4)
    x = xr.DataArray(da.ones((2, 3, 4), chunks=(1, 3, 4)), dims=("t", "y", "x"), coords={"area": (("y", "x"), area)})
    xr.testing.assert_equal((cf.open(x) + 1).mean("t").compute(device="cpu"), (x + 1).mean("t").compute())


def detrended(block: np.ndarray) -> np.ndarray:
    """A function of whole lines along the last axis."""
    return block - block.mean(axis=-1, keepdims=True)


@on_cpu_and_gpu
def test_apply_ufunc_has_core_dimensions_whole_and_last(stored: Any, place: Place) -> None:
    x = stored.raw
    got = cf.apply_ufunc(
        detrended, x, input_core_dims=[["time"]], output_core_dims=[["time"]], device=place.device(), dtype="f4"
    )
    expected = xr.apply_ufunc(detrended, x.load(), input_core_dims=[["time"]], output_core_dims=[["time"]])
    xr.testing.assert_allclose(got, expected)
    assert got.dims == ("lat", "lon", "time")
    assert got.attrs == x.attrs


def test_apply_ufunc_of_several_arrays(stored: Any) -> None:
    x, weights = stored.raw, stored.area.mean("lon")

    def weighted(block: Any, weight: Any, power: int = 1) -> Any:
        return (block * weight**power).sum(axis=-1)

    cores = [["lat"], ["lat"]]
    got = cf.apply_ufunc(weighted, x, weights, input_core_dims=cores, kwargs={"power": 2}, device="cpu")
    expected = xr.apply_ufunc(weighted, x.load(), weights, input_core_dims=cores, kwargs={"power": 2})
    xr.testing.assert_allclose(got, expected)

    fit = cf.apply_ufunc(
        lambda y, t: np.polyfit(t, y, 1),
        x,
        xr.DataArray(np.arange(float(len(TIMES))), dims="time", coords={"time": TIMES}),
        input_core_dims=[["time"], ["time"]],
        output_core_dims=[["degree"]],
        output_sizes={"degree": 2},
        vectorize=True,
        device="cpu",
    )
    assert fit.sizes == {"lat": len(LAT), "lon": len(LON), "degree": 2}
    np.testing.assert_allclose(fit.isel(degree=0), x.polyfit("time", 1).polyfit_coefficients[0] * 864e11, rtol=1e-4)


def test_apply_ufunc_of_dimensions_that_change(stored: Any) -> None:
    x = stored.raw
    got = cf.apply_ufunc(
        lambda a, b, c: np.concatenate([a, b], axis=-1) * c,
        x,
        x.isel(time=slice(2)),
        2.0,
        input_core_dims=[["time"], ["time"], []],
        output_core_dims=[["time"]],
        exclude_dims={"time"},
        output_sizes={"time": len(TIMES) + 2},
        device="cpu",
    )
    expected = np.concatenate([x, x[:2]]) * 2
    np.testing.assert_array_equal(got.transpose("time", "lat", "lon"), expected)
    assert "time" not in got.coords
    extremes = cf.apply_ufunc(
        lambda b: (b.min(axis=-1), b.max(axis=-1)),
        cf.open(x).variable,
        input_core_dims=[["lon"]],
        output_core_dims=[[], []],
        dtype=("f4", "f4"),
    )
    assert [e.dims for e in extremes] == [("time", "lat")] * 2
    np.testing.assert_array_equal(cf.compute(extremes[1].data, device="cpu"), x.max("lon"))


def test_apply_ufunc_refuses_what_it_cannot_do(stored: Any) -> None:
    x = stored.raw
    with pytest.raises(errors.ArgumentTypeError, match="ndarray has no names"):
        cf.apply_ufunc(np.add, x, np.ones(6))
    with pytest.raises(errors.ArgumentError, match="name only dimensions that it has"):
        cf.apply_ufunc(np.sum, x, input_core_dims=[["level"]])
    with pytest.raises(errors.ArgumentError, match="output_sizes"):
        cf.apply_ufunc(np.sum, x, output_core_dims=[["degree"]])
    with pytest.raises(errors.ArgumentError, match="2 entries for 1"):
        cf.apply_ufunc(np.sum, x, input_core_dims=[["lat"], []])
    with pytest.raises(errors.ArgumentError, match="core dimension of another array"):
        cf.apply_ufunc(np.add, x, x.isel(lon=0), input_core_dims=[["lat"], []])
    with pytest.raises(errors.ArgumentError, match=r"no core dimensions of an input, \('lat',\)"):
        cf.apply_ufunc(np.sum, x, output_core_dims=[["lat"]])
    with pytest.raises(errors.ArgumentError, match="output_core_dims is empty"):
        cf.apply_ufunc(np.sum, x, output_core_dims=[])


def _mean_and_ends(block: Any) -> tuple[Any, Any]:
    return block.mean(-1), np.stack([block.min(-1), block.max(-1)], -1)


DIFFERENT: dict[str, Any] = {
    "input_core_dims": [["lat"]],
    "output_core_dims": [[], ["end"]],
}


def test_apply_ufunc_of_results_with_different_core_dimensions(stored: Any) -> None:
    x, sizes = stored.air, {"output_sizes": {"end": 2}}
    expected = xr.apply_ufunc(_mean_and_ends, x.load(), **DIFFERENT)
    for given, options in ((x, {"budget": "64kB", "device": "cpu"}), (cf.open(x), {})):
        found = cf.apply_ufunc(_mean_and_ends, given, **DIFFERENT, **sizes, **options)
        for one, value in zip(found, expected, strict=True):
            assert isinstance(one.data, np.ndarray if options else cf.Array)
            xr.testing.assert_identical(one.compute(), value)
    (ones, rows) = cf.apply_ufunc(
        lambda b: (np.ones(()), b), x.load(), **DIFFERENT | {"output_core_dims": [[], ["lat"]]}
    )
    assert (ones.values == 1).all()
    np.testing.assert_array_equal(rows, x.load().transpose("time", "lon", "lat"))
    fitted = x.load().curvefit("lat", lambda lat, a, b: a + b * lat)
    lazy = cf.open(x).curvefit("lat", lambda lat, a, b: a + b * lat)
    assert isinstance(lazy.curvefit_covariance.data, cf.Array)
    xr.testing.assert_allclose(lazy.compute(), fitted)


def test_results_with_different_core_dimensions_are_checked(stored: Any) -> None:
    x, sizes = stored.air.load(), {"output_sizes": {"end": 2}}

    def called(fn: Any, **options: Any) -> None:
        cf.apply_ufunc(fn, x, **DIFFERENT, **sizes, device="cpu", **options)

    with pytest.raises(errors.ResultTypeError, match="give them one dtype"):
        called(lambda b: (b.mean(-1), np.stack([b.argmin(-1), b.argmax(-1)], -1)))
    with pytest.raises(errors.ResultError, match=r"returned 1 arrays.* of 2: one for each"):
        called(lambda b: b.mean(-1))
    with pytest.raises(errors.ResultError, match=r"output_sizes say that it ends in \(2,\)"):
        called(lambda b: (b.mean(-1), b[..., :3]))
    with pytest.raises(errors.UnsupportedError, match=r"out=.*are computed as one: leave it out"):
        called(_mean_and_ends, out=("a.npy", "b.npy"))
    with pytest.raises(errors.UnsupportedError, match=r"dtype=.*are computed as one"):
        called(_mean_and_ends, dtype=("f4", "f8"))


def test_the_chunk_manager_is_registered() -> None:
    """Where this fails, the package was installed before it had one: ``pip install -e .`` again."""
    from xarray.namedarray.parallelcompat import list_chunkmanagers

    assert "chunkflow" in list_chunkmanagers()


def test_xarray_computes_expressions(stored: Any) -> None:
    x, given = cf.open(stored.air), stored.air.load().copy()
    for calculate in (
        lambda a: (a - a.mean("time")) / a.std("time"),
        lambda a: a.where(a > 270).fillna(0).sum(("lat", "lon")),
        lambda a: a.isel(time=slice(1, None, 2)).transpose("lon", ...).diff("time").astype("f4"),
        lambda a: a.weighted(stored.area).mean(("lat", "lon")),
        lambda a: a.resample(time="3D").max(),
        lambda a: xr.concat([a, a.shift(time=1)], "time").count("time"),
    ):
        lazy = calculate(x)
        assert isinstance(lazy.data, cf.Array)
        done = lazy.compute(device="cpu", budget="64MB")
        assert isinstance(done.data, np.ndarray)
        xr.testing.assert_allclose(done, calculate(given))


def test_xarray_compares_expressions(stored: Any) -> None:
    x = cf.open(stored.air)
    assert (x + 0).equals(stored.air.load())
    assert not (x + 1).equals(stored.air)
    assert (x > 270).any().item() is True
    with pytest.raises(errors.ArgumentError, match=r"any\(\), all\(\)"):
        bool((x > 270).data)


PICKED: dict[str, Any] = {
    "isel": lambda a: a.isel(time=[3, 1, 4]),
    "isel of two": lambda a: a.isel(time=[0, 2], lon=[1, 0]),
    "sel": lambda a: a.sel(lat=a.lat[[1, 0]]),
    "sel nearest": lambda a: a.sel(lat=a.lat[:2] + 0.1, method="nearest"),
    "a mask": lambda a: a.isel(time=np.arange(a.sizes["time"]) % 2 == 0),
    "points": lambda a: a.isel(lat=xr.DataArray([0, 1, 1], dims="p"), lon=xr.DataArray([2, 0, 1], dims="p")),
    "sortby": lambda a: a.sortby("lat", ascending=False),
    "reindex": lambda a: a.reindex(lat=[*a.lat.values[1:], -99.0]),
    "dropna": lambda a: a.where(a.isel(lat=0, lon=0) > a.isel(lat=0, lon=0).mean()).dropna("time", how="all"),
    "drop": lambda a: a.where(a.lat > a.lat.mean(), drop=True),
    "drop elements": lambda a: a.where(a > a.mean(), drop=True),
    "drop by a mask": lambda a: a.where((a > a.mean()).all(("time", "lon")), drop=True),
    "first": lambda a: a.groupby(a.lat > a.lat.mean()).first(),
    "last": lambda a: a.where(a > a.mean()).groupby(a.lat > a.lat.mean()).last(),
    "groupby": lambda a: a.groupby(a.lat > a.lat.mean()).mean(),
    "anomaly": lambda a: a.groupby("time") - a.groupby("time").mean(),
    "groupby_bins": lambda a: a.groupby_bins("lon", 2).max(),
    "unstack": lambda a: a.stack(p=("lat", "lon")).unstack("p"),
}


def test_xarray_fills_along_a_dimension(stored: Any) -> None:
    pytest.importorskip("numbagg")  # for xarray's own
    for fill in (lambda a: a.ffill("time"), lambda a: a.bfill("lon"), lambda a: a.ffill("time", limit=1)):
        given, lazy = (a.where(a > a.mean()) for a in (stored.air.load(), cf.open(stored.air)))
        xr.testing.assert_allclose(fill(lazy).compute(device="cpu"), fill(given))


def test_places_of_extremes(stored: Any) -> None:
    given, x = stored.air.load().fillna(0), cf.open(stored.air).fillna(0)
    where, expected = x.argmax(("lat", "lon")), given.argmax(("lat", "lon"))
    for dim, places in expected.items():
        xr.testing.assert_equal(where[dim].compute(device="cpu"), places)
    lats = cf.take(x.lat.values, x.argmax("lat").data).compute(device="cpu")
    np.testing.assert_array_equal(lats, given.idxmax("lat").values)


@pytest.mark.parametrize("dim", ["time", "lat", "lon", "named"])
@pytest.mark.parametrize("more", [{}, {"skipna": True}, {"skipna": False}, {"fill_value": None}], ids=str)
def test_labels_of_extremes_are_of_any_kind(dim: str, more: Any, stored: Any) -> None:
    """Times, numbers and strings; lines without values have the fill value, which is NaN, NaT or what is said."""
    if "fill_value" in more:
        more = {"fill_value": {"time": np.datetime64("1970-01-01", "ns"), "named": "none"}.get(dim, -1.0)}
    skips = more.get("skipna") is not False

    def labels(a: Any) -> list[Any]:
        a = a.assign_coords(named=("lat", [f"s{i}" for i in range(a.sizes["lat"])]))
        a = a.swap_dims(lat="named") if dim == "named" else a
        other = "time" if dim == "lon" else "lon"
        a = a.where(a[other] != a[other][1]) if skips else a.fillna(0)
        return [a.idxmax(dim, **more), a.idxmin(dim, **more)]

    for got, expected in zip(labels(cf.open(stored.air)), labels(stored.air.load()), strict=True):
        assert got.dtype == expected.dtype
        xr.testing.assert_equal(got.compute(), expected)


def test_an_expression_is_an_index(stored: Any) -> None:
    given, x = stored.air.load().fillna(0), cf.open(stored.air).fillna(0)
    for dim in ("time", "lat", "lon"):
        places = x.argmax(dim), given.argmax(dim)
        there = x.isel({dim: places[0]})
        assert isinstance(there.data, cf.Array)
        xr.testing.assert_equal(there.compute(), given.isel({dim: places[1]}))
        xr.testing.assert_equal(given.isel({dim: places[0]}).compute(), given.isel({dim: places[1]}))
        xr.testing.assert_equal(given[dim].isel({dim: places[0]}).compute(), given[dim].isel({dim: places[1]}))


@pytest.mark.parametrize("dim", ["time", "lat"])
def test_one_place_that_an_expression_has(dim: str, stored: Any) -> None:
    """Coordinates are pandas' indices, of numbers and of times, and there are others."""
    given, x = stored.air.load().fillna(0), cf.open(stored.air).fillna(0)
    pick = {other: 1 for other in given.dims if other != dim}
    for add in ({}, {"named": (dim, np.arange(given.sizes[dim]) * 2.0)}):
        line, expected = x.isel(pick).assign_coords(add), given.isel(pick).assign_coords(add)
        there = line.isel({dim: line.argmax(dim)})
        assert isinstance(there.data, cf.Array)
        xr.testing.assert_equal(there.compute(), expected.isel({dim: expected.argmax(dim)}))
        xr.testing.assert_equal(line.idxmax(dim).compute(), expected.idxmax(dim))
        bare = line.drop_vars(dim)
        lowest = bare.isel({dim: bare.argmin(dim)}).compute().variable
        xr.testing.assert_equal(lowest, expected.min(dim).variable)
    xr.testing.assert_equal(x.isel(x.argmin(...)).compute(), given.isel(given.argmin(...)))


@pytest.mark.filterwarnings("ignore:Treating an array-like object")  # xarray gives pandas a mask that is an expression
@pytest.mark.parametrize("pick", PICKED.values(), ids=PICKED)
def test_xarray_picks_elements_of_expressions(pick: Any, stored: Any) -> None:
    with xr.set_options(use_flox=False):
        expected, got = pick(stored.air.load()), pick(cf.open(stored.air))
        assert isinstance(got.data, cf.Array)
        xr.testing.assert_allclose(got.compute(device="cpu"), expected)
        assert got.dtype == expected.dtype


WINDOWS: tuple[dict[str, Any], ...] = (
    {"time": 3},
    {"time": 3, "center": True, "min_periods": 2},
    {"time": 2, "lat": 3, "center": True, "min_periods": 1},
)

ROLLED: dict[str, Any] = {
    **{
        f"{name} {windows}": lambda a, name=name, windows=windows: getattr(a.rolling(**windows), name)()
        for name in ("mean", "sum", "min", "max", "std", "var", "median", "count", "prod")
        for windows in WINDOWS
    },
    **{name: lambda a, name=name: getattr(a.rolling(time=3), name)() for name in ("argmin", "argmax")},
    "any": lambda a: (a > 270).rolling(time=3).construct("w", fill_value=False).any("w"),
    "all": lambda a: (a > 270).rolling(time=3).construct("w", fill_value=False).all("w"),
    "construct": lambda a: a.rolling(time=3, center=True).construct("w", stride=2, fill_value=0),
    "mean of construct": lambda a: a.rolling(time=3, lat=2).construct(time="w", lat="v").mean(("w", "v")),
    "dot": lambda a: a.rolling(time=3).construct("w", fill_value=0).dot(xr.DataArray([1.0, 2, 3], dims="w")),
    "weighted": lambda a: (
        a.rolling(time=3).construct("w", fill_value=0).weighted(xr.DataArray([1.0, 2, 3], dims="w")).mean("w")
    ),
    "reduce": lambda a: a.rolling(time=3, min_periods=2).reduce(np.nanmean),
    "single precision": lambda a: a.astype("f4").rolling(time=3, min_periods=2).mean(),
    "integers": lambda a: a.fillna(0).astype("i4").rolling(time=3).sum(),
    "extremes of integers": lambda a: a.fillna(0).astype("i4").rolling(time=3).max(),
    "after arithmetic": lambda a: (a * 2 - 1).rolling(time=3, min_periods=2).std(),
    **{
        f"coarsen, {name}": lambda a, name=name: getattr(a.coarsen(time=2, lat=2, boundary="trim"), name)()
        for name in ("mean", "sum", "max", "std", "median", "count")
    },
    "coarsen, padded": lambda a: a.coarsen(time=4, boundary="pad").mean(),
    "coarsen, from the end": lambda a: (a + 1).coarsen(time=2, boundary="trim", side="right").min(),
    "coarsen, construct": lambda a: a.coarsen(lon=3).construct(lon=("box", "within")),
    "differentiate": lambda a: a.fillna(0).differentiate("lon"),
    "differentiate, edges": lambda a: a.fillna(0).differentiate("lat", edge_order=2),
    "integrate": lambda a: a.fillna(0).integrate("lon"),
    "cumulative_integrate": lambda a: a.fillna(0).cumulative_integrate("lat"),
    "of a dataset": lambda a: a.to_dataset(name="v").rolling(time=3).mean().v,
    "cumulative": lambda a: a.cumulative("time", min_periods=1).max(),
}


@pytest.mark.parametrize("roll", ROLLED.values(), ids=ROLLED)
def test_xarray_rolls_expressions(roll: Any) -> None:
    given = dataset().air
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a window may have no value at all
        with xr.set_options(use_bottleneck=False, use_numbagg=False):
            expected = roll(given)
        with xr.set_options(use_bottleneck=True, use_numbagg=True):  # what is installed is not used
            got = roll(cf.open(given))
        assert isinstance(got.data, cf.Array)
        xr.testing.assert_allclose(got.compute(device="cpu"), expected)
    assert got.dtype == expected.dtype


def test_a_rolling_mean_of_xarray_reads_its_source_once(tmp_path: Path) -> None:
    given = xr.DataArray(np.random.default_rng(0).random((400, 30, 30)), dims=("time", "lat", "lon"), name="x")
    given.to_dataset().to_zarr(tmp_path / "x.zarr", encoding={"x": {"chunks": (20, 30, 30)}}, consolidated=False)
    opened = xr.open_zarr(tmp_path / "x.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False).x
    mean = opened.rolling(time=7, center=True, min_periods=3).mean()
    plan = cf.explain(mean.data, budget="16MB", device="cpu")
    assert len(plan.passes) == 1
    assert plan.passes[0][1].bytes_in <= 1.1 * given.nbytes
    expected = given.rolling(time=7, center=True, min_periods=3).mean()
    xr.testing.assert_allclose(mean.compute(budget="16MB", device="cpu"), expected)


WRAPPED: dict[str, Any] = {
    "sum": lambda x: x + x.mean("time"),
    "rolling": lambda x: x.rolling(time=3).mean(),
    "medians that roll": lambda x: x.rolling(time=3, min_periods=1).median(),
    "groups": lambda x: x.groupby("time.month").mean(),
    "filled": lambda x: x.where(x > 0).fillna(x.min()),
    "like it": lambda x: xr.full_like(x, 3) * x,
    "interpolated": lambda x: x.interp(lon=[0.5, 1.5]),
    "a function": lambda x: xr.apply_ufunc(np.sqrt, abs(x), dask="parallelized", output_dtypes=[x.dtype]),
    "in chunks": lambda x: x.chunk({"time": 2}, chunked_array_type="chunkflow") * 2,
    "in chunks of dask's": lambda x: x.chunk({"time": 2}, chunked_array_type="dask") * 2,
    "persisted": lambda x: x.persist() + 1,
    "a copy": lambda x: x.copy(data=x.data * 2),
}


@pytest.mark.parametrize("what", each(WRAPPED, 2))
def test_expressions_that_a_user_wraps_are_as_those_that_xarray_opens(what: str) -> None:
    values = np.random.default_rng(0).standard_normal((12, 3, 4))
    times = np.datetime64("2001-01") + np.arange(12)
    coords = {"time": times.astype("M8[ns]"), "lon": np.arange(4.0)}
    plain = xr.DataArray(values * 2, dims=("time", "lat", "lon"), coords=coords, name="t")
    wrapped = xr.DataArray(cf.open(values) * 2, dims=("time", "lat", "lon"), coords=coords, name="t")
    assert wrapped.chunks == wrapped.to_dataset().t.chunks == ((12,), (3,), (4,))
    assert xr.Dataset({"t": (("a", "b", "c"), cf.open(values))}).chunks == {"a": (12,), "b": (3,), "c": (4,)}
    found = WRAPPED[what](wrapped)
    assert found.chunks is not None
    xr.testing.assert_allclose(found.compute(), WRAPPED[what](plain))


def test_expressions_that_a_user_wraps_are_stored(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    values = np.random.default_rng(0).standard_normal((12, 3, 4))
    wrapped = xr.Variable(("time", "lat", "lon"), cf.open(values) * 2)
    ds = xr.Dataset({"t": wrapped})
    ds.to_zarr(tmp_path / "t.zarr", consolidated=False)
    ds.to_netcdf(tmp_path / "t.nc", engine="netcdf4")
    for found in (
        xr.open_zarr(tmp_path / "t.zarr", consolidated=False),
        xr.open_dataset(tmp_path / "t.nc", engine="netcdf4"),
    ):
        np.testing.assert_array_equal(found.t, values * 2)


MARKS: dict[str, Any] = {
    "of elements": lambda x: x > 2.5,
    "of lines": lambda x: x.max("time") > 2.5,
    "of times": lambda x: (x > 2.5).any(("lat", "lon")),
}


@pytest.mark.parametrize("kind", MARKS)
def test_masks_are_computed_once_before_elements_are_picked(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((12, 30, 40))
    source = CountingSource(values)
    plain = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lon": np.arange(40)})
    x = plain.copy(data=cf.open(source))
    for data, original in ((x, plain), (x.to_dataset(name="t"), plain.to_dataset(name="t"))):
        before = source.bytes_read
        left = data.where(MARKS[kind](x), drop=True)
        assert source.bytes_read - before <= 1.1 * values.nbytes
        xr.testing.assert_equal(left.compute(), original.where(MARKS[kind](plain), drop=True))
        assert source.bytes_read - before <= 4.1 * values.nbytes  # a reduction once more, and a trial
    times = MARKS["of times"](x)
    before = source.bytes_read
    picked = x.isel(time=times)
    assert source.bytes_read - before <= 1.1 * values.nbytes
    assert isinstance(times.data, cf.Array)
    xr.testing.assert_equal(picked.compute(), plain.isel(time=MARKS["of times"](plain)))


def test_an_expression_itself_has_no_chunks() -> None:
    for name in ("chunks", "rechunk"):
        with pytest.raises(AttributeError, match=f"no {name}: .* import chunkflow.xarray before"):
            getattr(cf.open(np.ones(3)) * 2, name)


def test_persisted_expressions_are_expressions_of_memory(stored: Any) -> None:
    given = xr.Dataset({name: cf.open(stored[name]) for name in ("raw", "height")})
    kept = (given * 2).persist(budget="1MB", device="cpu")
    assert isinstance(kept.raw.data, cf.Array)
    stored.close()  # it is not read again
    for name in ("raw", "height"):
        np.testing.assert_array_equal(kept[name].compute(), dataset()[name] * 2)


def test_apply_ufunc_of_xarray_itself(stored: Any) -> None:
    cores: dict[str, Any] = {"input_core_dims": [["time"]], "output_core_dims": [["time"]]}
    got = xr.apply_ufunc(detrended, cf.open(stored.raw), dask="parallelized", output_dtypes=["f4"], **cores)
    assert isinstance(got.data, cf.Array)
    xr.testing.assert_allclose(got.compute(device="cpu"), xr.apply_ufunc(detrended, stored.raw.load(), **cores))


def test_datasets_are_opened_and_stored_as_expressions(tmp_path: Path) -> None:
    given = dataset()
    given.to_zarr(tmp_path / "x.zarr", encoding=ENCODING, consolidated=False)
    opened = xr.open_zarr(tmp_path / "x.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False)
    assert {type(v.data) for v in opened.data_vars.values()} == {type(cf.open(given.raw).data)}
    anomaly = opened[["air", "raw"]] - opened[["air", "raw"]].mean("time")
    packed = {"air": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}}
    anomaly.to_zarr(tmp_path / "y.zarr", encoding=packed, consolidated=False)
    with pytest.raises(errors.UnsupportedError, match="compute=False"):
        anomaly.to_zarr(tmp_path / "z.zarr", compute=False, consolidated=False)
    anomaly.to_zarr(tmp_path / "y.zarr", append_dim="time", consolidated=False)
    twice = xr.open_zarr(tmp_path / "y.zarr", chunks=None, consolidated=False).raw
    np.testing.assert_array_equal(twice, np.concatenate([anomaly.raw.values] * 2))
    raw = xr.open_zarr(tmp_path / "y.zarr", chunks=None, consolidated=False, mask_and_scale=False)
    assert raw.air.dtype == "i2"


def test_expressions_are_stored_into_regions_and_netcdf(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    given = dataset()[["raw"]].drop_vars(["area", "month", "run"])
    given.to_zarr(tmp_path / "x.zarr", encoding={"raw": {"chunks": (3, 2, 4)}}, consolidated=False)
    opened = xr.open_zarr(tmp_path / "x.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False)
    part: Any = {"time": slice(2, 7), "lat": slice(1, 4)}
    twice = (opened * 2).isel(part).drop_vars("lon")
    (opened + 1).to_netcdf(tmp_path / "x.nc", engine="netcdf4")
    twice.to_zarr(tmp_path / "x.zarr", region=part, safe_chunks=False, consolidated=False)
    expected = given.raw.values.copy()
    expected[2:7, 1:4] *= 2
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "x.zarr", mode="r")["raw"][:], expected)
    with xr.open_dataset(tmp_path / "x.nc", engine="netcdf4") as read:
        np.testing.assert_array_equal(read.raw, given.raw.values + 1)


def test_what_is_read_may_be_appended_and_put_into_other_regions_of_the_same_store(tmp_path: Path) -> None:
    path, given = tmp_path / "x.zarr", dataset()[["raw"]].drop_vars(["area", "month", "run", "time", "lat", "lon"])

    def opened() -> Any:
        return xr.open_zarr(path, chunks={}, chunked_array_type="chunkflow", consolidated=False)

    given.to_zarr(path, encoding={"raw": {"chunks": (3, 2, 4)}}, consolidated=False)
    (opened() + 1).to_zarr(path, append_dim="time", consolidated=False)
    rows: Any = {"lat": slice(0, 2), "lon": slice(0, 6)}
    (opened().isel(time=slice(0, 3), lat=slice(3, 5)) * 0).to_zarr(
        path, region={"time": slice(0, 3), **rows}, consolidated=False
    )
    raw = given.raw.values
    expected = np.concatenate([raw, raw + 1])
    expected[:3, :2] = 0
    np.testing.assert_array_equal(zarr.open_group(path, mode="r")["raw"][:], expected)
    with pytest.raises(errors.ArgumentError, match="overlaps the input"):
        opened().isel(time=slice(1, 4), lat=slice(0, 2)).to_zarr(
            path, region={"time": slice(0, 3), **rows}, consolidated=False
        )


@pytest.mark.parametrize(
    ("options", "encoding"),
    [
        ({}, {"chunks": (4, 5, 6)}),
        ({}, {"dtype": "i2", "scale_factor": 0.01, "add_offset": 270.0, "_FillValue": -32768, "chunks": (2, 5, 3)}),
        ({"mask_and_scale": False}, {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1}),
        ({}, {"dtype": "u1", "scale_factor": 2.0, "add_offset": 200.0, "_FillValue": 255}),
        ({}, {"dtype": ">f4", "_FillValue": -9e33}),
    ],
    ids=str,
)
def test_what_xarray_wraps_is_read_and_decoded_as_xarray_does(tmp_path: Path, options: Any, encoding: Any) -> None:
    """By our own reader: xarray's would be asked for one block at a time, chunk by chunk."""
    given = dataset()[["air"]].drop_vars(["area", "month", "run"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given.to_zarr(tmp_path / "x.zarr", encoding={"air": encoding}, consolidated=False)
    kwargs = {"consolidated": False, **options}
    plain = xr.open_zarr(tmp_path / "x.zarr", chunks=None, **kwargs).air
    assert "zarr" in cf.open(plain.copy()).data._node.spec.name
    for cut in ({}, {"time": slice(2, 8), "lon": slice(None, None, -2)}, {"lat": 3}, {"time": [5, 1, 1]}):
        for got in (
            cf.open(plain.copy().isel(cut)).compute(device="cpu", budget="100kB"),
            cf.copy(plain.copy().isel(cut), device="cpu"),
            xr.open_zarr(tmp_path / "x.zarr", chunks={}, chunked_array_type="chunkflow", **kwargs).air.isel(cut),
        ):
            expected = plain.copy().isel(cut)
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(got), expected.values)


@pytest.mark.parametrize(
    "what",
    [
        lambda x: x.median("time"),
        lambda x: x.median(skipna=False),
        lambda x: x.quantile([0.3, 0.9], ("time", "lat")),
        lambda x: x.quantile(0.5, skipna=True),
    ],
)
def test_xarrays_own_order_statistics(tmp_path: Path, what: Any) -> None:
    x = xr.DataArray(np.random.default_rng(0).standard_normal((20, 3, 4)), dims=("time", "lat", "lon"), name="x")
    x = x.where(x < 1)
    x.to_dataset().to_zarr(tmp_path / "x.zarr", consolidated=False)
    lazy = xr.open_zarr(tmp_path / "x.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False).x
    got = what(lazy)
    assert isinstance(got.data, cf.Array)
    xr.testing.assert_allclose(got.compute(budget="1MB", device="cpu"), what(x))


@pytest.mark.parametrize(
    "what",
    [
        lambda x: x.groupby("time.month").mean(),
        lambda x: x.groupby("time.month").std(ddof=1),
        lambda x: x.groupby("time.month").sum(min_count=2),
        lambda x: x.groupby("time.month").first(),
        lambda x: x.groupby("time.month").quantile([0.2, 0.5]),
        lambda x: x.groupby("time.month") - x.groupby("time.month").mean(),
        lambda x: x.resample(time="QS").max(),
        lambda x: x.groupby_bins("lat", [0, 1.5, 3]).count(),
    ],
)
def test_groups_by_flox(what: Any) -> None:
    pytest.importorskip("flox")
    values = np.random.default_rng(0).standard_normal((40, 4, 3))
    times = np.datetime64("2024-01-01", "ns") + np.arange(40) * np.timedelta64(9, "D")
    x = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"time": times, "lat": np.arange(4.0)})
    x = x.where(x < 1)
    got = what(cf.open(x))
    assert isinstance(got.data, cf.Array)
    xr.testing.assert_allclose(got.compute(budget="1MB", device="cpu"), what(x))


@pytest.mark.parametrize("dtype", ["i8", "u1", "?"])
@pytest.mark.parametrize("func", ["first", "last", "min", "max"])
@pytest.mark.parametrize(
    "groups", [lambda x: x.groupby("time.month"), lambda x: x.groupby("time.season"), lambda x: x.resample(time="QS")]
)
def test_integers_stay_integers_in_groups(groups: Any, func: str, dtype: str) -> None:
    pytest.importorskip("flox")
    values = (np.arange(120).reshape(40, 3) % 7 * (2**55 + 1)).astype(dtype)
    times = np.datetime64("2024-01-01", "ns") + np.arange(40) * np.timedelta64(9, "D")
    x = xr.DataArray(values, dims=("time", "x"), coords={"time": times})
    xr.testing.assert_identical(getattr(groups(cf.open(x)), func)().compute(device="cpu"), getattr(groups(x), func)())


@pytest.mark.parametrize(
    ("dtype", "bins"),  # of no bools xarray makes True
    [("i2", [-90, 0, 90]), ("?", [-90, 0, 90]), ("i2", [-90, 0, 50, 90])],
    ids=["full", "full of bools", "one is empty"],
)
@pytest.mark.parametrize("other", ["along time", "everywhere"])
def test_integers_stay_integers_in_groups_by_two(other: str, dtype: str, bins: Any) -> None:
    pytest.importorskip("flox")
    values = (np.arange(40 * 3).reshape(40, 3) % 7).astype(dtype)
    labels = np.array(list("abcd") * 10)
    labels = labels if other == "along time" else labels[:, None] * np.ones(3, "i4").astype(object)
    x = xr.DataArray(
        values, dims=("t", "lat"), coords={"lat": [-20, 10, 30], "k": (("t", "lat")[: labels.ndim], labels)}
    )
    groupers = {"lat": xr.groupers.BinGrouper(bins), "k": xr.groupers.UniqueGrouper()}
    xr.testing.assert_identical(cf.open(x).groupby(groupers).max().compute(device="cpu"), x.groupby(groupers).max())


def test_the_greatest_integer_of_a_group_without_elements_is_nan() -> None:
    pytest.importorskip("flox")
    x = xr.DataArray(np.array([-5, -6], "i4"), dims="t", coords={"k": ("t", [1, 1])})
    got = cf.open(x).groupby(k=xr.groupers.UniqueGrouper(labels=[1, 2])).max().compute(device="cpu")
    np.testing.assert_array_equal(got, [-5, np.nan])


def test_sums_up_to_each_element_of_a_group_and_elements_in_the_order_of_groups() -> None:
    x = xr.DataArray(np.arange(8.0).reshape(4, 2), dims=("t", "x"), coords={"k": ("t", [0, 1, 0, 1])})
    for one in (x, x > 3):
        right = one.groupby("k").cumsum("t").transpose("t", "x")
        xr.testing.assert_identical(cf.open(one).groupby("k").cumsum("t").compute(device="cpu"), right)
    several = cf.open(x).to_dataset(name="a").groupby("k").cumsum("t").compute()
    xr.testing.assert_identical(
        several.a.transpose("t", "x"), x.groupby("k").cumsum("t").transpose("t", "x").rename("a")
    )
    moved = cf.open(x).groupby("k").shuffle_to_chunks()
    xr.testing.assert_identical(moved.compute(device="cpu"), x.groupby("k").shuffle_to_chunks())
    one, other = xr.unify_chunks(cf.open(x), cf.open(x) + 1)
    xr.testing.assert_identical(other.compute(device="cpu"), x + 1)
    assert isinstance(one.data, cf.Array)


def test_results_of_functions_have_the_dtypes_that_these_give() -> None:
    x = xr.DataArray(np.full((2, 3), 30000, "i2"), dims=("y", "x"))
    how: dict[str, Any] = {"input_core_dims": [["x"]], "dask": "parallelized"}
    got = xr.apply_ufunc(lambda b: b.sum(-1), cf.open(x), output_dtypes=["i2"], **how).compute(device="cpu")
    assert (got.dtype, got.values.tolist()) == (np.int64, [90000, 90000])

    def two(dtypes: list[str]) -> Any:
        how["output_core_dims"] = [[], []]
        return xr.apply_ufunc(lambda b: (b.sum(-1), b.mean(-1)), cf.open(x), output_dtypes=dtypes, **how)

    for how["vectorize"] in (False, True):
        found = [one.compute(device="cpu").values.tolist() for one in two(["i8", "f8"])]
        assert found == [[90000, 90000], [30000, 30000]]
    with pytest.raises(errors.ResultTypeError, match=r"gives int64, and .* says int16, which does not hold it"):
        two(["i2", "f8"])[0].compute(device="cpu")
    x = xr.DataArray(np.array([0, 60000], "f2"), dims="x", coords={"x": [0.0, 1]})
    outside = {"fill_value": "extrapolate"}
    got = cf.open(x).interp(x=[2], kwargs=outside).compute(device="cpu")
    xr.testing.assert_identical(got, x.interp(x=[2], kwargs=outside))


def test_an_axis_of_length_one_is_no_place() -> None:
    x = xr.DataArray([[1.0, 2.0]], dims=("t", "x"), coords={"name": ("t", [7])})
    lazy = cf.open(x)
    xr.testing.assert_identical(lazy.where(lazy > 0, drop=True).compute(device="cpu"), x)
    xr.testing.assert_identical(x.isel(t=cf.open(xr.DataArray([0], dims="t"))), x)


def test_refusals_name_the_variable(tmp_path: Path) -> None:
    xr.Dataset({"wind": ("x", np.ones(4, "c8"))}).to_zarr(tmp_path / "x.zarr", consolidated=False)
    wind = xr.open_zarr(tmp_path / "x.zarr", consolidated=False, chunked_array_type="chunkflow", chunks={}).wind
    with pytest.raises(errors.ChunkflowError, match="wind is of complex64"):
        cf.quantile(wind, 0.5, device="cpu")


def test_names_are_kept_or_there_are_none() -> None:
    x = xr.DataArray(np.arange(12.0).reshape(4, 3), dims=("time", "x"), coords={"x": [5, 6, 7]})
    for one in (x, cf.open(x)):
        xr.testing.assert_identical(cf.take(one, [3, 1], axis=0).compute(), x[[3, 1]])
        xr.testing.assert_identical(cf.compress([True, False, True, True], one, axis=0).compute(), x[[0, 2, 3]])
    boxes = cf.coarsen(np.mean, cf.open(x), {0: 2})
    assert isinstance(boxes, cf.Array), "without names"
    np.testing.assert_array_equal(boxes.compute(device="cpu"), x.values.reshape(2, 2, 3).mean(axis=1))
    for q in ([0.1, 0.5], 0.3):
        xr.testing.assert_allclose(
            cf.quantile(x, q, dim="time", device="cpu"), x.quantile(q, "time"), check_dim_order=True
        )
    assert cf.percentile(x, [10], dim="x", device="cpu")["quantile"].values.tolist() == [0.1]


def test_what_was_stored_is_what_xarray_would_store(tmp_path: Path) -> None:
    given = dataset()[["air", "raw"]]
    packed = {"air": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}}
    lazy = given.map(cf.open, keep_attrs=True)
    for name, one in (("lazy", lazy), ("eager", given)):
        (one - one.mean("time")).to_zarr(tmp_path / name, encoding=packed, consolidated=False)
    first, second = (
        xr.open_zarr(tmp_path / n, chunks=None, consolidated=False, mask_and_scale=False) for n in ("lazy", "eager")
    )
    xr.testing.assert_allclose(first, second)
    assert first.air.attrs == second.air.attrs


def test_the_accessor_has_the_operations_as_methods(stored: Any) -> None:
    import chunkflow.xarray

    x = stored.raw
    methods = x.chunkflow
    assert isinstance(methods, chunkflow.xarray.Accessor)
    for name in dir(methods):
        assert callable(getattr(methods, name))
    xr.testing.assert_identical(methods.mean(dim="time", device="cpu"), cf.mean(x, dim="time", device="cpu"))
    xr.testing.assert_identical(methods.map(np.add, 1, device="cpu"), cf.map(np.add, x, 1, device="cpu"))
    assert sum(chunk.data.size for chunk in methods.chunks(device="cpu")) == x.size
    with pytest.raises(AttributeError, match="no 'fft'"):
        _ = methods.fft


def test_compute_takes_several_at_once(stored: Any) -> None:
    x = cf.open(stored.raw)
    mean, peak, number, given = cf.compute(x.mean("time"), x.max().variable, 3, stored.raw, device="cpu")
    xr.testing.assert_allclose(mean, stored.raw.mean("time"))
    assert float(peak) == float(stored.raw.max())
    assert number == 3
    assert given is stored.raw or given.identical(stored.raw)
    assert len(cf.explain(x.mean("time"), x.max(), device="cpu")) == 1


def test_arrays_of_xarray_are_written_to_in_place() -> None:
    x = dataset().raw.copy(deep=True)
    out = xr.DataArray(np.zeros(x.shape, "f4"), dims=("i", "j", "k"), coords={"i": np.arange(len(TIMES))}, name="other")
    got = cf.map(np.sqrt, x, out=out, device="cpu")
    xr.testing.assert_identical(got, cf.map(np.sqrt, x, device="cpu"))
    np.testing.assert_array_equal(out, np.sqrt(x.values))
    assert np.shares_memory(got.values, out.values)


def test_weights_go_by_axis(stored: Any) -> None:
    x, weights = stored.raw, stored.area.isel(lon=0)
    got = cf.average(x, dim="lat", weights=weights, device="cpu")
    np.testing.assert_allclose(got, np.average(x.values, 1, weights.values), rtol=1e-6)
    assert got.dims == ("time", "lon")


def test_a_dataset_is_refused_with_its_variables() -> None:
    dataset = xr.Dataset({"t": ("x", np.ones(3)), "p": ("x", np.ones(3))})
    for call in (cf.open, cf.mean, lambda d: cf.map(np.add, np.ones(3), d)):
        with pytest.raises(errors.ArgumentTypeError, match=r"Dataset.*'t', 'p'.*take one"):
            call(dataset)
    assert cf.mean(dataset["t"], device="cpu") == 1


@pytest.mark.parametrize("fn", [cf.mean, cf.median, cf.cumsum, cf.argmax])
def test_dim_of_what_has_no_names_is_refused(fn: Any) -> None:
    for array in (np.ones((3, 3)), cf.open(np.ones((3, 3)))):
        with pytest.raises(errors.ArgumentTypeError, match=r"dim='x'.*DataArray.*use axis="):
            fn(array, dim="x")


def test_what_xarray_fills_like_an_opened_array(tmp_path: Path) -> None:
    given = xr.DataArray(np.arange(12.0).reshape(3, 4), dims=("a", "b"), coords={"a": [1, 2, 3]})
    opened = cf.open(given)
    weights = xr.DataArray([1.0, 2.0], dims="degree", coords={"degree": [0, 1]})
    for fn in (xr.zeros_like, xr.ones_like, lambda x: xr.full_like(x, 2.5), lambda x: xr.full_like(x, 2, dtype=int),
               lambda x: xr.polyval(x, weights)):  # fmt: skip
        got = fn(opened)
        assert isinstance(got.data, cf.Array)
        xr.testing.assert_identical(got.compute(), fn(given))


@pytest.mark.parametrize("core", [{}, {"input_core_dims": [["lon"]]}], ids=["elementwise", "core dimension"])
def test_a_lazy_apply_ufunc_gives_as_many_results_as_an_eager_one(core: dict[str, Any]) -> None:
    air = dataset().raw

    def both(block: Any) -> Any:
        return (block.mean(-1), block.max(-1) > 0.5) if core else (block + 1, block > 0.5)

    eager = cf.apply_ufunc(both, air, output_core_dims=[[], []], device="cpu", **core)
    lazy = cf.apply_ufunc(both, cf.open(air), output_core_dims=[[], []], **core)
    assert isinstance(lazy, tuple)
    assert [each.dtype for each in lazy] == [each.dtype for each in eager]
    for one, other in zip(lazy, eager, strict=True):
        xr.testing.assert_identical(one.compute(), other)
    for array in (air, cf.open(air)):
        for given in ([[]], [[], [], []]):
            with pytest.raises(
                errors.ResultError, match=f"fn returned 2 arrays, and the call names the dimensions of {len(given)}"
            ):
                xr.testing.assert_identical(*cf.apply_ufunc(both, array, output_core_dims=given, **core)[:2])


def test_a_mask_is_laid_out_by_the_names_of_its_dimensions() -> None:
    values = np.arange(16.0).reshape(4, 4)
    x = xr.DataArray(values, dims=("y", "x"), coords={"y": range(4)})
    mask = (x % 3 == 0).transpose("x", "y")
    right = np.sum(values, axis=1, where=values % 3 == 0)
    got = cf.sum(x, dim="x", where=mask, device="cpu")
    np.testing.assert_array_equal(got, right)
    assert got.dims == ("y",)
    row = xr.DataArray(np.array([True, False, True, True]), dims="y")
    np.testing.assert_array_equal(cf.mean(x, axis=0, where=row, device="cpu"), values[[0, 2, 3]].mean(axis=0))
    with pytest.raises(errors.ArgumentError, match="where= of shape"):
        cf.sum(x, where=xr.DataArray(np.ones((4, 2), bool), dims=("x", "z")))


def test_a_function_that_fails_to_decode_is_a_read_error_with_its_place(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(12, dtype="i2").reshape(3, 4), chunks=(2, 2))

    def fails(block: np.ndarray) -> np.ndarray:
        raise ValueError("no such code")

    source = DecodedSource(open_source(str(tmp_path / "x.zarr")), [fails], np.dtype("f4"))
    with pytest.raises(errors.ReadError, match=r"1:3, 0:4.*no such code"):
        source.read((slice(1, 3), slice(0, 4)), np.empty((2, 4), "f4"))
    short = DecodedSource(open_source(str(tmp_path / "x.zarr")), [lambda block: block[:1]], np.dtype("f4"))
    with pytest.raises(errors.ReadError, match=r"shape \(1, 4\).*1:3, 0:4"):
        short.read((slice(1, 3), slice(0, 4)), np.empty((2, 4), "f4"))


def packed_netcdf(path: Path) -> xr.Dataset:
    """A netCDF file of packed numbers, and what it holds."""
    t2m = np.random.default_rng(0).normal(280, 5, (24, 20, 30)).round(2)
    data = xr.Dataset({"t2m": (("time", "lat", "lon"), t2m)}, {"month": ("time", np.arange(24) % 12)})
    packed = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768, "zlib": True}
    data.to_netcdf(path, encoding={"t2m": {**packed, "chunksizes": (12, 20, 30)}})
    return data


HOW = r"\(scale_factor=0\.01, add_offset=280\.0, _FillValue=-32768\)"


def test_a_plan_says_file_chunks_and_decoding_of_what_xarray_reads(tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    packed_netcdf(tmp_path / "a.nc")
    place = re.escape(f"{tmp_path / 'a.nc'}:/t2m")
    with xr.open_dataset(tmp_path / "a.nc", chunks={}, chunked_array_type="chunkflow") as ds:
        said = str(cf.explain(ds.t2m.mean(), device="cpu"))
    assert re.search(rf"read +{place}: .*which decodes chunks \(12, 20, 30\) in memory of its own {HOW}", said)
    with xr.open_dataset(tmp_path / "a.nc", chunks=None) as ds:
        x = cf.open(ds.t2m)
        assert re.search(
            rf"read +{place}: .*through xarray, which decodes it {HOW}", str(cf.explain(x.mean(), device="cpu"))
        )
        instead = (
            rf"xarray decodes its whole chunks, where chunkflow\.open\('{place}', decode='cf'\) reads the file itself"
        )
        with pytest.raises(errors.BudgetError, match=instead) as caught:
            x.mean().compute(budget="1kB", device="cpu")
        found = x.mean().compute(budget=caught.value.smallest, device="cpu")
    lazy = cf.open(f"{tmp_path / 'a.nc'}:/t2m", decode="cf")
    with pytest.raises(errors.BudgetError) as least:
        lazy.mean().compute(budget="1kB", device="cpu")
    assert least.value.smallest < caught.value.smallest
    np.testing.assert_allclose(found, lazy.mean().compute(device="cpu"), rtol=1e-12)


@pytest.mark.parametrize("kind", ["array", "dataset"])
def test_of_anomalies_a_climatology_in_memory_is_no_array_of_dasks(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")
    data = packed_netcdf(tmp_path / "a.nc")
    with xr.open_dataset(tmp_path / "a.nc", chunks={}, chunked_array_type="chunkflow") as ds:
        ds = ds.assign_coords(month=data.month)
        x, expected = (ds.t2m, data.t2m) if kind == "array" else (ds, data)
        months = x.groupby("month").mean().compute(device="cpu")
        anomalies = x.groupby("month") - months
        lazy = anomalies.data if kind == "array" else anomalies.t2m.data
        assert isinstance(lazy, cf.Array)
        assert "dask" not in str(cf.explain(lazy, device="cpu"))
        wanted = expected.groupby("month") - expected.groupby("month").mean()
        xr.testing.assert_allclose(anomalies.compute(device="cpu"), wanted, atol=1e-9)
        xr.testing.assert_allclose(
            (months + x.groupby("month")).compute(device="cpu"), expected.groupby("month") + months
        )


def test_xarrays_own_writers_have_the_budget_of_a_with_statement(stored: Any, tmp_path: Path) -> None:
    x = cf.open(stored.air) * 2
    with cf.Budget("100B"), pytest.raises(errors.BudgetError, match="100 bytes"):
        x.to_dataset(name="y").to_zarr(tmp_path / "y.zarr", consolidated=False)
    with cf.config.set(budget="100B"), pytest.raises(errors.BudgetError, match="100 bytes"):
        x.to_zarr(tmp_path / "z.zarr", consolidated=False)


def anomalies(path: Path) -> tuple[xr.DataArray, xr.DataArray]:
    """As expressions, and as xarray computes them."""
    rng = np.random.default_rng(4)
    x = xr.DataArray(rng.random((200, 40, 50)), dims=("time", "lat", "lon"), name="t", attrs={"units": "K"})
    x[3, 4, 5] = np.nan
    x.to_dataset().to_zarr(path, encoding={"t": {"chunks": (50, 20, 50)}}, consolidated=False)
    lazy = xr.open_zarr(path, chunks={}, chunked_array_type="chunkflow", consolidated=False).t
    return lazy - lazy.mean("time"), x - x.mean("time")


@pytest.mark.parametrize(
    ("encoding", "sides", "atol"),
    [
        ({}, None, 1e-12),
        ({"chunks": (20, 20, 25)}, (20, 20, 25), 1e-12),
        ({"dtype": "f4"}, None, 1e-6),
        ({"dtype": "i2", "scale_factor": 1e-4, "_FillValue": -(1 << 15)}, None, 1e-4),
    ],
)
def test_new_zarr_arrays_have_chunks_that_fit_the_budget(
    encoding: dict[str, Any], sides: Any, atol: float, tmp_path: Path
) -> None:
    lazy, right = anomalies(tmp_path / "x.zarr")
    with cf.Budget("1MB") as budget:
        lazy.to_zarr(tmp_path / "y.zarr", encoding={"t": encoding} if encoding else None, consolidated=False)
    found = xr.open_zarr(tmp_path / "y.zarr", consolidated=False).t
    assert 0 < budget.peak <= 1_000_000
    xr.testing.assert_allclose(found, right, atol=atol, rtol=0)
    assert found.attrs == {"units": "K"}
    chunks = zarr.open_array(tmp_path / "y.zarr" / "t").chunks
    assert chunks == sides if sides else np.prod(chunks) * 8 < 1_000_000
    # Into arrays that are there: their chunks are not the ones of the expression.
    with cf.Budget("1.5MB"):
        (lazy + 1).to_zarr(tmp_path / "y.zarr", mode="a", consolidated=False)
        (lazy + 2).isel(time=slice(3, 50)).to_zarr(
            tmp_path / "y.zarr",
            region={"time": slice(3, 50), "lat": slice(None), "lon": slice(None)},
            consolidated=False,
        )
    right = right + 1
    right[3:50] += 1
    with xr.open_zarr(tmp_path / "y.zarr", consolidated=False) as found:
        xr.testing.assert_allclose(found.t, right, atol=2 * atol, rtol=0)


@pytest.mark.parametrize("engine", ["h5netcdf", "scipy"])
def test_what_does_not_fit_leaves_an_older_file_as_it_was(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    lazy, right = anomalies(tmp_path / "x.zarr")
    right.to_netcdf(tmp_path / "y.nc", engine=engine)
    with cf.Budget("20kB"), pytest.raises(cf.BudgetError, match=r"raise the budget, by .with chunkflow\.Budget"):
        lazy.to_netcdf(tmp_path / "y.nc", engine=engine)
    with xr.open_dataset(tmp_path / "y.nc", engine=engine) as found:
        xr.testing.assert_identical(found.t.load(), right)
    packed = {"t": {"dtype": "i2", "scale_factor": 1e-4, "_FillValue": -(1 << 15)}}
    with cf.Budget("1MB"):
        lazy.to_netcdf(tmp_path / "y.nc", engine=engine, encoding=packed)
    with xr.open_dataset(tmp_path / "y.nc", engine=engine) as found:
        xr.testing.assert_allclose(found.t.load(), right, atol=1e-4, rtol=0)


@pytest.mark.parametrize("budget", ["20kB", "1MB"])
def test_what_does_not_fit_leaves_an_older_store_as_it_was(budget: str, tmp_path: Path) -> None:
    lazy, right = anomalies(tmp_path / "x.zarr")
    right.to_zarr(tmp_path / "y.zarr", consolidated=False)
    asked = {"t": {"chunks": (200, 40, 50)}} if budget == "1MB" else {}
    with cf.Budget(budget), pytest.raises(cf.BudgetError) as caught:
        lazy.to_zarr(tmp_path / "y.zarr", mode="w", encoding=asked, consolidated=False)
    assert "raise the budget, by 'with chunkflow.Budget(...):'" in str(caught.value)
    assert ("blocks hold whole chunks (200, 40, 50) of t; chunks=" in str(caught.value)) == bool(asked)
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "y.zarr", consolidated=False).t.load(), right)
    lazy.to_zarr(tmp_path / "z.zarr", chunkmanager_store_kwargs={"budget": "1MB"}, consolidated=False)
    xr.testing.assert_allclose(xr.open_zarr(tmp_path / "z.zarr", consolidated=False).t, right)


def test_a_labelled_expression_is_explained_and_run(tmp_path: Path) -> None:
    x = xr.DataArray(cf.open(np.ones((30, 20))), dims=("t", "y"))
    analysis = cf.explain(x.mean("t"), analyze=True, device="cpu")
    assert [run.plan.bytes_in for run in analysis.runs] == [30 * 20 * 8]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.rank("time"),
        lambda x: x.where(x > 0.5),
        lambda x: x.isel(time=[1, 3]),
        lambda x: x.ffill("time"),
        lambda x: x.interpolate_na("lon"),
        lambda x: x.rolling(time=3).mean(),
        lambda x: x.groupby("time.month").cumsum(),
        lambda x: x.groupby("time.month") - x.groupby("time.month").mean(),
        lambda x: x.polyfit("time", 1).polyfit_coefficients,
        lambda x: x.quantile(0.5, "time"),
        lambda x: x.idxmax("lat"),
    ],
)
def test_a_files_scale_is_kept_where_xarray_keeps_it(work: Any, tmp_path: Path) -> None:
    """Ranks that were stored as packed numbers of a few degrees would be wrong."""
    rng, days = np.random.default_rng(5), np.datetime64("2001-01-01", "ns") + np.arange(70) * np.timedelta64(1, "D")
    x = xr.DataArray(rng.random((70, 4, 5)), {"time": days, "lat": range(4), "lon": range(5)}, name="t")
    x[3, 2, 1] = np.nan
    packed = {"t": {"dtype": "i2", "scale_factor": 1e-3, "add_offset": 0.5, "_FillValue": -(1 << 15)}}
    x.to_dataset().to_zarr(tmp_path / "x.zarr", encoding=packed, consolidated=False)
    opened = {"consolidated": False, "mask_and_scale": True}
    lazy = work(xr.open_zarr(tmp_path / "x.zarr", chunks={}, chunked_array_type="chunkflow", **opened).t).rename("y")
    try:
        plain = work(xr.open_zarr(tmp_path / "x.zarr", chunks=None, **opened).t.load()).rename("y")
    except ImportError:  # without bottleneck xarray has no ranks, and fills nothing: what was computed is right
        plain = lazy.compute(device="cpu").drop_encoding()
    else:
        kept = {"dtype", "scale_factor", "add_offset", "_FillValue"}
        assert lazy.encoding.keys() & kept == plain.encoding.keys() & kept
    lazy.to_zarr(tmp_path / "y.zarr", consolidated=False)
    plain.to_zarr(tmp_path / "z.zarr", consolidated=False)
    found, right = (xr.open_zarr(tmp_path / name, chunks=None, consolidated=False).y for name in ("y.zarr", "z.zarr"))
    xr.testing.assert_allclose(found.transpose(*right.dims), right, atol=1e-9)


def pair(path: Path, **encoding: Any) -> Any:
    """Two arrays in a store, and the dataset of expressions that xarray opens there."""
    values = np.random.default_rng(6).random((40, 6, 8))
    given = xr.Dataset({name: (("time", "lat", "lon"), values + i) for i, name in enumerate("ab")}, {"lat": range(6)})
    kept = {name: {"chunks": (10, 6, 8), **encoding} for name in "ab"}
    given.to_zarr(path, encoding=kept, consolidated=False)
    return given, xr.open_zarr(path, chunks={}, chunked_array_type="chunkflow", consolidated=False)


OWN: dict[str, Any] = {
    "values": lambda x, to: (x + 1).to_zarr(to, mode="w", consolidated=False),
    "the dataset": lambda x, to: x.to_zarr(to, mode="w", consolidated=False),
    "picked": lambda x, to: x.isel(time=[5, 3]).to_zarr(to, mode="w", consolidated=False),
    "one variable": lambda x, to: x.assign(a=x.a.load()).to_zarr(to, mode="w", consolidated=False),
    "a store": lambda x, to: x.to_zarr(zarr.storage.LocalStore(to), mode="w", consolidated=False),
    "a URL": lambda x, to: x.to_zarr(f"file://{to}", mode="w", consolidated=False),
    "an array": lambda x, to: (x.b - x.b.mean("time")).to_zarr(to, mode="w", consolidated=False),
    "a tree": lambda x, to: xr.DataTree.from_dict({"/": x, "/more": x}).to_zarr(to, mode="w", consolidated=False),
    "exchanged": lambda x, to: x.rename(a="b", b="a").to_zarr(to, mode="a", consolidated=False),
    "replaced before": lambda x, to: x.assign(a=x.b + 1, b=x.b.load() * 0).to_zarr(to, mode="a", consolidated=False),
    "a region": lambda x, to: (
        x.isel(time=slice(0, 9))
        .drop_vars("lat")
        .to_zarr(to, region={"time": slice(1, 10), "lat": slice(0, 6), "lon": slice(0, 8)}, consolidated=False)
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", OWN)
def test_what_is_still_to_be_read_is_neither_emptied_nor_replaced(way: str, packed: bool, tmp_path: Path) -> None:
    code = {"dtype": "i2", "scale_factor": 1e-3, "_FillValue": -1} if packed else {}
    path = tmp_path / "x.zarr"
    given, lazy = pair(path, **code)
    with pytest.raises(errors.ArgumentError, match=r"still to be read|overlap|reads from the stored"):
        OWN[way](lazy, path)
    xr.testing.assert_allclose(xr.open_zarr(path, chunks=None, consolidated=False).load(), given, atol=1e-3)
    if not packed:  # in place
        (lazy + 1).drop_vars("lat").assign(c=lazy.a * 2).to_zarr(path, mode="a", consolidated=False)
        found = xr.open_zarr(path, chunks=None, consolidated=False)
        np.testing.assert_array_equal(found.a, given.a + 1)
    (lazy * 0).to_zarr(path, group="beside", mode="w", consolidated=False)  # which empties nothing that is read
    assert not xr.open_zarr(path, group="beside", chunks=None, consolidated=False).b.any()


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("engine", ["scipy", "netcdf4", "h5netcdf"])
def test_a_netcdf_file_is_not_written_while_it_is_still_to_be_read(engine: str, mode: Any, tmp_path: Path) -> None:
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    if engine == "netcdf4":
        pytest.importorskip("netCDF4")
    given, _ = pair(tmp_path / "x.zarr")
    given.to_netcdf(tmp_path / "x.nc", engine=engine)
    with xr.open_dataset(tmp_path / "x.nc", engine=engine, chunks={}, chunked_array_type="chunkflow") as lazy:
        with pytest.raises(errors.ArgumentError, match=r"still to be read from .*x\.nc"):
            (lazy + 1).to_netcdf(tmp_path / "x.nc", engine=engine, mode=mode)
        with pytest.raises(errors.ArgumentError, match=r"still to be read from .*x\.nc"):
            xr.save_mfdataset([given, lazy], [tmp_path / "x.nc", tmp_path / "y.nc"], mode=mode, engine=engine)
        assert not (tmp_path / "y.nc").exists()
        xr.testing.assert_identical(lazy.compute(device="cpu"), given)


def test_what_does_not_fit_is_not_appended(tmp_path: Path) -> None:
    given, lazy = pair(tmp_path / "x.zarr")
    given.assign_attrs(made="first").to_zarr(
        tmp_path / "y.zarr", encoding={"a": {"dtype": "i2", "scale_factor": 1e-3, "_FillValue": -1}}, zarr_format=2
    )
    region: Any = {"time": slice(0, 20), "lat": slice(0, 6), "lon": slice(0, 8)}
    new, part = lazy.assign_attrs(made="later") + 0, (lazy * 0).drop_vars("lat").isel(time=slice(0, 20))
    writes: list[Any] = [
        lambda **k: new.to_zarr(tmp_path / "y.zarr", append_dim="time", **k),
        lambda **k: part.to_zarr(tmp_path / "y.zarr", region=region, **k),
        lambda **k: lazy.rename(a="c", b="d").to_zarr(tmp_path / "y.zarr", mode="a", **k),
    ]
    for write in writes:
        with cf.Budget("3kB"), pytest.raises(cf.BudgetError, match=r"raise the budget, by 'with chunkflow\.Budget"):
            write()
        with pytest.raises(cf.BudgetError, match="raise budget="):
            write(chunkmanager_store_kwargs={"budget": "3kB"})
        xr.testing.assert_allclose(xr.open_zarr(tmp_path / "y.zarr").load(), given, atol=1e-3)
        assert xr.open_zarr(tmp_path / "y.zarr").attrs == {"made": "first"}
    with cf.Budget("4MB"):
        writes[0]()
    found = xr.open_zarr(tmp_path / "y.zarr")
    np.testing.assert_allclose(found.b, np.concatenate([given.b] * 2))
    assert found.sizes["time"] == 80


def test_an_append_that_fails_gives_arrays_their_lengths_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, lazy = pair(tmp_path / "x.zarr")
    given.to_zarr(tmp_path / "y.zarr", zarr_format=2)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("chunkflow.xarray.ChunkManager.store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            (lazy + 1).to_zarr(tmp_path / "y.zarr", append_dim="time")
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "y.zarr").load(), given)
    (lazy + 1).to_zarr(tmp_path / "y.zarr", append_dim="time")
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "y.zarr").a, np.concatenate([given.a, given.a + 1]))


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("name", ["a", "lat"])
@pytest.mark.parametrize("strange", ["scale_facter", "chunk", "compressor"])
def test_encodings_that_zarr_has_not_are_refused_as_xarray_refuses_them(
    strange: str, name: str, mode: Any, tmp_path: Path
) -> None:
    given, lazy = pair(tmp_path / "x.zarr")
    path = tmp_path / "y.zarr"
    (given if mode == "w" else given.rename(a="c", b="d", lat="height")).to_zarr(path, consolidated=False)
    before = xr.open_zarr(path, consolidated=False).load()
    for one in (lazy + 1, given + 1):
        if mode == "a" or one.a.chunks:  # plain xarray empties the store before
            with pytest.raises(ValueError, match=f"unexpected encoding parameters for zarr backend:  .'{strange}'"):
                one.to_zarr(path, mode=mode, encoding={name: {strange: None}}, consolidated=False)
            xr.testing.assert_identical(xr.open_zarr(path, consolidated=False)[list(before)].load(), before)


def test_an_encoding_that_is_given_is_all_of_it(tmp_path: Path) -> None:
    """As with plain xarray: the scale of the file that was read is not one of values a thousand times as large."""
    given, lazy = pair(tmp_path / "x.zarr", dtype="i2", scale_factor=1e-4, _FillValue=-1)
    (lazy * 1).assign(a=(lazy.a * 1000).assign_attrs(lazy.a.attrs)).to_zarr(
        tmp_path / "y.zarr", encoding={"a": {"chunks": (20, 6, 8)}}, consolidated=False
    )
    found = xr.open_zarr(tmp_path / "y.zarr", consolidated=False).a
    assert zarr.open_array(tmp_path / "y.zarr" / "a").chunks == (20, 6, 8)
    np.testing.assert_allclose(found, given.a * 1000, atol=0.1)


CHUNKED: dict[str, Any] = {
    "a size": (lambda x: x.chunk(time=20), (20, 20, 30)),
    "sizes, one by one": (lambda x: x.chunk({"time": 20}).chunk(lat=5), (20, 5, 30)),
    "whole lines": (lambda x: x.chunk({"time": -1}), (4000, 10, 15)),
    "a tuple": (lambda x: x.variable.chunk({"time": (1000, 1000, 2000)}), (1000, 20, 30)),
    "years": (lambda x: x.chunk(time=xr.groupers.TimeResampler("YE")), (365, 20, 30)),
    "any": (lambda x: x.chunk(), (1000, 20, 30)),
    "auto": (lambda x: x.chunk("auto"), (1000, 20, 30)),
    "a dataset": (lambda x: x.to_dataset(name="a").assign(z=("lat", np.ones(20))).chunk(time=20).a, (20, 20, 30)),
    "in memory": (lambda x: x.compute().chunk(chunked_array_type="chunkflow"), (1000, 20, 30)),
}


@pytest.fixture(scope="module")
def long_lines(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An array with gaps in long lines, and its expression."""
    values = np.random.default_rng(7).random((4000, 20, 30))
    values[5:9] = np.nan
    times = (np.datetime64("2001-01-01") + np.arange(4000)).astype("M8[ns]")
    x = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"time": times}, name="a")
    path = tmp_path_factory.mktemp("long") / "x.zarr"
    x.to_zarr(path, consolidated=False)
    return x, xr.open_zarr(path, chunks={}, chunked_array_type="chunkflow", consolidated=False).a * 1


@pytest.mark.parametrize("way", CHUNKED)
def test_chunks_that_are_asked_for_leave_expressions_expressions(way: str, long_lines: Any) -> None:
    ask, sides = CHUNKED[way]
    found = ask(long_lines[1])
    assert isinstance(found.data, cf.Array)
    assert tuple(each[0] for each in found.chunks) == sides
    np.testing.assert_array_equal(found.compute(device="cpu"), long_lines[0])


@pytest.mark.parametrize("whole", [False, True])
def test_lines_in_several_chunks_are_whole_to_functions_of_lines(whole: bool, long_lines: Any) -> None:
    plain, lazy = long_lines
    lazy = lazy.chunk({"time": -1}) if whole else lazy
    assert (len(lazy.chunks[0]) == 1) == whole
    names: Any = {"input_core_dims": [["time"]], "output_core_dims": [["time"]]}

    def ordered(block: np.ndarray) -> np.ndarray:
        return np.sort(block, axis=-1)

    found = xr.apply_ufunc(ordered, lazy, dask="parallelized", output_dtypes=[float], **names)
    filled = lazy.interpolate_na("time")
    with cf.Budget("24MB"):
        xr.testing.assert_identical(found.compute(), xr.apply_ufunc(ordered, plain, **names))
        xr.testing.assert_allclose(filled.compute(), plain.interpolate_na("time"))


@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_dates_of_other_calendars_are_loaded_and_all_else_is_not(calendar: str, tmp_path: Path) -> None:
    pytest.importorskip("netCDF4")  # which brings cftime
    units, days = {"units": "days since 2000-01-01", "calendar": calendar}, np.arange(730.0)
    raw = xr.Dataset(
        {
            "t": (("time", "lat"), np.arange(1460.0).reshape(730, 2)),
            "time_bnds": (("time", "bnds"), np.stack([days, days + 1], 1)),
            "when": ("lat", [3.0, 4.0], units),
        },
        {"time": ("time", days, {**units, "bounds": "time_bnds"})},
    )
    raw.to_netcdf(tmp_path / "x.nc", engine="scipy")
    raw.to_netcdf(tmp_path / "y.nc", engine="scipy")
    how: Any = {"chunks": {}, "chunked_array_type": "chunkflow", "engine": "scipy"}
    with xr.open_dataset(tmp_path / "x.nc", engine="scipy") as plain, xr.open_dataset(tmp_path / "x.nc", **how) as lazy:
        assert isinstance(lazy.t.data, cf.Array)
        assert lazy.time_bnds.dtype == lazy.when.dtype == object
        assert isinstance(lazy.time_bnds.variable._data, np.ndarray)
        xr.testing.assert_allclose(lazy.t.groupby("time.month").mean().compute(), plain.t.groupby("time.month").mean())
        xr.testing.assert_identical(lazy.time_bnds, plain.time_bnds)
        lazy.to_zarr(tmp_path / "x.zarr", consolidated=False)
        with xr.open_zarr(tmp_path / "x.zarr", consolidated=False) as again:
            xr.testing.assert_identical(again.load(), plain.load())
    paths = [tmp_path / "x.nc", tmp_path / "y.nc"]
    joined: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "outer"}
    with xr.open_mfdataset(paths, combine="nested", concat_dim="time", **joined, **how) as both:
        assert isinstance(both.t.data, cf.Array)
        assert both.time_bnds.shape == (1460, 2)


@pytest.mark.parametrize("dim", [..., ("time", "lat"), "time", None])
def test_quantiles_of_groups_take_any_length(dim: Any, long_lines: Any) -> None:
    plain, lazy = (x.isel(lat=slice(0, 5)) for x in long_lines)
    groups, right = (x.groupby("time.season") for x in (lazy, plain))
    found = groups.quantile([0.1, 0.9], dim=dim)
    assert isinstance(found.data, cf.Array)
    with cf.Budget("3MB"):
        xr.testing.assert_allclose(found.compute(), right.quantile([0.1, 0.9], dim=dim))
        xr.testing.assert_allclose(groups.median(dim=dim).compute(), right.median(dim=dim))


@pytest.mark.parametrize("out", ["out.zarr/t", "out.nc:/t"])
def test_results_of_labelled_arrays_are_labelled_for_others(out: str, tmp_path: Path) -> None:
    """And their file is closed, so that xarray opens it at once."""
    h5py = pytest.importorskip("h5py")
    x = xr.DataArray(np.arange(12.0).reshape(3, 4), dims=("lat", "lon"), coords={"lat": [1, 2, 3]}, name="t")
    for number, (given, wanted) in enumerate([(x, ("lat", "lon")), (x.T, ("lon", "lat"))]):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = cf.map(np.negative, given, out=str(folder / out), device="cpu")
        if "zarr" in out:
            with xr.open_zarr(folder / "out.zarr", consolidated=False) as found:
                assert found["t"].dims == wanted
                np.testing.assert_array_equal(found["t"].values, -given.values)
        else:
            with h5py.File(folder / "out.nc", "r") as file:  # in another mode than it was open
                assert tuple(Path(d[0].name).name for d in file["t"].dims) == wanted
                np.testing.assert_array_equal(file["t"][...], -given.values)
        np.testing.assert_array_equal(result.values, -given.values)
        np.testing.assert_array_equal(result[1:, 2].values, -given.values[1:, 2])
        assert float(cf.sum(result, device="cpu")) == -66
        assert result.dims == wanted


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_chunks_of_netcdf_take_the_time_that_their_library_takes(engine: Any, tmp_path: Path) -> None:
    """Each read counted as if it decoded a chunk of floats: runs were predicted to take twenty times as long."""
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    if engine == "netcdf4":
        pytest.importorskip("netCDF4")
    given = xr.DataArray(np.random.default_rng(0).random((400, 30, 40)), dims=("time", "lat", "lon"), name="t")
    packed = {"dtype": "i2", "scale_factor": 1e-4, "_FillValue": -1, "zlib": True, "chunksizes": (100, 30, 40)}
    given.to_netcdf(tmp_path / "x.nc", engine=engine, encoding={"t": packed})
    opened: dict[str, Any] = {"engine": engine, "chunks": {}, "chunked_array_type": "chunkflow"}
    with xr.open_dataset(tmp_path / "x.nc", **opened) as lazy:
        storage = open_source(lazy.t.data._node.source).spec.storage
        chunk = 100 * 30 * 40 * 2
        assert storage.behind is not None
        assert storage.behind.chunks == (100, 30, 40)
        assert storage.behind.seconds == pytest.approx(chunk / 3e8)
        keeps = engine == "netcdf4"
        assert (storage.behind.kept >= 4, storage.asking < 1e-3) == (keeps, keeps)
        plan = cf.explain(lazy.t.rolling(time=30).mean().data, budget="500kB", device="cpu").plans[0]
        reads = len(plan.grid)
        assert reads > 20
        if keeps:
            assert plan.estimate.asking == pytest.approx(storage.asking * reads + 4 * chunk / 3e8)
        else:
            assert plan.estimate.asking > (storage.asking + chunk / 3e8) * reads
