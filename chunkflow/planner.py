"""From a declared pass, array specs and a budget to a plan: block shape, slots and loop order.

Pure: touches no data and knows no device and no store. The block is the box of the loop nest with the
fewest predicted seconds (`chunkflow.cost`) among those whose projected bytes (`chunkflow.memory`) fit the
budget; where it hardly matters, `NEAR_TIE` and `SHARED_TIE` say which. Blocks never share a chunk of an output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from chunkflow import grid as _grid
from chunkflow.cost import Machine, Traffic, estimate
from chunkflow.errors import ArgumentError, BudgetError
from chunkflow.grid import Grid, Shape
from chunkflow.memory import Projection, Ring, rounded
from chunkflow.ops.blockwise import Along, Blockwise, Operand
from chunkflow.plan import Cut, Plan, private
from chunkflow.spec import ArraySpec
from chunkflow.units import format_bytes

SMALLEST_BLOCK = 64 << 10
"""Bytes of a block below which smaller ones are not considered: the overhead per block dominates."""

NEAR_TIE = 1.02
"""Predicted times within this factor of the best count as equal: the plan with the largest blocks is chosen."""

SHARED_TIE = 1.05
"""The same on a device that shares the host's memory, which others need too: the plan that takes least is chosen."""

TILE = 0.25
"""Share of the cache that a tile's working set may take: a tile costs less than a block does, and its
temporaries are memory that no budget sees."""


@dataclass(frozen=True)
class _Problem:
    """What stays the same while block shapes are tried."""

    op: Blockwise
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    machine: Machine
    budget: int
    workspace: float
    reserve: int
    tiled: frozenset[int]
    order: Shape

    def plan(self, block: Shape, depth: int) -> Plan:
        """The plan with this block and this many slots, whether it fits the budget or not."""
        op, machine, page = self.op, self.machine, self.machine.page
        grid = Grid(op.extents, block)
        blocks, counts = len(grid), grid.counts
        walk = _best_walk(op, self.operands, counts)
        cuts_in = tuple(_cut(s, machine, strict=False) for s in self.operands)
        cuts_out = tuple(_cut(s, machine, strict=True) for s in self.outputs)
        in_shapes = [o.shape(block) for o in op.operands]
        out_shapes = [o.shape(block) for o in op.outputs]
        ring_in = ring_out = None
        if machine.staged:
            ring_in = self._ring(self.operands, cuts_in, in_shapes, blocks)
            ring_out = self._ring(self.outputs, cuts_out, out_shapes, blocks)

        in_bytes = _bytes(in_shapes, self.operands)
        out_bytes = _bytes(out_shapes, self.outputs)
        lanes = max(1, min(machine.lanes, depth, blocks))
        inputs = upload = read = 0
        for spec, operand, nbytes in zip(self.operands, op.operands, in_bytes, strict=True):
            loads = op.loads(operand, counts, walk)
            if machine.staged or not spec.in_memory:
                slots = lanes if private(machine, loads, blocks, bool(self.outputs)) else depth
                inputs += min(slots, max(loads, 1)) * rounded(nbytes, page)
            repeats = loads // max(_different(operand, counts), 1) if blocks else 0
            upload += spec.nbytes * repeats
            read += repeats * spec.dtype.itemsize * _read_elements(spec, operand, op.extents, block)
        outputs = min(depth if machine.staged else lanes, max(blocks, 1)) * sum(rounded(n, page) for n in out_bytes)
        held_bytes = sum(in_bytes) + sum(out_bytes)
        tile = self._tile(block, held_bytes)
        share = math.prod(tile) / max(math.prod(block), 1)
        temporary = math.ceil(self.workspace * math.prod(tile))
        if share < 1:
            temporary += math.ceil(sum(out_bytes) * share)  # a tile's results, before they are in their places
        # A function's temporaries are several buffers, each of which may waste part of a page.
        spare = rounded(temporary, page) + (2 * page if temporary > page else 0)
        staging = sum(r.device_bytes(page) for r in (ring_in, ring_out) if r)
        if not machine.staged:
            coded = [*zip(cuts_in, in_bytes, self.operands, strict=True)]
            coded += [*zip(cuts_out, out_bytes, self.outputs, strict=True)]
            staging = lanes * rounded(max([_coding(*c) for c in coded], default=0))

        written = sum(s.nbytes for s in self.outputs)
        times = math.prod(op.extents) / max(math.prod(block), 1)
        working = held_bytes + math.ceil(self.workspace * math.prod(block))
        compute = int((2 * working - held_bytes) * times)
        spilled = 0
        if machine.cache and working > machine.cache:  # a tile's temporaries stay in the cache all the same
            spilled = compute if tile == block else int(held_bytes * times)
        traffic = Traffic(read, upload, compute, written, written)
        return Plan(
            op=op,
            operands=self.operands,
            outputs=self.outputs,
            machine=machine,
            budget=self.budget,
            block=block,
            tile=tile,
            walk=walk,
            depth=depth,
            cuts_in=cuts_in,
            cuts_out=cuts_out,
            ring_in=ring_in,
            ring_out=ring_out,
            memory=Projection(inputs, outputs, lanes * spare, staging, self.reserve),
            traffic=traffic,
            estimate=estimate(machine, traffic, blocks, depth, spilled),
        )

    def _tile(self, block: Shape, held_bytes: int) -> Shape:
        """Largest part of a block whose working set stays in a core's cache, cut along the free axes only."""
        size, cache = math.prod(block), self.machine.cache
        if self.machine.staged or not cache or not size or not self.tiled:
            return block
        per_element = max(held_bytes / size + self.workspace, 1e-9)
        if cache >= per_element * size:
            return block
        room = int(TILE * cache / per_element)
        return _grid.fit(block, [1 if a in self.tiled else n for a, n in enumerate(block)], self.order, room)

    def _ring(
        self, specs: Sequence[ArraySpec], cuts: Sequence[Cut], shapes: Sequence[Shape], blocks: int
    ) -> Ring | None:
        """Ring for one direction."""
        if not specs:
            return None
        largest = scattered = pieces = 0
        for spec, cut, shape in zip(specs, cuts, shapes, strict=True):
            box = cut.box(shape)
            # Not the full block's piece: a ragged block, narrower, may be cut into larger ones.
            nbytes = min(cut.limit, math.prod(shape)) * spec.dtype.itemsize
            largest = max(largest, nbytes)
            pieces += blocks * math.prod(_grid.count(n, b) for n, b in zip(shape, box, strict=True))
            if cut.scatters(shape):
                scattered = max(scattered, nbytes)
        limit = self.machine.host_limit
        if scattered:  # a tight budget is for blocks: fewer threads, then
            limit = min(limit, self.budget // 8)
        threads = self.machine.threads // 2 if self.operands and self.outputs else self.machine.threads
        return Ring.sized(pieces, largest, threads, self.machine.slots, limit, scattered)


def make_plan(
    op: Blockwise,
    operands: Sequence[ArraySpec],
    outputs: Sequence[ArraySpec],
    machine: Machine,
    budget: int,
    *,
    workspace: float = 0.0,
    reserve: int = 0,
    block: Sequence[int | None] | None = None,
    tiles: bool = False,
) -> Plan:
    """Choose the block shape, slots and loop order of a run.

    Parameters
    ----------
    op : Blockwise
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
    >>> from chunkflow.ops.map import nest
    >>> from chunkflow.ops.blockwise import Along, Output
    >>> from dataclasses import replace
    >>> x = ArraySpec("x", (1024, 1024), np.dtype("f4"))
    >>> op = replace(nest([x.shape]), outputs=(Output((Along(0), Along(1))),))
    >>> machine = Machine(read=3e10, upload=5e10, compute=8e11, download=5e10, write=3e10, overhead=1e-4)
    >>> plan = make_plan(op, [x], [x], machine, 2_000_000)
    >>> plan.memory.total <= 2_000_000, plan.block[1]
    (True, 1024)
    """
    order = _nest_order(op, operands)
    free = frozenset(a for a in op.divisible if not block or block[a] is None) if tiles else frozenset()
    problem = _Problem(op, tuple(operands), tuple(outputs), machine, budget, workspace, reserve, free, order)
    must = _units(problem)
    caps = [max(1, n) for n in op.extents]
    for axis, side in enumerate(block or ()):
        if side is not None:
            _check_side(axis, side, must[axis], op.extents[axis])
            caps[axis] = must[axis] = min(side, caps[axis])
    fitting = list(_candidates(problem, caps, must, order))
    if not fitting:
        smallest = _least(problem, _grid.fit(caps, must, order, 1))
        raise BudgetError(
            f"the smallest block with a single slot takes {format_bytes(smallest)} and the budget is "
            f"{format_bytes(budget)} ({budget} bytes): raise budget= to at least {smallest}"
            + (f", of which {format_bytes(reserve)} is the device libraries' own" if reserve else "")
            + "".join(f"; blocks hold whole chunks {s.chunks} of {s.name}" for s in problem.outputs if s.chunks),
            needed=smallest,
            limit=budget,
            smallest=smallest,
        )
    best = min(p.estimate.seconds for p in fitting)
    near = [p for p in fitting if p.estimate.seconds <= best * (NEAR_TIE if machine.staged else SHARED_TIE)]
    if machine.staged:
        chosen = max(near, key=lambda p: (math.prod(p.block), p.depth))
    else:
        chosen = min(near, key=lambda p: (p.memory.total, p.estimate.seconds))
    larger = max((p for p in fitting if p.depth == chosen.depth), key=lambda p: p.memory.total)
    if larger.memory.total > chosen.memory.total:
        note = (
            f"smaller than the budget allows: blocks of {larger.block} would take "
            f"{format_bytes(larger.memory.total)} and {larger.estimate.seconds:.3g} s by the model"
        )
        chosen = replace(chosen, notes=(note,))
    return chosen


def _least(problem: _Problem, block: Shape) -> int:
    """Smallest budget in which a block fits: a larger one allows more threads, which take more themselves."""
    depth, least = min(problem.machine.depths), problem.budget
    while (total := replace(problem, budget=least).plan(block, depth).memory.total) > least:
        least = total
    return least


def _units(problem: _Problem) -> list[int]:
    """Along each axis, what a block must be a multiple of for no two of them to share a chunk of an output."""
    op = problem.op
    must = [n if a in op.whole else 1 for a, n in enumerate(op.extents)]
    for spec, output in zip(problem.outputs, op.outputs, strict=True):
        for dim, chunk in zip(output.dims, spec.chunks or (1,) * len(output.dims), strict=True):
            if isinstance(dim, Along):
                unit = chunk * dim.ratio.denominator
                must[dim.axis] = math.lcm(must[dim.axis], unit // math.gcd(unit, dim.ratio.numerator))
    return [max(1, min(u, n)) for u, n in zip(must, op.extents, strict=True)]


def _candidates(problem: _Problem, caps: Sequence[int], must: Sequence[int], order: Shape) -> Iterator[Plan]:
    """Plans within the budget: for each number of slots the largest block that fits, then halves of it."""
    unit_sets = [list(must)]
    aligned = _aligned_to_sources(problem, caps, must)
    if aligned != unit_sets[0]:
        unit_sets.append(aligned)
    item = max([s.dtype.itemsize for s in (*problem.operands, *problem.outputs)], default=1)
    for units, depth in itertools.product(unit_sets, problem.machine.depths):

        def at(target: int, units: list[int] = units, depth: int = depth) -> Plan:
            return problem.plan(_grid.fit(caps, units, order, target), depth)

        low, high = 1, math.prod(caps)
        plan = at(high)
        if plan.memory.total > problem.budget:
            plan = at(low)
            if plan.memory.total > problem.budget:
                continue
            while high - low > max(low // 64, 1):
                middle = (low + high) // 2
                tried = at(middle)
                if tried.memory.total <= problem.budget:
                    low, plan = middle, tried
                else:
                    high = middle
        yield plan
        target = math.prod(plan.block) // 2
        while target * item >= SMALLEST_BLOCK or plan.depth == 1 < target:
            smaller = at(target)
            if smaller.block != plan.block:
                plan = smaller
                yield plan
            if math.prod(plan.block) > target:
                break  # nothing smaller keeps the units whole
            target //= 2


def _aligned_to_sources(problem: _Problem, caps: Sequence[int], must: Sequence[int]) -> list[int]:
    """Units that keep the chunks of the sources whole too."""
    units = list(must)
    for spec, operand in zip(problem.operands, problem.op.operands, strict=True):
        for axis, chunk in zip(operand.axes, spec.chunks or (), strict=False):
            if axis is not None:
                units[axis] = min(math.lcm(units[axis], chunk), caps[axis])
    return units


def _check_side(axis: int, side: int, unit: int, extent: int) -> None:
    if side < extent and side % unit:
        raise ArgumentError(
            f"blocks of {side} along axis {axis} would cut the output's chunks (or an axis that must stay whole): "
            f"use a multiple of {unit}, or leave the choice to the planner"
        )


def _cut(spec: ArraySpec, machine: Machine, *, strict: bool) -> Cut:
    """Pieces of about the machine's size that keep the array's chunks whole.

    A sink's chunks must stay whole. A source's may be cut where one would not fit the ring: each part then
    decodes the chunk again.
    """
    itemsize = spec.dtype.itemsize
    limit = max(1, machine.piece // itemsize)
    units = spec.chunks
    if units is not None:
        nbytes = math.prod(min(u, n) for u, n in zip(units, spec.shape, strict=True)) * itemsize
        if not strict and nbytes * machine.slots > machine.host_limit:
            units = None
        else:
            limit = max(limit, nbytes // itemsize)
    return Cut(spec.order, limit, units)


def _coding(cut: Cut, nbytes: int, spec: ArraySpec) -> int:
    """Bytes that a store with chunks takes besides a block: a piece's, encoded, decoded and on their way between."""
    if cut.units is None:
        return 0
    chunk = math.prod(min(u, n) for u, n in zip(cut.units, spec.shape, strict=True))
    return 3 * max(chunk * spec.dtype.itemsize, min(cut.limit * spec.dtype.itemsize, nbytes))


def _bytes(shapes: Sequence[Shape], specs: Sequence[ArraySpec]) -> list[int]:
    """Bytes of a block of each array."""
    return [math.prod(n) * s.dtype.itemsize for n, s in zip(shapes, specs, strict=True)]


def _different(operand: Operand, counts: Shape) -> int:
    """Number of different blocks of an operand."""
    return math.prod(counts[a] for a in operand.axes if a is not None)


def _read_elements(spec: ArraySpec, operand: Operand, extents: Shape, block: Shape) -> int:
    """Elements that one walk over an operand reads, whole chunks counted as often as they are touched."""
    chunks = spec.chunks or (1,) * len(spec.shape)
    return math.prod(
        n if axis is None else _grid.touched(extents[axis], block[axis], chunk)
        for n, axis, chunk in zip(spec.shape, operand.axes, chunks, strict=True)
    )


def _nest_order(op: Blockwise, operands: Sequence[ArraySpec]) -> Shape:
    """Axes of the nest from slowest to fastest, after the memory order of the largest operand."""
    if not operands:
        return tuple(range(len(op.extents)))
    largest = max(range(len(operands)), key=lambda i: operands[i].nbytes)
    axes = [op.operands[largest].axes[d] for d in operands[largest].order]
    fast = [a for a in axes if a is not None]
    return (*(a for a in range(len(op.extents)) if a not in fast), *fast)


def _best_walk(op: Blockwise, operands: Sequence[ArraySpec], counts: Shape) -> Shape:
    """Loop order that loads the fewest bytes; the arrays' own order where it makes no difference."""
    own = _nest_order(op, operands)
    several = [a for a in own if counts[a] > 1]
    if len(several) < 2 or all(set(several) <= set(o.axes) for o in op.operands):
        return own

    def loaded(walk: Shape) -> int:
        return sum(
            s.nbytes * op.loads(o, counts, walk) // max(_different(o, counts), 1)
            for s, o in zip(operands, op.operands, strict=True)
        )

    single = tuple(a for a in own if counts[a] <= 1)
    orders = itertools.permutations(several) if len(several) <= 5 else [tuple(several)]
    return min(((*single, *walk) for walk in orders), key=loaded)
