"""TIFF files that are written, which other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image, ImageSequence
from support.positions import full_disk

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores.file import tiff
from chunkflow.testing import ForeignReader, PathSinkContract

tifffile: Any = pytest.importorskip("tifffile")
CPU: dict[str, Any] = {"device": "cpu"}


class TestTiffSink(PathSinkContract):
    name = "result.tif"
    dtypes: ClassVar[tuple[str, ...]] = ("f4", "u1", "c16", "i2", "f2")

    def foreign_readers(self) -> list[ForeignReader]:
        return [ForeignReader("tifffile", tifffile.imread)]

    @pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed"])
    @pytest.mark.parametrize("shape", [(9, 7, 8), (130, 65), (1, 1), ()])  # no page is empty
    def test_the_whole_array_at_once(self, tmp_path: Path, shape: tuple[int, ...], layout: str) -> None:
        super().test_the_whole_array_at_once(tmp_path, shape, layout)

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        full_disk(monkeypatch)


def by_pillow(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    with Image.open(path) as image:  # matplotlib brings it
        pages = [np.array(page) for page in ImageSequence.Iterator(image)]
    return np.reshape(pages, shape)


@pytest.mark.parametrize("layout", [tiff.CLASSIC, tiff.BIG], ids=["classic", "big"])
@pytest.mark.parametrize("shape", [(7,), (4, 6), (3, 4, 6), (2, 3, 4, 6)])
def test_other_programs_read_all_pages(
    shape: tuple[int, ...], layout: tiff.TagLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiff, "CLASSIC", layout)
    path = tmp_path / "o.tif"
    for dtype in ("u1", "u2", "i4", "f4"):
        x = (np.arange(np.prod(shape)).reshape(shape) + 1).astype(dtype)
        cf.copy(x, path, overwrite=True, chunks=(1, *shape[1:]), **CPU)
        with tifffile.TiffFile(path) as file:
            assert file.is_bigtiff == (layout is tiff.BIG)
            assert (len(file.pages), len(file.series)) == (np.prod(shape[:-2]), 1)
            np.testing.assert_array_equal(file.asarray(), x)
        np.testing.assert_array_equal(by_pillow(path, shape), x)
        np.testing.assert_array_equal(cf.open(path).compute(**CPU), x)


def test_more_than_four_gigabytes_make_a_big_tiff() -> None:
    assert tiff.header((3, 1 << 15, 1 << 15), np.dtype("u1"))[2] == 42
    assert tiff.header((4, 1 << 15, 1 << 15), np.dtype("u1"))[2] == 43


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.ones((3, 3), bool), r"TIFF has no bool: .*astype\('u1'\)"),
        (np.ones((0, 3)), "none of them empty"),
        (np.ones((tiff.MOST_PAGES + 1, 1, 1), "u1"), "is 65537 pages"),
    ],
)
def test_what_no_file_holds_is_refused(x: np.ndarray, said: str, tmp_path: Path) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=said):
        cf.copy(x, tmp_path / "o.tif", **CPU)
    with pytest.raises(ArgumentError, match="in the format TIFF, which takes none"):
        cf.copy(np.ones((3, 3)), cf.NewArray(tmp_path / "o.tif", chunks=(1, 1)), **CPU)
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    x, calls = np.arange(24.0 * 16).reshape(24, 4, 4), list[int]()

    def fails(block: np.ndarray) -> np.ndarray:
        calls.append(1)
        if len(calls) == 12:
            raise InterruptedError
        return -block

    call: dict[str, Any] = {"chunks": (1, -1, -1), "resume": True, "name": "it", "dtype": "f8", "workspace": 0, **CPU}
    with pytest.raises(InterruptedError):
        cf.map(fails, x, out=tmp_path / "o.tif", **call)
    cf.map(fails, x, out=tmp_path / "o.tif", **call)
    assert len(calls) < 2 * 24
    np.testing.assert_array_equal(tifffile.imread(tmp_path / "o.tif"), -x)
