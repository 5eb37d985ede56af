"""Quantiles as graphs of tasks: each pass is known beforehand, and takes what the one before found."""

from __future__ import annotations

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


def test_nan_is_left_out_of_short_lines() -> None:
    x = X.copy()
    x[X > 20] = np.nan
    same(np.nanmedian(cf.open(x), axis=0).to_dask(**HOW).compute(), np.nanmedian(x, axis=0))
    with pytest.raises(UnsupportedError, match="nanmedian"):
        np.nanmedian(cf.open(x)).to_dask(**HOW)


@everywhere
@pytest.mark.usefixtures("small")
def test_on_any_device(place: Place) -> None:
    x = X.astype("f4")
    how = {"partition": "9kB", "budget": place.budget(80 << 20), "device": place.device()}
    for axis in (None, 0):
        same(
            np.quantile(cf.open(x), [0.2, 0.9], axis=axis).to_dask(**how).compute(),
            np.quantile(x, [0.2, 0.9], axis=axis),
        )


@settings(max_examples=examples(1 / 2))
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    size=st.integers(50, 2000),
    q=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    few=st.booleans(),
    data=st.data(),
)
def test_any_shape_partition_and_quantiles(shape: tuple[int, ...], size: int, q: Any, few: bool, data: Any) -> None:
    rng = np.random.default_rng(1)
    x = (rng.integers(0, 3, shape) if few else rng.standard_normal(shape)).astype("f4")
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="sync"):
        patch.setattr(quantile_graph, "SMALL", 0)
        lazy = np.quantile(cf.open(x), q, axis=axis)
        same(lazy.to_dask(size, budget="200MB", device="cpu").compute(), np.quantile(x, np.array(q), axis=axis))


def test_they_are_part_of_expressions() -> None:
    x = cf.open(X)
    for lazy, expected in (
        ((x > np.median(x)).sum(axis=0), (np.median(X) < X).sum(axis=0)),
        (np.median(x * 2 - x.mean()), np.median(X * 2 - X.mean())),
        (np.median(abs(x - np.median(x))), np.median(abs(X - np.median(X)))),
    ):
        same(lazy.to_dask(**HOW).compute(), expected)
    for one, other in zip(dask.compute(np.median(x), x.max()), (np.median(X), X.max()), strict=True):
        same(one, other)


def test_bits_are_the_same_in_whatever_order_tasks_run() -> None:
    d = np.quantile(cf.open(X), [0.1, 0.5]).to_dask(**HOW)
    for workers in (1, 2, 4):
        same(d.compute(scheduler="threads", num_workers=workers), np.quantile(X, [0.1, 0.5]))


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
