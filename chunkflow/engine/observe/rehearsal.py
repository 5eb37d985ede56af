"""Trial measurements before a run on the host: the kernel, blocks with halos, and coding, by a few calls each.

Plans know functions by the bytes that they touch, blocks with halos as others, and all codecs as ordinary ones. No plan
is made with these measurements: they are never twice the same, and results would differ in their last bits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from chunkflow.core import grid
from chunkflow.core.grid import Grid, Region, Shape, within
from chunkflow.core.halo import fill
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.spec import ArraySpec
from chunkflow.devices.protocol import Device, Pool
from chunkflow.engine.block_runner import BlockRunner
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Accumulator, read_whole
from chunkflow.engine.trial import read_block
from chunkflow.kernels.protocol import Kernel
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Encoder, Sink, Source
from chunkflow.system import host

CALLS, MOST_CALLS = 2, 7
"""Least and most calls of each lane, after one that does not count. More than the least only until `LONG` is over."""

LONG = 0.05
"""Seconds that are long against short disturbances by the rest of the system."""

BEYOND = 8
"""Size of a lane's tiles, in its shares of the cache: so they come from memory, as in a run."""


STEPS = 32
"""Steps among which those are looked for that are like most others."""

CHUNKS, CHUNKS_BYTES = 8, 16 << 20
"""Most chunks that are read of a source, and their decoded bytes."""

ENCODED = 2 << 20
"""Most bytes of a result that are encoded at once: codecs look back no farther, and slow ones take a while for more."""

ON_DEVICE = 64 << 20
"""Most bytes of a block on a device with memory of its own, unless its whole lines have more."""

ROOM = 4
"""An array of a result's size is made if it takes at most one part in so many of the memory that is available."""

Seen = tuple[float, ...]
"""Seconds of each part of a call."""

Calls = tuple[Callable[[], Seen], Seen]
"""A call that returns its seconds, and for each part the number of such calls in the whole run."""


class Crowd:
    """How much longer than their own time threads take, as others use the cores too.

    A few calls would not show it by themselves: most of them end before another process gets the core. So their seconds
    are the thread's own, and what it waits for a core meanwhile is counted here.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    def add(self, seconds: float, own: float) -> None:
        """Count a call, by any thread."""
        self._seen.append((seconds, own))

    def is_enough(self, threads: int) -> bool:
        """Whether so many threads were seen for long: another process gets a core for milliseconds at a time."""
        return sum(seconds for seconds, _ in self._seen) >= LONG * threads

    @property
    def factor(self) -> float:
        """Seconds for each second of a thread's own; 1 before anything was counted."""
        seconds, own = (sum(each) for each in zip(*self._seen, strict=True)) if self._seen else (1.0, 1.0)
        return max(seconds / max(own, 1e-9), 1.0)


@dataclass(frozen=True)
class Outlet:
    """Where trial results of an output go: through its encoder, or into a sink to practise with, or just to memory."""

    encode: Encoder | None = None
    sink: Sink | None = None


@dataclass(frozen=True)
class LaneSeconds:
    """Seconds that a lane needs for all of a plan's blocks.

    To make those with halos (`framing`), to compute all (`computing`), to copy or write results to their places
    (`storing`), and to encode the others (`encoding`), None if that was not seen.
    """

    framing: float
    computing: float
    storing: float
    encoding: float | None


def framed(plan: Plan) -> dict[int, tuple[float, float]]:
    """For operands with halos: bytes that are read into blocks, and bytes that are copied from the block before.

    Blocks within an array in memory are views, and do not count.
    """
    found = {}
    for i, (operand, spec) in enumerate(zip(plan.op.operands, plan.operands, strict=True)):
        if operand.halo and (share := _at_edges(operand, plan.grid.counts) if spec.storage.in_memory else 1.0):
            nbytes = plan.loads(i) * math.prod(plan.slot_shape(i)) * spec.dtype.itemsize
            new = min(spec.nbytes, nbytes) if plan.reuses else nbytes
            found[i] = share * new, share * (nbytes - new)
    return found


def _at_edges(operand: Operand, counts: Sequence[int]) -> float:
    """Share of an operand's blocks that reach beyond the array's edges."""
    sides = zip(operand.axes, operand.halo, operand.boundary, strict=True)
    padded = [counts[a] for a, halo, kind in sides if a is not None and any(halo) and kind != "none"]
    return 1 - math.prod(max(n - 2, 0) / n for n in padded)


def computing(
    kernel: Kernel,
    plan: Plan,
    sources: Sequence[Source],
    device: Device,
    outlets: Sequence[Outlet],
    crowd: Crowd,
) -> LaneSeconds:
    """What a lane needs for a plan's blocks, estimated by a few tiles, while other lanes do the same.

    Only blocks with halos are made, by copies. Results go where the outlets of the outputs say. What the
    kernel or a source raises is passed on.
    """
    totals, encodes = framed(plan), any(outlet.encode is not None for outlet in outlets)
    read, passed = (sum(total[k] for total in totals.values()) for k in range(2))
    plan = replace(plan, block=_sides(plan)) if plan.tile != plan.block else plan
    runner, whole = BlockRunner(kernel, plan, device, Trace()), math.prod(plan.op.extents)

    def calls(step: Step) -> Calls:
        pairs = zip(sources, plan.op.operands, strict=True)
        blocks = [_block(s, o, plan, step, device, real=encodes) for s, o in pairs]
        frames = {i: _Frame(blocks[i], i, plan, step) for i in totals}
        places = [_place(i, region, plan, outlets[i]) for i, region in step.stores]
        call = _again(runner, plan, step, blocks, frames, places)
        new, known = (sum(frame.nbytes[k] for frame in frames.values()) for k in range(2))
        stored, encoded = (_times(plan, step, places, encoded=encoded) for encoded in (False, True))
        number = whole / math.prod(grid.shape_of(step.box))
        return call, (read / max(new, 1), passed / max(known, 1), number, stored, encoded)

    steps = [step for step in islice(plan.steps(), max(plan.lanes + 1, STEPS)) if _reads(plan, step)]
    follow = [step for step in steps if any(step.kept)]
    if not follow:
        read, passed = read + passed, 0.0
    each = [partial(calls, step) for step in islice(cycle(follow or steps), plan.lanes)]
    *making, kernels, storing, encoding = _at_once(each, crowd)
    return LaneSeconds(sum(making), kernels, storing, encoding if encoding else None)


def computing_alone(kernel: Kernel, plan: Plan, sources: Sequence[Source], device: Device, crowd: Crowd) -> float:
    """Seconds in which a lane computes all of a plan's blocks, estimated by one of them, while others do nothing.

    It takes no more memory than that lane in a run, but where results take a block's place: then one block more.
    """

    def calls() -> Calls:
        step = max(islice(plan.steps(), STEPS), key=lambda step: sum(map(_volume, step.sources)))
        pairs = zip(sources, plan.op.operands, strict=True)
        blocks = [_block(s, o, plan, step, device, real=False) for s, o in pairs]
        call = _again(BlockRunner(kernel, plan, device, Trace()), plan, step, blocks, {}, ())
        return lambda: call()[2:3], (_times_in_all(plan.op, step.box),)

    return _at_once([calls], crowd)[0]


def _volume(region: Region) -> int:
    return math.prod(grid.shape_of(region))


def _times_in_all(nest: LoopNest, box: Region) -> float:
    """How many times as long as a box all blocks of its sides take. At the arrays' edges a box may lack its halo."""
    sides = grid.shape_of(box)
    halo = nest.volume(sides) / nest.largest(sides, [grid.shape_of(o.region(box)) for o in nest.operands])
    return halo * math.prod(nest.extents) / math.prod(sides)


def computing_on_device(kernel: Kernel, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool) -> float:
    """Seconds in which a device with memory of its own computes all of a plan's blocks, estimated by a part of one."""
    nest, block = plan.op, grid.shape_of(next(iter(plan.steps())).box)
    units = tuple(n if a in nest.whole else 1 for a, n in enumerate(block))
    itemsize = max(spec.dtype.itemsize for spec in plan.operands)
    sides = grid.fit(block, units, range(len(block)), max(ON_DEVICE // itemsize, math.prod(units)))
    box, cut = grid.whole(sides), Grid(nest.extents, sides)
    with device.attach(), pool.active():
        lane = device.caller_lane()
        blocks = [read_block(s, o, device, box) for s, o in zip(sources, nest.operands, strict=True)]

        def call() -> float:
            begun = time.perf_counter()
            kernel(blocks, nest, cut, (0,) * len(sides), box)
            lane.synchronize()
            return time.perf_counter() - begun

        call()  # which may compile
        seconds = min(call() for _ in range(CALLS))
    return seconds * _times_in_all(nest, box)


def _reads(plan: Plan, step: Step) -> bool:
    """Whether a step reads something into each block with a halo: those before may have had all of its chunks."""
    return all(step.nbytes(i, operand, 1) for i, operand in enumerate(plan.op.operands) if operand.halo)


def _times(plan: Plan, step: Step, places: Sequence[_Place], *, encoded: bool) -> float:
    """How often a step's results are as many bytes as those of the run: those that are encoded, or the others."""
    which = [(place, i) for place, (i, _) in zip(places, step.stores, strict=True) if bool(place.encode) is encoded]
    held = sum(place.nbytes for place, _ in which)
    return sum(plan.outputs[i].nbytes for _, i in which) / held if held else 0.0


def decoding(plan: Plan, sources: Sequence[Source], crowd: Crowd) -> float | None:
    """Seconds that a thread needs to read and decode a byte of a plan's chunks, by the first chunks of each source.

    All of a plan's threads do so at once. None if there is nothing to decode, or a source is remote.
    """
    specs = [source.spec for source in sources]
    if any(spec.storage.remote for spec in specs):
        return None
    nbytes, seconds = 0, 0.0
    for i, (source, spec) in enumerate(zip(sources, specs, strict=True)):
        if spec.chunks is None or spec.storage.raw or not spec.size:
            continue
        regions = cycle(_first_chunks(spec))

        def calls(i: int = i, source: Source = source, regions: Iterator[Region] = regions) -> Calls:
            block = _slot(plan, i, source.spec)

            def read() -> Seen:
                region = next(regions)
                part = block[_within(region, block.shape)]
                return (_timed(partial(source.read, region, part)) / part.nbytes,)

            return read, (source.spec.nbytes,)

        each = [calls] * plan.lanes * plan.coders
        seconds += sum(_at_once(each, crowd))
        nbytes += spec.nbytes
    return seconds / nbytes if nbytes else None


def _slot(plan: Plan, number: int, spec: ArraySpec) -> np.ndarray:
    """Memory for an operand's block, or for a chunk where that is larger: of it only what is read is used."""
    shape = [*map(max, plan.slot_shape(number), map(min, spec.chunks or (), spec.shape))]
    found: np.ndarray = np.empty([shape[a] for a in spec.order], spec.dtype)
    return found.transpose(np.argsort(spec.order).tolist())


def _within(region: Region, shape: Shape) -> Region:
    """Where a chunk may lie in a block: in rows that are as far apart, if it is a part of one.

    >>> _within((slice(6, 8), slice(20, 30)), (4, 25))
    (slice(2, 4, None), slice(15, 25, None))
    """
    sides = [(min(s.start % n, n - (s.stop - s.start)), s.stop - s.start) for s, n in zip(region, shape, strict=True)]
    return tuple([slice(start, start + length) for start, length in sides])


def _first_chunks(spec: ArraySpec) -> list[Region]:
    """The first chunks of an array, at least one: a single one would stay in the cache, as those of a run do not."""
    chunks = Grid(spec.shape, tuple(map(min, spec.chunks or (), spec.shape)))
    number = CHUNKS_BYTES // (math.prod(chunks.block) * spec.dtype.itemsize)
    order = tuple(range(len(spec.shape)))
    return [chunks.region(index) for index in islice(chunks.walk(order), min(max(number, 1), CHUNKS))]


def _at_once(each: Sequence[Callable[[], Calls]], crowd: Crowd | None = None) -> Seen:
    """Seconds of calls by several threads at once, times the calls of the whole run, for the slowest thread.

    A call counts only if all threads were calling when it began, and each thread goes on until all have enough.
    Otherwise one thread may start after another has ended, and calls of a millisecond take half as long alone. The
    `crowd` counts what threads wait for a core.
    """
    ready: list[None] = []
    taken: list[list[Seen]] = [[] for _ in each]
    over = threading.Event()

    def calls(made: Callable[[], Calls], mine: list[Seen]) -> Seen:
        with host.own_time_known():
            return counted(made, mine)

    def counted(made: Callable[[], Calls], mine: list[Seen]) -> Seen:
        try:
            call, times = made()
            call()
            ready.append(None)
            while not over.is_set():
                enough = all(map(_are_enough, taken))
                if enough and (crowd is None or crowd.is_enough(len(each))):
                    break
                counts = len(ready) == len(each)
                begun, own = time.perf_counter(), host.own_time()
                seconds = call()
                if counts:
                    if not enough:
                        mine.append(seconds)
                    if crowd is not None:
                        crowd.add(time.perf_counter() - begun, host.own_time() - own)
            usual = [float(np.median(each)) for each in zip(*mine, strict=True)] or [0.0] * len(times)
            return tuple([seconds * n for seconds, n in zip(usual, times, strict=True)])
        except BaseException:
            over.set()  # or the others would go on
            raise

    from concurrent.futures import ThreadPoolExecutor  # not at the top: it takes 3 ms

    with ThreadPoolExecutor(len(each)) as threads:
        try:
            jobs = [threads.submit(calls, *one) for one in zip(each, taken, strict=True)]
            return max([job.result() for job in jobs], key=sum)
        finally:
            over.set()


def _are_enough(seen: Sequence[Seen]) -> bool:
    """Whether these calls are enough to predict the next ones."""
    return len(seen) >= CALLS and (len(seen) >= MOST_CALLS or sum(map(sum, seen)) >= LONG)


def _timed(call: Callable[[], object]) -> float:
    begun = host.own_time()
    call()
    return host.own_time() - begun


def _sides(plan: Plan) -> Shape:
    """A part of a block, in whole tiles, that is too large for the cache; all of the block if it is smaller."""
    nbytes = sum(
        math.prod(o.shape(plan.tile)) * s.dtype.itemsize for o, s in zip(plan.op.operands, plan.operands, strict=True)
    )
    tiles = math.ceil(BEYOND * plan.machine.cache / max(nbytes, 1))
    order = range(len(plan.tile))
    return grid.fit(plan.block, plan.tile, order, tiles * math.prod(plan.tile))


def _block(source: Source, operand: Operand, plan: Plan, step: Step, device: Device, *, real: bool) -> Any:
    """An operand's block. Of a file one tile is read and repeated: to read more would bring the file into memory.

    A `real` block is read as it is, unless it is large: an encoder would see that it is repeated.
    """
    region = operand.region(step.box)
    real = real and math.prod(grid.shape_of(region)) * source.spec.dtype.itemsize <= CHUNKS_BYTES
    if not source.spec.storage.in_memory and not real:
        corner = tuple([slice(s.start, min(s.start + n, s.stop)) for s, n in zip(step.box, plan.tile, strict=True)])
        return np.resize(read_block(source, operand, device, corner), grid.shape_of(region))
    if not operand.halo:
        return read_block(source, operand, device, step.box)
    block = np.empty(grid.shape_of(region), source.spec.dtype)
    read_whole(source, operand, region, block)
    return block


class _Frame:
    """An operand's `block` with a halo, made again and again as in a run: from rows, and from the block before.

    `nbytes` are the bytes that are read, and those that are copied from the block before.
    """

    def __init__(self, block: Any, number: int, plan: Plan, step: Step) -> None:
        operand, region = plan.op.operands[number], step.sources[number]
        self._fill = partial(fill, region=region, extents=operand.extents, boundary=operand.boundary)
        self.block, self._before = block, block.copy()
        # Rows come from memory, not from the cache, as those of a large block do.
        beyond = min(BEYOND * plan.machine.cache, plan.budget // (4 * plan.lanes))
        self._rows = cycle([block.copy() for _ in range(beyond // max(block.nbytes, 1))])
        self._read = [
            tuple([slice(p, p + s.stop - s.start) for p, s in zip(place, part, strict=True)])
            for part, place in step.parts(number, operand)
        ]
        known = step.kept[number]
        self._known = within(known, region) if known is not None else (slice(0, 0),) * block.ndim
        self._there = tuple([slice(n - s.stop + s.start, n) for n, s in zip(block.shape, self._known, strict=True)])
        self.nbytes = sum(block[into].nbytes for into in self._read), block[self._known].nbytes

    def make(self) -> tuple[float, float]:
        """Make the next block; seconds to read it and fill its halo, and seconds to copy from the block before."""
        block, before = self._before, self.block
        rows = next(self._rows, before)
        begun = host.own_time()
        block[self._known] = before[self._there]
        known = host.own_time()
        for into in self._read:
            block[into] = rows[into]
        self._fill(block)
        self.block, self._before = block, before
        return host.own_time() - known, known - begun


@dataclass(frozen=True)
class _Place:
    """Where a block of a result is put: into memory, or a sink, or through an encoder, as much of it as is `part`."""

    nbytes: int
    store: Callable[[np.ndarray], object]
    encode: Encoder | None = None
    part: Region = ()

    def put(self, result: np.ndarray) -> Seen:
        """Seconds to copy a result, and to encode it."""
        begun = host.own_time()
        if self.encode is not None:
            index: tuple[Any, ...] = (*self.part, ...)
            self.encode(result[index])
            return 0.0, host.own_time() - begun
        self.store(result)
        return host.own_time() - begun, 0.0


def _place(number: int, region: Region, plan: Plan, outlet: Outlet) -> _Place:
    """Place for a block of a result."""
    spec, encode = plan.outputs[number], outlet.encode
    if outlet.sink is not None:
        nbytes = math.prod(grid.shape_of(region)) * spec.dtype.itemsize
        return _Place(nbytes, partial(outlet.sink.write, region))
    if encode is None:
        memory = _memory(spec, region)
        return _Place(memory.nbytes, partial(np.copyto, memory))
    # A part of the first chunk, cut along the slowest axes.
    sides = [min(n, c) for n, c in zip(grid.shape_of(region), spec.chunks or spec.shape, strict=True)]
    part = grid.fit(tuple(sides), (1,) * len(sides), spec.order, max(ENCODED // spec.dtype.itemsize, 1))
    return _Place(math.prod(part) * spec.dtype.itemsize, encode, encode, tuple([slice(0, n) for n in part]))


def _memory(spec: ArraySpec, region: Region) -> np.ndarray:
    """Memory for a block of a result: within an array of the result's size, if that is in memory and there is room.

    So rows are as far apart as in a run. Of that array no more is used than the block.
    """
    room = host.available_memory()
    if not spec.storage.in_memory or room is None or spec.nbytes > room // ROOM:
        return np.empty(grid.shape_of(region), spec.dtype)
    whole = np.empty([spec.shape[a] for a in spec.order], spec.dtype).transpose(np.argsort(spec.order).tolist())
    index: tuple[Any, ...] = (*region, ...)  # so that what has no dimensions is an array too
    place: np.ndarray = whole[index]
    return place


def _read_only(block: Any) -> Any:
    """A block as a function of a run gets it."""
    view = block.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def _again(
    runner: BlockRunner,
    plan: Plan,
    step: Step,
    blocks: Sequence[Any],
    frames: dict[int, _Frame],
    places: Sequence[_Place],
) -> Callable[[], Seen]:
    """A call that computes one step each time, with the accumulators of the last call.

    It returns the seconds to read blocks with halos, to copy from the blocks before, of the kernel, to copy results to
    their places, and to encode the others.
    """
    states = [Accumulator() for _ in step.turns]
    turns = [(s, [s] if turn.last and plan.op.scan is None else []) for s, turn in zip(states, step.turns, strict=True)]

    def call() -> Seen:
        # Results may take a block's place.
        given = [block.copy() if i == plan.recycled else _read_only(block) for i, block in enumerate(blocks)]
        new = known = 0.0
        for i, frame in frames.items():
            read, taken = frame.make()
            given[i], new, known = _read_only(frame.block), new + read, known + taken
        begun = host.own_time()
        results = runner(given, step, turns)
        computed = host.own_time() - begun
        each = [place.put(result) for place, result in zip(places, results, strict=bool(places))]
        stored, encoded = (sum(seconds[k] for seconds in each) for k in range(2))
        return new, known, computed, stored, encoded

    return call
