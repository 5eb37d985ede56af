"""Blosc: its header, which is checked before the library believes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.stores.codecs.step import _require
from chunkflow.stores.kvstore.protocol import ChunkError

SHUFFLE = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}


def blosc_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a blosc buffer, from its header of 16 bytes."""
    return int.from_bytes(raw[4:8].tobytes(), "little") if len(raw) >= 16 else None


def _blosc(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    claimed = blosc_size(raw)
    if claimed is None:
        raise ChunkError(f"{len(raw)} bytes have no room for blosc's header")
    _require(claimed, out)
    # The library believes this number, and reads on beyond what it was given.
    length = int.from_bytes(raw[12:16].tobytes(), "little")
    if length > len(raw):
        raise ChunkError(f"truncated: {len(raw)} bytes, where blosc's header says {length}")
    codec.decode(raw, out)
