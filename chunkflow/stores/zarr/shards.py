"""Shards of a zarr array: many chunks in one object, with an index that says where each one lies.

The layout is that of zarr 3's codec ``sharding_indexed`` (zarr-specs, ZEP 2): pairs of offset and length, both 2^64 - 1
where there is no chunk, at the start or the end of the object, as a rule with a checksum.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, NamedTuple

import numpy as np

from chunkflow.core.encoded_chunks import Place, Stamp
from chunkflow.core.grid import Region, Shape
from chunkflow.stores.codecs.chain import CodecChain
from chunkflow.stores.kvstore.folder import Folder, append, stamped
from chunkflow.stores.kvstore.protocol import ChunkError, StoredObject, named
from chunkflow.stores.touched import touched
from chunkflow.stores.zarr.chunks import KeyedObjects

MISSING = 2**64 - 1
RUN = 1 << 20
"""Most bytes that one request fetches of several neighbouring chunks."""

KEPT = 8 << 20
"""Most bytes of indices that are kept, besides the one in use."""


class OpenedShard(NamedTuple):
    """A shard's file, its stamp, the entries of its index if it has one, and between which bytes chunks may lie."""

    path: str
    stamp: Stamp
    entries: np.ndarray | None
    low: int
    high: int


class ShardChunk(NamedTuple):
    """Offset and length of a chunk in its shard, the wanted part of it, where that goes, and its index (`chunk`)."""

    offset: int
    length: int
    inner: Region
    place: Region
    chunk: Shape


class Indices:
    """Cache of the indices that were used last. An index is valid as long as its object has the same stamp."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._found: OrderedDict[Shape, tuple[Hashable, Future[np.ndarray]]] = OrderedDict()
        self._nbytes = 0
        self.opened: dict[Shape, OpenedShard] = {}
        """Files of the shards whose indices are cached."""

    def get(self, shard: Shape, stamp: Hashable, load: Callable[[], np.ndarray]) -> np.ndarray:
        """Index of a shard. One that is not cached is loaded by one thread, while others wait."""
        with self._lock:
            known, index = self._found.get(shard, (None, None))
            mine = index is None or known != stamp
            if mine:
                self._drop(shard)
                index = Future()
                self._found[shard] = stamp, index
            self._found.move_to_end(shard)
        assert index is not None
        if mine:
            self._load(shard, index, load)
        return index.result()

    def note(self, shard: Shape, opened: OpenedShard) -> None:
        """Remember a shard's file as long as its index is cached."""
        with self._lock:
            stamp, _ = self._found.get(shard, (None, None))
            if stamp == opened.stamp:
                self.opened[shard] = opened

    def _load(self, shard: Shape, index: Future[np.ndarray], load: Callable[[], np.ndarray]) -> None:
        """Load an index, and drop the ones that were used longest ago. An index that cannot be loaded is not cached."""
        try:
            loaded = load()
        except BaseException as error:
            with self._lock:
                if self._is_here(shard, index):
                    del self._found[shard]
                    self.opened.pop(shard, None)
            index.set_exception(error)
            return
        with self._lock:
            index.set_result(loaded)
            if self._is_here(shard, index):
                self._nbytes += loaded.nbytes
            while self._nbytes > self._limit and (oldest := next(iter(self._found))) != shard:
                self._drop(oldest)

    def _is_here(self, shard: Shape, index: Future[np.ndarray]) -> bool:
        return shard in self._found and self._found[shard][1] is index

    def _drop(self, shard: Shape) -> None:
        if shard in self._found:
            self.opened.pop(shard, None)
            index = self._found.pop(shard)[1]
            if index.done():
                self._nbytes -= index.result().nbytes


@dataclass(frozen=True)
class Shards(KeyedObjects):
    """An array's shards of `shape`: `chain` encodes their chunks, `index` their indices."""

    shape: Shape
    index: CodecChain
    at_start: bool
    known: Indices = field(default_factory=Indices, compare=False)

    def __str__(self) -> str:
        return f"{self.chain}, in shards of {self.shape}"

    @property
    def sides(self) -> Shape:
        return self.shape

    @property
    def most(self) -> int:
        return self._space + self.index.nbytes // 16 * self.chain.most

    def places(self, indices: Sequence[Shape]) -> Sequence[Place | None]:
        """Where chunks lie in files; None for chunks that do not exist or are damaged, which `read` then says."""
        # No chunk of the block is read before this has ended, so the loop is short. As a rule the next chunk lies
        # beside the last one along the last axis, in the same shard.
        *outer, last = self.index.shape[:-1] or (1,)
        here, opened = dict[Shape, OpenedShard](), self.known.opened
        found: list[Place | None] = []
        row: Shape | None = None
        for index in indices:
            if index[:-1] != row:
                row, before, base = index[:-1], None, 0
                for i, n in zip(row, outer, strict=True):
                    base = base * n + i % n
            number, at = divmod(index[-1], last) if index else (0, 0)
            if number != before:
                before = number
                shard = (*[i // n for i, n in zip(row, outer, strict=True)], number) if index else ()
                if shard not in here:  # a damaged shard is not kept for longer
                    here[shard] = opened.get(shard) or self._opened(shard)
                path, stamp, parts, low, high = here[shard]
            at = 2 * (base * last + at)
            offset, length = (MISSING, 0) if parts is None else (parts.item(at), parts.item(at + 1))
            there = low <= offset and offset + length <= high and self.chain.allows(length)
            found.append((path, offset, length, stamp) if there else None)
        return found

    def _opened(self, shard: Shape) -> OpenedShard:
        """A shard's file and index; an empty one if there is no such file or it is damaged.

        Whoever reads from the file compares its stamp. To look here too would make threads wait for Python's lock.
        """
        assert isinstance(self.objects, Folder)
        name = self.key(shard)
        path = self.objects.path(name)

        def load() -> np.ndarray:
            with self.objects.open(name) as found:
                return self._load(found)

        try:
            stamp = stamped(self.objects.status(name))
            opened = OpenedShard(path, stamp, self.known.get(shard, stamp, load), *self._bounds(stamp.size))
        except (OSError, ChunkError):
            return OpenedShard("", Stamp(0, 0, 0), None, 0, 0)
        self.known.note(shard, opened)
        return opened

    def _check(self, offset: int, length: int, size: int | None) -> None:
        """Raise if a chunk cannot lie there in an object of that size."""
        low, high = self._bounds(size)
        if offset < low or offset + length > high:
            raise ChunkError(f"bytes {offset} to {offset + length} lie outside the chunks', {low} to {high}")
        self.chain.check(length)

    def _bounds(self, size: int | None) -> tuple[int, int]:
        """First and last byte between which chunks may lie in an object of that size."""
        size = MISSING if size is None else size  # if unknown, reading beyond the end is an error
        return (self._space, size) if self.at_start else (0, size - self._space)

    @property
    def _space(self) -> int:
        """Bytes of the encoded index."""
        size = self.index.sizes[-1]
        assert size is not None
        return size

    def _read(self, index: Shape, inner: Region, target: np.ndarray) -> bool:
        name, entries = self.key(index), None
        try:
            with named(f"shard {name}"), self.objects.open(name) as found:
                entries = self.known.get(index, found.stamp, lambda: self._load(found))
                for run in runs(self._parts(index, entries, found.size, inner, target), self.objects.gap):
                    self._fetch(found, run, target)
        except FileNotFoundError as error:
            if entries is not None:
                raise ChunkError(f"shard {name} was removed while it was read") from error
            with named(f"shard {name}"):
                self.objects.absent(name)
            for chunk, _, _ in touched(inner, self.chain.shape):
                self._note(index, chunk)
            target[...] = self.chain.fill
            return False
        return True

    def _load(self, found: StoredObject) -> np.ndarray:
        index = np.empty(self.index.shape, np.uint64)
        with named("its index"):
            every = tuple(slice(0, n) for n in index.shape)
            self.index.read(found, 0 if self.at_start else -self._space, self._space, every, index)
        return index

    def offset(self, region: Region) -> str:
        shard, at = zip(*(divmod(s.start, n) for s, n in zip(region, self.shape, strict=True)), strict=True)
        chunk = tuple(a // side for a, side in zip(at, self.chain.shape, strict=True))
        try:
            with self.objects.open(self.key(shard)) as found:
                start = int(self._load(found)[(*chunk, 0)])
        except (OSError, ChunkError):
            return ""
        return "" if start == MISSING else f", from byte {start} on"

    def _note(self, shard: Shape, chunk: Shape) -> None:
        """Note a chunk that is missing, by its shard and its place there."""
        each = self.index.shape[:-1]
        place = tuple([s * n + c for s, n, c in zip(shard, each, chunk, strict=True)])
        self.gaps.note(place, self.extents, self.chain.shape)

    def _parts(
        self, shard: Shape, index: np.ndarray, size: int | None, inner: Region, target: np.ndarray
    ) -> list[ShardChunk]:
        """The chunks that exist, checked. Others are filled with the fill value."""
        found: list[ShardChunk] = []
        for chunk, within, place in touched(inner, self.chain.shape):
            offset, length = index[chunk].tolist()
            if offset == length == MISSING:
                self._note(shard, chunk)
                target[place] = self.chain.fill
                continue
            with named(f"chunk {chunk} of it"):
                self._check(offset, length, size)
            found.append(ShardChunk(offset, length, within, place, chunk))
        found.sort(key=lambda part: part[:2])
        return found

    def _fetch(self, found: StoredObject, run: Sequence[ShardChunk], target: np.ndarray) -> None:
        """Read neighbouring chunks by one request, and decode each."""
        if len(run) == 1:
            ((offset, length, within, place, chunk),) = run
            with named(f"chunk {chunk} of it"):
                self.chain.read(found, offset, length, within, target[place])
            return
        start = run[0].offset
        raw = found.read(start, max(part.offset + part.length for part in run) - start)
        for offset, length, within, place, chunk in run:
            with named(f"chunk {chunk} of it"):
                self.chain.decode(raw[offset - start :][:length], within, target[place])

    def _write(self, index: Shape, inner: Region, block: np.ndarray) -> None:
        self.objects.put(self.key(index), partial(self._fill, inner=inner, block=block))

    def _fill(self, file: BinaryIO, inner: Region, block: np.ndarray) -> bool:
        """Write a shard. Returns False if it is empty."""
        index = np.full(self.index.shape, MISSING, np.uint64)
        offset = first = self._space if self.at_start else 0
        file.seek(offset)
        for chunk, within, place in touched(inner, self.chain.shape):
            part = block[place]
            if self.keeps_empty or not self.chain.is_empty(part):
                length = sum(append(file, raw) for raw in self.chain.encode_parts(part, within))
                index[chunk] = offset, length
                offset += length
        if offset == first:
            return False
        if self.at_start:
            file.seek(0)
        append(file, self.index.encode(index, tuple(slice(0, n) for n in index.shape)))
        return True


def runs(parts: Sequence[ShardChunk], gap: int) -> Iterator[Sequence[ShardChunk]]:
    """Groups of chunks that are fetched by one request, from chunks sorted by offset."""
    first, end = 0, 0
    for i, (offset, length, *_) in enumerate(parts):
        if i > first and (offset > end + gap or max(end, offset + length) - parts[first].offset > RUN):
            yield parts[first:i]
            first = i
        end = offset + length if i == first else max(end, offset + length)
    if parts:
        yield parts[first:]
