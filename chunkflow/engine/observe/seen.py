"""What was seen of a run that has ended, as far as advice on it needs that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chunkflow.core.machine import Machine
from chunkflow.planner.plan import Plan

Replan = Callable[..., Plan]
"""``replan(budget, specs=..., machine=...)`` plans the run again; operands and rates are the run's own by default."""

LEAST = 0.15
"""Share of a run that a cause has to explain."""


AWAKE = 0.2
"""Share of its time below which a function computes so little that it is waiting."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a run.

    Attributes
    ----------
    plan : Plan
    seconds : float
    busy, spent, moved : mapping
        Of each stage the seconds in which anybody was in it, the sum of all threads' seconds, and the bytes.
    processor : float
        Seconds of the processor that this process took, in all threads.
    others : float
        Those that other processes took meanwhile.
    cores : int
    cold : int
        Bytes of the files that were not in memory before.
    replan : callable, optional
    elsewhere : callable, optional
        Gives the machine of another device, and its name; None if there is none.
    around : float
        Seconds before the first stage began and after the last one ended.
    system : float
        Seconds of `processor` that the operating system took, for new pages and for reading.
    quickest : mapping
        Of each stage the seconds of all threads that its bytes take, without what each block takes besides: by the
        quickest blocks of each size.
    """

    plan: Plan
    seconds: float
    busy: Mapping[str, float]
    spent: Mapping[str, float]
    moved: Mapping[str, int]
    processor: float
    others: float = 0.0
    cores: int = 1
    cold: int = 0
    replan: Replan | None = None
    elsewhere: Callable[[], tuple[str, Machine] | None] | None = None
    around: float = 0.0
    system: float = 0.0
    quickest: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound_by(self) -> str:
        """The busiest stage."""
        return max(self.busy, key=lambda name: self.busy[name], default="nothing")

    @property
    def waits(self) -> bool:
        """Whether the function, of which the host is the device, waits for something else than the processor."""
        computing, all_of_it = self.spent.get("compute", 0.0), sum(self.spent.values())
        if self.plan.machine.staged or self.bound_by != "compute" or computing < 0.5 * all_of_it:
            return False
        return self.processor < AWAKE * computing

    def lasts(self, seconds: float) -> bool:
        """Whether so many seconds are a large part of the run."""
        return seconds >= LEAST * self.seconds
