"""Which chunks of zarr arrays a device may decode: their codec, and how many matches they have."""

from __future__ import annotations

import os

from chunkflow.core.encoded_chunks import CODECS, Place
from chunkflow.stores.codecs.step import Compressor
from chunkflow.stores.codecs.zstd import HEAD, matches
from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.stores.zarr.shards import Shards
from chunkflow.system import native
from chunkflow.system.files import open_regular

SAMPLES = 3
"""Chunks that are sampled, along the diagonal of the array."""

ALIKE = {"blosc-lz4hc": "blosc-lz4"}
"""Codecs that differ from another one in how they encode only."""


def is_checked(chunks: Chunks | Shards | None) -> bool:
    """Whether each chunk is followed by its CRC-32C."""
    return chunks is not None and chunks.chain.has_checksum


def codec_of(chunks: Chunks | Shards | None) -> str:
    """The codec of chunks in local files, if that is all that is done to them besides a checksum; else empty."""
    if chunks is None or not isinstance(chunks.objects, Folder) or chunks.chain.swapped:
        return ""
    steps = chunks.chain.steps
    steps = steps[:-1] if is_checked(chunks) else steps
    if len(steps) != 1 or not isinstance(step := steps[0], Compressor) or getattr(step.codec, "checksum", False):
        return ""
    codec = ALIKE.get(step.name, step.name)
    # The device assembles words, and counts in 32 bits. Longer chunks than blosc can have were never written.
    fit = not codec.startswith("blosc-") or (chunks.chain.nbytes % 4 == 0 and chunks.chain.nbytes < 1 << 32)
    return codec if codec in CODECS and native.chunks and fit else ""


def matches_in(chunks: Chunks | Shards | None) -> float:
    """Matches per byte of the chunks: the most of a sample. 0 if unknown for the codec."""
    if chunks is None or codec_of(chunks) != "zstd":
        return 0.0
    counts = [-(-n // side) for n, side in zip(chunks.extents, chunks.chain.shape, strict=True)]
    if not all(counts):
        return 0.0
    indices = [tuple([n * (2 * k + 1) // (2 * SAMPLES) for n in counts]) for k in range(SAMPLES)]
    return max(_matches_at(place, chunks.chain.nbytes) for place in chunks.places(indices))


def _matches_at(place: Place | None, nbytes: int) -> float:
    """Matches per byte of one chunk; 0 if there is none."""
    if place is None:
        return 0.0
    path, start, length, *_ = place
    try:
        with open(open_regular(path), "rb", buffering=0) as file:
            encoded = length if length >= 0 else os.fstat(file.fileno()).st_size - start
            return matches(os.pread(file.fileno(), min(HEAD, encoded), start), encoded, nbytes)
    except OSError:  # reading the chunk will say what is wrong
        return 0.0
