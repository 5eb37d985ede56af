"""Footprints: where an array's bytes lie, so that overlaps are found before anything is written."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chunkflow.core.cuts import AxisSlice
from chunkflow.core.grid import Shape
from chunkflow.stores.strides import bounds


@dataclass(frozen=True)
class Footprint:
    """Where an array's elements live, to find out whether an output overlaps an input.

    `space` names an address space (the process's memory, one file, one zarr array), `start` and
    `stop` bound the bytes used in it, `layout` says which element lies where. Two arrays with equal
    footprints are the very same array; two whose ranges meet otherwise are a shifted overlap.
    """

    space: Hashable
    start: int
    stop: int
    layout: Hashable

    def overlaps(self, other: Footprint) -> bool:
        """Whether the two share a byte."""
        if isinstance(other, Scattered):
            return other.overlaps(self)
        meet = self.space == other.space and self.start < other.stop and other.start < self.stop
        return meet and not _apart(self.layout, other.layout)

    def sliced(self, cuts: Sequence[AxisSlice], shape: Shape) -> Footprint:
        """Footprint of a slice: first element, number and step for each axis. That of all of the `shape` is the same.

        Its range may be as large as the whole one's.
        """
        return self if list(cuts) == _all_of(shape) else self._cut(cuts)

    def within(self, shape: Shape) -> Footprint:
        """Footprint of an array of this shape as the slice that has all of it: its store may have grown since."""
        return self if _is_slice(self.layout) else self._cut(_all_of(shape))

    def _cut(self, cuts: Sequence[AxisSlice]) -> Footprint:
        return Footprint(self.space, self.start, self.stop, ("sliced", tuple(cuts), self.layout))


def _all_of(shape: Shape) -> list[AxisSlice]:
    return [AxisSlice(0, n, 1) for n in shape]


def _is_slice(layout: Any) -> bool:
    return isinstance(layout, tuple) and layout[:1] == ("sliced",)


def _apart(one: Any, other: Any) -> bool:
    """Whether two layouts are slices of the same one that have no place in common along an axis.

    >>> base = Footprint("file", 0, 1, "rows")
    >>> low, high = (base.sliced([AxisSlice(first, 3, 1)], (6,)) for first in (0, 3))
    >>> low.overlaps(high), low.overlaps(base), low.overlaps(low)
    (False, True, True)
    """
    if not (_is_slice(one) and _is_slice(other)):
        return False
    (_, mine, base), (_, theirs, same) = one, other
    hulls = [(AxisSlice(*a).hull, AxisSlice(*b).hull) for a, b in zip(mine, theirs, strict=True)]
    return base == same and any(a.stop <= b.start or b.stop <= a.start for a, b in hulls)


@dataclass(frozen=True)
class Scattered(Footprint):
    """Footprint of an array put together of `parts`, or of one in another order. It equals no other footprint.

    >>> one, two, other = (Footprint(name, 0, 8, None) for name in ("one", "two", "other"))
    >>> both = Scattered.of([one, None, two])
    >>> one.overlaps(both), both.overlaps(two), other.overlaps(both), one == Scattered.of([one])
    (True, True, False, False)
    """

    parts: tuple[Footprint, ...]

    @classmethod
    def of(cls, parts: Iterable[Footprint | None]) -> Scattered | None:
        """Footprint of all known parts; None if none is known."""
        known = tuple(part for part in parts if part is not None)
        return cls("several", 0, 0, None, known) if known else None

    def overlaps(self, other: Footprint) -> bool:
        """Whether any part shares a byte with the other."""
        return any(part.overlaps(other) for part in self.parts)

    def _cut(self, cuts: Sequence[AxisSlice]) -> Footprint:
        """The same footprint: it is unknown which part has which element."""
        return self


_MAX_WORK = 10_000
"""Limit of the search for a common byte of two arrays: more than any ordinary layout needs."""


@dataclass(frozen=True)
class StridedFootprint(Footprint):
    """Footprint of a strided array, which tells its elements from the gaps between them."""

    # Equal layouts are the same array; strides of axes of length 1, say, mean nothing.
    shape: Shape = field(compare=False)
    strides: Shape = field(compare=False)
    typestr: str = field(compare=False)
    first: int = field(compare=False)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # Nobody looks at the elements: any addresses will do.
        address = self.first + (1 << 20)
        return {
            "version": 3,
            "data": (address, True),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.typestr,
        }

    def overlaps(self, other: Footprint) -> bool:
        """Whether the two share a byte. True if the search takes too long."""
        if not super().overlaps(other) or not isinstance(other, StridedFootprint):
            return super().overlaps(other)
        try:
            one, two = np.asarray(self), np.asarray(other)
            return bool(np.shares_memory(one, two, max_work=_MAX_WORK))  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return True

    def within(self, shape: Shape) -> Footprint:
        """The same footprint: it tells its elements from others as it is."""
        return self

    def sliced(self, cuts: Sequence[AxisSlice], shape: Shape) -> Footprint:
        """Exact footprint of the slice."""
        start = self.first + sum(i * stride for (i, _, _), stride in zip(cuts, self.strides, strict=True))
        shape = tuple(number for _, number, _ in cuts)
        strides = tuple(step * stride for (_, _, step), stride in zip(cuts, self.strides, strict=True))
        return footprint(self.space, start, shape, strides, np.dtype(self.typestr))


def footprint(space: Hashable, start: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> Footprint:
    """Footprint of a strided array whose element at index 0 lies at byte `start` of `space`.

    >>> x = np.zeros((4, 6))
    >>> even, odd, last = (footprint("x", 8 * i, (4, 3), (48, 16), x.dtype) for i in (0, 1, 4))
    >>> even.overlaps(odd), even.overlaps(last)
    (False, True)
    """
    low, high = bounds(shape, strides, dtype.itemsize)
    # The stride of an axis of length 1 means nothing: two views that differ in it only are the same.
    told = tuple(stride if n > 1 else 0 for n, stride in zip(shape, strides, strict=True))
    known = (start, tuple(shape), told, dtype.str)
    return StridedFootprint(space, start + low, start + high, known, tuple(shape), tuple(strides), dtype.str, start)
