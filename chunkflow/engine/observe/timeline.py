"""What happened when in runs: spans of stages in rows, and bytes of device memory in use. `Profile` keeps one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from chunkflow.engine.observe.watched_run import WatchedRun
from chunkflow.engine.trace import STAGES, Stage

MOST = 1 << 17
"""Spans that are kept, of 56 bytes each. Later ones are counted."""

SAMPLES = 1 << 12
"""Samples of memory that are kept. If there are more, the larger of each two neighbours stays."""


class Span(NamedTuple):
    """A stage at work on a block, or on a piece of one. Times are in seconds, of `time.perf_counter`."""

    stage: Stage
    row: int
    start: float
    stop: float
    nbytes: int
    run: int
    block: int | None
    """Number in its run; None where a piece is moved without Python, which knows its bytes alone."""


FIELDS = len(Span._fields)


class Timeline:
    """The first spans of runs, and their memory, in bounded memory.

    A row is a stage on one thread, or on one lane of the device: its spans do not overlap.

    Examples
    --------
    >>> line = Timeline()
    >>> line.add("read", 0.0, 1.0, 4_000_000, block=0, lane=None, run=0, thread=7)
    >>> line.add("compute", 1.0, 1.5, 4_000_000, block=0, lane=1, run=0, thread=7)
    >>> line.rows
    ('read 0', 'compute 0')
    >>> [(span.stage, span.block) for span in line]
    [('read', 0), ('compute', 0)]
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._spans = array("d")
        self._rows: dict[tuple[Stage, str], int] = {}
        self._held: list[tuple[float, int]] = []
        self._every, self._seen = 1, 0
        self.dropped = 0
        """Spans that came when there were enough."""

    def add(
        self,
        stage: Stage,
        start: float,
        stop: float,
        nbytes: int,
        *,
        block: int | None,
        lane: int | None,
        run: int,
        thread: int,
    ) -> None:
        """Keep a span; without a `lane` it is the thread's of this identifier."""
        if len(self) >= self._most:
            self.dropped += 1
            return
        who = f"thread {thread}" if lane is None else f"lane {lane}"
        row = self._rows.setdefault((stage, who), len(self._rows))
        number = -1 if block is None else block
        self._spans.extend((STAGES.index(stage), row, start, stop, nbytes, run, number))

    def hold(self, when: float, nbytes: int) -> None:
        """Keep a sample of the bytes in use, or the largest of several."""
        self._seen += 1
        if self._held and self._seen % self._every:
            self._held[-1] = max(self._held[-1], (when, nbytes), key=lambda sample: sample[1])
            return
        self._held.append((when, nbytes))
        if len(self._held) >= SAMPLES:
            pairs = zip(self._held[::2], self._held[1::2], strict=True)
            self._held = [max(pair, key=lambda sample: sample[1]) for pair in pairs]
            self._every *= 2

    def begun(self, runs: Sequence[WatchedRun]) -> float:
        """When the first of the runs, spans and samples began."""
        times = [run.start for run in runs] + [span.start for span in self] + [when for when, _ in self._held]
        return min(times, default=0.0)

    @property
    def rows(self) -> tuple[str, ...]:
        """Names: the stage, and a number among those of this stage."""
        seen: dict[Stage, int] = {}
        names = []
        for stage, _ in self._rows:
            number = seen[stage] = seen.get(stage, -1) + 1
            names.append(f"{stage} {number}")
        return tuple(names)

    @property
    def in_order(self) -> list[int]:
        """Rows as the stages follow each other."""
        stages = [stage for stage, _ in self._rows]
        return sorted(range(len(stages)), key=lambda row: (STAGES.index(stages[row]), row))

    @property
    def memory(self) -> list[tuple[float, int]]:
        """Samples: seconds, of `time.perf_counter`, and bytes."""
        return list(self._held)

    def __len__(self) -> int:
        return len(self._spans) // FIELDS

    def __iter__(self) -> Iterator[Span]:
        for at in range(0, len(self._spans), FIELDS):
            stage, row, start, stop, nbytes, run, block = self._spans[at : at + FIELDS]
            number = None if block < 0 else int(block)
            yield Span(STAGES[int(stage)], int(row), start, stop, int(nbytes), int(run), number)
