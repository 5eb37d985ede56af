from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy_format
from support.foreign import NPY_READERS, NPY_WRITERS
from support.positions import full_disk, no_space

from chunkflow.core.grid import whole
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError, WriteError
from chunkflow.stores import Source, open_source, open_target
from chunkflow.stores.publication import move
from chunkflow.testing import ForeignReader, ForeignWriter, PathSinkContract, SourceContract, filled


def save(path: Path, array: np.ndarray, version: tuple[int, int] | None = None) -> Path:
    with path.open("wb") as file:
        npy_format.write_array(file, array, version=version, allow_pickle=False)
    return path


class TestNpySource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(save(tmp_path / "volume.npy", array))

    def foreign_writers(self) -> Sequence[ForeignWriter]:
        return NPY_WRITERS


class TestFortranNpySource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(save(tmp_path / "volume.npy", np.asarray(array, order="F")))


class TestNpySink(PathSinkContract):
    name = "result.npy"

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return NPY_READERS

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_version_is_read(tmp_path: Path, version: tuple[int, int], order: Any) -> None:
    array = np.asarray(filled((5, 6), ">f4"), order=order)
    source = open_source(str(save(tmp_path / "volume.npy", array, version)))
    assert source.spec.order == ((0, 1) if order == "C" else (1, 0))
    out = np.empty((5, 6), "f4")
    source.read(whole((5, 6)), out)
    source.close()
    np.testing.assert_array_equal(out, array)


def test_a_truncated_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = save(tmp_path / "volume.npy", filled((100, 100), "f4"))
    os.truncate(path, 20_000)
    with pytest.raises(ReadError, match=r"20000 bytes.*40128") as caught:
        open_source(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("size", [6, 8, 40])
def test_a_truncated_header_is_a_read_error(tmp_path: Path, size: int) -> None:
    path = save(tmp_path / "volume.npy", filled((100, 100), "f4"))
    os.truncate(path, size)
    with pytest.raises(ReadError, match="header"):
        open_source(path)


def test_a_negative_side_is_a_read_error(tmp_path: Path) -> None:
    path = tmp_path / "volume.npy"
    with path.open("wb") as file:
        npy_format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (-3, -4)})
        file.write(bytes(1000))
    with pytest.raises(ReadError, match="header"):
        open_source(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip file", b"\x93NUMPY\x09\x00"])
def test_another_format_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "volume.npy"
    path.write_bytes(content)
    with pytest.raises((ArgumentError, ReadError), match=r"volume\.npy"):
        open_source(path)


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "m8[s]", "i4,f4"])
def test_other_dtypes_are_refused_and_objects_never_unpickled(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "volume.npy"
    with path.open("wb") as file:
        descr = npy_format.dtype_to_descr(np.dtype(dtype))
        npy_format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (3,)})
        file.write(b"cos\nsystem\n")
    with pytest.raises(ArgumentTypeError, match=r"volume\.npy has dtype"):
        open_source(path)


def test_the_file_that_is_written_is_numpy_s_own(tmp_path: Path) -> None:
    array = filled((5, 6), "c8")
    target = open_target(tmp_path / "result.npy")
    sink = target.open(target.describe(array.shape, array.dtype, None))
    sink.write(whole(array.shape), array)
    result = sink.commit()
    assert isinstance(result, np.memmap)
    assert result.flags.writeable
    save(tmp_path / "expected.npy", array)
    assert (tmp_path / "result.npy").read_bytes() == (tmp_path / "expected.npy").read_bytes()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_full_disk_is_found_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    target = open_target(tmp_path / "result.npy")
    spec = target.describe((1000,), np.dtype("f4"), None)
    with pytest.raises(WriteError, match="No space left") as caught:
        target.open(spec)
    assert caught.value.errno == errno.ENOSPC
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("code", [errno.EBADF, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_cannot_reserve_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    array = filled((1000,), "f4")
    target = open_target(tmp_path / "result.npy")
    sink = target.open(target.describe(array.shape, array.dtype, None))
    sink.write(whole(array.shape), array)
    np.testing.assert_array_equal(sink.commit(), array)


def test_a_failed_rename_is_a_write_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(tmp_path / "result.npy")
    sink = target.open(target.describe((3,), np.dtype("f4"), None))
    monkeypatch.setattr(move, "rename_new", no_space)
    with pytest.raises(WriteError, match="cannot finish"):
        sink.commit()
    assert not os.listdir(tmp_path)


def test_a_link_is_followed_and_an_empty_file_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "real.npy").touch()
    (tmp_path / "link.npy").symlink_to("real.npy")
    target = open_target(tmp_path / "link.npy", overwrite=True)
    target.open(target.describe((3,), np.dtype("f4"), None)).commit()
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").shape == (3,)


def test_a_file_in_another_format_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "result.npy").write_bytes(b"a thesis")
    with pytest.raises(ArgumentError, match="not overwritten"):
        open_target(tmp_path / "result.npy", overwrite=True)
    assert (tmp_path / "result.npy").read_bytes() == b"a thesis"


def test_the_working_directory_may_change_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = open_target("result.npy")
    sink = target.open(target.describe((3,), np.dtype("f4"), None))
    monkeypatch.chdir("/")
    sink.write(whole((3,)), np.ones(3, "f4"))
    sink.commit()
    assert os.listdir(tmp_path) == ["result.npy"]


def test_the_input_itself_may_be_overwritten(tmp_path: Path) -> None:
    array = filled((4, 5), "f4")
    path = save(tmp_path / "volume.npy", array)
    source, target = open_source(path), open_target(path, overwrite=True)
    sink = target.open(target.describe(array.shape, array.dtype, None))
    out = np.empty_like(array)
    for start in range(4):
        region = (slice(start, start + 1), slice(0, 5))
        source.read(region, out[region])
        sink.write(region, -out[region])
    sink.commit()
    source.close()
    np.testing.assert_array_equal(np.load(path), -array)
