"""Expressions of datetime64 and timedelta64 give what NumPy's arrays of them give, with NaT as NaN is among floats."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.devices import Place, on_cpu_and_gpu
from support.examples import examples

import chunkflow as cf
from chunkflow import errors

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*generic.*unit:DeprecationWarning"),  # NumPy's, of integers as spans
]

NAT = np.iinfo("i8").min
DATES = np.array(["2000-01-01", "NaT", "1969-12-31", "2024-02-29", "2000-01-01"], "M8[D]")
SPANS = np.array([5, "NaT", -7, 0, 100], "m8[h]")
OTHERS = np.array([1, 3, -2, 0, "NaT"], "m8[m]")

REACH = {"Y": 130, "M": 1500, "W": 7000, "D": 50_000, "h": 10**6, "m": 7 * 10**7, "s": 4 * 10**9}
UNITS = [*REACH, "ms", "us", "ns", "3M", "10s", "7D"]
"""Units, and how many of them may lie around the epoch so that nanoseconds reach them."""


def alike(got: Any, expected: Any) -> None:
    """Equal, in dtype and shape too, and NaT for NaT."""
    if isinstance(expected, tuple | list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            alike(one, other)
        return
    assert np.asarray(got).dtype == np.asarray(expected).dtype
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_array_equal(got, expected)


def compared(fn: Callable[..., Any], *arrays: Any, right: Callable[..., Any] | None = None, **run: Any) -> None:
    """Check that a function gives of expressions what it, or another one, gives of NumPy's arrays."""
    expected = (fn if right is None else right)(*arrays)
    got = fn(*(cf.open(array) if isinstance(array, np.ndarray) else array for array in arrays))
    alike(cf.compute(got, **{"device": "cpu", **run}), expected)


@st.composite
def times(draw: Any, kind: str = "mM", units: Any = UNITS, shape: Any = None) -> np.ndarray:
    """An array of times of a unit, some of them NaT."""
    unit = draw(st.sampled_from(units))
    reach = 10**10 if unit.endswith("s") and unit != "s" else REACH[unit.lstrip("0123456789")] // 10
    shape = draw(npst.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)) if shape is None else shape
    counts = st.one_of(st.just(NAT), st.integers(-reach, reach), st.integers(-2, 2))
    return draw(npst.arrays("i8", shape, elements=counts)).view(f"{draw(st.sampled_from(kind))}8[{unit}]")


# -- Units -------------------------------------------------------------------------------------------------------------


@given(times("M"), st.sampled_from(UNITS))
@settings(max_examples=examples(8))
def test_a_date_in_another_unit(x: np.ndarray, unit: str) -> None:
    compared(lambda a: a.astype(f"M8[{unit}]"), x)


@pytest.mark.parametrize("unit", ["M", "Y", "W", "4Y"])
def test_every_day_of_eight_centuries(unit: str) -> None:
    days = np.arange(-150_000, 150_000).view("M8[D]")
    compared(lambda a: a.astype(f"M8[{unit}]"), days)
    compared(lambda a: a.astype(f"M8[{unit}]").astype("M8[D]"), days)


@given(
    times("m", [u for u in UNITS if "M" not in u and "Y" not in u]), st.sampled_from(["W", "D", "7D", "s", "10s", "us"])
)
def test_a_span_in_another_unit(x: np.ndarray, unit: str) -> None:
    compared(lambda a: a.astype(f"m8[{unit}]"), x)


def test_what_a_unit_does_not_reach_is_nat_or_refused() -> None:
    far = np.array(["9999-01-01", "2262-04-11", "-9000-01-01"], "M8[D]")
    got = cf.open(far).astype("M8[ns]").compute(device="cpu")
    alike(got, np.array(["NaT", "2262-04-11", "NaT"], "M8[ns]"))
    if np.lib.NumpyVersion(np.__version__) < "2.5.0":
        assert (far.astype("M8[ns]") < np.datetime64("2200-01-01"))[0]  # NumPy's integers have wrapped around
    with pytest.raises(errors.ArgumentError, match=r"9999-01-01 is beyond datetime64\[ns\].*astype\('M8\[s\]'\)"):
        _ = cf.open(DATES.astype("M8[ns]")) < np.datetime64("9999-01-01")
    least, most = np.array([NAT + 1, -NAT - 1]).view("m8[s]")
    edges = np.array([least, most, most // 1000, least // 1000, most // 1000 + 1])
    got = cf.open(edges).astype("m8[ms]").compute(device="cpu")
    assert np.isnat(got).tolist() == [True, True, False, False, True]
    alike(got[2:4], edges[2:4].astype("m8[ms]"))


def test_spans_of_months_have_no_length() -> None:
    months = cf.open(np.array([1, 14], "m8[M]"))
    compared(lambda a: a.astype("m8[Y]"), np.array([1, 14, -1], "m8[M]"))
    with pytest.raises(errors.ArgumentTypeError, match="no fixed length"):
        months.astype("m8[D]")
    with pytest.raises(errors.ArgumentTypeError, match="add"):
        months + SPANS[:2]


def test_numbers_and_times() -> None:
    for numbers in (np.array([1, -2, 3], "i2"), np.array([1.9, -1.9, np.nan, 1e30, np.inf]), np.array([True, False])):
        for dtype in ("M8[D]", "m8[ns]"):
            compared(lambda a, dtype=dtype: a.astype(dtype), numbers)
    compared(lambda a: a.astype("i8"), SPANS)
    compared(lambda a: a.view("i8"), DATES)
    compared(lambda a: a.view("m8[s]"), DATES)
    found = cf.open(SPANS).astype("f4").compute(device="cpu")
    alike(found, np.array([5, np.nan, -7, 0, 100], "f4"))
    for cast in (lambda x: x.astype("m8[D]", casting="safe"), lambda x: x.astype("i4", casting="same_kind")):
        with pytest.raises(errors.ArgumentTypeError, match="casting="):
            cast(cf.open(DATES))
    with pytest.raises(errors.ArgumentTypeError, match="view"):
        cf.open(DATES).view("f8")
    with pytest.raises(TypeError):
        cf.open(np.ones(3, complex)).astype("m8[s]")


# -- Ufuncs ------------------------------------------------------------------------------------------------------------

PAIRS = [
    *(np.subtract, np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal, np.maximum),
    *(np.minimum, np.fmax, np.fmin),
]


@given(st.sampled_from(PAIRS), st.data(), st.sampled_from(["M", "m"]))
@settings(max_examples=examples(8))
def test_two_arrays(ufunc: np.ufunc, data: Any, kind: str) -> None:
    units = ["D", "h", "s", "10s"] if kind == "m" else ["Y", "M", "D", "h", "s"]
    x = data.draw(times(kind, units))
    other = data.draw(times(kind, units, shape=x.shape))
    compared(ufunc, x, other)
    compared(ufunc, x, other.reshape(-1)[0] if not np.isnat(other.reshape(-1)[0]) else other)


@on_cpu_and_gpu
def test_spans_and_numbers(place: Place) -> None:
    run = {"device": place.device()}
    spans, numbers = SPANS, np.array([2, 0, 3, -1, 7])
    for fn in (operator.add, operator.sub, operator.truediv, operator.floordiv, operator.mod, divmod):
        compared(fn, spans, OTHERS, **run)
        compared(fn, spans, np.timedelta64(90, "m"), **run)
    for fn in (operator.mul, operator.truediv, operator.floordiv):
        compared(fn, spans, numbers, **run)
        compared(fn, spans, numbers / 4, **run)
        compared(fn, spans, 2.5, **run)
        compared(fn, spans, 3, **run)
    compared(lambda a: np.multiply(numbers, a), spans, **run)
    compared(lambda a: 1.5 * a, spans, **run)
    compared(lambda a: a * np.inf, spans, **run)
    compared(lambda a: -abs(a) + +a, spans, **run)
    compared(np.sign, spans[spans == spans], **run)
    assert np.isnan(np.sign(cf.open(spans)).compute(**run)).tolist() == np.isnat(spans).tolist()  # NumPy 2.4 gives -1


@on_cpu_and_gpu
def test_dates_and_spans(place: Place) -> None:
    run = {"device": place.device()}
    for other in (SPANS, np.timedelta64(36, "h"), np.timedelta64(3), 4):
        compared(operator.add, DATES, other, **run)
        compared(operator.sub, DATES, other, **run)
        compared(lambda a, other=other: np.add(other, a), DATES, **run)
    compared(operator.sub, DATES, DATES.astype("M8[M]"), **run)
    compared(operator.add, DATES.astype("M8[M]"), np.array([1, 2, 3, -4, 5], "m8[M]"), **run)
    compared(lambda a: a < dt.datetime(2010, 1, 1), DATES, right=lambda a: a < np.datetime64("2010", "us"), **run)
    five = np.timedelta64(5 * 3600 * 10**6, "us")
    compared(lambda a: a + dt.timedelta(hours=5), DATES, right=lambda a: a + five, **run)
    for test in (np.isnat, np.isnan, np.isfinite, np.isinf):
        compared(test, DATES, **run)
    compared(lambda a: a.astype("M8[Y]"), DATES, **run)
    compared(lambda a: np.clip(a, DATES[2], np.datetime64("2010", "D")), DATES, **run)


@on_cpu_and_gpu
def test_numbers_beside_times_in_memory(place: Place) -> None:
    run = {"device": place.device()}
    numbers = np.array([1, 2, 3, 4, 5])
    for fn in (operator.mul, np.multiply):
        compared(fn, numbers, np.timedelta64(7, "s"), **run)
        compared(fn, np.timedelta64(7, "s"), numbers, **run)
        compared(lambda a, fn=fn: fn(a, SPANS), numbers, **run)
    compared(lambda a: DATES + a, numbers, **run)
    with pytest.raises(errors.UnsupportedError, match="no number"):
        np.where(cf.open(numbers) > 2, np.timedelta64(1, "s"), 0)


def test_dtypes_that_do_not_go_together() -> None:
    x = cf.open(DATES)
    for wrong in (
        lambda: x + x,
        lambda: x * 2,
        lambda: x + 0.5,
        lambda: x < 3,
        lambda: x == "2000-01-01",
        lambda: x < SPANS,
        lambda: np.concatenate([x, SPANS]),
        lambda: np.where(cf.open(np.ones(5, bool)), x, 0),
        lambda: np.sum(x),
        lambda: x.cumsum(),
    ):
        with pytest.raises(errors.ArgumentTypeError):
            wrong()
    for refused in (np.sqrt, np.std, np.fft.fft, lambda x: np.add(x, 1, where=True), lambda x: x @ x):
        with pytest.raises((errors.UnsupportedError, TypeError)):
            refused(x)
    with pytest.raises(AttributeError, match="times has no std"):
        _ = x.std
    with pytest.raises(errors.UnsupportedError, match="never changes"):
        x[0] = DATES[0]


def test_a_mask_is_not_lost() -> None:
    x, spans = cf.open(DATES), np.ma.array(SPANS, mask=[0, 1, 0, 0, 0])
    for wrong in (
        lambda: x + spans,
        lambda: cf.open(SPANS) * np.ma.array([1, 2, 3, 4, 5]),
        lambda: cf.open(np.arange(5)) * spans,
        lambda: np.where(np.isnat(x), x, np.ma.array(DATES)),
        lambda: np.concatenate([x, np.ma.array(DATES)]),
    ):
        with pytest.raises(errors.ArgumentTypeError, match="lose its mask"):
            wrong()
    with pytest.raises(errors.ArgumentTypeError, match="masked array of times"):
        cf.open(np.ma.array(DATES))


@pytest.mark.parametrize("mode", ["maximum", "minimum", "edge", "symmetric"])
def test_padded_dates(mode: str) -> None:
    for x in (DATES, DATES[2:]):
        compared(lambda a: np.pad(a, 1, mode=mode), x)


def test_what_is_no_time_among_times() -> None:
    x, fine = cf.open(DATES), cf.open(np.zeros(2, "M8[as]"))
    for wrong in (
        lambda: np.full_like(x, np.timedelta64(3, "h")),
        lambda: np.pad(x, 1, constant_values=np.timedelta64(3, "h")),
        lambda: np.nanmin(x, initial=5.5),
        lambda: np.insert(x, 0, 2.5),
        lambda: x.astype("m8[D]"),
        lambda: cf.open(SPANS).astype("M8[D]"),
        lambda: x.astype("m8"),
        lambda: x.view(">M8[D]"),
        lambda: x.view("M8"),
        lambda: x + 10**30,
        lambda: x + 2**63,
        lambda: fine == np.zeros(2, "M8[D]"),
        lambda: np.isin(x, [19723]),
        lambda: x < None,
        lambda: np.clip(x, DATES[2], DATES[0], dtype="M8[s]"),
        lambda: np.diff(x, -1),
        lambda: np.pad(x, 1, mode="reflect", reflect_type="odd"),
    ):
        with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError, errors.UnsupportedError)):
            wrong()
    assert not np.array_equal(x, np.arange(5))
    with pytest.raises(errors.ArgumentError, match="5 elements"):
        bool(x)
    assert bool(x[0])
    assert bool(x.max() == x.max()) is False


# -- Functions ---------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: np.sort(x, axis=0),
    "sorted rows": lambda x: np.sort(x, kind="stable"),
    "flat": lambda x: np.sort(x, axis=None),
    "argsort": lambda x: np.argsort(x, axis=-1, kind="stable"),
    "min": lambda x: np.min(x, axis=0),
    "max": lambda x: np.max(x, axis=-1, keepdims=True),
    "nanmin": np.nanmin,
    "nanmax": lambda x: np.nanmax(x, axis=0),
    "argmin": np.argmin,
    "argmax": lambda x: np.argmax(x, axis=0),
    "fmin": lambda x: np.fmin.reduce(x),
    "ptp": lambda x: np.ptp(x, axis=0),
    "diff": lambda x: np.diff(x, axis=0),
    "diffs": lambda x: np.diff(x, n=2),
    "no differences": lambda x: np.diff(x, n=0, prepend=x[:1]),
    "diff, begun": lambda x: np.diff(x, axis=0, prepend=x[:1]),
    "diff, ended": lambda x: np.diff(x, n=2, append=x.dtype.type("NaT")),
    "ediff1d": np.ediff1d,
    "any": lambda x: np.any(x, axis=0, keepdims=True),
    "all": lambda x: np.all(x, axis=-1),
    "places": np.nonzero,
    "argwhere": np.argwhere,
    "the latest so far": lambda x: np.maximum.accumulate(x, axis=-1),
    "the earliest so far": lambda x: np.minimum.accumulate(x),
    "select": lambda x: np.select([np.isnat(x), x == x.max()], [x[::-1], x], x[:1]),
    "union1d": lambda x: np.union1d(x, x[::-1]),
    "unique": np.unique,
    "counts": lambda x: np.unique(x, return_counts=True),
    "shape": lambda x: (np.shape(x), x.ndim, x.size, x.nbytes, len(x)),
    "split": lambda x: np.split(x, [1]),
    "take": lambda x: np.take(x, [0, -1], axis=-1),
    "rows": lambda x: x[::-1, ..., None],
    "mask": lambda x: x.reshape(-1)[np.arange(x.size) % 2 == 0],
    "repeat": lambda x: np.repeat(x.T, 2, axis=0),
    "stack": lambda x: np.stack([x, x[::-1]], axis=1),
    "joined": lambda x: np.concatenate([x, x.astype(f"{x.dtype.kind}8[us]")], axis=-1),
    "append": lambda x: np.append(x, x),
    "where": lambda x: np.where(np.isnat(x), x.dtype.type(7, "h"), x),
    "pad": lambda x: np.pad(x, 1, constant_values=x.dtype.type(7, "D")),
    "insert": lambda x: np.insert(x, [1, 1], x.dtype.type(7, "D"), axis=0),
    "insert into nothing": lambda x: np.insert(x[:0], 0, x.dtype.type(7, "D"), axis=0),
    "astype": lambda x: x.astype(f"{x.dtype.kind}8[us]", copy=False),
    "wrap": lambda x: np.pad(x, 1, mode="wrap"),
    "windows": lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, axis=0),
    "full_like": lambda x: np.full_like(x, x.dtype.type(7, "D")),
    "equal": lambda x: np.array_equal(x, x, equal_nan=True),
    "unequal": lambda x: np.array_equal(x, np.asarray(["NaT"], x.dtype)),
    "nonzero": np.count_nonzero,
    "where=": lambda x: np.min(x, where=~np.isnat(x), initial=x.dtype.type(7, "D")),
    "initial": lambda x: np.max(x, axis=0, initial=x.dtype.type(7, "D")),
}


@given(
    times(units=["D", "h", "s", "ns"], shape=npst.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=5)),
    st.data(),
)
@settings(max_examples=examples(1))
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions(name: str, x: np.ndarray, data: Any) -> None:
    compared(FUNCTIONS[name], x, budget=data.draw(st.sampled_from(["400kB", "64MB"])))


@on_cpu_and_gpu
def test_functions_on_devices(place: Place) -> None:
    x = np.concatenate([DATES, DATES[:1]]).reshape(2, 3)
    for name, fn in FUNCTIONS.items():
        if name not in (
            "shape",
            "unique",
            "counts",
            "equal",
            "unequal",
            "mask",
            "places",
            "argwhere",
            "union1d",
        ):  # what runs at once has its own device
            compared(fn, x, device=place.device())
    alike(cf.unique(cf.open(x), device=place.device()), np.unique(x))


SETS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(np, name) for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d", "isin")},
    "places": lambda one, other: np.intersect1d(one, other, return_indices=True),
    "not in": lambda one, other: np.isin(one, other, invert=True, kind="sort"),
}


@given(
    st.lists(st.integers(-3, 3) | st.just(NAT), max_size=8),
    st.lists(st.integers(-3, 3) | st.just(NAT), max_size=8),
    st.sampled_from("mM"),
    st.sampled_from([("D", "D"), ("h", "D"), ("D", "ms")]),
    st.sampled_from([(True, True), (True, False), (False, True)]),
)
@settings(max_examples=examples(1))
@pytest.mark.parametrize("name", SETS)
def test_set_functions_have_nat_equal_to_none(
    name: str, one: list[int], other: list[int], kind: str, units: tuple[str, str], lazy: tuple[bool, bool]
) -> None:
    arrays = [np.array(x, "i8").view(f"{kind}8[{unit}]") for x, unit in zip((one, other), units, strict=True)]
    given = [cf.open(x) if is_lazy else x for x, is_lazy in zip(arrays, lazy, strict=True)]
    found, expected = SETS[name](*given), SETS[name](*arrays)
    found = found.compute(device="cpu") if isinstance(found, cf.Array) else found
    for got, right in zip(found, expected, strict=True) if name == "places" else [(found, expected)]:
        alike(got, right)


def test_sets_of_times_beside_others_are_refused_at_once() -> None:
    for fn in (np.union1d, np.intersect1d, np.setdiff1d, np.setxor1d):
        with pytest.raises(errors.ArgumentTypeError, match=r"datetime64\[D\] and timedelta64\[h\] do not go together"):
            fn(cf.open(DATES), cf.open(SPANS.astype("m8[h]")))
    with pytest.raises(errors.UnsupportedError, match="kind='table', which is of integers"):
        np.isin(cf.open(DATES), DATES, kind="table")


def test_spans_on_a_diagonal_and_beside_differences() -> None:
    x = np.arange(12).reshape(3, 4).view("m8[h]")
    compared(lambda a: np.trace(a, 1), x)
    compared(lambda a: np.tril(a, -1), x)
    compared(lambda a: np.ediff1d(a, to_begin=x[0, 3], to_end=x[1]), x)
    compared(lambda a: np.select([a > x[1, 1]], [a]), x)


@given(times("m"))
def test_sums_of_spans(x: np.ndarray) -> None:
    compared(np.sum, x)
    compared(lambda a: np.sum(a, axis=0, keepdims=True), x)
    compared(lambda a: a.cumsum(axis=0), x)
    compared(lambda a: np.add.reduce(a), x)
    compared(np.nansum, x, right=lambda a: np.sum(a, where=~np.isnat(a)))


def exact(x: np.ndarray, axis: Any = None, skips: bool = False) -> Any:
    """The mean by Python's integers, rounded towards zero."""
    if axis is not None:
        axis %= x.ndim
        lines = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
        shape = tuple(n for a, n in enumerate(x.shape) if a != axis)
        return np.array([exact(line, skips=skips) for line in lines], x.dtype).reshape(shape)
    counts = [int(c) for c in x.view("i8").reshape(-1)]
    present = [c for c in counts if c != NAT]
    if not present or (len(present) < len(counts) and not skips):
        return np.array(NAT).view(x.dtype)[()]
    total = sum(present)
    return np.array(abs(total) // len(present) * (1 if total > 0 else -1)).view(x.dtype)[()]


@given(
    npst.arrays("i8", npst.array_shapes(max_dims=2, max_side=6), elements=st.integers(NAT, -NAT - 1)),
    st.sampled_from("mM"),
)
def test_means_are_exact(counts: np.ndarray, kind: str) -> None:
    x = counts.view(f"{kind}8[ns]")  # whose sum wraps around
    compared(np.mean, x, right=exact)
    compared(lambda a: np.nanmean(a, axis=0), x, right=lambda a: exact(a, 0, skips=True))
    small = (counts >> 40).view(f"{kind}8[D]")
    compared(lambda a: a.mean(axis=-1), small, right=lambda a: exact(a, -1))
    if kind == "m":
        compared(np.mean, small)


@on_cpu_and_gpu
def test_means_on_devices(place: Place) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 1 << 62, (300, 40)).view("M8[ns]")
    x[7, 3] = "NaT"
    compared(
        lambda a: (a.mean(axis=0), np.nanmean(a)),
        x,
        right=lambda a: (exact(a, 0), exact(a, skips=True)),
        device=place.device(),
    )


@on_cpu_and_gpu
def test_means_whose_sums_no_integer_holds_along_any_axes(place: Place) -> None:
    rng = np.random.default_rng(8)
    counts = rng.integers(1 << 61, 1 << 62, (60, 4, 300))
    whole, taken = counts.astype(object), rng.random(counts.shape) < 0.5
    taken[:, 0] = True
    run = {"device": place.device(), "budget": place.budget(2_000_000)}
    x, kept = counts.view("M8[us]"), np.where(taken, whole, 0)
    for axis in (0, 1, 2, (0, 2), (1, 2), None):
        for keepdims in (False, True):
            how = {"axis": axis, "keepdims": keepdims}
            sums, number = np.sum(whole, **how), np.sum(np.ones(counts.shape, object), **how)
            found = np.mean(cf.open(x), **how).compute(**run)
            alike(found, np.asarray(sums // number, "i8").view(x.dtype)[()])
            found = np.mean(cf.open(x), **how, where=taken).compute(**run)
            alike(found, np.asarray(np.sum(kept, **how) // np.sum(taken.astype(object), **how), "i8").view(x.dtype)[()])
    windows = np.lib.stride_tricks.sliding_window_view(cf.open(x), 5, axis=0).mean(axis=-1).compute(**run)
    sums = np.lib.stride_tricks.sliding_window_view(whole, 5, axis=0).sum(axis=-1)
    alike(windows, (sums // 5).astype("i8").view(x.dtype))


def test_means_of_some_elements_that_are_nat() -> None:
    x, where = SPANS[:4], np.array([True, False, True, True])
    lost = np.isnat(x)
    for taken in (~lost, lost, where, np.zeros(4, bool)):
        missing = not taken.any() or bool(lost[taken].any())
        found = np.mean(cf.open(x), where=taken).compute(device="cpu")
        assert found == x[taken].mean() if not missing else np.isnat(found)
        found = np.nanmean(cf.open(x), where=taken).compute(device="cpu")
        assert found == x[taken & ~lost].mean() if (taken & ~lost).any() else np.isnat(found)


def test_what_means_refuse() -> None:
    with pytest.raises(errors.UnsupportedError, match="dtype"):
        np.mean(cf.open(SPANS), dtype="f8")
    with pytest.raises(errors.UnsupportedError, match="2\\^40"):
        np.mean(np.broadcast_to(cf.open(SPANS[:1]), 1 << 40))


# -- Searched, counted, grouped ----------------------------------------------------------------------------------------


@given(times("M", ["D", "h", "s"]), st.data())
def test_places_in_an_order(x: np.ndarray, data: Any) -> None:
    edges = np.array(["1969-12-30", "1970-01-01", "1970-01-02", "1971-03-01"], "M8[D]")
    for side in ("left", "right"):
        compared(lambda a, side=side: np.searchsorted(edges, a, side=side), x)
    compared(lambda a: np.digitize(a, edges), x, right=lambda a: np.searchsorted(edges, a, side="right"))
    compared(lambda a: np.isin(a, edges), x)
    compared(lambda a: np.isin(a, [np.datetime64("1970-01-01"), np.datetime64("NaT")], invert=True), x)
    compared(lambda a: np.histogram(a, bins=edges), x)
    compared(lambda a: np.histogram(a, edges, weights=np.ones(a.shape, "f4")), x)


def test_edges_a_nanosecond_apart() -> None:
    x = np.datetime64("2024-05-01T00:00:00", "ns") + np.arange(50)
    edges = x[[3, 4, 7, 40]]
    compared(lambda a: np.histogram(a, bins=edges), x)
    compared(lambda a: np.searchsorted(edges, a), x)
    compared(lambda a: np.isin(a, edges), x)


def test_what_histograms_refuse() -> None:
    x = cf.open(DATES)
    for wrong in ({"bins": 3}, {}, {"bins": DATES[[2, 0]], "density": True}):
        with pytest.raises(errors.UnsupportedError, match=r"edges|density"):
            np.histogram(x, **wrong)
    with pytest.raises(errors.ArgumentError, match="NaT is no edge"):
        np.histogram(x, bins=np.array(["2000", "NaT"], "M8[D]"))


@on_cpu_and_gpu
def test_groups_of_times(place: Place) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-(10**12), 10**12, (3, 200)).view("M8[ms]")
    x[rng.random(x.shape) < 0.02] = "NaT"
    labels = rng.integers(0, 6, 200)
    labels[labels == 4] = 5  # no element
    names = ["min", "max", "nanmin", "nanmax", "mean", "nanmean", "count", "first", "last", "argmax"]
    found, groups = cf.groupby_reduce(cf.open(x), labels, func=names, expected_groups=range(6))
    assert groups.tolist() == list(range(6))
    got = dict(zip(names, cf.compute(found, device=place.device()), strict=True))
    for row in range(3):
        for group in range(6):
            line, at = x[row, labels == group], (row, group)
            if not line.size:
                assert all(np.isnat(got[name][at]) for name in [*names[:6], "first", "last"])
                assert got["count"][at] == 0
                continue
            present = line[~np.isnat(line)]
            assert got["count"][at] == present.size
            alike(got["nanmin"][at], present.min())
            alike(got["nanmax"][at], present.max())
            alike(got["min"][at], line.min())
            alike(got["max"][at], line.max())
            alike(got["first"][at], line[0])
            alike(got["last"][at], line[-1])
            alike(got["mean"][at], exact(line))
            alike(got["nanmean"][at], exact(line, skips=True))
            alike(x[row, got["argmax"][at]], line.max())
    one, _ = cf.groupby_reduce(cf.open(x), labels, func="max")
    alike(one.compute(device=place.device())[0, 0], x[0, labels == 0].max())
    spans, _ = cf.groupby_reduce(cf.open(x) - x[0, 0], labels, func=["sum", "nansum"])
    assert spans[0].dtype == np.dtype("m8[ms]")
    expected = (x - x[0, 0])[1, labels == 2]
    alike(spans[1].compute(device=place.device())[1, 2], expected[~np.isnat(expected)].sum())
    for wrong in ("std", "nanfirst"):
        with pytest.raises(errors.UnsupportedError, match=wrong):
            cf.groupby_reduce(cf.open(x), labels, func=wrong)
    with pytest.raises(errors.UnsupportedError, match="fill_value"):
        cf.groupby_reduce(cf.open(x), labels, func="min", fill_value=0)


@on_cpu_and_gpu
def test_groups_by_times(place: Place) -> None:
    rng = np.random.default_rng(6)
    when = rng.integers(0, 10**8, 500).view("M8[s]")
    when[3] = "NaT"
    values = rng.random((4, 500))
    months = np.arange("1970-01", "1973-04", dtype="M8[M]")
    found, groups = cf.groupby_reduce(values, cf.open(when).astype("M8[M]"), func="sum", expected_groups=months)
    alike(groups, months)
    right = np.stack([values[:, when.astype("M8[M]") == month].sum(1) for month in months], -1)
    np.testing.assert_allclose(found.compute(device=place.device()), right, rtol=1e-12, atol=1e-12)
    edges = np.array(["1970", "1971", "1973"], "M8[Y]")
    found, groups = cf.groupby_reduce(
        values, cf.open(when), func="count", expected_groups=edges, isbin=True, closed="left"
    )
    alike(groups, np.stack([edges[:-1], edges[1:]], -1))
    right = [(when >= low).sum() - (when >= high).sum() for low, high in itertools.pairwise(edges)]
    assert found.compute(device=place.device())[0].tolist() == right
    with pytest.raises(errors.UnsupportedError, match="expected_groups"):
        cf.groupby_reduce(values, cf.open(when), func="sum")


def test_groups_of_a_finer_unit_than_the_key() -> None:
    when, values = np.array(["2024-01-01", "NaT", "2024-01-03", "2024-01-03"], "M8[D]"), np.array([1.0, 2, 4, 8])
    groups = np.array(["2024-01-01T12", "2024-01-03T00"], "M8[h]")
    for key in (when, cf.open(when)):  # in memory, and as an expression
        found, labels = cf.groupby_reduce(cf.open(values), key, func="sum", expected_groups=groups)
        alike(found.compute(device="cpu"), np.array([0.0, 12]))
        alike(labels, groups)
    edges = np.array(["2024-01-01T12", "2024-01-03T00", "2024-01-04T00"], "M8[h]")
    found, bins = cf.groupby_reduce(
        cf.open(values), cf.open(when), func="sum", expected_groups=edges, isbin=True, closed="left"
    )
    alike(found.compute(device="cpu"), np.array([0.0, 12]))
    alike(bins[:, 0], edges[:-1])
    for wrong in (np.array(["2024", "NaT"], "M8[D]"), np.array(["2024", "2024"], "M8[D]")):
        with pytest.raises(errors.ArgumentError, match="expected_groups"):
            cf.groupby_reduce(values, cf.open(when), func="sum", expected_groups=wrong)
    for wrong in ([19723], np.array([1], "m8[D]"), 3):
        with pytest.raises(errors.UnsupportedError, match="expected_groups"):
            cf.groupby_reduce(values, cf.open(when), func="sum", expected_groups=wrong)
    with pytest.raises(errors.ArgumentTypeError, match="func="):
        cf.groupby_reduce(cf.open(when), [0, 0, 1, 1], func=np.min)


# -- Sources, sinks, tasks ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One array of times in everything that holds such."""
    folder = tmp_path_factory.mktemp("times")
    x = DATES.astype("M8[us]")
    np.save(folder / "x.npy", x)
    found: dict[str, Any] = {"memory": x, "swapped": x.astype(">M8[us]"), "npy": folder / "x.npy"}
    found["mapped"] = np.load(folder / "x.npy", mmap_mode="r")
    for version in (2, 3):
        path = str(folder / f"v{version}.zarr")
        found[f"zarr{version}"] = path
        found[f"array{version}"] = zarr.create_array(path, data=x, chunks=(2,), zarr_format=version)  # type: ignore[arg-type]
    for version in (2, 3):
        codec = {"serializer": zarr.codecs.BytesCodec(endian="big")} if version == 3 else {}
        dtype = x.dtype if version == 3 else ">M8[us]"
        swapped = zarr.create_array(
            str(folder / f"b{version}.zarr"), shape=x.shape, dtype=dtype, chunks=(2,), zarr_format=version, **codec
        )
        swapped[:] = x
        found[f"swapped{version}"] = str(folder / f"b{version}.zarr")
    np.save(folder / "b.npy", x.astype(">M8[us]"))
    found["swapped npy"] = folder / "b.npy"
    found["partly"] = zarr.create_array(
        str(folder / "p.zarr"), shape=x.shape, dtype=x.dtype, chunks=(2,), zarr_format=2
    )
    found["partly"][:] = x
    return found


@pytest.mark.filterwarnings("ignore:.*:zarr.errors.UnstableSpecificationWarning")
def test_sources(stored: dict[str, Any]) -> None:
    x = stored["memory"]
    for name, source in stored.items():
        opened = cf.open(source)
        assert isinstance(opened, cf.TimeArray), name
        for each in (opened, pickle.loads(pickle.dumps(opened))):
            alike(each.compute(device="cpu"), x)
        assert cf.explain(np.nanmax(opened), device="cpu").bytes_in == x.nbytes
    assert np.asarray(cf.open(x)[:1]).tolist() == x[:1].tolist()
    assert cf.open(x[0]).item() == x[0].item()
    assert "TimeArray" in repr(cf.open(x))
    assert "datetime64[us]" in repr(cf.open(x))


def test_a_source_whose_unit_has_changed(tmp_path: Path) -> None:
    for name in ("x.npy", "x.zarr", "x2.zarr"):
        path = str(tmp_path / name)

        def write(dtype: str, path: str = path) -> None:
            if path.endswith("npy"):
                np.save(path, DATES.astype(dtype))
            else:
                how = {"zarr_format": 2 if path.endswith("x2.zarr") else 3, "overwrite": True}
                zarr.create_array(path, data=DATES.astype(dtype), **how)  # type: ignore[arg-type]

        write("M8[us]")
        x = cf.open(path)
        write("M8[ms]")
        with pytest.raises(errors.ReadError, match=r"datetime64\[us\].*datetime64\[ms\]"):
            x.compute(device="cpu")


@pytest.mark.parametrize("times", [DATES, DATES - DATES[0], np.array(["1970-01-01", "NaT"], "M8[D]")], ids=repr)
def test_times_are_conditions(times: np.ndarray) -> None:
    for of in (
        lambda x: np.where(x),
        lambda x: np.where(x, 1, 2.5),
        lambda x: np.where(x, times, times[::-1]),
        lambda x: np.where(times[0] < times, x, times[:1]),
    ):
        got, expected = cf.compute(of(cf.open(times)), device="cpu"), of(times)
        for one, other in zip(np.atleast_2d(got), np.atleast_2d(expected), strict=True):
            alike(one, other)
    with pytest.raises(errors.ArgumentError, match="one branch"):
        np.where(cf.open(times), times)


def test_where_numbers_are_wanted(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DATES)
    for wrong in (
        lambda: cf.max(DATES),
        lambda: cf.max(tmp_path / "x.npy"),
        lambda: cf.map(np.negative, DATES),
    ):
        with pytest.raises(errors.ArgumentTypeError, match=r"chunkflow.open\(array\).*view\('i8'\).* in D"):
            wrong()
    with pytest.raises(errors.ArgumentTypeError, match=r"to_zarr"):
        cf.store(cf.open(DATES), tmp_path / "y.npy")
    cf.store(cf.open(DATES), tmp_path / "x.zarr", device="cpu")
    alike(cf.open(tmp_path / "x.zarr", decode="cf").compute(device="cpu"), DATES)
    with pytest.raises(errors.UnsupportedError, match="map"):
        cf.map(np.negative, cf.open(DATES))


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = DATES.astype(h5py.opaque_dtype(DATES.dtype))
    with h5py.File(tmp_path / "x.h5") as file:
        alike(cf.open(file["x"]).compute(device="cpu"), DATES)
    with pytest.raises(errors.ArgumentTypeError, match=r"h5py\.File"):
        cf.open(tmp_path / "x.h5")


@pytest.mark.parametrize("unit", ["D", "h", "ns", "W", "10s"])
@pytest.mark.parametrize("kind", ["M", "m"])
def test_stored_times_are_read_by_xarray(tmp_path: Path, kind: str, unit: str) -> None:
    xarray = pytest.importorskip("xarray")
    x = np.array([3, NAT, -5, 0, 11_000]).view(f"{kind}8[{unit}]")
    cf.open(x).to_zarr(cf.NewArray(tmp_path / "g.zarr" / "when", dimension_names=("t",)), device="cpu")
    seen = xarray.open_zarr(tmp_path / "g.zarr", consolidated=False)["when"].values
    assert seen.dtype.kind == kind
    np.testing.assert_array_equal(seen, x)
    mine = cf.open(tmp_path / "g.zarr" / "when", decode="cf")
    np.testing.assert_array_equal(mine.compute(device="cpu"), x)


def test_units_that_files_do_not_have() -> None:
    for dtype in ("M8[M]", "m8[ps]"):
        with pytest.raises(errors.ArgumentTypeError, match="nanoseconds"):
            cf.open(np.array([1]).view(dtype)).to_zarr("never.zarr")


UNITS_OF_FILES = [
    ("days since 1900-01-01", {}, "i4"),
    ("hours since 1970-1-1 00:00:0.0", {"calendar": "gregorian"}, "i2"),
    ("seconds since 2001-02-03T04:05:06.25Z", {"_FillValue": -999}, "i8"),
    ("days since 1850-01-01", {"_FillValue": np.nan}, "f8"),
    ("minutes since 2000-01-01 12:00:00 UTC", {"scale_factor": 0.5}, "i2"),
    ("seconds since 2000-01-01 12:00 +05:30", {}, "i4"),
    ("hours since 2000-01-01 00:00:00.5 -6:00", {}, "i4"),
    ("days since 1990-1-1 -10", {}, "i4"),
    ("days since 2000", {}, "i4"),
    ("hours since 2000-01", {}, "i4"),
]


@pytest.mark.parametrize(("units", "more", "dtype"), UNITS_OF_FILES)
def test_times_of_netcdf(tmp_path: Path, units: str, more: dict[str, Any], dtype: str) -> None:
    xarray = pytest.importorskip("xarray")
    numbers = np.array([0, 1, -999, 12_345, 20_000]).astype(dtype)
    numbers = numbers + 0.123456 if numbers.dtype.kind == "f" else numbers
    if np.isnan(more.get("_FillValue", 0)):
        numbers[2] = np.nan
    path, attributes = str(tmp_path / "t.zarr" / "t"), {"units": units, **more}
    zarr.open_group(tmp_path / "t.zarr", mode="w", zarr_format=2)
    how: dict[str, Any] = {"zarr_format": 2, "fill_value": more.get("_FillValue", -1)}
    zarr.create_array(path, data=numbers, attributes={**attributes, "_ARRAY_DIMENSIONS": ["t"]}, **how)
    coder = xarray.coders.CFDatetimeCoder(time_unit="us")
    seen = xarray.open_zarr(tmp_path / "t.zarr", consolidated=False, decode_times=coder)["t"].values
    got = cf.open(path, decode="cf").compute(device="cpu")
    assert np.isnat(got).tolist() == np.isnat(seen).tolist()
    off = (got - seen)[~np.isnat(seen)].astype("m8[us]").astype("i8")
    assert np.abs(off).max() <= 1
    alike(cf.open(path, decode="raw").compute(device="cpu"), numbers)


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        ("days since 2000-01-01", "noleap"),
        ("days since 1500-01-01", "standard"),
        ("fortnights since 2000-01-01", ""),
        ("days since 2000-13-01", "standard"),
        ("days since yesterday", "standard"),
    ],
)
def test_times_of_other_calendars(tmp_path: Path, units: str, calendar: str) -> None:
    attributes = {"units": units, "calendar": calendar}
    zarr.create_array(str(tmp_path / "t.zarr"), data=np.arange(3), attributes=attributes)
    with pytest.raises(errors.ArgumentError, match="decode='raw'"):
        cf.open(tmp_path / "t.zarr", decode="cf")


def test_times_of_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["t"] = np.array([0, 1, -9])
        file["t"].attrs.update({"units": np.bytes_(b"days since 2000-01-01"), "_FillValue": -9})
    alike(
        cf.open(f"{tmp_path}/t.h5:/t", decode="cf").compute(device="cpu"),
        np.array(["2000-01-01", "2000-01-02", "NaT"], "M8[D]"),
    )
    cf.open(DATES).to_zarr(f"{tmp_path}/r.h5:/t", device="cpu")
    alike(cf.open(f"{tmp_path}/r.h5:/t", decode="cf").compute(device="cpu"), DATES)


def test_days_before_the_reform_of_the_calendar(tmp_path: Path) -> None:
    for number, (calendar, expected) in enumerate([("standard", "NaT"), ("proleptic_gregorian", "1582-10-10")]):
        attributes = {"units": "days since 1582-10-15", "calendar": calendar}
        path = str(tmp_path / f"{number}.zarr")
        zarr.create_array(path, data=np.array([-5, 5]), attributes=attributes)
        alike(cf.open(path, decode="cf").compute(device="cpu"), np.array([expected, "1582-10-20"], "M8[D]"))
    far = np.array([5, 2**63 + 5], "u8")
    zarr.create_array(str(tmp_path / "u.zarr"), data=far, attributes={"units": "seconds since 1970-01-01"})
    got = cf.open(tmp_path / "u.zarr", decode="cf").compute(device="cpu")
    alike(got, np.array([5, NAT]).view("M8[s]"))
    short = np.array([0.1], "f4")
    zarr.create_array(str(tmp_path / "f.zarr"), data=short, attributes={"units": "days since 2000-01-01"})
    got = cf.open(tmp_path / "f.zarr", decode="cf").compute(device="cpu")
    alike(got - np.datetime64("2000", "us"), np.array([round(float(short[0]) * 86400e6)]).view("m8[us]"))


def test_long_lines_are_sorted_too() -> None:
    x = np.random.default_rng(0).integers(0, 10**9, (2, 20_000)).view("M8[s]")
    x[0, 7] = "NaT"
    compared(np.sort, x, budget="500kB")


def test_dask() -> None:
    da = pytest.importorskip("dask.array")
    x = cf.open(da.from_array(DATES, 2))
    with pytest.raises(errors.UnsupportedError, match=r"chunkflow\.open"):
        _ = x - da.from_array(DATES, 2)
    alike(x.compute(device="cpu"), DATES)
    task = (x - DATES[0]).to_dask("16B", device="cpu")
    assert task.dtype == np.dtype("m8[D]")
    alike(task.compute(scheduler="sync"), DATES - DATES[0])


def test_several_share_their_passes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1000).view("M8[s]"))
    x = cf.open(tmp_path / "x.npy")
    wanted = (np.nanmin(x), np.max(x), x.mean(), np.isnat(x).sum(), np.histogram(x, x[[0, 500, 999]].compute())[0])
    plan = cf.explain(wanted, device="cpu")
    assert plan.bytes_in - 8000 < 200  # what is read once more are results
    low, high, mean, missing, counts = cf.compute(wanted, device="cpu", budget="400kB")
    assert (low, high, mean, missing) == (np.datetime64(0, "s"), np.datetime64(999, "s"), np.datetime64(499, "s"), 0)
    assert counts.tolist() == [500, 500]


@pytest.mark.parametrize("initial", [np.timedelta64(1, "m"), np.timedelta64(1500, "ms"), np.timedelta64("NaT", "s"), 5])
def test_sums_begin_with_a_span(initial: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, "NaT"]], "m8[s]")
    for how in ({}, {"axis": 1, "keepdims": True}, {"axis": 0, "where": np.array([True, False, True])}):
        found = np.sum(cf.open(x), initial=initial, **how).compute(device="cpu")
        np.testing.assert_array_equal(found, np.sum(x, initial=initial, **how))


def test_labels_that_are_times_ask_for_groups_by_their_dtype() -> None:
    days = np.arange("2020-01-01", "2020-01-05", dtype="M8[D]")
    with pytest.raises(errors.UnsupportedError, match=r"expected_groups=, an array of datetime64: x"):
        cf.groupby_reduce(cf.open(np.ones(4)), cf.open(days), func="sum")


def test_what_is_decoded_is_named_by_its_file(tmp_path: Path) -> None:
    cf.open(DATES).to_zarr(tmp_path / "t.zarr", device="cpu")
    times = cf.open(tmp_path / "t.zarr", decode="cf")
    assert repr(times).startswith(f"<chunkflow.TimeArray {tmp_path}/t.zarr, decoded: ")
    zarr.create_array(tmp_path / "x.zarr", data=np.arange(3), attributes={"scale_factor": 0.5})
    numbers = cf.open(tmp_path / "x.zarr", decode="cf")
    assert repr(numbers) == f"<chunkflow.Array {tmp_path}/x.zarr, decoded: (3,), float64>"
