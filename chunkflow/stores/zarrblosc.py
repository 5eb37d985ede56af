"""Chunks that blosc has encoded, seen from outside: which items are in one, and how its bytes lie in them.

The layout is that of C-Blosc's format 2 (its README_CHUNK_FORMAT): a header of 16 bytes, where each block begins, and
for each block its items, behind their lengths. A block has an item for each byte of its elements, or one for all.
"""

from __future__ import annotations

import numpy as np

from chunkflow.packed import BITS, BYTES, PLAIN, Layout, Packed
from chunkflow.stores.zstdframes import frames

HEADER = 16

FORMATS = {"lz4": 1, "zstd": 4}
"""Numbers of what encodes the items."""

SHUFFLED, STORED, BIT_SHUFFLED, WHOLE = 1, 2, 4, 16
"""Flags: bytes are shuffled, nothing is encoded, bits are shuffled, blocks have one item each."""

MOST_ITEMS, LEAST_ITEM = 16, 128
"""A block is cut into at most so many items, of no fewer elements than these."""

_FOUR = np.arange(4)


def unpacked(raw: np.ndarray, nbytes: int, codec: str) -> Packed | None:
    """What is in a chunk that decodes to `nbytes`, a multiple of 4, by way of `codec`; None where that is not certain.

    >>> import numcodecs
    >>> raw = numcodecs.Blosc("lz4", shuffle=1).encode(np.arange(100_000, dtype="i4"))
    >>> unpacked(np.frombuffer(raw, "u1"), 400_000, "lz4").layout
    Layout(block=400000, items=4, width=4, shuffled=1)
    """
    if raw.size < HEADER:
        return None
    version, inner, flags, width = raw[:4].tolist()
    size, block, length = raw[4:HEADER].view("<u4").tolist()
    if version != 2 or size != nbytes or length != raw.size or not width:
        return None
    if flags & STORED:
        items = np.array([[HEADER], [nbytes], [nbytes]])
        return Packed(raw.size, items, Layout(nbytes, 1, width, PLAIN)) if raw.size == HEADER + nbytes else None
    if inner != 1 or flags >> 5 != FORMATS[codec] or not block or (block % 4 and block < nbytes):
        return None
    blocks, last = -(-nbytes // block), nbytes % block
    first = HEADER + 4 * blocks
    if first > raw.size:
        return None
    split = not flags & WHOLE and width <= MOST_ITEMS and block // width >= LEAST_ITEM
    number = width if split else 1
    starts = raw[HEADER:first].view("<i4").astype(np.int64)
    whole, rest = (starts[:-1], starts[-1:]) if last else (starts, starts[:0])
    items = np.concatenate([_items(raw, whole, number, block // number), _items(raw, rest, 1, last)], axis=1)
    at, lengths, sizes = items
    if ((at < first) | (lengths < 1) | (lengths > sizes) | (at + lengths > raw.size)).any():
        return None
    if codec == "zstd" and not frames(raw, *items[:, lengths != sizes]):
        return None
    shuffled = BYTES if flags & SHUFFLED and width > 1 else BITS if flags & BIT_SHUFFLED else PLAIN
    return Packed(raw.size, items, Layout(block, number, width, shuffled))


def _items(raw: np.ndarray, starts: np.ndarray, number: int, size: int) -> np.ndarray:
    """Where the items of some blocks begin, their lengths, and what they decode to; nowhere, if beyond the end."""
    found, at, end = np.empty((3, len(starts), number), np.int64), starts, raw.size - 4
    found[2] = size
    for n in range(number):
        place = np.where((at >= 0) & (at <= end), at, end)
        lengths = raw[place[:, None] + _FOUR].view("<i4")[:, 0]
        found[0, :, n], found[1, :, n] = np.where(place == at, at + 4, -1), lengths
        at = found[0, :, n] + lengths
    return found.reshape(3, -1)
