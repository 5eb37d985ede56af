"""Any region of an array in another shape is what NumPy has there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from chunkflow.core.grid import shape_of
from chunkflow.stores import Source, open_source
from chunkflow.stores.views.reshaped import ReshapedSource, boxes
from chunkflow.testing import SourceContract


class TestReshapedSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        zarr.create_array(tmp_path / "x.zarr", data=array.reshape(-1), chunks=7, zarr_format=2)
        return ReshapedSource(open_source(tmp_path / "x.zarr"), array.shape)


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_boxes_hold_each_element_once_and_in_order(shape: list[int], data: st.DataObject) -> None:
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    numbers = np.arange(size).reshape(shape)
    found = [numbers[box].reshape(-1) for box in boxes(start, stop, tuple(shape))]
    np.testing.assert_array_equal(np.concatenate([[], *found]), np.arange(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("shape", [(4, 30), (2, 2, 30), (120,), (5, 2, 12), (120, 1), (1, 1, 120)])
def test_regions_are_numpys(shape: tuple[int, ...]) -> None:
    x = np.arange(120.0).reshape(4, 5, 6)
    source = ReshapedSource(open_source(x), shape)
    rng = np.random.default_rng(0)
    for _ in range(20):
        region = tuple(slice(a, rng.integers(a, n + 1)) for n in shape for a in [rng.integers(0, n + 1)])
        out = np.empty(shape_of(region))
        source.read(region, out)
        np.testing.assert_array_equal(out, x.reshape(shape)[region])
