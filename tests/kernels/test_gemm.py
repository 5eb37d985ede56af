"""Products of blocks with themselves: the half that is left out is mirrored, whatever panels are made."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.kernels.linalg import gemm


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i8"])
@given(side=st.integers(1, 70), depth=st.integers(0, 5), panel=st.integers(1, 1 << 14), share=st.integers(1, 9))
def test_a_symmetric_product_is_whole(dtype: str, side: int, depth: int, panel: int, share: int) -> None:
    rng = np.random.default_rng(side)
    a = rng.integers(-9, 9, (side, depth)).astype(dtype)
    a = a + 1j * a[::-1] if dtype[0] == "c" else a
    found = np.full((side, side), 77, dtype)
    with patch.object(gemm, "PANEL", panel), patch.object(gemm, "SHARE", share):
        gemm.add_product(found[None], a[None], a.conj().T[None], fresh=True, symmetric=True)
        gemm.add_product(found[None], a[None], a.conj().T[None], symmetric=True)
        gemm.mirror(found)
    np.testing.assert_array_equal(found, 2 * (a @ a.conj().T))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("side", [700, 715, 1000, 1500])
def test_large_covariances_are_whole(side: int, device: str) -> None:
    """Of sides at which panels are fewer than the strips that are mirrored."""
    x = np.random.default_rng(0).standard_normal((side, 40))
    np.testing.assert_allclose(cf.cov(x, device=device), np.cov(x), atol=1e-12)
    np.testing.assert_allclose(cf.gram(x.T, device=device), x @ x.T, atol=1e-12)
