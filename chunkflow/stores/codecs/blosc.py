"""Blosc, whose header is checked before the library believes it."""

from __future__ import annotations

from dataclasses import dataclass

import numcodecs
import numpy as np

from chunkflow.stores.codecs.step import Compressor, NotBuiltError, NotDirectError, require_claim
from chunkflow.stores.kvstore.protocol import ChunkError

INSIDE = ("blosclz", "lz4", "snappy", "zlib", "zstd")
"""Codecs of blosc's blocks, by their numbers in the header."""

FORMATS = tuple(number for number, name in enumerate(INSIDE) if name in numcodecs.blosc.list_compressors())
"""Numbers of those that numcodecs decodes."""

BUILT = frozenset(numcodecs.blosc.list_compressors())
"""What numcodecs' blosc encodes by: there is one for each of these codecs, and lz4hc."""


@dataclass(frozen=True)
class Blosc(Compressor):
    """Blosc, version 1."""

    def __post_init__(self) -> None:
        if self.codec.cname not in BUILT:
            raise NotBuiltError(f"blosc's {self.codec.cname} is not built into numcodecs, which zarr decodes it with")

    @property
    def name(self) -> str:
        return f"blosc-{self.codec.cname}"

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        claimed = blosc_size(raw)
        if claimed is None:
            raise ChunkError(f"{len(raw)} bytes have no room for blosc's header")
        number = int(raw[2] >> 5)
        if number not in FORMATS:
            inside = INSIDE[number] if number < len(INSIDE) else f"format {number}"
            raise NotDirectError(f"it is of blosc with {inside} inside, and {inside} is not built into numcodecs")
        require_claim(claimed, out)
        # The library believes this number, and reads on beyond what it was given.
        length = int.from_bytes(raw[12:16].tobytes(), "little")
        if length > len(raw):
            raise ChunkError(f"truncated: {len(raw)} bytes, where blosc's header says {length}")
        self.codec.decode(raw, out)

    def claimed(self, raw: np.ndarray) -> int | None:
        return blosc_size(raw)


def blosc_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a buffer, from its header of 16 bytes; None if it is too short for one."""
    return int.from_bytes(raw[4:8].tobytes(), "little") if len(raw) >= 16 else None
