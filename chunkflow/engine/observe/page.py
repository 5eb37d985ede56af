"""A page about runs that stands alone: timeline, memory beside the budget, stages, plans, and the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from chunkflow.core import markup
from chunkflow.engine.observe.report import Report
from chunkflow.engine.observe.timeline import Timeline
from chunkflow.engine.observe.watched_run import WatchedRun
from chunkflow.engine.trace import STAGES
from chunkflow.errors import WriteError
from chunkflow.stores.failures import translated

PACKAGES = ("chunkflow-stream", "numpy", "cupy-cuda12x", "cupy-cuda13x", "zarr", "numcodecs", "h5py", "dask")
TEMPLATE = Path(__file__).with_name("page.html")


def write(path: str | Path, report: Report, line: Timeline, runs: Sequence[WatchedRun]) -> None:
    """Write the page."""
    with translated(WriteError, f"cannot write {path}", str(path), foreign=OSError):
        Path(path).write_text(page(report, line, runs), encoding="utf-8")


def page(report: Report, line: Timeline, runs: Sequence[WatchedRun]) -> str:
    """The page, which asks for nothing else: no script, style or font from elsewhere."""
    begun, names = line.begun(runs), line.rows
    place = {row: i for i, row in enumerate(line.in_order)}
    data = {
        "rows": [names[row] for row in line.in_order],
        "stages": STAGES,
        "spans": [
            [place[s.row], STAGES.index(s.stage), s.start - begun, s.stop - begun, s.nbytes, s.block, s.run]
            for s in line
        ],
        "runs": [[run.start - begun, run.end - begun] for run in runs],
        "memory": [[when - begun, nbytes] for when, nbytes in line.memory],
        "budget": max([run.plan.budget for run in runs], default=0),
        "peak": report.peak,
        "dropped": line.dropped,
    }
    parts = {
        "SUMMARY": markup.text("; ".join(filter(None, (report.summary, report.bound)))),
        "STAGES": report.table,
        "NOTES": markup.bullets(report.notes),
        "PLANS": "".join(map(markup.preformatted, dict.fromkeys(str(run.plan) for run in runs))),
        "MACHINE": markup.text(machine()),
        "DATA": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    found = TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        found = found.replace(f"{{{{{name}}}}}", part, 1)
    return found


def machine() -> str:
    """What runs here, in a line."""
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0))
    return f"{platform.platform()}, {cores} cores; Python {platform.python_version()}, {', '.join(versions)}"
