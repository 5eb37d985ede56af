"""From the user's arguments to a checked plan, in four steps: open, declare, try, plan.

Nothing is written here. What does not depend on the function's results is refused before the trial call, which reads a
small block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from chunkflow import devices, stores
from chunkflow.core import chunking
from chunkflow.core.chunking import Length
from chunkflow.core.grid import Shape
from chunkflow.core.machine import Machine
from chunkflow.core.nest import Along, LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import as_dtype, format_bytes
from chunkflow.core.unknown import ANY_DTYPE, is_known
from chunkflow.devices.protocol import Device, Pool
from chunkflow.engine import libraries
from chunkflow.engine.budget import Lease, lease
from chunkflow.engine.dry_run import is_dry
from chunkflow.engine.named_dimensions import name_dimensions
from chunkflow.engine.options import Options
from chunkflow.engine.outputs import (
    check_number,
    check_overlap,
    describe_outputs,
    said_of_chunks,
    with_chunks_of,
    with_outputs,
    with_smaller_chunks,
    without_chunks,
)
from chunkflow.engine.passes import current
from chunkflow.engine.resume import LIMIT, call_of, check_resume, limit_of_left, said_of
from chunkflow.engine.trial import Trial, frugal_trial, run_trial
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, ResultError
from chunkflow.kernels.declare import Declare, Declared
from chunkflow.kernels.fusion.compile import compiled
from chunkflow.kernels.local import is_local
from chunkflow.kernels.map import SLOT, MapKernel, is_scalar
from chunkflow.kernels.protocol import Kernel, SharedBlocks
from chunkflow.kernels.users import users_function
from chunkflow.planner.plan import MOSTLY, Plan
from chunkflow.planner.search import make_plan
from chunkflow.stores import identity
from chunkflow.stores.checks import ExistingTarget
from chunkflow.stores.lost import warn_of_lost
from chunkflow.stores.memory import LoadedSource
from chunkflow.stores.new_array import label
from chunkflow.stores.paths import refuse_nested
from chunkflow.stores.protocol import Source, Target, bytes_held, guards_of, spec_for, written_by

LARGEST_STEP = 64
"""Most elements that a function may turn into one without a second trial call that proves it."""


DOUBLINGS = 24
"""How often a budget is doubled, at most, in search of one in which a plan is not slow for its blocks."""


WORTH = 2
"""How many times as fast a run must be for the chunks of new outputs to be others than those that files best have."""


ROOMS = (1, 7 / 8, 3 / 4)
"""Parts of a budget in which blocks are sought that suit the sources of such a run."""


@dataclass(frozen=True)
class Prepared:
    """A run that is planned and checked, with its sources open and its outputs untouched.

    `dtypes` are those that its function returns, before they are cast to those of outputs that exist. `sync` is as for
    `chunkflow.stores.commit.commit_all`.
    """

    plan: Plan
    kernel: Kernel | None
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    device: Device
    pool: Pool
    is_tuple: bool
    dtypes: tuple[np.dtype, ...] = ()
    sync: bool | None = None
    call: Mapping[str, str] | None = None
    """What the call is, if a later one may go on with it."""
    replan: Callable[..., Plan] | None = None
    """``replan(budget, specs=...)`` plans it again; its operands are as they are by default."""
    tried: Shape | None = None
    """Sides of a block on which a function of the user's was tried whose values must not depend on the blocks."""
    seen: tuple[np.dtype | None, ...] = ()
    """Dtypes that a function of the user's gave in its trial call; None of those that somebody has said."""


@dataclass(frozen=True)
class _Opened:
    """Where a run computes, what it may take there, and the arrays that it reads; `args` has `SLOT` in their places."""

    device: Device
    lease: Lease
    sources: tuple[Source, ...]
    args: tuple[Any, ...]
    supposed: int = 0
    """Bytes that libraries would take, beside the device's reserve."""

    def reserve(self, targets: Sequence[Target] = ()) -> int:
        """Bytes that are no plan's: of the device's libraries, and of what arrays hold in memory that is shared."""
        held = 0 if self.device.machine.staged else bytes_held([*self.sources, *targets])
        return self.device.reserve + self.supposed + held


@dataclass(frozen=True)
class _Stated:
    """The operation on these arrays, before it is known what its function returns.

    `specs` are those of the parts of the sources that the operation reads, `targets` is empty where `out` is None.
    """

    declared: Declared
    nest: LoopNest
    specs: list[ArraySpec]
    lengths: tuple[Length, ...]
    targets: tuple[Target, ...]


@contextmanager
def prepared(declare: Declare, arrays: Sequence[Any], options: Options) -> Iterator[Prepared]:
    """Open, declare, try and plan a run; close what was opened on the way out."""
    with ExitStack() as stack:
        opened = _open(arrays, options, stack)
        stated = _declare(declare, opened, options)
        if stated.nest.is_product and not opened.device.machine.staged:
            loaded = replace(opened, sources=tuple([LoadedSource.of(source) for source in opened.sources]))
            if loaded != opened:
                opened, stated = loaded, _declare(declare, loaded, options)
        opened, stated = _read_once(arrays, opened, stated)
        guards = guards_of(opened.sources)
        identity.release(guards, written_by(stated.targets))
        identity.begin(guards)
        leased, device = opened.lease, opened.device
        if stated.declared.kernel is not None:
            stack.enter_context(leased.budget.turn())
        pool, limit = leased.pool, limit_of_left(options.resume and current() is None, stated.targets, leased.left)
        if stated.declared.kernel is None:
            run = _plan_loop(opened, stated, pool, limit)
            stack.enter_context(leased.budget.reserved(device, run.plan.memory.total - device.reserve))
        else:
            # The host computes on no element.
            elementwise = device.elementwise if all(stated.nest.extents) else None
            kernel = compiled(stated.declared.kernel, elementwise)
            opened = replace(opened, supposed=libraries.load(kernel.libraries, leased))
            trial = None
            if any(map(device.to_load, kernel.libraries)):  # a dry run, which takes nothing of the device
                trial = _host_trial(stated, opened, limit, options)
            trial = trial or _try(kernel, stated, opened, pool, limit, options)
            run = _plan(kernel, opened, stated, trial, pool, limit, options)
        yield run


def _host_trial(stated: _Stated, opened: _Opened, limit: int, options: Options) -> Trial | None:
    """A trial on the host; None if the kernel fails there, as a function of the device's own does."""
    host = devices.resolve("cpu")
    assert stated.declared.kernel is not None
    kernel = compiled(stated.declared.kernel, None)
    try:
        return _try(kernel, stated, replace(opened, device=host), host.pool(limit), limit, options)
    except BudgetError:
        raise
    except Exception:
        return None


def _open(arrays: Sequence[Any], options: Options, stack: ExitStack) -> _Opened:
    """Find the device and the budget, and open the sources."""
    if options.workspace is not None and not (
        isinstance(options.workspace, int | float) and 0 <= options.workspace < math.inf
    ):
        raise ArgumentError(f"workspace={options.workspace!r} must be a number of bytes per element, at least 0")
    device = devices.resolve(options.device)
    leased = stack.enter_context(lease(options.budget, device))
    sources, args = _open_sources(arrays, device, stack)
    return _Opened(device, leased, tuple(sources), args)


def _declare(declare: Declare, opened: _Opened, options: Options) -> _Stated:
    """State the operation on the arrays, and open its targets."""
    specs = [spec_for(s, opened.device.machine.decoding, opened.device.decoder) for s in opened.sources]
    declared = declare(specs, opened.args)
    nest = declared.nest
    specs = [
        replace(s, shape=o.shape(nest.extents)) if o.start else s for s, o in zip(specs, nest.operands, strict=True)
    ]
    lengths = chunking.lengths(options.chunks, len(declared.axes))
    whole = {a for a, n in zip(declared.axes, lengths, strict=True) if n == "whole" and a is not None}
    nest = replace(nest, whole=nest.whole | whole)
    targets = _open_targets(options, declared, nest)
    if declared.is_copy:
        label(targets, opened.sources[0])
    if options.overwrite and not is_dry():
        warn_of_lost(targets)
    check_resume(options.resume, targets)
    check_overlap(declared, opened.sources, dict(enumerate(targets)))
    return _Stated(declared, nest, specs, lengths, targets)


def _read_once(arrays: Sequence[Any], opened: _Opened, stated: _Stated) -> tuple[_Opened, _Stated]:
    """Without operands of a product that are an earlier one again: the same array, with the same axes.

    A function of the user's gets blocks of its own, as it may write to them.
    """
    operands, kernel = stated.nest.operands, stated.declared.kernel
    if kernel is None or not stated.nest.is_product:
        return opened, stated
    given = list(zip((a for a in arrays if not is_scalar(a)), operands, strict=True))
    first = [next(i for i, (a, o) in enumerate(given) if a is array and o == operand) for array, operand in given]
    kept = sorted(set(first))
    if len(kept) == len(first):
        return opened, stated
    declared = replace(stated.declared, kernel=SharedBlocks(kernel, tuple(map(kept.index, first))))
    nest = replace(stated.nest, operands=tuple([operands[i] for i in kept]))
    opened = replace(opened, sources=tuple([opened.sources[i] for i in kept]))
    return opened, replace(stated, declared=declared, nest=nest, specs=[stated.specs[i] for i in kept])


def _plan(
    kernel: Kernel, opened: _Opened, stated: _Stated, trial: Trial, pool: Pool, limit: int, options: Options
) -> Prepared:
    """Describe the outputs and plan the run; chunks that the run may choose get smaller until the plan fits."""
    declared, lengths, device = stated.declared, stated.lengths, opened.device
    nest = replace(with_outputs(stated.nest, declared, trial, options), state=declared.held(trial.state))
    kernel = kernel.informed(nest, trial.dtypes)
    chunking.check_sums(options.chunks, nest.outputs[0].shape(nest.extents))
    block = chunking.sides(lengths, declared.axes, nest.outputs[0].dims, len(nest.extents))
    targets = stated.targets or tuple(stores.open_target(None, overwrite=False) for _ in nest.outputs)
    check_number(targets, trial, options)
    alike = declared.block if declared.chunked else None
    outputs, workspace = describe_outputs(nest, targets, opened.sources, trial, lengths, alike, options)
    name_dimensions(targets, declared, nest, opened.sources, outputs, options.chunks)
    known: dict[str, Any] = {"workspace": workspace, "reserve": opened.reserve(targets)}
    known["block"] = declared.block or block
    known |= {"tiles": declared.tiles, "strips": declared.strips}
    machine, fixed = device.machine, declared.blocking
    if fixed is not None:
        machine = replace(machine, depths=(fixed.depth,))
        known |= {
            "block": fixed.block,
            "tiles": False,
            "strips": declared.strips._replace(shared=math.prod(fixed.tile)),
        }

    def work(
        outputs: list[ArraySpec], specs: Sequence[ArraySpec] = stated.specs, **others: Any
    ) -> Callable[[int], Plan]:
        def made(limit: int) -> Plan:
            plan = make_plan(nest, specs, outputs, machine, limit, **known | others)
            return replace(plan, times=declared.times)

        return made

    def make(outputs: list[ArraySpec], limit: int = limit, **others: Any) -> Plan:
        return _planned(work(outputs, **others), limit, opened.lease)

    while True:
        try:
            plan = make(outputs)
            break
        except BudgetError as error:
            said = [said_of_chunks(spec, lengths, options) for spec in outputs]
            free = [[i for i, entry in enumerate(entries) if entry == "auto"] for entries in said]
            smaller = with_smaller_chunks(nest, targets, outputs, free, kept=True)
            if smaller == outputs:
                if declared.block is None and fixed is None and not is_dry():
                    _name_chunks(error, partial(make, block=None), nest, targets, outputs, said)
                raise
            outputs = smaller
    if _suffers(plan) and {e for spec in outputs for e in said_of_chunks(spec, lengths, options)} <= {"auto"}:
        # Plans as if outputs had no chunks show what blocks suit the sources; chunks that are encoded need room too.
        # They have no room to hold on to a chunk of a source.
        specs = [spec.with_storage(kept=False) for spec in stated.specs]
        for room in ROOMS:
            with suppress(BudgetError, ArgumentError):
                loose = make(without_chunks(targets, outputs), int(limit * room), specs=specs)
                suiting, blocks = with_chunks_of(nest, targets, outputs, loose.block)
                other = work(suiting, block=blocks)(limit)
                if other.estimate.seconds * WORTH <= plan.estimate.seconds:
                    plan, outputs = replace(other, remedy=loose.remedy), suiting
                    break
    plan = plan if fixed is None else replace(plan, tile=fixed.tile)

    def replan(budget: int, specs: Sequence[ArraySpec] = tuple(stated.specs), machine: Machine = machine) -> Plan:
        return make_plan(nest, specs, outputs, machine, budget, **known)

    call: Mapping[str, str] | None = None
    if (passes := current()) is not None:
        call = passes.call(plan, device)
    elif options.resume:
        assert declared.kernel is not None
        call = {
            **call_of(declared.kernel, nest, opened.sources, plan, device, options.name),
            **said_of(targets),
            LIMIT: str(limit),
        }
    return Prepared(
        plan,
        kernel,
        opened.sources,
        targets,
        device,
        pool,
        trial.is_tuple,
        trial.dtypes,
        options.sync,
        call,
        replan,
        tried=trial.box if _is_apart(kernel, nest, options) else None,
        seen=_unsaid(kernel, trial, targets, options),
    )


def _is_apart(kernel: Kernel, nest: LoopNest, options: Options) -> bool:
    """Whether values of a function of the user's, which was tried, must be the same however blocks are cut."""
    was_tried = options.dtype is None or options.workspace is None
    return was_tried and (options.chunks is None or nest.has_halo) and is_local(kernel)


def _name_chunks(
    error: BudgetError,
    make: Callable[[list[ArraySpec]], Plan],
    nest: LoopNest,
    targets: Sequence[Target],
    outputs: list[ArraySpec],
    said: Sequence[Sequence[Length]],
) -> None:
    """Let a refusal name smaller chunks than those that the user has chosen, if any fit the budget.

    Axes that the user wants whole stay so: a function of them has other values in a part.
    """
    free = [[i for i, entry in enumerate(entries) if entry != "whole"] for entries in said]
    while (smaller := with_smaller_chunks(nest, targets, outputs, free, kept=False)) != outputs:
        outputs = smaller
        with suppress(BudgetError):
            make(outputs)
            pairs = [(s, zip(e, s.chunks, strict=True)) for s, e in zip(outputs, said, strict=True) if s.chunks]
            named = [(spec, tuple(-1 if entry == "whole" else n for entry, n in sides)) for spec, sides in pairs]
            fitting = " and ".join(f"{_word(spec)}={sides}" for spec, sides in named)
            error.args = (f"{error.args[0]}; {fitting} would fit", *error.args[1:])
            return


def _word(spec: ArraySpec) -> str:
    """The argument by which users say what boxes of an output are written whole."""
    return "shards" if spec.storage.sharded else "chunks"


def _plan_loop(opened: _Opened, stated: _Stated, pool: Pool, limit: int) -> Prepared:
    """Plan the blocks of a loop of the caller's own, which has neither kernel nor outputs."""
    nest, axes, device = stated.nest, stated.declared.axes, opened.device
    block = chunking.sides(stated.lengths, axes, [Along(a) for a in axes if a is not None], len(nest.extents))
    # The loop may refer to one block, or work on it, until it has the next one.
    machine = replace(device.machine, depths=tuple(n for n in device.machine.depths if n > 1))
    make = partial(make_plan, nest, stated.specs, [], machine, reserve=opened.reserve(), block=block)
    plan = _planned(make, limit, opened.lease)
    return Prepared(plan, None, opened.sources, (), device, pool, False)


def _planned(make: Callable[[int], Plan], limit: int, leased: Lease) -> Plan:
    """The plan in what is left of a budget; if it is slow for its blocks, with the budget in which it is not."""
    plan = make(limit)
    if not plan.is_slow or not is_known(plan.op.extents):  # of an unknown length each batch has a plan of its own
        return plan
    taken = leased.budget.limit_on(leased.device) - leased.budget.left(leased.device, None)
    for doublings in range(1, DOUBLINGS):
        if not make(limit << doublings).is_slow:
            enough = format_bytes((limit << doublings) + taken)
            return replace(plan, remedy=f"{format_bytes(limit)} are left of the budget: raise budget= to {enough}")
    return replace(plan, remedy="their sides are fixed: give larger chunks=") if plan.is_crumbs else plan


def _suffers(plan: Plan) -> bool:
    """Whether a plan may be slow for the chunks of its outputs, which its blocks keep whole."""
    handed = plan.estimate.handed > MOSTLY * plan.estimate.seconds
    return len(plan.grid) > 1 and (handed or plan.rereads >= WORTH) and any(s.chunks for s in plan.outputs)


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
        given = ", ".join(map(repr, arrays)) or "nothing"
        raise ArgumentError(f"at least one array is needed, and given was {given}: pass an array, or the path of one")
    return sources, tuple(args)


def _open_targets(options: Options, declared: Declared, nest: LoopNest) -> tuple[Target, ...]:
    """Targets as given, with all the checks that need no result; empty where `out` is None."""
    if options.out is None:
        return ()
    if isinstance(options.out, list):
        raise ArgumentTypeError("out is a list: give one array or path, or a tuple of them, one for each result")
    given = options.out if isinstance(options.out, tuple) else (options.out,)
    if not given:
        raise ArgumentError("out is an empty tuple: give one array or path for each result")
    targets = tuple(stores.open_target(o, overwrite=options.overwrite) for o in given)
    refuse_nested([t.name for o, t in zip(given, targets, strict=True) if stores.is_new(o)])
    if options.chunks is None and (not declared.each or len(declared.each) == len(targets)):
        # Where a result's shape is known already, a wrong output is refused before fn or any data is touched.
        dtypes = _dtypes(options.dtype) or (ANY_DTYPE,) * len(targets)
        for i, (target, dtype) in enumerate(zip(targets, dtypes, strict=False)):
            axes = declared.axes_of(i)
            if all(a is not None for a in axes):
                target.describe(tuple(nest.extents[a] for a in axes if a is not None), dtype, None)
    return targets


def _try(kernel: Kernel, stated: _Stated, opened: _Opened, pool: Pool, limit: int, options: Options) -> Trial:
    """What the function returns and allocates: from the user, or from a trial call."""
    nest, declared, sources, device = stated.nest, stated.declared, opened.sources, opened.device
    dtypes = _dtypes(options.dtype)
    if dtypes is not None and options.workspace is not None and isinstance(kernel, MapKernel):
        new = [n if isinstance(n, int) else 1 for n in stated.lengths]
        shape = tuple(nest.extents[a] if a is not None else new[i] for i, a in enumerate(declared.axes))
        return Trial(
            nest.extents,
            (shape,) * len(dtypes),
            dtypes,
            isinstance(options.dtype, tuple),
            options.workspace,
        )
    even = options.chunks is not None
    seen = frugal_trial(kernel, nest, sources, device, pool, limit, even=even, block=declared.block)
    if nest.scan is None and _ratios(seen, declared):
        # One block cannot show that the result grows with the block: a second one must agree.
        most = max(1, math.prod(seen.box) // 2)
        again = run_trial(kernel, nest, sources, device, pool, limit, even=True, most=most, block=declared.block)
        if again.box != seen.box and not _agrees(again, declared, _ratios(seen, declared)):
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


def _unsaid(kernel: Kernel, trial: Trial, targets: Sequence[Target], options: Options) -> tuple[np.dtype | None, ...]:
    """Dtypes that are known by a function's trial call alone: who gives ``dtype=``, or an array, wants a cast."""
    if options.dtype is not None or users_function(kernel) is None:
        return ()
    pairs = zip(targets, trial.dtypes, strict=True)
    return tuple([None if isinstance(target, ExistingTarget) else dtype for target, dtype in pairs])


def _ratios(seen: Trial, declared: Declared) -> dict[tuple[int, int], Fraction]:
    """Elements of each result for one of the block, along the axes that the function resized."""
    return {
        (i, d): Fraction(n, seen.box[axis])
        for i, shape in enumerate(seen.shapes)
        if len(shape) == len(declared.axes_of(i))
        for d, (axis, n) in enumerate(zip(declared.axes_of(i), shape, strict=True))
        if axis is not None and seen.box[axis] and n != seen.box[axis]
    }


def _agrees(again: Trial, declared: Declared, ratios: dict[tuple[int, int], Fraction]) -> bool:
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
    found = tuple(as_dtype(d).newbyteorder("=") for d in (dtype if isinstance(dtype, tuple) else (dtype,)))
    if not found:
        raise ArgumentError("dtype is an empty tuple: give one dtype for each result")
    for d in found:
        if d.kind not in "biufc":
            raise ArgumentTypeError(f"dtype={d} is not numeric: results are bool, int, float or complex")
    return found
