"""Cache of large decoded chunks, for blocks that read parts of them: each chunk is decoded once while it is in use.

Blocks may be smaller than such a chunk. Beside a GPU the host's memory that is taken is in no budget, which is the
device's there. On the CPU a single chunk is kept, in the memory in which plans have counted that it is decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from chunkflow.core.encoded_chunks import KEPT
from chunkflow.core.grid import Region, Shape

PARTED = 8 << 20
"""Least bytes of an unencoded chunk of which parts are read by themselves."""

LARGE = 256 << 20
"""Least bytes of an unencoded chunk that plans ignore: blocks and the chunks of results are chosen as without any."""


def is_large(nbytes: int) -> bool:
    """Whether plans ignore chunks of that size."""
    return nbytes >= LARGE


class DecodedChunks:
    """The chunks of an operand that were decoded last, so many at most, by their sources and indices."""

    def __init__(self, most: int = KEPT) -> None:
        self._most, self._lock = most, threading.Lock()
        self._chunks: dict[Shape, _Chunk] = {}

    def get(self, index: tuple[int, ...], decode: Callable[[], np.ndarray]) -> np.ndarray:
        """A chunk. One that is not cached is decoded by one thread, while others wait."""
        with self._lock:
            chunk = self._chunks.pop(index, None) or _Chunk()
            self._chunks[index] = chunk  # the latest last
            while len(self._chunks) > self._most:
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
        """Remove a chunk that could not be decoded."""
        with self._lock:
            if self._chunks.get(index) is chunk:
                del self._chunks[index]

    def clear(self) -> None:
        """Free the memory."""
        with self._lock:
            self._chunks.clear()


class _Chunk:
    """A chunk that is decoded, or that a thread is decoding."""

    __slots__ = ("array", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.array: np.ndarray | None = None


def is_part(index: Shape, inner: Region, sides: Shape, extents: Shape) -> bool:
    """Whether `inner` is only a part of the elements that an array of `extents` has in its chunk `index`.

    >>> [is_part((1,), (slice(0, n),), (4,), (7,)) for n in (2, 3)]
    [True, False]
    """
    each = zip(index, inner, sides, extents, strict=True)
    return any(s.start or s.stop < min(side, n - i * side) for i, s, side, n in each)
