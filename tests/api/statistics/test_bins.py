"""Rules choose the bins that NumPy's do, whatever the array, the cut and the device."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.devices import CHECKING, CPU, Place, everywhere, same

import chunkflow as cf
from chunkflow import errors
from chunkflow.api.statistics.bins import MOMENTS, RULES
from chunkflow.api.statistics.histogram import histogram
from chunkflow.api.statistics.unique import unique
from chunkflow.testing import CountingSource

EXACT = tuple(rule for rule in RULES if rule not in MOMENTS)
DTYPES = ("?", "i1", "u1", "i4", "i8", "u8", "f4", "f8", ">f4")


def numpys(x: np.ndarray, rule: str, range: Any = None) -> Any:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bools are counted as 0 and 1
        return np.histogram(x.astype(x.dtype.newbyteorder("=")), rule, range)


def both_same(got: Any, expected: Any) -> None:
    same(got[1], expected[1])
    same(got[0], expected[0])


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = tuple(draw(st.lists(st.integers(0, 20), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(["normal", "skewed", "few", "constant"]))
    x = {
        "normal": 20 + 8 * rng.standard_normal(shape),
        "skewed": rng.exponential(9, shape),
        "few": rng.integers(0, 4, shape) * 1.5,
        "constant": np.full(shape, 7.25),
    }[kind]
    return {
        "x": np.asarray(x).astype(draw(st.sampled_from(DTYPES))),
        "chunks": draw(st.one_of(st.none(), st.integers(1, 9))),
        "place": draw(st.sampled_from(CHECKING)),
    }


RANGES = st.sampled_from([None, (0, 10), (2.5, 17.25), (7.25, 7.25), (90, 99), (-5, 60)])


@given(case=cases(), rule=st.sampled_from(EXACT), range=RANGES)
@pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning")
def test_bins_are_numpys(case: dict[str, Any], rule: str, range: Any) -> None:
    x = case["x"]
    got = histogram(x, rule, range, chunks=case["chunks"], budget=2_000_000, device=case["place"].device())
    both_same(cf.compute(*np.histogram(cf.open(x), rule, range), device="cpu"), got)
    both_same(got, numpys(x, rule, range))


@given(case=cases(), rule=st.sampled_from(MOMENTS), range=RANGES)
@pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning")
def test_bins_from_moments_are_as_numpys(case: dict[str, Any], rule: str, range: Any) -> None:
    """But for what rounding makes of a width where that decides on a bin more or less."""
    x = case["x"]
    got = histogram(x, rule, range, chunks=case["chunks"], budget=2_000_000, device=case["place"].device())
    expected = numpys(x, rule, range)
    if len(got[1]) != len(expected[1]):
        assert abs(len(got[1]) - len(expected[1])) == 1
        expected = np.histogram(x.astype(x.dtype.newbyteorder("=")), len(got[0]), range)
    both_same(got, expected)


@everywhere
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "range"), [("f8", None), ("i4", (5, 70)), ("f4", None)])
def test_many_blocks(place: Place, rule: str, dtype: str, range: Any) -> None:
    x = (np.random.default_rng(0).gamma(2, 3, (60, 70)) * 10).astype(dtype)
    options = {"chunks": (20, 25), "budget": place.budget(1_000_000), "device": place.device()}
    both_same(histogram(x, rule, range, **options), numpys(x, rule, range))


@everywhere
def test_densities_of_many_blocks(place: Place) -> None:
    x = np.random.default_rng(0).gamma(2, 3, (60, 70))
    options = {"chunks": (20, 25), "budget": place.budget(1_000_000), "device": place.device()}
    got = histogram(x, "fd", density=True, **options)
    np.testing.assert_allclose(got[0], np.histogram(x, "fd", density=True)[0])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4"])
def test_integers_at_their_dtypes_ends(dtype: str) -> None:
    # The difference of their quartiles wraps around: a width below 1, which is 1, however far below.
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    rng = np.random.default_rng(7)
    arrays = [[low, high, 5], [low, low, high, high], [low, high], [high, high], [low]]
    arrays += [rng.choice([low, high, 0, 1, high // 2], rng.integers(2, 12)).tolist() for _ in range(3)]
    for x in (np.array(values, dtype) for values in arrays):
        for rule in RULES:
            for within in (None, (0, 100)):
                if dtype == "i4" and rule == "fd" and within is None:
                    continue  # more bins than memory holds
                with np.errstate(all="ignore"):
                    expected = np.histogram_bin_edges(x, rule, within)
                same(histogram(x, rule, within, device="cpu")[1], expected)


@everywhere
@pytest.mark.parametrize("rule", RULES)
def test_special_values(place: Place, rule: str) -> None:
    x = np.array([1.0, np.nan, -0.0, np.inf, 2.0, -np.inf, 0.0, 1.5])
    options = {"chunks": 2, "budget": place.budget(1_000_000), "device": place.device()}
    for bad in (x, x[~np.isnan(x)]):
        with pytest.raises(errors.ArgumentError, match="not finite"):
            histogram(bad, rule, **options)
    both_same(histogram(x, rule, (0, 2), **options), numpys(x, rule, (0, 2)))
    both_same(histogram(x, rule, (50, 60), **options), numpys(x, rule, (50, 60)))


@pytest.mark.parametrize("place", [CPU, *CHECKING], ids=str)
def test_integers_that_doubles_do_not_hold(place: Place) -> None:
    """Not on a GPU: CuPy counts doubles, in which there is no 2**63 - 1."""
    options = {"chunks": 2, "budget": 1_000_000, "device": place.device()}
    wide = np.array([-(2**63), 2**63 - 1, 0, 5])
    for rule in EXACT:
        both_same(histogram(wide[1:], rule, **options), numpys(wide[1:], rule))
    both_same(histogram(wide, "sqrt", **options), numpys(wide, "sqrt"))


@pytest.mark.parametrize(("rule", "passes"), [("sturges", 2), ("scott", 2), ("doane", 2), ("fd", 4), ("auto", 4)])
def test_passes_are_as_many_as_said(rule: str, passes: int) -> None:
    x = np.random.default_rng(1).standard_normal((400, 1000)).astype("f4")
    source = CountingSource(x)
    both_same(histogram(source, rule, chunks=(50, 1000), budget=200_000_000, device="cpu"), numpys(x, rule))
    assert passes * x.nbytes < source.bytes_read <= passes * (x.nbytes + (256 << 10))


@pytest.mark.parametrize("rule", RULES)
def test_arrays_without_elements(rule: str) -> None:
    both_same(histogram(np.zeros((0, 3)), rule, device="cpu"), numpys(np.zeros((0, 3)), rule))
    both_same(histogram(np.zeros(0), rule, (1, 3), device="cpu"), numpys(np.zeros(0), rule, (1, 3)))


class Untouchable:
    """An array that must not be read."""

    shape, dtype = (4, 5), np.dtype("f8")

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("read")


@pytest.mark.parametrize(
    ("bins", "options", "error", "words"),
    [
        ("stone", {}, errors.ArgumentError, "'scott'"),
        ("Auto", {}, errors.ArgumentError, "'Auto' is none of auto, doane"),
        ("fd", {"weights": np.ones((4, 5))}, errors.ArgumentTypeError, "weights"),
        ("fd", {"range": (2, 1)}, errors.ArgumentError, r"\(2, 1\)"),
        ("fd", {"range": (0, np.inf)}, errors.ArgumentError, "finite"),
        ("fd", {"chunks": (2, 2, 2)}, errors.ArgumentError, "3 entries"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_read(
    bins: str, options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        histogram(Untouchable(), bins, device="cpu", **options)


def test_more_bins_than_can_be_are_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="bins"):
        histogram(np.array([0, 1e-320, 2e-320, 3e-320, 1e300]), "fd", device="cpu")


def test_counts_of_values_that_are_large_or_negative() -> None:
    x = np.array([[-7, 10**12], [10**12, 3]])
    same(unique(x, return_counts=True, device="cpu")[1], np.unique(x, return_counts=True)[1])
