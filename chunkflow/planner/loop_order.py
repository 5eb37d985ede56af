"""Loop order of the blocks, and the bytes that are loaded in it. Pure arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Grid, Shape
from chunkflow.core.halo import length
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.spec import ArraySpec


def decoded_bytes(spec: ArraySpec, operand: Operand, grid: Grid, walk: Shape, depth: int, *, kept: bool = False) -> int:
    """Bytes that one walk over an operand reads, whole chunks counted as often as they are touched.

    If they are `kept` they are read once for all blocks that follow one another.
    """
    if spec.chunks is None:
        return loaded_bytes(spec, operand, grid, walk, depth)
    elements = 1
    inner = walked_last(operand, grid, walk)
    halos = operand.halo or ((0, 0),) * len(spec.shape)
    for axis, n, chunk, halo in zip(operand.axes, spec.shape, spec.chunks, halos, strict=True):
        if axis is not None and axis == inner and kept:
            pass
        elif axis is not None and operand.halo:
            reused = depth > 1 and axis == inner
            n = n if reused and operand.ahead else _grid.touched(n, grid.block[axis], chunk, halo, reused=reused)
        elif axis is not None:
            n = _grid.touched(n, grid.block[axis], chunk)
        elements *= n
    return elements * spec.dtype.itemsize


def walked_last(operand: Operand, grid: Grid, walk: Shape) -> int | None:
    """Axis along which an operand's blocks follow one another: a block finds its halo in the one before."""
    return next((a for a in reversed(walk) if grid.counts[a] > 1 and a in operand.axes), None)


def ending_with_chunks(op: LoopNest, operands: Sequence[ArraySpec], grid: Grid, walk: Shape) -> LoopNest:
    """The pass with blocks that end where a chunk does, so that no chunk is decoded for two of them."""
    found = []
    for operand, spec in zip(op.operands, operands, strict=True):
        axis = walked_last(operand, grid, walk)
        if operand.halo and axis is not None and spec.chunks is not None:
            dim = operand.axes.index(axis)
            if grid.block[axis] % spec.chunks[dim] == 0:
                ahead = [1] * len(spec.shape)
                ahead[dim] = spec.chunks[dim]
                operand = replace(operand, ahead=tuple(ahead))
        found.append(operand)
    return replace(op, operands=tuple(found))


def nest_order(op: LoopNest, operands: Sequence[ArraySpec]) -> Shape:
    """Axes of the nest from slowest to fastest, after the memory order of the largest operand.

    Axes that it lacks come first; those of places to look up come after the axis of the lines that they lie in.
    """
    if not operands:
        return tuple(range(len(op.extents)))
    largest = max(range(len(operands)), key=lambda i: operands[i].nbytes)
    axes = [op.operands[largest].axes[d] for d in operands[largest].order]
    fast = [a for a in axes if a is not None]
    slow = [a for a in range(len(op.extents)) if a not in fast]
    at = next((i for i, a in enumerate(fast) if a in op.looked_up), None)
    if at is not None:
        return (*fast[: at + 1], *slow, *fast[at + 1 :])
    return (*slow, *fast)


def loaded_bytes(spec: ArraySpec, operand: Operand, grid: Grid, walk: Shape, depth: int) -> int:
    """Bytes of one walk over an operand, with what halos add."""
    if not operand.halo:
        return spec.nbytes
    inner = walked_last(operand, grid, walk)
    elements = 1
    for axis, n, halo, kind in zip(operand.axes, spec.shape, operand.halo, operand.boundary, strict=True):
        reused = depth > 1 and axis == inner
        elements *= n if axis is None else length(n, grid.block[axis], halo, kind, reused=reused)
    return elements * spec.dtype.itemsize


def best_walk(
    op: LoopNest, operands: Sequence[ArraySpec], grid: Grid, depth: int, resident: frozenset[int], order: Shape
) -> Shape:
    """Loop order that loads the fewest bytes; `order`, that of the arrays, where it makes no difference.

    Axes that are folded, or scanned, come last: one block of partial results, or one carry, is held at a time. Where
    the kernel's parts fold different ones, as few partial results as possible are held.
    """
    folding = [p for p in op.parts if p.folded]
    counts = grid.counts
    mixed = bool(folding) and (len({p.folded for p in folding}) > 1 or len(folding) < len(op.parts))
    inner = frozenset() if mixed else op.folded if op.scan is None else {op.scan}
    own = (*[a for a in order if a not in inner], *[a for a in order if a in inner])
    several = [a for a in own if counts[a] > 1]
    if len(several) < 2 or (not mixed and not op.has_halo and all(set(several) <= set(o.axes) for o in op.operands)):
        return own

    def loaded(walk: Shape) -> tuple[int, int]:
        alive = sum(p.holds(grid.block) * p.alive(counts, walk) for p in folding) if mixed else 0
        return alive, sum(
            decoded_bytes(s, o, grid, walk, depth) * op.loads(o, counts, walk) // max(o.different(counts), 1)
            for i, (s, o) in enumerate(zip(operands, op.operands, strict=True))
            if i not in resident
        )

    single = tuple(a for a in own if counts[a] <= 1)
    return min(((*single, *walk) for walk in walks(several, inner)), key=loaded)


def walks(several: Sequence[int], inner: Collection[int]) -> Iterator[Shape]:
    """Loop orders of axes, those of the `inner` ones last; of many axes only the order in which they are given."""
    outer, last = [a for a in several if a not in inner], [a for a in several if a in inner]
    if len(several) > 5:
        yield (*outer, *last)
        return
    for first, then in itertools.product(itertools.permutations(outer), itertools.permutations(last)):
        yield (*first, *then)
