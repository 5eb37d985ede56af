"""From the user's arguments to a checked plan: sources opened, the function tried, outputs described.

Nothing is written here, and everything that can be refused is refused before the trial call reads its small
block.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from chunkflow import devices, stores
from chunkflow.core import chunking
from chunkflow.core.chunking import Length
from chunkflow.core.nest import Along, LoopNest
from chunkflow.core.units import parse_bytes
from chunkflow.devices.protocol import Device, Pool
from chunkflow.engine.budget import borrow
from chunkflow.engine.options import Options
from chunkflow.engine.outputs import (
    _check_number,
    _describe_outputs,
    _with_outputs,
    _with_smaller_chunks,
    check_overlap,
)
from chunkflow.engine.trial import Trial, cached_trial, run_trial
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, ResultError
from chunkflow.kernels.declare import Declare, Declared
from chunkflow.kernels.fusion.compile import compiled
from chunkflow.kernels.map import SLOT, MapKernel, is_scalar
from chunkflow.kernels.protocol import Kernel
from chunkflow.planner.plan import Plan
from chunkflow.planner.search import make_plan
from chunkflow.stores.paths import refuse_nested
from chunkflow.stores.protocol import Source, Target, spec_for

LARGEST_STEP = 64
"""Elements of a block that a function may turn into a single one without a larger block to prove it."""


@dataclass(frozen=True)
class Prepared:
    """A run that is planned and checked, with its sources open and its outputs untouched."""

    plan: Plan
    kernel: Kernel | None
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    device: Device
    pool: Pool
    is_tuple: bool


@contextmanager
def prepared(declare: Declare, arrays: Sequence[Any], options: Options) -> Iterator[Prepared]:
    """Open, check, calibrate and plan; close what was opened on the way out."""
    if options.workspace is not None and not (
        isinstance(options.workspace, int | float) and 0 <= options.workspace < math.inf
    ):
        raise ArgumentError(f"workspace={options.workspace!r} must be a number of bytes per element, at least 0")
    device = devices.resolve(options.device)
    budget, own, cap = borrow(options.budget)
    with ExitStack() as stack:
        sources, args = _open_sources(arrays, device, stack)
        specs = [spec_for(s, device.decoder) for s in sources]
        declared = declare(specs, args)
        kernel, axes, op = declared.kernel, declared.axes, declared.nest
        specs = [
            replace(s, shape=o.shape(op.extents)) if o.start else s for s, o in zip(specs, op.operands, strict=True)
        ]
        lengths = chunking.lengths(options.chunks, len(axes))
        op = replace(
            op, whole=op.whole | {a for a, n in zip(axes, lengths, strict=True) if n == "whole" and a is not None}
        )
        targets = _open_targets(options, declared, op)
        check_overlap(declared, sources, dict(enumerate(targets)))
        if kernel is not None:
            stack.enter_context(budget.turn())
        if own:
            stack.callback(budget.close)
        pool = budget.pool(device)
        limit = budget.left(device, None if cap is None else parse_bytes(cap, whole=device.free_memory()))
        if kernel is None:
            block = chunking.sides(lengths, axes, [Along(a) for a in axes if a is not None], len(op.extents))
            plan = make_plan(op, specs, [], device.machine, limit, reserve=device.reserve, block=block)
            stack.enter_context(budget.reserved(device, plan.memory.total - device.reserve))
            yield Prepared(plan, None, tuple(sources), (), device, pool, False)
            return
        kernel = compiled(kernel, device.elementwise if all(op.extents) else None)  # what nothing gives the host makes
        seen = _learn(kernel, op, declared, lengths, sources, device, pool, limit, options)
        op = replace(_with_outputs(op, declared, seen, options), state=declared.held(seen.state))
        kernel = kernel.informed(op, seen.dtypes)
        chunking.check_sums(options.chunks, op.outputs[0].shape(op.extents))
        block = chunking.sides(lengths, axes, op.outputs[0].dims, len(op.extents))
        targets = targets or tuple(stores.open_target(None, overwrite=False) for _ in op.outputs)
        _check_number(targets, seen, options)
        outputs, spare = _describe_outputs(op, targets, sources, seen, lengths, declared.block, options)
        known: dict[str, Any] = {"workspace": spare, "reserve": device.reserve, "block": declared.block or block}
        known |= {"tiles": declared.tiles, "strips": declared.strips}
        machine, fixed = device.machine, declared.blocking
        if fixed is not None:
            machine = replace(machine, depths=(fixed.depth,))
            known |= {"block": fixed.block, "tiles": False, "strips": (math.prod(fixed.tile), declared.strips[1])}
        while True:
            try:
                plan = make_plan(op, specs, outputs, machine, limit, **known)
                plan = plan if fixed is None else replace(plan, tile=fixed.tile)
                break
            except BudgetError:
                smaller = _with_smaller_chunks(targets, outputs, lengths)
                if smaller == outputs:
                    raise
                outputs = smaller
        yield Prepared(plan, kernel, tuple(sources), targets, device, pool, seen.is_tuple)


def _open_sources(arrays: Sequence[Any], device: Device, stack: ExitStack) -> tuple[list[Source], tuple[Any, ...]]:
    """Sources of the arrays among the arguments, and the arguments with `SLOT` in their places."""
    sources: list[Source] = []
    args: list[Any] = []
    for value in arrays:
        if is_scalar(value):
            args.append(value)
            continue
        source = stores.open_source(value)
        stack.callback(source.close)
        if not device.supports(source.spec.dtype):
            raise ArgumentTypeError(
                f"{device.name} does not compute with dtype {source.spec.dtype} of {source.spec.name}: "
                "convert it, or use device='cpu'"
            )
        sources.append(source)
        args.append(SLOT)
    if not sources:
        raise ArgumentError("at least one array is needed: all the arguments given are scalars")
    return sources, tuple(args)


def _open_targets(options: Options, declared: Declared, op: LoopNest) -> tuple[Target, ...]:
    """Targets as given, with all the checks that need no result; empty where `out` is None."""
    if options.out is None:
        return ()
    if isinstance(options.out, list):
        raise ArgumentTypeError("out is a list: give one array or path, or a tuple of them, one for each result")
    given = options.out if isinstance(options.out, tuple) else (options.out,)
    if not given:
        raise ArgumentError("out is an empty tuple: give one array or path for each result")
    targets = tuple(stores.open_target(o, overwrite=options.overwrite) for o in given)
    refuse_nested([t.name for o, t in zip(given, targets, strict=True) if isinstance(o, str | os.PathLike)])
    if options.chunks is None and (not declared.each or len(declared.each) == len(targets)):
        # Where a result's shape is known already, a wrong output is refused before fn or any data is touched.
        dtypes = _dtypes(options.dtype) or (np.dtype(np.bool_),) * len(targets)  # a bool casts to every dtype
        for i, (target, dtype) in enumerate(zip(targets, dtypes, strict=False)):
            axes = declared.axes_of(i)
            if all(a is not None for a in axes):
                target.describe(tuple(op.extents[a] for a in axes if a is not None), dtype, None)
    return targets


def _learn(
    kernel: Kernel,
    op: LoopNest,
    declared: Declared,
    lengths: Sequence[Length],
    sources: Sequence[Source],
    device: Device,
    pool: Pool,
    limit: int,
    options: Options,
) -> Trial:
    """What the function returns and allocates: from the user, or from a trial call."""
    dtypes = _dtypes(options.dtype)
    if dtypes is not None and options.workspace is not None and isinstance(kernel, MapKernel):
        new = [n if isinstance(n, int) else 1 for n in lengths]
        shape = tuple(op.extents[a] if a is not None else new[i] for i, a in enumerate(declared.axes))
        return Trial(
            op.extents,
            (shape,) * len(dtypes),
            dtypes,
            isinstance(options.dtype, tuple),
            options.workspace,
        )
    seen = cached_trial(kernel, op, sources, device, pool, limit, even=options.chunks is not None)
    if _ratios(seen, declared):
        # That the result grows with the block is a guess from one block: another one must bear it out.
        most = max(1, math.prod(seen.box) // 2)
        again = run_trial(kernel, op, sources, device, pool, limit, even=True, most=most)
        if again.box != seen.box and not _bears_out(again, declared, _ratios(seen, declared)):
            raise ResultError(
                f"fn turned a block of {seen.box} into {seen.shapes[0]} and one of {again.box} into {again.shapes[0]}: "
                "its result does not grow with its block, so it would depend on how the array is cut"
            )
    if dtypes is not None:
        if len(dtypes) != len(seen.dtypes):
            raise ArgumentError(f"dtype has {len(dtypes)} entries and fn returns {len(seen.dtypes)} arrays")
        seen = replace(seen, dtypes=dtypes)
    if options.workspace is not None:
        seen = replace(seen, workspace=options.workspace)
    return seen


def _ratios(seen: Trial, declared: Declared) -> dict[tuple[int, int], Fraction]:
    """Elements of each result for one of the block, along the axes that the function resized."""
    return {
        (i, d): Fraction(n, seen.box[axis])
        for i, shape in enumerate(seen.shapes)
        if len(shape) == len(declared.axes_of(i))
        for d, (axis, n) in enumerate(zip(declared.axes_of(i), shape, strict=True))
        if axis is not None and seen.box[axis] and n != seen.box[axis]
    }


def _bears_out(again: Trial, declared: Declared, ratios: dict[tuple[int, int], Fraction]) -> bool:
    """Whether a smaller block was resized in the same way, as far as it can tell."""
    for (i, d), ratio in ratios.items():
        axis = declared.axes_of(i)[d]
        assert axis is not None
        side, found = again.box[axis], again.shapes[i][d]
        if side % ratio.denominator == 0:
            if found != side * ratio:
                return False
        elif ratio.denominator > LARGEST_STEP:  # a whole block became one element, and half of it did too
            return False
    return True


def _dtypes(dtype: Any) -> tuple[np.dtype, ...] | None:
    if dtype is None:
        return None
    try:
        found = tuple(np.dtype(d) for d in (dtype if isinstance(dtype, tuple) else (dtype,)))
    except TypeError as error:
        raise ArgumentTypeError(f"dtype={dtype!r} is no dtype: {error}") from None
    if not found:
        raise ArgumentError("dtype is an empty tuple: give one dtype for each result")
    for d in found:
        if d.kind not in "biufc":
            raise ArgumentTypeError(f"dtype={d} is not numeric: results are bool, int, float or complex")
    return found
