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

from chunkflow import compiled
from chunkflow.stores import open_source
from chunkflow.stores.zstdframe import BLOCK, HEAD, matches

RNG = np.random.default_rng(1)


def frame(data: bytes, level: int = 1) -> bytes:
    return bytes(numcodecs.Zstd(level).encode(data))


def literals(matches: int, between: int = 40, width: int = 8) -> bytes:
    """Bytes with so many repeats of one pattern, and between any two what was never there before."""
    pattern = RNG.bytes(width)
    return b"".join(pattern + RNG.bytes(between) for _ in range(matches + 1))


@pytest.mark.parametrize("number", [1, 10, 100, 127, 128, 200, 1000, 2000])
@pytest.mark.parametrize("level", [1, 3])
def test_repeats_are_counted(number: int, level: int) -> None:
    data = literals(number)
    assert len(data) <= BLOCK
    assert number - 2 <= matches(frame(data, level), len(data)) * len(data) <= number + 2


@pytest.mark.parametrize("level", [1, 3])
def test_very_many(level: int) -> None:
    data = bytes(np.repeat(RNG.integers(0, 255, BLOCK // 2, "u1"), 2))
    rounded = (np.round(RNG.standard_normal(BLOCK // 4) * 64) / 64).astype("f4").tobytes()
    assert 0 <= matches(frame(data, level), len(data)) <= 1 / 3
    assert 0.05 < matches(frame(rounded, level), len(rounded)) < 1 / 3
    assert matches(frame(rounded * 4, level), 4 * len(rounded)) == pytest.approx(0.1, rel=0.5), "by the first block"
    assert matches(frame(rounded * 4, level)[:HEAD], 4 * len(rounded)) > 0


@pytest.mark.parametrize(
    "data", [b"", b"a", bytes(1000), bytes(10 * BLOCK), RNG.bytes(1000), RNG.bytes(3 * BLOCK)], ids=len
)
def test_where_there_are_next_to_none(data: bytes) -> None:
    assert matches(frame(data), len(data)) * min(max(len(data), 1), BLOCK) <= 2


@given(st.binary(max_size=40), st.booleans())
def test_whatever_else_it_is(rest: bytes, magic: bool) -> None:
    assert matches((b"\x28\xb5\x2f\xfd" if magic else b"") + rest, 1000) >= 0


@given(st.integers(0, 2000))
def test_of_less_than_a_block_nothing_is_known(size: int) -> None:
    data = literals(40)
    assert matches(frame(data)[: min(size, 1000)], len(data)) >= 0


@pytest.mark.skipif(compiled.chunks is None, reason="built without a C compiler")
@pytest.mark.parametrize("shards", [None, (64, 64)])
def test_an_array_has_those_of_the_chunk_that_has_most(shards: tuple[int, int] | None, tmp_path: Path) -> None:
    x = np.zeros((128, 128), "f4")
    options = {"chunks": (32, 32), "shards": shards, "compressors": codecs.ZstdCodec(level=1)}
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype="f4", **options)  # type: ignore[arg-type]
    source = open_source(tmp_path / "x.zarr")
    assert source.matches() == 0, "nothing was written"  # type: ignore[attr-defined]
    array[...] = x
    few = open_source(tmp_path / "x.zarr").matches()  # type: ignore[attr-defined]
    array[64:96, 64:96] = np.round(RNG.standard_normal((32, 32)) * 8) / 8
    many = open_source(tmp_path / "x.zarr").matches()  # type: ignore[attr-defined]
    assert few < 0.01 < many
    assert open_source(zarr.create_array(tmp_path / "y.zarr", data=x, compressors=None)).matches() == 0  # type: ignore[attr-defined]
