"""One call of the function on a small real block, to learn what it returns and what it allocates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from chunkflow import grid, interrupts
from chunkflow.devices.base import Device, Pool
from chunkflow.errors import BudgetError, ResultError
from chunkflow.grid import Grid, Region, Shape
from chunkflow.kernel import Carry, Fold, Kernel, add_note, check_kind, travels
from chunkflow.ops.blockwise import Blockwise
from chunkflow.staging import read_whole
from chunkflow.stores.base import Source
from chunkflow.units import format_bytes

SHARED_HOST_BYTES, STAGED_BYTES = 256 << 10, 4 << 20
"""Bytes of the largest operand's block: enough for rates to show, little beside a run."""


LEAST_BYTES = 16 << 10
"""Below this, what Python's own objects take would pass for the function's need."""


@dataclass(frozen=True)
class Calibration:
    """What one call showed.

    Attributes
    ----------
    box : tuple of int
        Sides of the box of the loop nest that was computed.
    shapes, dtypes : tuple
        Of each result.
    is_tuple : bool
        Whether the function returned a tuple.
    workspace : float
        Bytes allocated beyond the results, at the peak, per element of the box. Where a result must be copied
        before it is stored, the copy is counted.
    state : float
        Bytes of what passes from block to block (partial results, a carry), per element of the first result.
    """

    box: Shape
    shapes: tuple[Shape, ...]
    dtypes: tuple[np.dtype, ...]
    is_tuple: bool
    workspace: float
    state: float = 0.0


def calibrate(
    kernel: Kernel,
    nest: Blockwise,
    sources: Sequence[Source],
    device: Device,
    pool: Pool,
    budget: int,
    *,
    even: bool = False,
    most: int | None = None,
) -> Calibration:
    """Call the kernel on the corner of the arrays.

    Parameters
    ----------
    most : int, optional
        Elements of the box at most.
    even : bool
        Round the sides down to powers of two, so that a function that resizes its block by a ratio shows it.

    Raises
    ------
    BudgetError
        The function runs out of memory even on one element.
    Exception
        Whatever the function raised, with a note that names the region.
    """
    itemsize = max([s.spec.dtype.itemsize for s in sources], default=1)
    nbytes = STAGED_BYTES if device.machine.staged else SHARED_HOST_BYTES
    target = min(max(LEAST_BYTES, min(nbytes, budget // 32)) // itemsize, most or 1 << 62)
    units = [n if a in nest.whole else 1 for a, n in enumerate(nest.extents)]
    order = tuple(range(len(nest.extents)))
    while True:
        sides = grid.fit(nest.extents, [max(u, 1) for u in units], order, target)
        while nest.has_halo and nest.volume(sides) > 2 * target and max(sides) > 1:  # a halo may outweigh its block
            shrunk = grid.fit(nest.extents, [max(u, 1) for u in units], order, math.prod(sides) // 2)
            if shrunk == sides:
                break
            sides = shrunk
        if nest.has_halo and nest.volume(sides) * itemsize > max(budget, STAGED_BYTES):
            needed = nest.volume(sides) * itemsize
            raise BudgetError(
                f"a block of {sides} with its halo takes {format_bytes(needed)} and the budget is "
                f"{format_bytes(budget)} ({budget} bytes): raise budget= well above that, or use a smaller depth",
                needed=needed,
                limit=budget,
            )
        if even:
            sides = tuple(n if a in nest.whole else _power_of_two(n) for a, n in enumerate(sides))
        box = grid.whole(sides)
        message = ""
        try:
            return _measure(kernel, nest, sources, device, pool, box)
        except BaseException as error:
            if not device.is_out_of_memory(error):
                add_note(error, (0,) * len(box), box)
                error.add_note("chunkflow: this was the trial call that measures what fn returns and allocates")
                raise
            message = str(error)
        if math.prod(sides) <= math.prod(max(u, 1) for u in units):
            raise BudgetError(
                f"fn ran out of memory on a block of {sides} within a budget of {format_bytes(budget)} "
                f"({budget} bytes): raise budget= ({message})",
                limit=budget,
            )
        target = math.prod(sides) // 8


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n else 0


def _measure(
    kernel: Kernel, nest: Blockwise, sources: Sequence[Source], device: Device, pool: Pool, box: Region
) -> Calibration:
    sides = grid.shape_of(box)
    with device.attach(), pool.active():
        blocks = []
        for source, operand in zip(sources, nest.operands, strict=True):
            region = operand.region(box)
            host = source.view(region) if source.spec.in_memory and not operand.halo else None
            if host is None:
                host = np.empty(grid.shape_of(region), source.spec.dtype)
                read_whole(source, operand, region, host)
            blocks.append(device.to_device(host))
        index = (0,) * len(sides)
        with interrupts.allowed():
            value, temporary, state = _call(kernel, blocks, nest, sides, index, box, pool)
        is_tuple = isinstance(value, tuple)
        values = list(value) if isinstance(value, tuple) else [value]
        del value
        if not values:
            raise ResultError("fn returned an empty tuple: it must return an array or a tuple of arrays")
        for i in range(len(values)):
            check_kind(values[i], device)
        # At the corner a block lacks part of its halo: what it was, not what others are.
        size = max([1, math.prod(sides), *(math.prod(grid.shape_of(o.region(box))) for o in nest.operands)])
        copied = 0
        for i, spec_order in enumerate([tuple(range(len(v.shape))) for v in values]):
            if device.machine.staged and not travels(values, i, spec_order):
                copied += values[i].nbytes
        if state:  # what is combined is copied once, at the end, and not for every block
            state, copied = state + copied, 0
        workspace = max(temporary, copied) / size
        state /= max(values[0].size, 1)
        return Calibration(
            sides,
            tuple(tuple(v.shape) for v in values),
            tuple(np.dtype(v.dtype) for v in values),
            is_tuple,
            workspace,
            state,
        )


def _call(
    kernel: Kernel, blocks: Sequence[Any], nest: Blockwise, sides: Shape, index: Shape, box: Region, pool: Pool
) -> tuple[Any, int, float]:
    """Results of one box, the bytes allocated besides meanwhile, and those of what would pass to the next."""
    grid = Grid(nest.extents, sides)
    if hasattr(kernel, "fold"):
        fold = cast(Fold, kernel)
        passed, peak = pool.measure(lambda: fold.fold(None, blocks, nest, grid, index, box))
        state = _nbytes(passed)
        value, more = pool.measure(lambda: fold.finish(passed, nest, box))
        return value, max(peak - state, 0), state + max(more - _nbytes(value), 0)
    if hasattr(kernel, "advance"):
        carry = cast(Carry, kernel)
        (value, passed), peak = pool.measure(lambda: carry.advance(None, blocks, nest, grid, index, box))
        state = _nbytes(passed)
        return value, max(peak - _nbytes(value) - state, 0), state
    value, peak = pool.measure(lambda: kernel(blocks, nest, grid, index, box))
    return value, max(peak - _nbytes(value), 0), 0


def _nbytes(passed: Any) -> int:
    return sum(getattr(a, "nbytes", 0) for a in (passed if isinstance(passed, tuple) else (passed,)))
