"""What xarray writes with expressions appears whole or not at all, and what is refused leaves what is there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import chunkflow as cf
from chunkflow import errors
from chunkflow.stores.publication.claim import Claim

xr = pytest.importorskip("xarray")


def pair(path: Path) -> Any:
    """Two arrays in a store, and the dataset of expressions that xarray opens there."""
    values = np.random.default_rng(6).random((40, 6, 8))
    given = xr.Dataset(
        {name: (("time", "lat", "lon"), values + i) for i, name in enumerate("ab")},
        {"time": np.arange(40.0), "lat": range(6)},
    )
    given.to_zarr(path, encoding={name: {"chunks": (10, 6, 8)} for name in "ab"}, consolidated=False)
    return given, xr.open_zarr(path, chunks={}, chunked_array_type="chunkflow", consolidated=False)


def older(tmp_path: Path) -> tuple[Any, Any]:
    """An older store and file, and a dataset that may take their places."""
    given, lazy = pair(tmp_path / "x.zarr")
    given.to_zarr(tmp_path / "y.zarr", consolidated=False)
    given.to_netcdf(tmp_path / "y.nc")
    return given, lazy + 1


def assert_as_before(tmp_path: Path, given: Any) -> None:
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "y.zarr", consolidated=False).load(), given)
    with xr.open_dataset(tmp_path / "y.nc") as found:
        xr.testing.assert_identical(found.load(), given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.zarr", "y.nc", "y.zarr"]


LATER: list[Callable[[Any, Path], Any]] = [
    lambda x, at: x.to_zarr(at / "y.zarr", mode="w", compute=False, consolidated=False),
    lambda x, at: x.to_zarr(zarr.storage.LocalStore(at / "y.zarr"), mode="w", compute=False, consolidated=False),
    lambda x, at: x.to_zarr(at / "y.zarr", mode="a", compute=False, consolidated=False),
    lambda x, at: xr.DataTree(x).to_zarr(at / "y.zarr", mode="w", compute=False, consolidated=False),
    lambda x, at: x.to_netcdf(at / "y.nc", compute=False),
    lambda x, at: xr.DataTree(x).to_netcdf(at / "y.nc", engine=netcdf4(), compute=False),
    lambda x, at: xr.save_mfdataset([x, x], [at / "y.nc", at / "z.nc"], compute=False),
]


def netcdf4() -> Any:
    """The library that writes groups, if there is one."""
    for name, engine in (("netCDF4", "netcdf4"), ("h5netcdf", "h5netcdf")):
        if importlib.util.find_spec(name):
            return engine
    pytest.skip("no library that writes netCDF 4")


@pytest.mark.parametrize("write", LATER)
def test_what_is_not_computed_at_once_is_refused_and_leaves_what_is_there(write: Any, tmp_path: Path) -> None:
    given, new = older(tmp_path)
    with pytest.raises(errors.UnsupportedError, match=r"compute=False is not supported.* Nothing was written"):
        write(new, tmp_path)
    assert_as_before(tmp_path, given)


@pytest.mark.parametrize("several", [False, True])
def test_encodings_that_netcdf_has_not_leave_an_older_file_as_it_was(several: bool, tmp_path: Path) -> None:
    given, new = older(tmp_path)
    encoding: Any = {"b": {"zllib": True}}

    def write(**options: Any) -> None:
        if several:
            xr.save_mfdataset([new + 1, new], [tmp_path / "z.nc", tmp_path / "y.nc"], **options)
        else:
            new.to_netcdf(tmp_path / "y.nc", **options)

    with pytest.raises(ValueError, match="unexpected encoding"):
        write(encoding=encoding)
    assert_as_before(tmp_path, given)
    write()
    with xr.open_dataset(tmp_path / "y.nc") as found:
        xr.testing.assert_identical(found.load(), given + 1)


def failing(block: np.ndarray) -> np.ndarray:
    if failing.calls == 0:  # type: ignore[attr-defined]
        raise RuntimeError("the power went")
    failing.calls -= 1  # type: ignore[attr-defined]
    return block


FAILED: list[Callable[[Any, Path], Any]] = [
    lambda x, at: x.to_zarr(at / "y.zarr", mode="w", consolidated=False),
    lambda x, at: x.to_zarr(at / "z.zarr", consolidated=False),
    lambda x, at: xr.DataTree(x).to_zarr(at / "y.zarr", mode="w", consolidated=False),
    lambda x, at: x.to_netcdf(at / "y.nc"),
    lambda x, at: x.to_netcdf(at / "z.nc"),
    lambda x, at: xr.save_mfdataset([x, x * 2], [at / "y.nc", at / "z.nc"]),
]


@pytest.mark.parametrize("write", FAILED)
def test_a_run_that_fails_in_xarrays_writers_leaves_what_is_there(write: Any, tmp_path: Path) -> None:
    given, new = older(tmp_path)
    mapped = new.map(lambda x: x.copy(data=cf.map(failing, x.data, dtype="f8", workspace=8)))
    for calls in (0, 2):
        failing.calls = calls  # type: ignore[attr-defined]
        with cf.Budget("60kB"), pytest.raises(RuntimeError, match="the power went"):
            write(mapped, tmp_path)
        assert_as_before(tmp_path, given)
    failing.calls = 1 << 20  # type: ignore[attr-defined]
    write(mapped, tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_a_store_of_xarrays_appears_whole(tmp_path: Path) -> None:
    given, new = older(tmp_path)
    code = (
        "import glob, os, sys, xarray as xr, chunkflow as cf, chunkflow.xarray\n"
        "def dying(b):\n"
        "    return os._exit(9) if glob.glob(f'.y.{sys.argv[1]}.claim') else b\n"
        "x = xr.open_zarr('x.zarr', chunks={}, chunked_array_type='chunkflow', consolidated=False)\n"
        "x = x.map(lambda x: x.copy(data=cf.map(dying, x.data, dtype='f8', workspace=8)))\n"
        "x.to_zarr('y.zarr', mode='w', consolidated=False) if sys.argv[1] == 'zarr' else x.to_netcdf('y.nc')\n"
    )
    for kind in ("zarr", "nc"):
        assert subprocess.run([sys.executable, "-c", code, kind], cwd=tmp_path, check=False).returncode == 9
    assert {left.output for left in cf.clean(tmp_path)} == {str(tmp_path / "y.zarr"), str(tmp_path / "y.nc")}
    assert_as_before(tmp_path, given)
    written = new.to_zarr(tmp_path / "y.zarr", mode="w", consolidated=False)
    xr.testing.assert_identical(xr.open_zarr(written.zarr_group.store, consolidated=False).load(), given + 1)
    (tmp_path / "link.nc").symlink_to(tmp_path / "y.nc")
    new.to_netcdf(tmp_path / "link.nc")
    assert (tmp_path / "link.nc").is_symlink()
    with xr.open_dataset(tmp_path / "y.nc") as found:
        xr.testing.assert_identical(found.load(), given + 1)
    with pytest.raises(FileExistsError):
        new.to_zarr(tmp_path / "y.zarr", mode="w-", consolidated=False)


DYING = """
import glob, os, sys, xarray as xr, chunkflow as cf, chunkflow.xarray
def dying(b):
    return os._exit(9) if any("lengths" in open(path).read() for path in glob.glob(".y*.claim")) else b
x = xr.open_zarr("x.zarr", chunks={}, chunked_array_type="chunkflow", consolidated=False)
x = (x + 1).map(lambda x: x.copy(data=cf.map(dying, x.data, dtype="f8", workspace=8)))
x.to_zarr("y.zarr", append_dim="time", group=None if sys.argv[1] == "." else sys.argv[1])
"""


@pytest.mark.parametrize(("group", "version", "by_hand"), [(".", 2, True), ("more", 3, False)])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_an_append_that_is_killed_is_undone(group: str, version: Any, by_hand: bool, tmp_path: Path) -> None:
    given, lazy = pair(tmp_path / "x.zarr")
    where: dict[str, Any] = {"group": None if group == "." else group}
    encoding = {name: {"chunks": (16, 6, 8)} for name in "ab"}  # the end lies in a chunk
    given.to_zarr(tmp_path / "y.zarr", zarr_format=version, encoding=encoding, **where)
    assert subprocess.run([sys.executable, "-c", DYING, group], cwd=tmp_path, check=False).returncode == 9
    assert xr.open_zarr(tmp_path / "y.zarr", consolidated=False, **where).sizes["time"] == 80
    (left,) = cf.leftovers(tmp_path)
    assert left.is_begun
    assert left.output == os.path.normpath(tmp_path / "y.zarr" / group)
    if by_hand:
        assert cf.recover(tmp_path) == (left,)
        for consolidated in (False, None):
            found = xr.open_zarr(tmp_path / "y.zarr", consolidated=consolidated, **where)
            xr.testing.assert_identical(found.load(), given)
    (lazy + 1).assign_coords(time=lazy.time + 40).to_zarr(tmp_path / "y.zarr", append_dim="time", **where)
    found = xr.open_zarr(tmp_path / "y.zarr", **where)
    np.testing.assert_array_equal(found.time, np.arange(80.0))
    np.testing.assert_array_equal(found.a, np.concatenate([given.a, given.a + 1]))
    assert not cf.leftovers(tmp_path)


def test_what_others_changed_since_is_not_cut_back(tmp_path: Path) -> None:
    given, _ = pair(tmp_path / "x.zarr")
    claim = Claim(str(tmp_path / "x.zarr"))
    claim.say({"lengths": {"a": [[20, 6, 8], [40, 6, 8]], "b": [[20, 6, 8], [30, 6, 8]], "gone": [[1], [2]]}})
    claim.leave()
    assert [left.is_begun for left in cf.recover(tmp_path / "x.zarr")] == [True]
    group = zarr.open_group(tmp_path / "x.zarr", mode="r")
    assert group["a"].shape == (20, 6, 8)
    np.testing.assert_array_equal(group["b"][:], given.b)


@pytest.mark.parametrize("ignoring", [False, True])
def test_nothing_is_left_where_sigterm_ends_the_process(ignoring: bool, tmp_path: Path) -> None:
    """Hidden files of the new store stayed; where Ctrl-C is ignored, as in the background, those of any run."""
    before = xr.Dataset({"v": (("time", "x"), np.ones((20, 50)))})
    before.to_zarr(tmp_path / "c.zarr", consolidated=False)
    (tmp_path / "write.py").write_text(
        "import pathlib, signal, time\n"
        f"if {ignoring}:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import chunkflow as cf, chunkflow.xarray, numpy as np, xarray as xr\n"
        "def slow(block):\n"
        "    pathlib.Path('begun').touch()\n"
        "    time.sleep(0.1)\n"
        "    return block\n"
        "x = xr.DataArray(cf.open(np.ones((400, 5000))), dims=('time', 'x'))\n"
        "y = xr.apply_ufunc(slow, x, dask='parallelized', output_dtypes=['f8']).to_dataset(name='v')\n"
        "with cf.config.set(budget='2MB', device='cpu'):\n"
        "    y.to_zarr('c.zarr', mode='w', consolidated=False)\n"
    )
    with subprocess.Popen([sys.executable, "write.py"], cwd=tmp_path) as process:
        while not (tmp_path / "begun").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(0.3)
        process.terminate()
    assert process.returncode == -15
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".c")]
    with xr.open_zarr(tmp_path / "c.zarr", consolidated=False) as found:
        xr.testing.assert_equal(found.compute(), before)
