"""A worker's task: it streams one partition under the budget that all tasks of the process share."""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from chunkflow.cluster.partition import Partitioning, filled, read_by
from chunkflow.cluster.reports import told
from chunkflow.core import grid
from chunkflow.core.grid import Region, Shape, describe
from chunkflow.core.nest import Along, Output
from chunkflow.core.spec import ArraySpec
from chunkflow.devices import resolve, within
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import Budget, said
from chunkflow.engine.observe.progress import watching
from chunkflow.engine.options import Options
from chunkflow.engine.prepare import prepared
from chunkflow.engine.run import launched
from chunkflow.errors import BudgetError, WriteError
from chunkflow.graph.fusion import joined
from chunkflow.kernels.declare import Blocking, Declared
from chunkflow.kernels.subnest import on_host, part_of
from chunkflow.planner.loop_order import nest_order
from chunkflow.planner.search import RUN, make_plan
from chunkflow.stores import open_target, spec_of
from chunkflow.stores.failures import translated
from chunkflow.stores.foreign.generic import faithful
from chunkflow.stores.views.shared import Held, Mapped, SharedRegion
from chunkflow.system import interrupts
from chunkflow.system.thread_pool import PooledThread

SHARE = 3
"""One part in so many of the budget decides on the blocks of passes that may share a read."""


@dataclass(frozen=True)
class Program:
    """The common part of all tasks of a pass, of which the result number `item` is wanted.

    Among the `sources`, `Awaited` takes the place of other tasks' results. The `options` are budget and device; dtype,
    blocks and workspace if the operation sets them. `regional` has those awaited arrays, by number, of which a task
    gets only the region that it reads: the operand, and the whole shape. `steady` says that blocks do not depend on the
    results, so that sums equal those of a task that computes more.
    """

    cut: Partitioning
    name: str
    sources: tuple[Any, ...]
    options: Options
    item: int
    regional: dict[int, tuple[int, Shape]]
    out: Opened | None = None
    steady: bool = False


@dataclass(frozen=True)
class Opened:
    """An output that many tasks write: how a worker opens it, and its spec.

    `where` is an array that can be sent to another process, a mapped file, or the path of an ``.npy`` file.
    """

    where: Any
    spec: ArraySpec

    def share(self, region: Region) -> SharedRegion:
        """A region of it, as the output of one run."""
        where = self.where
        if isinstance(where, str):
            with translated(WriteError, f"cannot open {self.spec.name} to write", self.spec.name):
                where = np.load(where, mmap_mode="r+", allow_pickle=False)
        elif isinstance(where, Mapped):
            where = where.mapped()
        return SharedRegion(open_target(where), region, self.spec)


IDLE = 0.25
"""Seconds without a task after which a process returns its device memory. Allocating it again costs a large part of a
short task."""


@dataclass
class _Shared:
    """A budget, the number of tasks that use it, and the timer that closes it."""

    budget: Budget
    users: int = 0
    end: threading.Timer | None = None


_shared: dict[Any, _Shared] = {}
_written: deque[list[Any]] = deque()  # outputs of the latest task
_lock = threading.Lock()


@contextmanager
def shared(limit: Any) -> Iterator[Budget]:
    """The process's budget with this limit, under which one run computes at a time.

    The device's memory is returned a moment after the last task has left, or when a task with another limit comes.
    """
    with _lock:
        for other in [key for key, one in _shared.items() if key != limit and not one.users]:
            _close(other, _shared[other])
        one = _shared.setdefault(limit, _Shared(Budget() if limit is None else Budget(limit)))
        one.users += 1
        if one.end is not None:
            one.end.cancel()
    try:
        yield one.budget
    finally:
        one.budget.rest()
        with _lock:
            one.users -= 1
            if not one.users:
                one.end = threading.Timer(IDLE, _end, (limit, one))
                one.end.daemon = True
                one.end.start()


def _end(limit: Any, one: _Shared) -> None:
    with _lock:
        if not one.users:
            _close(limit, one)


def _close(limit: Any, one: _Shared) -> None:
    """Return a budget's memory, unless that has been done. The caller holds the lock."""
    if _shared.get(limit) is one:
        del _shared[limit]
        one.budget.close()
        _written.clear()


def _put_off(outputs: list[Any]) -> None:
    """Keep a task's outputs until the next task has run; earlier outputs are unmapped in a thread beside it.

    Unmapping takes as long as writing a part of an output. No more are kept, since they count as the worker's memory.
    """
    with _lock:
        _written.append(outputs)
        stale = [_written.popleft() for _ in range(len(_written) - 1)]
    if stale:
        PooledThread(stale.clear, (), "chunkflow-unmap").start()


def run(program: Program, index: Sequence[int], arrays: Sequence[Any] = ()) -> Any:
    """Compute a partition: its part of the result (None if that is stored), or the value to be combined.

    Any failure gets the partition's region as a note.
    """
    return run_together((program,), index, arrays)[0]


def run_together(programs: Sequence[Program], index: Sequence[int], arrays: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Compute a partition of several programs that share a read: for each the result of `run`."""
    try:
        with interrupts.deferred():  # files are opened from here on
            return _together(tuple(programs), tuple(index), arrays)
    except BaseException as error:
        names, region = ", ".join(p.name for p in programs), describe(programs[0].cut.box(tuple(index)))
        error.add_note(f"chunkflow: in the partition {tuple(index)} of {names}, region {region}")
        raise


def _together(programs: tuple[Program, ...], index: Shape, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Compute as many programs at a time as fit the budget."""
    steady = programs[0].steady and all(grid.shape_of(programs[0].cut.box(index)))
    if steady or len(programs) > 1:
        with suppress(BudgetError):
            return _run(programs, index, arrays, steady=steady)
    if len(programs) == 1:
        return _run(programs, index, arrays, steady=False)
    half = len(programs) // 2
    return *_together(programs[:half], index, arrays), *_together(programs[half:], index, arrays)


def _run(programs: tuple[Program, ...], index: Shape, arrays: Sequence[Any], *, steady: bool) -> tuple[Any, ...]:
    first = programs[0]
    cut, box, options = first.cut, first.cut.box(index), first.options
    whole = joined([program.cut.declared for program in programs])
    merged: list[Any] | None = [] if cut.folded else None
    nest, kernel = part_of(whole.nest, whole.kernel, box, merged=merged, check=_cancelled_check())
    if cut.folded:  # one value is combined, so the axes that results follow must not be cut again
        nest = replace(nest, whole=nest.whole | cut.kept)
    given: list[Any] = list(arrays)
    for number, (operand, shape) in first.regional.items():
        region, spec = read_by(whole.nest.operands[operand], box), spec_of(first.sources[operand])
        given[number] = faithful(given[number], grid.whole(shape) if region is None else region, spec)
        given[number] = given[number].astype(spec.dtype, copy=False)
        if region is not None:
            given[number] = Held(given[number], region, shape)
    given = [np.asarray(array) if isinstance(array, np.generic) else array for array in given]
    sources = [filled(source, given) for source in first.sources]
    # Number of each program's first result among all results.
    starts = [*accumulate((max(1, len(p.cut.declared.each)) for p in programs), initial=0)]
    places = [start + program.item for start, program in zip(starts, programs, strict=False)]
    outs: list[Any] = [None] * starts[-1]
    for place, program in zip(places, programs, strict=True):
        if program.out is not None and not cut.folded:
            outs[place] = program.out.share(program.cut.region(index, program.out.spec.shape, program.item))
    if any(out is not None for out in outs):
        options = replace(options, out=tuple(outs) if len(outs) > 1 else outs[0])
    device = device_of(options.device)
    declared = replace(whole, nest=nest, kernel=kernel)
    with shared(allowed(options.budget, device)) as budget:

        def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
            return _in_fixed_blocks(declared, _kept_chunks(programs), specs, device, budget) if steady else declared

        with prepared(declare, sources, replace(options, budget=budget, device=device)) as ready:
            if merged is not None:
                merged.clear()  # of the trial call
            with told(len(programs)):
                results = launched(ready, watching(False))
    if any(out is not None for out in outs):
        _put_off(outs)
    if merged is not None:
        return tuple(merged[-len(programs) :])
    return tuple(
        results[place][()] if program.out is None else None for place, program in zip(places, programs, strict=True)
    )


def _kept_chunks(programs: Sequence[Program]) -> dict[int, int]:
    """For each axis that results follow, the side of blocks that cut no chunk of an output."""
    sides = dict.fromkeys(sorted(programs[0].cut.kept), 1)
    for program in programs:
        if program.out is not None and not program.cut.folded:
            axes = program.cut.declared.axes_of(program.item)
            for axis, chunk in zip(axes, program.out.spec.chunks or (1,) * len(axes), strict=True):
                if axis is not None:
                    sides[axis] = math.lcm(sides[axis], chunk)
    return sides


def _in_fixed_blocks(
    declared: Declared, kept: Mapping[int, int], specs: Sequence[ArraySpec], device: Device, budget: Budget
) -> Declared:
    """A pass in the blocks of a model pass, which reads the same and gives one number for each line.

    Along the axes `kept` blocks are multiples of a side.
    The model pass is planned with a small workspace and a part of the budget. So several kernels usually fit it
    together, and each adds up in the same order as it would alone.
    """
    nest = declared.nest
    op = replace(nest, together=(), outputs=(Output(tuple(map(Along, kept))),))
    inner = [replace(spec, shape=o.shape(nest.extents)) for spec, o in zip(specs, nest.operands, strict=True)]
    lines = ArraySpec("lines", tuple(nest.extents[a] for a in kept), np.dtype("f8"), chunks=tuple(kept.values()))
    room, each = budget.limit_on(device) // SHARE, sum(spec.dtype.itemsize for spec in inner)
    plan = make_plan(op, inner, [lines], device.machine, room, workspace=each, tiles=True)
    fastest = nest_order(op, inner)[-1:]
    tile = plan.tile
    if any(tile[a] < plan.block[a] and tile[a] * each < RUN for a in fastest):
        tile = plan.block  # the cache does not help if only a few elements of each row are read
    return replace(declared, blocking=Blocking(plan.block, tile, plan.depth))


def _worker() -> Any:
    """The cluster's worker of this thread; None for another scheduler."""
    distributed = sys.modules.get("distributed")
    try:
        return None if distributed is None else distributed.get_worker()
    except ValueError:
        return None


def device_of(spec: Any) -> Device:
    """The device of a task. Of the CPU it has as many cores as its worker has threads."""
    worker = _worker()
    return resolve(spec) if worker is None else within(resolve(spec), worker.state.nthreads)


def allowed(limit: Any, device: Device) -> Any:
    """The budget of a task. By default it is the configuration's, or on the CPU half of its worker's memory limit."""
    limit, worker = said() if limit is None else limit, _worker()
    most = None if worker is None or device.machine.staged else worker.memory_manager.memory_limit
    return most // 2 if limit is None and most else limit


def _cancelled_check() -> Callable[[], None] | None:
    """A function that raises if the cluster's client has cancelled the task in this thread; None outside a cluster."""
    worker = _worker()
    if worker is None or (key := worker.get_current_task()) not in worker.state.tasks:
        return None
    task = worker.state.tasks[key]

    def check() -> None:
        if task.state in ("cancelled", "released", "forgotten"):
            raise CancelledError(f"{key} was cancelled")

    return check


def combine(program: Program, values: Sequence[Any]) -> Any:
    """The combined value of several partitions."""
    fold = _fold(program)
    return reduce(lambda left, right: fold.combine(left, on_host(right)), values[1:], on_host(values[0]))


def finish(program: Program, values: Sequence[Any], index: Sequence[int]) -> Any:
    """The result from the values of all partitions along the folded axes; None if it is stored."""
    cut, nest = program.cut, program.cut.declared.nest
    box = tuple(
        slice(0, n) if a in cut.folded else side
        for a, (n, side) in enumerate(zip(nest.extents, cut.box(tuple(index)), strict=True))
    )
    found = _fold(program).finish(combine(program, values), nest, box)
    result = np.asarray(found[program.item] if isinstance(found, tuple) else found)
    if program.options.dtype is not None:
        result = result.astype(program.options.dtype, copy=False)
    if program.out is None:
        return result[()]
    sink = program.out.share(cut.region(tuple(index), program.out.spec.shape, program.item))
    opened = sink.open(replace(program.out.spec, shape=result.shape))
    opened.write(grid.whole(result.shape), result.astype(program.out.spec.dtype, copy=False))
    opened.commit()
    return None


def _fold(program: Program) -> Any:
    kernel: Any = program.cut.declared.kernel
    return kernel.parts[0]


def assemble(pieces: Sequence[Any], places: Sequence[Any], shape: Shape) -> Any:
    """An array from its parts."""
    whole = np.empty(shape, pieces[0].dtype)
    for piece, place in zip(pieces, places, strict=True):
        whole[place] = piece
    return whole
