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
    """A slow run, ``run(source(), **keywords)``, and the cause that is to be named."""

    cause: str
    run: Callable[..., Any]
    source: Callable[[], Any]
    keywords: dict[str, Any]


def cases(bench: Bench) -> Iterator[Listing]:
    """One table: each fault, and each change that is advised beside what it then brought."""
    head = ["fault", "took, s", "bound by", "named", "what if", "predicted, s", "then took, s", "predicted / took"]
    wanted = {name: fault for name, fault in faults(bench).items() if bench.wanted(name)}
    title = "advice" if bench.wanted("") else f"advice on {', '.join(wanted)}"
    found = Listing(title, "faults that are planted, and the advice on each", head)
    for name, fault in wanted.items():
        keywords = {**bench.options, **fault.keywords}
        source = fault.source()
        slow = partial(fault.run, source, **keywords)
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
            took = median_seconds(_changed(fault.run, source, keywords, what_if, bench), bench.repeats)
            cells.append(
                (what_if.change, f"{what_if.seconds:.3g}", f"{took:.3g}", f"{what_if.seconds / took:.2f}"),
            )
        if isinstance(source, tempfile.TemporaryDirectory):
            source.cleanup()
        for each in cells or [("-",) * 4]:
            found.add(0.0, name, f"{advice.seconds:.3g}", advice.bound_by, named, *each)
    yield found


def _changed(
    run: Callable[..., Any], source: Any, keywords: dict[str, Any], what_if: WhatIf, bench: Bench
) -> Callable[[], Any]:
    """The run after a change."""
    change = dict(what_if.keywords)
    if "chunks" in change or "codec" in change:
        stored = zarr.open_array(source)
        how = {"compressors": None} if "codec" in change else {"compressors": stored.compressors}
        chunks = change.pop("chunks", stored.chunks)
        change.pop("codec", None)
        source = str(bench.directory / "changed.zarr")
        zarr.create_array(source, data=stored[...], chunks=chunks, overwrite=True, **how)
    return partial(run, source, **{**keywords, **change})


def faults(bench: Bench) -> dict[str, Fault]:
    """Faults that this device can have."""
    side = cube_side(bench.gib, 64)
    x = np.random.default_rng(0).standard_normal((side,) * 3, dtype="f4")
    out, place = np.empty_like(x), str(bench.directory)
    planes = (max(1, side // 16), -1, -1)
    root: dict[str, Any] = {"out": f"{place}/root.npy", "overwrite": True}

    def stored(chunks: tuple[int, ...], array: np.ndarray = x, **how: Any) -> Callable[[], str]:
        def made() -> str:
            zarr.create_array(f"{place}/x.zarr", data=array, chunks=chunks, overwrite=True, **how)
            return f"{place}/x.zarr"

        return made

    def given() -> np.ndarray:
        return x

    def cold() -> tempfile.TemporaryDirectory[str]:
        disk = tempfile.TemporaryDirectory(dir="/var/tmp")  # the bench's directory may be in memory
        np.save(f"{disk.name}/cold.npy", np.concatenate([x] * 4))
        return disk

    def evicted(source: tempfile.TemporaryDirectory[str], **keywords: Any) -> Any:
        path = f"{source.name}/cold.npy"
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return cf.sum(path, **keywords)

    def among_others(source: Any, **keywords: Any) -> Any:
        with _others(len(os.sched_getaffinity(0))):
            return cf.map(np.sin, source, out=out, **keywords)

    deflated = zarr.codecs.GzipCodec
    found = {
        "Python's lock": Fault(
            "threads wait for each other",
            partial(cf.map, _slow),
            given,
            {"out": out, "dtype": "f4", "workspace": 8, "chunks": planes},
        ),
        "small chunks": Fault("small chunks", cf.sum, stored((8, 16, 16), x[: side // 4], compressors=None), {}),
        "chunks across the blocks": Fault(
            "chunks lie across the blocks",
            partial(cf.map, np.tanh),
            stored((side, side // 4, side // 4)),
            {"chunks": planes, "budget": x.nbytes // 3, **root},
        ),
        "a cold file": Fault("the files were not in memory", evicted, cold, {}),
        "a slow codec": Fault(
            "decoding takes long", cf.sum, stored((planes[0], side // 4, side), compressors=deflated()), {}
        ),
        "halos of small blocks": Fault(
            "one core decodes" if bench.is_gpu else "elements are read again",  # a GPU's blocks share decoded chunks
            partial(cf.map_overlap, np.negative),
            stored((planes[0], side, side)),
            {"depth": planes[0], "budget": x.nbytes // 2, **root},
        ),
        "one core decodes": Fault("one core decodes", cf.sum, stored(x.shape, compressors=deflated(level=1)), {}),
        "a small budget": Fault(
            "a small budget",
            partial(cf.map, np.sin),
            given,
            {"out": out, "budget": 64 << 20 if bench.is_gpu else 400_000},
        ),
        "new pages": Fault("the result's memory is new", partial(cf.map, np.negative), given, {}),
        "other processes": Fault("other processes", among_others, given, {}),
    }
    if bench.is_gpu:
        cubes = stored((64,) * 3, compressors=zarr.codecs.ZstdCodec())
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
