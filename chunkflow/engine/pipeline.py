"""The one loop that runs every plan: three stages, each pulling from the one before.

``feed`` loads blocks, ``compute`` runs the kernel on them, ``drain`` stores the results. Back-pressure and
clean-up come from the language: a stage is asked for its next block only when there is room for it, and
leaving early closes the generators. Knows no operation, device or store by name.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.nest import Operand
from chunkflow.devices.protocol import Device, Edge, Event, Lane, PartOf, Pool
from chunkflow.engine.block_runner import BlockRunner, Turned
from chunkflow.engine.direct import DirectDrainer, DirectFeeder
from chunkflow.engine.in_flight import InFlight
from chunkflow.engine.lane_scheduler import LaneScheduler
from chunkflow.engine.staged.ring import RingDrainer, RingFeeder
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Accumulator, Loaded, Result
from chunkflow.errors import BudgetError
from chunkflow.kernels.protocol import Kernel
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Sink, Source
from chunkflow.system import interrupts

Held = tuple[Loaded, ...]
Following = tuple[Step, Held] | None
"""The step after one, if its blocks are on their way already."""
States = dict[tuple[int, Shape], dict[int, Accumulator]]
"""What is kept between steps: for each part of the kernel and block of its results, by chain."""


class Feeder(Protocol):
    """Brings blocks to the device; up to `ahead` steps before they are computed."""

    ahead: int

    def load(self, step: Step, operand: int, lane: Lane) -> Loaded:
        """Start to load an operand's block."""

    def finish(self) -> None:
        """No block follows: threads may end."""

    def close(self) -> None:
        """Stop, and give everything back."""


class Drainer(Protocol):
    """Takes results to the sinks."""

    def store(self, result: Result, lane: Lane) -> None:
        """Start to store a result."""

    def finish(self) -> None:
        """No result follows: threads may end."""

    def close(self) -> None:
        """Finish, and give everything back."""


def feed(plan: Plan, feeder: Feeder, lanes: LaneScheduler) -> Iterator[tuple[Step, Held, Following]]:
    """Yield each step with its operands' blocks, in order, keeping the feeder busy with later ones."""
    steps = plan.steps(lanes.pick)
    ahead: deque[tuple[Step, Held]] = deque()
    there: list[dict[int, Loaded]] = [{} for _ in plan.operands]  # loads on the device
    over = False
    while True:
        while len(ahead) < feeder.ahead and not over:
            if (step := next(steps, None)) is None:
                over = True
                feeder.finish()
                break
            for i, loads in enumerate(there):
                if step.fresh[i]:
                    if i not in plan.resident:
                        loads.clear()
                    loads[step.loads[i]] = feeder.load(step, i, lanes[step.lane])
            ahead.append((step, tuple([loads[n] for loads, n in zip(there, step.loads, strict=True)])))
        if not ahead:
            return
        step, held = ahead.popleft()
        for loaded in held:
            loaded.enqueued()
        interrupts.check()
        yield step, held, ahead[0] if ahead else None


def compute(
    plan: Plan,
    blocks: Iterator[tuple[Step, Held, Following]],
    runner: BlockRunner,
    lanes: LaneScheduler,
    device: Device,
    pool: Pool,
    trace: Trace,
    flight: InFlight,
) -> Iterator[tuple[Result, Lane]]:
    """Launch the kernel of each step on its lane; yield what it will give.

    If the kernel runs out of memory while earlier results are still in `flight`, it is launched again when
    they have landed and freed theirs, and fewer are let wait; only then is the block computed in halves.
    """
    states: States = {}
    before: Held = ()
    early = False  # whether the step's blocks have what the ones before them hold too
    for step, held, following in blocks:
        if lanes.failed:
            flight.end()
        flight.admit(step)
        lane = lanes[step.lane]
        for loaded in held:
            loaded.order_before(lane)
        if plan.op.has_halo:
            if not early:
                _take_over(step, held, before, lane, device, pool)
            _complete(plan, step, held, lane, device, pool)
            # As soon as it can be: then what comes after the next block may overwrite this one while that is computed.
            if early := following is not None:
                _take_over(*following, held, lanes[following[0].lane], device, pool)
            before = held
        turns = _turns(step, states, plan.op.scan is None)
        own = [state for state, _ in turns]
        others = [part for state, parts in turns for part in parts if part is not state]
        for part in (*own, *others):
            if part.done is not None and part.lane != step.lane:
                lane.wait([part.done], Edge.FOLDED)
        started = device.event(timed=True) if trace.timed else None
        result = Result(step, started, device.event(timed=trace.timed))
        if started is not None:
            lane.record(started)
        reads = [*(loaded.block.owner for loaded in held), *others]
        writes = (result, *own)
        waits = plan.machine.staged and bool(flight)
        launch = partial(_run_kernel, runner, pool, step, held, turns, not waits)
        result.pending = lane.call(launch, reads=reads, writes=writes)
        if waits and _ran_out(result, held, device):
            flight.make_room(step)
            launch = partial(_run_kernel, runner, pool, step, held, turns, True)
            result.pending = lane.call(launch, reads=reads, writes=writes)
        lane.record(result.done)
        for state in own:
            state.done, state.lane = result.done, step.lane
        for loaded in held:
            if loaded.slot is not None:
                loaded.slot.readers.append(result.done)
        yield result, lane
        if result.stored is not None:  # it may be a view of a block
            for loaded in held:
                if loaded.slot is not None:
                    loaded.slot.readers.append(result.stored)
        del (
            result,
            held,
            following,
            loaded,
            launch,
            reads,
            writes,
            turns,
            own,
            others,
        )  # what a suspended generator still names would stay allocated


def _take_over(step: Step, held: Held, before: Held, lane: Lane, device: Device, pool: Pool) -> None:
    """Enqueue the copies of what a step's new blocks have in common with those `before` them."""
    if not before:  # the first step
        return
    for loaded, known, previous in zip(held, step.kept, before, strict=True):
        if known is None or loaded.slot is None:
            continue
        lane.wait(loaded.after, Edge.OVERWRITE)
        if previous.ready is not None:  # else it is a view of an array in memory
            lane.wait([previous.ready], Edge.COMPLETE)

        def take(loaded: Loaded = loaded, known: Region = known, previous: Loaded = previous) -> None:
            with pool.active():
                loaded.take_over(known, previous)

        taken = lane.call(take, reads=(previous.block.owner,), writes=(PartOf(loaded.slot, "halo"),))
        loaded.calls.append(taken)
        done = device.event()
        lane.record(done)
        loaded.after.append(done)  # for what writes all of the slot
        if previous.slot is not None:
            previous.slot.readers.append(done)


def _complete(plan: Plan, step: Step, held: Held, lane: Lane, device: Device, pool: Pool) -> None:
    """Enqueue what makes up the part of new blocks that lies beyond the array's edges."""
    for loaded, operand, fresh in zip(held, plan.op.operands, step.fresh, strict=True):
        if not (operand.halo and fresh and loaded.slot is not None):
            continue

        def complete(loaded: Loaded = loaded, operand: Operand = operand) -> None:
            with pool.active():
                loaded.complete(operand)

        loaded.calls.append(lane.call(complete, writes=(loaded.slot,)))
        loaded.ready = device.event()
        lane.record(loaded.ready)


def _turns(step: Step, states: States, folds: bool) -> list[Turned]:
    """What the step's chain keeps for each of its turns, and where it `folds`, at the last, what all have kept."""
    found = []
    for turn in step.turns:
        chains = states.setdefault((turn.part, turn.key), {})
        state = chains.setdefault(step.chain, Accumulator())
        found.append((state, [chains[chain] for chain in sorted(chains)] if turn.last and folds else []))
        if turn.last:
            del states[turn.part, turn.key]
    return found


def _run_kernel(
    runner: BlockRunner,
    pool: Pool,
    step: Step,
    held: Held,
    turns: Sequence[Turned],
    halve: bool,
) -> tuple[Any, ...]:
    for loaded in held:
        loaded.check()
    with pool.active():
        results = runner([loaded.block.array for loaded in held], step, turns, halve=halve)
    for loaded in held:
        loaded.spent(results, pool)
    return results


def _ran_out(result: Result, held: Held, device: Device) -> bool:
    """Whether a kernel failed for want of memory. Its error, and the arrays that it holds, are let go.

    A block that could not be made is none the better for a second try.
    """
    assert result.pending is not None
    try:
        result.pending.result()
    except BaseException as error:
        made = not any(loaded.failed for loaded in held)
        if isinstance(error, BudgetError) or not (made and device.is_out_of_memory(error)):
            raise
        result.pending = None
        return True
    return False


def drain(results: Iterator[tuple[Result, Lane]], drainer: Drainer, flight: InFlight, lanes: LaneScheduler) -> None:
    """Store results in order, and wait for them all."""
    for result, lane in results:
        drainer.store(result, lane)
        lanes.follow(result)
        flight.add(result)
        del result
    drainer.finish()
    flight.end()


def execute(
    plan: Plan,
    kernel: Kernel,
    sources: Sequence[Source],
    sinks: Sequence[Sink],
    device: Device,
    pool: Pool,
    trace: Trace,
) -> None:
    """Run a plan to its end.

    The first failure stops new steps, lets what is in flight land, releases every thread and buffer, and is
    raised once.
    """
    runner = BlockRunner(kernel, plan, device, trace)
    flight = InFlight(plan, device, pool, trace)
    with ExitStack() as stack, device.attach():
        if kernel.tf32:
            stack.enter_context(device.rounding())
        stack.callback(flight.let_go)
        lanes = _open_lanes(plan, device, stack, deals=plan.deals and not getattr(device, "in_turn", False))
        pool.begin(plan.memory)
        feeder = _open_feeder(plan, sources, device, pool, trace, stack)
        drainer = _open_drainer(plan, sinks, device, pool, trace, stack)
        _finish_first(plan, lanes, stack)
        if plan.machine.staged:
            own = plan.memory.outputs + plan.memory.partials + plan.memory.workspace
            most = plan.budget - plan.memory.total + own
            for lane in lanes:
                lane.call(partial(pool.claim, plan.results, own // len(lanes), most // len(lanes)))
        blocks = feed(plan, feeder, lanes)
        drain(compute(plan, blocks, runner, lanes, device, pool, trace, flight), drainer, flight, lanes)


@contextmanager
def streaming(
    plan: Plan, source: Source, device: Device, pool: Pool, trace: Trace
) -> Iterator[Iterator[tuple[Step, Any]]]:
    """Blocks of one source for a loop of the caller's own, on the caller's lane."""
    with ExitStack() as stack, device.attach():
        lanes = _open_lanes(plan, device, stack, deals=False)
        pool.begin(plan.memory)
        feeder = _open_feeder(plan, [source], device, pool, trace, stack)
        _finish_first(plan, lanes, stack)
        if not plan.batches:
            feeder.ahead = plan.depth

        def blocks() -> Iterator[tuple[Step, Any]]:
            for step, (loaded,), _ in feed(plan, feeder, lanes):
                lane = device.caller_lane()
                loaded.order_before(lane)
                loaded.check()
                lane.call(lambda: None, reads=(loaded.block.owner,))  # declares the loop's reading
                yield step, loaded.block.array
                if loaded.slot is not None:
                    # The loop may have moved to another stream meanwhile: its work up to here counts.
                    done: Event = device.event()
                    device.caller_lane().record(done)
                    loaded.slot.readers.append(done)
                trace.landed(plan.operands[0].dtype.itemsize * math.prod(shape_of(step.box)), 0)

        yield blocks()


def _open_lanes(plan: Plan, device: Device, stack: ExitStack, *, deals: bool) -> LaneScheduler:
    lanes = []
    for _ in range(plan.lanes):
        lane = device.lane()
        stack.callback(lane.close)
        lanes.append(lane)
    return LaneScheduler(lanes, deals=deals)


def _finish_first(plan: Plan, lanes: LaneScheduler, stack: ExitStack) -> None:
    """Where lanes read and store blocks themselves: let them end what a failed run has enqueued, while all is there."""
    if not plan.machine.staged:
        for lane in lanes:
            stack.callback(lane.synchronize)


def _open_feeder(
    plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace, stack: ExitStack
) -> Feeder:
    kind = RingFeeder if plan.machine.staged else DirectFeeder
    feeder = kind(plan, sources, device, pool, trace)
    stack.callback(feeder.close)
    return feeder


def _open_drainer(
    plan: Plan, sinks: Sequence[Sink], device: Device, pool: Pool, trace: Trace, stack: ExitStack
) -> Drainer:
    kind = RingDrainer if plan.machine.staged else DirectDrainer
    drainer = kind(plan, sinks, device, pool, trace)
    stack.callback(drainer.close)
    return drainer
