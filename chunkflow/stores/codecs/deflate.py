"""Deflate, as gzip and as zlib, decoded in bounded pieces."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chunkflow.stores.codecs.step import Compressor
from chunkflow.stores.codecs.streams import streamed
from chunkflow.stores.kvstore.protocol import ChunkError

_FEED, _PIECE = 256 << 10, 1 << 20


@dataclass(frozen=True)
class Zlib(Compressor):
    """A zlib stream. Encoding grows its output by and by."""

    copies: ClassVar[float] = 3.0
    bits: ClassVar[int] = 15

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        inflate(raw, out, self.bits)

    def unpack(self, raw: np.ndarray, most: int) -> np.ndarray:
        return streamed(raw, most, lambda: Inflating(self.bits))


@dataclass(frozen=True)
class Gzip(Zlib):
    """A gzip file, which may have several members."""

    bits: ClassVar[int] = 31


class Inflating:
    """Zlib's decoder, with the attributes of those of bz2 and lzma."""

    def __init__(self, bits: int) -> None:
        self._engine = zlib.decompressobj(bits)

    def decompress(self, data: Any, max_length: int) -> bytes:
        return self._engine.decompress(self._engine.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._engine.eof

    @property
    def needs_input(self) -> bool:
        return not self._engine.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._engine.unused_data.lstrip(b"\0")


def inflate(raw: np.ndarray, out: np.ndarray, bits: int) -> None:
    """Fill `out` from a zlib stream (`bits` 15) or from the members of a gzip file (31), never making a byte more."""
    source, engine = raw.data, zlib.decompressobj(bits)
    data: Any = b""
    at = done = 0
    while True:
        if not len(data):
            data = source[at : at + _FEED]
            at += len(data)
        piece = engine.decompress(data, max(1, min(_PIECE, out.size - done)))
        if len(piece) > out.size - done:
            raise ChunkError(f"it holds more than the chunk's {out.size} bytes")
        out[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
        done += len(piece)
        if not engine.eof:
            data = engine.unconsumed_tail
            if not len(data) and at == len(source) and not piece:
                raise ChunkError(f"truncated: the stream ends after {done} of {out.size} bytes")
            continue
        # A gzip file may have more members, and zeros behind each.
        data = engine.unused_data.lstrip(b"\0")
        while bits == 31 and not data and at < len(source):
            data = bytes(source[at : at + _FEED]).lstrip(b"\0")
            at = min(at + _FEED, len(source))
        if bits != 31 or not data:
            break
        engine = zlib.decompressobj(bits)
    if done != out.size:
        raise ChunkError(f"it holds {done} bytes, where the chunk has {out.size}")
