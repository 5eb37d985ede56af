"""Which line a warning points at: the user's, whatever lies between it and the line that warns."""

from __future__ import annotations

import os
import sys
from functools import cache
from types import FrameType

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STANDARD = os.path.dirname(os.path.abspath(os.__file__))


def users_line() -> int:
    """The `stacklevel` with which a warning of the caller's points at the line that called chunkflow.

    Of a thread that nobody called it is the caller's own.

    >>> users_line()
    1
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return 1 if frame is None else level


@cache
def _is_users(file: str) -> bool:
    """Whether a file is neither chunkflow's nor of the standard library, whose context managers and threads call it."""
    if file.startswith("<"):  # what is typed in, or a module that is part of the interpreter
        return not file.startswith("<frozen ")
    path = os.path.abspath(file)
    if path.startswith(f"{PACKAGE}{os.sep}"):
        return False
    return not path.startswith(f"{STANDARD}{os.sep}") or "site-packages" in path or "dist-packages" in path
