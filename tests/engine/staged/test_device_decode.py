"""Chunks that are decoded on the device: the same values, to the bit, within the budget; and what is wrong is said."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs as codecs
from hypothesis import given
from hypothesis import strategies as st
from support.compiled import BUILT
from support.decoders import CompiledDecodingDevice, Decodes, DecodingDevice, temporary, unshuffled
from support.devices import MODES, PAGES, at_work
from support.zarrarrays import create, fresh, modest, ours, same, values
from zarr.storage import MemoryStore

import chunkflow as cf
from chunkflow.core.encoded_chunks import ALIGNMENT, BYTES, FACTS, PLAIN, ROWS, Packed
from chunkflow.core.grid import Grid, Region, Shape, shape_of
from chunkflow.core.machine import Decoding
from chunkflow.core.nest import Operand
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.devices.cpu.device import NumpyPool
from chunkflow.devices.cuda import nvcomp
from chunkflow.devices.protocol import Edge
from chunkflow.devices.race_detector import ClockDevice
from chunkflow.errors import RaceError, ReadError
from chunkflow.planner.decode_batch import batch_of, room
from chunkflow.stores import open_source
from chunkflow.stores.codecs.crc32c import CHECKSUM
from chunkflow.stores.touched import touched
from chunkflow.stores.zarr import shards as zarrshards
from chunkflow.stores.zarr.array import ZarrSource
from chunkflow.stores.zarr.device_codecs import codec_of
from chunkflow.system import native

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in"),
    pytest.mark.skipif(native.chunks is None, reason="built without a C compiler"),
]
KB = 1000
BOUNDARIES = ["none", "nearest", "reflect", "mirror", "periodic", 1.5]


@cache
def _cuda() -> Any:
    from chunkflow.devices import rates
    from chunkflow.devices.cuda.device import CupyDevice

    return CupyDevice(0, machine=replace(rates.gpu(), piece=64 << 10, whole=0, threads=3, decode=1.0))


class Where:
    """A device that decodes, and finds that faster: a GPU, or the CPU in one of its modes, with a race detector."""

    def __init__(self, name: str) -> None:
        self.name, self.mode = name, "" if name == "cuda" else name

    def device(self, **options: Any) -> Any:
        if self.name == "compiled":
            return CompiledDecodingDevice(mode="lazy", poison=True, **options)
        if self.name != "cuda":
            return ClockDevice(DecodingDevice(mode=self.name, poison=True, **options))
        found = _cuda()
        if found.decoder("zstd") is None:
            pytest.skip("nvidia-libnvcomp is not installed")
        return found

    def budget(self, nbytes: int) -> int:
        return nbytes + (self.device().reserve + PAGES if self.name == "cuda" else 0)

    def __str__(self) -> str:
        return self.name


HERE = [pytest.param(Where(mode), id=mode) for mode in (*MODES, *(["compiled"] if BUILT else []))]
everywhere = pytest.mark.parametrize("where", [*HERE, pytest.param(Where("cuda"), id="cuda", marks=pytest.mark.gpu)])
here = pytest.mark.parametrize("where", HERE)


def copied(a: Any) -> Any:
    return a.copy()


def run(where: Where, fn: Callable[..., Any], *arrays: Any, budget: int = 200 * KB, **options: Any) -> np.ndarray:
    """A map, of which at least one operand is decoded on the device; the budget is kept."""
    device = where.device()
    with cf.Budget(where.budget(budget)) as limit:
        plan = cf.explain(fn, *arrays, device=device, **options)
        assert plan.batches, str(plan)
        assert "decoded on the device" in str(plan)
        found: np.ndarray = cf.map(fn, *arrays, device=device, **options)
        assert 0 < limit.peak <= limit.limit
    return found


# -- Values --------------------------------------------------------------------------------------------------


@st.composite
def encoded(draw: st.DrawFn) -> dict[str, Any]:
    """What `zarr.create_array` is told, for an array whose chunks a device can decode."""
    ndim = draw(st.integers(0, 3))
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8", "i2", "?", "c8", "u1", "f2", "i8"])))
    options: dict[str, Any] = {
        "shape": tuple(draw(st.lists(st.integers(1, 13), min_size=ndim, max_size=ndim))),
        "chunks": tuple(draw(st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim))),
        "dtype": dtype,
        "fill_value": draw(st.sampled_from([0, 1] if dtype.kind in "bui" else [0.0, 1.5, float("nan")])),
        "config": {"write_empty_chunks": draw(st.booleans())},
    }
    if draw(st.booleans()):
        codec = draw(
            st.sampled_from([numcodecs.Zstd(1), numcodecs.Zstd(5), numcodecs.LZ4(), numcodecs.GZip(1)]) | bloscs()
        )
        return options | {"zarr_format": 2, "order": draw(st.sampled_from("CF")), "compressors": codec}
    order = draw(st.permutations(range(ndim)))
    if ndim and draw(st.booleans()):
        options["shards"] = tuple(n * draw(st.integers(1, 3)) for n in options["chunks"])
    return options | {
        "filters": [codecs.TransposeCodec(order=order)] if ndim and draw(st.booleans()) else [],
        "compressors": draw(
            st.sampled_from([codecs.ZstdCodec(), _lz4(), codecs.BloscCodec(cname="lz4hc"), codecs.GzipCodec()])
        ),
    }


def bloscs() -> st.SearchStrategy[numcodecs.Blosc]:
    """Blosc as a GPU knows it, whichever way it shuffles and cuts."""
    return st.builds(
        numcodecs.Blosc,
        st.sampled_from(["lz4", "lz4hc", "zstd"]),
        st.integers(0, 9),
        st.sampled_from([numcodecs.Blosc.NOSHUFFLE, numcodecs.Blosc.SHUFFLE, numcodecs.Blosc.BITSHUFFLE]),
        st.sampled_from([0, 512, 1000, 77]),
    )


def _lz4() -> Any:
    from zarr.codecs.numcodecs import LZ4

    return LZ4()


def files(path: Path) -> list[Path]:
    """The chunks' files."""
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] != "." and not p.name.startswith("z"))


def oddly(path: Path, numbers: list[int]) -> None:
    """Store some chunks in another way that decodes to the same: with a checksum, as two frames, or longer."""
    found = files(path)
    codec = numcodecs.Zstd(checksum=True)
    for n in numbers:
        file = found[n % len(found)]
        raw = file.read_bytes()
        if not raw.startswith(b"\x28\xb5\x2f\xfd"):
            continue
        plain = bytes(numcodecs.Zstd().decode(raw))
        half = len(plain) // 2
        file.write_bytes(
            [
                codec.encode(plain),
                numcodecs.Zstd().encode(plain[:half]) + numcodecs.Zstd().encode(plain[half:]),
                raw + (0x184D2A50).to_bytes(4, "little") + (1000).to_bytes(4, "little") + bytes(1000),
            ][n % 3]
        )


@everywhere
@modest
@given(data=st.data())
def test_any_array_is_what_it_was(where: Where, data: st.DataObject, tmp_path: Path) -> None:
    options = data.draw(encoded())
    path, expected = fresh(tmp_path), values(options)
    array = create(path, options)
    array[...] = expected
    if "shards" not in options:
        oddly(path, data.draw(st.lists(st.integers(0, 99), max_size=3)) if files(path) else [])
    budget = data.draw(st.sampled_from([40, 200])) * KB
    if ours(array).chain.nbytes % 4 and "losc" in repr(options):  # what is no whole number of words is the host's
        same(cf.map(copied, path, device=where.device(), budget=where.budget(budget)), expected)
    else:
        same(run(where, copied, path, budget=budget), expected)


def volume(dtype: str = "f4", shape: Shape = (50, 37, 21)) -> np.ndarray:
    rng = np.random.default_rng(7)
    return (rng.integers(-50, 50, shape) / 4).astype(dtype)


def stored(path: Path, array: np.ndarray, **options: Any) -> Path:
    zarr.create_array(path, shape=array.shape, dtype=array.dtype, **({"chunks": (8, 8, 8)} | options))[...] = array
    return path


@everywhere
@pytest.mark.parametrize("boundary", BOUNDARIES, ids=str)
@pytest.mark.parametrize("depth", [1, (3, 0, 2), 9])
def test_blocks_with_a_halo(where: Where, boundary: Any, depth: Any, tmp_path: Path) -> None:
    def fn(a: Any) -> Any:
        return a + 2 * sum(abs(a[-1:, :1, :1] * 0))

    path, device = stored(tmp_path / "x.zarr", volume()), where.device()
    options = {"depth": depth, "boundary": boundary, "chunks": (15, -1, -1)}
    with cf.Budget(where.budget(6000 * KB)) as limit:
        plan = cf.explain(cf.map_overlap, fn, path, device=device, **options)
        assert plan.batches
        assert len(plan.grid) > 1
        got = cf.map_overlap(fn, path, device=device, **options)
        assert limit.peak <= limit.limit
    same(got, cf.map_overlap(fn, volume(), device="cpu", **options))


@everywhere
def test_operands_that_are_encoded_in_different_ways_and_not_at_all(where: Where, tmp_path: Path) -> None:
    x, row = volume(), volume("f4", (1, 37, 21))
    one = stored(tmp_path / "zstd.zarr", x)
    two = stored(tmp_path / "lz4.zarr", x[::-1], chunks=(5, 9, 30), compressors=_lz4())
    three = stored(tmp_path / "blosc.zarr", x * 2, compressors=codecs.BloscCodec(shuffle="bitshuffle"))
    four = stored(tmp_path / "row.zarr", row)
    got = run(where, lambda a, b, c, d, e: a - b + c * d + e, one, two, three, x, four, budget=900 * KB)
    same(got, x - x[::-1] + x * 2 * x + row)


@everywhere
@pytest.mark.parametrize("kilobytes", [60, 100, 200, 1000])
def test_sums_under_any_budget(where: Where, kilobytes: int, tmp_path: Path) -> None:
    x = volume("i4")
    path, device = stored(tmp_path / "x.zarr", x), where.device()
    with cf.Budget(where.budget(kilobytes * KB)) as limit:
        for axis in (None, 0, (1, 2)):
            assert cf.explain(cf.sum, path, axis=axis, device=device).batches
            same(cf.sum(path, axis=axis, device=device), x.sum(axis=axis))
        assert limit.peak <= limit.limit


@everywhere
def test_a_loop_over_blocks(where: Where, tmp_path: Path) -> None:
    x, device = volume("i4"), where.device()
    got = np.zeros_like(x)
    with cf.chunks(stored(tmp_path / "x.zarr", x), budget=where.budget(200 * KB), device=device) as blocks:
        assert blocks.plan.batches
        for block in blocks:
            got[block.region] = block.data.get() if where.name == "cuda" else block.data
    same(got, x)


@everywhere
def test_expressions_decode_too(where: Where, tmp_path: Path) -> None:
    x = volume()
    lazy = cf.open(stored(tmp_path / "x.zarr", x)) * 2 + 1
    same(lazy.compute(budget=where.budget(300 * KB), device=where.device()), x * 2 + 1)


@everywhere
def test_an_array_without_elements(where: Where, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", np.zeros((0, 37, 21), "f4"))
    same(cf.map(copied, path, budget=where.budget(200 * KB), device=where.device()), np.zeros((0, 37, 21), "f4"))


@everywhere
def test_chunks_that_were_never_written(where: Where, tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=(50, 37, 21), chunks=(8, 8, 8), dtype="f4", fill_value=float("nan"))
    expected = np.full((50, 37, 21), np.nan, "f4")
    same(run(where, copied, path), expected)
    shutil.rmtree(path / "c", ignore_errors=True)
    zarr.open_array(path)[3:20] = expected[3:20] = 2
    same(run(where, copied, path), expected)


@pytest.mark.skipif(not BUILT, reason="built without a C compiler")
@pytest.mark.parametrize("shards", [None, (16, 24, 24)])
def test_the_compiled_loops_fetch_chunks_and_python_only_those_that_they_cannot(
    shards: Shape | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One time each."""
    x = volume()
    x[8:24, 8:16] = 0  # such chunks are not stored
    path = stored(tmp_path / "x.zarr", x, shards=shards)
    if not shards:
        oddly(path, [0, 1, 2])
    fetched, read = [], []
    fetch, direct = Packed.fetch, ZarrSource.read

    def fetching(self: Packed, first: int, number: int, out: np.ndarray) -> None:
        fetched.append(number)
        fetch(self, first, number, out)

    def reading(self: ZarrSource, region: Region, out: np.ndarray) -> None:
        read.append(region)
        direct(self, region, out)

    monkeypatch.setattr(Packed, "fetch", fetching)
    monkeypatch.setattr(ZarrSource, "read", reading)
    same(cf.sum(path, axis=0, device=Where("compiled").device(), budget=200 * KB), x.sum(axis=0))
    empty = [(z, 1, x) for z in (1, 2) for x in range(3)]
    assert not fetched
    corners = [tuple(s.start // 8 for s in region) for region in read]
    assert sorted(corners) == sorted(empty + ([] if shards else [(0, 0, 0), (0, 0, 1), (0, 0, 2)]))


@here
@pytest.mark.parametrize("codec", [codecs.ZstdCodec(), codecs.BloscCodec(cname="lz4")])
def test_chunks_that_fit_no_slot_go_through_it_in_parts(where: Where, codec: Any, tmp_path: Path) -> None:
    """Those that are stored, and those that were not."""
    x = np.random.default_rng(3).standard_normal((50, 37, 21)).astype("f4")
    x[:16] = 0
    path, device = stored(tmp_path / "x.zarr", x, compressors=codec), where.device()
    device.machine = replace(device.machine, piece=300)
    plan = cf.explain(copied, path, device=device, budget="400kB")
    assert plan.batches
    assert plan.ring_in is not None
    assert plan.ring_in.slot_bytes == 300 < plan.ring_in.room
    with cf.Profile() as profile:
        same(cf.map(copied, path, device=device, budget="400kB"), x)
    stages = {stage.name: stage.nbytes for stage in profile.report.stages}
    assert 0 < stages["read"] == stages["upload"]


def test_chunks_fit_a_slot_however_small_the_pieces_that_were_the_fastest(tmp_path: Path) -> None:
    """Copies of memory alone tell which are: those of 2 MiB had chunks of 8 MiB go in parts, at a quarter the rate."""
    path = stored(
        tmp_path / "x.zarr", np.zeros((64, 32, 32), "f4"), chunks=(32, 32, 32), compressors=codecs.ZstdCodec()
    )
    rooms = []
    for whole in (0, 128 << 10):
        device = DecodingDevice(mode="eager")
        device.machine = replace(device.machine, piece=16 << 10, whole=whole)
        ring = cf.explain(copied, path, device=device, budget="4MB").ring_in
        assert ring is not None
        rooms.append((ring.room, ring.slot_bytes))
    assert rooms == [(room(128 << 10), 16 << 10), (0, room(128 << 10))]


@pytest.mark.parametrize("kind", [DecodingDevice, *([CompiledDecodingDevice] if BUILT else [])])
def test_a_profile_shows_the_decoding(kind: type[DecodingDevice | CompiledDecodingDevice], tmp_path: Path) -> None:
    x = np.zeros((50, 37, 21), "f4")
    path = stored(tmp_path / "x.zarr", x, config={"write_empty_chunks": True})
    with cf.Profile() as profile:
        cf.map(copied, path, budget="200kB", device=kind(mode="threaded"))
    stages = {stage.name: stage for stage in profile.report.stages}
    assert stages["decode"].nbytes == 7 * 5 * 3 * 8**3 * 4
    assert stages["decode"].seconds > 0
    # What travels is encoded.
    assert 0 < stages["upload"].nbytes == stages["read"].nbytes < x.nbytes / 10
    # What was never written is made up by the host, and travels as it is.
    shutil.rmtree(path / "c")
    with cf.Profile() as profile:
        same(cf.map(copied, path, budget="200kB", device=kind(mode="threaded")), x)
    stages = {stage.name: stage for stage in profile.report.stages}
    assert x.nbytes <= stages["upload"].nbytes == stages["read"].nbytes < x.nbytes * 1.1


def test_one_batch_for_a_block(tmp_path: Path) -> None:
    device = DecodingDevice(mode="threaded")
    path = stored(tmp_path / "x.zarr", volume())
    plan = cf.explain(copied, path, budget="200kB", device=device)
    cf.map(copied, path, budget="200kB", device=device)
    assert len(device.batches) == len(plan.grid)
    assert sum(device.batches) == 7 * 5 * 3
    assert max(device.batches) == plan.batches[0].number


# -- What is chosen ------------------------------------------------------------------------------------------


def test_a_plan_says_where_chunks_are_decoded(tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", volume())
    plan = cf.explain(copied, path, device=DecodingDevice(), budget="200kB")
    assert "directly: zstd, decoded on the device" in str(plan)
    assert plan.memory.decoding > 0
    assert " + decoding " in str(plan)
    assert plan.estimate.stages["decode"] > 0
    plan = cf.explain(copied, path, device=DecodingDevice(chosen=False), budget="200kB")
    assert "directly: zstd, decoded on the host, as the model prefers" in str(plan)
    assert not plan.batches
    assert not plan.memory.decoding
    assert "decode" not in plan.estimate.stages
    device = DecodingDevice()
    device.machine = replace(device.machine, decodings=())
    told = str(cf.explain(copied, path, device=device, budget="200kB"))
    assert "directly: zstd, decoded on the host, as the device has no decoder" in told
    assert "decoded on" not in str(cf.explain(copied, path, device="cpu"))
    flat = stored(tmp_path / "y.zarr", volume()[0], chunks=(8, 8))
    product = cf.explain(cf.matmul, flat, volume()[0].T, device=DecodingDevice(), budget="200kB")
    assert "directly: zstd, decoded on the host, as products' are" in str(product)


def test_a_plan_weighs_time_and_memory(tmp_path: Path) -> None:
    """One chunk takes as long as many, so blocks of many are decoded on the device, and single ones are not."""
    path = stored(tmp_path / "x.zarr", volume("f4", (64, 64, 64)))
    device = DecodingDevice()
    slow = tuple(Decoding(d.codec, 1e8, 1e12, d.temporary) for d in device.machine.decodings)
    device.machine = replace(device.machine, decode=1e9, decodings=slow)
    assert cf.explain(cf.sum, path, device=device, budget="40MB").batches
    assert not cf.explain(cf.sum, path, device=device, budget="40MB", chunks=(8, 8, 8)).batches
    assert not cf.explain(cf.sum, path, device=device, budget="20kB").batches


OTHERS: dict[str, dict[str, Any]] = {
    "blosc of another codec": {"compressors": codecs.BloscCodec(cname="zlib")},
    "zlib": {"compressors": numcodecs.Zlib(), "zarr_format": 2},
    "raw": {"compressors": None},
    "two steps": {"compressors": [codecs.Crc32cCodec(), codecs.ZstdCodec()]},
    "checksum": {"compressors": codecs.ZstdCodec(checksum=True)},
    "big-endian": {"serializer": codecs.BytesCodec(endian="big")},
    "filter": {"zarr_format": 2, "filters": [numcodecs.Shuffle(4)]},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_else_is_done_to_chunks_the_host_undoes(kind: str, tmp_path: Path) -> None:
    path, device = stored(tmp_path / "x.zarr", volume(), **OTHERS[kind]), DecodingDevice()
    plan = cf.explain(copied, path, device=device, budget="400kB")
    assert not plan.batches
    assert "decoded on" not in str(plan)
    same(cf.map(copied, path, device=device, budget="400kB"), volume())
    assert not device.batches


@pytest.mark.parametrize("shards", [None, (16, 16, 16)])
@pytest.mark.parametrize(
    "codec",
    [codecs.ZstdCodec(), codecs.BloscCodec(cname="lz4"), codecs.GzipCodec()],
    ids=lambda codec: type(codec).__name__,
)
def test_a_checksum_behind_a_chunk_is_verified_before_it_is_decoded(codec: Any, shards: Any, tmp_path: Path) -> None:
    device, x = DecodingDevice(), volume()
    path = stored(tmp_path / "x.zarr", x, compressors=[codec, codecs.Crc32cCodec()], shards=shards)
    how: dict[str, Any] = {"device": device, "budget": "800kB"}
    same(cf.map(copied, path, **how), x)
    assert device.batches
    file = path / "c/1/1/0"
    raw = file.read_bytes()
    for at in (0, 40, 100):
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        with pytest.raises(ReadError, match=r"(chunk|shard) c/1/1/0.*crc32c"):
            cf.map(copied, path, **how)


def test_views_and_other_stores_are_decoded_by_the_host(tmp_path: Path) -> None:
    x, device = volume(), DecodingDevice()
    path = stored(tmp_path / "x.zarr", x)
    same((cf.open(path)[::2] * 2).compute(device=device, budget="800kB"), x[::2] * 2)
    memory = zarr.create_array(MemoryStore(), shape=x.shape, chunks=(8, 8, 8), dtype="f4")
    memory[...] = x
    same(cf.map(copied, memory, device=device, budget="400kB"), x)
    assert not device.batches


def test_there_is_nothing_to_decode_in_raw_chunks(tmp_path: Path) -> None:
    device, x = DecodingDevice(chosen=False), volume()
    raw, zstd = (
        cf.explain(copied, stored(tmp_path / f"{c}.zarr", x, compressors=c), device=device, chunks=(50, 37, 21))
        for c in (None, codecs.ZstdCodec())
    )
    assert raw.traffic.read == zstd.traffic.read
    assert (raw.traffic.decode, zstd.traffic.decode) == (0, zstd.traffic.read)
    assert raw.estimate.stages["read"] < zstd.estimate.stages["read"]


def test_without_a_compiler_the_host_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "chunks", None)
    path, device = stored(tmp_path / "x.zarr", volume()), DecodingDevice()
    assert not cf.explain(copied, path, device=device, budget="400kB").batches
    same(cf.map(copied, path, device=device, budget="400kB"), volume())
    assert not device.batches


@st.composite
def operands(draw: st.DrawFn) -> tuple[Operand, ArraySpec, Shape]:
    ndim = draw(st.integers(1, 2))

    def sides(most: int, least: int = 1) -> Shape:
        return tuple(draw(st.lists(st.integers(least, most), min_size=ndim, max_size=ndim)))

    shape, chunks, block = sides(20, 4), sides(6), sides(12)
    axes = tuple(range(ndim))
    if draw(st.booleans()):
        halo = tuple(zip(sides(4, 0), sides(4, 0), strict=True))
        kinds = tuple(draw(st.sampled_from(["none", "nearest", "periodic"])) for _ in axes)
        operand = Operand(axes, halo, shape, kinds)
    else:
        operand = Operand(axes, start=sides(9, 0) if draw(st.booleans()) else ())
    spec = ArraySpec("x", shape, np.dtype("f4"), chunks, storage=Storage(codec="zstd"))
    return operand, spec, tuple(map(min, block, shape))


@modest
@given(operands())
def test_a_batch_has_room_for_every_block(drawn: tuple[Operand, ArraySpec, Shape]) -> None:
    from chunkflow.core.halo import parts

    operand, spec, block = drawn
    assert spec.chunks is not None
    grid = Grid(spec.shape, block)
    found = batch_of(spec, operand, block, spec.shape, DecodingDevice().machine)
    most = 0
    for index in grid.walk(range(len(block))):
        region = operand.region(grid.region(index))
        read = parts(region, operand.extents, operand.boundary) if operand.halo else [(region, ())]
        most = max(most, sum(len(list(touched(part, spec.chunks))) for part, _ in read if all(shape_of(part))))
    assert most <= found.number
    if not operand.halo and not operand.start and all(b % c == 0 for b, c in zip(block, spec.chunks, strict=True)):
        assert most == found.number
    assert found.room >= found.nbytes + found.nbytes // 256 + 64  # more than zstd's and LZ4's own bounds
    assert found.encoded == found.number * found.room


def test_a_batch_takes_as_long_as_its_first_block_or_as_all_its_bytes() -> None:
    """So frames of zstd, whose blocks are decoded side by side, come in large batches however small they are."""
    known = nvcomp.CODECS["zstd"]
    decoding = Decoding("zstd", known.chunk, known.peak, temporary, start=known.start, step=known.step)
    device = replace(DecodingDevice().machine, decodings=(decoding,))
    operand, seconds = Operand((0, 1, 2)), {}
    for side, number in ((32, 1), (64, 1), (64, 512), (128, 1)):
        block = (number * side, side, side)
        spec = ArraySpec("x", block, np.dtype("f4"), (side,) * 3, storage=Storage(codec="zstd"))
        seconds[side, number] = batch_of(spec, operand, block, block, device).seconds
    # As measured: 7.0, 8.2, 8.9 and 16.7 ms.
    assert list(seconds.values()) == pytest.approx([7.0e-3, 8.2e-3, 8.9e-3, 16.7e-3], rel=0.1)


# -- What the host lets through ------------------------------------------------------------------------------


@dataclass
class Handed:
    """A chunk as a device is handed it.

    `items` are rows of numbers: where in the chunk each item begins, its bytes, and those that it decodes to. Its
    `layout` has bytes of a block, items of a block, bytes of an element, and how these are shuffled.
    """

    items: np.ndarray
    layout: tuple[int, int, int, int]
    checksum: int


SOURCE, TARGET = 1 << 40, 1 << 42
"""Addresses in tables that nobody follows."""


def chunk_of(raw: bytes | np.ndarray, nbytes: int, codec: str, tmp_path: Path) -> Handed | None:
    """What a device is handed of a file with these bytes, where a chunk has so many."""
    path, room = tmp_path / "chunk", (2 * nbytes + 4096) // 16 * 16
    path.write_bytes(raw)
    out = np.zeros(2 * room, np.uint8)
    packed = Packed([(str(path), 0, -1), (str(path), 0, len(raw))], codec, nbytes, 1 << 30, room)
    packed.fetch(0, 2, out)
    end, missed = packed.missed(0, 2)
    if missed:
        assert (end, missed) == (0, [0, 1])  # where it lies behind another one, it is no other
        return None
    second = -(-len(raw) // ALIGNMENT) * ALIGNMENT
    assert end == second + len(raw)
    assert out[:end].tobytes() == bytes(raw) + bytes(second - len(raw)) + bytes(raw)
    table = np.zeros(1 << 18, np.uint64)
    plain = packed.tabulate(table, SOURCE, TARGET, together=False)
    given = table[: 4 * plain.decoded].reshape(4, 2, -1).astype(np.int64)
    places = given[0] - SOURCE - np.array([[0], [second]])
    assert np.array_equal(places[0], places[1])
    assert np.array_equal(*given[1:3].swapaxes(0, 1))
    assert plain.ends.tolist() == [plain.decoded // 2, plain.decoded]
    assert plain.checksums[0] == plain.checksums[-1]
    together = packed.tabulate(table, SOURCE, TARGET, together=True)
    rows = table[: ROWS * together.decoded + together.items + 2 * FACTS][-2 * FACTS :].reshape(2, FACTS).tolist()
    assert rows[0][1:] == rows[1][1:]
    assert [row[0] for row in rows] == [0, together.items // 2]
    return Handed(np.stack([places[0], *given[1:3, 0]]), tuple(rows[0][1:]), int(plain.checksums[0]))


def only(found: Handed | None, start: int, length: int, nbytes: int) -> bool:
    """Whether this is a chunk of a single item."""
    return found is not None and found.items.tolist() == [[start], [length], [nbytes]]


def test_a_device_is_handed_whole_frames_of_the_right_size_only(tmp_path: Path) -> None:
    plain = np.random.default_rng(1).integers(0, 40, 300_000).astype("u1").tobytes()
    zstd, lz4, n = numcodecs.Zstd(), numcodecs.LZ4(), 300_000
    good, block = zstd.encode(plain), lz4.encode(plain)
    kind, other = "zstd", "lz4"
    assert only(chunk_of(good, n, kind, tmp_path), 0, len(good), n)
    assert chunk_of(zstd.encode(bytes(n)), n, kind, tmp_path) is not None  # runs of one byte
    noise = zstd.encode(os.urandom(n))
    assert only(chunk_of(noise, n, kind, tmp_path), 0, len(noise), n)
    bad = [good[:-1], good[:20], good[:5], b"", good + b"\0", good + good, b"\0" * 4 + good[4:]]
    bad += [zstd.encode(plain[:-1]), zstd.encode(plain + b"1"), numcodecs.Zstd(checksum=True).encode(plain)]
    bad += [good[:4] + bytes([good[4] | 1]) + good[5:], good[:4] + bytes([good[4] & 0x3F]) + good[5:]]
    bad += [good + bytes(700_000)]  # longer than there is room
    for raw in bad:
        assert chunk_of(raw, n, kind, tmp_path) is None
    assert only(chunk_of(block, n, other, tmp_path), 4, len(block) - 4, n)
    for raw in (b"", block[:4], (n + 1).to_bytes(4, "little") + block[4:], b"\xff" * 4 + block[4:]):
        assert chunk_of(raw, n, other, tmp_path) is None


def item(raw: bytes, nbytes: int, codec: str) -> bytes:
    """What an item decodes to."""
    if len(raw) == nbytes:
        return raw
    return bytes(
        numcodecs.LZ4().decode(nbytes.to_bytes(4, "little") + raw) if codec == "lz4" else numcodecs.Zstd().decode(raw)
    )


WORDS = {1: "u1", 2: "u2", 3: "V3", 4: "u4", 8: "u8", 16: "c16", 24: "V24"}


@modest
@given(
    codec=bloscs(),
    width=st.sampled_from(list(WORDS)),
    elements=st.integers(1, 20_000),
    kind=st.sampled_from(["noise", "steps", "repeated"]),
    data=st.data(),
)
def test_what_is_in_a_blosc_chunk(
    codec: Any, width: int, elements: int, kind: str, data: st.DataObject, tmp_path: Path
) -> None:
    rng, nbytes = np.random.default_rng(elements), elements * width * 4
    plain = {
        "noise": lambda: rng.integers(0, 256, nbytes, "u1"),
        "steps": lambda: np.cumsum(rng.integers(0, 2, nbytes)).astype("u1"),
        "repeated": lambda: np.resize(rng.integers(0, 256, 64, "u1"), nbytes),
    }[kind]()
    raw = np.frombuffer(codec.encode(plain.view(WORDS[width])), "u1")
    inner = codec.cname.removesuffix("hc")
    found = chunk_of(raw, nbytes, f"blosc-{inner}", tmp_path)
    if found is None:
        assert int(raw[8:12].view("<u4")[0]) % 4, "only blocks that end within a word are left to the host"
        return
    decode = {
        "lz4": lambda r, n: numcodecs.LZ4().decode(n.to_bytes(4, "little") + r),
        "zstd": lambda r, n: numcodecs.Zstd().decode(r),
    }
    items = [
        raw[at : at + n].tobytes() if n == size else bytes(decode[inner](raw[at : at + n].tobytes(), size))
        for at, n, size in found.items.T.tolist()
    ]
    flat = np.frombuffer(b"".join(items), "u1")
    side, _, width, shuffled = found.layout
    blocks = [unshuffled(flat[at : at + side], width, shuffled) for at in range(0, nbytes, side)]
    np.testing.assert_array_equal(np.concatenate(blocks), plain)
    # What says something else, or is cut short, is never handed out beyond its end.
    bad = raw.copy()
    for place in data.draw(st.lists(st.integers(0, min(len(raw), 100) - 1), max_size=3)):
        bad[place] = data.draw(st.integers(0, 255))
    for spoiled in (bad, raw[: data.draw(st.integers(0, len(raw) - 1))]):
        seen = chunk_of(spoiled, nbytes, f"blosc-{inner}", tmp_path)
        if seen is not None:
            assert len(spoiled) == len(raw)
            assert (seen.items[0] >= 16).all()
            assert (seen.items[:2].sum(0) <= len(raw)).all()
            assert seen.items[2].sum() == nbytes
            assert (seen.items[1] <= seen.items[2]).all()


@pytest.mark.parametrize(
    ("width", "side", "flags", "right"),
    [
        *[(width, 1032, 0x20, True) for width in (2, 3, 4, 6, 8)],
        *[(width, 1032, 0x20, False) for width in (5, 7)],  # a byte, at least, is in no item
        (4, 1028, 0x20, True),  # and one more block, of 4 bytes
        (8, 1028, 0x20, False),
        (4, 1030, 0x20, False),  # ends within a word
        (1, 0, 0x22, False),
        (4, 1036, 0x20, False),
        (4, 1032, 0x28, False),  # a reserved flag
    ],
)
def test_items_of_a_blosc_chunk_make_up_all_of_it(
    width: int, side: int, flags: int, right: bool, tmp_path: Path
) -> None:
    sizes, blocks = [side // width] * width, 1 + (side < 1032)
    first, second = 16 + 4 * blocks, 16 + 4 * blocks + width * (4 + side // width)
    head = np.array([1032, side, 0, first, second], "<u4")[: 3 + blocks]
    sizes += [1032 - side] * (blocks - 1)
    items = b"".join(n.to_bytes(4, "little") + bytes(n) for n in sizes)  # stored as they are
    raw = np.frombuffer(bytes([2, 1, flags, width]) + head.tobytes() + items, "u1").copy()
    raw[12:16].view("<u4")[0] = len(raw)
    found = chunk_of(raw, 1032, "blosc-lz4", tmp_path)
    assert (found is not None) == right
    assert found is None or found.items[2].tolist() == sizes


def test_what_has_too_many_bytes_to_be_put_together_is_the_hosts(tmp_path: Path) -> None:
    for n, codec in ((1 << 30, ""), ((1 << 30) - 1, "blosc-lz4")):
        kind = {"shape": (n,), "chunks": (n,), "dtype": "f4", "compressors": codecs.BloscCodec(cname="lz4")}
        assert codec_of(ours(create(fresh(tmp_path), kind))) == codec


def test_chunks_in_more_items_than_there_is_room_for_are_the_hosts(tmp_path: Path) -> None:
    x, device = np.arange(40_000, dtype="i4"), DecodingDevice()
    small = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.NOSHUFFLE, blocksize=128)
    options = {"chunks": (20_000,), "zarr_format": 2}
    path = stored(tmp_path / "x.zarr", x, compressors=small, **options)
    assert cf.explain(copied, path, device=device, budget="2MB").batches
    same(cf.map(copied, path, device=device, budget="2MB"), x)
    assert not device.batches
    path = stored(tmp_path / "y.zarr", x, compressors=numcodecs.Blosc("lz4", 5, blocksize=4096), **options)
    same(cf.map(copied, path, device=device, budget="2MB"), x)
    assert sum(device.batches) > 2


def test_bytes_in_the_other_order_are_not_for_the_device(tmp_path: Path) -> None:
    array = create(fresh(tmp_path), {"shape": (4,), "chunks": (2,), "dtype": np.dtype(">f4"), "zarr_format": 2})
    assert codec_of(ours(array)) == ""
    assert codec_of(None) == ""


# -- What goes wrong -----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NumpyPool]]:
    """No thread and no device memory is left behind."""
    made: list[NumpyPool] = []
    init = NumpyPool.__init__

    def noting(self: NumpyPool, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(NumpyPool, "__init__", noting)
    yield made
    gc.collect()
    assert at_work() == []
    assert [pool.used for pool in made if pool.used] == []


def damaged(path: Path, kind: str) -> None:
    """Spoil the chunk (3, 2, 1)."""
    file = path / "c" / "3" / "2" / "1"
    raw = bytearray(file.read_bytes())
    if kind == "spoiled":  # all that can be seen without decoding is right
        raw[40:-40] = os.urandom(len(raw) - 80)
    elif kind == "truncated":
        del raw[-30:]
    elif kind == "empty":
        raw.clear()
    elif kind == "oversized":
        raw += bytes(100_000)
    elif kind == "huge":
        raw[4:14] = bytes([0xE0]) + (1 << 60).to_bytes(8, "little")
    file.write_bytes(raw)


@here
@pytest.mark.parametrize("kind", ["spoiled", "truncated", "empty", "oversized", "huge"])
@pytest.mark.parametrize("out", ["y.npy", "y.zarr"])
def test_a_damaged_chunk_is_named_and_nothing_appears(where: Where, kind: str, out: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", np.random.default_rng(0).random((50, 37, 21)))
    damaged(path, kind)
    with pytest.raises(ReadError, match="chunk c/3/2/1") as caught:
        cf.map(copied, path, out=tmp_path / out, budget="400kB", device=where.device())
    assert str(caught.value.path) == str(path)
    assert caught.value.region is not None
    assert [s.start // 8 for s in caught.value.region] == [3, 2, 1]
    assert sorted(os.listdir(tmp_path)) == ["x.zarr"]


@here
def test_a_damaged_chunk_is_seen_by_a_run_in_an_exceptions_handler_too(where: Where, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", np.random.default_rng(0).random((50, 37, 21)))
    damaged(path, "spoiled")
    try:
        raise KeyError("of the caller's own, which he is dealing with")
    except KeyError:
        last = {"chunks": (50, 37, 21), "dtype": "f8", "workspace": 8}  # the only batch, and no trial call before
        with pytest.raises(ReadError, match="chunk c/3/2/1"):
            cf.map(copied, path, out=tmp_path / "y.npy", budget="40MB", device=where.device(), **last)
    assert sorted(os.listdir(tmp_path)) == ["x.zarr"]


@everywhere
@pytest.mark.parametrize("kind", ["truncated", "empty", "huge"])
def test_what_is_seen_to_be_damaged_never_comes_to_the_device(where: Where, kind: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", np.random.default_rng(0).random((50, 37, 21)))
    damaged(path, kind)
    with pytest.raises(ReadError, match="chunk c/3/2/1"):
        cf.sum(path, budget=where.budget(400 * KB), device=where.device())


@here
def test_a_damaged_chunk_ends_a_loop_before_its_block_is_seen(where: Where, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((50, 37, 21))
    path = stored(tmp_path / "x.zarr", x)
    damaged(path, "spoiled")

    def loop() -> None:
        with cf.chunks(path, budget="400kB", device=where.device()) as blocks:
            for block in blocks:
                same(np.array(block.data), x[block.region])

    with pytest.raises(ReadError, match="chunk c/3/2/1"):
        loop()


@everywhere
@pytest.mark.parametrize("kind", ["truncated", "no index", "beyond the end"])
def test_a_damaged_shard_is_named(where: Where, kind: str, tmp_path: Path) -> None:
    path, device = stored(tmp_path / "x.zarr", volume(), shards=(16, 16, 16)), where.device()
    assert cf.explain(copied, path, budget=where.budget(400 * KB), device=device).batches
    file = path / "c" / "1" / "2" / "0"
    raw = bytearray(file.read_bytes())
    if kind == "truncated":
        del raw[50:]
    elif kind == "no index":
        raw[-60:-20] = os.urandom(40)
    else:
        raw[-132:-124] = (1 << 40).to_bytes(8, "little")
        raw[-4:] = CHECKSUM(bytes(raw[-132:-4])).to_bytes(4, "little")
    file.write_bytes(raw)
    with pytest.raises(ReadError, match="shard c/1/2/0"):
        cf.map(copied, path, budget=where.budget(400 * KB), device=device)


@everywhere
def test_a_chunk_with_another_checksum_is_named(where: Where, tmp_path: Path) -> None:
    path, device = stored(tmp_path / "x.zarr", volume(), compressors=codecs.GzipCodec()), where.device()
    assert cf.explain(copied, path, budget=where.budget(400 * KB), device=device).batches
    file = path / "c" / "3" / "2" / "1"
    raw = file.read_bytes()
    file.write_bytes(raw[:-8] + bytes([raw[-8] ^ 1]) + raw[-7:])
    with pytest.raises(ReadError, match="chunk c/3/2/1"):
        cf.map(copied, path, out=tmp_path / "y.npy", budget=where.budget(400 * KB), device=device)
    assert sorted(os.listdir(tmp_path)) == ["x.zarr"]


@here
@pytest.mark.parametrize("after", [0, 40, 104])
def test_a_decoder_that_fails_where_the_hosts_does_not(where: Where, after: int, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", volume())
    with pytest.raises(ReadError, match=r"the device's zstd decoder fails on the chunk .* CHUNKFLOW_NVCOMP=0"):
        cf.map(copied, path, out=tmp_path / "y.npy", budget="200kB", device=where.device(fail_after=after))
    assert sorted(os.listdir(tmp_path)) == ["x.zarr"]


@here
def test_a_batch_that_cannot_be_begun(where: Where, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise cf.errors.DeviceError("no such batch")

    monkeypatch.setattr(Decodes, "_decode", refuse)
    with pytest.raises(cf.errors.DeviceError, match="no such batch"):
        cf.map(copied, stored(tmp_path / "x.zarr", volume()), budget="200kB", device=where.device())


class OopsError(Exception):
    pass


@everywhere
@pytest.mark.parametrize("block", [0, 3])
def test_the_functions_own_error_comes_out(where: Where, block: int, tmp_path: Path) -> None:
    def fn(a: Any, block_id: tuple[int, ...]) -> Any:
        if block_id[0] == block:
            raise OopsError
        return a

    path, device = stored(tmp_path / "x.zarr", volume()), where.device()
    options: dict[str, Any] = {"dtype": "f4", "workspace": 0, "chunks": (8, -1, -1)}
    assert cf.explain(fn, path, budget=where.budget(400 * KB), device=device, **options).batches
    with pytest.raises(OopsError):
        cf.map(fn, path, budget=where.budget(400 * KB), device=device, **options)


@here
def test_a_loop_that_is_left_early(where: Where, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", volume())
    with cf.chunks(path, budget="200kB", device=where.device()) as blocks:
        next(blocks)


# -- Orders --------------------------------------------------------------------------------------------------

EDGES = [Edge.PUBLISHED, Edge.REFILL, Edge.OVERWRITE, Edge.ENQUEUED, Edge.UPLOADED, Edge.LANDED]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("edge", EDGES, ids=lambda e: e.name)
def test_a_run_without_one_edge_is_caught(mode: str, edge: Edge, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", volume("i4"))
    device = ClockDevice(DecodingDevice(mode=mode, poison=True), drop=edge)
    with pytest.raises(RaceError, match="nothing orders it"):
        cf.sum(path, budget="200kB", device=device)


def handed(source: Any, indices: list[Shape]) -> list[bool]:
    """Which of some chunks in shards a device is handed."""
    packed = Packed(source.places(indices), source.codec, 8**3 * 4, 1 << 30, 1 << 12)
    packed.fetch(0, len(indices), np.zeros(len(indices) << 12, np.uint8))
    _, missed = packed.missed(0, len(indices))
    return [k not in missed for k in range(len(indices))]


@pytest.mark.parametrize("seconds", [10**10, -(10**9), 0])
def test_shards_may_be_from_any_time(seconds: int, tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", volume(shape=(16, 16, 16)), shards=(16, 16, 16))
    os.utime(path / "c" / "0" / "0" / "0", (seconds, seconds))
    source: Any = open_source(path)
    for _ in range(2):
        assert handed(source, [(0, 0, 0), (1, 1, 0)]) == [True, True]


def test_shards_that_are_not_there_or_damaged_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path / "x.zarr", volume(shape=(32, 32, 32)), shards=(16, 16, 16))
    shards = path / "c"
    (shards / "0" / "0" / "0").unlink()
    raw = bytearray((shards / "0" / "0" / "1").read_bytes())
    raw[-1] ^= 1  # of the checksum of its index
    (shards / "0" / "0" / "1").write_bytes(raw)
    source: Any = open_source(path)
    direct, looked, plain = source._direct, [], zarrshards.stamped
    monkeypatch.setattr(zarrshards, "stamped", lambda found: (looked.append(found), plain(found))[1])
    indices = [(0, y, x) for y in (0, 1) for x in range(4)]
    assert direct.places(indices) == [None] * 8
    assert len(looked) == 1, "of the other there is nothing to look at"
    there = direct.places([(0, 2, x) for x in range(4)])
    assert None not in there
    assert len(looked) == 3
    assert direct.places([(0, 2, x) for x in range(4)]) == there
    assert len(looked) == 3, "what is there is known from then on"


@pytest.mark.parametrize("change", ["replaced", "rewritten", "removed"])
def test_a_shard_that_is_another_one_since_is_left_to_the_host(change: str, tmp_path: Path) -> None:
    array = volume(shape=(32, 32, 32))
    path = stored(tmp_path / "x.zarr", array, shards=(16, 16, 16))
    other = stored(tmp_path / "y.zarr", -array * 3 + 1, shards=(16, 16, 16))
    source: Any = open_source(path)
    source.guard.release()  # as where the run itself writes to the array
    indices = [(0, 0, 0), (0, 1, 1), (2, 0, 0)]
    assert handed(source, indices) == [True, True, True]
    one, new = path / "c" / "0" / "0" / "0", other / "c" / "0" / "0" / "0"
    if change == "replaced":
        os.replace(new, one)
    elif change == "rewritten":
        one.write_bytes(new.read_bytes())
    else:
        one.unlink()
    assert handed(source, indices) == [False, False, True]
    got = np.empty((8, 8, 8), "f4")
    source.read((slice(0, 8),) * 3, got)  # as the host does: from then on the new one is known
    expected = np.zeros((8, 8, 8)) if change == "removed" else -array[:8, :8, :8] * 3 + 1
    np.testing.assert_array_equal(got, expected)
    assert all(handed(source, indices)) is (change != "removed")


def test_what_the_device_decodes_is_predicted_to_have_slots_besides_those_of_blocks(tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", volume())
    device = DecodingDevice(mode="threaded", poison=True)
    machine = device.machine  # whose stages take about as long as one another, so that more slots would help
    device.machine = replace(machine, depths=(1,), read=20 * machine.read, upload=20 * machine.upload)
    (run,) = cf.explain(cf.sum, path, device=device, budget="400kB", analyze=True).runs
    assert run.plan.batches
    assert len(run.plan.grid) > 1
    assert run.predicted == run.plan.estimate.hidden < run.plan.estimate.seconds


class TestTable:
    """What a decoder is told of a batch, against the same by NumPy."""

    @given(st.data(), st.booleans())
    def test_has_each_item_where_it_lies_and_goes(self, data: st.DataObject, together: bool) -> None:
        nbytes, room = 4096, 8192
        lengths = [
            data.draw(st.none() | st.sampled_from([1, 2, 4, 8]).flatmap(partial(_lengths, nbytes)))
            for _ in range(data.draw(st.integers(0, 5)))
        ]
        group = data.draw(st.integers(1, 5))
        places: list[Any] = []
        want, where, facts, ends, to, at = [], [], [], [], TARGET, 0
        with tempfile.TemporaryDirectory() as folder:
            for k, each in enumerate(lengths):
                at *= k % group > 0
                parts = each or [nbytes]
                facts.append((len(where), nbytes, len(parts), len(parts), BYTES if len(parts) > 1 else PLAIN))
                raw, starts = _blosc(nbytes, parts)
                places.append(data.draw(st.sampled_from([None, (f"{folder}/none", 0, -1)])))
                if each is not None:
                    Path(f"{folder}/{k}").write_bytes(raw)
                    places[k] = f"{folder}/{k}", 0, -1
                for start, length in zip(starts, parts, strict=True):
                    size, source = nbytes // len(parts), SOURCE + room * (k - k % group) + at + start
                    coded = each is not None and not (together and length == size)
                    want += [(source, length, size, to)] * coded
                    where.append(to if coded or each is None else source)
                    to += size
                ends.append(len(want))
                at += -(-len(raw) // ALIGNMENT) * ALIGNMENT if each else 0
            packed = Packed(places, "blosc-lz4", nbytes, 8, room)
            for first in range(0, len(lengths), group):
                some = lengths[first : first + group]
                packed.fetch(first, len(some), np.zeros(len(some) * room, np.uint8))
                _, missed = packed.missed(first, len(some))
                assert missed == [k for k, each in enumerate(some, first) if each is None]
        rest = len(where) + FACTS * len(lengths) if together else 0
        table = np.zeros(ROWS * len(want) + rest + 1, np.uint64)
        found = packed.tabulate(table, SOURCE, TARGET, together=together)
        assert (found.decoded, found.items) == (len(want), len(where))
        assert found.sizes.tolist() == [size for _, _, size, _ in want]
        assert found.checksums.tolist() == [-1] * len(want)
        assert found.ends.tolist() == ends
        rows = table[: ROWS * len(want)].reshape(ROWS, len(want))
        assert [tuple(row) for row in rows[:4].T.tolist()] == want
        assert (rows[4:] == 0xFFFFFFFFFFFFFFFF).all()
        assert table[-1] == 0
        if together:
            assert table[rows.size :][: len(where)].tolist() == where
            assert [tuple(f) for f in table[rows.size + len(where) : -1].reshape(-1, FACTS).tolist()] == facts
        if table.size > 1:
            with pytest.raises(ValueError, match="more items than there is room for"):
                packed.tabulate(table[:-2], SOURCE, TARGET, together=together)

    def test_refuses_what_is_no_chunk(self) -> None:
        packed, out = Packed([None] * 3, "zstd", 64, 1, 16), np.zeros(64, np.uint8)
        for first, number in [(-1, 1), (0, 4), (3, 1), (0, -1), (1 << 62, 1 << 62)]:
            with pytest.raises(IndexError, match=f"not {number} chunks from {first} on"):
                packed.fetch(first, number, out)
            with pytest.raises(IndexError, match=f"not {number} chunks from {first} on"):
                packed.missed(first, number)
        for place in (("text",), "text", ("text\0", 0, -1), (1, 0, -1)):
            with pytest.raises((TypeError, ValueError)):
                Packed([None, place], "zstd", 64, 1, 16)  # type: ignore[list-item]
        for few in (0, 8, 24):
            with pytest.raises(ValueError, match=f"no room for a chunk in {few} bytes"):
                Packed([], "zstd", 64, 1, few)
        assert native.chunks is not None
        with pytest.raises(ValueError, match="Capsule"):
            native.chunks.missed(object(), 0, 1)


def _lengths(nbytes: int, number: int) -> st.SearchStrategy[list[int]]:
    """Bytes of the items of a chunk; those that have as many as they decode to are stored as they are."""
    each = st.sampled_from([1, 100, nbytes // number])
    return st.lists(each, min_size=number, max_size=number)


def _blosc(nbytes: int, lengths: list[int]) -> tuple[bytes, list[int]]:
    """A chunk in one block with items of these bytes, whatever is in them; and where they begin."""
    at, starts, items = 20, [], b""
    for length in lengths:
        starts.append(at + 4)
        items += length.to_bytes(4, "little") + bytes(length)
        at += 4 + length
    head = np.array([nbytes, nbytes, at, 20], "<u4").tobytes()
    return bytes([2, 1, 0x21, len(lengths)]) + head + items, starts
