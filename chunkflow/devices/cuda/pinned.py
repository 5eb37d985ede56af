"""Pinned host memory, which a GPU's copy engines read and write by themselves."""

from __future__ import annotations

import atexit
import mmap
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np

from chunkflow.devices.protocol import HostBuffer

MOST_PINNED = 256 << 20
"""Bytes of host memory that stay pinned between runs."""


class RegisteredBuffer(HostBuffer):
    """Host memory that a thread maps, fills, and only then registers with the driver.

    Several threads can do so at once. The driver's own allocation of pinned memory is slow, and one call at a time.
    """

    __slots__ = ("_attach", "_map", "_pinned", "_register", "_unregister")

    def __init__(
        self,
        nbytes: int,
        attach: Callable[[], AbstractContextManager[None]],
        register: Callable[[int, int, int], object],
        unregister: Callable[[int], object],
    ) -> None:
        self._pinned = False
        self._map = mmap.mmap(-1, nbytes)
        with suppress(OSError, AttributeError):
            self._map.madvise(mmap.MADV_HUGEPAGE)  # fewer faults to fill it, fewer pages to free
        super().__init__(np.frombuffer(self._map, np.uint8))
        self._attach, self._register, self._unregister = attach, register, unregister

    def pin(self) -> None:
        """Touch every page, then register them with the driver."""
        if not self._pinned:
            pages = self.array[:: mmap.PAGESIZE]
            np.add(pages, 0, out=pages)  # the buffer may hold a piece already
            self._register(self.pointer, self.array.nbytes, 0)
            self._pinned = True

    def close(self) -> None:
        if self._pinned:
            with self._attach():
                self._unregister(self.pointer)
            self._pinned = False

    __del__ = close  # if unmapped while registered, its addresses can never be registered again


class HostBufferPool:
    """Host buffers kept from run to run, up to `most` bytes in all. `make` makes one of a size in whole pages."""

    def __init__(self, make: Callable[[int], HostBuffer], most: int) -> None:
        self._make, self._most = make, most
        self._spare: list[HostBuffer] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, number: int, nbytes: int) -> list[HostBuffer]:
        """Buffers of at least `nbytes`: the smallest kept ones, of equal ones the last used, then new ones."""
        with self._lock:
            fitting = [buffer for buffer in reversed(self._spare) if buffer.array.nbytes >= nbytes]
            fitting.sort(key=lambda buffer: buffer.array.nbytes)
            buffers = fitting[:number]
            self._spare = [s for s in self._spare if s not in buffers]
        for buffer in buffers:
            buffer.renew()
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            while len(buffers) < number:
                buffers.append(self._make(size))
        except BaseException:
            self.keep(buffers)
            raise
        return buffers

    def keep(self, buffers: list[HostBuffer]) -> None:
        """Take buffers back and empty the list. Of all spare ones, the last used are kept."""
        with self._lock:
            self._spare += buffers
            buffers.clear()
            room, spared = 0 if self._closed else self._most, list[HostBuffer]()
            for buffer in reversed(self._spare):
                room -= buffer.array.nbytes
                if room < 0:
                    break
                spared.append(buffer)
            given_up = self._spare[: len(self._spare) - len(spared)]
            self._spare = spared[::-1]
        for buffer in given_up:
            buffer.close()

    def close(self) -> None:
        """Free the memory. Buffers that come back later are freed at once."""
        self._closed = True
        self.keep([])


def pinned_buffers(*how: Any) -> HostBufferPool:
    """A pool of pinned buffers for the whole process; `how` has the further arguments of `RegisteredBuffer`."""
    buffers = HostBufferPool(lambda nbytes: RegisteredBuffer(nbytes, *how), MOST_PINNED)
    atexit.register(buffers.close)
    return buffers
