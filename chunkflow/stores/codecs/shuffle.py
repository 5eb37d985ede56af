"""Byte shuffle: first the elements' first bytes, then their second ones, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numcodecs
import numpy as np

from chunkflow.stores.codecs.step import flat
from chunkflow.stores.kvstore.protocol import ChunkError

FEW = 4096
"""Bytes up to which NumPy turns them sooner: numcodecs looks at what it is given for longer than it works."""


@dataclass(frozen=True)
class Shuffle:
    """Byte shuffle of elements of `itemsize` bytes."""

    itemsize: int
    name: ClassVar[str] = "shuffle"
    copies: ClassVar[float] = 0.0

    def size(self, before: int) -> int | None:
        return before

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        if size is not None and len(raw) != size:
            raise ChunkError(f"{len(raw)} bytes of a chunk were shuffled, not {size}")
        out = np.empty(len(raw), np.uint8) if out is None else out
        if len(raw) > FEW or len(raw) % self.itemsize:
            return flat(numcodecs.Shuffle(self.itemsize).decode(raw, out))
        out.reshape(-1, self.itemsize)[...] = raw.reshape(self.itemsize, -1).T
        return out

    def encode(self, raw: Any) -> Any:
        return numcodecs.Shuffle(self.itemsize).encode(flat(raw))
