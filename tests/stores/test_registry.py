from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.cli import main
from chunkflow.errors import ArgumentError, ArgumentTypeError, SourceNotFoundError
from chunkflow.stores import open_source, open_target, registry
from chunkflow.stores.paths import tiff_files


class OnDevice:
    shape, dtype = (3,), np.dtype("f4")
    __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012

    def __getitem__(self, region: Any) -> Any:
        raise AssertionError("nothing may be read")


def test_zarr_is_loaded_for_zarr_only(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, chunkflow.stores as s; s.open_source(np.zeros(3)); s.open_target(None); "
        "t = s.open_target('r.npy'); t.open(t.describe((3,), np.dtype('f4'), None)).commit(); "
        "s.open_source('r.npy').close(); s.open_source(np.load('r.npy', mmap_mode='r')).close(); "
        "print({'zarr', 'cupy', 'dask', 'h5py'} & set(sys.modules))"
    )
    root = str(Path(__file__).parents[2])
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, check=True
    )
    assert found.stdout.decode().strip() == "set()"


@pytest.mark.parametrize("name", ["volume.npy", "sim.zarr", "sim.zarr/u", "nothing"])
def test_a_missing_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError) as caught:
        open_source(name)
    assert str(tmp_path / name) in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("name", ["data.unknown", "data", "folder", "folder.npy"])
def test_other_paths_are_refused_with_the_kinds_that_are_not(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name.startswith("folder") else path.touch()
    with pytest.raises(ArgumentError, match=r"\.npy file or a zarr array"):
        open_source(path)


@pytest.mark.parametrize(
    ("name", "content", "reader"),
    [
        ("data.csv", b"1,2", "np.loadtxt"),
        ("a.lsm", b"", "tifffile.memmap"),
        ("a.dat", b"II*\0", "tifffile.memmap"),
        ("a.mat", b"MATLAB 5.0 MAT-file", "scipy.io.loadmat"),
        ("a.nii.gz", b"", "nibabel.load"),
        ("a.mrc", b"", "mrcfile.mmap"),
        ("a.raw", b"", "np.memmap"),
        ("a.npz", b"PK", "np.load"),
        ("a.fits", b"SIMPLE  =", "astropy.io.fits.open"),
    ],
)
def test_the_library_that_reads_a_file_is_named(tmp_path: Path, name: str, content: bytes, reader: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=f"{re.escape(str(path))} is .*pass the array of .*{reader}"):
        open_source(path)
    with pytest.raises(SourceNotFoundError, match=reader):
        open_source(f"{path}:/u")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere/u.npy", "no directory .*nowhere"),
        ("~/u.npy", "expanduser"),
        ("w*.npy", "no file matches the pattern"),
        ("u.npy:/x", "u.npy is no HDF5 file"),
        ("u.npy/x", "u.npy is a file"),
        ("v.npy:/x", "no file .*v.npy"),
        ("dangling.npy", "link to .*gone.npy"),
    ],
)
def test_why_there_is_nothing_under_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("u.npy", np.arange(3))
    Path("dangling.npy").symlink_to("gone.npy")
    with pytest.raises(SourceNotFoundError, match=said):
        open_source(given)


def test_a_directory_without_metadata_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "u.zarr").mkdir()
    with pytest.raises(ArgumentError, match="it is empty"):
        open_source(tmp_path / "u.zarr")
    (tmp_path / "u.zarr" / "0.tif").touch()
    with pytest.raises(
        ArgumentError, match=r"is a directory, .*: '\S+u\.zarr/\*\.tif' is one array of its .* \('0\.tif'\)$"
    ):
        open_source(tmp_path / "u.zarr")
    (tmp_path / "u.zarr" / "attributes.json").touch()
    with pytest.raises(ArgumentError, match="N5"):
        open_source(tmp_path / "u.zarr")


@pytest.mark.parametrize(
    ("name", "one", "joined"),
    [
        ("a.h5", "steps/a.h5:/name", "steps/*.h5:/name"),
        ("a.nc", "steps/a.nc:/name", "steps/*.nc:/name"),
        ("a.npy", "steps/a.npy", "steps/*.npy"),
    ],
)
def test_of_a_directory_of_files_the_line_is_named_that_opens_them(
    name: str, one: str, joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps").mkdir()
    Path("steps", name).touch()
    with pytest.raises(ArgumentError) as caught:
        open_source("steps")
    said = f"{one!r} is one of its arrays; chunkflow.open({joined!r}) is one array of all ({name!r})"
    assert str(caught.value).endswith(f"steps is a directory, and no zarr array: {said}")


@pytest.mark.parametrize("folder", ["exp[1]", "a*b", "what?"])
def test_patterns_that_are_suggested_open_the_files(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir()
    for i in range(3):
        np.save(f"{folder}/{i}.npy", np.full(4, i))
    with pytest.raises(ArgumentError) as caught:
        cf.open(folder)
    (pattern,) = re.findall(r"chunkflow\.open\('(.*)'\) is one array of all", str(caught.value))
    np.testing.assert_array_equal(cf.open(pattern).compute(device="cpu")[:, 0], [0, 1, 2])
    (Path(folder) / "0.tif").touch()
    with pytest.raises(ArgumentError) as caught:
        cf.open(folder)
    (pattern,) = re.findall(r"array: '(.*)' is one array of its files", str(caught.value))
    assert tiff_files(pattern) == [f"{folder}/0.tif"]


@pytest.mark.parametrize("last", ["*.tif", "*.npy"])
def test_of_a_pattern_with_brackets_the_escaped_one_is_named(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp[1]").mkdir()
    Path(f"exp[1]/0{last[1:]}").touch()
    with pytest.raises(SourceNotFoundError, match=rf"written as in 'exp\[\[\]1\]/\{last}'$"):
        cf.open(f"exp[1]/{last}")
    assert main(["stats", f"exp[1]/{last}"]) == 2
    assert f"written as in 'exp[[]1]/{last}'" in capsys.readouterr().err
    assert main(["stats", f"exp[1]/none{last}"]) == 2
    assert "written as" not in capsys.readouterr().err


def test_no_pattern_is_suggested_of_files_with_other_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    for name, dataset in (("a.h5", "u"), ("b.h5", "vort"), ("vort.nc", "vort")):
        cf.copy(np.arange(3), f"d/{name}:/{dataset}", device="cpu")
    with pytest.raises(ArgumentError, match=r"'d/a.h5:/u' is one of its arrays \(its files are .*'vort\.nc'\)$"):
        cf.open("d")
    Path("d/b.h5").unlink()
    cf.copy(np.arange(3), "d/c.h5:/u", device="cpu")
    with pytest.raises(ArgumentError, match=r"open\('d/\*\.h5:/u'\) is one array of all \('a\.h5', 'c\.h5'\)$"):
        cf.open("d")
    assert cf.open("d/*.h5:/u").shape == (2, 3)
    assert repr(cf.open("d/*.h5:/u")) == "<chunkflow.Array d/*.h5:/u, 2 files: (2, 3), int64>"


def test_of_many_files_a_few_are_named(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02}.tif").touch()
    with pytest.raises(ArgumentError, match=r"is one array of its files \('00\.tif', '01\.tif', '02\.tif', \.\.\.\)$"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["result", "result.csv", "result.png"])
def test_an_output_of_unknown_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="format"):
        open_target(tmp_path / name)


@pytest.mark.parametrize("path", ["none://bucket/u.zarr", ""])
def test_other_strings_are_refused(path: str) -> None:
    for opened in (open_source, open_target):
        with pytest.raises(ArgumentError, match=r"URL|cannot be opened|no path"):
            opened(path)


@pytest.mark.parametrize("path", [Path("u\0.npy"), "u\0.zarr"])
def test_a_path_with_a_null_is_refused(path: Any) -> None:
    for opened in (open_source, open_target):
        with pytest.raises((ArgumentError, SourceNotFoundError)):
            opened(path)


@pytest.mark.parametrize("obj", [[1, 2], 3, {"a": 1}, object(), None])
def test_other_inputs_are_refused(obj: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="keyword argument"):
        open_source(obj)


@pytest.mark.parametrize("obj", [[1, 2], 3, {"a": 1}, object(), np.float64(3)])
def test_other_outputs_are_refused(obj: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="cannot be written"):
        open_target(obj)


def test_device_arrays_are_refused() -> None:
    for opened in (open_source, open_target):
        with pytest.raises(ArgumentTypeError, match="on the device already"):
            opened(OnDevice())


@pytest.mark.parametrize("items", [["u.npy", "v.npy"], (Path("u.npy"),), [np.zeros(3), np.zeros(3)]])
def test_a_list_of_arrays_is_to_be_joined(items: Any) -> None:
    for call in (open_source, cf.open, cf.mean, cf.chunks, lambda x: cf.map(np.sqrt, x)):
        with pytest.raises(ArgumentTypeError, match=rf"{len(items)} arrays.*chunkflow\.stack.*chunkflow\.concatenate"):
            call(items)


def test_what_becomes_an_array_is_told_how() -> None:
    class Frame:
        def to_numpy(self) -> np.ndarray:
            return np.zeros(3)

    with pytest.raises(ArgumentTypeError, match="to_numpy"):
        open_source(Frame())
    with pytest.raises(ArgumentTypeError, match=r"np\.array"):
        open_source([1.0, 2.0])


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("U3", r"<U3.*x\.astype\(float\)"),
        ("S3", r"\|S3.*x\.astype\(float\)"),
        ("O", r"object.*x\.astype\(float\)"),
        ([("a", "f4"), ("b", "i4")], r"x\['a'\].*'a', 'b'"),
        ("V4", r"x\.view\(dtype\)"),
    ],
)
def test_the_way_from_another_dtype_to_numbers_is_told(tmp_path: Path, dtype: Any, said: str) -> None:
    array = np.zeros(3, dtype)
    np.save(tmp_path / "u.npy", array)
    for given in (array, tmp_path / "u.npy"):
        for call in (open_source, cf.open, cf.mean):
            with pytest.raises(ArgumentTypeError, match=said):
                call(given)


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "M8[s]", "m8[s]", "V4", "i4,f4"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    for opened in (open_source, open_target):
        with pytest.raises(ArgumentTypeError, match="ndarray has dtype"):
            opened(np.zeros(3, dtype))


def test_a_mask_is_not_lost_silently() -> None:
    with pytest.raises(ArgumentTypeError, match="masked"):
        open_source(np.ma.masked_equal([1, 2, 3], 2))


def test_a_numpy_scalar_is_an_array_without_axes() -> None:
    assert open_source(np.float32(3)).spec.shape == ()


def test_every_row_names_a_function_that_there_is() -> None:
    text = Path(registry.__file__).read_text()
    places = re.findall(r'at\("(chunkflow[\w.]+):(\w+)"\)', text)
    assert len(places) > 15
    for module, name in places:
        assert callable(getattr(pytest.importorskip(module), name))


def test_a_file_of_numpys_is_known_by_how_it_begins(tmp_path: Path) -> None:
    for name in ("x.bin", "x.zarr", "x"):
        with open(tmp_path / name, "wb") as file:
            np.save(file, np.arange(3))
        assert open_source(tmp_path / name).spec.shape == (3,)
    (tmp_path / "y.bin").write_bytes(b"\x93NUM")
    with pytest.raises(ArgumentError):
        open_source(tmp_path / "y.bin")
