"""Stencils applied over and over: passes of several steps each, through two stores in turn.

A pass reads and writes the whole array, so it takes as many steps as are worth their price: blocks are read with a
halo that many times as deep, and what lies between two of them is computed by both. This is the overlapped tiling of
Krishnamoorthy et al., "Effective automatic parallelization of stencil computations" (PLDI 2007). How many steps a pass
takes is the cost model's to say (`chunkflow.api.stencil.steps_per_pass`).
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, cast

import numpy as np

from chunkflow.api.labels import labels_of
from chunkflow.api.operation import Request, dispatch, execute, labelled, later
from chunkflow.api.stencil.steps_per_pass import IterationPlan, Pacing
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Region, Shape
from chunkflow.core.nest import output_axes
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import parse_bytes
from chunkflow.engine.budget import Budget, borrow
from chunkflow.engine.options import Options, ProgressLike
from chunkflow.engine.prepare import Prepared, prepared
from chunkflow.engine.trial import run_trial
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError, ResultTypeError
from chunkflow.graph.nodes import Lazy, first_lazy, node_of
from chunkflow.kernels.declare import Declare, Declared
from chunkflow.kernels.map import is_scalar
from chunkflow.kernels.stencil.iterate import Stepping, Steps
from chunkflow.kernels.stencil.overlap import boundaries, each
from chunkflow.stores import spec_of
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.paths import hidden_sibling
from chunkflow.stores.protocol import Source
from chunkflow.stores.zarr.node import zarr_node
from chunkflow.system import interrupts
from chunkflow.system.host import available_memory

P = ParamSpec("P")


def repeatable(ask: Callable[P, Request | Iteration]) -> Callable[P, Any]:
    """Turn a function that returns what is to be run, once or many times, into one that runs it.

    `chunkflow.api.operation.operation` does the same for what is always run once.
    """

    def plans(*args: P.args, **kwargs: P.kwargs) -> IterationPlan | None:
        asked = ask(*args, **kwargs)
        return asked.plan() if isinstance(asked, Iteration) else None

    @functools.wraps(ask)
    def once(*args: P.args, **kwargs: P.kwargs) -> Any:
        return ask(*args, **{**kwargs, "iterations": 1, "steps_per_pass": None})  # type: ignore[arg-type]

    @functools.wraps(ask)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        labels = labels_of(ask, args, kwargs)
        if labels is not None:
            return labelled(labels, once, call)
        asked = ask(*args, **kwargs)
        if not isinstance(asked, Iteration):
            return dispatch(asked, ask, args, kwargs)
        first = first_lazy(*asked.arrays)
        if first is None:
            return asked.run()
        # Each step gives what one of them gives.
        one = cast(Lazy, call(*args, **{**kwargs, "iterations": 1, "steps_per_pass": None}))  # type: ignore[arg-type]
        # All arrays are its inputs: none may be another one, or overwritten, by the time that it runs.
        nodes = [a if is_scalar(a) else Lazy(node_of(a)) for a in asked.arrays]
        given = (*args[: len(args) - len(nodes)], *nodes)
        return type(first)(later(call, node_of(one).spec, given, kwargs, streams=False))

    call.__dict__["asks"], call.__dict__["plans"] = ask, plans
    call.__annotations__ = {**ask.__annotations__, "return": Any}
    return call


def count(value: Any, name: str) -> int:
    """A number of steps.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        It is less than 1, or no int.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"{name} must be an int, not {value!r}")
    if value < 1:
        raise ArgumentError(f"{name}={value} must be at least 1")
    return int(value)


@dataclass(frozen=True)
class Iteration:
    """What is to be run: a stencil, how often, and how.

    `steps` are those of a pass, None where the model chooses. `kernel` is the class that takes them.
    """

    fn: Callable[..., Any]
    kwargs: dict[str, Any]
    depth: Any
    boundary: Any
    arrays: tuple[Any, ...]
    options: Options
    progress: ProgressLike
    iterations: int
    steps: int | None = None
    kernel: type[Steps] = Steps

    def plan(self) -> IterationPlan:
        """What `run` would do. Nothing is written."""
        with interrupts.deferred(), self._work() as work:
            return work.plan

    def run(self) -> Any:
        """Take all the steps: the output, opened where it was a path."""
        # Ctrl-C comes at the engine's safe places only, so that what is made in between is removed.
        with interrupts.deferred(), self._work() as work:
            return work.run()

    @contextmanager
    def _work(self) -> Iterator[_Work]:
        """All that is to be known beforehand, with one budget for all passes."""
        shared, own, cap = borrow(self.options.budget)
        try:
            budget = shared if own or isinstance(self.options.budget, Budget) else cap
            options = replace(self.options, budget=budget)
            with prepared(self.declared(1), self.arrays, options) as run:
                if cap is not None and not own:  # a share of what is free would change from pass to pass
                    options = replace(options, budget=parse_bytes(cap, whole=run.device.free_memory()))
                work = _Work.of(self, options, run)
            yield work
        finally:
            if own:
                shared.close()

    def declared(self, steps: int, dtype: np.dtype | None = None, block: Shape | None = None) -> Declare:
        """Declare a pass of so many steps with results of `dtype`, by blocks of a shape."""

        def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
            stepping = Stepping.of(specs, self.depth, self.boundary)
            then = specs[0] if dtype is None else replace(specs[0], dtype=dtype)
            kernel = self.kernel(
                self.fn,
                args,
                self.kwargs,
                output_axes(len(stepping.once.extents)),
                depth=stepping.wanted,
                trim=stepping.cut,
                stepping=stepping,
                steps=steps,
                dtype=dtype,
                edges=boundaries(each(self.boundary, len(specs), "boundary")[0], then),
            )
            return Declared(stepping.deep(steps), kernel, kernel.axes, block, tiles=False)

        return declare


@dataclass(frozen=True)
class _Work:
    """An iteration whose arrays are known, after the function's trial.

    What lies between passes is kept in `folder`, in host memory if that is None; every other pass writes to the
    output itself where it `alternates`. `created` says whether the output is a new array in chunks.
    """

    asked: Iteration
    options: Options
    pacing: Pacing
    folder: str | None
    alternates: bool
    created: bool

    @classmethod
    def of(cls, asked: Iteration, options: Options, run: Prepared) -> _Work:
        """See what the function does, given the pass of a single step."""
        specs, kernel, out = run.plan.operands, run.kernel, run.plan.outputs[0]
        assert isinstance(kernel, Steps)
        assert kernel.stepping is not None
        stepping, first = kernel.stepping, specs[0]
        if run.is_tuple:
            raise ResultError("fn returns a tuple; with iterations it must return one array, the next step's first one")
        if kernel.wants:
            if (asked.steps or 1) > 1:
                raise ArgumentError(
                    f"fn asks for {' and '.join(sorted(kernel.wants))}, of which a step that is computed together "
                    "with others has none: use steps_per_pass=1"
                )
            stepping = replace(stepping, lone=True)
        dtype, workspace = _learn(asked, options, run, kernel)
        target = run.targets[0]
        place, host = target.footprint, available_memory()
        apart = place is not None and not any(s.footprint and place.overlaps(s.footprint) for s in run.sources)
        alternates = isinstance(options.out, np.ndarray) and out.dtype == dtype and apart
        straight = tuple(range(len(first.shape)))
        order = first.order if first.chunks is None and first.order == straight[::-1] else straight
        between = ArraySpec("what lies between the passes", first.shape, dtype, None, order, in_memory=True)
        folder = None
        if os.path.isabs(target.name) or (host is not None and 2 * between.nbytes > host):
            folder, between = _folder(target.name), replace(between, in_memory=False)
        return cls(
            asked=asked,
            options=replace(options, device=run.device),
            pacing=Pacing(
                stepping=stepping,
                specs=specs,
                out=out,
                between=between,
                workspace=workspace,
                machine=run.device.machine,
                limit=run.plan.budget,
                reserve=run.device.reserve,
                block=block_sides(options.chunks, first.shape),
            ),
            folder=folder,
            alternates=alternates,
            created=place is None and out.chunks is not None,
        )

    @property
    def plan(self) -> IterationPlan:
        """The passes."""
        return self.pacing.plan(self.asked.iterations, self.asked.steps)

    def run(self) -> Any:
        """Run one pass after another, between two stores in turn; the last one writes the output itself."""
        sizes = self.plan.steps
        held: list[Any] = [self.options.out if self.alternates else None, None]
        source, result = self.asked.arrays[_first(self.asked.arrays)], None
        try:
            for number, steps in enumerate(sizes, 1):
                last, side = number == len(sizes), (len(sizes) - number) % 2
                if last and (self.options.out is not None or self.folder is not None):
                    target = self.options.out
                else:
                    target = held[side]
                    if target is None and self.folder is not None:
                        os.makedirs(self.folder, exist_ok=True)
                        target = os.path.join(self.folder, f"{side}.npy")
                result = held[side] = source = self._pass(steps, source, target, last=last)
            return result
        finally:
            held.clear()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _pass(self, steps: int, source: Any, target: Any, *, last: bool) -> Any:
        """Take several steps from one store to another."""
        pacing = self.pacing
        sink = pacing.out if last else spec_of(target) if isinstance(target, np.ndarray) else pacing.between
        plan = pacing.planned(steps, spec_of(source), sink)
        arrays = list(self.asked.arrays)
        arrays[_first(arrays)] = source
        options = replace(
            self.options,
            out=target,
            dtype=pacing.between.dtype,
            chunks=pacing.out.chunks if last and self.created else None,
            workspace=pacing.needed(steps, plan.operands[0].dtype),
        )
        declare = self.asked.declared(steps, pacing.between.dtype, plan.block)
        return execute(Request(declare, arrays, options, self.asked.progress))


def _learn(asked: Iteration, options: Options, run: Prepared, kernel: Steps) -> tuple[np.dtype, float]:
    """Dtype of every step's result, and the bytes for each element of a block that a step allocates besides it.

    Raises
    ------
    ResultTypeError
        The second step would change the dtype once more.
    """
    assert kernel.stepping is not None
    first, given = run.plan.operands[0], options.dtype
    dtype = None if given is None else np.dtype(given[0] if isinstance(given, tuple) else given)
    if dtype is not None and options.workspace is not None:  # and blocks at the edges, which are copied
        return dtype, options.workspace + sum(s.dtype.itemsize for s in run.plan.operands)

    def tried(kernel: Steps, sources: Sequence[Source]) -> tuple[np.dtype, float]:
        assert kernel.stepping is not None
        seen = run_trial(
            replace(kernel, copies=True), kernel.stepping.deep(1), sources, run.device, run.pool, run.plan.budget
        )
        return seen.dtypes[0], seen.workspace

    found, workspace = tried(kernel, run.sources)
    if dtype is None and found != first.dtype:
        specs = [replace(first, dtype=found), *run.plan.operands[1:]]
        again = asked.declared(1)(specs, kernel.args).kernel
        assert isinstance(again, Steps)
        second, _ = tried(again, [_Cast(run.sources[0], found), *run.sources[1:]])
        if second != found:
            raise ResultTypeError(
                f"fn turns {first.dtype} into {found}, and that into {second}: with iterations each step's result "
                "must have the dtype of the first one's; say which with dtype="
            )
    return dtype or found, workspace if options.workspace is None else options.workspace


class _Cast:
    """A source's elements in another dtype, for a trial."""

    footprint: Footprint | None = None

    def __init__(self, source: Source, dtype: np.dtype) -> None:
        self._source, self.spec = source, replace(source.spec, dtype=dtype, in_memory=False)

    def read(self, region: Region, out: np.ndarray) -> None:
        """See `Source.read`."""
        found = np.empty(out.shape, self._source.spec.dtype)
        self._source.read(region, found)
        with np.errstate(all="ignore"):
            np.copyto(out, found if out.dtype.kind == "c" else found.real, casting="unsafe")

    def view(self, region: Region) -> np.ndarray | None:
        """See `Source.view`."""
        return None

    def close(self) -> None:
        """See `Source.close`: the source is not ours."""


def _first(arrays: Sequence[Any]) -> int:
    """Place of the first array among the arguments: scalars are passed on as they are."""
    scalar = bool | int | float | complex | np.generic
    return next(i for i, value in enumerate(arrays) if value is not None and not isinstance(value, scalar))


def _folder(name: str) -> str:
    """Hidden directory beside an output for what lies between passes, not inside a zarr group."""
    if not os.path.isabs(name):
        name = os.path.join(tempfile.gettempdir(), "chunkflow")
    above = os.path.dirname(name)
    while above != os.path.dirname(above) and (
        above.endswith(".zarr") or not os.path.isdir(above) or zarr_node(above) is not None
    ):
        above = os.path.dirname(above)
    return hidden_sibling(os.path.join(above, os.path.basename(name)), "steps")
