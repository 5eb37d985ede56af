"""Fletcher's checksum behind the bytes (HDF5's filter 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numcodecs
import numpy as np

from chunkflow.stores.codecs.step import flat
from chunkflow.stores.kvstore.protocol import ChunkError


@dataclass(frozen=True)
class Fletcher32:
    """Fletcher's checksum in the last 4 bytes."""

    name: ClassVar[str] = "fletcher32"
    copies: ClassVar[float] = 0.0

    def size(self, before: int) -> int | None:
        return before + 4

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        if len(raw) < 4 or (size is not None and len(raw) != size + 4):
            raise ChunkError(f"{len(raw)} bytes of a chunk are of another number than its checksum is of")
        return flat(numcodecs.Fletcher32().decode(raw))

    def encode(self, raw: Any) -> Any:
        return numcodecs.Fletcher32().encode(flat(raw))
