"""Sizes are known before anything is decoded, and no chunk is inflated beyond its own."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st
from support.zarrarrays import ours

from chunkflow.core.grid import whole
from chunkflow.errors import ReadError
from chunkflow.stores import open_source
from chunkflow.stores.codecs.blosc import blosc_size
from chunkflow.stores.codecs.deflate import inflate
from chunkflow.stores.codecs.registry import ZARR_2, compressor
from chunkflow.stores.codecs.zstd import zstd_size, zstd_total
from chunkflow.stores.kvstore.protocol import ChunkError

CODECS: dict[str, Any] = {
    "zstd": numcodecs.Zstd(),
    "blosc": numcodecs.Blosc(),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(),
    "zlib": numcodecs.Zlib(),
}


LIBRARIES = [zlib, pytest.importorskip("isal.isal_zlib")]
ERRORS = (ChunkError, zlib.error, LIBRARIES[1].error)


def flat(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, np.uint8)


def unsized(frame: bytes) -> bytes:
    """A zstd frame without its size, as an encoder makes it that does not know how much will come."""
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
    rest = frame[5 + (0 if single else 1) + width :]
    return frame[:4] + bytes([descriptor & 4, (27 - 10) << 3]) + rest


@given(st.binary(max_size=70_000), st.integers(1, 5))
def test_sizes_are_read_from_the_headers(data: bytes, level: int) -> None:
    for codec, size in (
        (numcodecs.Zstd(level), zstd_size),
        (numcodecs.Zstd(level), zstd_total),
        (numcodecs.Blosc("lz4", level), blosc_size),
    ):
        if data:
            assert size(flat(codec.encode(data))) == len(data)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"]))
def test_any_bytes_have_some_size_or_none(data: bytes, start: bytes) -> None:
    for size in (zstd_size, zstd_total, blosc_size):
        found = size(flat(start + data))
        assert found is None or found >= 0


@given(st.lists(st.binary(min_size=1, max_size=400_000 // 8), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_several_frames_are_one_chunk(parts: list[bytes], checked: bool, known: bool) -> None:
    codec = numcodecs.Zstd(checksum=checked)
    frames = [codec.encode(part * 8) for part in parts]
    raw = b"".join([b"\x51\x2a\x4d\x18\x03\x00\x00\x00abc", *(frames if known else map(unsized, frames))])
    data = b"".join(part * 8 for part in parts)
    assert zstd_total(flat(raw)) == (len(data) if known else None)
    step = compressor(codec)
    assert step.decode(flat(raw), len(data), None).tobytes() == data
    for wrong in (len(data) - 1, len(data) + 1):
        with pytest.raises((ChunkError, RuntimeError, ValueError)):
            step.decode(flat(raw), wrong, None)


@given(
    st.lists(st.binary(max_size=3000), min_size=1, max_size=4),
    st.integers(1, 40),
    st.sampled_from([0, 1, 700]),
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from(LIBRARIES),
)
def test_members_of_a_gzip_file_are_one_chunk(
    parts: list[bytes], times: int, zeros: int, feed: int, piece: int, library: Any
) -> None:
    data = b"".join(part * times for part in parts)
    raw = b"".join(gzip.compress(part * times) + bytes(zeros) for part in parts)
    out = np.empty(len(data), np.uint8)
    with pytest.MonkeyPatch.context() as patch:  # so that streams go on from piece to piece
        patch.setattr("chunkflow.stores.codecs.deflate._FEED", feed * 16)
        patch.setattr("chunkflow.stores.codecs.deflate._PIECE", piece * 16)
        inflate(flat(raw), out, 31, library)
        assert out.tobytes() == data
        for wrong in {len(data) - 1, len(data) + 1} - {-1}:
            with pytest.raises(ChunkError, match="holds"):
                inflate(flat(raw), np.empty(wrong, np.uint8), 31, library)


@given(st.binary(max_size=5000), st.sampled_from(LIBRARIES), st.data())
def test_a_truncated_stream_is_an_error(part: bytes, library: Any, data: st.DataObject) -> None:
    for raw, bits in ((gzip.compress(part), 31), (zlib.compress(part), 15)):
        cut = data.draw(st.integers(0, len(raw) - 1))
        with pytest.raises(ERRORS):
            inflate(flat(raw[:cut]), np.empty(len(part), np.uint8), bits, library)


@pytest.mark.parametrize("name", ZARR_2)
def test_a_bomb_is_not_inflated(name: str, tmp_path: Path) -> None:
    zeros = bytes(64 << 20)
    bombs = [CODECS[name].encode(zeros)]
    if name == "zstd":
        bombs += [unsized(bombs[0]), numcodecs.Zstd().encode(bytes(64)) + bombs[0]]
    if name == "gzip":
        bombs += [gzip.compress(bytes(64)) + bombs[0]]
    array = zarr.create_array(
        tmp_path / "u", shape=(64,), chunks=(64,), dtype="u1", zarr_format=2, compressors=CODECS[name]
    )
    array[:] = 1
    source = open_source(tmp_path / "u")
    assert source.spec.storage.how.startswith("directly")
    for bomb in bombs:
        (tmp_path / "u" / "0").write_bytes(bomb)
        out = np.empty(64, np.uint8)
        tracemalloc.start()
        with pytest.raises(ReadError, match="chunk 0"):
            source.read(whole((64,)), out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 << 20


def test_a_small_chunk_that_claims_to_be_huge_is_an_error_that_says_so(tmp_path: Path) -> None:
    for name, codec, at in (("lz4", CODECS["lz4"], 0), ("blosc", CODECS["blosc"], 4), ("zstd", CODECS["zstd"], 5)):
        data = bytes(range(256)) * 512
        array = zarr.create_array(
            tmp_path / name, shape=len(data), chunks=len(data), dtype="u1", zarr_format=2, compressors=codec
        )
        array[:] = flat(data)
        path = tmp_path / name / "0"
        raw = bytearray(path.read_bytes())
        assert int.from_bytes(raw[at : at + 4], "little") == len(data)
        raw[at : at + 4] = (1 << 31).to_bytes(4, "little")
        path.write_bytes(raw)
        with pytest.raises(ReadError, match=rf"chunk 0.*{1 << 31} bytes.*{len(data)}"):
            open_source(tmp_path / name).read(whole((len(data),)), np.empty(len(data), np.uint8))


def test_a_file_much_longer_than_any_encoding_is_not_read(tmp_path: Path) -> None:
    for name, compressors in (("zstd", codecs.ZstdCodec()), ("raw", None)):
        array = zarr.create_array(tmp_path / name, shape=64, chunks=64, dtype="u1", compressors=compressors)
        array[:] = 1
        with open(tmp_path / name / "c" / "0", "r+b") as file:
            file.truncate(1 << 40)
        with pytest.raises(ReadError, match=f"{1 << 40} bytes"):
            open_source(tmp_path / name).read(whole((64,)), np.empty(64, np.uint8))


# -- What coding takes ---------------------------------------------------------------------------------------


CHAINS: dict[str, dict[str, Any]] = {
    "raw": {"compressors": None},
    "zstd": {"compressors": codecs.ZstdCodec(level=1)},
    "blosc": {"compressors": codecs.BloscCodec(cname="lz4", typesize=4)},
    "gzip": {"compressors": codecs.GzipCodec(level=1)},
    "zstd and a checksum": {"compressors": [codecs.ZstdCodec(level=1), codecs.Crc32cCodec()]},
    "big-endian": {"compressors": None, "serializer": codecs.BytesCodec(endian="big")},
    "big-endian zstd": {
        "compressors": codecs.ZstdCodec(level=1),
        "serializer": codecs.BytesCodec(endian="big"),
    },
    "transposed": {"filters": codecs.TransposeCodec(order=(1, 0)), "compressors": codecs.ZstdCodec(level=1)},
    "zlib": {"zarr_format": 2, "compressors": numcodecs.Zlib(1)},
    "lz4": {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    "shuffled": {"zarr_format": 2, "filters": [numcodecs.Shuffle(4)]},
    "rounded": {"zarr_format": 2, "filters": [numcodecs.BitRound(9)]},
    "quantized": {"zarr_format": 2, "filters": [numcodecs.Quantize(3, "f4")], "compressors": None},
    "scaled": {"zarr_format": 2, "filters": [numcodecs.FixedScaleOffset(0, 1000, "f4", "i2")]},
    "differences": {"zarr_format": 2, "filters": [numcodecs.Delta("f4")]},
}


@pytest.mark.parametrize("name", CHAINS)
def test_coding_takes_no_more_than_the_chain_says(name: str, tmp_path: Path) -> None:
    shape = (512, 1024)
    x = np.random.default_rng(0).random(shape, "f4")
    array = zarr.create_array(tmp_path / "x.zarr", shape=shape, chunks=shape, dtype="f4", **CHAINS[name])
    chunks = ours(array)
    room = np.empty((600, 1100), "f4")[: shape[0], : shape[1]]
    works = [lambda given=given: chunks.write(whole(shape), given) for given in (x, np.asfortranarray(x))]
    works += [lambda out=out: chunks.read(whole(shape), out) for out in (np.empty_like(x), room)]
    most = 0
    for work in works:
        work()
        tracemalloc.start()
        work()
        most = max(most, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    np.testing.assert_array_equal(room, array[...])
    assert most <= chunks.chain.copies * x.nbytes + (64 << 10)
    assert most > (chunks.chain.copies - 1) * x.nbytes, "and it says not much more than is taken"
