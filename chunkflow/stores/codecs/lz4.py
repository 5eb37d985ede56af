"""LZ4: blocks behind their decoded sizes, as numcodecs and as HDF5's filter frame them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numcodecs
import numpy as np

from chunkflow.stores.codecs.step import Compressor, require_claim
from chunkflow.stores.kvstore.protocol import ChunkError


@dataclass(frozen=True)
class Lz4(Compressor):
    """One block behind its decoded size (4 bytes, little-endian), as numcodecs writes it."""

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        if len(raw) < 5:
            raise ChunkError(f"{len(raw)} bytes have no room for lz4's size and data")
        require_claim(int.from_bytes(raw[:4].tobytes(), "little"), out)
        self.codec.decode(raw, out)

    def claimed(self, raw: np.ndarray) -> int | None:
        return int.from_bytes(raw[:4].tobytes(), "little")


@dataclass(frozen=True)
class Lz4Blocks(Compressor):
    """Several blocks, each behind its encoded size; sizes are big-endian (the HDF Group's filter 32004)."""

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        if len(raw) < 12:
            raise ChunkError("a chunk is shorter than its header")
        claimed, side = struct.unpack(">QI", raw[:12].tobytes())
        require_claim(claimed, out)
        done, at = 0, 12
        while done < len(out):
            block = out[done : done + side]
            size = int.from_bytes(raw[at : at + 4].tobytes(), "big")
            body = raw[at + 4 : at + 4 + size]
            if not side or not size or len(body) != size:
                raise ChunkError("a chunk ends before its last block")
            if size == len(block):
                block[...] = body
            else:  # numcodecs wants the decoded size before a block
                numcodecs.lz4.decompress(struct.pack("<I", len(block)) + body.tobytes(), block)
            done, at = done + len(block), at + 4 + size

    def claimed(self, raw: np.ndarray) -> int | None:
        return int.from_bytes(raw[:8].tobytes(), "big")
