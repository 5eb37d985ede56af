"""What runs do, told to Python's `logging`, where the program has loaded it: the logger is ``chunkflow``.

INFO says what begins, on which device, within how much, and what it took. DEBUG has plans too.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from chunkflow.core.units import format_bytes
from chunkflow.engine.trace import Observer

NAME = "chunkflow"


def logger() -> Any:
    """The logger, if anybody listens; else None. Who has not loaded `logging`, which takes 2 ms, does not."""
    logging = sys.modules.get("logging")
    found = None if logging is None else logging.getLogger(NAME)
    return found if found is not None and found.isEnabledFor(logging.INFO) else None  # type: ignore[union-attr]


class Logged(Observer):
    """Observer that writes a line when a run begins, one when it ends, and its notes."""

    wants_spans = False

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._begun: list[float] = []

    def started(self, plan: Any, run: Any = None) -> None:
        self._begun.append(time.perf_counter())
        device = "" if run is None else f" on {run.device.name}"
        self._logger.info(
            "run of %d blocks%s within %s: reads %s, writes %s",
            *(len(plan.grid), device, format_bytes(plan.budget)),
            *(format_bytes(plan.bytes_in), format_bytes(plan.bytes_out)),
        )
        self._logger.debug("%s", plan)

    def noted(self, text: str) -> None:
        self._logger.info("note: %s", text)

    def finished(self, error: BaseException | None, peak: int) -> None:
        took = time.perf_counter() - self._begun.pop()
        if error is None:
            self._logger.info("run ended after %.3g s, peak %s", took, format_bytes(peak))
        else:
            text = str(error)  # a record that holds the error would hold its traceback, and so blocks and open files
            self._logger.error("run failed after %.3g s: %s: %s", took, type(error).__name__, text)
