"""Chunks that are decoded and encoded here, beside zarr's own pipeline: the same values, the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.stores.zarrchunks import Chunks, blosc_size, plain_chunks, zstd_size

PLAIN: list[dict[str, Any]] = [
    {},
    {"compressors": None},
    {"compressors": codecs.ZstdCodec(level=3, checksum=True)},
    *({"compressors": codecs.BloscCodec(cname="lz4", shuffle=s)} for s in ("noshuffle", "shuffle", "bitshuffle")),
    {"zarr_format": 2},
    {"zarr_format": 2, "compressors": numcodecs.Blosc("zstd")},
    {"zarr_format": 2, "compressors": None, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    {"fill_value": 7},
    {"config": {"write_empty_chunks": True}},
]
OTHER: list[dict[str, Any]] = [
    {"compressors": codecs.GzipCodec()},
    {"shards": (8, 8)},
    {"filters": codecs.TransposeCodec(order=(1, 0))},
    {"serializer": codecs.BytesCodec(endian="big")},
    {"compressors": [codecs.ZstdCodec(), codecs.Crc32cCodec()]},
    {"zarr_format": 2, "order": "F"},
    {"zarr_format": 2, "filters": [numcodecs.Delta("i4")]},
    {"zarr_format": 2, "compressors": numcodecs.LZ4()},
]


def create(path: Path, options: dict[str, Any], shape: tuple[int, ...] = (10, 9)) -> Any:
    return zarr.create_array(path, shape=shape, chunks=(4, 4), dtype="i4", **options)


def chunks_of(array: Any) -> Chunks | None:
    return plain_chunks(array, Path(array.store.root))


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_both_ways_agree_with_zarr(options: dict[str, Any], tmp_path: Path) -> None:
    values = np.arange(90, dtype="i4").reshape(10, 9)
    values[:4, :4] = options.get("fill_value", 0)  # a chunk that is not written
    theirs, ours = create(tmp_path / "theirs", options), create(tmp_path / "ours", options)
    theirs[...] = values
    chunks = chunks_of(ours)
    assert chunks is not None
    assert chunks.write((slice(0, 8), slice(0, 9)), values[:8])
    assert chunks.write((slice(8, 10), slice(0, 9)), np.asfortranarray(values[8:]))
    files = [
        {p.relative_to(root): p for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "theirs", tmp_path / "ours")
    ]
    assert files[0].keys() == files[1].keys()
    np.testing.assert_array_equal(ours[...], values)
    got = np.empty_like(values)
    reader = chunks_of(theirs)
    assert reader is not None
    assert reader.read((slice(0, 10), slice(0, 9)), got)
    np.testing.assert_array_equal(got, values)
    part = np.empty((5, 3), "i4")
    assert reader.read((slice(3, 8), slice(2, 5)), part)
    np.testing.assert_array_equal(part, values[3:8, 2:5])


@pytest.mark.parametrize("options", OTHER, ids=str)
def test_what_is_not_plain_is_left_to_zarr_and_right_all_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    values = np.arange(90, dtype="i4").reshape(10, 9)
    array = create(tmp_path / "x", options)
    assert chunks_of(array) is None
    array[...] = values
    np.testing.assert_array_equal(cf.map(np.negative, tmp_path / "x", device="cpu"), -values)


def test_a_region_that_cuts_a_chunk_is_left_to_zarr(tmp_path: Path) -> None:
    chunks = chunks_of(create(tmp_path / "x", {}))
    assert chunks is not None
    assert not chunks.write((slice(0, 6), slice(0, 9)), np.ones((6, 9), "i4"))
    assert not [*(tmp_path / "x").rglob("c/*/*")]


@pytest.mark.parametrize("claimed", [10**9, 60, 70])
def test_a_chunk_that_claims_another_size_is_an_error(claimed: int, tmp_path: Path) -> None:
    array = create(tmp_path / "x", {})
    array[...] = 1
    (tmp_path / "x" / "c" / "0" / "0").write_bytes(numcodecs.Zstd().encode(bytes(min(claimed, 10**6))))
    with pytest.raises(cf.errors.ReadError):
        cf.map(np.negative, tmp_path / "x", device="cpu")


def test_a_damaged_chunk_is_an_error(tmp_path: Path) -> None:
    array = create(tmp_path / "x", {"compressors": codecs.ZstdCodec(checksum=True)}, (8, 8))
    array[...] = np.arange(64).reshape(8, 8)
    path = tmp_path / "x" / "c" / "1" / "1"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(cf.errors.ReadError, match="8"):
        cf.map(np.negative, tmp_path / "x", device="cpu")


@given(st.binary(max_size=70_000), st.integers(1, 5))
def test_sizes_are_read_from_the_headers(data: bytes, level: int) -> None:
    for codec, size in ((numcodecs.Zstd(level), zstd_size), (numcodecs.Blosc("lz4", level), blosc_size)):
        if data:
            assert size(np.frombuffer(codec.encode(data), np.uint8)) == len(data)


@given(st.binary(max_size=40))
def test_any_bytes_have_some_size_or_none(data: bytes) -> None:
    for size in (zstd_size, blosc_size):
        found = size(np.frombuffer(data, np.uint8))
        assert found is None or found >= 0


def test_minus_zero_is_not_taken_for_an_empty_chunk(tmp_path: Path) -> None:
    x = np.full((8, 8), -0.0)
    z = cf.map(lambda a: a, x, out=tmp_path / "z.zarr", device="cpu")
    assert np.signbit(z[...]).all()
