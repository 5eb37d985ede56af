"""What a plan's kernel takes, by a few calls before the run: plans know functions by the bytes that they touch alone.

No plan is made with it, for it is never twice the same, and results would differ in their last bits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np

from chunkflow import grid
from chunkflow.calibrate import read_block
from chunkflow.devices.base import Device, Pool
from chunkflow.grid import Shape
from chunkflow.kernel import BlockRunner
from chunkflow.ops.blockwise import Operand
from chunkflow.ops.kernels import Kernel
from chunkflow.plan import Plan, Step
from chunkflow.staging import State
from chunkflow.stores.base import Source
from chunkflow.trace import Trace

CALLS = 2
"""Of each lane, after one that does not count."""

BEYOND = 8
"""Times a lane's share of the cache that its tiles have: in a run, too, they come from memory, and go there."""


def seconds_of(kernel: Kernel, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool) -> float:
    """Seconds that a lane takes to compute all of a plan: by those for a few tiles, while other lanes do the same.

    Raises
    ------
    Exception
        Whatever the kernel or a source raises.
    """
    plan = replace(plan, block=_sides(plan)) if plan.tile != plan.block else plan
    runner, together = BlockRunner(kernel, plan, device, Trace()), threading.Barrier(plan.lanes)

    def calls(step: Step) -> float:
        try:
            with device.attach(), pool.active():
                call = _again(runner, plan, step, sources, device)
                call()
                together.wait()
                seconds = [call() for _ in range(CALLS)]
        except BaseException:
            together.abort()  # or the others would wait for this one
            raise
        whole, part = math.prod(plan.op.extents), math.prod(grid.shape_of(step.box))
        return sum(seconds) / CALLS * whole / part

    first = islice(plan.steps(), plan.lanes)
    with ThreadPoolExecutor(plan.lanes) as threads:
        return max([job.result() for job in [threads.submit(calls, s) for s in islice(cycle(first), plan.lanes)]])


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
        begun = time.perf_counter()
        runner(given, step, turns)
        return time.perf_counter() - begun

    return call
