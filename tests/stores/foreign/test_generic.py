from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkflow.core.grid import whole
from chunkflow.errors import ArgumentTypeError, ReadError
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.testing import CountingSource, FailingArray, SinkContract, SourceContract, filled


class TestGenericSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(CountingSource(array))


class TestGenericSink(SinkContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        self.failing = FailingArray(np.empty_like(array), after=1 << 30)
        return open_target(self.failing)

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.failing, "_left", 0)


class TestDaskSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        dask = pytest.importorskip("dask.array")
        return open_source(dask.from_array(array, chunks=4))


def test_chunks_are_used_where_they_are_a_box() -> None:
    class Chunked(CountingSource):
        def __init__(self, chunks: Any) -> None:
            super().__init__(np.zeros((8, 6)))
            self.chunks = chunks

    assert open_source(Chunked((4, 2))).spec.chunks == (4, 2)
    assert open_source(Chunked(((4, 4), (2, 3, 1)))).spec.chunks == (4, 3)
    for odd in (None, (4,), "auto", ("a", "b"), 4):
        assert open_source(Chunked(odd)).spec.chunks is None


def test_an_error_keeps_its_cause_and_says_where() -> None:
    source = open_source(FailingArray(np.zeros((8, 6)), after=0, error=OSError(5, "no such sector")))
    with pytest.raises(ReadError, match=r"\[2:4, 0:6\].*no such sector") as caught:
        source.read((slice(2, 4), slice(0, 6)), np.empty((2, 6)))
    assert caught.value.errno == 5
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("found", [np.zeros((3, 2)), np.zeros(6), np.zeros((2, 3), "c16"), np.float64(0)])
def test_another_shape_or_dtype_than_announced_is_a_read_error(found: Any) -> None:
    class Odd(CountingSource):
        def __getitem__(self, region: Any) -> Any:
            return found

    source = open_source(Odd(np.zeros((2, 3))))
    with pytest.raises(ReadError, match="returned"):
        source.read(whole((2, 3)), np.empty((2, 3)))


def test_one_object_is_never_used_by_two_threads_at_once() -> None:
    class Fragile:
        shape, dtype = (64,), np.dtype("f4")
        busy = False

        def __getitem__(self, region: Any) -> np.ndarray:
            assert not self.busy
            self.busy = True
            found: np.ndarray = np.sort(np.random.default_rng(0).random(20_000))[region].astype("f4")
            self.busy = False
            return found

    fragile = Fragile()
    failures: list[BaseException] = []

    def work(source: Source) -> None:
        try:
            for _ in range(20):
                source.read(whole((64,)), np.empty(64, "f4"))
        except BaseException as error:
            failures.append(error)

    sources = [open_source(fragile), open_source(fragile)]
    threads = [threading.Thread(target=work, args=(sources[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_in_place_is_recognised() -> None:
    array = FailingArray(filled((3,), "f4"), after=9)
    assert open_source(array).footprint == open_target(array).footprint
    assert open_source(array).footprint != open_source(FailingArray(np.zeros(3), after=9)).footprint


def test_a_dtype_of_another_library_is_refused() -> None:
    class Tensor:
        shape, dtype = (3,), "torch.float32"

        def __getitem__(self, region: Any) -> Any:
            raise AssertionError("nothing may be read")

    with pytest.raises(ArgumentTypeError, match=r"Tensor.*torch\.float32"):
        open_source(Tensor())


def test_plans_know_that_a_read_of_dasks_takes_long() -> None:
    dask = pytest.importorskip("dask.array")
    source = open_source(dask.ones((100, 100), chunks=50))
    assert source.spec.storage.asking >= 1e-3
