"""chunkflow on dask, within one process: the protocol, the graphs, results, and dask's functions of blocks."""

from __future__ import annotations

import operator
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import CPU, Place, everywhere, same
from support.examples import examples
from support.numpy_examples import EXAMPLES, arrays, flat, rows

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")

import cloudpickle  # noqa: E402
import dask.array as da  # noqa: E402
from dask.array import reductions as reducing  # noqa: E402
from dask.callbacks import Callback  # noqa: E402
from dask.typing import DaskCollection, HLGDaskCollection  # noqa: E402

import chunkflow as cf  # noqa: E402
from chunkflow import dask as cd  # noqa: E402
from chunkflow.api.lazy import numpy_dispatch  # noqa: E402
from chunkflow.cluster import task_graph, tasks  # noqa: E402
from chunkflow.engine import trial  # noqa: E402
from chunkflow.engine.budget import Budget  # noqa: E402
from chunkflow.errors import ArgumentError, ArgumentTypeError, OutputExistsError, ReadError, UnsupportedError  # noqa: E402
from chunkflow.planner import search  # noqa: E402

SHAPE = (24, 10, 7)
X = np.random.default_rng(0).integers(-8, 9, SHAPE) / 4  # sums of these are exact in any order


@pytest.fixture(autouse=True)
def _in_this_thread() -> Any:
    with dask.config.set(scheduler="sync"):
        yield


def gradient(u: Any) -> Any:
    return np.gradient(u, axis=0)


def shifted(u: Any) -> Any:
    return np.roll(u, 1, 0) - u


CHOSEN: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: x * 2 + 1,
    "slices": lambda x: (x + 1)[3:20:2, ::-1, 2],
    "sum": lambda x: x.sum(),
    "sum of an axis": lambda x: x.sum(axis=0),
    "mean of two": lambda x: x.mean(axis=(0, 2), keepdims=True),
    "var": lambda x: x.var(axis=0),
    "extremes": lambda x: x.max(axis=0) - x.min(axis=0),
    "argmin": lambda x: x.argmin(),
    "argmax of an axis": lambda x: x.argmax(axis=0),
    "two passes": lambda x: (x - x.mean(axis=0)) / 2,
    "three passes": lambda x: ((x - x.mean()) ** 2).sum(axis=0) - x.max(),
    "histogram": lambda x: np.histogram(x, bins=5, range=(-2, 2))[0],
    "histogram without a range": lambda x: np.histogram(x, bins=5, density=True)[0],
    "histogram of two": lambda x: np.histogram2d(np.ravel(x), np.ravel(x) ** 2, (4, [0, 1, 5]), density=True)[0],
    "histogram of columns": lambda x: np.histogramdd(x[0, :, :2], 3, weights=x[1, :, 0] ** 2)[0],
    "scan": lambda x: np.cumsum(x, axis=0),
    "product": lambda x: np.matmul(x[0], x[1].T),
    "transposed": lambda x: x.T + 1,
    "reshaped": lambda x: (x + 1).reshape(6, -1).sum(axis=1),
}


@everywhere
@pytest.mark.parametrize("name", CHOSEN)
def test_results_are_numpys(name: str, place: Place) -> None:
    make = CHOSEN[name]
    budget = place.budget(1 << 20)
    found = make(cf.open(X)).to_dask(partition="1500B", budget=budget, device=place.device())
    expected = make(X)
    assert isinstance(found, da.Array)
    assert found.shape == np.shape(expected)
    got = found.compute()
    same(got, expected) if expected.dtype.kind == "i" else np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert got.dtype == found.dtype == expected.dtype


@pytest.mark.parametrize("fn", rows(numpy_dispatch.FUNCTIONS, 4), ids=numpy_dispatch.name_of)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_all_of_numpys_functions_are_cut_and_sent(fn: Any) -> None:
    for example in EXAMPLES[fn]:
        lazy = example(**arrays(cf.open))
        expected = cf.compute(lazy, budget="1MB", device="cpu")
        for one, other in zip(flat(lazy), flat(expected), strict=True):
            if not isinstance(one, cf.Array):
                continue
            if numpy_dispatch.name_of(fn) in SEVERAL_PASSES:
                with pytest.raises(UnsupportedError, match="several passes"):
                    one.to_dask("100B")
                continue
            d = one.to_dask("100B", budget="100MB", device="cpu")
            sent = cloudpickle.loads(cloudpickle.dumps(dict(d.__dask_graph__())))
            got = da.Array(sent, d.name, d.chunks, d.dtype).compute()
            assert (np.shape(got), np.asarray(got).dtype) == (np.shape(other), np.asarray(other).dtype)
            np.testing.assert_allclose(got, other, rtol=1e-12, atol=1e-12)


SEVERAL_PASSES = {f"np.fft.{i}{r}fft{n}" for i in ("", "i") for r in ("", "r") for n in ("", "n", "2")}
SEVERAL_PASSES |= {"np.fft.hfft", "np.fft.ihfft"}
"""Those that make several passes of a whole array."""


@pytest.mark.parametrize("boundary", ["none", "nearest", "reflect", "mirror", "periodic", 2.5])
@pytest.mark.parametrize("place", [CPU], ids=str)
def test_halos_are_the_neighbours(boundary: Any, place: Place) -> None:
    fn = gradient if boundary == "none" else shifted
    depth = {0: 1} if boundary == "none" else {0: (1, 0)}
    expected = cf.map_overlap(fn, X, depth=depth, boundary=boundary, device="cpu")
    x = cf.open(X).map_overlap(fn, depth=depth, boundary=boundary)
    same(x.to_dask("1kB", device=place.device()).compute(), expected)
    chain = (cf.open(X) * 2).map_overlap(fn, depth=depth, boundary=boundary).sum(axis=0)
    expected = cf.map_overlap(fn, X * 2, depth=depth, boundary=boundary, device="cpu").sum(axis=0)
    same(chain.to_dask("1kB", device=place.device()).compute(), expected)


@settings(max_examples=examples(1))
@given(shape=st.lists(st.integers(0, 8), max_size=3).map(tuple), size=st.integers(1, 400), data=st.data())
def test_any_shape_and_partition(shape: tuple[int, ...], size: int, data: Any) -> None:
    x = np.arange(np.prod(shape, dtype=int), dtype="f8").reshape(shape)
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    with dask.config.set(scheduler="sync"):
        same(cf.open(x).sum(axis=axis).to_dask(size, device="cpu").compute(), x.sum(axis=axis))
        same((cf.open(x) + 1).to_dask(size, device="cpu").compute(), x + 1)


def test_sums_are_the_same_to_the_bit_in_whatever_order_tasks_run() -> None:
    x = np.random.default_rng(1).standard_normal((200, 50))
    for lazy in (cf.open(x).sum(), cf.open(x).var(axis=0)):
        d = lazy.to_dask("2kB", budget="1MB", device="cpu")
        one = d.compute(scheduler="sync")
        for workers in (1, 2, 4):
            same(d.compute(scheduler="threads", num_workers=workers), one)


def test_dasks_protocol() -> None:
    x = cf.open(X) + 1
    assert isinstance(x, DaskCollection)
    assert isinstance(x, HLGDaskCollection)
    assert dask.is_dask_collection(x)
    assert dask.base.tokenize(x) == dask.base.tokenize(cf.Array(x._node)) != dask.base.tokenize(x + 1)
    assert set(dask.core.flatten(x.__dask_keys__())) <= set(x.__dask_graph__())
    assert set(x.__dask_layers__()) <= set(x.__dask_graph__().layers)
    (same_x,) = dask.persist(x)
    assert isinstance(same_x, da.Array)
    same(same_x.compute(), X + 1)
    same(x.persist().compute(), X + 1)
    same(cf.open(x.persist()).compute(device="cpu"), X + 1)
    (optimized,) = dask.optimize(x)
    same(optimized.compute(), X + 1)
    for several_passes in (np.fft.fftn(cf.open(X)), abs(np.fft.fftn(cf.open(X))).sum()):
        with pytest.raises(UnsupportedError, match=r"compute\(\) it first"):
            dask.compute(several_passes)


MASKED = np.ma.masked_less(X, np.median(X))
TIMES = np.arange(60).astype("M8[h]").reshape(3, 4, 5)
SEVERAL_AS_ONE = [
    lambda: cf.open(MASKED), lambda: cf.open(MASKED).mean(axis=0), lambda: np.max(cf.open(MASKED)),
    lambda: cf.open(MASKED)[0] + 1, lambda: np.sum(cf.masked_equal(np.ones(4), 1)), lambda: cf.open(TIMES),
    lambda: cf.open(TIMES) - TIMES[0], lambda: np.max(cf.open(TIMES)), lambda: np.mean(cf.open(TIMES), axis=(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("make", SEVERAL_AS_ONE)
def test_masked_arrays_and_times_are_collections(make: Callable[[], Any]) -> None:
    x = make()
    assert isinstance(x, DaskCollection)
    assert dask.is_dask_collection(x)
    assert dask.base.tokenize(x) == dask.base.tokenize(x)
    assert set(dask.core.flatten(x.__dask_keys__())) <= set(x.__dask_graph__())
    right = x.compute(device="cpu")
    (kept,), (optimized,) = dask.persist(x), dask.optimize(x)
    (alone,), (beside,) = dask.compute(x), dask.compute({"a": [x], "b": cf.open(X).sum()})
    for got in (alone, beside["a"][0]):
        assert type(got) is type(right)
        assert got.dtype == right.dtype
    for got in (alone, kept.compute(), optimized.compute(), x.persist(scheduler="sync").compute()):
        np.testing.assert_array_equal(np.ma.getmaskarray(got), np.ma.getmaskarray(right))
        np.testing.assert_array_equal(np.ma.filled(got, 0), np.ma.filled(right, 0))


@pytest.mark.parametrize("make", [lambda: cf.open(X), lambda: cf.open(MASKED), lambda: cf.open(TIMES)])
def test_dasks_functions_take_them(make: Callable[[], Any]) -> None:
    x = make()
    right = x.compute(device="cpu")
    for found, expected in (
        (da.asarray(x), right),
        (da.max(x), np.max(right)),
        (da.stack([x, x]), np.ma.stack([right, right])),
        (da.ma.getmaskarray(x), np.ma.getmaskarray(right)),
    ):
        assert isinstance(found, da.Array)
        got = found.compute(scheduler="sync")
        np.testing.assert_array_equal(np.ma.getmaskarray(got), np.ma.getmaskarray(expected))
        np.testing.assert_array_equal(np.ma.filled(got, 0), np.ma.filled(expected, 0))


def test_a_picture_without_what_draws_it_is_refused_with_the_line_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine(*_: Any, **__: Any) -> None:
        raise RuntimeError("No visualization engine detected, please install graphviz or ipycytoscape")

    x = cf.open(X) + 1
    monkeypatch.setattr(da.Array, "visualize", no_engine)
    with pytest.raises(UnsupportedError, match=r"install graphviz.*print\(chunkflow\.explain\(x\)\) shows"):
        x.visualize()
    monkeypatch.setattr(da.Array, "visualize", lambda self, *args, **options: (self.shape, args, options))
    assert x.visualize("x.svg", rankdir="LR") == (X.shape, ("x.svg",), {"rankdir": "LR"})
    assert "blocks of" in str(cf.explain(x, device="cpu"))


def test_collections_are_computed_together_with_dasks() -> None:
    x, d = cf.open(X), da.from_array(X, chunks=(8, 10, 7))
    total, ones, nested = dask.compute(x.sum(), d + 1, {"max": [x.max()]})
    assert total == X.sum()
    assert type(total) is np.float64
    same(ones, X + 1)
    assert nested == {"max": [X.max()]}
    both = x.to_dask("2kB", device="cpu") + d  # dask's array and dask's operator
    assert isinstance(both, da.Array)
    same(both.compute(), 2 * X)
    assert isinstance(d + x, cf.Array)  # ours has the operator
    same((d + x).compute(device="cpu"), 2 * X)


def test_no_task_gives_more_than_its_partial() -> None:
    x = cf.open(np.ones((400, 100)))
    sizes: dict[str, int] = {}

    def note(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        arrays = result if isinstance(result, tuple) else (result,)
        sizes[str(key)] = sum(getattr(a, "nbytes", 0) for a in arrays)

    with Callback(posttask=note):
        x.sum(axis=0).to_dask("8kB", device="cpu").compute()
    assert len(sizes) > 40 + 40 // task_graph.ARITY
    assert max(sizes.values()) <= 2 * 100 * 8  # what is summed, and what rounding lost of it


def test_graphs_are_small(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, shape=(25_000, 1000, 1_000_000), chunks=(25, 100, 10_000), dtype="f4")
    for lazy in (cf.open(path) + 1, (cf.open(path) ** 2).sum()):
        made = dict(lazy.to_dask("64GB", budget="4GB").__dask_graph__())
        assert 2000 <= len(made) < 2500
        assert len(cloudpickle.dumps(made)) < 1 << 20
    mapped = np.memmap(tmp_path / "x", "f4", "w+", shape=(1 << 20,))
    assert len(cloudpickle.dumps(dict((cf.open(mapped) + 1).to_dask().__dask_graph__()))) < 1 << 16
    held = dict((cf.open(np.zeros(1 << 18)) + 1).to_dask("256kB").__dask_graph__())
    assert sorted(len(cloudpickle.dumps(task)) > 1 << 16 for task in held.values()) == [False] * 9 + [True]


def test_files_are_opened_by_those_who_read_them(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", "f8", "w+", shape=SHAPE)
    mapped[...] = X
    np.save(tmp_path / "x.npy", X)
    for source, expected in ((mapped[2:, :, ::-1], X[2:, :, ::-1]), (tmp_path / "x.npy", X)):
        d = (cf.open(source) + 1).to_dask("2kB", device="cpu")
        sent = cloudpickle.loads(cloudpickle.dumps(dict(d.__dask_graph__())))
        same(da.Array(sent, d.name, d.chunks, d.dtype).compute(), expected + 1)
    d = cf.open(X)[::2].to_dask("1kB", device="cpu")
    sent = cloudpickle.loads(cloudpickle.dumps(dict(d.__dask_graph__())))
    same(da.Array(sent, d.name, d.chunks, d.dtype).compute(), X[::2])


def test_annotations_are_kept() -> None:
    with dask.annotate(resources={"GPU": 1}):
        d = cf.open(X).sum(axis=0).to_dask("1kB")
    assert all(layer.annotations == {"resources": {"GPU": 1}} for layer in d.__dask_graph__().layers.values())


def test_large_intermediates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_graph, "TRAVELS", 100)
    x = cf.open(X)
    same((x - x.mean()).to_dask("1kB", device="cpu").compute(), X - X.mean())
    with pytest.raises(UnsupportedError, match=r"mean takes 560 B.*at most 100 B.*to_zarr"):
        (x - x.mean(axis=0)).to_dask("1kB")


def test_tasks_of_a_process_share_a_budget() -> None:
    with tasks.shared("1MB") as one, tasks.shared("1MB") as other, tasks.shared("2MB") as third:
        assert one is other is not third
    busy, most = threading.Lock(), []

    def alone(u: Any) -> Any:
        free = busy.acquire(blocking=False)
        most.append(free)
        time.sleep(0.001)
        if free:
            busy.release()
        return u + 1

    place = Place("eager-staged", "eager", staged=True)  # one lane
    device = place.device()
    d = cf.open(X).map(alone, dtype="f8").to_dask("1kB", budget="1MB", device=device)
    same(d.compute(scheduler="threads", num_workers=4), X + 1)
    assert all(most)


def test_a_budget_stays_for_the_next_task_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(Budget, "close", lambda self: closed.append(self))
    monkeypatch.setattr(tasks, "IDLE", 60)
    with tasks.shared("1MB") as one:
        pass
    with tasks.shared("1MB") as again:
        assert again is one
    assert one not in closed  # one of an earlier test may be
    monkeypatch.setattr(tasks, "IDLE", 0)
    with tasks.shared("2MB") as other:  # for which there may be no room
        assert one in closed
        assert other not in closed
    while other not in closed:
        time.sleep(0.001)
    with tasks.shared("2MB") as another:
        assert another is not other


def test_memmaps_are_written_by_tasks(tmp_path: Path) -> None:
    whole = np.memmap(tmp_path / "y.bin", "f8", "w+", shape=(SHAPE[0] + 2, *SHAPE[1:]))
    for part, expected in ((whole[1:-1], X + 1), (whole[1:-1][::-1], X * 2)):
        assert cd.store(cf.open(expected), part, partition="16kB") is part
        same(np.asarray(part), expected)
        assert not whole[0].any()
        assert not whole[-1].any()
    private = np.memmap(tmp_path / "y.bin", "f8", "c", shape=SHAPE)
    with pytest.raises(ArgumentTypeError, match=r"memmap.*other processes"):
        cd.store(cf.open(X), private)
    with pytest.raises(ArgumentError, match="read-only"):
        cd.store(cf.open(X), np.memmap(tmp_path / "y.bin", "f8", "r", shape=SHAPE))


def test_tasks_of_one_size_are_tried_twice_and_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_known", trial._Known())
    search._chosen.cache_clear()
    tried, searched = MagicMock(wraps=trial.run_trial), MagicMock(wraps=search.product_plan)
    monkeypatch.setattr(trial, "run_trial", tried)
    monkeypatch.setattr(search, "product_plan", searched)
    a, b = np.arange(60.0 * 8).reshape(60, 8), np.arange(8.0 * 7).reshape(8, 7)
    product = (cf.open(a) @ cf.open(b)).to_dask(20 * 8 * 8 + b.nbytes, device="cpu")
    assert product.numblocks == (4, 1)
    same(product.compute(scheduler="synchronous"), a @ b)
    assert tried.call_count == 2, "once, and once more to be sure"
    assert searched.call_count == 1


def test_what_a_task_wrote_stays_mapped_until_the_next_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "IDLE", 60)
    kept: list[weakref.ref[Any]] = []
    put_off = tasks._put_off
    monkeypatch.setattr(tasks, "_put_off", lambda outs: (kept.append(weakref.ref(outs[0].target)), put_off(outs)))
    out = np.memmap(tmp_path / "y.bin", "f8", "w+", shape=SHAPE)
    with dask.config.set(scheduler="synchronous"):
        cd.store(cf.open(X), out, partition=X.nbytes // SHAPE[0])
    same(np.asarray(out), X)
    assert len(kept) == SHAPE[0]
    while sum(target() is not None for target in kept) > 1:
        time.sleep(0.001)
    assert kept[-1]() is not None
    monkeypatch.setattr(tasks, "IDLE", 0)
    with tasks.shared(None):
        pass
    while kept[-1]() is not None:
        time.sleep(0.001)


def test_a_failing_task_tells_where() -> None:
    def picky(u: Any) -> Any:
        if (u == 99).any():
            raise ZeroDivisionError("there it is")
        return u

    x = X.copy()
    x[17] = 99
    with pytest.raises(ZeroDivisionError, match="there it is") as caught:
        cf.open(x).map(picky, dtype="f8").to_dask(2 * 560, device="cpu").compute()
    block, partition = caught.value.__notes__[0], caught.value.__notes__[-1]
    assert "region [16:18, 0:10, 0:7]" in block
    assert "in the partition (8, 0, 0) of map, region [16:18, 0:10, 0:7]" in partition


# -- Stores ----------------------------------------------------------------------------------------------------------


def test_outputs_are_written_by_tasks(tmp_path: Path) -> None:
    source = zarr.create_array(str(tmp_path / "x.zarr"), shape=SHAPE, chunks=(5, 4, 7), dtype="f8")
    source[...] = X
    x = cf.open(source)
    there = zarr.create_array(str(tmp_path / "e.zarr"), shape=SHAPE, chunks=(3, 10, 2), dtype="f8")
    outs = [tmp_path / "a.zarr", tmp_path / "b.npy", tmp_path / "g.zarr" / "c", there]
    arrays = [x + 1, x * 2, x.sum(axis=0), -x]
    results = cd.store(arrays, outs, partition="1kB", device="cpu")
    for result, expected in zip(results, (X + 1, X * 2, X.sum(axis=0), -X), strict=True):
        same(result[...], expected)
    assert results[0].chunks == (5, 4, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "b.npy", "e.zarr", "g.zarr", "x.zarr"]
    assert cd.store(x, tmp_path / "f.zarr", chunks=(2, 2, 2), device="cpu").chunks == (2, 2, 2)
    same(cd.store(x + 3, tmp_path / "f.zarr", overwrite=True, device="cpu")[...], X + 3)


def test_parts_and_ends_are_written_by_tasks(tmp_path: Path) -> None:
    x, n = cf.open(X), SHAPE[0]
    grown = tmp_path / "a.zarr"
    cd.store(x, cf.NewArray(grown, chunks=(n, 3, 4)), device="cpu")
    np.save(tmp_path / "b.npy", X)
    for out in (grown, tmp_path / "b.npy"):
        same(cd.store(x * 2, cf.ExistingArray(out, append=0), partition="1kB", device="cpu")[...], [*X, *(X * 2)])
        first = np.s_[n : n + 1, 0:5]
        got = cd.store(-x[:1, :5], cf.ExistingArray(out, region=first), partition="300B", device="cpu")
        same(got[...], np.concatenate([X, np.concatenate([-X[:1, :5], X[:1, 5:] * 2], 1), X[1:] * 2]))
        nothing = cd.store(x[:0], cf.ExistingArray(out, region=np.s_[2:2]), partition="1kB", device="cpu")
        same(nothing[...], got[...])
    with pytest.raises(ArgumentError, match=r"begin at \(0, 0, 0\), say"):
        cd.store(-x[:1], cf.ExistingArray(grown, region=np.s_[1:2]), device="cpu")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["u"] = X
    with pytest.raises(ArgumentTypeError, match="several workers cannot write"):
        cd.store(x, cf.ExistingArray(f"{tmp_path}/c.h5:/u", region=np.s_[:]), device="cpu")
    with pytest.raises(ZeroDivisionError):
        cd.store(x.map(fails_always, dtype="f8"), cf.ExistingArray(tmp_path / "b.npy", append=0), device="cpu")
    assert np.load(tmp_path / "b.npy").shape == (2 * n, *SHAPE[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zarr", "b.npy", "c.h5"]


def fails_always(u: Any) -> Any:
    raise ZeroDivisionError


def test_nothing_appears_where_a_task_fails(tmp_path: Path) -> None:
    def fails(u: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cd.store([cf.open(X) + 1, cf.open(X).map(fails, dtype="f8")], [tmp_path / "a.zarr", tmp_path / "b.npy"])
    assert not list(tmp_path.iterdir())


def test_outputs_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    x = cf.open(tmp_path / "x.npy")
    with pytest.raises(ArgumentTypeError, match=r"ndarray.*other processes.*\.zarr"):
        cd.store(x + 1, np.empty(SHAPE))
    with pytest.raises(ArgumentTypeError, match="one process alone"):
        cd.store(x + 1, tmp_path / "x.h5")
    with pytest.raises(OutputExistsError):
        cd.store(x + 1, tmp_path / "x.npy")
    with pytest.raises(ArgumentError, match="overlaps the input"):
        cd.store(x + 1, tmp_path / "x.npy", overwrite=True)
    with pytest.raises(ArgumentError, match="2 arrays and 1 outputs"):
        cd.store([x, x], [tmp_path / "y.npy"])
    with pytest.raises(ArgumentError, match="twice"):
        cd.store([x, x], [tmp_path / "y.npy", tmp_path / "z.npy"])
    with pytest.raises(ArgumentTypeError, match=r"ndarray.*chunkflow\.open"):
        cd.store(X, tmp_path / "y.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


# -- dask's arrays as sources ----------------------------------------------------------------------------------------


def test_dask_arrays_are_computed_as_they_are_read() -> None:
    seen: list[Any] = []

    def counted(block: Any, block_id: Any = None) -> Any:
        seen.append(block_id)
        return block + 1

    d = da.zeros((24, 200, 200), chunks=(1, 200, 200)).map_blocks(counted, dtype="f8")
    seen.clear()
    x = cf.from_dask(d)
    assert not seen
    with cf.chunks(d, budget="2.2MB", device="cpu") as stream:
        next(iter(stream))
        assert len(set(seen)) <= 6  # as many as the budget holds, and not all of them
    seen.clear()
    assert x.sum().compute(device="cpu", budget="2.2MB") == d.size
    assert set(seen) == {(i, 0, 0) for i in range(24)}
    assert len(seen) <= 25  # the trial call's is computed again


def test_dask_arrays_are_computed_by_the_callers_scheduler() -> None:
    asked = []

    def scheduler(*args: Any, **kwargs: Any) -> Any:
        asked.append(threading.current_thread())
        return dask.get(*args, **kwargs)

    d = da.from_array(X, chunks=(4, 10, 7)) + 1
    with dask.config.set(scheduler=scheduler):
        same(cf.map(np.negative, d, device="cpu"), -(X + 1))
    assert asked


def test_dask_arrays_are_part_of_the_graph() -> None:
    d = da.from_array(X, chunks=(5, 10, 7)) + 1
    x = cf.from_dask(d)
    same((x * 2).to_dask("1kB", device="cpu").compute(), (X + 1) * 2)
    for boundary in ("reflect", "periodic"):
        found = x.map_overlap(shifted, depth={0: (1, 0)}, boundary=boundary).to_dask("1kB", device="cpu")
        same(found.compute(), cf.map_overlap(shifted, X + 1, depth={0: (1, 0)}, boundary=boundary, device="cpu"))
    assert any(
        name.startswith("getitem") or name in d.__dask_graph__().layers for name in found.__dask_graph__().layers
    )
    with pytest.raises(UnsupportedError, match=r"before from_dask"):
        x[::2].to_dask()


def test_what_is_no_dask_array_is_refused() -> None:
    for array in (X, cf.open(X)):
        with pytest.raises(ArgumentTypeError, match="takes a dask array"):
            cf.from_dask(array)
    unknown = da.from_array(X[:, 0, 0], chunks=4)
    with pytest.raises(ArgumentTypeError, match="compute_chunk_sizes"):
        cf.from_dask(unknown[unknown > 0])


def test_a_block_that_fails_is_a_read_error() -> None:
    def fails(block: Any) -> Any:
        raise OSError("gone")

    d = da.from_array(X, chunks=-1).map_blocks(fails, dtype="f8", meta=np.empty((0, 0, 0)))
    with pytest.raises(ReadError, match=r"cannot compute \[.*gone"):
        cf.from_dask(d).sum().compute(device="cpu")


def test_a_mask_that_would_be_lost_is_refused() -> None:
    d = da.from_array(np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), chunks=2, asarray=False)
    with pytest.raises(ArgumentTypeError, match=r"lose its mask.*da\.ma\.filled"):
        cf.sum(d, device="cpu")
    assert cf.from_dask(d).sum().compute(device="cpu") == 4


def test_tasks_get_what_a_dask_array_says_it_has() -> None:
    d = da.arange(20, chunks=5).map_blocks(lambda b: b + 0.5, dtype="i8")
    with pytest.raises(ReadError, match="dtype float64 for"):
        (cf.from_dask(d) + 1).to_dask(device="cpu").compute(scheduler="sync")


@pytest.mark.parametrize("k", [4, -3, 9])
def test_the_largest_are_found_in_partitions_that_have_fewer(k: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (5, 6))
    found = cf.topk(cf.open(x), k, axis=0).to_dask(partition="48B", device="cpu")
    np.testing.assert_array_equal(found.compute(scheduler="sync"), cf.topk(x, k, axis=0, device="cpu"))
    found = cf.argtopk(cf.open(x), k, axis=0).to_dask(partition="48B", device="cpu")
    np.testing.assert_array_equal(found.compute(scheduler="sync"), cf.argtopk(x, k, axis=0, device="cpu"))


def test_a_small_budget_cuts_no_chunk_of_the_output(tmp_path: Path) -> None:
    x = np.arange(65, dtype="i4").reshape(1, 65, 1)
    for number, budget in enumerate((5120, 6000, 10_000)):
        path = tmp_path / f"{number}.zarr"
        cd.store(cf.ptp(cf.open(x) * 2, axis=0), path, chunks=(65, 1), budget=budget, device="cpu", scheduler="sync")
        np.testing.assert_array_equal(zarr.open_array(path)[...], np.zeros((65, 1)))


# -- dask's functions ------------------------------------------------------------------------------------------------

D = da.from_array(X[:, :, 0], chunks=(7, 10))
HOW: dict[str, Any] = {"budget": "100kB", "device": "cpu"}


def agrees(ours: da.Array, theirs: da.Array) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.chunks == theirs.chunks
    np.testing.assert_allclose(ours.compute(), theirs.compute(), rtol=1e-12)


def scaled(a: Any, b: Any, k: float = 1) -> Any:
    return a + b * k


def numbered(a: Any, block_id: Any = None) -> Any:
    return a + block_id[0]


def placed(a: Any, block_info: Any = None) -> Any:
    return a + (block_info[0]["array-location"][0][0] if block_info else 0)


@pytest.mark.parametrize(
    ("fn", "args", "options"),
    [
        (np.negative, (), {}),
        (scaled, (2.0,), {"k": 3}),
        (operator.add, (D[:1],), {}),
        (lambda a: a.sum(axis=1), (), {"drop_axis": 1}),
        (lambda a: a[None], (), {"new_axis": 0}),
        (lambda a: np.repeat(a, 2, axis=0), (), {"chunks": (tuple(2 * n for n in D.chunks[0]), (10,))}),
        (numbered, (), {"dtype": "f8"}),
        (placed, (), {"dtype": "f8"}),
    ],
)
def test_map_blocks_is_dasks(fn: Any, args: Any, options: Any) -> None:
    agrees(cd.map_blocks(fn, D, *args, **options, **HOW), da.map_blocks(fn, D, *args, **options))


@pytest.mark.parametrize("boundary", ["none", "reflect", "periodic", "nearest", 0.5])
@pytest.mark.parametrize("depth", [1, (2, 0), {0: 1}])
def test_map_overlap_is_dasks(boundary: Any, depth: Any) -> None:
    options = {"depth": depth, "boundary": boundary, "dtype": "f8"}
    agrees(cd.map_overlap(gradient, D, **options, **HOW), da.map_overlap(gradient, D, **options))


def test_map_overlap_says_what_it_cannot_do() -> None:
    for options, what in (({"trim": False}, "trim=False"), ({"drop_axis": 1}, "drop_axis")):
        with pytest.raises(UnsupportedError, match=rf"{what}.*dask\.array\.map_overlap"):
            cd.map_overlap(gradient, D, depth=1, **options)


@pytest.mark.parametrize("axis", [0, 1, None, (0, 1)])
def test_reduction_is_dasks(axis: Any) -> None:
    d = da.from_array(np.arange(300_000.0).reshape(3000, 100) / 8, chunks=(1700, 60))
    options = {"axis": axis, "dtype": "f8", "keepdims": axis == 0}
    how = {"budget": "200kB", "device": "cpu"}
    agrees(cd.reduction(d, np.max, np.max, **options, **how), da.reduction(d, np.max, np.max, **options))
    options |= {"combine": reducing.mean_combine, "concatenate": False}
    agrees(
        cd.reduction(d, reducing.mean_chunk, reducing.mean_agg, **options, **how),
        da.reduction(d, reducing.mean_chunk, reducing.mean_agg, **options),
    )


def test_chunkflows_own_arrays_are_told_where_they_belong() -> None:
    x = cf.open(X)
    with pytest.raises(ArgumentTypeError, match=r"map_blocks takes dask arrays.*x\.map\(fn\).*to_dask"):
        cd.map_blocks(np.add, D, x)
    with pytest.raises(ArgumentTypeError, match=r"map_overlap takes dask arrays.*x\.map_overlap"):
        cd.map_overlap(gradient, x, depth=1)
    with pytest.raises(ArgumentTypeError, match=r"reduction takes dask arrays.*chunkflow\.reduction"):
        cd.reduction(x, np.max, np.max)


def test_blocks_are_streamed() -> None:
    shapes = []

    def noted(block: Any) -> Any:
        shapes.append(block.shape)
        return block + 1

    d = da.zeros((1000, 1000), chunks=(500, 1000))
    same(cd.map_blocks(noted, d, dtype="f8", budget="1MB", device="cpu").compute(), np.ones((1000, 1000)))
    assert all(8 * np.prod(shape) < 1e6 for shape in shapes)


def test_weights_are_not_dropped() -> None:
    with pytest.raises(UnsupportedError, match=r"weights.*chunkflow\.average"):
        cd.reduction(D, np.sum, np.sum, dtype="f8", weights=D)


def test_what_is_no_budget_or_partition_is_refused_at_once() -> None:
    x = cf.open(X)
    with pytest.raises(ArgumentError, match="2 parsecs"):
        x.to_dask("2 parsecs")
    for budget in ("2 parsecs", cf.Budget("1MB")):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            x.to_dask(budget=budget)


EXTRAS = ["unit.npy", (1, 2), {"a": 1}, int, np.dtype("f4"), len, None, np.arange(12.0).reshape(3, 4)]


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda value: type(value).__name__)
def test_what_is_no_dask_array_is_passed_on(extra: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("unit.npy", np.full((6, 8), 100.0))  # text is no path here

    def fn(block: Any, given: Any) -> Any:
        assert isinstance(given, type(extra))
        return block * given if isinstance(given, np.ndarray) else block + 1

    x = da.from_array(np.arange(48.0).reshape(6, 8), chunks=(3, 4))
    expected = da.map_blocks(fn, x, extra, dtype=float).compute(scheduler="sync")
    got = cd.map_blocks(fn, x, extra, dtype=float, budget="1MB", device="cpu").compute(scheduler="sync")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("budget", ["300kB", "1MB", "64MB", None])
def test_chunks_of_new_arrays_fit_the_budget(tmp_path: Path, budget: str | None) -> None:
    x = np.random.default_rng(0).random((512, 512))
    np.save(tmp_path / "x.npy", x)
    lazy = cf.open(tmp_path / "x.npy")
    exprs, names = [lazy * 2, lazy - lazy.mean()], ["a.zarr", "b.zarr"]
    cf.store(exprs, [tmp_path / f"here-{name}" for name in names], budget=budget, device="cpu")
    cd.store(exprs, [tmp_path / name for name in names], budget=budget, device="cpu", scheduler="sync")
    for name in names:
        here, found = zarr.open_array(tmp_path / f"here-{name}"), zarr.open_array(tmp_path / name)
        assert found.chunks == here.chunks
        assert (budget in ("300kB", "1MB")) == (found.chunks != (512, 512))
        np.testing.assert_allclose(found[...], here[...])


def test_functions_of_ones_own_are_not_tried_before_a_worker_calls_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((512, 512)))
    called = []
    lazy = cf.open(tmp_path / "x.npy").map(lambda block: called.append(0) or block, dtype="f8")

    def no_worker(graph: Any, keys: Any, **_: Any) -> None:
        raise RuntimeError("no worker")

    with pytest.raises(RuntimeError, match="no worker"):
        cd.store(lazy, tmp_path / "a.zarr", budget="1MB", device="cpu", scheduler=no_worker)
    assert not called


def test_chunks_that_are_asked_for_stay(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((512, 512)))
    lazy = cf.open(tmp_path / "x.npy") * 2
    for out, how in (("a.zarr", {"chunks": (512, 512)}), (cf.NewArray("b.zarr", chunks=(512, 512)), {})):
        with pytest.raises(cf.BudgetError, match=r"whole chunks \(512, 512\)"):
            cd.store(lazy, out, budget="300kB", device="cpu", scheduler="sync", **how)


def test_misspelt_options_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"unknown arguments bugdet, progres; did you mean budget=\?: store"):
        cd.store(cf.open(np.ones((4, 4))) + 1, "r.zarr", bugdet="32MB", progres=True)
