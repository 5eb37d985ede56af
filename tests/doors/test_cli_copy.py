"""`chunkflow copy`, `convert` and `rechunk`: what they write is read by other programs."""

from __future__ import annotations

import re
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


@pytest.mark.filterwarnings("default")
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
    assert "pip install 'chunkflow-stream[tiff]'" in refused(capsys)


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


@pytest.fixture
def climate() -> str:
    """A file as netCDF has it: packed numbers, with coordinates, one of them times."""
    with h5py.File("climate.nc", "w") as file:
        days, lat = (
            file.create_dataset("time", data=np.arange(8)),
            file.create_dataset("lat", data=np.linspace(0, 1, 16)),
        )
        days.attrs["units"], lat.attrs["units"] = np.bytes_(b"days since 2020-01-01"), "degrees_north"
        bare = file.create_dataset("lon", shape=(16,), dtype=">f4")
        bare.make_scale("This is a netCDF dimension but not a netCDF variable.        16")
        packed = file.create_dataset("t2m", data=(X / 8).astype("i2"), chunks=(4, 16, 16), compression="gzip")
        for axis, scale in enumerate((days, lat, bare)):
            if scale != bare:
                scale.make_scale(scale.name.strip("/"))
            packed.dims[axis].attach_scale(scale)
        said = {"units": "K", "long_name": "temperature", "scale_factor": np.array([0.5]), "add_offset": 280.0}
        for name, value in {**said, "_FillValue": np.array([-1], "i2")}.items():
            packed.attrs[name] = value
    return "climate.nc:t2m"


@pytest.mark.parametrize("decode", ["cf", "raw"])
@pytest.mark.parametrize("out", ["out.zarr/t2m", "deep.zarr/run/t2m"])
@pytest.mark.parametrize("verb", [["convert"], ["rechunk", "--chunks", "all,4,4"]])
def test_a_copy_of_netcdf_is_a_labelled_array(verb: list[str], out: str, decode: str, climate: str) -> None:
    xarray = pytest.importorskip("xarray")
    assert main([*verb, climate, out, "--decode", decode]) == 0
    group = out.rpartition("/")[0]
    assert zarr.open_group(group, mode="r").metadata.consolidated_metadata is not None
    with xarray.open_zarr(group) as found:  # which warns of metadata that are not consolidated
        values = (X / 8).astype("i2") * 0.5 + 280
        np.testing.assert_allclose(found.t2m, values)
        assert found.t2m.dims == ("time", "lat", "lon")
        assert found.t2m.attrs == {"units": "K", "long_name": "temperature"}
        assert found.lat.attrs == {"units": "degrees_north"}
        np.testing.assert_array_equal(found.time, np.datetime64("2020-01-01") + np.arange(8))


@pytest.mark.parametrize("decode", ["cf", "raw"])
def test_a_copy_of_netcdf_is_netcdf(decode: str, climate: str) -> None:
    assert main(["convert", climate, "out.nc:t2m", "--decode", decode]) == 0
    with h5py.File("out.nc") as file:
        assert [next(iter(d.values())).name for d in file["t2m"].dims] == ["/time", "/lat", "/lon"]
        assert file["t2m"].attrs["units"] == "K"
        assert ("scale_factor" in file["t2m"].attrs) == (decode == "raw")
        assert file["time"].attrs["units"] == "days since 2020-01-01"
        assert file["time"].is_scale
        assert list(file["time"]) == list(range(8))
    assert main(["convert", climate, "alone.nc", "--decode", decode]) == 0
    assert cf.open("alone.nc", decode="raw").shape == X.shape


def test_labels_stay_without_a_group(climate: str) -> None:
    assert main(["convert", climate, "t2m.zarr", "--decode", "raw", "--dtype", "f8"]) == 0
    stored = zarr.open_array("t2m.zarr")
    assert stored.metadata.dimension_names == ("time", "lat", "lon")  # type: ignore[union-attr]
    assert stored.attrs.asdict() == {
        "units": "K",
        "long_name": "temperature",
        "scale_factor": 0.5,
        "add_offset": 280.0,
        "_FillValue": -1,
    }


def test_coordinates_that_are_there_stay(climate: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dimension of another length is no scale of a copy."""
    with h5py.File("out.nc", "w") as file:
        file.create_dataset("lat", data=np.arange(3.0)).make_scale("lat")
    assert main(["convert", climate, "out.nc:t2m", "--decode", "cf"]) == 0
    with h5py.File("out.nc") as file:
        assert file["lat"].shape == (3,)
        assert [list(dimension.keys()) for dimension in file["t2m"].dims][:2] == [["time"], []]
    before = sorted(file for file in Path().rglob("*"))
    assert main(["convert", climate, "out.nc:t2m", "--decode", "cf"]) == 2
    assert "exists" in refused(capsys)
    assert sorted(file for file in Path().rglob("*")) == before


@pytest.mark.parametrize("out", ["time.zarr", "time.nc:time"])
def test_times_are_stored_as_cf_has_them(out: str, climate: str) -> None:
    assert main(["convert", "climate.nc:time", out, "--decode", "cf"]) == 0
    times = np.datetime64("2020-01-01") + np.arange(8)
    np.testing.assert_array_equal(cf.open(out, decode="cf").compute(device="cpu"), times)


def test_times_are_not_stored_as_bare_numbers(climate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "climate.nc:time", "time.npy", "--decode", "cf"]) == 2
    assert "--decode raw copies their numbers" in refused(capsys)


@pytest.mark.parametrize(
    ("values", "dtype", "told"),
    [
        ([1.0, np.nan], "i2", "--dtype int16 has no NaN"),
        ([1.0, np.inf], "i2", "--dtype int16 has numbers from -32768 to 32767, and there are 1.0 to inf"),
        ([1.0, 40000.0], "i2", "there are 1.0 to 40000.0"),
        ([-1, 3], "u1", "--dtype uint8 has numbers from 0 to 255, and there are -1 to 3"),
        ([1, 1 << 40], "i4", "there are 1 to 1099511627776"),
    ],
)
def test_numbers_that_a_dtype_lacks_are_refused(
    values: list[float], dtype: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("v.npy", np.array(values))
    for options in ([], ["--decode", "cf"]):
        assert main(["copy", "v.npy", "out.npy", "--dtype", dtype, *options]) == 2
        assert told in refused(capsys)
        assert not Path("out.npy").exists()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("decode", [[], ["--decode", "cf"]])
def test_digits_that_are_cut_off_are_told(decode: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    np.save("v.npy", np.array([280.45, 3.0]))
    assert main(["copy", "v.npy", "out.npy", "--dtype", "i2", *decode]) == 0
    told = capsys.readouterr().err
    assert told == "chunkflow: warning: --dtype int16 cuts off what is behind the decimal point\n"
    np.testing.assert_array_equal(np.load("out.npy"), [280, 3])
    np.save("v.npy", np.array([32767.0, -32768.0]))
    assert main(["copy", "v.npy", "out.npy", "--dtype", "i2", "--overwrite", *decode]) == 0
    assert capsys.readouterr().err == ""


def test_a_dimension_without_a_variable_is_no_coordinate(climate: str) -> None:
    with h5py.File("climate.nc", "a") as file:
        file.create_dataset("bare", data=X[0, 0])
        scale = file.create_dataset("n", shape=(16,), dtype=">f4")
        scale.make_scale("This is a netCDF dimension but not a netCDF variable.        16")
        file["bare"].dims[0].attach_scale(scale)
    assert main(["convert", "climate.nc:bare", "bare.zarr/bare"]) == 0
    assert sorted(zarr.open_group("bare.zarr", mode="r").array_keys()) == ["bare"]


def test_what_is_replaced_keeps_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for version in (2, 3):
        zarr.create_array("x.zarr", data=np.arange(6), chunks=(2,), zarr_format=version, overwrite=True)
        assert main(["copy", "x.zarr", "x.zarr", "--overwrite"]) == 0
        found = zarr.open_array("x.zarr", mode="r")
        assert (found.metadata.zarr_format, found.chunks) == (version, (2,))
        np.testing.assert_array_equal(found[...], np.arange(6))
    capsys.readouterr()


def test_a_compressor_of_hdf5_that_is_asked_for_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hdf5plugin")
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(600.0))
    assert main(["copy", "a.npy", "x.h5:/u", "--compressor", "blosc", "--chunks", "100"]) == 0
    with h5py.File("x.h5") as file:
        np.testing.assert_array_equal(file["u"][...], np.arange(600.0))
    capsys.readouterr()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            ["rechunk", "a.npy", "r.zarr", "--chunks", "auto"],
            "--chunks auto must say a length for each axis, all for a whole",
        ),
        (
            ["copy", "a.npy", "r.zarr", "--compressor", "zsdt"],
            "--compressor zsdt: .*the usual ones are zstd, blosc, lz4 and gzip$",
        ),
        (["copy", "t.npy", "r.zarr"], "has dtype datetime64.* no command takes those"),
    ],
)
def test_messages_have_the_words_of_the_shell(
    line: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.arange(600.0))
    np.save("t.npy", np.zeros(3, "M8[D]"))
    assert main(line) == 2
    assert re.search(said, capsys.readouterr().err, re.MULTILINE)
