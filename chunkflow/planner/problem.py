"""What the planner is asked for, and one block shape that it tries, with the sizes that follow from it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Grid, Interleave, Shape
from chunkflow.core.machine import Machine
from chunkflow.core.nest import NO_STRIPS, LoopNest, Strips
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.decode_batch import Batch, batch_of
from chunkflow.planner.loop_order import best_walk, ending_with_chunks
from chunkflow.planner.plan import private
from chunkflow.planner.transfer_cut import Cut, cut_of, keeps_whole

TILE = 0.25
"""Share of the cache that a tile's working set may take: a tile costs less than a block does, and its
temporaries are memory that no budget sees."""


@dataclass(frozen=True)
class PlanProblem:
    """What stays the same while block shapes are tried.

    Attributes
    ----------
    op : LoopNest
    operands, outputs : tuple of ArraySpec
    machine : Machine
    budget : int
        Bytes of device memory.
    workspace : float
        Bytes that the kernel allocates besides its results, per element of a block of the loop nest.
    reserve : int
        Bytes of device memory that the device's libraries take outside the run's pool.
    tiled : frozenset of int
        Axes along which the kernel may be called on parts of a block.
    order : tuple of int
        Axes from the slowest to the fastest varying.
    strips : Strips
    unpacked : frozenset of int
        Operands whose chunks are decoded on the device.
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

    def tile(self, block: Shape, held_bytes: int) -> Shape:
        """Largest part of a block whose working set stays in a core's cache, cut along the free axes only."""
        size, cache = math.prod(block), self.machine.cache
        if self.machine.staged or not cache or not size or not self.tiled:
            return block
        per_element = max(held_bytes / size + self.workspace, 1e-9)
        if cache >= per_element * size:
            return block
        units = [1 if a in self.tiled else n for a, n in enumerate(block)]
        sides = zip(block, _grid.fit(block, units, self.order, int(TILE * cache / per_element)), strict=True)
        return tuple([-(-n // _grid.count(n, side)) for n, side in sides])  # even tiles: none is a mere rest


@dataclass(slots=True)
class Candidate:
    """One block shape and depth that is tried, with the sizes that follow from them.

    Attributes
    ----------
    problem : PlanProblem
    op : LoopNest
        The problem's pass, with blocks that end where chunks do if that saves decoding.
    block : tuple of int
    depth : int
        Blocks of each operand that the device holds at once.
    resident : frozenset of int
        Operands of which every block stays on the device.
    turns : Interleave
        Tiles of a product that are computed together while resident operands are loaded.
    grid : Grid
    counts : tuple of int
        Blocks along each axis.
    blocks : int
        Blocks in all.
    walk : tuple of int
        Loop order.
    lanes : int
        Blocks that compute at the same time.
    batches : dict
        How the device decodes operands, by operand; none that the host decodes.
    cuts_in, cuts_out : tuple of Cut
        How blocks of each operand, and of each output, are cut into pieces.
    shapes_in, shapes_out : list
        Extents of a block of each of them.
    bytes_in, bytes_out : list of int
        Bytes of a block of each of them.
    held_bytes : int
        Bytes of a block of every array.
    kept_bytes : int
        Bytes that a lane keeps between blocks.
    tile : tuple of int
        Part of a block that the kernel computes at once.
    loads : list of int
        Number of loads of each operand.
    privates : list of bool
        For each operand whether a block belongs to the lane that computes it.
    stores : list of int
        For each group of outputs how many blocks of each are stored.
    stored_apart : bool
        Whether results are stored by others than the lane that computes them.
    moved_by_lanes : bool
        Whether a lane reads and stores all its blocks itself.
    """

    problem: PlanProblem
    op: LoopNest
    block: Shape
    depth: int
    resident: frozenset[int]
    turns: Interleave
    grid: Grid
    counts: Shape
    blocks: int
    walk: Shape
    lanes: int
    batches: dict[int, Batch]
    cuts_in: tuple[Cut, ...]
    cuts_out: tuple[Cut, ...]
    shapes_in: list[Shape]
    shapes_out: list[Shape]
    bytes_in: list[int]
    bytes_out: list[int]
    held_bytes: int
    kept_bytes: int
    tile: Shape
    loads: list[int]
    privates: list[bool]
    stores: list[int]
    stored_apart: bool
    moved_by_lanes: bool


def candidate_of(
    problem: PlanProblem, block: Shape, depth: int, resident: frozenset[int], turns: Interleave
) -> Candidate:
    """The candidate with this block and depth, in the best loop order."""
    op, specs, outputs, machine = problem.op, problem.operands, problem.outputs, problem.machine
    grid = Grid(op.extents, block, turns.heads)
    counts = grid.counts
    blocks = math.prod(counts)
    walk = best_walk(op, specs, grid, depth, resident)
    if op.has_halo and depth > 1:
        op = ending_with_chunks(op, specs, grid, walk)
    arrays = [*zip(specs, op.operands, strict=True)]
    batches = {i: batch_of(*arrays[i], block, op.extents, machine) for i in problem.unpacked}
    whole = [keeps_whole(s.chunks, o.axes, block, op.extents) for s, o in arrays]
    cuts_in = [cut_of(s, machine, strict=False, batch=batches.get(i), whole=whole[i]) for i, s in enumerate(specs)]
    shapes_in, shapes_out = ([o.shape(block) for o in sides] for sides in (op.operands, op.outputs))
    bytes_in, bytes_out = block_bytes(shapes_in, specs), block_bytes(shapes_out, outputs)
    held_bytes = sum(bytes_in) + sum(bytes_out)
    loads = [o.different(counts) if i in resident else op.loads(o, counts, walk) for i, (_, o) in enumerate(arrays)]
    stored_apart = machine.staged or any(s.storage.remote for s in outputs)
    return Candidate(
        problem=problem,
        op=op,
        block=block,
        depth=depth,
        resident=resident,
        turns=turns,
        grid=grid,
        counts=counts,
        blocks=blocks,
        walk=walk,
        lanes=max(1, min(machine.lanes, depth, blocks)),
        batches=batches,
        cuts_in=tuple(cuts_in),
        cuts_out=tuple([cut_of(s, machine, strict=True, whole=True) for s in outputs]),
        shapes_in=shapes_in,
        shapes_out=shapes_out,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        held_bytes=held_bytes,
        kept_bytes=op.holds(block),
        tile=problem.tile(block, held_bytes),
        loads=loads,
        privates=[
            private(machine, s, n, blocks, bool(outputs) and not o.halo)
            for (s, o), n in zip(arrays, loads, strict=True)
        ],
        stores=[math.prod([n for a, n in enumerate(counts) if a not in part.folded]) for part in op.parts],
        stored_apart=stored_apart,
        moved_by_lanes=not (stored_apart or any(s.storage.remote for s in specs)),
    )


def block_bytes(shapes: Sequence[Shape], specs: Sequence[ArraySpec]) -> list[int]:
    """Bytes of a block of each array."""
    return [math.prod(n) * s.dtype.itemsize for n, s in zip(shapes, specs, strict=True)]
