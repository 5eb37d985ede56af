"""Sources with split axes, by the source contract."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from support.view_sources import OfFile, OfMemory, OfZarr

import chunkflow as cf
from chunkflow.stores import open_source
from chunkflow.stores.protocol import Source, run_of
from chunkflow.stores.views.split import SplitSource
from chunkflow.testing import SourceContract


class TestSplitMemory(OfMemory, SourceContract):
    """Of the first two axes one is made, and split again."""

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        if array.ndim < 2 or not array.size:
            return self.opened(tmp_path, array)
        first, *rest = array.shape[:2], *((n,) for n in array.shape[2:])
        merged = np.ascontiguousarray(array).reshape(math.prod(first), *array.shape[2:])
        return SplitSource(self.opened(tmp_path, merged), (first, *rest))


class TestSplitFile(OfFile, TestSplitMemory):
    pass


class TestSplitZarr(OfZarr, TestSplitMemory):
    pass


def test_compiled_loops_are_told_where_a_box_lies() -> None:
    array = np.arange(8192.0).reshape(64, 128)
    source = SplitSource(open_source(array), ((16, 4), (128,)))
    run = run_of(source, (slice(2, 5), slice(0, 4), slice(0, 128)))
    assert run is not None
    assert run.position == array[8:].ctypes.data
    assert run_of(source, (slice(2, 5), slice(0, 3), slice(0, 128))) is None, "others lie between its rows"


def test_boxes_of_split_axes_are_views() -> None:
    array = np.arange(2 * 60.0).reshape(2, 60)[:, ::-1]
    source = SplitSource(open_source(array), ((2,), (3, 4, 5)))
    whole = array.reshape(2, 3, 4, 5)
    for region in np.ndindex(2, 2, 2, 2):
        box = tuple(slice(start, n - 1 + start) for start, n in zip(region, whole.shape, strict=True))
        seen = source.view(box)
        assert seen is not None
        np.testing.assert_array_equal(seen, whole[box])
        assert np.shares_memory(seen, array)
        assert not seen.flags.writeable


def test_blocks_of_split_axes_that_are_cut() -> None:
    expected = np.arange(20, dtype="f4").reshape(4, 5)
    x = cf.open(expected).reshape(-1).reshape(4, 5)
    for budget in ("1024", "2kB"):
        found = np.nanquantile(x, 0.25, axis=0).compute(device="cpu", budget=budget)
        np.testing.assert_array_equal(found, np.nanquantile(expected, 0.25, axis=0))
