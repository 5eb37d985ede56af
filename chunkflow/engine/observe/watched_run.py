"""What a profile sees of one run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from chunkflow.core.machine import Machine
from chunkflow.devices import measured_rates, resolve
from chunkflow.devices.protocol import Device
from chunkflow.engine.observe.busy import Busy
from chunkflow.engine.observe.seen import Seen
from chunkflow.engine.prepare import Prepared
from chunkflow.engine.trace import Stage
from chunkflow.errors import ChunkflowError
from chunkflow.planner.plan import Plan
from chunkflow.stores.protocol import cold_bytes
from chunkflow.system import host

SPANS = 128
"""Spans that are kept of each stage, to tell how long anybody was in it."""

SIZES = 16
"""Sizes of blocks of which the quickest are kept."""

MANY = 256
"""Blocks of which one, as a rule, did not wait for others."""

LOOKED_AT = 64 << 30
"""Bytes of arrays of which it is asked what the system has in memory: of more that takes long."""


@dataclass
class Quickest:
    """What the quickest of each `MANY` blocks of one size took, on average; the quickest of all where they are fewer.

    A single one may have had the machine for itself.

    >>> blocks = Quickest()
    >>> for seconds in [3.0, 2.0, 4.0] * 256:
    ...     blocks.add(seconds)
    >>> blocks.seconds
    2.0
    """

    total: float = 0.0
    groups: int = 0
    count: int = 0
    least: float = math.inf

    def add(self, seconds: float) -> None:
        """Count a block."""
        self.count += 1
        self.least = min(self.least, seconds)
        if self.count == MANY:
            self.total, self.groups = self.total + self.least, self.groups + 1
            self.count, self.least = 0, math.inf

    @property
    def seconds(self) -> float:
        """What the quickest took."""
        return self.total / self.groups if self.groups else self.least


@dataclass
class WatchedRun:
    """A run's plan, when it began and ended (seconds of `time.perf_counter`), and what was seen of it."""

    plan: Plan
    start: float
    stop: float | None = None
    failed: bool = False
    replan: Callable[..., Plan] | None = None
    elsewhere: Callable[[], tuple[str, Machine] | None] | None = None
    cold: int = 0
    busy: dict[Stage, Busy] = field(default_factory=dict)
    spent: dict[Stage, float] = field(default_factory=dict)
    moved: dict[Stage, int] = field(default_factory=dict)
    quickest: dict[Stage, dict[int, Quickest]] = field(default_factory=dict)
    processor: float = 0.0
    system: float = 0.0
    all_processes: float = 0.0
    first: float | None = None
    last: float = 0.0

    @classmethod
    def begun(cls, plan: Plan, run: Prepared | None) -> WatchedRun:
        """A run that is to begin. To ask what is in memory takes a while for many files."""
        found = cls(plan, 0.0)
        if run is not None:
            found.replan, found.elsewhere = run.replan, partial(_other_than, run.device)
            with suppress(Exception):  # the run itself will raise this error
                if sum(spec.nbytes for spec in plan.operands) <= LOOKED_AT:
                    found.cold = cold_bytes(run.sources)
        found.processor, found.all_processes = time.process_time(), host.processor_seconds()
        found.system = os.times().system
        return found

    def add(self, stage: Stage, start: float, stop: float, nbytes: int) -> None:
        """Count a span of a stage."""
        self.busy.setdefault(stage, Busy(SPANS)).add(start, stop)
        self.first = start if self.first is None else min(self.first, start)
        self.last = max(self.last, stop)
        self.spent[stage] = self.spent.get(stage, 0.0) + stop - start
        self.moved[stage] = self.moved.get(stage, 0) + nbytes
        quickest = self.quickest.setdefault(stage, {})
        if nbytes and (nbytes in quickest or len(quickest) < SIZES):
            quickest.setdefault(nbytes, Quickest()).add(stop - start)

    def ended(self, now: float, error: BaseException | None) -> None:
        """It ends now, well or by an error."""
        self.stop, self.failed = now, error is not None
        self.processor = time.process_time() - self.processor
        self.system = os.times().system - self.system
        self.all_processes = host.processor_seconds() - self.all_processes

    @property
    def end(self) -> float:
        """When it ended; now, if it is under way."""
        return time.perf_counter() if self.stop is None else self.stop

    @property
    def around(self) -> float:
        """Seconds before the first stage began and after the last one ended."""
        if self.first is None:
            return 0.0
        return max(self.end - self.start - (self.last - self.first), 0.0)

    @property
    def seen(self) -> Seen:
        """What is known of it, once it has ended."""
        return Seen(
            self.plan,
            self.end - self.start,
            {str(stage): busy.seconds for stage, busy in self.busy.items()},
            {str(stage): seconds for stage, seconds in self.spent.items()},
            {str(stage): nbytes for stage, nbytes in self.moved.items()},
            self.processor,
            max(self.all_processes - self.processor, 0.0),
            host.cores(),
            self.cold,
            self.replan,
            self.elsewhere,
            self.around,
            self.system,
            {str(stage): _for_each_byte(each) * self.moved[stage] for stage, each in self.quickest.items() if each},
        )


def _for_each_byte(quickest: Mapping[int, Quickest]) -> float:
    """Seconds for a byte by the quickest blocks of each size: what each block takes besides is told by smaller ones.

    >>> large, small = Quickest(least=0.003), Quickest(least=0.002)
    >>> _for_each_byte({1000: large}), _for_each_byte({1000: large, 500: small})
    (3e-06, 2e-06)
    """
    small, large = min(quickest), max(quickest)
    most, least = quickest[large].seconds, quickest[small].seconds
    if small > large / 2:
        return most / large
    return min(max((most - least) / (large - small), 0.0), most / large)


def _other_than(device: Device) -> tuple[str, Machine] | None:
    """Name and machine of the CPU for a GPU, and of a GPU, if there is one, for the CPU.

    CPUs differ more than GPUs and their links: one counts only if its rates were measured.
    """
    with suppress(ChunkflowError, ImportError):
        other = resolve("cpu" if device.machine.staged else "cuda")
        if other.machine.staged or measured_rates.are_kept(other.model):
            return other.name.partition(":")[0], other.machine
    return None
