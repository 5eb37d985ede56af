"""Chunks of a zarr array, each an object of its own, decoded straight into a block and encoded from it.

Zarr's own pipeline takes a chunk through memory of its own, on an event loop and a second thread pool. Each of these
threads keeps the memory that it once took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from operator import add

import numpy as np

from chunkflow.core.encoded_chunks import Place
from chunkflow.core.grid import Region, Shape, permuted, shape_of, whole
from chunkflow.core.pieces import Piece, contiguous
from chunkflow.core.spec import ChunkFiles
from chunkflow.stores.caches.decoded_chunks import PARTED, DecodedChunks, is_large, is_part
from chunkflow.stores.codecs.chain import CodecChain
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.gaps import Gaps
from chunkflow.stores.kvstore.folder import Folder, append
from chunkflow.stores.kvstore.protocol import Objects, named
from chunkflow.stores.strides import packed_strides, part, swapped
from chunkflow.stores.touched import aligned, touched


@dataclass(frozen=True)
class KeyedObjects:
    """An array's objects: `key` gives the name of an index's object, `chain` the encoding of a chunk."""

    objects: Objects
    key: Callable[[Shape], str]
    extents: Shape
    chain: CodecChain
    keeps_empty: bool
    gaps: Gaps = field(default_factory=Gaps, compare=False, kw_only=True)

    @property
    def sides(self) -> Shape:
        """Shape of what an object holds."""
        return self.chain.shape

    @property
    def most(self) -> int:
        """Most bytes of an object."""
        return self.chain.most

    def read(self, region: Region, out: np.ndarray) -> bool:
        """Fill `out` with a region. Returns whether all of its objects exist."""
        there = True
        for index, inner, place in touched(region, self.sides):
            there = self._read(index, inner, part(out, place)) and there
        return there

    def write(self, region: Region, block: np.ndarray) -> bool:
        """Store a region. Returns False if it cuts what an object holds: zarr has to store it."""
        if not aligned(region, self.sides, self.extents):
            return False
        for index, inner, place in touched(region, self.sides):
            self._write(index, inner, part(block, place))
        return True

    def offset(self, region: Region) -> str:
        """From which byte of its object on a region lies, if that is known and not the first; for people."""
        return ""

    def _missing(self, chunk: Shape, name: str) -> None:
        """Note a chunk that is missing, since there is no object of that name."""
        with named(f"chunk {name}"):
            self.objects.absent(name)
        self.gaps.note(chunk, self.extents, self.chain.shape)

    def _read(self, index: Shape, inner: Region, target: np.ndarray) -> bool:
        raise NotImplementedError

    def _write(self, index: Shape, inner: Region, block: np.ndarray) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Chunks(KeyedObjects):
    """An array's chunks, each an object of its own."""

    lately: DecodedChunks | None = field(default=None, compare=False)
    """Cache of decoded chunks; None unless `keep` was called (see `Keeping`)."""

    def __str__(self) -> str:
        return str(self.chain)

    @property
    def separate(self) -> bool:
        """Whether chunks are unencoded files."""
        return not self.chain.steps and isinstance(self.objects, Folder)

    @property
    def parted(self) -> bool:
        """Whether plans can ignore chunks: any part of one can be read by itself."""
        return self.separate and is_large(self.chain.nbytes)

    @property
    def by_parts(self) -> bool:
        """Whether of a chunk that is cut only the wanted part is read, and no more is held."""
        return self.separate and self.chain.nbytes >= PARTED

    def files(self, start: Shape, pieces: tuple[Piece, ...], *, parts: bool) -> ChunkFiles | None:
        """See `chunkflow.stores.protocol.Separate`. With `parts` a piece may be a part of a chunk."""
        if self.chain.steps or not isinstance(self.objects, Folder):
            return None
        chain, sides = self.chain, self.chain.shape
        corner, phase = zip(*map(divmod, start, sides), strict=True) if sides else ((), ())
        found = runs_in_chunks(pieces, sides, phase, chain.order, parts=parts)
        path, key = self.objects.path, self.key
        names = tuple([path(key(tuple(map(add, corner, at)))) if at is not None else "" for at, _ in found])
        if not any(names):
            return None
        places = tuple([first * chain.dtype.itemsize for _, first in found])
        swap = swapped(chain.dtype.newbyteorder("S")) if chain.swapped else 0
        fill = chain.fill.byteswap() if chain.swapped else chain.fill
        return ChunkFiles(
            names, places, chain.nbytes, swap, b"" if self.keeps_empty else fill.tobytes(), self.objects.since
        )

    def places(self, indices: Sequence[Shape]) -> Sequence[Place | None]:
        assert isinstance(self.objects, Folder)
        return [(self.objects.path(self.key(index)), 0, -1) for index in indices]

    def _read(self, index: Shape, inner: Region, target: np.ndarray) -> bool:
        name = self.key(index)
        try:
            with named(f"chunk {name}"):
                if self.by_parts and self.chain.place_of(inner, target) is None:
                    self._read_part(name, inner, target)
                elif self.lately is not None and is_part(index, inner, self.sides, self.extents):
                    target[...] = part(self.lately.get((id(self), *index), partial(self._whole, name)), inner)
                else:
                    self.chain.fetch(self.objects, name, inner, target)
        except FileNotFoundError:
            self._missing(index, name)
            target[...] = self.chain.fill
            return False
        return True

    def _read_part(self, name: str, inner: Region, target: np.ndarray) -> None:
        assert isinstance(self.objects, Folder)
        path, chain = self.objects.path(name), self.chain
        chain.check(self.objects.status(name).st_size)
        lying = packed_strides(permuted(chain.shape, chain.order), chain.dtype.itemsize)
        strides = permuted(lying, sorted(range(len(lying)), key=chain.order.__getitem__))
        dtype = chain.dtype.newbyteorder("S") if chain.swapped else chain.dtype
        with closing(FileSource(Strided(path, 0, chain.shape, strides, dtype), guarded=False)) as file:
            file.read(inner, target)

    def _whole(self, name: str) -> np.ndarray:
        chain = self.chain
        lying = np.empty(permuted(chain.shape, chain.order), chain.dtype)
        found = lying.transpose(sorted(range(lying.ndim), key=chain.order.__getitem__))
        chain.fetch(self.objects, name, whole(chain.shape), found)
        return found

    def _write(self, index: Shape, inner: Region, block: np.ndarray) -> None:
        name = self.key(index)
        if not self.keeps_empty and self.chain.is_empty(block):
            self.objects.remove(name)
            return
        parts = self.chain.encode_parts(block, inner)
        self.objects.put(name, lambda file: sum(append(file, raw) for raw in parts) >= 0)


@lru_cache(256)
def runs_in_chunks(
    pieces: tuple[Piece, ...], sides: Shape, phase: Shape, order: Shape, *, parts: bool
) -> tuple[tuple[Shape | None, int], ...]:
    """For each piece that is one run of one chunk: that chunk, and the number of its elements before the run.

    The block begins `phase` elements after the corner of a chunk, whose elements lie in `order`. Without `parts` only
    whole chunks count. Other pieces get None.

    >>> from chunkflow.core.pieces import pieces
    >>> found = pieces((9,), (0,), 4, (4,), (2,))  # the last 2 of one, a whole one, 3 of the next
    >>> runs_in_chunks(found, (4,), (2,), (0,), parts=False)
    ((None, 0), ((1,), 0), (None, 0))
    >>> runs_in_chunks(found, (4,), (2,), (0,), parts=True)
    (((0,), 2), ((1,), 0), ((2,), 0))
    """
    lying = packed_strides(permuted(sides, order), 1)
    found: list[tuple[Shape | None, int]] = []
    for piece in pieces:
        shape = shape_of(piece.region)
        corners = [s.start + p for s, p in zip(piece.region, phase, strict=True)]
        at, inner = zip(*map(divmod, corners, sides), strict=True) if sides else ((), ())
        fits = all(i + n <= side for i, n, side in zip(inner, shape, sides, strict=True))
        if fits and contiguous(shape, sides, order) if parts else shape == sides and not any(inner):
            found.append((at, sum(inner[axis] * step for axis, step in zip(order, lying, strict=True))))
        else:
            found.append((None, 0))
    return tuple(found)
