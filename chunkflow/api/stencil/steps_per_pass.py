"""The number of steps of a stencil in one pass: more steps save traffic, but compute more elements twice.

Pure: touches no data, and knows no store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.machine import Machine
from chunkflow.core.markup import Printed
from chunkflow.core.nest import Along, Output
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.errors import BudgetError
from chunkflow.kernels.stencil.iterate import Stepping
from chunkflow.planner.cost import estimate
from chunkflow.planner.plan import Plan
from chunkflow.planner.search import make_plan

WORTHWHILE = 0.98
"""A larger number of steps is chosen only if its predicted time is below this part of that of fewer steps."""

START = 3e-3
"""Fixed seconds of a pass: it is planned, and its threads start and end."""

PATIENCE = 3
"""The search ends after so many numbers of steps in a row that were no better."""


@dataclass(frozen=True)
class IterationPlan(Printed):
    """Plan of a stencil that is applied many times. ``str(plan)`` describes it for people.

    Attributes
    ----------
    shape, dtype
        Those of the array, and of each step's result.
    steps : tuple of int
        Steps that each pass takes.
    plans : tuple of Plan
        Of each pass.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> plan = cf.iteration_plan(np.copy, np.ones((64, 64)), depth=1, iterations=10, steps_per_pass=4, device="cpu")
    >>> plan.steps, plan.passes, plan.bytes_written == 3 * 64 * 64 * 8
    ((4, 4, 2), 3, True)
    """

    shape: Shape
    dtype: np.dtype
    steps: tuple[int, ...]
    plans: tuple[Plan, ...]

    @property
    def passes(self) -> int:
        """How often the array is read and written."""
        return len(self.steps)

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """Spec of the result."""
        return self.plans[-1].outputs

    @property
    def bytes_read(self) -> int:
        """Bytes that all passes read, decoded: of all arrays, with what is read twice."""
        return sum(p.bytes_in for p in self.plans)

    @property
    def bytes_written(self) -> int:
        """Bytes that all passes write, before they are encoded."""
        return sum(p.bytes_out for p in self.plans)

    @property
    def seconds(self) -> float:
        """Predicted time of all passes."""
        return sum(START + p.estimate.seconds for p in self.plans)

    def __str__(self) -> str:
        number = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        last = f", the last of {self.steps[-1]}" if self.steps[-1] != self.steps[0] else ""
        read, written = format_bytes(self.bytes_read), format_bytes(self.bytes_written)
        return (
            f"{self.shape} of {self.dtype}, {sum(self.steps)} iterations in {number} of {self.steps[0]}{last}: "
            f"{read} read and {written} written, {self.seconds:.3g} s by the model\nthe first pass: {self.plans[0]}"
        )


@dataclass(frozen=True)
class Pacing:
    """The facts from which the number of steps in a pass is chosen.

    The last pass writes `out`, the others write `between`. `workspace` is what one step allocates besides its result,
    which it copies, for each element of a block. A pass may take `limit` bytes of the device, whose libraries take
    `reserve` of them. The user may have fixed the sides of a `block`.
    """

    stepping: Stepping
    specs: tuple[ArraySpec, ...]
    out: ArraySpec
    between: ArraySpec
    workspace: float
    machine: Machine
    limit: int
    reserve: int
    block: tuple[int | None, ...] | None = None
    known: dict[tuple[int, ArraySpec, ArraySpec], Plan] = field(default_factory=dict, repr=False)

    def plan(self, iterations: int, steps: int | None) -> IterationPlan:
        """The passes that take the least time by the model; those of `steps` steps, if they are given.

        Raises
        ------
        BudgetError
            Not even the smallest block of a pass fits the budget.
        """
        if not self.between.size:  # without elements, one step shows the dtype and the others change nothing
            iterations = 1
        most = min(self.stepping.most or iterations, iterations)
        if steps is not None:
            return self._passes(iterations, min(steps, most))
        best: IterationPlan | None = None
        worse = 0
        for number in _candidates(iterations, most):
            try:
                found = self._passes(iterations, number)
            except BudgetError:
                if best is None:
                    raise
                break
            if best is None or found.seconds < WORTHWHILE * best.seconds:
                best, worse = found, 0
            else:
                worse += 1
            if worse == PATIENCE:
                break
        assert best is not None
        return best

    def _passes(self, iterations: int, steps: int) -> IterationPlan:
        """Passes of so many steps each; the last one takes what is left."""
        sizes = (*(steps,) * (iterations // steps), *((iterations % steps,) if iterations % steps else ()))
        plans = []
        for number, size in enumerate(sizes, 1):
            source = self.specs[0] if number == 1 else self.between
            plans.append(self.planned(size, source, self.out if number == len(sizes) else self.between))
        return IterationPlan(self.between.shape, self.between.dtype, sizes, tuple(plans))

    def planned(self, steps: int, source: ArraySpec, sink: ArraySpec) -> Plan:
        """Plan of a pass. Its blocks are chosen as for a device that computes `steps` times more slowly."""
        key = steps, source, sink
        if key in self.known:
            return self.known[key]
        op = self.stepping.deep(steps)
        plan = make_plan(
            replace(op, outputs=(Output(tuple(Along(a) for a in range(len(op.extents)))),)),
            [source, *self.specs[1:]],
            [sink],
            replace(self.machine, compute=self.machine.compute / steps),
            self.limit,
            workspace=self.needed(steps, source.dtype),
            reserve=self.reserve,
            block=self.block,
        )
        # So far each step counts as the whole block. Later steps need less and less of the halo.
        whole = steps * math.prod(plan.op.operands[0].shape(plan.block))
        seconds = plan.estimate.stages["compute"] * self.stepping.work(plan.block, steps) / max(whole, 1)
        traffic = replace(plan.traffic, compute=int(seconds * self.machine.compute))
        expected = estimate(self.machine, traffic, len(plan.grid), plan.depth, halo=plan.op.has_halo)
        self.known[key] = replace(plan, machine=self.machine, traffic=traffic, estimate=expected)
        return self.known[key]

    def needed(self, steps: int, source: np.dtype) -> float:
        """Bytes that a pass allocates for each element of a block. Several steps hold whole results too."""
        return self.workspace + (max(source.itemsize, self.between.dtype.itemsize) if steps > 1 else 0)


def _candidates(iterations: int, most: int) -> list[int]:
    """Numbers of steps to try: for each number of passes, the smallest."""
    rough = [n for e in range(most.bit_length()) for n in (2**e, 3 * 2**e // 2) if n <= most]
    return sorted({-(-iterations // -(-iterations // n)) for n in [*rough, most]})
