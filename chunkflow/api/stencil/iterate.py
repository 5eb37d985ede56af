"""Stencils that are applied many times, in passes of several steps each.

A pass reads and writes the whole array, so several steps in one pass save traffic. Blocks are then read with a deeper
halo, and elements near a border are computed by both neighbours. This is the overlapped tiling of Krishnamoorthy et
al., "Effective automatic parallelization of stencil computations" (PLDI 2007). The cost model chooses the number of
steps (`chunkflow.api.stencil.steps_per_pass`). Passes alternate between two stores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow import devices
from chunkflow.api.operation import (
    ArraySpec,
    Declare,
    Declared,
    MultiPass,
    Options,
    Request,
    execute,
    op_node,
    with_labels,
)
from chunkflow.api.stencil.steps_per_pass import IterationPlan, Pacing
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Region, Shape
from chunkflow.core.nest import output_axes
from chunkflow.core.spec import Storage
from chunkflow.engine.budget import lease
from chunkflow.engine.passes import current
from chunkflow.engine.prepare import Prepared, prepared
from chunkflow.engine.trial import run_trial
from chunkflow.errors import ArgumentError, ResultError, ResultTypeError
from chunkflow.kernels.map import is_scalar
from chunkflow.kernels.stencil.iterate import Stepping, Steps
from chunkflow.kernels.stencil.overlap import boundaries, each
from chunkflow.stores import Between, spec_of
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.protocol import Source
from chunkflow.stores.publication.scratch import Scratch
from chunkflow.system import interrupts
from chunkflow.system.host import available_memory


@dataclass(frozen=True)
class Iteration:
    """A stencil that is applied many times, and how: `steps` in a pass, or if that is None, as the model chooses."""

    fn: Callable[..., Any]
    kwargs: dict[str, Any]
    depth: Any
    boundary: Any
    arrays: tuple[Any, ...]
    options: Options
    iterations: int
    steps: int | None = None
    kernel: type[Steps] = Steps

    def described(self, once: Request) -> MultiPass:
        """Describe the iteration. `once` is the request of a single step, whose result has the same shape and dtype."""
        return MultiPass(
            self.arrays,
            self.run,
            self.options,
            lambda: op_node(once, "map_overlap").spec,
            self.plan,
            keeps=True,
            name=lambda labels, result: with_labels(labels, result, once),
        )

    def plan(self) -> IterationPlan:
        """The plan of `run`. Nothing is written."""
        with interrupts.deferred(), self._work() as work:
            return work.plan

    def run(self) -> Any:
        """Take all the steps: the output, opened where it was a path."""
        # Ctrl-C is deferred to the engine's safe places, so that temporary files are removed.
        with interrupts.deferred(), self._work() as work:
            return work.run()

    @contextmanager
    def _work(self) -> Iterator[_Work]:
        """Prepare all passes, with one budget for all of them."""
        with lease(self.options.budget, devices.resolve(self.options.device)) as leased:
            options = self.options
            if leased.is_own:
                options = replace(options, budget=leased.budget)
            with prepared(self.declared(1), self.arrays, options) as run:
                if (cap := leased.cap) is not None:  # a share of what is free would change from pass to pass
                    options = replace(options, budget=cap)
                work = _Work.of(self, options, run)
            yield work

    def declared(self, steps: int, dtype: np.dtype | None = None, block: Shape | None = None) -> Declare:
        """Declare a pass of `steps` steps with results of `dtype`, in blocks of shape `block`."""

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
            return Declared(stepping.deep(steps), kernel, kernel.axes, block, chunked=False, tiles=False)

        return declare


@dataclass(frozen=True)
class _Work:
    """An iteration after its trial call, with its arrays known.

    Arrays between passes are kept in `scratch`, or in host memory if that is None. If it `alternates`, every other pass
    writes to the output itself. `created` says whether the output is a new array in chunks.
    """

    asked: Iteration
    options: Options
    pacing: Pacing
    scratch: Scratch | None
    alternates: bool
    created: bool

    @classmethod
    def of(cls, asked: Iteration, options: Options, run: Prepared) -> _Work:
        """Try the function, given the prepared pass of a single step."""
        specs, kernel, out = run.plan.operands, run.kernel, run.plan.outputs[0]
        assert isinstance(kernel, Steps)
        assert kernel.stepping is not None
        stepping, first = kernel.stepping, specs[0]
        if run.is_tuple:
            raise ResultError("fn returns a tuple; with iterations it must return one array, the next step's first one")
        if kernel.wants:
            if (asked.steps or 1) > 1:
                raise ArgumentError(
                    f"fn asks for {' and '.join(sorted(kernel.wants))}, which a step has only in a pass of its own: "
                    "use steps_per_pass=1"
                )
            stepping = replace(stepping, lone=True)
        dtype, workspace = _learn(asked, options, run, kernel)
        target = run.targets[0]
        place, host = target.footprint, available_memory()
        apart = place is not None and not any(s.footprint and place.overlaps(s.footprint) for s in run.sources)
        alternates = isinstance(options.out, np.ndarray) and out.dtype == dtype and apart
        straight = tuple(range(len(first.shape)))
        order = first.order if first.chunks is None and first.order == straight[::-1] else straight
        between = ArraySpec("the array between two passes", first.shape, dtype, None, order, Storage(in_memory=True))
        scratch = None
        if os.path.isabs(target.name) or (host is not None and 2 * between.nbytes > host):
            scratch, between = Scratch(target.name, "steps"), between.with_storage(in_memory=False)
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
            scratch=scratch,
            alternates=alternates,
            created=place is None and out.chunks is not None,
        )

    @property
    def plan(self) -> IterationPlan:
        return self.pacing.plan(self.asked.iterations, self.asked.steps)

    def run(self) -> Any:
        """Run the passes. They alternate between two stores, and the last one writes the output."""
        sizes = self.plan.steps
        held: list[Any] = [self.options.out if self.alternates else None, None]
        source, result, passes = self.asked.arrays[_first(self.asked.arrays)], None, current()
        places: list[Between] = []
        try:
            for number, steps in enumerate(sizes, 1):
                last, side = number == len(sizes), (len(sizes) - number) % 2
                if last and (self.options.out is not None or self.scratch is not None or passes is not None):
                    target = self.options.out
                elif passes is not None:
                    target = passes.place(self.pacing.between)
                    places.append(target)
                else:
                    target = held[side]
                    if target is None and self.scratch is not None:
                        target = os.path.join(self.scratch.folder, f"{side}.npy")
                result = held[side] = source = self._pass(steps, source, target, last=last)
                if passes is not None and number > 1:
                    passes.has_read(places[number - 2])
            return result
        finally:
            held.clear()
            if self.scratch is not None:
                self.scratch.end()

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
        return execute(Request(declare, arrays, options))


def _learn(asked: Iteration, options: Options, run: Prepared, kernel: Steps) -> tuple[np.dtype, float]:
    """Dtype of each step's result, and the bytes that a step allocates besides, for each element of a block."""
    assert kernel.stepping is not None
    first, given = run.plan.operands[0], options.dtype
    dtype = None if given is None else np.dtype(given[0] if isinstance(given, tuple) else given)
    if dtype is not None and options.workspace is not None:  # blocks at the edges are copied
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
    """A source whose elements are cast to another dtype, for a trial call."""

    footprint: Footprint | None = None

    def __init__(self, source: Source, dtype: np.dtype) -> None:
        self._source, self.spec = source, replace(source.spec.with_storage(in_memory=False), dtype=dtype)

    def read(self, region: Region, out: np.ndarray) -> None:
        found = np.empty(out.shape, self._source.spec.dtype)
        self._source.read(region, found)
        with np.errstate(all="ignore"):
            np.copyto(out, found if out.dtype.kind == "c" else found.real, casting="unsafe")

    def view(self, region: Region) -> np.ndarray | None:
        return None

    def close(self) -> None:
        """See `Source.close`: the source is not ours."""


def _first(arrays: Sequence[Any]) -> int:
    """Position of the first array among the arguments; scalars are passed on as they are."""
    return next(i for i, value in enumerate(arrays) if not is_scalar(value))
