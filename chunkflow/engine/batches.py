"""A pass over a live source: batch after batch, each of which is a run over the rows that were taken.

A batch is a part of the pass's loop nest, as a cluster's partition is. What follows the first axis is written behind
what earlier batches gave. What folds it is combined by the fold itself, and finished once. The producer is asked for
rows between the runs, so it is never further ahead than a batch and a slab.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from chunkflow import devices
from chunkflow.core import chunking, grid
from chunkflow.core.grid import Shape
from chunkflow.core.nest import Along, LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import Budget, bytes_left
from chunkflow.engine.completion import Complete, completed
from chunkflow.engine.dry_run import is_dry, note, stand_ins
from chunkflow.engine.growing import BatchedOutput, GrowingOutput, PlannedTarget, WholeOutput, growing
from chunkflow.engine.options import Options
from chunkflow.engine.prepare import Prepared, prepared
from chunkflow.engine.run import launched
from chunkflow.engine.trace import Trace
from chunkflow.errors import ArgumentError, BudgetError
from chunkflow.kernels.declare import Declare, Declared
from chunkflow.kernels.protocol import Kernel
from chunkflow.kernels.subnest import CollectingKernel, Ranges, part_of
from chunkflow.planner.plan import Plan
from chunkflow.stores import NewArray, open_target
from chunkflow.stores.live import Live, chunks_of
from chunkflow.stores.protocol import Sink, Target
from chunkflow.stores.views.shared import Held
from chunkflow.system import host

SHARE = 4
"""One part in so many of the budget is for the rows of a batch, where they are on the device itself."""

HOST_SHARE = 8
"""One part in so many of the host's memory, where that is not the device's, and has more room."""

LONGEST = 1 << 30
"""Most bytes of a batch: longer ones are no faster."""

WORKS = (
    "What works is map, where, functions along other axes, and reductions that are combined: sum, prod, min, max, "
    "mean, var, std, any, all, argmin, argmax, unique, histograms with a range"
)
"""What takes a live source's rows in order, for messages."""

Filled = Callable[[Any], tuple[Declare, Sequence[Any]]]


@dataclass(frozen=True)
class LivePass:
    """A pass that reads a live source.

    Attributes
    ----------
    live : Live
    filled : callable
        The declaration and the arrays of the pass, given something that takes the live source's place. It has the
        source's shape, but for a length that was unknown.
    operand : int
        Number of the first array that is the live source, of those that are no scalars.
    """

    live: Live
    filled: Filled
    operand: int


@dataclass(frozen=True)
class LiveResults:
    """What a pass gave, the specs of its outputs, and the dtypes that its function returned."""

    results: tuple[Any, ...]
    is_tuple: bool
    outputs: tuple[ArraySpec, ...]
    dtypes: tuple[np.dtype, ...]


class _Grown(NamedTuple):
    """A dimension of a result that follows the live source's first axis."""

    dimension: int
    along: Along


def run_batches(this: LivePass, options: Options, watch: Trace) -> LiveResults:
    """Make the one pass over a live source. What is wrong with arguments is said before a slab is taken.

    In a dry run all batches are planned as one, with what is in memory beside it.
    """
    live = this.live
    if is_dry():
        sized = _sized(this, options)
        if live.length is None and sized.batches.planned is not None:
            note(sized.batches.planned)
            run = sized.run
            return LiveResults(stand_ins(run.plan.outputs), run.is_tuple, run.plan.outputs, run.dtypes)
        with sized.whole() as run:
            return LiveResults(launched(run, watch), run.is_tuple, run.plan.outputs, run.dtypes)
    live.check_unread()
    if options.resume:
        raise ArgumentError(
            "resume=True: a live source gives its slabs once, and a later call finds none to go on with"
        )
    sized = _sized(this, options)
    batches, rows, unit, run = sized.batches, sized.rows, sized.unit, sized.run
    is_empty = not math.prod(live.spec.shape)
    batches.watch = watch
    if not is_empty:
        batches.open()
    live.begin()
    try:
        taken = live.take(rows, unit)
        if is_empty or not len(taken):
            return _of_nothing(this, options, watch, taken)
        while len(taken):
            batches.run(taken)
            taken = live.take(rows, unit)
        return LiveResults(batches.results(), run.is_tuple, run.plan.outputs, run.dtypes)
    except BaseException:
        batches.abort()
        raise
    finally:
        live.close()


@contextmanager
def planned_batches(this: LivePass, options: Options) -> Iterator[Prepared]:
    """The prepared run of all batches as one, for its plan; of an unknown length, that of one batch."""
    sized = _sized(this, options)
    if this.live.length is not None:
        with sized.whole() as run:
            yield run
        return
    declare, arrays = this.filled(this.live.sample(sized.rows, sized.rows))
    with sized.device.keeping(sized.batches.kept), prepared(declare, arrays, replace(options, out=None)) as run:
        yield replace(run, plan=replace(run.plan, batch=sized.rows))


@dataclass(frozen=True)
class _Sized:
    """How many rows a batch has at most, what they are a multiple of, and the plan of all batches as one."""

    rows: int
    unit: int
    run: Prepared
    batches: _Batches
    device: Device
    prepare: Callable[[], AbstractContextManager[Prepared]]

    @contextmanager
    def whole(self) -> Iterator[Prepared]:
        """The prepared run of all batches as one, beside what is kept in memory."""
        with self.device.keeping(self.batches.kept), self.prepare() as run:
            yield replace(run, plan=_read_once(run.plan))


def _read_once(plan: Plan) -> Plan:
    """The plan of a pass whose source is in memory when its blocks are read: rows are taken once, and never decoded."""
    read = min(plan.traffic.read, sum(spec.nbytes for spec in plan.operands))
    return replace(plan, traffic=replace(plan.traffic, read=read, decode=0))


def _sized(this: LivePass, options: Options) -> _Sized:
    """The batches of a pass: as long as they may be, or as the budget has room for.

    So a larger budget never refuses what a smaller one takes, for its batches are longer.

    Raises
    ------
    BudgetError
        The shortest batch does not fit.
    """
    live = this.live
    device = devices.resolve(options.device)
    limit = bytes_left(options.budget, device)
    room = (host.available_memory() or 0) // HOST_SHARE if device.machine.staged else 0
    room = max(room, limit // SHARE)
    rows = max(1, min(room, LONGEST) // live.row_bytes)
    rows = rows if live.batch is None else min(rows, live.batch)
    while True:
        try:
            return _sized_for(this, options, limit, rows)
        except BudgetError as error:
            if rows == 1:
                error.add_note(
                    f"chunkflow: a batch of the live source has one row at least, of {format_bytes(live.row_bytes)}; "
                    "it and what reductions along the first axis have found are in memory beside the blocks"
                )
                raise
            rows //= 2


def _sized_for(this: LivePass, options: Options, limit: int, most: int) -> _Sized:
    """Batches of so many rows at most, unless the function's blocks have more."""
    live, device = this.live, devices.resolve(options.device)
    planned = replace(options, out=None) if live.length is None else options
    declare, arrays = this.filled(live.sample(live.spec.shape[0], most))

    def batched(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        declared = declare(specs, args)
        _axis(declared.nest, declared.kernel, this.operand)  # before a plan, whose budget all rows may not fit
        return declared

    def prepare() -> AbstractContextManager[Prepared]:
        return prepared(batched, arrays, planned)

    with prepare() as run:
        axis = _axis(run.plan.op, run.kernel, this.operand)
    batches = _Batches(this, replace(options, budget=_fixed(options.budget, limit)), run, axis, device)
    if math.prod(live.spec.shape):
        batches.describe(most)
    rows, unit = batches.rows(most)
    batches.kept = rows * live.row_bytes + _combined_bytes(run.plan, axis)
    with device.keeping(batches.kept), prepare() as run:
        batches.outputs_of(run)
    rows, unit = batches.rows(rows)
    if math.prod(live.spec.shape):
        batches.plan(run, rows)
    return _Sized(rows, unit, run, batches, device, prepare)


def _fixed(budget: Any, limit: int) -> Any:
    """The budget of each batch: a share of what is free is the same for all of them."""
    return budget if isinstance(budget, Budget) else limit


class _Batches:
    """The batches of one pass, and what they gave so far."""

    kept = 0
    """Bytes of a batch's rows, and of what the batches gave so far."""

    planned: Plan | None = None
    """The plan of a batch."""

    watch: Trace

    def __init__(self, this: LivePass, options: Options, run: Prepared, axis: int, device: Device) -> None:
        self._this, self._options, self._axis, self._device = this, options, axis, device
        self._op, self._targets, self._is_tuple = run.plan.op, run.targets, run.is_tuple
        self._specs = list(run.plan.outputs)
        self._block: Shape | None = None
        self._folds = {i: part.kept for i, part in enumerate(self._op.parts) if axis in part.folded}
        self._combined = [number for i in self._folds for number in self._op.parts[i].numbers]
        self._grown = {i: _grown(self._op, i, axis) for i in range(len(self._specs)) if i not in self._combined}
        self._places: list[Target | None] = []
        self._outputs: dict[int, BatchedOutput] = {}
        self._values: dict[tuple[int, Ranges], Any] = {}
        self._start = 0
        self._last: Declared | None = None
        self._made = Complete([])

    def outputs_of(self, run: Prepared) -> None:
        """Let outputs of known length have the chunks that have room beside what is kept."""
        if self._this.live.length is not None:
            self._specs = list(run.plan.outputs)

    def rows(self, most: int) -> tuple[int, int]:
        """Rows of a batch, and what they are a multiple of.

        A batch has whole blocks of the function's, and whole chunks of the outputs that it has room for.
        """
        lengths = (
            [] if self._options.chunks is None else chunking.lengths(self._options.chunks, len(self._specs[0].shape))
        )
        blocks: list[int] = []
        least: list[int] = []  # of chunks that are asked for, one of which would be written twice
        chunks: list[int] = []
        for number, (dimension, along) in self._grown.items():
            asked = (self._asked(number), least)
            for sides, units in ((lengths, blocks), asked, (self._specs[number].chunks, chunks)):
                if sides and isinstance(side := sides[dimension], int):
                    units.append((Fraction(side) / along.ratio).numerator)
        most = max([most, *least])
        unit = math.lcm(*blocks)
        for rows in (*least, *chunks):  # of several outputs, whose chunks may have no common multiple that is short
            unit = both if (both := math.lcm(unit, rows)) <= most else unit
        return max(unit, most // unit * unit), unit

    def _asked(self, number: int) -> Sequence[Any]:
        """The chunks that are asked for a growing output: a batch has whole ones, so that none is cut at its end."""
        output, batch = self._outputs.get(number), self._this.live.batch
        asked = output.out if isinstance(output, GrowingOutput) else None
        if not isinstance(asked, NewArray) or asked.chunks is None:
            return ()
        sides = chunking.lengths(asked.chunks, len(self._specs[number].shape))
        rows = sides[self._grown[number].dimension]
        if batch is not None and isinstance(rows, int) and rows > batch:
            raise ArgumentError(
                f"batch={batch} is less than the {rows} rows of a chunk of {asked.path!r}, which are written together: "
                f"give batch={rows}, or chunks of {batch} rows"
            )
        return sides

    # -- Where results go ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open outputs of known length."""
        if self._this.live.length is None:
            return
        try:
            for target, spec in zip(self._targets, self._specs, strict=True):
                self._made.sinks.append(target.open(spec))
        except BaseException:
            self._made.failed()
            raise
        self._outputs = {i: WholeOutput(self._made.sinks[i]) for i in self._grown}

    def describe(self, rows: int) -> None:
        """Check outputs of unknown length, which grow by batches of so many rows."""
        options = self._options
        if self._this.live.length is not None:
            return
        outs = options.out if isinstance(options.out, tuple) else (options.out,) * (1 if options.out is not None else 0)
        number = len(self._specs)
        if outs and (len(outs) != number or isinstance(options.out, tuple) != self._is_tuple):
            raise ArgumentError(f"there are {number} results and out= has {len(outs)}: give a tuple with one for each")
        outs = outs or (None,) * number
        for number, (dimension, along) in self._grown.items():
            spec = self._specs[number]
            if spec.chunks is None:
                chunks = chunks_of(spec, dimension, int(rows * along.ratio))
                self._specs[number] = replace(spec, chunks=chunks)
        self._places = [self._describe(i, out) for i, out in enumerate(outs)]

    def _describe(self, number: int, out: Any) -> Target | None:
        options, spec = self._options, self._specs[number]
        if number in self._grown:
            axis = self._grown[number].dimension
            self._outputs[number] = growing(out, spec, axis, overwrite=options.overwrite, sync=options.sync)
            return None
        target = open_target(out, overwrite=options.overwrite)
        target.describe(spec.shape, spec.dtype, spec.chunks)
        return target

    # -- What happens to a batch -----------------------------------------------------------------------------

    def run(self, taken: np.ndarray) -> None:
        """Compute the rows that come next."""
        live, start = self._this.live, self._start
        stop = start + len(taken)
        whole = (stop if live.length is None else live.length, *taken.shape[1:])
        held = Held(taken, (slice(start, stop), *grid.whole(taken.shape[1:])), whole)
        found: dict[tuple[int, Ranges], Any] = {}
        with self._prepared(held, self._part_options(start, stop), slice(start, stop), found) as ready:
            found.clear()  # of the trial call
            results = launched(ready, self.watch)
        assert self._last is not None
        assert self._last.kernel is not None
        for place, value in found.items():
            fold = self._last.kernel.parts[place[0]]
            assert fold is not None
            known = self._values.get(place)
            self._values[place] = value if known is None else fold.combine(known, value)
        for number, output in self._outputs.items():
            output.landed(results[number])
        self._start = stop

    @contextmanager
    def _prepared(
        self, held: Any, options: Options, rows: slice, found: dict[tuple[int, Ranges], Any]
    ) -> Iterator[Prepared]:
        """The prepared run of these rows, which are `held` in the live source's place."""
        declare, arrays = self._this.filled(held)

        def part(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
            self._last = declare(specs, args)
            return self._part(self._last, rows, found)

        with self._device.keeping(self.kept), prepared(part, arrays, options) as ready:
            yield ready

    def plan(self, whole: Prepared, rows: int) -> None:
        """Plan a batch of so many rows, and one of a single row, as the last may be, of the `whole` pass.

        All batches cut the folds' results as the first of these does.
        """
        live = self._this.live
        length = rows if live.length is None else live.length
        for number in dict.fromkeys((min(rows, length), *self._last_rows(length, rows))):
            outs = self._part_options(0, number, planned=whole.plan.outputs)
            with self._prepared(live.sample(length, number, lies=True), outs, slice(0, number), {}) as ready:
                if self._block is None:
                    self._block, self.planned = ready.plan.block, replace(ready.plan, batch=number)

    def _last_rows(self, length: int, rows: int) -> list[int]:
        """Rows of a last batch that may need more room than the others: of one row, whose blocks are never combined."""
        is_whole = all((1 / along.ratio).numerator == 1 for _, along in self._grown.values())
        return [1] if self._folds and is_whole else []

    def _part(self, declared: Declared, rows: slice, found: dict[tuple[int, Ranges], Any]) -> Declared:
        """The part of the pass that has these rows; each fold leaves its values in `found`."""
        nest, kernel = declared.nest, declared.kernel
        box = tuple(rows if a == self._axis else slice(0, n) for a, n in enumerate(nest.extents))
        inner, _ = part_of(nest, kernel, box)
        start = tuple(side.start for side in box)
        alike = {a for axes in self._folds.values() for a in axes}  # each batch cuts the folds' results in one way
        sides = declared.block or (None,) * len(box)
        if self._block is not None:
            sides = tuple(self._block[a] if a in alike else side for a, side in enumerate(sides))
        kernel = CollectingKernel(kernel, nest.extents, start, found=found, wanted=self._folds)
        return replace(declared, nest=inner, kernel=kernel, block=tuple(sides) if any(sides) else declared.block)

    def _part_options(self, start: int, stop: int, planned: Sequence[ArraySpec] = ()) -> Options:
        """The options of a batch, with the places of its results: where it is `planned` only, what they would be."""
        outs: list[Any] = [None] * len(self._specs)
        for number, (dimension, along) in self._grown.items():
            shape, first = list(self._specs[number].shape), [0] * len(self._specs[number].shape)
            shape[dimension], first[dimension] = along(stop) - along(start), along(start)
            if not planned:
                outs[number] = self._outputs[number].place(tuple(first), tuple(shape))
            elif self._this.live.length is not None:
                outs[number] = PlannedTarget(replace(planned[number], shape=tuple(shape)))
            else:
                outs[number] = self._outputs[number].planned(tuple(shape))
        out = None if all(one is None for one in outs) else tuple(outs) if self._is_tuple else outs[0]
        return replace(self._options, out=out, overwrite=False, out_chunks=None, checksum=None)

    # -- What there is at the end ----------------------------------------------------------------------------

    def results(self) -> tuple[Any, ...]:
        """All results: what was combined is finished, and outputs of known length get their names."""
        for output in self._outputs.values():
            output.ended()
        if self._this.live.length is None:
            for number in self._combined:
                target, spec = self._places[number], self._specs[number]
                assert target is not None
                self._made.sinks.append(target.open(target.describe(spec.shape, spec.dtype, spec.chunks)))
            self._finish(dict(zip(self._combined, self._made.sinks, strict=True)))
            targets = [target for target in self._places if target is not None]
            given = dict(zip(self._combined, completed(self._made, targets, self._options.sync), strict=True))
            return tuple(given[i] if i in given else self._outputs[i].array for i in range(len(self._specs)))
        self._finish({number: self._made.sinks[number] for number in self._combined})
        return completed(self._made, self._targets, self._options.sync)

    def _finish(self, sinks: Mapping[int, Sink]) -> None:
        """Write what the folds give, by the numbers of the results."""
        last = self._last
        assert last is not None
        assert last.kernel is not None
        for (i, ranges), value in self._values.items():
            fold, along = last.kernel.parts[i], dict(zip(self._folds[i], ranges, strict=True))
            assert fold is not None
            box = tuple(slice(*along.get(a, (0, n))) for a, n in enumerate(last.nest.extents))
            found = fold.finish(value, last.nest, box)
            numbers = self._op.parts[i].numbers
            for number, part in zip(numbers, found if isinstance(found, tuple) else (found,), strict=True):
                region = self._op.outputs[number].region(box)
                sinks[number].write(region, np.asarray(part).astype(self._specs[number].dtype, copy=False))

    def abort(self) -> None:
        """Nothing appears that is not complete. What growing outputs have got stays."""
        self._made.failed()
        for output in self._outputs.values():
            output.abort()


def _grown(op: LoopNest, number: int, axis: int) -> _Grown:
    """The dimension of a result that follows an axis."""
    dims = op.outputs[number].dims
    return next(_Grown(i, dim) for i, dim in enumerate(dims) if isinstance(dim, Along) and dim.axis == axis)


def _combined_bytes(plan: Plan, axis: int) -> int:
    """Bytes of what the batches gave so far, and of what the last one gave, at most.

    A lane of the plan holds some such values at once, at least two.
    """
    folds = [part for part in plan.op.parts if axis in part.folded]
    return sum(math.ceil(part.state * math.prod(part.outputs[0].shape(plan.op.extents))) for part in folds)


def _of_nothing(this: LivePass, options: Options, watch: Trace, taken: np.ndarray) -> LiveResults:
    """The results of no elements: of no rows, or of rows that hold nothing."""
    number = len(taken)
    while len(taken):
        number += len(taken := this.live.take(len(taken)))
    empty = np.empty((number, *this.live.spec.shape[1:]), this.live.dtype)
    with prepared(*this.filled(empty), options) as run:
        return LiveResults(launched(run, watch), run.is_tuple, run.plan.outputs, run.dtypes)


def _axis(nest: LoopNest, kernel: Kernel | None, operand: int) -> int:
    """The axis of the nest that is the live source's first one, along which the pass may be cut into batches."""
    assert kernel is not None
    own = nest.operands[operand]
    axis = own.axes[0]
    if axis is None:
        why = "one row of it is broadcast along the other arrays"
    elif nest.scan == axis:
        why = "what each row gives is handed on to the next one"
    elif own.halo and any(own.halo[0]):
        why = "each row needs the ones before and after it"
    elif axis in nest.whole or (nest.is_product and axis in nest.folded):
        why = "it takes all rows at once"
    elif kernel.wants:
        why = "the function asks for the place of its block, which depends on how the rows are cut"
    elif any(axis in part.folded and kernel.parts[i] is None for i, part in enumerate(nest.parts)):
        why = "nothing combines what two batches give"
    else:
        return axis
    raise ArgumentError(
        f"a live source is computed batch by batch along its first axis, and here {why}: store it first, by "
        f"chunkflow.copy(live, 'slabs.zarr'), and read that. {WORKS}"
    )
