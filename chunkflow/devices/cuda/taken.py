"""Bytes of a card that libraries have taken outside every pool, on a card that other processes use too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOST = 512 << 20  # most bytes that are noted at once: a library that takes more, as JAX does, keeps it for later
USUAL = 256 << 20  # what libraries take as a rule


class LibraryMemory:
    """Counts what libraries take of a card while kernels are tried.

    Parameters
    ----------
    own : callable
        Gives the bytes that this process has taken of the card; None where that is not known.
    all_processes : callable
        Gives the bytes that all processes have taken.

    Examples
    --------
    Another process takes 3 GB while a kernel is tried, of which a library takes 70 MB:

    >>> own, others = 400_000_000, 0
    >>> memory = LibraryMemory(lambda: own, lambda: own + others)
    >>> before = memory.taken()
    >>> own, others = own + 70_000_000, 3_000_000_000
    >>> memory.note_growth(memory.taken() - before)
    >>> memory.noted
    70000000
    """

    def __init__(self, own: Callable[[], int | None], all_processes: Callable[[], int]) -> None:
        self._own, self._all = own, all_processes
        self._bare = own() or 0  # the context itself
        self._noted = 0
        self._lock = threading.RLock()  # a thread that ends may give back within it

    def taken(self) -> int:
        """Bytes that this process has taken; those of all processes, where its own are not known."""
        own = self._own()
        return self._all() if own is None else own

    @property
    def noted(self) -> int:
        """Bytes that libraries have taken: no more than what is taken now, beside the bare context."""
        with self._lock:
            if self._noted > USUAL:  # to ask each time would cost small runs too much
                self._noted = min(self._noted, max(0, self.taken() - self._bare))
            return self._noted

    def note_release(self, nbytes: int) -> None:
        """Take off what a library has given back, as of a thread that ended."""
        with self._lock:
            self._noted = max(0, self._noted - nbytes)

    def note_growth(self, nbytes: int) -> None:
        """Add what was taken outside the pools. Where other processes' bytes may be among it, `MOST` limits the sum."""
        with self._lock:
            grown = self._noted + min(max(0, nbytes), MOST)
            self._noted = min(grown, MOST) if self._own() is None else grown


def taken_here(bus: str) -> Callable[[], int | None]:
    """A function that gives the bytes that this process has taken of the card with a PCI address.

    It asks NVML, through ``nvidia-ml-py``, and gives None where NVML does not answer: without that package, or in a
    container that hides process numbers. A call takes 40 us on an H100.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        card: Any = pynvml.nvmlDeviceGetHandleByPciBusId(bus)
    except Exception:  # not installed, no driver that knows it, or a card that it does not show
        return lambda: None

    def taken() -> int | None:
        with suppress(Exception):
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card):
                if process.pid == os.getpid() and process.usedGpuMemory is not None:
                    return int(process.usedGpuMemory)
        return None

    return taken
