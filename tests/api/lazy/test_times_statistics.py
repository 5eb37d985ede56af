"""Medians, quantiles, places of extremes and gradients of times give what NumPy gives, with NaT as NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.devices import Place, on_cpu_and_gpu
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.kernels.statistics.quantile import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAT = np.iinfo("i8").min


@st.composite
def times(draw: Any, kind: str = "mM", missing: bool = True) -> np.ndarray:
    """An array of nanoseconds, of which floats have not all digits, or of days; some may be NaT."""
    shape = draw(npst.array_shapes(min_dims=1, max_dims=3, min_side=3, max_side=5))
    unit, most = draw(st.sampled_from([("ns", 1 << 61), ("D", 20)]))
    counts = st.integers(-most, most) | st.integers(-2, 2)
    counts = counts | st.just(NAT) if missing else counts
    return draw(npst.arrays("i8", shape, elements=counts)).view(f"{draw(st.sampled_from(kind))}8[{unit}]")


def same(got: Any, expected: Any) -> None:
    assert np.asarray(got).dtype == np.asarray(expected).dtype
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_array_equal(got, expected)


def by_lines(fn: Callable[[np.ndarray], Any], x: np.ndarray, axis: int | None, *, skips: bool) -> Any:
    """What a function gives of each line: NaT where one is in it, or of what is left without."""

    def call(line: np.ndarray) -> Any:
        present = line[~np.isnat(line)]
        if not len(present) or (len(present) < len(line) and not skips):
            found = np.asarray(fn(np.zeros(1, line.dtype)))
            return np.full(found.shape, "NaT", found.dtype)
        return np.asarray(fn(present))

    if axis is None:
        return call(x.ravel())[()]
    lines = np.moveaxis(x, axis, -1)
    found = [call(line) for line in lines.reshape(-1, lines.shape[-1])]
    made = np.array(found).reshape((*lines.shape[:-1], *found[0].shape))
    return np.moveaxis(made, -1, 0) if found[0].ndim else made[()]


def middle(line: np.ndarray) -> Any:
    """The median, computed by Python's integers."""
    ordered, n = sorted(line.view("i8").tolist()), len(line)
    total = ordered[(n - 1) // 2] + ordered[n // 2]
    return np.int64(abs(total) // 2 * (1 if total >= 0 else -1)).view(line.dtype)


@given(times(), st.booleans(), st.integers(-1, 0) | st.none(), st.sampled_from(["100kB", "64MB"]))
@settings(max_examples=examples(1), deadline=None)
def test_medians(x: np.ndarray, skips: bool, axis: int | None, budget: str) -> None:
    fn = np.nanmedian if skips else np.median
    got = cf.compute(fn(cf.open(x), axis=axis), device="cpu", budget=budget)
    same(got, by_lines(middle, x, axis, skips=skips))
    if x.dtype == "m8[D]":
        same(got, fn(x, axis=axis))
        whole = fn(cf.open(x), axis=axis, keepdims=True).compute(device="cpu")
        same(whole, fn(x, axis=axis, keepdims=True))


@given(
    times(),
    st.booleans(),
    st.floats(0, 1) | st.lists(st.sampled_from([0, 0.25, 0.3, 0.5, 1]), max_size=3),
    st.integers(-1, 0) | st.none(),
    st.sampled_from(METHODS),
)
@settings(max_examples=examples(4), deadline=None)
def test_quantiles(x: np.ndarray, skips: bool, q: Any, axis: int | None, method: Any) -> None:
    fn = np.nanquantile if skips else np.quantile
    got = fn(cf.open(x), q, axis=axis, method=method).compute(device="cpu")
    same(got, by_lines(lambda line: np.quantile(line, q, method=method), x, axis, skips=skips))


def test_percentiles_of_several_axes() -> None:
    x = np.arange(24).reshape(2, 3, 4).astype("m8[s]")
    q = [[10, 50], [60, 99]]
    for fn in (np.percentile, np.nanpercentile):
        for how in ({"axis": (0, 2)}, {"axis": (2, 0), "keepdims": True}, {"keepdims": True}):
            same(
                fn(cf.open(x), q, **how).compute(device="cpu"),
                np.percentile(x, q, **how),
            )
    found = cf.percentile(cf.open(x), 30, axis=0).compute(device="cpu")
    same(found, np.percentile(x, 30, axis=0))
    same(cf.nanmedian(cf.open(x), axis=0).compute(device="cpu"), np.nanmedian(x, axis=0))


@given(times(), st.integers(-1, 0) | st.none())
@settings(max_examples=examples(1 / 2), deadline=None)
def test_places_of_extremes(x: np.ndarray, axis: int | None) -> None:
    lost = np.isnat(x)
    for fn, value, plain in ((np.nanargmin, np.iinfo("i8").max, np.argmin), (np.nanargmax, NAT, np.argmax)):
        got = fn(cf.open(x), axis=axis)
        if lost.all(axis=axis).any():
            with pytest.raises(ValueError, match="nothing but NaT"):
                got.compute(device="cpu")
        else:
            same(got.compute(device="cpu"), plain(np.where(lost, value, x.view("i8")), axis=axis))


PLACES = np.array([0.0, 1, 3, 4, 8])


@given(times(), st.sampled_from([(), (2,), (0.5,), "uneven"]), st.sampled_from([1, 2]), st.integers(-1, 0))
@settings(max_examples=examples(1), deadline=None)
def test_gradients(x: np.ndarray, spacing: Any, edge_order: Any, axis: int) -> None:
    spacing = (PLACES[: x.shape[axis]],) if spacing == "uneven" else spacing
    x = (x.view("i8") // 64).view(x.dtype) if x.dtype.str.endswith("[ns]") else x  # so that no sum wraps around
    expected = np.gradient(x, *spacing, axis=axis, edge_order=edge_order)
    same(np.gradient(cf.open(x), *spacing, axis=axis, edge_order=edge_order).compute(device="cpu"), expected)


def test_gradients_of_all_axes() -> None:
    x = np.arange(12).reshape(3, 4).astype("M8[h]")
    for one, other in zip(np.gradient(cf.open(x), 2.0, 3), np.gradient(x, 2.0, 3), strict=True):
        same(one.compute(device="cpu"), other)


@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")  # within NumPy 2.5's nanmedian
@on_cpu_and_gpu
def test_devices(place: Place) -> None:
    x = np.array([[5, "NaT", -7, 0], [1, 2, 3, 7]], "m8[h]")
    for call in (
        lambda x: np.median(x, axis=1),
        lambda x: np.nanmedian(x, axis=1),
        lambda x: np.quantile(x, [0.3, 0.7], axis=1),
        lambda x: np.gradient(x, axis=1),
    ):
        same(cf.compute(call(cf.open(x)), device=place.device()), call(x))
    assert np.nanargmin(cf.open(x)).compute(device=place.device()) == 2


def test_refusals_and_lines_without_elements() -> None:
    x, empty = cf.open(np.arange(5).astype("M8[D]")), np.zeros((0, 3), "m8[D]")
    for wrong in (
        lambda: np.quantile(x, 0.5, method="none"),
        lambda: np.quantile(x, 2),
        lambda: np.nanquantile(x, [[0.5]], axis=3),
        lambda: np.quantile(x, 0.5, method="inverted_cdf", weights=np.ones(5)),
        lambda: np.gradient(x, edge_order=3),
        lambda: np.gradient(x, x),
        lambda: np.quantile(cf.open(empty), 0.5, axis=0),
    ):
        with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError, errors.UnsupportedError)):
            wrong()
    for fn in (np.median, np.nanmedian):
        same(fn(cf.open(empty), axis=0).compute(device="cpu"), np.full(3, "NaT", "m8[D]"))
    same(np.quantile(cf.open(empty), 0.5, axis=1).compute(device="cpu"), np.zeros(0, "m8[D]"))
