"""Chunks of blosc that no library here writes."""

from __future__ import annotations

import struct


def blosc_with(number: int, nbytes: int) -> bytes:
    """A chunk of doubles that is compressed by the codec with a number (2: snappy), as far as its header says."""
    block = struct.pack("<II", 20, 20) + bytes(20)
    return bytes([2, 1, number << 5 | 1, 8]) + struct.pack("<III", nbytes, nbytes, 16 + len(block)) + block
