"""One block shape tried: the plan that it gives, in bytes and seconds, whether it fits the budget or not.

`chunkflow.planner.search` chooses among such plans.
"""

from __future__ import annotations

import math

from chunkflow.core.grid import ONE_BY_ONE, Interleave, Shape
from chunkflow.planner.codec_threads import LATENCY, Coding, best_coding
from chunkflow.planner.cost import estimate
from chunkflow.planner.memory_model import block_memory, projection
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import Candidate, PlanProblem
from chunkflow.planner.ring_size import rings
from chunkflow.planner.traffic import computed, loaded, traffic


def plan_of(
    problem: PlanProblem,
    block: Shape,
    depth: int,
    resident: frozenset[int] = frozenset(),
    turns: Interleave = ONE_BY_ONE,
) -> Plan:
    """The plan with this block and depth, whether it fits the budget or not.

    While `resident` operands are loaded tiles of a product take `turns`.
    """
    candidate, machine = Candidate(problem, block, depth, resident, turns), problem.machine
    load, memory = loaded(candidate), block_memory(candidate)
    ring = rings(candidate, load.upload)
    # Where blocks are staged, the threads of the rings code chunks.
    coding = Coding() if machine.staged else best_coding(candidate, problem.budget - sum(memory) - problem.aside)
    staging = ring.device_bytes(machine.page) if machine.staged else candidate.lanes * coding.nbytes
    compute, spilled = computed(candidate, copied=memory.outputs > 0)
    moved = traffic(candidate, load, compute)
    seconds = estimate(
        machine,
        moved,
        candidate.blocks,
        depth,
        spilled,
        candidate.op.work,
        ring.decoders if machine.staged else coding.decoders,
        coding.encoders,
        candidate.blocks * coding.waits * LATENCY,
        load.chunks * machine.handling + load.asking,
        load.unpacking,
        candidate.rows,
        ring.readers,
        halo=candidate.op.has_halo,
        chunks=math.ceil(load.chunks),
    )
    return Plan(
        op=candidate.op,
        operands=problem.operands,
        outputs=problem.outputs,
        machine=machine,
        budget=problem.budget,
        block=block,
        tile=candidate.tile,
        walk=candidate.walk,
        depth=depth,
        cuts_in=candidate.cuts_in,
        cuts_out=candidate.cuts_out,
        ring_in=ring.load,
        ring_out=ring.store,
        memory=projection(candidate, memory, staging),
        traffic=moved,
        estimate=seconds,
        coders=coding.threads,
        resident=resident,
        kept=candidate.kept,
        turns=turns,
    )
