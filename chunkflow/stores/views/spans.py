"""Runs of a chunked source that are read together: each alone would decode their chunk again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

P = TypeVar("P")

MOST_RUNS = 1 << 10
"""Runs that are read together at most: they are listed."""


def spans(runs: Iterable[tuple[slice, P]], most: int) -> Iterator[tuple[slice, list[tuple[slice, P]]]]:
    """Spans of at most so many elements, or of one run, each with its runs as parts of it. Runs are in order.

    Examples
    --------
    >>> [(span, [run for run, _ in inner]) for span, inner in spans([(slice(3, 5), 0), (slice(6, 8), 1)], 5)]
    [(slice(3, 8, None), [slice(0, 2, None), slice(3, 5, None)])]
    """
    start = stop = 0
    inner: list[tuple[slice, P]] = []
    for run, place in runs:
        if inner and (run.stop - start > most or len(inner) == MOST_RUNS):
            yield slice(start, stop), inner
            inner = []
        if not inner:
            start = run.start
        inner.append((slice(run.start - start, run.stop - start), place))
        stop = run.stop
    if inner:
        yield slice(start, stop), inner
