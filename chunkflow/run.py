"""From a request to its results: the one way in which every operation runs, or is explained.

An operation is a function that says what is to be done (a `Request`); the decorator `operation` does it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec

import numpy as np

from chunkflow import engine, grid, interrupts, trace
from chunkflow import progress as _progress
from chunkflow.declare import Declare
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.plan import Plan
from chunkflow.prepare import Options, Prepared, prepared
from chunkflow.stores.base import Sink
from chunkflow.trace import Trace

P = ParamSpec("P")


@dataclass(frozen=True)
class Request:
    """What is to be run: an operation's declaration, its arrays, and how.

    `finish` makes of the results what the caller gets.
    """

    declare: Declare
    arrays: Sequence[Any]
    options: Options
    progress: _progress.ProgressLike = False
    finish: Callable[[Any], Any] | None = None


def execute(request: Request) -> Any:
    """Run a request: the output, or a tuple of them."""
    watch = watching(request.progress)
    with interrupts.deferred(), prepared(request.declare, request.arrays, request.options) as run:
        results = _run(run, watch)
    result = results if run.is_tuple else results[0]
    return result if request.finish is None else request.finish(result)


def operation(ask: Callable[P, Request]) -> Callable[P, Any]:
    """Turn a function that returns a `Request` into one that runs it."""

    @functools.wraps(ask)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        return execute(ask(*args, **kwargs))

    call.__dict__["asks"] = ask
    call.__annotations__ = {**ask.__annotations__, "return": Any}
    return call


def composed(fn: Callable[P, Any]) -> Callable[P, Any]:
    """Mark a function that runs several requests, one after another."""
    fn.__dict__["asks"] = None
    return fn


def is_operation(fn: Any) -> bool:
    """Whether a function is one of chunkflow's operations."""
    return "asks" in getattr(fn, "__dict__", ())


def plan_of(fn: Callable[..., Any], arrays: Sequence[Any], options: Mapping[str, Any]) -> Plan:
    """Plan of an operation with these arguments.

    Raises
    ------
    ArgumentTypeError
        It makes several passes.
    """
    ask = fn.__dict__["asks"]
    if ask is None:
        raise ArgumentTypeError(
            f"{fn.__name__} makes several passes, each with a plan of its own: there is not one to show"
        )
    request: Request = ask(*arrays, **options)
    with interrupts.deferred(), prepared(request.declare, request.arrays, request.options) as run:
        return run.plan


def watching(progress: _progress.ProgressLike) -> Trace:
    """Those who watch a run: the context's observers and the progress bar."""
    shown = _progress.make(progress)
    return Trace([*trace.active(), *([shown] if shown is not None else [])])


def _run(run: Prepared, watch: Trace) -> tuple[Any, ...]:
    """Run a plan; the outputs appear only if all of it succeeds."""
    assert run.kernel is not None
    empty = not len(run.plan.grid) and any(spec.size for spec in run.plan.outputs)
    if empty and not run.plan.op.folded:
        raise ArgumentError(
            f"the arrays are empty ({run.plan.op.extents}) and the result is not: there is no block from which fn "
            "could make it"
        )
    sinks: list[Sink] = []
    watch.started(run.plan)
    if run.plan.op.has_halo:
        watch.noted(f"blocks overlap: {run.plan.rereads:.3g} times the arrays' bytes are read")
    try:
        for target, spec in zip(run.targets, run.plan.outputs, strict=True):
            sinks.append(target.open(spec))
        if len(run.plan.grid):
            engine.execute(run.plan, run.kernel, run.sources, sinks, run.device, run.pool, watch)
        elif empty:
            _of_nothing(run, sinks)
        results = tuple([sink.commit() for sink in sinks])
    except BaseException as error:
        for sink in sinks:
            sink.abort()
        watch.finished(error, run.pool.peak)
        raise
    watch.finished(None, run.pool.peak)
    return results


def _of_nothing(run: Prepared, sinks: Sequence[Sink]) -> None:
    """Store what a fold over no element gives."""
    plan = run.plan
    assert run.kernel is not None
    box = grid.whole(plan.op.extents)
    blocks = [np.empty(s.shape, s.dtype) for s in plan.operands]
    values = run.kernel(blocks, plan.op, plan.grid, (0,) * len(box), box)
    for sink, spec, value in zip(sinks, plan.outputs, values if isinstance(values, tuple) else (values,), strict=True):
        sink.write(grid.whole(spec.shape), np.asarray(value).astype(spec.dtype, copy=False))
