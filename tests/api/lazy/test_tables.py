"""Tables that are expressions: what is looked up in them is what NumPy finds, within the budget."""

from __future__ import annotations

import pickle
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
from chunkflow.api.lazy import tables

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "isin": lambda x, t: np.isin(x, t),
    "inverted": lambda x, t: np.isin(x, t, invert=True),
    "a table of two axes": lambda x, t: np.isin(x, np.stack([t, t + 1])),
    "searchsorted": lambda x, t: np.searchsorted(np.sort(t), x),
    "the right side": lambda x, t: np.searchsorted(np.sort(t), x, side="right"),
    "sorter": lambda x, t: np.searchsorted(t[::-1] * 0 + np.arange(t.size)[::-1], x, sorter=np.arange(t.size)[::-1]),
    "digitize": lambda x, t: np.digitize(x, np.sort(t), right=True),
    "interp": lambda x, t: np.interp(x, np.arange(t.size) / 2, t * 2, left=-1),
    "take": lambda x, t: np.take(t, x.astype("i8"), mode="wrap"),
    "rows": lambda x, t: np.take(np.stack([t, t + 1]), x.astype("i8"), axis=1, mode="clip"),
    "flat": lambda x, t: np.take(np.stack([t, t + 1]), x.astype("i8") % t.size - t.size),
    "period": lambda x, t: np.interp(x, np.arange(t.size), t, period=2.5),
}


@pytest.mark.parametrize("name", CALLS)
@given(
    x=npst.arrays("f8", npst.array_shapes(max_dims=3, max_side=6), elements=st.integers(-3, 9)),
    t=npst.arrays("f8", st.integers(1, 9), elements=st.integers(-3, 9).map(float) | st.just(np.nan)),
    lazy=st.sampled_from(["x", "t", "both"]),
    budget=st.sampled_from(["100kB", "64MB"]),
)
@settings(max_examples=examples(1 / 4), deadline=None)
def test_tables_that_are_expressions(name: str, x: np.ndarray, t: np.ndarray, lazy: str, budget: str) -> None:
    if name not in ("isin", "inverted"):
        t = np.nan_to_num(t)
    one = x if lazy == "t" else cf.open(x)
    other = t if lazy == "x" else cf.open(t - 1) + 1  # which is not in memory
    found = cf.compute(CALLS[name](one, other), device="cpu", budget=budget)
    expected = CALLS[name](x, t)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtypes", [("i4", "i8"), ("u1", "i2"), ("f4", "f8"), ("i8", "f8"), ("?", "i4"), ("c8", "f8")])
def test_long_tables(monkeypatch: pytest.MonkeyPatch, dtypes: tuple[str, str]) -> None:
    monkeypatch.setattr(tables, "LONG", 4)
    x, t = np.arange(-2, 40).astype(dtypes[0]), np.arange(0, 60, 3).astype(dtypes[1])
    for table in (t, cf.open(t), cf.open(t)[::-1] + t.dtype.type(0)):
        for invert in (False, True):
            found = np.isin(cf.open(x), table, invert=invert).compute(device="cpu")
            np.testing.assert_array_equal(found, np.isin(x, t, invert=invert))
    monkeypatch.setattr(tables.places, "LARGEST", 8)  # of larger ones the budget counts each
    np.testing.assert_array_equal(np.isin(cf.open(x), t).compute(device="cpu"), np.isin(x, t))
    with pytest.raises(errors.BudgetError):
        np.isin(cf.open(x), cf.zeros(10**6) + 1).compute(device="cpu", budget="1MB")


@pytest.mark.parametrize("x", [np.arange(3.0), np.array(2.0)], ids=["a line", "a number"])
@pytest.mark.parametrize("kept", [True, False], ids=["in memory", "computed"])
def test_tables_without_elements_and_tables_in_memory(x: np.ndarray, kept: bool) -> None:
    """What is looked up is in memory: the table alone is an expression."""
    for t in (np.arange(4.0), np.zeros(0)):
        table = cf.open(t) if kept else cf.open(t) + 0
        for call in (np.isin, lambda a, b: np.searchsorted(b, a), np.digitize):
            np.testing.assert_array_equal(call(x, table).compute(device="cpu"), call(x, t))
    np.testing.assert_array_equal(np.isin(x, cf.zeros((4, 0)) + 1).compute(device="cpu"), np.zeros(x.shape, bool))
    with pytest.raises(errors.ArgumentError, match="no elements"):
        np.interp(x, table, table)


def test_places_outside_of_a_table_that_is_an_expression() -> None:
    at, table = cf.open(np.array(2)) + 1, cf.open(np.arange(4.0)) * 2
    assert np.take(table, at).compute(device="cpu") == 6
    for wrong, x in ((at + 1, table), (at, cf.zeros(0) + 1)):
        with pytest.raises(IndexError, match=r"out of bounds for a table of 4|has none to look up"):
            np.take(x, wrong).compute(device="cpu")
    with pytest.raises(errors.BudgetError):
        np.take(cf.zeros(10**6) + 1, at).compute(device="cpu", budget="1MB")


def test_rows_of_a_table_that_are_looked_up_are_pickled() -> None:
    at, table = cf.open(np.arange(4)) % 3, np.arange(12.0).reshape(4, 3)
    for x in (table, cf.open(table) * 1):
        found = pickle.loads(pickle.dumps(cf.take(x, at, axis=1)))
        np.testing.assert_array_equal(found.compute(device="cpu"), table[:, [0, 1, 2, 0]])


def test_nothing_is_computed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    x = cf.open(np.arange(6.0))
    with monkeypatch.context() as patched:
        patched.setattr(cf.Array, "compute", None)
        patched.setattr(cf.Array, "__array__", None)
        found = np.isin(x, x[:2] + 1)
    np.testing.assert_array_equal(found.compute(device="cpu"), [False, True, True, False, False, False])


@on_cpu_and_gpu
def test_devices(place: Place) -> None:
    x, t = cf.open(np.arange(12.0).reshape(3, 4)), cf.open(np.arange(4.0)) * 2
    for name, call in CALLS.items():
        if name != "sorter":
            found = cf.compute(call(x, t), device=place.device())
            np.testing.assert_allclose(found, call(np.arange(12.0).reshape(3, 4), np.arange(4.0) * 2))


def test_times_in_tables_of_times() -> None:
    x = np.array(["2020-01-01", "2020-01-04", "NaT", "2020-01-03"], "M8[D]")
    t = np.array(["2020-01-03", "NaT"], "M8[s]")
    for table in (t, cf.open(t), cf.open(t) + np.timedelta64(0, "s")):
        for invert in (False, True):
            found = np.isin(cf.open(x), table, invert=invert)
            np.testing.assert_array_equal(found.compute(device="cpu"), np.isin(x, t, invert=invert))
        found = np.searchsorted(table, cf.open(x)).compute(device="cpu")
        np.testing.assert_array_equal(found, np.searchsorted(t, x))


def test_what_is_no_table() -> None:
    x = cf.open(np.ones((2, 3))) + 1
    for wrong in (
        lambda: np.searchsorted(x, x),
        lambda: np.digitize(x, x),
        lambda: np.interp(x, x[0], x[0, :2]),
        lambda: np.interp(x, x, x),
        lambda: np.searchsorted(x[0], x, side="middle"),
    ):
        with pytest.raises(errors.ArgumentError):
            wrong()


@pytest.mark.parametrize("places", [(0,), (0, 2), (3, 0)])
def test_nothing_is_looked_up_in_any_table(places: tuple[int, ...]) -> None:
    for shape in ((0,), (0, 4), (5, 0), (5, 4)):
        table, index = np.zeros(shape, "i2"), np.zeros(places, int)
        for found in (cf.open(table)[cf.open(index)], np.take(cf.open(table), cf.open(index), axis=0)):
            got = found.compute(device="cpu")
            assert (got.shape, got.dtype) == (table[index].shape, table.dtype)
    x = np.zeros(0)
    assert cf.open(x)[np.argsort(cf.open(x))].compute(device="cpu").shape == (0,)
