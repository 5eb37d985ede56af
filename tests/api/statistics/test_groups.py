"""Statistics by label are SciPy's and NumPy's, whatever the labels, the cut and the device, from one pass."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from support.devices import CHECKING, Place, everywhere, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.statistics import counted
from chunkflow.api.statistics.groups import LabelStatistics, label_statistics
from chunkflow.kernels.statistics import groups as ops
from chunkflow.testing import CountingSource

VALUES = ("?", "i1", "u1", "i4", "u8", "f2", "f4", "f8", ">f4")
LABELS = ("?", "i1", "u1", "u2", "i4", ">i4", "i8", "u8")


def by_hand(values: np.ndarray, labels: np.ndarray, index: np.ndarray, ddof: float = 0) -> dict[str, np.ndarray]:
    """Each statistic of each label on its own."""
    native = values.dtype.newbyteorder("=")
    wide = values.astype("f8")
    made: dict[str, list[Any]] = {name: [] for name in ops.STATISTICS}
    with np.errstate(all="ignore"):
        for label in index.tolist():
            where = labels == label
            chosen, exact = wide[where], values[where].astype(native)
            n = chosen.size
            made["count"].append(n)
            made["sum"].append(exact.sum(dtype=None if native.kind in "biu" else "f8"))
            made["mean"].append(chosen.sum() / np.float64(n))
            made["var"].append(((chosen - chosen.mean()) ** 2).sum() / max(n - ddof, 0) if n else np.nan)
            made["std"].append(np.sqrt(made["var"][-1]))
            made["min"].append(exact.min() if n else native.type(np.nan if native.kind == "f" else 0))
            made["max"].append(exact.max() if n else native.type(np.nan if native.kind == "f" else 0))
            places = np.nonzero(np.atleast_1d(where))[: values.ndim]
            made["center_of_mass"].append([(chosen * p).sum() / chosen.sum() for p in places])
            made["bounding_box"].append([(p.min(), p.max() + 1) if n else (0, 0) for p in places])
    sums = "u8" if native.kind == "u" else "i8" if native.kind in "bi" else "f8"
    dtypes = {"count": "i8", "sum": sums, "min": native, "max": native, "bounding_box": "i8"}
    shapes = {"center_of_mass": (values.ndim,), "bounding_box": (values.ndim, 2)}
    return {
        name: np.array(found, dtypes.get(name, "f8")).reshape(len(index), *shapes.get(name, ()))
        for name, found in made.items()
    }


def alike(got: LabelStatistics, expected: dict[str, np.ndarray], scale: float = 1.0) -> None:
    """Equal where no rounding is, else close."""
    for name, found in expected.items():
        assert got[name].dtype == found.dtype, name
        if name in ("count", "min", "max", "bounding_box") or found.dtype.kind != "f":
            np.testing.assert_array_equal(got[name], found, name)
        else:
            np.testing.assert_allclose(got[name], found, rtol=1e-9, atol=1e-9 * scale, err_msg=name)
        assert got[name].shape == found.shape


def labelled(shape: tuple[int, ...], dtype: str, kind: str, seed: int) -> np.ndarray:
    """Labels in no order, or in runs along the last axis, or far apart, or one alone."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 9, shape)
    if kind == "runs" and shape:
        found = np.sort(found, axis=-1)
    if kind == "one":
        found[...] = 3
    if kind == "sparse" and np.dtype(dtype).kind != "b":
        info = np.iinfo(dtype)
        names = np.array([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 100, 99], np.dtype(dtype))
        return names[found]
    found = found - 4 if np.dtype(dtype).kind == "i" else found
    return np.asarray(found).astype(dtype)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 12), min_size=0, max_size=3)))
    seed = draw(st.integers(0, 99))
    dtype = np.dtype(draw(st.sampled_from(VALUES)))
    values = np.asarray(np.random.default_rng(seed).integers(0, 100, shape) + (0.25 if dtype.kind == "f" else 0))
    side = st.one_of(st.none(), st.just(-1), st.integers(1, 6))
    kind = draw(st.sampled_from(["noise", "runs", "sparse", "one"]))
    return {
        "values": values.astype(dtype),
        "labels": labelled(shape, draw(st.sampled_from(LABELS)), kind, seed),
        "chunks": draw(st.one_of(st.none(), st.integers(1, 9), st.tuples(*[side] * len(shape)))),
        "budget": draw(st.sampled_from([300_000, 2_000_000])),
        "place": draw(st.sampled_from(CHECKING)),
    }


@given(case=cases(), ddof=st.sampled_from([0, 1, 2.5]))
def test_as_by_hand(case: dict[str, Any], ddof: float) -> None:
    values, labels = case["values"], case["labels"]
    options = {"chunks": case["chunks"], "budget": case["budget"], "device": case["place"].device()}
    got = label_statistics(values, labels, ddof=ddof, **options)
    index = np.unique(labels)
    same(got.labels, index.astype(index.dtype.newbyteorder("=")))
    alike(got, by_hand(values, labels, index, ddof))


NAMES = st.one_of(st.integers(-6, 12), st.sampled_from([-(2**63), 2**62, 255, 100]))


@given(case=cases(), index=st.lists(NAMES, max_size=12), data=st.data())
def test_only_what_is_asked_for(case: dict[str, Any], index: list[int], data: Any) -> None:
    values, labels = case["values"], case["labels"]
    wanted = data.draw(st.lists(st.sampled_from(ops.STATISTICS), min_size=1, unique=True))
    options = {"chunks": case["chunks"], "budget": case["budget"], "device": case["place"].device()}
    got = label_statistics(values, labels, wanted, index=index, **options)
    names = np.array(index, "i8")
    same(got.labels, names)
    assert set(dict(got)) == {"labels", *wanted}
    expected = by_hand(values, labels, names)
    alike(got, {name: expected[name] for name in wanted})
    background = data.draw(st.one_of(NAMES, st.sampled_from(labels.ravel().tolist() or [0])))
    without = label_statistics(values, labels, wanted, background=background, **options)
    names = np.unique(labels[labels != background])
    same(without.labels, names.astype(names.dtype.newbyteorder("=")))
    expected = by_hand(values, labels, names)
    alike(without, {name: expected[name] for name in wanted})


@everywhere
def test_as_scipys(place: Place) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((20, 30, 40))
    labels = (np.indices(values.shape) // 7).sum(axis=0) * rng.integers(1, 3, values.shape)
    source, lsource = CountingSource(values), CountingSource(labels)
    options = {"chunks": (7, 11, 13), "budget": place.budget(4_000_000), "device": place.device()}
    got = label_statistics(source, lsource, **options)
    trial = values.nbytes if place.is_gpu else values.nbytes // 2
    assert values.nbytes <= source.bytes_read <= values.nbytes + trial  # each is read once, and a corner to try
    assert labels.nbytes <= lsource.bytes_read <= labels.nbytes + trial
    index = np.unique(labels)
    same(got.labels, index)
    with np.errstate(invalid="ignore"):  # of labels between those that there are
        variance = np.asarray(ndimage.variance(values, labels, index))
    alike(
        got,
        {
            "sum": ndimage.sum_labels(values, labels, index),
            "mean": np.asarray(ndimage.mean(values, labels, index)),
            "var": variance,
            "std": np.sqrt(variance),
            "min": np.asarray(ndimage.minimum(values, labels, index)),
            "max": np.asarray(ndimage.maximum(values, labels, index)),
            "center_of_mass": np.array(ndimage.center_of_mass(values, labels, index)),
        },
    )
    assert got.bounding_box is not None
    boxes = label_statistics(values, labels, "bounding_box", background=0, **options)
    slices = [box for box in ndimage.find_objects(labels) if box is not None]
    same(boxes["bounding_box"], np.array([[(s.start, s.stop) for s in box] for box in slices]))
    counts = label_statistics(values, labels, ["count"], **options)
    same(counts["count"], np.unique(labels, return_counts=True)[1])


def test_counts_and_boxes_read_no_values() -> None:
    values, labels = Untouchable("f4", 6, 8), CountingSource(np.arange(48).reshape(6, 8) % 5)
    got = label_statistics(values, labels, ["count", "bounding_box"], device="cpu")
    assert got["count"].tolist() == [10, 10, 10, 9, 9]
    assert labels.bytes_read <= 2 * 48 * 8


@everywhere
def test_special_values(place: Place) -> None:
    values = np.array([1, np.nan, 3, np.inf, -np.inf, 5, -0.0, 7], "f4")
    labels = np.array([1, 1, 2, 2, 3, 4, 4, 5])
    options = {"chunks": 1, "budget": place.budget(1_000_000), "device": place.device()}
    got = label_statistics(values, labels, **options)
    alike(got, by_hand(values, labels, np.arange(1, 6)))
    large = 1e9 + np.array([1e-3, 3e-3, 7e-3, 2e-3] * 50)  # the digits of the variance are far behind those of the mean
    got = label_statistics(large, np.arange(200) % 3, ["var"], **(options | {"chunks": 7}))
    expected = [large[k::3].var(dtype="g") for k in range(3)]
    np.testing.assert_allclose(got["var"], np.array(expected, "f8"), rtol=1e-9)
    whole = np.array([2**63 - 1, 1, 2**64 - 1, 5], "u8")
    same(label_statistics(whole, np.array([0, 0, 1, 1]), "sum", **options).sum, np.array([2**63, 4], "u8"))


@everywhere
def test_from_stores_and_many_labels(place: Place, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    values, labels = rng.integers(-99, 99, (64, 50)), rng.permutation(3200).reshape(64, 50) * 10**12
    np.save(tmp_path / "v.npy", np.asfortranarray(values))
    zarr.create_array(tmp_path / "l.zarr", shape=labels.shape, chunks=(16, 20), dtype="i8")[...] = labels
    options = {"budget": place.budget(40_000_000), "device": place.device()}
    got = label_statistics(tmp_path / "v.npy", tmp_path / "l.zarr", chunks=(16, 20), **options)
    alike(got, by_hand(values, labels, np.unique(labels)))
    listed = label_statistics(values, labels, "sum", index=[5 * 10**12, 1, 0], **options)
    assert listed["sum"].tolist() == [values[labels == 5 * 10**12][0], 0, values[labels == 0][0]]


@pytest.mark.parametrize("index", [None, range(20_000)])
def test_more_labels_than_the_budget_holds(index: Any) -> None:
    labels = np.arange(20_000)
    with pytest.raises(errors.BudgetError, match="raise budget="):
        label_statistics(labels, labels, index=index, budget=1_000_000, device="cpu", chunks=500)
    few = label_statistics(labels, labels, "count", budget=1_000_000, device="cpu", index=range(100))
    assert few["count"].sum() == 100


@pytest.mark.parametrize("number", [1, 1000, 20_000])
def test_memory_is_within_the_budget(number: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "v.npy", rng.random((200, 1000, 10)))
    np.save(tmp_path / "l.npy", rng.integers(0, number, (200, 1000, 10)) * 10**6)
    arguments = (tmp_path / "v.npy", tmp_path / "l.npy", ["count", "mean", "var", "min", "bounding_box"])
    label_statistics(*arguments, device="cpu", index=[0])  # imports
    budget = 100_000_000
    tracemalloc.start()
    try:
        got = label_statistics(*arguments, device="cpu", budget=budget)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert got["count"].sum() == 2_000_000
    assert peak <= budget


class Untouchable:
    """An array that must not be read."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


V, L = Untouchable("f8", 4, 5), Untouchable("i4", 4, 5)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((V, Untouchable("i4", 4)), {}, errors.ArgumentError, r"\(4,\) and values have \(4, 5\)"),
        ((V, Untouchable("f4", 4, 5)), {}, errors.ArgumentTypeError, "float32"),
        ((Untouchable("c8", 4, 5), L), {}, errors.ArgumentTypeError, "complex64"),
        ((V, L, "median"), {}, errors.ArgumentError, "'median' is none of count, sum"),
        ((V, L, ["sum", "mode"]), {}, errors.ArgumentError, "'mode'"),
        ((V, L, []), {}, errors.ArgumentError, "empty"),
        ((V, L, 3), {}, errors.ArgumentTypeError, "not 3"),
        ((V, L), {"ddof": -1}, errors.ArgumentError, "ddof=-1 must be at least 0"),
        ((V, L), {"ddof": "1"}, errors.ArgumentTypeError, "'1'"),
        ((V, L), {"ddof": np.nan}, errors.ArgumentError, "finite"),
        ((V, L), {"index": cf.open(np.arange(3))}, errors.UnsupportedError, r"index= is an expression.*compute\(\)"),
        ((V, L), {"index": [0.5]}, errors.ArgumentTypeError, "float64"),
        ((V, L), {"index": [[1], [2]]}, errors.ArgumentError, "2 dimensions"),
        ((V, L), {"index": [1, 2], "background": 2}, errors.ArgumentError, "background=2"),
        ((V, L), {"background": 0.0}, errors.ArgumentTypeError, "0.0"),
        ((V, L), {"chunks": (2, 2, 2)}, errors.ArgumentError, "3 entries"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(
    arguments: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        label_statistics(*arguments, device="cpu", **options)


def test_what_was_not_asked_for_is_not_there() -> None:
    got = cf.label_statistics(np.ones(3), np.zeros(3, "?"), "sum", device="cpu")
    same(got.labels, np.array([False]))
    assert got.mean is None
    with pytest.raises(KeyError, match="'mean' is none of labels, sum"):
        got["mean"]


def test_labels_beyond_those_with_a_sign_are_asked_for() -> None:
    labels = np.array([1, 2**64 - 1, 2**64 - 1, 5], "u8")
    found = cf.label_statistics(np.arange(4), labels, "sum", index=[2**64 - 1, 5], device="cpu")
    np.testing.assert_array_equal(found.sum, [3, 3])
    with pytest.raises(errors.ArgumentTypeError, match="integers that one dtype holds"):
        cf.label_statistics(np.arange(4), labels, index=[1.0, 5], device="cpu")
    with pytest.raises(errors.ArgumentError, match="no array"):
        cf.label_statistics(np.arange(4), labels, index=[-1, 2**64 - 1], device="cpu")


@pytest.mark.parametrize("what", ["labels", "values"])
@pytest.mark.parametrize("read", [True, False])
def test_a_budget_for_those_that_there_are_is_named_first(
    what: str, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for a label of each element took gigabytes where megabytes were enough. Large arrays are not counted."""
    monkeypatch.setattr(counted, "MOST_READ", 4 << 30 if read else 0)
    keys = np.random.default_rng(0).integers(0, 9000, (40, 80, 80)).astype("i4")

    def call(budget: Any) -> np.ndarray:
        if what == "values":
            return cf.unique(keys, budget=budget, device="cpu")
        return cf.label_statistics(np.ones(keys.shape, "f4"), keys, budget=budget, device="cpu").labels

    with pytest.raises(errors.BudgetError) as caught:
        call("1MB" if what == "labels" else "300kB")
    error = caught.value
    found = re.search(
        r"(\d+)(?: labels)? or more\b.* each\)?: raise budget= to (\d+), which has room for (.*) "
        r"\((\d+), which has room for as many as there may be\)",
        str(error),
    )
    assert found is not None
    assert (error.likely, error.smallest) == (int(found[2]), int(found[4]))
    assert int(found[2]) < 1e8 < int(found[4])
    assert "blocks read" not in str(error)
    if read:
        assert re.fullmatch(r"the (8\d\d\d|9\d\d\d) that there are, about", found[3])
        np.testing.assert_array_equal(call(error.likely), np.arange(9000))
    else:
        assert found[3] == "twice as many"


@pytest.mark.filterwarnings("ignore::chunkflow.errors.SlowRunWarning")
def test_a_budget_in_which_a_call_begins_is_named_beside_one_that_always_does(tmp_path: Path) -> None:
    """Where not even a block fits: gigabytes for a label of each element were all that was named."""
    labels = np.random.default_rng(0).integers(0, 50, (32, 128, 128)).astype("i4")
    zarr.create_array(tmp_path / "l.zarr", data=labels, chunks=(8, 64, 64))
    with pytest.raises(errors.BudgetError, match=r"to \d+, in which it begins and tells more, or to at") as caught:
        cf.label_statistics(tmp_path / "l.zarr", tmp_path / "l.zarr", "count", budget="250kB", device="cpu")
    budget = caught.value.likely
    assert budget is not None
    assert caught.value.smallest is not None
    assert budget < caught.value.smallest / 16
    for _ in range(3):
        try:
            found = cf.label_statistics(tmp_path / "l.zarr", tmp_path / "l.zarr", "count", budget=budget, device="cpu")
            break
        except errors.BudgetError as error:
            budget = error.likely
    np.testing.assert_array_equal(found.labels, np.arange(50))
