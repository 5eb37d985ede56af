"""The model held against what happened: each run's predicted seconds beside those that it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chunkflow.plan import Plan
from chunkflow.profile import Profile, Report
from chunkflow.trace import observing


@dataclass(frozen=True)
class Run:
    """A run as it was planned, and the seconds that it took."""

    plan: Plan
    seconds: float

    @property
    def ratio(self) -> float:
        """Seconds taken for each one predicted."""
        return self.seconds / max(self.plan.estimate.seconds, 1e-9)

    def __str__(self) -> str:
        predicted = self.plan.estimate
        return (
            f"took {self.seconds:.3g} s, predicted {predicted.seconds:.3g} s (bound by {predicted.bound_by}): "
            f"{self.ratio:.2f} of it"
        )


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
        self._begun: list[tuple[Plan, float]] = []

    def started(self, plan: Plan) -> None:
        """See `chunkflow.trace.Observer`."""
        self._begun.append((plan, time.perf_counter()))

    def span(self, stage: Any, start: float, stop: float, nbytes: int) -> None:
        """See `chunkflow.trace.Observer`."""

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        """See `chunkflow.trace.Observer`."""

    def noted(self, text: str) -> None:
        """See `chunkflow.trace.Observer`."""

    def finished(self, error: BaseException | None, peak: int) -> None:
        """See `chunkflow.trace.Observer`."""
        plan, begun = self._begun.pop()
        self.runs.append(Run(plan, time.perf_counter() - begun))


def analyzed(run: Callable[[], Any]) -> Analysis:
    """Run something, and hold its plans against what happened."""
    clock = _Clock()
    with observing(clock), Profile() as profile:
        run()
    return Analysis(tuple(clock.runs), profile.report)
