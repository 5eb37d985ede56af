"""The planner's model checked: the predicted seconds of each run beside the measured ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from chunkflow.core.markup import Printed
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.engine.observe import rehearsal
from chunkflow.engine.observe.advice import Advice
from chunkflow.engine.observe.profile import Profile
from chunkflow.engine.observe.report import Report
from chunkflow.engine.prepare import Prepared
from chunkflow.engine.trace import Observer, observing
from chunkflow.kernels.protocol import Kernel, Kind
from chunkflow.kernels.users import users_function
from chunkflow.planner.cost import ragged, written
from chunkflow.planner.plan import Plan
from chunkflow.stores.protocol import Target, cold_bytes, encoder_of, gaps_of, practice_of

LARGE_CHUNK = 64 << 20
"""Bytes of a chunk that is not read for a forecast."""

SMALL = 64 << 20
"""Bytes of a budget in which there is room to try what all threads do at once. In smaller ones it is a lane alone, with
a function of the user's."""

MANY = 1 << 14
"""Most blocks along an axis for a forecast in a small budget: to go through more takes memory of its own."""

HALO = 2
"""Extra time of a block with a halo, in overheads of a block: it copies what it shares with the block before, and fills
the halo beyond the array's edges. (Plans do not count it: those with few large blocks were measured.)"""


@dataclass(frozen=True)
class AnalyzedRun:
    """A run with its plan and its measured seconds; `cold` bytes of its files were not in memory before.

    Five figures are estimated by a few calls beforehand: the seconds that a lane needs to compute all of it
    (`computing`), to make all blocks with halos (`framing`), to copy all results to their places (`storing`) or to
    encode them (`encoding`), and those that a thread needs for a byte of its chunks (`decoding`). They are None, or 0,
    where the plan's own figures are as good. They are the threads' own seconds, to which waits for a core come, as seen
    meanwhile (`crowd`). Of the results `created` bytes go into new memory.
    """

    plan: Plan
    seconds: float
    cold: int = 0
    computing: float | None = None
    framing: float | None = 0.0
    decoding: float | None = None
    storing: float = 0.0
    created: int = 0
    encoding: float | None = None
    crowd: float = 1.0
    on_device: float = 0.0
    """Seconds that a function of the user's takes on a device with memory of its own, beside which all else is done."""

    @property
    def predicted(self) -> float:
        """Predicted seconds: those of the plan, corrected by what was measured of the kernel and the files beforehand.

        Plans know functions by the bytes that they touch, not by what they compute. Where the host computes, that is a
        large part. So are copies from block to block, and memory that is first used for blocks or large chunks. On a
        GPU, blocks with halos take more time of the host than others. Blocks that it decodes have buffers beside those
        of other blocks. (Plans count half of these: with all of them other plans were chosen, which nobody has
        measured.) No run takes less time than the disk needs for what is not in memory.
        """
        plan, planned, stages = self.plan, self.plan.estimate, self._stages
        seconds = planned.hidden if plan.batches else planned.seconds
        if plan.machine.staged and plan.op.has_halo:
            seconds += HALO * len(plan.grid) * plan.machine.overhead
        if self.computing is not None:
            more = sum(stages[name] - planned.stages[name] for name in ("read", "compute", "write"))
            seconds += more / plan.lanes * ragged(plan.rows, plan.lanes)
        seconds = max(seconds, self.on_device)
        return max((seconds + self._taking) * self.crowd, self._disk)

    @property
    def ratio(self) -> float:
        """Measured seconds / predicted seconds."""
        return self.seconds / max(self.predicted, 1e-9)

    @property
    def bound_by(self) -> str:
        """The stage that is predicted to be the busiest."""
        stages = self._stages
        busiest = max(stages, key=lambda name: stages[name])
        return busiest if self.predicted > self._disk else "the disk"

    @property
    def _stages(self) -> dict[str, float]:
        """Seconds of each stage: as planned, or as measured beforehand."""
        plan, stages = self.plan, dict(self.plan.estimate.stages)
        coding = plan.estimate.coding
        reading = stages["read"] - coding
        if self.decoding is not None:  # of a chunk that was found, too
            each = max(self.decoding - 1 / plan.machine.read, 0.0)  # the bytes that are read are counted already
            stages["read"] = reading + (coding - plan.estimate.finding) * each * plan.machine.decode
        if self.computing is not None:
            framed = sum(new for new, _ in rehearsal.framed(plan).values()) / plan.machine.read
            spilled = (
                (reading - framed) * (1 / plan.machine.spill - 1) if plan.spills and not plan.machine.load else 0.0
            )
            framing = framed if self.framing is None else self.framing
            stages["compute"], stages["read"] = self.computing, stages["read"] - framed + framing + spilled
        if self.storing:
            stages["write"] += self.storing - plan.traffic.write / plan.machine.write
        if self.encoding is not None:
            stages["write"] = written(plan.machine, plan.traffic, plan.lanes) + self.encoding / self._encoders
        stages["compute"] = max(stages["compute"], self.on_device)
        return stages

    @property
    def _encoders(self) -> int:
        """Threads of a lane that encode the pieces of a result."""
        outputs = zip(self.plan.cuts_out, self.plan.op.outputs, self.plan.outputs, strict=True)
        box = self.plan.grid.region((0,) * len(self.plan.grid.counts))
        pieces = [len(cut.in_units(out.region(box))) for cut, out, spec in outputs if spec.chunks is not None]
        return max(1, min([self.plan.coders, *pieces]))

    @property
    def _taking(self) -> float:
        """Seconds for first use of host memory: for blocks and partial results, or for large chunks."""
        plan, fresh = self.plan, self.plan.machine.fresh
        if not fresh:
            return 0.0
        if (ring := plan.ring_in) is not None:  # a chunk that the device decodes needs less
            large = any(cut.through and cut.batch is None for cut in plan.cuts_in)
            return ring.threads * ring.room / fresh if large else 0.0
        taken = plan.memory.inputs + plan.memory.partials + self.created
        return taken / (fresh * plan.lanes) if self.computing is not None else 0.0

    @property
    def _disk(self) -> float:
        return self.cold / self.plan.machine.disk if self.plan.machine.disk else 0.0

    def __str__(self) -> str:
        cold = f"; {format_bytes(self.cold)} of files were not in memory" if self.cold else ""
        took = f"took {self.seconds:.3g} s, predicted {self.predicted:.3g} s (bound by {self.bound_by})"
        return f"{took}: {self.ratio:.2f} of the prediction{cold}"


@dataclass(frozen=True)
class Analysis(Printed):
    """Plans of runs, with predicted and measured seconds, and where the time went. Print it.

    Attributes
    ----------
    runs : tuple of AnalyzedRun
        In the order in which they ended.
    report : Report
        Of all of them together.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> analysis = cf.explain(np.sqrt, np.ones((64, 64)), device="cpu", analyze=True)
    >>> len(analysis.runs), analysis.report.runs, analysis.runs[0].seconds > 0
    (1, 1, True)
    """

    runs: tuple[AnalyzedRun, ...]
    report: Report

    def __str__(self) -> str:
        parts = [f"{replace(run.plan, predicted=run.predicted)}\n  {run}" for run in self.runs]
        return "\n".join([*parts, str(self.report), *([str(self.advice())] if self.report.seen else [])])

    def advice(self) -> Advice:
        """See `Report.advice`."""
        return self.report.advice()


class _RunTimer(Observer):
    """Observer that measures the time of each run."""

    wants_spans = False

    def __init__(self) -> None:
        self.runs: list[AnalyzedRun] = []
        self._begun: list[tuple[AnalyzedRun, float]] = []

    def started(self, plan: Plan, run: Any = None) -> None:
        self._begun.append((_rehearsed(plan, run), time.perf_counter()))

    def finished(self, error: BaseException | None, peak: int) -> None:
        run, begun = self._begun.pop()
        self.runs.append(replace(run, seconds=time.perf_counter() - begun))


def _rehearsed(plan: Plan, run: Prepared | None, *, alone: bool = False) -> AnalyzedRun:
    """A run that has not begun, with what a few calls of its parts show: those of a lane if it is tried `alone`."""
    begun = AnalyzedRun(plan, 0.0)
    if run is None:
        return begun
    with suppress(Exception):  # the run itself will raise this error
        begun = replace(begun, cold=cold_bytes(run.sources))
        if run.kernel is None or not all(plan.op.extents):
            return begun
        if plan.machine.staged:
            return _tried_on_device(begun, run.kernel, run)
        return _tried_alone(begun, run.kernel, run) if alone else _tried_in_all_lanes(begun, run.kernel, run)
    return begun


def _tried_on_device(begun: AnalyzedRun, kernel: Kernel, run: Prepared) -> AnalyzedRun:
    if kernel.kind is not Kind.MAP or users_function(kernel) is None:
        return begun
    return replace(
        begun, on_device=rehearsal.computing_on_device(kernel, begun.plan, run.sources, run.device, run.pool)
    )


def _tried_alone(begun: AnalyzedRun, kernel: Kernel, run: Prepared) -> AnalyzedRun:
    crowd = rehearsal.Crowd()
    computing = rehearsal.computing_alone(kernel, begun.plan, run.sources, run.device, crowd)
    return replace(begun, computing=computing, framing=None, crowd=crowd.factor)


def _tried_in_all_lanes(begun: AnalyzedRun, kernel: Kernel, run: Prepared) -> AnalyzedRun:
    plan, crowd = begun.plan, rehearsal.Crowd()
    pairs = [*zip(run.targets, plan.outputs, strict=True)]
    decoding = rehearsal.decoding(plan, run.sources, crowd)
    with ExitStack() as stack:
        outlets = [_outlet(target, spec, stack) for target, spec in pairs]
        seen = rehearsal.computing(kernel, plan, run.sources, run.device, outlets, crowd)
    new = sum(s.nbytes for target, s in pairs if target.footprint is None and s.storage.in_memory)
    return replace(
        begun,
        computing=seen.computing,
        framing=seen.framing,
        decoding=decoding,
        storing=seen.storing,
        encoding=seen.encoding,
        created=new,
        crowd=crowd.factor,
    )


def _outlet(target: Target, spec: ArraySpec, stack: ExitStack) -> rehearsal.Outlet:
    sink = practice_of(target, spec)
    if sink is not None:
        stack.callback(sink.abort)
    return rehearsal.Outlet(encoder_of(target, spec), sink)


def forecast(run: Prepared) -> Plan:
    """The plan of a prepared run, with the seconds that a few calls of its parts let expect.

    Some chunks of each source are read for it, but not of arrays that are computed when they are read, nor large ones.
    It takes memory of its own: no more than the budget.
    """
    plan = run.plan
    for source in run.sources:
        spec = source.spec
        known = spec.storage.in_memory or source.footprint is not None
        if not known or math.prod(spec.chunks or ()) * spec.dtype.itemsize > LARGE_CHUNK:
            return plan
    alone = plan.budget < SMALL
    if alone and (users_function(run.kernel) is None or max(plan.grid.counts, default=1) > MANY):
        return plan
    predicted = _rehearsed(plan, run, alone=alone).predicted
    missing = [
        f"{name}: {gaps.number} of the chunks that were tried are missing, and read as the fill value"
        for name, gaps in gaps_of(run.sources)
        if gaps.number
    ]
    return replace(plan, predicted=predicted, notes=(*plan.notes, *missing))


def analyzed(run: Callable[[], Any]) -> Analysis:
    """Run something, and compare its plans with measured times."""
    clock = _RunTimer()
    with observing(clock), Profile() as profile:
        run()
    return Analysis(tuple(clock.runs), profile.report)
