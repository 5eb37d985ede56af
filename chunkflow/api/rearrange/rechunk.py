"""Zarr arrays with other chunks. Each chunk is read once and written once, in one pass or in two."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np

from chunkflow import devices
from chunkflow.api.operation import ArraySpec, BudgetLike, Chunks, MultiPass, Options, PlacedOptions, execute
from chunkflow.api.rearrange.move import moved, rearrangement
from chunkflow.core import chunking, grid
from chunkflow.core.grid import Shape
from chunkflow.core.markup import Printed
from chunkflow.core.nest import Along, Output, nest
from chunkflow.core.spec import COPIES, Storage
from chunkflow.core.spelling import spelt
from chunkflow.core.units import format_bytes
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import Budget, bytes_left
from chunkflow.engine.dry_run import named
from chunkflow.engine.passes import current
from chunkflow.errors import ArgumentError, BudgetError
from chunkflow.graph.nodes import check_lazily, has_lazy
from chunkflow.planner.plan import Plan
from chunkflow.planner.search import make_plan
from chunkflow.stores import NewArray, open_source, open_target, scratch_array, spec_of
from chunkflow.stores.new_array import label
from chunkflow.stores.publication.scratch import Scratch

MOST_SHAPES = 10_000
"""Pairs of block shapes that are compared at most, as starting points of the search."""

LARGEST_BLOCK = 64 << 20
"""Bytes of the largest useful block, unless the size of a cache says less."""

LARGE_CHUNK = 4 << 20
"""Bytes at which a chunk between the passes is large enough."""


@dataclass(frozen=True)
class RechunkPlan(Printed):
    """Plan of a rechunk. ``str(plan)`` describes it for people.

    Attributes
    ----------
    shape, dtype
        Those of the array.
    source, target : tuple of int
        Chunks that the array has, and those that it gets. A source without chunks counts as one of single elements.
    blocks : tuple of tuple of int
        Shape of the blocks of each pass.
    intermediate : tuple of int or None
        Chunks of the store between the passes, None where one pass is enough.
    plans : tuple of Plan
        Of each pass.

    Examples
    --------
    >>> x = np.zeros((64, 64), "f4")
    >>> print(rechunk_plan(x, (8, -1), "1MB", device="cpu"))
    (64, 64) of float32, chunks (1, 1) -> (8, 64): 1 pass, 16.38 kB read and 16.38 kB written
    """

    shape: Shape
    dtype: np.dtype
    source: Shape
    target: Shape
    blocks: tuple[Shape, ...]
    intermediate: Shape | None = None
    plans: tuple[Plan, ...] = field(default=(), repr=False, compare=False)

    @property
    def passes(self) -> int:
        """How often the array is read and written."""
        return len(self.blocks)

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """Spec of the result."""
        return (ArraySpec("rechunk", self.shape, self.dtype, self.target),)

    @property
    def bytes_read(self) -> int:
        """Bytes that are read in all, decoded."""
        return self.passes * math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes_written(self) -> int:
        """Bytes that are written in all, before they are encoded."""
        return self.bytes_read

    def __str__(self) -> str:
        way = " -> ".join(str(c) for c in (self.source, self.intermediate, self.target) if c is not None)
        number = "1 pass" if self.passes == 1 else f"{self.passes} passes"
        read, written = format_bytes(self.bytes_read), format_bytes(self.bytes_written)
        return f"{self.shape} of {self.dtype}, chunks {way}: {number}, {read} read and {written} written"


@rearrangement
def rechunk(x: Any, chunks: Chunks, out: Any, **options: Unpack[PlacedOptions]) -> MultiPass:
    """Copy an array into a zarr array with other chunks, and read and write no chunk twice.

    If a block of whole chunks of both fits the budget, one pass is enough. Otherwise there are two passes, through a
    zarr array in a temporary directory beside `out`. It is as large as the array, and is removed in any case. This is
    the two-stage plan of known rechunking tools. The first pass reads blocks of whole source chunks, the second writes
    blocks of whole target chunks. The chunks in between are, along each axis, the smaller side of both blocks (here:
    their greatest common divisor, unless one of them is whole). So both passes read and write whole chunks.

    Parameters
    ----------
    chunks : int or sequence of int
        Chunk shape: one length for all axes, or one for each, -1 for a whole axis.
    out : str, path or zarr.Array
        Path of the zarr array, or an array with just these chunks.
    progress : bool, "always" or callable
        As for `chunkflow.map`. Each pass has a progress bar of its own.

    Returns
    -------
    zarr.Array
        `out`, opened.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `out` is no zarr array, or one with other chunks; `chunks` do not suit `x`.
    BudgetError
        A block of whole chunks does not fit the budget, not even in two passes. Its `smallest` says what would do.

    Examples
    --------
    >>> import tempfile, chunkflow as cf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cf.rechunk(np.eye(6), (2, -1), f"{folder}/x.zarr", device="cpu").chunks
    (2, 6)
    """
    if isinstance(out, NewArray) and out.shards is not None and out.chunks is None:
        out, chunks = replace(out, chunks=chunks), out.shards  # blocks hold whole shards
    chosen = Options(out, **options)
    plan = functools.partial(_plan_into, x, chunks, chosen)
    return MultiPass((x,), functools.partial(_rechunked, x, chunks, chosen), chosen, plan=plan)


def _rechunked(x: Any, chunks: Chunks, options: Options) -> Any:
    if has_lazy(x):
        check_lazily(replace(options, chunks=chunks), "a rechunk")
    budget, device = options.budget, options.device
    spec = spec_of(x)
    target = open_target(options.out, overwrite=options.overwrite)
    wish = _wish(chunks, spec)
    found = target.describe(spec.shape, spec.dtype, wish).chunks
    if found != wish:
        raise ArgumentError(
            f"the output {target.name} has {'no chunks' if found is None else f'chunks {found}'}, not {wish}: give the "
            "path of a zarr array that is to be created (ending in .zarr), or use copy"
        )
    if not isinstance(budget, Budget):  # what is free changes: both passes keep to what is planned for
        budget = bytes_left(budget, _device(device))
    plan = _plan(x, chunks, budget, device, target.describe(spec.shape, spec.dtype, wish))
    last = replace(options, out=_labelled(x, options.out, target), budget=budget, chunks=wish)
    if plan.intermediate is None:
        return execute(moved(x, last, block=plan.blocks[0]))
    if (passes := current()) is not None:
        out = passes.place(ArraySpec("", spec.shape, spec.dtype, plan.intermediate))
        first = replace(last, out=out, chunks=None, overwrite=False, sync=False)
        found = execute(moved(x, first, block=plan.blocks[0]))
        return execute(moved(found, last, block=plan.blocks[1]))
    directory = Scratch(target.name, "rechunk")
    try:
        between = os.path.join(directory.folder, "between.zarr")
        scratch = scratch_array(between, spec.shape, spec.dtype.newbyteorder("="), plan.intermediate)
        first = replace(
            last, out=scratch, chunks=plan.intermediate, overwrite=False, sync=False, resume=False, name=None
        )
        execute(moved(x, first, block=plan.blocks[0]))
        return execute(moved(between, last, block=plan.blocks[1]))
    finally:
        directory.end()


def _labelled(x: Any, out: Any, target: Any) -> Any:
    """The output, told the labels of the array: what goes between has none."""
    if not isinstance(out, str | os.PathLike | NewArray):
        return out
    with closing(open_source(x)) as source:
        label([target], source)
    return target.said if getattr(target, "takes_labels", False) else out


def _plan_into(x: Any, chunks: Chunks, options: Options) -> RechunkPlan:
    """The plan for the output, if one is given."""
    stored = None
    if options.out is not None:
        spec = spec_of(x)
        target = open_target(options.out, overwrite=options.overwrite)
        stored = target.describe(spec.shape, spec.dtype, _wish(chunks, spec))
    return _plan(x, chunks, options.budget, options.device, stored)


def _plan(x: Any, chunks: Chunks, budget: BudgetLike, device: Any, stored: ArraySpec | None = None) -> RechunkPlan:
    """The plan for a result with the spec `stored`, by default that of a new zarr array."""
    spec = spec_of(x)
    sides = [1] * len(spec.shape) if spec.chunks is None else list(spec.chunks)
    source = tuple(max(1, min(c, n)) for c, n in zip(sides, spec.shape, strict=True))
    found = _device(device)
    limit = bytes_left(budget, found)
    wish = _wish(chunks, spec)
    last = stored or ArraySpec(spec.name, spec.shape, spec.dtype, wish, storage=Storage(copies=COPIES))
    return _RechunkSearch(spec, source, wish, found, limit, last).plan()


@spelt()
def rechunk_plan(x: Any, chunks: Chunks, budget: BudgetLike = None, *, device: Any = None) -> RechunkPlan:
    """Plan of `rechunk`. Nothing is written.

    Parameters
    ----------
    x, chunks, budget, device
        As for `rechunk`.

    Returns
    -------
    RechunkPlan

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for `rechunk`.

    Examples
    --------
    >>> import zarr, chunkflow as cf
    >>> x = zarr.create_array({}, shape=(4096, 4096), chunks=(1, 4096), dtype="f4")
    >>> plan = cf.rechunk_plan(x, (4096, 1), "4MB", device="cpu")
    >>> plan.passes, plan.bytes_read == plan.bytes_written == 2 * x.nbytes
    (2, True)
    """
    options = Options(budget=budget, device=device)
    asked = MultiPass((x,), tuple, options, plan=lambda: _plan(x, chunks, budget, device))
    return named(lambda: _plan(x, chunks, budget, device), options, asked.plan_all)


def _device(device: Any) -> Device:
    return devices.resolve("cpu" if device is None else device)


def _wish(chunks: Chunks, spec: ArraySpec) -> Shape:
    """The chunk shape of the argument ``chunks=``, checked."""
    entries = chunking.lengths(chunks, len(spec.shape))
    if "auto" in entries:
        raise ArgumentError(f"chunks={chunks!r} must say a length for each axis, -1 for a whole one")
    return chunking.wish(entries, spec.shape) or tuple(max(1, n) for n in spec.shape)


# -- The search ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RechunkSearch:
    """Search for the blocks of one pass or two, within the budget. Touches no data."""

    spec: ArraySpec
    source: Shape
    target: Shape
    device: Device
    limit: int
    last: ArraySpec

    def plan(self) -> RechunkPlan:
        """The plan with the fewest passes."""
        shape, limit = self.spec.shape, self.limit
        found = RechunkPlan(shape, self.spec.dtype, self.source, self.target, ())
        both = tuple(map(_common, self.source, self.target, shape))
        last = self.last
        block = self._largest(both, self.spec, last) if self.spec.size else both
        if block is not None:
            return replace(found, blocks=(block,), plans=(self._planned(block, self.spec, last),))
        least = self._needed(both, self.spec, last)
        for room in self._rooms():
            for first, second in self._pairs(room):
                chunks = tuple(map(_between, first, second, shape))
                between = ArraySpec(self.spec.name, shape, self.spec.dtype, chunks)
                between = between.with_storage(copies=1.0)  # raw bytes, gathered
                need = max(self._needed(first, self.spec, between), self._needed(second, between, last))
                if need <= limit:
                    plans = (self._planned(first, self.spec, between), self._planned(second, between, last))
                    return replace(found, blocks=(first, second), intermediate=chunks, plans=plans)
                least = min(least, need)
        raise BudgetError(
            f"blocks of whole chunks {self.source} of {self.spec.name} and {self.target} of the output take at least "
            f"{format_bytes(least)}, in one pass or in two, and the budget is {format_bytes(limit)} ({limit} bytes): "
            f"raise budget= to at least {least}",
            needed=least,
            limit=limit,
            smallest=least,
        )

    def _largest(self, units: Shape, source: ArraySpec, sink: ArraySpec) -> Shape | None:
        """The largest useful block of whole units that fits; None if not even one unit fits."""
        shape, machine = self.spec.shape, self.device.machine
        useful = machine.cache // 2 if machine.cache and not machine.staged else LARGEST_BLOCK
        room = max(1, min(useful, self.limit // 8) // self.spec.dtype.itemsize)
        while True:
            block = grid.fit(shape, units, source.order, room)
            if self._needed(block, source, sink) <= self.limit:
                return block
            if math.prod(block) > room or room == 1:
                return None
            room //= 2

    def _needed(self, block: Shape, source: ArraySpec, sink: ArraySpec) -> int:
        """Smallest budget of a pass with these blocks; the limit where that is enough."""
        try:
            self._planned(block, source, sink)
        except BudgetError as error:
            return error.smallest or self.limit + 1
        return self.limit

    def _planned(self, block: Shape, source: ArraySpec, sink: ArraySpec) -> Plan:
        """Plan of a pass with these blocks."""
        outputs = (Output(tuple(Along(a) for a in range(len(block)))),)
        op = replace(nest([self.spec.shape]), outputs=outputs, views=True)
        # As `chunkflow.engine.prepare` counts a result of another dtype.
        workspace = float(max(source.dtype.itemsize, sink.dtype.itemsize)) if source.dtype != sink.dtype else 0.0
        reserve = self.device.reserve
        return make_plan(
            op, [source], [sink], self.device.machine, self.limit, workspace=workspace, reserve=reserve, block=block
        )

    def _rooms(self) -> Iterator[int]:
        """Limits to try for the elements of a block, from many to few. The planner decides what fits."""
        room = self.limit // (3 * self.spec.dtype.itemsize)
        least = max(math.prod(self.source), math.prod(self.target))
        while room > least:
            yield room
            room = room * 3 // 4
        yield least

    def _pairs(self, room: int) -> Iterator[tuple[Shape, Shape]]:
        """The blocks of at most `room` elements of both passes that give the largest chunks in between, if any."""
        shape = self.spec.shape
        best: tuple[int, Shape, Shape] | None = None
        starts = [self._starts(chunks, room) for chunks in (self.source, self.target)]
        for first, second in itertools.islice(itertools.product(*starts), MOST_SHAPES):
            size = math.prod(map(_between, first, second, shape))
            if best is None or size > best[0]:
                best = size, first, second
        if best is not None:
            yield self._grown(best[1], best[2], room)

    def _starts(self, chunks: Shape, room: int) -> list[Shape]:
        """Blocks of whole chunks to start from: along each axis one chunk, a common multiple or the whole axis."""
        few = len(chunks) > 4
        sides = [
            sorted({c, c if few else _common(one, two, n), n or 1})
            for c, one, two, n in zip(chunks, self.source, self.target, self.spec.shape, strict=True)
        ]
        return [b for b in itertools.islice(itertools.product(*sides), MOST_SHAPES) if math.prod(b) <= room]

    def _grown(self, first: Shape, second: Shape, room: int) -> tuple[Shape, Shape]:
        """Blocks that have grown by whole chunks for as long as the chunks in between became larger."""
        shape, units = self.spec.shape, (self.source, self.target)

        def size(pair: tuple[Shape, Shape]) -> int:
            return math.prod(map(_between, *pair, shape))

        def wider(pair: tuple[Shape, Shape], which: Sequence[int], axis: int, fill: bool) -> tuple[Shape, Shape]:
            made = list(pair)
            for i in which:
                box = made[i]
                most = room // max(math.prod(box) // box[axis], 1) // units[i][axis] * units[i][axis]
                side = min(most if fill else 2 * box[axis], shape[axis])
                made[i] = (*box[:axis], max(side, box[axis]), *box[axis + 1 :])
            return made[0], made[1]

        pair = first, second
        for fill in (False, True):
            while size(pair) * self.spec.dtype.itemsize < LARGE_CHUNK:
                tried = [wider(pair, w, a, fill) for a in range(len(shape)) for w in ((0,), (1,), (0, 1))]
                fitting = [p for p in tried if max(math.prod(p[0]), math.prod(p[1])) <= room]
                best = max(fitting, key=lambda p: (size(p), -math.prod(p[0]) - math.prod(p[1])), default=pair)
                if size(best) <= size(pair):
                    break
                pair = best
        return pair


def _common(one: int, two: int, extent: int) -> int:
    """The least common length of whole chunks of both kinds, at most the whole axis."""
    return max(1, min(math.lcm(one, two), extent))


def _between(first: int, second: int, extent: int) -> int:
    """The largest chunk length of which blocks of both lengths hold whole chunks."""
    if first >= extent or second >= extent:
        return max(1, min(first, second))
    return math.gcd(first, second)
