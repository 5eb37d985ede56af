"""How many threads code the chunks of a lane's blocks, and what memory stores take for it. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chunkflow.core import grid as _grid
from chunkflow.core.grid import Shape
from chunkflow.core.memory import counted_beside, rounded
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.cost import FETCHERS
from chunkflow.planner.problem import Candidate
from chunkflow.planner.transfer_cut import Cut

LATENCY = 0.05
"""Seconds that a request over a network takes before its first byte comes."""


@dataclass(frozen=True)
class Coding:
    """Threads that a lane has for its chunks; a single one is the lane itself.

    So many of them decode and encode, and they take `nbytes` at most. `waits` says how often, for each block, a lane
    waits for what it has asked of a server.
    """

    threads: int = 1
    decoders: int = 1
    encoders: int = 1
    nbytes: int = 0
    waits: int = 0


def best_coding(candidate: Candidate, free: int) -> Coding:
    """As many threads for each lane as there are pieces for and as `free` bytes allow, and one at the least."""
    problem, lanes = candidate.problem, candidate.lanes
    threads = problem.machine.lanes // lanes
    pieces_in = [*map(_pieces, candidate.cuts_in, candidate.shapes_in, problem.operands)]
    pieces_out = [*map(_pieces, candidate.cuts_out, candidate.shapes_out, problem.outputs)]
    # A lane reads, then writes, one array after another; beside it others fetch, and put, what is behind a network.
    ways: dict[str, list[tuple[int, int]]] = {"lane": [], "fetch": [], "put": []}
    for way, specs, pieces in (("fetch", problem.operands, pieces_in), ("put", problem.outputs, pieces_out)):
        for spec, (n, size) in zip(specs, pieces, strict=True):
            beside = counted_beside(spec.storage.beside, problem.budget)
            ways[way if spec.storage.remote else "lane"].append((n, size + beside))
    remote = [n for n, _ in ways["fetch"] + ways["put"]]
    if remote:
        threads = max(threads, FETCHERS // lanes)
    kept = [] if problem.coded == 1 else [problem.operands[i] for i in candidate.kept]
    held = sum(math.ceil(spec.chunk_bytes * spec.storage.decoded) for spec in kept)
    found = Coding()
    for number in range(max(1, min(threads, max([n for n, _ in (*pieces_in, *pieces_out)], default=1))), 0, -1):
        coding = sum(max([min(number, n) * size for n, size in way], default=0) for way in ways.values())
        nbytes = rounded(coding + held)
        waits = sum(-(-n // number) for n in remote)
        found = Coding(number, _busy(pieces_in, number), _busy(pieces_out, number), nbytes, waits)
        if lanes * nbytes <= free:
            break
    return found


def _busy(pieces: Sequence[tuple[int, int]], threads: int) -> int:
    """Threads that have something to do, for every array with chunks."""
    return max(1, min([threads, *(n for n, size in pieces if size)]))


def _pieces(cut: Cut, shape: Shape, spec: ArraySpec) -> tuple[int, int]:
    """Number of pieces of a block, and bytes that coding one takes: none for an array without chunks."""
    if cut.units is None:
        return 1, 0
    number = math.prod(_grid.count(n, b) for n, b in zip(shape, cut.box(shape), strict=True))
    piece = min(cut.limit, math.prod(shape)) * spec.dtype.itemsize
    return number, math.ceil(spec.storage.copies * (piece if spec.storage.parted else max(spec.chunk_bytes, piece)))
