"""How much there is to do in a zstd frame: its matches, which a decoder follows one after the other (RFC 8878).

A GPU takes as long for one frame as for many, and how long is a matter of the longest chain: floats of which only the
exponents repeat have next to no matches, and the same number of bytes of rounded ones a million.
"""

from __future__ import annotations

HEAD = (128 << 10) + 64
"""Bytes from a frame's start on in which its first block ends, and maybe others."""

REPEATED, COMPRESSED = 1, 2
"""Kinds of blocks: one byte again and again; and those that have matches."""


def matches(head: bytes, encoded: int, decoded: int) -> float:
    """Matches per byte that a frame decodes to, by the blocks that end in its `head`; 0 where it begins no such frame.

    Parameters
    ----------
    head : bytes
        What the frame begins with.
    encoded, decoded : int
        Bytes that the frame has, and that it decodes to.

    Examples
    --------
    >>> import numcodecs
    >>> frame = numcodecs.Zstd(1).encode(bytes(range(256)))
    >>> matches(frame, len(frame), 256)
    0.0
    """
    number = 0
    start = at = _header(head)
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


def _header(head: bytes) -> int:
    """Bytes of a frame's header; 0 if it is none."""
    if head[:4] != b"\x28\xb5\x2f\xfd" or len(head) < 5:
        return 0
    flags = head[4]
    single = flags >> 5 & 1
    return 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]


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
    """Bytes of a block's literals and of what is said of them (section 3.1.1.3.1)."""
    kind, form = head[at] & 3, head[at] >> 2 & 3
    if kind < 2:  # as they are, or one byte again and again
        wide = (1, 2, 1, 3)[form]
        number = int.from_bytes(head[at : at + wide], "little") >> (4 if form & 1 else 3)
        return wide + (number if kind == 0 else 1)
    wide, bits = (3, 3, 4, 5)[form], (10, 10, 14, 18)[form]
    return wide + (int.from_bytes(head[at : at + wide], "little") >> 4 + bits)
