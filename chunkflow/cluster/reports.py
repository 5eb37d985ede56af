"""What is told of tasks: the figures of their runs, where these are, and how many come, where they are made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from chunkflow.engine.observe.profile import RUNS_KEPT, Profile
from chunkflow.engine.observe.report import Report, StageReport

Listener = Callable[[Report, int], None]
"""Hears the report of a run, and how many partitions of results it has computed."""

_listeners: dict[str, Listener] = {}
_expecting: dict[str, Callable[[Mapping[str, int]], None]] = {}


def listen(name: str, listener: Listener) -> None:
    """Let a listener hear of each task's run from now on, in the place of another one of this name."""
    _listeners[name] = listener


def leave(name: str) -> None:
    """Let who has this name hear no more, if there is one."""
    _listeners.pop(name, None)
    _expecting.pop(name, None)


def expect(name: str, hear: Callable[[Mapping[str, int]], None]) -> None:
    """Let `hear` be told of the partitions whose tasks are made in this process, until `leave`; see `announce`."""
    _expecting[name] = hear


def announce(partitions: Mapping[str, int]) -> None:
    """Tell those who expect tasks how many partitions are to be computed, by the names of the tasks' layers."""
    for hear in tuple(_expecting.values()):
        hear(partitions)


@contextmanager
def told(partitions: int = 1) -> Iterator[None]:
    """Tell the listeners of the runs in the block, once it is left well; they compute so many partitions."""
    if not _listeners:
        yield
        return
    with Profile() as profile:
        yield
    for listener in tuple(_listeners.values()):
        try:
            listener(profile.report, partitions)
        except Exception:  # the run itself is well
            logging.getLogger("chunkflow").exception("a report of a task's run is lost")


def as_message(report: Report) -> dict[str, Any]:
    """A report in plain words and numbers, without what advice is made from."""
    return asdict(replace(report, seen=()))


def from_message(message: dict[str, Any]) -> Report:
    """The report of such a message."""
    stages = tuple(StageReport(**stage) for stage in message["stages"])
    return Report(**message | {"stages": stages, "notes": tuple(message["notes"]), "seen": ()})


def joined(reports: list[Report]) -> Report:
    """The reports of runs one after the other as that of all of them."""
    order: dict[Any, tuple[float, int]] = {}
    for stage in (stage for report in reports for stage in report.stages):
        seconds, nbytes = order.get(stage.name, (0.0, 0))
        order[stage.name] = seconds + stage.seconds, nbytes + stage.nbytes
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    return Report(
        tuple(StageReport(name, *figures) for name, figures in order.items()),
        sum(report.seconds for report in reports),
        sum(report.runs for report in reports),
        max((report.peak for report in reports), default=0),
        tuple(notes),
        tuple(run for report in reports for run in report.seen)[:RUNS_KEPT],
        *max(((report.planned, report.budget) for report in reports), default=(0, 0)),
    )
