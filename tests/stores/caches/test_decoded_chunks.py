"""Chunks larger than the slots of pinned memory, or than blocks: none is decoded twice, or read whole for a part."""

from __future__ import annotations

import itertools
import math
import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st
from support.devices import MODES, machine
from support.hdf5files import save
from support.zarrarrays import modest, same

import chunkflow as cf
from chunkflow.core.grid import Shape
from chunkflow.devices import rates
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.devices.protocol import Edge
from chunkflow.devices.race_detector import ClockDevice
from chunkflow.engine.staged import workers
from chunkflow.errors import BudgetError, RaceError, ReadError
from chunkflow.planner.ring_size import rate_of
from chunkflow.planner.transfer_cut import Cut
from chunkflow.stores import open_source
from chunkflow.stores.caches import decoded_chunks
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.codecs.chain import CodecChain
from chunkflow.stores.hdf5.filters import FilterPipeline
from chunkflow.stores.zarr import chunks as zarrchunks
from chunkflow.testing import filled

SHAPE, CHUNKS = (40, 16, 16), (16, 16, 16)
SMALL = 4 << 10
"""Bytes of pinned memory, less than a chunk has."""


@pytest.fixture(autouse=True)
def chunks_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_chunks, "LARGE", SMALL)
    monkeypatch.setattr(zarrchunks, "PARTED", SMALL)


def staged(mode: str, threads: int = 3, drop: Edge | None = None, whole: int = 0) -> ClockDevice:
    small = replace(machine(staged=True), host_limit=1 << 16, piece=1 << 10, whole=whole, threads=threads)
    device = NumpyDevice(machine=small, staged=True, mode=mode, poison=True)  # type: ignore[arg-type]
    return ClockDevice(device, drop=drop)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A thread for each time that a chunk is decoded."""
    found: list[int] = []
    for decoder in (FilterPipeline, CodecChain):

        def counted(self: Any, *args: Any, decode: Any = decoder.decode, **kwargs: Any) -> None:  # type: ignore[attr-defined]
            found.append(threading.get_ident())
            decode(self, *args, **kwargs)

        monkeypatch.setattr(decoder, "decode", counted)
    return found


def stored(kind: str, folder: Path, x: np.ndarray, chunks: Shape) -> str:
    if kind == "hdf5":
        return save(folder / "u.h5", x, chunks=chunks, compression="gzip")
    options: Any = {"compressors": "auto", "zarr_format": int(kind[-1])}
    zarr.create_array(folder / "u.zarr", data=x, chunks=chunks, **options)
    return str(folder / "u.zarr")


kinds = pytest.mark.parametrize("kind", ["zarr 2", "zarr 3", "hdf5"])


@pytest.mark.parametrize("mode", MODES)
@kinds
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [(SHAPE, CHUNKS), ((16, 64, 64), (16, 16, 16)), ((64, 48, 17), (64, 16, 4)), ((20, 7, 160), (20, 7, 63))],
)
def test_each_is_decoded_once_and_goes_through_slots_in_parts(
    kind: str, shape: Shape, chunks: Shape, mode: str, tmp_path: Path, decoded: list[int]
) -> None:
    x = filled(shape, "f4")
    path = stored(kind, tmp_path, x, chunks)
    plan = cf.explain(cf.map, np.negative, path, device=staged(mode), budget="1MB")
    assert plan.ring_in is not None
    assert plan.ring_in.slot_bytes <= 1 << 10 < plan.ring_in.room == 4 * math.prod(chunks)
    decoded.clear()
    same(cf.map(np.negative, path, device=staged(mode), budget="1MB"), -x)
    assert len(decoded) == math.prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("whole", [0, 1 << 14])
@kinds
def test_each_is_decoded_once_for_blocks_that_cut_it(
    kind: str, whole: int, mode: str, tmp_path: Path, decoded: list[int]
) -> None:
    """Also if it goes through a slot as one."""
    x = filled(SHAPE, "f4")
    path = stored(kind, tmp_path, x, CHUNKS)
    options: Any = {"device": staged(mode, threads=1, whole=whole), "chunks": (5, 16, 16), "budget": "1MB"}
    assert cf.explain(cf.map, np.negative, path, **options).traffic.read == x.nbytes, "which the plan knows"
    decoded.clear()
    # Of several threads one may be so late that two further chunks have been begun before it asks for its part.
    same(cf.map(np.negative, path, **options), -x)
    assert len(decoded) == 3


@kinds
@pytest.mark.parametrize("whole", [0, 1 << 14])
def test_two_are_kept_however_many_arrays_are_put_together(
    kind: str, whole: int, tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, made, kept = filled((16 * 8, 16, 16), "f4"), list[DecodedChunks](), list[int]()
    paths = []
    for n in range(8):
        (folder := tmp_path / str(n)).mkdir()
        paths.append(stored(kind, folder, x[16 * n : 16 * (n + 1)], CHUNKS))

    def get(self: DecodedChunks, *args: Any, real: Any = DecodedChunks.get) -> Any:
        found = real(self, *args)
        made.append(self)
        kept.append(sum(len(one._chunks) for one in {id(one): one for one in made}.values()))
        return found

    monkeypatch.setattr(DecodedChunks, "get", get)
    lazy = cf.map(np.negative, cf.concatenate([cf.open(path) for path in paths]), chunks=(4, 16, 16))
    same(lazy.compute(device=staged("eager", threads=1, whole=whole), budget="1MB"), -x)
    assert len(kept) == 8 * 4
    assert max(kept) == decoded_chunks.KEPT


@pytest.mark.parametrize("edge", [Edge.REFILL, Edge.OVERWRITE, Edge.UPLOADED])
def test_the_race_detector_sees_what_goes_through_buffers_in_parts(edge: Edge, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "u.zarr", data=filled((320, 16, 16), "f4"), chunks=CHUNKS)
    with pytest.raises(RaceError):
        cf.map(np.negative, tmp_path / "u.zarr", device=staged("lazy", drop=edge), budget="300kB")


@pytest.mark.parametrize("mode", MODES)
def test_parts_have_room_to_land_beside_chunks_that_fit_a_slot(mode: str, tmp_path: Path) -> None:
    """Slots are as large as the others' pieces, and so is what goes through them, and where it lands."""
    x, device = filled((64, 64), "f8"), staged(mode)
    device.machine = replace(device.machine, piece=800)
    paths = []
    for name, chunks in (("a", (32, 16)), ("b", (6, 64))):
        zarr.create_array(tmp_path / name, data=x, chunks=chunks)
        paths.append(tmp_path / name)
    ring = cf.explain(cf.map, np.add, *paths, device=device, budget="300kB").ring_in
    assert ring is not None
    assert ring.scratch == ring.slot_bytes > 800
    same(cf.map(np.add, *paths, device=device, budget="300kB"), x + x)


def test_no_more_are_decoded_at_once_than_were_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that cut chunks take one of the host's memory for each thread, whatever the threads' rooms are."""
    device = staged("threaded", threads=8)
    device.machine = replace(device.machine, host_limit=3 * (16 << 10))
    x = filled((16, 16, 128), "f4")
    zarr.create_array(tmp_path / "u.zarr", data=x, chunks=CHUNKS)
    for rows in (16, 3, 1):
        ring = cf.explain(cf.map, np.negative, tmp_path / "u.zarr", device=device, chunks=(rows, 16, 128)).ring_in
        assert ring is not None
        assert ring.threads == (3 if rows == 16 else 2)
        same(cf.map(np.negative, tmp_path / "u.zarr", device=device, chunks=(rows, 16, 128)), -x)


def test_rooms_are_given_back_though_an_error_knows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_array(tmp_path / "u.zarr", data=filled(SHAPE, "f4"), chunks=CHUNKS)
    (tmp_path / "u.zarr/c/1/0/0").write_bytes(b"no frame of zstd's")
    advised: list[int] = []

    class Pages(mmap.mmap):
        def madvise(self, *args: int) -> None:
            advised.append(args[0])
            super().madvise(*args)

    monkeypatch.setattr(workers.mmap, "mmap", Pages)
    with pytest.raises(ReadError, match="chunk c/1/0/0") as caught:
        cf.map(np.negative, tmp_path / "u.zarr", device=staged("threaded"), budget="1MB")
    assert caught.value
    assert advised.count(mmap.MADV_DONTNEED) == advised.count(mmap.MADV_HUGEPAGE) > 0


def test_few_threads_have_a_room_for_large_ones(tmp_path: Path) -> None:
    device = staged("eager")
    device.machine = replace(device.machine, host_limit=20 << 10, threads=8)
    zarr.create_array(tmp_path / "u.zarr", data=filled((128, 16, 16), "f4"), chunks=CHUNKS)
    ring = cf.explain(cf.map, np.negative, tmp_path / "u.zarr", device=device).ring_in
    assert ring is not None
    assert (ring.threads, ring.room) == (2, 16 << 10), "never less than two, or nothing is decoded side by side"
    assert ring.nbytes == 2 * (2 * (1 << 10) + (16 << 10))
    for decode, times in ((1e6, 4), (1e30, 1 / rate_of(1 / 4))):
        reads = []
        for threads in (8, 2):
            device.machine = replace(device.machine, decode=decode, threads=threads)
            plan = cf.explain(cf.sum, tmp_path / "u.zarr", device=device)
            reads.append(plan.estimate.stages["read"])
        assert reads[0] == pytest.approx(times * reads[1], rel=0.01), (
            "of eight that read and decode, six would have no room"
        )


def test_memory_of_rooms_is_expected_to_take_time(tmp_path: Path) -> None:
    """Once, however long a run is: no plan counts it. Raw chunks, of which parts are read, need none."""
    x = filled((64, 16, 16), np.dtype("f4"))
    for name, compressors in (("packed", "auto"), ("raw", None)):
        zarr.create_array(tmp_path / f"{name}.zarr", data=x, chunks=(16, 16, 16), compressors=compressors)
    rates = {"piece": 1 << 10, "host_limit": 1 << 20, "threads": 3, "whole": 0}

    def run(name: str, fresh: float) -> Any:
        device = NumpyDevice(machine=replace(machine(staged=True), fresh=fresh, **rates), staged=True)
        (found,) = cf.explain(cf.sum, tmp_path / f"{name}.zarr", device=device, analyze=True).runs
        return found

    (none, some), (raw, still) = ([run(name, fresh) for fresh in (0, 1e3)] for name in ("packed", "raw"))
    assert none.plan.estimate == some.plan.estimate
    assert some.predicted - none.predicted == pytest.approx(3 * x.nbytes / 4 / 1e3), "a room for each thread"
    assert raw.predicted == still.predicted


@given(st.data())
def test_pieces_of_large_raw_ones_are_parts_of_one_each(data: st.DataObject) -> None:
    extents = data.draw(st.tuples(*[st.integers(1, 16)] * 3))
    chunks = data.draw(st.tuples(*[st.integers(1, 8)] * 3))
    order = tuple(data.draw(st.permutations(range(3))))
    region = tuple(slice(a := data.draw(st.integers(0, n - 1)), data.draw(st.integers(a + 1, n))) for n in extents)
    cut = Cut(order, data.draw(st.integers(1, 40)), None, chunks=chunks)
    touched, each = np.zeros([s.stop - s.start for s in region], int), []
    for piece in cut.pieces(region):
        assert piece.size <= cut.limit
        touched[piece.region] += 1
        places = zip(region, piece.region, chunks, strict=True)
        ends = [((s.start + p.start) // c, (s.start + p.stop - 1) // c) for s, p, c in places]
        assert all(first == last for first, last in ends)
        each.append(tuple(first for first, _ in ends))
    assert (touched == 1).all()
    assert len([one for one, _ in itertools.groupby(each)]) == len(set(each)), "one chunk after the other"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sides", [(16, 16, 16), (13, 7, 16)])
def test_of_raw_ones_that_blocks_keep_whole_parts_are_read(
    sides: Shape, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded_chunks, "LARGE", 1 << 30)
    x, path = filled(SHAPE, ">f4"), tmp_path / "u.zarr"
    zarr.create_array(path, data=x, chunks=sides, compressors=None)
    monkeypatch.setattr(zarrchunks, "PARTED", 4 * math.prod(sides))
    whole, fetch = [], CodecChain.fetch
    monkeypatch.setattr(CodecChain, "fetch", lambda *args: (whole.append(args), fetch(*args)))
    plan = cf.explain(cf.map, np.negative, path, device=staged(mode), budget="300kB")
    assert plan.operands[0].chunks == sides
    assert plan.ring_in is not None
    assert plan.ring_in.slot_bytes <= 1 << 10
    assert not plan.ring_in.room
    trial = len(whole)
    same(cf.map(np.negative, path, device=staged(mode), budget="300kB"), -x.astype("f4"))
    assert len(whole) == 2 * trial


def test_on_the_cpu_the_plan_has_room_for_them(tmp_path: Path) -> None:
    """There the budget is of the host's memory: blocks are whole chunks, or it is too small."""
    path, few = str(tmp_path / "u.zarr"), replace(machine(staged=False), host_limit=SMALL)
    x = filled(SHAPE, "f4")
    zarr.create_array(path, data=x, chunks=CHUNKS)
    plan = cf.explain(cf.map, np.negative, path, device=NumpyDevice(machine=few), budget="200kB")
    assert plan.memory.staging >= 4 * 16**3
    with pytest.raises(BudgetError):
        cf.explain(cf.map, np.negative, path, device=NumpyDevice(machine=few), budget="20kB")


@pytest.mark.parametrize("device", ["cpu", *MODES])
@pytest.mark.parametrize("version", [2, 3])
def test_of_raw_ones_parts_are_read(version: int, device: str, tmp_path: Path) -> None:
    x, path = filled((3, 64, 16, 16), ">f4"), str(tmp_path / "u.zarr")
    zarr.create_array(path, data=x, chunks=(1, 64, 16, 16), compressors=None, zarr_format=version)
    options: Any = {"device": "cpu" if device == "cpu" else staged(device), "budget": "40kB"}
    plan = cf.explain(cf.map, np.negative, path, **options)
    assert len(plan.grid) > 3
    assert plan.traffic.read == x.nbytes, "no chunk is read for each of its blocks"
    same(cf.map(np.negative, path, **options), -x.astype("f4"))


@modest
@given(st.data())
def test_a_part_of_a_raw_one_is_what_it_is_of_the_array(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("large")
    shape = data.draw(st.tuples(*[st.integers(20, 40)] * 3))
    sides = data.draw(st.tuples(*[st.integers(14, 40)] * 3))
    dtype, order = data.draw(st.sampled_from(["f4", ">f8", ">i2", "c8"])), data.draw(st.permutations(range(3)))
    version = data.draw(st.sampled_from([2, 3]))
    options: dict[str, Any] = {"zarr_format": version, "compressors": None, "fill_value": 3}
    if version == 2:
        options["order"] = data.draw(st.sampled_from("CF"))
    else:
        options["filters"] = [codecs.TransposeCodec(order=tuple(order))]
    x = filled(shape, dtype)
    array = zarr.create_array(folder / "u.zarr", shape=shape, chunks=sides, dtype=dtype, **options)
    array[: shape[0] // 2] = x[: shape[0] // 2]
    expected = np.asarray(array[...])
    source = open_source(folder / "u.zarr")
    assert (source.spec.chunks is None) == (np.prod(sides) * x.itemsize >= SMALL)
    region = tuple(slice(a := data.draw(st.integers(0, n - 1)), data.draw(st.integers(a + 1, n))) for n in shape)
    out = np.empty([s.stop - s.start for s in region], x.dtype.newbyteorder("="))
    source.read(region, out)
    same(out, expected[region].astype(out.dtype))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_raw_one_of_another_length_is_an_error(change: int, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "u.zarr", data=filled(SHAPE, "f4"), chunks=CHUNKS, compressors=None)
    os.truncate(tmp_path / "u.zarr/c/1/0/0", 4 * 16**3 + change)
    source = open_source(tmp_path / "u.zarr")
    with pytest.raises(ReadError, match=r"chunk c/1/0/0.* bytes"):
        source.read((slice(17, 18), slice(0, 16), slice(0, 16)), np.empty((1, 16, 16), "f4"))


def test_a_damaged_one_is_an_error_for_each_part(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "u.zarr", data=filled(SHAPE, "f4"), chunks=CHUNKS)
    (tmp_path / "u.zarr/c/1/0/0").write_bytes(b"no frame of zstd's")
    source, out = open_source(tmp_path / "u.zarr"), np.empty((1, 16, 16), "f4")
    for _ in range(2):
        with pytest.raises(ReadError, match="chunk c/1/0/0"):
            source.read((slice(17, 18), slice(0, 16), slice(0, 16)), out)
    source.read((slice(3, 4), slice(0, 16), slice(0, 16)), out)


def test_threads_that_want_one_wait_for_the_one_that_decodes() -> None:
    lately, made = DecodedChunks(), []

    def decode() -> np.ndarray:
        time.sleep(0.01)
        made.append(threading.get_ident())
        return np.arange(len(made))

    with ThreadPoolExecutor(4) as threads:
        found = [job.result() for job in [threads.submit(lately.get, (0,), decode) for _ in range(8)]]
    assert len(made) == 1
    assert all(array is found[0] for array in found)
    for index in ((1,), (0,), (2,)):
        lately.get(index, decode)
    assert lately.get((0,), decode) is found[0]
    assert len(made) == 3
    lately.get((1,), decode)
    assert len(made) == 4, "two are kept, those that were wanted last"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            lately.get((3,), lambda: np.arange(1 // 0))
    lately.get((1,), decode)
    assert len(made) == 4, "what is not there takes no other's place"
    lately.clear()
    lately.get((1,), decode)
    assert len(made) == 5


@pytest.mark.gpu
@pytest.mark.parametrize("codec", [None, codecs.ZstdCodec(), codecs.BloscCodec(cname="lz4"), codecs.GzipCodec()])
@pytest.mark.parametrize("sides", [(24, 96, 90), (17, 50, 90), (60, 33, 31)])
@pytest.mark.parametrize("rows", [None, 7])
def test_on_a_gpu(codec: Any, sides: Shape, rows: int | None, tmp_path: Path) -> None:
    """Whether the device decodes them or the host, and whether blocks cut them or not."""
    from chunkflow.devices.cuda.device import CupyDevice

    device = CupyDevice(0, machine=replace(rates.gpu(), piece=32 << 10, whole=0, apart=32 << 10, threads=3))
    x = filled((60, 96, 90), "f4")
    zarr.create_array(tmp_path / "u.zarr", data=x, chunks=sides, compressors=codec)
    options: Any = {"device": device, "budget": "500MB", "chunks": rows and (rows, -1, -1)}
    plan = cf.explain(cf.map, np.negative, tmp_path / "u.zarr", **options)
    assert plan.ring_in is not None
    assert plan.ring_in.slot_bytes <= 32 << 10
    for _ in range(3):
        same(cf.map(np.negative, tmp_path / "u.zarr", **options), -x)
