"""Chunks of a zarr array as they are stored, for a device that decodes them, once the host has seen that it can.

A decoder on a device is fast because it believes what it is given. So what can be checked without decoding is checked
here, on the very bytes that are uploaded: that a chunk says that it holds as much as the array's chunks do, and no
more, and that it is whole. What is stored in any other way than usual is left to the host's decoders.
"""

from __future__ import annotations

import numpy as np

from chunkflow.grid import Shape
from chunkflow.packed import Packed
from chunkflow.stores import zarrblosc
from chunkflow.stores.zarrchunks import Chunks
from chunkflow.stores.zarrcodecs import Compressor
from chunkflow.stores.zarrfiles import ChunkError, Folder
from chunkflow.stores.zarrshards import Shards
from chunkflow.stores.zstdframes import frame

CODECS = {
    "zstd": "zstd",
    "lz4": "lz4",
    "blosc-zstd": "blosc-zstd",
    "blosc-lz4": "blosc-lz4",
    "blosc-lz4hc": "blosc-lz4",
}
"""By how a chunk was encoded, how it is decoded."""


def codec_of(chunks: Chunks | Shards | None) -> str:
    """The codec of chunks that are files of their own, and nothing but encoded; empty for others."""
    if not isinstance(chunks, Chunks) or not isinstance(chunks.objects, Folder) or chunks.chain.swapped:
        return ""
    steps = chunks.chain.steps
    if len(steps) != 1 or not isinstance(step := steps[0], Compressor) or getattr(step.codec, "checksum", False):
        return ""
    words = chunks.chain.nbytes % 4 == 0  # in which a device puts together what blosc has cut
    return CODECS.get(step.name, "") if words or not step.name.startswith("blosc-") else ""


def fetch(chunks: Chunks, index: Shape, out: np.ndarray) -> Packed | None:
    """See `Encoded.encoded`."""

    def check(size: int) -> None:
        if size > out.size:
            raise ChunkError(f"{size} bytes, where there is room for {out.size}")

    try:
        raw = chunks.objects.fetch(chunks.key(index), check, out)
    except (OSError, ChunkError):  # it is not there, or too long; or the host fails in the same way, and says so
        return None
    codec, nbytes = codec_of(chunks), chunks.chain.nbytes
    if codec.startswith("blosc-"):
        return zarrblosc.unpacked(raw, nbytes, codec.removeprefix("blosc-"))
    # numcodecs' LZ4 blocks have their decoded length before them.
    start = 4 if codec == "lz4" else 0
    good = raw.size > 4 and int.from_bytes(raw[:4].tobytes(), "little") == nbytes if start else frame(raw, nbytes)
    return Packed(raw.size, np.array([[start], [raw.size - start], [nbytes]])) if good else None
