"""Chunks of a zarr array as they are stored, for a device that decodes them, once the host has seen that it can.

What can be checked without decoding is checked on the very bytes that are uploaded, in C (`_items.c`): a dozen threads
do so for thousands of chunks a second. Without it the host decodes, as it does what is stored otherwise than usual.
"""

from __future__ import annotations

import numpy as np

from chunkflow import compiled
from chunkflow.grid import Shape
from chunkflow.packed import Layout, Packed
from chunkflow.stores.zarrchunks import Chunks
from chunkflow.stores.zarrcodecs import Compressor
from chunkflow.stores.zarrfiles import ChunkError, Folder
from chunkflow.stores.zarrshards import Shards

CODECS = ("zstd", "lz4", "blosc-lz4", "blosc-zstd")
"""By their numbers in ``_items.c``."""

ALIKE = {"blosc-lz4hc": "blosc-lz4"}
"""Codecs that encode otherwise, and decode as another does."""


def codec_of(chunks: Chunks | Shards | None) -> str:
    """The codec of chunks that are files of their own, and nothing but encoded; empty for others."""
    if not isinstance(chunks, Chunks) or not isinstance(chunks.objects, Folder) or chunks.chain.swapped:
        return ""
    steps = chunks.chain.steps
    if len(steps) != 1 or not isinstance(step := steps[0], Compressor) or getattr(step.codec, "checksum", False):
        return ""
    codec = ALIKE.get(step.name, step.name)
    # A device puts words together, and counts in 32 bits; blosc has no longer chunks, but some were never written.
    fit = not codec.startswith("blosc-") or (chunks.chain.nbytes % 4 == 0 and chunks.chain.nbytes < 1 << 32)
    return codec if codec in CODECS and compiled.chunks and fit else ""


def fetch(chunks: Chunks, index: Shape, out: np.ndarray) -> Packed | None:
    """See `Encoded.encoded`."""

    def check(size: int) -> None:
        if size > out.size:
            raise ChunkError(f"{size} bytes, where there is room for {out.size}")

    try:
        raw = chunks.objects.fetch(chunks.key(index), check, out)
    except (OSError, ChunkError):  # it is not there, or too long; or the host fails in the same way, and says so
        return None
    return packed(raw, chunks.chain.nbytes, codec_of(chunks))


def packed(raw: np.ndarray, nbytes: int, codec: str) -> Packed | None:
    """What is in a chunk that decodes to so many bytes; None where that is not certain."""
    assert compiled.chunks is not None
    found = compiled.chunks.items(raw, nbytes, CODECS.index(codec))
    return found and Packed(raw.size, np.frombuffer(found[0], np.int64).reshape(3, -1), Layout(*found[1:]))
