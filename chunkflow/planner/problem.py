"""What the planner is asked for, and one block shape that it tries, with the sizes that follow from it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Grid, Interleave, Shape
from chunkflow.core.machine import Machine
from chunkflow.core.memory import own_objects
from chunkflow.core.nest import NO_STRIPS, LoopNest, Strips
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.decode_batch import batch_of, finds_last, keeps_chunks
from chunkflow.planner.loop_order import best_walk, ending_with_chunks
from chunkflow.planner.plan import in_place, private
from chunkflow.planner.transfer_cut import cut_of, keeps_whole

TILE = 0.25
"""Share of the cache that a tile's working set may take: a tile costs less than a block does, and its
temporaries are memory that no budget sees."""

BESIDE = 4
"""Times its halo that a tile is long, or what it computes would be mostly computed again."""


@dataclass(frozen=True)
class PlanProblem:
    """What stays the same while block shapes are tried: what `chunkflow.planner.search.make_plan` is given, and more.

    The kernel may be called on parts of a block along the axes `tiled`, and `order` has all axes from the slowest to
    the fastest varying. The device decodes the chunks of the operands `unpacked`. With `holds` a lane may hold on to a
    decoded chunk in memory of its own, beside that in which it codes the chunks of other arrays.
    """

    op: LoopNest
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    machine: Machine
    budget: int
    workspace: float
    reserve: int
    tiled: frozenset[int]
    order: Shape
    strips: Strips = NO_STRIPS
    unpacked: frozenset[int] = frozenset()
    holds: bool = False

    @property
    def coded(self) -> int:
        """Arrays with chunks."""
        return sum(spec.chunks is not None for spec in (*self.operands, *self.outputs))

    @property
    def aside(self) -> int:
        """Bytes of the budget that no block may take."""
        return self.reserve + (0 if self.machine.staged else own_objects(self.budget))

    def tile(self, block: Shape, held_bytes: int) -> Shape:
        """Largest part of a block whose working set stays in a core's cache, cut along the free axes only."""
        size, cache = math.prod(block), self.machine.cache
        if self.machine.staged or not cache or not size or not self.tiled:
            return block
        per_element = max(held_bytes / size + self.workspace, 1e-9)
        if cache >= per_element * size:
            return block
        most = int(TILE * cache / per_element)
        units = [min(n, self._least(a)) if a in self.tiled else n for a, n in enumerate(block)]
        if math.prod(units) > most and self.op.has_halo:
            return block  # in smaller tiles most would be computed again
        sides = zip(block, _grid.fit(block, units, self.order, most), strict=True)
        return tuple([-(-n // _grid.count(n, side)) for n, side in sides])  # even tiles: none is a mere rest

    def _least(self, axis: int) -> int:
        """Least side of a tile along an axis: beside it the halo is to be little."""
        halos = (o.halo[d] for o in self.op.operands if o.halo for d, a in enumerate(o.axes) if a == axis)
        return max(1, BESIDE * max(map(sum, halos), default=0))


class Candidate:
    """One block shape and depth that is tried, with the sizes that follow from them in the best loop order.

    Of each operand the device holds `depth` blocks, of a `resident` one all; while these are loaded tiles of a product
    take `turns`. What ends in `_in` has an entry for each operand, what ends in `_out` one for each output.
    """

    def __init__(
        self, problem: PlanProblem, block: Shape, depth: int, resident: frozenset[int], turns: Interleave
    ) -> None:
        op, specs, outputs, machine = problem.op, problem.operands, problem.outputs, problem.machine
        self.problem, self.block, self.depth, self.resident, self.turns = problem, block, depth, resident, turns
        self.grid = Grid(op.extents, block, turns.heads)
        self.counts = counts = self.grid.counts
        self.blocks = math.prod(counts)
        self.walk = best_walk(op, specs, self.grid, depth, resident, problem.order)
        if op.has_halo and depth > 1:
            op = ending_with_chunks(op, specs, self.grid, self.walk)
        self.op = op
        self.rows = op.rows(counts)
        self.lanes = max(1, min(machine.lanes, depth, self.rows))  # blocks that compute at the same time
        arrays = [*zip(specs, op.operands, strict=True)]
        # How the device decodes operands; none that the host decodes.
        self.batches = {i: batch_of(*arrays[i], block, op.extents, machine) for i in problem.unpacked}
        whole = [keeps_whole(s.chunks, o.axes, block, op.extents) for s, o in arrays]
        # Operands of whose decoded chunks the next blocks find theirs.
        cut = [i for i, s in enumerate(specs) if s.storage.kept and not whole[i] and i not in self.batches]
        self.shapes_in, self.shapes_out = ([o.shape(block) for o in sides] for sides in (op.operands, op.outputs))
        of_operands = enumerate(zip(specs, self.shapes_in, whole, strict=True))
        self.cuts_in = tuple(
            [cut_of(s, machine, n, strict=False, batch=self.batches.get(i), whole=w) for i, (s, n, w) in of_operands]
        )
        self.cuts_out = tuple(
            [cut_of(s, machine, n, strict=True, whole=True) for s, n in zip(outputs, self.shapes_out, strict=True)]
        )
        if machine.staged:
            kept = [i for i in cut if keeps_chunks(*arrays[i], self.grid, self.walk, depth)]
        elif self.lanes == 1 and (problem.coded == 1 or problem.holds):
            # A single lane holds on to the memory in which it has decoded a chunk until it decodes the next one: that
            # is counted all the time anyway, unless another array needs it for its own chunks.
            kept = [i for i in cut if finds_last(*arrays[i], self.grid, self.walk)]
        else:
            kept = []
        self.kept = frozenset(kept)
        self.bytes_in, self.bytes_out = block_bytes(self.shapes_in, specs), block_bytes(self.shapes_out, outputs)
        self.held_bytes = sum(self.bytes_in) + sum(self.bytes_out)
        self.in_place = in_place(machine, op, specs, outputs)
        self.kept_bytes = op.holds(block)  # between blocks, by a lane
        self.tile = problem.tile(block, self.held_bytes)
        self.loads = [  # of each operand, in the whole run
            o.different(counts) if i in resident else op.loads(o, counts, self.walk) for i, (_, o) in enumerate(arrays)
        ]
        self.privates = [  # of each operand whether a block belongs to the lane that computes it
            private(machine, s, n, self.blocks, bool(outputs) and not o.halo)
            for (s, o), n in zip(arrays, self.loads, strict=True)
        ]
        # For each group of outputs how many blocks of each are stored.
        self.stores = [math.prod([n for a, n in enumerate(counts) if a not in part.folded]) for part in op.parts]
        # Whether others than the lane that computes results store them, and whether a lane moves all its blocks itself.
        self.stored_apart = machine.staged or any(s.storage.remote for s in outputs)
        self.moved_by_lanes = not (self.stored_apart or any(s.storage.remote for s in specs))


def block_bytes(shapes: Sequence[Shape], specs: Sequence[ArraySpec]) -> list[int]:
    """Bytes of a block of each array."""
    return [math.prod(n) * s.dtype.itemsize for n, s in zip(shapes, specs, strict=True)]
