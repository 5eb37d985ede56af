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
from torture.operations import OPERATIONS, Data


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
    longest = math.isqrt(8 * budget // 4) if facts.squared else elements  # the result is not to fill a disk
    for left in range(dims, 1, -1):  # sides of several lengths
        side = int(min(elements // 4, 3000) ** r.uniform(0.3, 1)) + 3 if left > 1 else elements
        shape.append(side)
        elements = max(8, elements // side)
    shape.append(min(elements, longest))
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
    _row("nonzero", "raw zarr", "f8", (24, 16, 3346), (6, 2, 1673), 2925274),
    _row("argtopk", "gzip", "u2", (217, 16, 715), (217, 2, 715), 2976029, 688676577),
    _row("groupby_reduce", "h5", "f8", (1337, 9411), (168, 4706), 26173914, 782425501),
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
        for dtype in ("f4", "f8"):
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
    parser.add_argument(
        "--rows",
        type=int,
        default=0,
        metavar="N",
        help="before them each Nth of those that once took too much",
    )
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
    for case in itertools.chain(ROWS[:: options.rows] if options.rows else (), drawings):
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
