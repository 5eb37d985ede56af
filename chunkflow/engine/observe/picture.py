"""A picture of runs by matplotlib: the timeline, and the memory beside the budget."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from chunkflow.engine.observe.report import Report
from chunkflow.engine.observe.timeline import Timeline
from chunkflow.engine.observe.watched_run import WatchedRun
from chunkflow.engine.trace import STAGES
from chunkflow.errors import UnsupportedError

COLOURS = ("#4477aa", "#66ccee", "#aa3377", "#228833", "#ccbb44", "#ee6677")


def draw(report: Report, line: Timeline, runs: Sequence[WatchedRun]) -> Any:
    """A new ``matplotlib.figure.Figure``, which a notebook shows though pyplot does not know it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError('plot() needs matplotlib: pip install "chunkflow-stream[plot]"') from error

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            self.savefig(image := BytesIO(), format="png")
            return image.getvalue()

    spans, begun = [*line], line.begun(runs)
    place = {row: i for i, row in enumerate(line.in_order)}
    figure = Shown(figsize=(10, 2.5 + 0.25 * len(place)), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(max(2, len(place)), 3))
    for number, stage in enumerate(STAGES):
        rows = sorted({span.row for span in spans if span.stage == stage})
        for row in rows:
            bars = [(span.start - begun, span.stop - span.start) for span in spans if span.row == row]
            label = stage if row == rows[0] else None
            above.broken_barh(bars, (place[row] - 0.4, 0.8), color=COLOURS[number], label=label)
    above.set_yticks(range(len(place)), [line.rows[row] for row in line.in_order])
    above.invert_yaxis()
    if spans:
        above.legend(ncols=len(STAGES), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    samples = line.memory
    below.step([when - begun for when, _ in samples], [nbytes / 1e6 for _, nbytes in samples], where="post")
    below.axhline(report.peak / 1e6, color=COLOURS[3], linestyle=":", label="peak")
    if runs:
        below.axhline(max(run.plan.budget for run in runs) / 1e6, color=COLOURS[5], linestyle="--", label="budget")
    below.set(xlabel="seconds", ylabel="memory, MB", xlim=(0, None), ylim=(0, None))
    below.legend(frameon=False)
    return figure
