"""TIFF files, which tifffile reads."""

from __future__ import annotations

import pickle
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
