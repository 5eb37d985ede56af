"""Variables that netCDF4 has opened, as sources and sinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, CodingWarning, ReadError
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.testing import SinkContract, SourceContract, filled

DTYPES = ("f4", "i2", "f8", "u1", "i8")
FILES: list[Any] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """All that were created."""
    yield
    while FILES:
        FILES.pop().close()


def create(path: Path, array: np.ndarray, **options: Any) -> Any:
    """A variable that holds `array`."""
    FILES.append(pytest.importorskip("netCDF4").Dataset(path, "w"))
    for i, n in enumerate(array.shape):
        FILES[-1].createDimension(f"d{i}", n)
    names = tuple(f"d{i}" for i in range(array.ndim))
    made = FILES[-1].createVariable("u", array.dtype, names, zlib=bool(array.size and array.ndim), **options)
    made[...] = array
    return made


class TestSource(SourceContract):
    dtypes = DTYPES
    test_spec = None  # it has no booleans
    test_the_whole_array_at_once = None  # an axis of no elements is one that grows

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(create(tmp_path / "x.nc", array))


class TestSink(SinkContract):
    dtypes = DTYPES
    test_the_whole_array_at_once = None
    test_an_array_that_does_not_suit_is_refused = None  # it has no complex numbers

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(create(tmp_path / "x.nc", np.zeros_like(array)))


def test_chunks_and_names_are_those_of_the_file(tmp_path: Path) -> None:
    with pytest.importorskip("netCDF4").Dataset(tmp_path / "x.nc", "w") as file:
        for name, length in (("x", 20), ("y", 30)):
            file.createDimension(name, length)
        made = file.createGroup("late").createVariable("u", "f4", ("x", "y"), chunksizes=(5, 6))
        assert open_source(made).spec.chunks == (5, 6)
        assert open_source(made).spec.name == f"{tmp_path / 'x.nc'}:/late/u"
        cf.copy(filled((20, 30), "f4"), out=made, budget="20kB", device="cpu")
        np.testing.assert_array_equal(made[...], filled((20, 30), "f4"))


def test_a_variable_that_scales_is_refused_while_it_does(tmp_path: Path) -> None:
    made = create(tmp_path / "x.nc", np.zeros((4, 5), "i2"), fill_value=-9)
    made.scale_factor, made.add_offset = 0.01, 273.15
    for opened in (open_source, open_target):
        with pytest.raises(ArgumentError, match=r"x\.nc:/u.*scale_factor=0.01, add_offset=273.15.*set_auto_mask"):
            opened(made)
    made.set_auto_maskandscale(False)
    cf.copy(filled((4, 5), "i2"), out=made, device="cpu")
    np.testing.assert_array_equal(cf.copy(made, device="cpu"), filled((4, 5), "i2"))
    np.testing.assert_array_equal(made[...], filled((4, 5), "i2"))


def test_text_is_refused(tmp_path: Path) -> None:
    with pytest.importorskip("netCDF4").Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("x", 3)
        with pytest.raises(ArgumentTypeError, match=r"x\.nc:/name has dtype"):
            open_source(file.createVariable("name", str, ("x",)))


def test_version_3_is_read_by_its_path(tmp_path: Path) -> None:
    netcdf_file = pytest.importorskip("scipy.io").netcdf_file
    path = tmp_path / "old.nc"
    with netcdf_file(path, "w") as file:
        file.createDimension("x", 12)
        variable = file.createVariable("t", "i2", ("x",))
        variable[:] = np.arange(12)
        variable.scale_factor = 0.5
    with pytest.warns(CodingWarning, match=r"scale_factor=0\.5"):
        np.testing.assert_array_equal(cf.open(path).compute(device="cpu"), np.arange(12))
    np.testing.assert_array_equal(cf.open(f"{path}:t", decode="cf").compute(device="cpu"), np.arange(12) / 2)
    got = cf.open(path, decode="raw").to_npy(tmp_path / "o.npy", resume=True, device="cpu")
    np.testing.assert_array_equal(got, np.arange(12))
    with pytest.raises(ArgumentError, match=r"old\.nc holds 't': add the name of one, as in '\S+old\.nc:t'"):
        cf.open(f"{path}:u")
    path.write_bytes(b"CDF\x01")
    with pytest.raises(ReadError, match=r"xarray cannot read \S+old\.nc"):
        cf.open(path)
