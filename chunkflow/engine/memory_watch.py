"""Whether the user's function takes more memory for later blocks than its trial call let expect.

On the CPU nothing refuses a function an allocation. What NumPy allocates in a call is counted: for each block, or for
one in `SAMPLE` where blocks are so small that counting would be more than a hundredth of the work.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import TypeVar

from chunkflow.core.grid import Region, Shape, describe, shape_of
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device
from chunkflow.engine.trace import Trace
from chunkflow.errors import MemoryUseWarning
from chunkflow.kernels.protocol import Kernel
from chunkflow.kernels.users import users_function
from chunkflow.planner.plan import Plan
from chunkflow.system.users_line import users_line

T = TypeVar("T")

TOLERANCE, SMALL = 1.125, 64 << 10
"""By what factor, and by how many bytes besides, a call may take more: in large blocks NumPy reuses other temporaries
than in small ones."""


LARGE, SAMPLE = 1 << 20, 8
"""Bytes of calls that are counted each; of smaller ones one in so many is."""


SAFE = 0.9
"""What part of the budget is named that would do if all memory grew with the blocks."""


class MemoryWatch:
    """Counts what calls of a kernel allocate, and keeps the one that took most beyond what was expected."""

    def __init__(self, kernel: Kernel, plan: Plan, device: Device) -> None:
        self._plan, self._device = plan, device
        self._fn = users_function(kernel)
        memory = plan.memory
        self._expected = (memory.workspace + memory.outputs + memory.partials) // plan.lanes
        # Nothing is wrong either with what the budget has room for.
        spare = (plan.budget - memory.total) // plan.lanes
        self._most = max(int(self._expected * TOLERANCE) + SMALL, self._expected + spare)
        self._every = 1 if self._expected >= LARGE else SAMPLE
        self._number = itertools.count()
        self._worst: tuple[Shape, Region] | None = None

    @classmethod
    def of(cls, kernel: Kernel, plan: Plan, device: Device) -> MemoryWatch | None:
        """A watch, where the kernel calls a function of the user's on the host; else None."""
        watch = None if plan.machine.staged else cls(kernel, plan, device)
        return None if watch is None or watch._fn is None else watch

    def counted(self, call: Callable[[], T], index: Shape, box: Region) -> T:
        """The result of a call on a block."""
        if next(self._number) % self._every:
            return call()
        result, peak = self._device.counted(call)
        if peak is not None and peak > self._most:
            self._most, self._worst = peak, (index, box)
        return result

    def warn(self, trace: Trace) -> None:
        """Warn, once a run has read its last block, of the call that took most beyond what was expected."""
        if self._worst is None:
            return
        (index, box), plan, more = self._worst, self._plan, self._most - self._expected
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        least = math.ceil((plan.memory.workspace / plan.lanes + more) / max(1, plan.op.volume(shape_of(box))))
        took, expected, beyond = map(format_bytes, (self._most, self._expected, plan.lanes * more))
        fitting = SAFE * plan.budget * plan.budget / (plan.budget + plan.lanes * more)  # memory goes with blocks' sizes
        said = (
            f"{name} took {took} in block {index}, region {describe(box)}, where its trial call let expect {expected}: "
            f"the run may have taken {beyond} more than was planned within the budget of {format_bytes(plan.budget)}. "
            f"Give workspace={least}, the bytes that it takes for each element of a block, if the call takes that. To "
            f"stay within {format_bytes(plan.budget)} without it, as by xarray's methods, give a budget= of "
            f"{format_bytes(fitting)}"
        )
        trace.noted(said)
        warnings.warn(said, MemoryUseWarning, stacklevel=users_line())
