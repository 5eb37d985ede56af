"""The compiled loops, with the CPU in the place of a GPU: the same results, waits and errors as without them."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.changes import once, replaced
from support.compiled import BUILT, CompiledDevice
from support.devices import at_work, machine, same
from support.positions import at_positions

import chunkflow as cf
from chunkflow.core import pieces as _pieces
from chunkflow.core.pieces import pieces, placed
from chunkflow.core.spec import ByteRun
from chunkflow.devices import job_queue
from chunkflow.devices import mover as moving
from chunkflow.devices.cpu.device import NumpyPool
from chunkflow.devices.protocol import Edge, HostBuffer
from chunkflow.engine.staged import workers
from chunkflow.errors import DeviceError, ReadError
from chunkflow.stores.file.strided import FileSource, Strided
from chunkflow.stores.memory import ArraySink, ArraySource
from chunkflow.stores.protocol import Unviewed, run_of
from chunkflow.stores.strides import swapped
from chunkflow.stores.views.sliced import SlicedSource
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.system.thread_pool import PooledThread
from chunkflow.testing import CountingSource, filled
from chunkflow.testing.stores import moved_by

compiled = pytest.mark.skipif(not BUILT, reason="built without a C compiler")
OTHER = np.dtype("f4").newbyteorder("S")


def device(
    mode: str = "threaded",
    *,
    kind: type[CompiledDevice] = CompiledDevice,
    apart: int = 0,
    piece: int = 4096,
    **options: Any,
) -> CompiledDevice:
    return kind(mode=mode, poison=True, machine=machine(staged=True, piece=piece, apart=apart), **options)


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many shares there were each way, and how often Python called each loop."""
    made = {"up": 0, "down": 0, "feed": 0, "drain": 0, "finish": 0}
    for name in ("job", "feed", "drain", "finish"):
        loop = getattr(moving.staging, name)

        def call(*args: Any, name: str = name, loop: Any = loop) -> Any:
            made[name if name != "job" else "up" if len(args[-1]) else "down"] += 1
            return loop(*args)

        monkeypatch.setattr(moving.staging, name, call)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    return counted(monkeypatch)


@compiled
@pytest.mark.parametrize("mode", ["threaded", "lazy"])
@pytest.mark.parametrize("source", ["memory", "memmap", "fortran", "swapped", "swapped memmap"])
@pytest.mark.parametrize("sink", ["memory", "npy", "memmap", "swapped", "swapped memmap"])
def test_a_map_goes_through_them(mode: str, source: str, sink: str, calls: dict[str, int], tmp_path: Path) -> None:
    x = filled((90, 70, 5), "f4")
    if "swapped" in source:
        x = x.astype(OTHER)
    if source == "fortran":
        x = np.asfortranarray(x)
    if "memmap" in source:
        np.save(tmp_path / "x.npy", x)
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
    out: Any = {"memory": None, "npy": tmp_path / "y.npy"}.get(sink)
    if "memmap" in sink:
        out = np.lib.format.open_memmap(tmp_path / "z.npy", "w+", OTHER if "swapped" in sink else "f4", x.shape)
    elif sink == "swapped":
        out = np.full(x.shape, np.nan, OTHER)
    got = cf.map(np.negative, x, out=out, device=device(mode), budget=100_000)
    np.testing.assert_array_equal(np.load(got) if isinstance(got, str | Path) else got, -np.asarray(x))
    if source != "fortran" or sink in ("memory", "npy"):  # whose blocks can be runs in one of the two only
        assert calls["up"] > 4
        assert calls["down"] > 4


@compiled
@given(
    shape=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    row=st.integers(60, 200),
    data=st.data(),
)
@pytest.mark.parametrize("kind", ["memory", "mapped", "positions"])
def test_tiles_go_through_them(kind: str, shape: tuple[int, ...], row: int, data: st.DataObject) -> None:
    """Blocks that are rows in the store, of arrays that have gaps themselves."""
    whole = filled((*[n + 2 for n in shape], row + 7), "f8")
    inner = (*[slice(1, n + 1) for n in shape], slice(3, row + 3))
    chunks = (*(data.draw(st.integers(1, n)) for n in shape), data.draw(st.integers(32, row)))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr("chunkflow.stores.file.strided_sink.FEW_CORES", 0)
        patch.setattr("chunkflow.stores.file.strided.LEAST_READ", 1 if kind == "positions" else 1 << 30)
        patch.setattr("chunkflow.stores.file.strided_sink.LEAST_READ", 1 if kind == "positions" else 1 << 30)
        if kind == "positions":
            at_positions(patch)
        x, y = whole.copy(), np.zeros_like(whole)
        if kind != "memory":
            for name, array in (("x", x), ("y", y)):
                array.tofile(f"{directory}/{name}")
            x, y = (np.memmap(f"{directory}/{name}", "f8", "r+", shape=whole.shape) for name in "xy")
        used = device("lazy")
        cf.map(
            np.negative, x[inner], out=y[inner], chunks=chunks, device=used, budget=1_000_000, dtype="f8", workspace=0
        )
        assert used.shares
        want = np.zeros_like(whole)
        want[inner] = -whole[inner]
        same(np.asarray(y), want)


@compiled
@pytest.mark.parametrize("mode", ["eager", "threaded", "lazy"])
@given(data=st.data())
def test_chunks_are_decoded_into_slots_and_spread_on_the_device(mode: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    codec = data.draw(st.sampled_from([None, zarr.codecs.ZstdCodec(), zarr.codecs.BloscCodec(cname="lz4")]))
    x, used, moved = filled(shape, "f4"), device(mode), []
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        array = zarr.create_array(f"{directory}/x", shape=shape, chunks=chunks, dtype="f4", compressors=codec)
        array[...] = x
        out = zarr.create_array(f"{directory}/y", shape=shape, chunks=chunks, dtype="f4", compressors=codec)
        for name in ("send", "fetch"):
            call = getattr(moving.Mover, name)
            patch.setattr(moving.Mover, name, lambda *args, call=call, name=name: (moved.append(name), call(*args)))
        cf.map(np.negative, array, out=out, device=used, budget=1_000_000, dtype="f4", workspace=0)
        same(out[...], -x)
    if math.prod(shape) > math.prod(chunks):
        assert {"send", "fetch"} <= {*moved, *(["send"] if codec is None else [])}  # whole raw chunks go as shares


@compiled
@pytest.mark.parametrize("mode", ["eager", "threaded", "lazy"])
@given(data=st.data())
def test_raw_chunks_are_read_as_files(mode: str, data: st.DataObject) -> None:
    """Some of which are not there, or are at the array's edge, in any order of axes and bytes."""
    shape = data.draw(st.lists(st.integers(1, 6), max_size=4).map(tuple))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    order = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from(["i1", "<f4", ">f4", ">c16"]))
    x, codecs = filled(shape, dtype), zarr.codecs
    endian = codecs.BytesCodec(endian="big" if dtype.startswith(">") else "little")
    budget, apart = data.draw(st.sampled_from([20_000, 1_000_000])), data.draw(st.sampled_from([0, 1, 100]))
    piece = data.draw(st.sampled_from([4096, 64, 8]))
    with tempfile.TemporaryDirectory() as directory:
        array = zarr.create_array(
            f"{directory}/ä {dtype}",
            shape=shape,
            chunks=chunks,
            dtype=dtype.lstrip("<>"),
            filters=[codecs.TransposeCodec(order=order)] if shape else None,
            serializer=endian,
            compressors=None,
            fill_value=7,
        )
        array[...] = x
        for file in sorted(Path(directory).rglob("c/**/*") if shape else []):
            if file.is_file() and data.draw(st.integers(0, 5)) == 0:
                file.unlink()
        expected = array[...]
        used = device(mode, apart=apart, piece=piece)
        same(cf.map(np.negative, array, device=used, budget=budget, workspace=0), -expected)


@compiled
@pytest.mark.parametrize("mode", ["threaded", "lazy"])
def test_raw_chunks_that_are_changed_meanwhile_are_refused(mode: str, tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", data=filled((512, 64), "f8"), chunks=(8, 64), compressors=None)
    change = once(lambda: replaced(tmp_path / "x/c/63/0"))
    with pytest.raises(ReadError, match="chunk c/63/0: it was changed after the array was opened"):
        cf.map(change, array, device=device(mode), budget=20_000)


@compiled
@pytest.mark.parametrize("mode", ["eager", "threaded", "lazy"])
@given(data=st.data())
def test_raw_chunks_are_written_as_files(mode: str, data: st.DataObject) -> None:
    """The very files that zarr would write, none of which is there for chunks of the fill value alone."""
    shape = data.draw(st.lists(st.integers(1, 8), max_size=3).map(tuple))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    order = data.draw(st.permutations(range(len(shape))))
    dtype = data.draw(st.sampled_from(["i1", "<f4", ">f4", ">c16"]))
    x, codecs = filled(shape, dtype), zarr.codecs
    endian = codecs.BytesCodec(endian="big" if dtype.startswith(">") else "little")
    fill = data.draw(st.sampled_from([0, -7]))
    for _ in range(data.draw(st.integers(0, 3))):
        x[tuple(slice(k := data.draw(st.integers(0, n - 1)), data.draw(st.integers(k, n))) for n in shape)] = -fill
    budget, apart = data.draw(st.sampled_from([100_000, 1_000_000])), data.draw(st.sampled_from([0, 1, 100]))
    every = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as directory:
        arrays = [
            zarr.create_array(
                f"{directory}/{name}",
                shape=shape,
                chunks=chunks,
                dtype=dtype.lstrip("<>"),
                filters=[codecs.TransposeCodec(order=order)] if shape else None,
                serializer=endian,
                compressors=None,
                fill_value=fill,
                config={"write_empty_chunks": every},
            )
            for name in ("ä", "expected")
        ]
        if data.draw(st.booleans()):
            for array in arrays:
                array[...] = x
        used = device(mode, apart=apart)
        cf.map(lambda block: 0 - block, x, out=arrays[0], device=used, budget=budget, dtype=x.dtype, workspace=0)
        arrays[1][...] = 0 - x
        found, expected = (
            {
                file.relative_to(f"{directory}/{name}"): file.read_bytes()
                for file in Path(f"{directory}/{name}").rglob("*")
                if file.is_file()
            }
            for name in ("ä", "expected")
        )
    assert found == expected


@compiled
def test_whole_raw_chunks_of_results_go_through_them(calls: dict[str, int], tmp_path: Path) -> None:
    x = filled((128, 90), "f4")
    array = zarr.create_array(tmp_path / "y", shape=x.shape, chunks=(32, 32), dtype="f4", compressors=None)
    written, write = [], Chunks.write

    def write_here(chunks: Chunks, region: Any, block: np.ndarray) -> bool:
        written.append(region)
        return write(chunks, region, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Chunks, "write", write_here)
        cf.map(np.negative, x, out=array, device=device(apart=1), chunks=(32, 90), budget=1_000_000, workspace=0)
    same(array[...], -x)
    assert calls["down"] == 4, "one for each block"
    assert all(region[1] == slice(64, 90) for region in written), "those at the edge alone"


@compiled
def test_a_raw_chunk_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    x = filled((128, 96), "f4")
    array = zarr.create_array(tmp_path / "y", shape=x.shape, chunks=(32, 32), dtype="f4", compressors=None)
    (tmp_path / "y/c/3/2").mkdir(parents=True)
    with pytest.raises(cf.WriteError, match=r"cannot write .* to the zarr array .*y: .*directory"):
        cf.map(np.negative, x, out=array, device=device(), chunks=(32, 96), budget=1_000_000, workspace=0)
    assert not [*tmp_path.rglob("*.partial")]


@compiled
@pytest.mark.parametrize(
    ("sides", "apart", "piece"), [((32, 32), 0, 4096), ((8, 16), 512, 4096), ((50, 96), 0, 4096), ((32, 48), 0, 512)]
)
def test_raw_chunks_go_through_them(
    sides: tuple[int, int], apart: int, piece: int, calls: dict[str, int], tmp_path: Path
) -> None:
    """Whole ones, and parts of large ones."""
    x, sent = filled((128, 96), "f4"), 0
    array = zarr.create_array(tmp_path / "x", shape=x.shape, chunks=sides, dtype="f4", compressors=None)
    array[...] = x

    def send(*args: Any) -> None:
        nonlocal sent
        sent += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving.Mover, "send", send)
        used = device(apart=apart, piece=piece)
        same(cf.map(np.negative, array, device=used, chunks=(32, 96), budget=1_000_000, workspace=0), -x)
    assert calls["up"] == 4, "one for each block"
    assert not sent


@compiled
@pytest.mark.parametrize("piece", [4096, 512])
@pytest.mark.parametrize("change", [-1, 1, -512])
def test_a_raw_chunk_of_another_size_is_a_read_error(change: int, piece: int, tmp_path: Path) -> None:
    x = filled((128, 96), "f4")
    array = zarr.create_array(tmp_path / "x", shape=x.shape, chunks=(32, 32), dtype="f4", compressors=None)
    array[...] = x
    os.truncate(tmp_path / "x/c/3/2", 4096 + change)
    with pytest.raises(cf.ReadError, match=rf"chunk c/3/2: {4096 + change} bytes, where the chunk has 4096"):
        cf.map(np.negative, array, device=device(piece=piece), chunks=(32, 96), budget=1_000_000, workspace=0)


@compiled
@pytest.mark.parametrize("mode", ["eager", "threaded", "lazy"])
@given(data=st.data())
def test_parts_of_large_chunks_go_through_them(mode: str, data: st.DataObject) -> None:
    """Beside blocks of another operand, which the same threads move whole."""
    shape = data.draw(st.lists(st.integers(4, 16), min_size=1, max_size=3).map(tuple))
    chunks = tuple(data.draw(st.integers(max(1, n // 3), n)) for n in shape)
    blocks = tuple(min(n, data.draw(st.integers(1, 2)) * c) for n, c in zip(shape, chunks, strict=True))
    x = filled(shape, "f8")
    other = data.draw(st.sampled_from([x, x[..., ::2], np.asfortranarray(x)]))
    piece = data.draw(st.sampled_from([16, 64, 400]))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        calls = counted(patch)
        array = zarr.create_array(f"{folder}/x", data=x, chunks=chunks, compressors=zarr.codecs.GzipCodec())
        one = {"device": device(mode, piece=piece), "budget": 1_000_000, "chunks": blocks}
        same(cf.map(np.negative, array, **one), -x)
        if blocks == chunks:  # in one run, whose parts are, too
            assert (calls["feed"] > 0) == (8 * math.prod(chunks) > 4 * piece)
        got = cf.map(np.add, array, np.broadcast_to(other[..., :1], shape), **one)
        same(got, x + other[..., :1])


@compiled
def test_what_goes_in_parts_is_counted_once(calls: dict[str, int], tmp_path: Path) -> None:
    x = filled((64, 32, 32), "f4")
    array = zarr.create_array(tmp_path / "x", data=x, chunks=(16, 32, 32), compressors=zarr.codecs.GzipCodec())
    with cf.Profile() as profile:
        same(cf.sum(array, axis=0, device=device(piece=1 << 10), budget="1MB"), x.sum(axis=0))
    assert calls["feed"] == 4
    stages = {stage.name: stage.nbytes for stage in profile.report.stages}
    assert stages["read"] == stages["upload"] == x.nbytes


class PinnedOnly(CompiledDevice):
    """Whose driver reads memory at addresses that were pinned, and no other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pinned: set[int] = set()

    def _upload(self, device: int, host: int, nbytes: int, lane: int) -> int:
        return super()._upload(device, host, nbytes, lane) if host in self.pinned else 1


@compiled
def test_slots_are_pinned_before_parts_go_through_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    used: Any = device(kind=PinnedOnly, piece=1 << 10)
    monkeypatch.setattr(HostBuffer, "pin", lambda self: used.pinned.add(self.pointer))
    x = filled((64, 32, 32), "f4")
    array = zarr.create_array(tmp_path / "x", data=x, chunks=(16, 32, 32), compressors=zarr.codecs.GzipCodec())
    same(cf.sum(array, axis=0, device=used, budget="1MB"), x.sum(axis=0))
    assert used.pinned


@compiled
@pytest.mark.parametrize("after", [0, 1, 30, 200])
def test_parts_that_the_driver_refuses_are_an_error(after: int, tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "x", data=filled((64, 32, 32), "f4"), chunks=(16, 32, 32), compressors=zarr.codecs.GzipCodec()
    )
    with pytest.raises(DeviceError, match="error 700"):
        cf.sum(array, device=device(piece=1 << 10, fail_after=after), budget="1MB")
    assert not at_work()


@compiled
def test_rows_of_a_block_within_its_halo(calls: dict[str, int]) -> None:
    x = filled((40, 30, 600), "f4")

    def inner(block: np.ndarray) -> np.ndarray:
        return block[1:-1, 1:-1, 1:-1] + block[2:, :-2, 1:-1]

    got = cf.map_overlap(inner, x, depth=1, boundary="nearest", trim=False, device=device("lazy"), budget=2_000_000)
    edged = np.pad(x, 1, mode="edge")
    same(got, inner(edged))
    assert calls["up"] > 4


@compiled
def test_sources_of_both_kinds_in_one_run(calls: dict[str, int]) -> None:
    x, y = filled((80, 500), "f4"), filled((80, 1000), "f4")[:, ::2]  # of which one is a run and the other is not
    same(cf.map(np.add, x, y, device=device("lazy"), budget=100_000), x + y)
    assert calls["up"] > 4


@compiled
def test_threads_need_python_for_their_first_share_alone(calls: dict[str, int]) -> None:
    x, used = filled((400, 700), "f4"), device()
    same(cf.map(np.negative, x, device=used, budget=100_000, dtype="f4", workspace=0), -x)
    threads = used.machine.threads
    assert min(calls["up"], calls["down"]) > 4 * threads
    assert calls["feed"] <= threads
    assert calls["drain"] <= threads


@compiled
@given(offset=st.integers(0, 70), rows=st.integers(1, 9), width=st.integers(4000, 4200))
def test_results_go_to_any_address(offset: int, rows: int, width: int) -> None:
    """Long runs are stored past the caches, from the first address on that suits."""
    x, room = filled((rows, width), "u1"), np.full(rows * width + 140, 7, "u1")
    out = room[offset : offset + x.size].reshape(x.shape)
    cf.map(np.bitwise_not, x, out=out, device=device("lazy"), budget=100_000, dtype="u1", workspace=0)
    same(out, np.bitwise_not(x))
    assert (room[:offset] == 7).all()
    assert (room[offset + x.size :] == 7).all()


@compiled
@pytest.mark.parametrize("threads", [1, job_queue.MOVERS - 1, job_queue.MOVERS + 6])
def test_any_number_of_threads_moves_shares(threads: int) -> None:
    x = filled((400, 700), "f4")
    used = CompiledDevice(machine=machine(staged=True, threads=threads))
    same(cf.map(np.negative, x, device=used, budget=400_000, dtype="f4", workspace=0), -x)


@compiled
@pytest.mark.parametrize("times", [False, True])
def test_what_goes_wrong_in_a_line_ends_the_run(times: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a thread has taken a part already, for which the run waits."""
    refused, report, calls = moving.Mover._refused, moving.Mover._report, iter(range(1 << 30))

    def fails(*args: Any) -> Any:
        if next(calls) == 30:
            raise MemoryError("no room for times")
        return (report if times else refused)(*args)

    monkeypatch.setattr(moving.Mover, "_report" if times else "_refused", staticmethod(fails) if times else fails)
    x = filled((3000, 700), "f4")

    def runs() -> None:
        with cf.Profile() if times else nullcontext():
            for _ in range(30):
                cf.map(np.negative, x, device=device(), budget=100_000, dtype="f4", workspace=0)

    with pytest.raises(MemoryError, match="no room"):
        runs()


@compiled
@pytest.mark.parametrize("direction", ["up", "down", "both"])
@pytest.mark.parametrize("times", [False, True])
def test_what_a_line_cannot_move_python_does(direction: str, times: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some blocks the store says that they lie in a file that can be neither read nor written."""
    nowhere, found = os.open(os.devnull, os.O_RDONLY), workers.run_of

    def run_of(store: Any, region: Any) -> ByteRun | None:
        run = found(store, region)
        up = isinstance(store, ArraySource)
        wrong = region[0].start % 3 == 1 and direction in ("both", "up" if up else "down")
        return ByteRun(0, fd=nowhere) if wrong else run

    monkeypatch.setattr(workers, "run_of", run_of)
    x, used = filled((200, 700), "f4"), device()
    options: dict[str, Any] = {"device": used, "budget": 100_000, "chunks": (1, -1), "dtype": "f4", "workspace": 0}
    try:
        with cf.Profile() if times else nullcontext():
            same(cf.map(np.negative, x, **options), -x)
    finally:
        os.close(nowhere)


@compiled
def test_times_are_told_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes Python's lock, for which a run with times would wait where one without them does not."""
    served, serve = [0], moving.Mover.serve

    def counting(*args: Any, **options: Any) -> Any:
        served[0] += 1
        return serve(*args, **options)

    monkeypatch.setattr(moving.Mover, "serve", counting)
    x = filled((1000, 700), "f4")
    with cf.Profile() as profile:
        cf.map(np.negative, x, device=device(), budget=100_000, chunks=(5, -1), dtype="f4", workspace=0)
    assert served[0] < 200, "of 400 shares: threads that find nothing to do for a while tell theirs too"
    assert {stage.nbytes for stage in profile.report.stages} == {x.nbytes, 2 * x.nbytes}


@compiled
@pytest.mark.parametrize(("rows", "budget"), [(80, 100_000), (800, 100_000), (20_000, 40_000_000)])
def test_the_report_counts_each_byte_once(rows: int, budget: int) -> None:
    """However many pieces a share has: one has more than a thread can note the times of."""
    x = filled((rows, 500), "f4")
    options: dict[str, Any] = {"device": device(), "budget": budget, "dtype": "f4", "workspace": 0}
    plan = cf.explain(np.negative, x, **options)
    pieces_of = [len(cut.pieces(plan.grid.region((0,) * len(plan.block)))) for cut in plan.cuts_in]
    assert (pieces_of[0] > moving.SPANS // 2) == (rows == 20_000)
    with cf.Profile() as profile:
        cf.map(np.negative, x, **options)
    moved = {stage.name: stage.nbytes for stage in profile.report.stages}
    assert [moved[name] for name in ("read", "upload", "download", "write")] == [x.nbytes] * 4
    assert all(stage.seconds >= 0 for stage in profile.report.stages)


class Hasty(CompiledDevice):
    """Whose driver does not wait."""

    def _synchronize(self, event: int) -> int:
        return 0


@compiled
def test_a_wait_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[np.ndarray] = []  # what late copies read stays there, wrong as it is
    monkeypatch.setattr(NumpyPool, "adopt", lambda pool, array: kept.append(array))
    x = filled((90, 700), "f4")
    got = cf.map(np.negative, x, device=device("lazy", kind=Hasty), budget=100_000)
    assert not np.array_equal(got, -x)


@compiled
def test_uploads_of_a_line_that_nobody_waits_for_show(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[np.ndarray] = []
    monkeypatch.setattr(NumpyPool, "adopt", lambda pool, array: kept.append(array))
    monkeypatch.setattr(job_queue.Job, "movers", [])
    x = filled((400, 700), "f4")
    got = cf.map(np.negative, x, device=device("lazy"), budget=100_000, dtype="f4", workspace=0)
    assert not np.array_equal(got, -x)


class Noting(CompiledDevice):
    """Which notes what its lanes do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.noted: dict[int, list[str]] = defaultdict(list)

    def _wait(self, lane: int, event: int, flags: int) -> int:
        self.noted[lane].append("wait")
        return super()._wait(lane, event, flags)

    def _upload(self, device: int, host: int, nbytes: int, lane: int) -> int:
        self.noted[lane].append("upload")
        return super()._upload(device, host, nbytes, lane)

    def _download(self, host: int, device: int, nbytes: int, lane: int) -> int:
        self.noted[lane].append("download")
        return super()._download(host, device, nbytes, lane)


@compiled
def test_streams_wait_for_what_comes_before_a_share() -> None:
    one, x = Noting(machine=machine(staged=True, threads=1)), filled((90, 700), "f4")
    same(cf.map(np.negative, x, device=one, budget=30_000, dtype="f4", workspace=0), -x)
    plan = cf.explain(np.negative, x, device=one, budget=30_000, dtype="f4", workspace=0)
    feeder, drainer = sorted(map(tuple, one.noted.values()), key=lambda noted: "download" in noted)
    assert len(plan.grid) > plan.depth
    assert feeder.count("wait") == len(plan.grid) - plan.depth, "blocks that come where others were"
    assert feeder[0] == "upload"
    assert drainer.count("wait") == len(plan.grid)
    assert drainer[0] == "wait"


class Unwilling(CompiledDevice):
    """Whose driver refuses to let streams wait."""

    def _wait(self, lane: int, event: int, flags: int) -> int:
        return 701


@compiled
def test_a_wait_that_the_driver_refuses_is_an_error() -> None:
    x = filled((90, 700), "f4")
    with pytest.raises(DeviceError, match="error 701"):
        cf.map(np.negative, x, device=device(kind=Unwilling), budget=100_000, dtype="f4", workspace=0)


@compiled
def test_events_are_waited_for_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    one = device("lazy")
    producer, consumer = one.lane(), one.lane()
    done, events = list[int](), [one.event() for _ in range(3)]
    for number, event in enumerate(events):
        producer.call(lambda number=number: done.append(number))
        producer.record(event)
    driver = tuple(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in one._driver)
    monkeypatch.setattr(moving, "cuda_driver", lambda: driver)
    single: list[tuple[int, int]] = []
    keys = [one._key(event) for event in events]
    moving.wait_all(one._key(consumer), keys, lambda *pair: single.append(pair))
    assert not single
    assert not done
    consumer.synchronize()
    assert done == [0, 1, 2]
    moving.wait_all(7, keys[:1], lambda *pair: single.append(pair))
    assert single == [(7, keys[0])]
    with pytest.raises(ValueError, match="table"):
        moving.staging.wait(b"", 0, b"")
    producer.close()
    consumer.close()


@compiled
@pytest.mark.parametrize("after", [0, 5, 40])
def test_what_the_driver_refuses_is_an_error(after: int) -> None:
    x = filled((90, 700), "f4")
    with pytest.raises(DeviceError, match="error 700"):
        cf.map(np.negative, x, device=device(fail_after=after), budget=100_000, dtype="f4", workspace=0)
    same(cf.map(np.negative, x, device=device(), budget=100_000), -x)


class FewDownloads(CompiledDevice):
    """Whose driver refuses all downloads but `few`; `reading` has the address of the last one while it is read."""

    def __init__(self, few: int, **options: Any) -> None:
        super().__init__(**options)
        self.few = few
        self.reading: list[int] = []

    def _download(self, host: int, device: int, nbytes: int, lane: int) -> int:
        self.few -= 1
        if self.few > 0:
            return super()._download(host, device, nbytes, lane)
        if self.few < 0:
            return 700
        self.reading.append(device)
        status = super()._download(host, device, nbytes, lane)
        self._known[lane]._enqueue(lambda: self.reading.__setitem__(0, -1))
        return status


@compiled
@pytest.mark.parametrize("few", range(1, 12))
def test_a_result_is_freed_when_no_copy_reads_it_any_more(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the driver refuses the next copy, so that nobody stores what the one before gives."""
    one = FewDownloads(few, mode="lazy", machine=machine(staged=True, threads=1))
    free, freed = NumpyPool.free, []

    def watched(pool: NumpyPool, array: np.ndarray) -> None:
        freed.append([array.ctypes.data <= p < array.ctypes.data + array.nbytes for p in one.reading])
        free(pool, array)

    monkeypatch.setattr(NumpyPool, "free", watched)
    x = filled((90, 700), "f4")
    with pytest.raises(DeviceError, match="error 700"):
        cf.map(np.negative, x, device=one, budget=100_000, dtype="f4", workspace=0)
    assert freed
    assert not any(map(any, freed))


class Broken(CompiledDevice):
    """Some of whose threads get no loops."""

    def mover(self, lane: Any, buffers: Any, scratch: Any) -> Any:
        if self.shares:
            raise RuntimeError("no loops left")
        return super().mover(lane, buffers, scratch)


@compiled
def test_a_thread_that_cannot_begin_fails_the_run() -> None:
    x = filled((90, 700), "f4")
    with pytest.raises(RuntimeError, match="no loops left"):
        cf.map(np.negative, x, device=device(kind=Broken), budget=100_000, dtype="f4", workspace=0)


@compiled
@pytest.mark.parametrize("crew", ["feed", "drain"])
def test_a_thread_that_begins_after_an_interrupt_touches_nothing(crew: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[PooledThread] = []

    class Late(PooledThread):
        """Whose start is interrupted, though the system starts it all the same."""

        def start(self) -> None:
            if crew not in self.name:
                super().start()
            else:
                late.append(self)
                raise KeyboardInterrupt

    source, out = CountingSource(filled((90, 700), "f4")), np.full((90, 700), 7, "f4")
    with monkeypatch.context() as patch:
        patch.setattr("chunkflow.engine.staged.workers.PooledThread", Late)
        with pytest.raises(KeyboardInterrupt):
            cf.map(np.negative, source, out=out, device=device("eager"), budget=100_000, dtype="f4", workspace=0)
    read = source.bytes_read
    assert late
    for thread in late:
        PooledThread.start(thread)
        thread.join()
    assert source.bytes_read == read
    assert (out == 7).all()


@compiled
def test_a_mapped_file_that_shrinks_is_a_write_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("chunkflow.stores.file.strided_sink.FEW_CORES", 0)
    monkeypatch.setattr("chunkflow.stores.file.strided_sink._file_system", lambda fd: "tmpfs")
    np.ones((200, 700), "f4").tofile(tmp_path / "y.bin")
    out, downloads = np.memmap(tmp_path / "y.bin", "f4", "r+", shape=(200, 700)), iter(range(1000))

    class Shrinking(CompiledDevice):
        """Whose file is cut by the thread that writes to it, between two pieces: a copy under way would be a signal."""

        def _download(self, *copy: int) -> int:
            if next(downloads) == 9:
                os.truncate(tmp_path / "y.bin", 200)
            return super()._download(*copy)

    one = Shrinking(mode="threaded", poison=True, machine=machine(staged=True, threads=1))
    with pytest.raises(cf.WriteError, match="200 bytes now"):
        cf.map(np.negative, filled((200, 700), "f4"), out=out, device=one, budget=100_000)


@compiled
@pytest.mark.parametrize("kind", ["u2", "f4", "f8", "c8", "c16"])
def test_what_cannot_be_stored_is_left_in_its_slot_as_it_was(kind: str) -> None:
    one, block = device("eager"), filled((16,), kind)
    buffer, lane, whole = HostBuffer(np.zeros(block.nbytes, "u1")), one.lane(), pieces((16,), (0,), 16)
    tables = moving.tabled(whole, whole, block.itemsize, landing=False)
    mover = one.mover(lane, [workers.PinnedBuffer(0, buffer, one, timed=False)], None)
    assert mover is not None
    assert tables is not None
    nowhere, other = os.open(os.devnull, os.O_RDONLY), swapped(block.dtype.newbyteorder("S"))
    try:
        share = moving.PieceShare(tables, ByteRun(0, fd=nowhere, swap=other), block.ctypes.data)
        assert mover.drain(share, lambda *_: None, []) == [(0, 0)]
    finally:
        os.close(nowhere)
        lane.close()
    assert (buffer.array.view(kind) == block).all()


@compiled
def test_other_tables_are_refused() -> None:
    tables = moving.Tables(np.zeros((1, 5), np.int64), np.zeros((1, 7), np.int64), True, 0)
    share = moving.PieceShare(tables, ByteRun(0), 0)
    good = moving.Mover([0] * 8, 0, [moving.BufferAddresses(0, 0, 0)], pointer=int)
    share.table[-1] = 3
    with pytest.raises(ValueError, match="tables"):
        good.feed(share, print, [], 0)
    share.table[-1] = 0
    share.table[1] = 7
    with pytest.raises(ValueError, match="tables"):
        good.feed(share, print, [], 0)
    with pytest.raises(ValueError, match="tables"):
        moving.Mover([0] * 5, 0, [moving.BufferAddresses(0, 0, 0)], pointer=int).feed(share, print, [], 0)
    for buffer, piece in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        with pytest.raises(ValueError, match="tables"):
            good.send(share, buffer, piece, 0)
    tables.pieces[0, 3] = 2  # copies, of which there is one
    with pytest.raises(ValueError, match="tables"):
        good.fetch(share, 0, 0)


@compiled
def test_jobs_and_tokens_come_in_order() -> None:
    one, moved = job_queue.JobQueue(int), SimpleNamespace(share=None)
    tables = moving.Tables(np.zeros((1, 5), np.int64), np.zeros((1, 7), np.int64), True, 0)
    share = moving.PieceShare(tables, ByteRun(0), 0)
    assert one.take(wait=False) == job_queue.Served(job_queue.NOTHING)
    first = one.job(moved, share, 2, [], [])
    assert one.take(wait=False) == job_queue.Served(job_queue.NOTHING), "it is not put yet"
    first.put()
    one.token()
    second = one.job(moved, share, 1, [], [])
    second.put()
    one.over()
    expected = [job_queue.SHARE, job_queue.SHARE, job_queue.TOKEN, job_queue.SHARE, job_queue.OVER, job_queue.OVER]
    assert [one.take(wait=True).what for _ in expected] == expected
    first.arrive()
    assert not first.is_done
    first.arrive()
    assert first.is_done
    first.wait(Edge.STORED)
    assert not second.is_done
    assert first.movers == []


@compiled
def test_a_job_that_is_given_up_leaves_its_queue() -> None:
    one, moved = job_queue.JobQueue(int), SimpleNamespace(share=None)
    tables = moving.Tables(np.zeros((1, 5), np.int64), np.zeros((1, 7), np.int64), True, 0)
    jobs = [one.job(moved, moving.PieceShare(tables, ByteRun(0), 0), 1, [], []) for _ in range(3)]
    for job in jobs:
        job.put()
    one.clear()
    del jobs[2], jobs[0], job
    assert one.job(moved, moving.PieceShare(tables, ByteRun(0), 0), 0, [], []).is_done, "of nothing"
    one.token()
    assert moving.staging.take(one._queue, False)[0] == job_queue.SHARE
    assert one.take(wait=False).what == job_queue.TOKEN
    assert one.take(wait=False).what == job_queue.NOTHING


@compiled
def test_a_job_queue_forgets_what_is_done() -> None:
    one, moved = job_queue.JobQueue(int), SimpleNamespace(share=None)
    tables = moving.Tables(np.zeros((1, 5), np.int64), np.zeros((1, 7), np.int64), True, 0)
    for _ in range(20):
        job = one.job(moved, moving.PieceShare(tables, ByteRun(0), 0), 1, [], [])
        job.put()
        assert one.moved(one.take(wait=False).job) is moved
        job.arrive()
    assert len(one._jobs) == 1


@compiled
def test_waiting_for_a_job_can_be_interrupted() -> None:
    tables = moving.Tables(np.zeros((1, 5), np.int64), np.zeros((1, 7), np.int64), True, 0)
    job = job_queue.JobQueue(int).job(SimpleNamespace(share=None), moving.PieceShare(tables, ByteRun(0), 0), 1, [], [])
    threading.Timer(0.02, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        job.wait(Edge.STORED)


@st.composite
def regions(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(a := draw(st.integers(0, n - 1)), draw(st.integers(a + 1, n))) for n in shape)


@given(st.data())
def test_a_run_is_where_it_says(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    order = data.draw(st.permutations(range(len(shape))))
    whole = filled(tuple(shape[a] for a in order), "f4").transpose(np.argsort(order))
    whole = whole.astype(data.draw(st.sampled_from(["f4", OTHER])), order="K")
    step = data.draw(st.sampled_from([1, 1, 2, -1]))
    x = whole[::step]
    region = data.draw(regions(x.shape))
    for store in (ArraySource(x), ArraySink(x, ArraySource(x).spec)):
        run = store.run(region)
        expected = x[region].transpose(store.spec.order)
        if run is not None:
            assert run.fd is None
            assert run.swap == (0 if x.dtype.isnative else x.dtype.itemsize)
            np.testing.assert_array_equal(moved_by(run, x.dtype.newbyteorder("="), expected.shape), expected)
        else:
            assert isinstance(store, ArraySink)
            assert not expected.flags.c_contiguous


REARRANGED: dict[str, Callable[[Any], Any]] = {
    "flip, axis 0": lambda x: np.flip(x, 0),
    "flip, axis 2": lambda x: np.flip(x, 2),
    "every other column": lambda x: x[..., ::2],
    "every third row, backwards": lambda x: x[:, ::-3],
    "roll": lambda x: np.roll(x, 3, axis=1),
    "tile": lambda x: np.tile(x, (1, 2, 1)),
    "repeat": lambda x: np.repeat(x, 2, axis=1),
    "repeat, axis 0": lambda x: np.repeat(x, 3, axis=0),
    "concatenate": lambda x: np.concatenate([x, x[:, ::-1]], axis=1),
    "stack": lambda x: np.stack([x, x[::-1]], axis=0),
    "stack, axis 1": lambda x: np.stack([x, x[::-1], x], axis=1),
    "stack, axis 3": lambda x: np.stack([x, x[::-1]], axis=3),
    "mirrored edges": lambda x: np.pad(x, ((2, 1), (3, 3), (0, 0)), mode="reflect"),
    "edges": lambda x: np.pad(x, 1),
    "of four axes": lambda x: np.roll(x.reshape(4, 4, 26, 600), (1, 5), axis=(1, 2)),
    "of five axes": lambda x: np.roll(x.reshape(2, 2, 4, 26, 600), (1, 1, 5), axis=(0, 1, 3))[:, :, ::2],
    "transposed": lambda x: np.roll(np.transpose(x, (2, 0, 1)), 2, axis=0),
    "chosen": lambda x: np.concatenate([x[:1], x, x[-1:]]),
}
MOVED = sorted(REARRANGED.keys() - {"stack, axis 3", "mirrored edges", "edges", "of five axes"})


@pytest.mark.skipif(not BUILT, reason="there are no compiled loops")
@pytest.mark.parametrize("dtype", ["f4", "u1", "u2", "f8", "c16"])
@pytest.mark.parametrize("name", REARRANGED)
def test_what_is_rearranged_is_read_by_the_compiled_loops(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array in memory is moved without Python, in whatever order its elements are wanted."""
    x = (np.arange(16 * 26 * 600) % 251).astype(dtype).reshape(16, 26, 600)
    expected = REARRANGED[name](x)
    reads: list[Any] = []
    read = ArraySource.read
    monkeypatch.setattr(ArraySource, "read", lambda self, region, out: (reads.append(region), read(self, region, out)))
    device = CompiledDevice(machine=machine(staged=True, piece=1 << 14))
    for budget in ("300kB", "4MB") if dtype == "f4" else ("4MB",):
        out = np.full(expected.shape, 77, dtype)
        cf.store(REARRANGED[name](cf.open(x)), out, device=device, budget=budget)
        np.testing.assert_array_equal(out, expected)
    assert not reads or name not in MOVED


class Computed(Unviewed):
    """A source whose views are arrays of their own, which nobody else refers to."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.spec, self.footprint = array, ArraySource(array).spec, None

    def read(self, region: Any, out: np.ndarray) -> None:
        out[...] = self._array[region]

    def view(self, region: Any) -> np.ndarray:
        return self._array[region].copy()

    def close(self) -> None: ...


def test_a_view_that_is_made_for_whoever_asks_is_not_moved_from() -> None:
    made = SlicedSource(Computed(filled((16, 26), "f4")), [(15, 16, -1), (0, 26, 1)])
    assert made.view((slice(0, 2), slice(0, 26))) is not None
    assert run_of(made, (slice(0, 2), slice(0, 26))) is None, "its memory goes with the view"


@given(data=st.data())
def test_a_run_of_a_file_is_where_it_says(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("run") / "x.bin"
    x = filled((4, 5, 6), data.draw(st.sampled_from(["f4", ">f4"])))
    path.write_bytes(b"head" + x.tobytes())
    source = FileSource(Strided(str(path), 4, x.shape, x.strides, x.dtype))
    try:
        region = data.draw(regions(x.shape))
        run = source.run(region)
        if run is not None:
            assert run.swap == (0 if x.dtype.isnative else 4)
            assert os.pread(run.fd, x[region].nbytes, run.position) == x[region].tobytes()
        else:
            assert not x[region].flags.c_contiguous
    finally:
        source.close()


def test_tables_say_where_pieces_lie() -> None:
    found = pieces((4, 1000), (0, 1), 2000)
    tables = moving.tabled(found, found, 4, landing=True)
    assert tables is not None
    assert tables.runs
    assert tables.pieces.tolist() == [[0, 8000, 0, 1, 0], [8000, 8000, 1, 1, 0]]
    assert tables.copies.tolist() == [[0, 0, 0, 8000, 1, 0, 1], [0, 8000, 0, 8000, 1, 0, 1]]
    inner = placed(found, (1, 1), (6, 1002), (0, 1))
    tables = moving.tabled(found, inner, 4, landing=True)
    assert tables is not None
    assert tables.copies.tolist() == [[0, 4 * 1003, 4008, 4000, 2, 0, 1], [0, 4 * 3007, 4008, 4000, 2, 0, 1]]
    assert tables.landing == 0
    tables = moving.tabled(inner, inner, 4, landing=True)
    assert tables is not None
    assert not tables.runs  # in the store
    tables = moving.tabled(found, inner, 1, landing=True)  # rows too short for the link
    assert tables is not None
    assert tables.pieces.tolist() == [[0, 2000, 0, 1, 1], [2000, 2000, 1, 1, 1]]
    assert tables.landing == 2000


@given(st.data())
def test_copies_of_a_piece_fill_its_place(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5).map(tuple))
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    region = data.draw(regions(shape))
    piece = placed(pieces(tuple(s.stop - s.start for s in region), order, 1 << 20), _first(region), shape, order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pieces, "LEAST_ROW", data.draw(st.sampled_from([1, 1 << 10])))
        patch.setattr(_pieces, "MOST_GROUPS", data.draw(st.sampled_from([1, 16])))
        tables = moving.tabled.__wrapped__(piece, piece, 1, landing=data.draw(st.booleans()))
    block = np.zeros(np.prod(shape), "u1")
    whole = block.reshape([shape[a] for a in order]).transpose(np.argsort(order))
    values = np.arange(1, 1 + piece[0].size, dtype="i8") % 255 + 1
    whole_expected = np.zeros_like(whole)
    whole_expected[region] = values.reshape(piece[0].shape).transpose(np.argsort(order))
    if tables is None:
        assert len(shape) > 3
        return
    for buffer, there, pitch, width, height, plane, depth in tables.copies.tolist():
        for z, y in np.ndindex(depth, height):
            here, to = buffer + (z * height + y) * width, there + z * plane + y * pitch
            block[to : to + width] = values[here : here + width]
    same(whole, whole_expected)


def _first(region: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(s.start for s in region)


def test_there_is_a_way_without_them() -> None:
    code = "from chunkflow.devices import mover; print(mover.staging, mover.cuda_driver())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CHUNKFLOW_COMPILED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["None", "None"]
