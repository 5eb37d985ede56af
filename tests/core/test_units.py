"""Byte counts as people write them."""

from __future__ import annotations

import pytest

from chunkflow.core.units import parse_bytes
from chunkflow.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4GB", 4 * 10**9),
        ("4G", 4 * 10**9),
        ("64m", 64 * 10**6),
        ("4GiB", 4 << 30),
        ("4Gi", 4 << 30),
        ("7", 7),
        ("7 B", 7),
    ],
)
def test_with_and_without_the_b(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["4X", "4 i", "4iB", "GB", "", "4GBB", "-1G"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse_bytes(text)
