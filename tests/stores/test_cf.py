"""Attributes that change what numbers mean are warned of, or applied as xarray applies them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.errors import ArgumentError, CodingWarning
from chunkflow.stores.cf import coding

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")

RAW = (np.arange(60) * 7 % 53 - 20).reshape(6, 10)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "packed": ("i2", {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": np.int16(-20)}),
    "single": ("i2", {"scale_factor": np.float32(0.5), "add_offset": np.float32(2), "missing_value": np.int16(3)}),
    "single, wide": ("i4", {"scale_factor": np.float32(0.5), "add_offset": np.float32(2)}),
    "scale alone": ("i1", {"scale_factor": np.float32(0.5), "_FillValue": np.int8(-20)}),
    "two missing": ("i2", {"_FillValue": np.int16(-20), "missing_value": np.int16(-20)}),
    "unsigned": ("i1", {"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": np.int8(-1)}),
    "floats": ("f4", {"_FillValue": np.float32(9.0)}),
    "doubles": ("f8", {"missing_value": 9.0}),
}


def written(kind: str, name: str, folder: Path) -> str:
    """Path of a case's array, as another program writes it."""
    dtype, attributes = CASES[name]
    raw = RAW.astype(dtype)
    if kind.startswith("zarr"):
        version: Any = int(kind[-1])
        fill = {"fill_value": None} if version == 2 else {}
        array = zarr.create_array(
            folder / "x.zarr", shape=raw.shape, dtype=dtype, chunks=(4, 10), zarr_format=version, **fill
        )
        array[...] = raw
        array.attrs.update({key: getattr(value, "item", lambda v=value: v)() for key, value in attributes.items()})
        return str(folder / "x.zarr")
    with h5py.File(folder / "x.nc", "w") as file:
        options = {"chunks": (4, 10), "compression": "gzip"} if kind == "chunked" else {}
        dataset = file.create_dataset("x", data=raw, **options)
        dataset.attrs.update(attributes)
        dataset.attrs["units"] = "K"
    return str(folder / "x.nc:/x")


@pytest.mark.parametrize("kind", ["contiguous", "chunked", "zarr 2", "zarr 3"])
@pytest.mark.parametrize("name", CASES)
def test_decoded_as_xarray_does_it(kind: str, name: str, tmp_path: Path) -> None:
    path = written(kind, name, tmp_path)
    dtype, attributes = CASES[name]
    if kind.startswith("zarr"):  # JSON has doubles alone
        attributes = {key: getattr(value, "item", lambda v=value: v)() for key, value in attributes.items()}
    expected = xr.decode_cf(xr.Dataset({"x": (("y", "z"), RAW.astype(dtype), attributes)}))["x"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy = cf.open(path, decode="cf")
        got = lazy.compute(device="cpu", budget="100kB")
        stored = cf.open(path, decode="raw").compute(device="cpu")
    assert lazy.dtype == got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected.values, rtol=1e-6)
    assert np.isnan(got).any() == expected.isnull().any()
    np.testing.assert_array_equal(stored, RAW.astype(dtype))


@pytest.mark.parametrize("kind", ["contiguous", "chunked", "zarr 2", "zarr 3"])
def test_a_path_warns(kind: str, tmp_path: Path) -> None:
    path = written(kind, "packed", tmp_path)
    for call in (cf.open, lambda path: cf.mean(path, device="cpu"), lambda path: cf.map(np.sin, path, device="cpu")):
        with pytest.warns(CodingWarning, match=r"scale_factor=0.01, add_offset=273.15, _FillValue=-20.*decode='cf'"):
            call(path)


@pytest.mark.parametrize("version", [2, 3])
def test_what_xarray_stored_is_decoded(version: Any, tmp_path: Path) -> None:
    """xarray keeps the value for what is missing as the fill value of zarr's format 2."""
    values = np.where(RAW % 5 == 0, np.nan, RAW * 0.25 + 10)
    encoding = {"x": {"dtype": "i2", "scale_factor": 0.25, "add_offset": 10.0, "_FillValue": -99}}
    xr.Dataset({"x": (("y", "z"), values)}).to_zarr(
        tmp_path / "x.zarr", encoding=encoding, zarr_format=version, consolidated=False
    )
    expected = xr.open_zarr(tmp_path / "x.zarr", consolidated=False)["x"].values
    path = str(tmp_path / "x.zarr" / "x")
    got = cf.open(path, decode="cf").compute(device="cpu")
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(got, values)
    with pytest.warns(CodingWarning, match=r"scale_factor=0.25"):
        cf.open(path)


def test_what_changes_nothing_is_not_warned_of() -> None:
    for attributes in ({}, {"units": "K"}, {"_FillValue": np.nan}, {"scale_factor": 1.0, "add_offset": 0},
                       {"_FillValue": "none"}, {"scale_factor": "x"}, {"_Unsigned": "false"}):  # fmt: skip
        assert coding(attributes, np.dtype("f4")) is None
    assert coding({"scale_factor": 2.0}, np.dtype("c8")) is None


def test_only_a_path_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="arrays that have a path"):
        cf.open(RAW, decode="cf")
    with pytest.raises(ArgumentError, match="decode='CF' is unknown"):
        cf.open(tmp_path / "x.npy", decode="CF")  # type: ignore[arg-type]
    np.save(tmp_path / "x.npy", RAW)
    np.testing.assert_array_equal(cf.open(tmp_path / "x.npy", decode="cf").compute(device="cpu"), RAW)


def test_netcdf_reads_beyond_the_end_of_a_short_variable(tmp_path: Path) -> None:
    """As a model leaves it that was killed between two variables: an unlimited dimension is as long as the longest."""
    with h5py.File(tmp_path / "x.nc", "w") as file:
        scale = file.create_dataset("time", data=np.arange(5), maxshape=(None,), chunks=(4,))
        scale.make_scale("time")
        for name, n in (("a", 5), ("b", 3)):
            dataset = file.create_dataset(name, data=np.ones((n, 2)), maxshape=(None, 2), chunks=(2, 2))
            dataset.dims[0].attach_scale(scale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cf.open(f"{tmp_path}/x.nc:/a", decode="cf").shape == (5, 2)
        assert cf.open(f"{tmp_path}/x.nc:/b", decode="raw").shape == (3, 2)
    with pytest.warns(CodingWarning, match="3 of the 5 elements of its dimension 0 are stored"):
        cf.open(f"{tmp_path}/x.nc:/b")
    with pytest.raises(cf.errors.UnsupportedError, match="3 of the 5 elements"):
        cf.open(f"{tmp_path}/x.nc:/b", decode="cf")
