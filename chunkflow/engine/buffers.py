"""Device buffers that blocks are loaded into, with the events of what fills and reads them."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape, permuted
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Block, Device, Event, Loan, Pool, shaped
from chunkflow.errors import BudgetError
from chunkflow.planner.plan import Plan


class DeviceBuffer:
    """Device memory that holds one block of an operand at a time.

    `uploaded` has an event for each thread (or lane) that may fill it, and `fillers` has the numbers of those that
    did. `readers` are the events of the kernels that read the present block. A buffer may give its memory back after a
    block (`release`) and take new memory for the next one. So it does if somebody outside still refers to a block
    that was lent (`renew`): his array stays as it is.
    """

    __slots__ = ("_blocks", "_latest", "_loan", "fillers", "memory", "nbytes", "readers", "uploaded")

    def __init__(self, nbytes: int, uploaded: list[Event]) -> None:
        self.nbytes = nbytes
        self.memory: Any = None
        self.uploaded = uploaded
        self.fillers: set[int] = set()
        self.readers: list[Event] = []
        self._latest: dict[Hashable, Event] = {}
        self._blocks: deque[Block] = deque(maxlen=2)  # with a halo, a block is needed until the next one is computed
        self._loan: Callable[[], Loan | None] = lambda: None

    def block(self, order: Shape) -> Block:
        """A new block in memory order `order`; `place` gives it its array."""
        self._blocks.append(Block(None, order, self))
        return self._blocks[-1]

    def fill(self, pool: Pool) -> None:
        """Take new memory if the buffer has none."""
        if self.memory is None:
            self.memory = pool.allocate(self.nbytes)

    def place(self, block: Block, dtype: np.dtype, shape: Shape, pool: Pool) -> None:
        """Give a block of natural `shape` its array, in new memory if the buffer has none."""
        self.fill(pool)
        block.array = shaped(self.memory, dtype, permuted(shape, block.order), block.inverse)

    def read_until(self, event: Event, reader: Hashable) -> None:
        """Let nothing overwrite the present block before an event.

        A `reader` is a lane: its work is done in order, so of its events the latest is enough. A block may have many.
        """
        before = self._latest.get(reader)
        self.readers[:] = [other for other in self.readers if other is not before]
        self.readers.append(event)
        self._latest[reader] = event

    def lend(self, block: Block, device: Device) -> Any:
        """An array of a block for somebody outside, who may keep it."""
        loan = Loan(block.array)
        self._loan = weakref.ref(loan)
        return device.lend(loan)

    def renew(self, device: Device, pool: Pool) -> None:
        """Take new memory if somebody outside still refers to the block that was lent.

        Raises
        ------
        BudgetError
            There is no room for it.
        """
        if self._loan() is None:
            return
        self.release(pool)
        try:
            self.fill(pool)
        except BaseException as error:
            if not device.is_out_of_memory(error):
                raise
            raise BudgetError(
                f"the loop keeps blocks of {format_bytes(self.nbytes)} that it got earlier, and the budget of "
                f"{format_bytes(pool.limit)} has no room for another one: keep copies (block.copy()), or raise budget="
            ) from error
        done = device.event()  # the new memory may have been that of a block which the loop's work still reads
        device.caller_lane().record(done)
        self.readers.append(done)

    def release(self, pool: Pool) -> None:
        """Free the memory, even if the traceback of a failed run still refers to the buffer or its blocks.

        Memory of a block that is lent is freed when nobody refers to it any more.
        """
        while self._blocks:
            self._blocks.pop().array = None
        if self.memory is not None:
            loan = self._loan()
            if loan is None:
                pool.free(self.memory)
            else:
                weakref.finalize(loan, pool.free, self.memory).atexit = False
        self.memory, self._loan = None, lambda: None


def device_buffers(plan: Plan, device: Device, operand: int, fillers: int) -> list[DeviceBuffer]:
    """The buffers of an operand, without memory yet."""
    spec = plan.operands[operand]
    buffers = []
    for shape in plan.slot_shapes(operand):
        buffer = DeviceBuffer(math.prod(shape) * spec.dtype.itemsize, [device.event() for _ in range(fillers)])
        device.host_writes(buffer)
        buffers.append(buffer)
    return buffers
