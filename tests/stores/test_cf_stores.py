"""The attributes that change what numbers mean are read from each format as xarray reads them."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.errors import ArgumentError

xr = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")

RAW = np.array([[0, 1, 2, 100, 127], [-128, -1, -2, -99, 3]])

STORED: dict[str, tuple[str, dict[str, Any]]] = {
    "unsigned": ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-1)}),
    "unsigned, no fill value": ("i2", {"_Unsigned": "true"}),
    "unsigned, scaled": ("i1", {"_Unsigned": "true", "scale_factor": 0.5}),
    "unsigned, a missing value": ("i1", {"_Unsigned": "true", "missing_value": np.int16(200)}),
    "unsigned says no": ("i1", {"_Unsigned": "false", "scale_factor": 0.5}),
    "signed": ("u1", {"_Unsigned": "false", "scale_factor": 1.0, "_FillValue": np.uint8(255)}),
    "signed, no fill value": ("u4", {"_Unsigned": "false"}),
    "fill value of another sign": ("u1", {"_FillValue": -1}),
    "fill value out of range": ("i1", {"missing_value": 70000}),
    "fill value between integers": ("i2", {"missing_value": 1.5}),
    "infinite fill value of integers": ("i2", {"missing_value": np.inf}),
    "fill value is NaN": ("f4", {"_FillValue": np.nan}),
    "fill value of floats": ("f4", {"_FillValue": np.float32(3)}),
    "several missing values": ("i2", {"missing_value": [100, -99, 3], "_FillValue": np.int16(1)}),
    "valid range": ("i2", {"valid_range": [0, 100], "valid_min": 0, "_FillValue": np.int16(2)}),
    "scale and offset": ("i2", {"scale_factor": 0.5, "add_offset": 3.0, "units": "K"}),
    "half": ("f2", {"missing_value": 3.0}),
}
"""What is stored, and the attributes with NumPy's types."""

FORMS = ("plain", "bytes", "array", "array of bytes", "objects", "matrix")
"""How HDF5's writers put texts and numbers: as they are, of fixed length, and in arrays of one."""


def formed(value: Any, form: str) -> Any:
    """An attribute as a writer may store it."""
    text = isinstance(value, str)
    if isinstance(value, list) or form == "plain":
        return value
    if form == "bytes":
        return np.bytes_(value) if text else value
    if form == "objects":
        return np.array([value], h5py.string_dtype()) if text else np.asarray(value)
    if form == "matrix":
        return np.array([[value]], h5py.string_dtype()) if text else np.array([[value]])
    if not text:
        return np.array([value])
    return np.array([value.encode()]) if form == "array of bytes" else np.array([value], h5py.string_dtype())


def expected(dtype: str, attributes: dict[str, Any]) -> Any:
    """What xarray makes of an array."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xr.decode_cf(xr.Dataset({"v": (("y", "x"), RAW.astype(dtype), dict(attributes))}))["v"].load()


def check(path: str, found: Any) -> None:
    """Compare what is opened with xarray's."""
    lazy = cf.open(path, decode="cf")
    got = lazy.compute(device="cpu")
    assert lazy.dtype == got.dtype == found.dtype
    np.testing.assert_array_equal(got, found.values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STORED)
def test_hdf5(name: str, form: str, tmp_path: Path) -> None:
    dtype, attributes = STORED[name]
    with h5py.File(tmp_path / "x.nc", "w") as file:
        dataset = file.create_dataset("v", data=RAW.astype(dtype))
        for key, value in attributes.items():
            dataset.attrs[key] = formed(value, form)
    check(f"{tmp_path}/x.nc:/v", expected(dtype, attributes))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", STORED)
def test_zarr(name: str, version: Any, tmp_path: Path) -> None:
    dtype, attributes = STORED[name]
    fill = {"fill_value": None} if version == 2 else {}
    array = zarr.create_array(tmp_path / "v.zarr", shape=RAW.shape, dtype=dtype, zarr_format=version, **fill)
    array[...] = RAW.astype(dtype)
    plain = {key: value.item() if isinstance(value, np.generic) else value for key, value in attributes.items()}
    array.attrs.update(plain)
    check(str(tmp_path / "v.zarr"), expected(dtype, attributes))


@pytest.mark.parametrize("name", [name for name, (dtype, _) in STORED.items() if dtype not in ("u1", "u4", "f2")])
def test_netcdf3(name: str, tmp_path: Path) -> None:
    dtype, attributes = STORED[name]
    with pytest.importorskip("scipy.io").netcdf_file(tmp_path / "x.nc", "w") as file:
        for dimension, n in zip("yx", RAW.shape, strict=True):
            file.createDimension(dimension, n)
        variable = file.createVariable("v", dtype, ("y", "x"))
        variable[:] = RAW.astype(dtype)
        for key, value in attributes.items():
            setattr(variable, key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = xr.load_dataset(tmp_path / "x.nc")["v"]  # the file has attributes of single precision
    check(f"{tmp_path}/x.nc:v", found)


VALUES = np.array([[200.0, 3, 128], [np.nan, 0, 254]])

ENCODINGS: dict[str, dict[str, Any]] = {
    "unsigned": {"dtype": "i1", "_Unsigned": "true", "scale_factor": 1.0, "_FillValue": -1},
    "unsigned, plain": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1},
    "signed": {"dtype": "u1", "_Unsigned": "false", "scale_factor": 2.0, "_FillValue": 255},
    "packed": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 7.0, "_FillValue": -999},
    "floats": {"dtype": "f4", "_FillValue": 9.0},
    "doubles": {"dtype": "f8", "_FillValue": -1e30},
}


@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_CLASSIC", "zarr 2", "zarr 3"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_what_xarray_writes(name: str, kind: str, tmp_path: Path) -> None:
    encoding = ENCODINGS[name]
    if kind.startswith("NETCDF3") and encoding["dtype"] == "u1":
        pytest.skip("netCDF 3 has no unsigned numbers")
    values = np.clip(VALUES, 0, 120) if name == "signed" else VALUES
    dataset = xr.Dataset({"v": (("y", "x"), values)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind.startswith("zarr"):
            version: Any = int(kind[-1])
            dataset.to_zarr(tmp_path / "x.zarr", encoding={"v": encoding}, zarr_format=version, consolidated=False)
            path, found = f"{tmp_path}/x.zarr/v", xr.open_zarr(tmp_path / "x.zarr", consolidated=False)["v"].load()
        else:
            pytest.importorskip("netCDF4" if kind == "NETCDF4" else "scipy")
            dataset.to_netcdf(tmp_path / "x.nc", format=kind, encoding={"v": encoding})
            mark = ":/" if kind == "NETCDF4" else ":"
            path = f"{tmp_path}/x.nc{mark}v"
            with xr.open_dataset(tmp_path / "x.nc") as opened:
                found = opened["v"].load()
    check(path, found)


@pytest.mark.parametrize("how", [(v, k) for v in (2, 3) for k in ("floats", "doubles", "packed")], ids=repr)
def test_fill_values_of_xarrays_zarr_arrays(how: tuple[Any, str], tmp_path: Path) -> None:
    """They are the fill value in format 2, and text of floats in format 3: both warn, and copies have them."""
    version, name = how
    dataset = xr.Dataset({"v": (("y", "x"), np.clip(VALUES, 0, 120))})
    dataset.to_zarr(tmp_path / "x.zarr", encoding={"v": ENCODINGS[name]}, zarr_format=version, consolidated=False)
    path = f"{tmp_path}/x.zarr/v"
    found = xr.open_zarr(tmp_path / "x.zarr", consolidated=False)["v"].load()
    check(path, found)
    said = f"_FillValue={ENCODINGS[name]['_FillValue']}".removesuffix(".0")
    with pytest.warns(cf.errors.CodingWarning, match=re.escape(said)):
        cf.sum(path, device="cpu")
    for number, out in enumerate(("c.zarr", "c.h5", cf.NewArray(f"{tmp_path}/d.zarr", zarr_format=2))):
        place = out if isinstance(out, cf.NewArray) else f"{tmp_path}/{number}{out}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cf.copy(path, place, device="cpu")
        check(place.path if isinstance(place, cf.NewArray) else place, found)


def test_an_attribute_without_a_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        dataset = file.create_dataset("v", data=RAW)
        for name in ("units", "_FillValue", "scale_factor", "_Unsigned"):
            dataset.attrs[name] = h5py.Empty("S1")
    np.testing.assert_array_equal(cf.open(f"{tmp_path}/x.nc:/v", decode="cf").compute(device="cpu"), RAW)


@pytest.mark.parametrize("value", ["0.5", [1.0, 2.0]])
def test_a_scale_that_is_no_number_is_refused(value: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("v", data=RAW).attrs["scale_factor"] = value
    with pytest.raises(ArgumentError, match=r"scale_factor=.* is no number"):
        cf.open(f"{tmp_path}/x.nc:/v", decode="cf")
