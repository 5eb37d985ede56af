"""Retries of requests to servers, with longer and longer waits."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from chunkflow.stores.kvstore.http import translated
from chunkflow.system import interrupts

T = TypeVar("T")

ATTEMPTS = 6
"""How often a request is made before its error is raised."""

FIRST_WAIT = 0.1
"""Seconds before the second attempt. Each further wait is twice as long, plus up to a half by chance."""

ATTEMPTS_SLOW = 2
"""The same, where the server does not answer in time."""

LONGEST_WAIT = 60.0
"""Most seconds that a server may ask to wait before the next attempt."""

_LATER = {408, 425, 429}
"""HTTP's codes that ask the client to come back, beside those of 500 and more."""


def again(request: Callable[[], T]) -> T:
    """Make a request until it succeeds, or fails for good.

    >>> answers = iter([TimeoutError("slow"), b"bytes"])
    >>> def request():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> again(request)
    b'bytes'
    """
    slow = 0
    for attempt in itertools.count(1):
        try:
            return request()
        except Exception as error:
            slow += _is_slow(error)
            if attempt == ATTEMPTS or slow == ATTEMPTS_SLOW or not may_pass(error):
                shown = translated(error)
                if attempt > 1:
                    shown.add_note(f"chunkflow: this was attempt {attempt}")
                if shown is error:
                    raise
                raise shown from None  # the other names the URL, and what is secret in it
            asked = min(getattr(error, "after", None) or 0.0, LONGEST_WAIT)
        pause(max(asked, FIRST_WAIT * 2 ** (attempt - 1) * (1 + random.random() / 2)))
    raise AssertionError("the last attempt returns or raises")


def pause(seconds: float) -> None:
    """Sleep, but not beyond a Ctrl-C."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not interrupts.pending():
        time.sleep(min(left, 0.1))


def _is_slow(error: Exception) -> bool:
    """Whether a request took as long as it may, rather than failed."""
    return isinstance(error, TimeoutError) or getattr(error, "status", None) == 408


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later: an error of the network or the server, not of the request.

    >>> may_pass(ConnectionResetError()), may_pass(PermissionError()), may_pass(ValueError())
    (True, False, False)
    """
    status = getattr(error, "status", None)  # aiohttp's
    if isinstance(status, int):
        return status >= 500 or status in _LATER
    if isinstance(error, (PermissionError, FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return False
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "aiohttp"
