"""Which chunks of zarr arrays a device may decode: their codec, and what else there is to know of how they decode."""

from __future__ import annotations

import os

from chunkflow.core.encoded_chunks import CODECS, Place
from chunkflow.stores.codecs.step import Compressor
from chunkflow.stores.codecs.zstd import HEAD, matches
from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.stores.zarr.shards import Shards
from chunkflow.system import native

SAMPLES = 3
"""Chunks that are looked into, from one corner of the array to the opposite one."""

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
    # A device puts words together, and counts in 32 bits; blosc has no longer chunks, but some were never written.
    fit = not codec.startswith("blosc-") or (chunks.chain.nbytes % 4 == 0 and chunks.chain.nbytes < 1 << 32)
    return codec if codec in CODECS and native.chunks and fit else ""


def matches_in(chunks: Chunks | Shards | None) -> float:
    """Matches per byte of the chunks, by the one of some that has the most; 0 where the codec's are not known."""
    if chunks is None or codec_of(chunks) != "zstd":
        return 0.0
    counts = [-(-n // side) for n, side in zip(chunks.extents, chunks.chain.shape, strict=True)]
    if not all(counts):
        return 0.0
    indices = [tuple([n * (2 * k + 1) // (2 * SAMPLES) for n in counts]) for k in range(SAMPLES)]
    return max(_matches_at(place, chunks.chain.nbytes) for place in chunks.places(indices))


def _matches_at(place: Place | None, nbytes: int) -> float:
    """Those of one chunk; 0 where there is none."""
    if place is None:
        return 0.0
    path, start, length, *_ = place
    try:
        with open(path, "rb", buffering=0) as file:
            encoded = length if length >= 0 else os.fstat(file.fileno()).st_size - start
            return matches(os.pread(file.fileno(), min(HEAD, encoded), start), encoded, nbytes)
    except OSError:  # whoever reads it says what is wrong
        return 0.0
