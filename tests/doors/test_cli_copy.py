"""`chunkflow copy`, `convert` and `rechunk`: what they write is read by other programs."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow.cli import main

X = np.random.default_rng(0).integers(0, 1000, (8, 16, 16)).astype("f4") / 8


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr().err
    assert told.startswith("chunkflow: error: ")
    assert told.count("\n") == 1
    return told


def test_round_trip(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", "x.npy", "x.zarr", "--chunks", "4,8,all", "--shards", "8,16,16", "--compressor", "gzip"]) == 0
    assert capsys.readouterr().out == "x.zarr: float32 (8, 16, 16), 8.19 kB\n"
    stored = zarr.open_array("x.zarr", mode="r")
    assert (stored.chunks, stored.shards) == ((4, 8, 16), (8, 16, 16))
    assert type(stored.compressors[0]).__name__ == "GzipCodec"
    np.testing.assert_array_equal(stored[...], X)
    assert main(["convert", "x.zarr", "x.h5:/run/x", "--compressor", "gzip", "--chunks", "4,8,8"]) == 0
    with h5py.File("x.h5") as file:
        assert (file["run/x"].chunks, file["run/x"].compression) == ((4, 8, 8), "gzip")
        np.testing.assert_array_equal(file["run/x"][...], X)
    assert main(["convert", "x.h5", "back.bin", "--format", "npy", "--dtype", "f8"]) == 0
    back = np.load("back.bin")
    assert back.dtype == "f8"
    np.testing.assert_array_equal(back, X)


@pytest.mark.parametrize(
    ("options", "name"), [([], "zstd"), (["--compressor", "none"], "none"), (["--zarr-format", "2"], "zstd")]
)
def test_compressors_of_zarr(options: list[str], name: str) -> None:
    assert main(["copy", "x.npy", "x.zarr", *options]) == 0
    stored = zarr.open_array("x.zarr", mode="r")
    assert stored.metadata.zarr_format == (2 if "2" in options else 3)
    kinds = [type(codec).__name__.lower() for codec in stored.compressors]
    assert any("zstd" in kind for kind in kinds) == (name == "zstd")
    np.testing.assert_array_equal(stored[...], X)


def test_a_checksum(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", "x.npy", "x.zarr", "--compressor", "zstd", "--checksum"]) == 0
    assert main(["verify", "x.zarr"]) == 0
    assert "crc32c" in capsys.readouterr().out


def test_overwrite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", "x.npy", "y.npy"]) == 0
    assert main(["copy", "x.npy", "y.npy"]) == 2
    assert "--overwrite" in refused(capsys)
    assert main(["copy", "x.npy", "y.npy", "--overwrite", "--dtype", "i4"]) == 0
    np.testing.assert_array_equal(np.load("y.npy"), X.astype("i4"))


def test_rechunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rechunk", "x.npy", "r.zarr", "--chunks", "all,4,4"]) == 0
    assert "chunks (8, 4, 4)" in capsys.readouterr().out
    stored = zarr.open_array("r.zarr", mode="r")
    assert stored.chunks == (8, 4, 4)
    np.testing.assert_array_equal(stored[...], X)


@pytest.mark.parametrize("options", [[], ["--dtype", "f8"]])
def test_plans_write_nothing(options: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", "x.npy", "y.zarr", "--chunks", "4,4,4", "--explain", *options]) == 0
    assert "in chunks (4, 4, 4)" in capsys.readouterr().out
    assert main(["rechunk", "x.npy", "y.zarr", "--chunks", "4,4,4", "--explain"]) == 0
    assert "1 pass" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["x.npy"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["copy", "none.npy", "y.npy"], "there is no array under"),
        (["copy", "x.npy", "y.npy", "--dtype", "nonsense"], "no dtype"),
        (["copy", "x.npy", "y.zarr", "--compressor", "nope"], "no codec"),
        (["copy", "x.npy", "y.npy", "--chunks", "4,4,4"], "which takes order="),
        (["copy", "x.npy", "y.zarr", "--chunks", "4,4"], "2 entries"),
        (["rechunk", "x.npy", "y.npy", "--chunks", "4,4,4"], "has no chunks"),
    ],
)
def test_mistakes_are_a_line(line: list[str], told: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert told in refused(capsys)
    assert [path.name for path in folder.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("given", ["--chunks=4,0,4", "--chunks=4,x", "--shards=4,all", "--chunks="])
def test_sides_that_are_none(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["copy", "x.npy", "y.zarr", given])
    refused(capsys)


PACKED = {"scale_factor": 0.5, "add_offset": 1.0, "_FillValue": np.int16(-1)}


@pytest.fixture
def packed() -> np.ndarray:
    """Values of packed.h5:/t."""
    with h5py.File("packed.h5", "w") as file:
        file["t"] = np.arange(-1, 11, dtype="i2").reshape(3, 4)
        file["t"].attrs.update(PACKED)
    return np.where(np.arange(-1, 11) < 0, np.nan, np.arange(-1, 11) * 0.5 + 1).reshape(3, 4)


def test_packed_numbers_are_decoded_if_asked(packed: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["copy", "packed.h5:/t", "t.zarr", "--decode", "cf", "--dtype", "f4", "--chunks", "2,2"]) == 0
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(cf.open("t.zarr").compute(), packed)
    assert main(["copy", "packed.h5:/t", "raw.npy", "--decode", "raw"]) == 0
    assert capsys.readouterr().err == ""
    np.testing.assert_array_equal(np.load("raw.npy").reshape(-1), np.arange(-1, 11))


@pytest.mark.parametrize("verb", [["copy"], ["rechunk", "--chunks", "2,2"]])
@pytest.mark.usefixtures("packed")
@pytest.mark.filterwarnings("default::UserWarning")
def test_of_packed_numbers_is_warned_once(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb[0], "packed.h5:/t", "t.zarr", *verb[1:]]) == 0
    told = capsys.readouterr().err
    assert told.count("chunkflow: warning") == 1
    assert "--decode cf gives the values, --decode raw the stored numbers" in told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files stay open to the end
def test_tiff(capsys: pytest.CaptureFixture[str]) -> None:
    tifffile = pytest.importorskip("tifffile")
    x = np.arange(3 * 32 * 48, dtype="u2").reshape(3, 32, 48)
    tifffile.imwrite("plain.tif", x, photometric="minisblack")
    tifffile.imwrite("tiles.tif", x, compression="zlib", tile=(16, 16), photometric="minisblack")
    for i, plane in enumerate(x):
        tifffile.imwrite(f"frame{i}.tif", plane)
    for path in ("plain.tif", "tiles.tif", "frame*.tif"):
        assert main(["copy", path, "x.zarr", "--overwrite"]) == 0
        np.testing.assert_array_equal(zarr.open_array("x.zarr")[...], x)
        assert main(["run", "a.max(axis=0)", path, "x.npy", "--overwrite"]) == 0
        np.testing.assert_array_equal(np.load("x.npy"), x[2])
    assert main(["copy", "plain.tif", "x.zarr", "--overwrite", "--resume"]) == 0
    assert main(["copy", "x.zarr", "y.tif"]) == 0
    np.testing.assert_array_equal(tifffile.imread("y.tif"), x)
    assert main(["copy", "x.zarr", "y.tif", "--overwrite", "--chunks", "1,16,16"]) == 2
    capsys.readouterr()
    assert main(["copy", "none*.tif", "x.zarr", "--overwrite"]) == 2
    assert "none*.tif: no file matches the pattern" in refused(capsys)
    Path("wrong.tif").write_bytes(b"no image")
    assert main(["stats", "wrong.tif"]) == 1
    assert "tifffile cannot read wrong.tif" in refused(capsys)


def test_a_directory_of_tiffs_is_opened_by_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiffs").mkdir()
    Path("tiffs/a.tif").touch()
    assert main(["stats", "tiffs"]) == 2
    assert "tiffs is a directory, and no zarr array: 'tiffs/*.tif' is one array of its files ('a.tif')" in refused(
        capsys
    )


def test_tiff_without_its_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    Path("x.tif").touch()
    assert main(["stats", "x.tif"]) == 2
    assert "pip install tifffile" in refused(capsys)


@pytest.mark.filterwarnings("default::UserWarning")
def test_netcdf_3(capsys: pytest.CaptureFixture[str]) -> None:
    netcdf_file = pytest.importorskip("scipy.io").netcdf_file
    pytest.importorskip("xarray")
    with netcdf_file("old.nc", "w") as file:
        file.createDimension("x", 12)
        variable = file.createVariable("t", "i2", ("x",))
        variable[:] = np.arange(12)
        variable.scale_factor = 0.5
    assert main(["copy", "old.nc:/t", "t.npy"]) == 0
    assert "scale_factor=0.5. --decode cf gives the values" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load("t.npy"), np.arange(12))
    assert main(["copy", "old.nc", "values.zarr", "--decode", "cf", "--chunks", "4"]) == 0
    np.testing.assert_array_equal(zarr.open_array("values.zarr")[...], np.arange(12) / 2)
    capsys.readouterr()
    assert main(["stats", "old.nc:u"]) == 2
    assert "old.nc holds 't': add the name of one, as in 'old.nc:t'" in refused(capsys)
