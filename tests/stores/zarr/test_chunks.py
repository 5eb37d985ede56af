"""Chunks that are decoded and encoded here, beside zarr's own pipeline: the same values, the same files."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st
from support.changes import stamped_later
from support.zarrarrays import arrays, create, fresh, modest, ours, regions, same, values
from zarr.storage import MemoryStore

import chunkflow as cf
from chunkflow.core.grid import Grid, shape_of, whole
from chunkflow.errors import ReadError
from chunkflow.stores import open_source, open_target
from chunkflow.stores.caches.fetch_buffer import Kept, keeping, kept
from chunkflow.stores.codecs.step import NotDirectError
from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.protocol import guards_of
from chunkflow.stores.zarr.shards import Shards
from chunkflow.system.native import read_file
from chunkflow.testing.arrays import laid_out

LAYOUTS = ("C", "F", "strided", "reversed")
CHECKED: dict[str, Any] = {"compressors": [codecs.ZstdCodec(), codecs.Crc32cCodec()]}
NO_CODEC: dict[str, Any] = {"compressors": None}

PLAIN: list[tuple[dict[str, Any], str]] = [
    ({}, "zstd"),
    (NO_CODEC, "raw"),
    ({"compressors": codecs.ZstdCodec(level=3, checksum=True)}, "zstd"),
    ({"compressors": codecs.BloscCodec(cname="lz4")}, "blosc-lz4"),
    ({"compressors": codecs.GzipCodec()}, "gzip"),
    ({"serializer": codecs.BytesCodec(endian="big")}, "big-endian, zstd"),
    ({"filters": codecs.TransposeCodec(order=(1, 0))}, "transposed, zstd"),
    (CHECKED, "zstd, crc32c"),
    ({"compressors": [codecs.Crc32cCodec(), codecs.GzipCodec()]}, "crc32c, gzip"),
    ({"zarr_format": 2}, "zstd"),
    ({"zarr_format": 2, "fill_value": None}, "zstd"),
    ({"zarr_format": 2, "order": "F"}, "transposed, zstd"),
    ({"zarr_format": 2, "compressors": numcodecs.Blosc("zstd")}, "blosc-zstd"),
    ({"zarr_format": 2, "compressors": numcodecs.LZ4()}, "lz4"),
    ({"zarr_format": 2, "compressors": numcodecs.Zlib()}, "zlib"),
    ({"zarr_format": 2, "compressors": None, "chunk_key_encoding": {"name": "v2", "separator": "/"}}, "raw"),
    ({"zarr_format": 2, "filters": [numcodecs.Delta("i4")]}, "delta, zstd"),
    ({"zarr_format": 2, "filters": [numcodecs.Delta("i4", "i2"), numcodecs.Shuffle(2)]}, "delta, shuffle, zstd"),
    (
        {"zarr_format": 2, "filters": [numcodecs.Delta(">i4")], "dtype": ">i4", "order": "F", "compressors": None},
        "transposed, big-endian, delta",
    ),
    ({"zarr_format": 2, "filters": [numcodecs.FixedScaleOffset(5, 1, "i4", "u1")]}, "fixedscaleoffset, zstd"),
    ({"zarr_format": 2, "filters": [numcodecs.AsType("f8", "i4")]}, "astype, zstd"),
    ({"fill_value": 7}, "zstd"),
    ({"config": {"write_empty_chunks": True}}, "zstd"),
    ({"shards": (8, 8)}, "zstd, in shards of (8, 8)"),
]
OTHER: list[tuple[dict[str, Any], str]] = [
    ({"zarr_format": 2, "filters": [numcodecs.Base64()]}, "filter base64"),
    ({"zarr_format": 2, "filters": [numcodecs.Delta("i8")], "chunks": (4, 2)}, "filter delta of int64"),
    ({"zarr_format": 2, "compressors": numcodecs.LZMA()}, "codec lzma"),
    ({"compressors": [codecs.ZstdCodec(), codecs.GzipCodec()]}, "several compressors"),
    (
        {
            "chunks": (8, 8),
            "serializer": codecs.ShardingCodec(chunk_shape=(4, 4), codecs=[codecs.ShardingCodec(chunk_shape=(2, 2))]),
            "compressors": None,
        },
        "codec sharding_indexed",
    ),
]


def make(path: Path, options: dict[str, Any], shape: tuple[int, ...] = (10, 9)) -> Any:
    return create(path, {"shape": shape, "chunks": (4, 4), "dtype": "i4"} | options)


def read(path: Path, shape: tuple[int, ...] = (8, 8)) -> np.ndarray:
    out = np.empty(shape, "i4")
    open_source(path).read(whole(shape), out)
    return out


@given(data=st.data())
@modest
def test_what_zarr_writes_is_read(tmp_path: Path, data: st.DataObject) -> None:
    options = data.draw(arrays())
    array = create(fresh(tmp_path), options)
    expected = values(options)
    array[...] = expected
    chunks = ours(array)
    if data.draw(st.booleans()):  # a chunk, or a shard, that was never written
        shape = chunks.shape if isinstance(chunks, Shards) else chunks.chain.shape
        index = tuple(data.draw(st.integers(0, -(-n // c) - 1)) for n, c in zip(array.shape, shape, strict=True))
        chunks.objects.remove(chunks.key(index))
        expected[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, shape, strict=True))] = options["fill_value"]
    for reader in (chunks, open_source(array), open_source(str(array.store.root))):
        region = data.draw(regions(array.shape))
        out = laid_out(shape_of(region), expected.dtype, data.draw(st.sampled_from(LAYOUTS)))
        reader.read(region, out)
        same(out, expected[region])


@given(data=st.data())
@modest
def test_what_is_written_is_read_by_zarr(tmp_path: Path, data: st.DataObject) -> None:
    options = data.draw(arrays())
    array = create(fresh(tmp_path), options)
    expected = values(options)
    target = open_target(array)
    sink = target.open(target.describe(array.shape, expected.dtype, None))
    assert sink.spec.chunks is not None
    unit = [c * data.draw(st.integers(1, 3)) for c in sink.spec.chunks]
    grid = Grid(array.shape, tuple(min(u, n) for u, n in zip(unit, array.shape, strict=True)))
    for again in range(data.draw(st.integers(1, 2))):
        if again:  # chunks that were there are replaced, or removed
            expected = values(options, seed=1)
        for index in grid.walk(range(len(array.shape))):
            region = grid.region(index)
            block = laid_out(shape_of(region), expected.dtype, data.draw(st.sampled_from(LAYOUTS)))
            block[...] = expected[region]
            assert ours(array).write(region, block)
            sink.write(region, block)
            same(block, expected[region])
    found = zarr.open_array(array.store.root, mode="r")[...]
    same(np.asarray(found).astype(expected.dtype), expected)
    out = np.empty_like(expected)
    open_source(array).read(whole(array.shape), out)
    same(out, expected)
    assert not [name for _, _, names in os.walk(array.store.root) for name in names if name.endswith(".partial")]


@pytest.mark.parametrize(("options", "how"), PLAIN)
def test_both_write_the_same_files(options: dict[str, Any], how: str, tmp_path: Path) -> None:
    expected = np.arange(90, dtype="i4").reshape(10, 9)
    if (fill := options.get("fill_value", 0)) is not None:
        expected[:4, :4] = fill  # a chunk that is not written; without a fill value all are, by us
    theirs, mine = make(tmp_path / "theirs", options), make(tmp_path / "ours", options)
    theirs[...] = expected
    assert ours(mine).write(whole((10, 9)), expected)
    files = [
        {p.relative_to(root): p for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "theirs", tmp_path / "ours")
    ]
    assert files[0].keys() == files[1].keys()
    assert open_source(theirs).spec.storage.how == f"directly: {how}"
    plan = cf.explain(np.negative, tmp_path / "theirs", out=tmp_path / "ours", overwrite=True, device="cpu")
    assert str(plan).count(f"directly: {how}") >= 1


@pytest.mark.parametrize(("options", "why"), OTHER)
def test_what_is_left_to_zarr_is_right_and_says_why(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    expected = np.arange(90, dtype="i4").reshape(10, 9)
    array = make(tmp_path / "x", options)
    with pytest.raises(NotDirectError, match=why):
        ours(array)
    array[...] = expected
    np.testing.assert_array_equal(cf.map(np.negative, tmp_path / "x", device="cpu"), -expected)
    assert f"through zarr: {why}" in str(cf.explain(np.negative, tmp_path / "x", device="cpu"))
    assert open_target(zarr.open_array(tmp_path / "x", mode="r+")).describe((10, 9), np.dtype("i4"), None).storage.how


def test_a_store_in_memory_is_left_to_zarr() -> None:
    array = zarr.create_array(MemoryStore(), shape=(4,), chunks=(2,), dtype="i4")
    assert open_source(array).spec.storage.how == "through zarr: MemoryStore"


@pytest.mark.parametrize("name", ["LZ4", "Zlib", "GZip", "Zstd", "Blosc"])
def test_codecs_of_numcodecs_in_format_3(name: str, tmp_path: Path) -> None:
    import zarr.codecs.numcodecs as more

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in no specification
        array = make(tmp_path / "x", {"compressors": getattr(more, name)()})
    expected = np.arange(90, dtype="i4").reshape(10, 9)
    array[...] = expected
    out = np.empty_like(expected)
    ours(array).read(whole((10, 9)), out)
    same(out, expected)
    ours(array).write(whole((10, 9)), -expected)
    same(np.asarray(array[...]), -expected)


@pytest.mark.parametrize("options", [{}, {"shards": (8, 8)}])
def test_a_region_that_cuts_a_chunk_or_shard_is_left_to_zarr(options: dict[str, Any], tmp_path: Path) -> None:
    array = make(tmp_path / "x", options)
    assert not ours(array).write((slice(0, 6), slice(0, 9)), np.ones((6, 9), "i4"))
    assert not ours(array).write((slice(2, 8), slice(0, 9)), np.ones((6, 9), "i4"))
    assert not [*(tmp_path / "x").rglob("c/*/*")]


DAMAGED = [
    NO_CODEC,
    {},
    {"compressors": codecs.GzipCodec()},
    {"compressors": codecs.BloscCodec(cname="lz4", shuffle="shuffle")},
    {"compressors": codecs.Crc32cCodec()},
    CHECKED,
    {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    {"zarr_format": 2, "compressors": numcodecs.Zlib()},
]


def damaged(tmp_path: Path, options: dict[str, Any]) -> tuple[Any, Path, np.ndarray]:
    array = make(tmp_path / "x", options, (8, 8))
    expected = np.random.default_rng(0).integers(0, 1 << 30, (8, 8)).astype("i4")
    array[...] = expected
    return array, tmp_path / "x" / array.metadata.encode_chunk_key((1, 0)), expected


@pytest.mark.parametrize("options", DAMAGED)
def test_a_truncated_chunk_is_an_error_wherever_it_ends(options: dict[str, Any], tmp_path: Path) -> None:
    _, path, expected = damaged(tmp_path, options)
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(ReadError) as caught:
            read(tmp_path / "x")
        assert str(path.relative_to(tmp_path / "x")) in str(caught.value)
        assert caught.value.path == str(tmp_path / "x")
        assert caught.value.region == whole((8, 8))
        assert caught.value.__cause__ is not None
    path.write_bytes(raw)
    same(read(tmp_path / "x"), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": codecs.Crc32cCodec()},
        CHECKED,
        {"compressors": [codecs.Crc32cCodec(), codecs.GzipCodec(), codecs.Crc32cCodec()]},
        {"compressors": codecs.ZstdCodec(checksum=True)},
        {"compressors": codecs.GzipCodec()},
        {"zarr_format": 2, "compressors": numcodecs.Zlib()},
    ],
    ids=str,
)
def test_a_flipped_bit_never_changes_a_value_unseen(options: dict[str, Any], tmp_path: Path) -> None:
    _, path, expected = damaged(tmp_path, options)
    raw = path.read_bytes()
    errors = 0
    for place in range(len(raw)):
        bad = bytearray(raw)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        try:
            same(read(tmp_path / "x"), expected)  # a header may hold a time, or a bit that nobody asks for
        except ReadError:
            errors += 1
    assert errors >= len(raw) - 16


@pytest.mark.parametrize("options", DAMAGED)
@pytest.mark.parametrize("side", [3, 5, 700])
def test_a_chunk_of_another_size_is_an_error(options: dict[str, Any], side: int, tmp_path: Path) -> None:
    _, path, _ = damaged(tmp_path, options)
    shape = (side, side)
    other = create(tmp_path / "y", {"shape": shape, "chunks": shape, "dtype": "i4"} | options)
    other[...] = np.ones(shape, "i4")
    path.write_bytes((tmp_path / "y" / other.metadata.encode_chunk_key((0, 0))).read_bytes())
    with pytest.raises(ReadError, match=r"bytes|too small"):
        read(tmp_path / "x")


def test_a_chunk_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    _, path, _ = damaged(tmp_path, {})
    path.unlink()
    path.mkdir()
    with pytest.raises(ReadError):
        read(tmp_path / "x")


def test_an_error_of_the_system_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(tmp_path, {})

    def failing(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("chunkflow.stores.kvstore.folder.read_file", failing)
    with pytest.raises(ReadError, match="chunk c/0/0: Input/output error") as caught:
        read(tmp_path / "x")
    assert caught.value.errno == 5


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("longer", [False, True])
def test_a_chunk_may_be_replaced_as_it_is_read_by_the_run_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longer: bool, own: bool
) -> None:
    x = np.random.default_rng(0).integers(0, 9, (8, 8), "i4")
    new = x if longer else np.zeros_like(x)
    for name, content in (("x", x % 2), ("y", new)):
        zarr.create_array(tmp_path / name, data=content, chunks=(8, 8), config={"write_empty_chunks": True})
    paths, asked = [tmp_path / name / "c/0/0" for name in "xy"], list[None]()

    def replacing(path: str, out: np.ndarray, since: int) -> int:
        size = read_file(path, out, since)
        if not asked:
            asked.append(os.replace(paths[1], paths[0]))
            stamped_later(paths[0])
        return size

    monkeypatch.setattr("chunkflow.stores.kvstore.folder.read_file", replacing)
    with closing(open_source(tmp_path / "x")) as source:
        (guard,) = guards_of([source])
        if not own:
            with pytest.raises(ReadError, match="chunk c/0/0: it was changed after the array was opened"):
                source.read(whole(x.shape), np.empty_like(x))
            return
        guard.release()  # as where the run itself writes to the array
        source.read(whole(x.shape), found := np.empty_like(x))
        same(found, new)


@pytest.mark.parametrize("budget", [None, "64 kB"])
def test_lanes_keep_memory_for_the_chunks_of_an_only_encoded_array(
    budget: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[int] = []

    class Counted(Kept):
        def room(self, nbytes: int) -> np.ndarray:
            if threading.current_thread() is not threading.main_thread():  # which only tries a block
                rooms.append(nbytes)
            return super().room(nbytes)

    x = np.random.default_rng(0).integers(0, 1 << 30, (64, 2048), "i4")  # its chunks are equally long, encoded
    array = zarr.create_array(
        tmp_path / "x", shape=x.shape, chunks=(1, 2048), dtype=x.dtype, compressors=codecs.ZstdCodec()
    )
    array[...] = x
    monkeypatch.setattr("chunkflow.stores.kvstore.folder.kept", counted := Counted())
    monkeypatch.setattr("chunkflow.stores.caches.fetch_buffer.kept", counted)
    options: dict[str, Any] = {"device": "cpu", "budget": budget}
    assert cf.sum(array, **options) == x.sum()
    assert 0 < len(rooms) < 16  # each thread's first
    assert counted.memory is None
    rooms.clear()
    same(cf.map(np.negative, array, out=tmp_path / "y.zarr", **options)[...], -x)
    assert len(rooms) >= len(x)  # else it would be there while a result is encoded


def test_chunks_of_all_arrays_are_fetched_into_one_memory_where_a_thread_keeps_it(tmp_path: Path) -> None:
    def fetched() -> list[np.ndarray]:
        return [Folder(str(tmp_path)).fetch(name, lambda size: None) for name in "xy"]

    for name in "xy":
        (tmp_path / name).write_bytes(bytes(1000))
    assert not np.shares_memory(*fetched())
    with keeping(Kept()):
        assert np.shares_memory(*fetched())  # or it would keep as much for each of the arrays
    assert kept.memory is None


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads")
def test_a_file_is_opened_again_after_a_signal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")  # whoever opens it may have to wait for a writer
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(read_file(str(tmp_path / "x"), np.empty(8, "u1"))))
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        thread.start()
        time.sleep(0.1)
        signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
        time.sleep(0.1)
        writer = os.open(tmp_path / "x", os.O_RDWR | os.O_NONBLOCK)
        thread.join()
        os.close(writer)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [0]


def test_minus_zero_is_not_taken_for_an_empty_chunk(tmp_path: Path) -> None:
    x = np.full((8, 8), -0.0)
    z = cf.map(lambda a: a, x, out=tmp_path / "z.zarr", device="cpu")
    assert np.signbit(z[...]).all()
