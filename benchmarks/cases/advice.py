"""Planted faults: whether `Report.advice` names each, and what its what-ifs say beside what the change then brings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import Bench, Listing
from benchmarks.data import cube_side
from benchmarks.timing import median_seconds
from chunkflow.devices.registry import resolve


class Fault(NamedTuple):
    """A slow run, the cause that is to be named, and the run after the change that a what-if may tell of."""

    run: Callable[[], Any]
    cause: str
    change: str = ""
    mended: Callable[[], Any] | None = None


def cases(bench: Bench) -> Iterator[Listing]:
    """One table."""
    head = ["fault", "took, s", "bound by", "named", "what if", "predicted, s", "then took, s", "predicted / took"]
    found = Listing("advice", "faults that are planted, and the advice on each", head)
    for name, fault in faults(bench).items():
        fault.run()
        with cf.Profile() as profile:
            fault.run()
        advice = profile.report.advice()
        named = "yes" if fault.cause in [cause.name for cause in advice.causes] else "NO"
        expected = next((each for each in advice.what_ifs if fault.change and fault.change in each.change), None)
        cells: tuple[object, ...] = ("-",) * 4
        if expected is not None and fault.mended is not None:
            took = median_seconds(fault.mended, bench.repeats)
            cells = expected.change, f"{expected.seconds:.3g}", f"{took:.3g}", f"{expected.seconds / took:.2f}"
        found.add(0.0, name, f"{advice.seconds:.3g}", advice.bound_by, named, *cells)
    yield found


def faults(bench: Bench) -> dict[str, Fault]:
    """Faults that this device can have."""
    side = cube_side(bench.gib, 64)
    x = np.random.default_rng(0).standard_normal((side,) * 3, dtype="f4")
    out, place, options = np.empty_like(x), str(bench.directory), bench.options
    new: dict[str, Any] = {"overwrite": True, **options}
    planes = (max(1, side // 16), -1, -1)

    def stored(name: str, array: np.ndarray, chunks: tuple[int, ...], **how: Any) -> str:
        zarr.create_array(f"{place}/{name}.zarr", data=array, chunks=chunks, overwrite=True, **how)
        return f"{place}/{name}.zarr"

    across = stored("across", x, (side, side // 4, side // 4))
    along = stored("along", x, (planes[0], side, side))
    small = stored("small", x[: side // 4], (8, 16, 16), compressors=None)
    gzip = stored("gzip", x, (max(1, side // 16), side // 4, side), compressors=zarr.codecs.GzipCodec())
    bare = stored("bare", x, (max(1, side // 16), side // 4, side), compressors=None)
    whole = stored("whole", x, x.shape, compressors=zarr.codecs.GzipCodec(level=1))
    np.save(f"{place}/cold.npy", np.concatenate([x] * 4))

    def evicted() -> Any:
        with open(f"{place}/cold.npy", "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return cf.sum(f"{place}/cold.npy", **options)

    def among_others() -> Any:
        with _others(len(os.sched_getaffinity(0))):
            return cf.map(np.sin, x, out=out, **options)

    def walk(path: str) -> Callable[[], Any]:
        return lambda: cf.map(np.tanh, path, chunks=planes, budget=x.nbytes // 3, out=f"{place}/root.npy", **new)

    halo = max(1, side // 16)
    little = 400_000 if not bench.is_gpu else 64 << 20
    found = {
        "Python's lock": Fault(
            lambda: cf.map(_slow, x, out=out, dtype="f4", workspace=8, chunks=planes, **options),
            "threads wait for each other",
        ),
        "small chunks": Fault(lambda: cf.sum(small, **options), "small chunks"),
        "chunks across the blocks": Fault(walk(across), "chunks lie across the blocks", "chunks of", walk(along)),
        "a cold file": Fault(evicted, "the files were not in memory"),
        "a slow codec": Fault(
            lambda: cf.sum(gzip, **options), "decoding takes long", "unencoded", lambda: cf.sum(bare, **options)
        ),
        "halos of small blocks": Fault(
            lambda: cf.map_overlap(
                np.negative, along, depth=halo, budget=x.nbytes // 2, out=f"{place}/root.npy", **new
            ),
            "elements are read again",
            "a budget of",
            lambda: cf.map_overlap(np.negative, along, depth=halo, budget=4 * x.nbytes, out=f"{place}/root.npy", **new),
        ),
        "one core decodes": Fault(lambda: cf.sum(whole, **options), "one core decodes"),
        "a small budget": Fault(
            lambda: cf.map(np.sin, x, out=out, budget=little, **options),
            "a small budget",
            "a budget of",
            lambda: cf.map(np.sin, x, out=out, budget=16 * little, **options),
        ),
        "new pages": Fault(lambda: cf.map(np.negative, x, **options), "the result's memory is new"),
        "other processes": Fault(among_others, "other processes"),
    }
    if bench.is_gpu:
        cubes = stored("cubes", x, (64,) * 3, compressors=zarr.codecs.ZstdCodec())
        found["the host decodes"] = Fault(
            lambda: cf.sum(cubes, **{**options, "device": _without_decoder(bench.device)}), "the host decodes"
        )
        for name in ("Python's lock", "new pages"):  # a GPU has neither
            del found[name]
    return found


def _slow(block: Any) -> Any:
    total = 0.0
    for value in block.reshape(-1)[:1_000_000].tolist():
        total += value
    return block + 0 * total


def _without_decoder(device: str) -> Any:
    """A GPU as it is where nvCOMP is not installed."""
    found = copy(resolve(device))
    found.machine = replace(found.machine, decodings=())
    return found


@contextmanager
def _others(number: int) -> Iterator[None]:
    """So many processes that compute."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
