"""Arrays of dask's beside expressions: no mask is lost, times are as they were said to be, the rest is as NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ArgumentTypeError, ReadError

da = pytest.importorskip("dask.array")

CPU = {"device": "cpu"}
V = np.arange(6.0)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def masked(block: np.ndarray) -> np.ndarray:
    return np.ma.array(block, mask=np.arange(len(block)) % 2 == 0)


def plain_or_masked() -> dict[str, Any]:
    plain = da.from_array(LABELS, chunks=3)
    return {
        "said": da.from_array(np.ma.array(LABELS, mask=[0, 0, 0, 1, 1, 1]), chunks=3),
        "not said": plain.map_blocks(masked, dtype=plain.dtype, meta=np.empty(0, plain.dtype)),
    }


def labelled(array: Any) -> Any:
    return pytest.importorskip("xarray").DataArray(array, dims="x")


SECOND: dict[str, Callable[[Any, Any], Any]] = {
    "groupby_reduce": lambda x, d: cf.groupby_reduce(V, d, func="sum", **CPU),
    "groupby_reduce, lazy": lambda x, d: cf.groupby_reduce(x, d, func="sum")[0],
    "isin": lambda x, d: np.isin(x, d),
    "take": lambda x, d: np.take(x, d),
    "interp": lambda x, d: np.interp(x, np.arange(6), d),
    "convolve": lambda x, d: np.convolve(x, d),
    "correlate": lambda x, d: np.correlate(x, d),
    "insert": lambda x, d: np.insert(x, 0, d),
    "delete": lambda x, d: np.delete(x, d),
    "repeat": lambda x, d: np.repeat(x, d),
    "compress": lambda x, d: np.compress(d, x),
    "searchsorted": lambda x, d: np.searchsorted(d, x),
    "cov": lambda x, d: np.cov(x, fweights=d),
    "polyfit": lambda x, d: np.polyfit(np.arange(6), x, 1, w=d),
    "trapezoid": lambda x, d: np.trapezoid(x, d),
    "gradient": lambda x, d: np.gradient(x, d + 1),
    "put": lambda x, d: cf.put(x, [0], d[:1]),
    "setdiff1d": lambda x, d: np.setdiff1d(x, d),
    "intersect1d": lambda x, d: np.intersect1d(d, x),
    "union1d": lambda x, d: np.union1d(x, d),
    "solve": lambda x, d: np.linalg.solve(cf.open(np.eye(6)), d),
    "kron": lambda x, d: np.kron(x, d),
    "outer": lambda x, d: np.outer(x, d),
    "lexsort": lambda x, d: np.lexsort((d, x)),
    "histogram": lambda x, d: np.histogram(x, bins=5, range=(0, 5), weights=d)[0],
    "average": lambda x, d: np.average(x, weights=d),
    "append": lambda x, d: np.append(x, d),
    "piecewise": lambda x, d: np.piecewise(x, [d > 1], [1, 0]),
}


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("kind", ["said", "not said"])
def test_the_mask_of_a_second_array_is_never_lost(name: str, kind: str) -> None:
    with pytest.raises((ArgumentTypeError, ReadError), match="mask"):
        np.asarray(SECOND[name](cf.open(V), plain_or_masked()[kind]))


@pytest.mark.parametrize("name", ["groupby_reduce", "isin", "take", "repeat", "searchsorted", "convolve", "insert"])
def test_nor_that_of_a_labelled_one(name: str) -> None:
    """xarray makes NaN of masked elements, but not of those that the array does not say."""
    with pytest.raises((ArgumentTypeError, ReadError), match="mask"):
        np.asarray(SECOND[name](cf.open(V), labelled(plain_or_masked()["not said"])))


@pytest.mark.parametrize("name", sorted(SECOND.keys() - {"groupby_reduce", "groupby_reduce, lazy", "put"}))
def test_a_second_array_of_dasks_is_as_one_of_numpys(name: str) -> None:
    if name == "solve":
        expected: Any = LABELS
    else:
        expected = SECOND[name](V, LABELS)
    found = SECOND[name](cf.open(V), da.from_array(LABELS, chunks=3))
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-12)


def test_levels_of_quantiles() -> None:
    q = da.from_array(np.array([0.1, 0.5]), chunks=1)
    np.testing.assert_array_equal(cf.quantile(V, q, **CPU), np.quantile(V, [0.1, 0.5]))
    np.testing.assert_array_equal(np.asarray(np.percentile(cf.open(V), q * 100)), np.percentile(V, [10, 50]))


@pytest.mark.parametrize("masked_one", [np.ma.asarray, lambda w: da.from_array(w, chunks=2)])
def test_masked_weights_are_left_out_of_what_has_no_mask(masked_one: Callable[[Any], Any]) -> None:
    weights = np.ma.array(LABELS.astype("f8"), mask=[0, 0, 0, 1, 1, 1])
    expected = np.ma.average(V, weights=weights)
    given = cf.open(masked_one(weights))
    for found in (np.average(cf.open(V), weights=given), cf.average(V, weights=given)):
        assert float(found.compute(**CPU)) == expected


# -- Times ------------------------------------------------------------------------------------------------------------

TIMES = np.array(["2020-01-01", "NaT", "2021-01-01"], "M8[s]")


class Sliced:
    """An object with a shape, a dtype and slices."""

    def __init__(self, array: np.ndarray, given: Callable[[np.ndarray], Any]) -> None:
        self.array, self.given, self.shape, self.dtype = array, given, array.shape, array.dtype

    def __getitem__(self, region: Any) -> Any:
        return self.given(self.array[region])


def by_dask(array: np.ndarray, given: Callable[[np.ndarray], Any]) -> Any:
    return da.from_array(array, chunks=2).map_blocks(given, dtype=array.dtype, meta=array[:0])


@pytest.mark.parametrize("made", [Sliced, by_dask])
@pytest.mark.parametrize("dtype", ["M8[s]", ">M8[s]", "m8[s]", ">m8[s]"])
def test_times_are_right_in_any_byte_order(made: Callable[..., Any], dtype: str) -> None:
    array = (TIMES if "M" in dtype else TIMES.view("m8[s]")).astype(dtype)
    for given in (lambda block: block, lambda block: block.astype(block.dtype.newbyteorder("="))):
        found = cf.open(made(array, given))
        np.testing.assert_array_equal(found.compute(**CPU), array)
        assert np.nanmax(found).compute(**CPU) == np.nanmax(array)


@pytest.mark.parametrize("made", [Sliced, by_dask])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda block: block.astype("M8[ms]"), "dtype datetime64.ms., although its dtype is datetime64.s."),
        (lambda block: block.astype("M8[D]"), "although its dtype"),
        (lambda block: block.view("m8[s]"), "although its dtype"),
        (lambda block: block.astype("f8"), "although its dtype"),
        (masked, "mask would be lost"),
    ],
    ids=["finer", "coarser", "spans", "floats", "masked"],
)
def test_times_that_are_not_what_they_were_said_to_be(
    made: Callable[..., Any], given: Callable[[np.ndarray], Any], said: str
) -> None:
    with pytest.raises(ReadError, match=said):
        cf.open(made(TIMES, given)).compute(**CPU)


def test_masked_times_of_dasks_are_refused_in_words() -> None:
    array = da.from_array(np.ma.array(TIMES, mask=[0, 1, 0]), chunks=2)
    with pytest.raises(ArgumentTypeError, match="a masked array of times: give its elements"):
        cf.open(array)
