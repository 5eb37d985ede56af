"""The search for the passes of a Fourier transform: the axes of each, and the arrays between them.

A pass has the axes that it transforms whole in its blocks. Axes are put into one pass while a line, plane or volume of
them fits the budget, so that there are few passes. This is the row-column algorithm for transforms
that do not fit memory; see D. H. Bailey (1990), "FFTs in external or hierarchical memory", J. Supercomputing 4, 23-35.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chunkflow import devices
from chunkflow.api.fourier.plan import PassPlan, TransformPass, TransformPlan
from chunkflow.core.grid import Shape
from chunkflow.core.memory import OBJECTS_FROM
from chunkflow.core.nest import Along, Output, nest, output_axes
from chunkflow.core.spec import ArraySpec, Storage
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device, Pool
from chunkflow.engine import libraries
from chunkflow.engine.budget import LEAST_PAGES, lease
from chunkflow.engine.dry_run import is_dry
from chunkflow.engine.options import BudgetLike
from chunkflow.engine.trial import Trial, run_trial
from chunkflow.errors import ArgumentTypeError, BudgetError
from chunkflow.kernels.fourier import LineTransform, transformed
from chunkflow.kernels.fourier_memory import cufft_bytes, cupy_bytes, numpy_bytes
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.protocol import libraries_of
from chunkflow.planner.plan import Plan
from chunkflow.planner.search import make_plan
from chunkflow.stores.memory import ArraySource

LARGE_CHUNK, SMALL_CHUNK = 8 << 20, 1 << 20
"""Bytes at which a chunk between two passes is large enough, and below which it is not worth a file of its own."""

TRIED = 1 << 15
"""The most elements along the transformed axes of a block that is tried on the CPU."""

SUPPOSED = 1.1
"""How much more is supposed: 1.5 times what was measured, as plans take it, was up to 1.05 times the computed bytes."""

MEASURED = 64 << 20
"""Bytes up to which a line that does not fit the budget is tried, so that the error can say what would."""


def plan_transform(
    name: str,
    steps: Sequence[LineTransform],
    source: ArraySpec,
    target: ArraySpec,
    budget: BudgetLike,
    device: object,
    *,
    on_disk: bool,
    strict: bool,
) -> TransformPlan:
    """Choose the passes of a transform of `source` into `target`.

    `on_disk` says whether arrays between passes are kept on disk, `strict` whether the result's chunks are fixed.
    Otherwise they are made smaller where the budget is small.
    """
    found = devices.resolve(device)  # type: ignore[arg-type]
    with lease(budget, found) as leased, leased.budget.turn():
        pool, limit = leased.pool, leased.left
        if not found.supports(source.dtype):
            raise ArgumentTypeError(
                f"{found.name} does not compute with dtype {source.dtype} of {source.name}: convert it, or use "
                "device='cpu'"
            )
        missing = libraries.load(libraries_of(transformed), leased)
        if found.xp is np:
            tables = found.machine.lanes * max([numpy_bytes(step.points) for step in steps], default=0)
            aside = min(tables, max(0, limit - OBJECTS_FROM))  # smaller budgets bound blocks alone
        else:
            tables = cufft_bytes(steps)
            aside = min(tables, limit)
        own = found.reserve + missing
        least = own + LEAST_PAGES * found.machine.page if own else 0  # of the budget of each pass
        if limit - aside < least:
            raise BudgetError(
                f"the tables of {name} take {format_bytes(tables)} on {found.name}, libraries {format_bytes(own)}, and "
                f"the budget is {format_bytes(limit)} ({limit} bytes): raise budget= to at least {least + tables}",
                needed=least + tables,
                limit=limit,
                smallest=least + tables,
            )
        search = _PassSearch(name, source, target, found, pool, limit - aside, on_disk, strict, aside, tables, missing)
        return search.plan(tuple(steps))


@dataclass(frozen=True)
class _PassSearch:
    """Search for passes within the budget. Touches no data of the user's."""

    name: str
    source: ArraySpec
    target: ArraySpec
    device: Device
    pool: Pool
    limit: int
    on_disk: bool
    strict: bool
    aside: int = 0
    """Bytes of the budget that are left for the tables of the library, beside the `limit` of passes."""
    tables: int = 0
    """Bytes of these tables. A budget that holds lines, and not them too, is one that bounds blocks alone."""
    missing: int = 0
    """Bytes that libraries would take, beside the device's reserve."""
    measured: dict[TransformPass, float] = field(default_factory=dict)

    def plan(self, steps: tuple[LineTransform, ...]) -> TransformPlan:
        """The fewest passes that a first-fit search finds; of several ways, the one that moves the fewest bytes."""
        ways: list[list[tuple[LineTransform, ...]]] = []
        for most in range(len(steps), 0, -1):
            found = self._groups(steps, most)
            if found not in ways and (not ways or len(found) <= len(ways[0])):
                ways.append(found)
        best: TransformPlan | None = None
        for groups in ways:
            plan = self._planned(groups)
            if best is None or plan.bytes_read + plan.bytes_written < best.bytes_read + best.bytes_written:
                best = plan
            if best.bytes_read <= sum(p.source.nbytes for p in best.passes):
                break
        assert best is not None
        return best

    def _planned(self, groups: Sequence[tuple[LineTransform, ...]]) -> TransformPlan:
        passes = self._passes(groups)
        target = self._sink(passes[-1], len(passes) > 1)
        specs = [self.source]
        for one, two in itertools.pairwise(passes):
            specs.append(self._between(one, two, specs[-1], target if two is passes[-1] else None))
        specs.append(target)
        made = tuple(self._made(each, *pair) for each, pair in zip(passes, itertools.pairwise(specs), strict=True))
        return TransformPlan(self.name, made, self.on_disk, self.limit)

    def _made(self, each: TransformPass, source: ArraySpec, sink: ArraySpec) -> PassPlan:
        plan = self._tried(each, source, sink, self.limit)
        # The run counts bytes for each element of its nest.
        workspace = self._workspace(each) * math.prod(each.shape) / max(math.prod(each.nest()[0].extents), 1)
        block, traffic = plan.block[: len(each.shape)], plan.traffic
        seconds = plan.estimate.seconds
        return PassPlan(each.steps, source, sink, block, traffic.read, traffic.write, workspace, seconds, plan)

    def _sink(self, each: TransformPass, several: bool) -> ArraySpec:
        """The result's spec, with the largest chunks that suit the last pass, if the run may choose them."""
        if self.strict or self.target.chunks is None:
            return self.target
        source = self._spec(each.shape, each.dtype, ()) if several else self.source
        for room in (self.limit // 2, self.limit):
            chunks = list(self.target.chunks)
            while True:
                found = replace(self.target, chunks=tuple(chunks))
                sides = tuple(n if a in each.axes else chunks[a] for a, n in enumerate(each.shape))
                if self._fitting(each, source, found, room, sides):
                    return found
                free = [a for a in range(len(chunks)) if a not in each.axes and chunks[a] > 1]
                if not free:
                    break
                longest = max(free, key=lambda a: chunks[a])
                chunks[longest] = 1 << (chunks[longest] - 1).bit_length() - 1  # as those between passes are
        return replace(self.target, chunks=self._lines(each))

    def _lines(self, each: TransformPass) -> Shape:
        """The smallest chunks that are allowed: they are not cut along a line."""
        return tuple(c if a in each.axes else 1 for a, c in enumerate(self.target.chunks or each.result[0]))

    # -- Which axes go together ------------------------------------------------------------------------------

    def _groups(self, steps: tuple[LineTransform, ...], most: int) -> list[tuple[LineTransform, ...]]:
        """Steps of each pass, by first fit: a step goes into the first pass with room for it.

        The pass that is begun first gets `most` steps at most. Complex steps may change places; a real one stays the
        first, and its inverse the last.
        """
        backwards = steps[-1].name == "irfft"
        groups: list[tuple[LineTransform, ...]] = []
        for step in reversed(steps) if backwards else steps:
            for i, group in enumerate(groups):
                joined = (step, *group) if backwards else (*group, step)
                tried = [*groups[:i], joined, *groups[i + 1 :]]
                fits = i or len(joined) <= most
                if fits and self._least(tried[::-1] if backwards else tried, joined) <= self.limit:
                    groups = tried
                    break
            else:
                groups.append((step,))
        groups = groups[::-1] if backwards else groups
        least = [self._least(groups, group) for group in groups]
        if max(least) > self.limit:
            worst = groups[least.index(max(least))][0]
            needed, limit = max(least), self.limit + self.aside
            needed += self.tables if needed > OBJECTS_FROM or self.device.xp is not np else 0
            raise BudgetError(
                f"a line along axis {worst.axis}, of {max(worst.points, self.source.shape[worst.axis])} elements, "
                f"takes {format_bytes(needed)} on the device and the budget is {format_bytes(limit)} "
                f"({limit} bytes): raise budget= to at least {needed}"
                + (f"; blocks hold whole chunks {self.target.chunks} of {self.target.name}" if self.strict else ""),
                needed=needed,
                limit=limit,
                smallest=needed,
            )
        return groups

    def _passes(self, groups: Sequence[tuple[LineTransform, ...]]) -> list[TransformPass]:
        passes: list[TransformPass] = []
        shape, dtype = self.source.shape, self.source.dtype
        for group in groups:
            passes.append(TransformPass(group, shape, dtype))
            shape, dtype = passes[-1].result
        return passes

    def _least(self, groups: Sequence[tuple[LineTransform, ...]], group: tuple[LineTransform, ...]) -> int:
        """Smallest budget of a pass, whatever its source and sink; the budget itself if that is enough."""
        number = list(groups).index(group)
        each = self._passes(groups)[number]
        source = self.source if number == 0 else self._spec(each.shape, each.dtype, ())
        sink = self._spec(*each.result, ())
        if number + 1 == len(groups):
            loose = not self.strict and self.target.chunks is not None
            sink = replace(self.target, chunks=self._lines(each)) if loose else self.target
        least = 0
        for measure in (False, True):
            try:
                self._tried(each, source, sink, self.limit, measure=measure)
            except BudgetError as error:
                least = max(least, error.smallest or self.limit + 1)
                if least > max(4 * self.limit, MEASURED):
                    break
                if self.device.xp is not np:  # what has no room is not tried
                    self._suppose(each)
        return least or self.limit

    # -- Memory of a pass ------------------------------------------------------------------------------------

    def _workspace(self, each: TransformPass) -> float:
        """Bytes that the steps take besides the result, for each element of the source. Measured on zeros."""
        least = each.held
        if not math.prod(each.shape):
            return least
        if each not in self.measured and self.device.xp is not np and is_dry():
            self._suppose(each)
        if each not in self.measured:
            # NumPy's memory is proportional to the elements. A GPU's library makes plans that depend on the lengths.
            if self.device.xp is not np:
                seen = self._seen(each)
            else:
                try:
                    seen = self._seen(each.smaller(TRIED))
                except BudgetError:
                    seen = self._seen(each.smaller(TRIED // 16))
            # The library keeps one table for each shape of a block: a ragged block has a second one.
            spare = 1.0 if self.device.xp is np else 1.5
            self.measured[each] = float(math.ceil(spare * seen.workspace))
        return max(least, self.measured[each])

    def _seen(self, each: TransformPass) -> Trial:
        """What a pass takes in a trial."""
        zeros = ArraySource(np.broadcast_to(np.zeros((), each.dtype), each.shape))
        kernel = MapKernel(transformed, (SLOT,), {"steps": each.steps}, output_axes(len(each.shape)))
        return run_trial(kernel, nest([each.shape], each.axes), [zeros], self.device, self.pool, self.limit)

    def _suppose(self, each: TransformPass) -> None:
        """Take the steps' memory to be the most that it may be, and call nothing."""
        self.measured[each] = SUPPOSED * cupy_bytes(each.shape, each.dtype, each.steps) / max(math.prod(each.shape), 1)

    def _fitting(self, each: TransformPass, source: ArraySpec, sink: ArraySpec, room: int, sides: Shape) -> bool:
        try:
            self._tried(each, source, sink, room, sides)
        except BudgetError:
            return False
        return True

    def _tried(
        self,
        each: TransformPass,
        source: ArraySpec,
        sink: ArraySpec,
        limit: int,
        sides: Shape | None = None,
        *,
        measure: bool = True,
    ) -> Plan:
        """The pass planned as it will be run; `sides` fixes its blocks."""
        op, axes = each.nest()
        op = replace(op, outputs=(Output(tuple(Along(a) for a in axes)),))
        more = op.extents[len(each.shape) :]
        workspace = self._workspace(each) if measure else each.held
        cast = max(sink.dtype.itemsize, each.result[1].itemsize) * math.prod(each.result[0])
        workspace = max(workspace / max(math.prod(more), 1), cast / max(math.prod(op.extents), 1))
        block = None if sides is None else (*sides, *more)
        device = self.device
        return make_plan(
            op, [source], [sink], device.machine, limit,
            workspace=workspace, reserve=device.reserve + self.missing, block=block, tiles=True,
        )  # fmt: skip

    # -- Arrays between passes -------------------------------------------------------------------------------

    def _spec(self, shape: Shape, dtype: np.dtype, chunks: Shape) -> ArraySpec:
        """An array between two passes. If it is like the output, that takes it: it may be an array in a file."""
        if not self.on_disk:
            is_output = (shape, dtype) == (self.target.shape, self.target.dtype)
            storage = self.target.storage if is_output else Storage(in_memory=True)
            return ArraySpec("the array between two passes", shape, dtype, storage=storage)
        return ArraySpec("the array between two passes", shape, dtype, chunks=chunks or None)

    def _between(
        self, one: TransformPass, two: TransformPass, source: ArraySpec, target: ArraySpec | None
    ) -> ArraySpec:
        """The array between two passes. Blocks of both passes are whole chunks, so no chunk is moved twice.

        Along an axis that the first pass transforms, a chunk is as long as the second pass's blocks, and the other way
        round. Chunks grow while blocks of whole chunks fit half the budget, which leaves room for more buffers. If they
        stay small, there would be many files: then a plain file is read and written in runs instead.
        """
        shape, dtype = one.result
        if not self.on_disk:
            return self._spec(shape, dtype, ())
        ones = (1,) * len(shape)
        sink = self._spec(*two.result, ()) if target is None else target
        before = tuple(1 if a in one.axes else c for a, c in enumerate(source.chunks or ones))
        after = tuple(1 if a in two.axes else c for a, c in enumerate(sink.chunks or ones))
        both = tuple(map(math.lcm, before, after))

        def held(units: Shape, each: TransformPass, unit: Shape) -> Shape:
            sides = zip(units, unit, each.shape, strict=True)
            return tuple(n if a in each.axes else max(1, min(math.lcm(u, v), n)) for a, (u, v, n) in enumerate(sides))

        def fits(units: Shape, room: int) -> bool:
            spec = self._spec(shape, dtype, units)
            return self._fitting(one, source, spec, room, held(units, one, ones)) and self._fitting(
                two, spec, sink, room, held(units, two, after)
            )

        def size(units: Shape) -> int:
            return max(math.prod(held(units, one, ones)), math.prod(held(units, two, after)))

        for room in (self.limit // 2, self.limit):
            found = next((u for u in (both, after, before, ones) if fits(self._cut(u, shape), room)), None)
            if found is not None:
                break
        units, free = self._cut(found or ones, shape), set(range(len(shape)))
        while free and math.prod(units) * dtype.itemsize < LARGE_CHUNK:
            grown = {a: self._cut([2 * n if i == a else n for i, n in enumerate(units)], shape) for a in free}
            axis = min(free, key=lambda a: (size(grown[a]), -a))
            if grown[axis] != units and fits(grown[axis], room):
                units = grown[axis]
            else:
                free.remove(axis)
        return self._spec(shape, dtype, units if math.prod(units) * dtype.itemsize >= SMALL_CHUNK else ())

    @staticmethod
    def _cut(units: Sequence[int], shape: Shape) -> Shape:
        return tuple(max(1, min(u, n)) for u, n in zip(units, shape, strict=True))
