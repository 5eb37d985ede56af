"""Several results of a cluster from one read: each partition is read once, and gives what separate tasks would."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import Place, on_cpu_and_gpu, same
from support.examples import examples

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

import cloudpickle  # noqa: E402
import dask.array as da  # noqa: E402

import chunkflow as cf  # noqa: E402
from chunkflow import dask as cd  # noqa: E402
from chunkflow.cluster import tasks  # noqa: E402
from chunkflow.core.grid import Region, shape_of  # noqa: E402
from chunkflow.core.units import parse_bytes  # noqa: E402
from chunkflow.errors import BudgetError  # noqa: E402

# Sums of these depend on their order: magnitudes differ by millions.
RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 300)) * 10 ** RNG.uniform(-3, 3, (400, 300))
LARGE = np.tile(X, (10, 3))  # beside it, what trial calls read is little
HOW: dict[str, Any] = {"budget": "40MB", "device": "cpu"}


class Counted:
    """An array that counts how many of its elements are read."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.read = array, array.shape, array.dtype, 0

    def __getitem__(self, region: Region) -> np.ndarray:
        self.read += math.prod(shape_of(region))
        return self.array[region]


FOLDS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(),
    "max": lambda x: x.max(),
    "std": lambda x: x.std(),
    "mean of squares": lambda x: ((x - 1) ** 2).mean(),
    "argmin": lambda x: x.argmin(),
    "histogram": lambda x: np.histogram(x, bins=7, range=(-2, 2))[0],
}


@pytest.fixture(autouse=True)
def _in_this_thread() -> Iterator[None]:
    with dask.config.set(scheduler="sync"):
        yield


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("partition", ["3MB", "4GB"])
def test_one_read_gives_several_results(scheduler: str, partition: str) -> None:
    source = Counted(LARGE)
    arrays = [make(cf.open(source)).to_dask(partition, **HOW) for make in FOLDS.values()]
    apart = [array.compute(scheduler=scheduler) for array in arrays]
    separately, source.read = source.read, 0
    together = dask.compute(*arrays, scheduler=scheduler)
    assert LARGE.size <= source.read < 1.2 * LARGE.size < separately / 4
    for one, other in zip(together, apart, strict=True):
        same(one, other)


def test_lazy_arrays_need_no_to_dask() -> None:
    source = Counted(LARGE)
    x = cf.open(source)
    with dask.annotate(color="blue"):
        mean, (largest, [spread]) = dask.compute(x.mean(), (x.max(), [x.std()]))
    assert LARGE.size <= source.read < 1.2 * LARGE.size
    np.testing.assert_allclose([mean, largest, spread], [LARGE.mean(), LARGE.max(), LARGE.std()], rtol=1e-12)


@on_cpu_and_gpu
def test_bits_are_those_of_separate_results(place: Place) -> None:
    x = cf.open(X)
    some = [x.var(axis=0), x.sum(axis=0), (x * 2).max(axis=0), x.mean(), (x + 1).std(), x.std(axis=1), x.sum(axis=1)]
    some += [(x - x.mean()).std(), abs(x - x.mean()).max(), x + 1, x * 2]
    budget = place.budget(parse_bytes("2MB"))
    arrays = [array.to_dask("500kB", budget=budget, device=place.device()) for array in some]
    for one, other in zip(dask.compute(*arrays), [array.compute() for array in arrays], strict=True):
        same(one, other)


@settings(max_examples=examples(1 / 2))
@given(
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    size=st.integers(100, 4000),
    chosen=st.lists(st.sampled_from(["mean", "sum", "std", "max", "x + 1", "argmax", "two passes"]), min_size=2),
    data=st.data(),
)
def test_any_shape_partition_and_company(shape: tuple[int, ...], size: int, chosen: list[str], data: Any) -> None:
    values = np.random.default_rng(1).standard_normal(shape)
    x, axis = cf.open(values), data.draw(st.sampled_from([None, *range(len(shape))]))
    makers: dict[str, Callable[[], Any]] = {
        "mean": lambda: x.mean(axis=axis),
        "sum": lambda: x.sum(axis=axis),
        "std": lambda: x.std(axis=axis),
        "max": lambda: (x * 2).sum(axis=axis),
        "x + 1": lambda: x + 1,
        "argmax": lambda: (x > 0).sum(axis=axis),
        "two passes": lambda: (x - x.sum(axis=axis, keepdims=True)).sum(axis=axis),
    }
    arrays = [makers[name]().to_dask(size, **HOW) for name in chosen]
    with dask.config.set(scheduler="sync"):
        for one, other in zip(dask.compute(*arrays), [array.compute() for array in arrays], strict=True):
            same(one, other)


def test_as_many_as_fit_the_budget_are_computed_together() -> None:
    source = Counted(np.tile(X, (10, 10)))
    x = cf.open(source)
    arrays = [f(axis=0).to_dask("10MB", budget="5MB", device="cpu") for f in (x.var, x.sum, x.std, x.mean)]
    apart = [array.compute() for array in arrays]
    separately, source.read = source.read, 0
    for one, other in zip(dask.compute(*arrays), apart, strict=True):
        same(one, other)
    assert 2 * source.array.size <= source.read < 2.5 * source.array.size < separately


def test_graphs_that_are_not_culled_are_whole() -> None:
    x = cf.open(X)
    arrays = [x.mean(), (x**2).sum(axis=0), x.max(), x + 1]
    for one, other in zip(dask.compute(*arrays, optimize_graph=False), dask.compute(*arrays), strict=True):
        same(one, other)
    merged = dask.array.stack([x.mean().to_dask("100kB"), x.max().to_dask("100kB")])
    with dask.config.set({"optimization.fuse.active": False}):
        same(merged.compute(), np.stack([d.compute() for d in (x.mean().to_dask("100kB"), x.max().to_dask("100kB"))]))
    sent = cloudpickle.loads(cloudpickle.dumps(merged.__dask_graph__()))
    same(da.Array(sent, merged.name, merged.chunks, merged.dtype).compute(), merged.compute())


def test_what_cannot_agree_is_right_all_the_same() -> None:
    x, d = cf.open(X), da.from_array(X, chunks=(100, 300)) + 1
    y = cf.from_dask(d)
    arrays = [x.mean(axis=0), x.mean(axis=1), (x * y).sum(), y.sum(), y.max(), np.cumsum(x, axis=0), cf.matmul(x, x.T)]
    arrays = [array.to_dask("100kB", **HOW) for array in arrays]
    for one, other in zip(dask.compute(*arrays, d.sum()), [a.compute() for a in (*arrays, d.sum())], strict=True):
        same(one, other)


def test_outputs_are_written_from_one_read(tmp_path: Path) -> None:
    source = zarr.create_array(str(tmp_path / "x.zarr"), shape=X.shape, chunks=(50, 300), dtype="f8")
    source[...] = X
    x, seen = cf.open(source), []

    def note(u: Any) -> Any:
        seen.append(u.shape)
        return u

    noted = x.map(note, dtype="f8")
    outs = [tmp_path / name for name in ("a.zarr", "b.npy", "c.npy", "d.npy")]
    arrays = [noted + 1, noted * 2, noted.sum(axis=0), noted.max(axis=0)]
    results = cd.store(arrays, outs, partition="240kB", **HOW)
    for result, expected in zip(results, (X + 1, X * 2, X.sum(axis=0), X.max(axis=0)), strict=True):
        np.testing.assert_allclose(result[...], expected, rtol=1e-9)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a.zarr", "b.npy", "c.npy", "d.npy", "x.zarr"]


def test_the_plan_shows_what_is_read_together() -> None:
    x = cf.open(X)
    plan = cf.explain(x.mean(), x.max(), x.sum(axis=1), workers=2, partition="100kB", device="cpu")
    assert [name for name, _ in plan.parts] == ["mean, max", "sum"]
    assert plan.tasks == sum(len(cut) for _, cut in plan.parts)


def test_what_fails_names_all_that_were_computed() -> None:
    def picky(u: Any) -> Any:
        raise ZeroDivisionError("here")

    x = cf.open(X)
    with pytest.raises(ZeroDivisionError, match="here") as caught:
        dask.compute(x.map(picky, dtype="f8").sum(), x.max())
    assert re.search(r"in the partition \(0, 0\) of (max, sum|sum, max), region", caught.value.__notes__[-1])


def test_graphs_hold_nothing_of_others(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    x, how, lock = cf.open(tmp_path / "x.npy"), {**HOW, "partition": "200kB"}, threading.Lock()
    one = x.min().to_dask(**how)

    def unsendable(u: Any) -> Any:
        with lock:
            return u + 1

    other = x.map(unsendable, dtype="f8").max().to_dask(**how)
    assert dask.compute(one, other) == (X.min(), X.max() + 1)
    sent = [cloudpickle.loads(cloudpickle.dumps(d)) for d in (one, x.max().to_dask(**how))]
    assert dask.compute(*sent) == (X.min(), X.max())


@pytest.mark.parametrize("dtype", ["f4", None])
def test_results_that_do_not_fit_together_are_computed_in_halves(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, ran, run = cf.open(X), [], tasks._run

    def scarce(programs: Any, *args: Any, **kwargs: Any) -> Any:
        ran.append(len(programs))
        if len(programs) > 1:
            raise BudgetError("too many at once")
        return run(programs, *args, **kwargs)

    monkeypatch.setattr(tasks, "_run", scarce)
    found = [fn(x, dtype=dtype).to_dask("1GB", **HOW) for fn in (np.sum, np.std, np.mean)]
    expected = [fn(X, dtype=dtype) for fn in (np.sum, np.std, np.mean)]
    for one, other in zip(dask.compute(*found, scheduler="sync"), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
        assert one.dtype == other.dtype
    assert ran == [3, 1, 2, 1, 1]
