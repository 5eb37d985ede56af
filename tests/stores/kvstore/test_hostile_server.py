"""Servers that send without end, are silent, lead elsewhere, lose what they had, or must not learn what is secret."""

from __future__ import annotations

import gzip
import json
import signal
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import chunkflow as cf
from chunkflow.core.grid import whole
from chunkflow.errors import ChunkflowError, ReadError, SourceNotFoundError, hidden
from chunkflow.stores import open_source
from chunkflow.stores.kvstore import http, retries

pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

X = np.arange(64, dtype="f4").reshape(8, 8)
Answer = Callable[["Handler"], bool]
"""Answers a request; False leaves that to the server."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        with suppress(OSError):
            if not self.server.answer(self):
                self.give(self.server.objects.get(self.path.partition("?")[0].lstrip("/")))

    def give(self, raw: bytes | None, code: int = 200, **headers: str) -> bool:
        raw, code = (b"", 404) if raw is None else (raw, code)
        self.send_response(code)
        for name, value in {"Content_Length": str(len(raw)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(raw)
        return True

    def forever(self, piece: bytes, seconds: float = 0.0) -> bool:
        """Send the same again and again, in an answer that does not say how long it is."""
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while not self.server.closing.wait(seconds):
                self.wfile.write(piece)
        return True

    def log_message(self, *_: Any) -> None:
        """Silence."""


class Server(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.closing = threading.Event()
        self.objects: dict[str, bytes] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.answer: Answer = lambda request: False
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}/x.zarr"

    def put(self, **options: Any) -> None:
        store: dict[str, Any] = {}
        made = zarr.create_array(MemoryStore(store), name="x.zarr", shape=X.shape, chunks=(4, 8), dtype="f4", **options)
        made[...] = X
        self.objects |= {key: value.to_bytes() for key, value in store.items()}


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    thread = threading.Thread(target=served.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield served
    served.closing.set()
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.002)


def total(url: str) -> Any:
    return cf.sum(url, device="cpu", budget="1MB")


def chunks(answer: Answer) -> Answer:
    """The same answer, to requests for chunks only."""
    return lambda request: "/c/" in request.path and answer(request)


def metadata(answer: Answer) -> Answer:
    return lambda request: request.path.endswith("zarr.json") and answer(request)


ZEROS, MANY = bytes(1 << 20), bytes(64 << 20)
ZIPPED = gzip.compress(MANY)

LONG: dict[str, Answer] = {
    "an endless chunk": chunks(lambda request: request.forever(ZEROS)),
    "endless metadata": metadata(lambda request: request.forever(ZEROS)),
    "a long chunk": chunks(lambda request: request.give(MANY)),
    "zipped metadata": metadata(lambda request: request.give(ZIPPED, Content_Encoding="gzip")),
    "a zipped chunk": chunks(lambda request: request.give(ZIPPED, Content_Encoding="gzip")),
    "in an encoding": chunks(lambda request: request.give(ZEROS, Content_Encoding="br")),
}


@pytest.mark.parametrize("answer", LONG.values(), ids=LONG)
@pytest.mark.parametrize(
    "options", [{}, {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()]}], ids=["here", "by zarr"]
)
def test_what_is_too_long_is_not_taken(server: Server, answer: Answer, options: Any) -> None:
    server.put(**options)
    assert total(server.url) == X.sum()
    server.answer = answer
    tracemalloc.start()
    with pytest.raises(ReadError, match=r"bytes that it may have|encoded as 'br'"):
        total(server.url)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_shards_of_a_server_without_ranges_are_bounded(server: Server) -> None:
    server.put(shards=(8, 8))
    assert total(server.url) == X.sum(), "it sends all of an object, whatever is asked for"
    server.answer = chunks(lambda request: request.forever(ZEROS))
    with pytest.raises(ReadError, match="bytes that it may have"):
        total(server.url)


def test_what_is_zipped_on_the_way_is_read(server: Server) -> None:
    server.put()
    server.answer = lambda request: (
        request.path.lstrip("/") in server.objects
        and request.give(gzip.compress(server.objects[request.path.lstrip("/")]), Content_Encoding="gzip")
    )
    assert total(server.url) == X.sum()


# -- Time -------------------------------------------------------------------------------------------------------------

SLOW: dict[str, Answer] = {
    "silence": lambda request: bool(request.server.closing.wait(60)) or True,
    "a byte now and then": lambda request: request.forever(b"x", 0.02),
}


@pytest.mark.parametrize("only", [chunks, metadata])
@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
def test_a_server_that_is_slow_is_given_up(
    server: Server, answer: Answer, only: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put()
    for name, value in {"CONNECTING": 0.1, "SILENCE": 0.2, "SLOWEST": 1e9}.items():
        monkeypatch.setattr(http, name, value)
    server.answer = only(answer)
    with pytest.raises(ReadError, match="does not answer"):
        total(server.url)


def test_ctrl_c_ends_a_run_that_waits_for_a_server(server: Server) -> None:
    server.put()
    asked = threading.Event()
    source = cf.open(server.url)

    def answer(request: Handler) -> bool:
        if not asked.is_set():
            asked.set()
            time.sleep(0.1)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return bool(server.closing.wait(60)) or True

    server.answer = chunks(answer)
    with pytest.raises(KeyboardInterrupt):
        cf.sum(source).compute(device="cpu")
    assert asked.is_set()


@pytest.mark.parametrize(("said", "least"), [("0.05", 0.0), ("3", 3.0), ("1e9", 0.0), ("9" * 30, 60.0)])
def test_a_server_says_when_it_wants_to_be_asked_again(
    server: Server, said: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put()
    waits: list[float] = []
    monkeypatch.setattr(retries, "pause", waits.append)
    failed: set[str] = set()

    def answer(request: Handler) -> bool:
        if request.path in failed:
            return False
        failed.add(request.path)
        return request.give(b"", 503, Retry_After=said)

    server.answer = chunks(answer)
    assert total(server.url) == X.sum()
    assert waits
    assert all(least <= wait <= max(least, 0.01) for wait in waits)


# -- Elsewhere --------------------------------------------------------------------------------------------------------


def leading(where: Callable[[Handler], str]) -> Answer:
    return lambda request: "/old/" in request.path and request.give(b"", 302, Location=where(request))


def moved(request: Handler) -> str:
    return request.path.replace("/old/", "/")


LEADING: list[tuple[str, Callable[[Handler], str], str]] = [
    ("another host", lambda request: f"http://localhost:{request.server.server_address[1]}{moved(request)}", "host"),
    ("another port", lambda request: f"http://127.0.0.1:9{moved(request)}", "host"),
    ("another scheme", lambda request: f"https://{request.server.host}{moved(request)}", "scheme"),
    ("a file", lambda request: "file:///etc/passwd", "scheme"),
    ("itself", lambda request: request.path, "more than 5 times"),
]


@pytest.mark.parametrize(("where", "said"), [row[1:] for row in LEADING], ids=[row[0] for row in LEADING])
def test_a_redirect_is_not_followed_elsewhere(server: Server, where: Any, said: str) -> None:
    server.put()
    server.answer = leading(where)
    with pytest.raises(ReadError, match=said):
        total(server.url.replace("/x", "/old/x"))


def test_a_redirect_on_the_same_host_is_followed(server: Server) -> None:
    server.put()
    server.answer = leading(moved)
    assert total(server.url.replace("/x", "/old/x")) == X.sum()


def test_a_redirect_to_another_host_is_followed_if_it_is_asked_for(server: Server) -> None:
    server.put()
    server.answer = leading(LEADING[0][1])
    options = {"allow_redirects": True}
    array = zarr.open_array(server.url.replace("/x", "/old/x"), mode="r", storage_options=options)
    assert total(array) == X.sum()


# -- What is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shards": (8, 8)}], ids=["chunks", "shards"])
def test_a_server_that_loses_everything_is_an_error(server: Server, options: Any) -> None:
    server.put(**options)
    source = open_source(server.url)
    server.answer = lambda request: request.give(None)
    with pytest.raises(ReadError, match="gives this answer to other faults"):
        source.read(whole(X.shape), np.empty_like(X))


def test_a_chunk_that_was_never_written_is_the_fill_value(server: Server) -> None:
    server.put()
    del server.objects["x.zarr/c/1/0"]
    assert total(server.url) == X[:4].sum()


@pytest.mark.parametrize("query", ["", "?token=abc"])
def test_metadata_that_change_are_noticed_by_what_the_server_tells(query: str, server: Server) -> None:
    server.put()
    source = open_source(server.url + query)
    source.guard.check()  # type: ignore[attr-defined]
    server.objects["x.zarr/zarr.json"] += b" "
    with pytest.raises(ReadError, match=r"zarr\.json(\?\*\*\*)? has another size"):
        source.guard.check()  # type: ignore[attr-defined]


def test_what_another_host_tells_is_not_asked_for(server: Server) -> None:
    server.put()
    source = open_source(server.url)
    server.answer = lambda request: request.give(b"", 302, Location=f"http://localhost.invalid{request.path}")
    source.guard.check()  # type: ignore[attr-defined]
    assert source.guard.identity.matches()  # type: ignore[attr-defined]


# -- Secrets ----------------------------------------------------------------------------------------------------------

TOKEN, WORD = "abracadabra", "sesame"

FAILING: dict[str, Answer] = {
    "403": chunks(lambda request: request.give(b"", 403)),
    "404": lambda request: request.give(None),
    "500 of metadata": metadata(lambda request: request.give(b"", 500)),
    "damaged metadata": metadata(lambda request: request.give(b"{")),
    "a bad codec": metadata(lambda request: request.give(json.dumps({"node_type": "array"}).encode())),
    "too long": chunks(lambda request: request.give(ZEROS)),
    "redirected": chunks(lambda request: request.give(b"", 302, Location=f"http://elsewhere{request.path}")),
    "broken off": chunks(lambda request: request.give(b"", Content_Length="99")),
    "all lost but the metadata": lambda request: "json" not in request.path and request.give(None),
}


@pytest.mark.parametrize("answer", FAILING.values(), ids=FAILING)
def test_secrets_are_in_no_message(server: Server, answer: Answer) -> None:
    server.put()
    url = f"http://me:{WORD}@{server.host}/x.zarr?token={TOKEN}"
    assert total(url) == X.sum()
    assert all(TOKEN in path and auth for path, auth in server.seen), "the server gets them"
    told = [str(cf.explain(cf.sum, url, device="cpu")), repr(cf.open(url)), str(cf.explain(cf.open(url) + 1))]
    server.answer = answer
    try:
        told.append(str(total(url)))
    except ChunkflowError as error:
        told += [*traceback.format_exception(error), repr(error), str(getattr(error, "path", ""))]
    for text in told:
        kept = [line for line in text.splitlines() if TOKEN in line or WORD in line]
        assert not kept


def test_an_output_that_cannot_be_made_names_no_secret(server: Server) -> None:
    with pytest.raises(ChunkflowError) as caught:
        cf.copy(X, out=f"http://me:{WORD}@{server.host}/y.zarr?token={TOKEN}", device="cpu")
    assert TOKEN not in "".join(traceback.format_exception(caught.value))
    assert WORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/x.zarr", "s3://bucket/x.zarr"),
        ("http://host/x?sig=a%2Fb&k=v: gone", "http://host/x?***: gone"),
        ("'https://u:p@ss@host:80/x', twice https://u@h", "'https://***@host:80/x', twice https://***@h"),
        ("what? no://?", "what? no://?"),
    ],
)
def test_what_is_hidden(text: str, shown: str) -> None:
    assert hidden(text) == shown


def test_nothing_at_all(server: Server) -> None:
    with pytest.raises(SourceNotFoundError, match="no zarr array"):
        total(server.url)
