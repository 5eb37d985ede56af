"""Index of an HDF5 dataset's chunks: where in the file each lies, and which filters it went through.

HDF5 does one thing at a time in a process, and holds its lock while it decodes. So it is only asked where the chunks
are. Their bytes are read at positions, and decoded by the thread that needs them. Does not load h5py.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, count, shape_of
from chunkflow.stores.hdf5.filters import ChunkLocation


class Index:
    """Places of the chunks of an `h5py.Dataset` that has some, about twenty bytes each."""

    def __init__(self, dataset: Any) -> None:
        self._chunks = tuple(dataset.chunks)
        self._counts = tuple(count(n, c) for n, c in zip(dataset.shape, self._chunks, strict=True))
        # Drivers of several files count addresses from beyond 2**63 on.
        corners, addresses, sizes, masks = array("q"), array("Q"), array("q"), array("I")

        def add(info: Any) -> None:
            if info.byte_offset is not None:
                corners.extend(info.chunk_offset)
                addresses.append(info.byte_offset)
                sizes.append(info.size)
                masks.append(info.filter_mask)

        if hasattr(dataset.id, "chunk_iter"):
            dataset.id.chunk_iter(add)
        else:  # HDF5 before 1.12.3
            for number in range(dataset.id.get_num_chunks()):
                add(dataset.id.get_chunk_info(number))
        indices = np.asarray(corners).reshape(-1, len(self._chunks)) // self._chunks
        inside = np.flatnonzero((indices < self._counts).all(1))
        keys = self._key(indices[inside].T)
        order = np.argsort(keys, kind="stable")
        self._keys = array("q", keys[order].tobytes())
        self._addresses, self._sizes, self._masks = (
            array(column.typecode, np.asarray(column)[inside[order]].tobytes()) for column in (addresses, sizes, masks)
        )

    def _key(self, index: Sequence[Any]) -> Any:
        key = 0
        for i, n in zip(index, self._counts, strict=True):
            key = key * n + i
        return key

    def find(self, index: Shape) -> ChunkLocation | None:
        """Place of the chunk with this index; None if it was never written."""
        key = self._key(index)
        row = bisect_left(self._keys, key)
        if row == len(self._keys) or self._keys[row] != key:
            return None
        return ChunkLocation(self._addresses[row], self._sizes[row], self._masks[row])

    def places(self, firsts: Sequence[int], grid: Sequence[int]) -> list[ChunkLocation] | None:
        """Places of a box of so many chunks along each axis; None if one of them was never written."""
        keys = np.asarray(self._key(np.ix_(*map(range, firsts, np.add(firsts, grid))))).reshape(-1)
        known = np.asarray(self._keys)
        rows = known.searchsorted(keys)
        if rows[-1] == len(known) or (known[rows] != keys).any():
            return None
        columns = (np.asarray(column)[rows].tolist() for column in (self._addresses, self._sizes, self._masks))
        return [ChunkLocation(*place) for place in zip(*columns, strict=True)]


def full_chunk(block: np.ndarray, inner: Region, chunks: Shape, dtype: np.dtype, fill: np.ndarray) -> np.ndarray:
    """A whole chunk: contiguous, in the file's byte order, with the fill value beyond the array's edge."""
    if shape_of(inner) == chunks:
        return np.ascontiguousarray(block, dtype)
    whole = np.full(chunks, fill, dtype)
    whole[inner] = block
    return whole


def limited(shape: Shape, chunks: Sequence[int], itemsize: int, most: int = (1 << 32) - 1) -> Shape:
    """Chunks that HDF5 can have: none longer than the array, and of less than 4 GiB.

    >>> limited((100, 100), (200, 50), 4, most=10_000)
    (50, 50)
    """
    sides = [max(1, min(side, n)) for side, n in zip(chunks, shape, strict=True)]
    while math.prod(sides) * itemsize > most:
        longest = sides.index(max(sides))
        sides[longest] = -(-sides[longest] // 2)
    return tuple(sides)
