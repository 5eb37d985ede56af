"""Views in another shape have the right elements, and read a chunk for many of their runs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from chunkflow.core.grid import Region, shape_of
from chunkflow.stores import open_source
from chunkflow.stores.views.reshaped import ReshapedSource
from chunkflow.stores.views.split import SplitSource


class Counted:
    """A source that counts the elements that it reads, and its calls."""

    def __init__(self, source: Any) -> None:
        self._source, self.spec, self.footprint = source, source.spec, source.footprint
        self.calls: list[int] = []

    def view(self, region: Region) -> None:
        return None

    def read(self, region: Region, out: np.ndarray) -> None:
        self.calls.append(out.size)
        self._source.read(region, out)


@settings(max_examples=examples(1), deadline=None)
@given(data=st.data(), chunked=st.booleans())
def test_any_region_is_that_of_the_reshaped_array(data: st.DataObject, chunked: bool) -> None:
    parts = data.draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3))
    shape = [int(np.prod(part)) for part in parts]
    x = np.arange(np.prod(shape)).reshape(shape)
    source = open_source(zarr.create_array({}, data=x, chunks=tuple(shape)) if chunked else x)
    whole = [n for part in parts for n in part]
    starts = [data.draw(st.integers(0, n - 1)) for n in whole]
    region = tuple(slice(s, data.draw(st.integers(s + 1, n))) for s, n in zip(starts, whole, strict=True))
    counted = Counted(source)
    out = np.full(shape_of(region), -1)
    for view in (SplitSource(counted, parts), ReshapedSource(counted, tuple(whole))):  # type: ignore[arg-type]
        out[...] = -1
        view.read(region, out)
        np.testing.assert_array_equal(out, x.reshape(whole)[region])
        assert max(counted.calls) <= out.size, "what is read at a time is not more than what was asked for"


@pytest.mark.parametrize(
    ("chunks", "split", "calls"),
    [((100, 700), True, 4), (None, True, 4), ((100, 700), False, 30), (None, False, 10_000)],
)
def test_runs_in_a_chunk_are_read_together(chunks: Any, split: bool, calls: int, tmp_path: Path) -> None:
    x = np.arange(70_000.0).reshape(100, 700)
    if chunks:
        zarr.create_array(tmp_path / "x.zarr", data=x, chunks=chunks)
    else:
        np.save(tmp_path / "x.npy", x)
    counted = Counted(open_source(tmp_path / ("x.zarr" if chunks else "x.npy")))
    out = np.empty((100, 100, 2))
    view: Any = SplitSource(counted, [(100,), (100, 7)]) if split else ReshapedSource(counted, (100, 100, 7))  # type: ignore[arg-type]
    view.read((slice(0, 100), slice(0, 100), slice(1, 3)), out)
    np.testing.assert_array_equal(out, x.reshape(100, 100, 7)[:, :, 1:3])
    assert len(counted.calls) == calls
