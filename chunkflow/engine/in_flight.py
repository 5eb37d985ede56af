"""The bounded queue of results that are being downloaded and written. It applies back-pressure and re-raises errors."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from chunkflow.core.grid import shape_of
from chunkflow.devices.protocol import Device, Pool
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Result
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.system import interrupts


class InFlight:
    """The results that are not stored yet, and the steps without results that are still being computed."""

    def __init__(
        self, plan: Plan, device: Device, pool: Pool, trace: Trace, landed: Callable[[int], None] | None = None
    ) -> None:
        self._plan, self._device, self._pool, self._trace, self._landed = plan, device, pool, trace, landed
        self._results: deque[Result] = deque()
        self._most: float = math.inf if plan.deals else plan.depth
        self._others: deque[Result] = deque()  # steps without results, which need not wait for earlier results
        self._landing = False  # stays so if one fails, or the wait for it is cut short
        self.added = 0
        """Number of the step that comes after the last one that was added."""

    def __bool__(self) -> bool:
        return bool(self._results)

    def add(self, result: Result) -> None:
        """Add a result that is to be stored."""
        self.added = result.step.number + 1
        apart = self._plan.machine.staged and not result.step.stores
        (self._others if apart else self._results).append(result)

    def admit(self, step: Step) -> None:
        """Wait until there is room for one more step."""
        while len(self._others) >= self._plan.depth:
            self._land(self._others)
        most = min(self._plan.waiting(step), self._most)
        while self._results and (self._results[0].over or len(self._results) > most):
            self._land(self._results)

    def make_room(self, step: Step) -> None:
        """Wait for everything, and admit fewer results from now on: to run out of memory takes long."""
        self._most = max(0, min(self._plan.waiting(step), self._most, len(self._results)) - 1)
        self._trace.noted("memory ran out: fewer results wait to be stored while a block is computed")
        self.end()

    def end(self) -> None:
        """Wait for everything."""
        for which in (self._others, self._results):
            while which:
                interrupts.check()
                self._land(which)

    def settle(self) -> bool:
        """Wait for everything when a run ends early, unless a result has failed; tell whether none has."""
        if not self._landing:
            with suppress(Exception):  # the run has its error already
                self.end()
        return not self._landing

    def let_go(self) -> None:
        """Release arrays and errors that the traceback of a failed run would keep alive."""
        for result in (*self._others, *self._results):
            result.release(self._pool)
            result.error = None

    def _land(self, which: deque[Result]) -> None:
        plan, result = self._plan, which.popleft()
        self._landing = True
        if self._trace.timed:
            self._trace.held(self._pool.used)
        result.landed(self._device, self._pool)
        step = result.step
        bytes_in = sum(
            step.nbytes(i, operand, spec.dtype.itemsize)
            for i, (operand, spec) in enumerate(zip(plan.op.operands, plan.operands, strict=True))
        )
        bytes_out = sum(plan.outputs[i].dtype.itemsize * math.prod(shape_of(region)) for i, region in step.stores)
        if result.started is not None:
            begin, end = result.started.seconds(), result.done.seconds()
            self._trace.span("compute", begin, end, bytes_in + bytes_out, step.number, step.lane)
        self._trace.landed(bytes_in, bytes_out)
        if self._landed is not None:
            self._landed(step.number)
        self._landing = False
