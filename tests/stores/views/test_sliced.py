"""Slices of sources, by the source contract: of memory and of files, with any steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.view_sources import OfFile, OfMemory, OfZarr

from chunkflow.core.spec import ByteRun
from chunkflow.stores import open_source
from chunkflow.stores.protocol import Source, run_of
from chunkflow.stores.views.sliced import SlicedSource
from chunkflow.testing import SourceContract
from chunkflow.testing.stores import moved_by


class TestSlicedMemory(OfMemory, SourceContract):
    step = 1

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        step = abs(self.step)
        larger = np.zeros([n * step + 5 for n in array.shape], array.dtype)
        larger[tuple(slice(2, 2 + n * step, step) for n in array.shape)] = array[
            (slice(None, None, self.step // step),) * array.ndim
        ]
        first = [2 if self.step > 0 else 2 + (n - 1) * step for n in array.shape]
        cuts = [(at, n, self.step) for at, n in zip(first, array.shape, strict=True)]
        return SlicedSource(self.opened(tmp_path, larger), cuts)


class TestEveryOther(TestSlicedMemory):
    step = 2


class TestBackwards(TestSlicedMemory):
    step = -1


class TestSlicedFile(OfFile, TestSlicedMemory):
    pass


class TestSlicedZarr(OfZarr, TestSlicedMemory):
    pass


def test_compiled_loops_are_told_where_a_slice_lies() -> None:
    array = np.arange(4096.0).reshape(64, 64)
    source = SlicedSource(open_source(array), [(8, 40, 1), (0, 64, 1)])
    run = run_of(source, (slice(2, 5), slice(0, 64)))
    assert isinstance(run, ByteRun)
    assert run.position == array[10:].ctypes.data
    for cuts in ([(8, 20, 2), (0, 64, 1)], [(40, 20, -2), (63, 64, -1)], [(8, 20, 1), (3, 20, 3)]):
        source = SlicedSource(open_source(array), cuts)
        run, out = run_of(source, (slice(2, 5), slice(0, 20))), np.empty((3, 20))
        assert run is not None
        source.read((slice(2, 5), slice(0, 20)), out)
        np.testing.assert_array_equal(moved_by(run, out.dtype, out.shape), out)
