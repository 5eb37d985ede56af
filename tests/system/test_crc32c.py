"""The compiled CRC-32C, by the processor's instruction and by tables, beside the definition."""

from __future__ import annotations

import numpy as np
import pytest

from chunkflow.system import native

pytestmark = pytest.mark.skipif(native.chunks is None, reason="the compiled code was not built")


def defined(raw: bytes) -> int:
    """RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 31, 3071, 3072, 3073, 6144, 10_007])
def test_any_length(length: int, fast: bool) -> None:
    assert native.chunks is not None
    raw = np.random.default_rng(length).integers(0, 256, length + 1, "u1").tobytes()
    for start in (0, 1):  # odd addresses, too
        assert native.chunks.crc32c(memoryview(raw)[start:], fast) == defined(raw[start:])


def test_the_example_of_the_standard() -> None:
    assert native.chunks is not None
    assert native.chunks.crc32c(bytes(32)) == 0x8A9136AA
