"""Arrays in the host's memory: any strides, either byte order; and new ones for a run without `out`."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.spec import ArraySpec, ByteRun, Storage
from chunkflow.core.units import format_bytes
from chunkflow.errors import ArgumentError, HostMemoryError
from chunkflow.stores import strides
from chunkflow.stores.checks import ExistingTarget, numeric_dtype
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.footprint import footprint as footprint_of
from chunkflow.stores.protocol import Source, Unviewed
from chunkflow.system import past_caches
from chunkflow.system.host import available_memory
from chunkflow.system.pages import populate

_NAME = "ndarray"


def _spec(array: np.ndarray) -> ArraySpec:
    return ArraySpec(
        name=_NAME,
        shape=array.shape,
        dtype=numeric_dtype(array.dtype, _NAME),
        order=strides.memory_order(array.shape, array.strides),
        storage=Storage(in_memory=array.dtype.isnative and array.flags.aligned),
    )


def memory_footprint(array: np.ndarray) -> Footprint:
    """Footprint of an array in the process's memory."""
    return footprint_of("memory", array.ctypes.data, array.shape, array.strides, array.dtype)


def digest_of(array: np.ndarray) -> str:
    """A digest of an array's shape, dtype and elements."""
    sha = hashlib.sha256(f"{array.shape} {array.dtype.str}".encode())
    flat = array.reshape(-1) if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)
    sha.update(flat.view(np.uint8).data)
    return sha.hexdigest()


class Made(np.ndarray):
    """An array that the library made of the caller's: it counts in the budgets of runs that read it."""


class _InMemory:
    """What a source and a sink share whose array is in memory."""

    least = 0
    """Bytes of rows, at the least, that compiled loops move."""

    def __init__(self, array: np.ndarray, spec: ArraySpec) -> None:
        self._array, self.spec = array.view(np.ndarray), spec  # a subclass' own indexing has no say in what is moved

    def run(self, region: Region) -> ByteRun | None:
        found = strides.run_in_memory(strides.part(self._array, region), self.spec.order)
        whole = math.prod(shape_of(region)) * self._array.itemsize
        return None if found is None or found.width < min(self.least, whole) else found


class ArraySource(_InMemory):
    """An ndarray that is read, or handed out as read-only views.

    One that lies elsewhere too (`footprint`: in a file, mapped privately or without a name) is read: while its views
    are stored there through another mapping, NumPy would not know that they overlap.
    """

    def __init__(self, array: np.ndarray, footprint: Footprint | None = None) -> None:
        super().__init__(array, _spec(array) if footprint is None else _spec(array).with_storage(in_memory=False))
        self.footprint: Footprint | None = footprint or memory_footprint(array)
        self.held = [array] if isinstance(array, Made) else []

    def digest(self) -> str:
        """What tells at a later call whether the elements are the same."""
        return digest_of(self._array)

    def read(self, region: Region, out: np.ndarray) -> None:
        found = strides.part(self._array, region)
        if out.nbytes > past_caches.MUCH:
            past_caches.copy(out, found)
        else:
            np.copyto(out, found)

    def view(self, region: Region) -> np.ndarray | None:
        if not self.spec.storage.in_memory:
            return None
        found = strides.part(self._array, region)
        found.flags.writeable = False
        return found

    @property
    def has_matrices(self) -> bool:
        """Whether BLAS takes its blocks: elements follow one another along an axis, and none goes back or repeats."""
        steps = [step for n, step in zip(self._array.shape, self._array.strides, strict=True) if n > 1]
        return not steps or min(steps) == self._array.itemsize

    def close(self) -> None: ...


class LoadedSource(Unviewed):
    """An ndarray whose elements are copied to the blocks: its views are no matrices that BLAS takes.

    NumPy would copy them all the same, to memory of its own.
    """

    def __init__(self, source: ArraySource) -> None:
        self._source, self.parts, self.how = source, [source], None
        self.spec, self.footprint = source.spec.with_storage(in_memory=False), source.footprint

    @staticmethod
    def of(source: Source) -> Source:
        """The source, or one that is loaded if it needs to be."""
        return LoadedSource(source) if isinstance(source, ArraySource) and not source.has_matrices else source

    def read(self, region: Region, out: np.ndarray) -> None:
        self._source.read(region, out)

    def close(self) -> None: ...


class ArrayTarget(ExistingTarget):
    """An ndarray of the user's that takes the result. It may be mapped from a file, which that then `writes` to.

    If it is a part of a `whole` array, that is what the user gets.
    """

    name = _NAME

    def __init__(
        self,
        array: np.ndarray,
        footprint: Footprint | None = None,
        writes: str = "",
        whole: np.ndarray | None = None,
    ) -> None:
        self.writes = writes
        check_sink(array, _NAME)
        self.array, self._whole = array, whole
        self._spec = _spec(array)
        self.footprint: Footprint | None = footprint or memory_footprint(array)

    def open(self, spec: ArraySpec) -> ArraySink:
        return ArraySink(self.array, spec, self._whole)


class HostTarget:
    """A new ndarray, for a run without `out`."""

    name = "a new array in host memory"
    footprint: Footprint | None = None
    takes_order = True

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        return ArraySpec(self.name, tuple(shape), numeric_dtype(dtype, "the result"), storage=Storage(in_memory=True))

    def open(self, spec: ArraySpec) -> ArraySink:
        room = available_memory()
        if room is not None and spec.nbytes > room:
            raise _too_large(spec, f"{format_bytes(room)} are available")
        try:
            array = np.empty([spec.shape[axis] for axis in spec.order], spec.dtype)
            whole = array.transpose(np.argsort(spec.order)) if array.ndim > 1 else array
            return ArraySink(whole, spec, is_new=True)
        except (MemoryError, ValueError) as error:
            raise _too_large(spec, str(error)) from error


def _too_large(spec: ArraySpec, reason: str) -> HostMemoryError:
    return HostMemoryError(
        f"the result of shape {spec.shape} and dtype {spec.dtype} takes {format_bytes(spec.nbytes)} of host "
        f"memory, but {reason}: give out='result.npy' or out='result.zarr' to write it to a file"
    )


class ArraySink(_InMemory):
    """An ndarray that is being written."""

    least = strides.LEAST_ROW

    def __init__(
        self, array: np.ndarray, spec: ArraySpec, whole: np.ndarray | None = None, *, is_new: bool = False
    ) -> None:
        super().__init__(array, spec)
        self._user, self._is_new = array if whole is None else whole, is_new

    def make_pages(self) -> None:
        if self._is_new:
            populate(self._array)

    def place(self, region: Region) -> np.ndarray | None:
        """See `Placed.place`."""
        plain = self._array.dtype == self.spec.dtype and self._array.flags.aligned
        return strides.part(self._array, region) if plain else None

    def write(self, region: Region, block: np.ndarray) -> None:
        place = strides.part(self._array, region)
        # The system has written zeros to pages that are new: they are in the cache when the block is.
        if self._array.nbytes > past_caches.MUCH and not self._is_new:
            past_caches.copy(place, block)
        else:
            np.copyto(place, block, casting="same_kind")

    def commit(self) -> Any:
        return self._user

    def abort(self) -> None: ...


def check_sink(array: np.ndarray, name: str) -> None:
    """Refuse (`ArgumentError`) an array that is read-only, or of which two indices are the same element."""
    if not array.flags.writeable:
        raise ArgumentError(f"the output {name} of shape {array.shape} is read-only: open it for writing")
    if strides.overlaps_itself(array.shape, array.strides, array.dtype.itemsize):
        raise ArgumentError(
            f"the output {name} of shape {array.shape} and strides {array.strides} overlaps itself "
            "(it was made by broadcasting, say): give a plain array"
        )
