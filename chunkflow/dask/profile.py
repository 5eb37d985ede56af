"""What the workers of a cluster did: the reports of their tasks, gathered."""

from __future__ import annotations

import importlib
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from chunkflow.cluster import reports
from chunkflow.core import markup
from chunkflow.core.units import format_bytes
from chunkflow.engine.observe.report import Report
from chunkflow.errors import ArgumentError, ArgumentTypeError

HERE, LAST = "this process", "last"

PATIENCE, ASKED = 30, 300
"""Seconds that are waited for the reports that are under way, and how often it is asked meanwhile whether all came."""

HEADS = ("worker", "runs", "seconds", "read", "GB/s", "bound by", "peak")


class ClusterProfile:
    """Gathers what tasks of ours tell of their runs, from all workers; see `profile`.

    Attributes
    ----------
    workers : dict of str to Report
        The report of each worker's tasks. Its seconds are those of the tasks, added up.
    """

    def __init__(self, client: Any = None, progress: bool = False) -> None:
        if client is not None and not hasattr(client, "register_plugin"):
            raise ArgumentTypeError(f"client={client!r} is no client of dask's: give a distributed.Client")
        if getattr(client, "status", "running") == "closed":
            raise ArgumentError(f"client={client!r} is closed: give one that is connected")
        self._client, self._progress = client, progress
        self._bar: Any = None
        self._partitions: dict[str, int] = {}
        self._nbytes = 0
        self._name = f"chunkflow-{uuid.uuid4().hex}"
        self._found: dict[str, list[Report]] = {}
        self._all_heard = threading.Event()
        self.workers: dict[str, Report] = {}

    def __enter__(self) -> ClusterProfile:
        self._found, self._partitions, self._nbytes = {}, {}, 0
        self._all_heard.clear()
        if self._client is None and "distributed" in sys.modules:
            with suppress(ValueError):  # there is none
                self._client = sys.modules["distributed"].default_client()
        if self._progress:
            bar = importlib.import_module("tqdm.auto").tqdm
            self._bar = bar(desc="chunkflow", unit=" partitions", dynamic_ncols=True)
        if self._client is None:
            reports.listen(self._name, lambda report, partitions: self._heard(HERE, report, partitions))
        else:
            telling = importlib.import_module("chunkflow.dask.telling")
            self._client.register_plugin(telling.Telling(self._name), name=self._name)
            self._client.subscribe_topic(self._name, self._event)
        if self._bar is not None:
            reports.expect(self._name, self._announced)
        return self

    def __exit__(self, *exc: Any) -> None:
        reports.leave(self._name)
        if self._client is not None and self._client.status == "running":
            for _ in range(ASKED):  # the scheduler keeps the order, once it knows that somebody listens
                self._client.log_event(self._name, {LAST: True})
                if self._all_heard.wait(PATIENCE / ASKED):
                    break
            self._client.unsubscribe_topic(self._name)
            self._client.unregister_worker_plugin(self._name)
        if self._bar is not None:
            self._bar.close()
        self.workers = {worker: reports.joined(self._found[worker]) for worker in sorted(self._found)}

    def _event(self, event: tuple[float, dict[str, Any]]) -> None:
        _, message = event
        if LAST in message:
            self._all_heard.set()
        else:
            self._heard(message["worker"], reports.from_message(message["report"]), message["partitions"])

    def _heard(self, worker: str, report: Report, partitions: int) -> None:
        self._found.setdefault(worker, []).append(report)
        if self._bar is not None:
            self._nbytes += _read(report)
            rate = self._nbytes / max(self._bar.format_dict["elapsed"], 1e-9)
            self._bar.set_postfix_str(f"{format_bytes(self._nbytes)} read, {format_bytes(rate)}/s", refresh=False)
            self._bar.update(partitions)

    def _announced(self, partitions: Mapping[str, int]) -> None:
        """Some tasks are made: they are the same as those of this name before, if there are any."""
        self._partitions.update(partitions)
        self._bar.total = sum(self._partitions.values())
        self._bar.refresh()

    @property
    def report(self) -> Report:
        """All workers' tasks together; seconds are added up, and the peak is that of one run."""
        return reports.joined([*self.workers.values()])

    def _rows(self) -> list[Sequence[str]]:
        rows: list[Sequence[str]] = []
        for worker, report in self.workers.items():
            read = _read(report)
            rate = f"{read / report.seconds / 1e9:.2f}" if read else "-"
            figures = (str(report.runs), f"{report.seconds:.3f}", format_bytes(read), rate)
            rows.append((worker, *figures, str(report.bound_by or "-"), format_bytes(report.peak)))
        return rows

    def __str__(self) -> str:
        if not self.workers:
            return "no task of chunkflow's has run"
        rows = [HEADS, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        )

    def _repr_html_(self) -> str:
        return markup.table(HEADS, self._rows())


def _read(report: Report) -> int:
    return sum(stage.nbytes for stage in report.stages if stage.name == "read")


def profile(client: Any = None, *, progress: bool = False) -> ClusterProfile:
    """Gather what the workers' tasks take, in a ``with`` block: seconds, bytes and peaks, and what bounds them.

    Parameters
    ----------
    client : distributed.Client, optional
        By default the current one. Without any, it is the tasks that dask runs in this process.
    progress : bool
        Show a bar of the partitions that all workers have computed, with the bytes that they have read. It knows the
        time that is left where tasks are made in the block, and all of them are computed once.

    Returns
    -------
    ClusterProfile
        To be used in a ``with`` block; ``print`` shows a line for each worker, and `workers` has the reports.

    Raises
    ------
    ArgumentError
        The client is closed.
    ArgumentTypeError
        It is no client.

    Examples
    --------
    >>> import dask, numpy as np, chunkflow as cf, chunkflow.dask
    >>> x = cf.open(np.ones((100, 100)))
    >>> with chunkflow.dask.profile() as seen, dask.config.set(scheduler="threads"):
    ...     (total,) = dask.compute(x.sum())
    >>> {worker: report.runs for worker, report in seen.workers.items()}
    {'this process': 1}
    """
    return ClusterProfile(client, progress)
