"""The preloaded library: calls of a process fail, are cut short, or are where it is killed."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

NONE, KILL, FAIL, SHORT, FOREVER, SIGNAL, STOP, FULL = range(8)
ACTIONS = {"kill": KILL, "fail": FAIL, "short": SHORT, "forever": FOREVER, "signal": SIGNAL, "full": FULL}
OPEN, READ, WRITE, RENAME, UNLINK, MKDIR, SYNC, SIZE, CLOSE, LOCK = (1 << i for i in range(10))
CHANGES = OPEN | WRITE | RENAME | UNLINK | MKDIR | SYNC | SIZE | CLOSE | LOCK
"""Calls between which a file system may be left."""
ALL = CHANGES | READ
ROOM = WRITE | MKDIR | SIZE
"""Calls that a full disk refuses."""


class Fault(NamedTuple):
    """What happens at the n-th call of some kinds, or from it on; `number` is the error's, or the signal's.

    The disk is `FULL` when n bytes are written. `STOP` stops the process before each call.
    """

    n: int
    action: int
    kinds: int = CHANGES
    number: int = 0


PLANS = (
    (CHANGES, KILL, (0,)),
    (ALL, FAIL, (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES, errno.EINTR)),
    (READ | WRITE, SHORT, (0,)),
    (ROOM, FOREVER, (errno.ENOSPC,)),
    (ALL, FOREVER, (errno.EIO,)),
    (CHANGES, SIGNAL, (signal.SIGINT, signal.SIGTERM)),
)
"""Kinds of calls, what happens at each, or from each on, and the errors or signals."""
BYTES = 97
"""Bytes more that fit on the disk with each fault that fills it: they cut numbers, lines and metadata everywhere."""


def is_loaded() -> bool:
    """Whether the library is preloaded into this process."""
    return "faults" in os.environ.get("LD_PRELOAD", "")


def compiled(folder: Path) -> Path | None:
    """The library, compiled; None where there is no C compiler."""
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) or shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@cache
def _library() -> Any:
    return ctypes.CDLL(os.environ["LD_PRELOAD"])


def arm(folder: Path, fault: Fault) -> None:
    """Count the calls on what lies below a directory from now on, and let the fault happen."""
    n, action, kinds, number = fault
    _library().faults_arm(os.fsencode(folder), kinds, ctypes.c_long(n), action, number)


def written() -> int:
    """Bytes of all writes since `arm`."""
    return int(_library().faults_written())


def disarm() -> None:
    """Let nothing happen any more."""
    if is_loaded():
        _library().faults_disarm()


def count(kinds: int) -> int:
    """Calls of some kinds since `arm`."""
    return int(_library().faults_count(kinds))
