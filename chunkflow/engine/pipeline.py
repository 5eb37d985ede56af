"""The one loop that runs every plan: three stages, each of which pulls from the one before.

``feed`` loads blocks, ``compute`` runs the kernel on them, ``drain`` stores the results::

    feed      load 0   load 1   load 2   load 3
    compute            step 0   step 1   step 2   step 3
    drain                       store 0  store 1  store 2  store 3

``drain`` asks ``compute`` for a result, and ``compute`` asks ``feed`` for a block. ``feed`` starts loads ahead of that,
as many as the plan has buffers for, and ``InFlight`` bounds how many results may wait. So back-pressure and clean-up
come from the language: a stage is asked only when there is room, and leaving early closes the generators. The loop
knows no operation, device or store by name.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from chunkflow.core.grid import shape_of
from chunkflow.devices.protocol import Device, Edge, Event, Lane, PartOf, Pool
from chunkflow.engine.block_runner import BlockRunner, Turned
from chunkflow.engine.direct import DirectDrainer, DirectFeeder
from chunkflow.engine.in_flight import InFlight
from chunkflow.engine.lane_scheduler import LaneScheduler
from chunkflow.engine.memory_watch import MemoryWatch
from chunkflow.engine.observe.profiler_ranges import block_range
from chunkflow.engine.resume import Accumulators, Resumption
from chunkflow.engine.scarcity import explained
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Accumulator, Loaded, Result
from chunkflow.errors import BudgetError
from chunkflow.kernels.protocol import Kernel
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Sink, Source
from chunkflow.system import interrupts
from chunkflow.system.deferred import at

if TYPE_CHECKING:  # loaded where a device has memory of its own: that takes a tenth of the package's import
    from chunkflow.engine.staged.ring import RingDrainer, RingFeeder

Feeder: TypeAlias = "RingFeeder | DirectFeeder"
"""Brings blocks to the device, up to `ahead` steps before they are computed."""
Drainer: TypeAlias = "RingDrainer | DirectDrainer"
"""Takes results to the sinks."""
STAGED_FEEDER, STAGED_DRAINER = (at(f"chunkflow.engine.staged.ring:{name}") for name in ("RingFeeder", "RingDrainer"))
Held = tuple[Loaded, ...]
Following = tuple[Step, Held] | None
"""The next step, if its blocks are being loaded already."""


class LoadedStep(NamedTuple):
    """A step with the blocks of its operands."""

    step: Step
    held: Held
    following: Following


def feed(plan: Plan, feeder: Feeder, lanes: LaneScheduler, start: int = 0) -> Iterator[LoadedStep]:
    """Yield the steps in order, each with its blocks, and keep the feeder busy with later ones."""
    steps = plan.steps(lanes.pick, start)
    ahead: deque[tuple[Step, Held]] = deque()
    present: list[dict[int, Loaded]] = [{} for _ in plan.operands]  # by number of the load
    over = False
    while True:
        while len(ahead) < feeder.ahead and not over:
            if (step := next(steps, None)) is None:
                over = True
                feeder.finish()
                break
            for i, loads in enumerate(present):
                if step.fresh[i]:
                    if i not in plan.resident:
                        loads.clear()
                    loads[step.loads[i]] = feeder.load(step, i, lanes[step.lane])
            ahead.append((step, tuple([loads[n] for loads, n in zip(present, step.loads, strict=True)])))
        if not ahead:
            return
        step, held = ahead.popleft()
        for loaded in held:
            loaded.enqueued()
        interrupts.check()
        yield LoadedStep(step, held, ahead[0] if ahead else None)


def compute(
    blocks: Iterator[LoadedStep],
    launcher: Launcher,
    lanes: LaneScheduler,
    flight: InFlight,
    resumption: Resumption | None = None,
) -> Iterator[tuple[Result, Lane]]:
    """Launch the kernel of each step on its lane; yield the result to come."""
    for step, held, following in blocks:
        if lanes.failed:
            flight.end()
        if resumption is not None and resumption.is_due(step.number):
            flight.end()
            launcher.keep(step.number, resumption)
        flight.admit(step)
        lane = lanes[step.lane]
        launcher.fill_halos(step, held, following, lane)
        result = launcher.launch(step, held, lane)
        yield result, lane
        if result.stored is not None:  # the result may be a view of a block
            _read_until(result.stored, held, ("stored", step.lane))
        del result, held, following  # names of a suspended generator keep memory allocated


class Launcher:
    """Enqueues the kernels of a run, with the halos and accumulators that pass from step to step.

    If a kernel runs out of memory while earlier results are still in `flight`, it is launched again when they have
    landed and their memory is free. From then on fewer results may wait. Only then is the block computed in halves.
    """

    def __init__(
        self,
        plan: Plan,
        runner: BlockRunner,
        lanes: LaneScheduler,
        device: Device,
        pool: Pool,
        trace: Trace,
        flight: InFlight,
    ) -> None:
        self._plan, self._runner, self._lanes = plan, runner, lanes
        self._device, self._pool, self._trace, self._flight = device, pool, trace, flight
        self._accumulators: Accumulators = {}
        self._before: Held = ()
        self._early = False  # whether the step's blocks already have what they share with the ones before
        self._launched = 0  # steps; none while one is being launched

    def go_on(self, resumption: Resumption) -> None:
        """Take the values between steps from an earlier run."""
        with self._pool.active():
            self._accumulators = resumption.accumulators(self._device)

    def keep(self, step: int, resumption: Resumption) -> None:
        """Keep the values between steps for a later run, before a step. No other one is being computed."""
        for lane in self._lanes:
            lane.synchronize()
        resumption.keep(step, self._accumulators)

    def settle(self, resumption: Resumption, since: interrupts.Since) -> None:
        """When a run ends early, as by Ctrl-C, finish what is being computed and note it for a later run.

        That takes as long as the blocks that are in flight. A second Ctrl-C leaves after the next of them.
        """
        if since.failed and self._flight.settle() and 0 < self._launched == self._flight.added and resumption.folds:
            with suppress(Exception):  # what was kept before counts then
                self.keep(self._launched, resumption)

    def fill_halos(self, step: Step, held: Held, following: Following, lane: Lane) -> None:
        """Let the lane wait for blocks, and enqueue what completes those with halos."""
        for loaded in held:
            loaded.order_before(lane)
        if not self._plan.op.has_halo:
            return
        if not self._early:
            self._take_over(step, held, self._before, lane)
        self._complete(step, held, lane)
        # Copied early, so that the next but one block may overwrite this one while the next one is computed.
        if following is not None:
            self._take_over(*following, held, self._lanes[following[0].lane])
        self._early, self._before = following is not None, held

    def launch(self, step: Step, held: Held, lane: Lane) -> Result:
        """Enqueue the kernel of a step."""
        device, flight = self._device, self._flight
        self._launched = 0
        turns = _turns(step, self._accumulators, self._plan.op.scan is None)
        own = [accumulator for accumulator, _ in turns]
        others = [part for accumulator, parts in turns for part in parts if part is not accumulator]
        for part in (*own, *others):
            if part.done is not None and part.lane != step.lane:
                lane.wait([part.done], Edge.FOLDED)
        started = device.event(timed=True) if self._trace.timed else None
        result = Result(step, started, device.event(timed=self._trace.timed))
        if started is not None:
            lane.record(started)
        reads = [*(loaded.block.owner for loaded in held), *others]
        writes = (result, *own)
        run = partial(_run_kernel, self._runner, self._pool, step, held, turns)
        retry = self._plan.machine.staged and bool(flight)
        result.pending = lane.call(partial(run, halve=not retry), reads=reads, writes=writes)
        if retry and _ran_out(result, held, device):
            flight.make_room(step)
            result.pending = lane.call(partial(run, halve=True), reads=reads, writes=writes)
        lane.record(result.done)
        for accumulator in own:
            accumulator.done, accumulator.lane = result.done, step.lane
        _read_until(result.done, held, ("computed", step.lane))
        self._launched = step.number + 1
        return result

    def _take_over(self, step: Step, held: Held, before: Held, lane: Lane) -> None:
        """Enqueue the copies of what a step's new blocks share with those `before` them."""
        if not before:  # the first step
            return
        for loaded, known, previous in zip(held, step.kept, before, strict=True):
            if known is None or loaded.buffer is None:
                continue
            lane.wait(loaded.after, Edge.OVERWRITE)
            if previous.ready is not None:  # else it is a view of an array in memory
                lane.wait([previous.ready], Edge.COMPLETE)
            take = partial(self._filled, step, loaded.take_over, known, previous)
            taken = lane.call(take, reads=(previous.block.owner,), writes=(PartOf(loaded.buffer, "halo"),))
            loaded.calls.append(taken)
            done = self._device.event()
            lane.record(done)
            loaded.after.append(done)  # for what overwrites the whole buffer
            if previous.buffer is not None:
                previous.buffer.readers.append(done)

    def _complete(self, step: Step, held: Held, lane: Lane) -> None:
        """Enqueue the filling of new blocks beyond the array's edges."""
        for loaded, operand, fresh in zip(held, self._plan.op.operands, step.fresh, strict=True):
            if operand.halo and fresh and loaded.buffer is not None:
                complete = partial(self._filled, step, loaded.complete, operand)
                loaded.calls.append(lane.call(complete, writes=(loaded.buffer,)))
                loaded.ready = self._device.event()
                lane.record(loaded.ready)

    def _filled(self, step: Step, fill: Callable[..., None], *args: Any) -> None:
        """Fill a part of a step's block with what need not be read. Where a lane does so itself, it reads meanwhile."""
        begin = time.perf_counter()
        with self._pool.active():
            fill(*args)
        if not self._plan.machine.staged:
            self._trace.span("read", begin, time.perf_counter(), 0, step.number)


def _read_until(event: Event, held: Held, reader: Hashable) -> None:
    """Let nothing overwrite blocks before an event, which is the latest one of its reader."""
    for loaded in held:
        if loaded.buffer is not None:
            loaded.buffer.read_until(event, reader)


def _turns(step: Step, accumulators: Accumulators, folds: bool) -> list[Turned]:
    """The accumulator of the step's chain for each of its positions; at the last of a fold, those of all chains."""
    found = []
    for turn in step.turns:
        chains = accumulators.setdefault((turn.part, turn.key), {})
        own = chains.setdefault(step.chain, Accumulator())
        found.append((own, [chains[chain] for chain in sorted(chains)] if turn.last and folds else []))
        if turn.last:
            del accumulators[turn.part, turn.key]
    return found


def _run_kernel(
    runner: BlockRunner, pool: Pool, step: Step, held: Held, turns: Sequence[Turned], *, halve: bool
) -> tuple[Any, ...]:
    try:
        for loaded in held:
            loaded.check()
    except MemoryError as error:  # of a block's own memory: other errors name what was read
        runner.note(error, step)
        raise
    with pool.active(), block_range(step.number):
        results = runner([loaded.block.array for loaded in held], step, turns, halve=halve)
    for loaded in held:
        loaded.spent(results, pool)
    return results


def _ran_out(result: Result, held: Held, device: Device) -> bool:
    """Whether a kernel failed for lack of memory. Its error, and the arrays that the error holds, are dropped.

    Other errors are raised, as are those of blocks that could not be made: a second try would not help.
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
    resumption: Resumption | None = None,
    seen: tuple[np.dtype | None, ...] = (),
) -> None:
    """Run a plan to its end, from the step on to which a `resumption` has come. `seen` is as for `BlockRunner`.

    After the first failure no new step starts. What is in flight lands, every thread and buffer is released, and the
    error is raised once.
    """
    watch = MemoryWatch.of(kernel, plan, device)
    runner = BlockRunner(kernel, plan, device, trace, watch, seen)
    flight = InFlight(plan, device, pool, trace, None if resumption is None else resumption.landed)
    with ExitStack() as stack, device.attach(), explained(device, pool):
        if kernel.tf32:
            stack.enter_context(device.rounding())
        stack.callback(flight.let_go)
        lanes = _open_lanes(plan, device, stack, deals=plan.deals and not device.in_turn, kernels=True)
        pool.begin(plan.memory)
        feeder = _open_feeder(plan, sources, device, pool, trace, stack, sinks)
        drainer = (STAGED_DRAINER if plan.machine.staged else DirectDrainer)(plan, sinks, device, pool, trace)
        stack.callback(drainer.close)
        _finish_first(plan, lanes, stack)
        if plan.machine.staged:
            own = plan.memory.outputs + plan.memory.partials + plan.memory.workspace
            most = plan.budget - plan.memory.total + own
            for lane in lanes:
                lane.call(partial(pool.claim, plan.results, own // len(lanes), most // len(lanes)))
        launcher = Launcher(plan, runner, lanes, device, pool, trace, flight)
        start = 0
        if resumption is not None:
            launcher.go_on(resumption)
            start = resumption.start
            stack.callback(launcher.settle, resumption, interrupts.Since())
        blocks = feed(plan, feeder, lanes, start)
        drain(compute(blocks, launcher, lanes, flight, resumption), drainer, flight, lanes)
    if watch is not None:
        watch.warn(trace)


@contextmanager
def streaming(
    plan: Plan, source: Source, device: Device, pool: Pool, trace: Trace
) -> Iterator[Iterator[tuple[Step, Any]]]:
    """Blocks of one source for a loop of the caller's own, on the caller's lane."""
    with ExitStack() as stack, device.attach():
        with explained(device, pool):
            lanes = _open_lanes(plan, device, stack, deals=False, kernels=False)
            pool.begin(plan.memory)
            feeder = _open_feeder(plan, [source], device, pool, trace, stack)
        _finish_first(plan, lanes, stack)
        # A name of the loop's may refer to the last block until it gets the next one: its buffer is filled after that.
        feeder.ahead = max(1, (plan.ahead if plan.batches else plan.depth) - 1)

        def blocks() -> Iterator[tuple[Step, Any]]:
            for step, (loaded,), _ in feed(plan, feeder, lanes):
                lane = device.caller_lane()
                with explained(device, pool):  # errors of the loop itself are its own
                    loaded.order_before(lane)
                    loaded.check()
                lane.call(lambda: None, reads=(loaded.block.owner,))  # declares that the loop reads the block
                array = loaded.block.array if loaded.buffer is None else loaded.buffer.lend(loaded.block, device)
                yield step, array
                del array
                if loaded.buffer is not None:
                    # The loop may have changed to another stream: its work up to here counts.
                    done: Event = device.event()
                    device.caller_lane().record(done)
                    loaded.buffer.readers.append(done)
                trace.landed(plan.operands[0].dtype.itemsize * math.prod(shape_of(step.box)), 0)

        yield blocks()


def _open_lanes(plan: Plan, device: Device, stack: ExitStack, *, deals: bool, kernels: bool) -> LaneScheduler:
    lanes = []
    alone = not plan.machine.staged and len(plan.grid) == 1  # a thread would take longer to start than most such blocks
    for _ in range(plan.lanes):
        lane = device.caller_lane() if alone else device.lane(kernels=kernels)
        stack.callback(lane.close)
        lanes.append(lane)
    return LaneScheduler(lanes, deals=deals)


def _finish_first(plan: Plan, lanes: LaneScheduler, stack: ExitStack) -> None:
    """Where lanes read and store blocks themselves, let them finish before anything that they use is closed."""
    if not plan.machine.staged:
        for lane in lanes:
            stack.callback(lane.synchronize)


def _open_feeder(
    plan: Plan,
    sources: Sequence[Source],
    device: Device,
    pool: Pool,
    trace: Trace,
    stack: ExitStack,
    sinks: Sequence[Sink] = (),
) -> Feeder:
    feeder: Feeder
    if plan.machine.staged:
        feeder = STAGED_FEEDER(plan, sources, device, pool, trace)
    else:
        feeder = DirectFeeder(plan, sources, device, pool, trace, sinks)
    stack.callback(feeder.close)
    return feeder
