"""What metadata may name: nothing else reaches zarr or numcodecs, and nothing is loaded because a file says so."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.registry
from zarr.storage import MemoryStore

import chunkflow as cf
from chunkflow.errors import ArgumentError, ArgumentTypeError, ChunkflowError, ReadError
from chunkflow.stores.zarr.allowed import registered
from chunkflow.stores.zarr.documents import MOST, MOST_ITEMS

LOADED: list[str] = []

FORMAT_2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [4],
    "dtype": "<f8",
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "compressor": None,
}
LITTLE: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
FORMAT_3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "float64",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"},
    "fill_value": 0,
    "codecs": [LITTLE],
    "attributes": {},
}


def shards(*codecs: Any) -> dict[str, Any]:
    return {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [2], "codecs": codecs, "index_codecs": [LITTLE]},
    }


def nested(depth: int) -> Any:
    return shards(nested(depth - 1)) if depth else LITTLE


class Trap:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return LOADED.append, ("unpickled",)


_LOAD = EntryPoint.load


def loading(self: EntryPoint) -> Any:
    if self.name != "trap":  # a pipeline that is installed, say: no file names it
        return _LOAD(self)
    LOADED.append(self.name)
    raise AssertionError("an entry point was loaded")


@pytest.fixture(autouse=True)
def traps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entry points of other packages under the name "trap", for codecs of both formats."""
    point = EntryPoint("trap", "nowhere:Trap", "numcodecs.codecs")
    monkeypatch.setattr(EntryPoint, "load", loading)
    monkeypatch.setitem(numcodecs.registry.entries, "trap", point)
    lazy: Any = zarr.registry.Registry()
    lazy.lazy_load_list.append(point)
    monkeypatch.setitem(registered(), "trap", lazy)
    LOADED.clear()
    yield
    assert not LOADED, "code was loaded or run"


def written(path: Path, metadata: dict[str, Any]) -> str:
    """An array whose only chunk is a pickle that runs code."""
    path.mkdir(parents=True)
    chunk, document = {2: ("0", ".zarray"), 3: ("c/0", "zarr.json")}[metadata["zarr_format"]]
    (path / document).write_text(json.dumps(metadata))
    (path / chunk).parent.mkdir(exist_ok=True)
    (path / chunk).write_bytes(pickle.dumps(Trap()))
    return str(path)


def served(path: Path, metadata: dict[str, Any]) -> str:
    """The same, in a remote store."""
    fsspec = pytest.importorskip("fsspec")
    written(path, metadata)
    fsspec.filesystem("memory").put(str(path), f"/served{path}", recursive=True)
    return f"memory://served{path}"


ENTRIES: dict[str, Callable[[str], Any]] = {
    "open": cf.open,
    "sum": lambda path: cf.sum(path, device="cpu"),
    "explain": lambda path: cf.explain(cf.sum, path, device="cpu"),
    "map": lambda path: cf.map(np.negative, np.ones(4), out=path, device="cpu", overwrite=True),
}
PICKLE = {"id": "pickle", "protocol": 5}

NAMED: list[tuple[dict[str, Any], str]] = [
    (FORMAT_2 | {"filters": [PICKLE]}, "codec 'pickle'"),
    (FORMAT_2 | {"compressor": PICKLE}, "codec 'pickle'"),
    (FORMAT_2 | {"filters": [{"id": "delta", "dtype": "<f8"}, PICKLE]}, "codec 'pickle'"),
    (FORMAT_2 | {"filters": [{"id": "msgpack2"}]}, "codec 'msgpack2'"),
    (FORMAT_2 | {"filters": [{"id": "json2"}]}, "codec 'json2'"),
    (FORMAT_2 | {"filters": [{"id": "vlen-utf8"}]}, "codec 'vlen-utf8'"),
    (FORMAT_2 | {"filters": [{"id": "categorize", "labels": ["a"], "dtype": "|O"}]}, "codec 'categorize'"),
    (FORMAT_2 | {"filters": [{"id": "delta", "dtype": "|O"}]}, "'delta'.*no numbers"),
    (FORMAT_2 | {"filters": [{"id": "astype", "encode_dtype": "|O", "decode_dtype": "<f8"}]}, "'astype'.*no numbers"),
    (FORMAT_2 | {"compressor": {"id": "trap"}}, "'trap'.*numcodecs.register_codec"),
    (FORMAT_2 | {"filters": [{"id": "zfpy"}]}, "'zfpy'.*not known"),
    (FORMAT_3 | {"codecs": [LITTLE, {"name": "trap"}]}, "'trap'.*zarr.registry.register_codec"),
    (FORMAT_3 | {"codecs": [LITTLE, "trap"]}, "'trap'"),
    (FORMAT_3 | {"codecs": [{"name": "numcodecs.pickle"}]}, "'numcodecs.pickle'"),
    (FORMAT_3 | {"codecs": [{"name": "vlen-bytes"}]}, "'vlen-bytes'"),
    (FORMAT_3 | {"codecs": [shards({"name": "trap"})]}, "'trap'"),
    (FORMAT_3 | {"codecs": [shards(shards(LITTLE, {"name": "trap"}))]}, "'trap'"),
    (FORMAT_3 | {"chunk_key_encoding": {"name": "trap"}}, "chunk_key_encoding of the kind 'trap'"),
    (FORMAT_3 | {"chunk_grid": {"name": "trap"}}, "chunk_grid of the kind 'trap'"),
]
TYPED: list[tuple[dict[str, Any], str]] = [
    (FORMAT_2 | {"dtype": "|O", "filters": [PICKLE]}, "dtype object"),
    (FORMAT_2 | {"dtype": [["a", "<f4"], ["b", "|O"]]}, "one field"),
    (FORMAT_2 | {"dtype": "<U3"}, "dtype <U3"),
    (FORMAT_2 | {"dtype": "trap"}, "does not have"),
    (FORMAT_3 | {"data_type": "string", "codecs": [{"name": "vlen-utf8"}]}, "dtype object"),
    (FORMAT_3 | {"data_type": "trap"}, "does not have"),
    (FORMAT_3 | {"data_type": {"name": "trap", "configuration": {}}}, "does not have"),
]


def refused(kind: type[ChunkflowError], said: str, path: str, entries: Any) -> None:
    for entry in entries:
        with pytest.raises(kind, match=said):
            ENTRIES[entry](path)


@pytest.mark.parametrize(("metadata", "said"), NAMED, ids=[said for _, said in NAMED])
def test_a_codec_that_is_not_known_is_refused(metadata: dict[str, Any], said: str, tmp_path: Path) -> None:
    refused(ReadError, said, written(tmp_path / "x.zarr", metadata), ("open", "sum", "explain"))
    refused(ReadError, said, served(tmp_path / "y.zarr", metadata), ("open", "sum", "explain"))


@pytest.mark.parametrize(("metadata", "said"), TYPED, ids=[said for _, said in TYPED])
def test_what_is_no_number_is_refused(metadata: dict[str, Any], said: str, tmp_path: Path) -> None:
    refused(ArgumentTypeError, said, written(tmp_path / "x.zarr", metadata), ("open", "sum"))
    refused(ArgumentTypeError, said, served(tmp_path / "y.zarr", metadata), ("open", "sum"))


DAMAGED: dict[str, str] = {
    "no codecs": json.dumps({k: v for k, v in FORMAT_3.items() if k != "codecs"}),
    "codecs of no kind": json.dumps(FORMAT_3 | {"codecs": 7}),
    "a codec without a name": json.dumps(FORMAT_3 | {"codecs": [{}]}),
    "shards in shards in shards": json.dumps(FORMAT_3 | {"codecs": [nested(40)]}),
    "deep": '{"node_type": "array", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "long": json.dumps(FORMAT_3) + " " * MOST,
    "many values": json.dumps(FORMAT_3 | {"attributes": {"x": [[]] * MOST_ITEMS}}, separators=(",", ":")),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_damaged_metadata_are_a_read_error(text: str, tmp_path: Path) -> None:
    path = Path(written(tmp_path / "x.zarr", FORMAT_3))
    (path / "zarr.json").write_text(text)
    refused(ReadError, r"x\.zarr", str(path), ("open", "sum"))


def test_a_group_may_describe_many_members(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    told = {"node_type": "group", "zarr_format": 3, "attributes": {"note": "x" * MOST}}
    (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(told))
    refused(ArgumentError, "group", str(tmp_path / "x.zarr"), ("open",))


def test_listing_a_groups_members_loads_nothing(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    for how in ({}, {"consolidated_metadata": {"kind": "inline", "metadata": {"u": FORMAT_3}}}):
        url = served(tmp_path / f"g{len(how)}" / "u", FORMAT_3 | {"codecs": [LITTLE, {"name": "trap"}]})[:-2]
        fsspec.filesystem("memory").pipe(f"{url[8:]}/zarr.json", json.dumps(group | how).encode())
        refused(ArgumentError, r"group.*its members: 'u'\)", url, ("open",))


def test_links_that_lead_back_end_a_list_of_members(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "x.zarr").create_array("u", shape=(2,), dtype="f4")
    for name in "ab":
        (tmp_path / "x.zarr" / name).symlink_to(".")
    refused(ArgumentError, "u", str(tmp_path / "x.zarr"), ("open",))


def test_an_array_that_the_user_opened_is_not_unpickled_either() -> None:
    store = MemoryStore()
    made = zarr.create_array(store, shape=(4,), chunks=(4,), dtype="f8", zarr_format=2, filters=[numcodecs.Delta("f8")])
    object.__setattr__(made.metadata, "filters", (numcodecs.Pickle(),))
    with pytest.raises(ReadError, match="'pickle'"):
        cf.sum(made, device="cpu")
    with pytest.raises(ReadError, match="'pickle'"):
        cf.map(np.negative, np.ones(4), out=made, device="cpu")


def test_a_codec_that_the_users_code_registered_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Inverted(numcodecs.abc.Codec):  # type: ignore[misc]
        codec_id = "inverted"

        def encode(self, buf: Any) -> Any:
            return np.invert(np.frombuffer(buf, np.uint8)).tobytes()

        def decode(self, buf: Any, out: Any = None) -> Any:
            return self.encode(buf)

    monkeypatch.setitem(numcodecs.registry.codec_registry, "inverted", Inverted)
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=(4,), chunks=(4,), dtype="f8", zarr_format=2, compressors=Inverted()
    )
    array[...] = np.arange(4)
    assert cf.sum(tmp_path / "x.zarr", device="cpu") == 6


@pytest.mark.parametrize("metadata", [FORMAT_2 | {"compressor": {"id": "trap"}}, FORMAT_3 | {"codecs": ["trap"]}])
def test_arrays_beside_a_new_one_are_looked_at_without_loading_their_codecs(
    metadata: dict[str, Any], tmp_path: Path
) -> None:
    zarr.create_group(tmp_path / "x.zarr", zarr_format=metadata["zarr_format"])
    written(tmp_path / "x.zarr" / "u", metadata | {"dimension_names": ["t"]})
    (tmp_path / "x.zarr" / "u" / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["t"]}')
    cf.copy(np.ones(4), out=tmp_path / "x.zarr" / "v", device="cpu")
    made = zarr.open_array(tmp_path / "x.zarr" / "v", mode="r")
    names = made.attrs.asdict().get("_ARRAY_DIMENSIONS", getattr(made.metadata, "dimension_names", None))
    assert list(names or ()) == ["v_0"]


@pytest.mark.parametrize("metadata", [FORMAT_2 | {"compressor": {"id": "trap"}}, FORMAT_3 | {"codecs": ["trap"]}])
@pytest.mark.parametrize("member", [True, False])
def test_an_array_that_is_replaced_is_not_opened(member: bool, metadata: dict[str, Any], tmp_path: Path) -> None:
    """Its codecs would be loaded. How its chunks are named is kept all the same, where the format stays."""
    version = metadata["zarr_format"]
    if member:
        zarr.create_group(tmp_path, zarr_format=version)
    naming = {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}} if version == 3 else {}
    path = written(tmp_path / "x", metadata | naming | {"dimension_separator": "/"}) if member else ""
    path = path or written(tmp_path / "x.zarr", metadata | naming)
    ENTRIES["map"](path)
    made = zarr.open_array(path, mode="r")
    assert not LOADED
    np.testing.assert_array_equal(made[...], [-1] * 4)
    if member or version == 3:
        assert made.metadata.encode_chunk_key((1, 0)) == "1/0"
