"""Codecs of zarr chunks, bytes to bytes: each decodes to as many bytes as it is told, and never makes one more."""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numcodecs
import numpy as np

from chunkflow.stores.kvstore.folder import ChunkError


def _checksum() -> Callable[[Any], int] | None:
    """CRC-32C from the package that zarr itself depends on, which is the second up to zarr 3.1.3."""
    for package, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        with contextlib.suppress(ImportError):
            found: Callable[[Any], int] = getattr(importlib.import_module(package), name)
            return found
    return None


CHECKSUM = _checksum()

MAGIC = 0xFD2FB528
"""How every zstd frame begins (RFC 8878, section 3.1.1)."""

SKIPPABLE = 0x184D2A50
"""How frames begin that hold no data, but for the last four bits (RFC 8878, section 3.1.2)."""

SHUFFLE = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}

_FEED, _PIECE = 256 << 10, 1 << 20


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


class Step(Protocol):
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
class Checksum:
    """CRC-32C behind the bytes (zarr 3's ``crc32c``)."""

    of: Callable[[Any], int]
    name: str = "crc32c"
    copies: float = 0.0

    def size(self, before: int) -> int | None:
        """See `Step.size`."""
        return before + 4

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        """See `Step.decode`."""
        if len(raw) < 4:
            raise ChunkError(f"{len(raw)} bytes have no room for a checksum")
        body = raw[:-4]
        stored, computed = int.from_bytes(raw[-4:].tobytes(), "little"), self.of(body)
        if stored != computed:
            raise ChunkError(f"the checksum (crc32c) is {computed:08x}, not {stored:08x} as stored")
        return body

    def encode(self, raw: Any) -> np.ndarray:
        """See `Step.encode`."""
        body = flat(raw)
        out = np.empty(body.size + 4, np.uint8)
        out[:-4] = body
        out[-4:] = np.frombuffer(self.of(body).to_bytes(4, "little"), np.uint8)
        return out


@dataclass(frozen=True)
class Compressor:
    """A numcodecs codec; `fill` decodes into bytes of the right number, or objects."""

    name: str
    codec: Any
    fill: Callable[[Any, np.ndarray, np.ndarray], None]

    @property
    def copies(self) -> float:
        """See `Step.copies`: zlib's grow their output by and by."""
        return 3.0 if self.name in ("gzip", "zlib") else 0.0

    def size(self, before: int) -> int | None:
        """See `Step.size`."""
        return None

    def decode(self, raw: np.ndarray, size: int | None, out: np.ndarray | None) -> np.ndarray:
        """See `Step.decode`."""
        assert size is not None, "what a compressor gives has a known size"
        if out is None:
            out = np.empty(size, np.uint8)
        self.fill(self.codec, raw, out)
        return out

    def encode(self, raw: Any) -> Any:
        """See `Step.encode`."""
        return self.codec.encode(raw)


def zstd_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a zstd frame, from its header (RFC 8878, section 3.1.1.1); None where it does not say.

    >>> import numcodecs
    >>> zstd_size(np.frombuffer(numcodecs.Zstd().encode(bytes(1000)), np.uint8))
    1000
    """
    return zstd_frame(raw)[0]


def zstd_frame(raw: np.ndarray) -> tuple[int | None, int]:
    """The same, and where the frame's first block begins."""
    header = raw[:18].tobytes()
    if len(header) < 5 or int.from_bytes(header[:4], "little") != MAGIC:
        return None, 0
    descriptor = header[4]
    single = descriptor >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    if not width or len(header) < start + width:
        return None, start
    size = int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0)
    return size, start + width


def zstd_total(raw: np.ndarray) -> int | None:
    """Decoded bytes of all frames of a buffer, which are found by way of their blocks; None where one does not say."""
    total = at = 0
    while at < len(raw):
        if int.from_bytes(raw[at : at + 4].tobytes(), "little") & ~15 == SKIPPABLE:
            at += 8 + int.from_bytes(raw[at + 4 : at + 8].tobytes(), "little")
            continue
        size, start = zstd_frame(raw[at : at + 18])
        if size is None:
            return None
        total += size
        has_checksum, at, last = int(raw[at + 4]) >> 2 & 1, at + start, False
        while not last:
            block = int.from_bytes(raw[at : at + 3].tobytes(), "little")
            if at + 3 > len(raw):
                return None
            last = bool(block & 1)
            at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)  # a run is stored as one byte
        at += 4 * has_checksum
    return total


def blosc_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a blosc buffer, from its header of 16 bytes."""
    return int.from_bytes(raw[4:8].tobytes(), "little") if len(raw) >= 16 else None


def _require(claimed: int, out: np.ndarray) -> None:
    if claimed != out.size:
        raise ChunkError(f"it says that it holds {claimed} bytes, where the chunk has {out.size}")


def _zstd(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    claimed = zstd_size(raw)
    if claimed is None or claimed < out.size:
        claimed = zstd_total(raw)
    if claimed is not None:  # else numcodecs stops where `out` ends, and says if it is not filled
        _require(claimed, out)
    codec.decode(raw, out)


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


def _lz4(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    if len(raw) < 5:
        raise ChunkError(f"{len(raw)} bytes have no room for lz4's size and data")
    _require(int.from_bytes(raw[:4].tobytes(), "little"), out)
    codec.decode(raw, out)


def _gzip(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    inflate(raw, out, 31)


def _zlib(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    inflate(raw, out, 15)


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


FILLS = {"zstd": _zstd, "blosc": _blosc, "lz4": _lz4, "gzip": _gzip, "zlib": _zlib}


def compressor(given: Any) -> Compressor:
    """Step for a numcodecs codec."""
    kind = str(given.codec_id)
    if kind not in FILLS:
        raise NotDirectError(f"codec {kind}")
    return Compressor(f"blosc-{given.cname}" if kind == "blosc" else kind, given, FILLS[kind])


def step_3(codec: Mapping[str, Any]) -> Step:
    """Step for a codec of format 3, as the metadata name and configure it."""
    name, how = str(codec["name"]), dict(codec.get("configuration") or {})
    if name == "crc32c" and CHECKSUM is not None:
        return Checksum(CHECKSUM)
    if name == "blosc":
        how = {key: how[key] for key in ("clevel", "blocksize") if key in how} | {
            "cname": word(codec["configuration"]["cname"]),
            "shuffle": SHUFFLE[word(codec["configuration"]["shuffle"])],
        }
    elif name.startswith("numcodecs.") and name.removeprefix("numcodecs.") in FILLS:
        name = name.removeprefix("numcodecs.")
    elif name not in ("zstd", "gzip"):
        raise NotDirectError(f"codec {name}")
    return compressor(numcodecs.get_codec({"id": name, **how}))
