"""Lists whose rows have different lengths are refused in words, wherever an array is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ChunkflowError

UNEVEN: Any = [[1, 2], [3]]
X = np.ones((2, 3))
TIMES = np.array(["2000-01-01", "2001-01-01"], "M8[D]")

CALLS: dict[str, Callable[[], Any]] = {
    "an operator": lambda: cf.open(X) + UNEVEN,
    "a reflected operator": lambda: UNEVEN - cf.open(X),
    "a comparison": lambda: cf.open(X) > UNEVEN,
    "a ufunc": lambda: np.hypot(cf.open(X), UNEVEN),
    "a function of NumPy's": lambda: np.where(cf.open(X) > 0, UNEVEN, 0),
    "a method": lambda: cf.open(X).clip(UNEVEN, 3),
    "an index": lambda: cf.open(X)[UNEVEN],
    "masked": lambda: cf.open(np.ma.masked_array(X, X > 1)) + UNEVEN,
    "a mask": lambda: cf.masked_array(cf.open(X), mask=UNEVEN),
    "times": lambda: cf.open(TIMES) - UNEVEN,
    "a source": lambda: cf.sum(UNEVEN),
    "one of several": lambda: cf.stack([cf.open(X), UNEVEN]),
    "weights": lambda: cf.average(cf.open(X), weights=UNEVEN),
    "counts": lambda: cf.repeat(X, UNEVEN),
    "widths": lambda: cf.pad(X, UNEVEN),
    "places": lambda: cf.take(X, UNEVEN),
    "spacing": lambda: cf.gradient(X, UNEVEN),
    "a fill value": lambda: cf.full((2, 3), UNEVEN),
    "values that are put": lambda: cf.put(X, 0, UNEVEN),
    "axes of a grid": lambda: cf.meshgrid(UNEVEN, [1, 2]),
    "parameters of random numbers": lambda: cf.random.default_rng(0).normal(UNEVEN, 1),
    "rows in rows": lambda: cf.open(X) * [[UNEVEN]],
    "rows beside numbers": lambda: cf.open(X) * [1, [2]],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_it_is_said_how_they_are_uneven(call: Callable[[], Any]) -> None:
    said = "its rows are of different lengths, 2 and 1, say|it has rows and numbers beside each other"
    with pytest.raises(ChunkflowError, match=said):
        call()


def test_lists_of_which_each_is_taken_for_itself_may_be_uneven() -> None:
    counts, edges = cf.histogramdd(X.reshape(3, 2), bins=[[0, 1, 2], [0, 2]], device="cpu")
    assert counts.shape == (2, 1)
    np.testing.assert_array_equal(counts, [[0], [3]])
    assert [len(each) for each in edges] == [3, 2]
