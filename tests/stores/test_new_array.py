"""`chunkflow.NewArray`: what is said of an array that a run creates, in every format, and read by other programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, OutputExistsError
from chunkflow.graph.nodes import Lazy

X = np.arange(600.0).reshape(20, 30)
ROOT = np.sqrt(X)


def made(out: Any, **options: Any) -> Any:
    """What a run gives, which has the right elements."""
    found = cf.map(np.sqrt, X, out=out, device="cpu", **options)
    np.testing.assert_array_equal(np.asarray(found[...]), ROOT)
    return found


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("url", [False, True])
def test_what_is_said_stands_in_the_metadata(tmp_path: Path, version: Any, url: bool) -> None:
    where = f"memory://said/{tmp_path.name}/u.zarr" if url else tmp_path / "u.zarr"
    out = cf.NewArray(
        where,
        zarr_format=version,
        chunks=(5, -1),
        compressors=numcodecs.GZip(3),
        fill_value=-1,
        attributes={"units": "m/s", "levels": [1, 2]},
        dimension_names=("y", "x"),
        order="F",
    )
    array = made(out)
    assert array.chunks == (5, 30)
    assert array.fill_value == -1
    assert array.metadata.zarr_format == version
    assert array.attrs["units"] == "m/s"
    assert array.attrs["levels"] == [1, 2]
    if version == 2:
        assert array.metadata.compressor == numcodecs.GZip(3)
        assert array.metadata.order == "F"
        assert array.attrs["_ARRAY_DIMENSIONS"] == ["y", "x"]
    else:
        assert array.metadata.dimension_names == ("y", "x")
        assert array.compressors == (zarr.codecs.GzipCodec(level=3),)
        assert array.filters == (zarr.codecs.TransposeCodec(order=(1, 0)),)


@settings(max_examples=8, deadline=None)
@given(
    version=st.sampled_from([2, 3]),
    codec=st.sampled_from([None, "zstd", "gzip", "blosc", {"id": "blosc", "cname": "lz4", "shuffle": 2}, "auto"]),
    order=st.sampled_from([None, "C", "F"]),
    chunks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    shards=st.one_of(st.none(), st.tuples(st.integers(1, 3), st.integers(1, 3))),
    dtype=st.sampled_from(["?", "<i4", ">f8", "c8"]),
    lazy=st.booleans(),
    budget=st.sampled_from(["1MB", "20kB"]),
)
def test_zarr_python_reads_what_is_said(
    tmp_path_factory: Any,
    version: Any,
    codec: Any,
    order: Any,
    chunks: Any,
    shards: Any,
    dtype: str,
    lazy: bool,
    budget: str,
) -> None:
    x = np.random.default_rng(0).integers(0, 9, (13, 11)).astype(dtype)
    path = tmp_path_factory.mktemp("zarr") / "u.zarr"
    shard = None if shards is None or version == 2 else tuple(a * b for a, b in zip(chunks, shards, strict=True))
    out = cf.NewArray(path, zarr_format=version, compressors=codec, order=order, chunks=chunks, shards=shard)
    given = cf.open(x) if lazy else x
    done = (
        cf.store(given + 0, out, device="cpu", budget=budget) if lazy else cf.copy(x, out, device="cpu", budget=budget)
    )
    assert done.shards == shard
    assert (shard is None) <= (done.chunks == tuple(map(min, chunks, x.shape)))
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], x)
    assert isinstance(given, Lazy) == lazy


@pytest.mark.parametrize("how", [{"shards": (10, 20), "chunks": (5, 10)}, {"zarr_format": 2}, {"compressors": None}])
def test_tensorstore_reads_it(tmp_path: Path, how: dict[str, Any]) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    made(cf.NewArray(tmp_path / "u.zarr", **how))
    kind = "zarr" if how.get("zarr_format") == 2 else "zarr3"
    spec = {"driver": kind, "kvstore": {"driver": "file", "path": f"{tmp_path}/u.zarr/"}}
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), ROOT)


def test_rechunking_into_shards(tmp_path: Path) -> None:
    found = cf.rechunk(X, (5, 6), cf.NewArray(tmp_path / "u.zarr", shards=(10, 12)), device="cpu")
    assert (found.chunks, found.shards) == ((5, 6), (10, 12))
    np.testing.assert_array_equal(found[:], X)


def test_npy_takes_an_order_and_any_name(tmp_path: Path) -> None:
    found = made(cf.NewArray(tmp_path / "u.data", format="npy", order="F"))
    assert found.flags.f_contiguous
    assert np.load(tmp_path / "u.data").flags.f_contiguous
    assert cf.open(X).to_npy(cf.NewArray(tmp_path / "v.npy", order="C"), device="cpu").flags.c_contiguous


def test_a_run_is_gone_on_with_only_if_the_same_is_said(tmp_path: Path) -> None:
    calls = []

    def failing(block: Any) -> Any:
        calls.append(block.shape)
        if len(calls) == 16:
            raise RuntimeError("enough")
        return np.sqrt(block)

    def again(level: int) -> Any:
        out = cf.NewArray(tmp_path / "u.zarr", chunks=(1, 30), compressors={"id": "gzip", "level": level})
        how: Any = {"device": "cpu", "resume": True, "name": "roots", "chunks": (1, 30), "dtype": "f8", "workspace": 8}
        return cf.map(failing, X, out=out, **how)

    with pytest.raises(RuntimeError, match="enough"):
        again(1)
    with pytest.raises(cf.errors.ResumeError, match="what is said of output 0"):
        again(2)
    np.testing.assert_array_equal(again(1)[:], ROOT)


@pytest.mark.parametrize(
    ("say", "error", "why"),
    [
        ({"format": "npy", "compressors": "gzip"}, ArgumentError, "compressors= is for zarr and HDF5"),
        ({"format": "hdf5", "shards": (4, 4)}, ArgumentError, "shards= is for zarr"),
        ({"format": "hdf5", "order": "F"}, ArgumentError, "order= is for zarr and .npy"),
        ({"format": "hdf5", "compressors": "lzma"}, ArgumentError, "which takes gzip"),
        ({"format": "hdf5", "attributes": {"a": {}}}, ArgumentError, "numbers, texts"),
        ({"format": "hdf5", "fill_value": "many"}, ArgumentError, "fill_value='many'"),
        ({"format": "hdf5", "dimension_names": ("data", "x")}, ArgumentError, "the name of the result itself"),
        ({"maxshape": (None, 30)}, ArgumentError, "maxshape= is for HDF5.*format zarr, whose arrays can always grow"),
        ({"format": "npy", "maxshape": (None, 30)}, ArgumentError, r"format \.npy, whose arrays can always grow"),
        ({"format": "hdf5", "maxshape": (None,)}, ArgumentError, "1 entries, and the result .* 2 dimensions"),
        ({"format": "hdf5", "maxshape": (3, None)}, ArgumentError, "3 for axis 0, .* length 20 there already"),
        ({"format": "hdf5", "maxshape": "many"}, ArgumentTypeError, "the length to which each axis may grow"),
        ({"compressors": "pickle"}, ArgumentError, "no codec 'numcodecs.pickle' of numbers"),
        ({"compressors": "bogus"}, ArgumentError, "register_codec"),
        ({"compressors": 9}, ArgumentTypeError, "is no codec"),
        ({"filters": "delta"}, ArgumentError, "no complete codec"),
        ({"zarr_format": 4}, ArgumentError, "one of 2, 3"),
        ({"zarr_format": 2, "shards": (4, 4)}, ArgumentError, "format 3"),
        ({"zarr_format": 2, "compressors": ["gzip", "zstd"]}, ArgumentError, "one compressor"),
        ({"shards": (4, 4)}, ArgumentError, "need chunks= too"),
        ({"shards": (4, 4), "chunks": 3}, ArgumentError, "multiples"),
        ({"shards": (4,), "chunks": 2}, ArgumentError, "2 dimensions"),
        ({"chunks": (1, 2, 3)}, ArgumentError, "3 entries"),
        ({"dimension_names": "yx"}, ArgumentTypeError, "a name for each axis"),
        ({"dimension_names": ("y", "y")}, ArgumentError, "twice"),
        ({"fill_value": "many"}, ArgumentError, "cannot be created"),
        ({"attributes": {"a": object()}}, ArgumentError, "cannot be created"),
        ({"name": ""}, ArgumentTypeError, "name of an array"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(tmp_path: Path, say: Any, error: Any, why: str) -> None:
    np.save(tmp_path / "x.npy", X)

    def fn(block: Any) -> Any:
        raise AssertionError("it has been read")

    with pytest.raises(error, match=why):
        cf.map(
            fn, tmp_path / "x.npy", out=cf.NewArray(tmp_path / "u.zarr", **say), dtype="f8", workspace=8, device="cpu"
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.npy"]


# -- Groups and stores -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["local", "memory", "url", "object"])
def test_a_member_follows_its_group(tmp_path: Path, kind: str, version: Any) -> None:
    if kind == "object":
        obstore = pytest.importorskip("obstore")
        store: Any = zarr.storage.ObjectStore(obstore.store.MemoryStore())
    else:
        url = f"memory://group/{tmp_path.name}"
        store = {"local": tmp_path / "g", "memory": zarr.storage.MemoryStore(), "url": url}[kind]
    group = zarr.open_group(store, mode="w", zarr_format=version)
    group.create_array("s", shape=(4,), dtype="f4", chunk_key_encoding={"name": "v2", "separator": "/"})
    if kind != "object":
        zarr.consolidate_metadata(group.store, zarr_format=version)
    array = made(cf.NewArray(group, "run/u", chunks=(10, 15)))
    assert array.metadata.zarr_format == version
    assert array.path.endswith("run/u" if kind != "local" else "")
    again = zarr.open_group(store, mode="r", zarr_format=version)
    np.testing.assert_array_equal(again["run/u"][:], ROOT)
    if kind != "object":
        assert "run/u" in again.metadata.consolidated_metadata.flattened_metadata
    if version == 2:
        with pytest.raises(ArgumentError, match="in a group of format 2"):
            made(cf.NewArray(group, "v", zarr_format=3))
    with pytest.raises(OutputExistsError):
        made(cf.NewArray(group, "run/u"))


@pytest.mark.parametrize("version", [2, 3])
def test_chunks_are_named_as_those_beside_it(tmp_path: Path, version: Any) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=version)
    separator = "/" if version == 2 else "."
    key = {"name": "v2", "separator": separator}
    group.create_array("s", shape=(4, 4), dtype="f4", chunk_key_encoding=key)
    assert made(tmp_path / "g.zarr" / "u").metadata.encode_chunk_key((0, 1)) == f"0{separator}1"


def test_a_store_is_a_place_for_an_array_or_for_members() -> None:
    store = zarr.storage.MemoryStore()
    made(store)
    np.testing.assert_array_equal(zarr.open_array(store, mode="r")[:], ROOT)
    store = zarr.storage.MemoryStore()
    made(cf.NewArray(store, "a/b"))
    assert isinstance(zarr.open_group(store, mode="r")["a"], zarr.Group)


def test_a_run_that_fails_leaves_a_store_as_it_was() -> None:
    store = zarr.storage.MemoryStore()
    zarr.open_group(store, mode="w")
    before = sorted(store._store_dict)
    calls = []

    def failing(block: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("enough")
        return block

    with pytest.raises(RuntimeError):
        cf.map(failing, X, out=cf.NewArray(store, "a/b", chunks=(5, 30)), chunks=(5, 30), device="cpu")
    assert sorted(store._store_dict) == before


def test_a_place_that_is_taken_is_refused() -> None:
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    group.create_array("u", shape=(4,), dtype="f4")
    for out, error, why in [
        (group, ArgumentError, "name one"),
        (cf.NewArray(group, "u"), OutputExistsError, "exists"),
        (cf.NewArray(group, "u/v"), ArgumentError, "inside the zarr array"),
        (cf.NewArray(zarr.open_group(group.store, mode="r"), "v"), ArgumentError, "read-only"),
        (cf.NewArray(group, "v", format="npy"), ArgumentError, "a store of zarr's"),
        (cf.NewArray(X), ArgumentTypeError, "not in a ndarray"),
        (cf.NewArray("memory://a/u", format="hdf5"), ArgumentError, "behind a URL"),
    ]:
        with pytest.raises(error, match=why):
            made(out)
    with pytest.raises(ArgumentError, match="exists, and is not replaced"):
        made(cf.NewArray(group, "u"), overwrite=True)


def test_icechunk_is_left_uncommitted(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    made(cf.NewArray(group, "run/u", chunks=(5, 10), attributes={"units": "m"}))
    made(cf.NewArray(session.store, "v"))
    assert session.has_uncommitted_changes
    session.commit("two arrays")
    read = zarr.open_group(repo.readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(read["run/u"][:], ROOT)
    np.testing.assert_array_equal(read["v"][:], ROOT)
    session = repo.writable_session("main")
    with pytest.raises(RuntimeError):
        cf.map(_fails, X, out=cf.NewArray(session.store, "w"), dtype="f8", workspace=8, device="cpu")
    assert "w" not in zarr.open_group(session.store, mode="r")


def _fails(block: Any) -> Any:
    raise RuntimeError("no")


def test_of_dask_too(tmp_path: Path) -> None:
    pytest.importorskip("dask")
    from chunkflow.dask import store

    out = cf.NewArray(tmp_path / "u.zarr", zarr_format=2, chunks=(5, 30), compressors="gzip")
    found = store(np.sqrt(cf.open(X)), out, device="cpu", scheduler="sync", partition="2kB")
    np.testing.assert_array_equal(found[:], ROOT)
    assert json.loads((tmp_path / "u.zarr" / ".zarray").read_text())["compressor"]["id"] == "gzip"


@pytest.mark.parametrize("dtype", ["i1", "f2", "f8"])
def test_bytes_of_whole_elements_are_shuffled_in_format_2(dtype: str, tmp_path: Path) -> None:
    x = np.arange(30).astype(dtype)
    for name, filters in (("u.zarr", "shuffle"), ("v.zarr", {"id": "shuffle"})):
        cf.copy(x, cf.NewArray(tmp_path / name, zarr_format=2, filters=filters, chunks=5), device="cpu")
        found = zarr.open_array(tmp_path / name, mode="r")
        np.testing.assert_array_equal(found[:], x)
        assert found.filters[0].elementsize == x.itemsize
    with pytest.raises(ArgumentError, match="no whole number of 3 bytes"):
        cf.copy(
            x, cf.NewArray(tmp_path / "w.zarr", zarr_format=2, filters=numcodecs.Shuffle(3), chunks=5), device="cpu"
        )


# -- HDF5 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("codec", ["gzip", "lzf", "zstd", None])
def test_h5py_reads_it(tmp_path: Path, codec: Any, there: bool) -> None:
    h5py = pytest.importorskip("h5py")
    if codec == "zstd":
        pytest.importorskip("hdf5plugin")
    path = tmp_path / "u.h5"
    if there:
        with h5py.File(path, "w") as file:
            file["old"] = X
    out = cf.NewArray(
        path,
        "run/u",
        chunks=(7, -1),
        compressors=codec,
        filters="shuffle",
        fill_value=-1,
        attributes={"units": "m/s", "levels": [1, 2], "names": ["a", "b"]},
    )
    made(out, checksum=True).file.close()
    with h5py.File(path) as file:
        found = file["run/u"]
        np.testing.assert_array_equal(found[...], ROOT)
        assert (found.chunks, found.fillvalue, found.shuffle, found.fletcher32) == ((7, 30), -1, True, True)
        assert found.attrs["units"] == "m/s"
        assert list(found.attrs["names"]) == ["a", "b"]
        assert not there or np.array_equal(file["old"][...], X)
        if codec in ("gzip", "lzf"):
            assert found.compression == codec
    np.testing.assert_array_equal(cf.open(f"{path}:/run/u").compute(device="cpu"), ROOT)


@pytest.mark.parametrize("codec", ["gzip", "lzf", "zstd", "lz4", "blosc", "bz2"])
def test_chunks_that_no_filter_shrinks_are_stored_as_they_are(tmp_path: Path, codec: str) -> None:
    h5py = pytest.importorskip("h5py")
    if codec not in ("gzip", "lzf"):
        pytest.importorskip("hdf5plugin")
    noise = np.random.default_rng(0).integers(0, 256, (40, 40), "u1")
    path = tmp_path / "u.h5"
    cf.copy(noise, cf.NewArray(path, "u", chunks=(12, 9), compressors=codec), device="cpu").file.close()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["u"][...], noise)
    np.testing.assert_array_equal(cf.open(f"{path}:/u").compute(device="cpu"), noise)


AFTER_NETCDF4 = """
import sys
import netCDF4  # names a directory of filters, which fit only its own HDF5
import numpy as np
import chunkflow as cf

if sys.argv[2] == "without":
    import importlib.util
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name: None if name == "hdf5plugin" else found(name)
for codec in ("lz4", "zstd", "bz2", "blosc") if sys.argv[2] == "with" else ("blosc",):
    out = cf.NewArray(sys.argv[1], codec, compressors=codec, chunks=(10, 10))
    cf.copy(np.arange(1200.0).reshape(40, 30), out, device="cpu").file.close()
"""


def test_filters_do_not_depend_on_what_was_imported_before(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for each in ("netCDF4", "hdf5plugin"):
        pytest.importorskip(each)
    command = [sys.executable, "-c", AFTER_NETCDF4]
    done = [
        subprocess.run([*command, tmp_path / f"{how}.h5", how], capture_output=True, text=True, check=False)
        for how in ("with", "without")
    ]
    assert not done[0].returncode, done[0].stderr
    with h5py.File(tmp_path / "with.h5") as file:
        for codec in ("lz4", "zstd", "bz2", "blosc"):
            np.testing.assert_array_equal(file[codec][...], np.arange(1200.0).reshape(40, 30))
    assert "its filters are blosc, and `import hdf5plugin` has most" in done[1].stderr  # or it is right one day
    assert not (tmp_path / "without.h5").exists()


@pytest.mark.parametrize("how", [{}, {"chunks": (3, 4)}, {"compressors": "gzip"}])
@pytest.mark.parametrize("rows", [0, 5])
def test_datasets_that_grow(tmp_path: Path, how: dict[str, Any], rows: int) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "u.h5"
    cf.copy(X[:rows], cf.NewArray(path, "u", maxshape=(None, 30), **how), device="cpu").file.close()
    for some in (X[rows:7], X[7:]):
        cf.copy(some, cf.ExistingArray(f"{path}:/u", append=0), device="cpu").file.close()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["u"][...], X)
        assert file["u"].maxshape == (None, 30)
    with pytest.raises(ArgumentError, match=r"length 30 along axis 1, .*\.NewArray\('.*u-2', maxshape=\(20, None\)\)"):
        cf.copy(X, cf.ExistingArray(f"{path}:/u", append=1), device="cpu")


def test_a_dataset_that_cannot_grow_names_what_does(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    cf.copy(X, f"{tmp_path}/u.h5:/u", device="cpu").file.close()
    with pytest.raises(ArgumentError, match=r"NewArray\('.*/u\.h5:/u-2', maxshape=\(None, 30\)\)"):
        cf.copy(X, cf.ExistingArray(f"{tmp_path}/u.h5:/u", append=0), device="cpu")


def test_netcdf_knows_the_dimensions(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    netcdf4 = pytest.importorskip("netCDF4")
    path = tmp_path / "u.nc"
    cf.copy(np.arange(20.0), cf.NewArray(path, "y", dimension_names=("y",)), device="cpu").file.close()
    made(cf.NewArray(path, "u", dimension_names=("y", "x"), compressors="gzip")).file.close()
    with netcdf4.Dataset(path) as data:
        assert data.variables["u"].dimensions == ("y", "x")
        assert set(data.variables) == {"u", "y"}
        assert data.dimensions["x"].size == 30
        np.testing.assert_array_equal(data.variables["u"][:], ROOT)
    for names, why in [(("x", "y"), "a dimension scale of shape"), (("u", None), "no dimension scale")]:
        with pytest.raises(ArgumentError, match=why):
            made(cf.NewArray(path, "v", dimension_names=names))


def test_any_name_of_a_file(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    made(cf.NewArray(tmp_path / "scan.nxs", "entry/data", format="hdf5")).file.close()
    np.testing.assert_array_equal(cf.open(tmp_path / "scan.nxs").compute(device="cpu"), ROOT)


@pytest.mark.parametrize("chunks", [(0, 3), (-2, 3), 0, "most", True, (1.5, 2), ((3, 4), 3)])
def test_chunks_that_no_array_has_are_refused_at_once(chunks: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=re.escape(f"chunks={chunks!r}")):
        cf.NewArray("x.zarr", chunks=chunks)
