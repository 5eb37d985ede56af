"""`cf.where` is `numpy.where` of three arguments, with its dtypes, eager and lazy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ArgumentError

RNG = np.random.default_rng(0)
CONDITIONS = {
    "bools": RNG.random((6, 5)) > 0.5,
    "a row": RNG.random(5) > 0.5,
    "integers": RNG.integers(0, 3, (6, 5)),
    "a bool": True,
}
OTHERS = {"an int": 0, "a float": 1.5, "a float of NumPy's": np.float64(2), "a column": np.arange(6)[:, None]}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("dtype", ["f4", "f2", "i2", "?", "c8", ">f4"])
def test_values_and_dtypes_are_numpys(condition: str, other: str, dtype: str) -> None:
    x, mask, y = RNG.integers(0, 5, (6, 5)).astype(dtype), CONDITIONS[condition], OTHERS[other]
    expected = np.where(mask, x, y)
    lazy: Any = cf.where(mask, cf.open(x), y)
    for found in (cf.where(mask, x, y, device="cpu"), lazy.compute(device="cpu")):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"\(6, 5\), \(3, 3\), \(6, 5\) do not broadcast"):
        cf.where(np.ones((6, 5)), np.ones((3, 3)), np.ones((6, 5)), device="cpu")
