"""Where the time of a run goes: seconds, bytes and rates of each stage, and how well the stages overlap."""

from __future__ import annotations

import math
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from chunkflow.core.units import format_bytes
from chunkflow.engine.trace import STAGES, Observer, Stage, observing
from chunkflow.errors import ChunkflowError

_SPANS_KEPT = 4096
_NOTES_KEPT = 32


class Busy:
    """Length of the union of time spans, in bounded memory.

    Spans arrive in roughly the order of their ends, overlapping where several threads work at once.
    When too many of them are disjoint, the older half is added up and forgotten; the part of a later
    span that lies before what was forgotten is dropped. So the length is exact as long as no span
    outlasts thousands of its neighbours, and never too large.

    Examples
    --------
    >>> busy = Busy()
    >>> for start, stop in [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]:
    ...     busy.add(start, stop)
    >>> busy.seconds
    4.0
    """

    def __init__(self, keep: int = _SPANS_KEPT) -> None:
        self._keep = keep
        self._spans: list[tuple[float, float]] = []
        self._forgotten = 0.0  # seconds of the spans that ended at or before the watermark
        self._watermark = -math.inf

    def add(self, start: float, stop: float) -> None:
        """Count the time from `start` to `stop`, in seconds on any one clock."""
        start = max(start, self._watermark)
        if stop <= start:
            return
        self._spans.append((start, stop))
        if len(self._spans) > self._keep:
            self._spans = _union(self._spans)
            half = len(self._spans) // 2
            if half > self._keep // 4:  # few are left where spans touch, and then all can stay
                self._forgotten += _length(self._spans[:half])
                self._watermark = self._spans[half - 1][1]
                del self._spans[:half]

    @property
    def seconds(self) -> float:
        """Seconds in at least one span."""
        return self._forgotten + _length(_union(self._spans))


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint spans, in order, that cover the same time."""
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _length(spans: list[tuple[float, float]]) -> float:
    return math.fsum(stop - start for start, stop in spans)


@dataclass(frozen=True)
class StageReport:
    """One stage of the pipeline.

    Attributes
    ----------
    name : str
        ``"read"``, ``"upload"``, ``"decode"`` (on the device), ``"compute"``, ``"download"`` or ``"write"``.
    seconds : float
        Time during which at least one thread or lane was in the stage.
    nbytes : int
        Bytes that went through it.
    """

    name: Stage
    seconds: float
    nbytes: int

    @property
    def rate(self) -> float:
        """Bytes per busy second; 0 where no time passed."""
        return self.nbytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Report:
    """The figures of a `Profile`; ``print`` shows them as a table.

    Attributes
    ----------
    stages : tuple of StageReport
        In the order of the pipeline; those that no block went through are left out.
    seconds : float
        Length of the runs. Where they overlap, the time is counted once.
    runs : int
        How many began.
    peak : int
        Most bytes of device memory taken at once by any of them.
    notes : tuple of str
        Notes of the runs, each once.
    """

    stages: tuple[StageReport, ...]
    seconds: float
    runs: int
    peak: int
    notes: tuple[str, ...] = ()

    @property
    def bound_by(self) -> Stage | None:
        """Name of the busiest stage: a faster one would shorten the run. None if there is none."""
        return max(self.stages, key=lambda stage: stage.seconds).name if self.stages else None

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: the busiest stage's seconds / the runs' seconds.

        1 means that all other stages are hidden behind the busiest one; with nothing overlapped it
        is that stage's share of the work. 0 if there was no run.
        """
        busiest = max((stage.seconds for stage in self.stages), default=0.0)
        return busiest / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        lines = [f"{runs} in {self.seconds:.3f} s, peak {format_bytes(self.peak)}"]
        if self.stages:
            lines.append(f"  {'stage':<9}{'busy s':>9}{'of run':>8}{'bytes':>12}{'GB/s':>9}")
        for stage in self.stages:
            share = stage.seconds / self.seconds if self.seconds else 0.0
            lines.append(
                f"  {stage.name:<9}{stage.seconds:>9.3f}{share:>8.0%}"
                f"{format_bytes(stage.nbytes):>12}{stage.rate / 1e9:>9.2f}"
            )
        if self.stages:
            lines.append(f"bound by {self.bound_by}; overlap efficiency {self.efficiency:.0%}")
        lines += [f"note: {text}" for text in self.notes]
        return "\n".join(lines)


class Profile(Observer):
    """Measures where the time of all runs inside a ``with`` block goes.

    May be entered again: its figures then add up, as those of `cProfile.Profile` do. The report may
    be asked for at any time, also while a run is under way.

    Attributes
    ----------
    report : Report

    Raises
    ------
    ChunkflowError
        It is entered while it watches already, which would count every byte twice.

    Examples
    --------
    >>> import numpy as np
    >>> import chunkflow as cf
    >>> with cf.Profile() as profile:
    ...     y = cf.map(np.sqrt, np.ones((64, 64)), device="cpu")
    >>> profile.report.runs, profile.report.bound_by is None
    (1, False)
    """

    wants_spans = True

    def __init__(self) -> None:
        self._lock = threading.Lock()  # spans come from worker threads
        self._busy: dict[Stage, Busy] = {}
        self._nbytes: dict[Stage, int] = {}
        self._runs = 0
        self._open = 0  # runs may be nested: a map inside a loop over chunks
        self._since = 0.0
        self._seconds = 0.0
        self._peak = 0
        self._notes: dict[str, None] = {}  # an ordered set
        self._scope: AbstractContextManager[None] | None = None

    def __enter__(self) -> Profile:
        if self._scope is not None:
            raise ChunkflowError("this Profile is watching already: leave its `with` block first")
        self._scope = observing(self)
        self._scope.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(*exc)

    def started(self, plan: Any, run: Any = None) -> None:
        with self._lock:
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1
            self._runs += 1

    def span(self, stage: Stage, start: float, stop: float, nbytes: int) -> None:
        with self._lock:
            if stage not in self._busy:
                self._busy[stage], self._nbytes[stage] = Busy(), 0
            self._busy[stage].add(start, stop)
            self._nbytes[stage] += nbytes

    def noted(self, text: str) -> None:
        with self._lock:
            if len(self._notes) < _NOTES_KEPT:
                self._notes[text] = None

    def finished(self, error: BaseException | None, peak: int) -> None:
        with self._lock:
            self._open -= 1
            self._peak = max(self._peak, peak)
            if self._open == 0:
                self._seconds += time.perf_counter() - self._since

    @property
    def report(self) -> Report:
        """Figures up to now."""
        with self._lock:
            under_way = time.perf_counter() - self._since if self._open else 0.0
            return Report(
                stages=tuple(
                    StageReport(name, self._busy[name].seconds, self._nbytes[name])
                    for name in STAGES
                    if name in self._busy
                ),
                seconds=self._seconds + under_way,
                runs=self._runs,
                peak=self._peak,
                notes=tuple(self._notes),
            )
