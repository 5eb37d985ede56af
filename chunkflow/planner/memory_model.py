"""Device memory of a candidate plan, as named sums of bytes. Pure arithmetic."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from chunkflow.core.grid import Grid
from chunkflow.core.memory import ALIGNMENT, Projection, rounded, temporaries, uncounted
from chunkflow.core.nest import Operand
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.decode_batch import device_bytes
from chunkflow.planner.plan import chains, recycled
from chunkflow.planner.problem import Candidate

GATHERED = 256 << 10
"""Bytes of a lane's results that are being written to a file with another layout, where results are views."""

SPREAD = 3
"""Pages that the buffers of a lane of a product may waste: there are several of them."""


class BlockMemory(NamedTuple):
    """Device memory of blocks and of what is computed from them, in bytes; see `Projection` for the terms."""

    inputs: int
    outputs: int
    partials: int
    workspace: int


def block_memory(candidate: Candidate) -> BlockMemory:
    """Device memory of a candidate's blocks."""
    workspace = candidate.lanes * _workspace(candidate)
    return BlockMemory(_inputs(candidate), _outputs(candidate), _partials(candidate), workspace)


def projection(candidate: Candidate, blocks: BlockMemory, staging: int) -> Projection:
    """Device memory of a candidate; `staging` is what the rings, or threads that code chunks, take."""
    problem, page = candidate.problem, candidate.problem.machine.page
    decoding = device_bytes(candidate.batches.values(), page)
    return Projection(*blocks, staging, problem.aside + uncounted(page), decoding)


def _inputs(candidate: Candidate) -> int:
    """Bytes of the blocks of operands that are on the device at once."""
    problem, op, page = candidate.problem, candidate.op, candidate.problem.machine.page
    total = 0
    for i, (spec, operand, nbytes) in enumerate(zip(problem.operands, op.operands, candidate.bytes_in, strict=True)):
        if not problem.machine.staged and spec.storage.in_memory and not operand.padded:
            continue  # a view
        if i in candidate.resident:
            total += _resident(operand, spec, candidate.grid, page)
        else:
            number = candidate.lanes if candidate.privates[i] else candidate.depth
            total += min(number, max(candidate.loads[i], 1)) * rounded(nbytes, page)
    return total


def _outputs(candidate: Candidate) -> int:
    """Bytes of the results that wait to be stored."""
    problem, op, page, lanes = candidate.problem, candidate.op, candidate.problem.machine.page, candidate.lanes
    tiled = candidate.tile != candidate.block
    if tiled and recycled(op, problem.operands, problem.outputs, candidate.privates) is not None:
        return 0
    total = 0
    for part, stores in zip(op.parts, candidate.stores, strict=True):
        # Only the last of the blocks that are combined gives a result, so of `depth` blocks under way only few do.
        combined = max(candidate.blocks // max(stores, 1), 1)
        waiting = -(-candidate.depth // combined) if candidate.stored_apart else lanes
        total += min(waiting, max(stores, 1)) * sum(rounded(candidate.bytes_out[i], page) for i in part.numbers)
    if op.views and candidate.moved_by_lanes:  # see `Plan.lends`
        return min(total, lanes * GATHERED)
    return total


def _partials(candidate: Candidate) -> int:
    """Bytes of what is kept between blocks."""
    op, page, kept = candidate.op, candidate.problem.machine.page, candidate.kept_bytes
    values = chains(op, candidate.lanes, candidate.moved_by_lanes and op.scan is None)
    if len(op.parts) == 1:
        total = values * candidate.turns.together * rounded(kept, page) if kept else 0
    else:
        held = [(p.holds(candidate.block), p.alive(candidate.counts, candidate.walk)) for p in op.parts]
        total = values * sum(alive * rounded(n, page) for n, alive in held if n)
    if kept > page and not op.tile_alone:
        total += candidate.lanes * SPREAD * page
    return total


def _workspace(candidate: Candidate) -> int:
    """Bytes that a lane's kernel allocates besides its results."""
    problem, op, page = candidate.problem, candidate.op, candidate.problem.machine.page
    share = math.prod(candidate.tile) / max(math.prod(candidate.block), 1)
    volume = op.volume(candidate.tile)
    strip = problem.strips.staged if problem.machine.staged else problem.strips.shared
    temporary = math.ceil(problem.workspace * min(volume, strip or volume))
    if share < 1:
        temporary += math.ceil(sum(candidate.bytes_out) * share)  # a tile's results, before they are in their places
    largest = max([*candidate.bytes_in, *candidate.bytes_out], default=0)
    total = temporaries(temporary, largest, page)
    if temporary > page > ALIGNMENT and not op.folds:
        # As much again as the result is temporary until there is one. It fits in the result's place if all are as
        # large as the largest block.
        sizes = {rounded(n, page) for n in candidate.bytes_out}
        if sizes != {rounded(largest, page)}:
            total += sum(rounded(n, page) for n in candidate.bytes_out)
    return total


def _resident(operand: Operand, spec: ArraySpec, grid: Grid, page: int) -> int:
    """Bytes of all blocks of an operand, each in a device buffer of its own."""
    sides = [grid.sides(a) if a in operand.axes else {1: 1} for a in range(len(grid.extents))]
    return sum(
        math.prod(times) * rounded(math.prod(operand.shape(shape)) * spec.dtype.itemsize, page)
        for shape, times in (zip(*chosen, strict=True) for chosen in itertools.product(*(s.items() for s in sides)))
    )
