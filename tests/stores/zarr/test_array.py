from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from support.bloscbytes import blosc_with
from support.foreign import ZARR_READERS, ZARR_WRITERS
from zarr.storage import LocalStore, MemoryStore

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.core.spec import default_chunks
from chunkflow.errors import (
    ArgumentError,
    ArgumentTypeError,
    OutputExistsError,
    ReadError,
    SourceNotFoundError,
    WriteError,
)
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.stores.publication import move
from chunkflow.stores.zarr.array import METADATA
from chunkflow.testing import ForeignReader, ForeignWriter, PathSinkContract, SinkContract, SourceContract, filled


def create(store: Any, array: np.ndarray, **options: Any) -> Any:
    chunks = tuple(max(1, (n + 1) // 2) for n in array.shape)
    made = zarr.create_array(store, shape=array.shape, dtype=array.dtype, **{"chunks": chunks} | options)
    if array.size:
        made[whole(array.shape)] = array
    return made


def no_space(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestZarr3Source(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        create(tmp_path / "u.zarr", array)
        return open_source(tmp_path / "u.zarr")

    def foreign_writers(self) -> Sequence[ForeignWriter]:
        return ZARR_WRITERS


class TestZarr2FortranSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        create(tmp_path / "u.zarr", array, zarr_format=2, order="F")
        return open_source(str(tmp_path / "u.zarr"))


def in_shards(shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Small shards of chunks half as long along each axis, not many of them; and what zarr calls them."""
    shards = tuple(4 * (1 + n // 20) for n in shape)
    return shards, {"chunks": tuple(n // 2 for n in shards), "shards": shards} if shape else {}


class TestShardedSource(SourceContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        _, options = in_shards(array.shape)
        return open_source(create(tmp_path / "u.zarr", array, **options))


class TestOldZarrSource(SourceContract):
    """As with zarr 3.0, which cannot decode into a given buffer through public names."""

    @pytest.fixture(autouse=True)
    def _old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chunkflow.stores.zarr.array._buffers", None)

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        return open_source(create(MemoryStore(), array))


class ZarrSinkContract(SinkContract):
    """What others make of a zarr array that exists: its metadata stay, and its values are those written."""

    name = "u.zarr"

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return ZARR_READERS

    def properties(self, tmp_path: Path) -> Any:
        return {name: path.read_bytes() for name in METADATA if (path := tmp_path / self.name / name).exists()}


class TestZarrSink(ZarrSinkContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(create(tmp_path / "u.zarr", np.zeros_like(array)))

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LocalStore, "set", no_space)
        monkeypatch.setattr("chunkflow.stores.kvstore.folder.put", no_space)


class TestShardedBigEndianSink(ZarrSinkContract):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        shards, options = in_shards(array.shape)
        zeros = np.zeros(array.shape, array.dtype.newbyteorder(">"))
        target = open_target(create(tmp_path / "u.zarr", zeros, **options))
        assert target.describe(array.shape, array.dtype, None).chunks == shards
        return target

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("chunkflow.stores.kvstore.folder.put", no_space)


class TestUncompressedMemorySink(SinkContract):
    """A store in memory keeps the very buffer of an uncompressed chunk; ours is filled again."""

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        return open_target(create(MemoryStore(), np.zeros_like(array), compressors=None))


class TestZarrPathSink(PathSinkContract):
    name = "result.zarr"
    checksums = True

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return ZARR_READERS

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LocalStore, "set", no_space)
        monkeypatch.setattr("chunkflow.stores.kvstore.folder.put", no_space)


class TestGroupMemberSink(PathSinkContract):
    name = "result.zarr/run/speed"
    checksums = True

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return ZARR_READERS

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LocalStore, "set", no_space)
        monkeypatch.setattr("chunkflow.stores.kvstore.folder.put", no_space)


def write(target: Target, array: np.ndarray) -> Any:
    sink = target.open(target.describe(array.shape, array.dtype, None))
    sink.write(whole(array.shape), array)
    return sink.commit()


def test_missing_chunks_read_as_the_fill_value(tmp_path: Path) -> None:
    made = zarr.create_array(tmp_path / "u.zarr", shape=(8, 6), chunks=(4, 3), dtype="f4", fill_value=7)
    made[0:4, 0:3] = 1
    out = np.empty((8, 6), "f4")
    open_source(tmp_path / "u.zarr").read(whole((8, 6)), out)
    assert out[:4, :3].tolist() == np.ones((4, 3)).tolist()
    assert (out == 7).sum() == 36


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_chunk_is_a_read_error(tmp_path: Path, sharded: bool, compressed: bool) -> None:
    array = filled((8, 8), "f4")
    options: dict[str, Any] = {"chunks": (2, 2), "shards": (4, 4)} if sharded else {"chunks": (4, 4)}
    create(tmp_path / "u.zarr", array, **options, **({} if compressed else {"compressors": None}))
    chunk = tmp_path / "u.zarr" / "c" / "0" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    source = open_source(tmp_path / "u.zarr")
    with pytest.raises(ReadError, match=r"\[0:8, 4:8\]") as caught:
        source.read((slice(0, 8), slice(4, 8)), np.empty((8, 4), "f4"))
    assert caught.value.path == str(tmp_path / "u.zarr")
    assert caught.value.__cause__ is not None
    out = np.empty((8, 4), "f4")
    source.read((slice(0, 8), slice(0, 4)), out)
    np.testing.assert_array_equal(out, array[:, :4])


@pytest.mark.parametrize("compressor", [numcodecs.Blosc(), numcodecs.BZ2()], ids=str)
def test_a_chunk_that_does_not_decode_is_named(tmp_path: Path, compressor: Any) -> None:
    made = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=(8, 8), chunks=(4, 8), dtype="f8", zarr_format=2, compressors=compressor
    )
    made[...] = 1
    (tmp_path / "x.zarr" / "1.0").write_bytes(blosc_with(2, 256))
    said = "chunk 1.0: .*snappy is not built into numcodecs" if compressor.codec_id == "blosc" else r"chunk \(1, 0\): "
    for each in (made, tmp_path / "x.zarr"):
        with pytest.raises(ReadError, match=said):
            cf.copy(each, device="cpu")


def test_chunks_are_what_is_read_whole_and_shards_what_is_written_whole(tmp_path: Path) -> None:
    made = create(tmp_path / "u.zarr", np.zeros((16, 16)), chunks=(2, 4), shards=(8, 8))
    assert open_source(made).spec.chunks == (2, 4)
    assert open_target(made).describe((16, 16), np.dtype("f8"), None).chunks == (8, 8)


def test_an_array_is_the_same_by_path_and_as_a_member(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "sim.zarr", mode="a")
    u, v = (group.create_array(name, shape=(4,), chunks=(2,), dtype="f4") for name in "uv")
    by_path = open_source(tmp_path / "sim.zarr" / "u")
    assert by_path.spec.name == str(tmp_path / "sim.zarr" / "u")
    assert by_path.footprint == open_source(u).footprint == open_target(u).footprint
    assert by_path.footprint != open_source(v).footprint
    assert by_path.footprint is not None
    other = open_source(v).footprint
    assert other is not None
    assert not by_path.footprint.overlaps(other)
    one, two = (open_source(create(MemoryStore(), np.zeros(3))) for _ in range(2))
    assert one.footprint != two.footprint


@pytest.mark.filterwarnings("ignore:Both zarr.json")
@pytest.mark.parametrize("others", [None, "0.zarr"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_path_is_opened_as_zarr_opens_it(tmp_path: Path, version: int, others: str | None) -> None:
    """Also where its metadata are read without zarr's event loop, and where there are some of the other format too."""
    array = filled((7, 5), ">f4")
    made = create(tmp_path / "u.zarr", array[:5], zarr_format=version, fill_value=np.nan, attributes={"unit": "m"})
    made.resize((7, 5))
    if others is not None:
        create(tmp_path / others, array, zarr_format=5 - version)
        name = METADATA[version - 2]
        (tmp_path / "u.zarr" / name).write_bytes((tmp_path / others / name).read_bytes())
    sources = [open_source(tmp_path / "u.zarr"), open_source(zarr.open_array(tmp_path / "u.zarr", mode="r"))]
    assert sources[0].spec == sources[1].spec
    found, expected = (np.empty((7, 5), "f4") for _ in sources)
    for source, out in zip(sources, (found, expected), strict=True):
        source.read(whole((7, 5)), out)
    np.testing.assert_array_equal(found, expected)
    if others is None:
        np.testing.assert_array_equal(found[:5], array[:5])
        assert np.isnan(found[5:]).all()


@pytest.mark.parametrize("version", [2, 3])
def test_a_path_is_opened_without_zarrs_event_loop(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = filled((7, 5), "f4")
    create(tmp_path / "u.zarr", array, zarr_format=version)
    monkeypatch.setattr(zarr, "open_array", None)
    source, found = open_source(tmp_path / "u.zarr"), np.empty((7, 5), "f4")
    source.read(whole((7, 5)), found)
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("version", [2, 3])
def test_a_missing_member_is_named_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    group = zarr.open_group("a.zarr", mode="w", zarr_format=version)
    for name in ("u", "sub/v"):
        group.create_array(name, shape=(3,), dtype="f4")
    with pytest.raises(SourceNotFoundError, match=r"no array 'x' in .*a\.zarr, but: 'sub/v', 'u'"):
        open_source("a.zarr/x")
    with pytest.raises(SourceNotFoundError, match=r"no array 'y/x' in .*a\.zarr/sub, but: 'v'"):
        open_source("a.zarr/sub/y/x")
    with pytest.raises(SourceNotFoundError, match=r"a\.zarr/u is a zarr array"):
        open_source("a.zarr/u/x")
    with pytest.raises(SourceNotFoundError, match=r"as in 'a\.zarr/u'"):
        open_source("a.zarr:/u")
    with pytest.raises(ArgumentError, match=r"as in 'a\.zarr/w'"):
        open_target("a.zarr:/w")


@pytest.mark.parametrize("version", [2, 3])
def test_an_array_with_a_groups_metadata_of_the_other_format_is_opened(tmp_path: Path, version: int) -> None:
    create(tmp_path / "u.zarr", np.arange(3), zarr_format=version)
    create(tmp_path / "u.zarr" / "inside", np.arange(2), zarr_format=version)
    if version == 2:
        (tmp_path / "u.zarr" / "zarr.json").write_text('{"node_type": "group", "zarr_format": 3, "attributes": {}}')
    else:
        (tmp_path / "u.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    source, out = open_source(tmp_path / "u.zarr"), np.empty(3, int)
    source.read(whole((3,)), out)
    assert out.tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ["[]", "null", "7", '"x"', "{}", "{"])
def test_damaged_metadata_of_format_2_are_a_read_error_that_says_why(tmp_path: Path, text: str) -> None:
    (tmp_path / "u.zarr").mkdir()
    (tmp_path / "u.zarr" / ".zarray").write_text(text)
    with pytest.raises(ReadError, match=r"cannot open the zarr array .*u\.zarr: .+"):
        open_source(tmp_path / "u.zarr")


def test_a_group_is_no_array_and_its_arrays_are_listed(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "sim.zarr", mode="a")
    group.create_array("u", shape=(4,), chunks=(2,), dtype="f4")
    group.create_group("late").create_array("v", shape=(4,), chunks=(2,), dtype="f4")
    with pytest.raises(ArgumentError, match=r"group.*sim\.zarr/late/v'.*sim\.zarr/u'"):
        open_source(tmp_path / "sim.zarr")
    with pytest.raises(ArgumentError, match=r"group.*not overwritten"):
        open_target(tmp_path / "sim.zarr", overwrite=True)


@pytest.mark.parametrize("text", ["not json", "[]", '{"node_type": "cake"}', "{}"])
def test_damaged_metadata_are_a_read_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "u.zarr").mkdir()
    (tmp_path / "u.zarr" / "zarr.json").write_text(text)
    with pytest.raises(ReadError, match=r"zarr\.json"):
        open_source(tmp_path / "u.zarr")


def test_metadata_that_zarr_refuses_are_a_read_error(tmp_path: Path) -> None:
    create(tmp_path / "u.zarr", np.zeros(3))
    path = tmp_path / "u.zarr" / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"codecs": [{"name": "unheard-of"}]}))
    with pytest.raises(ReadError, match="cannot open"):
        open_source(tmp_path / "u.zarr")


@pytest.mark.parametrize("dtype", ["U4", "M8[s]"])
@pytest.mark.filterwarnings("ignore:The data type")
def test_other_dtypes_are_refused(dtype: str) -> None:
    made = zarr.create_array(MemoryStore(), shape=(3,), chunks=(3,), dtype=dtype)
    with pytest.raises(ArgumentTypeError, match=r"memory://.*dtype"):
        open_source(made)


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble"])
def test_a_result_that_zarr_cannot_store_is_refused_before_anything_runs(tmp_path: Path, dtype: str) -> None:
    if np.dtype(dtype) in (np.dtype("f8"), np.dtype("c16")):
        pytest.skip("long doubles are doubles here")
    with pytest.raises(ArgumentTypeError, match="zarr cannot store"):
        open_target(tmp_path / "u.zarr").describe((3,), np.dtype(dtype), None)


def test_a_read_only_array_is_no_output(tmp_path: Path) -> None:
    create(tmp_path / "u.zarr", np.zeros(3))
    with pytest.raises(ArgumentError, match="read-only"):
        open_target(zarr.open_array(tmp_path / "u.zarr", mode="r"))


def test_a_member_joins_the_group_and_takes_its_version(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "sim.zarr", mode="a", zarr_format=2)
    group.attrs["made by"] = "hand"
    result = write(open_target(tmp_path / "sim.zarr" / "late" / "speed"), filled((4, 5), "f4"))
    assert result.metadata.zarr_format == 2
    group = zarr.open_group(tmp_path / "sim.zarr", mode="r")
    member: Any = group["late/speed"]
    assert dict(group.attrs) == {"made by": "hand"}
    assert [name for name, _ in sorted(group.members(max_depth=None))] == ["late", "late/speed"]
    np.testing.assert_array_equal(member[:], filled((4, 5), "f4"))


def test_two_new_members_of_a_new_group(tmp_path: Path) -> None:
    one, two = (open_target(tmp_path / "sim.zarr" / name) for name in "uv")
    array = filled((4, 5), "f4")
    sinks = [target.open(target.describe(array.shape, array.dtype, None)) for target in (one, two)]
    for sink in sinks:
        sink.write(whole(array.shape), array)
    for sink in sinks:
        sink.commit()
    assert sorted(zarr.open_group(tmp_path / "sim.zarr", mode="r").array_keys()) == ["u", "v"]
    assert os.listdir(tmp_path) == ["sim.zarr"]


def test_a_run_that_fails_leaves_what_another_put_into_its_new_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = filled((4, 5), "f4")
    target = open_target(tmp_path / "sim.zarr/late/u")
    sink = target.open(target.describe(array.shape, array.dtype, None))
    sink.write(whole(array.shape), array)

    def meanwhile(*_: Any) -> None:
        monkeypatch.undo()
        zarr.create_group(tmp_path / "sim.zarr")
        create(tmp_path / "sim.zarr" / "v", array)
        raise OSError("no rename")

    monkeypatch.setattr("chunkflow.stores.publication.move.rename_new", meanwhile)
    with pytest.raises(WriteError, match="no rename"):
        sink.commit()
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "sim.zarr", mode="r")["v"][...], array)
    assert sorted(os.listdir(tmp_path / "sim.zarr")) == ["v", "zarr.json"]
    assert os.listdir(tmp_path) == ["sim.zarr"]


def test_a_group_need_not_be_called_zarr(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "simulation", mode="a")
    write(open_target(tmp_path / "simulation" / "u"), filled((4, 5), "f4"))
    assert list(zarr.open_group(tmp_path / "simulation", mode="r").array_keys()) == ["u"]
    assert os.listdir(tmp_path) == ["simulation"]


def test_an_array_holds_no_arrays(tmp_path: Path) -> None:
    create(tmp_path / "u.zarr", np.zeros(3))
    with pytest.raises(ArgumentError, match="inside the zarr array"):
        open_target(tmp_path / "u.zarr" / "v")


def test_what_lies_in_the_way_is_kept_if_the_last_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path / "u.zarr", filled((3,), "f4"))
    target = open_target(tmp_path / "u.zarr", overwrite=True)
    sink = target.open(target.describe((5,), np.dtype("f4"), None))
    rename = os.rename

    def failing(source: str, destination: str) -> None:
        if source.endswith(".partial"):
            raise OSError(errno.EIO, "unplugged")
        rename(source, destination)

    monkeypatch.setattr(move, "exchange", lambda one, other: False)
    monkeypatch.setattr(move, "rename_new", failing)
    with pytest.raises(WriteError, match="unplugged"):
        sink.commit()
    assert os.listdir(tmp_path) == ["u.zarr"]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "u.zarr", mode="r")[:], filled((3,), "f4"))


def test_a_new_group_goes_with_a_failed_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(tmp_path / "sim.zarr" / "u")
    sink = target.open(target.describe((5,), np.dtype("f4"), None))

    def failing(*_: Any) -> None:
        raise OSError(errno.EIO, "unplugged")

    monkeypatch.setattr(move, "rename_new", failing)
    with pytest.raises(WriteError, match="unplugged"):
        sink.commit()
    assert not os.listdir(tmp_path)


def test_the_wish_for_chunks_is_followed(tmp_path: Path) -> None:
    target = open_target(tmp_path / "u.zarr")
    spec = target.describe((10, 7), np.dtype("f4"), (4, 100))
    assert spec.chunks == (4, 7)
    assert target.open(spec).commit().chunks == (4, 7)
    for wish in [(4,), (4, 0)]:
        with pytest.raises(ArgumentError, match="chunks"):
            target.describe((10, 7), np.dtype("f4"), wish)


def test_a_result_is_zarr_3_in_chunks_of_a_few_megabytes(tmp_path: Path) -> None:
    assert default_chunks((), 4) == ()
    assert default_chunks((0, 5), 4) == (1, 5)
    assert default_chunks((10, 10), 8) == (10, 10)
    assert default_chunks((1 << 40,), 8) == (1 << 20,)
    result = write(open_target(tmp_path / "u.zarr"), filled((4, 5), "f4"))
    assert result.metadata.zarr_format == 3
    assert not result.read_only


def test_an_existing_array_under_another_kind_of_name_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "u", np.zeros(3))
    with pytest.raises(OutputExistsError):
        open_target(tmp_path / "u")
    write(open_target(tmp_path / "u", overwrite=True), filled((4, 5), "f4"))
    assert zarr.open_array(tmp_path / "u", mode="r").shape == (4, 5)


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_writes_no_document_of_a_new_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Any) -> None:
    """It writes several at once: where one fails, the others would come after all has been removed."""
    zarr.create_group(tmp_path / "g.zarr", zarr_format=version)
    monkeypatch.setattr(zarr.storage.LocalStore, "set", None)
    target = open_target(tmp_path / "g.zarr" / "new" / "u")
    sink = target.open(target.describe((5,), np.dtype("f4"), None))
    sink.write((slice(0, 5),), filled((5,), "f4"))
    sink.commit()
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "g.zarr" / "new" / "u", mode="r")[:], filled((5,), "f4"))
