"""Datasets as HDF5, its plugins and netCDF lay them out: read right, written into and left as they were created."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.foreign import HDF5_READERS
from support.hdf5files import filter_no_edges, properties, read

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, ReadError, WriteError
from chunkflow.stores import open_source
from chunkflow.testing import filled

h5py = pytest.importorskip("h5py")

from h5py import h5d, h5p, h5s, h5t, h5z  # noqa: E402

SHAPE = (25, 23)

# -- Layouts and filters of HDF5's own --------------------------------------------------------------------------------


def tiled(*steps: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Chunks that do not divide the array, with filters."""

    def made(how: Any) -> None:
        how.set_chunk((10, 8))
        for step in steps:
            step(how)

    return made


def deflate(how: Any) -> None:
    how.set_deflate(4)


def shuffle(how: Any) -> None:
    how.set_shuffle()


def checksum(how: Any) -> None:
    how.set_fletcher32()


def optional(code: int, *values: int) -> Callable[[Any], None]:
    return lambda how: how.set_filter(code, h5z.FLAG_OPTIONAL, values)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "compact": lambda how: how.set_layout(h5d.COMPACT),
    "contiguous": lambda how: how.set_layout(h5d.CONTIGUOUS),
    "contiguous, early": lambda how: (how.set_layout(h5d.CONTIGUOUS), how.set_alloc_time(h5d.ALLOC_TIME_EARLY)),
    "contiguous, never filled": lambda how: how.set_fill_time(h5d.FILL_TIME_NEVER),
    "chunked": tiled(),
    "chunked, early": tiled(lambda how: how.set_alloc_time(h5d.ALLOC_TIME_EARLY)),
    "chunked, late": tiled(lambda how: how.set_alloc_time(h5d.ALLOC_TIME_LATE)),
    "chunked, never filled": tiled(lambda how: how.set_fill_time(h5d.FILL_TIME_NEVER)),
    "a fill value": tiled(deflate, lambda how: how.set_fill_value(np.asarray(-7, "i2"))),
    "times tracked": tiled(lambda how: how.set_obj_track_times(True)),
    "times not tracked": tiled(deflate, lambda how: how.set_obj_track_times(False)),
    "attributes in order": tiled(lambda how: how.set_attr_creation_order(h5p.CRT_ORDER_TRACKED)),
    "deflate": tiled(deflate),
    "deflate of level 0": tiled(lambda how: how.set_deflate(0)),
    "deflate twice": tiled(deflate, deflate),
    "shuffle, deflate": tiled(shuffle, deflate),
    "checksum": tiled(checksum),
    "checksum before deflate": tiled(checksum, deflate),
    "all": tiled(shuffle, deflate, checksum),
    "edges not filtered": tiled(shuffle, deflate, filter_no_edges),
    "edges not filtered, early": tiled(deflate, filter_no_edges, lambda how: how.set_alloc_time(h5d.ALLOC_TIME_EARLY)),
    "szip": tiled(lambda how: how.set_szip(h5z.SZIP_NN_OPTION_MASK, 8)),
    "nbit": tiled(lambda how: how.set_filter(h5z.FILTER_NBIT, 0, ())),
    "scaleoffset": tiled(lambda how: how.set_scaleoffset(h5z.SO_INT, 0)),
    "lzf": tiled(optional(h5z.FILTER_LZF)),
}
SPACES: dict[str, dict[str, Any]] = {  # the index of the chunks depends on what may grow, and on the version
    "fixed": {},
    "fixed, in a newer file": {"libver": "latest"},
    "in pages": {"fs_strategy": "page", "fs_page_size": 1024},
    "grows along the first": {"maxshape": (None, 23)},
    "grows along the last": {"maxshape": (25, None), "libver": "latest"},
    "grows along both": {"maxshape": (None, None), "libver": "latest"},
    "grows to a limit": {"maxshape": (40, 50), "libver": "latest"},
    "behind a user block": {"userblock_size": 512},
}


def create(path: Path, lay: Callable[[Any], Any], dtype: str, maxshape: Any = None, **options: Any) -> np.ndarray:
    """A dataset `/u` as HDF5 creates it; its elements."""
    array = filled(SHAPE, dtype)
    how = h5p.create(h5p.DATASET_CREATE)
    lay(how)
    most = tuple(h5s.UNLIMITED if n is None else n for n in maxshape or SHAPE)
    with h5py.File(path, "w", **options) as file:
        space, kind = h5s.create_simple(SHAPE, most), h5t.py_create(np.dtype(dtype), logical=True)
        made = h5py.Dataset(h5d.create(file.id, b"u", kind, space, how))
        made[...] = array
        made.attrs["units"], made.attrs["scales"] = "m", np.arange(3, dtype=">i4")
    return array


def check_written(path: Path, array: np.ndarray, readers: Any = HDF5_READERS) -> None:
    """Write into `/u` of a file: others read what was written, and what they say else is as before."""
    with h5py.File(path, "r+") as file:
        before = properties(file["u"])
        cf.copy(array, out=file["u"], budget="20kB", device="cpu")
        assert properties(file["u"]) == before
    for reader in readers:
        np.testing.assert_array_equal(reader.read(f"{path}:/u"), array, reader.name)
    np.testing.assert_array_equal(read(f"{path}:/u"), array)


WHOLE = ("compact", "contiguous", "contiguous, early", "contiguous, never filled")
"""Layouts without chunks, in which nothing grows."""


@pytest.mark.parametrize(
    ("layout", "space"),
    [(layout, space) for layout in LAYOUTS for space in SPACES if not (layout in WHOLE and "grows" in space)],
)
@pytest.mark.parametrize("dtype", ["<i2", ">i4"])
def test_every_layout(layout: str, space: str, dtype: str, tmp_path: Path) -> None:
    array = create(tmp_path / "x.h5", LAYOUTS[layout], dtype, **SPACES[space])
    np.testing.assert_array_equal(read(f"{tmp_path / 'x.h5'}:/u"), array)
    alone = layout == "lzf" or "user block" in space  # netCDF has no LZF
    check_written(
        tmp_path / "x.h5", (array + 1).astype(array.dtype.newbyteorder("=")), HDF5_READERS[: 1 if alone else 3]
    )


# -- Plugins ----------------------------------------------------------------------------------------------------------

PLUGINS = {  # arguments, and whether chunks are decoded here
    "BZip2": ({}, False),
    "Blosc": ({}, True),
    "Blosc snappy": ({"cname": "snappy"}, True),
    "Blosc zlib": ({"cname": "zlib", "shuffle": 2}, True),
    "Blosc2": ({}, False),
    "Bitshuffle": ({}, False),
    "Bitshuffle zstd": ({"cname": "zstd"}, False),
    "LZ4": ({}, True),
    "LZ4 blocks": ({"nbytes": 64}, True),
    "Zfp": ({"reversible": True}, False),
    "Zstd": ({}, True),
}


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8"])
def test_every_plugin(name: str, dtype: str, tmp_path: Path) -> None:
    plugin = pytest.importorskip("hdf5plugin")
    options, directly = PLUGINS[name]
    codec = getattr(plugin, name.split()[0])(**options)
    for edges in ((), (filter_no_edges,)):
        lay = tiled(optional(codec.filter_id, *codec.filter_options), *edges)
        array = create(tmp_path / "x.h5", lay, dtype)
        source = open_source(f"{tmp_path / 'x.h5'}:/u")
        assert ("directly" in source.spec.storage.how) == directly
        source.close()
        np.testing.assert_array_equal(read(f"{tmp_path / 'x.h5'}:/u"), array)
        check_written(tmp_path / "x.h5", array + 1, HDF5_READERS[:1])


def test_a_filter_that_nobody_has_is_needed_for_chunks_that_went_through_it(tmp_path: Path) -> None:
    array = create(tmp_path / "x.h5", tiled(optional(32444)), "<i2")  # where it is optional, HDF5 goes without
    np.testing.assert_array_equal(read(f"{tmp_path / 'x.h5'}:/u"), array)
    check_written(tmp_path / "x.h5", array + 1, HDF5_READERS[:1])
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["u"].id.write_direct_chunk((0, 0), b"whatever")
    with pytest.raises(ReadError, match=r"chunk \(0, 0\): .*filter 32444 is not built into HDF5.*hdf5plugin"):
        read(f"{tmp_path / 'x.h5'}:/u")


# -- netCDF -----------------------------------------------------------------------------------------------------------

VARIABLES: dict[str, dict[str, Any]] = {
    "contiguous": {"contiguous": True, "dimensions": ("x", "y")},
    "chunked": {"chunksizes": (10, 16)},
    "zlib": {"zlib": True, "complevel": 4, "fletcher32": True, "chunksizes": (10, 16)},
    "zstd": {"compression": "zstd", "chunksizes": (10, 16)},
    "blosc": {"compression": "blosc_lz4", "chunksizes": (10, 16)},
    "big": {"endian": "big", "datatype": ">f4"},
    "of a group": {"zlib": True, "dimensions": ("time", "y")},
}
T, X, Y = 24, 40, 4


def simulation(path: Path) -> np.ndarray:
    """A file with dimensions (one grows, one has no variable), coordinates and variables; their elements."""
    with pytest.importorskip("netCDF4").Dataset(path, "w") as file:
        file.title = "kept"
        for name, length in (("time", None), ("x", X), ("y", Y)):
            file.createDimension(name, length)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(T)
        file["time"].units = "days since 2000-01-01"
        file.createVariable("x", "f4", ("x",))[:] = np.arange(X)
        for name, options in VARIABLES.items():
            group = file.createGroup("late") if "group" in name else file
            names = options.get("dimensions", ("time", "x"))
            options = {key: value for key, value in options.items() if key not in ("dimensions", "datatype")}
            made = group.createVariable(name, VARIABLES[name].get("datatype", "f4"), names, fill_value=-9, **options)
            made.units = "K"
            made[:] = elements(name)
    return path


def elements(name: str) -> np.ndarray:
    return filled(tuple({"time": T, "x": X, "y": Y}[n] for n in VARIABLES[name].get("dimensions", ("time", "x"))), "f4")


def place(name: str) -> str:
    return f"/late/{name}" if "group" in name else f"/{name}"


def seen(path: Path) -> dict[str, Any]:
    """What netCDF4 says of a file's variables, besides their elements."""
    with pytest.importorskip("netCDF4").Dataset(path) as file:
        nodes = {**file.variables, **{f"late/{name}": node for name, node in file["late"].variables.items()}}
        return {
            name: (
                node.dimensions,
                node.dtype,
                node.shape,
                node.ncattrs(),
                node.filters(),
                node.chunking(),
                node.endian(),
            )
            for name, node in nodes.items()
        }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return simulation(tmp_path / "sim.nc")


def check_values(path: Path, name: str, array: np.ndarray) -> None:
    for reader in HDF5_READERS:
        np.testing.assert_array_equal(reader.read(f"{path}:{place(name)}"), array, reader.name)


@pytest.mark.filterwarnings("ignore::chunkflow.errors.CodingWarning")
@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_read_and_written_into(name: str, file: Path) -> None:
    array = elements(name)
    np.testing.assert_array_equal(cf.copy(f"{file}:{place(name)}", budget="20kB", device="cpu"), array)
    before = seen(file)
    with h5py.File(file, "r+") as opened:
        cf.copy(array + 1, out=opened[place(name)], device="cpu")
    assert seen(file) == before
    check_values(file, name, array + 1)


def stored(array: np.ndarray, out: str, **options: Any) -> None:
    cf.copy(array, out=out, device="cpu", **options).file.close()


@pytest.mark.filterwarnings("ignore::chunkflow.errors.LossWarning")
@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_is_replaced_keeps_its_dimensions(name: str, file: Path) -> None:
    before, array = seen(file), elements(name) + 1
    stored(array, f"{file}:{place(name)}", overwrite=True)
    check_values(file, name, array)
    after, key = seen(file), place(name)[1:]
    assert after[key][:3] == (before[key][0], np.float32, array.shape)
    assert {other: after[other] for other in before if other != key} == {
        other: before[other] for other in before if other != key
    }
    stored(np.ones((2, 3, 4)), f"{file}:{place(name)}", overwrite=True)  # of another shape: it has none
    check_values(file, name, np.ones((2, 3, 4)))


@pytest.mark.filterwarnings("ignore::chunkflow.errors.LossWarning")
@pytest.mark.parametrize(("name", "length"), [("time", T), ("x", X), ("y", Y)])
def test_a_coordinate_that_is_replaced_stays_one(name: str, length: int, file: Path) -> None:
    """A dimension without a variable becomes a coordinate."""
    before, array = seen(file), np.linspace(0, 1, length)
    with pytest.raises(ArgumentError, match=rf"/{name} is a dimension scale of shape \({length},\)"):
        stored(np.ones(length + 1), f"{file}:/{name}", overwrite=True)
    assert seen(file) == before
    stored(array, f"{file}:/{name}", overwrite=True)
    check_values(file, name, array)
    after = seen(file)
    assert after[name][0] == (name,)
    for other in VARIABLES:
        assert after[place(other)[1:]][0] == before[place(other)[1:]][0]
    xr = pytest.importorskip("xarray")
    with xr.open_dataset(file, engine="netcdf4") as found:
        np.testing.assert_array_equal(found[name].values.astype("f8"), array)
        assert found["zlib"].dims == ("time", "x")


def test_a_new_variable_and_a_new_group(file: Path) -> None:
    before = seen(file)
    for name in ("w", "run/w"):
        stored(np.ones((T, X)), f"{file}:/{name}")
        with pytest.importorskip("netCDF4").Dataset(file) as opened:
            np.testing.assert_array_equal(opened[name][:], np.ones((T, X)))
    after = seen(file)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("name", ["u", "run/u"])
def test_netcdf_writes_on_in_a_new_file(name: str, tmp_path: Path) -> None:
    stored(np.ones((T, X)), f"{tmp_path / 'new.nc'}:/{name}", chunks=(2, 3))
    with pytest.importorskip("netCDF4").Dataset(tmp_path / "new.nc", "a") as opened:
        above = opened[os.path.dirname(name)] if "/" in name else opened
        above.note = "more"
        above.createVariable("scalar", "f4", ())[...] = 3
        opened[name][:] = 2
    np.testing.assert_array_equal(read(f"{tmp_path / 'new.nc'}:/{name}"), np.full((T, X), 2))
    assert float(read(f"{tmp_path / 'new.nc'}:{os.path.join('/', os.path.dirname(name), 'scalar')}")) == 3


@pytest.mark.parametrize("name", ["sim.nc", "new.nc", "sim.h5"])
@pytest.mark.parametrize(
    ("dtype", "instead"), [("float16", "float32"), ("longdouble", "float64"), ("clongdouble", "complex128")]
)
def test_precisions_which_netcdf_does_not_survive_are_refused(dtype: str, instead: str, name: str, file: Path) -> None:
    if name == "sim.h5":  # what its library wrote says so inside
        os.rename(file, file.with_name(name))
    x = np.ones(3, dtype)
    with pytest.raises(ArgumentTypeError, match=rf"{x.dtype}, which netCDF lacks.*astype\('{instead}'\)"):
        stored(x, f"{file.with_name(name)}:/new")
    if x.dtype.kind != "c":
        stored(x, f"{file.with_name('other.h5')}:/new")


@pytest.mark.parametrize(("dtype", "seen"), [("?", "i1"), ("i8", "i8"), ("u8", "u8"), (">f4", ">f4")])
def test_what_netcdf_makes_of_other_dtypes(dtype: str, seen: str, file: Path) -> None:
    stored(filled((T, X), dtype), f"{file}:/new")
    with pytest.importorskip("netCDF4").Dataset(file) as opened:
        assert opened["new"].dtype == np.dtype(seen).newbyteorder("=")
        np.testing.assert_array_equal(opened["new"][...], filled((T, X), dtype))


def test_variables_of_several_files_are_read_one_at_a_time(tmp_path: Path) -> None:
    """netCDF's library keeps what all of its files share."""
    shape, files = (400, 50), []
    for i in range(3):
        opened = pytest.importorskip("netCDF4").Dataset(tmp_path / f"{i}.nc", "w")
        opened.createDimension("x", shape[0])
        opened.createDimension("y", shape[1])
        made = opened.createVariable("u", "f4", ("x", "y"), zlib=True, chunksizes=(4, 50))
        made[:] = np.full(shape, i)
        files.append(opened)
    total = cf.map(lambda a, b, c: a + b + c, *(file["u"] for file in files), budget="100kB", device="cpu")
    for opened in files:
        opened.close()
    np.testing.assert_array_equal(total, np.full(shape, 3))


@pytest.mark.filterwarnings("ignore::chunkflow.errors.CodingWarning")
def test_a_file_that_netcdf_has_open(file: Path) -> None:
    """HDF5 locks it; what is read by path is closed again, and so another program can read along."""
    with pytest.importorskip("netCDF4").Dataset(file, "a") as opened:
        with pytest.raises(ReadError, match=r"sim\.nc.*another library here, as netCDF4: close it there"):
            cf.copy(f"{file}:/contiguous", device="cpu")
        opened.sync()
    with (
        pytest.importorskip("netCDF4").Dataset(file),
        pytest.raises(WriteError, match=r"to write 'new'.*as netCDF4: close it there"),
    ):
        stored(np.ones(3), f"{file}:/new")
    with pytest.importorskip("netCDF4").Dataset(file) as opened:
        array = cf.open(f"{file}:/zlib", decode="raw").compute(device="cpu")
        np.testing.assert_array_equal(array, opened["zlib"][...])


def test_scales_of_h5py_stay_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for name in ("metres", "feet", "gone"):
            file[name] = np.arange(4.0)
            file[name].make_scale(f"height in {name}")
        for name in ("u", "v"):
            file[name] = np.ones((4, 3))
            file[name].dims[0].label = "z"
            for scale in ("metres", "feet"):
                file[name].dims[0].attach_scale(file[scale])
        file["dead"] = np.ones(4)
        file["dead"].dims[0].attach_scale(file["metres"])
        del file["dead"]  # and the scale still says that it is attached
    stored(np.zeros((4, 3)), f"{path}:/u", overwrite=True)
    stored(np.linspace(0, 1, 4), f"{path}:/metres", overwrite=True)
    with h5py.File(path) as file:
        for name in ("u", "v"):
            assert file[name].dims[0].label == "z"
            assert [scale.name for scale in file[name].dims[0].values()] == ["/metres", "/feet"]
        assert h5py.h5ds.get_scale_name(file["metres"].id) == b"height in metres"
        np.testing.assert_array_equal(file["u"].dims[0][0][...], np.linspace(0, 1, 4))
        assert sorted(file) == ["feet", "gone", "metres", "u", "v"]
    with pytest.raises(ArgumentError, match="is a dimension scale"):
        stored(np.ones(5), f"{path}:/gone", overwrite=True)


def test_a_scale_that_was_deleted_before_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["u"] = np.arange(4.0), np.ones(4)
        file["x"].make_scale("x")
        file["u"].dims[0].attach_scale(file["x"])
        del file["x"]
    stored(np.zeros(4), f"{path}:/u", overwrite=True)
    np.testing.assert_array_equal(read(f"{path}:/u"), np.zeros(4))


# -- Files of other drivers -------------------------------------------------------------------------------------------

DRIVERS: dict[str, dict[str, Any]] = {"split": {}, "family": {"memb_size": 10_000}, "stdio": {}, "core": {}}


@pytest.mark.parametrize("options", [{}, {"chunks": (8, 8), "compression": "gzip"}], ids=["contiguous", "chunked"])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver(driver: str, options: dict[str, Any], tmp_path: Path) -> None:
    array, path = filled((30, 20), "f8"), tmp_path / ("x%d.h5" if driver == "family" else "x.h5")
    with h5py.File(path, "w", driver=driver, **DRIVERS[driver]) as file:
        made = file.create_dataset("u", array.shape, array.dtype, **options)
        before = properties(made)
        cf.copy(array, out=made, budget="20kB", device="cpu")
        assert properties(made) == before
    with h5py.File(path, "r", driver=driver, **DRIVERS[driver]) as file:
        np.testing.assert_array_equal(file["u"][...], array)
        np.testing.assert_array_equal(cf.copy(file["u"], budget="20kB", device="cpu"), array)


def test_elements_in_other_files(tmp_path: Path) -> None:
    """Of a dataset that the user opened they are written too, wherever they lie."""
    array = filled((30, 20), "f8")
    virtual = h5py.VirtualLayout((30, 20), "f8")
    for i in range(2):
        with h5py.File(tmp_path / f"{i}.h5", "w") as part:
            part.create_dataset("d", (15, 20), "f8", chunks=(4, 4), compression="gzip")
        virtual[15 * i : 15 * i + 15] = h5py.VirtualSource(tmp_path / f"{i}.h5", "d", (15, 20))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_virtual_dataset("virtual", virtual)
        file.create_dataset("external", (30, 20), "f8", external=[(str(tmp_path / "raw.bin"), 16, 4800)])
        for name in ("virtual", "external"):
            cf.copy(array, out=file[name], budget="20kB", device="cpu")
    with h5py.File(tmp_path / "x.h5") as file:
        for name in ("virtual", "external"):
            np.testing.assert_array_equal(file[name][...], array)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "raw.bin", offset=16).reshape(30, 20), array)
