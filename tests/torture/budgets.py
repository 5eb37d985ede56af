"""``python -m torture.budgets``: random runs of every operation, and whether each kept its budget.

Run it with ``PYTHONPATH=tests:.``, as ``make torture`` does. Each run is made twice, in forked processes that have made
a tiny run of the same kind before, so that all is imported:

- **traced**: the most bytes that `tracemalloc` saw at once, of NumPy's arrays and of Python's objects;
- **process**: how much memory that is no file's the process got at most, by the kernel (`RssAnon`, looked at each
  millisecond: `VmHWM` has the pages of mapped files too). It has what compiled code allocates, and stacks of threads.
  The C library gives back at once what is freed in blocks of 128 KiB and more (`MALLOC_MMAP_THRESHOLD_`): what its heap
  keeps for later is no part of a budget.

With ``--device cuda`` each run is made once, in a process of its own that has the bare context of the card and nothing
else, and the driver is asked each millisecond what is free: what libraries take counts. No other process may use the
card meanwhile.

Runs that are refused count as others do. What is returned in memory is the caller's.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import gc
import importlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import zarr
from support.budgets import DriverMemory
from zarr.codecs import BloscCodec, ZstdCodec

import chunkflow as cf


class Limits(NamedTuple):
    """Bytes that are drawn for a device."""

    least: int
    """of the smallest budget"""
    most: int
    """of the largest one"""
    largest: int
    """of the largest array"""


LIMITS = {"cpu": Limits(2 << 20, 256_000_000, 96 << 20), "cuda": Limits(64_000_000, 1_000_000_000, 768 << 20)}

HEAP = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}

SLACK = {"traced": 0, "process": 3 << 20, "driver": 0}
"""Bytes beside the budget by each figure: a process has stacks, and what its heap keeps."""


class Data(NamedTuple):
    """An array in a file."""

    path: str
    shape: tuple[int, ...]
    dtype: str


class Operation(NamedTuple):
    """An operation on an array in a file: called with it, a directory for outputs, random numbers and options."""

    name: str
    run: Callable[[Data, str, random.Random, dict[str, Any]], Any]
    dtypes: tuple[str, ...] = ("f4", "f8", "i4", "u2")
    dims: tuple[int, ...] = (1, 2, 3)


# -- Operations ----------------------------------------------------------------------------------------------


def neighbours(block: Any) -> Any:
    """The mean of two neighbours along the first axis, and a halo of one along each."""
    inner = tuple(slice(1, -1) for _ in block.shape[1:])
    return (block[(slice(None, -2), *inner)] + block[(slice(2, None), *inner)]) / 2


def smoothed(block: Any) -> Any:
    """The same, of the block's shape."""
    found = block.copy()
    found[tuple(slice(1, -1) for _ in block.shape)] = neighbours(block)
    return found


def greedy(block: Any) -> Any:
    """A function with several temporaries of its block's size."""
    a, b, c = block * 2.0, block + 1.0, np.sqrt(np.abs(block) + 1.0)
    return a + b * c


def _axis(x: Data, r: random.Random) -> int:
    return r.randrange(len(x.shape))


def _axes(x: Data, r: random.Random) -> Any:
    return r.choice([None, _axis(x, r), _axis(x, r)])


def _out(folder: str, r: random.Random) -> str:
    return f"{folder}/y{r.choice(['.npy', '.zarr', '.h5:/y'])}"


def _chunks(x: Data, folder: str, r: random.Random, how: dict[str, Any]) -> float:
    with cf.chunks(x.path, **how) as stream:
        return float(sum(float(chunk.data.max()) for chunk in stream))


def _reductions() -> list[Operation]:
    names = ["sum", "mean", "std", "var", "min", "max", "ptp", "prod", "count_nonzero", "any", "all"]
    names += ["nansum", "nanmean", "nanmax", "nanstd"]

    def of(name: str) -> Operation:
        def run(x: Data, folder: str, r: random.Random, how: dict[str, Any]) -> Any:
            return getattr(cf, name)(x.path, axis=_axes(x, r), out=_out(folder, r), **how)

        return Operation(name, run)

    return [of(name) for name in names]


def _lazy(name: str, make: Callable[[Any, Data, random.Random], Any], **facts: Any) -> Operation:
    """An expression, which is stored."""

    def run(x: Data, folder: str, r: random.Random, how: dict[str, Any]) -> Any:
        made = make(cf.open(x.path), x, r)
        if isinstance(made, tuple):
            return cf.store(list(made), [f"{folder}/y{i}.zarr" for i in range(len(made))], **how)
        return cf.store(made, _out(folder, r), **how)

    return Operation(name, run, **facts)


def _eager(name: str, call: Callable[..., Any], **facts: Any) -> Operation:
    """A function of the array and random numbers that takes ``out=``."""

    def run(x: Data, folder: str, r: random.Random, how: dict[str, Any]) -> Any:
        return call(x, r, out=_out(folder, r), **how)

    return Operation(name, run, **facts)


def _kept(name: str, call: Callable[..., Any], **facts: Any) -> Operation:
    """A function that returns its result in memory."""
    return Operation(name, lambda x, folder, r, how: call(x, r, **how), **facts)


def ones(*shape: int) -> Any:
    """An array of the caller's, which takes no memory."""
    return np.broadcast_to(np.float32(1), shape)


def _convolve(x: Data, r: random.Random, **how: Any) -> Any:
    return cf.fft.convolve(x.path, np.ones([min(n, 5) for n in x.shape], x.dtype), mode="same", **how)


def _some(n: int, r: random.Random) -> np.ndarray:
    """Places along an axis: sorted or not, few or many. They are the caller's, so they are not to weigh much."""
    rng = np.random.default_rng(r.randrange(1 << 30))
    found = rng.integers(0, n, max(1, min(20_000, int(n * r.choice([0.01, 0.3, 1.0])))))
    return np.sort(found) if r.random() < 0.6 else found


def _places(x: Any, data: Data, r: random.Random) -> Any:
    axis = r.randrange(len(data.shape))
    return x[(*(slice(None),) * axis, _some(data.shape[axis], r))] + 1


def _points(x: Any, data: Data, r: random.Random) -> Any:
    one = _some(data.shape[0], r)
    return x[one, one % data.shape[1]] * 2


def _histogram_lazy(x: Any, data: Data, r: random.Random) -> Any:
    return np.histogram(x, r.choice([10, 100_000]), (0, 1000))[0]


REAL, WHOLE, COMPLEX = ("f4", "f8"), ("u2", "i4"), ("f4", "f8", "c8")

OPERATIONS: tuple[Operation, ...] = (
    _eager("map", lambda x, r, **o: cf.map(np.negative, x.path, **o)),
    _eager("map to another dtype", lambda x, r, **o: cf.map(lambda b: b.astype("f8"), x.path, **o)),
    _eager("map with temporaries", lambda x, r, **o: cf.map(greedy, x.path, **o)),
    _eager("map of two", lambda x, r, **o: cf.map(np.hypot, x.path, x.path, **o), dtypes=REAL),
    _eager("map to a new axis", lambda x, r, **o: cf.map(lambda b: np.stack([b, b]), x.path, new_axis=0, **o)),
    _eager("map without an axis", lambda x, r, **o: cf.map(lambda b: b.max(0), x.path, drop_axis=0, **o), dims=(2, 3)),
    _eager(
        "blockwise",
        lambda x, r, **o: cf.blockwise(lambda b: b.max(1), "i", x.path, "ij", combine=np.maximum, **o),
        dims=(2,),
    ),
    Operation("chunks", _chunks),
    _eager(
        "map_overlap",
        lambda x, r, **o: cf.map_overlap(
            neighbours, x.path, depth=1, boundary=r.choice(["nearest", "reflect", "periodic", 0]), trim=False, **o
        ),
        dtypes=REAL,
    ),
    _eager(
        "map_overlap, iterated",
        lambda x, r, **o: cf.map_overlap(
            smoothed,
            x.path,
            depth=1,
            boundary=r.choice(["nearest", "periodic", 0]),
            iterations=r.choice([2, 4, 7]),
            **o,
        ),
        dtypes=("f8",),
    ),
    _eager(
        "map_overlap, four times",
        lambda x, r, **o: cf.map_overlap(smoothed, x.path, depth=1, boundary="nearest", iterations=4, **o),
        dtypes=("f8",),
    ),
    *_reductions(),
    _eager("argmax", lambda x, r, **o: cf.argmax(x.path, axis=_axis(x, r), **o)),
    _eager("nanargmin", lambda x, r, **o: cf.nanargmin(x.path, axis=_axis(x, r), **o), dtypes=REAL),
    _eager("norm", lambda x, r, **o: cf.norm(x.path, axis=_axis(x, r), **o)),
    _eager("average", lambda x, r, **o: cf.average(x.path, 0, ones(x.shape[0]), **o)),
    _eager("reduction", lambda x, r, **o: cf.reduction(x.path, np.max, np.max, axis=_axis(x, r), **o)),
    _eager("median", lambda x, r, **o: cf.median(x.path, axis=_axis(x, r), **o), dims=(2, 3)),
    _kept("median of all", lambda x, r, **o: cf.median(x.path, **o)),
    _eager(
        "quantile", lambda x, r, **o: cf.quantile(x.path, [0.1, 0.9], axis=_axis(x, r), **o), dtypes=REAL, dims=(2, 3)
    ),
    _kept("quantile of all", lambda x, r, **o: cf.quantile(x.path, [0.1, 0.5, 0.9], **o), dtypes=REAL),
    _eager("topk", lambda x, r, **o: cf.topk(x.path, r.choice([3, 50]), axis=_axis(x, r), **o)),
    _kept("unique", lambda x, r, **o: cf.unique(x.path, return_counts=r.choice([True, False]), **o), dtypes=WHOLE),
    _kept(
        "bincount",
        lambda x, r, **o: cf.bincount(x.path, minlength=r.choice([0, 300_000, 1_000_000]), **o),
        dtypes=WHOLE,
        dims=(1,),
    ),
    _kept(
        "histogram",
        lambda x, r, **o: cf.histogram(x.path, r.choice([10, 1000, 100_000]), r.choice([None, (0, 1000)]), **o),
    ),
    _kept("histogram of many bins", lambda x, r, **o: cf.histogram(x.path, 100_000, (0, 1000), **o)),
    _kept("histogram of few bins", lambda x, r, **o: cf.histogram(x.path, 50, (0, 1000), **o)),
    _kept("bincount of many", lambda x, r, **o: cf.bincount(x.path, minlength=200_000, **o), dtypes=WHOLE, dims=(1,)),
    _kept("histogram by a rule", lambda x, r, **o: cf.histogram(x.path, "auto", **o), dtypes=REAL),
    _lazy("histogram, lazy", _histogram_lazy),
    Operation(
        "label_statistics",
        lambda x, folder, r, how: cf.label_statistics(x.path, x.path, r.choice(["mean", "max", "var"]), **how),
        dtypes=WHOLE,
    ),
    _eager("cumsum", lambda x, r, **o: cf.cumsum(x.path, axis=_axis(x, r), **o)),
    _eager("ffill", lambda x, r, **o: cf.ffill(x.path, axis=_axis(x, r), **o), dtypes=REAL),
    _eager("cumsum of all", lambda x, r, **o: cf.cumsum(x.path, **o)),
    _eager("maximum_accumulate", lambda x, r, **o: cf.maximum_accumulate(x.path, axis=_axis(x, r), **o)),
    _eager("diff", lambda x, r, **o: cf.diff(x.path, axis=_axis(x, r), **o)),
    _lazy("cumsums", lambda x, d, r: (np.cumsum(x, 0), np.cumsum(x * 2, len(d.shape) - 1))),
    _lazy("cumsum of a cumsum", lambda x, d, r: np.cumsum(np.cumsum(x, 0), -1)),
    _eager("gram", lambda x, r, **o: cf.gram(x.path, **o), dims=(2,), dtypes=REAL),
    _eager("cov", lambda x, r, **o: cf.cov(x.path, rowvar=r.choice([True, False]), **o), dims=(2,)),
    _eager("corrcoef", lambda x, r, **o: cf.corrcoef(x.path, rowvar=r.choice([True, False]), **o), dims=(2,)),
    _eager(
        "matmul",
        lambda x, r, **o: cf.matmul(x.path, ones(x.shape[1], r.choice([1, 8, 100])), **o),
        dims=(2,),
        dtypes=REAL,
    ),
    _lazy("matmul of itself", lambda x, d, r: x.T @ x, dims=(2,), dtypes=REAL),
    _eager("tensordot", lambda x, r, **o: cf.tensordot(x.path, x.path, len(x.shape), **o), dtypes=REAL),
    _eager("einsum", lambda x, r, **o: cf.einsum("ij,ij->i", x.path, x.path, **o), dims=(2,), dtypes=REAL),
    _eager("vecdot", lambda x, r, **o: cf.vecdot(x.path, x.path, **o), dtypes=REAL, dims=(2, 3)),
    _eager("outer", lambda x, r, **o: cf.outer(x.path, np.arange(3.0), **o), dims=(1,), dtypes=REAL),
    _eager("transpose", lambda x, r, **o: cf.transpose(x.path, **o), dims=(2, 3)),
    _eager("flip", lambda x, r, **o: cf.flip(x.path, **o)),
    _eager("roll", lambda x, r, **o: cf.roll(x.path, 77, _axis(x, r), **o)),
    _eager("roll of all", lambda x, r, **o: cf.roll(x.path, 77, **o)),
    _eager("repeat", lambda x, r, **o: cf.repeat(x.path, 2, _axis(x, r), **o)),
    _eager("pad", lambda x, r, **o: cf.pad(x.path, 3, r.choice(["constant", "edge", "reflect"]), **o)),
    _eager("concatenate", lambda x, r, **o: cf.concatenate([x.path, x.path], _axis(x, r), **o)),
    _eager("stack", lambda x, r, **o: cf.stack([x.path, x.path], 0, **o)),
    _eager("copy", lambda x, r, out, **o: cf.copy(x.path, out, **o)),
    _eager(
        "rechunk",
        lambda x, r, out, **o: cf.rechunk(x.path, [r.choice([n, max(1, n // 3), min(n, 64)]) for n in x.shape],
                                          out.replace(".npy", ".zarr"), **o),
    ),
    _lazy("reshape", lambda x, d, r: x.reshape(-1) * 2),
    _lazy("index", lambda x, d, r: x[::-2] + 1),
    _lazy("places", _places),
    _lazy("points", _points, dims=(2, 3)),
    _eager("take", lambda x, r, **o: cf.take(x.path, _some(x.shape[0], r), 0, **o)),
    _lazy("minus its mean", lambda x, d, r: x - x.mean(r.choice([None, 0]))),
    _lazy("elementwise", lambda x, d, r: np.where(x > 3, np.sqrt(np.abs(x)) * 2, x + 1)),
    _lazy("several", lambda x, d, r: (x.sum(0), x * 2, x.mean(), np.maximum(x, 1))),
    _lazy("median, lazy", lambda x, d, r: np.median(x, axis=_axis(d, r)), dims=(2, 3)),
    _lazy("median of all, lazy", lambda x, d, r: x * 1.0 - np.median(x)),
    _lazy("stencil of an expression", lambda x, d, r: cf.map_overlap(neighbours, x + 1, depth=1, boundary="nearest",
                                                                   trim=False) * 2, dtypes=REAL),
    _eager("fft", lambda x, r, **o: cf.fft.fft(x.path, axis=_axis(x, r), **o), dtypes=COMPLEX),
    _eager("rfft", lambda x, r, **o: cf.fft.rfft(x.path, axis=_axis(x, r), **o), dtypes=REAL),
    _eager("fftn", lambda x, r, **o: cf.fft.fftn(x.path, **o), dtypes=COMPLEX),
    _eager("convolve", _convolve, dtypes=REAL),
)  # fmt: skip


# -- Arrays --------------------------------------------------------------------------------------------------

FORMATS = ("npy", "raw zarr", "zstd", "blosc", "sharded", "h5", "gzip")
TINY = (5, 4, 6)
OUT = "out"


@dataclass(frozen=True)
class Case:
    """A run that is drawn: all of it follows from a seed."""

    number: int
    operation: int
    format: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    budget: int
    seed: int
    device: str = "cpu"

    def __str__(self) -> str:
        name = OPERATIONS[self.operation].name
        what = f"{self.format} {self.dtype} {self.shape} in {self.chunks}"
        return f"{self.number}: {name} of {what} at {self.budget} ({self.budget / 2**20:.3g} MiB)"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def drawn(number: int, seed: int, names: str = "", device: str = "cpu", most: int = 0) -> Case:
    """The case of a number, with budgets up to `most`, or those of the device."""
    limits = LIMITS[device]
    r = random.Random(f"{seed} {number}")
    among = [i for i, o in enumerate(OPERATIONS) if names in o.name]
    operation = among[number % len(among)]
    facts = OPERATIONS[operation]
    budget = int(limits.least * ((most or limits.most) / limits.least) ** r.random())
    dtype, dims = r.choice(facts.dtypes), r.choice(facts.dims)
    elements = min(limits.largest, int(budget * r.uniform(1.2, 6))) // np.dtype(dtype).itemsize
    shape: list[int] = []
    for left in range(dims, 1, -1):  # sides of several lengths
        side = int(min(elements // 4, 3000) ** r.uniform(0.3, 1)) + 3 if left > 1 else elements
        shape.append(side)
        elements = max(8, elements // side)
    shape.append(elements)
    r.shuffle(shape)
    chunks = list(shape)
    target = int((32 << 10) * (budget / 4 / (32 << 10)) ** r.random()) // np.dtype(dtype).itemsize
    while math.prod(chunks) > target and max(chunks) > 1:
        axis = r.choice([a for a, n in enumerate(chunks) if n > 1])
        chunks[axis] = -(-chunks[axis] // 2)
    format, noise = r.choice(FORMATS), r.randrange(1 << 30)
    return Case(number, operation, format, dtype, tuple(shape), tuple(chunks), budget, noise, device)


def put(folder: Path, case: Case, shape: tuple[int, ...]) -> Data:
    """Write an array of noise by the library of its format."""
    chunks = tuple(min(c, n) for c, n in zip(case.chunks, shape, strict=True))
    noise = np.random.default_rng(case.seed).random(1 << 18) * 1000
    x = np.resize(noise.astype(case.dtype), shape)
    if case.format == "npy":
        path = str(folder / "x.npy")
        np.save(path, x)
        return Data(path, shape, case.dtype)
    if case.format in ("h5", "gzip"):
        with h5py.File(folder / "x.h5", "w") as file:
            how: dict[str, Any] = {} if case.format == "h5" else {"chunks": chunks, "compression": "gzip"}
            file.create_dataset("x", data=x, compression_opts=1 if how else None, **how)
        return Data(f"{folder}/x.h5:/x", shape, case.dtype)
    path = str(folder / "x.zarr")
    coded: dict[str, Any] = {"compressors": {"zstd": ZstdCodec(), "blosc": BloscCodec()}.get(case.format)}
    if case.format == "sharded":
        coded = {"compressors": ZstdCodec(), "shards": tuple(2 * c for c in chunks)}
    zarr.create_array(path, shape=shape, dtype=case.dtype, chunks=chunks, **coded)[...] = x
    return Data(path, shape, case.dtype)


def _row(
    name: str, format: str, dtype: str, shape: tuple[int, ...], chunks: tuple[int, ...], budget: int, seed: int = 1
) -> Case:
    (operation,) = [i for i, o in enumerate(OPERATIONS) if o.name == name]
    return Case(-1, operation, format, dtype, shape, chunks, budget, seed)


ROWS = (
    _row("gram", "npy", "f8", (4000, 1500), (4000, 1500), 2 << 20),
    _row("cov", "npy", "f8", (1000, 4000), (1000, 4000), 2 << 20),
    _row("corrcoef", "npy", "f8", (1000, 4000), (1000, 4000), 2 << 20),
    _row("histogram of many bins", "npy", "f8", (4_000_000,), (4_000_000,), 2 << 20),
    _row("bincount of many", "npy", "i4", (4_000_000,), (4_000_000,), 2 << 20),
    _row("histogram, lazy", "npy", "f8", (4_000_000,), (4_000_000,), 2 << 20),
    _row("map_overlap, four times", "npy", "f8", (2000, 1000), (2000, 1000), 2 << 20),
    _row("map_overlap, four times", "zstd", "f8", (2000, 1000), (100, 1000), 4 << 20),
    _row("map_overlap, four times", "h5", "f8", (63, 2393, 36), (16, 599, 9), 9823417),
    _row("matmul", "gzip", "f4", (169, 17484), (6, 1093), 2701505),
    _row("quantile", "raw zarr", "f4", (11254, 87), (704, 22), 2196450),
    _row("median of all", "npy", "f8", (1_500_000,), (1_500_000,), 2 << 20),
    _row("median of all", "zstd", "f4", (800, 1000), (50, 1000), 2 << 20),
    _row("cumsums", "npy", "f8", (2000, 1000), (2000, 1000), 2 << 20),
    _row("histogram of few bins", "raw zarr", "f4", (4000, 1000), (100, 1000), 4 << 20),
    _row("histogram of many bins", "sharded", "f4", (108, 1791, 8), (27, 448, 8), 2364468, 866619357),
    _row("bincount", "sharded", "u2", (3530880,), (220680,), 2482758, 523105682),
    _row("several", "raw zarr", "i4", (342, 433, 15), (171, 217, 4), 2631084, 594280631),
    _row("median, lazy", "npy", "f8", (50098, 27), (783, 7), 2957984, 809695293),
    _row("histogram", "h5", "u2", (1985, 2341), (125, 293), 5124794, 1017786590),
)
"""Runs that once took more than their budgets, or did before they were refused."""


# -- Measuring -----------------------------------------------------------------------------------------------


def anonymous(pid: int | str = "self") -> int:
    """Bytes of memory that a process has and that are no file's, by the kernel."""
    with open(f"/proc/{pid}/status", "rb") as file:
        return int(file.read().split(b"RssAnon:")[1].split()[0]) << 10


def forked(work: Callable[[Callable[[Any], None]], Any], watch: bool = False) -> tuple[list[Any], int]:
    """What a child tells, and the most anonymous memory that it had from the first thing that it told on."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        code = 1
        try:

            def tell(what: Any) -> None:
                os.write(writing, (json.dumps(what) + "\n").encode())

            work(tell)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    os.set_blocking(reading, False)
    told, most, over = b"", 0, False
    while not over:
        with suppress(BlockingIOError):
            more = os.read(reading, 1 << 16)
            told, over = told + more, not more
        if watch and b"\n" in told:
            with suppress(OSError, IndexError):
                most = max(most, anonymous(pid))
        time.sleep(0.0007)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if status:
        raise ChildProcessError(f"a child ended with {os.waitstatus_to_exitcode(status)}")
    return [json.loads(line) for line in told.splitlines()], most


def multiply() -> None:
    """Let BLAS touch the buffers that it keeps, some MiB a thread: as code that is imported, they are no run's."""
    with ThreadPoolExecutor(2) as threads:
        for dtype in REAL:
            x = np.ones((400, 400), dtype)
            list(threads.map(np.matmul, [x] * 2, [x] * 2))


def fill_free_lists() -> None:
    """Let Python have the free tuples, lists, dicts and floats again that it keeps, and that `gc.collect` frees.

    Up to 2,000 tuples of each length are the interpreter's, whatever runs.
    """
    kept = [[tuple(range(n)), [n], {n: n}, n / 7] for n in range(1, 20) for _ in range(2000)]
    del kept


def result_bytes(value: Any) -> int:
    """Bytes of arrays in memory among results."""
    if isinstance(value, np.ndarray):
        return 0 if isinstance(value, np.memmap) or isinstance(value.base, np.memmap) else value.nbytes
    if isinstance(value, Mapping):
        return sum(map(result_bytes, value.values()))
    return sum(map(result_bytes, value)) if isinstance(value, tuple | list) else 0


def ran(case: Case, data: Data, folder: Path) -> tuple[str, int]:
    """What became of a run, and the bytes that it returns."""
    place = folder / OUT
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    how = {"budget": case.budget, "device": case.device}
    try:
        value = OPERATIONS[case.operation].run(data, str(place), random.Random(case.seed), how)
    except cf.BudgetError:
        return "refused", 0
    except cf.WriteError as error:  # a product may be larger than the disk
        if getattr(error.__cause__, "errno", None) != errno.ENOSPC:
            raise
        return "refused", 0
    return "done", result_bytes(value)


class Seen(NamedTuple):
    """What was measured of a run: bytes beside what it returns, by each figure."""

    outcome: str
    figures: dict[str, int]

    def over(self, budget: int) -> list[str]:
        """The figures by which the run took more than its budget."""
        return [name for name, taken in self.figures.items() if taken > budget + SLACK[name]]


def measured(case: Case, folder: Path) -> Seen:
    """Make a run, and measure it."""

    def prepare(tell: Callable[[Any], None]) -> None:
        (folder / "tiny").mkdir()
        tell(
            [
                put(folder / "tiny", case, tuple(min(n, t) for n, t in zip(case.shape, TINY, strict=False))),
                put(folder, case, case.shape),
            ]
        )

    (told,), _ = forked(prepare)
    tiny, data = (Data(path, tuple(shape), dtype) for path, shape, dtype in told)

    def warm() -> None:
        warnings.simplefilter("ignore")
        multiply()
        ran(case, tiny, folder / "tiny")
        gc.collect()
        fill_free_lists()
        ctypes.CDLL(None).malloc_trim(0)

    def trace(tell: Callable[[Any], None]) -> None:
        warm()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        outcome, returned = ran(case, data, folder)
        tell([outcome, tracemalloc.get_traced_memory()[1] - before - returned])
        shutil.rmtree(folder / OUT)  # to list hundreds of thousands of files takes memory, which is no run's

    def grow(tell: Callable[[Any], None]) -> None:
        warm()
        tell(anonymous())
        _, returned = ran(case, data, folder)
        tell(returned)

    def ask_driver(tell: Callable[[Any], None]) -> None:
        from cupy.cuda import runtime

        warnings.simplefilter("ignore")
        runtime.free(0)  # the bare context
        memory = DriverMemory(runtime.memGetInfo()[0])
        with memory.sampled():
            outcome, _ = ran(case, data, folder)
        tell([outcome, memory.taken])

    if case.device == "cuda":
        ((outcome, taken),), _ = forked(ask_driver)
        return Seen(outcome, {"driver": taken})
    ((outcome, traced),), _ = forked(trace)
    (before, returned), most = forked(grow, watch=True)
    return Seen(outcome, {"traced": traced, "process": most - before - returned})


def imported(device: str) -> None:
    """Import what runs import, so that children need not. Their threads and contexts must not be here."""

    def work(tell: Callable[[Any], None]) -> None:
        warnings.simplefilter("ignore")
        for number in range(len(OPERATIONS)):
            with tempfile.TemporaryDirectory() as name:
                case = drawn(number, 0, device=device)
                ran(
                    case,
                    put(Path(name), case, tuple(min(n, t) for n, t in zip(case.shape, TINY, strict=False))),
                    Path(name),
                )
        tell(sorted(sys.modules))

    (names,), _ = forked(work)
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def main() -> int:
    """The command; 1 if a run took more than its budget."""
    parser = argparse.ArgumentParser(prog="python -m torture.budgets", description=__doc__)
    parser.add_argument("--number", type=int, default=500, help="so many runs (default: %(default)s)")
    parser.add_argument("--rows", action="store_true", help="before them those that once took more than their budgets")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=0, help="draws them again")
    parser.add_argument("--only", default="", help="part of the operations' names")
    parser.add_argument("--device", choices=LIMITS, default="cpu")
    parser.add_argument("--most", type=int, default=0, help="the largest budget")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no run is begun later")
    parser.add_argument("--all", action="store_true", help="print each run")
    options = parser.parse_args()
    if HEAP.items() - os.environ.items():
        return subprocess.run(
            [sys.executable, "-m", "torture.budgets", *sys.argv[1:]], env=os.environ | HEAP
        ).returncode
    end = time.monotonic() + options.seconds
    done = failed = refused = 0
    over: dict[str, int] = {}
    imported(options.device)
    numbers = range(options.first, options.first + options.number)
    drawings = (drawn(n, options.seed, options.only, options.device, options.most) for n in numbers)
    for case in itertools.chain(ROWS if options.rows else (), drawings):
        if time.monotonic() > end:
            break
        done += 1
        with tempfile.TemporaryDirectory(prefix="torture") as name:
            try:
                seen = measured(case, Path(name))
            except ChildProcessError as error:
                failed += 1
                print(f"{case}: {error}", flush=True)
                continue
        refused += seen.outcome == "refused"
        wrong = seen.over(case.budget)
        for name in seen.figures:
            over[name] = over.get(name, 0) + (name in wrong)
        if options.all or wrong:
            figures = ", ".join(
                f"{name} {taken / case.budget:.3f} ({(taken - case.budget) / 2**20:+.2f} MiB)"
                for name, taken in seen.figures.items()
            )
            print(f"{case}: {seen.outcome}, {figures}{' WRONG' if wrong else ''}", flush=True)
    counts = ", ".join(f"{count} by {name}" for name, count in over.items())
    print(f"{done} runs, {refused} refused: over the budget {counts}, {failed} failed", flush=True)
    return int(any(over.values()) or failed > 0)


if __name__ == "__main__":
    sys.exit(main())
