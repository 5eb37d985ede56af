"""Ranges of NVTX around runs and the work on their blocks, for profilers as Nsight Systems.

They are there where a profiler listens, which it says to the processes that it starts, and where the package ``nvtx``
is installed. Elsewhere they cost nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from chunkflow.engine.trace import Observer

INJECTED = "NVTX_INJECTION64_PATH"
"""What profilers set for the processes that they start: the library that NVTX loads to be heard."""


@cache
def nvtx() -> Any:
    """The package of NVTX, if a profiler listens."""
    listens = INJECTED in os.environ and importlib.util.find_spec("nvtx") is not None
    return importlib.import_module("nvtx") if listens else None


def block_range(number: int) -> AbstractContextManager[Any]:
    """A range for the computing of the block of that number, on the thread that enqueues it."""
    listening = nvtx()
    if listening is None:
        return nullcontext()
    return listening.annotate(f"block {number}", domain="chunkflow")  # type: ignore[no-any-return]


class ProfilerRanges(Observer):
    """Observer that makes a range of each run."""

    wants_spans = False

    def __init__(self) -> None:
        self._ranges: list[Any] = []

    def started(self, plan: Any, run: Any = None) -> None:
        self._ranges.append(nvtx().start_range(f"run of {len(plan.grid)} blocks", domain="chunkflow"))

    def finished(self, error: BaseException | None, peak: int) -> None:
        nvtx().end_range(self._ranges.pop())
