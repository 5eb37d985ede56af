"""Which chunks a region touches, and what of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from chunkflow.core.grid import Region, Shape, count


class TouchedChunk(NamedTuple):
    """A chunk that a region touches: its index (`chunk`), the wanted part of it, and where in the region that lies."""

    chunk: Shape
    inner: Region
    place: Region


def touched(region: Region, chunks: Shape) -> Iterator[TouchedChunk]:
    """Chunks that a region touches.

    >>> [(each.chunk, each.inner) for each in touched((slice(3, 9),), (4,))]
    [((0,), (slice(3, 4, None),)), ((1,), (slice(0, 4, None),)), ((2,), (slice(0, 1, None),))]
    """
    ranges = [range(s.start // c, count(s.stop, c)) for s, c in zip(region, chunks, strict=True)]
    for index in itertools.product(*ranges):
        inner, place = [], []
        for side, length, i in zip(region, chunks, index, strict=True):
            start, stop = max(side.start, i * length), min(side.stop, (i + 1) * length)
            inner.append(slice(start - i * length, stop - i * length))
            place.append(slice(start - side.start, stop - side.start))
        yield TouchedChunk(index, tuple(inner), tuple(place))


def aligned(region: Region, chunks: Shape, extents: Shape) -> bool:
    """Whether a region cuts no chunk of an array of `extents`: those at its end count as far as they are in it.

    >>> aligned((slice(4, 7),), (4,), (7,)), aligned((slice(4, 6),), (4,), (7,))
    (True, False)
    """
    sides = zip(region, chunks, extents, strict=True)
    return all(s.start % c == 0 and (s.stop % c == 0 or s.stop == n) for s, c, n in sides)
