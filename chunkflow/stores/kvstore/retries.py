"""Retries of requests to servers, with longer and longer waits."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ATTEMPTS = 6
"""How often a request is made before its error is raised."""

FIRST_WAIT = 0.1
"""Seconds before the second attempt. Each further wait is twice as long, plus up to a half by chance."""

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
    for attempt in itertools.count(1):
        try:
            return request()
        except Exception as error:
            if attempt == ATTEMPTS or not may_pass(error):
                if attempt > 1:
                    error.add_note(f"chunkflow: this was attempt {attempt}")
                raise
        time.sleep(FIRST_WAIT * 2 ** (attempt - 1) * (1 + random.random() / 2))
    raise AssertionError("the last attempt returns or raises")


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
