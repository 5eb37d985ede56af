"""Streams of Python's decoders (zlib, bz2, lzma), decoded piece by piece up to a bound."""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chunkflow.stores.codecs.step import Compressor, require_most
from chunkflow.stores.kvstore.protocol import ChunkError

PIECE = 256 << 10
"""Bytes that are fed at a time, and that are taken at a time."""

MOST_MEMORY = 128 << 20
"""Most bytes of lzma's dictionary, which a stream asks for: twice what its highest preset takes. Few are touched."""


class StreamDecoder(Protocol):
    """What decodes one stream, as `bz2.BZ2Decompressor`."""

    def decompress(self, data: Any, max_length: int) -> bytes:
        """Feed bytes, and take at most so many."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing comes before more is fed."""

    @property
    def unused_data(self) -> bytes:
        """What was fed and follows the stream's end."""


def streamed(raw: np.ndarray, most: int, decoder: Callable[[], StreamDecoder]) -> np.ndarray:
    """Decode streams, one behind the other, to at most so many bytes; an error if they hold more."""
    found, at = bytearray(), 0
    stream, data = decoder(), b""
    while True:
        if not data and stream.needs_input:
            data = raw[at : at + PIECE].tobytes()
            at += len(data)
            if not data:
                raise ChunkError(f"truncated: the stream ends after {len(found)} bytes")
        found += stream.decompress(data, max_length=min(PIECE, most - len(found) + 1))
        require_most(len(found), most)
        data = b""
        if stream.eof:
            data = stream.unused_data
            if not data and at >= len(raw):
                return np.frombuffer(found, np.uint8)
            stream = decoder()


@dataclass(frozen=True)
class Bz2Stream(Compressor):
    """Bzip2, as zarr's pipeline decodes it."""

    def unpack(self, raw: np.ndarray, most: int) -> np.ndarray:
        return streamed(raw, most, bz2.BZ2Decompressor)


@dataclass(frozen=True)
class LzmaStream(Compressor):
    """Lzma in any of its formats, as zarr's pipeline decodes it."""

    def unpack(self, raw: np.ndarray, most: int) -> np.ndarray:
        codec = self.codec
        for each in codec.filters or ():
            if each.get("dict_size", 0) > MOST_MEMORY:
                raise ChunkError(f"lzma asks for {each['dict_size']} bytes of memory, and gets at most {MOST_MEMORY}")
        limit = None if codec.format == lzma.FORMAT_RAW else MOST_MEMORY
        return streamed(raw, most, lambda: lzma.LZMADecompressor(codec.format, limit, codec.filters))
