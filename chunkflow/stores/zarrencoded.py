"""Chunks of a zarr array as they are stored, for a device that decodes them, once the host has seen that it can.

A decoder on a device is fast because it believes what it is given. So what can be checked without decoding is checked
here, on the very bytes that are uploaded: that a chunk says that it holds as much as the array's chunks do, and no
more, and that it is whole. What is stored in any other way than usual is left to the host's decoders.
"""

from __future__ import annotations

import numpy as np

from chunkflow.grid import Shape
from chunkflow.stores.zarrchunks import Chunks
from chunkflow.stores.zarrcodecs import Compressor, zstd_frame
from chunkflow.stores.zarrfiles import ChunkError, Folder
from chunkflow.stores.zarrshards import Shards

UNUSUAL = 0b1111
"""Bits of a zstd frame's descriptor that say that it has a checksum or a dictionary, or that nobody uses."""

BLOCK = 128 << 10
"""Bytes that a block of a zstd frame holds, at most (RFC 8878, section 3.1.1.2.4)."""

RAW, REPEATED, RESERVED = 0, 1, 3
"""Kinds of blocks of a zstd frame."""


def codec_of(chunks: Chunks | Shards | None) -> str:
    """The codec of chunks that are files of their own, and nothing but encoded; empty for others."""
    if not isinstance(chunks, Chunks) or not isinstance(chunks.objects, Folder) or chunks.chain.swapped:
        return ""
    steps = chunks.chain.steps
    if len(steps) != 1 or not isinstance(step := steps[0], Compressor) or getattr(step.codec, "checksum", False):
        return ""
    return step.name if step.name in ("zstd", "lz4") else ""


def fetch(chunks: Chunks, index: Shape, out: np.ndarray) -> tuple[int, int] | None:
    """See `Encoded.encoded`."""

    def check(size: int) -> None:
        if size > out.size:
            raise ChunkError(f"{size} bytes, where there is room for {out.size}")

    try:
        raw = chunks.objects.fetch(chunks.key(index), check, out)
    except (OSError, ChunkError):  # it is not there, or too long; or the host fails in the same way, and says so
        return None
    find = _zstd if codec_of(chunks) == "zstd" else _lz4
    return find(raw, chunks.chain.nbytes)


def _zstd(raw: np.ndarray, nbytes: int) -> tuple[int, int] | None:
    """A single frame that says how much it holds, and ends where the last of its blocks does (RFC 8878)."""
    size, at = zstd_frame(raw)
    if size != nbytes or int(raw[4]) & UNUSUAL:
        return None
    data, last = raw.data, False
    while not last:
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == RESERVED or length > BLOCK:
            return None
        at += 3 + (1 if kind == REPEATED else length)
        if at > len(data):
            return None
        if kind in (RAW, REPEATED):
            nbytes -= length
    return (0, len(data)) if at == len(data) and nbytes >= 0 else None


def _lz4(raw: np.ndarray, nbytes: int) -> tuple[int, int] | None:
    """A length and a block of that many bytes, as numcodecs has it."""
    if raw.size < 5 or int.from_bytes(raw[:4].tobytes(), "little") != nbytes:
        return None
    return 4, raw.size - 4
