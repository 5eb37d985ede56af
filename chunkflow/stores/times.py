"""Arrays of datetime64 and timedelta64 as sources: what is read are the integers that count their units."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.errors import ReadError
from chunkflow.stores.protocol import Source
from chunkflow.system.deferred import at

NAT = -(1 << 63)
"""What NaT is as an integer."""


def is_time(value: Any) -> bool:
    """Whether a value in memory, a scalar or an array, is a time."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "mM"
    return isinstance(value, date | timedelta)  # a datetime is a date


def counts_dtype(found: Any, times: np.dtype, name: str) -> np.dtype:
    """The integers of an array of times, in the byte order that these have. A `ReadError` if it is not of `times`.

    >>> counts_dtype(">M8[s]", np.dtype("M8[s]"), "log.zarr")
    dtype('>i8')
    """
    dtype = np.dtype(found)
    if dtype.newbyteorder("=") != times:
        raise ReadError(
            f"{name} has changed since it was opened: then its elements were of {times}, now of {dtype}. Open it again",
            path=name,
        )
    return np.dtype("i8").newbyteorder(dtype.byteorder)


@dataclass(frozen=True)
class Counts:
    """A path or an object that holds times of a dtype, as the array of its integers."""

    held: Any
    times: np.dtype

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`."""
        source: Source = at(f"chunkflow.stores.{_opener(self.held)}")(self.held, times=self.times)
        return source


def _opener(held: Any) -> str:
    if not isinstance(held, str):
        is_zarr = type(held).__module__.partition(".")[0] == "zarr"
        return "zarr.array:open_times" if is_zarr else "times:sliced"
    if "://" in held:
        return "zarr.array:open_zarr_url"
    return "file.npy:open_npy" if held.endswith(".npy") else "zarr.array:open_zarr"


def counts_of(held: Any, times: np.dtype) -> Any:
    """A source of times as a source of their integers; None of what is not read so: an HDF5 file by its path."""
    if isinstance(held, np.ndarray | np.generic):
        return np.asanyarray(held).view(np.dtype("i8").newbyteorder(held.dtype.byteorder))
    native = times.newbyteorder("=")
    if not isinstance(held, str | os.PathLike):
        if not hasattr(held, "__dask_graph__"):
            return Counts(held, native)
        meta: np.ndarray = np.empty((0,) * held.ndim, "i8")
        return held.map_blocks(counted, native, f"dask array {held.name}", dtype=meta.dtype, meta=meta)
    path = os.fspath(held)
    whole = path if "://" in path else os.path.abspath(path)
    return Counts(whole, native) if "://" in path or whole.endswith(".npy") or os.path.isdir(whole) else None


def counted(block: Any, times: np.dtype, name: str) -> np.ndarray:
    """The integers of a block of times. A `ReadError` if it is not what its array has said of itself.

    >>> counted(np.array(["1970-01-01T00:00:02", "NaT"], ">M8[s]"), np.dtype("M8[s]"), "x")
    array([                   2, -9223372036854775808])
    """
    found = np.asarray(block)
    if isinstance(block, np.ma.MaskedArray) and np.ma.is_masked(block):
        problem = "a masked array, whose mask would be lost: pass its filled(np.datetime64('NaT'))"
    elif found.dtype.newbyteorder("=") != times:
        problem = f"dtype {found.dtype}, although its dtype is {times}: say the true one where it is made"
    else:
        return found.astype(times, copy=False).view("i8")
    raise ReadError(f"{name} returned {problem}", path=name)


def sliced(held: Any, times: np.dtype) -> Source:
    """Source of an object with slicing that holds times."""
    source: Source = at("chunkflow.stores.foreign.generic:GenericSource")(_Sliced(held, times), _name(held))
    return source


def _name(held: Any) -> str:
    name = getattr(held, "name", None)
    return name if isinstance(name, str) else type(held).__name__


class _Sliced:
    """The integers of an object's times, sliced."""

    def __init__(self, held: Any, times: np.dtype) -> None:
        self._held, self.shape, self.chunks = held, held.shape, getattr(held, "chunks", None)
        counts_dtype(held.dtype, times, _name(held))  # or it has changed
        self._times, self.dtype = times, np.dtype("i8")

    def __getitem__(self, region: Region) -> np.ndarray:
        return counted(self._held[region], self._times, _name(self._held))
