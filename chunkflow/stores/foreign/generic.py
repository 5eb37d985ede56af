"""Any other object that has a shape, a dtype and basic slicing: HDF5 datasets, dask arrays and the like."""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ExtensionFileLoader
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from chunkflow.core.grid import Region, Shape, describe, shape_of
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError
from chunkflow.stores.checks import ExistingTarget, numeric_dtype
from chunkflow.stores.failures import unread, unwritten
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Unviewed

# Such objects are rarely safe to use from several threads, so calls of one and the same are serialised,
# be it a source twice over or a source and a sink.
_locks: WeakValueDictionary[int | str, Any] = WeakValueDictionary()
_registry = threading.Lock()


def _lock_of(obj: object) -> Any:
    with _registry:
        return _locks.setdefault(_library(obj) or id(obj), threading.RLock())


def _library(obj: object) -> str:
    """The library that a compiled class belongs to; empty if it, and what it derives from, is Python's own.

    Libraries in C keep what all of their objects share: netCDF's reads no two files at once.
    """
    for kind in type(obj).__mro__:
        loader = getattr(sys.modules.get(kind.__module__), "__loader__", None)
        if isinstance(loader, ExtensionFileLoader):
            return kind.__module__.partition(".")[0]
    return ""


def _name_of(obj: Any) -> str:
    """The name of the variable behind xarray's arrays around arrays, or that of the object's type."""
    below = obj
    for _ in range(9):
        below = getattr(below, "array", below)
    name = getattr(below, "variable_name", getattr(getattr(below, "_array", None), "path", None))
    return name if isinstance(name, str) and below is not obj else type(obj).__name__


def _spec(obj: Any, name: str, chunks: Shape | None) -> ArraySpec:
    name = name or _name_of(obj)
    try:
        shape = tuple(int(n) for n in obj.shape)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name} has the shape {obj.shape!r}, which is no tuple of ints") from None
    return ArraySpec(name, shape, numeric_dtype(obj.dtype, name), chunks=chunks or _chunks(obj, len(shape)))


def _chunks(obj: Any, ndim: int) -> Shape | None:
    """The object's ``chunks``: an int per axis (HDF5), or a tuple of ints per axis (dask)."""
    found = getattr(obj, "chunks", None)
    if not isinstance(found, tuple) or len(found) != ndim:
        return None
    sides = [max(side, default=1) if isinstance(side, tuple) else side for side in found]
    if not all(isinstance(side, int) for side in sides):
        return None
    return tuple(max(1, side) for side in sides)


def _footprint(obj: object) -> Footprint:
    """Footprint that is equal for the same object, and for two handles of one HDF5 dataset. No more can be known."""
    file, path = getattr(getattr(obj, "file", None), "filename", None), getattr(obj, "name", None)
    same = ("dataset", file, path) if isinstance(file, str) and isinstance(path, str) else ("object", id(obj))
    return Footprint(same, 0, 1, None)


class GenericSource(Unviewed):
    """An object with a shape, a dtype and basic slicing, read from one thread at a time."""

    _failed = "read", "from"

    def __init__(self, obj: Any, name: str = "", chunks: Shape | None = None) -> None:
        self._obj, self._lock = obj, _lock_of(obj)
        self.spec = _spec(obj, name, chunks)
        self.footprint: Footprint | None = _footprint(obj)

    def read(self, region: Region, out: np.ndarray) -> None:
        try:
            with self._lock:
                got = self._get(region)
                found = faithful(got, region, self.spec)
        except ReadError:
            raise
        except Exception as error:
            raise unread(region, self.spec.name, error, *self._failed) from error
        np.copyto(out, found, casting="safe")

    def _get(self, region: Region) -> Any:
        return self._obj[region]

    def close(self) -> None:
        """See `Source.close`: the object is the user's to close."""


def faithful(got: Any, region: Region, spec: ArraySpec) -> np.ndarray:
    """What an object gave for a region, as an array. `ReadError` if that is not what the object has said of itself."""
    name, where = spec.name, describe(region)
    masked = isinstance(got, np.ma.MaskedArray) and np.ma.is_masked(got)
    found = np.asarray(got)
    if masked:
        problem = f"a masked array for {where}, whose mask would be lost: pass its filled(value)"
    elif hasattr(got, "toarray") and not isinstance(got, np.ndarray):
        problem = (
            f"a sparse array for {where}: give its toarray(), of dask's x.map_blocks(lambda block: block.toarray())"
        )
    elif found.shape != shape_of(region):
        problem = (
            f"shape {found.shape} for {where}, which has shape {shape_of(region)}: say its true shape where it is made"
        )
    elif not np.can_cast(found.dtype, spec.dtype, "safe"):
        problem = (
            f"dtype {found.dtype} for {where}, although its dtype is {spec.dtype}: say the true one where it is made"
        )
    else:
        return found
    raise ReadError(f"{name} returned {problem}", path=name, region=region)


class GenericTarget(ExistingTarget):
    """An object of the user's with a shape, a dtype and slice assignment."""

    def __init__(self, obj: Any, name: str = "", chunks: Shape | None = None) -> None:
        self._obj, self._spec = obj, _spec(obj, name, chunks)
        self.name = self._spec.name
        self.footprint: Footprint | None = _footprint(obj)
        # An HDF5 dataset says only through its file that it is read-only.
        if getattr(getattr(obj, "file", None), "mode", None) == "r":
            raise ArgumentError(f"the output {self.name} lies in a file that was opened read-only")

    def open(self, spec: ArraySpec) -> GenericSink:
        return GenericSink(self._obj, spec)


class GenericSink:
    """An object that is being written, from one thread at a time."""

    def __init__(self, obj: Any, spec: ArraySpec) -> None:
        self._obj, self._lock, self.spec = obj, _lock_of(obj), spec

    def write(self, region: Region, block: np.ndarray) -> None:
        try:
            with self._lock:
                self._obj[region] = block
        except Exception as error:
            raise unwritten(region, self.spec.name, error) from error

    def commit(self) -> Any:
        return self._obj

    def abort(self) -> None:
        """See `Sink.abort`: what was written stays, as in any assignment that fails half-way."""
