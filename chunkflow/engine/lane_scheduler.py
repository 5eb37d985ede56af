"""Which of a run's lanes computes a block: each in its turn, or whichever has room for one.

A GPU's lanes are streams of one device. A CPU's are threads: its cores are not equally fast, nor left alone, and with
blocks dealt out in turn each of them would go at the pace of the slowest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from queue import SimpleQueue

from chunkflow.devices.protocol import Lane
from chunkflow.engine.transfer import Result

WAITING = 2
"""Blocks that a lane has at most, the one that it works on among them."""


class LaneScheduler:
    """The lanes of a run, by number. If it `deals` their blocks out, it must be told of each result (`follow`)."""

    def __init__(self, lanes: Sequence[Lane], *, deals: bool) -> None:
        self._lanes = lanes
        self._numbers = range(len(lanes))
        self._given = [0] * len(lanes)  # by the run's own thread
        self._ended = [0] * len(lanes)  # each by its own lane
        self._deals = deals
        self.failed = False
        """Whether a result is over for which there is an error, maybe behind others that are not."""
        self._room = SimpleQueue[None]()  # as many as there is room for blocks
        for _ in range(WAITING * len(lanes)):
            self._room.put(None)

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def pick(self, turn: int) -> int:
        """The lane whose `turn` it is; or, once there is room, one with least to do: that one, or the next of them."""
        if not self._deals:
            return turn
        self._room.get()
        left = [given - ended for given, ended in zip(self._given, self._ended, strict=True)]
        lane: int = min((*self._numbers[turn:], *self._numbers[:turn]), key=lambda number: left[number])
        self._given[lane] += 1
        return lane

    def follow(self, result: Result) -> None:
        """Take note when a lane has ended what was enqueued for a result."""
        if self._deals:
            self._lanes[result.step.lane].call(partial(self._end, result))

    def _end(self, result: Result) -> None:
        result.over = True
        self._ended[result.step.lane] += 1
        if result.error is not None:
            self.failed = True
        self._room.put(None)
