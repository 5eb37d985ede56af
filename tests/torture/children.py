"""Work in forked processes, which may end in any way, and what they leave open."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from torture.faults import compiled, disarm, is_loaded

T = TypeVar("T")
DONE, REFUSED, RAW, HUNG = 0, 3, 4, 5
DIE_WITH_PARENT = 1  # linux/prctl.h: PR_SET_PDEATHSIG
LEAKED = 16
"""Is added where descriptors are left."""
LIMIT = 30
"""Seconds after which a run hangs, without those in which it waits for a core: else it takes a small part of one."""


def preloaded(module: str, tortured: Callable[[], int], before: Sequence[str] = ()) -> int:
    """What a command gives: in this process, if the library is preloaded into it, else in another one.

    Parameters
    ----------
    module : str
        What is started, by ``python -m``.
    tortured : callable
        The command.
    before : sequence of str
        Words of a command that starts the other process.
    """
    if is_loaded():
        return tortured()
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder))
        if library is None:
            print("there is no C compiler")
            return 2
        command = [*before, sys.executable, "-m", module, *sys.argv[1:]]
        # Rates that somebody has measured here would give other blocks.
        environment = {"CHUNKFLOW_RATES": "0"} | os.environ | {"LD_PRELOAD": str(library)}
        return subprocess.run(command, env=environment, check=False).returncode


def forked(work: Callable[[], int], folder: Path | None = None, seconds: float = LIMIT) -> int:
    """The exit code of a child that does some work; minus the signal that killed it."""
    pid = begun(work, folder)
    begin = time.monotonic()
    while time.monotonic() - begin < seconds or time.monotonic() - begin - _starved(pid) < seconds:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGABRT)  # it says where
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return HUNG


def _starved(pid: int) -> float:
    """Seconds in which a process waited for a core; 0 where the system does not count them."""
    found = [0.0]
    for path in Path("/proc", str(pid), "task").glob("*/schedstat"):
        with suppress(OSError, IndexError):
            found.append(int(path.read_text().split()[1]) / 1e9)
    return max(found)


def begun(work: Callable[[], int], folder: Path | None = None) -> int:
    """The number of a child that does some work."""
    pid = os.fork()
    if not pid:
        code = RAW
        try:
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)  # one that is stopped would stay
            faulthandler.enable(os.dup(2))
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                if not os.environ.get("TORTURE_LOUD"):
                    os.dup2(nothing.fileno(), 2)
            code = _ended(work, folder)
        finally:
            os._exit(code)
    return pid


def told(work: Callable[[], T]) -> T | int:
    """What some work of a child gives, if it can be pickled; the exit code if the work fails."""
    with tempfile.TemporaryFile() as file:

        def tell() -> int:
            pickle.dump(work(), file)
            file.flush()
            return DONE

        if (code := forked(tell)) != DONE:
            return code
        file.seek(0)
        return pickle.load(file)


def import_all(work: Callable[[], object]) -> None:
    """Import what some work imports, so that children need not. Their threads must not be here."""

    def names() -> list[str]:
        work()
        return sorted(sys.modules)

    for name in found if isinstance(found := told(names), list) else ():
        with suppress(ImportError):
            importlib.import_module(name)


def is_clean(folder: Path) -> bool:
    """Whether no descriptor of a file in a directory is left open."""
    gc.collect()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(str(folder)):
                print(f"descriptor {fd} of {path} is open", file=sys.stderr)
                return False
    return True


def _ended(work: Callable[[], int], folder: Path | None) -> int:
    """The exit code of some work."""
    from chunkflow.errors import ChunkflowError

    try:
        return work()
    except BaseException as error:
        disarm()
        code = REFUSED if isinstance(error, ChunkflowError | KeyboardInterrupt) else RAW
        if code == RAW or os.environ.get("TORTURE_LOUD"):
            with suppress(Exception):
                traceback.print_exc()
        chain: BaseException | None = error
        while chain is not None:  # what frames refer to is open
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__cause__ or chain.__context__
    return code if folder is None or is_clean(folder) else code + LEAKED
