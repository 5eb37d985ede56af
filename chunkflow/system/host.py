"""The host's cores and free memory, and a thread's own time. Knows no arrays and no devices."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STAT = Path("/proc/stat")
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_WAITS = Path("/proc/thread-self/schedstat")


class _Waits(threading.local):
    """File in which the system says how long the calling thread has waited for a core; None if it is not looked up."""

    fd: int | None = None


_waits = _Waits()


@contextmanager
def own_time_known() -> Iterator[None]:
    """Let `own_time` of the calling thread leave out its waits for a core, where the system tells them."""
    before = _waits.fd
    try:
        _waits.fd = os.open(_WAITS, os.O_RDONLY)
    except OSError:
        _waits.fd = None
    try:
        yield
    finally:
        if _waits.fd is not None:
            os.close(_waits.fd)
        _waits.fd = before


def own_time() -> float:
    """Seconds of a clock that stands still while the calling thread could go on, but others have all cores."""
    waited = _waited()
    while True:
        now, before = time.perf_counter(), waited
        waited = _waited()
        if waited == before:  # else it waited between the two looks
            return now - waited


def _waited() -> float:
    """Seconds in which the calling thread has waited for a core; 0 where that is not looked up."""
    if _waits.fd is None:
        return 0.0
    return int(os.pread(_waits.fd, 128, 0).split()[1]) / 1e9


def processor_seconds() -> float:
    """Seconds of the processor that all processes of this machine have taken; 0 where that is not told."""
    with suppress(OSError, ValueError):
        user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().split(maxsplit=9)[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return 0.0


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Name of the processor."""
    return _told(_CPUINFO, "model name") or platform.processor() or platform.machine()


def _told(file: Path, name: str) -> str:
    """What a file of the system says behind a name and a colon; empty if it does not."""
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


KEPT_MOST = 31 << 20
"""Bytes of the largest block of which glibc learns: it adapts to none from 32 MiB on."""

_learned = 0


def keep_freed(nbytes: int) -> None:
    """Let the C library keep freed blocks of up to so many bytes, for the next ones that are asked for.

    glibc maps a block of 128 KiB or more from the system, and unmaps it when it is freed. Temporaries of blocks then
    cost a page fault each 4 KiB, again and again, and threads wait for one another in the system: a gradient took four
    times as long. glibc adapts to the largest block that it has unmapped, so one that nobody touches is freed here.
    """
    global _learned
    nbytes = min(nbytes, KEPT_MOST)
    if sys.platform != "linux" or nbytes <= _learned:
        return
    library = ctypes.CDLL(None)
    malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(("malloc", library))
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", library))
    free(malloc(nbytes))
    _learned = nbytes


def available_memory() -> int | None:
    """Bytes that the process can still allocate without swapping; None where unknown.

    It is the smaller of the machine's free memory (``MemAvailable``, which counts the page cache as free) and what the
    limit of the process's control group (a container) leaves.
    """
    machine = _machine()
    group = _control_group()
    known = [count for count in (machine, group) if count is not None]
    return min(known, default=None)


def _machine() -> int | None:
    if free := _told(_MEMINFO, "MemAvailable"):
        return int(free.split()[0]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not known on this platform
        return None


def _control_group() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        # The page cache counts as used by the group, but is freed when memory is needed.
        return max(0, int(limit) - used + int(stat["active_file"]) + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return None
