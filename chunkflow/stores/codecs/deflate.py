"""Deflate, as gzip and as zlib.

Where the packages ``deflate`` and ``isal`` are installed (the extra ``fast``), libdeflate decodes whole chunks, twice
as quickly as zlib, and ISA-L encodes them, ten times as quickly. ISA-L decodes large chunks, too, in bounded pieces:
libdeflate's copy of one would be new memory, which takes as long as decoding. Elsewhere, and where these find a fault,
zlib decodes in bounded pieces, and says what is wrong.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from chunkflow.stores.codecs.step import Compressor
from chunkflow.stores.codecs.streams import streamed
from chunkflow.stores.kvstore.protocol import ChunkError

_FEED, _PIECE = 256 << 10, 1 << 20

_LARGE = 32 << 20
"""Bytes of a decoded chunk from which on the allocator gives its memory back, and each copy takes new pages."""

_QUICK = 5
"""The highest level that ISA-L encodes, 0.85 to 1 times as densely. libdeflate has the levels above it."""

_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")
"""How a member of a gzip file begins (RFC 1952, section 2.3)."""

_LEAST = 18
"""Bytes of a member's header and of what follows its data."""

_HEADER_CHECKSUM = 2
"""The flag in the fourth byte by which a checksum of the header is said to be there."""


@cache
def package(name: str) -> Any:
    """A package of the extra ``fast``; None where it is not installed."""
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name)


def _isal() -> Any:
    """ISA-L's module with zlib's functions; None where it is not installed."""
    return None if package("isal") is None else importlib.import_module("isal.isal_zlib")


@dataclass(frozen=True)
class Zlib(Compressor):
    """A zlib stream. zlib's encoding grows its output by and by."""

    bits: ClassVar[int] = 15

    @property
    def copies(self) -> float:  # type: ignore[override]
        """See `Codec.copies`."""
        quick = self.codec.level != 0 and all(package(name) is not None for name in ("deflate", "isal"))
        return 1.5 if quick else 3.0

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        if not (self._filled_by_pieces if out.size >= _LARGE else self._filled_at_once)(raw, out):
            inflate(raw, out, self.bits)

    def encode(self, raw: Any) -> Any:
        level = 6 if self.codec.level < 0 else self.codec.level
        if 0 < level <= _QUICK and (isal := _isal()) is not None:
            return isal.compress(_plain(raw), min(level, 2), self.bits)
        if level > _QUICK and (deflate := package("deflate")) is not None:
            make = deflate.gzip_compress if self.bits == 31 else deflate.zlib_compress
            return make(_plain(raw), level)
        return self.codec.encode(raw)

    def _filled_by_pieces(self, raw: np.ndarray, out: np.ndarray) -> bool:
        """Whether ISA-L decodes it; else zlib says what is wrong.

        It does not look at the checksum of a gzip file's header.
        """
        isal = _isal()
        if isal is None or (self.bits == 31 and (raw.size < _LEAST or raw[3] & _HEADER_CHECKSUM)):
            return False
        with suppress(isal.error, ChunkError):
            inflate(raw, out, self.bits, isal)
            return True
        return False

    def _filled_at_once(self, raw: np.ndarray, out: np.ndarray) -> bool:
        """Whether libdeflate decodes it; else zlib says what is wrong.

        It knows one member of a gzip file, does not look at what is behind it, nor at its header's checksum.
        """
        deflate, is_file = package("deflate"), self.bits == 31
        if deflate is None:
            return False
        if is_file and (raw.size < _LEAST or raw[3] & _HEADER_CHECKSUM or _MEMBER.search(raw.data, 10)):
            return False
        try:
            found = (deflate.gzip_decompress if is_file else deflate.zlib_decompress)(raw.data, out.size)
        except deflate.DeflateError:
            return False
        if len(found) != out.size:
            return False
        if is_file and raw[-8:].tobytes() != struct.pack("<II", deflate.crc32(found), out.size % (1 << 32)):
            return False  # the file does not end with this member
        out[...] = np.frombuffer(found, np.uint8)
        return True

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


def inflate(raw: np.ndarray, out: np.ndarray, bits: int, library: Any = zlib) -> None:
    """Fill `out` from a zlib stream (`bits` 15) or from the members of a gzip file (31), never making a byte more.

    `library` is a module with zlib's `decompressobj`.
    """
    source, engine = raw.data, library.decompressobj(bits)
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
        engine = library.decompressobj(bits)
    if done != out.size:
        raise ChunkError(f"it holds {done} bytes, where the chunk has {out.size}")


def _plain(raw: Any) -> memoryview:
    """A contiguous buffer as bytes."""
    return memoryview(raw).cast("B")
