"""Objects of an HTTP server, with bounds on all that it may do: how much it sends, how long it takes, where it leads.

fsspec reads whatever comes, follows every redirect, and waits for ever.
"""

from __future__ import annotations

import asyncio
import errno
import time
import urllib.parse
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from chunkflow.errors import hidden
from chunkflow.stores.kvstore.protocol import ChunkError

T = TypeVar("T")

CONNECTING = 30.0
"""Most seconds until there is a connection."""

SILENCE = 60.0
"""Most seconds without a byte."""

SLOWEST = 4096.0
"""Fewest bytes a second, beside the seconds above."""

MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_ZIPPED = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class RequestError(OSError):
    """A server's answer that is no object. `after` are the seconds after which it wants to be asked again."""

    def __init__(self, message: str, status: int | None = None, after: float | None = None) -> None:
        super().__init__(hidden(message))
        self.status, self.after = status, after


class TooLongError(ChunkError):
    """An answer that has more bytes than were asked for."""


def is_http(files: Any) -> bool:
    """Whether a file system of fsspec's is that of HTTP."""
    return any(kind.__name__ == "HTTPFileSystem" for kind in type(files).__mro__)


def url_at(root: str, key: str) -> str:
    """URL of an object under a root, whose query stays at the end.

    >>> url_at("http://host/x.zarr?token=abc", "c/0")
    'http://host/x.zarr/c/0?token=abc'
    """
    place, mark, query = root.partition("?")
    return f"{place.rstrip('/')}/{key}{mark}{query}"


async def fetched(files: Any, url: str, asked: str | None, most: int) -> bytearray | None:
    """Fetch an object, or the `asked` range of it; None if there is none. `TooLongError` beyond `most` bytes."""
    return await _answered(files, "GET", url, asked, most, lambda answer, url: _body(answer, url, most))


async def told(files: Any, url: str) -> dict[str, Any]:
    """What the server tells of an object, by the names of headers; `FileNotFoundError` if there is none."""
    try:
        found = await _answered(files, "HEAD", url, None, 0, _headers)
    except (RequestError, ChunkError):  # it does not know the method, or may not be asked so
        found = await _answered(files, "GET", url, None, 0, _headers)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such object")
    return found


async def _answered(
    files: Any, method: str, url: str, asked: str | None, most: int, read: Callable[[Any, str], Awaitable[T]]
) -> T | None:
    """What is read from the answer to a request that takes no longer than one of so many bytes; None if it is 404."""
    try:
        async with asyncio.timeout(CONNECTING + SILENCE + most / SLOWEST):
            return await _followed_to(files, method, url, asked, read)
    except (RequestError, ChunkError):
        raise
    except TimeoutError:
        raise RequestError(f"{url} does not answer, or sends less than {SLOWEST:.0f} bytes a second", 408) from None
    except Exception as error:
        raise translated(error) from None


def translated(error: Exception) -> Exception:
    """An error of aiohttp's as one of ours: its own name the URL."""
    if type(error).__module__.partition(".")[0] != "aiohttp":
        return error
    status = getattr(error, "status", None)
    headers = getattr(error, "headers", None) or {}
    said = str(error) or type(error).__name__
    return RequestError(said, status if isinstance(status, int) else None, seconds_after(headers.get("Retry-After")))


def seconds_after(said: str | None) -> float | None:
    """Seconds that a header asks to wait; None if it asks for none.

    >>> seconds_after("7"), seconds_after("soon"), seconds_after(None)
    (7.0, None, None)
    """
    from email.utils import parsedate_to_datetime  # not at the top: servers seldom say so

    if not said:
        return None
    if said.strip().isdigit():
        return float(said.strip()[:6])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


async def _followed_to(
    files: Any, method: str, url: str, asked: str | None, read: Callable[[Any, str], Awaitable[T]]
) -> T | None:
    import aiohttp

    session, options = await files.set_session(), dict(files.kwargs)
    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})} | ({"Range": asked} if asked else {})
    anywhere = options.pop("allow_redirects", False)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING, sock_read=SILENCE)
    options = {"timeout": limits, **options, "allow_redirects": False, "auto_decompress": False}
    for _ in range(MOST_REDIRECTS + 1):
        async with session.request(method, files.encode_url(url), headers=headers, **options) as answer:
            if answer.status in _REDIRECTS:
                url = _followed(url, answer.headers.get("Location", ""), anywhere=anywhere)
                continue
            if answer.status == 404:
                return None
            if answer.status >= 400:
                said = f"{answer.status} {answer.reason}, for {url}"
                raise RequestError(said, answer.status, seconds_after(answer.headers.get("Retry-After")))
            return await read(answer, url)
    raise RequestError(f"{url} redirects more than {MOST_REDIRECTS} times", 310)


def _followed(url: str, target: str, *, anywhere: bool) -> str:
    """Where a redirect leads, if it may be followed."""
    found = urllib.parse.urljoin(url, target)
    before, after = urllib.parse.urlsplit(url), urllib.parse.urlsplit(found)
    if after.scheme not in ("http", "https") or (not anywhere and after.scheme != before.scheme):
        raise RequestError(f"{url} redirects to another scheme, and is not followed: {found}", 310)
    if not anywhere and (after.hostname, after.port) != (before.hostname, before.port):
        raise RequestError(
            f"{url} redirects to another host, and is not followed: {found}. Give that URL, or pass an array of zarr's "
            "opened with storage_options={'allow_redirects': True}",
            310,
        )
    same = (after.hostname, after.port) == (before.hostname, before.port)
    if same and before.username and not after.username:  # the password is for this host
        found = after._replace(netloc=before.netloc).geturl()
    return found


async def _headers(answer: Any, url: str) -> dict[str, Any]:
    """Headers that tell of an object, and its size if that is known."""
    length = answer.headers.get("Content-Length", "")
    plain = "Content-Encoding" not in answer.headers
    known = {name: answer.headers[name] for name in ("ETag", "Last-Modified") if name in answer.headers}
    return known | ({"size": int(length)} if plain and length.isdecimal() else {})


async def _body(answer: Any, url: str, most: int) -> bytearray:
    """The answer's bytes, looked at while they come."""
    kind = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if kind not in ("identity", "", *_ZIPPED):
        raise ChunkError(f"the server sends it encoded as {kind!r}, which was not asked for")
    unzip = zlib.decompressobj(_ZIPPED[kind]) if kind in _ZIPPED else None
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece if unzip is None else unzip.decompress(piece, most - len(found) + 1)
        if len(found) > most:
            raise TooLongError(f"the server sends more than the {most} bytes that it may have")
    if unzip is not None and not unzip.eof:
        raise ChunkError("truncated: the server's encoding of it does not end")
    return found
