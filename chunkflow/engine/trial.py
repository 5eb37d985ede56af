"""The trial call: the kernel runs on a small block, and its results and memory are measured."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from chunkflow.core import grid
from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.halo import fill
from chunkflow.core.memory import OBJECTS_FROM, own_objects
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.units import format_bytes, rounded_up
from chunkflow.devices.protocol import Device, Pool
from chunkflow.engine.block_runner import add_note, check_kind, shortage, travels
from chunkflow.engine.dry_run import bytes_to_try
from chunkflow.engine.transfer import read_whole
from chunkflow.errors import BudgetError, ResultError
from chunkflow.kernels.protocol import Became, Carry, Fold, Kernel, Kind, MultiKernel, trial
from chunkflow.kernels.subnest import SubNestKernel, placed
from chunkflow.kernels.users import called, users_function
from chunkflow.stores.protocol import Source
from chunkflow.system import interrupts

SHARED_HOST_BYTES, STAGED_BYTES = 256 << 10, 4 << 20
"""Bytes of the largest operand's block in a trial: enough to measure memory, little beside a run."""


MOST_AT_ONCE = 1 << 16
"""Elements that functions of NumPy's work on at a time at most, as `histogram`: of more they take no more memory, so
that a larger block would show too little for each element of a smaller one."""


Sides = tuple[int | None, ...]
"""Sides of blocks; None where the planner chooses."""


LEAST_BYTES = 16 << 10
"""In smaller blocks the memory of Python's own objects would count as the function's."""


SEVERAL = 1 << 20
"""Most bytes of a block in a trial that has two places along an axis, where one is as large as a block was to be."""


TRIALS = 3
"""Number of calls on a worker of a cluster, which does other things at the same time."""


FEW = 64
"""Sides in a trial of axes that no block cuts, where the results' shapes are known."""


SHORT = 16 << 10
"""Elements of a row in a trial, of longer ones that no block cuts."""


FEW_BESIDE = 8
"""One part in so many of what a fold keeps is no temporary block."""


LONGER = 1.01
"""By which factor long lines may take more for each element than short ones."""


COUNTS, GROWN = 16 << 10, 1.05
"""Counts in a trial of more of them; and by which factor memory may grow beyond what follows from it."""


T = TypeVar("T")
Measure = Callable[[Callable[[], Any]], tuple[Any, int]]
"""A call, and the peak of its allocations."""


MOST_KNOWN = 256
"""Most trials that a thread remembers for a device."""


class _Known(threading.local):
    """Trials of a thread by device and key, and whether a second trial has agreed."""

    def __init__(self) -> None:
        self.calls: WeakKeyDictionary[Device, dict[Hashable, tuple[Trial, bool]]] = WeakKeyDictionary()


_known = _Known()


@dataclass(frozen=True)
class Trial:
    """What a trial call measured: shape and dtype of each result of a box, and memory.

    `workspace` is the peak of the bytes allocated beyond the results, per element of the box. If a result must be
    copied before it is stored, the copy is counted. `state` has for each part of the kernel the bytes that pass from
    block to block (partial results, a carry), per element of the part's first result.
    """

    box: Shape
    shapes: tuple[Shape, ...]
    dtypes: tuple[np.dtype, ...]
    is_tuple: bool
    workspace: float
    state: tuple[float, ...] = ()


def cached_trial(
    kernel: Kernel,
    nest: LoopNest,
    sources: Sequence[Source],
    device: Device,
    pool: Pool,
    budget: int,
    *,
    even: bool,
    block: Sides | None = None,
) -> Trial:
    """A trial as `run_trial`, remembered for a `data_independent` kernel once two trials in a row agree.

    A single trial may count memory that other threads allocate. Trials are remembered by thread, since libraries take
    memory for each. Parts of a nest that differ in place only share one. A kernel that equals only itself is not
    remembered: it may hold large arrays, and comes once.
    """
    whole = _whole(kernel)
    if not whole.data_independent or type(whole).__hash__ is object.__hash__:
        return run_trial(kernel, nest, sources, device, pool, budget, even=even, block=block)
    known = _known.calls.setdefault(device, {})
    layouts = tuple(replace(source.spec.with_storage(how="", instead=""), name="") for source in sources)
    key = (type(kernel), whole, nest.anywhere, layouts, _most_bytes(device, budget), even, block)
    try:
        hash(key)
    except TypeError:  # of what a user gave, as a dictionary
        return run_trial(kernel, nest, sources, device, pool, budget, even=even, block=block)
    if key not in known and len(known) == MOST_KNOWN:
        known.clear()
    last, sure = known.get(key, (None, False))
    if last is None or not sure:
        seen = run_trial(kernel, nest, sources, device, pool, budget, even=even, block=block)
        known[key] = seen, seen == last
        return seen
    return last


def frugal_trial(
    kernel: Kernel,
    nest: LoopNest,
    sources: Sequence[Source],
    device: Device,
    pool: Pool,
    budget: int,
    *,
    even: bool,
    block: Sides | None,
) -> Trial:
    """A trial as `cached_trial` that takes little, however large the results are: a budget may be refused for them.

    Of a product, whose nest says what it holds, only the results' dtypes are asked, on short axes. Counts are made
    twice, of few and of twice as many: the memory of all of them follows, which grows with their number. What folds
    keep for each element of their results is measured for few of these, and lines that no block cuts are tried on short
    ones, where the kernel allows it; long ones only if they will fit.
    """
    known: dict[str, Any] = {"sources": sources, "device": device, "pool": pool, "budget": budget}
    known |= {"even": even, "block": block}
    smaller = kernel.keeping(_room(budget) // 4, _most_elements(sources, device, budget))
    if smaller is not kernel:
        seen = frugal_trial(smaller, nest, **known)
        return replace(seen, shapes=_shapes_of_all(smaller, seen.shapes, nest))
    if device.machine.staged and bytes_to_try(budget) == budget:  # the pool has a limit, unless a budget is looked for
        return cached_trial(kernel, nest, **known)
    shapes = kernel.shapes(nest) if nest.is_product else None
    if shapes is not None:
        short = replace(nest, extents=tuple(min(n, FEW) if a in nest.whole else n for a, n in enumerate(nest.extents)))
        return replace(cached_trial(kernel, short, **known), shapes=shapes)
    inner = math.prod(nest.extents[a] for a in nest.whole)
    if nest.scan is not None and inner > _most_bytes(device, budget):
        # The least block of a scan of all elements is a row, which may be more than there is room for.
        seen = cached_trial(kernel, shortened(nest, SHORT), **known)
        box = tuple(
            n if a in nest.whole else side for a, (n, side) in enumerate(zip(nest.extents, seen.box, strict=True))
        )
        rows, less = math.prod(box), math.prod(seen.box)
        longer = [box if len(shape) == len(box) else tuple(n * rows // less for n in shape) for shape in seen.shapes]
        return replace(seen, box=box, shapes=tuple(longer))
    if kernel.most_counts > COUNTS:
        share = COUNTS / kernel.most_counts / 2
        (few, numbers), (more, _) = kernel.with_fewer(share), kernel.with_fewer(2 * share)
        if any(numbers):
            first, second = run_trial(few, nest, **known), run_trial(more, nest, **known)
            grown = max(0.0, second.workspace - first.workspace) * (1 / share - 1)
            return replace(
                first,
                shapes=_of_all_counts(numbers, first.shapes, nest),
                workspace=first.workspace + GROWN * grown,
                state=tuple(map(max, first.state, second.state)),
            )
    for number in (SHORT, SHORT // 16):
        short = shortened(nest, number)
        of_few = kernel.shortened(nest, short) if short != nest else None
        if of_few is None:
            break
        one = math.prod(short.extents[a] for a in nest.whole)  # a single line: it may take the same beside any number
        try:
            seen = run_trial(of_few, short, sources, device, pool, budget, most=one)
        except BudgetError:
            continue
        if inner * (seen.workspace + sum(s.spec.dtype.itemsize for s in sources)) > _room(budget):
            box = tuple(n if a in nest.whole else 1 for a, n in enumerate(nest.extents))
            shapes = tuple(kernel.of_whole_lines(seen.shapes))
            return replace(seen, box=box, shapes=shapes, workspace=LONGER * seen.workspace)
        break
    return cached_trial(kernel, nest, **known)


def _room(budget: int) -> int:
    """Bytes that a trial may take: smaller budgets bound the blocks of the run alone."""
    return max(bytes_to_try(budget), OBJECTS_FROM)


def _block_bytes(nest: LoopNest, sources: Sequence[Source], box: Region) -> int:
    """Bytes of the operands' blocks that a trial makes; those in memory are views."""
    return sum(
        math.prod(grid.shape_of(operand.region(box))) * source.spec.dtype.itemsize
        for source, operand in zip(sources, nest.operands, strict=True)
        if operand.halo or not source.spec.storage.in_memory
    )


def _most_bytes(device: Device, budget: int) -> int:
    """Most bytes of the largest operand's block in a trial within this budget."""
    most = STAGED_BYTES if device.machine.staged else SHARED_HOST_BYTES
    return max(LEAST_BYTES, min(most, bytes_to_try(budget) // 32))


def _most_elements(sources: Sequence[Source], device: Device, budget: int) -> int:
    """Most elements of a block in a trial within this budget."""
    itemsize = max([s.spec.dtype.itemsize for s in sources], default=1)
    target = _most_bytes(device, budget) // itemsize
    return target if device.machine.staged else min(target, MOST_AT_ONCE)


def _shapes_of_all(kernel: Kernel, shapes: Sequence[Shape], nest: LoopNest) -> tuple[Shape, ...]:
    """Shapes of the results, from those that a kernel has which keeps less."""
    found: list[Shape] = []
    for part, number in zip(kernel.parts, nest.together or (len(shapes),), strict=True):
        own = shapes[len(found) : len(found) + number]
        found += own if part is None else part.lengthened(own)
    return tuple(found)


def _of_all_counts(numbers: Sequence[Became], shapes: Sequence[Shape], nest: LoopNest) -> tuple[Shape, ...]:
    """Shapes of the results, from those of fewer counts; by part what numbers these became of."""
    found: list[Shape] = []
    for became, number in zip(numbers, nest.together or (len(shapes),), strict=True):
        found += [tuple([became.get(n, n) for n in shape]) for shape in shapes[len(found) : len(found) + number]]
    return tuple(found)


def _whole(kernel: Kernel) -> Kernel:
    return kernel.kernel if isinstance(kernel, SubNestKernel) else kernel


def run_trial(
    kernel: Kernel,
    nest: LoopNest,
    sources: Sequence[Source],
    device: Device,
    pool: Pool,
    budget: int,
    *,
    even: bool = False,
    most: int | None = None,
    block: Sides | None = None,
) -> Trial:
    """Call the kernel on the corner of the arrays, or on zeros if it is `tried_on_zeros`: decoding takes long.

    The box has at most `most` elements, and is within the run's `block` as far as its sides are fixed: what a fold
    keeps for each line is measured for as many lines as there will be. Its sides are rounded down to powers of two if
    they are to be `even`, so that a function that resizes its block by a ratio shows it. What the function raises gets
    a note that names the region.
    """
    itemsize = max([s.spec.dtype.itemsize for s in sources], default=1)
    target = min(_most_elements(sources, device, budget), most or 1 << 62)
    units = [n if a in nest.whole else 1 for a, n in enumerate(nest.extents)]
    order = tuple(range(len(nest.extents)))
    caps = _within_block(_within_chunks(nest, sources, target), block)
    least = [max(u, 1) for u in units]

    def box_of(size: int) -> Shape:
        # With a halo the box is a cube: in a flat box the halo would outweigh it and hide the function's own memory.
        return _even(caps, least, size) if nest.has_halo else grid.fit(caps, least, order, size)

    is_single = most is not None or nest.has_halo or users_function(kernel) is None or kernel.kind is not Kind.MAP
    while True:
        sides = box_of(target)
        if not is_single:
            sides = _several(nest, sides, caps, min(_room(budget) // 4, SEVERAL) // itemsize)
        while nest.has_halo and nest.volume(sides) > 2 * target and max(sides) > 1:
            shrunk = box_of(math.prod(sides) // 2)
            if shrunk == sides:
                break
            sides = shrunk
        if nest.has_halo and nest.volume(sides) * itemsize > max(budget, STAGED_BYTES):
            takes = nest.volume(sides) * itemsize
            needed = takes + own_objects(takes)
            raise BudgetError(
                f"a block of {sides} with its halo takes {format_bytes(takes)} and the budget is "
                f"{format_bytes(budget)} ({budget} bytes): raise budget= well above that, or use a smaller depth",
                needed=needed,
                limit=budget,
                smallest=needed,
            )
        if even:
            sides = tuple(n if a in nest.whole or not n else 1 << n.bit_length() - 1 for a, n in enumerate(sides))
        box = _amid(nest, sides) if _whole(kernel).tried_on_zeros else grid.whole(sides)
        held = _block_bytes(nest, sources, box)
        needed, wanted = held, f"The block alone takes {format_bytes(held)}."
        # A staged device's pool has a limit. What folds and scans keep is to be named, however large it is.
        most = None if device.machine.staged or kernel.kind is not Kind.MAP else _room(budget - device.reserve) - held
        if most is None or most >= 0:
            try:
                return _measure(kernel, nest, sources, device, pool, box, most)
            except BaseException as failed:
                if not device.is_out_of_memory(failed):
                    add_note(failed, (0,) * len(box), placed(kernel, box), device)
                    failed.add_note("chunkflow: this was the trial call that measures what fn returns and allocates")
                    raise
                asked, wanted = device.bytes_asked(failed), shortage(failed, device)
                needed = (asked or 0) + (held if most is not None else 0)
        if math.prod(sides) <= math.prod(least):
            taken = f", of which {format_bytes(device.reserve)} are taken already" if device.reserve else ""
            work, likely = called(kernel), rounded_up(2 * max(budget, needed))
            more = f"more than {needed}" if needed > budget else f"{likely}, or more: what it takes is measured in it"
            raise BudgetError(
                f"{work} runs out of memory on a block of {sides}, the smallest that there is. {wanted} The budget is "
                f"{format_bytes(budget)} ({budget} bytes{taken}): raise budget= to {more}"
                + ("" if users_function(kernel) is None else f", or let {work} allocate less"),
                needed=needed or None,
                limit=budget,
                likely=likely,
            )
        target, is_single = math.prod(sides) // 8, True


def _several(nest: LoopNest, sides: Shape, caps: Sequence[int], most: int) -> Shape:
    """Sides of a box of whole lines with two places along each cut axis, where another one or `most` has room for them.

    Of a single place a function may have views where it makes copies of several.
    """
    cut = [a for a, n in enumerate(caps) if a not in nest.whole and n > 1]
    found = list(sides)
    for axis in reversed(cut) if nest.whole else ():
        if found[axis] > 1:
            continue
        longest = max(cut, key=lambda a: found[a])
        if found[longest] >= 4:
            found[longest] //= 2
            found[axis] = 2
        elif 2 * math.prod(found) <= most:
            found[axis] = 2
    return tuple(found)


def _amid(nest: LoopNest, sides: Shape) -> Region:
    """The box of these sides whose halo lies within the arrays, as far as they have it.

    At the corner a kernel that pads an array itself would take memory for elements that no operand's block has.
    """
    first = [0] * len(sides)
    for operand in nest.operands:
        for axis, (before, after) in zip(operand.axes, operand.halo or (), strict=False):
            if axis is not None:
                room = max(nest.extents[axis] - sides[axis] - after, 0)
                first[axis] = max(first[axis], min(before, room))
    return tuple([slice(at, at + n) for at, n in zip(first, sides, strict=True)])


def _even(extents: Sequence[int], units: Sequence[int], target: int) -> Shape:
    """Box of at most `target` elements, with sides of equal length as far as extents and units allow it.

    >>> _even((100, 8, 100), (1, 1, 1), 5000), _even((100, 100), (64, 1), 1000)
    ((25, 8, 25), (64, 15))
    """

    def sides(n: int) -> Shape:
        return tuple(min(max(n // u * u, u), e) for u, e in zip(units, extents, strict=True))

    longest = max(extents, default=1)
    return sides(bisect_right(range(1, longest + 1), target, key=lambda n: math.prod(sides(n))))


def _within_block(caps: Shape, block: Sides | None) -> Shape:
    """Extents within a block whose sides are fixed.

    >>> _within_block((800, 900), (None, 7))
    (800, 7)
    """
    return tuple(
        n if side is None else min(n, side) for n, side in zip(caps, block or (None,) * len(caps), strict=True)
    )


def _within_chunks(nest: LoopNest, sources: Sequence[Source], target: int) -> Shape:
    """The largest extents of a box: within one chunk of each source if that is large enough.

    All chunks that a box touches must be decoded.
    """
    caps = list(nest.extents)
    for source, operand in zip(sources, nest.operands, strict=True):
        for axis, chunk in zip(operand.axes, source.spec.chunks or (), strict=False):
            if axis is not None and axis not in nest.whole:
                caps[axis] = min(caps[axis], chunk)
    return tuple(caps) if math.prod(caps) >= min(target, math.prod(nest.extents)) // 4 else nest.extents


def shortened(nest: LoopNest, most: int) -> LoopNest:
    """A nest whose whole axes have at most so many elements together."""
    side = max(1, int(most ** (1 / max(len(nest.whole), 1))))
    return replace(nest, extents=tuple(min(n, side) if a in nest.whole else n for a, n in enumerate(nest.extents)))


def _measure(
    kernel: Kernel, nest: LoopNest, sources: Sequence[Source], device: Device, pool: Pool, box: Region, most: int | None
) -> Trial:
    sides = grid.shape_of(box)
    with device.attach(), pool.active():
        read = not _whole(kernel).tried_on_zeros
        blocks = [read_block(s, o, device, box, read=read) for s, o in zip(sources, nest.operands, strict=True)]
        for block, operand in zip(blocks, nest.operands, strict=True):
            if operand.halo and device.machine.staged:  # as for every block, so that the driver's memory for it counts
                pool.measure(partial(_rim, block, operand.region(box), operand))
        index = (0,) * len(sides)
        measure = partial(pool.measure, most=most)
        quiet = nullcontext() if read else np.errstate(all="ignore")  # zeros are nobody's
        with interrupts.allowed(), trial(), quiet:
            if isinstance(kernel, SubNestKernel):
                seen = _steady([_call(kernel, blocks, nest, sides, index, box, measure) for _ in range(TRIALS)])
            else:
                seen = _call(kernel, blocks, nest, sides, index, box, measure)
        values = seen.values
        if not values:
            raise ResultError("fn returned an empty tuple: it must return an array or a tuple of arrays")
        for i in range(len(values)):
            check_kind(values[i], device)
        # A block at the corner lacks part of its halo, so its actual size counts.
        size = nest.largest(sides, [grid.shape_of(o.region(box)) for o in nest.operands])
        state, copied, first = list(seen.passed), 0, 0
        for part, number in enumerate(nest.together or (len(values),)):
            needed = 0
            for i in range(first, first + number):
                if device.machine.staged and not travels(values, i, tuple(range(len(values[i].shape)))):
                    needed += values[i].nbytes
            if state[part]:  # a folded result is copied once, at the end, and not for every block
                state[part] += needed
            else:
                copied += needed
            state[part] /= max(values[first].size, 1)
            first += number
        workspace = max(seen.temporary, copied) / size
        return Trial(
            sides,
            tuple(tuple(v.shape) for v in values),
            tuple(np.dtype(v.dtype).newbyteorder("=") for v in values),
            seen.is_tuple,
            workspace,
            tuple(state) if any(state) else (),
        )


def read_block(source: Source, operand: Operand, device: Device, box: Region, *, read: bool = True) -> Any:
    """An operand's block of a box, on the device. Without `read` it is zeros, unless the array is in memory."""
    region = operand.region(box)
    host = source.view(region) if source.spec.storage.in_memory and not operand.halo else None
    if host is None:
        host = np.zeros(grid.shape_of(region), source.spec.dtype)
        if read:
            read_whole(source, operand, region, host)
    return device.to_device(host)


def _rim(block: Any, region: Region, operand: Operand) -> None:
    """Fill the boundary of a block of unused memory."""
    fill(np.empty_like(block), region, operand.extents, operand.boundary)


@dataclass
class _Seen:
    """A measured call: its results, temporary bytes, and for each part the bytes that pass to the next block."""

    values: list[Any]
    is_tuple: bool
    temporary: float
    passed: tuple[float, ...]


def _steady(found: Sequence[_Seen]) -> _Seen:
    """The least of several measured calls, which excludes memory of other threads, rounded up.

    So all workers of a cluster, however busy, cut their partitions into the same blocks.

    >>> _steady([_Seen([], False, 900.0, (8.01,)), _Seen([], False, 33.7, (8.02,))])
    _Seen(values=[], is_tuple=False, temporary=34.0, passed=(8.5,))
    """
    passed = tuple(_rounded(min(each)) for each in zip(*(seen.passed for seen in found), strict=True))
    return replace(found[0], temporary=_rounded(min(seen.temporary for seen in found)), passed=passed)


def _rounded(n: float) -> float:
    """A number rounded up to five binary digits."""
    mantissa, exponent = math.frexp(n)
    return math.ldexp(math.ceil(mantissa * 32), exponent - 5)


def _call(
    kernel: Kernel, blocks: Sequence[Any], nest: LoopNest, sides: Shape, index: Shape, box: Region, measure: Measure
) -> _Seen:
    """Call the kernel on one box, and finish what it folds."""
    return tried(lambda given: _called(kernel, given, nest, sides, index, box, measure), blocks)


def tried(call: Callable[[Sequence[Any]], T], blocks: Sequence[Any]) -> T:
    """What a trial call gives of blocks; of identity matrices, where it needs an inverse that theirs have not.

    Elements of a trial may be made up. If the array's own matrices have none, the run says so.
    """
    try:
        return call(blocks)
    except np.linalg.LinAlgError:
        return call([*map(_identities, blocks)])


def _identities(block: Any) -> Any:
    """A block of as many identity matrices; one that has no matrices is given back."""
    if block.ndim < 2 or block.dtype.kind not in "fc":
        return block
    found = np.zeros_like(block)
    for i in range(min(block.shape[-2:])):
        found[..., i, i] = 1
    return found


def _called(
    kernel: Kernel, blocks: Sequence[Any], nest: LoopNest, sides: Shape, index: Shape, box: Region, measure: Measure
) -> _Seen:
    grid = Grid(nest.extents, sides)
    if kernel.kind is Kind.MULTI:
        several = cast(MultiKernel, kernel)
        empty = [None for part in several.parts if part is not None]
        (found, stored), peak = measure(lambda: several.step(empty, blocks, nest, grid, index, box))
        temporary = _temporary(peak - _nbytes(stored), sum(map(_nbytes, found)))
        values: list[Any] = []
        passed = []
        for part, number in zip(several.parts, nest.together, strict=True):
            if part is None:
                values += [stored.pop(0) for _ in range(number)]
                passed.append(0.0)
                continue
            nbytes, value = _nbytes(found[0]), found.pop(0)
            results, more = measure(partial(part.finish, value, nest, box))
            passed.append(nbytes + max(more - _nbytes(results), 0.0))
            values += _results(results)[0]
            del results, value
        return _Seen(values, len(values) > 1, temporary, tuple(passed))
    if kernel.kind is Kind.FOLD:
        fold = cast(Fold, kernel)
        value, peak = measure(lambda: fold.fold(None, blocks, nest, grid, index, box))
        state = _nbytes(value)
        result, more = measure(lambda: fold.finish(value, nest, box))
        passes = state + max(more - _nbytes(result), 0)
        return _Seen(*_results(result), _temporary(peak, state), (passes,))
    if kernel.kind is Kind.CARRY:
        carry = cast(Carry, kernel)
        (result, value), peak = measure(lambda: carry.advance(None, blocks, nest, grid, index, box))
        state = _nbytes(value)
        return _Seen(*_results(result), max(peak - _nbytes(result) - state, 0), (state,))
    result, peak = measure(lambda: kernel(blocks, nest, grid, index, box))
    values, is_tuple = _results(result)
    # A result without its halo holds the halo too, which is most of it in a flat block: all of the peak is temporary.
    kept = 0 if nest.has_halo and any(map(_is_cut, values)) else _nbytes(values)
    return _Seen(values, is_tuple, max(peak - kept, 0), (0.0,) * max(len(nest.together), 1))


def _temporary(peak: int, kept: int) -> int:
    """Bytes of temporaries of a fold that keeps so many of its peak.

    They may have been gone before what is kept was there. Of a longer block that is a smaller part: then all of the
    peak are temporaries. Where they are few beside it, they are what a call takes of small things.
    """
    beside = max(peak - kept, 0)
    return beside if beside <= kept // FEW_BESIDE else peak


def _is_cut(value: Any) -> bool:
    """Whether an array holds the memory of a larger one."""
    base = getattr(value, "base", None)
    return base is not None and _nbytes(base) > _nbytes(value)


def _results(value: Any) -> tuple[list[Any], bool]:
    """Results as a list, and whether they were a tuple."""
    return (list(value), True) if isinstance(value, tuple) else ([value], False)


def _nbytes(passed: Any) -> int:
    return sum(getattr(a, "nbytes", 0) for a in (passed if isinstance(passed, tuple | list) else (passed,)))
