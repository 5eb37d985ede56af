"""A timeline in the format that Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open.

The format is the *Trace Event Format*, as JSON: times are in microseconds, from the first event.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunkflow.engine.observe.timeline import Timeline
from chunkflow.engine.observe.watched_run import WatchedRun
from chunkflow.errors import WriteError
from chunkflow.stores.failures import translated


def write(path: str | Path, line: Timeline, runs: Sequence[WatchedRun]) -> None:
    """Write it."""
    with translated(WriteError, f"cannot write {path}", str(path), foreign=OSError):
        Path(path).write_text(json.dumps({"traceEvents": events(line, runs), "displayTimeUnit": "ms"}))


def events(line: Timeline, runs: Sequence[WatchedRun]) -> list[dict[str, Any]]:
    """The list ``traceEvents``: a row of runs, one for each row of the timeline, and a curve of the memory in use."""
    begun = line.begun(runs)

    def complete(name: str, row: int, start: float, stop: float, **args: Any) -> dict[str, Any]:
        return {
            "name": name,
            "ph": "X",
            "pid": 1,
            "tid": row,
            "ts": round(1e6 * (start - begun), 3),
            "dur": round(1e6 * max(stop - start, 0.0), 3),
            "args": args,
        }

    def named(row: int, name: str, order: int) -> list[dict[str, Any]]:
        about = {"ph": "M", "pid": 1, "tid": row}
        return [
            {**about, "name": "thread_name", "args": {"name": name}},
            {**about, "name": "thread_sort_index", "args": {"sort_index": order}},
        ]

    found: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "chunkflow"}}]
    found += named(0, "run", 0)
    names = line.rows
    for order, row in enumerate(line.in_order, 1):
        found += named(row + 1, names[row], order)
    for run in runs:
        what = str(run.plan)
        found.append(complete(what.partition("\n")[0], 0, run.start, run.end, plan=what))
    for span in line:
        name = span.stage if span.block is None else f"{span.stage} {span.block}"
        args: dict[str, Any] = {"bytes": span.nbytes, "run": span.run} | (
            {} if span.block is None else {"block": span.block}
        )
        if span.nbytes and span.stop > span.start:
            args["GB/s"] = round(span.nbytes / (span.stop - span.start) / 1e9, 3)
        found.append(complete(name, span.row + 1, span.start, span.stop, **args))
    for when, nbytes in line.memory:
        ts = round(1e6 * (when - begun), 3)
        found.append({"name": "device memory", "ph": "C", "pid": 1, "ts": ts, "args": {"bytes": nbytes}})
    return found
