"""One block shape tried: the plan that it gives, in bytes and seconds, whether it fits the budget or not.

Pure: touches no data and knows no device and no store. `chunkflow.planner` chooses among such plans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chunkflow import grid as _grid
from chunkflow.cost import Machine, Traffic, estimate
from chunkflow.grid import Grid, Shape
from chunkflow.memory import Projection, Ring, rounded
from chunkflow.ops.blockwise import Blockwise, Operand
from chunkflow.plan import Cut, Plan, private
from chunkflow.spec import ArraySpec

TILE = 0.25
"""Share of the cache that a tile's working set may take: a tile costs less than a block does, and its
temporaries are memory that no budget sees."""


@dataclass(frozen=True)
class Problem:
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
        stores = math.prod(n for a, n in enumerate(counts) if a not in op.folded)
        outputs = min(depth if machine.staged else lanes, max(stores, 1)) * sum(rounded(n, page) for n in out_bytes)
        kept = op.holds(block)
        partials = lanes * rounded(kept, page) if kept else 0
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
        working = held_bytes + kept + math.ceil(self.workspace * math.prod(block))
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
            memory=Projection(inputs, outputs, partials, lanes * spare, staging, self.reserve),
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


def nest_order(op: Blockwise, operands: Sequence[ArraySpec]) -> Shape:
    """Axes of the nest from slowest to fastest, after the memory order of the largest operand."""
    if not operands:
        return tuple(range(len(op.extents)))
    largest = max(range(len(operands)), key=lambda i: operands[i].nbytes)
    axes = [op.operands[largest].axes[d] for d in operands[largest].order]
    fast = [a for a in axes if a is not None]
    return (*(a for a in range(len(op.extents)) if a not in fast), *fast)


def _best_walk(op: Blockwise, operands: Sequence[ArraySpec], counts: Shape) -> Shape:
    """Loop order that loads the fewest bytes; the arrays' own order where it makes no difference.

    Axes that are folded, or scanned, come last: one block of partial results, or one carry, is held at a time.
    """
    inner = op.folded if op.scan is None else {op.scan}
    own = nest_order(op, operands)
    own = (*(a for a in own if a not in inner), *(a for a in own if a in inner))
    several = [a for a in own if counts[a] > 1]
    if len(several) < 2 or all(set(several) <= set(o.axes) for o in op.operands):
        return own

    def loaded(walk: Shape) -> int:
        return sum(
            s.nbytes * op.loads(o, counts, walk) // max(_different(o, counts), 1)
            for s, o in zip(operands, op.operands, strict=True)
        )

    single = tuple(a for a in own if counts[a] <= 1)
    if len(several) > 5:
        return (*single, *several)
    outer, last = [a for a in several if a not in inner], [a for a in several if a in inner]
    orders = itertools.product(itertools.permutations(outer), itertools.permutations(last))
    return min(((*single, *first, *then) for first, then in orders), key=loaded)
