"""Planted faults: whether `Report.advice` names each, and what it says of changes beside what these then bring."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import Bench, Listing
from benchmarks.data import cube_side
from benchmarks.timing import median_seconds
from chunkflow.devices.registry import resolve
from chunkflow.engine.observe.what_if import WhatIf


class Fault(NamedTuple):
    """A slow run, ``run(source, **keywords)``, and the cause that is to be named."""

    cause: str
    run: Callable[..., Any]
    source: Any
    keywords: dict[str, Any]


def cases(bench: Bench) -> Iterator[Listing]:
    """One table: each fault, and each change that is advised beside what it then brought."""
    head = ["fault", "took, s", "bound by", "named", "what if", "predicted, s", "then took, s", "predicted / took"]
    found = Listing("advice", "faults that are planted, and the advice on each", head)
    for name, fault in faults(bench).items():
        if not bench.wanted(name):
            continue
        keywords = {**bench.options, **fault.keywords}
        slow = partial(fault.run, fault.source, **keywords)
        slow()
        seen = []
        for _ in range(bench.repeats):
            with cf.Profile() as profile:
                slow()
            seen.append(profile.report.advice())
        advice = sorted(seen, key=lambda each: each.seconds)[len(seen) // 2]
        named = "yes" if fault.cause in [cause.name for cause in advice.causes] else "NO"
        cells: list[tuple[object, ...]] = []
        for what_if in advice.what_ifs:
            took = median_seconds(_changed(fault, keywords, what_if, bench), bench.repeats)
            cells.append(
                (what_if.change, f"{what_if.seconds:.3g}", f"{took:.3g}", f"{what_if.seconds / took:.2f}"),
            )
        for each in cells or [("-",) * 4]:
            found.add(0.0, name, f"{advice.seconds:.3g}", advice.bound_by, named, *each)
    yield found


def _changed(fault: Fault, keywords: dict[str, Any], what_if: WhatIf, bench: Bench) -> Callable[[], Any]:
    """The run after a change."""
    source, change = fault.source, dict(what_if.keywords)
    if "chunks" in change or "codec" in change:
        stored = zarr.open_array(source)
        how = {"compressors": None} if "codec" in change else {"compressors": stored.compressors}
        chunks = change.pop("chunks", stored.chunks)
        change.pop("codec", None)
        source = str(bench.directory / "changed.zarr")
        zarr.create_array(source, data=stored[...], chunks=chunks, overwrite=True, **how)
    return partial(fault.run, source, **{**keywords, **change})


def faults(bench: Bench) -> dict[str, Fault]:
    """Faults that this device can have."""
    side = cube_side(bench.gib, 64)
    x = np.random.default_rng(0).standard_normal((side,) * 3, dtype="f4")
    out, place = np.empty_like(x), str(bench.directory)
    planes = (max(1, side // 16), -1, -1)
    root: dict[str, Any] = {"out": f"{place}/root.npy", "overwrite": True}

    def stored(name: str, array: np.ndarray, chunks: tuple[int, ...], **how: Any) -> str:
        zarr.create_array(f"{place}/{name}.zarr", data=array, chunks=chunks, overwrite=True, **how)
        return f"{place}/{name}.zarr"

    along = stored("along", x, (planes[0], side, side))
    gzip = stored("gzip", x, (max(1, side // 16), side // 4, side), compressors=zarr.codecs.GzipCodec())
    small = stored("small", x[: side // 4], (8, 16, 16), compressors=None)
    whole = stored("whole", x, x.shape, compressors=zarr.codecs.GzipCodec(level=1))
    disk = tempfile.TemporaryDirectory(dir="/var/tmp")  # the directory may be in memory
    np.save(f"{disk.name}/cold.npy", np.concatenate([x] * 4))

    def evicted(source: tempfile.TemporaryDirectory[str], **keywords: Any) -> Any:
        path = f"{source.name}/cold.npy"
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return cf.sum(path, **keywords)

    def among_others(source: Any, **keywords: Any) -> Any:
        with _others(len(os.sched_getaffinity(0))):
            return cf.map(np.sin, source, out=out, **keywords)

    overlap = partial(cf.map_overlap, np.negative)
    found = {
        "Python's lock": Fault(
            "threads wait for each other",
            partial(cf.map, _slow),
            x,
            {"out": out, "dtype": "f4", "workspace": 8, "chunks": planes},
        ),
        "small chunks": Fault("small chunks", cf.sum, small, {}),
        "chunks across the blocks": Fault(
            "chunks lie across the blocks",
            partial(cf.map, np.tanh),
            stored("across", x, (side, side // 4, side // 4)),
            {"chunks": planes, "budget": x.nbytes // 3, **root},
        ),
        "a cold file": Fault("the files were not in memory", evicted, disk, {}),
        "a slow codec": Fault("decoding takes long", cf.sum, gzip, {}),
        "halos of small blocks": Fault(
            "elements are read again", overlap, along, {"depth": planes[0], "budget": x.nbytes // 2, **root}
        ),
        "one core decodes": Fault("one core decodes", cf.sum, whole, {}),
        "a small budget": Fault(
            "a small budget",
            partial(cf.map, np.sin),
            x,
            {"out": out, "budget": 64 << 20 if bench.is_gpu else 400_000},
        ),
        "new pages": Fault("the result's memory is new", partial(cf.map, np.negative), x, {}),
        "other processes": Fault("other processes", among_others, x, {}),
    }
    if bench.is_gpu:
        cubes = stored("cubes", x, (64,) * 3, compressors=zarr.codecs.ZstdCodec())
        found["the host decodes"] = Fault("the host decodes", cf.sum, cubes, {"device": _without_decoder(bench.device)})
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
