"""Which elements along an axis are wanted: every n-th one, or those at some places, in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


class AxisSlice(NamedTuple):
    """`number` elements along an axis, from `start` on, every `step`-th one."""

    start: int
    number: int
    step: int

    @property
    def hull(self) -> range:
        """All places from the least to the greatest of them."""
        last = self.start + (self.number - 1) * self.step
        return range(min(self.start, last), max(self.start, last) + 1) if self.number else range(0)


@dataclass(frozen=True, eq=False)
class AxisPlaces:
    """Elements along an axis by their places, which are not negative. They may come more than once, and in any order.

    >>> AxisPlaces(np.array([3, 0])) == AxisPlaces(np.array([3, 0])), AxisPlaces(np.array([3, 0])).number
    (True, 2)
    """

    places: np.ndarray

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.places)

    @cached_property
    def _key(self) -> bytes:
        return hashlib.sha256(np.ascontiguousarray(self.places).data).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxisPlaces) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


AxisCut = AxisSlice | AxisPlaces
"""Some elements along an axis."""


def places_of(cut: AxisCut) -> np.ndarray:
    """The places of a cut's elements."""
    if isinstance(cut, AxisPlaces):
        return cut.places
    return cut.start + np.arange(cut.number, dtype=np.int64) * cut.step


def cut_again(cut: AxisCut, then: AxisCut) -> AxisCut:
    """A cut of what another one has left, as one cut. Places that are equally far apart are a slice.

    >>> cut_again(AxisSlice(10, 9, -1), AxisSlice(1, 4, 2))
    AxisSlice(start=9, number=4, step=-2)
    >>> cut_again(AxisSlice(10, 9, -1), AxisPlaces(np.array([0, 3, 6])))
    AxisSlice(start=10, number=3, step=-3)
    """
    if isinstance(cut, AxisSlice) and isinstance(then, AxisSlice):
        return _simplest(cut.start + then.start * cut.step, then.number, cut.step * then.step)
    own = places_of(then)
    if isinstance(cut, AxisPlaces):
        places = cut.places[own]
    else:
        places = own if (cut.start, cut.step) == (0, 1) else cut.start + own * cut.step
    if len(places) < 2:
        return _simplest(int(places[0]) if len(places) else 0, len(places), 1)
    step = int(places[1] - places[0])
    evenly = int(places[-1]) - int(places[0]) == step * (len(places) - 1)  # most lists are told by their ends
    if step and evenly and (np.diff(places) == step).all():
        return AxisSlice(int(places[0]), len(places), step)
    return AxisPlaces(places)


def _simplest(start: int, number: int, step: int) -> AxisSlice:
    """One slice of those that have the same elements."""
    return AxisSlice(start, number, step) if number > 1 else AxisSlice(start, 1, 1) if number else AxisSlice(0, 0, 1)


def is_whole(cut: AxisCut, extent: int) -> bool:
    """Whether a cut has all elements of an axis, in their order."""
    return isinstance(cut, AxisSlice) and cut == (0, extent, 1)


def split(cuts: Sequence[AxisCut], shape: Sequence[int]) -> tuple[list[AxisSlice], list[np.ndarray | None]]:
    """Slices, and then places, that are made one after the other the same as some cuts.

    >>> split([AxisSlice(1, 2, 1), AxisPlaces(np.array([3, 0]))], (4, 5))
    ([AxisSlice(start=1, number=2, step=1), AxisSlice(start=0, number=5, step=1)], [None, array([3, 0])])
    """
    slices = [AxisSlice(0, n, 1) if isinstance(cut, AxisPlaces) else cut for cut, n in zip(cuts, shape, strict=True)]
    return slices, [cut.places if isinstance(cut, AxisPlaces) else None for cut in cuts]
