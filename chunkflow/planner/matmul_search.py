"""Blocks of a product: a search over the sides along all axes for those that read the fewest bytes.

How often an operand is read depends on how the axes that it lacks are cut, so growing a box along the memory
order of one array, as the planner does elsewhere, would not find the best. All shapes of a grid are compared at
once by arithmetic on arrays; the plan itself is made, and its memory counted exactly, for the best of them only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chunkflow.core import grid as _grid
from chunkflow.core.machine import Machine
from chunkflow.core.memory import ALIGNMENT
from chunkflow.core.nest import Operand
from chunkflow.core.product_nest import ProductNest
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.candidate import plan_of
from chunkflow.planner.cost import PANEL
from chunkflow.planner.loop_order import walks
from chunkflow.planner.matmul_schedule import in_turn
from chunkflow.planner.memory_model import SPREAD
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import PlanProblem

SHAPES, PER_SHAPE, FEWEST = 40_000, 512, 1728
"""Block shapes that are compared, at most; bytes of the budget for each, since the figures of one take some hundred;
and shapes that are compared in any budget: of a few, the only one that fits may have a row of one element."""

NEAR = 1.02
"""Shapes that read this much more than the best count as equal: the one with the fewest blocks is taken."""

SHARED_NEAR = 1.02
"""The same of predicted seconds where the host's memory is shared: the one that takes the least memory is taken."""

SHARED_LESS, MODEST = 1.06, 64 << 20
"""So much more time is worth a quarter less memory there, if there are more bytes of it than this."""

DEEP = 256
"""Elements that are summed for each result below which a product of blocks is slow, so that it is avoided."""

SHALLOW = 4
"""How many times as long as predicted such a product is taken to last: in a small budget others last longer still."""

STRIP = 64
"""Elements of a strip of a product: one that is narrower takes BLAS of a host nearly as long."""

BROAD, EVEN = 1024, 128
"""Sides from the first on are multiples of the second: kernels for matrices work on tiles."""

STRIDED = 0.7
"""What a byte of a block that is no run in its store costs besides, in bytes of one that is."""

DECODED = 8
"""What a byte costs that the lane that computes must decode first, in bytes that it only has to read."""

UNBLESSED = 1e9
"""Multiply-adds per second of a core in integers, for which there is no BLAS."""


def product_plan(problem: PlanProblem, caps: Sequence[int], units: Sequence[Sequence[int]]) -> Plan | None:
    """Best plan of a product, None if no shape that is considered fits.

    `caps` are the longest sides, `units` what sides are multiples of: the least that is allowed, and more.
    """
    if problem.machine.staged:
        found = _fastest(problem, caps, units)
        if not found:
            return None
        least = min(plan.estimate.seconds for _, plan in found)
        near = [(s, p) for s, p in found if p.estimate.seconds <= least * NEAR]
        # One slot hides no load; more than two are worth less than long panels, of which tiles are added to less often.
        best = min(near, key=lambda f: (f[1].traffic.read, f[1].depth == 1, f[0], -f[1].depth))[1]
        return in_turn(problem, best, units[-1])
    chosen, most, tried = None, math.inf, problem
    while found := _fastest(tried, caps, units):
        least = min(seconds for seconds, _ in found)
        plan = min((p for s, p in found if s <= least * SHARED_NEAR), key=lambda p: p.memory.total)
        if plan.estimate.seconds > most:
            break
        chosen, most = plan, min(most, plan.estimate.seconds * SHARED_LESS)
        if chosen.memory.total <= MODEST:
            break
        tried = replace(problem, budget=3 * chosen.memory.total // 4)
    return chosen and replace(chosen, budget=problem.budget)


def _fastest(problem: PlanProblem, caps: Sequence[int], units: Sequence[Sequence[int]]) -> list[tuple[float, Plan]]:
    """Of each number of slots, and of resident operands, the fastest plan, with its seconds."""
    op = problem.op
    assert isinstance(op, ProductNest)
    sides = _sides(problem, caps, units)
    touched = _touched(problem, sides)
    summed = math.prod([_along(sides, axis) for axis in op.folded], start=np.int64(1))
    deep = summed >= min(DEEP, math.prod(caps[axis] for axis in op.folded))
    found: list[tuple[float, Plan]] = []
    for depth, resident in itertools.product(depths(problem), _residents(problem)):
        shapes = _Shapes(problem, op, sides, touched, depth, resident)
        fits = np.broadcast_to(shapes.memory <= problem.budget, [len(s) for s in sides])
        best = shapes.best(fits & deep)
        # those of a device of its own are as large as its memory: what they read decides
        limit = math.inf if best is None else 0 if problem.machine.staged else best[0] / SHALLOW
        if shapes.fastest(fits & ~deep) < limit:
            shallow = shapes.best(fits & ~deep)
            best = shallow if shallow and shallow[0] < limit else best
        if best:
            found.append(best)
    return found


def depths(problem: PlanProblem) -> tuple[int, ...]:
    """Numbers of slots to consider. BLAS uses all cores by itself, and calls from several lanes slow one another."""
    machine = problem.machine
    return (min(machine.depths),) if not machine.staged and _has_blas(problem) else machine.depths


def _residents(problem: PlanProblem) -> list[frozenset[int]]:
    """Which operands may stay on the device, block by block as they are loaded: none, or one of them."""
    found = [frozenset[int]()]
    if problem.machine.staged:
        found += [frozenset({i}) for i, spec in enumerate(problem.operands) if spec.nbytes < problem.budget]
    return found


def _has_blas(problem: PlanProblem) -> bool:
    return all(s.dtype.kind in "fcb" for s in problem.operands)


def _sides(problem: PlanProblem, caps: Sequence[int], units: Sequence[Sequence[int]]) -> list[list[int]]:
    """Sides to consider along each axis: multiples of the units by powers of two, and parts of the extent."""
    free = [a for a, n in enumerate(caps) if units[0][a] < n]
    most = min(SHAPES, max(problem.budget // PER_SHAPE, FEWEST, 2 ** len(free)))
    room = int(most ** (1 / max(len(free), 1)))
    found = []
    for axis, cap in enumerate(caps):
        least = min(units[0][axis], cap)
        sides = {least, cap}
        for unit in {u[axis] for u in units}:
            parts = [-(-cap // k) for k in range(2, 13)] + [unit << j for j in range(cap.bit_length())]
            parts += [max(1, cap * k // 16) for k in range(1, 16)]  # a smaller last block ends sooner
            parts = [p if p < BROAD else -(-p // EVEN) * EVEN for p in parts]
            sides |= {n for n in (-(-p // unit) * unit for p in parts) if n < cap}
        ordered = sorted(sides)
        while len(ordered) > max(room, 2):  # the ends stay, and what is left is spread between them
            places = np.linspace(0, len(ordered) - 1, max(room, 2)).round().astype(int)
            ordered = [ordered[i] for i in places]
        found.append(ordered)
    return found


def _along(sides: Sequence[Sequence[int]], axis: int, values: Sequence[float] | None = None) -> Any:
    """Values of one axis' sides, as an array that broadcasts against those of the other axes."""
    shape = [1] * len(sides)
    shape[axis] = len(sides[axis])
    kind = np.int64 if values is None else np.float64
    return np.array(sides[axis] if values is None else values, kind).reshape(shape)


def _touched(problem: PlanProblem, sides: Sequence[Sequence[int]]) -> list[Any]:
    """Bytes of one walk over each operand, chunks counted as often as they are touched."""
    found = []
    for spec, operand in zip(problem.operands, problem.op.operands, strict=True):
        total: Any = np.array(float(spec.nbytes))
        for axis, n, chunk in zip(operand.axes, spec.shape, spec.chunks or (), strict=False):
            if axis is not None and n:
                factors = [_grid.touched(n, side, chunk) / n for side in sides[axis]]
                total = total * _along(sides, axis, factors)
        found.append(total)
    return found


class _Shapes:
    """Figures of all block shapes with some number of slots, as arrays that broadcast together.

    They are what `candidate.plan_of` counts, less staging.
    """

    def __init__(
        self,
        problem: PlanProblem,
        op: ProductNest,
        sides: list[list[int]],
        touched: Sequence[Any],
        depth: int,
        resident: frozenset[int],
    ) -> None:
        machine = problem.machine
        self._problem, self._op, self._sides, self._depth, self._resident = problem, op, sides, depth, resident
        self._side = side = [_along(sides, a) for a in range(len(sides))]
        self._counts = counts = [-(-n // s) for n, s in zip(op.extents, side, strict=True)]
        self.blocks: Any = math.prod(counts)
        lanes = np.clip(self.blocks, 1, min(machine.lanes, depth))
        self.read, inputs = self._loaded(touched, lanes)
        steps = math.prod(counts[a] for a in op.folded)
        tile = sum(
            math.prod(side[d.axis] for d in o.dims if not isinstance(d, int)) * s.dtype.itemsize
            for o, s in zip(op.outputs, problem.outputs, strict=True)
        )
        waiting = -(-depth // steps) if machine.staged or any(s.storage.remote for s in problem.outputs) else lanes
        outputs = np.minimum(waiting, self.blocks // steps) * _rounded(tile, machine)
        held = op.held(side)
        waste = np.where(held > machine.page, 0 if op.tile_alone else SPREAD * machine.page, 0)
        self.memory = inputs + outputs + lanes * (_rounded(np.ceil(held), machine) + waste) + problem.aside
        passes = math.prod(op.extents) / np.maximum(math.prod(side), 1)
        bytes_in = sum(
            math.prod(side[a] for a in o.axes if a is not None) * s.dtype.itemsize
            for o, s in zip(op.operands, problem.operands, strict=True)
        )
        rate = machine.products if machine.staged or _has_blas(problem) else UNBLESSED * lanes
        added = 0 if op.single and machine.accumulates else 2 * held
        moved = (bytes_in + added) * passes / machine.compute
        if machine.staged:
            busiest = np.maximum(op.work / rate + moved, self.read / machine.upload)
            self.seconds = busiest + self.blocks * PANEL + self._ends()
        else:
            copied = sum(map(self._copied, op.operands, problem.operands))
            own = (self.read / machine.read + moved + 2 * copied * passes / machine.compute) / lanes
            self.seconds = own + op.work * self._widened() / rate + self.blocks * machine.overhead

    def _widened(self) -> Any:
        """How many times as much BLAS works where blocks of a side of its matrices are no whole strips."""
        found: Any = 1.0
        axes = [[a for a in operand.axes if a is not None] for operand in self._op.operands]
        for number, own in enumerate(axes):
            others = {a for i, each in enumerate(axes) if i != number for a in each}
            alone = [a for a in own if a not in others and a not in self._op.folded]
            if len(alone) != 1:  # several make one side together
                continue
            n, side, count = (x[alone[0]] for x in (self._op.extents, self._side, self._counts))
            rest = n - (count - 1) * side
            found = found * ((count - 1) * -(-side // STRIP) + -(-rest // STRIP)) * STRIP / max(n, 1)
        return found

    def _copied(self, operand: Operand, spec: ArraySpec) -> Any:
        """Bytes of an operand's block that are copied before BLAS takes it: of several axes, that are no run."""
        axes = [operand.axes[d] for d in spec.order]
        cut = [self._side[a] < self._op.extents[a] for a in axes[1:] if a is not None]
        nbytes = math.prod(self._side[a] for a in axes if a is not None) * spec.dtype.itemsize
        return np.where(np.logical_or.reduce(np.broadcast_arrays(*cut)), nbytes, 0) if len(cut) > 1 else 0

    def _ends(self) -> Any:
        """Seconds in which nothing is computed yet, or any more, nearly as in `candidate.plan_of`."""
        problem, op, side, machine = self._problem, self._op, self._side, self._problem.machine

        def moved(sides: Sequence[Any], axes: Sequence[int | None], spec: ArraySpec) -> Any:
            """Bytes of a block, more where it is no run."""
            factor: Any = 1.0
            for axis in [axes[d] for d in spec.order[1:]]:
                if axis is not None:
                    factor = np.where(side[axis] < op.extents[axis], 1 + STRIDED, factor)
            return math.prod(sides[a] for a in axes if a is not None) * spec.dtype.itemsize * factor

        operands = zip(op.operands, problem.operands, strict=True)
        first: Any = sum(moved(side, o.axes, s) for o, s in operands)
        for i in self._resident:
            axes, own = op.operands[i].axes, moved(op.extents, op.operands[i].axes, problem.operands[i])
            share = math.prod(s / n for a, (s, n) in enumerate(zip(side, op.extents, strict=True)) if a not in axes)
            others = (self.read - problem.operands[i].nbytes) * share
            first = first + np.maximum(0, own + others - op.work * share / machine.products * machine.upload)
        rest = [n - (c - 1) * s for n, c, s in zip(op.extents, self._counts, side, strict=True)]
        axes_out = [[None if isinstance(d, int) else d.axis for d in o.dims] for o in op.outputs]
        tile, last = (
            sum(moved(sides, axes, s) for axes, s in zip(axes_out, problem.outputs, strict=True)) / machine.download
            for sides in (side, rest)
        )
        share = math.prod(r / n for a, (r, n) in enumerate(zip(rest, op.extents, strict=True)) if a not in op.folded)
        behind = np.maximum(0, tile - op.work * share / machine.products)  # of the tile before the last
        return first / machine.upload + behind + last

    def _loaded(self, touched: Sequence[Any], lanes: Any) -> tuple[Any, Any]:
        """Bytes read in the best loop order, and bytes of the slots for it."""
        problem, op, counts, machine = self._problem, self._op, self._counts, self._problem.machine
        best: Any = math.inf
        slots: Any = 0
        for walk in walks([a for a, n in enumerate(op.extents) if n > 1], op.folded):
            read: Any = 0.0
            inputs: Any = 0
            for i, (spec, operand) in enumerate(zip(problem.operands, op.operands, strict=True)):
                loads: Any = 1
                product: Any = 1
                for axis in walk:
                    product = product * counts[axis]
                    if axis in operand.axes:
                        loads = np.where(counts[axis] > 1, product, loads)
                different = operand.different(counts)
                if i in self._resident:
                    loads = different
                if not (spec.storage.in_memory and not machine.staged):
                    own = self._depth if machine.staged or spec.storage.remote else lanes
                    held = loads if i in self._resident else np.where(loads == self.blocks, own, self._depth)
                    nbytes = math.prod(self._side[a] for a in operand.axes if a is not None) * spec.dtype.itemsize
                    inputs = inputs + np.minimum(held, loads) * _rounded(nbytes, machine)
                    decoded = DECODED if spec.chunks and not machine.staged else 1
                    read = read + touched[i] * (loads // different) * decoded
            better = read < best
            best, slots = np.where(better, read, best), np.where(better, inputs, slots)
        return best, slots

    def fastest(self, fits: Any) -> float:
        """Predicted seconds of the fastest shape that fits."""
        return float(np.where(fits, self.seconds, math.inf).min())

    def best(self, fits: Any) -> tuple[float, Plan] | None:
        """Of the shapes that fit, the one with the fewest bytes, or on a shared host the fewest seconds, or nearly so.

        With its predicted seconds.
        """
        problem, shape, places = self._problem, fits.shape, np.flatnonzero(fits)

        def of(figure: Any) -> Any:
            return np.broadcast_to(figure, shape).reshape(-1)[places].astype(float)

        memory, seconds = of(self.memory), of(self.seconds)
        if problem.machine.staged:
            first, then, near = of(self.read), seconds if self._resident else of(self.blocks), NEAR
        else:
            first, then, near = seconds, memory, SHARED_NEAR
        alive = np.ones(len(places), bool)
        failures = 0
        while alive.any():
            close = alive & (first <= first[alive].min() * near)
            pick = int(np.flatnonzero(close)[np.lexsort((first[close], then[close]))[0]])
            block = tuple(s[i] for s, i in zip(self._sides, np.unravel_index(places[pick], shape), strict=True))
            plan = plan_of(problem, block, self._depth, self._resident)
            over = plan.memory.total - problem.budget
            if over <= 0:
                return float(seconds[pick]), plan
            alive[pick] = False
            failures += 1
            if failures % 16 == 0:  # staging takes more than there is: as much again must be free
                alive &= memory <= memory[pick] - over
        return None


def _rounded(nbytes: Any, machine: Machine) -> Any:
    """`chunkflow.core.memory.rounded`, of arrays."""
    unit = np.where(np.asarray(nbytes) > machine.page // 2, machine.page, ALIGNMENT)
    return -(-nbytes // unit) * unit
