"""Regions that reach beyond an array's edges: what of them is read, what is copied, and what is made up.

Pure index arithmetic, but for `fill` and `assign`, which assign slices of whatever array they are given.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from chunkflow.core.grid import Region, Shape

Boundary = str | int | float | complex | bool
"""What lies beyond an edge: a constant, or one of `BOUNDARIES`."""

BOUNDARIES = ("none", "nearest", "reflect", "mirror", "periodic")


def reach(side: slice, halo: tuple[int, int], extent: int, boundary: Boundary, ahead: int = 1) -> slice:
    """A block's side with its halo, which stops at the array's edge where nothing lies beyond it.

    Inside the array it goes on to a multiple of `ahead`.

    >>> reach(slice(0, 4), (2, 1), 9, "none"), reach(slice(0, 4), (2, 1), 9, "nearest", 4)
    (slice(0, 5, None), slice(-2, 8, None))
    """
    start, stop = side.start - halo[0], side.stop + halo[1]
    if stop < extent:
        stop = min(-(-stop // ahead) * ahead, extent)
    if boundary == "none":
        return slice(max(start, 0), min(stop, extent))
    return slice(start, stop)


def parts(region: Region, extents: Shape, boundary: Sequence[Boundary]) -> list[tuple[Region, Shape]]:
    """What is read for a region: parts of the array, and where in the region each goes.

    >>> parts((slice(-1, 3),), (5,), ("nearest",))
    [((slice(0, 3, None),), (1,))]
    >>> parts((slice(-1, 3),), (5,), ("periodic",))
    [((slice(4, 5, None),), (0,)), ((slice(0, 3, None),), (1,))]
    >>> parts((slice(-1, 6),), (5,), ("periodic",))
    [((slice(0, 5, None),), (1,))]
    """
    sides = []
    for side, extent, kind in zip(region, extents, boundary, strict=True):
        found: list[tuple[slice, int]] = []
        if _goes_round(side, extent, kind):
            sides.append([(slice(0, extent), -side.start)])
            continue
        if kind == "periodic" and side.start < min(side.stop, 0):
            found.append((slice(extent + side.start, extent + min(side.stop, 0)), 0))
        start, stop = max(side.start, 0), min(side.stop, extent)
        if start < stop:
            found.append((slice(start, stop), start - side.start))
        if kind == "periodic" and side.stop > max(side.start, extent):
            start = max(side.start, extent)
            found.append((slice(start - extent, side.stop - extent), start - side.start))
        sides.append(found)
    return [
        (tuple([source for source, _ in chosen]), tuple([place for _, place in chosen]))
        for chosen in itertools.product(*sides)
    ]


def _goes_round(side: slice, extent: int, kind: Boundary) -> bool:
    """Whether what lies beyond periodic edges is in the block already, which has the array's whole side: it is copied.

    So a chunk there is decoded once.
    """
    return kind == "periodic" and side.start <= 0 and side.stop >= extent > 0


def beyond(side: slice, extent: int, kind: Boundary) -> tuple[int, int]:
    """How much of a region is made up before and after an array's edges.

    >>> beyond(slice(-1, 3), 5, "nearest"), beyond(slice(-1, 3), 5, "periodic"), beyond(slice(-1, 6), 5, "periodic")
    ((1, 0), (0, 0), (1, 1))
    """
    if kind == "none" or (kind == "periodic" and not _goes_round(side, extent, kind)):
        return 0, 0
    return max(-side.start, 0), max(side.stop - extent, 0)


def kept(region: Region, before: Region | None) -> Region | None:
    """Part of a region that the block before it, one step back along an axis, has on the device already.

    >>> kept((slice(3, 8), slice(0, 4)), (slice(0, 5), slice(0, 4)))
    (slice(3, 5, None), slice(0, 4, None))
    """
    if before is None:
        return None
    moved = [a for a, (now, then) in enumerate(zip(region, before, strict=True)) if now != then]
    if not moved:
        return region
    if len(moved) > 1:
        return None
    now, then = region[moved[0]], before[moved[0]]
    if not then.start <= now.start < then.stop:
        return None
    return (*region[: moved[0]], slice(now.start, min(then.stop, now.stop)), *region[moved[0] + 1 :])


def rest(region: Region, known: Region | None) -> Region:
    """Part of a region behind the one that is known.

    >>> rest((slice(3, 8), slice(0, 4)), (slice(3, 5), slice(0, 4)))
    (slice(5, 8, None), slice(0, 4, None))
    """
    if known is None:
        return region
    if known == region:
        return tuple([slice(r.stop, r.stop) for r in region])
    return tuple([r if r == k else slice(k.stop, r.stop) for r, k in zip(region, known, strict=True)])


def length(extent: int, size: int, halo: tuple[int, int], boundary: Boundary, *, reused: bool) -> int:
    """Elements along one axis that are loaded for blocks of `size` with a halo, the last one's halo reused or not.

    >>> length(10, 5, (1, 1), "none", reused=False), length(10, 5, (1, 1), "none", reused=True)
    (12, 10)
    """
    before, after = halo
    blocks = -(-extent // size)
    if boundary == "periodic" and before + after:
        # Blocks that go round, of which only the first one is read whole if halos are reused.
        first, last = max(0, -(-(extent - after) // size) - 1), min(blocks - 1, before // size)
        round_ = range(first, (min(last, 0) if reused else last) + 1)
        spared = sum(min((i + 1) * size, extent) + after - (i * size - before) - extent for i in round_)
        return extent + (1 if reused else blocks) * (before + after) - spared
    if reused or size >= extent:
        return extent
    # Blocks from `first` on begin beyond the edge, and `inside` of them end before the other.
    first = min(-(-before // size), blocks)
    inside = min(max((extent - after) // size, 0), blocks)
    starts = size * (blocks * (blocks - 1) - first * (first - 1)) // 2 - (blocks - first) * before
    stops = size * inside * (inside + 1) // 2 + inside * after + (blocks - inside) * extent
    return stops - starts


def assign(block: Any, region: Region, extents: Shape, boundary: Sequence[Boundary]) -> None:
    """Make up what lies beyond the edges, as `numpy.pad` does, from what the block holds, axis after axis."""
    for axis, (side, extent, kind) in enumerate(zip(region, extents, boundary, strict=True)):
        before, after = beyond(side, extent, kind)
        if not before + after:
            continue
        first, last = before, side.stop - side.start - after  # the array's own elements
        if kind == "periodic":
            _at(block, axis, 0, first)[...] = _at(block, axis, extent, extent + first)
            _at(block, axis, last, last + after)[...] = _at(block, axis, first, first + after)
            continue
        for start, stop, edge, inwards in ((0, first, first, 1), (last, last + after, last - 1, -1)):
            if start == stop:
                continue
            target = _at(block, axis, start, stop)
            if not isinstance(kind, str):
                target[...] = kind
            elif kind == "nearest":
                target[...] = _at(block, axis, edge, edge + 1)
            else:
                count, begin = stop - start, edge + (inwards if kind == "mirror" else 0)
                low = begin if inwards > 0 else begin - count + 1
                backwards = (*(slice(None),) * axis, slice(None, None, -1), ...)
                target[...] = _at(block, axis, low, low + count)[backwards]


fill = singledispatch(assign)
"""The same, by the device if it can do so at once: then it registers itself for its kind of array."""


def _at(block: Any, axis: int, start: int, stop: int) -> Any:
    return block[(*(slice(None),) * axis, slice(start, stop), ...)]
