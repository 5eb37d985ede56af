"""Host memory that a device's copy engines can read and write by themselves."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import numpy as np

from chunkflow.devices.base import HostSlot


class PinnedSlot(HostSlot):
    """Host memory that its thread maps, fills and only then pins.

    Threads do so side by side, while the driver allocates pinned memory one call at a time and slowly.
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
            np.add(pages, 0, out=pages)  # the slot may hold a piece already
            self._register(self.pointer, self.array.nbytes, 0)
            self._pinned = True

    def close(self) -> None:
        """Give the memory back."""
        if self._pinned:
            with self._attach():
                self._unregister(self.pointer)
            self._pinned = False

    __del__ = close  # unmapped while registered, its addresses could never be registered again
