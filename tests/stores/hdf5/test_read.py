"""What is read of HDF5 files, against h5py itself; damaged files; paths."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bloscbytes import blosc_with
from support.hdf5files import FILTERS, read, save

import chunkflow as cf
from chunkflow.core.grid import Shape, whole
from chunkflow.errors import ArgumentError, ArgumentTypeError, OutputExistsError, ReadError, SourceNotFoundError
from chunkflow.stores import open_source, open_target
from chunkflow.stores.file.strided import pread
from chunkflow.stores.paths import located
from chunkflow.testing import filled

h5py = pytest.importorskip("h5py")

from chunkflow.stores.hdf5.dataset import SLABS, open_hdf5  # noqa: E402
from chunkflow.stores.hdf5.index import Index  # noqa: E402

# -- What is read, against h5py ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("dtype", [">i4", "f2", "?", "c16", "u1", ">c8", "f8"])
def test_every_filter_and_dtype(tmp_path: Path, filters: str, dtype: str, libver: str) -> None:
    array = filled((23, 17), dtype)
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        file.create_dataset("u", data=array, chunks=(5, 6), **FILTERS[filters])
        file.create_dataset("growing", data=array, chunks=(5, 6), maxshape=(None, None), **FILTERS[filters])
        file.create_dataset("one", data=array, chunks=(23, 17), **FILTERS[filters])
    for name in ("u", "growing", "one"):
        source = open_source(f"{tmp_path / 'x.h5'}:{name}")
        assert ("directly" in source.spec.storage.how) == (filters != "lzf")
        assert source.spec.dtype == np.dtype(dtype).newbyteorder("=")
        source.close()
        np.testing.assert_array_equal(read(f"{tmp_path / 'x.h5'}:{name}"), array)


@given(data=st.data())
def test_any_region_is_what_h5py_reads(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    array = filled(shape, data.draw(st.sampled_from(["f4", ">i2", "?", "c8"])))
    chunks = data.draw(st.none() | st.tuples(*(st.integers(1, n) for n in shape)))
    options = FILTERS[data.draw(st.sampled_from(list(FILTERS)))]
    path = save(tmp_path_factory.mktemp("hdf5") / "x.h5", array, chunks=chunks, **options)
    with h5py.File(path.split(":")[0], "r+") as file:
        for obj in (path, file["u"]):
            source = open_source(obj)
            for _ in range(3):
                starts = [data.draw(st.integers(0, n - 1)) for n in shape]
                region = tuple(slice(a, data.draw(st.integers(a + 1, n))) for a, n in zip(starts, shape, strict=True))
                out = np.empty(array[region].shape, source.spec.dtype)
                source.read(region, out)
                np.testing.assert_array_equal(out, file["u"][region])
            source.close()


@pytest.mark.parametrize("filters", ["raw", "all", "lzf"])
def test_missing_chunks_read_as_the_fill_value(tmp_path: Path, filters: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", (10, 9), "f4", chunks=(4, 4), fillvalue=7, **FILTERS[filters])
        made[4:8, 4:8] = 1
        file.create_dataset("late", (10, 9), "f4", fillvalue=3)
    out = read(f"{tmp_path / 'x.h5'}:u")
    assert (out[4:8, 4:8] == 1).all()
    assert (out == 7).sum() == 90 - 16
    assert (read(f"{tmp_path / 'x.h5'}:late") == 3).all()


def test_filters_that_a_chunk_did_not_go_through(tmp_path: Path) -> None:
    array = filled((8, 8), "i4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", (8, 8), "i4", chunks=(4, 8), **FILTERS["gzip+shuffle"])
        made.id.write_direct_chunk((0, 0), array[:4].tobytes(), 0b11)
        made.id.write_direct_chunk((4, 0), zlib.compress(array[4:].tobytes()), 0b01)
    np.testing.assert_array_equal(read(f"{tmp_path / 'x.h5'}:u"), array)
    with h5py.File(tmp_path / "x.h5") as file:
        np.testing.assert_array_equal(file["u"][...], array)


def test_a_partial_chunk_that_may_not_be_filtered_is_left_to_h5py(tmp_path: Path) -> None:
    array = filled((7, 8), "i4")
    path = save(tmp_path / "x.h5", array, chunks=(4, 8), shuffle=True)
    np.testing.assert_array_equal(read(path), array)


@pytest.mark.parametrize("where", ["path", "object"])
def test_a_file_behind_a_user_block(tmp_path: Path, where: str) -> None:
    array = filled((9, 8), "f4")
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file.create_dataset("u", data=array, chunks=(4, 4), **FILTERS["all"])
        file.create_dataset("v", data=array)
    with h5py.File(tmp_path / "x.h5") as file:
        for name in "uv":
            obj = file[name] if where == "object" else f"{tmp_path / 'x.h5'}:/{name}"
            np.testing.assert_array_equal(read(obj), array)


def test_types_that_hdf5_converts(tmp_path: Path) -> None:
    brain = h5py.h5t.IEEE_F16LE.copy()
    brain.set_ebias(127)
    brain.set_fields(15, 7, 8, 0, 7)
    short = h5py.h5t.STD_I32LE.copy()
    short.set_precision(24)
    array = np.arange(-5, 5) / 2
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, kind in (("brain", brain), ("short", short)):
            for chunks in (None, (4,)):
                made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                if chunks:
                    made.set_chunk(chunks)
                space = h5py.h5s.create_simple((10,))
                ident = h5py.h5d.create(file.id, f"{name}{chunks}".encode(), kind, space, made)
                h5py.Dataset(ident)[...] = array if name == "brain" else np.arange(10)
    for name in ("brain", "short"):
        for chunks in (None, (4,)):
            source = open_source(f"{tmp_path / 'x.h5'}:{name}{chunks}")
            assert "converts" in source.spec.storage.how
            source.close()
            values = read(f"{tmp_path / 'x.h5'}:{name}{chunks}")
            np.testing.assert_array_equal(values, array if name == "brain" else np.arange(10))
            with h5py.File(tmp_path / "x.h5", "r+") as file:
                cf.map(lambda a: a + a, file[f"{name}{chunks}"], out=file[f"{name}{chunks}"], device="cpu")
                np.testing.assert_array_equal(file[f"{name}{chunks}"][...], 2 * values)


def test_enumerations_are_integers_and_compact_datasets_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("e", data=np.array([0, 1, 2]), dtype=h5py.enum_dtype({"a": 0, "b": 1, "c": 2}))
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_layout(h5py.h5d.COMPACT)
        ident = h5py.h5d.create(file.id, b"c", h5py.h5t.NATIVE_INT64, h5py.h5s.create_simple((3,)), made)
        h5py.Dataset(ident)[...] = [3, 4, 5]
    assert read(f"{tmp_path / 'x.h5'}:e").tolist() == [0, 1, 2]
    assert read(f"{tmp_path / 'x.h5'}:c").tolist() == [3, 4, 5]


@pytest.mark.parametrize("dtype", ["S3", "i4,f4", h5py.string_dtype(), h5py.ref_dtype, h5py.vlen_dtype("i4")])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: Any) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", (3,), dtype)
        for opened in (open_source, open_target):
            with pytest.raises(ArgumentTypeError, match=r"x\.h5:/u has dtype"):
                opened(made)
        file["empty"] = h5py.Empty("f4")
    with pytest.raises(ArgumentTypeError, match="has dtype"):
        open_source(f"{tmp_path / 'x.h5'}:u")
    with pytest.raises(ArgumentError, match="null"):
        open_source(f"{tmp_path / 'x.h5'}:empty")


def in_blocks(raw: bytes, side: int) -> bytes:
    """As HDF5's filter frames LZ4."""
    blocks = [bytes(numcodecs.LZ4().encode(raw[at : at + side]))[4:] for at in range(0, len(raw), side)]
    return struct.pack(">QI", len(raw), side) + b"".join(struct.pack(">I", len(b)) + b for b in blocks)


@pytest.mark.parametrize(
    ("code", "name", "encode"),
    [
        (32001, "blosc", numcodecs.Blosc("lz4", shuffle=1).encode),
        (32004, "lz4", lambda raw: in_blocks(bytes(raw), 600)),
        (32015, "zstd", numcodecs.Zstd().encode),
    ],
)
def test_registered_filters_without_their_libraries(tmp_path: Path, code: int, name: str, encode: Any) -> None:
    array = np.cumsum(filled((16, 24), "i4"), axis=0).astype("i4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((16, 24))
        made.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())  # HDF5 itself cannot encode by it
        place = h5py.h5s.create_simple(array.shape)
        ident = h5py.h5d.create(file.id, b"u", h5py.h5t.NATIVE_INT32, place, made)
        ident.write_direct_chunk((0, 0), bytes(encode(np.ascontiguousarray(array))))
    path = f"{tmp_path / 'x.h5'}:/u"
    assert open_source(path).spec.storage.how == f"directly: {name}"
    np.testing.assert_array_equal(read(path), array)


def test_registered_filters(tmp_path: Path) -> None:
    plugin = pytest.importorskip("hdf5plugin")
    array = np.cumsum(filled((40, 50), "i4"), axis=0).astype("i4")
    noise = np.random.default_rng(0).integers(0, 1 << 31, (40, 50), "i4")
    direct = {
        "zstd": plugin.Zstd(),
        "lz4": plugin.LZ4(),
        "lz4 in blocks": plugin.LZ4(nbytes=1000),
        **{f"blosc {name}": plugin.Blosc(cname=name) for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")},
        "blosc bits": plugin.Blosc(shuffle=2),
    }
    for name, codec in {**direct, "bitshuffle": plugin.Bitshuffle(), "blosc2": plugin.Blosc2()}.items():
        for values, shuffle in ((array, False), (noise, True)):
            path = save(tmp_path / f"{name}{shuffle}.h5", values, chunks=(16, 16), compression=codec, shuffle=shuffle)
            source = open_source(path)
            assert ("directly" in source.spec.storage.how) == (name in direct)
            source.close()
            np.testing.assert_array_equal(read(path), values)


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 4)}, {"chunks": (4, 4), **FILTERS["all"]}], ids=str)
def test_what_h5py_has_not_written_yet_is_read_all_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", (8, 8), "f4", **options)
        for value in (1, 2):
            made[...] = value
            assert (read(f"{tmp_path / 'x.h5'}:u") == value).all()
            made[...] = -value
            assert (read(made) == -value).all()


def test_places_are_found_one_by_one_where_hdf5_cannot_list_them(tmp_path: Path) -> None:
    class Old:
        def __init__(self, ident: Any) -> None:
            self.get_num_chunks, self.get_chunk_info = ident.get_num_chunks, ident.get_chunk_info

    class OldDataset:
        def __init__(self, dataset: Any) -> None:
            self.shape, self.chunks, self.id = dataset.shape, dataset.chunks, Old(dataset.id)

    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", (9, 7), "f4", chunks=(2, 3))
        made[4:, 3:] = 1
        file.flush()
        old, new = Index(OldDataset(made)), Index(made)
        found = {key: new.find(key) for key in np.ndindex(5, 3)}
        assert {key: old.find(key) for key in np.ndindex(5, 3)} == found
        assert {key for key in found if found[key] is None} == {key for key in found if key[0] < 2 or key[1] < 1}


# -- Damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [None, (10, 10)])
def test_a_truncated_file_is_a_read_error(tmp_path: Path, chunks: Any) -> None:
    path = save(tmp_path / "x.h5", filled((100, 100), "f4"), chunks=chunks)
    os.truncate(tmp_path / "x.h5", 20_000)
    with pytest.raises(ReadError, match="truncated"):
        open_source(path)


@pytest.mark.parametrize("chunks", [None, (10, 100)])
def test_a_file_truncated_while_it_is_read_is_a_read_error(tmp_path: Path, chunks: Any) -> None:
    array = filled((100, 100), "f4")
    source = open_source(save(tmp_path / "x.h5", array, chunks=chunks))
    out = np.empty((10, 100), "f4")
    source.read((slice(0, 10), slice(0, 100)), out)
    np.testing.assert_array_equal(out, array[:10])
    os.truncate(tmp_path / "x.h5", 20_000)
    with pytest.raises(ReadError, match=r"\[90:100, 0:100\].*expected 4000 bytes") as caught:
        source.read((slice(90, 100), slice(0, 100)), out)
    assert caught.value.path == f"{tmp_path / 'x.h5'}:/u"
    source.close()


def places(path: str) -> Index:
    with h5py.File(path.split(":")[0]) as file:
        return Index(file["u"])


@pytest.mark.parametrize("filters", ["gzip", "all", "fletcher32"])
def test_a_damaged_chunk_is_a_read_error(tmp_path: Path, filters: str) -> None:
    array = filled((8, 8), "f4")
    path = save(tmp_path / "x.h5", array, chunks=(4, 4), **FILTERS[filters])
    place = places(path).find((1, 0))
    assert place is not None
    good = (tmp_path / "x.h5").read_bytes()
    for at in range(place.size):
        raw = bytearray(good)
        raw[place.address + at] ^= 0xFF
        (tmp_path / "x.h5").write_bytes(raw)
        try:
            out = read(path)
        except ReadError:
            continue
        np.testing.assert_array_equal(out, array)  # bits of a header that mean nothing


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}, {"compression": "lzf"}], ids=str)
def test_the_chunk_is_named_whose_checksum_is_wrong(tmp_path: Path, filters: dict[str, Any]) -> None:
    path = save(tmp_path / "x.h5", filled((8, 8), "f4"), chunks=(4, 4), fletcher32=True, **filters)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        _, raw = file["u"].id.read_direct_chunk((4, 0))
        file["u"].id.write_direct_chunk((4, 0), raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(ReadError, match=r"cannot read \[0:8, 0:8\] of .*x\.h5:/u: chunk \(1, 0\): "):
        read(path)


def filtered(file: Any, code: int, chunk: bytes) -> Any:
    """A dataset of a filter that HDF5 may not have, and whose only chunk is given."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((4, 8))
    made.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (2, 2, 8, 256, 5, 1, 0))
    space = h5py.h5s.create_simple((8, 8))
    ident = h5py.h5d.create(file.id, b"u", h5py.h5t.NATIVE_DOUBLE, space, made)
    ident.write_direct_chunk((4, 0), chunk)
    return h5py.Dataset(ident)


@pytest.mark.parametrize(
    ("code", "chunk", "said"),
    [
        (32001, blosc_with(2, 256), "blosc with snappy inside, and snappy is not built into numcodecs"),
        (40000, bytes(9), "filter 40000 is not built into HDF5 here"),
    ],
    ids=["snappy", "unknown"],
)
def test_what_is_not_built_in_is_named(tmp_path: Path, code: int, chunk: bytes, said: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = filtered(file, code, chunk)
        for each in (made, f"{tmp_path / 'x.h5'}:/u"):
            with pytest.raises(ReadError, match=rf"chunk \(1, 0\): .*{said}"):
                read(each)
            np.testing.assert_array_equal(cf.open(each)[:4].compute(device="cpu"), np.zeros((4, 8)))


def test_what_hdf5plugin_would_add_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        filtered(file, 307, bytes(9))
    code = "import sys, chunkflow; chunkflow.open(sys.argv[1]).compute(device='cpu')"
    nowhere = os.environ | {"HDF5_PLUGIN_PATH": "::"}
    done = subprocess.run(
        [sys.executable, "-c", code, f"{tmp_path / 'x.h5'}:/u"],
        env=nowhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "bzip2 is not built into HDF5 here, but `import hdf5plugin` adds most filters" in done.stderr


@pytest.mark.parametrize("held", [1, 8 * 16 - 1, 8 * 16 + 1, 1 << 24])
def test_a_chunk_that_claims_another_size_is_an_error(tmp_path: Path, held: int) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("u", (8, 4), "f8", chunks=(4, 4), compression="gzip")
        made.id.write_direct_chunk((0, 0), zlib.compress(bytes(held)))
        raw = file.create_dataset("raw", (8, 4), "f8", chunks=(4, 4))
        raw.id.write_direct_chunk((0, 0), bytes(min(held, 1000)))
    with pytest.raises(ReadError, match="128 bytes"):
        read(f"{tmp_path / 'x.h5'}:u")
    with pytest.raises(ReadError, match="is stored in"):
        read(f"{tmp_path / 'x.h5'}:raw")


@pytest.mark.parametrize("name", ["Zstd", "LZ4", "Blosc"])
def test_a_claim_of_a_registered_filter_is_not_believed(tmp_path: Path, name: str) -> None:
    plugin = pytest.importorskip("hdf5plugin")
    codec = getattr(plugin, name)()
    large = save(tmp_path / "y.h5", np.zeros(1 << 20), chunks=(1 << 20,), compression=codec)
    with h5py.File(large.split(":")[0]) as file, h5py.File(tmp_path / "x.h5", "w") as other:
        _, raw = file["u"].id.read_direct_chunk((0,))
        made = other.create_dataset("u", (1000,), "f8", chunks=(1000,), compression=codec)
        made.id.write_direct_chunk((0,), raw)
    with pytest.raises(ReadError):
        read(f"{tmp_path / 'x.h5'}:u")


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    array = filled((8, 8), "f4")
    source = open_source(save(tmp_path / "x.h5", array, chunks=(4, 4)))
    save(tmp_path / "y.h5", np.zeros((8, 8)), chunks=(4, 4))
    os.replace(tmp_path / "y.h5", tmp_path / "x.h5")
    with pytest.raises(ReadError, match="another file"):
        source.read(whole((8, 8)), np.empty((8, 8), "f4"))
    source.close()


# -- Paths ------------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_named_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"no file .*x\.h5"):
        open_source(f"{tmp_path / 'x.h5'}:/u")
    save(tmp_path / "x.h5", np.arange(3), "fields/u")
    with pytest.raises(SourceNotFoundError, match=r"'/fields/w'.*x\.h5.*'fields/u'"):
        open_source(f"{tmp_path / 'x.h5'}:/fields/w")
    with pytest.raises(ArgumentError, match=r"is a group.*'u'"):
        open_source(f"{tmp_path / 'x.h5'}:/fields")
    assert read(tmp_path / "x.h5").tolist() == [0, 1, 2]
    save(tmp_path / "x.h5", np.arange(3), "v")
    with pytest.raises(ArgumentError, match=r"single dataset.*'fields/u', 'v'"):
        open_source(tmp_path / "x.h5")


@pytest.mark.parametrize("suffix", ["h5", "hdf5", "hdf", "nc", "H5"])
def test_every_suffix(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"x.{suffix}", np.arange(3))
    assert read(path).tolist() == read(Path(path)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["scan.nxs", "x.he5", "x.cxi", "x.h5ad", "x", "a:b.dat", "x.zarr"])
def test_a_file_is_known_by_its_signature(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, np.arange(3))
    assert read(path).tolist() == read(tmp_path / name).tolist() == read(f"{tmp_path / name}/").tolist() == [0, 1, 2]
    assert located(path) == path
    with pytest.raises(SourceNotFoundError, match=r"no dataset '/v'.*'u'"):
        open_source(f"{tmp_path / name}:/v")


def test_a_signature_behind_a_user_block_is_found(tmp_path: Path) -> None:
    for size in (512, 4096):
        path = tmp_path / f"x{size}.mat"
        with h5py.File(path, "w", userblock_size=size) as file:
            file["u"] = np.arange(3)
        with path.open("r+b") as block:
            block.write(b"MATLAB 7.3 MAT-file")
        assert read(f"{path}:/u").tolist() == [0, 1, 2]


def test_a_colon_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "f.h5", np.arange(3), "fields/u")
    with pytest.raises(SourceNotFoundError, match=r"as in 'f\.h5:/fields/u'"):
        open_source("f.h5/fields/u")
    with pytest.raises(ArgumentError, match=r"as in 'f\.h5:/fields/v'"):
        open_target("f.h5/fields/v")


def test_the_target_of_a_broken_link_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    (tmp_path / "text.h5").write_text("text")
    with h5py.File(path, "w") as file:
        file["soft"], file["group"] = h5py.SoftLink("/nope/z"), h5py.SoftLink("/nope")
        file["one"], file["other"] = h5py.SoftLink("/other"), h5py.SoftLink("/one")
        file["gone"], file["text"] = h5py.ExternalLink("gone.h5", "/q"), h5py.ExternalLink("text.h5", "/q")
        file["u"] = np.arange(3)
        file["good"] = h5py.SoftLink("/u")
    assert read(f"{path}:/good").tolist() == [0, 1, 2]
    for name, said in {
        "soft": "'/soft' is a link to '/nope/z'",
        "group/u": "'/group' is a link to '/nope'",
        "one": "'/one' is a link to '/other'",
        "gone": "'/gone' is a link to '/q' in the file 'gone.h5', which does not exist",
        "text": "'/text' is a link to '/q' in the file 'text.h5', which has no such name",
    }.items():
        with pytest.raises(SourceNotFoundError, match=said):
            open_source(f"{path}:/{name}")


@pytest.mark.parametrize("content", [b"", b"\x0e\x03\x13\x01 an HDF4 file", b"x" * 5000])
def test_another_format_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.nc").write_bytes(content)
    with pytest.raises(ArgumentError, match="no HDF5 file"):
        open_source(f"{tmp_path / 'x.nc'}:/u")
    with pytest.raises(ArgumentError, match="not overwritten"):
        open_target(f"{tmp_path / 'x.nc'}:/u", overwrite=True)
    assert (tmp_path / "x.nc").read_bytes() == content


def test_elements_in_other_files_are_read_only_of_a_dataset_that_the_user_opened(tmp_path: Path) -> None:
    array = filled((6,), "f4")
    save(tmp_path / "part.h5", array)
    (tmp_path / "raw.bin").write_bytes(array.tobytes())
    with h5py.File(tmp_path / "x.h5", "w") as file:
        virtual = h5py.VirtualLayout((6,), "f4")
        virtual[:] = h5py.VirtualSource(tmp_path / "part.h5", "u", (6,))
        file.create_virtual_dataset("v", virtual)
        file.create_dataset("e", (6,), "f4", external=[(str(tmp_path / "raw.bin"), 0, 24)])
    for name in "ve":
        with pytest.raises(ArgumentError, match=r"other files.*h5py\.Dataset"):
            open_source(f"{tmp_path / 'x.h5'}:{name}")
        with h5py.File(tmp_path / "x.h5") as file:
            np.testing.assert_array_equal(read(file[name]), array)


def test_places_are_the_same_by_path_and_as_an_object(tmp_path: Path) -> None:
    array = filled((8, 8), "f4")
    for name, options in (("u", {}), ("v", {"chunks": (4, 4)}), ("w", {"chunks": (4, 4)})):
        save(tmp_path / "x.h5", array, name, **options)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["link"] = file["v"]
        places = {}
        for name in ("u", "v", "w", "link"):
            sources = [open_source(file[name]), open_source(f"{tmp_path / 'x.h5'}:/{name}")]
            assert sources[0].footprint == sources[1].footprint == open_target(file[name]).footprint
            places[name] = sources[0].footprint
            for source in sources:
                source.close()
    assert places["v"] == places["link"]
    for other in ("u", "w"):
        assert places["v"] is not None
        assert not places["v"].overlaps(places[other])


def test_names_in_a_file_that_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    save(path, np.arange(3), "fields/u")
    with h5py.File(path, "r+") as file:
        file["far"] = h5py.ExternalLink("other.h5", "/")
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        open_target(f"{path}:/fields/u")
    with pytest.raises(ArgumentError, match="not overwritten"):
        open_target(f"{path}:/fields", overwrite=True)
    with pytest.raises(ArgumentError, match="no group"):
        open_target(f"{path}:/fields/u/v")
    with pytest.raises(ArgumentError, match="another file"):
        open_target(f"{path}:/far/v")
    with pytest.raises(ArgumentError, match="names no dataset"):
        open_target(f"{path}:/")


def test_h5py_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for opened in (open_source, open_target):
        with pytest.raises(ArgumentError, match=r"pip install 'chunkflow-stream\[hdf5\]'"):
            opened(tmp_path / "x.h5")


@pytest.mark.parametrize("maxshape", [(2, None), (None, 12), (None, None), None], ids=str)
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_datasets_that_grow(maxshape: Any, version: str, tmp_path: Path) -> None:
    """HDF5's own list of chunks is wrong for some of them."""
    data = np.arange(24.0).reshape(2, 12)
    with h5py.File(tmp_path / "c.h5", "w", libver=version) as file:
        file.create_dataset("x", data=data, chunks=(1, 4), maxshape=maxshape)
    np.testing.assert_array_equal(cf.copy(f"{tmp_path}/c.h5:/x", device="cpu"), data)
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        cf.copy(data + 1, out=file["x"], device="cpu")
    np.testing.assert_array_equal(cf.copy(f"{tmp_path}/c.h5:/x", device="cpu"), data + 1)


@pytest.mark.parametrize("name", ["d", "other"])
def test_a_file_that_cannot_be_closed_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """HDF5 reads once more when it closes a file, from a disk that may fail for good."""
    array = filled((50, 40), "f4")
    save(tmp_path / "x.h5", array, "d", chunks=(10, 40), compression="gzip")
    real = h5py.File.close

    def close(file: Any) -> None:
        real(file)
        raise RuntimeError("Can't decrement id ref count (unable to close file, errno = 5)")

    monkeypatch.setattr(h5py.File, "close", close)
    if name == "d":
        np.testing.assert_array_equal(cf.copy(f"{tmp_path}/x.h5:/d", device="cpu"), array)
    else:
        with pytest.raises(SourceNotFoundError, match="other"):
            cf.copy(f"{tmp_path}/x.h5:/other", device="cpu")


@given(data=st.data())
def test_many_small_chunks_are_read_together(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By another program's order in the file, with gaps, edges and filters, any region is h5py's."""
    path = tmp_path_factory.mktemp("small") / "x.h5"
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    chunks = tuple(data.draw(st.integers(1, min(n, 5))) for n in shape)
    how = data.draw(st.sampled_from([{}, {"compression": "gzip"}, {"shuffle": True, "compression": 1}]))
    x = np.random.default_rng(0).integers(0, 9, shape).astype(data.draw(st.sampled_from(["f4", ">i2", "u1"])))
    rows = list(range(0, shape[0], chunks[0]))
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", shape, x.dtype, chunks=chunks, fillvalue=7, **how)
        for row in data.draw(st.permutations(rows)):
            if data.draw(st.integers(0, 9)):
                made[row : row + chunks[0]] = x[row : row + chunks[0]]
            if data.draw(st.booleans()):
                file.create_dataset(f"between{row}", data=np.arange(data.draw(st.integers(1, 99))))
    sides = [data.draw(st.integers(0, n - 1)) for n in shape]
    box = tuple(slice(low, data.draw(st.integers(low + 1, n))) for low, n in zip(sides, shape, strict=True))
    with h5py.File(path) as file:
        expected = file["x"][box]
    with patch("chunkflow.stores.hdf5.together.MOST", data.draw(st.sampled_from([1, 200, 1 << 17]))):
        np.testing.assert_array_equal(cf.open(f"{path}:/x")[box].compute(device="cpu"), expected)


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip"}])
def test_small_chunks_take_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: Any) -> None:
    x = np.arange(4096.0).reshape(512, 8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(2, 4), **filters)
    reads: list[int] = []
    monkeypatch.setattr(
        "chunkflow.stores.hdf5.together.pread", lambda fd, at, into: (reads.append(at), pread(fd, at, into))
    )
    np.testing.assert_array_equal(cf.copy(tmp_path / "x.h5", device="cpu"), x)
    assert 1 <= len(reads) <= 64  # of 512 chunks: HDF5 puts its index between them


def test_small_chunks_that_are_stored_in_too_many_bytes_are_refused_in_little_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = file.create_dataset("x", (16 * 256,), "f8", chunks=(256,), compression="gzip")
        for number in range(16):
            made.id.write_direct_chunk((number * 256,), b"\1" * (1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ReadError, match=r"chunk \(0,\): a chunk of 2048 bytes is stored in 1048576"):
            cf.copy(tmp_path / "x.h5", device="cpu")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["f4", ">f4", "<i2", "f8"])
@pytest.mark.parametrize("chunks", [(8, 48, 64), (1, 48, 64), (8, 16, 16)])
def test_parts_of_unencoded_chunks_are_read_by_themselves(tmp_path: Path, dtype: str, chunks: Shape) -> None:
    x = np.random.default_rng(0).integers(-99, 99, (20, 48, 64)).astype(dtype)  # the last chunks stick out
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        stored = file.create_dataset("x", x.shape, dtype, chunks=chunks, fillvalue=7)
        stored[:8], stored[16:] = x[:8], x[16:]  # none of some chunks
        expected = stored[...]
    with closing(open_hdf5(f"{tmp_path}/x.h5:/x")) as source:
        nbytes = math.prod(chunks) * x.itemsize
        long = chunks[1:] == x.shape[1:] if chunks[0] > 1 else True
        assert source.spec.storage.raw
        assert source.spec.storage.parted == (long and nbytes >= SLABS)
        assert source.spec.chunks == chunks
        for region in (np.s_[3:5, :, :], np.s_[0:20, 5:9, 7:8], np.s_[6:18, 47:48, :], np.s_[19:20, 0:48, 63:64]):
            region = tuple(slice(*s.indices(n)) for s, n in zip(region, x.shape, strict=True))
            out = np.empty(expected[region].shape, x.dtype.newbyteorder("="))
            source.read(region, out)
            np.testing.assert_array_equal(out, expected[region])


def test_no_more_is_read_of_unencoded_chunks_than_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((64, 64, 64), "f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(32, 64, 64))
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(found := preadv(*args)) or found)
    path, options = f"{tmp_path}/x.h5:/x", {"axis": (1, 2), "budget": "200kB", "device": "cpu"}
    plan = cf.explain(cf.mean, path, **options)
    assert len(plan.grid) > 4
    np.testing.assert_allclose(cf.mean(path, **options), x.mean((1, 2)), rtol=1e-5)
    assert sum(read) == plan.bytes_in == x.nbytes, "whole chunks would be read for each block"


def test_a_file_that_ends_within_a_part_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.ones((64, 64, 64), "f4"), chunks=(64, 64, 64))
    with closing(open_hdf5(f"{tmp_path}/x.h5:/x")) as source:
        source.learn()
        os.truncate(tmp_path / "x.h5", 300_000)
        with pytest.raises(ReadError, match=r"truncated|ends at byte"):
            source.read(np.s_[60:62, 0:64, 0:64], np.empty((2, 64, 64), "f4"))
