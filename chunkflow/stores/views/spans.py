"""How much of a source is read at once: of a chunked one each run alone would decode the chunk again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from chunkflow.core.spec import ArraySpec

P = TypeVar("P")

MOST_RUNS = 1 << 10
"""Runs that are read together at most: they are listed."""

STRIP = 64 << 10
"""Bytes that are read at once of an array without chunks, if only some of the elements are wanted."""

MOST = 1 << 20
"""Bytes that are read at once of chunks of which parts are read by themselves: each time a file is opened."""


def strip_bytes(spec: ArraySpec, wanted: int) -> int:
    """Bytes that are read at once, for so many wanted ones, of an array that is read by parts.

    >>> from dataclasses import replace
    >>> import numpy as np
    >>> chunked = ArraySpec("x", (9, 9), np.dtype("f4"), (3, 3))
    >>> strip_bytes(chunked, 200_000), strip_bytes(replace(chunked, chunks=None), 200_000)
    (200000, 65536)
    """
    return STRIP if spec.chunks is None else max(STRIP, min(wanted, MOST))


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
