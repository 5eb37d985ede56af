"""The cases of ``python -m benchmarks``: what is run, beside whom, and what bounds it.

A case measures its own limit in the same run: the link, the disk, the decoders, the device's arithmetic, or chunkflow's
own plain map. Peers that are not installed are left out and named.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr

import chunkflow as cf
from benchmarks.cublasxt import TILES, CublasXt
from benchmarks.harness import Accelerator, blur, in_threads, median_seconds, poison, volume, volume_shape

OURS = "chunkflow"
BLOCK = 256 << 20  # bytes of the blocks of loops by hand
CHUNK = 128  # side of a zarr chunk
SHARD = 2 * CHUNK
ROWS = 256  # of a matrix, that are filled at once


@dataclass(frozen=True)
class Goal:
    """What chunkflow should reach: a share of the limit, or a `rate` in the case's unit."""

    share: float | None = None
    rate: float | None = None

    def met(self, rate: float, limit: float) -> bool:
        return rate >= self.rate if self.rate is not None else rate >= (self.share or 0.0) * limit

    def __str__(self) -> str:
        return f"{self.rate:g}" if self.rate is not None else f"{self.share:.2f} of the limit"


@dataclass(frozen=True)
class Case:
    """Work of `amount` (10^9 bytes, or 10^12 operations), and who does it.

    The `limit` is a rate in `unit`, or None for that of the contender of this name.
    """

    name: str
    what: str
    amount: float
    runs: Mapping[str, Callable[[], Any]]
    check: Callable[[str, Any], object]
    limit: tuple[str, float | None]
    goal: Goal | None = None
    unit: str = "GB/s"
    missing: tuple[str, ...] = ()


@dataclass
class Bench:
    """What cases are told."""

    directory: Path
    device: str
    gib: float
    budget: str
    accelerator: Accelerator = field(init=False)
    _known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accelerator = Accelerator(self.device)

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """What is made, or measured, once for several cases."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    @property
    def xp(self) -> Any:
        return self.accelerator.xp

    @property
    def options(self) -> dict[str, Any]:
        return {"device": self.device}

    @property
    def link(self) -> float:
        """GB/s of one direction."""
        return float(self.once("link", self.accelerator.link))

    @property
    def both(self) -> float:
        """GB/s each way when both directions are at work; on the CPU half of what copies in memory reach."""
        return float(self.once("both", self._both))

    @property
    def x(self) -> np.memmap:
        """A page-cached volume."""
        return self.once("x", lambda: volume(self.directory / "x.bin", volume_shape(self.gib)))  # type: ignore[no-any-return]

    @property
    def ram(self) -> np.ndarray:
        """The same in memory, half of it at most."""
        return self.once("ram", lambda: np.array(self.x[: max(16, len(self.x) // 2)]))  # type: ignore[no-any-return]

    def _both(self) -> float:
        if not self.accelerator.is_gpu:
            return self.link / 2
        cupy, n = self.xp, 1 << 30
        hosts = [cupy.cuda.alloc_pinned_memory(n) for _ in range(2)]
        arrays = [cupy.empty(n, np.uint8) for _ in range(2)]
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

        def copy() -> None:
            for kind, host, array, stream in zip((1, 2), hosts, arrays, streams, strict=True):
                ends = (array.data.ptr, host.ptr) if kind == 1 else (host.ptr, array.data.ptr)
                cupy.cuda.runtime.memcpyAsync(*ends, n, kind, stream.ptr)
            for stream in streams:
                stream.synchronize()

        return n / median_seconds(copy) / 1e9


def installed(*packages: str) -> tuple[list[str], tuple[str, ...]]:
    """Which packages can be imported, and which can't: some are there, but not a library that they need."""
    there = [name for name in packages if _imported(name)]
    return there, tuple(name for name in packages if name not in there)


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, OSError):
        return False
    return True


def work(a: Any) -> Any:
    """What maps compute."""
    return np.sqrt(np.abs(a)) * 2 + 1


def close_to(expected: float) -> Callable[[str, Any], None]:
    """A check of a sum."""

    def check(name: str, got: Any) -> None:
        assert abs(float(got) - expected) <= 1e-6 * abs(expected), f"{name}: {float(got)}, and it is {expected}"

    return check


def loop_sum(bench: Bench, x: Any, step: int) -> Callable[[], float]:
    """Block after block, as people write it."""
    return lambda: sum(float(bench.xp.asarray(x[i : i + step]).sum(dtype="f8")) for i in range(0, len(x), step))


def dask_sum(bench: Bench, x: Any, chunks: Any) -> Callable[[], float]:
    """dask's threads, with CuPy blocks on a GPU."""

    def run() -> float:
        da = importlib.import_module("dask.array")
        lazy = da.from_array(x, chunks=chunks, name=False, inline_array=True)
        if bench.accelerator.is_gpu:
            lazy = lazy.map_blocks(bench.xp.asarray)
        return float(lazy.sum(dtype="f8").compute(scheduler="threads"))

    return run


def cubed_sum(bench: Bench, path: str) -> Callable[[], float]:
    """cubed's threads."""

    def run() -> float:
        cubed, xp = importlib.import_module("cubed"), importlib.import_module("cubed.array_api")
        spec = cubed.Spec(work_dir=str(bench.directory / "cubed"), allowed_mem="4GB", executor_name="threads")
        return float(xp.sum(cubed.from_zarr(path, spec=spec), dtype=xp.float64).compute())

    return run


def dask_map(bench: Bench, array: np.ndarray, out: np.ndarray, chunks: Any) -> Callable[[], object]:
    """The same for a map."""

    def run() -> None:
        lazy = importlib.import_module("dask.array").from_array(array, chunks=chunks, name=False)
        if bench.accelerator.is_gpu:
            lazy = lazy.map_blocks(bench.xp.asarray).map_blocks(work).map_blocks(bench.xp.asnumpy)
        else:
            lazy = lazy.map_blocks(work)
        lazy.store(out, scheduler="threads", lock=False)

    return run


def kvikio_sum(bench: Bench, path: str, nbytes: int) -> Callable[[], float]:
    """KvikIO's parallel reads into device buffers."""

    def run() -> float:
        kvikio, buffer, total = importlib.import_module("kvikio"), bench.xp.empty(BLOCK // 4, "f4"), 0.0
        threads = importlib.import_module("kvikio.defaults").set({"num_threads": os.cpu_count()})
        with threads, kvikio.CuFile(path, "r") as file:
            for start in range(0, nbytes, BLOCK):
                size = min(BLOCK, nbytes - start)
                file.pread(buffer, size, start).get()
                total += float(buffer[: size // 4].sum(dtype="f8"))
        return total

    return run


def file_sums(
    bench: Bench, path: Path, shape: tuple[int, ...], opened: Callable[[], np.ndarray]
) -> tuple[dict[str, Callable[[], Any]], tuple[str, ...]]:
    """Who can sum a raw file, which is mapped by `opened` for each run."""
    nbytes = 4 * math.prod(shape)
    planes = max(1, BLOCK // (nbytes // shape[0]))
    runs: dict[str, Callable[[], Any]] = {OURS: lambda: cf.sum(opened(), **bench.options)}
    runs["a loop over blocks"] = lambda: loop_sum(bench, opened(), planes)()
    there, missing = installed("dask", *(["kvikio"] if bench.accelerator.is_gpu else []))
    if "dask" in there:
        runs["dask, threads"] = lambda: dask_sum(bench, opened(), (planes, -1, -1))()
    if "kvikio" in there:
        runs["KvikIO"] = kvikio_sum(bench, str(path), nbytes)
    return runs, missing


def cached_sum(bench: Bench) -> Iterator[Case]:
    """A page-cached memmap to its sum."""
    x = bench.x
    runs, missing = file_sums(bench, bench.directory / "x.bin", x.shape, lambda: x)
    total = bench.once("total", lambda: float(sum(in_threads(lambda i: x[i].sum(dtype="f8"), len(x)))))
    limit = ("link", bench.link)
    what, check = f"page-cached memmap {x.shape}", close_to(total)
    yield Case("sum", what, x.nbytes / 1e9, runs, check, limit, Goal(0.93), missing=missing)


def reductions(bench: Bench) -> Iterator[Case]:
    """var and max along each axis of the same."""
    x, limit = bench.x, ("link", bench.link)
    index = [0, len(x) // 2, len(x) - 1]
    for name in ("var", "max"):
        for axis in range(3):
            near = getattr(np, name)(x[index].astype("f8"), axis=axis) if axis else None

            def check(who: str, got: Any, axis: int = axis, near: Any = near, name: str = name) -> None:
                if axis:
                    np.testing.assert_allclose(got[index], near, rtol=1e-4)
                else:
                    line = np.asarray(x[:, 7, 11], "f8")
                    np.testing.assert_allclose(got[7, 11], getattr(np, name)(line), rtol=1e-4)

            def run(name: str = name, axis: int = axis) -> Any:
                return getattr(cf, name)(x, axis=axis, **bench.options)

            what = f"page-cached memmap {x.shape}"
            yield Case(f"{name}, axis {axis}", what, x.nbytes / 1e9, {OURS: run}, check, limit, Goal(0.90))


def ram_map(bench: Bench) -> Iterator[Case]:
    """An array in memory through a function into another."""
    ram = bench.ram
    out = bench.once("out", lambda: np.empty_like(ram))
    planes, step = [0, len(ram) // 3, len(ram) - 1], max(1, BLOCK // ram[0].nbytes)
    expected = {i: work(ram[i]) for i in planes}

    def check(name: str, got: Any) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], expected[i], rtol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all(), f"{name} left something out"
        poison(out)

    def loop() -> None:
        for i in range(0, len(ram), step):
            found = work(bench.xp.asarray(ram[i : i + step]))
            out[i : i + step] = found.get() if bench.accelerator.is_gpu else found

    runs: dict[str, Callable[[], Any]] = {OURS: lambda: cf.map(work, ram, out=out, **bench.options)}
    runs["a loop over blocks"] = loop
    there, missing = installed("dask")
    if there:
        runs["dask, threads"] = dask_map(bench, ram, out, (step, -1, -1))
    poison(out)
    limit, what = ("the link, both ways", bench.both), f"RAM to RAM {ram.shape}, each way"
    yield Case("map", what, ram.nbytes / 1e9, runs, check, limit, Goal(0.70), missing=missing)


def stencil(bench: Bench) -> Iterator[Case]:
    """A 7-point stencil beside a map, at the budget and at smaller ones."""
    ram = bench.ram
    out = bench.once("out", lambda: np.empty_like(ram))
    amount = ram.nbytes / 1e9
    planes = [0, len(ram) // 3, len(ram) - 1]
    last = len(ram) - 1
    edged = {i: np.pad(ram[[max(i - 1, 0), i, min(i + 1, last)]], ((0, 0), (1, 1), (1, 1)), "edge") for i in planes}

    expected = {i: (blur(edged[i])[0], work(ram[i])) for i in planes}

    def check(name: str, got: Any) -> None:
        for i in planes:
            np.testing.assert_allclose(out[i], expected[i][name == "a map"], rtol=1e-4, atol=1e-5)
        assert np.isfinite(out[:, ::97, ::89]).all(), f"{name} left something out"
        poison(out)

    def run(**more: Any) -> Any:
        halo: dict[str, Any] = {"depth": 1, "boundary": "nearest", "trim": False, "out": out}
        return cf.map_overlap(blur, ram, **halo, **bench.options, **more)

    poison(out)
    what, full = f"7 points, RAM to RAM {ram.shape}", f"the same with {bench.budget}"
    runs = {OURS: run, "a map": lambda: cf.map(work, ram, out=out, **bench.options)}
    yield Case("stencil", what, amount, runs, check, ("a map", None), Goal(0.95))
    for budget in ("1GB", "256MB"):
        runs = {OURS: lambda b=budget: run(budget=b), full: run}
        yield Case(f"stencil, {budget}", what, amount, runs, check, (full, None), Goal(0.9))


def new_file(bench: Bench) -> Iterator[Case]:
    """RAM through a function into a new .npy file, and a new zarr array; the bound is to write such files."""
    ram, path, written = bench.ram, bench.directory / "y.npy", "writing at positions"

    def write() -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, ram.nbytes)
        in_threads(lambda i: os.pwrite(fd, ram[i].data.cast("B"), i * ram[i].nbytes), len(ram))
        os.close(fd)

    def check(name: str, got: Any) -> None:
        if name == written:
            assert path.stat().st_size == ram.nbytes
        else:
            found = np.load(path, mmap_mode="r")
            for i in (0, len(ram) - 1):
                np.testing.assert_allclose(found[i], work(ram[i]), rtol=1e-5)
            del found
        path.unlink()

    def run() -> None:
        cf.map(work, ram, out=path, **bench.options)

    runs = {OURS: run, written: write}
    yield Case("new .npy", f"RAM {ram.shape} to a file", ram.nbytes / 1e9, runs, check, (written, None), Goal(0.95))
    yield new_zarr(bench)


def new_zarr(bench: Bench) -> Case:
    """The same into chunks as they are; the bound is to write the same bytes to as many files."""
    ram, path, files = bench.ram, bench.directory / "y.zarr", "writing such files"
    sides = tuple(min(CHUNK, n) for n in ram.shape)
    number = math.prod(-(-n // side) for n, side in zip(ram.shape, sides, strict=True))
    parts = np.array_split(ram.reshape(-1).view("u1"), number)

    def created() -> Any:
        return zarr.create_array(path, shape=ram.shape, chunks=sides, dtype=ram.dtype, compressors=None)

    def write() -> None:
        path.mkdir()
        in_threads(lambda i: (path / str(i)).write_bytes(parts[i].data), number)

    def slabs() -> None:
        store, xp = created(), bench.xp
        for i in range(0, len(ram), CHUNK):
            found = work(xp.asarray(ram[i : i + CHUNK]))
            store[i : i + CHUNK] = found.get() if bench.accelerator.is_gpu else found

    def check(name: str, got: Any) -> None:
        if name == files:
            assert sum(file.stat().st_size for file in path.iterdir()) == ram.nbytes
        else:
            store = zarr.open_array(path, mode="r")
            for i in (0, len(ram) - 1):
                np.testing.assert_allclose(store[i], work(ram[i]), rtol=1e-5)
        shutil.rmtree(path)

    runs = {
        OURS: lambda: cf.map(work, ram, out=created(), **bench.options),
        files: write,
        "zarr-python, by slabs": slabs,
    }
    what = f"RAM {ram.shape} to chunks of {sides}"
    return Case("new zarr, raw", what, ram.nbytes / 1e9, runs, check, (files, None), Goal(0.95))


def cold_sum(bench: Bench) -> Iterator[Case]:
    """A file that is on the disk alone; the bound is to read it past the page cache."""
    ram, path = bench.ram, bench.directory / "cold.bin"
    ram.tofile(path)  # one that nobody has mapped: mapped pages can't be dropped
    total, nbytes = float(sum(in_threads(lambda i: ram[i].sum(dtype="f8"), len(ram)))), ram.nbytes
    size = 8 << 20

    def evict() -> None:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    def direct() -> None:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        local = threading.local()

        def read(i: int) -> None:
            if not hasattr(local, "buffer"):
                whole = np.empty(size + 4096, np.uint8)
                start = -whole.ctypes.data % 4096
                local.buffer = whole[start : start + size]
            os.preadv(fd, [local.buffer], i * size)

        in_threads(read, -(-nbytes // size))
        os.close(fd)

    evict()
    runs, missing = file_sums(bench, path, ram.shape, lambda: np.memmap(path, ram.dtype, "r", shape=ram.shape))
    runs["direct reads"] = direct

    def check(name: str, got: Any) -> None:
        if runs[name] is not direct:
            close_to(total)(name, got)
        evict()

    limit = ("direct reads", None)
    yield Case("cold sum", f"file of {ram.shape}", nbytes / 1e9, runs, check, limit, Goal(0.95), missing=missing)
    path.unlink()


def decoding(x: np.ndarray, codec: Any) -> float:
    """GB/s at which all cores decode chunks of `x` into buffers of their own."""
    encoded, local, number = codec.encode(np.ascontiguousarray(x)), threading.local(), 4 * (os.cpu_count() or 1)

    def decode(i: int) -> None:
        if not hasattr(local, "out"):
            local.out = np.empty(x.nbytes, np.uint8)
        codec.decode(encoded, local.out)

    return number * x.nbytes / 1e9 / median_seconds(lambda: in_threads(decode, number))


def zarr_sums(bench: Bench) -> Iterator[Case]:
    """zarr arrays of several codecs to their sums; the bound is the link, or to decode their chunks if that is less."""
    side = max(SHARD, round((bench.gib * 2**30 / 16) ** (1 / 3) / SHARD) * SHARD)
    ax = np.linspace(0, 8 * np.pi, side, dtype="f4")
    x = np.sin(ax)[:, None, None] * np.cos(ax)[:, None] + np.sin(ax * 1.7)
    x += np.round(np.random.default_rng(0).standard_normal((side, side, side), dtype="f4") * 64) / 16384
    check, amount = close_to(float(x.sum(dtype="f8"))), x.nbytes / 1e9
    blosc, zstd, sharded = zarr.codecs.BloscCodec, zarr.codecs.ZstdCodec, {"chunks": (64,) * 3, "shards": (SHARD,) * 3}
    on_device = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.libnvcomp")
    kinds: dict[str, tuple[dict[str, Any], Any, Goal]] = {
        "raw": ({"compressors": None}, None, Goal(rate=38)),
        "blosc lz4": ({"compressors": blosc(cname="lz4", clevel=5)}, numcodecs.Blosc("lz4", 5, 1), Goal(rate=24)),
        "blosc zstd": ({"compressors": blosc(cname="zstd", clevel=3)}, numcodecs.Blosc("zstd", 3, 1), Goal(rate=20)),
        "zstd": ({"compressors": zstd(level=1)}, numcodecs.Zstd(1), Goal(rate=20 if on_device else 10)),
        "zstd in shards": ({"compressors": zstd(level=1), **sharded}, numcodecs.Zstd(1), Goal(0.8)),
    }
    there, missing = installed("dask", "zarrs", *([] if bench.accelerator.is_gpu else ["cubed"]))
    whole = str(bench.directory / "whole.zarr")
    for name, (options, codec, goal) in kinds.items():
        path = str(bench.directory / f"{name.replace(' ', '-')}.zarr")
        store = zarr.create_array(path, shape=x.shape, dtype="f4", **{"chunks": (CHUNK,) * 3, **options})
        for i in range(0, side, SHARD):
            store[i : i + SHARD] = x[i : i + SHARD]

        def slabs(store: Any = store) -> float:
            return float(sum(bench.xp.asarray(store[i : i + CHUNK]).sum(dtype="f8") for i in range(0, side, CHUNK)))

        def through_zarrs(path: str = path, slabs: Callable[..., float] = slabs) -> float:
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                return slabs(zarr.open_array(path, mode="r"))

        runs: dict[str, Callable[[], Any]] = {OURS: lambda path=path: cf.sum(path, **bench.options)}
        runs["zarr-python, by slabs"] = slabs
        if "zarrs" in there:
            runs["zarrs, by slabs"] = through_zarrs
        if "dask" in there:
            runs["dask, threads"] = dask_sum(bench, store, store.shards or store.chunks)
        if "cubed" in there:
            runs["cubed, threads"] = cubed_sum(bench, path)
        limit: tuple[str, float | None] = ("the link", bench.link)
        if codec is not None and store.shards is None:
            own = decoding(x[tuple(slice(0, n) for n in store.chunks)], codec)
            limit = ("decoding by all cores", own) if own < bench.link else limit
        if store.shards is not None:
            zarr.create_array(whole, data=x, chunks=store.chunks, compressors=options["compressors"], overwrite=True)
            limit = ("the same without shards", None)
            runs[limit[0]] = lambda: cf.sum(whole, **bench.options)
        what = f"{x.shape} in chunks of {store.chunks}"
        yield Case(f"zarr, {name}", what, amount, runs, check, limit, goal, missing=missing)
        shutil.rmtree(path)
    shutil.rmtree(whole, ignore_errors=True)


def fill(matrix: np.ndarray, i: int) -> None:
    """Random numbers for some rows of a matrix."""
    part = matrix[i * ROWS : (i + 1) * ROWS]
    part[...] = np.random.default_rng(i).random(part.shape, part.dtype) - 0.5


def pinned_product(peer: CublasXt, a: np.ndarray, b: np.ndarray) -> Callable[[], np.ndarray]:
    """A product of arrays in memory, with the tile that is best for large ones, and with the time to pin them."""
    out = np.zeros_like(a)

    def run() -> np.ndarray:
        with peer.pinned(a, b, out):
            peer.matmul(a, b, out, min(TILES[-1], len(a)))
        return out

    return run


def products(bench: Bench) -> Iterator[Case]:
    """Products of memmaps; the bound is the in-core rate."""
    for dtype, full, share in (("f4", 32768, 0.97), ("f8", 16384, 0.95)):
        side = full if bench.gib >= 8 else max(256, int(full * (bench.gib / 16) ** 0.5) // 256 * 256)
        names = [bench.directory / f"{name}-{dtype}.bin" for name in "abc"]
        a, b, c = (np.memmap(name, dtype, "w+", shape=(side, side)) for name in names)
        for m in (a, b):
            in_threads(lambda i, m=m: fill(m, i), side // ROWS)
        lines = [0, side // 3, side - 1]
        expected = np.asarray(a[lines], "f8") @ np.asarray(b[:, :512], "f8")
        amount = 2 * side**3 / 1e12
        here = min(side, 8192)
        p, q = (bench.xp.asarray(m[:here, :here]) for m in (a, b))

        def in_core(p: Any = p, q: Any = q) -> None:
            p @ q
            bench.accelerator.wait()

        best = 2 * here**3 / 1e12 / median_seconds(in_core)
        del p, q, in_core
        bench.accelerator.free()

        def check(name: str, c: Any, lines: list[int] = lines, expected: Any = expected) -> None:
            np.testing.assert_allclose(c[lines][:, :512], expected, rtol=1e-2, atol=1e-1)
            in_threads(lambda i: c[i * ROWS : (i + 1) * ROWS].fill(np.nan), len(c) // ROWS)

        def run(a: Any = a, b: Any = b, c: Any = c) -> Any:
            cf.matmul(a, b, out=c, **bench.options)
            return c

        runs: dict[str, Callable[[], Any]] = {OURS: run}
        peer = CublasXt.find(bench.xp) if bench.accelerator.is_gpu else None
        if peer is not None:
            runs["cuBLASXt, pins its arrays"] = pinned_product(peer, np.array(a), np.array(b))

        name, what, limit = f"product, {np.dtype(dtype)}", f"memmaps of {side}^2", ("in core", best)
        missing = ("cuBLASXt",) if bench.accelerator.is_gpu and peer is None else ()
        yield Case(name, what, amount, runs, check, limit, Goal(share), "TFLOP/s", missing=missing)
        if peer is not None:
            peer.close()
        del a, b, c, run, runs
        for path in names:
            path.unlink()


CASES: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "sum": cached_sum,
    "reductions": reductions,
    "map": ram_map,
    "stencil": stencil,
    "file": new_file,
    "cold": cold_sum,
    "zarr": zarr_sums,
    "products": products,
}
