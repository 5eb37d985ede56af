"""Bytes that a candidate plan moves through each stage, and seconds that do not depend on bytes. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Shape
from chunkflow.core.nest import Operand
from chunkflow.core.spec import ArraySpec, Behind
from chunkflow.planner.cost import Traffic
from chunkflow.planner.loop_order import decoded_bytes, loaded_bytes
from chunkflow.planner.problem import Candidate, block_bytes

COPIED = 24e9
"""Bytes per second at which a lane copies chunks from its buffer to their places in a block (seen: 45 us for each of
half a MB, 80 for each of one, of two lanes)."""


class LoadedBytes(NamedTuple):
    """Bytes of a run's operands that are read, that are uploaded, and that the host decodes (as an ordinary codec's).

    Of those that are read `files` come from files of this machine, and `given` are those of the elements that blocks
    get. `chunks` are those that are read; in a shard they count twice, as its index is searched for them. `asking` are
    the seconds that reads take whatever their bytes. `unpacking` are the seconds in which the device decodes. `carried`
    are copied from the block before, which has them, too.
    """

    read: int
    files: int
    given: int
    upload: int
    decode: int
    chunks: float
    asking: float
    unpacking: float
    carried: int


def loaded(candidate: Candidate) -> LoadedBytes:
    """What loading a candidate's operands takes."""
    problem, grid, walk, depth = candidate.problem, candidate.grid, candidate.walk, candidate.depth
    read = files = given = upload = decode = carried = 0
    chunks = asking = unpacking = 0.0
    for i, (spec, operand) in enumerate(zip(problem.operands, candidate.op.operands, strict=True)):
        loads = candidate.loads[i]
        repeats = loads // max(operand.different(candidate.counts), 1) if candidate.blocks else 0
        touched = decoded_bytes(spec, operand, grid, walk, depth, kept=i in candidate.kept) * repeats
        wanted = loaded_bytes(spec, operand, grid, walk, depth) * repeats if spec.chunks else touched
        taken = wanted if spec.storage.parted else touched
        read += taken
        given += wanted
        if operand.halo and not spec.storage.in_memory:
            carried += loaded_bytes(spec, operand, grid, walk, 1) * repeats - wanted
        files += 0 if spec.storage.in_memory or spec.storage.remote else taken
        if spec.chunks is None:
            asking += loads * spec.storage.asking
            if spec.storage.behind is not None:
                asking += _behind(spec, spec.storage.behind, operand, grid, walk, depth, loads, repeats)
        else:
            number = touched / (math.prod(spec.chunks) * spec.dtype.itemsize) * spec.storage.pieces
            chunks += (1 + spec.storage.sharded) * number
            asking += number * spec.storage.asking
            if _is_copied(spec, operand.shape(grid.block)) and not problem.machine.staged:
                asking += taken / COPIED
        if i in candidate.batches:  # how much shorter encoded chunks are is unknown before they are read
            upload += touched
            unpacking += loads * candidate.batches[i].seconds
            continue
        if spec.chunks is None:
            upload += touched
            continue
        upload += wanted
        if not spec.storage.raw or spec.storage.decoded > 1:
            known = problem.machine.decoding(spec.storage.codec)
            decode += math.ceil(taken * spec.storage.decoded / (known.host if known else 1))
    return LoadedBytes(read, files, given, upload, decode, chunks, asking, unpacking, carried)


def _is_copied(spec: ArraySpec, block: Shape) -> bool:
    """Whether chunks that are files as they are have rows that lie apart in a block, so that none is read in place."""
    if not spec.storage.raw or spec.storage.in_memory or spec.chunks is None:
        return False
    sides = tuple(map(min, spec.chunks, block))
    first = next((axis for axis, side in enumerate(sides) if side > 1), len(sides))
    return sides[first + 1 :] != tuple(block[first + 1 :])


def _behind(
    spec: ArraySpec,
    behind: Behind,
    operand: Operand,
    grid: _grid.Grid,
    walk: Shape,
    depth: int,
    loads: int,
    repeats: int,
) -> float:
    """Seconds in which a library decodes the chunks that loads touch, but those that it keeps from the ones before."""
    if len(behind.chunks) != len(spec.shape):  # of a view: which chunks a block touches is not known
        return loads * behind.seconds
    number = math.prod(-(-n // side) for n, side in zip(spec.shape, behind.chunks, strict=True))
    if number <= behind.kept:
        return number * behind.seconds
    sides = (n if axis is None else grid.block[axis] for axis, n in zip(operand.axes, spec.shape, strict=True))
    at_once = math.prod(-(-n // side) for n, side in zip(sides, behind.chunks, strict=True))
    chunked = replace(spec, chunks=behind.chunks)
    touched = decoded_bytes(chunked, operand, grid, walk, depth, kept=at_once <= behind.kept) * repeats
    return touched / (math.prod(behind.chunks) * spec.dtype.itemsize) * behind.seconds


def computed(candidate: Candidate, *, copied: bool) -> tuple[int, int]:
    """Bytes that kernels read and write, and those of them that are not in the cache.

    `copied` says whether results have memory of their own.
    """
    if candidate.in_place:
        return 0, 0
    problem, op, machine = candidate.problem, candidate.op, candidate.problem.machine
    held, kept = candidate.held_bytes, candidate.kept_bytes
    times = math.prod(op.extents) / max(math.prod(candidate.block), 1)
    working = held + kept + math.ceil(problem.workspace * op.volume(candidate.block))
    total = int((2 * working - held - kept) * times)
    if op.single and machine.accumulates:
        total = int(sum(candidate.bytes_in) * times)  # the tile is read and written while its elements are computed
    if not machine.cache:
        return total, 0
    if working <= machine.cache:
        # A lane fills one slot after the other: what it reads into them is written to memory unless all of them fit.
        filled = sum(n for n, s in zip(candidate.bytes_in, problem.operands, strict=True) if not s.storage.in_memory)
        slots = max(1, candidate.depth // candidate.lanes)
        return total, int(filled * times) if slots * filled > machine.cache else 0
    if candidate.tile == candidate.block:
        return total, total
    # A tile's temporaries stay in the cache. Its results are fetched once more to be stored, or twice if they are
    # copied to places of their own.
    again = sum(candidate.bytes_out) * (2 if copied else 1)
    return total, int((held + again) * times)


def traffic(candidate: Candidate, load: LoadedBytes, compute: int) -> Traffic:
    """Bytes of each stage of a candidate."""
    outputs = candidate.problem.outputs
    written = sum(s.nbytes for s in outputs)
    new = [(s.nbytes, s.scatters(n)) for s, n in zip(outputs, candidate.shapes_out, strict=True) if s.storage.fresh]
    return Traffic(
        read=load.read,
        files=load.files,
        given=load.given,
        upload=load.upload,
        compute=compute,
        download=written,
        write=written,
        decode=load.decode,
        encode=sum(s.nbytes for s in outputs if s.chunks is not None and not s.storage.separate),
        first=_first(candidate, load.upload),
        last=_last(candidate),
        created=sum(nbytes for nbytes, scattered in new if not scattered),
        scattered=sum(nbytes for nbytes, scattered in new if scattered),
        separate=sum(s.nbytes for s in outputs if s.storage.separate),
        carried=load.carried,
        in_place=candidate.in_place,
    )


def _first(candidate: Candidate, upload: int) -> int:
    """Bytes that are loaded before anything can be computed."""
    op, block, turns = candidate.op, candidate.block, candidate.turns
    sides = [head[0] if head else n for head, n in zip(turns.heads, block, strict=True)] if turns.heads else block
    total = sum(block_bytes([o.shape(sides) for o in op.operands], candidate.problem.operands))
    if not candidate.resident:
        return total
    across = op.across(candidate.counts)
    passing = tuple([n * (turns.together if a in across else 1) for a, n in enumerate(block)])
    return total + sum(_awaited(candidate, i, passing, upload) for i in candidate.resident)


def _awaited(candidate: Candidate, operand: int, passing: Shape, upload: int) -> int:
    """Bytes of a resident operand that a product waits for.

    It is loaded while the first blocks, of the sides `passing`, are computed: what is computed meanwhile is no wait.
    """
    op, machine = candidate.op, candidate.problem.machine
    axes, own = op.operands[operand].axes, candidate.problem.operands[operand].nbytes
    sides = zip(passing, op.extents, strict=True)
    share = math.prod(min(s / n, 1) for a, (s, n) in enumerate(sides) if a not in axes)
    load = own + (upload - own) * share
    return max(0, math.ceil(load - op.work * share / machine.products * machine.upload))


def _last(candidate: Candidate) -> int:
    """Bytes that are stored after the last block is computed."""
    if not candidate.blocks:
        return 0
    ends = candidate.grid.region(tuple([n - 1 for n in candidate.counts]))
    return sum(block_bytes([_grid.shape_of(o.region(ends)) for o in candidate.op.outputs], candidate.problem.outputs))
