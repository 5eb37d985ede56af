"""Chunks that are missing: they read as the fill value, and whoever reads them may want to know."""

from __future__ import annotations

import threading

from chunkflow.core.grid import Shape, count
from chunkflow.stores.kvstore.protocol import GoneError


class Gaps:
    """The missing chunks of an array that were met, each once. With `refuses` the first one is an error.

    `accepts` says that the caller knows of them: even a server that has no chunk at all is believed.

    >>> gaps = Gaps()
    >>> for chunk in ((0, 1), (2, 0), (0, 1)):
    ...     gaps.note(chunk, (10, 4), (4, 2))
    >>> gaps.number, gaps.total
    (2, 6)
    """

    def __init__(self) -> None:
        self.number = self.total = 0
        self.refuses = self.accepts = False
        self._lock = threading.Lock()
        self._met = bytearray()  # a bit for each chunk: budgets are small, and arrays may have millions

    def note(self, chunk: Shape, extents: Shape, sides: Shape) -> None:
        """Note the chunk with this index of an array with these chunks; `GoneError` if none may be missing."""
        if self.refuses:
            raise GoneError(f"chunk {chunk} is missing, and missing='error' was asked for")
        place, total = 0, 1
        for i, n, side in zip(chunk, extents, sides, strict=True):
            place, total = place * count(n, side) + i, total * count(n, side)
        with self._lock:
            self.total = total
            self._met = self._met or bytearray(-(-total // 8))
            bit = 1 << place % 8
            if not self._met[place // 8] & bit:
                self._met[place // 8] |= bit
                self.number += 1

    def __str__(self) -> str:
        return f"{self.number} of {self.total} chunks are missing, and read as the fill value"
