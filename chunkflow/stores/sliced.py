"""A source that is every so many elements of another one, forwards or backwards: nothing is moved before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chunkflow.grid import Region, Shape, shape_of
from chunkflow.spec import ArraySpec
from chunkflow.stores.base import Footprint, Source
from chunkflow.stores.layout import part

Cut = tuple[int, int, int]
"""Of one axis: the first element, how many, and the step from one to the next."""


def sliced_spec(spec: ArraySpec, cuts: Sequence[Cut]) -> ArraySpec:
    """What is known of a slice of an array."""
    shape = tuple(number for _, number, _ in cuts)
    chunks: Shape | None = None
    if spec.chunks is not None:
        sides = zip(spec.chunks, cuts, strict=True)
        chunks = tuple(max(1, min(chunk // abs(step), max(n, 1))) for chunk, (_, n, step) in sides)
    return replace(spec, shape=shape, chunks=chunks)


class SlicedSource:
    """Every so many elements of a source, which is closed with this one."""

    def __init__(self, source: Source, cuts: Sequence[Cut]) -> None:
        self._source, self._cuts = source, tuple(cuts)
        self.spec = sliced_spec(source.spec, cuts)
        place = source.footprint
        self.footprint: Footprint | None = None if place is None else place.sliced(self._cuts)

    def _behind(self, region: Region) -> tuple[Region, tuple[slice, ...]]:
        """The part of the source that holds a region, and which elements of that part they are."""
        behind, picks = [], []
        for side, (first, _, step) in zip(region, self._cuts, strict=True):
            number = side.stop - side.start
            if not number:
                behind.append(slice(0, 0))
                picks.append(slice(None))
                continue
            one, other = first + side.start * step, first + (side.stop - 1) * step
            behind.append(slice(min(one, other), max(one, other) + 1))
            picks.append(slice(None, None, step))
        return tuple(behind), tuple(picks)

    def read(self, region: Region, out: np.ndarray) -> None:
        """See `Source.read`."""
        behind, picks = self._behind(region)
        if all(abs(pick.step or 1) == 1 for pick in picks):
            # Read in place, from the other end where it goes backwards.
            self._source.read(behind, part(out, picks))
            return
        found = self._source.view(behind)
        if found is None:
            found = np.empty(shape_of(behind), self.spec.dtype)
            self._source.read(behind, found)
        out[...] = part(found, picks)

    def view(self, region: Region) -> np.ndarray | None:
        """See `Source.view`."""
        behind, picks = self._behind(region)
        found = self._source.view(behind)
        return None if found is None else part(found, picks)

    def close(self) -> None:
        """See `Source.close`."""
        self._source.close()
