"""Quantiles as graphs of tasks: each pass is known beforehand, and takes what the one before found."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import Place, everywhere, same
from support.examples import examples

dask = pytest.importorskip("dask")

from dask.callbacks import Callback  # noqa: E402

import chunkflow as cf  # noqa: E402
from chunkflow.api.statistics import quantile_graph  # noqa: E402
from chunkflow.cluster.partition import partitioned, pass_of  # noqa: E402
from chunkflow.errors import UnsupportedError  # noqa: E402
from chunkflow.kernels.statistics.quantile import METHODS  # noqa: E402

X = (np.random.default_rng(0).standard_normal((30, 20, 8)) * 50).round(1)
HOW: dict[str, Any] = {"partition": "20kB", "budget": "80MB", "device": "cpu"}


@pytest.fixture(autouse=True)
def _in_this_thread() -> Any:
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture(params=["lines partitioned", "digits counted"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either way in which lines are treated, however short they are."""
    monkeypatch.setattr(quantile_graph, "SMALL", 0 if request.param == "digits counted" else 1 << 20)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["?", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("axis", [None, 0, (0, 2), (0, 1, 2)])
def test_quantiles_are_numpys(dtype: str, axis: Any) -> None:
    x = X.astype(dtype) if dtype[0] != "u" and dtype != "?" else abs(X).astype(dtype)
    q, method = (0.3, "nearest") if dtype == "?" else ([0.01, 0.5, 0.99], "linear")
    for keepdims in (False, True):
        lazy = cf.quantile(cf.open(x), q, axis=axis, method=method, keepdims=keepdims)
        same(lazy.to_dask(**HOW).compute(), np.quantile(x, q, axis=axis, method=method, keepdims=keepdims))
    if dtype != "?":
        same(np.median(cf.open(x), axis=axis).to_dask(**HOW).compute(), np.median(x, axis=axis))
        same(np.percentile(cf.open(x), 7, axis=axis).to_dask(**HOW).compute(), np.percentile(x, 7, axis=axis))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("method", METHODS)
def test_methods_and_special_numbers(method: str) -> None:
    x = X[:, :, 0].copy()
    x[3, 4], x[5], x[6, 7], x[8, :9] = np.nan, np.inf, -np.inf, -0.5
    for axis in (None, 0, 1):
        lazy = cf.quantile(cf.open(x), [0, 0.3, 1], axis=axis, method=method)
        with np.errstate(all="ignore"):
            same(
                lazy.to_dask("3kB", budget="80MB", device="cpu").compute(),
                np.quantile(x, [0, 0.3, 1], axis, method=method),
            )


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["i4", "f2", "f4", ">f4", "f8"])
@pytest.mark.parametrize("axis", [None, 1, (0, 2), (0, 1, 2)])
def test_nan_is_left_out(dtype: str, axis: Any) -> None:
    x = X.astype(dtype)
    if x.dtype.kind == "f":
        x[X > 20], x[:, 3], x[5, 6] = np.nan, np.nan, np.inf
    lazy = cf.open(x)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # lines that are all NaN
        for keepdims, q in ((False, [0.01, 0.5, 0.99]), (True, 0.7), (True, np.float32(0.3))):
            got = np.nanquantile(lazy, q, axis=axis, keepdims=keepdims).to_dask(**HOW).compute()
            same(got, np.nanquantile(x, q, axis=axis, keepdims=keepdims))
        got = np.nanmedian(lazy, axis=axis, keepdims=True).to_dask(**HOW).compute()
        same(got, np.nanmedian(x, axis=axis, keepdims=True))
        same(np.nanpercentile(lazy, 7, axis=axis).to_dask(**HOW).compute(), np.nanpercentile(x, 7, axis=axis))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("method", METHODS)
def test_methods_without_nan(method: str) -> None:
    x = X[:, :, 0].copy()
    x[X[:, :, 0] > 20], x[5], x[6, 7], x[8, :9] = np.nan, np.inf, -np.inf, -0.5
    x[:, 11] = np.nan
    for axis in (None, 0, 1):
        lazy = cf.nanquantile(cf.open(x), [0, 0.3, 1], axis=axis, method=method)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            expected = np.nanquantile(x, [0, 0.3, 1], axis, method=method)
        same(lazy.to_dask("3kB", budget="80MB", device="cpu").compute(), expected)


def test_nothing_but_nan() -> None:
    x = np.full((300, 1000), np.nan, "f4")
    same(np.nanmedian(cf.open(x)).to_dask(**HOW).compute(), np.float32(np.nan))
    same(np.nanquantile(cf.open(x), [0.1, 1]).to_dask(**HOW).compute(), np.full(2, np.nan))
    x[7, 3] = 5
    for one, other in zip(dask.compute(np.nanmedian(cf.open(x)), cf.nanmax(cf.open(x))), (5, 5), strict=True):
        same(one, np.float32(other))


@everywhere
@pytest.mark.usefixtures("small")
def test_on_any_device(place: Place) -> None:
    x = X.astype("f4")
    missing = np.where(X > 20, np.float32(np.nan), x)
    how = {"partition": "9kB", "budget": place.budget(80 << 20), "device": place.device()}
    for axis in (None, 0):
        for fn, some in ((np.quantile, x), (np.nanquantile, missing)):
            same(fn(cf.open(some), [0.2, 0.9], axis=axis).to_dask(**how).compute(), fn(some, [0.2, 0.9], axis=axis))


@settings(max_examples=examples(1 / 2))
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    size=st.integers(50, 2000),
    q=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    few=st.booleans(),
    skip=st.booleans(),
    data=st.data(),
)
def test_any_shape_partition_and_quantiles(
    shape: tuple[int, ...], size: int, q: Any, few: bool, skip: bool, data: Any
) -> None:
    rng = np.random.default_rng(1)
    x = (rng.integers(0, 3, shape) if few else rng.standard_normal(shape)).astype("f4")
    if skip:
        x[rng.random(shape) < 0.4] = np.nan
    fn: Any = np.nanquantile if skip else np.quantile
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="sync"):
        patch.setattr(quantile_graph, "SMALL", 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lines that are all NaN
            expected = fn(x, np.array(q), axis=axis)
        same(fn(cf.open(x), q, axis=axis).to_dask(size, budget="200MB", device="cpu").compute(), expected)


def test_they_are_part_of_expressions() -> None:
    x = cf.open(X)
    for lazy, expected in (
        ((x > np.median(x)).sum(axis=0), (np.median(X) < X).sum(axis=0)),
        (np.median(x * 2 - x.mean()), np.median(X * 2 - X.mean())),
        (np.median(abs(x - np.median(x))), np.median(abs(X - np.median(X)))),
        (np.nanmedian(x * 2 - np.nanquantile(x, 0.2)), np.nanmedian(X * 2 - np.nanquantile(X, 0.2))),
    ):
        same(lazy.to_dask(**HOW).compute(), expected)
    for one, other in zip(dask.compute(np.median(x), x.max()), (np.median(X), X.max()), strict=True):
        same(one, other)


def test_bits_are_the_same_in_whatever_order_tasks_run() -> None:
    for fn in (np.quantile, np.nanquantile):
        d = fn(cf.open(X), [0.1, 0.5]).to_dask(**HOW)
        for workers in (1, 2, 4):
            same(d.compute(scheduler="threads", num_workers=workers), fn(X, [0.1, 0.5]))


def test_no_task_gives_more_than_its_counts() -> None:
    sizes = []

    def note(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        arrays = result if isinstance(result, tuple) else (result,)
        sizes.append(sum(getattr(a, "nbytes", 0) for a in arrays))

    with Callback(posttask=note):
        np.median(cf.open(X.astype("f4"))).to_dask(**HOW).compute()
    assert max(sizes) <= 3 * 8 * (2**16 + 2)  # the two in the middle, and the last one, which may be NaN
    many = cf.quantile(cf.open(np.broadcast_to(np.ones(()), (300_000, 1000))), [0.1, 0.9], axis=0)
    cut = []
    node = many._node
    while node is not None:
        made, awaited = pass_of(node)
        cut.append(partitioned(made, "1GB"))
        node = next(iter(awaited), None)
    assert len(cut) == 1 + 8  # of eight bits each, and the result
    for found in cut[1:]:
        assert 256 * found.sides[0] // 2 * found.sides[2] <= 4 << 20
        assert found.folded == {1}


def test_of_nothing_there_is_no_graph() -> None:
    for lazy in (cf.quantile(cf.open(X), []), cf.median(cf.open(np.ones((0, 3))), axis=1)):
        with pytest.raises(UnsupportedError, match=r"no elements, or for no result, .* compute\(\)"):
            lazy.to_dask()
