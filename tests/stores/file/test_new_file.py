"""Arrays in two files: elements, and a header beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.positions import full_disk

from chunkflow.core.grid import whole
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, OutputExistsError, WriteError
from chunkflow.stores import Target
from chunkflow.stores.file.new_file import NewFileTarget
from chunkflow.stores.publication import move
from chunkflow.testing import PathSinkContract, filled


class ImageTarget(NewFileTarget):
    """Elements in ``x.img``, their shape and dtype in ``x.hdr``."""

    kind = "an image"

    def replaces(self, path: str) -> bool:
        header = Path(path).with_suffix(".hdr")
        return header.is_file() and header.read_text().startswith("image")

    def beside(self, spec: ArraySpec) -> dict[str, bytes]:
        sides = " ".join(map(str, spec.shape))
        return {f"{Path(self.name).stem}.hdr": f"image {spec.dtype.str} {sides}".encode()}


class TestImageSink(PathSinkContract):
    name = "result.img"
    beside = ("result.hdr",)
    test_a_result_in_fortran_order = None  # it has none
    test_what_is_left_of_its_files_is_no_foreign_error = None  # its source is NumPy
    test_a_missing_directory_is_named = None  # no path has this format

    def make(self, tmp_path: Path, array: np.ndarray, *, overwrite: bool = False) -> Target:
        return ImageTarget(self.at(tmp_path), overwrite=overwrite)

    def stored(self, tmp_path: Path) -> np.ndarray:
        return read(Path(os.path.realpath(self.at(tmp_path))))

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


def read(path: Path) -> np.ndarray:
    _, dtype, *sides = path.with_suffix(".hdr").read_text().split()
    return np.fromfile(path, dtype).reshape([int(side) for side in sides])


def written(path: Path, array: np.ndarray) -> Any:
    target = ImageTarget(path, overwrite=True)
    sink = target.open(target.describe(array.shape, array.dtype, None))
    if array.size:
        sink.write(whole(array.shape), array)
    return sink


@pytest.mark.parametrize("shape", [(3, 4), (), (0, 4)])
def test_the_result_is_mapped_where_it_can_be(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = filled(shape, "i4")
    result = written(tmp_path / "x.img", array).commit()
    np.testing.assert_array_equal(result, array)
    assert result.dtype == array.dtype
    if array.size:
        assert isinstance(result, np.memmap)
        result[...] = 7
        assert (np.fromfile(tmp_path / "x.img", "i4") == 7).all()


@pytest.mark.parametrize("step", range(3))
def test_a_rename_that_fails_never_leaves_a_wrong_header(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The elements and the header are exchanged with the old ones, both or none."""
    old, new = filled((3, 4), "i4"), filled((4, 3), "f4")
    written(tmp_path / "x.img", old).commit()
    sink, exchange, left = written(tmp_path / "x.img", new), move.exchange, step

    def failing(*paths: str) -> bool:
        nonlocal left
        left -= 1
        if left == -1:
            raise PermissionError("not yours")
        return exchange(*paths)

    monkeypatch.setattr(move, "exchange", failing)
    if step < 2:
        with pytest.raises(WriteError, match="not yours"):
            sink.commit()
    else:
        sink.commit()
    assert sorted(os.listdir(tmp_path)) == ["x.hdr", "x.img"]
    np.testing.assert_array_equal(read(tmp_path / "x.img"), old if step < 2 else new)


def test_a_folder_under_the_name_of_a_header_is_kept(tmp_path: Path) -> None:
    (tmp_path / "x.hdr").mkdir()
    with pytest.raises(OutputExistsError, match="remove it"):
        ImageTarget(tmp_path / "x.img", overwrite=True)
    (tmp_path / "x.img").write_bytes(b"dear")
    with pytest.raises(ArgumentError, match="not overwritten"):
        ImageTarget(tmp_path / "x.img", overwrite=True)
    assert (tmp_path / "x.hdr").is_dir()
