"""Counts by compiled loops are those of NumPy, of integers and of numbers in bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from chunkflow.kernels.statistics import counting
from chunkflow.kernels.statistics.counting import counted, in_bins

built = pytest.mark.skipif(counting.loops is None, reason="the loops were not built")


@st.composite
def numbers(draw: Any) -> np.ndarray:
    """Numbers of any of the dtypes, at edges and between them, with NaN and infinities."""
    dtype = np.dtype(draw(st.sampled_from(["f4", "f8", "u1", "i1", "u2", "i2", "u4", "i4"])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.integers(-40, 90, draw(st.sampled_from([1, 5, 700, 70_000]))) / draw(st.sampled_from([1, 4, 7]))
    x = x.astype(dtype) if dtype.kind != "u" else np.abs(x).astype(dtype)
    if dtype.kind == "f":
        x[:: draw(st.sampled_from([3, 500]))] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38]))
    return x


@built
@given(numbers(), st.integers(1, 300), st.sampled_from([(-8, 16), (0, 1), (0.1, 0.7), (-40, 90), (3, 3.5)]))
@settings(max_examples=examples(2), deadline=None)
def test_bins_of_one_width(x: np.ndarray, number: int, limits: Any) -> None:
    edges = np.histogram_bin_edges(x, number, limits)
    found = in_bins(x, edges, alike=True)
    expected = np.histogram(x, number, limits)[0]
    if (np.diff(edges.astype("f8")) > 0).all():
        assert found is not None
        np.testing.assert_array_equal(found, expected)
    else:
        assert found is None


@built
@given(numbers(), st.lists(st.integers(-45, 95), min_size=2, max_size=40), st.sampled_from([1, 4, 7.0]))
@settings(max_examples=examples(2), deadline=None)
def test_bins_between_edges(x: np.ndarray, places: list[int], parts: float) -> None:
    edges = np.sort(np.array(places) / parts if parts != 1 else np.array(places))
    found = in_bins(x, edges, alike=False)
    assert found is not None
    np.testing.assert_array_equal(found, np.histogram(x.astype("f8"), edges.astype("f8"))[0])


@built
def test_what_is_left_to_numpy() -> None:
    x, edges = np.arange(9.0), np.array([0.0, 2, 9])
    for other in (x.astype("i8"), x.astype("f2"), x.astype(">f4"), x > 3):
        assert in_bins(other, edges, alike=False) is None
    for wrong in ([0.0, np.inf], [0.0], [np.nan, 1.0], [2**53 + 1, 2**53 + 3]):
        assert in_bins(x, np.array(wrong), alike=False) is None
    assert in_bins(x, np.linspace(0, 1, 1 << 17), alike=True) is None
    assert in_bins(x, edges.astype(np.longdouble), alike=False) is None


@given(st.sampled_from(["u1", "u2", "u4", "u8", "i8", "i4"]), st.sampled_from([1, 7, 200, 5000]), st.integers(0, 900))
@settings(max_examples=examples(1), deadline=None)
def test_integers(dtype: str, number: int, size: int) -> None:
    most = min(number, np.iinfo(dtype).max + 1)
    x = np.random.default_rng(size).integers(0, most, (size, 2)).astype(dtype)
    for block in (x, x[::2], x[:, 1], x.T, x.astype(x.dtype.newbyteorder())):
        np.testing.assert_array_equal(counted(block, number), np.bincount(block.reshape(-1), minlength=number))


@built
def test_wrong_tables_are_refused() -> None:
    counts = np.zeros(3, "i8")
    for args in (("f", 2, np.zeros(4, "f2"), counts, np.zeros(4)), ("i", 4, np.zeros(4, "i4"), counts)):
        with pytest.raises(ValueError, match="no such counts"):
            counting.loops.add(*args)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="no such counts"):
        counting.loops.add("f", 4, np.zeros(4, "f4"), counts, np.zeros(3), 0.0)  # type: ignore[union-attr]
