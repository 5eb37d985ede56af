"""Any other object that has a shape, a dtype and basic slicing: HDF5 datasets, dask arrays and the like."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from chunkflow.core.grid import Region, Shape, describe, shape_of
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError, WriteError
from chunkflow.stores.checks import matching, numeric_dtype
from chunkflow.stores.footprint import Footprint

# Such objects are rarely safe to use from several threads, so calls of one and the same are serialised,
# be it a source twice over or a source and a sink.
_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
_registry = threading.Lock()


def _lock_of(obj: object) -> Any:
    with _registry:
        return _locks.setdefault(id(obj), threading.RLock())


def _spec(obj: Any) -> ArraySpec:
    name = type(obj).__name__
    try:
        shape = tuple(int(n) for n in obj.shape)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name} has the shape {obj.shape!r}, which is no tuple of ints") from None
    return ArraySpec(name, shape, numeric_dtype(obj.dtype, name), chunks=_chunks(obj, len(shape)))


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


class GenericSource:
    """An object with a shape, a dtype and basic slicing, read from one thread at a time."""

    def __init__(self, obj: Any) -> None:
        self._obj, self._lock = obj, _lock_of(obj)
        self.spec = _spec(obj)
        self.footprint: Footprint | None = _footprint(obj)

    def read(self, region: Region, out: np.ndarray) -> None:
        name, where = self.spec.name, describe(region)
        try:
            with self._lock:
                got = self._obj[region]
                masked = isinstance(got, np.ma.MaskedArray) and np.ma.is_masked(got)
                found = np.asarray(got)
        except Exception as error:
            raise ReadError(
                f"cannot read {where} from {name}: {error}", path=name, region=region, cause=error
            ) from error
        if masked:
            raise ReadError(
                f"{name} returned a masked array for {where}, whose mask would be lost: let it fill missing values",
                path=name,
                region=region,
            )
        if found.shape != shape_of(region):
            raise ReadError(
                f"{name} returned shape {found.shape} for {where}, which has shape {shape_of(region)}",
                path=name,
                region=region,
            )
        if not np.can_cast(found.dtype, self.spec.dtype, "same_kind"):
            raise ReadError(
                f"{name} returned dtype {found.dtype} for {where}, although its dtype is {self.spec.dtype}",
                path=name,
                region=region,
            )
        np.copyto(out, found, casting="same_kind")

    def view(self, region: Region) -> np.ndarray | None:
        """See `Source.view`: such an object has none."""
        return None

    def close(self) -> None:
        """See `Source.close`: the object is the user's to close."""


class GenericTarget:
    """An object of the user's with a shape, a dtype and slice assignment."""

    def __init__(self, obj: Any) -> None:
        self._obj, self._spec = obj, _spec(obj)
        self.name = self._spec.name
        self.footprint: Footprint | None = _footprint(obj)
        # An HDF5 dataset says only through its file that it is read-only.
        if getattr(getattr(obj, "file", None), "mode", None) == "r":
            raise ArgumentError(f"the output {self.name} lies in a file that was opened read-only")

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return matching(self._spec, shape, dtype)

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
            name = self.spec.name
            raise WriteError(
                f"cannot write {describe(region)} to {name}: {error}", path=name, region=region, cause=error
            ) from error

    def commit(self) -> Any:
        return self._obj

    def abort(self) -> None:
        """See `Sink.abort`: what was written stays, as in any assignment that fails half-way."""
