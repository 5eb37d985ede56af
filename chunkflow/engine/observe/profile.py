"""Where the time of runs goes: a `Profile` watches them."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from chunkflow.engine.observe import chrome_trace, page, picture
from chunkflow.engine.observe.busy import Busy
from chunkflow.engine.observe.report import Report, StageReport
from chunkflow.engine.observe.timeline import Timeline
from chunkflow.engine.observe.watched_run import WatchedRun
from chunkflow.engine.trace import STAGES, Observer, Stage, observing
from chunkflow.errors import ArgumentError, ChunkflowError

_NOTES_KEPT = 32
RUNS_KEPT = 256

WAITING = 4096
"""Spans that wait to be added up. Threads that did so at once, piece by piece, would keep each other waiting."""


class _Span(NamedTuple):
    """A span as a thread told it, until it is added up."""

    stage: Stage
    start: float
    stop: float
    nbytes: int
    block: int | None
    lane: int | None
    thread: int
    run: int
    watched: WatchedRun | None


class Profile(Observer):
    """Measures where the time of all runs inside a ``with`` block goes.

    Threads that the block starts count if they have its context: ``threading.Thread(target=copy_context().run,
    args=(work,))``, with `contextvars.copy_context`.

    May be entered again: its figures then add up, as those of `cProfile.Profile` do. The report may
    be asked for at any time, also while a run is under way.

    Attributes
    ----------
    report : Report
    timeline : chunkflow.engine.observe.timeline.Timeline
        What happened when; `trace` and `html` write it, and `plot` draws it.

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
        self._peak = self._planned = self._budget = 0
        self._notes: dict[str, None] = {}  # an ordered set
        self._timeline = Timeline()
        self._waiting: deque[_Span] = deque()  # its methods are atomic
        self._passes: list[WatchedRun] = []
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
            watched = WatchedRun.begun(plan, run) if len(self._passes) < RUNS_KEPT else None
            now = time.perf_counter()
            if watched is not None:
                watched.start = now
                self._passes.append(watched)
            if plan is not None and plan.memory.total > self._planned:
                self._planned, self._budget = plan.memory.total, plan.budget
            if self._open == 0:
                self._since = now
            self._open += 1
            self._runs += 1

    def span(
        self, stage: Stage, start: float, stop: float, nbytes: int, block: int | None = None, lane: int | None = None
    ) -> None:
        watched = self._passes[-1] if self._passes and self._runs <= RUNS_KEPT else None
        thread = threading.get_ident()
        self._waiting.append(_Span(stage, start, stop, nbytes, block, lane, thread, self._runs - 1, watched))
        if len(self._waiting) >= WAITING and self._lock.acquire(blocking=False):  # else somebody is at it
            try:
                self._add_up()
            finally:
                self._lock.release()

    def _add_up(self) -> None:
        """Add up the spans that wait, under the lock."""
        for _ in range(len(self._waiting)):
            stage, start, stop, nbytes, block, lane, thread, run, watched = self._waiting.popleft()
            if watched is not None:
                watched.add(stage, start, stop, nbytes)
            self._timeline.add(stage, start, stop, nbytes, block=block, lane=lane, thread=thread, run=run)
            if stage not in self._busy:
                self._busy[stage], self._nbytes[stage] = Busy(), 0
            self._busy[stage].add(start, stop)
            self._nbytes[stage] += nbytes

    def held(self, nbytes: int) -> None:
        with self._lock:
            self._timeline.hold(time.perf_counter(), nbytes)

    def noted(self, text: str) -> None:
        with self._lock:
            if len(self._notes) < _NOTES_KEPT:
                self._notes[text] = None

    def finished(self, error: BaseException | None, peak: int) -> None:
        now = time.perf_counter()
        with self._lock:
            self._add_up()
            self._open -= 1
            self._peak = max(self._peak, peak)
            under_way = [one for one in self._passes if one.stop is None]
            if under_way:  # of those that are nested, the inner one ends first
                under_way[-1].ended(now, error)
            if self._open == 0:
                self._seconds += now - self._since

    @property
    def report(self) -> Report:
        """Figures up to now."""
        with self._lock:
            self._add_up()
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
                seen=tuple([one.seen for one in self._passes if one.stop is not None and not one.failed]),
                planned=self._planned,
                budget=self._budget,
            )

    @property
    def timeline(self) -> Timeline:
        """What happened when, up to now; `trace` and `html` write it, and `plot` draws it."""
        with self._lock:
            self._add_up()
        return self._timeline

    @property
    def passes(self) -> tuple[WatchedRun, ...]:
        """The first 256 runs: their plans, and when they began and ended."""
        with self._lock:
            self._add_up()
            return tuple([replace(one) for one in self._passes])

    def trace(self, path: str | Path) -> None:
        """Write what happened when, for a viewer: open the file in https://ui.perfetto.dev or ``chrome://tracing``.

        There is a row for each thread or lane in each stage. Blocks are numbered, and what is shown of a span has its
        bytes and its rate. Where compiled loops move pieces of blocks, as on a GPU, pieces have no number. The first
        131,072 spans are kept.

        Parameters
        ----------
        path : str or Path
            A file, which is written over; its name ends in ``.json`` by custom, and not in ``.html``.

        Raises
        ------
        ArgumentError
            The name is that of a page, which `html` writes.

        Examples
        --------
        >>> import json
        >>> import numpy as np
        >>> import chunkflow as cf
        >>> with cf.Profile() as profile:
        ...     y = cf.map(np.sqrt, np.ones((64, 64)), device="cpu")
        >>> profile.trace("run.json")
        >>> with open("run.json") as file:
        ...     sorted({event["ph"] for event in json.load(file)["traceEvents"]})
        ['C', 'M', 'X']
        """
        if str(path).lower().endswith(".html"):
            raise ArgumentError(f"a trace is JSON, and {path} is named as a page: profile.html(path) writes one")
        chrome_trace.write(path, self.timeline, self.passes)

    def html(self, path: str | Path) -> None:
        """Write a page about the runs: timeline, memory beside the budget, stages, plans, and the machine.

        It stands alone: any browser shows it, without a network.

        Parameters
        ----------
        path : str or Path
            A file, which is written over.

        Examples
        --------
        >>> import numpy as np
        >>> import chunkflow as cf
        >>> with cf.Profile() as profile:
        ...     y = cf.map(np.sqrt, np.ones((64, 64)), device="cpu")
        >>> profile.html("run.html")
        """
        page.write(path, self.report, self.timeline, self.passes)

    def plot(self) -> Any:
        """Draw the timeline, and the memory beside the budget; needs matplotlib.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks show it, and ``savefig`` writes it.

        Raises
        ------
        UnsupportedError
            There is no matplotlib.

        Examples
        --------
        >>> import numpy as np
        >>> import chunkflow as cf
        >>> with cf.Profile() as profile:
        ...     y = cf.map(np.sqrt, np.ones((64, 64)), device="cpu")
        >>> profile.plot().savefig("run.png")  # doctest: +SKIP
        """
        return picture.draw(self.report, self.timeline, self.passes)

    def _repr_html_(self) -> str:
        return self.report._repr_html_()
