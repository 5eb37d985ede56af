"""One block shape tried: the plan that it gives, in bytes and seconds, whether it fits the budget or not.

Pure: touches no data and knows no device and no store. `chunkflow.planner.search` chooses among such plans.
"""

from __future__ import annotations

from chunkflow.core.grid import ONE_BY_ONE, Interleave, Shape
from chunkflow.planner.codec_threads import LATENCY, Coded, Coding, best_coding
from chunkflow.planner.cost import estimate
from chunkflow.planner.memory_model import BlockMemory, block_memory, projection
from chunkflow.planner.plan import Plan
from chunkflow.planner.problem import Candidate, PlanProblem, candidate_of
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
    candidate, machine = candidate_of(problem, block, depth, resident, turns), problem.machine
    load, memory = loaded(candidate), block_memory(candidate)
    ring = rings(candidate, load.upload)
    coding = _coding(candidate, memory)
    staging = ring.device_bytes(machine.page) if machine.staged else candidate.lanes * coding.nbytes
    compute = computed(candidate, copied=memory.outputs > 0)
    moved = traffic(candidate, load, compute.total)
    seconds = estimate(
        machine,
        moved,
        candidate.blocks,
        depth,
        compute.spilled,
        candidate.op.work,
        ring.readers if machine.staged else coding.decoders,
        coding.encoders,
        candidate.blocks * coding.waits * LATENCY + load.chunks * machine.handling,
        load.unpacking,
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
        turns=turns,
    )


def _coding(candidate: Candidate, memory: BlockMemory) -> Coding:
    """Threads that code the chunks of each lane's blocks; where staged, those of the rings do."""
    problem, lanes = candidate.problem, candidate.lanes
    if problem.machine.staged:
        return Coding()
    free = problem.budget - sum(memory) - problem.reserve
    sources = map(Coded, candidate.cuts_in, candidate.shapes_in, problem.operands)
    sinks = map(Coded, candidate.cuts_out, candidate.shapes_out, problem.outputs)
    return best_coding([*sources], [*sinks], lanes, problem.machine.lanes // lanes, free)
