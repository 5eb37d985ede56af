"""Operations on an array in a file, whose memory `torture.budgets` measures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import chunkflow as cf


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
    squared: bool = False
    """Whether the result may have as many elements as the square of a side."""


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
        with cf.Budget(how["budget"]):  # masks are counted where they are given
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


def _windows(x: Any, data: Data, r: random.Random, lengths: tuple[int, ...] = (2, 5, 30)) -> Any:
    """Windows along one axis, which is the last one of what is given."""
    axis = r.randrange(len(data.shape))
    return np.lib.stride_tricks.sliding_window_view(x, min(r.choice(lengths), data.shape[axis]), axis)


def _weighed(x: Any, data: Data, r: random.Random) -> Any:
    windows = _windows(x, data, r)
    return windows @ np.linspace(1, 2, windows.shape[-1], dtype=x.dtype)


def _coarsened(x: Any, data: Data, r: random.Random) -> Any:
    axis = r.randrange(len(data.shape))
    return cf.coarsen(np.mean, x, {axis: min(7, data.shape[axis])}, trim_excess=True)


def _gradient(x: Data, r: random.Random, **how: Any) -> Any:
    long = [a for a, n in enumerate(x.shape) if n > 2]
    return cf.gradient(x.path, axis=r.choice(long), edge_order=r.choice([1, 2]), **how)


def _groups(x: Data, r: random.Random, **how: Any) -> Any:
    func = r.choice(["mean", ["nansum", "max", "var"], "median", "first"])
    edges = np.linspace(0, 1000, r.choice([11, 3001]))
    return cf.groupby_reduce(x.path, x.path, func=func, expected_groups=edges, isbin=True, axis=_axes(x, r), **how)


def _in_order(x: Any, data: Data, r: random.Random) -> Any:
    axis = _axis(data, r)
    return np.take_along_axis(x, np.argsort(x, axis=axis), axis=axis)


def _selected(x: Any, data: Data, r: random.Random) -> Any:
    return np.select([x > 700, x > 300], [x * 2, x + 1], 0)


def _looked_up(x: Any, data: Data, r: random.Random) -> Any:
    return cf.take(np.linspace(0, 1, 1001), x)


def _interpolated(x: Any, data: Data, r: random.Random) -> Any:
    points = np.linspace(0, 1000, 50)
    return np.interp(x, points, np.sqrt(points)) + np.digitize(x, points)


def _masked(x: Any, data: Data, r: random.Random) -> Any:
    return x[x > r.choice([10, 500, 990])]


def _written(x: Any, data: Data, r: random.Random) -> Any:
    index: Any = r.choice([slice(1, None, 3), x > 500, np.arange(min(100, data.shape[0]))])
    return cf.put(x, index, 0)


def _counted_together(x: Data, r: random.Random, **how: Any) -> Any:
    return cf.histogram2d(x.path, x.path, r.choice([10, 300]), r.choice([None, [[0, 1000], [0, 1000]]]), **how)[0]


def _along(x: Any, data: Data, r: random.Random) -> tuple[Any, int]:
    """A mask along an axis, and the axis."""
    axis = _axis(data, r)
    others = tuple(a for a in range(len(data.shape)) if a != axis)
    return (x.mean(others) > 500 if others else x > 500), axis


def _masked_along(x: Any, data: Data, r: random.Random) -> Any:
    mask, axis = _along(x, data, r)
    return x[(*(slice(None),) * axis, mask)] * 2


def _masked_before(x: Any, data: Data, r: random.Random) -> Any:
    """By a mask of all axes but one."""
    first = r.choice([0, 1])
    side = (0, ...) if first else (..., 0)
    return x[(*(slice(None),) * first, x[side] > r.choice([100, 900]))]


def _compressed(x: Any, data: Data, r: random.Random) -> Any:
    mask, axis = _along(x, data, r)
    return np.compress(mask, x, axis)


def _masked_twice(x: Any, data: Data, r: random.Random) -> Any:
    return x[x > r.choice([10, 500])] * 2 + 1, x[x < r.choice([300, 900])]


def _written_by_mask(x: Any, data: Data, r: random.Random) -> Any:
    values = x.reshape(-1)[: x[x > 500].shape[0]]
    return cf.put(x, x > 500, values)


def _many(n: int, r: random.Random, most: int = 10_000) -> np.ndarray:
    """Places along an axis, in any order or sorted. They are the caller's, so they are not to weigh much."""
    found = np.random.default_rng(r.randrange(1 << 30)).integers(0, n, most)
    return np.sort(found) if r.random() < 0.4 else found


def _written_at(x: Data, r: random.Random, **how: Any) -> Any:
    index = tuple(_many(n, random.Random(i)) for i, n in enumerate(x.shape))
    return cf.put(x.path, index, r.choice([7, np.arange(len(index[0]))]), **how)


def _in_tables(x: Any, data: Data, r: random.Random) -> Any:
    table = np.sort(np.random.default_rng(r.randrange(1 << 30)).random(r.choice([1000, 10_000])) * 1000)
    which = r.choice(["isin", "searchsorted", "interp", "digitize"])
    if which == "isin":
        return np.isin(x, table.astype(x.dtype))
    if which == "searchsorted":
        return np.searchsorted(table, x)
    return np.interp(x, table, table) if which == "interp" else np.digitize(x, table)


def _labelled(x: Data, r: random.Random, **how: Any) -> Any:
    axis = int(np.argmin(x.shape))  # labels are the caller's, so they are few
    labels = np.arange(x.shape[axis]) % 50
    kind = r.choice(["i4", "f8", "U3", "M8[h]"])
    return cf.groupby_reduce(x.path, labels.astype(kind), func=r.choice(["mean", "nanvar", "last"]), axis=axis, **how)


def _beside(x: Data, r: random.Random, **how: Any) -> Any:
    func = r.choice([["median", "mean"], ["nanargmax", "nanquantile", "std"]])
    edges = np.linspace(0, 1000, r.choice([11, 301]))
    how |= {"expected_groups": edges, "isbin": True, "axis": _axes(x, r), "q": [0.1, 0.6]}
    return cf.groupby_reduce(x.path, x.path, func=func, **how)


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
    _eager("gram", lambda x, r, **o: cf.gram(x.path, **o), dims=(2,), squared=True, dtypes=REAL),
    _eager("cov", lambda x, r, **o: cf.cov(x.path, rowvar=r.choice([True, False]), **o), dims=(2,), squared=True),
    _eager(
        "corrcoef",
        lambda x, r, **o: cf.corrcoef(x.path, rowvar=r.choice([True, False]), **o),
        dims=(2,),
        squared=True,
    ),
    _eager(
        "matmul",
        lambda x, r, **o: cf.matmul(x.path, ones(x.shape[1], r.choice([1, 8, 100])), **o),
        dims=(2,),
        dtypes=REAL,
    ),
    _lazy("matmul of itself", lambda x, d, r: x.T @ x, dims=(2,), squared=True, dtypes=REAL),
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
    _eager("sort", lambda x, r, **o: cf.sort(x.path, axis=_axis(x, r), **o)),
    _eager("sort of a long line", lambda x, r, **o: cf.sort(x.path, **o), dims=(1,)),
    _eager("argsort", lambda x, r, **o: cf.argsort(x.path, axis=_axis(x, r), **o)),
    _eager("argtopk", lambda x, r, **o: cf.argtopk(x.path, r.choice([3, -50]), axis=_axis(x, r), **o)),
    _lazy("partition", lambda x, d, r: np.partition(x, 0, axis=_axis(d, r)), dims=(2, 3)),
    _lazy("in order", _in_order, dims=(2, 3)),
    _kept("unique of floats", lambda x, r, **o: cf.unique(x.path, **o), dtypes=REAL),
    _kept("unique, with places", lambda x, r, **o: cf.unique(x.path, return_index=True, **o), dtypes=WHOLE),
    _kept("mode", lambda x, r, **o: cf.mode(x.path, axis=_axis(x, r), **o), dims=(2, 3)),
    _kept("mode of all", lambda x, r, **o: cf.mode(x.path, **o), dtypes=WHOLE),
    _kept("groupby_reduce", _groups),
    _eager("nanmedian", lambda x, r, **o: cf.nanmedian(x.path, axis=_axis(x, r), **o), dtypes=REAL, dims=(2, 3)),
    _kept("nanmedian of all", lambda x, r, **o: cf.nanmedian(x.path, **o), dtypes=REAL),
    _kept("median, roughly", lambda x, r, **o: cf.quantile(x.path, [0.5, 0.9], approx=0.01, **o), dtypes=REAL),
    _kept("histogram2d", _counted_together, dtypes=REAL),
    _lazy("masked", _masked),
    _eager("nonzero", lambda x, r, **o: cf.flatnonzero(x.path, **o)),
    _lazy("extract", lambda x, d, r: np.extract(x > 500, x)),
    _lazy("put", _written),
    _lazy("looked up", _looked_up, dtypes=WHOLE),
    _lazy("select", _selected),
    _lazy("interpolated", _interpolated, dtypes=REAL),
    _lazy("mean of windows", lambda x, d, r: _windows(x, d, r).mean(-1)),
    _lazy("greatest of windows", lambda x, d, r: _windows(x, d, r).max(-1)),
    _lazy("spread of windows", lambda x, d, r: _windows(x, d, r).std(-1), dtypes=REAL),
    _lazy("median of windows", lambda x, d, r: np.median(_windows(x, d, r, (3, 5)), -1)),
    _lazy("weighed windows", _weighed, dtypes=REAL),
    _lazy("coarsened", _coarsened),
    _eager("gradient", _gradient, dtypes=REAL),
    _lazy("trapezoid", lambda x, d, r: np.trapezoid(x, axis=_axis(d, r)), dtypes=REAL),
    _eager(
        "convolve by windows",
        lambda x, r, **o: cf.convolve(x.path, np.ones([min(n, 4) for n in x.shape], x.dtype), "same", "direct", **o),
        dtypes=REAL,
    ),
    _eager("argwhere", lambda x, r, **o: cf.argwhere(x.path, **o)),
    _lazy("places of a mask", lambda x, d, r: np.nonzero(x > r.choice([10, 990]))[-1]),
    _lazy("mask along an axis", _masked_along),
    _lazy("mask of all axes but one", _masked_before, dims=(2, 3)),
    _lazy("compressed", _compressed),
    _lazy("two masks", _masked_twice),
    _lazy("by mask", _written_by_mask),
    _lazy("of many passes", lambda x, d, r: (x - x.min(0)) * (x.max(0) > 5) + x.sum(0) * (x.mean(0) < 3), dims=(2, 3)),
    _eager("take of many", lambda x, r, **o: cf.take(x.path, _many(x.shape[0], r), 0, **o), dims=(1,)),
    _lazy("many points", lambda x, d, r: x[tuple(_many(n, r) for n in d.shape)] * 2, dims=(2, 3)),
    _eager("put at many", _written_at),
    _lazy("long tables", _in_tables, dtypes=REAL),
    Operation("labels in memory", lambda x, folder, r, how: _labelled(x, r, **how), dims=(2, 3)),
    _kept("medians beside others", _beside, dtypes=REAL),
    _lazy("where", lambda x, d, r: cf.where(x > 500, x, 0)),
)  # fmt: skip
