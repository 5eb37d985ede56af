"""HDF5 datasets as sources and sinks, by path and as objects: the contracts of stores, and whole runs."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign import HDF5_READERS, HDF5_WRITERS
from support.hdf5files import FILTERS, filter_no_edges, halves, no_space, properties, read, save
from support.positions import full_disk

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.errors import ArgumentError, ReadError, WriteError
from chunkflow.stores import Sink, Source, Target, checksums, open_source, open_target
from chunkflow.stores.codecs.fletcher32 import Fletcher32
from chunkflow.stores.publication import move
from chunkflow.testing import ForeignReader, ForeignWriter, PathSinkContract, SinkContract, SourceContract, filled

h5py = pytest.importorskip("h5py")

from chunkflow.stores.file.strided import FileSource  # noqa: E402
from chunkflow.stores.hdf5.dataset import Hdf5Source  # noqa: E402


class TestContiguousSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        source = open_source(save(tmp_path / "x.h5", array))
        assert isinstance(source, FileSource) == bool(array.size)
        return source

    def foreign_writers(self) -> Sequence[ForeignWriter]:
        return HDF5_WRITERS


class TestChunkedSource(SourceContract):
    options = FILTERS["raw"]

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(save(tmp_path / "x.h5", array, chunks=halves(array), **self.options))


class TestCompressedSource(TestChunkedSource):
    options = FILTERS["all"]


class TestLzfSource(TestChunkedSource):
    options = FILTERS["lzf"]


class TestDatasetSource(SourceContract):
    """A dataset of a file that is open for writing, with nothing flushed."""

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        file = h5py.File(tmp_path / "x.h5", "w")
        chunks = halves(array)
        return open_source(file.create_dataset("u", data=array, chunks=chunks, **(FILTERS["all"] if chunks else {})))


class TestDatasetInMemorySource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        file = h5py.File(tmp_path / "x.h5", "w", driver="core", backing_store=False)
        chunks = halves(array)
        return open_source(file.create_dataset("u", data=array, chunks=chunks, **(FILTERS["all"] if chunks else {})))


class TestSplitDatasetSource(TestDatasetInMemorySource):
    """A file in two, whose addresses begin beyond 2**63."""

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        file = h5py.File(tmp_path / "x.h5", "w", driver="split")
        chunks = halves(array)
        return open_source(file.create_dataset("u", data=array, chunks=chunks, **(FILTERS["all"] if chunks else {})))


class DatasetSinkContract(SinkContract):
    """What others make of a dataset that exists: its properties stay, and its values are those written."""

    name = "x.h5"

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return HDF5_READERS

    def properties(self, tmp_path: Path) -> Any:
        return properties(self.dataset)

    def leave(self, result: Any) -> None:
        result.file.close()

    def put(self, tmp_path: Path, array: np.ndarray, **options: Any) -> Target:
        """Target of a new dataset."""
        self.dataset = h5py.File(tmp_path / "x.h5", "w").create_dataset("u", array.shape, array.dtype, **options)
        self.dataset.attrs["units"] = "m"
        return open_target(self.dataset)


class TestContiguousDatasetSink(DatasetSinkContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return self.put(tmp_path, array)

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(h5py.Dataset, "__setitem__", no_space)


class TestCompressedDatasetSink(DatasetSinkContract):
    options = FILTERS["all"]

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        chunks = halves(array)
        return self.put(tmp_path, array, chunks=chunks, **(self.options if chunks else {}))

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chunkflow.stores.hdf5.filters.FilterPipeline.encode", no_space)


class TestSplitDatasetSink(TestCompressedDatasetSink):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        chunks = halves(array)
        file = h5py.File(tmp_path / "x.h5", "w", driver="split")
        self.dataset = file.create_dataset("u", array.shape, array.dtype, chunks=chunks)
        return open_target(self.dataset)

    def foreign_readers(self) -> Sequence[ForeignReader]:
        def by_h5py(path: str) -> np.ndarray:
            with h5py.File(path, "r", driver="split") as file:
                return np.asarray(file["u"][...])

        return [ForeignReader("h5py", by_h5py)]

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(h5py.Dataset, "__setitem__", no_space)


class TestBigEndianDatasetSink(TestCompressedDatasetSink):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return super().make(tmp_path, array.astype(array.dtype.newbyteorder(">")))


class TestLzfDatasetSink(TestCompressedDatasetSink):
    options = FILTERS["lzf"]

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return HDF5_READERS[:1]  # only h5py has the filter

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(h5py.Dataset, "__setitem__", no_space)


class TestPathSink(PathSinkContract):
    name = "result.h5"

    def leave(self, result: Any) -> None:
        result.file.close()

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return HDF5_READERS

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


class TestCheckedPathSink(TestPathSink):
    """With a checksum behind each chunk, where there are chunks."""

    def open(self, tmp_path: Path, array: np.ndarray, chunks: Any = None) -> Sink:
        with checksums.asked(True if array.ndim else None, self.name):
            return super().open(tmp_path, array, chunks)

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)
        monkeypatch.setattr(Fletcher32, "encode", no_space)


@pytest.mark.parametrize("there", [False, True], ids=["a new file", "beside another"])
@pytest.mark.parametrize("chunks", [None, (7, 20, 5)])
def test_checksums_are_what_hdf5_verifies(tmp_path: Path, there: bool, chunks: Any) -> None:
    x, path = filled((30, 20, 10), "f4"), tmp_path / "x.h5"
    if there:
        save(path, filled((5, 6), "i4"), "other")
    cf.copy(x, f"{path}:/g/x", checksum=True, chunks=chunks, device="cpu")
    with h5py.File(path) as file:
        assert file["g/x"].fletcher32
        assert file["g/x"].chunks == (chunks or x.shape)
        np.testing.assert_array_equal(file["g/x"], x)
        place = file["g/x"].id.get_chunk_info(0).byte_offset
        if there:
            np.testing.assert_array_equal(file["other"], filled((5, 6), "i4"))
    found = cf.verify(f"{path}:/g/x")
    assert (found.damaged, found.checksums) == (0, "fletcher32")
    with path.open("r+b") as raw:
        raw.seek(place)
        raw.write(b"?")
    assert cf.verify(f"{path}:/g/x").damaged == 1
    with pytest.raises(ReadError, match=r"chunk \(0, 0, 0\): .*fletcher32"):
        cf.sum(f"{path}:/g/x", device="cpu")


def test_what_has_no_chunks_has_no_checksums(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"checksum=True: .*x.h5:/x would have none, since .* no chunks"):
        cf.sum(filled((3, 4), "f4"), out=tmp_path / "x.h5:/x", checksum=True, device="cpu")
    assert not os.listdir(tmp_path)


def test_a_dataset_with_checksums_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    save(tmp_path / "x.h5", filled((5, 6), "i4"), "other")
    before = (tmp_path / "x.h5").read_bytes()

    def fails(block: Any) -> Any:
        raise ArithmeticError("in block")

    with pytest.raises(ArithmeticError):
        cf.map(fails, filled((30, 20, 10), "f4"), out=f"{tmp_path}/x.h5:/x", checksum=True, dtype="f4", workspace=0)
    assert (tmp_path / "x.h5").read_bytes() == before
    assert os.listdir(tmp_path) == ["x.h5"]


class TestGroupMemberSink(TestPathSink):
    def make(self, tmp_path: Path, array: np.ndarray, *, overwrite: bool = False) -> Target:
        return open_target(f"{tmp_path / self.name}:/run/speed", overwrite=overwrite)


class TestSinkInAnotherFile(SinkContract):
    """A dataset more in a file that exists."""

    existing, name = False, "x.h5:/run/speed"

    def leave(self, result: Any) -> None:
        result.file.close()

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return HDF5_READERS

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        if not (tmp_path / "x.h5").exists():
            save(tmp_path / "x.h5", np.arange(5))
        return open_target(f"{tmp_path / 'x.h5'}:/run/speed")

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


# -- What is written --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, (7, 9), (200, 50)])
@pytest.mark.parametrize("dtype", ["f4", "?", "c8", "f2", "i8"])
def test_a_result_is_a_plain_dataset(tmp_path: Path, dtype: str, chunks: Any) -> None:
    array = filled((60, 50), dtype)
    target = open_target(f"{tmp_path / 'r.h5'}:/run/u")
    sink = target.open(target.describe(array.shape, array.dtype, chunks))
    sink.write(whole(array.shape), array)
    result = sink.commit()
    assert isinstance(result, h5py.Dataset)
    assert result.file.mode == "r+"
    assert result.name == "/run/u"
    assert result.file.filename == str(tmp_path / "r.h5")
    assert result.chunks == (chunks and (min(60, chunks[0]), min(50, chunks[1])))
    np.testing.assert_array_equal(result[...], array)
    assert list(result.file) == ["run"]
    result.file.close()
    np.testing.assert_array_equal(read(f"{tmp_path / 'r.h5'}:/run/u"), array)


def test_an_aborted_dataset_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    save(path, np.arange(5))
    size = path.stat().st_size
    for chunks in (None, (10, 10)):
        target = open_target(f"{path}:/run/speed")
        sink = target.open(target.describe((1000, 100), np.dtype("f8"), chunks))
        sink.write(whole((1000, 100)), np.ones((1000, 100)))
        sink.abort()
        with h5py.File(path) as file:
            assert list(file) == ["u"]
        assert path.stat().st_size < size + 5000
    assert os.listdir(tmp_path) == ["x.h5"]


def test_results_in_one_new_file(tmp_path: Path) -> None:
    paths = [f"{tmp_path / 'r.h5'}:/{name}" for name in "abc"]
    sinks = [(t := open_target(path)).open(t.describe((3,), np.dtype("i8"), None)) for path in paths]
    for i, sink in enumerate(sinks):
        sink.write(whole((3,)), np.full(3, i))
    sinks[1].abort()
    sinks[2].commit()
    sinks[0].commit()
    assert os.listdir(tmp_path) == ["r.h5"]
    with h5py.File(tmp_path / "r.h5") as file:
        assert {name: file[name][0] for name in file} == {"a": 0, "c": 2}


def test_a_new_file_of_which_all_results_fail_is_removed(tmp_path: Path) -> None:
    sinks = [(t := open_target(f"{tmp_path / 'r.h5'}:/{n}")).open(t.describe((3,), np.dtype("i8"), None)) for n in "ab"]
    for sink in sinks:
        sink.abort()
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_found_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_space, raising=False)
    target = open_target(tmp_path / "r.h5")
    with pytest.raises(WriteError, match="No space left") as caught:
        target.open(target.describe((1000,), np.dtype("f4"), None))
    assert caught.value.errno == errno.ENOSPC
    assert not os.listdir(tmp_path)


def test_a_failed_rename_is_a_write_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(tmp_path / "r.h5")
    sink = target.open(target.describe((3,), np.dtype("f4"), None))
    monkeypatch.setattr(move, "rename_new", no_space)
    with pytest.raises(WriteError, match="cannot finish"):
        sink.commit()
    assert not os.listdir(tmp_path)


def test_a_dataset_that_others_may_see_is_flushed(tmp_path: Path) -> None:
    result = cf.map(np.negative, np.arange(100.0), out=tmp_path / "r.h5", device="cpu")
    code = f"import h5py; print(h5py.File({str(tmp_path / 'r.h5')!r}, locking=False)['data'][...].sum())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert float(found.stdout) == -4950
    del result
    gc.collect()
    with h5py.File(tmp_path / "r.h5", "r+") as file:  # nothing keeps it open for reading only
        assert file["data"][1] == -1


# -- Runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [None, *FILTERS])
@pytest.mark.parametrize("budget", ["100kB", "2MB"])
def test_from_hdf5_to_hdf5(tmp_path: Path, filters: str | None, budget: str) -> None:
    array = filled((60, 50, 20), ">f4")
    options = {"chunks": (16, 25, 7), **FILTERS[filters]} if filters else {}
    path = save(tmp_path / "x.h5", array, "u", **options)
    done = cf.map(lambda a: 2 * a, path, out=tmp_path / "y.h5", budget=budget, device="cpu")
    np.testing.assert_array_equal(done[...], 2 * array)
    assert done.chunks == (options.get("chunks") if filters else None)
    mean = cf.mean(path, axis=1, out=f"{tmp_path / 'y.h5'}:/mean", budget=budget, device="cpu")
    np.testing.assert_allclose(mean[...], array.mean(axis=1), rtol=1e-5)
    assert sorted(done.file) == ["data", "mean"]


@pytest.mark.parametrize("options", [{}, {"chunks": (16, 25)}, {"chunks": (16, 25), **FILTERS["all"]}], ids=str)
def test_a_dataset_is_worked_on_in_place(tmp_path: Path, options: dict[str, Any]) -> None:
    array = filled((60, 50), "f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", data=array, **options)
        for _ in range(2):
            cf.map(lambda a: a + 1, made, out=made, budget="20kB", device="cpu")
        np.testing.assert_array_equal(made[...], array + 2)
        np.testing.assert_array_equal(read(made), array + 2)
        with pytest.raises(ArgumentError, match="overlaps"):
            cf.flip(made, out=made, device="cpu")


@pytest.mark.parametrize("options", [{}, {"chunks": (16, 25), **FILTERS["all"]}], ids=str)
def test_a_result_may_go_into_the_file_of_its_source(tmp_path: Path, options: dict[str, Any]) -> None:
    array = filled((60, 50), "f4")
    path = save(tmp_path / "x.h5", array, **options)
    cf.map(np.negative, path, out=f"{tmp_path / 'x.h5'}:/v", budget="20kB", device="cpu")
    cf.map(lambda a: a + 1, path, out=path, overwrite=True, budget="20kB", device="cpu")
    np.testing.assert_array_equal(read(f"{tmp_path / 'x.h5'}:/v"), -array)
    np.testing.assert_array_equal(read(path), array + 1)


def test_a_result_may_not_go_into_a_file_that_h5py_is_reading(tmp_path: Path) -> None:
    path = save(tmp_path / "x.h5", filled((60, 50), "f4"), chunks=(16, 25), **FILTERS["lzf"])
    with pytest.raises(ArgumentError, match="open for reading only"):
        cf.map(np.negative, path, out=f"{tmp_path / 'x.h5'}:/v", device="cpu")
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        assert list(file) == ["u"]
        cf.map(np.negative, file["u"], out=f"{tmp_path / 'x.h5'}:/v", device="cpu")
        np.testing.assert_array_equal(file["v"][...], -file["u"][...])


def test_a_failed_run_leaves_nothing(tmp_path: Path) -> None:
    def fails(a: Any, block_id: Any) -> Any:
        if block_id[0] == 3:
            raise RuntimeError("no such luck")
        return a

    with pytest.raises(RuntimeError, match="no such luck"):
        cf.map(fails, filled((60, 50), "f4"), out=tmp_path / "r.h5", chunks=(10, -1), device="cpu")
    assert not os.listdir(tmp_path)


def test_several_results_of_one_pass(tmp_path: Path) -> None:
    out = tuple(f"{tmp_path / 'r.h5'}:/{name}" for name in ("low", "high"))
    low, high = cf.map(lambda a: (a - 1, a + 1), np.arange(100.0), out=out, device="cpu")
    np.testing.assert_array_equal(high[...] - low[...], np.full(100, 2.0))


def test_a_fortran_ordered_source_gives_a_dataset_in_c_order(tmp_path: Path) -> None:
    array = filled((60, 50, 7), "f4")
    np.save(tmp_path / "x.npy", np.asfortranarray(array))
    done = cf.map(np.negative, tmp_path / "x.npy", out=tmp_path / "r.h5", budget="50kB", device="cpu")
    np.testing.assert_array_equal(done[...], -array)


def test_many_runs_at_once(tmp_path: Path) -> None:
    array = filled((60, 50), "f4")
    path = save(tmp_path / "x.h5", array, chunks=(16, 25), **FILTERS["all"])

    def run(i: int) -> None:
        cf.map(lambda a: a + i, path, out=f"{tmp_path / 'r.h5'}:/{i}", budget="50kB", device="cpu")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))
    with h5py.File(tmp_path / "r.h5") as file:
        assert sorted(file) == [str(i) for i in range(8)]
        for i in range(8):
            np.testing.assert_array_equal(file[str(i)][...], array + i)


def test_the_plan_says_how_chunks_are_read(tmp_path: Path) -> None:
    path = save(tmp_path / "x.h5", filled((60, 50), "f4"), chunks=(16, 25), **FILTERS["lzf"])
    source = open_source(path)
    assert isinstance(source, Hdf5Source)
    assert source.spec.storage.how == "through h5py, by one thread at a time: shuffle + lzf"
    source.close()


@pytest.mark.parametrize(("shape", "chunks"), [((25,), (10,)), ((25, 23), (10, 8)), ((20, 23), (10, 23))])
def test_chunks_at_the_edge_that_are_not_filtered(shape: Any, chunks: Any, tmp_path: Path) -> None:
    from h5py import h5d, h5p, h5s, h5t

    x = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        how = h5p.create(h5p.DATASET_CREATE)
        how.set_chunk(chunks)
        how.set_deflate(4)
        filter_no_edges(how)
        h5d.create(file.id, b"x", h5t.NATIVE_INT32, h5s.create_simple(shape), how)
        cf.copy(x, out=file["x"], device="cpu")
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["x"][...], x)  # by HDF5 itself
    np.testing.assert_array_equal(cf.copy(f"{tmp_path}/x.h5:/x", device="cpu"), x)


def test_a_contiguous_dataset_is_written_in_runs_and_a_chunked_one_is_not(tmp_path: Path) -> None:
    for name, chunks, whole_rows in (("a.h5", None, True), ("b.h5", (2, 6), False)):
        target = open_target(tmp_path / name)
        sink = target.open(target.describe((4, 6), np.dtype("f4"), chunks))
        run = sink.run((slice(1, 3), slice(0, 6)))
        assert (run is not None) == whole_rows
        assert run is None or run.width == 48
        assert sink.run((slice(1, 3), slice(1, 6))) is None
        sink.abort()


def test_a_dataset_that_cannot_be_put_in_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "x.h5", np.arange(5.0))
    target = open_target(path, overwrite=True)
    sink = target.open(target.describe((3,), np.dtype("f8"), None))
    sink.write(whole((3,)), np.ones(3))
    move, calls = h5py.File.move, []

    def refusing(self: Any, source: str, to: str) -> None:
        calls.append(to)
        if len(calls) == 2:
            raise OSError("not now")
        move(self, source, to)

    with monkeypatch.context() as patch:
        patch.setattr(h5py.File, "move", refusing)
        with pytest.raises(WriteError, match="not now"):
            sink.commit()
    assert len(calls) == 3
    np.testing.assert_array_equal(read(path), np.arange(5.0))
