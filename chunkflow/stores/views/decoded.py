"""What lies in a store behind xarray's arrays around arrays, read by our own reader and decoded by their functions.

Nothing here imports xarray: nobody can have such an array without having done so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.core.cuts import AxisSlice
from chunkflow.core.grid import Region, fit, regions, shape_of, shift
from chunkflow.errors import ReadError
from chunkflow.stores.failures import unread
from chunkflow.stores.foreign.generic import faithful
from chunkflow.stores.protocol import Source
from chunkflow.stores.views.sliced import SlicedSource
from chunkflow.stores.views.taken import Some
from chunkflow.system.host import cores
from chunkflow.system.thread_pool import in_threads

PART = 4 << 20
"""Bytes that are decoded at once: fewer, and threads wait for Python's lock at each function."""

_CHANGE_NOTHING = (
    "ImplicitToExplicitIndexingAdapter",
    "MemoryCachedArray",
    "CopyOnWriteArray",
    "NativeEndiannessArray",
)
"""xarray's arrays around arrays that leave the elements as they are."""


def decoded_source(array: Any, reads: Callable[[Any], bool], opened: Callable[[Any], Source]) -> Source | None:
    """The source of what xarray's arrays around arrays wrap, decoded as they would.

    It is None, and xarray has to read, if our reader does not read the innermost array, or if a wrapper is unknown.
    """
    dtype, functions, key = np.dtype(array.dtype), [], None
    while (below := getattr(array, "array", None)) is not None:
        kind = type(array).__name__
        if kind == "_ElementwiseFunctionArray":
            functions.append(array.func)
        elif kind == "LazilyIndexedArray" and key is None:
            key = array.key.tuple
        elif kind not in _CHANGE_NOTHING:
            return None
        array = below
    stored = getattr(array, "_array", None)
    if not reads(stored) or not all(isinstance(side, slice) for side in key or ()):
        return None
    source = opened(stored)
    if key is not None and any(side != slice(None) for side in key):
        sides = [range(n)[side] for n, side in zip(source.spec.shape, key, strict=True)]
        source = SlicedSource(source, [AxisSlice(side.start, len(side), side.step) for side in sides])
    return DecodedSource(source, functions[::-1], dtype) if functions or source.spec.dtype != dtype else source


class DecodedSource(Some):
    """What functions of single elements make of a source's: those by which xarray decodes them."""

    def __init__(self, source: Source, functions: Sequence[Callable[[Any], Any]], dtype: np.dtype) -> None:
        held = (source.spec.storage.copies + 1) * source.spec.dtype.itemsize / dtype.itemsize
        spec = replace(
            source.spec.with_storage(
                how="decoded as xarray does", in_memory=False, codec="", raw=False, separate=False, copies=held
            ),
            dtype=dtype,
        )
        super().__init__(source, spec, (functions, dtype))
        self._functions = functions

    def read(self, region: Region, out: np.ndarray) -> None:
        stored = np.empty(shape_of(region), self._source.spec.dtype)
        self._source.read(region, stored)

        starts = [side.start for side in region]

        def decode(part: Region) -> None:
            found: Any = stored[part]
            for function in self._functions:
                found = function(found)
            np.copyto(out[part], faithful(found, shift(part, starts), self.spec), casting="safe")

        every = range(out.ndim)
        parts = regions(out.shape, fit(out.shape, [1 for _ in every], tuple(every), PART // out.itemsize))
        try:
            in_threads(decode, list(parts), cores())
        except ReadError:
            raise
        except Exception as error:
            raise unread(region, self.spec.name, error, "decode", "of") from error
