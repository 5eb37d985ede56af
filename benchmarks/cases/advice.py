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
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import zarr

import chunkflow as cf
from benchmarks.case import Bench, Listing
from benchmarks.data import cube_side
from benchmarks.timing import seconds_of
from chunkflow.devices.registry import resolve
from chunkflow.engine.observe.advice import Advice
from chunkflow.engine.observe.what_if import WhatIf


class Fault(NamedTuple):
    """A slow run, ``run(source(directory), **keywords)``, and the cause that is to be named."""

    cause: str
    run: Callable[..., Any]
    source: Callable[[Path], Any]
    keywords: dict[str, Any]


def cases(bench: Bench) -> Iterator[Listing]:
    """One table: each fault, and each change that is advised beside what it then brought."""
    head = ["fault", "took, s", "bound by", "named", "what if", "predicted, s", "then took, s", "predicted / took"]
    watched = [FaultRuns(name, fault, bench) for name, fault in faults(bench).items() if bench.wanted(name)]
    title = "advice" if bench.wanted("") else f"advice on {', '.join(runs.name for runs in watched)}"
    found = Listing(title, "faults that are planted, and the advice on each", head)
    for _ in range(bench.repeats):  # all of them once, and again: a host's speed drifts
        for runs in watched:
            runs.turn()
    for runs in watched:
        for row in runs.rows():
            found.add(0.0, *row)
        runs.close()
    yield found


class FaultRuns:
    """A fault's slow run, and the runs after the changes that are advised, each beside the advice of its turn."""

    def __init__(self, name: str, fault: Fault, bench: Bench) -> None:
        self.name, self.fault = name, fault
        self._directory = tempfile.TemporaryDirectory(dir=bench.directory)
        self._source = fault.source(Path(self._directory.name))
        self._keywords = {**bench.options, **fault.keywords}
        self._advised: list[Advice] = []
        self._changed: dict[str, Callable[[], Any]] = {}
        self._seconds: dict[str, list[tuple[float, float]]] = {}

    def _slow(self) -> Any:
        return self.fault.run(self._source, **self._keywords)

    def turn(self) -> None:
        """The slow run, the advice on it, and what is advised: it runs four times, of which the last three count."""
        self._slow()
        with cf.Profile() as profile:
            self._slow()
        advice = profile.report.advice()
        self._advised.append(advice)
        for what_if in advice.what_ifs:
            if what_if.change not in self._changed:
                self._changed[what_if.change] = self._after(what_if)
            self._changed[what_if.change]()
            took = median(seconds_of(self._changed[what_if.change])[0] for _ in range(3))
            self._seconds.setdefault(what_if.change, []).append((what_if.seconds, took))

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Medians; of changes that most turns advised."""
        turns = len(self._advised)
        middle = sorted(self._advised, key=lambda each: each.seconds)[turns // 2]
        named = sum(self.fault.cause in [cause.name for cause in advice.causes] for advice in self._advised)
        first = (self.name, f"{middle.seconds:.3g}", middle.bound_by, f"{named} of {turns}")
        changes = {change: seconds for change, seconds in self._seconds.items() if 2 * len(seconds) > turns}
        for change, seconds in changes.items():
            predicted, took = (median(each) for each in zip(*seconds, strict=True))
            ratio = median(says / then for says, then in seconds)
            yield *first, change, f"{predicted:.3g}", f"{took:.3g}", f"{ratio:.2f}"
        if not changes:
            yield *first, *("-",) * 4

    def _after(self, what_if: WhatIf) -> Callable[[], Any]:
        """The run after a change; an array that is to be stored in another way is copied."""
        change, source = dict(what_if.keywords), self._source
        if "chunks" in change or "codec" in change:
            stored = zarr.open_array(source)
            how = {"compressors": None} if "codec" in change else {"compressors": stored.compressors}
            chunks = change.pop("chunks", stored.chunks)
            change.pop("codec", None)
            source = f"{self._directory.name}/changed-{len(self._changed)}.zarr"
            zarr.create_array(source, data=stored[...], chunks=chunks, **how)
        return partial(self.fault.run, source, **{**self._keywords, **change})

    def close(self) -> None:
        """Remove what it read and wrote."""
        self._directory.cleanup()
        if isinstance(self._source, tempfile.TemporaryDirectory):
            self._source.cleanup()


def faults(bench: Bench) -> dict[str, Fault]:
    """Faults that this device can have."""
    side = cube_side(bench.gib, 64)
    x = np.random.default_rng(0).standard_normal((side,) * 3, dtype="f4")
    out = np.empty_like(x)
    planes = (max(1, side // 16), -1, -1)

    def stored(chunks: tuple[int, ...], **how: Any) -> Callable[[Path], str]:
        def made(place: Path) -> str:
            zarr.create_array(place / "x.zarr", data=x, chunks=chunks, **how)
            return str(place / "x.zarr")

        return made

    def given(place: Path) -> np.ndarray:
        return x

    def cold(place: Path) -> tempfile.TemporaryDirectory[str]:
        disk = tempfile.TemporaryDirectory(dir="/var/tmp")  # `place` may be in memory
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
        "small chunks": Fault("small chunks", cf.sum, stored((8, 32, 32), compressors=None), {}),
        "chunks across the blocks": Fault(
            "chunks lie across the blocks",
            partial(cf.map, np.tanh),
            stored((side, side // 4, side // 4)),
            {"chunks": planes, "budget": x.nbytes // 3, "out": out},
        ),
        "a cold file": Fault("the files were not in memory", evicted, cold, {}),
        "a slow codec": Fault(
            "decoding takes long", cf.sum, stored((planes[0], side // 4, side), compressors=deflated()), {}
        ),
        "halos of small blocks": Fault(
            "one core decodes" if bench.is_gpu else "elements are read again",  # a GPU's blocks share decoded chunks
            partial(cf.map_overlap, np.negative),
            stored((planes[0], side, side)),
            {"depth": planes[0], "budget": x.nbytes // 2, "out": out},
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
