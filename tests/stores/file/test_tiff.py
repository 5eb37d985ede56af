"""TIFF files that are written, which other programs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image, ImageSequence
from support.positions import full_disk

import chunkflow as cf
from chunkflow.cli.command import main
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


def by_store(x: np.ndarray, path: Path) -> Any:
    return cf.store(np.maximum(cf.open(x), x), path, **CPU)


def by_map(x: np.ndarray, path: Path) -> Any:
    return cf.map(lambda a: a.copy(), x, out=path, **CPU)


def by_opened(x: np.ndarray, path: Path) -> Any:
    return cf.store(cf.open(x), path, **CPU)


def by_copy(x: np.ndarray, path: Path) -> Any:
    return cf.copy(x, path, **CPU)


def by_maximum(x: np.ndarray, path: Path) -> Any:
    return cf.max(x[None], axis=0, out=path, **CPU)


def by_filter(x: np.ndarray, path: Path) -> Any:
    return cf.map_overlap(lambda a: a.copy(), x, depth=1, out=path, **CPU)


WRITERS = (by_store, by_map, by_opened, by_copy, by_maximum, by_filter)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6)])
def test_results_of_every_door_are_files(shape: tuple[int, ...], dtype: str, write: Any, tmp_path: Path) -> None:
    x = (np.arange(np.prod(shape)).reshape(shape) + 1).astype(dtype)
    write(x, tmp_path / "o.tif")
    read = tifffile.imread(tmp_path / "o.tif")
    assert read.dtype == x.dtype
    np.testing.assert_array_equal(read, x)
    if dtype != "f8":  # which Pillow does not read
        np.testing.assert_array_equal(by_pillow(tmp_path / "o.tif", shape), x)


@pytest.mark.parametrize("write", WRITERS)
def test_bools_of_every_door_are_refused(write: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"TIFF has no bool: .*astype\('u1'\)"):
        write(np.ones((3, 4), bool), tmp_path / "o.tif")
    assert not list(tmp_path.iterdir())


def test_what_is_computed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.arange(4 * 5 * 6, dtype="u2").reshape(4, 5, 6)
    for i, page in enumerate(x):
        tifffile.imwrite(f"in_{i}.tif", page)
    t = cf.open("in_*.tif")
    cf.store((t - t.mean(axis=0)).astype("f4"), "d.tif", **CPU)
    cf.mean("in_*.tif", axis=0, out="mean.tif", **CPU)
    cf.store((t.max(axis=0), (t > 50).astype("u1")), ("max.tif", "mask.tif"), **CPU)
    cf.map(lambda a: (-a.astype("i4"), a / 2), "in_*.tif", out=("minus.tif", "half.tif"), **CPU)
    wanted = {"d": (x - x.mean(axis=0)).astype("f4"), "mean": x.mean(axis=0), "max": x.max(axis=0), "mask": x > 50}
    for name, of in (wanted | {"minus": -x.astype("i4"), "half": x / 2}).items():
        np.testing.assert_allclose(tifffile.imread(f"{name}.tif"), of, rtol=1e-6)


def test_results_of_commands_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.arange(4 * 5 * 6, dtype="u2").reshape(4, 5, 6)
    np.save("x.npy", x)
    for arguments in (("run", "a.max(axis=0)"), ("run", "(a>50).astype('u1')"), ("copy",)):
        assert main([*arguments, "x.npy", "o.tif", "--overwrite", "--device", "cpu"]) == 0
        of = {"run": x.max(axis=0) if "max" in arguments[-1] else x > 50, "copy": x}[arguments[0]]
        np.testing.assert_array_equal(tifffile.imread("o.tif"), of)
    assert main(["run", "a>50", "x.npy", "mask.tif", "--device", "cpu"]) == 2
    assert not Path("mask.tif").exists()


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
