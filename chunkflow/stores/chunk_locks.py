"""One writer at a time of a chunk that regions cut: among all threads, and for files among all processes.

Who changes a part of a chunk reads it, and writes it whole. Without locks two that do so at once lose what one has
written, though their regions share no element.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from chunkflow.core.grid import Shape

SLOTS = 64
"""Number of locks that chunks share. Two blocks that cut one chunk wait for each other."""

_locks = [threading.Lock() for _ in range(SLOTS)]


def _renew() -> None:
    """Give a forked process locks of its own: it has no threads that would release those that were held."""
    _locks[:] = [threading.Lock() for _ in range(SLOTS)]


os.register_at_fork(after_in_child=_renew)


class ChunkLocks:
    """Locks on the chunks of an array, whose `file` other processes have, too; None where only threads can be known.

    A byte of the file is locked for each slot, whether or not the file has it. Locks that belong to the open file
    (Linux's "open file description locks") let each sink have its own.
    """

    def __init__(self, file: str | None = None) -> None:
        self._opened: int | None = None
        if file is not None:
            with suppress(OSError):
                self._opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def changing(self, chunk: Shape) -> Iterator[None]:
        """Let nobody else change a chunk meanwhile."""
        slot = _slot(chunk)
        with _locks[slot]:
            try:
                self._set(fcntl.F_WRLCK, slot)
                yield
            finally:
                self._set(fcntl.F_UNLCK, slot)

    def _set(self, kind: int, slot: int) -> None:
        if self._opened is not None:
            with suppress(OSError):  # some network file systems have no locks
                fcntl.fcntl(self._opened, fcntl.F_OFD_SETLKW, struct.pack("hhqqi", kind, os.SEEK_SET, slot, 1, 0))

    def close(self) -> None:
        """Give the file back."""
        opened, self._opened = self._opened, None
        if opened is not None:
            os.close(opened)


def _slot(chunk: Shape) -> int:
    """The same in each process, and others for neighbours.

    >>> _slot((2, 3)) != _slot((3, 2)), _slot(())
    (True, 0)
    """
    found = 0
    for place in chunk:
        found = (31 * found + place) % SLOTS
    return found
