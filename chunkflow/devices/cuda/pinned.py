"""Host memory that a device's copy engines can read and write by themselves."""

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


class PinnedSlot(HostBuffer):
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


class KeptSlots:
    """Host slots that runs leave for the next one, up to `most` bytes; `make` makes one of so many, in whole pages."""

    def __init__(self, make: Callable[[int], HostBuffer], most: int) -> None:
        self._make, self._most = make, most
        self._spare: list[HostBuffer] = []
        self._lock = threading.Lock()
        self._closed = False

    def take(self, number: int, nbytes: int) -> list[HostBuffer]:
        """Slots that are large enough: the smallest that are there, of those the last ones used, and new ones."""
        with self._lock:
            fitting = [slot for slot in reversed(self._spare) if slot.array.nbytes >= nbytes]
            fitting.sort(key=lambda slot: slot.array.nbytes)
            slots = fitting[:number]
            self._spare = [s for s in self._spare if s not in slots]
        for slot in slots:
            slot.renew()
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            while len(slots) < number:
                slots.append(self._make(size))
        except BaseException:
            self.keep(slots)
            raise
        return slots

    def keep(self, slots: list[HostBuffer]) -> None:
        """Take slots back, and the list with them; of all that are spare, those that were used last are kept."""
        with self._lock:
            self._spare += slots
            slots.clear()
            room, spared = 0 if self._closed else self._most, list[HostBuffer]()
            for slot in reversed(self._spare):
                room -= slot.array.nbytes
                if room < 0:
                    break
                spared.append(slot)
            given_up = self._spare[: len(self._spare) - len(spared)]
            self._spare = spared[::-1]
        for slot in given_up:
            slot.close()

    def close(self) -> None:
        """Give the memory back; what is taken back later is given back at once."""
        self._closed = True
        self.keep([])


def pinned_slots(*how: Any) -> KeptSlots:
    """Slots of pinned memory, of which some stay until the process ends; `how` they are pinned as for `PinnedSlot`."""
    slots = KeptSlots(lambda nbytes: PinnedSlot(nbytes, *how), MOST_PINNED)
    atexit.register(slots.close)
    return slots
