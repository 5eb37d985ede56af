"""Order statistics, in one pass or several, and the checks of the arguments of quantiles."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow import devices, stores
from chunkflow.api.operation import ArraySpec, Chunks, Declared, Options, Request, bare, execute
from chunkflow.api.reductions.request import Axis, count_of, reduced_axes
from chunkflow.api.statistics.sampled import STRIP, is_sampled, likely
from chunkflow.core import grid
from chunkflow.core.chunking import block_sides
from chunkflow.core.memory import OBJECTS_FROM
from chunkflow.core.nest import Strips, nest
from chunkflow.devices.protocol import Device
from chunkflow.engine.budget import bytes_left, lease
from chunkflow.engine.completion import Complete, completed
from chunkflow.engine.dry_run import is_dry, rename
from chunkflow.engine.passes import current
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError
from chunkflow.graph.nodes import SourceNode, has_lazy, node_of
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.kernels.statistics.gathered import Gathered, TooManyKeysError
from chunkflow.kernels.statistics.quantile import (
    METHODS,
    Digits,
    LineRule,
    Rule,
    WholeLines,
    median_of_lines,
    median_rule,
    rule,
    rule_of_lines,
)
from chunkflow.kernels.statistics.radix_keys import as_dtype, coarse, from_keys, key_dtype, without_low_bits
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of, loaded
from chunkflow.stores.protocol import Target

SMALL = 1 << 20
"""Bytes of an array that is partitioned as one block, although it is to be reduced along all axes."""

BITS, BITS_OF_LINES, BITS_IN_ALL = 16, 8, 20
"""The most bits that a pass determines: of a single line, of several lines, and of one that needs no other pass."""

LEAST_BITS, LINES = 4, 64
"""For several lines: the fewest bits that a pass determines, and the number of lines that a block should have."""

COPIES = 4.0
"""Copies of the counts that a lane may hold: its own, another lane's, the two together, and their sums."""

SHARE = 4
"""Counts, or distinct values, may take one part in so many of the budget: a quarter."""

AT_ONCE = 8
"""Copies of a line that may be in memory while it is read ahead and partitioned."""


# -- Arguments ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """Quantiles that are wanted of arrays of one dtype: their rule for a number of elements, and NumPy's own function.

    If a `single` one is wanted, the result has no axis for them. If NaN are left out, `of_lines` gives the rule of
    lines with so many numbers each.
    """

    single: bool
    rule: Callable[[int], Rule]
    numpys: Callable[..., Any]
    of_lines: LineRule | None = None


Make = Callable[[np.dtype], Wanted]
"""Gives the quantiles that are wanted of a dtype."""


def checked_q(q: Any, whole: int) -> tuple[np.ndarray, np.ndarray]:
    """Which quantiles, as an array of numbers from 0 to `whole`, and as one of numbers from 0 to 1."""
    try:
        wanted = elements_of(q)
    except ValueError as error:
        raise ArgumentError(f"q={q!r} is no array: {error}") from None
    if wanted.dtype.kind not in "iuf":
        raise ArgumentTypeError(f"q={q!r} must be a number or numbers, from 0 to {whole}")
    if wanted.ndim > 1:
        raise ArgumentError(f"q has {wanted.ndim} dimensions: it must be a number, or a sequence of them")
    if not ((wanted >= 0) & (wanted <= whole)).all():
        raise ArgumentError(f"q={q!r} must be in the range from 0 to {whole}")
    return wanted, np.true_divide(wanted, 100) if whole == 100 else wanted


def quantile_of(q: Any, whole: int, method: str, *, skip: bool = False) -> Make:
    """Quantiles `q`, which are from 0 to `whole`, with checked arguments; `skip` leaves NaN out."""
    if not isinstance(method, str) or method not in METHODS:
        raise ArgumentError(f"method={method!r} is none of {', '.join(METHODS)}")
    q = loaded(q)
    wanted, ready = checked_q(q, whole)
    weak = type(q) in (int, float)

    def numpys(x: np.ndarray, **options: Any) -> Any:
        fn: Any = np.percentile if whole == 100 else np.quantile
        return fn(x, q, method=method, **options)

    def make(dtype: np.dtype) -> Wanted:
        try:
            result = np.asarray(numpys(np.zeros(2, dtype))).dtype
        except TypeError as error:
            raise ArgumentTypeError(f"quantiles of {dtype} by method={method!r}: {error}; convert the array") from None
        nans, some = dtype.kind == "f", np.atleast_1d(ready)

        def of(n: int) -> Rule:
            return rule(n, some, method, weak=weak, dtype=result, nans=nans and not skip)

        def of_lines(number: np.ndarray) -> Rule:
            return rule_of_lines(number, some, method, weak=weak, dtype=result)

        return Wanted(wanted.ndim == 0, of, numpys, of_lines if nans and skip else None)

    return make


def median_of(dtype: np.dtype, *, skip: bool = False) -> Wanted:
    """The median of a dtype; `skip` leaves NaN out."""
    result = np.asarray(np.median(np.zeros(2, dtype))).dtype
    nans = dtype.kind == "f"
    of_lines = functools.partial(median_of_lines, dtype=result) if nans and skip else None
    return Wanted(True, lambda n: median_rule(n, result, nans and not skip), np.median, of_lines)


def check_numbers(spec: ArraySpec) -> None:
    """Refuse arrays of dtypes that have no quantiles here."""
    if spec.dtype.kind not in "biuf" or spec.dtype.itemsize > 8:
        raise ArgumentTypeError(
            f"{spec.name} is of {spec.dtype}, and quantiles are of real numbers of at most 64 bits: convert it"
        )


def reduced(
    make: Make,
    x: Any,
    axis: Axis,
    keepdims: bool,
    chunks: Chunks,
    options: Options,
    *,
    nan: bool = False,
    tolerance: float | None = None,
) -> Any:
    """Quantiles of an array along axes, in one pass or several; with `nan` those of no elements are NaN.

    With a relative `tolerance` they need not be exact.
    """
    spec = spec_of(x)
    check_numbers(spec)
    shape, dtype = spec.shape, spec.dtype
    axes = reduced_axes(axis, len(shape))
    kept = tuple(a for a in range(len(shape)) if a not in axes)
    wanted = make(dtype)
    scalar = wanted.single
    block = block_sides(chunks, shape)
    target = stores.open_target(options.out, overwrite=options.overwrite)
    n = count_of(shape, axes)
    if not spec.size:
        return bare(stored(of_nothing(wanted, spec, axes, keepdims, nan=nan), target, options), options.out)
    how = wanted.rule(n)
    quantiles = () if scalar else (len(how.below),)
    last = tuple(1 if a in axes else m for a, m in enumerate(shape) if keepdims or a not in axes)
    target.describe((*quantiles, *last), how.dtype, None)
    if not len(how.below):
        return bare(stored(np.empty((0, *last), how.dtype), target, options), options.out)
    run = devices.resolve(options.device)
    room = bytes_left(options.budget, run) - run.reserve
    uncut = block is None or all(block[a] is None or (block[a] or 0) >= shape[a] for a in axes)
    at_once = uncut and (kept or spec.nbytes <= SMALL)
    enough = run.reserve + AT_ONCE * n * dtype.itemsize  # for whole lines, if it is more than there is
    if at_once and enough - run.reserve <= room:
        try:
            result = execute(of_whole_lines(make, x, axis, keepdims, chunks, replace(options, device=run)))
        except BudgetError as error:  # a line does not fit after all
            enough = max(error.smallest or 0, enough)
        else:
            return result if is_dry() else bare(result, options.out)
    ranks = how.ranks()
    if wanted.of_lines is not None:  # the first pass finds them
        ranks = np.zeros_like(wanted.of_lines(np.full((), n)).all_ranks())
    try:
        statistics, numbers = order_statistics(
            x, spec, axes, ranks, block, run, room, options, wanted.of_lines, tolerance
        )
    except BudgetError as error:
        if at_once and error.smallest is not None and room + run.reserve < enough < error.smallest:
            rename(error, enough, " for blocks of whole lines")
        raise
    if is_dry():
        return None
    if wanted.of_lines is None:
        found = how.result(lambda these: statistics[np.searchsorted(ranks, these)])
    else:
        how = wanted.of_lines(numbers)
        below, above = statistics[: len(how.below)], statistics[len(how.below) :]
        found = how.result(lambda these: below if these is how.below else above)
    return bare(stored(found.reshape((*quantiles, *last)), target, options), options.out)


def of_whole_lines(make: Make, x: Any, axis: Axis, keepdims: bool, chunks: Chunks, options: Options) -> Request:
    """The pass whose blocks hold whole lines."""
    spec = spec_of(x)
    check_numbers(spec)
    shape, wanted = spec.shape, make(spec.dtype)
    axes = reduced_axes(axis, len(shape))
    block, how = block_sides(chunks, shape), wanted.rule(count_of(shape, axes))
    along: list[int | None] = [None if a in axes else a for a in range(len(shape)) if keepdims or a not in axes]
    dims = tuple(along if wanted.single else [None, *along])
    kernel = MapKernel(WholeLines(how, axes, wanted.single, keepdims, wanted.of_lines), (SLOT,), {}, dims)
    return Request(lambda specs, args: Declared(nest([specs[0].shape], axes), kernel, dims, block), (x,), options)


def of_nothing(
    wanted: Wanted, spec: ArraySpec, axes: tuple[int, ...], keepdims: bool, *, nan: bool = False
) -> np.ndarray:
    """The result for an array without elements, as NumPy has it, or an error; with `nan` NaN, if its dtype has one."""
    one = np.asarray(wanted.numpys(np.ones(1, spec.dtype)))
    if nan and one.dtype.kind == "f":
        kept = [1 if a in axes else n for a, n in enumerate(spec.shape) if keepdims or a not in axes]
        return np.full((*one.shape, *kept), np.nan, one.dtype)
    try:
        return np.asarray(wanted.numpys(np.empty(spec.shape, spec.dtype), axis=axes, keepdims=keepdims))
    except (IndexError, ValueError):
        raise ArgumentError(f"quantiles of no elements: the shape is {spec.shape}, axes {axes} are reduced") from None


def order_statistics(
    x: Any,
    spec: ArraySpec,
    axes: tuple[int, ...],
    ranks: np.ndarray,
    block: tuple[int | None, ...] | None,
    run: Device,
    room: int,
    options: Options,
    of_lines: LineRule | None = None,
    tolerance: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Order statistics of these ranks, along a first axis, of each line along some axes.

    With `of_lines` NaN are left out: it gives the ranks, as many as `ranks`, of lines that have so many numbers. Then
    the second result is how many numbers each line has. With a relative `tolerance` low bits of the mantissa are left
    out.

    What is known of each is in host memory, twice while a pass finds more, and counts where that is the device's.
    """
    kept = tuple(a for a in range(len(spec.shape)) if a not in axes)
    lines = tuple(spec.shape[a] for a in kept)
    # Of the first pass they are the same for all lines, and take no memory.
    within = np.broadcast_to(ranks.astype("i8").reshape(-1, *(1,) * len(lines)), (len(ranks), *lines))
    dtype, low = (spec.dtype, 0) if tolerance is None else coarse(spec.dtype, tolerance)
    prefixes = np.broadcast_to(np.zeros((), key_dtype(dtype)), within.shape)
    number = math.prod(lines)
    left = 8 * dtype.itemsize - low
    most_bits = BITS_OF_LINES if number > 1 else BITS_IN_ALL if low and left <= BITS_IN_ALL else BITS
    known = 2 * within.size * (8 + prefixes.itemsize) + (0 if of_lines is None else 8 * number)
    if run.machine.staged or number == 1 or room < OBJECTS_FROM:  # smaller budgets bound blocks alone
        known = 0
    room = max(room - known, 0)

    def cut(bins: float, left: int) -> tuple[int, tuple[int | None, ...] | None]:
        """Bits that a pass with room for so many bins, of all lines together, finds; and the sides of its blocks."""
        bits = min(left, most_bits)
        bits = min(bits, max(1 if number == 1 else LEAST_BITS, int(math.log2(max(1, bins / min(number, LINES))))))
        if not kept or block is not None:
            return bits, block
        # Long blocks along the lines: each count is of many numbers.
        held = grid.fit(lines, [1] * len(lines), tuple(range(len(lines))), max(1, int(bins) >> bits))
        return bits, tuple(held[kept.index(a)] if a in kept else None for a in range(len(spec.shape)))

    begun, sizes, numbers = False, None, np.broadcast_to(np.zeros((), np.intp), lines)
    as_other = dtype if dtype != spec.dtype else None
    with lease(options.budget, run) as leased, leased.budget.reserved(run, known):
        budget = leased.budget if leased.is_own else options.budget
        chosen = replace(options, out=None, overwrite=False, resume=False, name=None, device=run, budget=budget)
        few = room / SHARE / (COPIES * run.machine.lanes * prefixes.itemsize)
        if number == 1 and left > most_bits and tolerance is None and not is_dry():
            at_once = _sampled(x, ranks, of_lines, few, block, chosen)
            if at_once is not None:
                return at_once
        while left:
            if sizes is not None:
                all_bits = _gathered(x, prefixes, within, sizes, low + left, few, as_other, block, chosen)
                if all_bits is not None:
                    prefixes, low = all_bits, 0
                    break
            differ = [bool((one != other).any()) for one, other in itertools.pairwise(prefixes)] if begun else []
            distinct = 1 + sum(differ)
            bins = room / SHARE / (COPIES * run.machine.lanes * 8 * distinct)
            bits, sides = cut(bins, left)
            while True:
                skips = None if begun else of_lines
                kernel = Digits(axes, low + left - bits, bits, prefixes, within, skips, as_other)
                # A trial sees the other half of the copies: sums and counts.
                # Of several lines each pass finds as many bits: those that gather what is left are of all elements.
                times = 1 if begun or number == 1 else -(-left // bits)
                declare = functools.partial(folded, kernel, (None, *kept), sides, COPIES / 2, times=times)
                try:
                    found = execute(Request(declare, (x,), chosen))
                    break
                except BudgetError:  # blocks take too much besides: with fewer bins there is room for them
                    while cut(bins, left) == (bits, sides):
                        bins /= 4
                        if bins < 1:
                            raise
                    bits, sides = cut(bins, left)
            left -= bits
            if not is_dry():
                del kernel, declare  # and what was known before
                prefixes, within, *more = found
                sizes = more.pop(0) if number == 1 else None
                numbers = np.asarray(more[0][0]) if more else numbers
                del more
            elif not begun and left:  # each order statistic may have a prefix of its own, and no later pass takes more
                prefixes = _all_different(prefixes)
            else:
                break
            begun = True
    del found, within
    if is_dry():
        return prefixes, numbers
    keys = without_low_bits(prefixes, low) if low else prefixes
    return as_dtype(from_keys(keys, dtype), spec.dtype), numbers


def _sampled(
    x: Any,
    ranks: np.ndarray,
    of_lines: LineRule | None,
    most: float,
    block: tuple[int | None, ...] | None,
    options: Options,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Order statistics of all elements by one pass, and how many numbers there are, where a sample tells enough."""
    node = node_of(x) if has_lazy(x) else None
    if node is not None and not isinstance(node, SourceNode):
        return None
    with closing(stores.open_source(x if node is None else node.source)) as source:
        if not is_sampled(source):
            return None
        dtype = source.spec.dtype

        def wanted(numbers: int) -> np.ndarray:
            return ranks if of_lines is None else of_lines(np.full((), numbers)).all_ranks()

        def in_order(keys: np.ndarray) -> np.ndarray:
            return np.asarray(execute(Request(_sorted_keys, (keys,), options)))

        try:
            found = likely(source, wanted, most, in_order if options.device.machine.staged else np.sort)
        except BudgetError:
            return None
    if found is None:
        return None
    kernel = Gathered(found.lows, found.highs, int(min(most, 1.1 * found.number + STRIP)), counted=True)
    declare = functools.partial(folded, kernel, (None,), block, COPIES / 2)
    try:
        keys, counts = map(np.asarray, execute(Request(declare, (x,), options)))
    except (BudgetError, TooManyKeysError):
        return None
    *below, numbers, gathered = counts.tolist()
    begins = keys.searchsorted(found.lows)
    held = np.append(begins[1:], gathered) - begins
    sought = wanted(numbers).reshape(-1)
    interval = np.searchsorted(below, sought, "right") - 1
    inside = sought - np.array(below)[interval]
    if (interval < 0).any() or (inside >= held[interval]).any():
        return None
    statistics = as_dtype(from_keys(keys[begins[interval] + inside], dtype), dtype)
    return statistics, np.full((), numbers, np.intp)


def _sorted_keys(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
    """A line of keys in order, in one block."""
    return Declared(nest([specs[0].shape]), MapKernel(np.sort, (SLOT,), {}, (0,)), (0,), specs[0].shape)


def _gathered(
    x: Any,
    prefixes: np.ndarray,
    within: np.ndarray,
    sizes: np.ndarray,
    shift: int,
    most: float,
    dtype: np.dtype | None,
    block: tuple[int | None, ...] | None,
    options: Options,
) -> np.ndarray | None:
    """The keys of order statistics of all elements, by a pass that gathers those that begin as theirs do.

    None if these are more than `most`, or do not fit. `sizes` says how many begin as each does, and `within` which of
    them it is. `shift` is the number of bits that are not known.
    """
    each, first, of = np.unique(prefixes.reshape(-1), return_index=True, return_inverse=True)
    counts = sizes.reshape(-1)[first]
    number = int(counts.sum())
    if number > most:
        return None
    begins, last = each << each.dtype.type(shift), each.dtype.type((1 << shift) - 1)
    kernel = Gathered(begins, begins | last, number, dtype=dtype)
    declare = functools.partial(folded, kernel, (None,), block, COPIES / 2)
    try:
        keys = execute(Request(declare, (x,), options))
    except BudgetError:  # blocks take too much besides
        return None
    found: np.ndarray = keys[(counts.cumsum() - counts)[of] + within.reshape(-1)]
    return found.reshape(within.shape)


def _all_different(prefixes: np.ndarray) -> np.ndarray:
    """Prefixes of which as many differ as may; they take no memory."""
    most = min(len(prefixes), 1 << min(8 * prefixes.dtype.itemsize, 62))
    each = np.arange(len(prefixes)) * most // max(len(prefixes), 1)
    return np.broadcast_to(each.astype(prefixes.dtype).reshape(-1, *(1,) * (prefixes.ndim - 1)), prefixes.shape)


def folded(
    kernel: Any,
    axes: tuple[int | None, ...],
    block: tuple[int | None, ...] | None,
    copies: float,
    specs: Sequence[ArraySpec],
    args: tuple[Any, ...],
    times: int = 1,
) -> Declared:
    """Declare a fold over the axes that its results do not follow, the first of so many."""
    strips = Strips(shared=kernel.strip)
    return Declared(nest([s.shape for s in specs]), kernel, axes, block, strips=strips, copies=copies, times=times)


# -- Device and outputs --------------------------------------------------------------------------------------


def stored(found: np.ndarray, target: Target, options: Options, at_once: int | None = None) -> Any:
    """Write a result in host memory to its target, but in a dry run."""
    return all_stored([found], [target], options, None if at_once is None else (at_once, *found.shape[1:]))[0]


def _parts(spec: ArraySpec, sides: grid.Shape, first: int) -> Iterator[grid.Region]:
    """Parts with these sides, or longer ones that cut no chunk, one after the other along an axis first."""
    units = spec.chunks or (1,) * len(sides)
    boxes = grid.Grid(spec.shape, tuple(-(-side // unit) * unit for side, unit in zip(sides, units, strict=True)))
    axes = [axis for axis in range(len(sides)) if axis != first]
    return (boxes.region(index) for index in boxes.walk([*axes, first]))


def all_stored(
    found: Sequence[np.ndarray],
    targets: Sequence[Target],
    options: Options,
    at_once: grid.Shape | None = None,
    first: int = 0,
) -> tuple[Any, ...]:
    """Write results in host memory to their targets, of which all appear or none does. In a dry run none does.

    `at_once` are the sides of what is written at a time, and of the chunks of what is created, and `first` the axis
    along which it is written first. They are for results that are mapped.
    """
    if is_dry():
        return tuple(found)
    specs = [target.describe(array.shape, array.dtype, at_once) for array, target in zip(found, targets, strict=True)]
    turn = None if (passes := current()) is None else passes.begin(specs, targets)
    if turn is not None and turn.done is not None:
        return turn.done
    made = Complete([], turn)
    to = targets if turn is None else turn.targets
    try:
        for array, target, spec in zip(found, to, specs, strict=True):
            made.sinks.append(target.open(spec) if turn is None else turn.open(target, spec))
            for box in [grid.whole(spec.shape)] if at_once is None else _parts(spec, at_once, first):
                made.sinks[-1].write(box, array[box].astype(spec.dtype, copy=False))
        return completed(made, to, options.sync)
    except BaseException:
        made.failed()
        raise
