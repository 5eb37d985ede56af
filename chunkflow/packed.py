"""A chunk as it is stored, for a device that decodes it: the items in it, and how their bytes are shuffled.

Most codecs make one part of a chunk. Blosc cuts chunks into blocks, and blocks into items, with the bytes or the bits
of their elements shuffled: those of one significance beside each other. What is here the host has checked.
"""

from __future__ import annotations

from typing import NamedTuple

ALIGNMENT = 16
"""Multiples of bytes at which chunks begin in a buffer: of every dtype's size, for some come decoded."""

PLAIN, BYTES, BITS = 0, 1, 2
"""How a block's elements are shuffled: not at all; first bytes first; first bits first."""

FACTS = 5
"""Numbers by which a device knows a chunk's layout: its first item, and what `Layout` has, in that order."""


class Layout(NamedTuple):
    """What a chunk's items are once they are decoded, one after the other.

    Attributes
    ----------
    block : int
        Bytes of each block but the last, multiples of 4 if there are several; each has items of its own.
    items : int
        Items of equal length in each such block; a shorter last one has a single item.
    width : int
        Bytes of an element.
    shuffled : int
        `PLAIN`, `BYTES` or `BITS`.
    """

    block: int
    items: int
    width: int
    shuffled: int


class Packed(NamedTuple):
    """A chunk that lies encoded in a buffer; a tuple, for there are thousands a second.

    Attributes
    ----------
    start, nbytes : int
        Where in the buffer it begins, and its bytes.
    items : bytes
        Three rows of 64-bit numbers: for each item, in their order, where in the chunk it begins, how many it has, and
        how many it is decoded to. Where a codec cuts chunks, those that have as many are stored as they are.
    layout : Layout
    checksum : int
        CRC-32 of what the only item decodes to; -1 if it is not known.
    """

    start: int
    nbytes: int
    items: bytes
    layout: Layout
    checksum: int = -1
