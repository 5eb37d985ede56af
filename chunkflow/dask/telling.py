"""The plugin by which workers tell of their tasks' runs. Imported where distributed is."""

from __future__ import annotations

from functools import partial
from typing import Any

from distributed import WorkerPlugin, get_worker

from chunkflow.cluster import reports
from chunkflow.engine.observe.report import Report


class Telling(WorkerPlugin):
    """Tasks of this worker tell of their runs under the topic `name`; so do those of workers that come later."""

    def __init__(self, name: str) -> None:
        self.name = name

    def setup(self, worker: Any) -> None:
        """Begin to tell."""
        reports.listen(self.name, partial(_told, self.name))

    def teardown(self, worker: Any) -> None:
        """Tell no more."""
        reports.leave(self.name)


def _told(topic: str, report: Report, partitions: int) -> None:
    try:
        worker = get_worker()  # that of this thread's task: several may be in one process
    except ValueError:
        return  # the run is none of the cluster's
    message = {"worker": str(worker.name), "report": reports.as_message(report), "partitions": partitions}
    worker.log_event(topic, message)
