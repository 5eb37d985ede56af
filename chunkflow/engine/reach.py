"""Whether values of the user's function depend on where its blocks end.

A function that looks further than its blocks reach gives other values near their borders, and these change with the
budget. A small block shows it: elements on which the values in its middle must not depend are changed.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core import grid
from chunkflow.core.grid import Grid, Region, Shape, within
from chunkflow.core.nest import LoopNest
from chunkflow.engine.prepare import Prepared
from chunkflow.engine.trial import read_block
from chunkflow.errors import BlockEdgeWarning
from chunkflow.kernels.fusion.program import Call, Fused, Instruction
from chunkflow.kernels.local import is_local_call
from chunkflow.kernels.protocol import Kernel, KernelWrapper, trial
from chunkflow.kernels.users import called
from chunkflow.system import interrupts
from chunkflow.system.users_line import users_line

SHARE = 0.01
"""Part of the range of all values by which one must change: filters whose tails are cut on purpose change by less."""

SAME = 1e-5
"""Part of the range by which values may change that are the same but for rounding, where a depth is enough."""

THICK = 8, 32, 128
"""Elements along an axis that give a middle, and some around it: more of them to find a depth that is enough."""


PART = 8
"""One part in so many of the block of a trial is enough, where it can be cut."""


def warn_of_block_edges(run: Prepared) -> None:
    """Warn, once a run starts, if values near the borders of blocks are not those of the whole array.

    Nothing is said of a function that gives other values each time, or that fails on values that are not the array's.
    """
    cut = tuple([axis for axis, n in enumerate(run.plan.grid.counts) if n > 1])
    if run.tried is None or not cut:
        return
    found = None
    with suppress(Exception), run.device.attach(), run.pool.active(), np.errstate(all="ignore"):
        for thick in THICK:
            seen = next(filter(None, map(_seen, _probes(run, run.tried, cut, thick))), None)
            found = seen or found
            if seen is None or seen.is_same or not seen.is_far:
                break
    if found is None:
        return
    probe, share, enough, is_far, is_same = found
    axes = f"{'axis' if len(probe.cut) == 1 else 'axes'} {', '.join(map(str, probe.cut))}"
    still = "" if is_same else ", with which they still change by up to 1%"
    beyond = (
        "Give a much larger depth=, or compute what fn takes of all first, as the numbers of labels"
        if enough is None
        else f"Give a depth= that is larger by at least {enough} along {axes}{still}, or ignore BlockEdgeWarning if "
        "that is meant"
    )
    others = (
        "Use map_overlap, or apply_gufunc, which keeps its core axes whole, or compute what fn takes of all first"
        if enough is None
        else f"Use map_overlap with a depth of at least {enough}{still}, which hands each block its neighbours"
    )
    has_halo = probe.nest.has_halo
    on = (
        "where a block ends, or how long it is"
        if not is_far
        else "elements beyond the depth"
        if has_halo
        else "elements of other blocks"
    )
    way = (
        "Take places from block_info=, or from an array beside the other"
        if not is_far
        else beyond
        if has_halo
        else others
    )
    own = "" if has_halo else "; if blocks are meant to be computed by themselves, give their chunks="
    said = (
        f"values of {called(probe.kernel)} depend on {on}: in a trial they changed by {share:.0%} of their range with "
        f"such a change, and of less than 1% nothing is said. Blocks are cut along {axes}, so results depend on the "
        f"budget. {way}{own}"
    )
    warnings.warn(said, BlockEdgeWarning, stacklevel=users_line())


@dataclass(frozen=True)
class _Probe:
    """A call of a kernel on a small box of its nest, whose `cut` axes are cut into blocks.

    `lies` has the axis that each dimension of its results follows; None where the nest has its outputs.
    """

    kernel: Kernel
    nest: LoopNest
    box: Region
    blocks: Sequence[Any]
    cut: tuple[int, ...]
    lies: tuple[int, ...] | None = None

    @property
    def middle(self) -> Region:
        """A part of the box, with a quarter of it before and less behind: what is turned around shows that way."""
        pairs = [((s.stop - s.start) // 4 if a in self.cut else 0, s) for a, s in enumerate(self.box)]
        return tuple([slice(s.start + n, s.stop - n // 2) for n, s in pairs])

    @property
    def room(self) -> int:
        """Elements that lie around the middle, at most."""
        return max([self.middle[axis].start - self.box[axis].start for axis in self.cut], default=0)

    def alone(self) -> list[Any]:
        """Results of the middle as a block of its own."""
        given = [
            block[within(operand.region(self.middle), operand.region(self.box))]
            for block, operand in zip(self.blocks, self.nest.operands, strict=True)
        ]
        return self._results(given, self.middle)

    def values(self, more: int, *, mixed: bool = False) -> list[Any]:
        """Results where only elements as near to the middle as the depth, and so many more, are the array's own."""
        pairs = zip(self.middle, self.box, strict=True)
        kept = tuple([slice(max(m.start - more, b.start), min(m.stop + more, b.stop)) for m, b in pairs])
        given = [
            _changed(block, within(operand.region(kept), operand.region(self.box)), mixed=mixed)
            for block, operand in zip(self.blocks, self.nest.operands, strict=True)
        ]
        return self._results(given, self.box)

    def _results(self, blocks: Sequence[Any], box: Region) -> list[Any]:
        sides = grid.shape_of(box)
        with interrupts.allowed(), trial():
            found = self.kernel(blocks, self.nest, Grid(self.nest.extents, sides), (0,) * len(sides), box)
        return list(found) if isinstance(found, tuple) else [found]

    def change(self, right: Sequence[Any], values: Sequence[Any]) -> float:
        """The largest change of a value in the middle, as a part of the range of all; `values` may have that alone."""
        found = 0.0
        for i, (a, b) in enumerate(zip(right, values, strict=True)):
            middle = self._middle_of(i)
            found = max(found, _change(a, b, middle, middle if b.shape == a.shape else ...))
        return found

    def _middle_of(self, number: int) -> Region:
        if self.lies is not None:
            middle = within(self.middle, self.box)
            return tuple([middle[axis] for axis in self.lies])
        output = self.nest.outputs[number]
        return within(output.region(self.middle), output.region(self.box))


class _Dependence(NamedTuple):
    """The share of their range by which values of a probe changed, and by how much the depth must be larger.

    The depth is None where more is needed than the probe has room for. Not `is_far`: it is not of elements further away
    that values depend, but of the block's shape. Not `is_same`: with that depth they still change, if by little.
    """

    probe: _Probe
    share: float
    enough: int | None
    is_far: bool = True
    is_same: bool = False


def _probes(run: Prepared, tried: Shape, cut: tuple[int, ...], thick: int) -> Iterator[_Probe]:
    """Probes of a run's calls of the user's functions, at the corner of its arrays."""
    kernel, nest = run.kernel, run.plan.op
    assert kernel is not None
    box = grid.whole(_sides(nest.extents, tried, cut, nest.whole, thick))
    nest = replace(nest, operands=tuple([replace(operand, ahead=()) for operand in nest.operands]))
    blocks = [read_block(*each, run.device, box) for each in zip(run.sources, nest.operands, strict=True)]
    if not isinstance(kernel, Fused):
        yield _Probe(kernel, nest, box, blocks, cut)
        return
    found: list[_Probe] = []
    program = [(_noting(i, cut, found) if is_local_call(i) else i, spent) for i, spent in kernel.program]
    sides = grid.shape_of(box)
    with interrupts.allowed(), trial():
        empty = [None for part in kernel.parts if part is not None]
        replace(kernel, program=tuple(program)).step(
            empty, blocks, nest, Grid(nest.extents, sides), (0,) * len(sides), box
        )
    yield from found


def _noting(call: Instruction, cut: tuple[int, ...], found: list[_Probe]) -> Call:
    """A call of a program that notes what its kernel is given."""
    assert isinstance(call, Call)
    own = tuple([i for i, axis in enumerate(call.axes) if axis in cut])
    return replace(call, kernel=_Noting(call.kernel, own, call.lies, found))


@dataclass(frozen=True)
class _Noting(KernelWrapper):
    """Notes what a kernel is given, and calls it."""

    kernel: Any
    cut: tuple[int, ...]
    lies: tuple[int, ...]
    found: list[_Probe]

    def where(self, nest: LoopNest, box: Region) -> tuple[LoopNest, Region]:
        return nest, box

    def given(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Sequence[Any]:
        self.found.append(_Probe(self.kernel, nest, box, list(blocks), self.cut, self.lies))
        return blocks


def _sides(extents: Shape, tried: Shape, cut: Sequence[int], whole: Collection[int], thick: int) -> Shape:
    """Sides of a box with room around its middle: a part of the block that was tried, if possible.

    Axes of which the function has seen all are as long again: it may need that.

    >>> _sides((200, 300, 300), (1, 218, 300), (0,), (), 8), _sides((9, 9), (1, 9), (0,), (1,), 8)
    ((8, 3, 300), (4, 9))
    """
    kept = {a for a, n in enumerate(extents) if a in whole or (a not in cut and tried[a] == n)}
    sides = list(tried)
    for axis in cut:
        sides[axis] = min(extents[axis], max(sides[axis], thick))
    least = [n if a in kept else min(n, thick // 2) if a in cut else 1 for a, n in enumerate(sides)]
    while math.prod(sides) > math.prod(tried) // PART:
        longest = max(range(len(sides)), key=lambda a: sides[a] / least[a])
        if sides[longest] <= least[longest]:
            break
        sides[longest] = max(sides[longest] // 2, least[longest])
    return tuple(sides)


def _seen(probe: _Probe) -> _Dependence | None:
    """What shows that values depend on more than they should; None if nothing does."""
    if not probe.room:
        return None
    right = probe.values(probe.room)

    def change(more: int) -> float:
        found = probe.change(right, probe.values(more))
        return found if found > SHARE else max(found, probe.change(right, probe.values(more, mixed=True)))

    far = change(0)
    share = far if far > SHARE else probe.change(right, probe.alone())
    if share <= SHARE or change(probe.room) > 0:
        return None
    if far <= SHARE:
        return _Dependence(probe, share, None, is_far=False)
    for limit in (SAME, SHARE):
        enough = bisect_left(range(probe.room), True, key=lambda more: change(more) <= limit)
        if enough <= probe.room // 2:  # of a mean of all elements, say, more only leaves fewer that are changed
            return _Dependence(probe, share, enough, is_same=limit == SAME)
    return _Dependence(probe, share, None)


def _changed(block: Any, kept: Region, *, mixed: bool) -> Any:
    """The block, with other values outside of the part that is kept.

    Integers and dates stay in their range, as they may be numbers of something; other numbers lie above it, so that
    means, ranks and extremes change, too. If `mixed`, the lowest and the highest value alternate: of what is found
    there, as by a threshold, there is more, or less.
    """
    block = block.copy("C")
    numbers = block.view(block.real.dtype) if block.dtype.kind == "c" else block
    if numbers.dtype.kind in "mM":
        numbers = numbers.view("i8")
    if numbers.dtype.kind not in "biuf" or not numbers.size:
        return block
    with np.errstate(all="ignore"):
        finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
        low, high = finite.min(), finite.max()
        if mixed:
            other = np.where(_checkered(numbers), high, low)
        elif numbers.dtype.kind == "b":
            other = ~numbers
        elif numbers.dtype.kind == "f":
            other = high + (high - numbers) + (low == high)
        else:
            other = low + (high - numbers) // 2 if low < high else numbers ^ 1
    found = other.astype(numbers.dtype, copy=False).view(block.dtype)
    found[kept] = block[kept]
    return found


def _checkered(array: Any) -> Any:
    """True and False in turns along each axis, in the memory of an array."""
    found = np.zeros_like(array, dtype=bool)
    for axis in range(array.ndim):
        every = (slice(None),) * axis + (slice(1, None, 2),)
        found[every] = ~found[every]
    return found


def _change(right: Any, values: Any, part: Region, same: Any) -> float:
    """The largest change in a part of some values, as a part of the range of all; NaN counts as a value.

    The `same` part of the others is compared with it.
    """
    if right.dtype.kind in "mM":
        right, values = right.view("i8"), values.view("i8")
    if right.dtype.kind not in "biufc" or not right[part].size:
        return 0.0
    wide = "c16" if right.dtype.kind == "c" else "f8"
    right, values = right.astype(wide), values.astype(wide)
    new, old = values[same], right[part]
    if bool((np.isnan(new) != np.isnan(old)).any()):
        return 1.0
    change = float(np.nan_to_num(abs(new - old), nan=0.0).max())
    both = [np.nan_to_num(a.real, nan=0.0, posinf=0.0, neginf=0.0) for a in (right, values)]
    span = float(max(a.max() for a in both)) - float(min(a.min() for a in both))
    return change / span if span else 0.0
