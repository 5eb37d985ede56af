"""Arrays behind a network: a server on the loopback that is slow, and fails now and then."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zarr
from numcodecs import Blosc
from support.foreign import URL_READERS
from zarr.storage import FsspecStore

import chunkflow as cf
from chunkflow.cli.command import main
from chunkflow.core.grid import whole
from chunkflow.devices.cpu.device import NumpyDevice
from chunkflow.errors import ArgumentError, SourceNotFoundError
from chunkflow.planner.cost import FETCHERS
from chunkflow.stores import Source, Target, open_source, open_target
from chunkflow.stores.kvstore import retries
from chunkflow.stores.kvstore.fsspec import facts_of
from chunkflow.stores.registry import arrays_in
from chunkflow.stores.zarr.chunks import Chunks
from chunkflow.testing import ForeignReader, SinkContract, SourceContract, filled

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

Answer = Callable[["Handler"], bool]
"""Answers a request; False leaves that to the server."""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, as its server wants it."""

    server: Server

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.seen[self.path] += 1
            self.server.ranges.append(self.headers.get("Range"))
            self.server.busy += 1
            self.server.most = max(self.server.most, self.server.busy)
        try:
            time.sleep(self.server.latency)
            if not self.server.answer(self) and not self.part():
                super().do_GET()
        finally:
            with self.server.lock:
                self.server.busy -= 1

    def do_PUT(self) -> None:
        path, raw = Path(self.translate_path(self.path)), self.rfile.read(int(self.headers["Content-Length"]))
        if not self.server.answer(self):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def part(self) -> bool:
        """Answer a request for some bytes of a file."""
        asked, path = self.headers.get("Range"), Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            return False
        raw = path.read_bytes()
        first, last = asked.removeprefix("bytes=").split("-")
        start = int(first) if first else max(0, len(raw) - int(last))
        if start >= len(raw):
            self.send_error(416)
            return True
        found = raw[start : int(last) + 1 if first and last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(found)))
        self.send_header("Content-Range", f"bytes {start}-{start + len(found) - 1}/{len(raw)}")
        self.end_headers()
        self.wfile.write(found)
        return True

    def log_message(self, *_: Any) -> None:
        """Silence."""


class Server(ThreadingHTTPServer):
    """A server that counts its requests, waits before each answer, and may answer otherwise."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.ranges: list[str | None] = []
        self.busy = self.most = 0
        self.latency = 0.0
        self.answer: Answer = lambda request: False

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def chunks(self) -> dict[str, int]:
        """Requests for chunks, by path."""
        return {path: n for path, n in self.seen.items() if "/c/" in path}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    served = Server(folder)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.002)


def serve(tmp_path: Path, array: np.ndarray, name: str = "x.zarr", **options: Any) -> None:
    options = {"chunks": tuple(max(1, -(-n // 4)) for n in array.shape), **options}
    made = zarr.create_array(tmp_path / "served" / name, shape=array.shape, dtype=array.dtype, **options)
    made[...] = array


# -- As any other store --------------------------------------------------------------------------------------


class TestMemoryUrlSource(SourceContract):
    @pytest.fixture(autouse=True)
    def forgotten(self) -> Iterator[None]:
        yield
        fsspec.filesystem("memory").store.clear()

    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        chunks = tuple(max(1, n // 2) for n in array.shape)
        made = zarr.create_array(f"memory:/{tmp_path}/x.zarr", shape=array.shape, dtype=array.dtype, chunks=chunks)
        made[...] = array
        return open_source(f"memory:/{tmp_path}/x.zarr")


class TestShardsAtUrlSource(TestMemoryUrlSource):
    def make(self, tmp_path: Path, array: np.ndarray) -> Source:
        sharded = {"chunks": tuple(2 for _ in array.shape), "shards": tuple(4 for _ in array.shape)}
        options = sharded if array.shape else {"chunks": ()}
        made = zarr.create_array(f"memory:/{tmp_path}/x.zarr", shape=array.shape, dtype=array.dtype, **options)
        made[...] = array
        source = open_source(f"memory:/{tmp_path}/x.zarr")
        assert source.spec.storage.how.startswith("directly: ")
        return source


class TestRemoteArraySink(SinkContract):
    name = "y.zarr"

    def at(self, tmp_path: Path) -> str:
        return f"memory:/{tmp_path}/{self.name}"

    def foreign_readers(self) -> Sequence[ForeignReader]:
        return URL_READERS

    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        chunks = tuple(max(1, n // 2) for n in array.shape)
        return open_target(
            zarr.create_array(f"memory:/{tmp_path}/y.zarr", shape=array.shape, dtype=array.dtype, chunks=chunks)
        )

    def fail_writes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def failing(*_: Any) -> None:
            raise PermissionError("not yours")

        monkeypatch.setattr(FsspecStore, "set", failing)


class TestShardedRemoteArraySink(TestRemoteArraySink):
    def make(self, tmp_path: Path, array: np.ndarray) -> Target:
        sharded = {"chunks": tuple(2 for _ in array.shape), "shards": tuple(4 for _ in array.shape)}
        options = sharded if array.shape else {"chunks": ()}
        made = zarr.create_array(f"memory:/{tmp_path}/y.zarr", shape=array.shape, dtype=array.dtype, **options)
        target = open_target(made)
        assert target.describe(array.shape, array.dtype, None).storage.how.startswith("directly: ")
        return target


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compressors": None},
        {"zarr_format": 2, "compressors": Blosc("lz4")},
        {"shards": (20, 16), "chunks": (5, 8)},
        {"fill_value": 3, "chunks": (7, 11)},
    ],
    ids=["zstd", "raw", "format 2", "shards", "a fill value"],
)
def test_over_http(server: Server, tmp_path: Path, options: dict[str, Any]) -> None:
    x = filled((40, 50), "f4")
    x[:14] = 3
    serve(tmp_path, x, **options)
    np.testing.assert_array_equal(cf.map(np.negative, server.url("x.zarr"), device="cpu"), -x)
    np.testing.assert_allclose(cf.sum(server.url("x.zarr"), axis=0, device="cpu"), x.sum(axis=0), rtol=1e-6)


def test_a_member_of_a_group_and_the_group_itself(server: Server, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "served" / "sim.zarr")
    serve(tmp_path, filled((8, 8), "f4"), "sim.zarr/u")
    assert cf.open(server.url("sim.zarr/u")).shape == (8, 8)
    with pytest.raises(cf.errors.ArgumentError, match="zarr group"):
        cf.open(server.url("sim.zarr"))
    with pytest.raises(cf.errors.SourceNotFoundError, match="no zarr array"):
        cf.open(server.url("sim.zarr/v"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("known", ["consolidated", "listed", "neither"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_the_arrays_in_a_group_at_a_url(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], zarr_format: Literal[2, 3], known: str
) -> None:
    group = zarr.create_group(tmp_path / "served" / "sim.zarr", zarr_format=zarr_format)
    group.create_array("u", data=filled((8, 8), "f4"))
    group.create_group("none")
    group.create_group("labels").create_array("v", data=filled((4,), "i4"))
    if known == "consolidated":
        zarr.consolidate_metadata(tmp_path / "served" / "sim.zarr")
    if known != "listed":
        server.answer = lambda request: request.path.endswith("/") and not request.send_error(403)
    url = server.url("sim.zarr")
    if known == "neither":
        assert main(["info", url]) == 2
        said = capsys.readouterr().err
        assert f"{url} is a zarr group: the server lists no members of it" in said
        assert f"Add the path of one of its arrays in the group, as {url}/name" in said
        return
    assert main(["info", url]) == 0
    assert [line.split(": ")[0] for line in capsys.readouterr().out.splitlines()] == [f"{url}/labels/v", f"{url}/u"]
    assert arrays_in(f"{url}/u") == [f"{url}/u"]


def test_consolidated_metadata_name_nothing_beside_the_group(server: Server, tmp_path: Path) -> None:
    serve(tmp_path, filled((8, 8), "f4"), "sim.zarr/u")
    nodes = {name: {"node_type": "array"} for name in ("u", "../other/u", "/u", "u?x", "..")}
    said = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": {"metadata": nodes}}
    (tmp_path / "served" / "sim.zarr" / "zarr.json").write_text(json.dumps(said))
    assert arrays_in(server.url("sim.zarr")) == [server.url("sim.zarr/u")]


def test_the_plan_says_how_it_is_read(server: Server, tmp_path: Path) -> None:
    serve(tmp_path, filled((40, 50), "f4"))
    plan = cf.explain(cf.map, np.negative, server.url("x.zarr"), device="cpu")
    assert plan.operands[0].storage.remote
    assert plan.operands[0].storage.how == "directly: zstd, over the network"
    assert plan.operands[0].name == server.url("x.zarr")


# -- Few requests, many at once ------------------------------------------------------------------------------


def test_each_chunk_is_fetched_once_and_many_are_at_once(server: Server, tmp_path: Path) -> None:
    x = filled((64, 64), "f4")
    serve(tmp_path, x, chunks=(8, 8))
    source = server.url("x.zarr")
    cf.explain(cf.map, np.negative, source, device="cpu")  # its trial call has the first chunk
    server.seen.clear()
    server.latency = 0.02
    got = cf.map(np.negative, source, device="cpu", dtype="f4", workspace=4)
    np.testing.assert_array_equal(got, -x)
    assert set(server.chunks().values()) == {1}
    assert len(server.chunks()) == 64
    assert server.most >= 8


def test_blocks_are_fetched_while_others_compute(server: Server, tmp_path: Path) -> None:
    x = filled((64, 64), "f4")
    serve(tmp_path, x, chunks=(8, 64))
    server.latency = 0.02
    started: list[bool] = []

    def patient(block: np.ndarray) -> np.ndarray:
        started.append(False)
        wanted = min(8, len(started) + 2)  # two lanes compute: without reading ahead there are no more than two
        for _ in range(1000):
            if len(server.chunks()) >= wanted:
                return -block
            time.sleep(0.01)
        raise AssertionError("nothing was fetched meanwhile")

    options: dict[str, Any] = {"chunks": (8, 64), "dtype": "f4", "workspace": 4}
    got = cf.map(patient, server.url("x.zarr"), device=NumpyDevice(lanes=2), **options)
    np.testing.assert_array_equal(got, -x)
    assert len(started) == 8


def test_what_is_fetched_at_once_stays_within_the_budget(server: Server, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((256, 1024), "f4")
    serve(tmp_path, x, chunks=(16, 1024))
    plan = cf.explain(cf.map, np.negative, server.url("x.zarr"), device="cpu", budget="1MB")
    assert plan.memory.total <= 1_000_000
    assert 1 <= plan.coders * plan.lanes <= FETCHERS
    got = cf.map(np.negative, server.url("x.zarr"), device="cpu", budget="1MB")
    np.testing.assert_array_equal(got, -x)


# -- Results -------------------------------------------------------------------------------------------------


def test_chunks_are_put_again_when_the_server_fails_for_a_while(server: Server, tmp_path: Path) -> None:
    x = filled((40, 50), "f4")
    serve(tmp_path, np.zeros_like(x))
    server.answer = failing(503, 2)
    cf.map(np.negative, x, out=zarr.open_array(server.url("x.zarr"), mode="r+"), device="cpu")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "served" / "x.zarr")[...], -x)


def test_no_result_is_created_where_nothing_can_be_removed(server: Server, tmp_path: Path) -> None:
    with pytest.raises(cf.errors.WriteError, match=r"cannot create http://.*/y\.zarr: .*cannot remove"):
        cf.map(np.negative, filled((40, 50), "f4"), out=server.url("y.zarr"), device="cpu")
    assert not list((tmp_path / "served").iterdir())


# -- Shards --------------------------------------------------------------------------------------------------


def read(source: Source, region: Any) -> np.ndarray:
    out = np.empty([side.stop - side.start for side in region], source.spec.dtype)
    source.read(region, out)
    return out


@pytest.mark.parametrize("location", ["start", "end"])
def test_of_a_shard_the_index_and_what_is_wanted_are_fetched(server: Server, tmp_path: Path, location: str) -> None:
    x = filled((64, 64), "f4")
    shards = {"shape": (64, 64), "index_location": location}
    serve(tmp_path, x, chunks=(8, 64), shards=shards, compressors=None, filters=None)
    source = open_source(server.url("x.zarr"))
    server.seen.clear()
    server.ranges.clear()
    corner = (slice(9, 12), slice(20, 30))
    np.testing.assert_array_equal(read(source, corner), x[corner])
    space, first = 8 * 16 + 4, (8 * 16 + 4) * (location == "start")  # of the index; where chunks begin
    index = f"bytes=0-{space - 1}" if first else f"bytes=-{space}"
    assert server.ranges == [index, f"bytes={first + 2048}-{first + 4095}"]
    half = (slice(30, 62), slice(0, 64))
    np.testing.assert_array_equal(read(source, half), x[half])
    assert server.ranges[2:] == [f"bytes={first + 3 * 2048}-{first + 8 * 2048 - 1}"], "neighbours come at once"


def test_every_shard_is_fetched_once_and_many_at_once(server: Server, tmp_path: Path) -> None:
    x = filled((256, 256), "f4")
    serve(tmp_path, x, chunks=(16, 16), shards=(64, 64), compressors=None)
    plan = cf.explain(cf.map, np.negative, server.url("x.zarr"), device="cpu")
    assert plan.operands[0].storage.how == "directly: raw, in shards of (64, 64), over the network"
    server.seen.clear()
    server.ranges.clear()
    server.latency = 0.02
    got = cf.map(np.negative, server.url("x.zarr"), device="cpu", dtype="f4", workspace=4)
    np.testing.assert_array_equal(got, -x)
    suffixes = [asked for asked in server.ranges if asked and asked.startswith("bytes=-")]
    assert len(suffixes) == 16, "each index once"
    assert sum(server.chunks().values()) <= 16 * 5
    assert server.most >= 8


def test_a_server_without_ranges_is_slower_but_right(server: Server, tmp_path: Path) -> None:
    x = filled((40, 50), "f4")
    serve(tmp_path, x, shards=(20, 26), chunks=(5, 13))

    def without(request: Handler) -> bool:
        del request.headers["Range"]
        return False

    server.answer = without
    source = server.url("x.zarr")
    np.testing.assert_array_equal(cf.map(np.negative, source, device="cpu"), -x)
    (tmp_path / "served/x.zarr/c/0/0").write_bytes(b"short")
    with pytest.raises(cf.ReadError, match=r"shard c/0/0: its index"):
        cf.sum(source, device="cpu")


def test_a_shard_that_is_not_there_is_the_fill_value(server: Server, tmp_path: Path) -> None:
    x = filled((40, 50), "f4")
    serve(tmp_path, x, shards=(20, 26), chunks=(5, 13), fill_value=7)
    (tmp_path / "served/x.zarr/c/0/0").unlink()
    x[:20, :26] = 7
    np.testing.assert_array_equal(cf.map(np.negative, server.url("x.zarr"), device="cpu"), -x)


def test_a_shard_that_goes_away_while_it_is_read_is_an_error(server: Server, tmp_path: Path) -> None:
    serve(tmp_path, filled((40, 50), "f4"), shards=(40, 52), chunks=(10, 13))
    source = open_source(server.url("x.zarr"))
    read(source, (slice(0, 10), slice(0, 13)))
    (tmp_path / "served/x.zarr/c/0/0").unlink()
    with pytest.raises(cf.ReadError, match="shard c/0/0 was removed"):
        read(source, (slice(0, 10), slice(13, 26)))


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_damaged_shard_is_an_error(server: Server, tmp_path: Path, location: str) -> None:
    shards = {"shape": (40, 52), "index_location": location}
    serve(tmp_path, filled((40, 50), "f4"), shards=shards, chunks=(20, 26), compressors=None)
    path = tmp_path / "served/x.zarr/c/0/0"
    raw = path.read_bytes()
    for bad in (b"", raw[:30], raw[:-1], raw[:2000], bytes([raw[0] ^ 1]) + raw[1:-1] + bytes([raw[-1] ^ 1])):
        path.write_bytes(bad)
        with pytest.raises(cf.ReadError, match="416" if not bad else r"shard c/0/0: .*(truncated|checksum|bytes)"):
            cf.sum(server.url("x.zarr"), device="cpu")


# -- Servers that fail ---------------------------------------------------------------------------------------


def failing(code: int, times: int, only: str = "/c/") -> Answer:
    """Answers the first requests for each path with an error."""
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(request: Handler) -> bool:
        with lock:
            seen[request.path] += 1
            fails = only in request.path and seen[request.path] <= times
        if fails:
            request.send_error(code)
        return fails

    return answer


@pytest.mark.parametrize("code", [500, 503, 429])
@pytest.mark.parametrize("shards", [None, (40, 26)])
def test_a_server_that_fails_for_a_while_is_asked_again(server: Server, tmp_path: Path, code: int, shards: Any) -> None:
    x = filled((40, 50), "f4")
    serve(tmp_path, x, chunks=(10, 13), shards=shards)
    server.answer = failing(code, 3)
    np.testing.assert_array_equal(cf.map(np.negative, server.url("x.zarr"), device="cpu"), -x)


def test_metadata_are_asked_for_again(server: Server, tmp_path: Path) -> None:
    serve(tmp_path, filled((40, 50), "f4"))
    server.answer = failing(503, 2, "zarr.json")
    assert cf.open(server.url("x.zarr")).shape == (40, 50)


def test_an_answer_that_breaks_off_is_asked_for_again(server: Server, tmp_path: Path) -> None:
    x = filled((40, 50), "f4")
    serve(tmp_path, x)
    broken: set[str] = set()

    def answer(request: Handler) -> bool:
        if "/c/" not in request.path or request.path in broken:
            return False
        broken.add(request.path)
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"only so much")
        return True

    server.answer = answer
    np.testing.assert_array_equal(cf.map(np.negative, server.url("x.zarr"), device="cpu"), -x)
    assert broken


def test_a_server_that_fails_for_good_is_a_read_error(server: Server, tmp_path: Path) -> None:
    serve(tmp_path, filled((40, 50), "f4"))
    server.answer = failing(503, 1000)
    with pytest.raises(cf.ReadError, match="503") as caught:
        cf.map(np.negative, server.url("x.zarr"), device="cpu", out=tmp_path / "y.npy")
    assert caught.value.region is not None
    assert max(server.chunks().values()) == retries.ATTEMPTS
    assert not (tmp_path / "y.npy").exists()


@pytest.mark.parametrize("code", [400, 401, 403])
def test_what_is_refused_is_not_asked_for_again(server: Server, tmp_path: Path, code: int) -> None:
    serve(tmp_path, filled((40, 50), "f4"))
    server.answer = failing(code, 1000)
    with pytest.raises(cf.ReadError):
        cf.map(np.negative, server.url("x.zarr"), device="cpu")
    assert max(server.chunks().values()) == 1, "never a fill value in its place, and no second request"


def test_a_chunk_that_is_damaged_or_claims_to_be_huge_is_a_read_error(server: Server, tmp_path: Path) -> None:
    x = filled((40, 50), "f4")
    serve(tmp_path, x, compressors=None)
    (tmp_path / "served" / "x.zarr" / "c" / "0" / "0").write_bytes(bytes(10))
    with pytest.raises(cf.ReadError, match="10 bytes"):
        cf.map(np.negative, server.url("x.zarr"), device="cpu")
    source = open_source(server.url("x.zarr"))
    out = np.empty((10, 13), "f4")
    source.read((slice(10, 20), slice(13, 26)), out)
    np.testing.assert_array_equal(out, x[10:20, 13:26])


def test_writes_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    array = zarr.create_array("memory://again/y.zarr", shape=(4, 4), chunks=(2, 4), dtype="f4")
    target = open_target(array)
    sink = target.open(target.describe((4, 4), array.dtype, None))
    real, left = FsspecStore.set, iter([ConnectionResetError("reset"), TimeoutError("slow")])

    async def setting(self: Any, key: str, *value: Any) -> None:
        if (error := next(left, None)) is not None:
            raise error
        await real(self, key, *value)

    monkeypatch.setattr(FsspecStore, "set", setting)
    sink.write(whole((4, 4)), np.ones((4, 4), "f4"))
    assert next(left, None) is None
    np.testing.assert_array_equal(sink.commit()[...], 1)


@pytest.mark.parametrize(
    ("url", "words"),
    [("nothing://x/y.zarr", "chunkflow-stream"), ("memory://", "no zarr array|zarr")],
)
def test_what_cannot_be_opened_says_what_to_do(url: str, words: str) -> None:
    with pytest.raises(cf.errors.ChunkflowError, match=words):
        cf.map(np.negative, url, device="cpu")


def test_members_of_a_remote_group_are_listed() -> None:
    for name in "uv":
        zarr.open_group("memory://members/a.zarr", mode="a").create_array(name, shape=(4,), dtype="f4")
    with pytest.raises(SourceNotFoundError, match=r"'x' of a zarr group \(its members: 'u', 'v'\)"):
        open_source("memory://members/a.zarr/x")
    with pytest.raises(ArgumentError, match=r"is a zarr group.*'u', 'v'"):
        open_source("memory://members/a.zarr")


def test_a_remote_array_is_known_by_its_url() -> None:
    array = zarr.create_array("memory://one/x.zarr", shape=(4,), chunks=(2,), dtype="f4")
    source = open_source("memory://one/x.zarr")
    assert source.footprint == open_target(array).footprint
    assert isinstance(source._direct, Chunks)  # type: ignore[attr-defined]


class _Answering:
    """A file system that tells this of its objects, or fails."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def invalidate_cache(self) -> None: ...

    async def _info(self, path: str) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "gone", "facts"),
    [
        ({"size": 8, "ETag": '"a"', "type": "file"}, False, {"there": 1, "size": 8, "etag": '"a"'}),
        (
            {"size": 8, "LastModified": datetime(2026, 1, 1)},
            False,
            {"there": 1, "size": 8, "modified": "2026-01-01 00:00:00"},
        ),
        ({"Last-Modified": "Thu, 01 Jan 2026"}, False, {"there": 1, "modified": "Thu, 01 Jan 2026"}),
        ({"size": None, "mtime": 1.5}, False, {"there": 1, "modified": "1.5"}),
        (FileNotFoundError(), True, {}),
        (FileNotFoundError(), False, {"there": 1}),  # http's takes every failure for that
        (NotImplementedError(), False, {"there": 1}),
    ],
)
def test_what_servers_tell_of_an_object(answer: Any, gone: bool, facts: Any) -> None:
    assert facts_of(_Answering(answer), "x", lambda: gone) == facts


def test_a_server_that_does_not_answer_tells_nothing() -> None:
    def fail() -> bool:
        raise PermissionError("no")

    assert facts_of(_Answering(FileNotFoundError()), "x", fail) == {"there": 1}
