"""LZ4 behind its decoded size, as numcodecs writes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.stores.codecs.step import _require
from chunkflow.stores.kvstore.protocol import ChunkError


def _lz4(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    if len(raw) < 5:
        raise ChunkError(f"{len(raw)} bytes have no room for lz4's size and data")
    _require(int.from_bytes(raw[:4].tobytes(), "little"), out)
    codec.decode(raw, out)
