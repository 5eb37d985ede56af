"""Least squares of lines with missing values: each as `np.linalg.lstsq` has it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.kernels.linalg.lines import fitted
from chunkflow.kernels.protocol import trial


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.9, 1.0]), st.booleans())
def test_each_line_is_fitted_by_what_it_has(seed: int, order: int, share: float, in_trial: bool) -> None:
    r = np.random.default_rng(seed)
    matrix, block = r.random((9, order)), r.standard_normal((9, 3, 4))
    block[r.random(block.shape) < share] = np.nan
    block[:, 0] = r.random((9, 4))  # some lines lack nothing
    if in_trial:
        with trial():
            got = fitted(block, matrix), fitted(block, matrix, residuals=True)
    else:
        got = fitted(block, matrix), fitted(block, matrix, residuals=True)
    assert got[0].shape == (order, 3, 4)
    for place in np.ndindex(3, 4):
        line = block[:, *place]
        there = ~np.isnan(line)
        expected, left, _, _ = np.linalg.lstsq(matrix[there], line[there], rcond=None)
        known = expected if there.any() or in_trial else np.full(order, np.nan)
        np.testing.assert_allclose(got[0][:, *place], known, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(got[1][place], left[0] if left.size else np.nan, rtol=1e-6, atol=1e-9)
