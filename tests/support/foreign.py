"""Other programs that write what sources read, and read what sinks wrote. Each is imported where it is used."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from chunkflow.testing import ForeignReader, ForeignWriter

KNOWN = {3: "zarr3", 2: "zarr"}
"""Drivers of tensorstore, by zarr's format."""

SHORT = ("?", "f2", "c8", "c16")
"""Dtypes that netCDF has not."""


# -- zarr -------------------------------------------------------------------------------------------------------------


def _zarr_python(path: str) -> np.ndarray:
    return np.asarray(zarr.open_array(path, mode="r")[...])


def _zarrs(path: str) -> np.ndarray:
    """Zarrs, a Rust library that decodes for zarr-python."""
    pytest.importorskip("zarrs")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return _zarr_python(path)


def tensor_spec(path: str | Path, version: int, **metadata: Any) -> dict[str, Any]:
    """What `tensorstore.open` is told of an array in a directory."""
    store = {"driver": "file", "path": str(path)}
    return {"driver": KNOWN[version], "kvstore": store, **({"metadata": metadata} if metadata else {})}


def tensor(path: str | Path) -> Any:
    """The `tensorstore.TensorStore` of a zarr array in a directory, of either format."""
    tensorstore = pytest.importorskip("tensorstore")
    version = 3 if os.path.exists(os.path.join(path, "zarr.json")) else 2
    return tensorstore.open(tensor_spec(path, version), open=True).result()


def _tensorstore(path: str) -> np.ndarray:
    return np.asarray(tensor(path).read().result())


def create_tensor(array: np.ndarray, spec: dict[str, Any]) -> Any:
    """Let tensorstore write an array."""
    tensorstore = pytest.importorskip("tensorstore")
    dtype = tensorstore.dtype(array.dtype.newbyteorder("=").name)
    made = tensorstore.open(spec, create=True, dtype=dtype, shape=array.shape).result()
    made[...] = array
    return made


def _zarr_of_tensorstore(version: int) -> ForeignWriter:
    def write(array: np.ndarray, folder: Path) -> Path:
        create_tensor(array, tensor_spec(folder / "u.zarr", version))
        return folder / "u.zarr"

    return ForeignWriter(f"tensorstore's {KNOWN[version]}", write)


def _zarr_of_zarrs(array: np.ndarray, folder: Path) -> Path:
    pytest.importorskip("zarrs")
    sides = tuple(max(1, n // 3) for n in array.shape)
    options: dict[str, Any] = {"shards": tuple(2 * n for n in sides)} if sides else {}
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        made = zarr.create_array(folder / "u.zarr", shape=array.shape, dtype=array.dtype, chunks=sides, **options)
        made[...] = array
    return folder / "u.zarr"


def _zarr_of_xarray(array: np.ndarray, folder: Path) -> Path:
    xarray = pytest.importorskip("xarray")
    names = tuple(f"axis {i}" for i in range(array.ndim))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        xarray.Dataset({"u": (names, array)}).to_zarr(folder / "group.zarr")
    return folder / "group.zarr" / "u"


def _tensorstore_in_a_bucket(url: str) -> np.ndarray:
    """An array behind an ``s3`` URL, of the server that the environment names."""
    tensorstore = pytest.importorskip("tensorstore")
    bucket, _, path = url.removeprefix("s3://").partition("/")
    who = {"aws_region": "us-east-1", "aws_credentials": {"type": "environment"}}
    store = {"driver": "s3", "bucket": bucket, "path": path, "endpoint": os.environ["AWS_ENDPOINT_URL"], **who}
    opened = tensorstore.open({"driver": "zarr3", "kvstore": store}, read=True, open=True).result()
    return np.asarray(opened.read().result())


ZARR_READERS = (
    ForeignReader("zarr-python", _zarr_python),
    ForeignReader("zarrs", _zarrs),
    ForeignReader("tensorstore", _tensorstore),
)
ZARR_WRITERS = (
    _zarr_of_tensorstore(3),
    _zarr_of_tensorstore(2),
    ForeignWriter("zarrs", _zarr_of_zarrs),
    ForeignWriter("xarray", _zarr_of_xarray, lacks=("?",)),
)
URL_READERS = (ForeignReader("zarr-python", _zarr_python),)
S3_READERS = (*URL_READERS, ForeignReader("tensorstore", _tensorstore_in_a_bucket))


# -- HDF5 -------------------------------------------------------------------------------------------------------------


def _parts(path: str) -> tuple[str, str]:
    """File and dataset of a path; the file's only dataset if it names none."""
    h5py = pytest.importorskip("h5py")
    file, _, name = path.partition(":")
    if name:
        return file, name
    found: list[str] = []
    with h5py.File(file) as opened:
        opened.visititems(lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None)
    (name,) = found
    return file, f"/{name}"


def _h5py(path: str) -> np.ndarray:
    h5py = pytest.importorskip("h5py")
    file, name = _parts(path)
    with h5py.File(file) as opened:
        return np.asarray(opened[name][...])


def _netcdf4(path: str) -> np.ndarray:
    file, name = _parts(path)
    with pytest.importorskip("netCDF4").Dataset(file) as opened:
        opened.set_auto_maskandscale(False)
        return np.asarray(opened[name][...])


def _xarray(path: str) -> np.ndarray:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    file, name = _parts(path)
    above, name = os.path.split(name)
    with xarray.open_dataset(file, group=above, engine="netcdf4", mask_and_scale=False) as opened:
        return np.asarray(opened[name].values)


def _netcdf_of_netcdf4(array: np.ndarray, folder: Path) -> str:
    with pytest.importorskip("netCDF4").Dataset(folder / "x.nc", "w") as file:
        names = tuple(f"d{i}" for i in range(array.ndim))
        for i, name in enumerate(names):
            file.createDimension(name, array.shape[i] if i else None)
        options: dict[str, Any] = {"zlib": True, "shuffle": True} if names else {}
        order = "big" if array.dtype.byteorder == ">" else "native"
        file.createVariable("u", array.dtype, names, endian=order, **options)[...] = array
    return f"{folder / 'x.nc'}:/u"


def _netcdf_of_xarray(array: np.ndarray, folder: Path) -> str:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    names = tuple(f"d{i}" for i in range(array.ndim))
    made = xarray.Dataset({"u": (names, array)})
    made.to_netcdf(folder / "x.nc", engine="netcdf4", encoding={"u": {"_FillValue": None}})
    return f"{folder / 'x.nc'}:/u"


HDF5_READERS = (
    ForeignReader("h5py", _h5py),
    ForeignReader("netCDF4", _netcdf4, SHORT),
    ForeignReader("xarray", _xarray, SHORT),
)
HDF5_WRITERS = (ForeignWriter("netCDF4", _netcdf_of_netcdf4, SHORT), ForeignWriter("xarray", _netcdf_of_xarray, SHORT))


# -- Files of NumPy's -------------------------------------------------------------------------------------------------

NPY_READERS = (
    ForeignReader("np.load", np.load),
    ForeignReader("np.load, mapped", lambda path: np.asarray(np.load(path, mmap_mode="r"))),
)


def _npy_of_numpy(array: np.ndarray, folder: Path) -> Path:
    np.save(folder / "x.npy", array)
    return folder / "x.npy"


NPY_WRITERS = (ForeignWriter("np.save", _npy_of_numpy),)
