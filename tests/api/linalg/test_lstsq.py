"""Least squares of expressions: NumPy's results."""

from __future__ import annotations

import numpy as np
import pytest

import chunkflow as cf
from chunkflow import errors


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
@pytest.mark.parametrize("columns", [None, 9])
@pytest.mark.parametrize("degree", [0, 2, 25])
def test_least_squares(dtype: str, columns: int | None, degree: int) -> None:
    r = np.random.default_rng(1)
    a = np.vander(np.linspace(-1, 1, 20), degree + 1)
    b = r.random((20, columns) if columns else 20).astype(dtype) * (1 + (1j if dtype == "c16" else 0))
    expected, got = np.linalg.lstsq(a, b), np.linalg.lstsq(a, cf.open(b))
    results = cf.compute(*got[:2], device="cpu") if degree < 19 else (got[0].compute(device="cpu"), got[1])
    for one, other in zip((*results, got[3]), (*expected[:2], expected[3]), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)
    assert got[2] == expected[2]


def test_least_squares_that_are_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"compute\(\)"):
        np.linalg.lstsq(cf.open(np.ones((3, 2))), np.ones(3))
    with pytest.raises(errors.ArgumentError, match=r"\(3, 2\) and \(4,\)"):
        np.linalg.lstsq(np.ones((3, 2)), cf.open(np.ones(4)))
