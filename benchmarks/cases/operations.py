"""Every kind of operation beside its roofline, by data in memory: what bounds it at least, measured in the same run.

An operation must move its arrays and its result over the link, or through memory, and compute as long as the kernel
does with all in device memory; on the CPU, as long as cores work in NumPy, shared out to all of them. The slowest is
the limit. Memory gives whole lines of the cache, whatever is wanted of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import chunkflow as cf
from benchmarks.beside import CUPY, DASK, NUMPY, alike, computed, dask_array, each, on_host
from benchmarks.case import OURS, Bench, Case, Goal
from benchmarks.probe import installed
from benchmarks.timing import core_seconds, median_seconds
from chunkflow.api.lazy.times_units import in_unit

LABELS = 12
LINE = 64  # bytes of a line of the cache
KERNEL = np.hanning(9).astype("f4")


@dataclass(frozen=True)
class Operation:
    """A function of a library, which has NumPy's names, and of arrays with these names of `Data`.

    `ours` is for those that are spelled otherwise, and `dask` says whether dask is given the function too. `reason`
    says what keeps the row from its goal on the CPU, and `on_gpu` what does on a GPU.
    """

    of: Callable[..., Any]
    arrays: tuple[str, ...] = ("f4",)
    ours: Callable[..., Any] | None = None
    dask: bool = True
    tolerance: float = 1e-3
    reason: str = ""
    on_gpu: str = ""


def _run(lazy: Any, out: Any = None, **options: Any) -> Any:
    return lazy.compute(**options) if out is None else cf.store(lazy, out, **options)


def _reductions() -> Mapping[str, Operation]:
    return {
        "sum": Operation(lambda xp, a: xp.sum(a)),
        "mean, axis 0": Operation(lambda xp, a: xp.mean(a, axis=0)),
        "mean, axis 1": Operation(lambda xp, a: xp.mean(a, axis=1)),
        "mean, axis 2": Operation(lambda xp, a: xp.mean(a, axis=2)),
        "var": Operation(lambda xp, a: xp.var(a)),
        "std, axis 0": Operation(lambda xp, a: xp.std(a, axis=0)),
        "min, axis 2": Operation(lambda xp, a: xp.min(a, axis=2)),
        "max": Operation(lambda xp, a: xp.max(a)),
        "argmax, axis 0": Operation(lambda xp, a: xp.argmax(a, axis=0)),
        "any": Operation(lambda xp, a: xp.any(a > 1e9)),
        "count_nonzero": Operation(lambda xp, a: xp.count_nonzero(a)),
        "nanmean, axis 0": Operation(lambda xp, a: xp.nanmean(a, axis=0), ("holes",)),
        "nanmax": Operation(lambda xp, a: xp.nanmax(a), ("holes",)),
        "median, axis 0": Operation(lambda xp, a: xp.median(a, axis=0), dask=False),
        "quantile, axis 0": Operation(lambda xp, a: xp.quantile(a, 0.3, axis=0), dask=False),
        "quantiles of all": Operation(
            lambda xp, a: xp.quantile(a.reshape(-1), xp.asarray([0.1, 0.5, 0.9])),
            ours=lambda a, **o: cf.quantile(a, [0.1, 0.5, 0.9], **o),
            dask=False,
            on_gpu="a sample comes first, in a pass of its own, and room for elements near the quantiles leaves 74 "
            "small blocks within the budget, which take 0.03 s besides their bytes",
        ),
        "sum of float64": Operation(lambda xp, a: xp.sum(a), ("f8",)),
        "sum of float16": Operation(lambda xp, a: xp.sum(a, dtype="f4"), ("f2",)),
        "sum of complex64": Operation(lambda xp, a: xp.sum(a), ("c8",)),
        "sum of int16": Operation(lambda xp, a: xp.sum(a, dtype="i8"), ("i2",)),
        "sum of uint8": Operation(lambda xp, a: xp.sum(a, dtype="i8"), ("u1",)),
        "sum of Fortran's order": Operation(lambda xp, a: xp.sum(a, axis=0), ("fortran",)),
        "sum of every other column": Operation(lambda xp, a: xp.sum(a), ("strided",)),
    }


def _elements() -> Mapping[str, Operation]:
    return {
        "a + 1": Operation(lambda xp, a: a + np.float32(1)),
        "sqrt(abs(a)) * 2 + 1": Operation(lambda xp, a: xp.sqrt(xp.abs(a)) * np.float32(2) + np.float32(1)),
        "exp": Operation(lambda xp, a: xp.exp(a / np.float32(8))),
        "a * b": Operation(lambda xp, a, b: a * b, ("f4", "holes")),
        "where": Operation(lambda xp, a: xp.where(a > 4, a, np.float32(0))),
        "clip": Operation(lambda xp, a: xp.clip(a, 2, 6)),
        "isnan": Operation(lambda xp, a: xp.isnan(a), ("holes",)),
        "astype float16": Operation(lambda xp, a: a.astype("f2")),
        "astype float64": Operation(lambda xp, a: a.astype("f8")),
    }


def _moved() -> Mapping[str, Operation]:
    return {
        "transpose (2, 1, 0)": Operation(lambda xp, a: xp.transpose(a, (2, 1, 0))),
        "transpose (0, 2, 1)": Operation(lambda xp, a: xp.transpose(a, (0, 2, 1))),
        "flip, axis 0": Operation(lambda xp, a: xp.flip(a, axis=0)),
        "flip, axis 2": Operation(
            lambda xp, a: xp.flip(a, axis=2),
            on_gpu="cores read each row from its end, at 24 GB/s where those of a roll read at 34, beside what they "
            "write",
        ),
        "roll": Operation(lambda xp, a: xp.roll(a, 5, axis=1)),
        "pad": Operation(
            lambda xp, a: xp.pad(a, 1),
            reason="a block is put together in a buffer and copied from there, 1.2 times the work of writing the "
            "result at once, and a third of the time is Python's, for 172 blocks of 3 MB",
            on_gpu="each block has nine boxes, and eight of them are of one value: compiled loops that fill them gave "
            "0.58 where Python gave 0.46",
        ),
        "concatenate": Operation(lambda xp, a, b: xp.concatenate([a, b], axis=1), ("f4", "holes")),
        "stack": Operation(lambda xp, a, b: xp.stack([a, b], axis=-1), ("f4", "holes")),
        "repeat": Operation(lambda xp, a: xp.repeat(a, 2, axis=1), ("half",)),
        "tile": Operation(lambda xp, a: xp.tile(a, (1, 2, 1)), ("half",)),
        "rows of a list": Operation(lambda xp, a: a[::-3]),
        "columns of a list": Operation(lambda xp, a: xp.take(a, xp.arange(0, a.shape[2], 3), axis=2), dask=False),
    }


def _ordered() -> Mapping[str, Operation]:
    edges = np.linspace(-8, 16, 65, dtype="f4")
    return {
        "sort": Operation(lambda xp, a: xp.sort(a, axis=-1), dask=False),
        "argsort": Operation(lambda xp, a: xp.argsort(a, axis=-1), dask=False),
        "topk": Operation(
            lambda xp, a: xp.sort(a, axis=-1)[..., :-11:-1], ours=lambda a, **o: cf.topk(a, 10, **o), dask=False
        ),
        "histogram": Operation(lambda xp, a: xp.histogram(a, bins=256, range=(-8, 16))[0]),
        "bincount": Operation(
            lambda xp, a: xp.bincount(a.reshape(-1), minlength=256),
            ("u1",),
            ours=lambda a, **o: cf.bincount(a.reshape(-1), minlength=256, **o),
        ),
        "digitize": Operation(lambda xp, a: xp.digitize(a, xp.asarray(edges)), dask=False),
        "unique": Operation(lambda xp, a: xp.unique(a), ("i2",), ours=lambda a, **o: cf.unique(a, **o)),
        "cumsum, axis 0": Operation(lambda xp, a: xp.cumsum(a, axis=0)),
        "cumsum, axis 2": Operation(lambda xp, a: xp.cumsum(a, axis=2)),
        "diff, axis 1": Operation(lambda xp, a: xp.diff(a, axis=1)),
        "gradient, axis 0": Operation(lambda xp, a: xp.gradient(a, axis=0)),
        "trapezoid": Operation(lambda xp, a: xp.trapezoid(a, axis=0), dask=False),
        "moving mean": Operation(
            lambda xp, a: xp.mean(xp.lib.stride_tricks.sliding_window_view(a, 7, 0), axis=-1),
            ours=lambda a, **o: _run(np.mean(sliding_window_view(cf.open(a), 7, 0), axis=-1), **o),
        ),
        "convolve a line": Operation(
            lambda xp, a: xp.convolve(a.reshape(-1), xp.asarray(KERNEL), "same"),
            ours=lambda a, **o: _run(np.convolve(cf.open(a.reshape(-1)), KERNEL, "same"), **o),
            dask=False,
        ),
    }


def _combined() -> Mapping[str, Operation]:
    return {
        "matmul": Operation(lambda xp, m: xp.matmul(m, m), ("matrix",)),
        "einsum": Operation(lambda xp, a: xp.einsum("ijk,ijk->ij", a, a)),
        "tensordot": Operation(lambda xp, a: xp.tensordot(a, a, axes=([0, 1], [0, 1])), ("half",)),
        "cov": Operation(lambda xp, m: xp.cov(m), ("matrix",)),
        "rfft": Operation(
            lambda xp, a: xp.fft.rfft(a, axis=-1), ours=lambda a, **o: cf.fft.rfft(a, axis=-1, **o), dask=False
        ),
        "fftn": Operation(lambda xp, a: xp.fft.fftn(a), ("c8",), ours=lambda a, **o: cf.fft.fftn(a, **o), dask=False),
    }


def _shaped() -> Mapping[str, Operation]:
    return {
        "tril": Operation(lambda xp, a: xp.tril(a)),
        "pad by means": Operation(
            lambda xp, a: xp.pad(a, 1, "mean"),
            dask=False,
            reason="the means take a pass before the one that pads, and blocks are put together in a buffer, as by pad",
            on_gpu="the means take a pass before the one that pads, so the array crosses the link twice, and the limit "
            "counts it once",
        ),
        "repeat by counts": Operation(
            lambda xp, a: xp.repeat(a, [i % 2 * 2 for i in range(a.shape[1])], axis=1), ("f4",), dask=False
        ),
        "delete": Operation(lambda xp, a: xp.delete(a, slice(None, None, 9), axis=1), dask=False),
        "fftshift": Operation(lambda xp, a: xp.fft.fftshift(a)),
        "unwrap": Operation(lambda xp, a: xp.unwrap(a, axis=0), dask=False, tolerance=1e-2),
        "std about a known mean": Operation(
            lambda xp, a: xp.sqrt(((a - np.float32(4)) ** 2).mean(axis=0)),
            ours=lambda a, **o: _run(np.std(cf.open(a), axis=0, mean=np.float32(4)), **o),
            dask=False,
        ),
        "packbits": Operation(
            lambda xp, a: xp.packbits(a > 4),
            ours=lambda a, **o: _run(np.packbits(cf.open(a) > 4), **o),
            dask=False,
        ),
        "piecewise": Operation(lambda xp, a: xp.piecewise(a, [a < 2, a > 6], [1, 2]), dask=False),
        "inv of 16 x 16": Operation(lambda xp, m: xp.linalg.inv(m), ("stacked",), dask=False),
        "det of 16 x 16": Operation(lambda xp, m: xp.linalg.det(m), ("stacked",), dask=False),
        "masked mean, axis 0": Operation(
            lambda xp, a: xp.nanmean(a, axis=0),
            ("holes",),
            ours=lambda a, **o: np.ma.getdata(_run(np.mean(cf.masked_invalid(a), axis=0), **_in_memory(o))),
        ),
    }


def _joined() -> Mapping[str, Operation]:
    pair = np.ones((1, 1, 2), "f4")
    return {
        "kron": Operation(lambda xp, a: xp.kron(a, xp.asarray(pair)), ("half",), dask=False),
        "block": Operation(
            lambda xp, a: xp.concatenate([a, a], axis=1),
            ("half",),
            ours=lambda a, **o: _run(np.block([[cf.open(a)], [cf.open(a)]]), **o),
        ),
        "insert": Operation(
            lambda xp, a: xp.concatenate([a[:, :3], xp.zeros_like(a[:, :1]), a[:, 3:]], axis=1),
            ours=lambda a, **o: _run(np.insert(cf.open(a), 3, np.float32(0), axis=1), **o),
            dask=False,
        ),
        "cross": Operation(lambda xp, a, b: xp.cross(a, b), ("triples", "others"), dask=False),
        "vander": Operation(
            lambda xp, a: xp.stack([a**2, a, xp.ones_like(a)], axis=-1),
            ("line",),
            ours=lambda a, **o: _run(np.vander(cf.open(a), 3), **o),
            dask=False,
        ),
        "apply_along_axis": Operation(
            lambda xp, a: xp.apply_along_axis(xp.ptp, 0, a),
            ("few",),
            ours=lambda a, **o: _run(np.apply_along_axis(np.ptp, 0, cf.open(a)), **o),
            dask=False,
        ),
        "mean of slabs that come one by one": Operation(
            lambda xp, a: xp.mean(a, axis=0),
            ours=lambda a, **o: cf.mean(cf.live(iter(np.array_split(a, 32)), length=len(a)), axis=0, **o),
            dask=False,
            reason="each slab of 16 MB is a run of its own: beside 0.8 ms of memory's time it has 1 ms of Python's, "
            "1 ms in which threads start and hand over, and partial results of 2 MB that are made, added and copied",
            on_gpu="slabs of 128 MB are put together to batches of 1 GB, a copy more, as a producer may fill the last "
            "one anew; each batch is a run. Batches of two slabs gave 0.14, and read by the compiled loops 0.18",
        ),
    }


def _dates() -> Mapping[str, Operation]:
    """Of datetime64, which no array library has on a card: beside the same of the integers."""
    return {
        "difference of dates": Operation(
            lambda xp, n: n - 5,
            ("counts",),
            ours=lambda a, **o: _run((_opened(a) - np.datetime64(5, "s")).view("i8"), **o),
        ),
        "greatest date": Operation(
            lambda xp, n: xp.max(n),
            ("counts",),
            ours=lambda a, **o: _run(np.nanmax(_opened(a)).view("i8"), **o),
        ),
        "mean of dates, axis 0": Operation(
            lambda xp, n: xp.mean(n, axis=0).astype("i8"),
            ("counts",),
            ours=lambda a, **o: _run(np.mean(_opened(a), axis=0).view("i8"), **o),
        ),
        "months of dates": Operation(
            lambda xp, n: in_unit(n, np.dtype("M8[s]"), np.dtype("M8[M]")),
            ("counts",),
            ours=lambda a, **o: _run(_opened(a).astype("M8[M]").view("i8"), **o),
            dask=False,
        ),
        "sorted dates": Operation(
            lambda xp, n: xp.sort(n, axis=-1),
            ("counts",),
            ours=lambda a, **o: _run(np.sort(_opened(a), axis=-1).view("i8"), **o),
            dask=False,
        ),
    }


def _opened(counts: np.ndarray) -> Any:
    return cf.open(counts.view("M8[s]"))


def _in_memory(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "out"}


GROUPS = {
    "reductions": _reductions,
    "elements": _elements,
    "moved": _moved,
    "ordered": _ordered,
    "combined": _combined,
    "shaped": _shaped,
    "joined": _joined,
    "dates": _dates,
}


class Data:
    """Arrays of as many bytes as `gib` says, each made once."""

    def __init__(self, bench: Bench) -> None:
        self.nbytes, self.rng = int(bench.gib * 2**30), np.random.default_rng(0)
        self.made = cache(self._made)

    def _made(self, name: str) -> np.ndarray:
        if name in ("f4", "f8", "f2", "c8", "u1", "i2"):
            return self._repeated(np.dtype(name))
        x = self.made("f4")
        return {
            "counts": lambda: (self.made("f8") * 1e8).astype("i8"),
            "others": lambda: self.made("triples")[::-1].copy(),
            "triples": lambda: x.reshape(-1)[: x.size // 3 * 3].reshape(-1, 3),
            "holes": lambda: np.where(x > 9, np.float32(np.nan), x),
            "line": lambda: x.reshape(-1)[: x.size // 3],
            "few": lambda: x.reshape(len(x), -1)[:, :2000],
            "half": lambda: x[: max(1, len(x) // 2)],
            "fortran": lambda: np.asfortranarray(x),
            "strided": lambda: np.concatenate((x, x), axis=-1)[..., ::2],
            "stacked": lambda: x.reshape(-1)[: x.size // 256 * 256].reshape(-1, 16, 16) + 40 * np.eye(16, dtype="f4"),
            "matrix": lambda: x.reshape(-1)[: (side := int(min(x.size, 1 << 24) ** 0.5)) ** 2].reshape(side, side),
        }[name]()

    def _repeated(self, dtype: np.dtype) -> np.ndarray:
        """Noise of a few planes again and again: to make it all takes longer than many runs."""
        side = max(8, round((self.nbytes / dtype.itemsize) ** (1 / 3)) // 8 * 8)
        planes = min(side, 16)
        noise = (3 * self.rng.standard_normal((planes, side, side), dtype="f4") + 4).clip(-8, 15.9).astype(dtype)
        return np.concatenate([noise] * -(-side // planes))[:side]


def cases(bench: Bench) -> Iterator[Case]:
    """One for each operation."""
    data, cores = Data(bench), len(os.sched_getaffinity(0))
    for group in GROUPS.values():
        for short, operation in group().items():
            name = f"operations, {short}"  # other files have rows of the short names
            if not bench.wanted(name):
                continue
            arrays = [data.made(each) for each in operation.arrays]
            yield _case(bench, name, operation, arrays, cores)
            bench.accelerator.free()


def _case(bench: Bench, name: str, operation: Operation, arrays: list[np.ndarray], cores: int) -> Case:
    there = [bench.xp.asarray(array) for array in arrays]

    def in_core() -> Any:
        found = operation.of(bench.xp, *there)
        found = found if isinstance(found, bench.xp.ndarray) and found.flags.owndata else bench.xp.array(found)
        bench.accelerator.wait()
        return found

    expected = on_host(in_core())
    read, written = sum(array.nbytes for array in arrays), expected.nbytes
    out = np.empty_like(expected) if written > 1 << 20 else None
    budget = cf.Budget(bench.budget)
    given = bench.options | {"budget": budget} | ({} if out is None else {"out": out})

    def ours() -> Any:
        if operation.ours is not None:
            return operation.ours(*arrays, **given)
        return _run(operation.of(np, *map(cf.open, arrays)), **given)

    runs: dict[str, Callable[[], Any]] = {OURS: ours, CUPY if bench.is_gpu else NUMPY: in_core}
    packages, missing = installed(DASK)
    if packages and operation.dask:
        da = dask_array()
        chunks = [(max(1, len(array) // 8), *array.shape[1:]) for array in arrays]
        runs[DASK] = lambda: computed(
            operation.of(da, *(da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)))
        )
    peaks: dict[str, str] = {}

    def watch(who: str, run: Callable[[], Any]) -> None:
        run()
        if who == OURS:
            peaks[OURS] = f"{budget.peak / budget.limit:.2f}"

    def check(_: str, got: Any) -> None:
        alike(on_host(each(got)[0]), expected, operation.tolerance)

    if bench.is_gpu:
        bounds = [_moving(bench, read, written), (CUPY, median_seconds(in_core, 2, warm=False))]
    else:
        moved = max(sum(map(lines, arrays)), written)
        work = core_seconds(in_core, 2)
        bounds = [("memory", moved / 1e9 / _copied(bench)), ("NumPy, shared out to all cores", work / cores)]
    label, least = max(bounds, key=lambda bound: bound[1])
    amount = (read + written) / 1e9
    what = f"{name}: {', '.join(f'{a.dtype} {a.shape}' for a in arrays)} in memory"
    return Case(
        *(name, what, amount, runs, check, (label, amount / least), Goal(0.6)),
        missing=missing,
        watch=watch,
        columns={"peak / budget": peaks},
        reason=operation.on_gpu if bench.is_gpu else operation.reason,
    )


def _moving(bench: Bench, read: int, written: int) -> tuple[str, float]:
    """What bounds the movement of so many bytes over the link, and for how many seconds at least."""
    if written < read / 8:
        return "link", read / 1e9 / bench.link
    return "link, both ways", max(read, written) / 1e9 / bench.both


def lines(array: np.ndarray) -> int:
    """Bytes of the cache's lines that hold an array's elements, at least."""
    run, runs = array.itemsize, 1
    sides = [(abs(step), side) for step, side in zip(array.strides, array.shape, strict=True) if side > 1]
    for step, side in sorted(sides):
        if step < run + LINE:  # no line between is left out
            run += step * (side - 1)
        else:
            runs *= side
    return runs * -(-run // LINE) * LINE


def _copied(bench: Bench) -> float:
    """GB/s of copies in memory by all cores, measured beside each case: others who use the machine change it most."""
    cores = len(os.sched_getaffinity(0))
    there, back = bench.once("copied", lambda: np.ones((2, cores, 1 << 26), np.uint8))
    with ThreadPoolExecutor(cores) as pool:
        seconds = median_seconds(lambda: list(pool.map(np.copyto, back, there)))
    return float(there.nbytes / seconds / 1e9)
