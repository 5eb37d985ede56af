"""Measures a device and its host, so that plans are made for this machine and not for the usual one.

Stages are measured as runs use them: on a device with memory of its own by the profile of short runs, of several
numbers of threads and sizes of pieces; where the host's memory is shared by copies and arithmetic on all cores at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chunkflow import api, reductions
from chunkflow.analysis import Analysis, analyzed
from chunkflow.budget import Budget
from chunkflow.cost import Machine
from chunkflow.devices.base import Device
from chunkflow.host import cores
from chunkflow.profile import Profile, Report

BLOCK = 1 << 20
"""Bytes of a block that a core copies or computes: it stays in the cache."""

BLOCKS = 256
"""Blocks of a run whose seconds are those of the blocks, not of their bytes."""

PIECES = (2 << 20, 4 << 20, 8 << 20)

LONG = 0.02
"""Seconds of a product that is large enough to tell."""

WORTHWHILE = 0.97
"""Other threads, or other pieces, must take this part of the seconds, and do so again, or the usual ones stay."""


@dataclass(frozen=True)
class Tuned:
    """What was measured.

    Attributes
    ----------
    machine : Machine
        The device's, with measured rates.
    runs : dict of str to Analysis
        Runs that were planned with them: predicted beside measured seconds.
    """

    machine: Machine
    runs: dict[str, Analysis]


def tuned(device: Device, nbytes: int = 1 << 30) -> Tuned:
    """Measure a device with arrays of `nbytes` in host memory. Takes a few seconds."""
    x = np.ones(max(nbytes // 4, 1 << 16) // 1024 * 1024, "f4").reshape(-1, 1024)
    out = np.zeros_like(x)
    with Budget(4 * x.nbytes if 8 * x.nbytes < device.free_memory() else "50%") as budget:
        options: dict[str, Any] = {"device": device, "budget": budget}
        measure = _staged if device.machine.staged else _shared
        machine = replace(measure(device, x, out, options), multiply=_products(device))
        with _planned(device, machine):
            few = x[:BLOCKS]
            many, one = (_seconds(partial(api.map, np.negative, few, chunks=(n, -1), **options)) for n in (1, -1))
        machine = replace(machine, overhead=max((many - one) / BLOCKS, 1e-6))
        with _planned(device, machine):
            runs: dict[str, Callable[[], Any]] = {
                "a sum": lambda: reductions.sum(x, **options),
                "a map": lambda: api.map(np.negative, x, out=out, **options),
            }
            for run in runs.values():
                run()
            return Tuned(machine, {name: analyzed(run) for name, run in runs.items()})


@contextmanager
def _planned(device: Device, machine: Machine) -> Iterator[None]:
    """Plan with these rates for a while."""
    before, device.machine = device.machine, machine
    try:
        yield
    finally:
        device.machine = before


def _seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The least of several runs, after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        run()
        found.append(time.perf_counter() - begun)
    return min(found[1:])


def _profiled(run: Callable[[], Any]) -> Report:
    run()
    with Profile() as profile:
        run()
    return profile.report


def _staged(device: Device, x: np.ndarray, out: np.ndarray, options: dict[str, Any]) -> Machine:
    """Threads and pieces with which a sum and a map are fastest, and the rates of their stages then."""

    def both() -> float:
        total = _seconds(lambda: reductions.sum(x, **options))
        return total + _seconds(lambda: api.map(np.negative, x, out=out, **options))

    def seconds(tried: Machine) -> float:
        with _planned(device, tried):
            return both()

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
        up = _profiled(lambda: reductions.sum(x, **options))
        down = _profiled(lambda: api.map(_widened, x.view("u1")[:, :1024], out=out, **options))
        with TemporaryDirectory() as folder:
            path, few = f"{folder}/new.npy", x[: len(x) // 4]
            new = _profiled(lambda: api.map(np.negative, few, out=path, overwrite=True, **options))
    seen = [*up.stages, *(stage for stage in down.stages if stage.name in ("compute", "download", "write"))]
    rates: dict[str, Any] = {stage.name: stage.rate for stage in seen}
    return replace(best, create=next(stage.rate for stage in new.stages if stage.name == "write"), **rates)


def _widened(block: Any) -> Any:
    """Four bytes of result for each one of the block."""
    return block.astype(np.float32)


def _shared(device: Device, x: np.ndarray, out: np.ndarray, options: dict[str, Any]) -> Machine:
    """Rates of one core while all of them are at work."""
    lanes, rows = device.machine.lanes, BLOCK // x[0].nbytes
    slots = [(np.empty_like(x[:rows]), np.empty_like(x[:rows])) for _ in range(lanes)]
    shares = [range(lane * rows, len(x) - rows + 1, lanes * rows) for lane in range(lanes)]

    def each(work: Callable[[int, np.ndarray, np.ndarray], Any]) -> float:
        """Bytes per second of work on the blocks of one lane."""

        def run(lane: int) -> None:
            for start in shares[lane]:
                work(start, *slots[lane])

        with ThreadPoolExecutor(lanes) as threads:
            seconds = _seconds(lambda: list(threads.map(run, range(lanes))))
        return len(shares[0]) * slots[0][0].nbytes / seconds

    return replace(
        device.machine,
        read=each(lambda i, slot, _: np.copyto(slot, x[i : i + rows])),
        write=each(lambda i, slot, _: np.copyto(out[i : i + rows], slot)),
        compute=3 * each(lambda _, slot, other: np.negative(slot, out=other).sum(dtype="f8")),
    )


def _products(device: Device) -> float:
    """Multiply-adds per second of single precision."""
    lane = device.lane()

    def rate(side: int) -> tuple[float, float]:
        a, b = (device.to_device(np.ones((side, side), "f4")) for _ in range(2))

        def run() -> None:
            lane.call(lambda: a @ b).result()
            lane.synchronize()

        seconds = _seconds(run)
        return seconds, side**3 / seconds

    try:
        with device.attach():
            for side in (512, 1024, 2048, 4096, 8192):
                seconds, found = rate(side)
                if seconds > LONG:
                    break
        return found
    finally:
        lane.close()
