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

CODECS = ("zstd", "lz4", "blosc-lz4", "blosc-zstd", "gzip")
"""By their numbers in ``_items.c``."""

ALIKE = {"blosc-lz4hc": "blosc-lz4"}
"""Codecs that encode otherwise, and decode as another does."""


def codec_of(chunks: Chunks | Shards | None) -> str:
    """The codec of chunks in local files, which are nothing but encoded; empty for others."""
    if chunks is None or not isinstance(chunks.objects, Folder) or chunks.chain.swapped:
        return ""
    steps = chunks.chain.steps
    if len(steps) != 1 or not isinstance(step := steps[0], Compressor) or getattr(step.codec, "checksum", False):
        return ""
    codec = ALIKE.get(step.name, step.name)
    words = chunks.chain.nbytes % 4 == 0  # in which a device puts together what blosc has cut
    return codec if codec in CODECS and compiled.chunks and (words or not codec.startswith("blosc-")) else ""


def fetch(chunks: Chunks | Shards, index: Shape, out: np.ndarray) -> Packed | None:
    """See `Encoded.encoded`."""
    try:
        raw = chunks.encoded(index, out)
    except (OSError, ChunkError):  # it is not there, or too long; or the host fails in the same way, and says so
        return None
    return None if raw is None else packed(raw, chunks.chain.nbytes, codec_of(chunks))


def packed(raw: np.ndarray, nbytes: int, codec: str) -> Packed | None:
    """What is in a chunk that decodes to so many bytes; None where that is not certain."""
    assert compiled.chunks is not None
    found = compiled.chunks.items(raw, nbytes, CODECS.index(codec))
    if found is None:
        return None
    checksum = int.from_bytes(raw[-8:-4].tobytes(), "little") if codec == "gzip" else -1
    return Packed(raw.size, np.frombuffer(found[0], np.int64).reshape(3, -1), Layout(*found[1:]), checksum)
