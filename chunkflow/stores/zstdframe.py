"""How much there is to do in a zstd frame: its matches, which a decoder follows one after the other (RFC 8878).

A GPU takes as long for one frame as for many, and how long is a matter of the longest chain: floats of which only the
exponents repeat have next to no matches, and the same number of bytes of rounded ones a million.
"""

from __future__ import annotations

BLOCK = 128 << 10
"""Bytes that a block decodes to, at most."""

HEAD = BLOCK + 64
"""Bytes from a frame's start on in which its first block ends."""


def matches(head: bytes, nbytes: int) -> float:
    """Matches per byte that a frame of so many decodes to, by its first block; 0 where `head` begins no such frame.

    >>> import numcodecs
    >>> matches(numcodecs.Zstd(1).encode(bytes(range(256))), 256)
    0.0
    """
    try:
        return _first(head) / min(max(nbytes, 1), BLOCK)
    except IndexError:
        return 0.0


def _first(head: bytes) -> int:
    """Matches in the first block."""
    if head[:4] != b"\x28\xb5\x2f\xfd":
        return 0
    flags = head[4]
    single = flags >> 5 & 1
    at = 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    kind = head[at] >> 1 & 3
    if kind != 2:  # as it is, or one byte again and again
        return 0
    at += 3
    at += _literals(head, at)
    first = head[at]
    if first < 128:
        return first
    if first < 255:
        return (first - 128 << 8) + head[at + 1]
    return head[at + 1] + (head[at + 2] << 8) + 0x7F00


def _literals(head: bytes, at: int) -> int:
    """Bytes of a block's literals and of what is said of them (section 3.1.1.3.1)."""
    kind, form = head[at] & 3, head[at] >> 2 & 3
    if kind < 2:  # as they are, or one byte again and again
        wide = (1, 2, 1, 3)[form]
        number = int.from_bytes(head[at : at + wide], "little") >> (4 if form & 1 else 3)
        return wide + (number if kind == 0 else 1)
    wide, bits = (3, 3, 4, 5)[form], (10, 10, 14, 18)[form]
    return wide + (int.from_bytes(head[at : at + wide], "little") >> 4 + bits)
