"""What xarray's arrays around arrays hold, for people: the file, its chunks, and how its numbers are decoded."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.stores.paths import is_hdf5


def layers(array: Any) -> list[Any]:
    """Arrays around arrays, the outermost first."""
    found = [array]
    while (below := getattr(found[-1], "array", None)) is not None:
        found.append(below)
    return found


def place_of(array: Any) -> str:
    """The path of the variable of a netCDF file, as ``file.nc:/name``; empty of anything else."""
    inner = layers(array)[-1]
    store, name = getattr(inner, "datastore", None), getattr(inner, "variable_name", None)
    file, group = getattr(store, "_filename", None), getattr(store, "_group", None)
    if not isinstance(file, str) or not isinstance(name, str):
        return ""
    return f"{os.path.abspath(file)}:{'/'.join(['', *(group or '').strip('/').split('/'), name]).replace('//', '/')}"


def file_of(array: Any) -> str:
    """The path of the file that xarray reads; empty if there is none, or it is not known."""
    store = getattr(layers(array)[-1], "datastore", None)
    file = getattr(store, "_filename", None)
    if not isinstance(file, str):  # a netCDF 3 file has its path in the manager that opens it
        file = next(iter(getattr(getattr(store, "_manager", None), "_args", ())), None)
        file = getattr(file, "path", file) if not isinstance(file, str | os.PathLike) else os.fspath(file)
    return os.path.abspath(file) if isinstance(file, str) else ""


def chunks_of(array: Any) -> Shape | None:
    """The chunks of that variable; None if it has none, or they are not known."""
    with suppress(Exception):  # xarray's classes may change
        variable = layers(array)[-1].get_array(needs_lock=False)
        chunks = variable.chunking() if hasattr(variable, "chunking") else variable.chunks
        return tuple(int(side) for side in chunks) if isinstance(chunks, list | tuple) else None
    return None


class StoredChunks(NamedTuple):
    """Bytes of an element as it is stored, and of the chunks that the library keeps decoded; 0 where unknown."""

    itemsize: int
    cache: int


def decoding_facts(array: Any) -> StoredChunks:
    """How that variable is stored, and whether the next read decodes the same chunk again.

    netCDF4 keeps a variable open, and its chunks decoded. h5netcdf opens it for each read, so that HDF5 forgets them.
    """
    itemsize = cache = 0
    with suppress(Exception):  # xarray's classes may change
        variable = layers(array)[-1].get_array(needs_lock=False)
        itemsize = int(np.dtype(variable.dtype).itemsize)
        if hasattr(variable, "get_var_chunk_cache"):
            cache = int(variable.get_var_chunk_cache()[0])
    return StoredChunks(itemsize, cache)


def decoding_of(array: Any) -> str:
    """How its numbers are decoded; empty if they are not.

    >>> decoding_of(3)
    ''
    """
    given: dict[str, Any] = {}
    for layer in reversed(layers(array)):
        function = getattr(layer, "func", None)
        given |= function.keywords if isinstance(function, partial) else {}
    said = [(key, given[key]) for key in ("scale_factor", "add_offset") if given.get(key) is not None]
    said += [("_FillValue", value) for value in given.get("encoded_fill_values", ())]
    return ", ".join(f"{key}={value}" for key, value in said)


def instead_of(array: Any) -> str:
    """The call that reads the file itself, decoded as xarray decodes it; empty if there is none."""
    place = place_of(array)
    return f"chunkflow.open({place!r}, decode='cf')" if place and is_hdf5(place.rpartition(":")[0]) else ""
