"""The progress of a run, shown as a bar on the terminal or passed to a function of the user's.

This is the only module that imports tqdm, and only when a bar is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from chunkflow.core.settings import setting
from chunkflow.engine import trace
from chunkflow.engine.observe import log, profiler_ranges
from chunkflow.engine.options import ProgressLike
from chunkflow.engine.trace import Observer, Trace
from chunkflow.errors import ArgumentTypeError


class Progress(Observer):
    """Observer that tells the bytes stored so far, and the bytes in all.

    Of a reduction, whose result is stored at the end, and where nothing is stored, they are those that blocks are
    given.
    """

    wants_spans = False

    def __init__(self, tell: Callable[[int, int], object]) -> None:
        self._tell = tell
        self._writes = False
        self._done = self._total = 0

    def started(self, plan: Any, run: Any = None) -> None:
        self._writes = plan.bytes_out > 0 and not plan.memory.partials
        self._done, self._total = 0, int(plan.bytes_out if self._writes else plan.bytes_given)
        self._tell(0, self._total)

    def landed(self, nbytes_in: int, nbytes_out: int) -> None:
        self._done += nbytes_out if self._writes else nbytes_in
        self._tell(self._done, self._total)

    def finished(self, error: BaseException | None, peak: int) -> None: ...


class _Bar(Progress):
    """A tqdm bar: share done, bytes per second and the time left. In a notebook it is one of the notebook's."""

    def __init__(self, *, always: bool) -> None:
        super().__init__(self._show)
        # None: tqdm shows nothing where stderr is no terminal, as it is none in a notebook.
        self._disable = False if always or "ipykernel" in sys.modules else None
        self._bar: Any = None

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._opened(total)
        self._bar.update(done - self._bar.n)

    def _opened(self, total: int) -> Any:
        from tqdm.auto import tqdm

        class Bar(tqdm):  # type: ignore[misc]
            monitor_interval = 0  # tqdm's monitor is a thread that would outlive the run

        # miniters=1: blocks are few and may take long, so each one is shown. Of bars inside another none is left.
        how = {"unit": "B", "unit_scale": True, "miniters": 1, "leave": None, "dynamic_ncols": True}
        return Bar(desc="chunkflow", total=total, disable=self._disable, **how)

    def finished(self, error: BaseException | None, peak: int) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()


def make(progress: ProgressLike) -> Observer | None:
    """Observer for what was given as ``progress=``.

    Parameters
    ----------
    progress : bool, "always" or callable, optional
        True shows a bar if the standard error stream is a terminal, ``"always"`` shows it anyway. A
        callable is called with the bytes done and the bytes in all, once with 0 at the start and then
        after each block. If it raises, that is logged and it is not called again; the run goes on.

    Returns
    -------
    Observer or None
        None for False.

    Raises
    ------
    ArgumentTypeError
        It is anything else.

    Examples
    --------
    >>> make(False) is None
    True
    >>> type(make(print)).__name__
    'Progress'
    """
    progress = setting("progress") if progress is None else progress
    if progress is False:
        return None
    if progress is True or progress == "always":
        return _Bar(always=progress == "always")
    if callable(progress):
        return Progress(progress)
    raise ArgumentTypeError(
        f"progress must be True, False, 'always' or a function of two byte counts, not {progress!r}"
    )


def watching(progress: ProgressLike) -> Trace:
    """The trace of a run: the observers of the context, the progress bar, the log, and a profiler that listens."""
    shown, told = make(progress), log.logger()
    own = [*([] if shown is None else [shown]), *([] if told is None else [log.Logged(told)])]
    ranges = [] if profiler_ranges.nvtx() is None else [profiler_ranges.ProfilerRanges()]
    return Trace([*trace.active(), *own, *ranges])
