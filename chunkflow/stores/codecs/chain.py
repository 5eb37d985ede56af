"""Chains of codecs: from a zarr chunk's bytes straight into a block, and back.

A chain is built once for an array, from its metadata: the order of bytes and axes, and a few codecs. The size after
each codec follows from the chunk's shape, before anything is decoded. So a small chunk that claims to be huge is an
error, and never inflated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, permuted, shape_of, whole
from chunkflow.stores.codecs.crc32c import Crc32c
from chunkflow.stores.codecs.step import (
    Codec,
    Compressor,
    NotDirectError,
    checksum_of,
    decoded,
    encoded,
    flat,
    most_encoded,
    sizes_between,
)
from chunkflow.stores.kvstore.protocol import ChunkError, Objects, StoredObject


@dataclass(frozen=True)
class CodecChain:
    """Encoding of a chunk of `shape` and (native) `dtype`: axes in `order`, bytes `swapped`, then codecs (`steps`)."""

    shape: Shape
    dtype: np.dtype
    fill: np.ndarray
    swapped: bool = False
    order: Shape = ()
    steps: tuple[Codec, ...] = ()

    def __post_init__(self) -> None:
        if not self.order:
            object.__setattr__(self, "order", tuple(range(len(self.shape))))
        if sum(isinstance(step, Compressor) for step in self.steps) > 1:
            raise NotDirectError("several compressors")

    def __str__(self) -> str:
        words = ["transposed"] if self.order != tuple(range(len(self.order))) else []
        if self.swapped:
            words.append("big-endian" if sys.byteorder == "little" else "little-endian")
        return ", ".join(words + ([step.name for step in self.steps] or ["raw"]))

    @property
    def has_checksum(self) -> bool:
        """Whether the last step puts a checksum behind the chunk's bytes."""
        return bool(self.steps) and isinstance(self.steps[-1], Crc32c)

    @property
    def checksums(self) -> str:
        """Names of the checksums that are verified when a chunk is decoded, for people."""
        return " and ".join(filter(None, map(checksum_of, self.steps)))

    @cached_property
    def sizes(self) -> tuple[int | None, ...]:
        """Bytes before the first step and after each; None behind a compressor."""
        return sizes_between(self.steps, math.prod(self.shape) * self.dtype.itemsize)

    @property
    def copies(self) -> float:
        """Most memory that coding takes besides, in chunks: to gather, to swap, and for the steps."""
        return 1 + self.swapped + min(len(self.steps) - self.has_checksum, 2) + sum(step.copies for step in self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        assert self.sizes[0] is not None
        return self.sizes[0]

    @cached_property
    def most(self) -> int:
        """Most bytes of an encoded chunk. No codec makes a chunk that much longer."""
        last = self.sizes[-1]
        return most_encoded(self.nbytes) if last is None else last

    def allows(self, length: int) -> bool:
        """Whether an encoded chunk can have that many bytes."""
        return length <= self.most if self.sizes[-1] is None else length == self.most

    def check(self, length: int) -> None:
        """Raise if an encoded chunk cannot have that many bytes."""
        if not self.allows(length):
            exact, most = f"the chunk has {self.most}", f"a chunk of {self.nbytes} takes at most {self.most} encoded"
            raise ChunkError(f"{length} bytes, where {most if self.sizes[-1] is None else exact}")

    def fetch(self, objects: Objects, name: str, inner: Region, target: np.ndarray) -> None:
        """Fetch an object that is one chunk, and put part `inner` of it into `target`."""
        place = self.place_of(inner, target)
        if place is not None and not self.steps:
            objects.fetch(name, self.check, flat(place))
            self._swap(place)
        else:
            self.decode(objects.fetch(name, self.check), inner, target)

    def read(self, found: StoredObject, start: int, length: int, inner: Region, target: np.ndarray) -> None:
        """Read a chunk from an object and put part `inner` of it into `target`."""
        self.check(length)
        place = self.place_of(inner, target)
        if place is not None and not self.steps:
            found.read(start, length, flat(place))
            self._swap(place)
        else:
            self.decode(found.read(start, length), inner, target)

    def decode(self, raw: np.ndarray, inner: Region, target: np.ndarray) -> None:
        """Put part `inner` of a chunk into `target`."""
        self.check(len(raw))
        place = self.place_of(inner, target)
        if place is not None:
            decoded(raw, self.steps, self.sizes, flat(place))
            self._swap(place)
            return
        dtype = self.dtype.newbyteorder("S") if self.swapped else self.dtype
        stored = decoded(raw, self.steps, self.sizes, None).view(dtype)
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        target[...] = stored.reshape(permuted(self.shape, self.order)).transpose(back)[inner]

    def _stored(self, block: np.ndarray, inner: Region) -> np.ndarray:
        if block.shape != self.shape:
            full = np.full(self.shape, self.fill)
            full[inner] = block
            block = full
        stored = np.ascontiguousarray(block.transpose(self.order), self.dtype)
        return stored.byteswap() if self.swapped else stored

    def encode(self, block: np.ndarray, inner: Region) -> Any:
        """Encode a chunk that has `block` at `inner` and the fill value elsewhere."""
        return encoded(self._stored(block, inner), self.steps)

    def encode_parts(self, block: np.ndarray, inner: Region) -> Sequence[Any]:
        """The same as buffers that follow one another: a checksum is not copied behind what it is of."""
        stored, last = self._stored(block, inner), self.steps[-1:]
        if not last or not isinstance(checksum := last[0], Crc32c):
            return (encoded(stored, self.steps),)
        raw = encoded(stored, self.steps[:-1])
        return raw, checksum.trailer(raw)

    def encode_part(self, block: np.ndarray) -> Any:
        """Encode a block of any sides, as if it were a chunk."""
        return replace(self, shape=block.shape).encode(block, whole(block.shape))

    def is_empty(self, block: np.ndarray) -> bool:
        """Whether every element is the fill value to the bit. For most blocks the first element settles it."""
        bits = np.dtype((np.void, self.dtype.itemsize))
        if np.asarray(block[(0,) * block.ndim]).tobytes() != self.fill.tobytes():
            return False
        return bool((np.ascontiguousarray(block).view(bits) == self.fill.reshape(1).view(bits)).all())

    def place_of(self, inner: Region, target: np.ndarray) -> np.ndarray | None:
        """`target` with its axes as stored, if it is all of the chunk and has the same layout; else None."""
        if shape_of(inner) != self.shape:
            return None
        lying = target.transpose(self.order)
        return lying if lying.flags.c_contiguous else None

    def _swap(self, place: np.ndarray) -> None:
        if self.swapped:
            place.byteswap(inplace=True)
