"""Least squares of expressions: NumPy's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

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


@pytest.mark.parametrize("is_expression", [False, True])
@pytest.mark.parametrize("matrix", [np.vander(np.linspace(-1, 1, 20), 3), np.zeros((20, 2)), np.ones((20, 0))])
def test_columns_that_were_further_axes_are_not_stored_as_these(
    matrix: np.ndarray, is_expression: bool, tmp_path: Path
) -> None:
    b = np.random.default_rng(1).random((20, 30, 40))
    stored = zarr.create_array(tmp_path / "b.zarr", shape=b.shape, dtype="f8", chunks=(5, 10, 40))
    stored[...] = b
    lazy = cf.open(tmp_path / "b.zarr") * 2 if is_expression else cf.open(tmp_path / "b.zarr")
    b = b * 2 if is_expression else b
    got = np.linalg.lstsq(matrix, lazy.reshape(20, -1))
    expected = np.linalg.lstsq(matrix, b.reshape(20, -1))
    lazies = [one for one in got[:2] if not isinstance(one, np.ndarray)]
    run: dict[str, Any] = {"budget": "300kB", "device": "cpu"}
    for one, other in zip(lazies, expected, strict=False):
        np.testing.assert_allclose(one.compute(**run), other, rtol=1e-9, atol=1e-12)
    assert [np.shape(one) for one in got[:2]] == [np.shape(one) for one in expected[:2]]
    if matrix.any():
        assert cf.explain(*lazies, **run).bytes_out < b.nbytes / 2


def test_least_squares_that_are_refused() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"compute\(\)"):
        np.linalg.lstsq(cf.open(np.ones((3, 2))), np.ones(3))
    with pytest.raises(errors.ArgumentError, match=r"\(3, 2\) and \(4,\)"):
        np.linalg.lstsq(np.ones((3, 2)), cf.open(np.ones(4)))
