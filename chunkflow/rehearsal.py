"""What a kernel takes, by a few calls on a tile before a run: plans know functions by the bytes that they touch alone.

No plan is made with it, for it is never twice the same, and results would differ in their last bits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from chunkflow import grid
from chunkflow.calibrate import read_block
from chunkflow.devices.base import Device, Pool
from chunkflow.grid import Grid, Region, Shape
from chunkflow.ops.blockwise import Blockwise
from chunkflow.ops.kernels import Carry, Fold, Kernel, Several
from chunkflow.stores.base import Source

CALLS = 3
"""Of each lane, after one that does not count."""


def seconds_of(
    kernel: Kernel, nest: Blockwise, sources: Sequence[Source], device: Device, pool: Pool, sides: Shape, lanes: int
) -> float:
    """Seconds that a kernel takes for a box of these sides at the arrays' corner, while other lanes do the same.

    Raises
    ------
    Exception
        Whatever the kernel or a source raises.
    """
    box, together = grid.whole(sides), threading.Barrier(lanes)

    def calls() -> float:
        try:
            with device.attach(), pool.active():
                blocks = [read_block(s, o, device, box) for s, o in zip(sources, nest.operands, strict=True)]
                call = _again(kernel, blocks, nest, box)
                call()
                together.wait()
                begun = time.perf_counter()
                for _ in range(CALLS):
                    call()
                return (time.perf_counter() - begun) / CALLS
        except BaseException:
            together.abort()  # or the others would wait for this one
            raise

    with ThreadPoolExecutor(lanes) as threads:
        return max([job.result() for job in [threads.submit(calls) for _ in range(lanes)]])


def _again(kernel: Kernel, blocks: Sequence[Any], nest: Blockwise, box: Region) -> Callable[[], None]:
    """What calls a kernel on one box again and again; what passes from block to block passes from call to call."""
    where = blocks, nest, Grid(nest.extents, grid.shape_of(box)), (0,) * len(box), box
    state: Any = None

    def call() -> None:
        nonlocal state
        if hasattr(kernel, "parts"):
            several = cast(Several, kernel)
            given = [None for part in several.parts if part is not None] if state is None else state
            state, _ = several.step(given, *where)
        elif hasattr(kernel, "fold"):
            state = cast(Fold, kernel).fold(state, *where)
        elif hasattr(kernel, "advance"):
            _, state = cast(Carry, kernel).advance(state, *where)
        else:
            kernel(*where)

    return call
