"""Shards of a local zarr array: many chunks in one file, with an index that says where each one lies.

The layout is that of zarr 3's codec ``sharding_indexed`` (zarr-specs, ZEP 2): pairs of offset and length, both 2^64 - 1
where there is no chunk, at the start or the end of the file, as a rule with a checksum.
"""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from chunkflow.grid import Region, Shape
from chunkflow.stores.zarrchain import Chain
from chunkflow.stores.zarrchunks import aligned, touched
from chunkflow.stores.zarrfiles import ChunkError, append, named, pread, put

MISSING = 2**64 - 1
RUN = 1 << 20
"""Bytes that are fetched at once, at most, where several chunks are neighbours in the file."""

GAP = 16 << 10
"""Bytes between two chunks that are fetched with them rather than skipped."""

KEPT = 8 << 20
"""Bytes of indices that are kept, at most, besides the one in use."""

Stamp = tuple[int, int, int]
Part = tuple[int, int, Region, Region, Shape]
"""Offset and length of a chunk, what of it goes where, and its place in the shard."""


class Indices:
    """The indices that were used last, each as long as its file is the same."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._found: OrderedDict[Shape, tuple[Stamp, np.ndarray]] = OrderedDict()
        self._nbytes = 0

    def get(self, shard: Shape, stamp: Stamp) -> np.ndarray | None:
        """Index of a shard, if it is here and of that very file."""
        with self._lock:
            known, index = self._found.get(shard, (None, None))
            if known != stamp:
                return None
            self._found.move_to_end(shard)
            return index

    def put(self, shard: Shape, stamp: Stamp, index: np.ndarray) -> None:
        """Keep an index, and forget those that were used longest ago."""
        with self._lock:
            self._drop(shard)
            while self._found and self._nbytes + index.nbytes > self._limit:
                self._drop(next(iter(self._found)))
            self._found[shard] = stamp, index
            self._nbytes += index.nbytes

    def _drop(self, shard: Shape) -> None:
        if shard in self._found:
            self._nbytes -= self._found.pop(shard)[1].nbytes


@dataclass(frozen=True)
class Shards:
    """A local array's shards of `shape`; `chain` and `index` say how a chunk and the index are encoded."""

    folder: str
    key: Callable[[Shape], str]
    extents: Shape
    shape: Shape
    chain: Chain
    index: Chain
    at_start: bool
    keeps_empty: bool
    known: Indices = field(default_factory=Indices, compare=False)

    def __str__(self) -> str:
        return f"{self.chain}, in shards of {self.shape}"

    def read(self, region: Region, out: np.ndarray) -> None:
        """Fill `out` with a region."""
        for shard, inner, place in touched(region, self.shape):
            self._read(shard, inner, out[place])

    def write(self, region: Region, block: np.ndarray) -> bool:
        """Store a region; False if it cuts a shard, which is zarr's affair."""
        if not aligned(region, self.shape, self.extents):
            return False
        for shard, inner, place in touched(region, self.shape):
            path = os.path.join(self.folder, self.key(shard))
            put(path, partial(self._write, inner=inner, block=block[place]))
        return True

    @property
    def _space(self) -> int:
        """Bytes of the encoded index."""
        size = self.index.sizes[-1]
        assert size is not None
        return size

    def _read(self, shard: Shape, inner: Region, target: np.ndarray) -> None:
        name = self.key(shard)
        try:
            file = open(os.path.join(self.folder, name), "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            target[...] = self.chain.fill
            return
        with file, named(f"shard {name}"):
            fd = file.fileno()
            found = os.fstat(fd)
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
            index = self.known.get(shard, stamp)
            if index is None:
                index = self._load(fd, found.st_size)
                self.known.put(shard, stamp, index)
            parts = self._parts(index, found.st_size, inner, target)
            for run in runs(parts):
                self._fetch(fd, run, target)

    def _load(self, fd: int, size: int) -> np.ndarray:
        if size < self._space:
            raise ChunkError(f"truncated: {size} bytes, where the index alone has {self._space}")
        index = np.empty(self.index.shape, np.uint64)
        with named("its index"):
            every = tuple(slice(0, n) for n in index.shape)
            self.index.read(fd, 0 if self.at_start else size - self._space, self._space, every, index)
        return index

    def _parts(self, index: np.ndarray, size: int, inner: Region, target: np.ndarray) -> list[Part]:
        """The chunks that are there, checked; those that are not are filled in."""
        low = self._space if self.at_start else 0
        high = size if self.at_start else size - self._space
        found: list[Part] = []
        for chunk, within, place in touched(inner, self.chain.shape):
            offset, length = index[chunk].tolist()
            if offset == length == MISSING:
                target[place] = self.chain.fill
                continue
            with named(f"chunk {chunk} of it"):
                if offset < low or offset + length > high:
                    raise ChunkError(f"bytes {offset} to {offset + length} lie outside the chunks', {low} to {high}")
                self.chain.check(length)
            found.append((offset, length, within, place, chunk))
        found.sort(key=lambda part: part[:2])
        return found

    def _fetch(self, fd: int, run: Sequence[Part], target: np.ndarray) -> None:
        """Read neighbouring chunks, at once if there are several, and decode each."""
        if len(run) == 1:
            ((offset, length, within, place, chunk),) = run
            with named(f"chunk {chunk} of it"):
                self.chain.read(fd, offset, length, within, target[place])
            return
        start = run[0][0]
        raw = pread(fd, np.empty(max(part[0] + part[1] for part in run) - start, np.uint8), start)
        for offset, length, within, place, chunk in run:
            with named(f"chunk {chunk} of it"):
                self.chain.decode(raw[offset - start :][:length], within, target[place])

    def _write(self, file: io.FileIO, inner: Region, block: np.ndarray) -> bool:
        """Write a shard; False if there is nothing in it."""
        index = np.full(self.index.shape, MISSING, np.uint64)
        offset = first = self._space if self.at_start else 0
        file.seek(offset)
        for chunk, within, place in touched(inner, self.chain.shape):
            part = block[place]
            if self.keeps_empty or not self.chain.is_empty(part):
                length = append(file, self.chain.encode(part, within))
                index[chunk] = offset, length
                offset += length
        if offset == first:
            return False
        if self.at_start:
            file.seek(0)
        append(file, self.index.encode(index, tuple(slice(0, n) for n in index.shape)))
        return True


def runs(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Chunks, sorted by offset, that are near enough to one another to be fetched at once."""
    first, end = 0, 0
    for i, (offset, length, *_) in enumerate(parts):
        if i > first and (offset > end + GAP or max(end, offset + length) - parts[first][0] > RUN):
            yield parts[first:i]
            first = i
        end = offset + length if i == first else max(end, offset + length)
    if parts:
        yield parts[first:]
