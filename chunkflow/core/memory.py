"""Memory as arithmetic: named sums of bytes, computed before anything runs. Knows no array."""

from __future__ import annotations

import math
from dataclasses import dataclass

from chunkflow.core.units import format_bytes, rounded_up

ALIGNMENT = 512
"""Bytes to which allocators round every buffer."""


def rounded(nbytes: int, page: int = ALIGNMENT) -> int:
    """Bytes that a buffer of `nbytes` really takes where memory is handed out in pages.

    A buffer of more than half a page takes whole pages; smaller ones share them, as many as there is room for.

    >>> rounded(1), rounded(1024), rounded(3 << 20, page=2 << 20) >> 20, rounded(700_000, page=2 << 20) << 1 == 2 << 20
    (512, 1024, 4, True)
    """
    unit = page if nbytes > page // 2 else ALIGNMENT
    size = -(-nbytes // unit) * unit
    return page // (page // size) // unit * unit if 0 < size < page else size


def temporaries(nbytes: int, block: int, page: int) -> int:
    """Bytes that temporaries of `nbytes` in all take: several buffers, most of them as large as a block.

    >>> page = 2 << 20
    >>> temporaries(10 << 20, 5 << 20, page) >> 20, temporaries(100 << 20, 50 << 20, page) >> 20
    (14, 104)
    """
    if nbytes <= page:
        return rounded(nbytes, page)
    wasted = rounded(block, page) - block if block > page // 2 and page > ALIGNMENT else 0  # else of no weight
    return rounded(nbytes + max(2 * page, wasted * -(-nbytes // max(block, 1))), page)


def uncounted(page: int) -> int:
    """Bytes that nobody counts where memory is handed out in pages.

    They are of the page that small buffers share, and of one for kernels that a device loads while a run goes on.

    >>> uncounted(512), uncounted(2 << 20) >> 20
    (0, 4)
    """
    return 2 * page if page > ALIGNMENT else 0


OBJECTS, OBJECTS_FROM, OBJECTS_SHARE = 320 << 10, 1 << 20, 6
"""Most bytes that are left for Python's objects of a run, where they share its memory. They are a sixth of what a
budget has beyond so many bytes: smaller ones would hold little else, and bound blocks alone."""


def own_objects(budget: int) -> int:
    """Bytes of a budget of host memory for Python's objects: the plan, threads, and what files are opened with.

    >>> own_objects(1 << 20), own_objects(2 << 20) >> 10, own_objects(1 << 30) >> 10
    (0, 170, 320)
    """
    return min(OBJECTS, max(0, budget - OBJECTS_FROM) // OBJECTS_SHARE)


def counted_beside(nbytes: int, budget: int) -> int:
    """Bytes of those that a store takes beside its chunks that count in a budget: smaller ones bound blocks alone.

    >>> counted_beside(300_000, 1 << 20), counted_beside(300_000, 2 << 20)
    (0, 300000)
    """
    return min(nbytes, max(0, budget - OBJECTS_FROM) // 2)


@dataclass(frozen=True)
class Projection:
    """Device memory of a run, in bytes.

    Attributes
    ----------
    inputs, outputs : int
        Slots for blocks that were loaded, and for results that wait to be stored.
    partials : int
        What lanes keep between blocks: partial results, or what a scan carries on.
    workspace : int
        What the function allocates besides its result, on all lanes that compute at once.
    staging : int
        Landing places for pieces that the device scatters into, or gathers from, a block; where the device shares
        the host's memory, what stores take to encode and decode their chunks.
    reserve : int
        What the device's libraries take outside the run's pool, and pages that nobody counts; where the device shares
        the host's memory, what Python's objects take.
    decoding : int
        Where the device decodes: chunks as they come and as they are decoded, and what the decoder takes besides.
    """

    inputs: int
    outputs: int
    partials: int
    workspace: int
    staging: int
    reserve: int
    decoding: int = 0

    @property
    def total(self) -> int:
        """Sum of all terms."""
        return sum(vars(self).values())

    def __str__(self) -> str:
        listed = " + ".join(f"{name} {format_bytes(n)}" for name, n in vars(self).items() if n)
        return f"{listed or '0 B'} = {format_bytes(self.total)}"


@dataclass(frozen=True)
class Ring:
    """Pinned host memory through which pieces travel: `slots` for each of `threads`.

    `scratch` is what each thread takes on the device besides, for pieces that are scattered there; `room` what it takes
    of the host's memory for pieces that fit no slot, until they have gone through in parts.
    """

    threads: int
    slots: int
    slot_bytes: int
    scratch: int = 0
    room: int = 0

    @property
    def nbytes(self) -> int:
        """Host memory of the ring."""
        return self.threads * (self.slots * self.slot_bytes + self.room)

    def device_bytes(self, page: int) -> int:
        """Device memory of the ring."""
        return self.threads * rounded(self.scratch, page)

    @staticmethod
    def sized(
        pieces: int, slot_bytes: int, threads: int, slots: int, limit: int, scratch: int = 0, room: int = 0
    ) -> Ring:
        """Ring of at most `threads` and, if one thread allows it, at most `limit` bytes of slots."""
        affordable = limit // max(slots * slot_bytes, 1)
        return Ring(max(1, min(threads, pieces, affordable)), slots, max(slot_bytes, 1), scratch, room)


COUNTED = 1.1
"""How many times as many may be there as were counted, which is right within some 3 %, mostly."""


@dataclass(frozen=True)
class RoomForEach:
    """Budgets for things of which there are `most` at most, and of which only the elements show how many there are.

    Each takes so many bytes of a budget, beside a `reserve`. `there` is about how many there are, if they were counted.

    >>> room = RoomForEach(1000, 40.0, 10**6)
    >>> room.likely(600), room.enough
    (49000, 40001000)
    >>> room.likely(600_000), room.said(600_000)
    (40001000, 'raise budget= to 40001000, which has room for as many as there may be')
    >>> RoomForEach(1000, 40.0, 10**6, there=2000).likely(600)
    89000
    """

    reserve: int
    each: float
    most: int
    there: int | None = None

    @property
    def enough(self) -> int:
        """A budget for as many as there may be."""
        return self.reserve + math.ceil(self.each * self.most)

    def likely(self, number: int) -> int:
        """A budget for those that there are; for twice as many as were found, if they were not counted."""
        wanted = 2 * number if self.there is None else max(number, math.ceil(self.there * COUNTED))
        return min(rounded_up(self.reserve + math.ceil(self.each * wanted)), self.enough)

    def said(self, number: int) -> str:
        """What to do where so many were found, and more may come."""
        every = f"{self.enough}, which has room for as many as there may be"
        if self.likely(number) == self.enough:
            return f"raise budget= to {every}"
        these = "twice as many" if self.there is None else f"the {self.there} that there are, about"
        return f"raise budget= to {self.likely(number)}, which has room for {these} ({every})"
