"""``chunkflow calibrate`` measures the rates of a device and its host, so that plans are made for this machine.

Stages are measured as runs use them. On a device with its own memory, short runs are profiled, with several numbers of
threads and sizes of pieces. On a device that shares the host's memory, all cores copy and compute at the same time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.reductions import sums
from chunkflow.cli.common import Commands, add_device, byte_count, command, refuse
from chunkflow.core.machine import Machine
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.devices import measured_rates, resolve
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import Budget
from chunkflow.engine.observe.analysis import Analysis, analyzed
from chunkflow.engine.observe.profile import Profile
from chunkflow.engine.observe.report import Report
from chunkflow.errors import ArgumentError
from chunkflow.stores import scratch_array
from chunkflow.stores.caches.page_cache import absent, drop
from chunkflow.system.host import cores

BLOCK = 1 << 20
"""Bytes of a block that a core copies or computes. It stays in the cache."""

BLOCKS = 256
"""Blocks of a run that is so small that its time is the overhead of its blocks."""

PIECES = (2 << 20, 4 << 20, 8 << 20)

CODED = 64 << 20
"""Bytes of numbers that are encoded and decoded."""

CHUNKS = 128
"""Chunks of an array whose chunks are files. With arrays of the usual size a chunk has 8 MiB."""

OLD = 64 << 20
"""Bytes of the smallest file by which a disk is measured; the overhead of a run is some milliseconds."""

LONG = 0.02
"""Seconds of a product that is long enough to be measured."""

LARGE = 64 << 20
"""Bytes of a block that is large enough to be measured."""

CALLS = 4
"""Calls of a measured function in a row, so that the device does not wait after each."""

PROFILES = 5
"""Profiled runs; the median one gives the rates of the stages."""

WORTHWHILE = 0.97
"""Another number of threads or size of pieces is used only if it takes less than this part of the time, twice."""


@dataclass(frozen=True)
class Tuned:
    """The result of a calibration: measured rates, runs that were planned with them, and what could not be measured."""

    machine: Machine
    runs: dict[str, Analysis]
    missing: str = ""


@dataclass(frozen=True)
class ScratchFiles:
    """Temporary files of an array in a directory, by which writes and reads are measured.

    `ArgumentError` if they cannot be written there.
    """

    array: np.ndarray
    folder: Path

    def __post_init__(self) -> None:
        needed = 2 * max(self.array.nbytes, OLD)  # one that replaces another is beside it for a while
        try:
            with TemporaryDirectory(dir=self.folder):
                free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise ArgumentError(f"no file can be written in {self.folder}: {error}: name another with --dir") from error
        if free < needed:
            raise ArgumentError(
                f"{self.folder} has {format_bytes(free)} left, and files of {format_bytes(needed)} are written there "
                "for a while: name another directory with --dir"
            )

    def create(self, options: dict[str, Any]) -> float:
        """Bytes per second of a new file."""
        with TemporaryDirectory(dir=self.folder) as folder:
            made = {"out": f"{folder}/new.npy", "overwrite": True, **options}
            return _written(partial(mapping.map, np.negative, self.array, **made))

    def scatter(self, options: dict[str, Any]) -> float:
        """Bytes per second of a new file whose blocks are narrow."""
        width = self.array.shape[1]
        x = self.array[: len(self.array) // 4 * 4].reshape(-1, 4 * width)
        with TemporaryDirectory(dir=self.folder) as folder:
            made = {"out": f"{folder}/new.npy", "overwrite": True, **options}
            return _written(partial(mapping.map, np.negative, x, chunks=(max(len(x) // CHUNKS, 1), width), **made))

    def separate(self, options: dict[str, Any]) -> float:
        """Bytes per second of chunks that are new files."""
        with TemporaryDirectory(dir=self.folder) as folder:
            sides = len(self.array) // CHUNKS, self.array.shape[1]

            def new() -> None:
                path = f"{folder}/new.zarr"
                shutil.rmtree(path, ignore_errors=True)  # to replace a file takes longer
                out = scratch_array(path, self.array.shape, self.array.dtype, sides)
                mapping.map(np.negative, self.array, out=out, **options)

            return _written(new)

    def coded(self, options: dict[str, Any]) -> dict[str, Any]:
        """Bytes per second at which a thread encodes and decodes chunks as zarr does by default.

        They hold numbers of a few digits: ones would take no time, and noise is not made smaller.
        """
        x = self.array[: max(CODED // self.array[0].nbytes, 1)]
        numbers = (np.random.default_rng(0).integers(0, 1000, x.shape) / 8).astype(x.dtype)
        lanes, out = options["device"].machine.lanes, np.zeros_like(x)
        with TemporaryDirectory(dir=self.folder) as folder:
            sides = max(len(x) // CHUNKS, 1), x.shape[1]
            place: dict[str, Any] = {"out": f"{folder}/new.zarr", "overwrite": True, "chunks": sides}
            encoded = fastest(partial(mapping.map, np.negative, numbers, **place, **options))
            plain = fastest(partial(mapping.map, np.negative, numbers, out=out, **options))
            decoded = fastest(partial(sums.sum, f"{folder}/new.zarr", **options))
            summed = fastest(partial(sums.sum, out, **options))
        seconds = {"encode": encoded - plain, "decode": decoded - summed}
        return {name: x.nbytes / max(taken * lanes, 1e-9) for name, taken in seconds.items() if taken > 0}

    def load(self, options: dict[str, Any]) -> float:
        """Bytes per second at which a thread reads unencoded chunks that are in the system's memory."""
        x = self.array
        with TemporaryDirectory(dir=self.folder) as folder:
            raw = scratch_array(f"{folder}/new.zarr", x.shape, x.dtype, (max(len(x) // CHUNKS, 1), x.shape[1]))
            mapping.map(np.negative, x, out=raw, **options)
            loaded, summed = (fastest(partial(sums.sum, y, **options)) for y in (f"{folder}/new.zarr", x))
        lanes: int = options["device"].machine.lanes
        return x.nbytes / (max(loaded - summed, 1e-9) * lanes)

    def handling(self, options: dict[str, Any]) -> float:
        """Seconds for each chunk of blocks that have some, beyond those of blocks in memory."""
        x, each = self.array[:BLOCKS], {"chunks": (BLOCKS // 64, -1), **options}
        with TemporaryDirectory(dir=self.folder) as folder:
            out = scratch_array(f"{folder}/new.zarr", x.shape, x.dtype, (1, x.shape[1]))
            mapping.map(np.negative, x, out=out, **options)
            chunked, plain = (fastest(partial(sums.sum, y, **each)) for y in (f"{folder}/new.zarr", x))
        return max((chunked - plain) / len(x), 0.0)

    def disk(self, options: dict[str, Any]) -> float:
        """Bytes per second of a file that is not in memory; 0 if files stay in memory, or if that is not known."""
        array = np.ones(max(self.array.nbytes // 4, OLD) // 4, "f4")
        with TemporaryDirectory(dir=self.folder) as folder, open(f"{folder}/old.npy", "wb+") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
            drop(file.fileno())
            if not absent(file.fileno(), 0, array.nbytes):
                return 0.0

            def cold() -> None:
                drop(file.fileno())
                sums.sum(file.name, **options)

            return array.nbytes / fastest(cold)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "calibrate", calibrate, "measure this machine's rates and keep them for later plans")
    add_device(parser)
    told = "bytes of the arrays it measures with, 64MiB at least (default: 1GB)"
    parser.add_argument("--size", type=_size, default="1GB", help=told)
    parser.add_argument("--dir", type=Path, help="a directory of the disk to measure (default: for temporary files)")
    parser.add_argument("--forget", action="store_true", help="go back to the usual rates")


def _size(text: str) -> str:
    """Bytes of arrays that are large enough to be measured."""
    if parse_bytes(byte_count(text)) < LARGE:
        raise argparse.ArgumentTypeError(f"{text!r} is too little to measure rates with: give 64MiB or more")
    return text


def calibrate(options: argparse.Namespace) -> int:
    """Measure a device and its host, and keep the rates; or forget them."""
    found = resolve(options.device)
    if options.forget:
        where = measured_rates.forget(found.model)
        print(f"forgot the rates in {where}" if where else f"no rates of {found.model} are kept")
        return 0
    if measured_rates.path(found.model) is None:
        refuse(f"{measured_rates.VARIABLE}=0 says that no rates are kept: unset it, or name a directory")
    before = found.machine
    result = tuned(found, parse_bytes(options.size), options.dir)
    print("bytes per second, seconds of what is not moved, and bytes of pieces:")
    for name in (*measured_rates.RATES, *measured_rates.SECONDS, *measured_rates.SIZES):
        if not getattr(result.machine, name):
            continue  # it has none of its own, and counts as another
        print(f"  {name:<10}{getattr(result.machine, name):>12.4g}   before {getattr(before, name):.4g}")
    if result.missing:
        print(f"  {result.missing}")
    for name, analysis in result.runs.items():
        print(f"  {name}: {analysis.runs[-1]}")
    print(f"kept in {measured_rates.keep(result.machine, found.model)}")
    return 0


def tuned(device: Device, nbytes: int = 1 << 30, folder: Path | None = None) -> Tuned:
    """Measure a device with arrays of `nbytes` in host memory, or more where it has many lanes. Takes a few seconds.

    Files are written, and read, in `folder` for a while: where temporary ones go, by default. `ArgumentError` if they
    cannot be written there.
    """
    x = np.ones((max(nbytes, 4 * BLOCK * device.machine.lanes) // 4096, 1024), "f4")
    files = ScratchFiles(x, folder or Path(gettempdir()))
    out = np.zeros_like(x)
    with Budget(4 * x.nbytes if 8 * x.nbytes < device.free_memory() else "50%") as budget:
        options: dict[str, Any] = {"device": device, "budget": budget}
        machine = _staged(device, x, out, options) if device.machine.staged else host_rates(device, x, out)
        with _planned(device, machine):
            made = {name: getattr(files, name)(options) for name in ("create", "scatter", "separate")}
            machine = replace(machine, **made)
            if not device.machine.staged:
                machine = replace(machine, **files.coded(options), load=files.load(options))
            disk = files.disk(options)
        lacks = "" if disk else f"files in {files.folder} stay in memory, so no disk is measured: name one with --dir"
        machine = replace(machine, multiply=_products(device), disk=disk or machine.disk)
        with _planned(device, machine):
            few = x[:BLOCKS]
            many, one = (fastest(partial(mapping.map, np.negative, few, chunks=(n, -1), **options)) for n in (1, -1))
            chunks = machine.handling if machine.staged else files.handling(options)
        machine = replace(machine, overhead=max((many - one) / BLOCKS, 1e-6), handling=chunks)
        with _planned(device, machine):
            runs: dict[str, Callable[[], Any]] = {
                "a sum": lambda: sums.sum(x, **options),
                "a map": lambda: mapping.map(np.negative, x, out=out, **options),
            }
            for run in runs.values():
                run()
            return Tuned(machine, {name: analyzed(run) for name, run in runs.items()}, lacks)


@contextmanager
def _planned(device: Device, machine: Machine) -> Iterator[None]:
    """Plan with these rates within the context."""
    before, device.machine = device.machine, machine
    try:
        yield
    finally:
        device.machine = before


def fastest(run: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest of several runs, after a first one that does not count."""
    found = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return min(found[1:])


def profiled(run: Callable[[], Any], repeats: int = 1) -> Report:
    """Report of the run with the median time of several, after a first one that does not count."""
    run()
    found = []
    for _ in range(repeats):
        with Profile() as profile:
            run()
        found.append(profile.report)
    return sorted(found, key=lambda report: report.seconds)[repeats // 2]


def _written(new: Callable[[], Any]) -> float:
    """Bytes per second at which a run writes a new file, in the best of several runs.

    Fresh memory takes longer, and so do files while others are written to the disk.
    """
    new()
    return max(stage.rate for _ in range(2) for stage in profiled(new).stages if stage.name == "write")


def _staged(device: Device, x: np.ndarray, out: np.ndarray, options: dict[str, Any]) -> Machine:
    """The fastest number of threads and size of pieces of a sum and a map, with the rates of their stages."""

    def seconds(tried: Machine) -> float:
        with _planned(device, tried):
            total = fastest(lambda: sums.sum(x, **options))
            return total + fastest(lambda: mapping.map(np.negative, x, out=out, **options))

    usual, most = device.machine, cores()
    best, least = usual, seconds(usual)
    for threads in sorted({max(2, most * share // 8) for share in (3, 4, 6, 8)}):
        for piece in PIECES:
            tried = replace(usual, threads=threads, piece=piece)
            if (found := seconds(tried)) < WORTHWHILE * least:
                best, least = tried, found
    if seconds(best) > WORTHWHILE * seconds(usual):  # of many, one is the fastest by chance
        best = usual
    with _planned(device, best):
        up = profiled(lambda: sums.sum(x, **options), PROFILES)
        narrow = x.view("u1")[:, :1024]  # four bytes of the result for each byte of the block
        down = profiled(lambda: mapping.map(lambda b: b.astype("f4"), narrow, out=out, **options), PROFILES)
    seen = [*up.stages, *(stage for stage in down.stages if stage.name in ("download", "write"))]
    rates: dict[str, Any] = {stage.name: stage.rate for stage in seen}
    return replace(best, **rates | {"compute": _steps(device, x)})


def host_rates(device: Device, x: np.ndarray, out: np.ndarray) -> Machine:
    """Rates of one core while all cores work."""
    lanes, rows = device.machine.lanes, BLOCK // x[0].nbytes
    slots = [(np.empty_like(x[:rows]), np.empty_like(x[:rows])) for _ in range(lanes)]
    shares = [range(lane * rows, len(x) - rows + 1, lanes * rows) for lane in range(lanes)]

    def each(work: Callable[[int, np.ndarray, np.ndarray], Any]) -> float:
        """Bytes per second of work on the blocks of one lane."""

        def run(lane: int) -> None:
            for start in shares[lane]:
                work(start, *slots[lane])

        with ThreadPoolExecutor(lanes) as threads:
            seconds = fastest(lambda: list(threads.map(run, range(lanes))))
        return len(shares[0]) * slots[0][0].nbytes / seconds

    return replace(
        device.machine,
        read=each(lambda i, slot, _: np.copyto(slot, x[i : i + rows])),
        write=each(lambda i, slot, _: np.copyto(out[i : i + rows], slot)),
        compute=3 * each(lambda _, slot, other: np.negative(slot, out=other).sum(dtype="f8")),
        fresh=_given(lanes),
    )


def _given(lanes: int) -> float:
    """Bytes per second of memory that is new to a lane, but that the process has used before."""

    def take(_: int) -> None:
        np.empty(LARGE, np.uint8).fill(0)

    with ThreadPoolExecutor(lanes) as threads:
        return LARGE / fastest(lambda: list(threads.map(take, range(lanes))))


def _products(device: Device) -> float:
    """Multiply-adds per second in single precision."""
    for side in (512, 1024, 2048, 4096, 8192):
        seconds = _called(device, [np.ones((side, side), "f4")] * 2, lambda a, b: a @ b)
        if seconds > LONG:
            break
    return side**3 / seconds


def _steps(device: Device, x: np.ndarray) -> float:
    """Bytes per second of two elementwise steps, counting the block, the intermediate array and the result.

    Measured outside a run: there, small blocks take longer than their bytes, which the overhead accounts for.
    """
    block = x[: max(LARGE // x[0].nbytes, 1)]
    return 3 * block.nbytes / _called(device, [block], lambda a: abs(-a))


def _called(device: Device, arrays: Sequence[np.ndarray], fn: Callable[..., Any]) -> float:
    """Seconds of a call of a function of arrays on the device, from several calls in a row."""
    lane = device.lane()
    try:
        with device.attach():
            operands = [device.to_device(a) for a in arrays]

            def run() -> None:
                for _ in range(CALLS):
                    lane.call(lambda: fn(*operands)).result()
                lane.synchronize()

            return fastest(run) / CALLS
    finally:
        lane.close()
