"""Zstandard (RFC 8878): decoding that never makes a byte too many, the size of a frame, and its number of matches."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from chunkflow.stores.codecs.step import Compressor, require_claim
from chunkflow.stores.kvstore.protocol import ChunkError

MAGIC = 0xFD2FB528
"""How every zstd frame begins (RFC 8878, section 3.1.1)."""

SKIPPABLE = 0x184D2A50
"""How frames without data begin, apart from the last four bits (RFC 8878, section 3.1.2)."""


_GOT = re.compile(r"expected to decompress \d+, got (\d+)")
"""How numcodecs says that a buffer was not filled."""

HEAD = (128 << 10) + 64
"""First bytes of a frame: enough for its first block to end there."""

REPEATED, COMPRESSED = 1, 2
"""Kinds of blocks: one byte again and again; and those that have matches."""


@dataclass(frozen=True)
class Zstd(Compressor):
    """Zstandard."""

    def fill(self, raw: np.ndarray, out: np.ndarray) -> None:
        claimed = zstd_size(raw)
        if claimed is None or claimed < out.size:
            claimed = zstd_total(raw)
        if claimed is not None:  # else numcodecs stops where `out` ends, and says if it is not filled
            require_claim(claimed, out)
        self.codec.decode(raw, out)

    def claimed(self, raw: np.ndarray) -> int | None:
        return zstd_total(raw)

    def unpack(self, raw: np.ndarray, most: int) -> np.ndarray:
        if self.claimed(raw) is not None:
            return super().unpack(raw, most)
        out = np.empty(most, np.uint8)
        try:
            self.codec.decode(raw, out)
        except RuntimeError as error:  # as a rule it holds fewer bytes than there is room for
            found = _GOT.search(str(error))
            if found is None or int(found[1]) > most:
                raise ChunkError(f"it does not say how many bytes it holds, and: {error}") from error
            return out[: int(found[1])]
        return out


# -- Size of a frame --------------------------------------------------------------------------------------------------


def zstd_size(raw: np.ndarray) -> int | None:
    """Decoded bytes of a frame, from its header (RFC 8878, section 3.1.1.1); None if it does not say.

    >>> import numcodecs
    >>> zstd_size(np.frombuffer(numcodecs.Zstd().encode(bytes(1000)), np.uint8))
    1000
    """
    return zstd_frame(raw)[0]


def zstd_frame(raw: np.ndarray) -> tuple[int | None, int]:
    """Decoded bytes of a frame if its header says so, and where its first block begins (0 if it is no frame)."""
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
    """Decoded bytes of all frames of a buffer; None if one does not say. Walks from block to block."""
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


# -- Matches of a frame ------------------------------------------------------------------------------------------------


def matches(head: bytes, encoded: int, decoded: int) -> float:
    """Matches per decoded byte of a frame, by the blocks that end in the bytes of its `head`; 0 if that is no frame.

    The whole frame has `encoded` bytes, which decode to `decoded`.

    A decoder follows the matches one after the other, so a GPU takes as long for one frame as for many: its time
    depends on the longest chain. Floats of which only the exponents repeat have next to no matches; rounded floats have
    a million in the same number of bytes.

    >>> import numcodecs
    >>> frame = numcodecs.Zstd(1).encode(bytes(range(256)))
    >>> matches(frame, len(frame), 256)
    0.0
    """
    number = 0
    start = at = zstd_frame(np.frombuffer(head[:18], np.uint8))[1]
    last = False
    try:
        while at and not last:
            word = int.from_bytes(head[at : at + 3], "little")
            last, kind, length = bool(word & 1), word >> 1 & 3, word >> 3
            end = at + 3 + (1 if kind == REPEATED else length)
            if end > len(head):
                break
            number += _matches(head, at + 3) if kind == COMPRESSED else 0
            at = end
    except IndexError:
        return 0.0
    return number * encoded / ((at - start) * max(decoded, 1)) if at > start else 0.0


def _matches(head: bytes, at: int) -> int:
    """Matches in the block whose content begins there."""
    at += _literals(head, at)
    first = head[at]
    if first < 128:
        return first
    if first < 255:
        return (first - 128 << 8) + head[at + 1]
    return head[at + 1] + (head[at + 2] << 8) + 0x7F00


def _literals(head: bytes, at: int) -> int:
    """Bytes of a block's literals with their header (section 3.1.1.3.1)."""
    kind, form = head[at] & 3, head[at] >> 2 & 3
    if kind < 2:  # as they are, or one byte again and again
        wide = (1, 2, 1, 3)[form]
        number = int.from_bytes(head[at : at + wide], "little") >> (4 if form & 1 else 3)
        return wide + (number if kind == 0 else 1)
    wide, bits = (3, 3, 4, 5)[form], (10, 10, 14, 18)[form]
    return wide + (int.from_bytes(head[at : at + wide], "little") >> 4 + bits)
