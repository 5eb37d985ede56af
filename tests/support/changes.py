"""Changes to files in mid-run."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def stamped_later(path: str | Path) -> None:
    """Let a file be changed after this call begins: file systems stamp files by a clock that ticks every few ms."""
    since = time.time_ns()
    while os.stat(path).st_ctime_ns <= since:
        os.chmod(path, os.stat(path).st_mode)


def replaced(path: str | Path) -> None:
    """Put a copy of a file or folder in its place."""
    copy = f"{path}.copy"
    if os.path.isdir(path):
        shutil.copytree(path, copy)
        os.rename(path, f"{path}.old")
        os.rename(copy, path)
    else:
        shutil.copy2(path, copy)
        os.replace(copy, path)
    stamped_later(path)


def once(change: Callable[[], Any]) -> Callable[[Any], Any]:
    """A function for `map` that gives what it is given, and makes a change at its second call: the first is a trial."""
    calls: list[None] = []

    def fn(block: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            change()
        return block

    return fn
