"""Large chunks, of which parts are read: each is decoded once for as long as parts of it are asked for.

Blocks may be smaller than such a chunk. The host's memory that is taken is in no budget, which is the device's there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from chunkflow.core.grid import Region, Shape

PARTED = 8 << 20
"""Bytes of a chunk, stored as it is, that is not read whole for parts of it."""

LARGE = 256 << 20
"""The same where plans need not know of chunks: blocks, and the chunks of results, are what they are without any."""

MOST = 2
"""Decoded chunks that are kept at once: that of the block which is read, and the next one's."""


def is_large(nbytes: int) -> bool:
    """Whether chunks are so large."""
    return nbytes >= LARGE


class DecodedChunks:
    """The chunks of an operand that were decoded last, by who decodes them and by their indices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[Shape, _Chunk] = {}

    def get(self, index: tuple[int, ...], decode: Callable[[], np.ndarray]) -> np.ndarray:
        """A chunk, decoded if it is not there; who else wants it waits meanwhile."""
        with self._lock:
            chunk = self._chunks.pop(index, None) or _Chunk()
            self._chunks[index] = chunk  # the latest last
            while len(self._chunks) > MOST:
                del self._chunks[next(iter(self._chunks))]
        with chunk.lock:
            if chunk.array is None:
                try:
                    chunk.array = decode()
                except BaseException:
                    self._forget(index, chunk)
                    raise
            return chunk.array

    def _forget(self, index: Shape, chunk: _Chunk) -> None:
        """Let a chunk that is not there, or is damaged, take no other's place."""
        with self._lock:
            if self._chunks.get(index) is chunk:
                del self._chunks[index]

    def clear(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._chunks.clear()


class _Chunk:
    """A decoded chunk, or one that somebody is decoding."""

    __slots__ = ("array", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.array: np.ndarray | None = None


def is_part(index: Shape, inner: Region, sides: Shape, extents: Shape) -> bool:
    """Whether `inner` is less than what an array of `extents` has of its chunk `index`.

    >>> [is_part((1,), (slice(0, n),), (4,), (7,)) for n in (2, 3)]
    [True, False]
    """
    each = zip(index, inner, sides, extents, strict=True)
    return any(s.start or s.stop < min(side, n - i * side) for i, s, side, n in each)
