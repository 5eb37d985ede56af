"""Rings of pinned memory for a candidate plan: threads and buffers of each direction. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Shape
from chunkflow.core.machine import Machine
from chunkflow.core.memory import Ring
from chunkflow.core.pieces import contiguous
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.problem import Candidate
from chunkflow.planner.transfer_cut import Cut

BOTH = 2 / 3
"""Share of the threads that each direction of a product has: with more, those that wait slow those that copy."""


class Rings(NamedTuple):
    """Rings of both directions; None where nothing is staged.

    `readers` is the share of the threads for loads that can work at once, and `decoders` that of all threads.
    """

    load: Ring | None = None
    store: Ring | None = None
    readers: float = 1.0
    decoders: float = 1.0

    def device_bytes(self, page: int) -> int:
        """Device memory of both."""
        return sum(r.device_bytes(page) for r in (self.load, self.store) if r)


class _Staged(NamedTuple):
    """An array of which so many blocks are moved; halos may scatter their pieces, and make rows of few elements."""

    spec: ArraySpec
    cut: Cut
    shape: Shape
    blocks: int
    scattered: bool = False
    short_rows: bool = False


def rings(candidate: Candidate, upload: int) -> Rings:
    """Rings of a candidate that uploads so many bytes."""
    problem, op, machine = candidate.problem, candidate.op, candidate.problem.machine
    if not machine.staged:
        return Rings()
    share_in = upload / max(upload + sum(s.nbytes for s in problem.outputs), 1)
    slow = any(s.storage.separate for s in problem.outputs)  # a thread makes files slowly
    share_out = 1.0 if slow else 1 - share_in
    if op.is_product:  # tiles are large, and come while the next one's panels are loaded
        share_in = share_out = BOTH
    elif op.folded:  # results are small
        share_in = 1.0
    sources = zip(problem.operands, op.operands, candidate.cuts_in, candidate.shapes_in, strict=True)
    staged_in = [
        _Staged(spec, cut, shape, candidate.blocks, o.spreads(spec.order, candidate.counts), o.wraps(spec.order))
        for spec, o, cut, shape in sources
    ]
    stores = [n for part, n in zip(op.parts, candidate.stores, strict=True) for _ in part.numbers]
    staged_out = [*map(_Staged, problem.outputs, candidate.cuts_out, candidate.shapes_out, stores)]
    threads_in = _threads(machine, share_in)
    load = _ring(staged_in, machine, problem.budget, threads_in, loads=True)
    store = _ring(staged_out, machine, problem.budget, _threads(machine, share_out))
    if load is None or all(spec.chunks is None for spec in problem.operands):
        return Rings(load, store)  # threads share what they read
    at_once = [1 if i in candidate.kept else _at_once(each, candidate.depth) for i, each in enumerate(staged_in)]
    readers = min(load.threads, sum(at_once))
    return Rings(load, store, rate_of(readers / threads_in), readers / machine.threads)


def rate_of(share: float) -> float:
    """Share of the rate at which a share of the threads reads: that of all was measured, and a few have less of it.

    Seen: two threads of six read 11 GB/s where all of them read 36.

    >>> rate_of(1.0), round(rate_of(1 / 3), 2)
    (1.0, 0.26)
    """
    return share * (2 + share) / 3


def _at_once(array: _Staged, depth: int) -> int:
    """Pieces of an array that are read at once, each by a thread: those of a block.

    Those of the next blocks are, too, where no chunk lies in two. Where one does, a plan that has it decoded for each
    is no faster for more threads at work; if it is kept, one thread decodes it, and others wait.
    """
    spec, cut, shape, *_ = array
    sides = zip(shape, spec.chunks or (), spec.shape, strict=False)
    apart = not array.scattered and all(n % chunk == 0 or n == extent for n, chunk, extent in sides)
    return _pieces(cut, shape) * (depth if apart else 1)


def _pieces(cut: Cut, shape: Shape) -> int:
    """Pieces of a block."""
    return math.prod(_grid.count(n, b) for n, b in zip(shape, cut.box(shape), strict=True))


def _threads(machine: Machine, share: float) -> int:
    """Threads of a direction that moves this share of all bytes.

    Half of all at least: what is rarely moved comes all at once.
    """
    return math.ceil(machine.threads * max(share, 0.5))


def _ring(
    arrays: Sequence[_Staged], machine: Machine, budget: int, threads: int, *, loads: bool = False
) -> Ring | None:
    """Ring for one direction, of at most so many threads."""
    if not arrays:
        return None
    largest = pieces = room = decoded = 0
    landing = grouped = False
    for spec, cut, shape, blocks, scattered, short_rows in arrays:
        if cut.batch is not None:
            nbytes = cut.batch.piece
            if cut.batch.nbytes > machine.most:
                room, nbytes = max(room, nbytes), machine.piece
            largest = max(largest, nbytes)
            grouped = grouped or cut.batch.group > 1
            pieces += blocks * -(-cut.batch.number // cut.batch.group)
            continue
        box = cut.box(shape)
        # Not the full block's piece: a ragged block, narrower, may be cut into larger ones.
        nbytes = min(cut.limit, math.prod(shape)) * spec.dtype.itemsize
        if cut.through:
            decoded = max(decoded, cut.decoded(spec, shape))
            through = cut.through * spec.dtype.itemsize
            if nbytes > through:
                room, nbytes = max(room, nbytes), through
        largest = max(largest, nbytes)
        pieces += blocks * _pieces(cut, shape)
        if scattered or not contiguous(box, shape, cut.order):
            landing = landing or short_rows or cut.lands(box, shape, spec.dtype.itemsize)
    limit = machine.host_limit
    if landing:  # a tight budget is for blocks: fewer threads, then
        limit = min(limit, budget // 8)
    scratch = largest if landing else 0  # pieces of ragged blocks of any array may land in it
    if room or decoded:  # memory that is in no budget; with fewer than two threads no chunks are decoded side by side
        threads = min(threads, max(2, machine.host_limit // (room + decoded)))
    # One large chunk per thread stays in the cache, and other threads' chunks are copied while it is filled.
    slots = 1 if loads and not (grouped or room) and 2 * largest > 3 * machine.piece else machine.slots
    return Ring.sized(pieces, largest, threads, slots, limit, scratch, room)
