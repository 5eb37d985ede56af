"""What `explain` expects of a run on the host, of what a few calls beforehand have shown."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.api import operation
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.engine.observe import rehearsal
from chunkflow.engine.observe.analysis import AnalyzedRun
from chunkflow.engine.observe.rehearsal import LONG, Calls, Crowd, Outlet, Seen, _at_once, _Place, _place
from chunkflow.planner.cost import written
from chunkflow.planner.plan import Plan
from chunkflow.stores import open_target
from chunkflow.stores.protocol import encoder_of, practice_of
from chunkflow.system import host

X = (np.random.default_rng(0).integers(0, 1000, (64, 32)) / 8).astype("f4")
CHUNK = (16, 32)


def zarr_path(folder: Path) -> str:
    return str(folder / "new.zarr")


def zarr_array(folder: Path, **how: Any) -> Any:
    made = {"shape": X.shape, "chunks": CHUNK, "dtype": X.dtype, "compressors": zarr.codecs.GzipCodec()} | how
    return zarr.create_array(folder / "x.zarr", **made)


def dataset(folder: Path, **how: Any) -> Any:
    return h5py.File(folder / "x.h5", "w").create_dataset("x", X.shape, X.dtype, chunks=CHUNK, **how)


def stored(out: Any) -> bytes:
    """The first chunk as it lies in the store."""
    if isinstance(out, h5py.Dataset):
        return bytes(out.id.read_direct_chunk((0, 0))[1])
    folder = Path(out if isinstance(out, str) else str(out.store.root))
    return next(p.read_bytes() for name in ("c/0/0", "0.0") if (p := folder / name).is_file())


GZIP = b"\x1f\x8b"

ENCODED: dict[str, Callable[[Path], Any]] = {
    "new zarr": zarr_path,
    "zarr gzip": zarr_array,
    "zarr of format 2": lambda folder: zarr_array(folder, zarr_format=2, compressors=numcodecs.LZ4()),
    "zarr transposed": lambda folder: zarr_array(folder, filters=[zarr.codecs.TransposeCodec(order=(1, 0))]),
    "zarr big-endian": lambda folder: zarr_array(folder, serializer=zarr.codecs.BytesCodec(endian="big")),
    "hdf5 gzip": lambda folder: dataset(folder, compression="gzip", shuffle=True, fletcher32=True),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_a_target_encodes_as_its_sink_does(kind: str, tmp_path: Path) -> None:
    out = ENCODED[kind](tmp_path)
    target = open_target(out)
    spec = target.describe(X.shape, X.dtype, CHUNK)
    encode = encoder_of(target, spec)
    assert encode is not None
    assert not os.path.exists(zarr_path(tmp_path)), "nothing is made"
    found = bytes(encode(X[:16].copy()))  # type: ignore[call-overload]
    cf.copy(X, out=out, chunks=CHUNK if kind == "new zarr" else None, device="cpu")
    if found[:2] == GZIP:  # whose header has the time, from byte 4 on
        assert (found[:4], found[8:]) == (stored(out)[:4], stored(out)[8:])
    else:
        assert found == stored(out)
    assert len(bytes(encode(X[:3, ::2]))) < len(found), "of any sides"  # type: ignore[call-overload]


UNENCODED: dict[str, Callable[[Path], Any]] = {
    "array": lambda folder: np.empty_like(X),
    "npy": lambda folder: str(folder / "x.npy"),
    "raw zarr": lambda folder: zarr_array(folder, compressors=None),
    "hdf5": dataset,
    "new hdf5": lambda folder: str(folder / "new.h5"),
}


@pytest.mark.parametrize("kind", UNENCODED)
def test_others_encode_nothing(kind: str, tmp_path: Path) -> None:
    target = open_target(UNENCODED[kind](tmp_path))
    assert encoder_of(target, target.describe(X.shape, X.dtype, None)) is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no files in memory")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_new_files_are_practised_in_memory(order: tuple[int, ...], tmp_path: Path) -> None:
    """There rows of a narrow block are written one by one, as in a run."""
    target = open_target(str(tmp_path / "x.npy"))
    spec = replace(target.describe(X.shape, X.dtype, None), order=order)
    before = os.listdir("/proc/self/fd")
    sink = practice_of(target, spec)
    assert sink is not None
    sink.write((slice(0, 64), slice(8, 24)), X[:, 8:24])
    found = np.empty(X.size, X.dtype)
    os.preadv(sink.fd, [found.data], 0)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(found.reshape((64, 32), order="CF"[order[0]])[:, 8:24], X[:, 8:24])
    sink.abort()
    assert os.listdir("/proc/self/fd") == before
    assert os.listdir(tmp_path) == []


def test_shards_are_encoded_chunk_by_chunk(tmp_path: Path) -> None:
    target = open_target(zarr_array(tmp_path, shards=(32, 32)))
    assert encoder_of(target, target.describe(X.shape, X.dtype, None)) is not None


def analyzed(tmp_path: Path, **options: Any) -> AnalyzedRun:
    run: AnalyzedRun = cf.explain(
        cf.copy, X, out=zarr_path(tmp_path), chunks=CHUNK, device="cpu", analyze=True, **options
    ).runs[0]
    return run


def test_encoding_takes_what_its_own_codec_takes(tmp_path: Path) -> None:
    """Plans take all codecs for ordinary ones."""
    run = replace(analyzed(tmp_path), crowd=1.0)
    assert run.encoding
    assert run.storing == 0.0, "what is encoded is copied by that"
    plan = run.plan
    slow, slower = replace(run, encoding=1.0), replace(run, encoding=3.0)
    rounds = -(-len(plan.grid) // plan.lanes)
    assert slower.predicted - slow.predicted == pytest.approx(2 / run._encoders * rounds / len(plan.grid))
    assert slow._stages["write"] == pytest.approx(written(plan.machine, plan.traffic, plan.lanes) + 1 / run._encoders)
    assert slow.bound_by == "write"
    unseen = replace(run, encoding=None)
    assert unseen._stages["write"] == pytest.approx(plan.estimate.stages["write"]), "then an ordinary codec's"


def test_what_is_encoded_is_a_part_of_a_chunk_of_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of a large chunk would take long; and a tile again and again would be encoded to nothing."""
    monkeypatch.setattr(rehearsal, "ENCODED", 1 << 10)
    np.save(tmp_path / "x.npy", X)
    seen: list[np.ndarray] = []
    put = _Place.put

    def noted(self: _Place, result: np.ndarray) -> Seen:
        index: tuple[Any, ...] = (*self.part, ...)
        seen.append(result[index].copy())
        return put(self, result)

    monkeypatch.setattr(_Place, "put", noted)
    plan = cf.explain(np.negative, str(tmp_path / "x.npy"), out=zarr_path(tmp_path), chunks=CHUNK, device="cpu")
    assert plan.predicted
    assert os.listdir(tmp_path) == ["x.npy"]
    blocks = {tuple(s.start for s in step.box): step for step in plan.steps()}
    assert seen
    for part in seen:
        assert part.shape == (8, 32)
        assert any(np.array_equal(part, -X[at[0] : at[0] + 8]) for at in blocks)


def test_parts_lie_along_the_fastest_axes() -> None:
    plan: Plan = cf.explain(cf.copy, X, chunks=CHUNK, device="cpu")
    outputs = (replace(plan.outputs[0], chunks=CHUNK, order=(1, 0)),)
    place = _place(0, (slice(0, 64), slice(0, 32)), replace(plan, outputs=outputs), Outlet(bytes))
    assert place.part == (slice(0, 16), slice(0, 32))
    assert place.nbytes == 16 * 32 * 4


# -- Cores that others use -----------------------------------------------------------------------------------


def test_waits_for_a_core_are_no_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 102.0])
    waits = iter([5.0, 6.0, 6.0])  # it waited while the clock was looked at for the first time
    monkeypatch.setattr(host.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(host, "_waited", lambda: next(waits))
    assert host.own_time() == 101 - 6


@pytest.mark.parametrize(("text", "expected"), [("123 4500000000 7\n", 4.5), (None, 0.0)])
def test_the_system_tells_how_long_a_thread_has_waited(
    text: str | None, expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr(host, "_WAITS", tmp_path / "schedstat")
    assert host._waited() == 0.0, "it was not asked"
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with host.own_time_known():
        assert host._waited() == expected
    assert host._waited() == 0.0
    assert not before or len(os.listdir("/proc/self/fd")) == before, "the file is closed"


def test_what_others_take_of_the_cores_is_seen_for_long_enough() -> None:
    """A few short calls are over before anybody else gets the core."""
    crowd = Crowd()
    assert crowd.factor == 1.0
    calls: list[int] = []

    def made() -> Calls:
        def call() -> Seen:
            calls.append(len(calls))
            return (1.0 if len(calls) <= 8 else 9.0,)

        return call, (1.0,)

    add, added = crowd.add, []

    def noted(seconds: float, own: float) -> None:
        added.append((seconds, own))
        add(LONG / 20, LONG / 60)

    crowd.add = noted  # type: ignore[method-assign]
    assert _at_once([made], crowd) == (1.0,), "those calls tell nothing else"
    assert len(added) == 20
    assert crowd.factor == pytest.approx(3)


def test_all_that_the_host_does_takes_longer_among_others(tmp_path: Path) -> None:
    run = analyzed(tmp_path)
    assert run.crowd >= 1
    alone = replace(run, crowd=1.0)
    assert replace(run, crowd=3.0).predicted == pytest.approx(3 * alone.predicted)
    assert replace(run, crowd=3.0).plan is run.plan


# -- Functions that take long ----------------------------------------------------------------------------------------


class Slow:
    """A function that takes a microsecond for each element of a block, by a clock of its own."""

    def __init__(self) -> None:
        self.now, self.largest = 0.0, 0

    def __call__(self, block: Any) -> Any:
        self.now += block.size * 1e-6
        self.largest = max(self.largest, block.size)
        return block + 1


@pytest.mark.parametrize("budget", ["300kB", "4MB", "100MB"])
def test_a_slow_function_is_known_in_any_budget(budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.ones((512, 1024), "f4"))
    slow = Slow()
    monkeypatch.setattr(host, "own_time", lambda: slow.now)
    device = NumpyDevice(lanes=1)
    plan = cf.explain(cf.map, slow, tmp_path / "x.npy", device=device, budget=budget)
    assert plan.predicted is not None
    assert plan.predicted == pytest.approx(512 * 1024 * 1e-6, rel=0.1)
    assert slow.largest <= max(math.prod(plan.block), 64 << 10), "the forecast takes no more than the run"
    halos = cf.explain(cf.map_overlap, slow, tmp_path / "x.npy", depth=(8, 0), device=device, budget=budget)
    assert halos.predicted is not None
    assert halos.predicted == pytest.approx(len(halos.grid) * math.prod(halos.slot_shape(0)) * 1e-6, rel=0.25)


@pytest.mark.gpu
def test_a_slow_function_is_known_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(rehearsal, "time", SimpleNamespace(perf_counter=lambda: slow.now))
    plan = cf.explain(cf.map, slow, np.ones((4096, 4096), "f4"), device="cuda", budget="1GB")
    assert plan.predicted == pytest.approx(4096 * 4096 * 1e-6, rel=0.1)


# -- Transforms ----------------------------------------------------------------------------------------------


def test_of_a_transform_each_pass_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Plan] = []

    def forecast(run: Any) -> Plan:
        seen.append(run.plan)
        return replace(run.plan, predicted=10.0 ** len(seen))

    monkeypatch.setattr(operation, "forecast", forecast)
    volume = np.random.default_rng(0).random((32, 32, 32), "f4")
    np.save(tmp_path / "x.npy", volume)
    for budget, expected in ((None, 10.0), ("400kB", 110.0)):
        seen.clear()
        plan = cf.explain(cf.fft.fftn, str(tmp_path / "x.npy"), budget=budget, device="cpu")
        assert plan.seconds == expected
        assert [p.source.shape for p in plan.passes] == [p.operands[0].shape for p in seen]
    planned = cf.fft.plan(cf.fft.fftn, str(tmp_path / "x.npy"), budget="400kB", device="cpu")
    assert planned.seconds < 10, "nothing of the array is read for that"
    on_disk = cf.explain(cf.fft.fftn, volume, out=zarr_path(tmp_path), budget="400kB", device="cpu")
    assert on_disk.on_disk
    assert on_disk.seconds < 10
    assert os.listdir(tmp_path) == ["x.npy"], "no file is made"
