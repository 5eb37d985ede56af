"""How long anything was under way: the length of a union of time spans."""

from __future__ import annotations

import math

_SPANS_KEPT = 4096


class Busy:
    """Length of the union of time spans, in bounded memory.

    Spans arrive in roughly the order of their ends, overlapping where several threads work at once.
    When too many of them are disjoint, the older half is added up and forgotten; the part of a later
    span that lies before what was forgotten is dropped. So the length is exact as long as no span
    outlasts thousands of its neighbours, and never too large.

    Examples
    --------
    >>> busy = Busy()
    >>> for start, stop in [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]:
    ...     busy.add(start, stop)
    >>> busy.seconds
    4.0
    """

    def __init__(self, keep: int = _SPANS_KEPT) -> None:
        self._keep = keep
        self._spans: list[tuple[float, float]] = []
        self._forgotten = 0.0  # seconds of the spans that ended at or before the watermark
        self._watermark = -math.inf

    def add(self, start: float, stop: float) -> None:
        """Count the time from `start` to `stop`, in seconds on any one clock."""
        start = max(start, self._watermark)
        if stop <= start:
            return
        self._spans.append((start, stop))
        if len(self._spans) > self._keep:
            self._spans = _union(self._spans)
            half = len(self._spans) // 2
            if half > self._keep // 4:  # few are left where spans touch, and then all can stay
                self._forgotten += _length(self._spans[:half])
                self._watermark = self._spans[half - 1][1]
                del self._spans[:half]

    @property
    def seconds(self) -> float:
        """Seconds in at least one span."""
        return self._forgotten + _length(_union(self._spans))


def _union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint spans, in order, that cover the same time."""
    merged: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def _length(spans: list[tuple[float, float]]) -> float:
    return math.fsum(stop - start for start, stop in spans)
