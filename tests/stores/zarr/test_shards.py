"""Shards that are read and written here: what is fetched, what is kept, and what is refused."""

from __future__ import annotations

import os
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st
from support.zarrarrays import arrays, create, fresh, modest, ours, same, values

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.errors import ReadError, WriteError
from chunkflow.stores import open_source, open_target
from chunkflow.stores.codecs.crc32c import CHECKSUM
from chunkflow.stores.kvstore.folder import Folder
from chunkflow.stores.protocol import guards_of
from chunkflow.stores.zarr.shards import MISSING, RUN, Indices, ShardChunk, runs

SHARD = Path("c/0/0")


def make(path: Path, location: str = "end", **options: Any) -> tuple[Any, np.ndarray]:
    """One shard of four chunks of 4 x 4 elements."""
    array = zarr.create_array(
        path,
        **{
            "shape": (8, 8),
            "chunks": (4, 4),
            "shards": {"shape": (8, 8), "index_location": location},
            "dtype": "i4",
        }
        | options,
    )
    expected = np.random.default_rng(0).integers(1, 1 << 30, array.shape).astype("i4")
    array[...] = expected
    return array, expected


def read(path: Path, shape: tuple[int, ...] = (8, 8)) -> np.ndarray:
    out = np.empty(shape, "i4")
    open_source(path).read(whole(shape), out)
    return out


def patched(path: Path, number: int, entry: tuple[int, int], location: str = "end") -> None:
    """Change a chunk's entry in the index, whose checksum is right again."""
    raw = bytearray(path.read_bytes())
    start = 0 if location == "start" else len(raw) - 68
    index = np.frombuffer(raw[start : start + 64], "<u8").reshape(4, 2).copy()
    index[number] = entry
    body = index.tobytes()
    assert CHECKSUM is not None
    raw[start : start + 68] = body + CHECKSUM(body).to_bytes(4, "little")
    path.write_bytes(raw)


@given(data=st.data())
@modest
def test_each_reads_what_the_other_writes(tmp_path: Path, data: st.DataObject) -> None:
    options = data.draw(arrays(sharded=True))
    expected = values(options)
    theirs, mine = (create(fresh(tmp_path), options) for _ in range(2))
    theirs[...] = expected
    assert ours(mine).write(whole(expected.shape), expected)
    for array in (theirs, mine):
        out = np.empty_like(expected)
        ours(array).read(whole(expected.shape), out)
        same(out, expected)
        same(np.asarray(array[...]).astype(expected.dtype), expected)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("compressors", [None, codecs.ZstdCodec()])
def test_a_truncated_shard_is_an_error_wherever_it_ends(location: str, compressors: Any, tmp_path: Path) -> None:
    _, expected = make(tmp_path / "x", location, compressors=compressors)
    path = tmp_path / "x" / SHARD
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(ReadError, match="shard c/0/0") as caught:
            read(tmp_path / "x")
        assert caught.value.path == str(tmp_path / "x")
    path.write_bytes(raw)
    same(read(tmp_path / "x"), expected)


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_flipped_bit_of_the_index_is_an_error(location: str, tmp_path: Path) -> None:
    make(tmp_path / "x", location)
    path = tmp_path / "x" / SHARD
    raw = path.read_bytes()
    start = 0 if location == "start" else len(raw) - 68
    for place in range(start, start + 68):
        bad = bytearray(raw)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(ReadError, match=r"its index: the checksum"):
            read(tmp_path / "x")


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ((10**6, 64), "outside"),
        ((68, 10**12), "outside"),
        ((MISSING, 64), "outside"),
        ((68, MISSING), "outside"),
        ((1 << 63, 1 << 63), "outside"),
        ((68, 60), "60 bytes.*64"),
        ((68, 0), "0 bytes"),
        ((68, 68), "68 bytes"),
    ],
)
def test_an_index_that_points_elsewhere_is_an_error(
    entry: tuple[int, int], why: str, location: str, tmp_path: Path
) -> None:
    _, expected = make(tmp_path / "x", location, compressors=None)
    patched(tmp_path / "x" / SHARD, 1, entry, location)
    with pytest.raises(ReadError, match=rf"shard c/0/0: chunk \(0, 1\).*{why}"):
        read(tmp_path / "x")
    out = np.empty((8, 4), "i4")  # the others are read all the same
    open_source(tmp_path / "x").read((slice(0, 8), slice(0, 4)), out)
    same(out, expected[:, :4])


@pytest.mark.parametrize("location", ["start", "end"])
def test_the_index_itself_is_no_chunk(location: str, tmp_path: Path) -> None:
    make(tmp_path / "x", location, compressors=None)
    path = tmp_path / "x" / SHARD
    start = 0 if location == "start" else path.stat().st_size - 68
    patched(path, 2, (start, 64), location)
    with pytest.raises(ReadError, match="outside"):
        read(tmp_path / "x")


def test_a_chunk_that_is_missing_in_its_shard_is_the_fill_value(tmp_path: Path) -> None:
    _, expected = make(tmp_path / "x", fill_value=9)
    patched(tmp_path / "x" / SHARD, 3, (MISSING, MISSING))
    expected[4:, 4:] = 9
    same(read(tmp_path / "x"), expected)
    same(np.asarray(zarr.open_array(tmp_path / "x", mode="r")[...]), expected)


def test_a_chunk_of_another_size_is_an_error(tmp_path: Path) -> None:
    array, _ = make(tmp_path / "x")
    chain = ours(array).chain
    large = chain.steps[0].encode(bytes(10**6))
    path = tmp_path / "x" / SHARD
    raw = path.read_bytes()
    path.write_bytes(raw[:-68] + large + raw[-68:])
    patched(path, 0, (len(raw) - 68, len(large)))
    with pytest.raises(ReadError, match=r"chunk \(0, 0\).*1000000 bytes.*64"):
        read(tmp_path / "x")


def test_a_checksum_of_a_chunk_in_a_shard(tmp_path: Path) -> None:
    make(tmp_path / "x", compressors=[codecs.ZstdCodec(), codecs.Crc32cCodec()])
    path = tmp_path / "x" / SHARD
    raw = bytearray(path.read_bytes())
    raw[20] ^= 4
    path.write_bytes(raw)
    with pytest.raises(ReadError, match=r"shard c/0/0: chunk .*checksum"):
        read(tmp_path / "x")


def test_an_index_without_a_checksum_and_one_that_is_big_endian(tmp_path: Path) -> None:
    expected = np.arange(64, dtype="i4").reshape(8, 8)
    for number, endian in enumerate(["little", "big"]):
        array = zarr.create_array(
            tmp_path / str(number),
            shape=(8, 8),
            chunks=(8, 8),
            dtype="i4",
            serializer=codecs.ShardingCodec(chunk_shape=(4, 4), index_codecs=[codecs.BytesCodec(endian=endian)]),
            compressors=None,
        )
        array[...] = expected
        assert open_source(array).spec.storage.how == "directly: raw, in shards of (8, 8)"
        same(read(tmp_path / str(number)), expected)
        assert ours(array).write(whole((8, 8)), -expected)
        same(np.asarray(array[...]), -expected)


def test_an_index_is_read_once_and_again_when_the_shard_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, expected = make(tmp_path / "x")
    fetched: list[int] = []
    preadv = os.preadv

    def counted(fd: int, buffers: Any, offset: int) -> int:
        fetched.append(sum(len(b) for b in buffers))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    source = open_source(array)
    out = np.empty((4, 4), "i4")
    for corner in ((0, 0), (0, 4), (4, 0), (4, 4)):
        region = tuple(slice(i, i + 4) for i in corner)
        source.read(region, out)
        same(out, expected[region])
    assert fetched.count(68) == 1
    assert len(fetched) == 5
    fetched.clear()
    out = np.empty((8, 8), "i4")
    source.read(whole((8, 8)), out)
    assert len(fetched) == 1  # the four lie side by side
    for guard in guards_of([source]):
        guard.release()  # as where the run itself writes to the array
    array[...] = expected[::-1]
    source.read(whole((8, 8)), out)
    same(out, expected[::-1].copy())


def test_one_chunk_of_a_large_shard_takes_little_memory(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "x", shape=(1 << 22,), chunks=(1 << 14,), shards=(1 << 22,), dtype="f4", compressors=None
    )
    array[:] = 1
    source, out = open_source(array), np.empty(1 << 14, "f4")
    every = np.empty(1 << 22, "f4")
    for region, target, most in (((slice(1 << 14, 1 << 15),), out, 64 << 10), (whole(every.shape), every, 2 * RUN)):
        tracemalloc.start()
        source.read(region, target)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (target == 1).all()
        assert peak < most


@given(st.lists(st.tuples(st.integers(0, 4 * RUN), st.integers(1, 2 * RUN)), max_size=8))
def test_runs_hold_every_chunk_once_and_are_bounded(ranges: list[tuple[int, int]]) -> None:
    parts = [ShardChunk(offset, length, (), (), ()) for offset, length in sorted(ranges)]
    found = list(runs(parts, Folder.gap))
    assert [part for run in found for part in run] == parts
    for run in found:
        assert len(run) == 1 or max(p[0] + p[1] for p in run) - run[0][0] <= RUN
        end = run[0][0] + run[0][1]
        for offset, length, *_ in run[1:]:
            assert offset <= end + Folder.gap
            end = max(end, offset + length)


def test_indices_are_forgotten_beyond_the_limit() -> None:
    known, loaded = Indices(100), []

    def asked(shard: int, stamp: int = 1, size: int = 5) -> bool:
        """Whether an index (of 40 bytes, as a rule) had to be loaded."""
        before = len(loaded)
        known.get((shard,), stamp, lambda: loaded.append(shard) or np.zeros(size, np.uint64))  # type: ignore[func-returns-value]
        return len(loaded) > before

    assert all(asked(shard) for shard in range(3))
    assert not asked(1)
    assert asked(3)  # which drops 2, used longest ago
    assert asked(2)
    assert asked(2, stamp=2)
    assert asked(4, size=1000)  # one is kept, however large
    assert not asked(4, size=1000)
    assert asked(3)


def test_an_index_is_loaded_once_for_all_who_wait_and_again_after_a_failure() -> None:
    known, begun = Indices(), threading.Barrier(5)
    loaded: list[int] = []

    def failing() -> np.ndarray:
        raise TimeoutError("slow")

    def load() -> np.ndarray:
        loaded.append(1)
        time.sleep(0.02)
        return np.zeros(5, np.uint64)

    def get() -> np.ndarray:
        begun.wait()
        return known.get((0,), 1, load)

    with pytest.raises(TimeoutError):
        known.get((0,), 1, failing)
    with ThreadPoolExecutor(5) as pool:
        found = [future.result() for future in [pool.submit(get) for _ in range(5)]]
    assert loaded == [1]
    assert all(index is found[0] for index in found)


@pytest.mark.skipif(not hasattr(zarr.Array, "config"), reason="zarr before 3.1.6 does not say what is kept")
def test_a_shard_of_fill_values_is_no_file(tmp_path: Path) -> None:
    array, _ = make(tmp_path / "x", fill_value=3)
    assert ours(array).write(whole((8, 8)), np.full((8, 8), 3, "i4"))
    assert not (tmp_path / "x" / SHARD).exists()
    assert not [*(tmp_path / "x").rglob("*.partial")]
    same(np.asarray(array[...]), np.full((8, 8), 3, "i4"))


def test_a_shard_whose_writing_fails_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, expected = make(tmp_path / "x")
    target = open_target(array)
    sink = target.open(target.describe((8, 8), np.dtype("i4"), None))

    def failing(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("chunkflow.stores.zarr.shards.append", failing)
        with pytest.raises(WriteError, match="No space"):
            sink.write(whole((8, 8)), -expected)
    assert not [*(tmp_path / "x").rglob("*.partial")]
    same(read(tmp_path / "x"), expected)


def test_from_shards_to_shards_in_place(tmp_path: Path) -> None:
    array, expected = make(tmp_path / "x", shape=(20, 24))
    cf.map(np.negative, array, out=array, device="cpu")
    same(read(tmp_path / "x", (20, 24)), -expected)
    total = cf.sum(tmp_path / "x", device="cpu")
    assert int(total) == -int(expected.sum(dtype="i8"))
