"""Tiles of a product that take turns while an operand is loaded that then stays.

Where one operand of a product fits on the device it is loaded once, and tiles of the result pass it. Whoever computes
the first of them waits for it: with few rows there is less to compute than to load. So several tiles are computed
together, panel by panel as they come; those that follow are computed one by one, while results are on their way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Interleave, Shape
from chunkflow.core.product_nest import ProductNest
from chunkflow.planner.candidate import plan_of
from chunkflow.planner.cost import PANEL
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import PlanProblem

FULL = 512
"""Rows of tiles that take turns are multiples of this: products of double precision lost a tenth with others."""

MOST_TILES = 16
"""Tiles of a run beyond which its beginning and its end are a small part of it."""

SIZES = 16
"""Sizes of tiles that are compared."""

MOST_TOGETHER = 8
"""Tiles that take turns, at most."""

NEAR_END = 1.01
"""Of runs that end so much later than the soonest the one of the largest tiles is taken: its products are faster."""

BESIDE = 1.25
"""Times as long as alone that an operand takes to be loaded while tiles are computed."""

LONG = 10
"""A panel takes so many times as long as what it costs besides (`cost.PANEL`); twice that was no faster."""

LEAST_PANEL = 512
"""The first panel is cut where its side is a multiple of this, so that parts of it suit kernels for matrices."""

MOST_AHEAD = 6
"""Slots for panels, at most, where smaller tiles leave memory for them."""


def in_turn(problem: PlanProblem, plan: Plan, units: Sequence[int]) -> Plan:
    """The plan with smaller tiles, the first of which are computed together, if the run ends sooner so.

    While they are computed a resident operand is loaded, which takes many rows to hide; the last one's way back is
    awaited, and so is what of those before it no later one hides. All are multiples of the `units`, so that no two have
    part of one chunk.
    """
    op, counts = problem.op, plan.grid.counts
    assert isinstance(op, ProductNest)
    along = op.across(counts)
    if not (plan.resident and len(along) == 1 and op.tile_alone and counts[along[0]] <= MOST_TILES):
        return plan
    (axis,) = along
    if plan.block[axis] % units[axis]:
        return plan
    passing = [o for i, o in enumerate(op.operands) if i not in plan.resident]
    several = {a for a, n in enumerate(counts) if n > 1}
    if any(axis in op.operands[i].axes for i in plan.resident) or not all(several <= set(o.axes) for o in passing):
        return plan
    least, extent, side = math.lcm(FULL, units[axis]), op.extents[axis], plan.block[axis]
    step = least * max(1, side // least // SIZES)
    blocks = {rows: _block(problem, plan, axis, rows) for rows in {side, *range(step, side, step)}}
    seconds = _ended(problem, plan, axis)
    latest = seconds(plan.block, 1)  # as it is
    known = {
        (rows, together): ended
        for rows, block in blocks.items()
        for together in range(1, min(MOST_TOGETHER, extent // rows) + 1)
        if (ended := seconds(block, together)) <= latest
    }
    while known:
        # Of those that are about as fast the one with the largest tiles, and the most memory left for panels.
        soon = min(known.values()) * NEAR_END
        rows, together = max((n for n, t in known.items() if t <= soon), key=lambda n: (n[0], -n[1]))
        turns = Interleave(together, _heads(problem, blocks[rows]))
        depths = range(MOST_AHEAD, max(problem.machine.depths) - 1, -1)
        plans = (plan_of(problem, blocks[rows], depth, plan.resident, turns) for depth in depths)
        if found := next((p for p in plans if p.memory.total <= problem.budget), None):
            return found
        del known[rows, together]
    return plan


def _block(problem: PlanProblem, plan: Plan, axis: int, rows: int) -> Shape:
    """The plan's block with so many rows, and panels of which each costs little beside the time that it takes."""
    op, block = problem.op, [rows if a == axis else n for a, n in enumerate(plan.block)]
    assert isinstance(op, ProductNest)
    for folded in [a for a, n in enumerate(plan.grid.counts) if n > 1 and a in op.folded]:
        share = math.prod(n / extent for n, extent in zip(block, op.extents, strict=True))
        while op.work * share / problem.machine.products < LONG * PANEL and 4 * block[folded] <= op.extents[folded]:
            block[folded], share = 2 * block[folded], 2 * share
    return tuple(block)


def _heads(problem: PlanProblem, block: Shape) -> tuple[Shape, ...]:
    """A quarter of the first panel, and the rest of it: what is awaited before anything is computed is so much less."""
    op = problem.op
    folded = [a for a, n in enumerate(op.extents) if n > block[a] and a in op.folded]
    chunked = any(s.chunks for s in problem.operands)
    if len(folded) != 1 or chunked or block[folded[0]] % LEAST_PANEL:
        return ()
    panel = block[folded[0]]
    return tuple((panel // 4, panel - panel // 4) if a in folded else () for a in range(len(block)))


def _ended(problem: PlanProblem, plan: Plan, axis: int) -> Callable[[Shape, int], float]:
    """When a product's last tile is stored, by blocks that divide `axis`, and the tiles that are computed together."""
    op, machine = problem.op, problem.machine
    assert isinstance(op, ProductNest)
    extent = op.extents[axis]
    back = sum(s.nbytes for s in problem.outputs) / extent / machine.download
    work = op.work / machine.products / extent
    rate = machine.upload if all(s.storage.in_memory for s in problem.operands) else machine.loading
    own = sum(problem.operands[i].nbytes for i in plan.resident) / rate
    others = (plan.traffic.upload / rate - own) / extent

    def seconds(block: Shape, together: int) -> float:
        rows, steps = block[axis], math.prod(_grid.count(op.extents[a], block[a]) for a in op.folded)
        taken, loaded = rows * work + steps * PANEL, BESIDE * (own + rows * together * others)
        begun = (own + rows * others) / steps / (4 if _heads(problem, block) else 1)
        computed = max(begun + together * taken, loaded + together * taken / steps)
        landed, ends = 0.0, list[float]()
        for tile in range(_grid.count(extent, rows)):
            side = min(rows, extent - tile * rows)
            if tile < together:
                done = computed - (together - 1 - tile) * taken / steps
            else:  # it takes the place of one that is stored
                begins = max(computed, ends[tile - together - 1] if tile > together else 0.0)
                computed = done = begins + side * work + steps * PANEL
            landed = max(landed, done) + side * back
            ends.append(landed)
        return landed

    return seconds
