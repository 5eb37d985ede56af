"""Pieces are put one behind the other by the compiled loop as NumPy does it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from chunkflow.system import native

WAYS = [pytest.param(native.staging, id="compiled"), pytest.param(None, id="NumPy")]


@pytest.mark.parametrize("staging", WAYS)
@given(
    pieces=st.sampled_from(("?", "f2", "i8", "c16")).flatmap(
        lambda dtype: st.lists(npst.arrays(dtype, st.integers(0, 9)), min_size=1, max_size=5)
    ),
    step=st.integers(1, 3),
)
def test_pieces_are_joined(staging: Any, pieces: list[np.ndarray], step: int) -> None:
    expected = np.concatenate(pieces)
    out = np.zeros(step * len(expected), expected.dtype)[::step]
    with mock.patch.object(native, "staging", staging):
        native.join(pieces, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("staging", WAYS)
def test_other_dtypes_are_cast(staging: Any) -> None:
    with mock.patch.object(native, "staging", staging):
        native.join([np.arange(2, dtype="i8"), np.arange(3, dtype=">i8")], out := np.empty(5))
    np.testing.assert_array_equal(out, [0, 1, 0, 1, 2])


@pytest.mark.parametrize("staging", WAYS)
def test_pieces_that_do_not_fit_are_refused(staging: Any) -> None:
    with mock.patch.object(native, "staging", staging):
        native.join([], np.empty(0))
        for number in (1, 3):
            with pytest.raises(ValueError, match=r"bytes for|wrong shape"):
                native.join([np.arange(2), np.arange(3)][:number], np.empty(number, int))


@pytest.mark.skipif(native.staging is None, reason="there are no compiled loops")
def test_pieces_with_gaps_are_refused() -> None:
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        native.join([np.arange(6)[::2]], np.empty(3, int))
    read_only = np.empty(2, int)
    read_only.flags.writeable = False
    with pytest.raises((ValueError, BufferError, TypeError), match=r"read-only|read-write"):
        native.join([np.arange(2)], read_only)
