"""Chunks of kilobytes that decode to much more than the array's metadata say, by every codec and chain of codecs."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs
from zarr.storage import MemoryStore

import chunkflow as cf
from chunkflow.errors import ReadError
from chunkflow.testing import filled

BOMB = 24 << 20
"""Bytes that a chunk of 64 bytes holds."""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def of(*codec: Any) -> Callable[[bytes], bytes]:
    """Encoding by codecs of numcodecs, one after the other."""

    def encode(plain: bytes) -> bytes:
        for each in codec:
            plain = bytes(each.encode(plain))
        return plain

    return encode


def more(name: str, **how: Any) -> Any:
    found = pytest.importorskip("zarr.codecs.numcodecs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in no specification
        return getattr(found, name)(**how)


ZSTD, GZIP, BZ2, LZMA = numcodecs.Zstd(1), numcodecs.GZip(1), numcodecs.BZ2(), numcodecs.LZMA()
LZ4, BLOSC, ZLIB, RAW_LZMA = numcodecs.LZ4(), numcodecs.Blosc("zstd"), numcodecs.Zlib(), {"id": lzma.FILTER_LZMA2}

CHAINS: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes]]] = {
    "zstd": ({"compressors": ZSTD}, of(ZSTD)),
    "gzip": ({"compressors": GZIP}, of(GZIP)),
    "zlib": ({"compressors": ZLIB}, of(ZLIB)),
    "lz4": ({"compressors": LZ4}, of(LZ4)),
    "blosc": ({"compressors": BLOSC}, of(BLOSC)),
    "bz2": ({"compressors": BZ2}, of(BZ2)),
    "lzma": ({"compressors": LZMA}, of(LZMA)),
    "raw lzma": (
        {"compressors": numcodecs.LZMA(lzma.FORMAT_RAW, filters=[RAW_LZMA])},
        of(numcodecs.LZMA(lzma.FORMAT_RAW, filters=[RAW_LZMA])),
    ),
    "zstd, zstd": ({"filters": [ZSTD], "compressors": ZSTD}, of(ZSTD, ZSTD)),
    "zstd, bz2": ({"filters": [ZSTD], "compressors": BZ2}, of(ZSTD, BZ2)),
    "base64, lzma": ({"filters": [numcodecs.Base64()], "compressors": LZMA}, of(numcodecs.Base64(), LZMA)),
    "delta of others, bz2": ({"filters": [numcodecs.Delta("i8")], "compressors": BZ2}, of(BZ2)),
}
CHAINS_3: dict[str, tuple[dict[str, Any], Callable[[bytes], bytes]]] = {
    "zstd, gzip": ({"compressors": [codecs.ZstdCodec(), codecs.GzipCodec()]}, of(ZSTD, GZIP)),
    "gzip, zstd, crc32c": (
        {"compressors": [codecs.GzipCodec(), codecs.ZstdCodec(), codecs.Crc32cCodec()]},
        of(GZIP, ZSTD, numcodecs.CRC32C()) if hasattr(numcodecs, "CRC32C") else of(),
    ),
    "bz2 of numcodecs": ({"compressors": [more("BZ2")]}, of(BZ2)),
    "lzma of numcodecs": ({"compressors": [more("LZMA")]}, of(LZMA)),
    "delta of numcodecs, zstd": ({"filters": [more("Delta", dtype="i4")]}, of(ZSTD)),
}
ROWS = [(name, {"zarr_format": 2} | how, encode) for name, (how, encode) in CHAINS.items()]
ROWS += [(name, how, encode) for name, (how, encode) in CHAINS_3.items()]
IDS = [name for name, *_ in ROWS]


def made(where: Any, options: dict[str, Any]) -> Any:
    array = zarr.create_array(where, shape=(16,), chunks=(16,), dtype="i4", **options)
    array[...] = filled((16,), "i4")
    return array


def object_of(path: Path) -> Path:
    """The file of an array's only chunk."""
    (found,) = (each for each in path.rglob("*") if each.is_file() and each.name[0] not in "z.")
    return found


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def room(name: str) -> int:
    """Bytes that may be taken. Lzma's decoder asks for its dictionary of 8 MiB twice, and touches little of it."""
    return 20 << 20 if "lzma" in name else 2 << 20


def refused(x: Any) -> None:
    with pytest.raises(ReadError):
        cf.sum(x, device="cpu", budget="1MB")


@pytest.mark.parametrize(("name", "options", "encode"), ROWS, ids=IDS)
def test_a_bomb_is_an_error_in_little_memory(name: str, options: Any, encode: Any, tmp_path: Path) -> None:
    made(tmp_path / "x", options)
    total = filled((16,), "i4").sum()
    assert cf.sum(tmp_path / "x", device="cpu") == total
    object_of(tmp_path / "x").write_bytes(encode(bytes(BOMB)))
    for x in (tmp_path / "x", zarr.open_array(tmp_path / "x", mode="r")):
        assert peak(lambda x=x: refused(x)) < room(name)  # type: ignore[misc]


@pytest.mark.parametrize(("name", "options", "encode"), ROWS, ids=IDS)
def test_a_bomb_in_memory(name: str, options: Any, encode: Any, tmp_path: Path) -> None:
    store: dict[str, Any] = {}
    array = made(MemoryStore(store), options)
    assert cf.sum(array, device="cpu") == filled((16,), "i4").sum()
    key = next(key for key in store if key[0] not in "z.")
    store[key] = type(store[key]).from_bytes(encode(bytes(BOMB)))
    assert peak(lambda: refused(array)) < room(name)


@pytest.mark.parametrize("inner", [[codecs.ZstdCodec()], [codecs.GzipCodec(), codecs.ZstdCodec()]], ids=len)
def test_a_bomb_inside_shards_inside_shards(inner: Any, tmp_path: Path) -> None:
    serializer = codecs.ShardingCodec(
        chunk_shape=(8,),
        codecs=[codecs.ShardingCodec(chunk_shape=(4,), codecs=[codecs.BytesCodec(), *inner], index_location="start")],
    )
    made(tmp_path / "x", {"serializer": serializer, "compressors": None})
    assert cf.sum(tmp_path / "x", device="cpu") == filled((16,), "i4").sum()
    raw = object_of(tmp_path / "x").read_bytes()
    object_of(tmp_path / "x").write_bytes(raw[::-1])
    assert peak(lambda: refused(tmp_path / "x")) < 2 << 20


@pytest.mark.parametrize("options", [{}, {"filters": [more("Delta", dtype="i4")]}], ids=["here", "by zarr"])
def test_a_file_that_is_much_longer_than_a_chunk_is_not_read(options: Any, tmp_path: Path) -> None:
    made(tmp_path / "x", options)
    with open(object_of(tmp_path / "x"), "r+b") as file:
        file.truncate(1 << 40)
    assert peak(lambda: refused(tmp_path / "x")) < 2 << 20


@pytest.mark.parametrize("options", [{}, {"filters": [more("Delta", dtype="i4")]}, {"compressors": None}], ids=str)
def test_a_pipe_in_a_chunks_place_is_not_waited_for(options: Any, tmp_path: Path) -> None:
    made(tmp_path / "x", options)
    path = object_of(tmp_path / "x")
    path.unlink()
    os.mkfifo(path)
    refused(tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "encode"),
    [("bz2", bz2.compress), ("lzma", lzma.compress), ("zlib", zlib.compress), ("gzip", gzip.compress)],
)
def test_streams_one_behind_the_other_are_one(name: str, encode: Callable[[bytes], bytes]) -> None:
    from chunkflow.stores.codecs.registry import BOUNDED

    codec = BOUNDED[name](numcodecs.get_codec({"id": name}))
    plain = np.arange(5000, dtype="u2").view("u1")
    whole = np.frombuffer(encode(plain[:4000].tobytes()) + encode(plain[4000:].tobytes()), "u1")
    if name != "zlib":  # a second stream is none of the chunk's
        np.testing.assert_array_equal(codec.unpack(whole, 10_000), plain)
    for cut in (whole[:-30], whole[:1], whole[:0]):
        with pytest.raises((ValueError, EOFError, OSError, zlib.error, lzma.LZMAError)):
            codec.unpack(cut, 9_999)
