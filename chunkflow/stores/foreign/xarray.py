"""Variables of xarray, read region by region as xarray decodes them, and never loaded whole.

Nothing here imports xarray: nobody can have a variable without having done so.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from chunkflow.core.spec import Behind
from chunkflow.stores.footprint import Scattered
from chunkflow.stores.foreign.generic import GenericSource
from chunkflow.stores.foreign.wrapped import chunks_of, decoding_facts, decoding_of, instead_of, layers, place_of
from chunkflow.stores.protocol import Source, guards_of

ASKING = 2e-3
"""Seconds that xarray takes to index a variable of a file, and its library to read (seen: 1 to 5 ms with h5netcdf)."""

OF_NETCDF4 = 4e-4
"""The same with netCDF4, which keeps its variables open, and their decoded chunks (seen: 0.3 to 0.4 ms)."""


DECODED = 3e8
"""Bytes per second at which libraries decode chunks in memory of their own."""


def held(variable: Any, dims: Sequence[Hashable] | None = None) -> Any:
    """The array that a variable holds, or a `StoredVariable` if its elements are still in a store.

    Its axes are in the order of `dims`, if given; dimensions that it lacks come in with length 1.
    """
    dims = variable.dims if dims is None else tuple(dims)
    # To ask for the data loads what is still in a store. What lies behind tells them apart; should it ever have another
    # name, all variables are read by regions, which is slower for arrays in memory and right for all.
    data = getattr(variable, "_data", None)
    if data is None or hasattr(data, "get_duck_array"):
        return StoredVariable(variable, dims)
    return data if dims == variable.dims else arranged(data, variable.dims, dims)


def arranged(array: Any, own: Sequence[Hashable], dims: Sequence[Hashable]) -> Any:
    """View of an array with dimensions `own` as one with `dims`. Dimensions that it lacks have length 1.

    >>> arranged(np.ones((2, 3)), ("lat", "lon"), ("lon", "time", "lat")).shape
    (3, 1, 2)
    """
    order = [own.index(d) for d in dims if d in own]
    turned = array if order == list(range(len(own))) else array.transpose(order)
    return turned[tuple(slice(None) if d in own else None for d in dims)]


class StoredVariable:
    """A variable whose elements are still in a store, as an array with `dims` that is read by slicing."""

    def __init__(self, variable: Any, dims: Sequence[Hashable]) -> None:
        self._variable, self._dims = variable, tuple(dims)
        self.data = getattr(variable, "_data", None)
        self.name = place_of(self.data) or str(variable.encoding.get("source", "an xarray.Variable"))
        self.dtype = variable.dtype
        self.shape = tuple(variable.sizes.get(d, 1) for d in self._dims)
        chunks = variable.encoding.get("preferred_chunks")
        self.chunks = chunks and tuple(min(chunks.get(d, 1), n) for d, n in zip(self._dims, self.shape, strict=True))

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray:
        bounds = dict(zip(self._dims, region, strict=True))
        block = self._variable[tuple(bounds[d] for d in self._variable.dims)].values
        return arranged(block, self._variable.dims, self._dims)  # type: ignore[no-any-return]

    @property
    def wrapped(self) -> Any:
        """The array as xarray wraps it; None if its dimensions are in another order here."""
        return getattr(self._variable, "_data", None) if self._dims == self._variable.dims else None

    @property
    def behind(self) -> Any:
        """The array that xarray reads; None if unknown."""
        return getattr(self._layers[-1], "_array", None)

    @property
    def how(self) -> Any:
        """What xarray does with the elements of that array: slices, and functions that decode."""
        found: list[Any] = [self._dims, self._variable.dims]
        for layer in self._layers[:-1]:
            names = {name for kind in type(layer).__mro__ for name in getattr(kind, "__slots__", ())}
            own = {name: getattr(layer, name) for name in names if name != "array" and hasattr(layer, name)}
            own |= {name: value for name, value in getattr(layer, "__dict__", {}).items() if name != "array"}
            found.append(
                (type(layer).__qualname__, {name: getattr(value, "tuple", value) for name, value in own.items()})
            )
        return found

    @property
    def _layers(self) -> list[Any]:
        """Arrays around arrays, the outermost first."""
        return layers(getattr(self._variable, "_data", None))


class StoredSource(GenericSource):
    """Source of a `StoredVariable`. Backends of xarray take their own locks if their libraries need them.

    `behind` is a source of the array that xarray reads, if that is known.
    """

    def __init__(self, obj: StoredVariable, behind: Source | None) -> None:
        super().__init__(obj, obj.name)
        how, instead = _said("through xarray, which decodes it", obj.data), instead_of(obj.data)
        if instead:
            path = place_of(obj.data).rpartition(":")[0]
            instead = (
                f"xarray decodes its whole chunks, where {instead} reads the file itself, in less memory, and "
                f"xarray.open_dataset({path!r}, chunks={{}}, chunked_array_type='chunkflow') keeps labels, after "
                "importing chunkflow.xarray"
            )
        self.spec = self.spec.with_storage(how=how, instead=instead, asking=ASKING)
        self._lock, self.how = nullcontext(), obj.how
        # Decoded, turned or sliced: never taken for the very array that lies behind.
        self.footprint = Scattered.of([None if behind is None else behind.footprint])
        self.guard = next(iter(guards_of([behind])), None)


class WrappedSource(GenericSource):
    """One of xarray's arrays around arrays. The chunks below are decoded in memory of xarray's own."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj, place_of(obj))
        chunks = chunks_of(obj)
        how = "through xarray" + (f", which decodes chunks {chunks} in memory of its own" if chunks else "")
        facts = decoding_facts(obj)
        behind = None
        if chunks:  # as they are stored: xarray makes floats of what it was asked for alone
            nbytes = max(math.prod(chunks) * (facts.itemsize or self.spec.dtype.itemsize), 1)
            behind = Behind(chunks, nbytes / DECODED, facts.cache // nbytes)
        asking = OF_NETCDF4 if facts.cache else ASKING
        self.spec = self.spec.with_storage(how=_said(how, obj), asking=asking, behind=behind)


def _said(how: str, array: Any) -> str:
    """How an array is read, with what its numbers are decoded by."""
    decoding = decoding_of(array)
    return f"{how} ({decoding})" if decoding else how


def stored(array: Any) -> Any:
    """A sliceable array, wrapped as xarray wraps arrays that are still in a store."""
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class Backend(BackendArray):
        shape, dtype, _array = array.shape, array.dtype, array

        def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
            return indexing.explicit_indexing_adapter(
                key, self.shape, indexing.IndexingSupport.BASIC, array.__getitem__
            )

    return indexing.LazilyIndexedArray(Backend())
