"""The choice of a lane for each block: in turn, or a lane that has room.

A GPU's lanes are streams of one device, and get blocks in turn. A CPU's lanes are threads, whose cores are not equally
fast and do other work too. If blocks were dealt out in turn, all would go at the pace of the slowest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from queue import SimpleQueue

from chunkflow.devices.protocol import Lane
from chunkflow.engine.transfer import Result

WAITING = 2
"""Most blocks that a lane has at a time, with the one that it computes."""


class LaneScheduler:
    """The lanes of a run, by number. If it `deals` blocks out, call `follow` for each result."""

    def __init__(self, lanes: Sequence[Lane], *, deals: bool) -> None:
        self._lanes = lanes
        self._numbers = range(len(lanes))
        self._given = [0] * len(lanes)  # counted by the run's own thread
        self._ended = [0] * len(lanes)  # each counted by its own lane
        self._deals = deals
        self.failed = False
        """Whether a result has failed, even if earlier ones are not finished."""
        self._room = SimpleQueue[None]()  # one entry for each block that there is room for
        for _ in range(WAITING * len(lanes)):
            self._room.put(None)

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def pick(self, turn: int) -> int:
        """The lane whose `turn` it is; if blocks are dealt out, wait for room and take the lane with the fewest."""
        if not self._deals:
            return turn
        self._room.get()
        left = [given - ended for given, ended in zip(self._given, self._ended, strict=True)]
        lane: int = min((*self._numbers[turn:], *self._numbers[:turn]), key=lambda number: left[number])
        self._given[lane] += 1
        return lane

    def follow(self, result: Result) -> None:
        """Note when a lane has finished the work for a result."""
        if self._deals:
            self._lanes[result.step.lane].call(partial(self._end, result))

    def _end(self, result: Result) -> None:
        result.over = True
        self._ended[result.step.lane] += 1
        if result.error is not None:
            self.failed = True
        self._room.put(None)
