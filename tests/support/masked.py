"""Masked arrays, compared."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_ma(got: Any, expected: Any) -> None:
    """Masked where numpy.ma's is, with the same dtype, and the same values elsewhere."""
    hidden, right = np.ma.getmaskarray(got), np.ma.getmaskarray(expected)
    assert np.shape(got) == np.shape(expected)
    np.testing.assert_array_equal(hidden, right)
    if expected is np.ma.masked:  # which has no dtype of its own
        assert got is np.ma.masked
        return
    assert isinstance(got, np.ma.MaskedArray) == isinstance(expected, np.ma.MaskedArray)
    assert np.asarray(got).dtype == np.asarray(expected).dtype
    one, other = (np.where(right, 0, np.ma.getdata(x)) for x in (got, expected))
    rtol = 1e-5 if one.dtype.char in "efF" else 1e-11
    np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol)
