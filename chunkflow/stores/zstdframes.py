"""Zstd frames (RFC 8878) seen from outside: whether each is whole, and holds as much as it should."""

from __future__ import annotations

import numpy as np

from chunkflow.stores.zarrcodecs import MAGIC, zstd_frame

UNUSUAL = 0b1111
"""Bits of a frame's descriptor that say that it has a checksum or a dictionary, or that nobody uses."""

BLOCK = 128 << 10
"""Bytes that a block of a frame holds, at most (section 3.1.1.2.4)."""

RAW, REPEATED, RESERVED = 0, 1, 3
"""Kinds of blocks of a frame."""

_WIDTHS = np.array([0, 2, 4, 8])
_MASKS = np.array([0, 0xFF, 0xFFFF, 0, 0xFFFFFFFF, 0, 0, 0, 0xFFFFFFFFFFFFFFFF], np.uint64)


def frame(raw: np.ndarray, nbytes: int) -> bool:
    """Whether this is a single frame that says how much it holds, and ends where the last of its blocks does."""
    size, at = zstd_frame(raw)
    if size != nbytes or int(raw[4]) & UNUSUAL:
        return False
    data, last = raw.data, False
    while not last:
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == RESERVED or length > BLOCK:
            return False
        at += 3 + (1 if kind == REPEATED else length)
        if at > len(data):
            return False
        if kind in (RAW, REPEATED):
            nbytes -= length
    return at == len(data) and nbytes >= 0


def frames(raw: np.ndarray, at: np.ndarray, lengths: np.ndarray, sizes: np.ndarray) -> bool:
    """The same of many, which begin in `raw` at `at`: small ones, of a few blocks each, all at once.

    >>> import numcodecs
    >>> raw = np.frombuffer(numcodecs.Zstd().encode(bytes(1000)), np.uint8)
    >>> two = np.concatenate([raw, raw])
    >>> frames(two, np.array([0, raw.size]), np.array([raw.size] * 2), np.array([1000, 1000]))
    True
    """
    end, left = at + lengths, sizes.copy()
    head = _bytes(raw, at, 18)
    flags = head[:, 4].astype(np.int64)
    if (_numbers(head[:, :4], 4) != MAGIC).any() or (flags & UNUSUAL).any():
        return False
    single = flags >> 5 & 1
    width = np.maximum(_WIDTHS[flags >> 6], single)
    claimed = np.take_along_axis(head, (6 - single)[:, None] + np.arange(8), 1)
    if ((_numbers(claimed, 8) & _MASKS[width]) + 256 * (width == 2).astype(np.uint64) != sizes.astype(np.uint64)).any():
        return False
    at = at + 6 - single + width
    while at.size:
        header = _numbers(np.pad(_bytes(raw, at, 3), ((0, 0), (0, 1))), 4).astype(np.int64)
        last, kind, length = header & 1 == 1, header >> 1 & 3, header >> 3
        at = at + 3 + np.where(kind == REPEATED, 1, length)
        left = left - np.where(kind <= REPEATED, length, 0)
        if ((kind == RESERVED) | (length > BLOCK) | (at > end) | (left < 0) | (last & (at != end))).any():
            return False
        at, end, left = at[~last], end[~last], left[~last]
    return True


def _bytes(raw: np.ndarray, at: np.ndarray, number: int) -> np.ndarray:
    """So many bytes from each place; the last one again, where there are none."""
    return raw[np.minimum(at[:, None] + np.arange(number), raw.size - 1)]


def _numbers(raw: np.ndarray, width: int) -> np.ndarray:
    return np.ascontiguousarray(raw).view(f"<u{width}")[:, 0]
