"""`chunkflow info`, `doctor` and `completion`; and how the program ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from support.compiled import CompiledDevice
from support.devices import machine

import chunkflow as cf
from chunkflow.cli import command, doctor, info, main
from chunkflow.system import native


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cf.config.config, "device", "cpu")
    monkeypatch.delenv("CHUNKFLOW_DEBUG", raising=False)


def test_info_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    told = capsys.readouterr().out
    assert f"chunkflow              {cf.__version__}" in told
    assert f"numpy                  {np.__version__}" in told
    assert "zstd" in told


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.arange(2 * 4 * 6, dtype="u2").reshape(2, 4, 6)
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("fields/u", data=x, chunks=(1, 4, 6), compression="gzip")
        file["v"], file["names"] = x[0], ["a", "b"]
    group = zarr.open_group("g.zarr", mode="w")
    group.create_array("0", data=x, chunks=(1, 2, 6))
    group.create_array("labels/cells", data=x, chunks=(2, 4, 6), compressors=None)
    np.save("x.npy", x)
    np.save("t.npy", x[0].astype("M8[s]"))


def test_info_of_files(files: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "a.h5", "g.zarr", "x.npy", "t.npy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a.h5:/fields/u: uint16 (2, 4, 6), 96 B, chunks (1, 4, 6), read directly: gzip"
    assert "a.h5:/names: " in lines[1]
    assert "has dtype object" in lines[1]
    assert lines[2:] == [
        "a.h5:/v: uint16 (4, 6), 48 B",
        "g.zarr/0: uint16 (2, 4, 6), 96 B, chunks (1, 2, 6), read directly: zstd",
        "g.zarr/labels/cells: uint16 (2, 4, 6), 96 B, chunks (2, 4, 6), read directly: raw",
        "x.npy: uint16 (2, 4, 6), 96 B",
        "t.npy: datetime64[s] (4, 6), 192 B",
    ]
    for path in [line.partition(": ")[0] for line in (lines[0], *lines[2:])]:  # which other commands take
        assert cf.open(path).shape in ((2, 4, 6), (4, 6))
    assert main(["info", "a.h5:/fields", "a.h5:/v"]) == 0
    assert [line.split(":")[1] for line in capsys.readouterr().out.splitlines()] == ["/fields/u", "/v"]


def test_info_of_other_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    netcdf, tifffile = pytest.importorskip("scipy.io").netcdf_file, pytest.importorskip("tifffile")
    monkeypatch.chdir(tmp_path)
    with netcdf("n.nc", "w") as file:
        file.createDimension("t", 5)
        for name in ("t2m", "t"):
            file.createVariable(name, "f4", ("t",))[:] = 1
    for i in range(2):
        tifffile.imwrite(f"{i}.tif", np.ones((4, 6), "u1"))
    zarr.create_array("raw.zarr", shape=(2, 800, 800), chunks=(1, 800, 800), dtype="u2", compressors=None)
    assert main(["info", "n.nc", "n.nc:t", "*.tif", "raw.zarr"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n.nc:t2m: float32 (5,), 20 B, dimensions (t), read through xarray",
        "n.nc:t: float32 (5,), 20 B, dimensions (t), read through xarray",
        "n.nc:t: float32 (5,), 20 B, dimensions (t), read through xarray",
        "*.tif: uint8 (2, 4, 6), 48 B, chunks (1, 4, 6), read through zarr: ZarrFileSequenceStore",
        "raw.zarr: uint16 (2, 800, 800), 2.56 MB, chunks (1, 800, 800), read directly: raw",
    ]


def test_info_of_files_for_programs(files: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "a.h5", "--json"]) == 0
    first, names, last = json.loads(capsys.readouterr().out)
    wanted = {"path": "a.h5:/fields/u", "dtype": "uint16", "shape": [2, 4, 6], "bytes": 96, "chunks": [1, 4, 6]}
    assert first == {**wanted, "read": "directly: gzip", "dimensions": None, "attributes": {}}
    assert set(names) == {"path", "error"}
    assert (last["chunks"], last["read"]) == (None, "")


PACKED = {"units": "K", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -1}


@pytest.mark.parametrize("path", ["n.nc:/t", "n.nc:t", "2.zarr", "3.zarr"])
def test_info_says_what_numbers_mean(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.ones((2, 3), "i2")
    if path == "n.nc:t":
        with pytest.importorskip("scipy.io").netcdf_file("n.nc", "w") as old:
            for name, n in zip("yx", x.shape, strict=True):
                old.createDimension(name, n)
            variable = old.createVariable("t", "i2", ("y", "x"))
            for name, value in PACKED.items():
                setattr(variable, name, np.float64(value) if isinstance(value, float) else value)
    else:
        version = int(path[0]) if path.endswith("zarr") else None
        how = {"zarr_format": version, "fill_value": None} if version == 2 else {}
        cf.copy(x, cf.NewArray(path, dimension_names=("y", "x"), attributes=PACKED, **how), device="cpu")
    assert main(["info", path]) == 0
    said = ", dimensions (y, x), units K, packed as int16 * 0.01 + 273.15, missing values stored as -1"
    assert said in capsys.readouterr().out
    assert main(["info", path, "--json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)
    assert (about["dimensions"], about["attributes"]) == (["y", "x"], PACKED)


def test_info_has_no_nan_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = {"_FillValue": np.nan, "missing_value": [1.0, 2.0], "_Unsigned": np.bytes_(b"true")}
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("v", data=np.ones(3)).attrs.update(said)
    assert main(["info", "a.h5"]) == 0
    assert capsys.readouterr().out == "a.h5:/v: float64 (3,), 24 B, missing values stored as 1.0, 2.0\n"
    assert main(["info", "a.h5", "--json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)
    assert about["attributes"] == {"_FillValue": "nan", "missing_value": [1.0, 2.0], "_Unsigned": "true"}


@pytest.mark.parametrize("path", ["nope.zarr", "a.h5:/w", "."])
def test_info_of_what_is_not_there(path: str, files: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", path]) == 2
    assert capsys.readouterr().err.startswith("chunkflow: error: ")


def test_what_is_opened_shows_its_chunks(files: None) -> None:
    x = cf.open("g.zarr/0")
    assert repr(x).endswith("g.zarr/0: (2, 4, 6), uint16, chunks (1, 2, 6)>")
    assert "chunks" not in repr(x + 1)
    for name in ("chunks", "rechunk"):
        with pytest.raises(AttributeError, match=rf"no {name}: .*repr\(\).*to_zarr\(path, chunks=.*chunkflow\.rechunk"):
            getattr(x, name)


def test_info_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CHUNKFLOW_EXAMPLE", "s3://me:secret@host/x")
    assert main(["info", "--json"]) == 0
    shown = capsys.readouterr().out
    assert "secret" not in shown
    found = json.loads(shown)
    assert found["versions"]["python"] == sys.version.split()[0]
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory"] > 1 << 28
    assert found["chunkflow"]["compiled loops"] == native.complete


def test_info_says_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise OSError("driver is gone")

    monkeypatch.setattr(info, "codecs", fail)
    assert info.gathered()["chunkflow"]["decodes itself"] == "OSError: driver is gone"


def test_a_containers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "_MEMORY_LIMIT", tmp_path / "memory.max")
    assert info.machine()["container's limit"] is None
    (tmp_path / "memory.max").write_text("max\n")
    assert info.machine()["container's limit"] is None
    (tmp_path / "memory.max").write_text("4000000000\n")
    assert info.machine()["container's limit"] == 4_000_000_000


def test_info_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(
        name="cuda:0",
        model="NVIDIA H100",
        free_memory=lambda: 80_000_000_000,
        machine=SimpleNamespace(decodings=(SimpleNamespace(codec="zstd"), SimpleNamespace(codec="lz4"))),
    )
    kind = SimpleNamespace(folder="cuda", module=SimpleNamespace(count=lambda: 1, device=lambda i: gpu))
    monkeypatch.setattr(info, "KINDS", (kind, info.CPU))
    monkeypatch.setattr(info.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(info, "_nvml", lambda name: {"memory": 85_000_000_000, "driver": "550", "link": "PCIe 5 x16"})
    found = info.devices()["cuda:0"]
    assert found["decodes"] == ["lz4", "zstd"]
    told = info._text("cuda:0", found)
    assert "model NVIDIA H100, free 80.00 GB, memory 85.00 GB, driver 550, link PCIe 5 x16" in told


@pytest.mark.usefixtures("_small")
def test_doctor_of_a_device_with_its_own_memory() -> None:
    device = CompiledDevice(machine=machine(staged=True))
    device.model = "NVIDIA H100"
    found = {each.what: each for each in doctor._gpu(device, np.ones((1024, 1024), "f4"))}
    assert {"GPU", "link, upload", "link, download", "pinned memory", "decoding on GPU"} <= found.keys()
    assert "nvcomp" in found["decoding on GPU"].mend


def test_info_shows_what_is_wrong_in_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHUNKFLOW_BUDGTE", "1GB")
    monkeypatch.setitem(cf.config.config, "threads", "many")
    monkeypatch.setitem(cf.config.config, "temporary_directory", "/no/such")
    assert main(["info"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"threads +many \(config.set; refused: threads='many'", told)
    assert re.search(r"CHUNKFLOW_BUDGTE +1GB \(environment; no such setting: misspelt\?\)", told)


def test_info_imports_nothing_heavy() -> None:
    script = (
        "import sys; from chunkflow.cli import main; main(['info']);"
        "print(*(name for name in ('cupy', 'dask', 'h5py', 'xarray', 'torch') if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not done.stderr.strip()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NBYTES", 4 << 20)
    monkeypatch.setattr(doctor, "CHUNK", 64 << 10)
    monkeypatch.setattr(doctor, "READS", 3)


@pytest.mark.usefixtures("_small")
def test_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dir", str(tmp_path), "--json"]) == 0
    found = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    for name in ("memory", "disk, written", "disk, read", "compiled loops", "zstd decoded", "calibration"):
        assert found[name]["verdict"] in ("ok", "slow", "missing")
        assert bool(found[name]["mend"]) == (found[name]["verdict"] != "ok")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_small")
def test_doctor_exits_with_1_if_something_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "x"))

    monkeypatch.setattr(doctor, "_disk", full)
    assert main(["doctor", "--dir", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "broken   disk" in told
    assert "--dir" in told


@pytest.mark.parametrize("line", [["--dir", "none"], ["--device", "tpu"]])
def test_doctor_measures_nothing_if_it_is_asked_wrongly(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *line]) == 2
    assert not capsys.readouterr().out


def test_doctor_says_what_mends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "complete", False)
    (found,) = doctor._compiled(tmp_path)
    assert (found.verdict, "compiler" in found.mend) == ("missing", True)
    monkeypatch.setenv("CHUNKFLOW_COMPILED", "0")
    (found,) = doctor._compiled(tmp_path)
    assert found.mend == "unset CHUNKFLOW_COMPILED"
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    assert {each.mend for each in doctor._packages()} >= {'pip install "chunkflow-stream[hdf5]"'}


COMPLETED = [
    (["ru"], "run"),
    (["copy", "--form"], "--format"),
    (["copy", "--format", "h"], "hdf5"),
    (["convert", "--format", "h"], "hdf5"),
    (["completion", "z"], "zsh"),
    (["stats", "x"], ""),
    (["--ver"], "--version"),
]


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_bash_completes(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    given = " ".join(words)
    before = ["chunkflow", *words][-2]
    script = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=(chunkflow {given}); COMP_CWORD={len(words)}\n"
        f'_chunkflow chunkflow "{words[-1]}" "{before}"; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
    assert not done.stderr


def test_scripts_of_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload")
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("complete -c chunkflow -n ") for line in lines)
    assert any("-l format -x -a 'zarr npy hdf5'" in line for line in lines)


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = command.parser()._subparsers._group_actions  # type: ignore[union-attr]
    assert len(commands.choices) == 14  # type: ignore[arg-type]
    for name in commands.choices:  # type: ignore[union-attr]
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        shown = capsys.readouterr().out
        assert f"usage: chunkflow {name.replace('convert', 'copy')}" in shown
        assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize("line", [["frobnicate"], ["run"], ["stats", "x.npy", "--budget"], ["demo", "--size", "0"]])
def test_wrong_arguments_exit_with_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(line)
    told = capsys.readouterr().err
    assert told.startswith("chunkflow: error: ")
    assert told.count("\n") == 1


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "gathered", stop)
    assert main(["info"]) == 130


def test_ctrl_c_before_there_are_options_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(commands: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "add", stop)
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "chunkflow: interrupted\n"


def test_a_broken_pipe_is_quiet() -> None:
    line = f"{sys.executable} -m chunkflow completion fish | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "141"
    assert not done.stderr


def test_warnings_are_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import warnings

    def warn() -> Any:
        warnings.warn("watch\nout", UserWarning, stacklevel=1)
        return {}

    monkeypatch.setattr(info, "gathered", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["info"]) == 0
    assert capsys.readouterr().err == "chunkflow: warning: watch out\n"


def test_info_tells_a_fill_value_from_missing_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    zarr.create_array("2.zarr", data=np.ones((2, 3), "u2"), zarr_format=2, fill_value=0, compressors=None)
    pytest.importorskip("tifffile").imwrite("x.tif", np.ones((20, 30), "u2"), compression="zlib")
    assert main(["info", "2.zarr", "x.tif"]) == 0
    old, image = capsys.readouterr().out.splitlines()
    assert ", chunks (2, 3), fill value 0 (a missing value with --decode cf), read directly: raw" in old
    assert "fill value" not in image
    assert "missing" not in image  # TIFF has no missing values
    assert main(["info", "2.zarr", "--json"]) == 0
    (about,) = json.loads(capsys.readouterr().out)
    assert (about["fill_value"], about["attributes"]) == (0, {})


@pytest.mark.parametrize("version", [2, 3])
def test_info_of_an_image_shows_axes_and_scales(
    version: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    axes = [{"name": "t", "type": "time", "unit": "second"}, {"name": "c", "type": "channel"}]
    axes += [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    scales = [[0.1, 1, 0.25, 0.25], [0.1, 1, 0.5, 0.5]]
    levels = [
        {"path": str(i), "coordinateTransformations": [{"type": "scale", "scale": each}]}
        for i, each in enumerate(scales)
    ]
    images = [{"axes": axes, "datasets": levels}]
    said: dict[str, Any] = {"multiscales": images} if version == 2 else {"ome": {"multiscales": images}}
    group = zarr.create_group("i.zarr", zarr_format=version, attributes=said)
    for i in range(2):
        group.create_array(str(i), shape=(3, 2, 8 >> i, 8 >> i), dtype="u2", fill_value=None if version == 2 else 0)
    assert main(["info", "i.zarr"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert ", dimensions (t, c, y, x), units (second, ?, micrometer, micrometer), scale (0.1, 1, 0.25, 0.25)," in first
    assert "scale (0.1, 1, 0.5, 0.5)," in second
    assert main(["info", "i.zarr", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)[1]
    assert (about["dimensions"], about["scale"]) == (["t", "c", "y", "x"], scales[1])
    assert about["axis_units"] == ["second", None, "micrometer", "micrometer"]


def test_info_goes_on_behind_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", np.ones(3))
    np.save("b.npy", np.ones(4))
    assert main(["info", "a.npy", "none.npy", "b.npy"]) == 2
    out = capsys.readouterr().out
    assert "a.npy: float64 (3,)" in out
    assert "none.npy: there is no array under" in out
    assert "b.npy: float64 (4,)" in out


def test_too_little_to_calibrate_with_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", "--size", "1"])
    assert "give 64MiB or more" in capsys.readouterr().err
