"""A part of a nest as a nest of its own: blocks are counted from its corner, and kernels see where they really lie.

So a machine that computes a part of an array plans it as if it were a whole one, and still reads halos at its edges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape, shape_of, shift
from chunkflow.core.nest import LoopNest
from chunkflow.kernels.protocol import Fold, Kernel, KernelWrapper, Kind


def part_of(nest: LoopNest, kernel: Any, box: Region, **options: Any) -> tuple[LoopNest, SubNestKernel]:
    """The nest of a box, and its kernel; options are `SubNestKernel`'s.

    >>> from chunkflow.core.nest import nest
    >>> inner, _ = part_of(nest([(10, 4)]), None, (slice(5, 10), slice(0, 4)))
    >>> inner.extents, inner.operands[0].region((slice(0, 2), slice(0, 4)))
    ((5, 4), (slice(5, 7, None), slice(0, 4, None)))
    """
    start = tuple(side.start for side in box)
    operands = tuple(
        replace(operand, start=tuple(0 if a is None else start[a] for a in operand.axes)) for operand in nest.operands
    )
    inner = replace(nest, extents=shape_of(box), operands=operands)
    return inner, SubNestKernel(kernel, nest.extents, start, **options)


@lru_cache(maxsize=64)
def _whole(nest: LoopNest, extents: Shape) -> LoopNest:
    """The nest of which `nest` is a part."""
    return replace(nest, extents=extents, operands=tuple(replace(operand, start=()) for operand in nest.operands))


@dataclass(frozen=True)
class SubNestKernel(KernelWrapper):
    """A `kernel` on the part of its nest of these `extents` that begins at `start`.

    Each time a fold is finished, a copy of its value is added to `merged`, in host memory. `check` is called before
    each block; an exception that it raises ends the run.
    """

    kernel: Any
    extents: Shape
    start: Shape
    merged: list[Any] | None = None
    check: Callable[[], None] | None = None

    @property
    def parts(self) -> Sequence[Fold | None]:
        if self.kind is Kind.FOLD:
            return (self,)
        return [None if part is None else replace(self, kernel=part, check=None) for part in self.kernel.parts]

    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        """The whole nest, and where the box lies in it."""
        if self.check is not None:
            self.check()
        return _whole(nest, self.extents), shift(box, self.start)

    def shortened(self, nest: LoopNest, short: LoopNest) -> SubNestKernel | None:
        extents = tuple(short.extents[a] if a in nest.whole else n for a, n in enumerate(self.extents))
        kernel = self.kernel.shortened(_whole(nest, self.extents), _whole(nest, extents))
        return None if kernel is None else replace(self, kernel=kernel, extents=extents)

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        if self.merged is not None:
            self.merged.append(on_host(value))
        return super().finish(value, nest, box)

    def informed(self, nest: LoopNest, dtypes: tuple[np.dtype, ...]) -> SubNestKernel:
        return replace(self, kernel=self.kernel.informed(_whole(nest, self.extents), dtypes))


Ranges = tuple[tuple[int, int], ...]
"""Where a part of a result begins and ends, along the axes that it follows."""


@dataclass(frozen=True)
class CollectingKernel(SubNestKernel):
    """A `SubNestKernel` that keeps what its folds of these numbers (`wanted`) have found, before they finish it.

    In `found` it is by the number of the fold, and the ranges of the box along the axes that its results follow.
    """

    found: dict[tuple[int, Ranges], Any] = field(default_factory=dict)
    wanted: Mapping[int, Shape] = field(default_factory=dict)
    """Of each fold the axes that its results follow."""
    part: int = 0

    @property
    def parts(self) -> Sequence[Fold | None]:
        if self.kind is Kind.FOLD:
            return (self,)
        folds = enumerate(self.kernel.parts)
        return [None if fold is None else replace(self, kernel=fold, check=None, part=i) for i, fold in folds]

    def finish(self, value: Any, nest: LoopNest, box: Region) -> Any:
        if self.part in self.wanted:
            ranges = tuple((box[a].start, box[a].stop) for a in self.wanted[self.part])
            self.found[self.part, ranges] = on_host(value)
        return super().finish(value, nest, box)


def placed(kernel: Kernel, box: Region) -> Region:
    """Where a box lies in the whole array."""
    return shift(box, kernel.start) if isinstance(kernel, SubNestKernel) else box


def on_host(value: Any) -> Any:
    """A copy of partial results in host memory, which nobody else refers to."""
    if isinstance(value, tuple | list):
        return type(value)([on_host(entry) for entry in value])
    if isinstance(value, dict):
        return {key: on_host(entry) for key, entry in value.items()}
    if hasattr(value, "get"):  # CuPy's
        return value.get()
    return np.array(value) if isinstance(value, np.ndarray | np.generic) else value
