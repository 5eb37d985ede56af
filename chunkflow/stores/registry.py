"""Which format opens what: sources and targets from what users give."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import numpy as np

from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, SourceNotFoundError
from chunkflow.stores import footprint
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.paths import hdf5_parts
from chunkflow.stores.protocol import Source, Target

_KINDS = (
    "a NumPy array or np.memmap, the path of a .npy file or a zarr array or of an HDF5 dataset ('file.h5:/name'), a "
    "zarr.Array, an h5py.Dataset, an xarray.DataArray, or an object with shape, dtype and basic slicing"
)


def open_source(obj: Any) -> Source:
    """Open an array for reading by regions.

    Parameters
    ----------
    obj : numpy.ndarray, str, os.PathLike, zarr.Array, h5py.Dataset, xarray.DataArray or array-like object
        An array in memory or mapped from a file; the path of a ``.npy`` file or of a zarr array
        (a group's member too: ``"sim.zarr/u"``) or of an HDF5 dataset (``"sim.h5:/fields/u"``, or ``"sim.h5"`` where
        the file holds no other); the URL of a zarr array; or any object with ``shape``, ``dtype`` and basic slicing.

    Raises
    ------
    SourceNotFoundError
        Nothing is stored under the path.
    ArgumentError
        The path holds no array (a zarr group, say).
    ArgumentTypeError
        The object, or its dtype, is of a kind that cannot be processed.
    ReadError
        The file cannot be opened, or is truncated.

    Examples
    --------
    >>> open_source(np.zeros((3, 4), "f4")).spec.shape
    (3, 4)
    """
    if isinstance(obj, (str, os.PathLike)):
        return _path_source(obj)
    if isinstance(obj, (np.ndarray, np.generic)):
        return _ndarray_source(np.asanyarray(obj))
    opens = getattr(type(obj), "__chunkflow_source__", None)  # ours, put together of others when they are opened
    if opens is not None:
        found: Source = opens(obj)
        return found
    if is_labelled(obj):
        from chunkflow.stores.foreign.xarray import held

        return open_source(held(getattr(obj, "variable", obj)))
    if _is_stored(obj):
        from chunkflow.stores.foreign.xarray import StoredSource

        known = _is_zarr_array(obj.behind) or _is_hdf5_dataset(obj.behind)
        return StoredSource(obj, open_source(obj.behind).footprint if known else None)
    _refuse_device_array(obj)
    if _is_zarr_array(obj):
        from chunkflow.stores.zarr.array import ZarrSource

        return ZarrSource(obj)
    if _is_hdf5_dataset(obj):
        from chunkflow.stores.hdf5.dataset import dataset_source

        return dataset_source(obj)
    if is_dask_array(obj):
        from chunkflow.stores.foreign.dask import DaskSource

        return DaskSource(obj)
    if all(hasattr(obj, name) for name in ("shape", "dtype", "__getitem__")):
        from chunkflow.stores.foreign.generic import GenericSource

        return GenericSource(obj)
    _refuse_dataset(obj)
    raise ArgumentTypeError(
        f"an input of type {type(obj).__name__} is not an array: pass {_KINDS}; "
        "anything else that fn needs goes in as a keyword argument"
    )


def spec_of(array: Any) -> ArraySpec:
    """What is known of a source without reading it."""
    tells = getattr(type(array), "__chunkflow_spec__", None)  # ours, not there yet
    if tells is not None:
        told: ArraySpec = tells(array)
        return told
    source = open_source(array)
    try:
        return source.spec
    finally:
        source.close()


def open_target(out: Any, *, overwrite: bool = False) -> Target:
    """Check where an output is to go. Nothing is created or changed until the target is opened.

    Parameters
    ----------
    out : None, numpy.ndarray, str, os.PathLike, zarr.Array, h5py.Dataset or array-like object
        None for a new array in host memory; a path ending in ``.npy`` or ``.zarr``, one inside such a zarr
        group (``"result.zarr/speed"``), or one of an HDF5 dataset (``"result.h5:/speed"``; ``"result.h5"`` means
        ``"result.h5:/data"``), for a new array there; a URL, for a new zarr array there; or an array to write into.
    overwrite : bool
        Whether an array that is stored under the path may be replaced once the run has succeeded.

    Raises
    ------
    OutputExistsError
        Something is stored under the path, and `overwrite` is false.
    ArgumentError
        The path is of no known kind, its directory is missing, or the array is read-only.
    ArgumentTypeError
        The object, or its dtype, is of a kind that cannot be written.

    Examples
    --------
    >>> open_target(None).describe((3, 4), np.dtype("f4"), None).nbytes
    48
    """
    if out is None:
        from chunkflow.stores.memory import HostTarget

        return HostTarget()
    if isinstance(out, (str, os.PathLike)):
        return _path_target(out, overwrite)
    if isinstance(out, np.ndarray):
        return _ndarray_target(out)
    opens = getattr(type(out), "__chunkflow_target__", None)  # ours, a share of another run's output
    if opens is not None:
        found: Target = opens(out)
        return found
    _refuse_device_array(out)
    if _is_zarr_array(out):
        from chunkflow.stores.zarr.array import ZarrTarget

        return ZarrTarget(out)
    if _is_hdf5_dataset(out):
        from chunkflow.stores.hdf5.write import DatasetTarget

        return DatasetTarget(out)
    if all(hasattr(out, name) for name in ("shape", "dtype", "__setitem__")):
        from chunkflow.stores.foreign.generic import GenericTarget

        return GenericTarget(out)
    raise ArgumentTypeError(
        f"an output of type {type(out).__name__} cannot be written: pass None, or {_KINDS}; "
        "it has to take slice assignment"
    )


def _path_source(obj: str | os.PathLike[Any]) -> Source:
    from chunkflow.stores.zarr.node import zarr_node

    given = _text(obj)
    if "://" in given:
        from chunkflow.stores.kvstore.fsspec import open_url
        from chunkflow.stores.zarr.array import ZarrSource

        return ZarrSource(open_url(given))
    path = os.path.abspath(given)
    if (named := hdf5_parts(given)) is not None and not os.path.isdir(path):
        _require_h5py(given)
        from chunkflow.stores.hdf5.dataset import open_hdf5

        return open_hdf5(os.path.abspath(named[0]), named[1])
    if not os.path.exists(path):
        raise SourceNotFoundError(f"there is no array under {path}")
    node = zarr_node(path)
    if node is not None and node.kind == "array":
        from chunkflow.stores.zarr.array import open_zarr

        return open_zarr(path)
    if node is not None:
        from chunkflow.stores.zarr.array import members

        names = ", ".join(repr(os.path.join(given, name)) for name in members(path)) or "none"
        raise ArgumentError(f"{path} is a zarr group: pass the path of one of its arrays ({names})")
    if path.endswith(".npy") and os.path.isfile(path):
        from chunkflow.stores.file.npy import open_npy

        return open_npy(path)
    raise ArgumentError(f"{path} is neither a .npy file nor a zarr array: open it and pass {_KINDS}")


def _path_target(out: str | os.PathLike[Any], overwrite: bool) -> Target:
    from chunkflow.stores.zarr.node import zarr_node

    given = _text(out)
    if "://" in given:
        from chunkflow.stores.zarr.create_remote import ZarrUrlTarget

        return ZarrUrlTarget(given, overwrite=overwrite)
    path = os.path.abspath(given)
    if path.endswith(".npy"):
        from chunkflow.stores.file.npy import NpyTarget

        return NpyTarget(path, overwrite=overwrite)
    parts = [path]
    while parts[-1] != os.path.dirname(parts[-1]):
        parts.append(os.path.dirname(parts[-1]))
    if any(part.endswith(".zarr") or zarr_node(part) is not None for part in parts):
        from chunkflow.stores.zarr.create_local import ZarrPathTarget

        return ZarrPathTarget(path, overwrite=overwrite)
    if (named := hdf5_parts(given)) is not None:
        _require_h5py(given)
        from chunkflow.stores.hdf5.create import Hdf5PathTarget

        return Hdf5PathTarget(named[0], named[1], overwrite=overwrite)
    raise ArgumentError(
        f"cannot tell the format of the output {path}: end it in .npy, .zarr or .h5, or name a member of a zarr group "
        "or of an HDF5 file ('result.h5:/name')"
    )


def _require_h5py(path: str) -> None:
    if importlib.util.find_spec("h5py") is None:
        raise ArgumentError(f"{path} is a file for h5py, which is not installed: pip install 'chunkflow-stream[hdf5]'")


def _text(path: str | os.PathLike[Any]) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise ArgumentTypeError(f"a path must be a str, not {type(text).__name__}")
    if not text or "\0" in text:
        raise ArgumentError(f"{text!r} is no path")
    return text.removeprefix("file://")


def _ndarray_source(array: np.ndarray) -> Source:
    from chunkflow.stores.checks import numeric_dtype
    from chunkflow.stores.file.memmap import mapped_file

    _refuse_masked(array)
    numeric_dtype(array.dtype, "ndarray")
    mapped = mapped_file(array)
    if mapped is not None:
        from chunkflow.stores.file.strided import FileSource, Strided

        whole = array.view(np.ndarray)
        return FileSource(Strided(*mapped, array.shape, array.strides, array.dtype, mapping=whole))
    from chunkflow.stores.memory import ArraySource

    return ArraySource(array, _file_footprint(array))


def _file_footprint(array: np.ndarray) -> Footprint | None:
    """Place in a file that is mapped, though not read by its path: privately, say, or without a name.

    A private mapping's untouched pages still show what is written to the file.
    """
    from chunkflow.stores.file.memmap import mapped_space

    found = mapped_space(array)
    return found and footprint.footprint(*found, array.shape, array.strides, array.dtype)


def _ndarray_target(array: np.ndarray) -> Target:
    from chunkflow.stores.checks import numeric_dtype
    from chunkflow.stores.file.memmap import mapped_file
    from chunkflow.stores.memory import ArrayTarget, check_sink

    _refuse_masked(array)
    numeric_dtype(array.dtype, "ndarray")
    mapped = mapped_file(array)
    if mapped is None:
        return ArrayTarget(array, _file_footprint(array))
    check_sink(array, mapped[0])
    from chunkflow.stores.file.strided_sink import mapped_target

    return mapped_target(array, *mapped)


def _refuse_masked(array: np.ndarray) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentTypeError("a masked array would lose its mask: pass array.filled(value) or array.data")


def _refuse_device_array(obj: object) -> None:
    if hasattr(obj, "__cuda_array_interface__"):
        raise ArgumentTypeError(
            f"a {type(obj).__name__} is on the device already, and there is nothing to stream: "
            "pass the array in host memory or in a file"
        )


def _refuse_dataset(obj: object) -> None:
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(obj, xarray.Dataset):
        names = ", ".join(map(repr, obj.data_vars)) or "none"
        raise ArgumentTypeError(
            f"an xarray.Dataset is not an array, but has several (its variables: {names}): take one, as dataset[name]"
        )


def _is_hdf5_dataset(obj: object) -> bool:
    """Whether this is an `h5py.Dataset`. Nobody can have one without having imported h5py."""
    h5py = sys.modules.get("h5py")
    return h5py is not None and isinstance(obj, h5py.Dataset)


def is_labelled(obj: object) -> bool:
    """Whether this is a `DataArray` or `Variable` of xarray. Nobody can have one without having imported xarray."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(obj, (xarray.DataArray, xarray.Variable))


def _is_stored(obj: object) -> bool:
    """Whether this is a variable that xarray has yet to read. Nobody can have one without the room that makes them."""
    room = sys.modules.get("chunkflow.stores.foreign.xarray")
    return room is not None and isinstance(obj, room.StoredVariable)


def is_dask_array(obj: object) -> bool:
    """Whether this is a `dask.array.Array`. Nobody can have one without having imported dask."""
    dask = sys.modules.get("dask.array")
    return dask is not None and isinstance(obj, dask.Array)


def _is_zarr_array(obj: object) -> bool:
    """Whether this is a `zarr.Array`. Nobody can have one without having imported zarr."""
    zarr = sys.modules.get("zarr")
    return zarr is not None and isinstance(obj, zarr.Array)
