"""What a plan's kernel takes, and decoding, where the host does both: by a few calls before the run.

Plans know functions by the bytes that they touch, and all codecs as ordinary ones. No plan is made with what is seen
here, for it is never twice the same, and results would differ in their last bits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from chunkflow import grid
from chunkflow.calibrate import read_block
from chunkflow.devices.base import Device
from chunkflow.grid import Shape
from chunkflow.kernel import BlockRunner
from chunkflow.ops.blockwise import Operand
from chunkflow.ops.kernels import Kernel
from chunkflow.plan import Plan
from chunkflow.staging import State
from chunkflow.step import Step
from chunkflow.stores.base import Source
from chunkflow.trace import Trace

CALLS = 2
"""Of each lane, at least, after one that does not count."""

BEYOND = 8
"""Times a lane's share of the cache that its tiles have: in a run, too, they come from memory, and go there."""


Calls = tuple[Callable[[], float], float]
"""A call that says what it took, and how many such calls it stands for."""


def computing(kernel: Kernel, plan: Plan, sources: Sequence[Source], device: Device) -> float:
    """Seconds that a lane takes to compute all of a plan: by those for a few tiles, while other lanes do the same.

    Raises
    ------
    Exception
        Whatever the kernel or a source raises.
    """
    plan = replace(plan, block=_sides(plan)) if plan.tile != plan.block else plan
    runner, whole = BlockRunner(kernel, plan, device, Trace()), math.prod(plan.op.extents)

    def calls(step: Step) -> Calls:
        return _again(runner, plan, step, sources, device), whole / math.prod(grid.shape_of(step.box))

    first = list(islice(cycle(islice(plan.steps(), plan.lanes)), plan.lanes))
    return _at_once([partial(calls, step) for step in first])


def decoding(plan: Plan, sources: Sequence[Source]) -> float | None:
    """Seconds that a thread takes to read and decode a byte of a plan's chunks: by the first chunk of each source.

    All of a plan's threads do so at once. None if there is nothing to decode, or it is behind a network.

    Raises
    ------
    Exception
        Whatever a source raises.
    """
    specs = [source.spec for source in sources]
    if any(spec.remote for spec in specs):
        return None
    nbytes, seconds = 0, 0.0
    for source, spec in zip(sources, specs, strict=True):
        if spec.chunks is None or spec.raw or not spec.size:
            continue
        sides = tuple(map(min, spec.chunks, spec.shape))

        def calls(source: Source = source, sides: Shape = sides) -> Calls:
            out = np.empty(sides, source.spec.dtype)
            return partial(_timed, partial(source.read, grid.whole(sides), out)), source.spec.nbytes / out.nbytes

        seconds += _at_once([calls] * plan.lanes * plan.coders)
        nbytes += spec.nbytes
    return seconds / nbytes if nbytes else None


def _at_once(each: Sequence[Callable[[], Calls]]) -> float:
    """Seconds of calls that threads make at once, times what they stand for; by the slowest of them.

    A call counts if all of them were at it when it began, and each goes on until all have made enough of these: one may
    be woken later than another is done with calls of a millisecond, which take half as long alone.
    """
    ready: list[None] = []
    taken: list[list[float]] = [[] for _ in each]
    over = threading.Event()

    def calls(made: Callable[[], Calls], mine: list[float]) -> float:
        try:
            call, times = made()
            call()
            ready.append(None)
            while not over.is_set() and min(map(len, taken)) < CALLS:
                counts = len(ready) == len(each)
                seconds = call()
                if counts:
                    mine.append(seconds)
            return sum(mine) / max(len(mine), 1) * times
        except BaseException:
            over.set()  # or the others would go on
            raise

    with ThreadPoolExecutor(len(each)) as threads:
        try:
            return max([job.result() for job in [threads.submit(calls, *one) for one in zip(each, taken, strict=True)]])
        finally:
            over.set()


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _sides(plan: Plan) -> Shape:
    """A part of a block, of whole tiles, that does not stay in the cache; all of it if it is smaller than that."""
    nbytes = sum(
        math.prod(o.shape(plan.tile)) * s.dtype.itemsize for o, s in zip(plan.op.operands, plan.operands, strict=True)
    )
    tiles = math.ceil(BEYOND * plan.machine.cache / max(nbytes, 1))
    order = range(len(plan.tile))
    return grid.fit(plan.block, plan.tile, order, tiles * math.prod(plan.tile))


def _block(source: Source, operand: Operand, plan: Plan, step: Step, device: Device) -> Any:
    """An operand's block. Of a file only a tile is read, again and again the same, or all of it might be in memory."""
    if source.spec.in_memory:
        return read_block(source, operand, device, step.box)
    corner = tuple([slice(s.start, min(s.start + n, s.stop)) for s, n in zip(step.box, plan.tile, strict=True)])
    return np.resize(read_block(source, operand, device, corner), grid.shape_of(operand.region(step.box)))


def _again(
    runner: BlockRunner, plan: Plan, step: Step, sources: Sequence[Source], device: Device
) -> Callable[[], float]:
    """What computes one step again and again, and says what it took; what passes from block to block passes on."""
    states = [State() for _ in step.turns]
    turns = [(s, [s] if turn.last and plan.op.scan is None else []) for s, turn in zip(states, step.turns, strict=True)]
    blocks = [_block(s, o, plan, step, device) for s, o in zip(sources, plan.op.operands, strict=True)]

    def call() -> float:
        # Results may take a block's place.
        given = [block.copy() if i == plan.recycled else block for i, block in enumerate(blocks)]
        return _timed(partial(runner, given, step, turns))

    return call
