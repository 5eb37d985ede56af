"""The model held against what happened: each run's predicted seconds beside those that it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chunkflow.plan import Plan
from chunkflow.profile import Profile, Report
from chunkflow.stores.base import cold_bytes
from chunkflow.trace import observing
from chunkflow.units import format_bytes


@dataclass(frozen=True)
class Run:
    """A run as it was planned, the seconds that it took, and the bytes of files that were not in memory before."""

    plan: Plan
    seconds: float
    cold: int = 0

    @property
    def predicted(self) -> float:
        """Seconds that it was to take: as the plan says, but no less than the disk needs for what was not in memory."""
        return max(self.plan.estimate.seconds, self._disk)

    @property
    def ratio(self) -> float:
        """Seconds taken for each one predicted."""
        return self.seconds / max(self.predicted, 1e-9)

    @property
    def _disk(self) -> float:
        return self.cold / self.plan.machine.disk if self.plan.machine.disk else 0.0

    def __str__(self) -> str:
        bound = self.plan.estimate.bound_by if self.predicted > self._disk else "the disk"
        cold = f"; {format_bytes(self.cold)} of files were not in memory" if self.cold else ""
        took = f"took {self.seconds:.3g} s, predicted {self.predicted:.3g} s (bound by {bound})"
        return f"{took}: {self.ratio:.2f} of it{cold}"


@dataclass(frozen=True)
class Analysis:
    """What ran: its plans, with predicted and measured seconds, and where the time went. Print it.

    Attributes
    ----------
    runs : tuple of Run
        In the order in which they ended.
    report : Report
        Of all of them together.
    """

    runs: tuple[Run, ...]
    report: Report

    def __str__(self) -> str:
        parts = [f"{run.plan}\n  {run}" for run in self.runs]
        return "\n".join([*parts, str(self.report)])


class _Clock:
    """Observer that notes how long each run takes."""

    wants_spans = False

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._begun: list[tuple[Plan, int, float]] = []

    def started(self, plan: Plan, sources: Sequence[Any] = ()) -> None:
        """See `chunkflow.trace.Observer`."""
        self._begun.append((plan, cold_bytes(sources), time.perf_counter()))

    def span(self, stage: Any, start: float, stop: float, nbytes: int) -> None:
        """See `chunkflow.trace.Observer`."""

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        """See `chunkflow.trace.Observer`."""

    def noted(self, text: str) -> None:
        """See `chunkflow.trace.Observer`."""

    def finished(self, error: BaseException | None, peak: int) -> None:
        """See `chunkflow.trace.Observer`."""
        plan, cold, begun = self._begun.pop()
        self.runs.append(Run(plan, time.perf_counter() - begun, cold))


def analyzed(run: Callable[[], Any]) -> Analysis:
    """Run something, and hold its plans against what happened."""
    clock = _Clock()
    with observing(clock), Profile() as profile:
        run()
    return Analysis(tuple(clock.runs), profile.report)
