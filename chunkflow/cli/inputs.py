"""Inputs of commands: what the library opens by its path, and TIFF and netCDF 3, which other libraries read for it."""

from __future__ import annotations

import glob
import importlib
import os
import warnings
from contextlib import suppress
from typing import Any

import numpy as np

import chunkflow as cf
from chunkflow.cli.common import refuse
from chunkflow.system.users_line import users_line

TIFF = (".tif", ".tiff", ".btf")

CODED = ("scale_factor", "add_offset", "_FillValue", "missing_value")
"""Attributes that say what numbers mean."""

_PATTERN = "*?["
_CLASSIC = (b"CDF\x01", b"CDF\x02", b"CDF\x05")


def is_foreign(path: str) -> bool:
    """Whether another library reads it.

    >>> is_foreign("stack.ome.tif"), is_foreign("frames/*.tif"), is_foreign("x.zarr")
    (True, True, False)
    """
    return path.lower().endswith(TIFF) or _classic(path) is not None


def opened(path: str, decode: Any = None) -> Any:
    """The lazy array of an input."""
    if path.lower().endswith(TIFF):
        return cf.open(_tiff(path))
    if classic := _classic(path):
        return _netcdf(*classic, decode)
    if any(letter in path for letter in _PATTERN) and not os.path.exists(path):
        refuse(f"there is no array under {path}: patterns are of TIFF files alone, as 'frames/*.tif'")
    return cf.open(path, decode=decode)


def _tiff(path: str) -> Any:
    try:
        tifffile = importlib.import_module("tifffile")
    except ImportError:
        refuse(f"{path} is read by tifffile, which is not installed: pip install tifffile")
    several = any(letter in path for letter in _PATTERN) and not os.path.exists(path)
    files = sorted(glob.glob(path)) if several else [path]
    missing = [file for file in files if not os.path.isfile(file)]
    if missing or not files:
        refuse(f"there is no TIFF file under {path}")
    with suppress(Exception):  # uncompressed, and in one piece: read as any file, and known again by --resume
        if not several:
            return tifffile.memmap(path, mode="r")
    try:
        # Of an image in several resolutions the first.
        store = tifffile.imread(files, aszarr=True) if several else tifffile.imread(path, aszarr=True, level=0)
        return importlib.import_module("zarr").open_array(store, mode="r")
    except Exception as error:  # of tifffile's, and of its decoders'
        raise cf.ReadError(f"tifffile cannot read {path}: {type(error).__name__}: {error}", path=path) from error


def _classic(path: str) -> tuple[str, str] | None:
    """Path of a netCDF 3 file and the name behind its colon, if it is one."""
    head, _, name = (path, "", "") if os.path.exists(path) else path.rpartition(":")
    if not os.path.isfile(head):
        return None
    with open(head, "rb") as file:
        return (head, name.strip("/")) if file.read(4) in _CLASSIC else None


def _netcdf(path: str, name: str, decode: Any) -> Any:
    try:
        xarray = importlib.import_module("xarray")
        data = xarray.open_dataset(path, decode_cf=decode == "cf")
    except (ImportError, ValueError) as error:  # ValueError: there is no backend for it
        why = " ".join(str(error).split("\n")[0].split())
        refuse(f"{path} is netCDF 3, which xarray reads with scipy or netCDF4: pip install xarray scipy ({why})")
    if not name and len(data.data_vars) == 1:
        name = next(iter(data.data_vars))
    if name not in data.variables:
        names = ", ".join(map(repr, data.variables))
        refuse(f"{path} holds {names}: add the name of one, as in '{path}:{next(iter(data.data_vars), 'name')}'")
    coded = {each: np.asarray(data[name].attrs[each]).tolist() for each in CODED if each in data[name].attrs}
    if coded and decode is None:
        told = ", ".join(f"{each}={value}" for each, value in coded.items())
        warnings.warn(
            f"{path}:{name} holds coded numbers, which are read as they are stored: {told}. --decode cf gives the "
            "values, --decode raw the stored numbers without this warning",
            stacklevel=users_line(),
        )
    return cf.open(data[name]).data
