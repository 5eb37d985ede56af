"""What there is to do in a zstd frame, seen from its head."""

from __future__ import annotations

from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.stores import open_source
from chunkflow.stores.codecs.zstd import HEAD, _matches, matches
from chunkflow.system import native

BLOCK = 128 << 10
RNG = np.random.default_rng(1)


def frame(data: bytes, level: int = 1) -> bytes:
    return bytes(numcodecs.Zstd(level).encode(data))


def counted(data: bytes, level: int, most: int = 1 << 30) -> float:
    """Matches of data, by so much of its frame."""
    encoded = frame(data, level)
    return matches(encoded[:most], len(encoded), len(data)) * len(data)


def literals(matches: int, between: int = 40, width: int = 8) -> bytes:
    """Bytes with so many repeats of one pattern, and between any two what was never there before."""
    rng = np.random.default_rng(matches)
    pattern = rng.bytes(width)
    return b"".join(pattern + rng.bytes(between) for _ in range(matches + 1))


@pytest.mark.parametrize("number", [1, 10, 100, 127, 128, 200, 1000, 2000])
@pytest.mark.parametrize("level", [1, 3])
def test_repeats_are_counted(number: int, level: int) -> None:
    data = literals(number)
    assert len(data) <= BLOCK
    assert number - 2 <= counted(data, level) <= number + 2


@pytest.mark.parametrize("level", [1, 3, 9, 19])
@pytest.mark.parametrize("scale", [64, 4])
def test_very_many(level: int, scale: int) -> None:
    """By the head of the frame as by all of it, however short its blocks are."""
    data = (np.round(np.random.default_rng(scale).standard_normal(1 << 18) * scale) / scale).astype("f4").tobytes()
    whole = counted(data, level)
    assert len(data) / 30 < whole < len(data) / 3
    assert counted(data, level, HEAD) == pytest.approx(whole, rel=0.15)


@pytest.mark.parametrize(
    "data", [b"", b"a", bytes(1000), bytes(10 * BLOCK), RNG.bytes(1000), RNG.bytes(3 * BLOCK)], ids=len
)
def test_where_there_are_next_to_none(data: bytes) -> None:
    assert counted(data, 1) <= 20


@given(st.binary(max_size=40), st.booleans())
def test_whatever_else_it_is(rest: bytes, magic: bool) -> None:
    assert matches((b"\x28\xb5\x2f\xfd" if magic else b"") + rest, 1000, 1000) >= 0


@given(st.integers(0, 2000))
def test_of_less_than_a_block_nothing_is_known(size: int) -> None:
    data = literals(40)
    assert counted(data, 1, min(size, 1000)) == 0


@pytest.mark.skipif(native.chunks is None, reason="built without a C compiler")
@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_an_array_has_those_of_the_chunk_that_has_most(shards: tuple[int, int] | None, tmp_path: Path) -> None:
    x = np.zeros((128, 128), "f4")
    options = {"chunks": (32, 32), "shards": shards, "compressors": codecs.ZstdCodec(level=1)}
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype="f4", **options)  # type: ignore[arg-type]
    source = open_source(tmp_path / "x.zarr")
    assert source.matches() == 0, "nothing was written"  # type: ignore[attr-defined]
    array[...] = x
    few = open_source(tmp_path / "x.zarr").matches()  # type: ignore[attr-defined]
    array[64:96, 64:96] = np.round(np.random.default_rng(8).standard_normal((32, 32)) * 8) / 8
    many = open_source(tmp_path / "x.zarr").matches()  # type: ignore[attr-defined]
    assert few < 0.01 < many
    assert open_source(zarr.create_array(tmp_path / "y.zarr", data=x, compressors=None)).matches() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (bytes([5]), 5),
        (bytes([127]), 127),
        (bytes([128, 9]), 9),
        (bytes([254, 3]), 0x7E03),
        (bytes([255, 4, 1]), 0x8004),
    ],
)
@pytest.mark.parametrize("literals", [bytes([1 << 3]) + b"a", bytes([2 << 3]) + b"ab", bytes([1 | 9 << 3]) + b"a"])
def test_the_number_of_matches_as_the_format_has_it(literals: bytes, count: bytes, expected: int) -> None:
    assert _matches(b"--" + literals + count, 2) == expected
