"""TIFF files, which tifffile reads."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ReadError, SourceNotFoundError

tifffile: Any = pytest.importorskip("tifffile")

X = np.arange(3 * 32 * 48, dtype="u2").reshape(3, 32, 48)
PATHS = ("plain.tif", "tiles.tif", "frames/*.TIF")
CPU: dict[str, Any] = {"device": "cpu"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tifffile.imwrite("plain.tif", X, photometric="minisblack")
    tifffile.imwrite("tiles.tif", X, compression="zlib", tile=(16, 16), photometric="minisblack")
    Path("frames").mkdir()
    for i, plane in enumerate(X):
        tifffile.imwrite(f"frames/{i}.TIF", plane)
    return tmp_path


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_an_array(path: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = cf.open(path)
    assert (lazy.shape, lazy.dtype) == (X.shape, X.dtype)
    call: dict[str, Any] = {"out": "o.npy", "resume": True, **CPU}
    np.testing.assert_array_equal(cf.map(np.negative, path, **call), -X)
    again = pickle.loads(pickle.dumps(lazy.max(axis=0)))
    monkeypatch.chdir("/")  # a relative path is one from where it was opened
    np.testing.assert_array_equal(again.compute(**CPU), X[2])


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_was_changed_meanwhile_is_refused(path: str, folder: Path) -> None:
    changed = next(iter(sorted(folder.glob(path))))

    def change(block: np.ndarray) -> np.ndarray:
        tifffile.imwrite(changed, X[0, :16])
        return block

    with pytest.raises(ReadError, match="changed"):
        cf.map(change, path, dtype="u2", workspace=0, chunks=(1, -1, -1), **CPU)


def test_what_cannot_be_read_is_refused(folder: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"none\*\.tif: no file matches the pattern"):
        cf.open("none*.tif")
    Path("wrong.tif").write_bytes(b"no image")
    with pytest.raises(ReadError, match=r"tifffile cannot read wrong\.tif"):
        cf.open("wrong.tif")


def write(path: str, values: np.ndarray, **options: Any) -> None:
    byteorder = ">" if values.dtype.byteorder == ">" else "<"
    tifffile.imwrite(path, values, photometric="minisblack", byteorder=byteorder, **options)


@pytest.fixture
def frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.chdir(tmp_path)
    found = np.arange(4 * 64 * 64, dtype="u2").reshape(4, 64, 64)
    for i, frame in enumerate(found):
        write(f"f{i}.tif", frame)
    return found


ODD = {
    "another dtype": np.arange(-3000, 1096, dtype="i2").reshape(64, 64),
    "floats": np.ones((64, 64), "f2"),
    "wider elements": np.ones((32, 64), "f4"),
    "longer lines": np.ones((32, 128), "u2"),
    "shorter lines": np.ones((128, 32), "u2"),
    "two pages": np.ones((2, 32, 64), "u2"),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(("changed", "named"), [(2, 2), (0, 1)])
def test_a_frame_of_another_dtype_or_shape_is_refused(odd: str, changed: int, named: int, frames: np.ndarray) -> None:
    values = {True: f"{ODD[odd].dtype} {ODD[odd].shape}", False: "uint16 (64, 64)"}
    write(f"f{changed}.tif", ODD[odd])
    told = re.escape(f"f{named}.tif holds {values[changed == named]}, but the first file, ")
    told += (
        f"\\S+f0.tif, {re.escape(values[changed == 0])}, .*`chunkflow verify '/\\S+/f\\*.tif'` finds all files like it"
    )
    with pytest.raises(ReadError, match=told):
        cf.open("f*.tif").compute(**CPU)
    with pytest.raises(ReadError, match=told):
        cf.copy("f*.tif", "o.npy", **CPU)
    assert not Path("o.npy").exists()
    found = cf.verify("f*.tif")
    assert found.damaged == (1 if changed else 3)
    assert found.damages[0].where.endswith(f"/f{named}.tif")
    assert f"f{named}.tif holds {values[changed == named]}, but the first file" in str(found)


def test_frames_in_another_byte_order_are_the_same_numbers(frames: np.ndarray) -> None:
    write("f2.tif", frames[2].astype(">u2"))
    np.testing.assert_array_equal(cf.open("f*.tif").compute(**CPU), frames)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("kept", [0, 5000])
def test_a_damaged_frame_is_named(kept: int, compression: str | None, frames: np.ndarray) -> None:
    for changed in (2, 0):  # the first one is read when they are opened
        write(f"f{changed}.tif", frames[changed], compression=compression)
        with open(f"f{changed}.tif", "r+b") as file:
            file.truncate(kept)
        with pytest.raises(ReadError, match=rf"/f{changed}.tif is damaged, or no TIFF file: \w+"):
            cf.open("f*.tif").compute(**CPU)
        assert f"/f{changed}.tif is damaged" in str(cf.verify("f*.tif"))


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_zeros_are_no_missing_values(compression: str | None, frames: np.ndarray) -> None:
    write("x.tif", frames, compression=compression)
    for path in ("x.tif", "f*.tif"):
        found = cf.open(path, decode="cf").compute(**CPU)
        assert found.dtype == "u2"
        np.testing.assert_array_equal(found, frames)
