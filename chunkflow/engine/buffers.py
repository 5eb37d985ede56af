"""Device buffers that blocks are loaded into, and who still reads each."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape, permuted
from chunkflow.devices.protocol import Block, Device, Event, Pool, shaped
from chunkflow.planner.plan import Plan


class DeviceBuffer:
    """Device memory that takes one operand's blocks in turn.

    `uploaded` has an event for each thread (or lane) that may fill it, `fillers` says which of them did,
    and `readers` are the events of the kernels that read the present block. A slot may give its memory
    back after a block (`release`) and take new memory for the next.
    """

    __slots__ = ("_blocks", "buffer", "fillers", "nbytes", "readers", "uploaded")

    def __init__(self, nbytes: int, uploaded: list[Event]) -> None:
        self.nbytes = nbytes
        self.buffer: Any = None
        self.uploaded = uploaded
        self.fillers: set[int] = set()
        self.readers: list[Event] = []
        self._blocks: deque[Block] = deque(maxlen=2)  # with a halo the one before is known until the next is computed

    def block(self, order: Shape) -> Block:
        """A block that lies in the slot in memory order `order`; `place` gives it its array."""
        self._blocks.append(Block(None, order, self))
        return self._blocks[-1]

    def fill(self, pool: Pool) -> None:
        """Take new memory if the slot has none."""
        if self.buffer is None:
            self.buffer = pool.allocate(self.nbytes)

    def place(self, block: Block, dtype: np.dtype, shape: Shape, pool: Pool) -> None:
        """Give a block of natural `shape` its array, in new memory if the slot has none."""
        self.fill(pool)
        block.array = shaped(self.buffer, dtype, permuted(shape, block.order), block.inverse)

    def release(self, pool: Pool) -> None:
        """Free the memory, even if a failed run's traceback still knows the slot or its blocks."""
        while self._blocks:
            self._blocks.pop().array = None
        if self.buffer is not None:
            pool.free(self.buffer)
        self.buffer = None


def make_slots(plan: Plan, device: Device, pool: Pool, operand: int, fillers: int) -> list[DeviceBuffer]:
    """An operand's slots."""
    spec = plan.operands[operand]
    slots = []
    for shape in plan.slot_shapes(operand):
        slot = DeviceBuffer(math.prod(shape) * spec.dtype.itemsize, [device.event() for _ in range(fillers)])
        device.host_writes(slot)
        slots.append(slot)
    return slots
