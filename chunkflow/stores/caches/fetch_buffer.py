"""Buffers for encoded bytes, one for each reading thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np

MOST_KEPT = 32 << 20
"""Largest buffer, in bytes, that a thread keeps."""

NOTHING = np.empty(0, np.uint8)
"""An empty buffer."""


class Kept(threading.local):
    """Buffer that the calling thread keeps, into which it fetches encoded chunks; None if it keeps none."""

    memory: np.ndarray | None = None

    def room(self, nbytes: int) -> np.ndarray:
        """A buffer of that many bytes. It replaces the one that the thread keeps, if it keeps any."""
        if self.memory is None or nbytes > MOST_KEPT:
            return np.empty(nbytes, np.uint8)
        self.memory = NOTHING  # what was there is given back first
        # Pages of its own: the C library's heap would keep the room of each that was too short. An eighth more, for the
        # next chunks are about as long; a page that nothing was fetched into takes no memory.
        self.memory = np.frombuffer(mmap(-1, nbytes + nbytes // 8, flags=MAP_PRIVATE | MAP_ANONYMOUS), np.uint8)
        return self.memory


kept = Kept()


@contextmanager
def keeping(own: Kept) -> Iterator[None]:
    """Let the calling thread keep such memory for a while, beginning with what it has in `own`, and leave it there.

    Elsewhere a chunk's bytes are gone when it has been decoded.
    """
    before = kept.memory
    kept.memory = NOTHING if own.memory is None else own.memory
    own.memory = None  # or it would outlive its replacement
    try:
        yield
    finally:
        own.memory, kept.memory = kept.memory, before
