"""Zstandard: its frames' sizes, and decoding that never makes a byte too many (RFC 8878)."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.stores.codecs.step import _require

MAGIC = 0xFD2FB528
"""How every zstd frame begins (RFC 8878, section 3.1.1)."""

SKIPPABLE = 0x184D2A50
"""How frames begin that hold no data, but for the last four bits (RFC 8878, section 3.1.2)."""


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


def _zstd(codec: Any, raw: np.ndarray, out: np.ndarray) -> None:
    claimed = zstd_size(raw)
    if claimed is None or claimed < out.size:
        claimed = zstd_total(raw)
    if claimed is not None:  # else numcodecs stops where `out` ends, and says if it is not filled
        _require(claimed, out)
    codec.decode(raw, out)
