"""Histograms, counts and selections are NumPy's, whatever the array, the bins, the cut and the device."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import dask.array as da
import h5py  # noqa: F401  # its import is not to be traced
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from support.budgets import traced
from support.devices import CHECKING, Place, everywhere, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.statistics.histogram import bincount, histogram
from chunkflow.api.statistics.topk import argtopk, topk
from chunkflow.engine.trial import COUNTS
from chunkflow.testing import CountingSource, filled

DTYPES = ("?", "i1", "u1", "i4", "u8", "f2", "f4", "f8", ">f4")


def noise(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Values many of which lie on edges."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.integers(0, 11, shape) + rng.integers(0, 2, shape) * rng.random(shape)).astype(dtype)


def both_same(got: Any, expected: Any) -> None:
    same(got[0], expected[0])
    same(got[1], expected[1])


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 20), min_size=1, max_size=3)))
    side = st.one_of(st.none(), st.just(-1), st.integers(1, 6))
    return {
        "x": noise(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99))),
        "chunks": draw(st.one_of(st.none(), st.integers(1, 9), st.tuples(*[side] * len(shape)))),
        "place": draw(st.sampled_from(CHECKING)),
    }


EDGES = st.lists(st.integers(-2, 22), min_size=2, max_size=12).map(lambda n: np.sort(np.array(n) / 2))
BINS = st.one_of(st.integers(1, 30), EDGES)
RANGES = st.sampled_from([None, (0, 10), (2.5, 7.25), (3, 3)])


@given(case=cases(), bins=BINS, range=RANGES, density=st.booleans())
@pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning")
def test_histogram_as_numpy(case: dict[str, Any], bins: Any, range: Any, density: bool) -> None:
    x = case["x"]
    got = histogram(
        x, bins, range, density=density, chunks=case["chunks"], budget=2_000_000, device=case["place"].device()
    )
    with np.errstate(all="ignore"):
        both_same(got, np.histogram(x, bins, range, density=density))
        lazy = np.histogram(cf.open(x), bins, range, density=density)
        both_same(cf.compute(lazy, budget=2_000_000, device=case["place"].device()), got)


@given(case=cases(), bins=BINS, range=RANGES, dtype=st.sampled_from(["i4", "f4", "f8", "c16"]))
@pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning")
def test_weights_as_numpy(case: dict[str, Any], bins: Any, range: Any, dtype: str) -> None:
    x = case["x"]
    weights = filled(x.shape, dtype)
    options = {"chunks": case["chunks"], "budget": 2_000_000, "device": case["place"].device()}
    both_same(histogram(x, bins, range, weights=weights, **options), np.histogram(x, bins, range, weights=weights))


@everywhere
def test_many_blocks(place: Place) -> None:
    x, weights = np.random.default_rng(0).standard_normal((2, 60, 70))
    options = {"chunks": (7, 11), "budget": place.budget(200_000), "device": place.device()}
    edges = np.array([-3, -1, 0, 0.25, 2])
    both_same(histogram(CountingSource(x), edges, **options), np.histogram(x, edges))
    both_same(histogram(x, 32, **options), np.histogram(x, 32))
    both_same(histogram(x.astype("f4"), 9, (-1, 1), **options), np.histogram(x.astype("f4"), 9, (-1, 1)))
    for got, expected in zip(
        histogram(x, 8, weights=weights, **options), np.histogram(x, 8, weights=weights), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    whole = (x * 10).astype("i4")
    same(bincount(abs(whole).ravel(), **(options | {"chunks": 50})), np.bincount(abs(whole).ravel()))
    same(topk(whole, 5, 0, **options), np.sort(whole, 0)[::-1][:5])
    same(topk(whole, -50, 1, **options), np.sort(whole, 1)[:, :50])
    same(argtopk(whole, 5, 0, **options), first_of_largest(whole, 0)[:5])
    same(argtopk(whole, -50, 1, **options), np.argsort(whole, 1, stable=True)[:, :50])


def first_of_largest(x: np.ndarray, axis: int) -> np.ndarray:
    """Places of elements from the largest on, of equal ones the first first."""
    found: np.ndarray = x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, stable=True), axis)
    return found


@given(
    case=cases(), minlength=st.integers(0, 30), dtype=st.sampled_from(["?", "u1", "i4", "i8"]), weighted=st.booleans()
)
def test_bincount_as_numpy(case: dict[str, Any], minlength: int, dtype: str, weighted: bool) -> None:
    x = case["x"].ravel().astype(dtype)
    weights = filled(x.shape, "f4") if weighted else None
    chunks = case["chunks"] if isinstance(case["chunks"], int) else None
    got = bincount(x, weights, minlength, chunks=chunks, budget=2_000_000, device=case["place"].device())
    same(got, np.bincount(x, weights, minlength))


@pytest.mark.parametrize(("dtype", "reads"), [("u1", 1), ("u2", 1), ("?", 1), ("u4", 2), ("i2", 2)])
@pytest.mark.parametrize("minlength", [0, 40, 300])
def test_integers_of_few_bits_are_read_once(dtype: str, reads: int, minlength: int) -> None:
    x = (np.arange(2_000_000) % (2 if dtype == "?" else 97)).astype(dtype)
    same(
        bincount(source := CountingSource(x), minlength=minlength, budget="4MB", device="cpu"),
        np.bincount(x, None, minlength),
    )
    assert reads <= source.bytes_read / x.nbytes < reads + 0.5  # trials included


@given(case=cases(), k=st.integers(-25, 25).filter(bool), data=st.data())
def test_topk_as_dask(case: dict[str, Any], k: int, data: Any) -> None:
    x = case["x"]
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    got = topk(x, k, axis, chunks=case["chunks"], budget=2_000_000, device=case["place"].device())
    ordered = np.sort(x, axis)
    places = np.argsort(x, axis, stable=True)
    if k > 0:
        ordered, places = np.flip(ordered, axis), first_of_largest(x, axis)
    expected = np.take(ordered, np.arange(min(abs(k), x.shape[axis])), axis)
    assert got.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, expected)
    places = np.take(places, np.arange(min(abs(k), x.shape[axis])), axis)
    same(argtopk(x, k, axis, chunks=case["chunks"], budget=2_000_000, device=case["place"].device()), places)
    if x.size and not x.dtype.isnative:  # dask is the reference of what the arguments mean
        same(np.asarray(da.topk(da.from_array(x.astype("f4")), k, axis)), expected.astype("f4"))


@everywhere
def test_special_values(place: Place) -> None:
    x = np.array([1.0, np.nan, -0.0, np.inf, 2.0, -np.inf, 0.0])
    options = {"chunks": 2, "budget": place.budget(100_000), "device": place.device()}
    for edges in ([-1, 0, 1, 2], [-np.inf, 0, np.inf]):
        both_same(histogram(x, edges, **options), np.histogram(x, edges))
        weights = np.arange(7.0)
        both_same(histogram(x, edges, weights=weights, **options), np.histogram(x, edges, weights=weights))
    both_same(histogram(x, 3, (0, 2), **options), np.histogram(x, 3, (0, 2)))
    whole = np.arange(-3, 6)
    both_same(histogram(whole, [-2, 0, 2.5], **options), np.histogram(whole, [-2, 0, 2.5]))
    for bad in (x, x[~np.isnan(x)]):
        with pytest.raises(errors.ArgumentError, match="not finite"):
            histogram(bad, 3, **options)
    np.testing.assert_array_equal(topk(x, 3, **options), [np.nan, np.inf, 2])
    np.testing.assert_array_equal(topk(x, -2, **options), [-np.inf, 0])
    x = np.array([np.nan, 1, np.nan, -0.0, np.nan, 0.0])
    np.testing.assert_array_equal(argtopk(x, 4, **options), [0, 2, 4, 1])
    np.testing.assert_array_equal(argtopk(x, -4, **options), [3, 5, 1, 0])


def test_more_than_a_trial_has() -> None:
    x = np.random.default_rng(3).permutation(40_000).reshape(2, -1)
    same(topk(x, 9000, 1, budget="2MB", device="cpu"), np.sort(x, 1)[:, :-9001:-1])
    same(argtopk(x, 9000, 1, budget="6MB", device="cpu"), np.argsort(x, 1)[:, :-9001:-1])


def test_arrays_without_elements() -> None:
    both_same(histogram(np.zeros((0, 3)), 4, device="cpu"), np.histogram(np.zeros((0, 3)), 4))
    both_same(histogram(np.zeros(0), [1, 2, 3], device="cpu"), np.histogram(np.zeros(0), [1, 2, 3]))
    same(bincount(np.zeros(0, "i4"), device="cpu"), np.bincount(np.zeros(0, "i4")))
    same(bincount(np.zeros(0, "i4"), minlength=3, device="cpu"), np.bincount(np.zeros(0, "i4"), minlength=3))
    same(topk(np.zeros((0, 3)), 2, 0, device="cpu"), np.zeros((0, 3)))
    same(topk(np.zeros((0, 3)), 2, 1, device="cpu"), np.zeros((0, 2)))


@everywhere
def test_from_zarr_to_a_path(place: Place, tmp_path: Path) -> None:
    x = filled((40, 33), "i4")
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(7, 10), dtype="i4")[...] = x
    options = {"budget": place.budget(300_000), "device": place.device()}
    hist, edges = histogram(tmp_path / "x.zarr", 20, out=tmp_path / "h.npy", **options)
    both_same((np.asarray(hist), edges), np.histogram(x, 20))
    same(topk(tmp_path / "x.zarr", 4, 1, out=tmp_path / "t.zarr", **options)[...], np.sort(x, 1)[:, :-5:-1])
    into = np.zeros(20, "f8")
    assert histogram(x, 20, density=True, out=into, **options)[0] is into
    same(into, np.histogram(x, 20, density=True)[0])


class Untouchable:
    """An array that must not be read."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


X, LINE, COMPLEX = Untouchable("f8", 4, 5), Untouchable("i4", 20), Untouchable("c16", 4)


@pytest.mark.parametrize(
    ("count", "arguments", "options", "error", "words"),
    [
        (histogram, (X, "stone"), {}, errors.ArgumentError, "'stone'.*'scott'"),
        (histogram, (X, 0), {}, errors.ArgumentError, "bins=0"),
        (histogram, (X, 2.5), {}, errors.ArgumentTypeError, "bins=2.5"),
        (histogram, (X, [1, 3, 2]), {}, errors.ArgumentError, "monotonic"),
        (histogram, (X, [[1, 3]]), {}, errors.ArgumentError, "1d"),
        (histogram, (X, 3, (2, 1)), {}, errors.ArgumentError, r"range=\(2, 1\)"),
        (histogram, (X, 3, (np.nan, 1)), {}, errors.ArgumentError, "finite"),
        (histogram, (X, 1, (-1.7e308, 1.7e308)), {}, errors.ArgumentError, "wider than float64 holds"),
        (histogram, (X,), {"weights": np.ones(4)}, errors.ArgumentError, r"\(4,\) and x has \(4, 5\)"),
        (histogram, (X,), {"chunks": (2, 2, 2)}, errors.ArgumentError, "3 entries"),
        (histogram, (X,), {"out": np.zeros(11, "i8")}, errors.ArgumentError, "11"),
        (histogram, (COMPLEX,), {}, errors.ArgumentTypeError, "complex"),
        (bincount, (X,), {}, errors.ArgumentError, r"\(4, 5\)"),
        (bincount, (Untouchable("f8", 5),), {}, errors.ArgumentTypeError, "float64"),
        (bincount, (LINE,), {"minlength": -1}, errors.ArgumentError, "-1"),
        (bincount, (LINE,), {"minlength": 1.5}, errors.ArgumentTypeError, "1.5"),
        (bincount, (LINE, np.ones(4)), {}, errors.ArgumentError, r"\(4,\)"),
        (bincount, (LINE, np.ones(20, "c8")), {}, errors.ArgumentTypeError, "complex64"),
        (topk, (X, 0), {}, errors.ArgumentError, "k=0"),
        (topk, (X, 1.5), {}, errors.ArgumentTypeError, "1.5"),
        (topk, (X, 2, 2), {}, errors.ArgumentError, "axis=2"),
        (topk, (X, 2, None), {}, errors.ArgumentTypeError, "None"),
        (argtopk, (X, 0), {}, errors.ArgumentError, "k=0"),
        (argtopk, (Untouchable("c16", 4), 1), {}, errors.ArgumentTypeError, "real part"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(
    count: Any, arguments: Any, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        count(*arguments, device="cpu", **options)


def test_a_negative_integer_is_named() -> None:
    with pytest.raises(errors.ArgumentError, match="holds -7"):
        bincount(np.array([3, -7, 2]), device="cpu")


def test_it_makes_several_passes_and_says_so() -> None:
    with pytest.raises(errors.ArgumentTypeError, match="several passes"):
        cf.explain(histogram, np.ones(4))
    assert cf.explain(topk, np.ones(4), k=2, device="cpu").op.extents == (4,)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: cf.bincount(np.array([2**62]), device="cpu"),
        lambda: cf.bincount(np.array([2**64 - 1], "u8"), device="cpu"),
        lambda: cf.bincount(np.array([1]), minlength=2**80, device="cpu"),
        lambda: cf.histogram(np.ones(3), bins=10**15, device="cpu"),
    ],
)
def test_more_counts_than_memory_holds_are_refused(ask: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="counts of 8 bytes"):
        ask()


@everywhere
@pytest.mark.parametrize("dtype", ["u8", "i8", "f8", "f4"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("most", [2**24, 2**53, 2**62])
def test_the_greatest_of_large_numbers_is_in_the_last_bin(place: Place, dtype: str, sign: int, most: int) -> None:
    x = np.random.default_rng(0).integers(0, most, 3000)
    x = (x if dtype == "u8" else x * sign).astype(dtype)
    for bins in (1, 17):
        counts, _ = histogram(x, bins, budget=place.budget(60_000), device=place.device())
        same(place.host(counts), np.histogram(x, bins)[0])
        assert counts.sum() == x.size
        lazy = cf.compute(np.histogram(cf.open(x), bins), budget=place.budget(60_000), device=place.device())
        both_same(lazy, np.histogram(x, bins))


def test_integers_of_an_expression_that_has_passes_of_its_own_are_counted() -> None:
    for x in (np.zeros((3, 4), "i8"), np.arange(12).reshape(3, 4)):
        np.testing.assert_array_equal(cf.bincount(cf.ptp(cf.open(x), axis=0), device="cpu"), np.bincount(np.ptp(x, 0)))


def test_bins_of_an_expression_take_two_passes_that_others_share() -> None:
    array = filled((300, 200), "f4")
    x = cf.open(source := CountingSource(array))
    counts, edges = np.histogram(x, 5)
    assert (counts.shape, counts.dtype, edges.shape, edges.dtype) == ((5,), np.intp, (6,), np.float32)
    found = cf.compute(counts, edges, x.sum(), device="cpu", budget="200kB")
    both_same(found, np.histogram(array, 5))
    assert source.bytes_read < 2.5 * array.nbytes  # trials included


def test_what_is_refused_of_an_expression() -> None:
    x = cf.open(np.array([1.0, np.nan]))
    for found in np.histogram(x, 3):
        with pytest.raises(errors.ArgumentError, match=r"between nan and nan.*give range="):
            found.compute(device="cpu")
    with pytest.raises(errors.ArgumentError, match=r"bins='fd'.*not finite; give range="):
        np.histogram(x, "fd")
    with pytest.raises(errors.ArgumentError, match="was given budget"):
        cf.histogram(x, 3, budget="1MB")
    with pytest.raises(errors.ArgumentError, match="host memory"):
        np.histogram(x, 1 << 62)


@pytest.mark.parametrize("out", ["y.npy", "y.zarr", "y.h5:/y"])
def test_counts_for_a_file_take_no_more_memory_than_the_budget(out: str, tmp_path: Path) -> None:
    """These are 24 MB of counts, nearly all of which are zeros."""
    x = np.append(np.arange(5000), [3_000_000, 1_500_000, 1_500_000])
    with traced() as peak:
        bincount(x, out=tmp_path / out, budget="4MB", device="cpu", checksum=False)
        assert peak() <= 4_000_000
    np.testing.assert_array_equal(cf.open(tmp_path / out).compute(), np.bincount(x))
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_counts_that_find_no_room_are_a_write_error(tmp_path: Path) -> None:
    x = np.append(np.arange(5000), [3_000_000])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(errors.WriteError, match=r"counts of .*y\.npy"):
            bincount(x, out=tmp_path / "y.npy", budget="4MB", device="cpu")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("side", [COUNTS // 2, 2])
def test_lengths_that_coincide_with_the_counts_of_a_trial(side: int) -> None:
    """Of the counts beside it few are tried, in the place of many: as many as the other result has elements."""
    x = np.random.default_rng(0).random((6, side))
    e, bins = cf.open(x), (5 * COUNTS // 2, 3, 5)
    *found, most = cf.compute(*[np.histogram(e, n, (0, 1))[0] for n in bins], e.max(0), budget="1GB", device="cpu")
    for got, n in zip(found, bins, strict=True):
        np.testing.assert_array_equal(got, np.histogram(x, n, (0, 1))[0])
    np.testing.assert_array_equal(most, x.max(0))
