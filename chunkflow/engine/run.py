"""The run of a plan, from its first read to the commit of its outputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.core import grid
from chunkflow.engine import pipeline
from chunkflow.engine.completion import Complete, completed
from chunkflow.engine.dry_run import is_dry, note, stand_ins
from chunkflow.engine.passes import current
from chunkflow.engine.prepare import Prepared
from chunkflow.engine.reach import warn_of_block_edges
from chunkflow.engine.resume import Resumption, published, tidy
from chunkflow.engine.trace import Trace
from chunkflow.errors import ArgumentError, SlowRunWarning
from chunkflow.planner.plan import Plan
from chunkflow.stores.commit import commit_all
from chunkflow.stores.protocol import Sink, gaps_of, guards_of, learn_indices, refuse_doubtful
from chunkflow.system.users_line import users_line


def launched(run: Prepared, watch: Trace) -> tuple[Any, ...]:
    """Run a plan; the outputs appear only if all of it succeeds. In a dry run there are stand-ins for them."""
    assert run.kernel is not None
    empty = not len(run.plan.grid) and any(spec.size for spec in run.plan.outputs)
    mapped = [i for part in run.plan.op.parts if not part.folded for i in part.numbers]
    if empty and any(run.plan.outputs[i].size for i in mapped):
        raise ArgumentError(
            f"the arrays are empty ({run.plan.op.extents}) and the result is not: there is no block from which fn "
            "could make it"
        )
    if is_dry():
        note(run.plan)
        return stand_ins(run.plan.outputs)
    passes, turn, targets = current(), None, run.targets
    if passes is not None:
        turn = passes.begin(run.plan.outputs, targets)
        if turn is not None and turn.done is not None:
            watch.noted("a pass was done already")
            return turn.done
        targets = () if turn is None else tuple(turn.targets)
    resumption = None
    if run.call is not None and targets and (there := published(targets, run.plan, run.call)) is not None:
        watch.noted("it was done already")
        if turn is not None:
            commit_all([turn.mark], sync=run.sync)
        tidy(targets)
        return there
    if run.call is not None and targets:
        resumption = Resumption.open(targets, run.plan, run.call, guards_of(run.sources))
    made = Complete([], turn, resumption)
    try:
        if resumption is None or not resumption.start:
            warn_of_block_edges(run)
    except BaseException:  # the warning, where warnings are errors
        made.failed()
        raise
    watch.started(run.plan, run)
    for text in run.plan.reading:
        watch.noted(text)
    try:
        if resumption is not None:
            made.sinks += resumption.sinks
            if resumption.start:
                watch.noted(f"gone on with at block {resumption.start} of {len(run.plan.grid)}")
        learn_indices(run.sources)
        for target, spec in zip(run.targets[len(made.sinks) :], run.plan.outputs[len(made.sinks) :], strict=True):
            made.sinks.append(target.open(spec))
        warn_of_slowness(run.plan)
        if len(run.plan.grid):
            pipeline.execute(
                run.plan, run.kernel, run.sources, made.sinks, run.device, run.pool, watch, resumption, run.seen
            )
        elif empty:
            _of_nothing(run, made.sinks)
        look_after(run, watch)
        results = completed(made, targets or run.targets, run.sync)
    except BaseException as error:
        made.failed()
        if resumption is not None and resumption.has_left:
            which = " of this pass" if turn is not None else ""
            error.add_note(f"chunkflow: {resumption.said}{which} are kept, and the same call goes on with them")
        watch.finished(error, run.pool.peak)
        raise
    watch.finished(None, run.pool.peak)
    return results


def look_after(run: Prepared, watch: Trace) -> None:
    """Refuse sources that were changed while they were read, and note how many of their chunks are missing."""
    for guard in guards_of(run.sources):
        guard.check()
    refuse_doubtful(run.sources)
    for name, gaps in gaps_of(run.sources):
        if gaps.number:
            watch.noted(f"{name}: {gaps}")


def warn_of_slowness(plan: Plan) -> None:
    """Warn, once a run starts, of blocks for which it may seem to run for ever."""
    if plan.warning:
        warnings.warn(plan.warning, SlowRunWarning, stacklevel=users_line())


def _of_nothing(run: Prepared, sinks: Sequence[Sink]) -> None:
    """Store the result of a fold over no elements."""
    plan = run.plan
    assert run.kernel is not None
    box = grid.whole(plan.op.extents)
    blocks = [np.empty(s.shape, s.dtype) for s in plan.operands]
    values = run.kernel(blocks, plan.op, plan.grid, (0,) * len(box), box)
    for sink, spec, value in zip(sinks, plan.outputs, values if isinstance(values, tuple) else (values,), strict=True):
        sink.write(grid.whole(spec.shape), np.asarray(value).astype(spec.dtype, copy=False))
