"""Byte shuffle: first the elements' first bytes, then their second ones, and so on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numcodecs
import numpy as np

from chunkflow.stores.codecs.step import flat
from chunkflow.stores.kvstore.protocol import ChunkError


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
        return flat(numcodecs.Shuffle(self.itemsize).decode(raw, np.empty(len(raw), np.uint8) if out is None else out))

    def encode(self, raw: Any) -> Any:
        return numcodecs.Shuffle(self.itemsize).encode(flat(raw))
