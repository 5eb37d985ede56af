"""Quantiles and distinct values are NumPy's, whatever the array, the method, the cut, the passes and the device."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.budgets import MB, SLACK, traced
from support.devices import CHECKING, Place, everywhere, on_cpu_and_gpu, same
from support.examples import examples

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.statistics.quantile import (
    median,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from chunkflow.api.statistics.unique import unique
from chunkflow.core.nest import nest
from chunkflow.kernels.statistics.gathered import Gathered
from chunkflow.kernels.statistics.quantile import METHODS, STRIP, Digits, rule, strips
from chunkflow.kernels.statistics.radix_keys import from_keys, key_dtype, to_keys
from chunkflow.testing import CountingSource

FLOATS = ("f2", "f4", "f8")
INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
QS = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0, 1, 0.5, np.float32(0.3), np.float64(0.25)]),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.just(np.linspace(0, 1, 7)),
)


def quiet(fn: Any, *arguments: Any, **options: Any) -> Any:
    """NumPy's result without its warnings."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fn(*arguments, **options)


def equal(got: Any, expected: Any, x: np.ndarray) -> None:
    """Equal to the bit, but for the dtype of a lone NaN, and the sign of zeros where both are among the data."""
    if x.dtype.kind == "f" and np.ndim(expected) == 0 and np.isnan(expected):
        assert np.ndim(got) == 0
        assert np.isnan(got)
    elif x.dtype.kind == "f" and len(set(np.signbit(x[x == 0]).tolist())) > 1:
        assert np.asarray(got).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(got, expected, strict=np.ndim(expected) > 0)
    else:
        same(got, expected)


def arrays(dtypes: Any, shapes: Any) -> Any:
    return st.sampled_from(dtypes).flatmap(lambda dtype: npst.arrays(np.dtype(dtype), shapes))


@given(x=arrays(FLOATS + INTEGERS + (">f4",), st.integers(1, 40)), q=QS, method=st.sampled_from(METHODS))
@settings(max_examples=examples(15))
def test_rules_are_numpys(x: np.ndarray, q: Any, method: str) -> None:
    """Keys, ranks and interpolation alone, on sorted keys, with no pass."""
    native = x.dtype.newbyteorder("=")
    expected = quiet(np.quantile, x.astype(native), q, method=method)
    ordered = from_keys(np.sort(to_keys(x)), native)
    weak = type(q) in (int, float)
    dtype = np.asarray(quiet(np.quantile, np.zeros(2, native), q, method=method)).dtype
    how = rule(len(x), np.atleast_1d(q), method, weak=weak, dtype=dtype, nans=native.kind == "f")
    needed = how.ranks()
    found = how.result(lambda ranks: ordered[needed][np.searchsorted(needed, ranks)])
    equal(found.reshape(np.shape(q))[()], expected, x)


@given(
    x=arrays(FLOATS + INTEGERS, npst.array_shapes(max_dims=3, max_side=7)),
    q=QS,
    method=st.sampled_from(METHODS),
    keepdims=st.booleans(),
    chunks=st.sampled_from([None, 2, 3]),
    place=st.sampled_from(CHECKING),
    budget=st.sampled_from([100_000, 20_000_000]),
    data=st.data(),
)
@settings(max_examples=examples(3))
def test_quantiles_as_numpy(
    x: np.ndarray, q: Any, method: str, keepdims: bool, chunks: Any, place: Place, budget: int, data: Any
) -> None:
    axes = st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1), st.permutations(range(x.ndim)).map(lambda p: p[:2]))
    axis = data.draw(axes)
    axis = tuple(axis) if isinstance(axis, list) else axis
    options = {"chunks": chunks, "budget": budget, "device": place.device()}
    equal(
        quantile(x, q, axis, method, keepdims, **options),
        quiet(np.quantile, x, q, axis=axis, method=method, keepdims=keepdims),
        x,
    )
    equal(median(x, axis, keepdims, **options), quiet(np.median, x, axis=axis, keepdims=keepdims), x)


@given(
    x=arrays(("f2", "f4", ">f8", "i4", "i8", "u8"), npst.array_shapes(max_dims=2, max_side=7)),
    q=st.floats(0, 1),
    tolerance=st.sampled_from([0.5, 0.1, 0.01, 1e-6, 1e-18]),
    budget=st.sampled_from([100_000, 200_000_000]),
    data=st.data(),
)
def test_approximate_quantiles_are_within_their_bound(
    x: np.ndarray, q: float, tolerance: float, budget: int, data: Any
) -> None:
    axis = data.draw(st.sampled_from([None, 0]))
    run: dict[str, Any] = {"approx": tolerance, "budget": budget, "device": "cpu", "chunks": 2}
    got = np.asarray(quantile(x, q, axis, "lower", **run))
    expected = np.asarray(quiet(np.quantile, x, q, axis, method="lower"))
    assert got.dtype == expected.dtype.newbyteorder("=")
    wide, right = got.astype("g"), expected.astype("g")
    least = np.finfo(x.dtype).tiny if x.dtype.kind == "f" else 0
    with np.errstate(invalid="ignore"):
        off = np.where(wide == right, 0, abs(wide - right))  # also of infinity
    bound = np.longdouble(tolerance) * np.maximum(abs(right), least)
    np.testing.assert_array_equal((off <= bound) | (np.isnan(wide) & np.isnan(right)), True)


def test_approximate_quantiles_read_once() -> None:
    x = np.random.default_rng(2).standard_normal((800, 250)) * 1e3
    exact, some = CountingSource(x), CountingSource(x)
    same(quantile(exact, 0.3, budget=200_000_000, device="cpu"), np.quantile(x, 0.3))
    found = quantile(some, 0.3, approx=0.06, budget="2GB", device="cpu")
    assert exact.bytes_read == 2 * some.bytes_read == 2 * x.nbytes
    np.testing.assert_allclose(found, np.quantile(x, 0.3), rtol=0.06)
    same(quantile(cf.open(x), 0.3, approx=0.06).compute(budget="2GB", device="cpu"), found)
    holes = np.where(x < -500, np.nan, x)
    for name, q in (("nanquantile", 0.9), ("nanpercentile", 90), ("percentile", 1)):
        data = x if name == "percentile" else holes
        got = getattr(cf, name)(data, q, approx=0.01, budget="100MB", device="cpu")
        np.testing.assert_allclose(got, getattr(np, name)(data, q), rtol=0.01)


@everywhere
def test_several_passes(place: Place) -> None:
    x = np.random.default_rng(0).standard_normal((60, 70)).astype("f4")
    qs = [0.01, 0.5, 0.501, 0.99]
    options = {"chunks": (17, 30), "budget": place.budget(4_000_000), "device": place.device()}
    same(quantile(x, qs, **options), np.quantile(x, qs))
    same(quantile(x, qs, 0, **options), np.quantile(x, qs, 0))
    same(percentile(x, 30, 1, "hazen", True, **options), np.percentile(x, 30, 1, method="hazen", keepdims=True))
    same(median(x, (0, 1), **options), np.median(x))
    whole = {**options, "chunks": None}
    same(quantile(x, qs, 1, "weibull", **whole), np.quantile(x, qs, 1, method="weibull"))
    same(median(x, 0, **whole), np.median(x, 0))


def _some_missing(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    found = x.copy()
    if x.dtype.kind == "f":
        found[places] = np.nan
    return found


@given(
    x=npst.arrays(
        st.sampled_from(("f4", "f8", "i2")), npst.array_shapes(max_dims=3, max_side=7), elements=st.integers(-90, 90)
    ),
    q=QS,
    method=st.sampled_from(METHODS),
    keepdims=st.booleans(),
    chunks=st.sampled_from([None, 2, 3]),
    place=st.sampled_from(CHECKING),
    budget=st.sampled_from([100_000, 20_000_000]),
    data=st.data(),
)
@settings(max_examples=examples(1 / 2))
def test_quantiles_without_nan_as_numpy(
    x: np.ndarray, q: Any, method: str, keepdims: bool, chunks: Any, place: Place, budget: int, data: Any
) -> None:
    x = _some_missing(x, data.draw(npst.arrays("?", x.shape)))
    axis = data.draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1), st.just(tuple(range(x.ndim))[:2])))
    options = {"chunks": chunks, "budget": budget, "device": place.device()}
    got = nanquantile(x, q, axis, method, keepdims, **options)
    np.testing.assert_array_equal(got, quiet(np.nanquantile, x, q, axis=axis, method=method, keepdims=keepdims))
    expected = quiet(np.nanmedian, x, axis=axis, keepdims=keepdims)
    same(nanmedian(x, axis, keepdims, **options), expected)
    same(nanmedian(cf.open(x), axis, keepdims, chunks=chunks).compute(budget=budget, device="cpu"), expected)


@everywhere
def test_lines_without_nan_in_several_passes(place: Place) -> None:
    x = np.random.default_rng(0).standard_normal((50, 60)).astype("f4")
    x[x > 1], x[:, 3], x[0, 0] = np.nan, np.nan, np.inf
    options = {"budget": place.budget(4_000_000), "device": place.device()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for axis in (None, 0):
            same(nanpercentile(x, [1, 99.5], axis, chunks=(40, 50), **options), np.nanpercentile(x, [1, 99.5], axis))
        same(nanmedian(x, 1, **options), np.nanmedian(x, 1))


def test_nan_takes_no_further_pass(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((400, 1000)).astype("f4")
    x[::3] = np.nan
    source = CountingSource(x)
    same(nanmedian(source, chunks=(50, 1000), budget=200_000_000, device="cpu"), np.nanmedian(x))
    assert source.bytes_read == 2 * x.nbytes
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(60, 300), dtype="f4")[...] = x
    same(nanmedian(tmp_path / "x.zarr", budget=400_000, device="cpu"), np.nanmedian(x))
    np.save(tmp_path / "x.npy", x)
    same(nanmedian(tmp_path / "x.npy", 0, budget=300_000, device="cpu"), np.nanmedian(x, 0))


@given(
    x=npst.arrays(st.sampled_from(("f4", "i4")), (4, 5, 3), elements=st.integers(-9, 9)),
    weights=npst.arrays("i4", (4, 5, 3), elements=st.integers(0, 5)),
    q=st.sampled_from([0.3, [0.0, 0.5, 1.0], np.float32(0.2)]),
    axis=st.sampled_from([None, 0, -1, (0, 2), (2, 0)]),
    skip=st.booleans(),
    keepdims=st.booleans(),
    place=st.sampled_from(CHECKING),
    data=st.data(),
)
@settings(max_examples=examples(1 / 2))
def test_weighted_quantiles_as_numpy(
    x: np.ndarray, weights: np.ndarray, q: Any, axis: Any, skip: bool, keepdims: bool, place: Place, data: Any
) -> None:
    weights[:, :, 0] += 1
    weights += weights.sum(axis=axis, keepdims=True) == 0  # a line of zeros is refused
    x = _some_missing(x, data.draw(npst.arrays("?", x.shape))) if axis is None else x
    if skip:
        weights = weights + 1  # NumPy refuses lines of which all that is not NaN has no weight
    if axis is not None and not skip and data.draw(st.booleans()):  # NumPy fails for these in nanquantile
        weights = weights[tuple(slice(None) if a in np.atleast_1d(axis) % 3 else 0 for a in range(3))] + 1
        weights = weights.T if axis == (2, 0) else weights
    ours, numpys = (nanquantile, np.nanquantile) if skip else (quantile, np.quantile)
    how: dict[str, Any] = {"axis": axis, "method": "inverted_cdf", "keepdims": keepdims, "weights": weights}
    expected = quiet(numpys, x, q, **how)
    np.testing.assert_array_equal(ours(x, q, **how, budget=1_000_000, device=place.device()), expected)
    np.testing.assert_array_equal(ours(cf.open(x), q, **how).compute(device="cpu"), expected)


@everywhere
def test_special_values(place: Place) -> None:
    x = np.array([[1.0, np.nan, -0.0, 3.0], [np.inf, 2.0, -0.0, -np.inf], [4.0, 1.0, -0.0, 5.0]])
    for chunks in (None, 2):
        options = {"chunks": chunks, "budget": place.budget(4_000_000), "device": place.device()}
        for q in (0.5, [0.2, 1.0]):
            same(quantile(x, q, **options), quiet(np.quantile, x, q))
            same(quantile(x, q, axis=0, **options), quiet(np.quantile, x, q, axis=0))
        same(median(x, axis=0, **options), quiet(np.median, x, axis=0))
        negative = -np.array([np.nan, 1, 2])  # a NaN with its sign set
        assert np.isnan(quantile(negative, 0, **{**options, "chunks": chunks and 1}))


@pytest.mark.parametrize(("dtype", "passes"), [("f8", 4), ("i8", 4), ("f4", 2), ("u4", 2), ("f2", 1), ("i1", 1)])
def test_passes_of_numbers_that_begin_alike(dtype: str, passes: int) -> None:
    x = np.full((400, 1000), 7, dtype)
    x[::3, ::2] = np.arange(500) % 3
    source = CountingSource(x)
    same(quantile(source, 0.9, chunks=(50, 1000), budget=20_000_000, device="cpu"), np.quantile(x, 0.9))
    assert source.bytes_read == passes * x.nbytes


def test_a_trial_of_many_strips_gathers_no_more_than_there_is_room_for() -> None:
    x = np.zeros((3, STRIP))
    kernel = Gathered(np.zeros(1, "u8"), np.full(1, (1 << 48) - 1, "u8"), 100)
    assert kernel([x], nest([x.shape]), None, (0, 0), (slice(3), slice(STRIP))).shape == (100,)  # type: ignore[arg-type]


def test_an_array_that_is_changed_between_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(2).standard_normal((500, 200))
    fold = Gathered.fold
    for number in (2, 0.99):
        monkeypatch.setattr(
            Gathered,
            "fold",
            lambda self, value, blocks, nest, *rest, number=number: fold(
                self, value, [blocks[0] * number] if nest.outputs else blocks, nest, *rest
            ),
        )
        with pytest.raises(errors.ReadError, match="changed between two passes"):
            quantile(x, 0.4, chunks=(50, 200), budget="50MB", device="cpu")


@pytest.mark.parametrize(("dtype", "passes"), [("f8", 2), ("i8", 2), ("f4", 2), ("u4", 2), ("f2", 1), ("i1", 1)])
def test_passes_are_as_many_as_said(dtype: str, passes: int) -> None:
    x = np.random.default_rng(1).integers(-100, 100, (400, 1000)).astype(dtype)
    source = CountingSource(x)
    budget = 200_000_000
    same(quantile(source, 0.3, chunks=(50, 1000), budget=budget, device="cpu"), np.quantile(x, 0.3))
    assert source.bytes_read == passes * x.nbytes  # a trial reads nothing
    source = CountingSource(x)
    same(quantile(source, 0.3, 1, budget=budget, device="cpu"), np.quantile(x, 0.3, 1))
    assert source.bytes_read <= x.nbytes + passes * (256 << 10)


@on_cpu_and_gpu
def test_lines_longer_than_the_budget(place: Place) -> None:
    x = np.random.default_rng(2).standard_normal((30_000, 6)).astype("f4")
    options = {"budget": place.budget(200_000), "device": place.device()}
    source = CountingSource(x)
    same(quantile(source, [0.25, 0.5], 0, **options), np.quantile(x, [0.25, 0.5], 0))
    if not place.is_gpu:
        assert 2 * x.nbytes < source.bytes_read < 9 * x.nbytes
        same(median(x, **options), np.median(x))
        with cf.Budget(300_000) as budget:
            same(median(x, 0, device="cpu"), np.median(x, 0))
            assert budget.peak <= 300_000


def test_arrays_without_elements() -> None:
    none = np.zeros((3, 0), "f4")
    same(quantile(none, [0.5, 1], 0, device="cpu"), np.quantile(none, [0.5, 1], 0))
    with pytest.raises(errors.ArgumentError, match="no elements"):
        quantile(none, 0.5, 1, device="cpu")
    with pytest.raises(errors.ArgumentError, match="no elements"):
        quantile(none, 0.5, device="cpu")
    with pytest.warns(RuntimeWarning):
        same(median(none, 1, device="cpu"), np.full(3, np.nan, "f4"))
    same(quantile(np.ones((2, 3)), [], 0, device="cpu"), np.empty((0, 3)))
    same(nanquantile(none, [0.5, 1], 1, device="cpu"), np.full((2, 3), np.nan))
    same(nanmedian(none, 0, device="cpu"), np.zeros(0, "f4"))
    with pytest.raises(errors.ArgumentError, match="negative"):
        quantile(np.ones(3), 0.5, method="inverted_cdf", weights=[1, -1, 1], device="cpu")
    with pytest.raises(errors.ArgumentError, match="all zero"):
        quantile(np.ones(3), 0.5, method="inverted_cdf", weights=[0, 0, 0], device="cpu")
    same(unique(np.zeros((0, 2), "i2"), device="cpu"), np.zeros(0, "i2"))
    same(quantile(np.full((), 3.0), 0.5, device="cpu"), np.float64(3))
    same(median(np.array([3], "i4"), chunks=1, device="cpu"), np.float64(3))


@pytest.mark.parametrize(("shape", "q"), [((3, 4), []), ((3, 0), [0.5])])
def test_nothing_is_weighed_where_the_result_is_empty(shape: tuple[int, ...], q: list[float]) -> None:
    how: Any = {"axis": 0, "method": "inverted_cdf", "weights": np.ones(3)}
    got, expected = quantile(np.ones(shape), q, device="cpu", **how), np.quantile(np.ones(shape), q, **how)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)


def test_bools_are_as_numpys() -> None:
    x = np.array([True, False, True])
    same(median(x, device="cpu"), np.median(x))
    same(quantile(x, 0.5, method="lower", chunks=1, device="cpu"), np.True_)
    with pytest.raises(errors.ArgumentTypeError, match="bool by method='linear'"):
        quantile(x, 0.5, device="cpu")


@everywhere
def test_from_zarr_to_a_path(place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(3).integers(0, 1000, (40, 33)).astype("i4")
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(7, 10), dtype="i4")[...] = x
    options = {"budget": place.budget(4_000_000), "device": place.device()}
    path = tmp_path / "x.zarr"
    got = quantile(path, [0.1, 0.9], 1, out=tmp_path / "q.npy", **options)
    same(np.asarray(got), np.quantile(x, [0.1, 0.9], 1))
    got = median(path, chunks=(7, 10), out=tmp_path / "m.zarr", **options)
    same(got[...], np.median(x))
    into = np.zeros(33)
    assert percentile(path, 20, 0, chunks=(7, 10), out=into, **options) is into
    same(into, np.percentile(x, 20, 0))
    values, counts = unique(path, return_counts=True, out=(tmp_path / "v.npy", tmp_path / "c.npy"), **options)
    for one, other in zip((values, counts), np.unique(x, return_counts=True), strict=True):
        same(np.asarray(one), other)
    with pytest.raises(errors.OutputExistsError):
        median(path, out=tmp_path / "q.npy", **options)
    with pytest.raises(errors.OutputExistsError):
        unique(path, out=tmp_path / "v.npy", **options)


@given(
    x=arrays(("?", *INTEGERS), npst.array_shapes(max_dims=2, max_side=12)),
    chunks=st.sampled_from([None, 1, 3]),
    place=st.sampled_from(CHECKING),
)
@settings(max_examples=examples(2))
def test_unique_as_numpy(x: np.ndarray, chunks: Any, place: Place) -> None:
    values, counts = np.unique(x, return_counts=True)
    got = unique(x, return_counts=True, chunks=chunks, budget=1_000_000, device=place.device())
    same(got[0], values)
    same(got[1], counts)
    got = unique(x, return_index=True, chunks=chunks, budget=1_000_000, device=place.device())
    for one, other in zip(got, np.unique(x, return_index=True), strict=True):
        same(one, other)


@pytest.mark.parametrize("dtype", ["?", "i2", ">f4"])
@pytest.mark.parametrize("place", CHECKING[:2])
def test_places_among_distinct_values_as_numpy(dtype: str, place: Place, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = np.where(rng.random((7, 9)) < 0.2, np.nan, rng.integers(-3, 4, (7, 9)) * 0.5)
    x = (x if dtype == ">f4" else np.nan_to_num(x)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    how: Any = {"return_index": True, "return_inverse": True, "return_counts": True}
    out = (tmp_path / "v.npy", None, tmp_path / "i.zarr", np.empty(np.unique(x).shape, "i8"))
    options = {"chunks": (3, 4), "budget": 1_000_000, "device": place.device()}
    found = unique(tmp_path / "x.npy", **how, out=out, **options)
    assert isinstance(found[2], zarr.Array)
    for one, other in zip(found, np.unique(x, **how), strict=True):
        same(np.asarray(one[...]) + 0, other + 0)
    same(unique(cf.open(x) * 1, return_inverse=True, device="cpu")[1], found[2][...])
    for empty in (np.zeros((0, 2), dtype), np.zeros((), dtype)):
        same(unique(empty, return_inverse=True, device="cpu")[1], np.unique(empty, return_inverse=True)[1])


@everywhere
def test_many_distinct_values(place: Place) -> None:
    x = np.random.default_rng(4).integers(-(1 << 40), 1 << 40, (3, 40_000))
    source = CountingSource(x)
    got = unique(source, return_counts=True, chunks=(1, 30_000), budget=place.budget(1 << 28), device=place.device())
    for one, other in zip(got, np.unique(x, return_counts=True), strict=True):
        same(one, other)
    with pytest.raises(errors.BudgetError, match="more distinct values"):
        unique(x, budget=place.budget(300_000) if not place.is_gpu else place.budget(1_000_000), device=place.device())


@given(arrays((*FLOATS, ">f4"), npst.array_shapes(max_dims=2, max_side=12)))
@settings(max_examples=examples(1 / 2), deadline=None)
def test_unique_floats_as_numpy(x: np.ndarray) -> None:
    for equal_nan in (True, False):
        values, counts = np.unique(x, return_counts=True, equal_nan=equal_nan)
        got = unique(x, return_counts=True, equal_nan=equal_nan, budget=1_000_000, device="cpu")
        same(got[0] + 0, values + 0)
        same(got[1], counts)


@everywhere
def test_nan_and_zeros_of_both_signs(place: Place) -> None:
    x = np.array([[0.0, -0.0, np.nan], [-np.nan, np.inf, -np.inf]])
    same(unique(x, device=place.device()), np.array([-np.inf, 0.0, np.inf, np.nan]))
    many = np.full(100_000, np.nan)
    same(unique(many, budget=place.budget(1_000_000), device=place.device()), np.array([np.nan]))
    with pytest.raises(errors.BudgetError, match="more distinct values"):
        unique(many, equal_nan=False, budget=place.budget(1_000_000), device=place.device())


class Untouchable:
    """An array that must not be read."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


X = Untouchable("f8", 4, 5)


@pytest.mark.parametrize(
    ("fn", "arguments", "options", "error", "words"),
    [
        (quantile, (X, 1.5), {}, errors.ArgumentError, "q=1.5 must be in the range from 0 to 1"),
        (quantile, (X, [0.5, np.nan]), {}, errors.ArgumentError, "range"),
        (quantile, (X, [[0.5]]), {}, errors.ArgumentError, "2 dimensions"),
        (quantile, (X, "half"), {}, errors.ArgumentTypeError, "'half'"),
        (quantile, (X, [[1], [1, 2]]), {}, errors.ArgumentError, "no array"),
        (quantile, (X, 0.5), {"method": "best"}, errors.ArgumentError, "'best' is none of inverted_cdf"),
        (quantile, (X, 0.5, 2), {}, errors.ArgumentError, "axis=2"),
        (quantile, (X, 0.5), {"chunks": (2, 2, 2)}, errors.ArgumentError, "3 entries"),
        (quantile, (X, 0.5, 0), {"out": np.zeros(4)}, errors.ArgumentError, "4"),
        (quantile, (X, 0.5), {"approx": 1}, errors.ArgumentError, "approx=1 must be a relative error"),
        (nanquantile, (X, 0.5), {"method": "best"}, errors.ArgumentError, "'best' is none of"),
        (nanmedian, (Untouchable("c8", 4),), {}, errors.ArgumentTypeError, "complex64"),
        (quantile, (X, 0.5), {"weights": X}, errors.ArgumentError, "only method='inverted_cdf'"),
        (quantile, (X, 0.5), {"weights": np.ones(4), "method": "inverted_cdf"}, errors.ArgumentTypeError, "which axes"),
        (quantile, (X, 0.5, 1, "inverted_cdf"), {"weights": np.ones(4)}, errors.ArgumentError, "axis=1"),
        (percentile, (X, 101), {}, errors.ArgumentError, "from 0 to 100"),
        (median, (Untouchable("c16", 4),), {}, errors.ArgumentTypeError, "complex128"),
        (median, (X,), {"out": np.zeros((), "i4")}, errors.ArgumentTypeError, "int32"),
        (unique, (X,), {"return_index": True, "equal_nan": False}, errors.ArgumentError, "equal_nan=True"),
        (unique, (X,), {"return_inverse": True, "equal_nan": False}, errors.ArgumentError, "return_inverse=True needs"),
        (unique, (X,), {"return_inverse": True, "out": (None, np.zeros((5, 4), int))}, errors.ArgumentError, "shape"),
        (unique, (Untouchable("c16", 4),), {}, errors.ArgumentTypeError, "complex128"),
        (unique, (Untouchable("i4", 4),), {"return_counts": True, "out": np.zeros(4)}, errors.ArgumentError, "tuple"),
        (unique, (Untouchable("i4", 4),), {"out": (np.zeros(4), np.zeros(4))}, errors.ArgumentError, "tuple"),
        (
            unique,
            (Untouchable("i4", 4),),
            {"return_counts": True, "out": (np.zeros(4),)},
            errors.ArgumentError,
            "1 entries",
        ),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(
    fn: Any, arguments: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        fn(*arguments, device="cpu", **options)


def test_it_makes_several_passes_and_says_so() -> None:
    with pytest.raises(errors.ArgumentTypeError, match="several passes"):
        cf.explain(quantile, np.ones(4), q=0.5)


def test_more_distinct_values_than_the_first_pass_has_room_for() -> None:
    x = np.arange(200_000) % 150_000
    for got, expected in zip(
        cf.unique(x, return_counts=True, device="cpu"), np.unique(x, return_counts=True), strict=True
    ):
        same(got, expected)
    with pytest.raises(
        errors.BudgetError, match=r"more distinct values \(\d+ or more\) than a quarter of the budget holds"
    ):
        cf.unique(x, budget="1MB", device="cpu")


@pytest.mark.parametrize(("shape", "axes"), [((5, 7 << 18), (1,)), ((3 << 19, 2), (0, 1)), ((10, 10), (0,)), ((), ())])
def test_strips_are_the_block_in_parts(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    block = np.broadcast_to(np.uint8(3), shape)
    parts = list(strips(block, axes))
    assert sum(part.size for part in parts) == block.size
    assert max(part.size for part in parts) <= STRIP
    assert len(parts) == -(-block.size // STRIP)


@pytest.mark.parametrize("chunks", [(50, 400), (100, 107), None])
def test_trials_count_no_more_lines_than_a_block_has(tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    x = np.random.default_rng(3).random((200, 8000), "f4")
    np.save(tmp_path / "x.npy", x)
    budget = 8 * MB
    with traced() as peak:
        found = median(tmp_path / "x.npy", 0, chunks=chunks, budget=budget, device="cpu")
        assert peak() <= budget + SLACK
    same(found, np.median(x, 0))


@pytest.mark.parametrize("dtype", ["u2", "i4", "f8"])
def test_a_trial_copies_what_blocks_copy(dtype: str) -> None:
    """With sides of 1 the keys of a trial's block may be a view, those of other blocks never are."""

    def per_element(shape: tuple[int, ...], trial: bool) -> float:
        known = np.zeros((1, shape[0], shape[2]), key_dtype(np.dtype(dtype)))
        ranks = np.zeros(known.shape, "i8")
        if trial:
            known, ranks = (np.broadcast_to(array, (1, 8, shape[2])) for array in (known, ranks))
        kernel = Digits((1,), 8 * known.itemsize - 4, 4, known, ranks)
        block = np.ones(shape, dtype)
        box = tuple(slice(0, n) for n in shape)
        with traced() as peak:
            kernel._counted(block, box, trial=trial)
            return peak() / block.size

    assert per_element((1, 40_000, 20), trial=True) >= 0.99 * per_element((8, 40_000, 20), trial=False)
