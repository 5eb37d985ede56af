"""Small chunks, many at a time: those that lie beside each other in the file are read at once, and copied at once.

Chunk by chunk, Python would take longer than reading and decoding do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from chunkflow.core.grid import Region, Shape, count
from chunkflow.stores.file.strided import pread
from chunkflow.stores.hdf5.facts import Facts
from chunkflow.stores.hdf5.filters import ChunkLocation, FilterPipeline
from chunkflow.stores.hdf5.index import Index

SMALL = 4 << 10
"""Bytes of the largest chunks that are read together."""

FEW = 8
"""Chunks that are read one by one."""

MOST = 128 << 10
"""Bytes of chunks that are read together. As much again is taken twice, to bring them into order."""

GAP = 512
"""Bytes between two chunks that are read with them."""


def slabs(region: Region, chunks: Shape, nbytes: int) -> Iterator[Region]:
    """A region in parts that touch no more than `MOST` bytes of chunks of `nbytes`, cut between chunks.

    >>> list(slabs((slice(2, 9), slice(0, 8)), (4, 8), MOST // 2))
    [(slice(2, 8, None), slice(0, 8, None)), (slice(8, 9, None), slice(0, 8, None))]
    """
    left, sides = max(1, MOST // nbytes), []
    for side, length in zip(reversed(region), reversed(chunks), strict=True):
        first, last = side.start // length, count(side.stop, length)
        step = max(1, min(left, last - first))
        left //= step
        cuts = [side.start, *(i * length for i in range(first + step, last, step)), side.stop]
        sides.append([slice(*pair) for pair in itertools.pairwise(cuts)])
    return itertools.product(*reversed(sides))


def read_together(fd: int, index: Index, chain: FilterPipeline, facts: Facts, region: Region, out: np.ndarray) -> bool:
    """Read a slab of a dataset from its file; False if chunks must be read one by one, or one of them is damaged."""
    chunks = facts.chunks or ()
    firsts = [side.start // c for side, c in zip(region, chunks, strict=True)]
    grid = [count(side.stop, c) - first for side, c, first in zip(region, chunks, firsts, strict=True)]
    number = math.prod(grid)
    if number <= FEW or 2 * out.size < number * math.prod(chunks):
        return False
    places = index.places(firsts, grid)
    if places is None:
        return False
    try:
        data = _decoded(fd, chain, places, _partial(facts, firsts, grid))
    except Exception:  # of any library: read one by one, the chunk that is damaged is named
        return False
    boxes = data.reshape(-1).view(facts.dtype).reshape(*grid, *chunks)
    ndim = len(grid)
    order = [axis for pair in zip(range(ndim), range(ndim, 2 * ndim), strict=True) for axis in pair]
    box = boxes.transpose(order).reshape([n * c for n, c in zip(grid, chunks, strict=True)])
    corner = [first * c for first, c in zip(firsts, chunks, strict=True)]
    out[...] = box[tuple([slice(s.start - at, s.stop - at) for s, at in zip(region, corner, strict=True)])]
    return True


def _partial(facts: Facts, firsts: Sequence[int], grid: Sequence[int]) -> list[bool]:
    """Which chunks of a box of them stick out of the array."""
    found = np.zeros(grid, bool)
    sides = zip(facts.shape, facts.chunks or (), firsts, strict=True)
    for axis, (n, chunk, first) in enumerate(sides):
        found[(*(slice(None),) * axis, slice(max(0, n // chunk - first), None))] = True
    return found.reshape(-1).tolist()


def _decoded(fd: int, chain: FilterPipeline, places: list[ChunkLocation], partial: Sequence[bool]) -> np.ndarray:
    """The bytes of chunks that lie in a file, a row for each."""
    for place, sticks_out in zip(places, partial, strict=True):  # before there is memory for what it claims to be
        chain.checked(place, partial=sticks_out)
    raw, begins = _fetched(fd, places)
    if not chain.steps and all(place.size == chain.nbytes for place in places):
        if begins == list(range(0, len(raw), chain.nbytes)):
            return raw
        return sliding_window_view(raw, chain.nbytes)[begins]
    data = np.empty((len(places), chain.nbytes), np.uint8)
    for row, place, begin, sticks_out in zip(data, places, begins, partial, strict=True):
        chain.decode_bytes(place, raw[begin : begin + place.size], row, partial=sticks_out)
    return data


def _fetched(fd: int, places: list[ChunkLocation]) -> tuple[np.ndarray, list[int]]:
    """The bytes of chunks, and where each begins among them. Chunks may lie in any order, or in the same place."""
    order = sorted(range(len(places)), key=lambda row: places[row].address)
    runs: list[list[int]] = []  # from where on, how many bytes, and where they are put
    begins, total = [0] * len(places), 0
    for row in order:
        address, size, _ = places[row]
        end = runs[-1][0] + runs[-1][1] if runs else 0
        if not runs or address > end + GAP:
            runs.append([address, 0, total])
        start, length, at = runs[-1]
        begins[row] = at + address - start
        runs[-1][1] = max(length, address + size - start)
        total = at + runs[-1][1]
    raw = np.empty(total, np.uint8)
    for start, length, at in runs:
        pread(fd, start, raw[at : at + length])
    return raw, begins
