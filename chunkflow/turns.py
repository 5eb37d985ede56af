"""Tiles of a product that take turns while an operand is loaded that then stays.

Where one operand of a product fits on the device it is loaded once, and tiles of the result pass it. Whoever computes
the first of them waits for it: with few rows there is less to compute than to load. So several tiles are computed
together, panel by panel as they come; those that follow are computed one by one, while results are on their way back.
Pure: touches no data and knows no device and no store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from chunkflow import grid as _grid
from chunkflow.grid import Shape, Turns
from chunkflow.ops.product import Contraction
from chunkflow.plan import Plan
from chunkflow.problem import Problem

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

LEAST_PANEL = 512
"""The first panel is cut where its side is a multiple of this, so that parts of it suit kernels for matrices."""

MOST_AHEAD = 6
"""Slots for panels, at most, where smaller tiles leave memory for them."""


def in_turn(problem: Problem, plan: Plan, units: Sequence[int]) -> Plan:
    """The plan with smaller tiles, the first of which are computed together, if the run ends sooner so.

    While they are computed a resident operand is loaded, which takes many rows to hide; the last one's way back is
    awaited, and so is what of those before it no later one hides. All are multiples of the `units`, so that no two have
    part of one chunk.
    """
    op, counts = problem.op, plan.grid.counts
    assert isinstance(op, Contraction)
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
    seconds, heads = _ended(problem, plan, axis), _heads(problem, plan)
    known = {
        (rows, together): seconds(rows, together)
        for rows in {side, *range(step, side, step)}
        for together in range(1, min(MOST_TOGETHER, extent // rows) + 1)
    }
    while (side, 1) in known:
        # Of those that are about as fast the one with the largest tiles, and the most memory left for panels.
        soon = min(known.values()) * NEAR_END
        rows, together = max((n for n, t in known.items() if t <= soon), key=lambda n: (n[0], -n[1]))
        block = tuple(rows if a == axis else n for a, n in enumerate(plan.block))
        depths = range(MOST_AHEAD, max(problem.machine.depths) - 1, -1)
        plans = (problem.plan(block, depth, plan.resident, Turns(together, heads)) for depth in depths)
        if found := next((p for p in plans if p.memory.total <= problem.budget), None):
            return found
        del known[rows, together]
    return plan


def _heads(problem: Problem, plan: Plan) -> tuple[Shape, ...]:
    """A quarter of the first panel, and the rest of it: what is awaited before anything is computed is so much less."""
    folded = [a for a, n in enumerate(plan.grid.counts) if n > 1 and a in problem.op.folded]
    chunked = any(s.chunks for s in problem.operands)
    if len(folded) != 1 or chunked or plan.block[folded[0]] % LEAST_PANEL:
        return ()
    panel = plan.block[folded[0]]
    return tuple((panel // 4, panel - panel // 4) if a in folded else () for a in range(len(plan.block)))


def _ended(problem: Problem, plan: Plan, axis: int) -> Callable[[int, int], float]:
    """When a product's last tile is stored, by their side along `axis` and the number that are computed together."""
    op, machine = problem.op, problem.machine
    assert isinstance(op, Contraction)
    extent, steps = op.extents[axis], math.prod(plan.grid.counts[a] for a in op.folded)
    back = sum(s.nbytes for s in problem.outputs) / extent / machine.download
    work = op.work / machine.products / extent
    rate = machine.upload if all(s.in_memory for s in problem.operands) else machine.loading
    own = sum(problem.operands[i].nbytes for i in plan.resident) / rate
    others = (plan.traffic.upload / rate - own) / extent

    def seconds(rows: int, together: int) -> float:
        begun = (own + rows * others) / steps
        computed = max(begun + rows * together * work, own + rows * together * others)
        landed, ends = 0.0, list[float]()
        for tile in range(_grid.count(extent, rows)):
            side = min(rows, extent - tile * rows)
            if tile < together:
                done = computed - (together - 1 - tile) * rows * work / steps
            else:  # it takes the place of one that is stored
                computed = done = max(computed, ends[tile - together - 1] if tile > together else 0.0) + side * work
            landed = max(landed, done) + side * back
            ends.append(landed)
        return landed

    return seconds
