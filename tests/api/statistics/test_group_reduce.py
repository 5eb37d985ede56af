"""Reductions of groups are NumPy's of each group's elements, whatever the layout, the keys, the cut and the device."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from support.budgets import traced
from support.devices import CHECKING, CPU, Place, checked, everywhere

import chunkflow as cf
from chunkflow import errors
from chunkflow.graph.evaluate import FEW
from chunkflow.kernels.statistics import group_reduce
from chunkflow.kernels.statistics.group_reduce import FUNCTIONS, LOOPED, Segments
from chunkflow.testing import CountingSource

REDUCED = ("sum", "prod", "mean", "var", "std", "min", "max", "argmin", "argmax")


def of_group(name: str, elements: np.ndarray) -> Any:
    """NumPy's function of the elements of one group; what a group without any has is as documented."""
    base, skip = name.removeprefix("nan"), name.startswith("nan")
    some = elements[elements == elements] if skip or base == "count" else elements
    if base == "count":
        return len(some)
    if not len(some):
        nothing: dict[str, Any] = {
            "sum": 0,
            "prod": 1,
            "any": False,
            "all": len(elements) > 0,
            "argmin": -1,
            "argmax": -1,
        }
        return nothing.get(base, np.nan if elements.dtype.kind == "f" or base in ("mean", "var", "std") else 0)
    if base in ("first", "last"):
        return some[0 if base == "first" else -1]
    return getattr(np, name)(elements)


def expected(x: np.ndarray, codes: np.ndarray, axes: tuple[int, ...], number: int, name: str) -> np.ndarray:
    """Results by a loop over all places that are kept, and all groups."""
    kept = [a for a in range(x.ndim) if a not in axes]
    turned, codes = x.transpose((*kept, *axes)), np.broadcast_to(codes, x.shape).transpose((*kept, *axes))
    shape = [x.shape[a] for a in kept]
    found = np.empty((*shape, number), object)
    for place in np.ndindex(*shape):
        for group in range(number):
            chosen = (codes[place] == group).reshape(-1)
            found[(*place, group)] = of_group(name, turned[place].reshape(-1)[chosen])
            if "arg" in name and found[(*place, group)] >= 0:  # the position is that among all
                found[(*place, group)] = np.flatnonzero(chosen)[found[(*place, group)]]
    return found.astype("f8")


@given(
    x=npst.arrays(
        st.sampled_from(("f4", "f8", ">f8", "i2", "u1", "?")),
        npst.array_shapes(min_dims=1, max_dims=3, max_side=6),
        elements=st.integers(0, 1),
    ),
    names=st.lists(st.sampled_from(FUNCTIONS), min_size=2, max_size=4, unique=True),
    chunks=st.sampled_from([None, 1, 2]),
    fortran=st.booleans(),
    lazy=st.booleans(),
    place=st.sampled_from(CHECKING),
    budget=st.sampled_from([400_000, 20_000_000]),
    data=st.data(),
)
@settings(max_examples=15)
def test_functions_of_groups(
    x: np.ndarray, names: list[str], chunks: Any, fortran: bool, lazy: bool, place: Place, budget: int, data: Any
) -> None:
    x = (x * 3 + data.draw(npst.arrays("u1", x.shape, elements=st.integers(0, 9)))).astype(x.dtype)
    if x.dtype.kind == "f":
        x[data.draw(npst.arrays("?", x.shape))] = np.nan
    x = np.asfortranarray(x) if fortran else x
    dims = data.draw(st.integers(1, x.ndim))
    by = data.draw(npst.arrays("i8", x.shape[x.ndim - dims :], elements=st.integers(-1, 3)))
    axes = data.draw(st.sampled_from([tuple(range(x.ndim - dims, x.ndim)), (x.ndim - 1,)]))
    options: dict[str, Any] = {"func": names, "expected_groups": 3, "axis": axes, "chunks": chunks}
    if lazy:
        arrays, groups = cf.groupby_reduce(cf.open(x), cf.open(by), **options)
        specs = [(a.shape, a.dtype) for a in arrays]
        arrays = cf.compute(list(arrays), budget=budget, device="cpu")
        assert specs == [(a.shape, a.dtype) for a in arrays]
    else:
        arrays, groups = cf.groupby_reduce(x, by, **options, budget=budget, device=place.device())
    np.testing.assert_array_equal(groups, np.arange(3))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, got in zip(names, arrays, strict=True):
            right = expected(x, by, axes, 3, name)
            np.testing.assert_allclose(got.astype("f8"), right, rtol=1e-5, atol=1e-5, err_msg=name)


def of_rows(name: str, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A function of one group's rows, for each column: NumPy's, or as documented; `places` are where rows were."""
    base, skip, number = name.removeprefix("nan"), name.startswith("nan"), len(rows)
    some = rows == rows if skip or base == "count" else np.ones_like(rows, dtype=bool)
    if base == "count":
        return some.sum(0)
    if base in ("first", "last", "argmin", "argmax"):
        if not number:
            return np.full(rows.shape[1], -1 if "arg" in base else np.nan if rows.dtype.kind == "f" else 0)
        if base in ("first", "last"):
            at = some.argmax(0) if base == "first" else number - 1 - some[::-1].argmax(0)
            return np.where(some.any(0), np.take_along_axis(rows, at[None], 0)[0], np.float64("nan"))
        at = getattr(np, base)(np.where(some, rows.astype("f8"), np.inf if base == "argmin" else -np.inf), axis=0)
        return np.where(some.any(0), places[at], -1)
    if not number and base not in ("sum", "prod"):
        nothing = 0 if base in ("any", "all") or (base in ("min", "max") and rows.dtype.kind != "f") else np.nan
        return np.full(rows.shape[1], nothing)
    return np.asarray(getattr(np, name)(rows, axis=0, **({"dtype": "f8"} if base in REDUCED[:5] else {})))


WIDE = st.one_of(
    st.tuples(st.integers(4, 9), st.integers(9000, 20_000)),
    st.tuples(st.integers(9000, 20_000), st.integers(2, 9)),
    st.tuples(st.integers(60, 200), st.integers(300, 600)),
    st.tuples(st.integers(3, 9), st.integers(70, 120), st.integers(90, 120)),
)
"""Shapes of enough elements that blocks are cut, and that a group's rows are reduced by themselves."""


@given(
    shape=WIDE,
    names=st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=3, unique=True),
    placed=st.sampled_from([("nanfirst", "nanargmin"), ("nanlast", "nanargmax"), ("first", "argmin")]),
    dtype=st.sampled_from(["f8", "f4", ">f8", "i4"]),
    nans=st.sampled_from([20, 1, 5000, 0]),
    number=st.integers(2, 4),
    ordered=st.booleans(),
    least=st.sampled_from([0, -1]),
    fortran=st.booleans(),
    place=st.one_of(st.just(CPU), st.sampled_from(CHECKING)),
    budget=st.sampled_from([1 << 30, 1_000_000, 5_000_000, 20_000_000]),
    looped=st.sampled_from([LOOPED, 50]),
    data=st.data(),
)
@settings(max_examples=60)
def test_groups_of_wide_arrays(
    shape: tuple[int, ...],
    names: list[str],
    placed: tuple[str, ...],
    dtype: str,
    nans: int,
    number: int,
    ordered: bool,
    least: int,
    fortran: bool,
    place: Place,
    budget: int,
    looped: int,
    data: Any,
) -> None:
    """Where NaN are in few places, and each group has many elements; with 50 a group's rows of most blocks are many."""
    names = list(dict.fromkeys([*placed, *names]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = (rng.choice([-1, 1], shape) * (1 + 1e-5 * rng.integers(0, 9, shape))).astype(dtype)
    if x.dtype.kind == "f":
        x.reshape(-1)[rng.integers(0, x.size, nans)] = np.nan
    axes = data.draw(st.sampled_from([(0,), (len(shape) - 1,), tuple(range(len(shape))), (0, len(shape) - 1)]))
    by = rng.integers(least, number, [shape[a] for a in axes])
    by = np.sort(by, axis=None).reshape(by.shape) if ordered else by
    options: dict[str, Any] = {"func": names, "axis": axes, "expected_groups": number, "budget": budget}
    with mock.patch.object(group_reduce, "LOOPED", looped):
        arrays, _ = cf.groupby_reduce(np.asfortranarray(x) if fortran else x, by, **options, device=place.device())
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    rows = x.transpose((*axes, *kept)).reshape(by.size, -1)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, got in zip(names, arrays if len(names) > 1 else [arrays], strict=True):
            places = [np.flatnonzero(by.reshape(-1) == group) for group in range(number)]
            right = np.stack([of_rows(name, rows[at], at) for at in places], -1)
            got = got.reshape(right.shape)
            np.testing.assert_allclose(got.astype("f8"), right.astype("f8"), rtol=1e-5, atol=1e-5, err_msg=name)


def test_last_number_where_blocks_have_a_row_of_each_group() -> None:
    x = np.random.default_rng(0).random((5, 20_000))
    x[0, :3] = x[2, 6] = np.nan
    found, _ = cf.groupby_reduce(x, [0, 0, 0, 1, 1], func="nanlast", axis=0, device="cpu")
    right = x[2].copy()
    right[6] = x[1, 6]
    np.testing.assert_array_equal(found, np.stack((right, x[4]), -1))


@pytest.mark.parametrize("name", ["nanfirst", "nanlast"])
def test_ends_of_long_groups(name: str) -> None:
    x = np.random.default_rng(0).random((40, 450))
    x[0, 0] = x[39, 0] = np.nan
    found, _ = cf.groupby_reduce(x, np.arange(40) // 20, func=name, axis=0, device="cpu")
    right = x[[0, 20]] if name == "nanfirst" else x[[19, 39]]
    right[np.isnan(right)] = x[1 if name == "nanfirst" else 38, 0]
    np.testing.assert_array_equal(found, right.T)


def test_functions_of_rows_get_what_belongs_to_these() -> None:
    groups, columns = np.repeat([0, 1, 2], [2, 1, 4]), LOOPED
    s = Segments(np.ones((7, columns)), groups, 3)
    numbers = np.arange(7.0)[:, None]
    found = s.reduce("max", lambda x, mean, at: x * mean + at, np.full((3, columns), 10.0), along=(numbers,))
    np.testing.assert_array_equal(found, np.broadcast_to([[11.0], [12.0], [16.0]], (3, columns)))
    found = s.reduce("sum", lambda x, at: x * at, along=(numbers,), dtype="f8")
    np.testing.assert_array_equal(found, np.broadcast_to([[1.0], [2.0], [18.0]], (3, columns)))


@everywhere
@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_order_in_many_groups_of_many_lengths(place: Place, name: str) -> None:
    r = np.random.default_rng(1)
    x = r.random((5, 6000), "f4")
    x[r.random(x.shape) > 0.9] = np.nan
    labels = (r.random(6000) ** 2 * 900).astype("i4")  # some are of one element, some of thousands
    labels[labels > 700] = 700
    found, groups = cf.groupby_reduce(
        x, labels, func=name, axis=1, budget=place.budget(4_000_000), device=place.device()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = np.stack([getattr(np, name)(x[:, labels == group], axis=1) for group in groups], -1)
    np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("reduced", [1, 2])
@pytest.mark.parametrize("many_rows", [False, True])
def test_as_many_groups_or_rows_as_a_trial_has_elements(reduced: int, many_rows: bool) -> None:
    groups, rows = (3, int(FEW ** (1 / reduced))) if many_rows else (int(FEW ** (1 / reduced)), 3)
    x = np.random.default_rng(0).integers(0, 50, (rows, *[4 * FEW // reduced**2] * reduced)).astype("f4")
    by = np.resize(np.arange(groups), x.shape[1:])
    expected = np.stack([np.median(x[:, by == group], axis=1) for group in range(groups)], -1)
    found, _ = cf.groupby_reduce(cf.open(x), by, func="median", axis=tuple(range(1, x.ndim)))
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found.compute(device="cpu"), expected)


@everywhere
def test_many_columns_and_rows(place: Place, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60, 30, 20)).astype("f4") + 100
    x[x > 101.5] = np.nan
    months = np.arange(60) // 5 % 4
    names = ["nanmean", "nanvar", "count", "nanmax", "nanfirst", "nanargmin"]
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(7, 30, 11), dtype="f4")[...] = x
    options: dict[str, Any] = {"func": names, "budget": place.budget(4_000_000), "device": place.device()}
    found, _ = cf.groupby_reduce(tmp_path / "x.zarr", months, axis=0, **options)
    turned, _ = cf.groupby_reduce(np.moveaxis(x, 0, -1).copy(), months, **options)
    for name, got, same in zip(names, found, turned, strict=True):
        right = [getattr(np, name, None) for _ in range(4)]
        rows = [x[months == month] for month in range(4)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name == "count":
                right = [(~np.isnan(r)).sum(axis=0) for r in rows]
            elif name == "nanargmin":
                right = [np.flatnonzero(months == m)[np.nanargmin(r, axis=0)] for m, r in enumerate(rows)]
            elif name == "nanfirst":
                right = [np.take_along_axis(r, np.isnan(r).argmin(0)[None], 0)[0] for r in rows]
            else:
                right = [getattr(np, name)(r.astype("f8"), axis=0) for r in rows]
        np.testing.assert_allclose(got, np.stack(right, -1), rtol=1e-4)
        np.testing.assert_allclose(same, got, rtol=1e-5)


@given(
    x=npst.arrays(st.sampled_from(("f4", "i4")), (4, 12), elements=st.integers(-9, 9)),
    by=npst.arrays("i8", 12, elements=st.integers(0, 2)),
    name=st.sampled_from(["median", "nanmedian", "quantile", "nanquantile"]),
    q=st.sampled_from([0.3, [0.0, 0.7]]),
    place=st.sampled_from(CHECKING),
    data=st.data(),
)
@settings(max_examples=12)
def test_order_statistics_of_groups(x: np.ndarray, by: np.ndarray, name: str, q: Any, place: Place, data: Any) -> None:
    if x.dtype.kind == "f":
        x[data.draw(npst.arrays("?", x.shape))] = np.nan
    more = {"q": q} if name.endswith("quantile") else {}
    got, groups = cf.groupby_reduce(x, by, func=name, **more, budget=1_000_000, device=place.device())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = [getattr(np, name)(x[:, by == group], **more, axis=1) for group in groups]
    np.testing.assert_allclose(got, np.stack(right, axis=-1), rtol=1e-6)


@pytest.mark.parametrize("place", CHECKING, ids=str)
@pytest.mark.parametrize(
    "names",
    [
        ["median", "mean"],
        ["nanargmax", "quantile", "count", "nanmedian", "nanlast"],
        ["nanquantile", "median"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", [False, True], ids=["all alike", "by column"])
def test_order_statistics_beside_others_in_one_read(names: list[str], columns: bool, place: Place) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((20, 12, 25)).astype("f4")
    x[rng.random(x.shape) < 0.2] = np.nan
    by = rng.integers(-1, 5, x.shape if columns else 25)
    options: dict[str, Any] = {"q": [0.2, 0.5], "axis": 2, "expected_groups": 5, "device": place.device()}
    source = CountingSource(x)
    found, _ = cf.groupby_reduce(source, by, func=names, budget=2_000_000, **options)
    assert x.nbytes <= source.bytes_read <= 2 * x.nbytes, "a trial reads a block, of few elements all"
    for name, got in zip(names, found, strict=True):
        alone, _ = cf.groupby_reduce(x, by, func=name, **options)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(alone), err_msg=name)


def test_one_read_for_all_functions_within_the_budget() -> None:
    x = np.random.default_rng(0).standard_normal((200, 20, 30))
    source = CountingSource(x)
    with cf.Budget(2_000_000) as budget:
        found, _ = cf.groupby_reduce(
            source, np.arange(200) % 12, func=["mean", "std", "max", "count"], axis=0, budget=budget, device="cpu"
        )
        assert budget.peak <= 2_000_000
    assert x.nbytes <= source.bytes_read <= 1.2 * x.nbytes
    np.testing.assert_allclose(found[0][..., 3], x[3::12].mean(axis=0))
    with pytest.raises(errors.BudgetError, match="at least"):
        cf.groupby_reduce(x[0], np.arange(30), func="var", expected_groups=100_000, budget="1MB", device="cpu")


@pytest.mark.parametrize("func", ["mean", "nanfirst", ["sum", "nanvar"]])
def test_many_groups_for_each_column(func: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 3000, (60, 40)).astype("f8")
    np.save(tmp_path / "x.npy", x)
    plan = str(cf.explain(cf.groupby_reduce, x, x, func=func, expected_groups=3000, axis=0, budget="2MB", device="cpu"))
    assert re.search(r"blocks of \d\d x \d+ ", plan), "what is kept leaves room for some rows"
    found, _ = cf.groupby_reduce(
        tmp_path / "x.npy", x, func=func, expected_groups=3000, axis=0, budget="2MB", device="cpu"
    )
    first = found if isinstance(func, str) else found[0]
    right = np.full((40, 3000), 0.0 if isinstance(func, list) else np.nan)
    for column, line in enumerate(x.T):
        for label, number in zip(*np.unique(line, return_counts=True), strict=True):
            right[column, int(label)] = label * (number if isinstance(func, list) else 1)
    np.testing.assert_array_equal(first, right)
    if isinstance(func, list):
        np.testing.assert_array_equal(np.nan_to_num(found[1]), 0)


def test_what_groups_keep_is_named_before_it_is_there() -> None:
    x = np.random.default_rng(0).random((20, 30))
    by, number = np.arange(20), 100_000

    def call(budget: int, axis: Any = 0) -> Any:
        return cf.groupby_reduce(
            x, by if axis == 0 else x * 0, func="var", expected_groups=number, axis=axis, budget=budget, device="cpu"
        )

    for axis in (0, (0, 1)):
        with pytest.raises(errors.BudgetError):
            call(3_000_000, axis)
        with traced() as peak, pytest.raises(errors.BudgetError) as caught:
            call(3_000_000, axis)
        assert peak() <= 3_000_000 + number * (8 + 8 + 8), "besides the labels, their order, and which group they are"
        assert caught.value.smallest is not None
        call(caught.value.smallest, axis)


@pytest.mark.parametrize("make", [list, lambda labels: np.array(labels, object)])
@pytest.mark.parametrize("expected_groups", [None, ["b", "a", "z"]])
def test_objects_that_are_missing_are_of_no_group(make: Any, expected_groups: Any) -> None:
    labels = make(["a", None, "b", "a", math.nan, "b", np.datetime64("NaT")])
    found, names = cf.groupby_reduce(np.arange(7.0), labels, func="sum", expected_groups=expected_groups, device="cpu")
    right = {"a": 3.0, "b": 7.0, "z": 0.0}
    assert found.tolist() == [right[name] for name in names.tolist()]
    assert names.tolist() == (expected_groups or ["a", "b"])


@pytest.mark.parametrize("labels", [[["a", "b", "a"], ("b", None, "c")], [[1, 2, 1], range(2, 5)]])
def test_labels_in_lists_of_lists(labels: Any) -> None:
    x = np.arange(6.0).reshape(2, 3)
    found, names = cf.groupby_reduce(x, labels, func="sum", device="cpu")
    flat = [label for row in labels for label in row]
    assert found.tolist() == [sum(i for i, label in enumerate(flat) if label == name) for name in names.tolist()]
    assert names.tolist() == sorted({label for label in flat if label is not None})
    long = [labels[i % 2] for i in range(3000)]
    again, _ = cf.groupby_reduce(np.resize(x, (3000, 3)), long, func="sum", device="cpu")
    np.testing.assert_allclose(again, found * 1500)


@pytest.mark.parametrize("labels", [["a", 1, "b"], [*["a"] * 2048, 1], [1, (2, 3), 4], [b"a", "b", "c"]])
def test_objects_of_several_kinds_are_refused(labels: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="must all be strings, or all numbers"):
        cf.groupby_reduce(np.arange(float(len(labels))), labels, func="sum", device="cpu")


@pytest.mark.parametrize(
    "kind",
    [
        *(pytest.param(k, marks=pytest.mark.thorough) for k in (">i4", "f8", "M8[h]", "object")),
        "i8",
        "U3",
        "two",
        "list",
    ],
)
@pytest.mark.parametrize("expected_groups", [None, "given"])
def test_long_labels_in_memory_count_in_the_budget(kind: str, expected_groups: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random(300_000)
    np.save(tmp_path / "x.npy", x)
    number = np.random.default_rng(1).integers(0, 50, x.size)
    made: dict[str, Callable[[], Any]] = {
        ">i4": lambda: (number * 999_999).astype(kind),
        "two": lambda: number,
        "list": lambda: number.astype("U3").tolist(),
        "object": lambda: number.astype("U3").astype(object),
    }
    key = made.get(kind, lambda: number.astype(kind))()
    keys = (key, (number % 3).astype("u1")) if kind == "two" else (key,)
    groups = tuple(np.unique(k) for k in keys) if expected_groups else None

    def call(budget: int) -> Any:
        return cf.groupby_reduce(
            tmp_path / "x.npy", *keys, func="sum", expected_groups=groups, budget=budget, device="cpu"
        )[0]

    found = call(2_000_000)
    with traced() as peak:
        call(2_000_000)
        assert peak() <= 2_000_000
    right = [x[number == n].sum() for n in range(50)]
    if kind == "two":
        np.testing.assert_allclose([found[n, n % 3] for n in range(50)], right)
    else:
        np.testing.assert_allclose(np.sort(found), np.sort(right))
    if kind in ("U3", "M8[h]", "list", "object"):
        with pytest.raises(errors.BudgetError, match="held already") as caught:
            call(300_000)
        assert caught.value.smallest is not None
        assert 300_000 < caught.value.smallest < 600_000, "a byte for each label"


@pytest.mark.parametrize("func", [*FUNCTIONS, "median", "nanmedian", "quantile"])
@pytest.mark.parametrize(
    ("shape", "by", "axis", "expected", "result"),
    [
        ((2, 3), [np.nan] * 3, None, None, (2, 0)),
        ((2, 3), [[np.nan] * 3] * 2, 0, None, (3, 0)),
        ((1,), [0], None, [], (0,)),
        ((2, 0), np.zeros(0), None, None, (2, 0)),
    ],
)
def test_no_group_at_all(func: str, shape: Any, by: Any, axis: Any, expected: Any, result: Any) -> None:
    how: dict[str, Any] = {"func": func, "axis": axis, "expected_groups": expected}
    how |= {"q": 0.5} if func == "quantile" else {}
    found, groups = cf.groupby_reduce(np.ones(shape), by, device="cpu", **how)
    lazy, _ = cf.groupby_reduce(cf.open(np.ones(shape)), by, **how)
    assert found.shape == lazy.compute(device="cpu").shape == result
    assert len(groups) == 0


def test_keys() -> None:
    x = np.arange(12.0).reshape(2, 6)
    names = np.array(["b", "a", "b", "c", "a", "b"])
    found, groups = cf.groupby_reduce(x, names, func="sum", device="cpu")
    assert groups.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(found, [[5, 7, 3], [17, 25, 9]])
    days = np.array(["2024-01-05", "NaT", "2024-01-01", "2024-01-05", "2024-01-01", "2024-01-05"], "M8[D]")
    found, groups = cf.groupby_reduce(x[0], days, func="max", device="cpu")
    assert found.tolist() == [4, 5]
    assert groups.tolist() == sorted(set(days[~np.isnat(days)].tolist()))
    two = np.array([0, 0, 0, 1, 1, 1])
    (found, number), *groups = cf.groupby_reduce(x, names, two, func=["sum", "count"], device="cpu")
    assert found.shape == (2, 3, 2)
    assert [len(g) for g in groups] == [3, 2]
    assert number[0].tolist() == [[1, 1], [2, 1], [0, 1]]
    edges = [0, 2.5, 4]
    for closed, right in (("right", [3, 7]), ("left", [3, 3])):
        found, bins = cf.groupby_reduce(
            x[0], x[0], func="sum", expected_groups=edges, isbin=True, closed=closed, device="cpu"
        )
        assert found.tolist() == right
        assert bins.tolist() == [[0, 2.5], [2.5, 4]]
    rows, by = cf.groupby_reduce(x, np.array([5, 3]), func="mean", axis=0, device="cpu")  # along another axis
    assert by.tolist() == [3, 5]
    np.testing.assert_array_equal(rows, x[::-1].T)
    columns, *_ = cf.groupby_reduce(x, np.array([[1], [2]]), np.array([1, 1, 1, 2, 2, 2]), func="sum", device="cpu")
    assert columns.tolist() == [[3, 12], [21, 30]]


def test_labels_in_files(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((30, 20))
    labels = np.random.default_rng(1).integers(-2, 5, x.shape)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "x.npy", x)
    found, groups = cf.groupby_reduce(
        tmp_path / "x.npy", tmp_path / "labels.npy", func="sum", out=tmp_path / "sums.npy", device="cpu"
    )
    assert groups.tolist() == list(range(-2, 5))
    np.testing.assert_allclose(np.asarray(found), [x[labels == g].sum() for g in groups])
    with pytest.raises(errors.UnsupportedError, match="expected_groups"):
        cf.groupby_reduce(x, cf.open(labels), func="sum")


def test_what_fills_groups_without_elements() -> None:
    x, by = np.array([3, 4, 5], "i2"), [0, 0, 2]

    def filled(name: str, **options: Any) -> np.ndarray:
        found, _ = cf.groupby_reduce(x, by, func=name, expected_groups=3, device="cpu", **options)
        return found  # type: ignore[no-any-return]

    assert filled("sum").tolist() == [7, 0, 5]
    assert filled("min").tolist() == [3, 0, 5]
    assert filled("min", fill_value=-1).dtype == np.dtype("i2")
    assert filled("max", fill_value=-1).tolist() == [4, -1, 5]
    np.testing.assert_array_equal(filled("max", fill_value=np.nan), [4, np.nan, 5])
    np.testing.assert_array_equal(filled("sum", min_count=2), [7, np.nan, np.nan])
    assert filled("mean", dtype="f4").dtype == np.dtype("f4")
    y = np.array([np.nan, 1.0, np.nan])
    found, _ = cf.groupby_reduce(y, by, func="nansum", expected_groups=3, fill_value=9, device="cpu")
    assert found.tolist() == [1, 9, 9]


@checked
def test_spread_far_from_zero(place: Place) -> None:
    x = np.random.default_rng(0).standard_normal(4000) + 1e6
    by = np.arange(4000) % 3
    got, _ = cf.groupby_reduce(x, by, func="var", ddof=1, chunks=300, budget=4_000_000, device=place.device())
    np.testing.assert_allclose(got, [x[by == g].var(ddof=1) for g in range(3)], rtol=1e-6)


X = np.ones((3, 4))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((X, [0, 1, 2]), {"func": "sum"}, errors.ArgumentError, "do not match the last axes"),
        ((X, [0, 1, 2, 3]), {"func": "total"}, errors.ArgumentError, "'total' is none of count, any"),
        ((X, [0, 1, 2, 3]), {"func": []}, errors.ArgumentError, "func is empty"),
        ((X,), {"func": "sum"}, errors.ArgumentTypeError, "needs labels"),
        ((X, [["a"], ["b", "c"], ["a"], ["b"]]), {"func": "sum"}, errors.ArgumentError, "different lengths"),
        ((X, list("abca")), {"func": "sum", "expected_groups": [1, 2]}, errors.ArgumentTypeError, "do not compare"),
        ((X, [1, 2, 1, 2]), {"func": "sum", "expected_groups": ["a"]}, errors.ArgumentTypeError, "do not compare"),
        ((X, cf.open(X)), {"func": "sum", "expected_groups": ["a"]}, errors.ArgumentTypeError, "do not compare"),
        ((X, [0, 1, 2, 3]), {"func": "quantile"}, errors.ArgumentTypeError, "q="),
        ((X + 1j, [0, 1, 2, 3]), {"func": "min"}, errors.ArgumentTypeError, "no order"),
        ((X, [0, 1, 2, 3]), {"func": "sum", "isbin": True}, errors.ArgumentError, "edges"),
        (
            (X, [0, 1, 2, 3]),
            {"func": "sum", "isbin": True, "expected_groups": [2, 1]},
            errors.ArgumentError,
            "increase",
        ),
        ((X, [0, 1, 2, 3]), {"func": "sum", "expected_groups": [1, 1]}, errors.ArgumentError, "twice"),
        ((X, [0, 1, 2, 3], [0] * 4), {"func": "sum", "expected_groups": 3}, errors.ArgumentError, "one entry for each"),
        ((X, [0, 1, 2, 3]), {"func": "sum", "closed": "both"}, errors.ArgumentError, "closed"),
        ((X, [0, 1, 2, 3]), {"func": "var", "dtype": int}, errors.ArgumentTypeError, "not an integer"),
        ((X, [0, 1, 2, 3]), {"func": "sum", "fill_value": [1]}, errors.ArgumentError, "1 dimensions"),
        ((X.astype("u8"), [0, 1, 2, 3]), {"func": "max", "fill_value": -1}, errors.ArgumentError, "no integer dtype"),
    ],
)
def test_wrong_arguments(arguments: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cf.groupby_reduce(*arguments, **options)


@pytest.mark.parametrize(
    ("shape", "by", "axis"),
    [
        ((0, 5), np.arange(5) % 2, 1),
        ((4, 5, 0), np.arange(5) % 2, 1),
        ((5, 0), np.arange(0), 1),
        ((0,), np.arange(0), 0),
    ],
)
@pytest.mark.parametrize("func", ["count", "nanfirst", "var", ["argmax", "mean"]], ids=str)
def test_arrays_without_elements(shape: Any, by: np.ndarray, axis: int, func: Any) -> None:
    found, _ = cf.groupby_reduce(np.zeros(shape), by, func=func, axis=axis, expected_groups=[0, 1], device="cpu")
    kept = [n for a, n in enumerate(shape) if a != axis]
    for one in found if isinstance(found, tuple) else [found]:
        assert one.shape == (*kept, 2)
        assert not one.size or (one[..., 0] == one[..., 1]).all() or np.isnan(one).all()
