"""Where the elements of a rearranged array come from: flipped, rolled, padded, repeated or put together.

An axis of the result is a row of runs, each of which follows a part of a source, forwards, backwards or with each
element several times, or is filled with a value. A region of the result is then a box of pieces, one for each
choice of runs. Knows regions; no array, store or device.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from chunkflow.core.grid import Region, Shape


@dataclass(frozen=True)
class IndexRun:
    """Consecutive indices of a result along an axis.

    Attributes
    ----------
    start, stop : int
        In the result.
    first : int
        Where the part of the source begins that they follow, its end if they go backwards.
    back : bool
        Whether the last of the part comes first.
    times : int
        How often each of the source's elements comes.
    part : int
        Which source it is.
    fill : object
        What they are filled with, if they follow no source.
    """

    start: int
    stop: int
    first: int = 0
    back: bool = False
    times: int = 1
    part: int = 0
    fill: Any = None

    def cut(self, start: int, stop: int) -> IndexRunPart:
        """What lies between two places of the result."""
        low, high = max(start, self.start), min(stop, self.stop)
        begin, end = low - self.start, high - self.start
        if self.back:
            source = slice(self.first - end, self.first - begin)
        else:
            source = slice(self.first + begin // self.times, self.first - (-end // self.times))
        return IndexRunPart(slice(low, high), source, self.back, self.times, begin % self.times, self.part, self.fill)


@dataclass(frozen=True)
class IndexRunPart:
    """A part of a run: where it goes and what of the source it takes; the first element comes `skip` times less."""

    place: slice
    source: slice
    back: bool = False
    times: int = 1
    skip: int = 0
    part: int = 0
    fill: Any = None


@dataclass(frozen=True)
class ArrangedBox:
    """A box of a result whose elements come from one box of a source, or are filled with a value."""

    parts: tuple[IndexRunPart, ...]

    @property
    def place(self) -> Region:
        """Box of the result."""
        return tuple(p.place for p in self.parts)

    @property
    def source(self) -> Region:
        """Box of the source."""
        return tuple(p.source for p in self.parts)

    @property
    def number(self) -> int:
        """Which source it is."""
        return max((p.part for p in self.parts), default=0)

    @property
    def fill(self) -> Any:
        """What it is filled with: as NumPy pads one axis after the other, the last one's value wins."""
        return next((p.fill for p in reversed(self.parts) if p.fill is not None), None)


class Arrangement(Protocol):
    """Says for each region of a result where it comes from."""

    @property
    def shape(self) -> Shape:
        """Of the result."""

    def pieces(self, region: Region) -> Iterator[ArrangedBox]:
        """Boxes that make up a region."""

    def still(self, shape: Shape) -> tuple[bool, ...]:
        """For each axis whether elements have the places along it that they have in a source of this shape."""


class Axis:
    """The runs along one axis of a result, in their order.

    >>> [p.source for p in Axis([IndexRun(0, 2, first=3), IndexRun(2, 5)]).parts(1, 4)]  # rolled by two
    [slice(4, 5, None), slice(0, 2, None)]
    """

    def __init__(self, runs: Sequence[IndexRun]) -> None:
        self.runs = [run for run in runs if run.start < run.stop]
        self._starts = [run.start for run in self.runs]
        self._stops = [run.stop for run in self.runs]
        self.length = self._stops[-1] if self.runs else 0

    def parts(self, start: int, stop: int) -> list[IndexRunPart]:
        """Parts of the runs between two places."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        return [run.cut(start, stop) for run in self.runs[first:last]]


@dataclass(frozen=True)
class Separable:
    """An arrangement of each axis by itself."""

    axes: tuple[Axis, ...]

    @cached_property
    def shape(self) -> Shape:
        return tuple(axis.length for axis in self.axes)

    def pieces(self, region: Region) -> Iterator[ArrangedBox]:
        sides = [axis.parts(s.start, s.stop) for axis, s in zip(self.axes, region, strict=True)]
        return (ArrangedBox(parts) for parts in itertools.product(*sides))

    def still(self, shape: Shape) -> tuple[bool, ...]:
        return tuple(axis.runs == straight(n).runs for axis, n in zip(self.axes, shape, strict=False))


@dataclass(frozen=True)
class Carried:
    """All elements, in C order, moved on by `shift`: what leaves a row at its end begins the next one.

    An index is a number whose digits are the places along the axes. Subtracting the shift digit by digit, from the
    last axis on, borrows one from the axis before wherever a digit would fall below zero.
    """

    shape: Shape
    shift: int

    def pieces(self, region: Region) -> Iterator[ArrangedBox]:
        digits, rest = [], self.shift
        for n in reversed(self.shape):
            digits.append(rest % n if n else 0)
            rest = rest // n if n else 0
        return self._pieces(region, digits[::-1], 0)

    def still(self, shape: Shape) -> tuple[bool, ...]:
        return (False,) * len(shape)

    def _pieces(self, region: Region, digits: Sequence[int], borrow: int) -> Iterator[ArrangedBox]:
        if not region:
            yield ArrangedBox(())
            return
        side, n, back = region[-1], self.shape[len(region) - 1], digits[-1] + borrow
        for low, high, source, next_borrow in (
            (side.start, min(side.stop, back), n - back, 1),
            (max(side.start, back), side.stop, -back, 0),
        ):
            if low < high:
                part = IndexRunPart(slice(low, high), slice(low + source, high + source))
                for piece in self._pieces(region[:-1], digits[:-1], next_borrow):
                    yield ArrangedBox((*piece.parts, part))


# -- Axes ----------------------------------------------------------------------------------------------------


def straight(n: int) -> Axis:
    """An axis as it is."""
    return Axis([IndexRun(0, n)])


def flipped(n: int) -> Axis:
    """An axis from its end to its beginning."""
    return Axis([IndexRun(0, n, n, back=True)])


def rolled(n: int, shift: int) -> Axis:
    """An axis moved on by `shift`, what falls off its end put in front."""
    shift = shift % n if n else 0
    return Axis([IndexRun(0, shift, n - shift), IndexRun(shift, n)])


def joined(lengths: Sequence[int]) -> Axis:
    """The sources' axes one after another."""
    stops = list(itertools.accumulate(lengths))
    return Axis([IndexRun(stop - n, stop, part=i) for i, (n, stop) in enumerate(zip(lengths, stops, strict=True))])


def repeated(n: int, times: int) -> Axis:
    """Each place along an axis several times."""
    return Axis([IndexRun(0, n * times, times=times)] if times else [])


def padded(n: int, before: int, after: int, mode: str, values: tuple[Any, Any] = (0, 0)) -> Axis:
    """An axis with something added at both ends.

    >>> axis = padded(3, 2, 4, "reflect")
    >>> [x for p in axis.parts(0, 9) for x in range(10)[p.source][:: -1 if p.back else 1]]
    [2, 1, 0, 1, 2, 1, 0, 1, 2]
    """
    stop = before + n
    if mode == "reflect" and n == 1:
        mode = "edge"
    first, own, last = IndexRun(0, before), IndexRun(before, stop), IndexRun(stop, stop + after)
    if mode == "constant":
        return Axis([replace(first, fill=values[0]), own, replace(last, fill=values[1])])
    if mode == "edge":
        return Axis([replace(first, times=max(before, 1)), own, replace(last, first=n - 1, times=after or 1)])
    if not n:
        return straight(n)
    # Mirror images share their ends where they are reflected: the one nearer to the array has it.
    shared = int(mode == "reflect")
    runs = []
    for number in range(-before // (n - shared), -(-(n + after) // (n - shared))):
        corner = before + number * (n - shared)
        low = max(corner + (shared if number > 0 else 0), 0)
        high = min(corner + n - (shared if number < 0 else 0), stop + after)
        back = mode != "wrap" and number % 2 == 1
        runs.append(IndexRun(low, high, n - (low - corner) if back else low - corner, back=back))
    return Axis(runs)
