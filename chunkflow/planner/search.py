"""From a declared pass, array specs and a budget to a plan: block shape, slots and loop order.

Pure: touches no data and knows no device and no store. The block is the box of the loop nest with the
fewest predicted seconds (`chunkflow.planner.cost`) among those whose projected bytes (`chunkflow.core.memory`) fit the
budget; where it hardly matters, `NEAR_TIE` and `SHARED_TIE` say which. Blocks never share a chunk of an output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Shape
from chunkflow.core.machine import Machine
from chunkflow.core.nest import NO_STRIPS, Along, LoopNest, Strips
from chunkflow.core.product_nest import ProductNest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes, listed
from chunkflow.errors import ArgumentError, BudgetError
from chunkflow.planner.candidate import plan_of
from chunkflow.planner.decode_batch import decoding
from chunkflow.planner.loop_order import nest_order
from chunkflow.planner.matmul_search import depths, product_plan
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import PlanProblem

SMALLEST_BLOCK = 64 << 10
"""Bytes of a block below which smaller ones are not considered: the overhead per block dominates."""

GIVEN_UP, SHARED_GIVEN_UP = 1.5, 4
"""Smaller blocks are not tried any more when they take so much longer than the best: from there each is slower. Where
the device shares the host's memory some are slower between two that are faster."""

RUN = 4 << 10
"""Bytes that are better read or written at once: a system call costs as much as copying them, and memory is slow in
shorter runs."""

FAR = 256
"""Bytes that are read from memory in about the time in which one element is moved by itself."""

COLUMN = 4 * RUN
"""Bytes of a file that blocks have at once, at least, where they are narrow for another reason."""

NEAR_TIE = 1.02
"""Predicted times within this factor of the best count as equal: the plan with the largest blocks is chosen."""

KEPT, WORTH = 4, 1.2
"""Blocks that keep less are tried too where what a fold keeps takes more than one part in so many of the budget; and
narrower ones as long as they are so many times as fast, since rows of a file come in shorter pieces."""

NEARLY = 64
"""Part of a block by which the largest one that fits may be larger than the one that is found."""

REREAD = 1.02
"""How often elements may be read, for their halos' sake, by blocks that are no whole planes where those fit too."""

MOSTLY_HALO, FEWER = 2, 4
"""Blocks of ever fewer lines are tried, by this factor, where with their halos all are so many times as large."""

OFTEN = 2
"""How often chunks are read for a plan to say what budget they fit."""

ROOMY, ROOMY_TIE = 0.9, 1.05
"""Part of a device's budget that a plan had better keep to, and what that may cost where its function has temporaries.
These vary in size: in a full budget one piece must go to make room for another, and the driver waits for all work."""

SHARED_TIE = 1.05
"""The same on a device that shares the host's memory, which others need too: the plan that takes least is chosen."""

LARGE, LARGE_TIE = 256 << 20, 1.15
"""Bytes beyond which, there, less memory is worth more time."""


def make_plan(
    op: LoopNest,
    operands: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    machine: Machine,
    budget: int,
    *,
    workspace: float = 0.0,
    reserve: int = 0,
    block: Sequence[int | None] | None = None,
    tiles: bool = False,
    strips: Strips = NO_STRIPS,
) -> Plan:
    """Choose the block shape, slots and loop order of a run.

    Parameters
    ----------
    op : LoopNest
        The pass.
    operands, outputs : sequence of ArraySpec
        One for each operand and output of the pass.
    machine : Machine
        Rates of the device.
    budget : int
        Bytes of device memory that the run may take.
    workspace : float
        Bytes that the kernel allocates besides its results, per element of a block of the loop nest.
    reserve : int
        Bytes of device memory that the device's libraries take outside the run's pool.
    block : tuple of int or None, optional
        Sides of the block that the user has fixed; None for a free one.
    tiles : bool
        Whether the kernel may be called on parts of a block.
    strips : Strips
        Elements of a block that the kernel works on at once.

    Returns
    -------
    Plan

    Raises
    ------
    BudgetError
        Not even the smallest block, with a single slot, fits.
    ArgumentError
        The fixed block shape would make two blocks write to one chunk of an output.

    Examples
    --------
    >>> import numpy as np
    >>> from chunkflow.core.nest import nest
    >>> from chunkflow.core.nest import Along, Output
    >>> from dataclasses import replace
    >>> x = ArraySpec("x", (1024, 1024), np.dtype("f4"))
    >>> op = replace(nest([x.shape]), outputs=(Output((Along(0), Along(1))),))
    >>> machine = Machine(read=3e10, upload=5e10, compute=8e11, download=5e10, write=3e10, overhead=1e-4)
    >>> plan = make_plan(op, [x], [x], machine, 2_000_000)
    >>> plan.memory.total <= 2_000_000, plan.block[1]
    (True, 1024)
    """
    problem = PlanProblem(
        op.anywhere, tuple(operands), tuple(outputs), machine, budget, workspace, reserve, frozenset(), (), strips
    )
    edges = repr([o.boundary for o in op.operands]) if op.has_halo else ""  # 0.0 and -0.0 are equal
    plan = _chosen(edges, problem, None if block is None else tuple(block), tiles)
    plan = replace(plan, operands=problem.operands, outputs=problem.outputs)  # whose names may be others
    if not any(o.start for o in op.operands):
        return plan
    pairs = zip(plan.op.operands, op.operands, strict=True)
    return replace(plan, op=replace(plan.op, operands=tuple(replace(o, start=own.start) for o, own in pairs)))


# Time step after time step asks for the same, and task after task; each block shape tried takes a tenth of a ms.
@lru_cache(64)
def _chosen(edges: str, problem: PlanProblem, block: tuple[int | None, ...] | None, tiles: bool) -> Plan:
    """The plan of a problem of which neither the free axes nor their order are known yet."""
    op, operands, machine = problem.op, problem.operands, problem.machine
    tiles = tiles and op.scan is None
    free = frozenset(a for a in op.divisible if not block or block[a] is None) if tiles else frozenset()
    problem = replace(problem, tiled=free, order=nest_order(op, operands))
    sides = _allowed_sides(problem, block)
    if isinstance(op, ProductNest) and all(op.extents):
        if op.single and machine.accumulates:
            problem = replace(problem, op=replace(op, panel=None))
        if op.reuses:
            found = product_plan(problem, sides.longest, [sides.units, _aligned_to_sources(problem, sides)])
            if found is not None:
                return found
        elif all(s.storage.in_memory for s in operands) and depths(problem) != machine.depths:
            # With nothing to read, lanes would only stand in the way of BLAS, which keeps to the cache by itself.
            problem = replace(problem, machine=replace(machine, depths=depths(problem), cache=0))
    fitting = _fitting_plans(problem, sides)
    if not fitting:
        raise _too_small(problem, sides)
    chosen = _with_notes(_best(problem, fitting), fitting, most=max(machine.depths))
    return _with_whole_chunks(chosen, problem, sides)


class _Sides(NamedTuple):
    """Sides that blocks may have along each axis: multiples of the units, and no longer than the longest."""

    longest: list[int]
    units: list[int]


def _allowed_sides(problem: PlanProblem, block: Sequence[int | None] | None) -> _Sides:
    """Sides that keep chunks of outputs whole, and those that the user has fixed."""
    units = _units(problem)
    longest = [max(1, n) for n in problem.op.extents]
    for axis, side in enumerate(block or ()):
        if side is not None:
            if side < problem.op.extents[axis] and side % units[axis]:
                raise ArgumentError(
                    f"blocks of {side} along axis {axis} would cut the output's chunks (or an axis that must stay "
                    f"whole): use a multiple of {units[axis]}, or leave the choice to the planner"
                )
            longest[axis] = units[axis] = min(side, longest[axis])
    return _Sides(longest, units)


def _fitting_plans(problem: PlanProblem, sides: _Sides) -> list[Plan]:
    """Plans within the budget: whole planes first, then narrower blocks if they are faster."""
    broad = _broad(problem, sides)
    fitting: list[Plan] = []
    ways = [_Tried(way) for way in _ways(problem)]
    for way in ways:
        wide = list(_candidates(way, broad)) if broad != sides else []
        fitting += wide or list(_candidates(way, sides))
    sooner = min((plan.estimate.seconds for plan in fitting), default=math.inf) / NEAR_TIE
    for way, narrow in itertools.product(ways, _narrower(problem, sides)):
        plans = _candidates(way, narrow)
        fitting += [plan for plan in plans if plan.rereads <= REREAD and plan.estimate.seconds < sooner]
    fitting += [plan for plan in _columns(problem, sides) if plan.estimate.seconds < sooner]
    if fitting and min(plan.rereads for plan in fitting) > REREAD:
        parts = _sides_of_a_chunk(problem, sides)
        fitting += [p for way in ways for p in _candidates(way, parts) if p.estimate.seconds < sooner]
        within = [p for way in ways for p in _within_chunks(way.problem, sides, fitting)]
        fitting += [p for p in within if p.estimate.seconds < sooner]
    for way, narrow in itertools.product(ways, _fewer_lines(problem, sides, fitting)):
        fitting += [plan for plan in _candidates(way, narrow) if plan.estimate.seconds < sooner]
    far = any(spec.storage.remote for spec in problem.operands)
    most = max(REREAD if far else OFTEN, min((plan.rereads for plan in fitting), default=0.0))
    for way, narrow in itertools.product(ways, _cubes(problem, sides, fitting)):
        fitting += [p for p in _candidates(way, narrow) if p.rereads <= most and p.estimate.seconds < sooner]
    fitting += _looked_up(problem, sides)
    for narrow in _keeping_less(problem, sides, fitting):
        less = [plan for way in ways for plan in _candidates(way, narrow)]
        seconds = min((plan.estimate.seconds for plan in less), default=math.inf)
        if seconds > sooner / WORTH:
            break
        fitting += less
        sooner = seconds
    return fitting


def _too_small(problem: PlanProblem, sides: _Sides) -> BudgetError:
    """The error of a budget in which no block fits, with the smallest one that would do."""
    block, budget, reserve = _grid.fit(*sides, problem.order, 1), problem.budget, problem.reserve
    smallest = _least(problem, block)
    least = plan_of(replace(problem, budget=smallest), block, min(problem.machine.depths))
    coding = 0 if problem.machine.staged else least.memory.staging
    held = f"; {format_bytes(coding)} of the block hold chunks while they are decoded or encoded"
    whose = "is the device libraries' own" if problem.machine.staged else "is held already"
    arrays = listed([f"{s.name} {s.shape}" for s in problem.operands])
    return BudgetError(
        f"the smallest block takes {format_bytes(smallest)}, with all that is computed from it, and the budget is "
        f"{format_bytes(budget)} ({budget} bytes): raise budget= to at least {smallest}"
        + (f", of which {format_bytes(reserve)} {whose}" if reserve else "")
        + (held if 2 * coding > smallest else "")
        + "".join(
            f"; blocks hold whole chunks {s.chunks} of {s.name}"
            for s in problem.outputs
            if math.prod(s.chunks or ()) > 1
        )
        + "".join(f"; {s.storage.instead}" for s in problem.operands if s.chunks and s.storage.instead),
        needed=smallest,
        limit=budget,
        smallest=smallest,
        about=f"The block is of {arrays}" if arrays else "",
    )


def _best(problem: PlanProblem, fitting: Sequence[Plan]) -> Plan:
    """The fastest plan; among those that are about as fast the largest blocks, or on a shared host the least memory."""
    best = min(p.estimate.seconds for p in fitting)
    if problem.machine.staged:
        roomy = [p for p in fitting if p.memory.total <= ROOMY * problem.budget]
        sooner = min((p.estimate.seconds for p in roomy), default=math.inf)
        if sooner <= best * (ROOMY_TIE if problem.workspace else NEAR_TIE):
            fitting, best = roomy, sooner
        near = [p for p in fitting if p.estimate.seconds <= best * NEAR_TIE]
        return max(near, key=lambda p: (math.prod(p.block), p.depth))
    near = [p for p in fitting if p.estimate.seconds <= best * SHARED_TIE]
    if min(p.memory.total for p in near) > LARGE:
        near = [p for p in fitting if p.estimate.seconds <= best * LARGE_TIE]
    return min(near, key=lambda p: (p.memory.total, p.estimate.seconds))


def _with_notes(chosen: Plan, fitting: Sequence[Plan], most: int) -> Plan:
    """The plan, with notes on what the budget would allow besides, or does not; the machine has `most` slots."""
    notes = []
    alike = [p for p in fitting if (p.depth, p.batches.keys()) == (chosen.depth, chosen.batches.keys())]
    larger = max(alike, key=lambda p: p.memory.total)
    if larger.memory.total > chosen.memory.total:
        notes.append(
            f"smaller than the budget allows: by their bytes these take {chosen.estimate.seconds:.3g} s, and blocks of "
            f"{larger.block} {larger.estimate.seconds:.3g} s and {format_bytes(larger.memory.total)}"
        )
    if chosen.depth == 1 < min(len(chosen.grid), most):
        notes.append("a single slot: one block is read, computed and written after another")
    return replace(chosen, notes=tuple(notes)) if notes else chosen


def _with_whole_chunks(chosen: Plan, problem: PlanProblem, sides: _Sides) -> Plan:
    """The plan, with the budget that would do where chunks of sources do not fit, and are read for many blocks."""
    if chosen.rereads < OFTEN:
        return chosen
    aligned = _grid.fit(sides.longest, _aligned_to_sources(problem, sides), problem.order, 1)
    least = _least(problem, aligned)
    if least > problem.budget:
        chosen = replace(chosen, whole=least)
    return replace(chosen, notes=(*chosen.notes, chosen.read_again)) if chosen.read_again else chosen


def _ways(problem: PlanProblem) -> list[PlanProblem]:
    """Chunks decoded by the host, or those that the device can decode by it; or held by a lane in memory of its own."""
    able = frozenset(i for i, spec in enumerate(problem.operands) if decoding(spec, problem.machine) is not None)
    ways = [problem, *([replace(problem, unpacked=able)] if able and not problem.op.is_product else [])]
    if not problem.machine.staged and problem.coded > 1 and any(s.storage.kept for s in problem.operands):
        ways.append(replace(problem, holds=True))
    return ways


def _least(problem: PlanProblem, block: Shape) -> int:
    """Smallest budget in which a block fits: a larger one allows more threads, which take more themselves."""
    depth, least = min(problem.machine.depths), problem.budget
    while (total := plan_of(replace(problem, budget=least), block, depth).memory.total) > least:
        least = total
    return least


def _units(problem: PlanProblem) -> list[int]:
    """Along each axis, what a block must be a multiple of for no two of them to share a chunk of an output."""
    op = problem.op
    must = [n if a in op.whole else 1 for a, n in enumerate(op.extents)]
    for spec, output in zip(problem.outputs, op.outputs, strict=True):
        for dim, chunk in zip(output.dims, spec.chunks or (1,) * len(output.dims), strict=True):
            if isinstance(dim, Along):
                unit = chunk * dim.ratio.denominator
                must[dim.axis] = math.lcm(must[dim.axis], unit // math.gcd(unit, dim.ratio.numerator))
    return [max(1, min(u, n)) for u, n in zip(must, op.extents, strict=True)]


def _broad(problem: PlanProblem, sides: _Sides) -> _Sides:
    """Units that let every array be read and written in runs, not element by element, whatever its layout."""
    units, order = list(sides.units), problem.order
    arrays = [(s, [*o.axes]) for s, o in zip(problem.operands, problem.op.operands, strict=True)]
    for spec, output in zip(problem.outputs, problem.op.outputs, strict=True):
        arrays.append((spec, [d.axis if isinstance(d, Along) and d.ratio == 1 else None for d in output.dims]))
    most = max((spec.nbytes for spec, _ in arrays), default=0)
    for spec, axes in arrays:
        axis = axes[spec.order[-1]] if axes else None
        each = FAR if spec.storage.in_memory else RUN
        few = math.prod(spec.shape) * each <= most  # whose elements can be moved one by one
        if axis is None or spec.chunks is not None or few or axis == order[-1]:
            continue
        unit = units[axis]
        wanted = -(-RUN // (spec.dtype.itemsize * unit)) * unit
        units[axis] = max(unit, min(wanted, sides.longest[axis]))
    return sides._replace(units=units)


class _Tried:
    """Plans of blocks of a problem, each made once."""

    def __init__(self, problem: PlanProblem) -> None:
        self.problem = problem
        self._plans: dict[tuple[Shape, int], Plan] = {}

    def plan(self, block: Shape, depth: int) -> Plan:
        found = self._plans.get((block, depth))
        if found is None:
            found = self._plans[block, depth] = plan_of(self.problem, block, depth)
        return found


def _candidates(tried: _Tried, sides: _Sides) -> Iterator[Plan]:
    """Plans within the budget: for each number of slots the largest block that fits, then halves of it."""
    problem = tried.problem
    unit_sets = [sides.units]
    aligned = _aligned_to_sources(problem, sides)
    if aligned != unit_sets[0]:
        unit_sets.append(aligned)
    item = max([s.dtype.itemsize for s in (*problem.operands, *problem.outputs)], default=1)
    given_up = GIVEN_UP if problem.machine.staged else SHARED_GIVEN_UP
    for units, depth in itertools.product(unit_sets, problem.machine.depths):

        def at(target: int, units: list[int] = units, depth: int = depth) -> Plan:
            return tried.plan(_grid.fit(sides.longest, units, problem.order, target), depth)

        plan = _largest(at, math.prod(sides.longest), problem.budget)
        if plan is None:
            continue
        even = at(_evened(plan.block, sides.longest, problem.order))
        plan = even if even.memory.total <= problem.budget else plan
        yield plan
        if plan.memory.total > ROOMY * problem.budget and problem.machine.staged and problem.workspace:
            room = ROOMY * problem.budget / plan.memory.total
            roomy = at(int(room**1.5 * math.prod(plan.block)))  # as not all of the memory goes with the block's size
            if roomy.memory.total <= problem.budget:
                yield roomy
        best = plan.estimate.seconds
        target = math.prod(plan.block) // 2
        while target * item >= SMALLEST_BLOCK or plan.depth == 1 < target:
            smaller = at(target)
            if smaller.block != plan.block:
                plan = smaller
                if plan.memory.total <= problem.budget:  # not every smaller block takes less: see Plan.recycled
                    yield plan
                best = min(best, plan.estimate.seconds)
                if plan.estimate.seconds > best * given_up:
                    break
            if math.prod(plan.block) > target:
                break  # nothing smaller keeps the units whole
            target //= 2


def _evened(block: Shape, longest: Sequence[int], order: Shape) -> int:
    """Elements of a block with one block fewer along the axis that is cut, if it is but little larger.

    >>> _evened((255, 100), (512, 100), (0, 1)), _evened((200, 100), (512, 100), (0, 1))
    (25600, 20000)
    """
    size = math.prod(block)
    axis = next((a for a in reversed(order) if block[a] < longest[a]), None)
    if axis is None:
        return size
    side = -(-longest[axis] // (_grid.count(longest[axis], block[axis]) - 1))
    return size // block[axis] * side if side <= block[axis] * (1 + 2 / NEARLY) else size


def _largest(at: Callable[[int], Plan], most: int, budget: int) -> Plan | None:
    """The largest plan within a budget, nearly, of those that `at` gives for numbers of elements.

    Memory nearly goes with the number, so what a straight line says is tried first, and then halves of what is left.
    """
    above = at(most)
    if above.memory.total <= budget:
        return above
    found = at(1)
    if found.memory.total > budget:
        return None
    low, high, turn = 1, most, 0
    while high - low > (step := max(low // NEARLY, 1)):
        (size, least), (larger, total) = ((math.prod(p.block), p.memory.total) for p in (found, above))
        straight = size + (larger - size) * (budget - least) // max(total - least, 1)
        middle = (low + high) // 2 if turn % 3 == 2 else min(max(straight, low + step), high - 1)
        tried = at(middle)
        if tried.memory.total <= budget:
            low, found = middle, tried
        else:
            high, above = middle, tried
        turn += 1
    return found


def _narrower(problem: PlanProblem, sides: _Sides) -> Iterator[_Sides]:
    """Longest sides of blocks that are no whole planes: with a halo, thin slabs of planes are mostly halo."""
    if problem.machine.staged and problem.op.has_halo and len(problem.order) > 2:
        axis = problem.order[-2]
        for parts in (2, 4, 8):
            narrow = list(sides.longest)
            narrow[axis] = -(-sides.longest[axis] // parts)
            if narrow[axis] % sides.units[axis] == 0 and narrow[axis] < sides.longest[axis]:
                yield sides._replace(longest=narrow)


def _fewer_lines(problem: PlanProblem, sides: _Sides, fitting: Sequence[Plan]) -> Iterator[_Sides]:
    """Longest sides of blocks of ever fewer lines, where a halo along these outweighs what the blocks have."""
    op = problem.op
    if _is_little_halo(op, fitting):
        return
    along = {axis for o in op.operands for axis, beside in zip(o.axes, o.halo, strict=False) if any(beside)}
    longest = list(sides.longest)
    for axis in problem.order:
        unit = sides.units[axis]
        while axis not in along and longest[axis] > unit:
            longest[axis] = max(longest[axis] // FEWER // unit * unit, unit)
            yield sides._replace(longest=list(longest))


def _cubes(problem: PlanProblem, sides: _Sides, fitting: Sequence[Plan]) -> Iterator[_Sides]:
    """Longest sides of blocks that are about as long as wide, where planes with their halos are mostly halo.

    So functions compute least of the halos. Rows stay long enough to be moved at once.
    """
    op = problem.op
    if problem.machine.staged or _is_little_halo(op, fitting):
        return
    along = {axis for o in op.operands for axis, beside in zip(o.axes, o.halo, strict=False) if any(beside)}
    moved = RUN if any(not s.storage.in_memory for s in problem.operands) else FAR
    row = moved // min([s.dtype.itemsize for s in problem.operands], default=1)
    side = max([n for a, n in enumerate(sides.longest) if a in along], default=1)
    while side > 1:
        side = -(-side // 2)
        caps = [side if a in along else n for a, n in enumerate(sides.longest)]
        caps[problem.order[-1]] = max(caps[problem.order[-1]], row)
        yield sides._replace(
            longest=[min(n, -(-cap // u) * u) for n, cap, u in zip(sides.longest, caps, sides.units, strict=True)]
        )
        if side <= 2 * max(max(beside) for o in op.operands for beside in o.halo):
            break


def _is_little_halo(op: LoopNest, fitting: Sequence[Plan]) -> bool:
    """Whether there are blocks that are less halo than their own elements."""
    return not op.has_halo or any(op.volume(p.block) <= MOSTLY_HALO * math.prod(p.block) for p in fitting)


def _sides_of_a_chunk(problem: PlanProblem, sides: _Sides) -> _Sides:
    """Longest sides of blocks that lie in one chunk: where none holds a whole one, few blocks have parts of each."""
    longest = list(sides.longest)
    for spec, operand in zip(problem.operands, problem.op.operands, strict=True):
        for axis, chunk in zip(operand.axes, spec.chunks or (), strict=False):
            if axis is not None:
                unit = sides.units[axis]
                longest[axis] = min(longest[axis], max(chunk // unit, 1) * unit)
    return sides._replace(longest=longest)


def _within_chunks(problem: PlanProblem, sides: _Sides, fitting: Sequence[Plan]) -> Iterator[Plan]:
    """Plans of somewhat smaller blocks, none of which begins in one chunk and ends in the next.

    Where a single lane finds the chunk that was decoded for the block before, each is decoded once for all of these.
    """
    kept = [(s, o) for s, o in zip(problem.operands, problem.op.operands, strict=True) if s.storage.kept and s.chunks]
    if problem.machine.staged or len(kept) != 1:
        return
    ((spec, operand),) = kept
    chunk_of = {axis: chunk for axis, chunk in zip(operand.axes, spec.chunks or (), strict=True) if axis is not None}
    found: set[Shape] = set()
    for plan in fitting:
        block = tuple(
            [
                max([n for n in range(unit, side + 1, unit) if chunk_of[a] % n == 0], default=side)
                if a in chunk_of and side < chunk_of[a] and side < problem.op.extents[a]
                else side
                for a, (side, unit) in enumerate(zip(plan.block, sides.units, strict=True))
            ]
        )
        if block not in found:
            found.add(block)
            plan = plan_of(problem, block, min(problem.machine.depths))
            if plan.kept and plan.memory.total <= problem.budget:
                yield plan


def _columns(problem: PlanProblem, allowed: _Sides) -> Iterator[Plan]:
    """Plans of blocks that are whole along the folded axes, narrow along another one.

    Where planes are folded, slabs give nearly as many partial results as they have elements, if there are few planes in
    each, and lanes that take turns at one result wait for one another. On a device of its own what is uploaded counts
    more.
    """
    op, machine, order, caps = problem.op, problem.machine, problem.order, allowed.longest
    kept = [a for a in order if a not in op.folded]
    if machine.staged or not kept or order[0] not in op.folded or op.holds(caps) <= machine.cache:
        return
    axis = kept[0]
    unit = _aligned_to_sources(problem, allowed)[axis]
    item = max((s.dtype.itemsize for s in problem.operands), default=1)
    behind = math.prod(caps[a] for a in order[order.index(axis) + 1 :]) * item
    sides = {-(-caps[axis] // (parts * unit)) * unit for parts in (1 << i for i in range(1, caps[axis].bit_length()))}
    for side, depth in itertools.product(sorted(n for n in sides if n * behind >= COLUMN), machine.depths):
        plan = plan_of(problem, tuple(side if a == axis else n for a, n in enumerate(caps)), depth)
        if plan.memory.total <= problem.budget:
            yield plan


def _looked_up(problem: PlanProblem, sides: _Sides) -> Iterator[Plan]:
    """Plans in which ever fewer places are looked up at a time: the fewer, the longer the parts of lines beside.

    Places of fewer lines come first, which are read once; or those that lie together.
    """
    axes, (longest, units) = problem.op.looked_up, sides
    if not axes:
        return
    places, few = ([1 if a in axes else n for a, n in enumerate(of)] for of in (longest, units))
    shared = frozenset.intersection(*(frozenset(o.axes) for o in problem.op.operands))
    lines_first = tuple(sorted(problem.order, key=lambda a: a not in shared))
    for order in dict.fromkeys((lines_first, problem.order)):
        number = math.prod(places)
        while number:
            fewer = _grid.fit(places, few, order, number)
            most, least = (
                [n if a in axes else m for a, (n, m) in enumerate(zip(of, fewer, strict=True))]
                for of in (longest, units)
            )
            for depth in problem.machine.depths:

                def at(target: int, most: list[int] = most, least: list[int] = least, depth: int = depth) -> Plan:
                    return plan_of(problem, _grid.fit(most, least, problem.order, target), depth)

                plan = _largest(at, math.prod(most), problem.budget)
                if plan is not None:
                    yield plan
            number //= 4


def _keeping_less(problem: PlanProblem, sides: _Sides, fitting: Sequence[Plan]) -> Iterator[_Sides]:
    """Longest sides of blocks that keep ever less of a fold: where that takes a budget, little is left for elements."""
    op = problem.op
    kept = [a not in op.folded for a in range(len(op.extents))]
    most = max((plan.memory.partials for plan in fitting), default=0)
    if op.is_product or not op.folded or most * KEPT <= problem.budget:
        return
    longest = [n if keeps else 1 for n, keeps in zip(sides.longest, kept, strict=True)]
    units = [n if keeps else 1 for n, keeps in zip(sides.units, kept, strict=True)]
    target = max(math.prod(n for n, keeps in zip(plan.block, kept, strict=True) if keeps) for plan in fitting)
    while (target := target // 2) >= math.prod(units):
        less = _grid.fit(longest, units, problem.order, target)
        yield sides._replace(longest=[m if keeps else n for n, m, keeps in zip(sides.longest, less, kept, strict=True)])


def _aligned_to_sources(problem: PlanProblem, sides: _Sides) -> list[int]:
    """Units that keep the chunks of the sources whole too."""
    units = list(sides.units)
    for spec, operand in zip(problem.operands, problem.op.operands, strict=True):
        for axis, chunk in zip(operand.axes, spec.chunks or (), strict=False):
            if axis is not None:
                units[axis] = min(math.lcm(units[axis], chunk), sides.longest[axis])
    return units
