"""Whether values of the user's function depend on where its blocks end.

A function that looks further than its blocks reach gives other values near their borders, and these change with the
budget. A small block shows it: elements on which the values in its middle must not depend are changed.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow.core import grid
from chunkflow.core.grid import Grid, Region, Shape, within
from chunkflow.engine.trial import host_block
from chunkflow.errors import BlockEdgeWarning
from chunkflow.kernels.protocol import trial
from chunkflow.kernels.users import called
from chunkflow.system import interrupts
from chunkflow.system.users_line import users_line

if TYPE_CHECKING:
    from chunkflow.engine.prepare import Prepared

SHARE = 0.01
"""Part of the range of all values by which one must change: filters whose tails are cut on purpose change by less."""


THICK = 8
"""Elements along an axis that give a middle, and some around it."""


def warn_of_block_edges(run: Prepared) -> None:
    """Warn, once a run starts, if values near the borders of blocks are not those of the whole array.

    Nothing is said of a function that gives other values each time, or that fails on values that are not the array's.
    """
    cut = tuple([axis for axis, n in enumerate(run.plan.grid.counts) if n > 1])
    if run.tried is None or not cut:
        return
    found = None
    with suppress(Exception), run.device.attach(), run.pool.active(), np.errstate(all="ignore"):
        found = _seen(_Probe.of(run, run.tried, cut))
    if found is None:
        return
    share, enough = found
    beyond = (
        "Give a much larger depth="
        if enough is None
        else f"Give a depth= that is larger by {enough}, or ignore BlockEdgeWarning if tails are cut on purpose"
    )
    others = (
        "Use map_overlap, or compute what it takes of all elements first and pass that to it"
        if enough is None
        else f"Use map_overlap with depth={enough}, which hands each block its neighbours"
    )
    has_halo = run.plan.op.has_halo
    said = (
        f"values of {called(run.kernel)} near the borders of blocks depend on elements "
        f"{'beyond the depth' if has_halo else 'of other blocks'}: in a trial they changed by {share:.0%} of their "
        f"range when such elements did. Blocks are cut along {'axis' if len(cut) == 1 else 'axes'} "
        f"{', '.join(map(str, cut))}, so results depend on the budget. "
        f"{beyond if has_halo else f'{others}; if blocks are meant to be computed by themselves, give their chunks='}"
    )
    warnings.warn(said, BlockEdgeWarning, stacklevel=users_line())


@dataclass(frozen=True)
class _Probe:
    """A small box at the corner of a run's arrays, and the `middle` of it along the axes that are `cut`."""

    run: Prepared
    box: Region
    middle: Region
    cut: tuple[int, ...]
    blocks: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, run: Prepared, tried: Shape, cut: tuple[int, ...]) -> _Probe:
        """A probe about as large as the block that was tried, which may be flat."""
        nest = run.plan.op
        sides = _sides(nest.extents, tried, cut, nest.whole)
        box = grid.whole(sides)
        middle = tuple([slice(n // 4, n - n // 4) if a in cut else slice(0, n) for a, n in enumerate(sides)])
        pairs = zip(run.sources, nest.operands, strict=True)
        return cls(run, box, middle, cut, tuple([host_block(s, replace(o, ahead=()), box) for s, o in pairs]))

    @property
    def room(self) -> int:
        """Elements that lie around the middle, at most."""
        return max([self.middle[axis].start for axis in self.cut], default=0)

    def values(self, more: int) -> list[Any]:
        """Results where only elements as near to the middle as the depth, and so many more, are the array's own."""
        pairs = zip(self.middle, self.box, strict=True)
        kept = tuple([slice(max(m.start - more, 0), min(m.stop + more, b.stop)) for m, b in pairs])
        given = []
        for block, operand in zip(self.blocks, self.run.plan.op.operands, strict=True):
            near = replace(operand, ahead=())
            changed = _changed(block, within(near.region(kept), near.region(self.box)))
            given.append(self.run.device.to_device(changed))
        kernel, nest = self.run.kernel, self.run.plan.op
        assert kernel is not None
        sides = grid.shape_of(self.box)
        with interrupts.allowed(), trial():
            found = kernel(given, nest, Grid(nest.extents, sides), (0,) * len(sides), self.box)
        return list(found) if isinstance(found, tuple) else [found]

    def change(self, right: Sequence[Any], values: Sequence[Any]) -> float:
        """The largest change of a value in the middle, as a part of the range of all."""
        outputs = self.run.plan.op.outputs
        return max(
            _change(a, b, within(output.region(self.middle), output.region(self.box)))
            for a, b, output in zip(right, values, outputs, strict=True)
        )


def _sides(extents: Shape, tried: Shape, cut: Sequence[int], whole: Collection[int]) -> Shape:
    """Sides of a box with room around its middle: with no more elements than the one that was tried, if possible.

    >>> _sides((200, 300, 300), (1, 218, 300), (0,), ()), _sides((9, 9), (1, 9), (0,), (1,))
    ((8, 109, 75), (4, 9))
    """
    sides = [
        min(n, max(side, THICK)) if a in cut else side for a, (n, side) in enumerate(zip(extents, tried, strict=True))
    ]
    while math.prod(sides) > math.prod(tried):
        least = [n if a in whole else THICK // 2 if a in cut else 1 for a, n in enumerate(sides)]
        longest = max(range(len(sides)), key=lambda a: sides[a] / least[a])
        if sides[longest] <= least[longest]:
            break
        sides[longest] = max(sides[longest] // 2, least[longest])
    return tuple(sides)


def _seen(probe: _Probe) -> tuple[float, int | None] | None:
    """How much of the range some value changes, and by how much the depth must be larger; None where nothing changes.

    The depth is None where more is needed than the probe has room for.
    """
    if not probe.room:
        return None
    right = probe.values(probe.room)

    def change(more: int) -> float:
        return probe.change(right, probe.values(more))

    share = change(0)
    if share <= SHARE or change(probe.room) > 0:
        return None
    enough = bisect_left(range(probe.room), True, key=lambda more: change(more) <= SHARE)
    return share, enough if enough < probe.room else None


def _changed(block: np.ndarray, kept: Region) -> np.ndarray:
    """The block, with other values outside of the part that is kept.

    Integers and dates stay in their range, as they may be numbers of something; other numbers lie above it, so that
    means, ranks and extremes change, too.
    """
    block = np.ascontiguousarray(block)
    numbers = block.view(block.real.dtype) if block.dtype.kind == "c" else block
    if numbers.dtype.kind in "mM":
        numbers = numbers.view("i8")
    if numbers.dtype.kind not in "biuf" or not numbers.size:
        return block
    with np.errstate(all="ignore"):
        finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
        low, high = finite.min(), finite.max()
        if numbers.dtype.kind == "b":
            other = ~numbers
        elif numbers.dtype.kind == "f":
            other = high + (high - numbers) + (low == high)
        else:
            other = low + (high - numbers) // 2 if low < high else numbers ^ 1
    found = other.astype(numbers.dtype, copy=False).view(block.dtype)
    found[kept] = block[kept]
    return found


def _change(right: Any, values: Any, part: Region) -> float:
    """The largest change in a part of some values, as a part of the range of all; NaN counts as a value."""
    if right.dtype.kind in "mM":
        right, values = right.view("i8"), values.view("i8")
    if right.dtype.kind not in "biufc" or not right[part].size:
        return 0.0
    wide = "c16" if right.dtype.kind == "c" else "f8"
    right, values = right.astype(wide), values.astype(wide)
    new, old = values[part], right[part]
    if bool((np.isnan(new) != np.isnan(old)).any()):
        return 1.0
    change = float(np.nan_to_num(abs(new - old), nan=0.0).max())
    both = [np.nan_to_num(a.real, nan=0.0, posinf=0.0, neginf=0.0) for a in (right, values)]
    span = float(max(a.max() for a in both)) - float(min(a.min() for a in both))
    return change / span if span else 0.0
