"""A codec as a step of a chain: bytes to bytes, of a size that is known before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chunkflow.stores.kvstore.protocol import ChunkError


class NotDirectError(Exception):
    """Why the chunks of an array are left to zarr's own pipeline."""


def flat(array: Any) -> np.ndarray:
    """Bytes of a contiguous array or buffer."""
    if isinstance(array, np.ndarray):
        return array.reshape(-1).view(np.uint8)
    return np.frombuffer(array, np.uint8)


def word(value: Any) -> str:
    """A string, or the string that an enumeration's member stands for."""
    return str(getattr(value, "value", value))


class Codec(Protocol):
    """Bytes to bytes, as a chunk is encoded."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def copies(self) -> float:
        """How many times the decoded bytes coding takes, beside what goes in and what comes out."""

    def size(self, before: int) -> int | None:
        """Bytes that so many are encoded to; None where that depends on what they are."""

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        """Decode `raw` to `size` bytes, in `out` if that suits; None as a size is any."""

    def encode(self, raw: Any) -> Any:
        """Encode a contiguous buffer."""


@dataclass(frozen=True)
class Compressor:
    """A numcodecs codec; `fill` decodes into bytes of the right number, or objects."""

    name: str
    codec: Any
    fill: Callable[[Any, np.ndarray, np.ndarray], None]

    @property
    def copies(self) -> float:
        """See `Codec.copies`: zlib's grow their output by and by."""
        return 3.0 if self.name in ("gzip", "zlib") else 0.0

    def size(self, before: int) -> int | None:
        """See `Codec.size`."""
        return None

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        """See `Codec.decode`."""
        assert size is not None, "what a compressor gives has a known size"
        if out is None:
            out = np.empty(size, np.uint8)
        self.fill(self.codec, raw, out)
        return out

    def encode(self, raw: Any) -> Any:
        """See `Codec.encode`."""
        return self.codec.encode(raw)


def _require(claimed: int, out: np.ndarray) -> None:
    if claimed != out.size:
        raise ChunkError(f"it says that it holds {claimed} bytes, where the chunk has {out.size}")
