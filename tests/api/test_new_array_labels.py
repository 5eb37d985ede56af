"""What a zarr array stores beside its elements stays with its copies."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf

CPU = {"device": "cpu"}
SAID = {"units": "K", "nested": {"valid": [0, 1]}, "scale_factor": 0.5, "_FillValue": -1}


@pytest.fixture(params=[2, 3])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """In either format, with names of dimensions as xarray has them there."""
    array = np.arange(480, dtype="i2").reshape(8, 6, 10)
    how: dict[str, Any] = {"attributes": SAID, "dimension_names": ("z", "y", "x")}
    if request.param == 2:
        beside = {name: value for name, value in SAID.items() if name != "_FillValue"}
        how = {"attributes": {**beside, "_ARRAY_DIMENSIONS": ["z", "y", "x"]}, "fill_value": SAID["_FillValue"]}
    zarr.create_array(tmp_path / "x.zarr", data=array, chunks=(8, 2, 2), zarr_format=request.param, **how)
    return tmp_path / "x.zarr"


def labels(path: Path) -> tuple[dict[str, Any], list[str] | None]:
    array = zarr.open_array(path)
    attributes = array.attrs.asdict()
    if array.metadata.zarr_format == 2:
        return attributes, attributes.pop("_ARRAY_DIMENSIONS", None)
    names = array.metadata.dimension_names  # type: ignore[union-attr]
    return attributes, None if names is None else list(names)


@pytest.mark.filterwarnings("ignore:.*scale_factor")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_copy_keeps_them(source: Path, zarr_format: Any) -> None:
    out = source.parent / "y.zarr"
    cf.copy(source, cf.NewArray(out, zarr_format=zarr_format), **CPU)
    assert labels(out) == (SAID, ["z", "y", "x"])
    np.testing.assert_array_equal(zarr.open_array(out)[...], zarr.open_array(source)[...])


@pytest.mark.filterwarnings("ignore:.*scale_factor")
@pytest.mark.parametrize("budget", ["64MB", 500_000])
def test_other_chunks_keep_them(source: Path, budget: Any) -> None:
    out = source.parent / "y.zarr"
    cf.rechunk(source, (1, -1, -1), out, budget=budget, **CPU)
    assert labels(out) == (SAID, ["z", "y", "x"])


def test_two_passes_keep_them(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((96, 96, 96))
    said = {"units": "K"}
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(96, 4, 4), attributes=said, dimension_names=("z", "y", "x"))
    plan = cf.rechunk_plan(tmp_path / "x.zarr", (1, 96, 96), budget="1MB", **CPU)
    assert plan.intermediate is not None
    cf.rechunk(tmp_path / "x.zarr", (1, 96, 96), tmp_path / "y.zarr", budget="1MB", **CPU)
    assert labels(tmp_path / "y.zarr") == (said, ["z", "y", "x"])


@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_what_is_said_comes_first(source: Path) -> None:
    out = source.parent / "y.zarr"
    cf.copy(source, cf.NewArray(out, attributes={}, dimension_names=("a", "b", "c")), **CPU)
    assert labels(out) == ({}, ["a", "b", "c"])


@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_results_of_other_operations_have_none_of_them(source: Path) -> None:
    out = source.parent / "y.zarr"
    cf.map(np.negative, source, out=out, **CPU)
    assert labels(out)[0] == {}
    cf.copy(source, source.parent / "y.npy", **CPU)
    np.testing.assert_array_equal(np.load(source.parent / "y.npy"), zarr.open_array(source)[...])


def test_they_stay_among_formats(tmp_path: Path) -> None:
    """What HDF5 has no attributes for stays away, and what are its own."""
    said = {"units": "K", "valid": [0, 1], "nested": {"a": 1}, "_FillValue": -1}
    x = np.arange(48).reshape(6, 8)
    zarr.create_array(tmp_path / "x.zarr", data=x, attributes=said, dimension_names=("y", "x"))
    with pytest.warns(cf.errors.CodingWarning), pytest.warns(cf.errors.LossWarning, match=r"x.h5.* nested=\{'a': 1\};"):
        cf.copy(tmp_path / "x.zarr", tmp_path / "x.h5", **CPU)
    with pytest.warns(cf.errors.CodingWarning):  # bare dimensions are no datasets beside it
        cf.copy(tmp_path / "x.h5", tmp_path / "y.zarr", **CPU)
    del said["nested"]
    assert labels(tmp_path / "y.zarr") == (said, ["y", "x"])
    with h5py.File(tmp_path / "x.h5") as file:
        assert [next(iter(d.values())).name for d in file["data"].dims] == ["/y", "/x"]
        assert file["data"].attrs["_FillValue"].dtype == x.dtype


def test_missing_floats_are_named_as_xarray_reads_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", data=np.ones(3)).attrs["_FillValue"] = np.array([1e20])
        file.create_dataset("b", data=np.ones(3)).attrs["_FillValue"] = np.nan
    with pytest.warns(cf.errors.CodingWarning):
        cf.copy(f"{tmp_path}/x.h5:/a", tmp_path / "a.zarr", **CPU)
    cf.copy(f"{tmp_path}/x.h5:/b", tmp_path / "b.zarr", **CPU)
    assert labels(tmp_path / "a.zarr") == ({"missing_value": 1e20}, None)
    assert labels(tmp_path / "b.zarr") == ({}, None)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_numbers_that_json_does_not_have_are_told(zarr_format: Any, tmp_path: Path) -> None:
    """Other programs would open no array with them; of missing numbers NaN says nothing."""
    said = {"units": "K", "top": float("inf"), "range": [0.0, float("nan")], "least": float("nan")}
    nan = {"missing_value": float("nan"), "_FillValue": float("nan")}
    x = zarr.create_array(tmp_path / "x.zarr", shape=4, dtype="f4", attributes=said | nan, zarr_format=zarr_format)
    x[...] = np.arange(4)
    out = cf.NewArray(tmp_path / "y.zarr", zarr_format=zarr_format)
    with pytest.warns(cf.errors.LossWarning, match=r"y.zarr gets .*: least=nan, range=\[0.0, nan\], top=inf; "):
        cf.copy(tmp_path / "x.zarr", out, **CPU)
    assert dict(zarr.open_array(tmp_path / "y.zarr").attrs) == {"units": "K"}
    for document in (tmp_path / "y.zarr").rglob("*.z*"):
        json.loads(document.read_text(), parse_constant=pytest.fail)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cf.copy(tmp_path / "x.zarr", replace(out, attributes={"top": "inf"}), overwrite=True, **CPU)


@pytest.mark.parametrize("out", ["x.zarr", "x.h5:/a/b", "v2"])
def test_attributes_that_are_gone_are_told(out: str, tmp_path: Path) -> None:
    """In place, too, where nothing is said of how the numbers are coded: they were decoded."""
    said = {"units": "K", "long_name": "air", "scale_factor": 0.5}
    place = cf.NewArray(
        tmp_path / out, attributes=said, **({"zarr_format": 2, "format": "zarr"} if out == "v2" else {})
    )
    cf.copy(np.arange(8, dtype="i2"), place, **CPU)
    path = str(tmp_path / out)
    again = cf.NewArray(path, format="zarr" if out == "v2" else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy = cf.open(path, decode="cf")
        with pytest.warns(cf.errors.LossWarning, match=r"is replaced, and its attributes are gone: long_name, units;"):
            cf.store(lazy + 1, again, overwrite=True, device="cpu")
        np.testing.assert_array_equal(cf.open(path).compute(device="cpu"), np.arange(8) / 2 + 1)
        cf.map(np.negative, path, out=again, overwrite=True, **CPU)  # none is left
        for attributes in ({"units": "m"}, {}):
            cf.map(np.negative, path, out=replace(again, attributes=attributes), overwrite=True, **CPU)


@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_a_copy_over_an_array_brings_its_attributes(source: Path) -> None:
    out = source.parent / "y.zarr"
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error", cf.errors.LossWarning)
            cf.copy(source, out, overwrite=True, **CPU)
    assert labels(out) == (SAID, ["z", "y", "x"])


def test_a_result_keeps_the_scales_of_what_it_replaces(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["lat"] = np.arange(3.0)
        file["lat"].make_scale("lat")
        file.create_dataset("t", data=np.arange(3, dtype="i2")).attrs.update(units="K", add_offset=1.0)
        file["t"].dims[0].attach_scale(file["lat"])
    path = f"{tmp_path}/x.nc:/t"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cf.store(cf.map(np.negative, cf.open(path, decode="cf")), path, overwrite=True, device="cpu")
    assert [each.category for each in told] == [cf.errors.LossWarning]
    with h5py.File(tmp_path / "x.nc") as file:
        assert file["t"].dims[0][0] == file["lat"]
        np.testing.assert_array_equal(file["t"][...], [-1.0, -2.0, -3.0])


HOW: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip", "compression_opts": 7, "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "raw": {},
}


def how(path: Path) -> tuple[Any, ...]:
    with h5py.File(path) as file:
        made = file["t"].id.get_create_plist()
        filters = [made.get_filter(i)[0::2] for i in range(made.get_nfilters())]
        return file["t"].chunks, [(code, values) for code, values in filters]


@pytest.mark.parametrize("name", HOW)
def test_a_copy_among_hdf5_is_stored_as_its_source(name: str, tmp_path: Path) -> None:
    x = np.arange(600, dtype="i4").reshape(20, 30)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("t", data=x, chunks=(5, 30), **HOW[name])
    source, own = f"{tmp_path}/x.h5:/t", how(tmp_path / "x.h5")
    cf.copy(source, f"{tmp_path}/y.h5:/t", **CPU)
    assert how(tmp_path / "y.h5") == own
    with h5py.File(tmp_path / "x.h5") as file:
        cf.copy(file["t"], f"{tmp_path}/z.h5:/t", **CPU)
    assert how(tmp_path / "z.h5") == own
    cf.rechunk(source, (20, 10), f"{tmp_path}/w.h5:/t", **CPU)
    assert how(tmp_path / "w.h5")[0] == (20, 10)
    assert [code for code, _ in how(tmp_path / "w.h5")[1]] == [code for code, _ in own[1]]
    for said in ({"compressors": None}, {"filters": "shuffle"}, {"compressors": "gzip"}):
        cf.copy(source, cf.NewArray(f"{tmp_path}/v.h5:/t", **said), overwrite=True, **CPU)
        assert len(how(tmp_path / "v.h5")[1]) == (0 if None in said.values() else 1)
        np.testing.assert_array_equal(cf.open(f"{tmp_path}/v.h5:/t").compute(device="cpu"), x)
    for path in "yzw":
        np.testing.assert_array_equal(cf.open(f"{tmp_path}/{path}.h5:/t").compute(device="cpu"), x)


def test_filters_that_lose_digits_stay_away(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 600).reshape(20, 30)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("t", data=x, chunks=(5, 30), scaleoffset=3, compression="gzip")
    cf.copy(f"{tmp_path}/x.h5:/t", f"{tmp_path}/y.h5:/t", **CPU)
    assert how(tmp_path / "y.h5") == ((5, 30), [(1, (4,))])
    stored = [cf.open(f"{tmp_path}/{name}.h5:/t").compute(device="cpu") for name in "xy"]
    np.testing.assert_array_equal(*stored)


def _turned(array: Any, out: Path) -> None:
    cf.map(lambda block: block.swapaxes(1, 2).copy(), array, chunks=(1, -1, -1), out=out, **CPU)


@pytest.mark.parametrize(
    ("work", "names"),
    [
        (lambda path, out: cf.map(np.negative, path, out=out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.sum(path, axis=1, out=out, **CPU), ["z", "x"]),
        (lambda path, out: cf.median(path, axis=0, out=out, **CPU), ["y", "x"]),
        (lambda path, out: cf.cumsum(path, axis=2, out=out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(cf.open(path).transpose(2, 0, 1) * 2, out, **CPU), ["x", "z", "y"]),
        (lambda path, out: cf.store(cf.open(path)[3] - 1, out, **CPU), ["y", "x"]),
        (lambda path, out: cf.store(cf.open(path)[1:, ::2], out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(cf.open(path) - cf.open(path).mean(0), out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(cf.open(path) + np.ones((6, 10)), out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(cf.open(path).reshape(48, 10), out, **CPU), None),
        (lambda path, out: cf.store(cf.stack([cf.open(path)] * 2, 1), out, **CPU), ["z", "dim_1", "y", "x"]),
        (lambda path, out: cf.concatenate([path, path], axis=1, out=out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.flip(path, 0, out=out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(cf.concatenate([cf.open(path) * 2, path], 1), out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(np.flip(cf.open(path) * 2, 1), out, **CPU), ["z", "y", "x"]),
        (lambda path, out: cf.store(cf.stack([cf.open(path) * 2, path], 2), out, **CPU), ["z", "y", "dim_2", "x"]),
        (lambda path, out: cf.stack([path, path], out=out, **CPU), ["dim_0", "z", "y", "x"]),
        (lambda path, out: cf.map(np.negative, path, chunks=(1, -1, -1), out=out, **CPU), ["z", "y", "x"]),
        (
            lambda path, out: _turned(cf.open(path)[..., :6], out),
            ["z", "dim_1", "dim_2"],
        ),
        (lambda path, out: cf.map(np.fft.fft, path, chunks=(2, 3, -1), out=out, **CPU), ["z", "y", "dim_2"]),
    ],
    ids=[
        "map",
        "sum",
        "median",
        "cumsum",
        "transpose",
        "item",
        "slice",
        "passes",
        "broadcast",
        "reshape",
        "stack",
        "concatenate",
        "flip",
        "concatenated passes",
        "flipped passes",
        "stacked expressions",
        "stacked arrays",
        "chunks",
        "axes that a function may exchange",
        "an axis that a function may transform",
    ],
)
@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_results_have_the_names_of_axes_that_are_the_same(source: Path, work: Any, names: list[str] | None) -> None:
    """And none of the attributes, which may be true no more."""
    out = source.parent / "r.zarr"
    work(source, out)
    assert labels(out) == ({}, names)


@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_arrays_with_other_names_have_none_together(source: Path) -> None:
    other, out = source.parent / "other.zarr", source.parent / "r.zarr"
    cf.copy(source, cf.NewArray(other, dimension_names=("t", "y", "x")), **CPU)
    cf.map(np.add, source, other, out=out, **CPU)
    assert labels(out)[1] == ["dim_0", "y", "x"]


@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_names_that_are_said_come_first(source: Path) -> None:
    out = source.parent / "r.zarr"
    cf.map(np.negative, source, out=cf.NewArray(out, dimension_names=("t", "lat", "lon")), **CPU)
    assert labels(out)[1] == ["t", "lat", "lon"]


def test_labelled_expressions_are_stored_with_their_names(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    x = np.random.default_rng(0).random((8, 6))
    lazy = xr.DataArray(cf.open(x), dims=("t", "x"))
    single, several = cf.store([lazy.T + 1, lazy.mean("t")], [tmp_path / "a.zarr", tmp_path / "b.zarr"], **CPU)
    np.testing.assert_array_equal(single[...], x.T + 1)
    np.testing.assert_allclose(several[...], x.mean(0))
    cf.quantile(lazy, [0.1, 0.5], axis=0, out=tmp_path / "c.zarr", **CPU)
    assert [labels(tmp_path / f"{name}.zarr")[1] for name in "abc"] == [["x", "t"], ["x"], ["quantile", "x"]]


@pytest.mark.filterwarnings("ignore:.*scale_factor")
def test_results_of_tasks_have_them_too(source: Path) -> None:
    dask = pytest.importorskip("dask")
    from chunkflow.dask import store

    x, out = cf.open(source), source.parent
    with dask.config.set(scheduler="threads"):
        store([x * 2, x.mean(axis=1), x - x.mean()], [out / f"{name}.zarr" for name in "abc"])
    assert [labels(out / f"{name}.zarr")[1] for name in "ab"] == [["z", "y", "x"], ["z", "x"]]
    np.testing.assert_array_equal(zarr.open_array(out / "a.zarr")[...], zarr.open_array(source)[...] * 2)
