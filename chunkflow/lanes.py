"""Which of a run's lanes computes a block: each in its turn, or whichever is least behind.

A GPU's lanes are streams of one device. A CPU's are threads: its cores are not equally fast, nor left alone, and with
blocks dealt out in turn each of them would go at the pace of the slowest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chunkflow.devices.base import Lane
from chunkflow.plan import Plan


class Lanes:
    """The lanes of a run, by number."""

    def __init__(self, plan: Plan, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._numbers = range(len(lanes))
        self._given = [0] * len(lanes)  # by the run's own thread
        self._computed = [0] * len(lanes)  # each by its own lane
        self.pick = self._least_behind if plan.deals else None

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def computed(self, number: int) -> None:
        """A lane has computed a block."""
        self._computed[number] += 1

    def _least_behind(self, turn: int) -> int:
        """The lane with fewest blocks to compute; of several the one whose `turn` it is, or the next one."""
        left = [given - computed for given, computed in zip(self._given, self._computed, strict=True)]
        lane: int = min((*self._numbers[turn:], *self._numbers[:turn]), key=lambda number: left[number])
        self._given[lane] += 1
        return lane
