"""Histograms and counts, with NumPy's names, arguments and results.

Each block is counted by NumPy's function of the same name, given the bins of the whole array; so its rules, of
which the last bin's closed edge is one, are NumPy's own, and counts are NumPy's to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Unpack, cast

import numpy as np

from chunkflow import stores
from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    MultiPass,
    Options,
    Request,
    RunOptions,
    check_eager,
    check_int,
    execute,
    op_node,
    operation,
)
from chunkflow.api.reductions.extremes import max as greatest
from chunkflow.api.reductions.extremes import min as least
from chunkflow.api.statistics.bins import (
    check_rule,
    finite,
    in_memory,
    length_of,
    most_bins,
    number_of_bins,
    numbers,
    over_everything,
    seen_by,
    supposed_range,
)
from chunkflow.api.statistics.order_statistics import stored
from chunkflow.api.statistics.parts import in_parts
from chunkflow.core.chunking import block_sides
from chunkflow.core.units import format_bytes
from chunkflow.engine.dry_run import is_dry, must_suffice
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError
from chunkflow.graph.elementwise import applied, mapped
from chunkflow.graph.evaluate import Evaluation
from chunkflow.graph.nodes import MultiPassNode, Node, node_of
from chunkflow.kernels.map import is_scalar
from chunkflow.kernels.protocol import is_trial
from chunkflow.kernels.statistics.histogram import (
    Tally,
    Value,
    counts_added,
    counts_between,
    counts_from,
    extremes,
    histogrammed,
    outermost,
)
from chunkflow.stores.checks import elements_of
from chunkflow.system.host import available_memory

FEW = 1 << 16
"""Different numbers that are all counted, so that nothing is read to find the largest first."""

HISTOGRAM = 6.0
"""Arrays as long as there are bins while a block is counted: NumPy makes edges, and counts twice, for itself."""


@operation
def histogram(
    x: Any,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: Any = None,
    *,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> Request | MultiPass:
    """Histogram of all elements of an array.

    With a number of bins and without `range`, a first pass finds the smallest and the largest element; of an expression
    the edges are then an expression too. With a rule that chooses the bins, the first pass finds what the rule needs,
    of an expression at once. "auto" and "fd" need quartiles, which take more passes (see
    `chunkflow.quantile`).

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`, of any shape.
    bins : int, array_like or str
        Number of bins of equal width, or their edges, or one of NumPy's rules, which chooses their number: "auto",
        "doane", "fd", "rice", "scott", "sqrt" or "sturges" (not "stone").
    range : (float, float), optional
        Lowest and highest edge; elements outside are left out.
    density : bool, optional
        Whether the result is the density, of which the integral over the bins is 1.
    weights : array_like, str or path, optional
        Source of the shape of `x`: what each element adds to its bin, instead of 1. Floats of less than double
        precision are added up in doubles.
    out : array, str, path or None
        As for `chunkflow.map`; it takes the counts.

    Returns
    -------
    hist : array
        Counts (int64), sums of weights in their dtype, or the density: `out`, opened where it was a path.
    edges : numpy.ndarray
        Of the bins, one more than there are bins.

    Raises
    ------
    ArgumentError
        Bins that do not increase, a range that is not finite, weights of another shape than `x`, an unknown rule.
    ArgumentTypeError
        Complex `x`, which has no order; bins that are no number; a rule with weights.

    Examples
    --------
    >>> cf.histogram(np.array([1, 2, 1, 4]), bins=[0, 1, 2, 3, 4], device="cpu")
    (array([0, 2, 1, 1]), array([0, 1, 2, 3, 4]))
    >>> cf.histogram(np.array([1.0, 2.0, 5.0]), bins=2, device="cpu")
    (array([2, 1]), array([1., 3., 5.]))
    >>> cf.histogram(np.array([1.0, 2.0, 4.0, 5.0]), bins="sqrt", device="cpu")
    (array([2, 2]), array([1., 3., 5.]))
    """
    check_eager("histogram", bins=bins, range=range)
    spec = stores.spec_of(x)
    rule = bins if isinstance(bins, str) else None
    if spec.dtype.kind == "c":
        raise ArgumentTypeError(
            f"{spec.name} is complex ({spec.dtype}), and bins need an order: take its real part, say"
        )
    if rule is not None:
        check_rule(rule, spec.dtype, weights is not None)
        bins = 1  # so far
    wtype = np.dtype(np.intp)
    if isinstance(weights, list | tuple) or (weights is not None and is_scalar(weights)):
        weights = elements_of(weights)
    if weights is not None:
        wspec = stores.spec_of(weights)
        wtype = wspec.dtype
        if wspec.shape != spec.shape:
            raise ArgumentError(f"weights have the shape {wspec.shape} and x has {spec.shape}: they must be the same")
        if wtype.kind == "b":
            raise ArgumentTypeError("weights are bools, which have no sum: convert them, or count x[weights]")
    edges = _edges(spec, bins, range)
    block_sides(chunks, spec.shape)
    result = np.result_type(wtype, "f8") if density else wtype
    chosen = Options(**options)
    target = stores.open_target(chosen.out, overwrite=chosen.overwrite)
    if rule is None:
        target.describe((len(edges) - 1,), result, None)
    arrays = (x,) if weights is None else (x, weights)

    def counted(bins: Any, range: Any, edges: np.ndarray) -> Request:
        tally = _histogram_of_blocks(bins, range, edges, wtype, density)
        return Request(over_everything(tally, chunks, HISTOGRAM), arrays, chosen, beside=(edges,))

    if not spec.size or (rule is None and (range is not None or np.ndim(bins))):
        return counted(bins, range, edges)

    def run() -> tuple[Any, np.ndarray]:
        if rule is None:
            low, high = _extremes(x, chunks, chosen)
            between = supposed_range(low.dtype) if is_dry() else (low[0], high[0])
            found = _edges_between(spec, bins, between)
            return execute(counted(bins, between, found)), found
        seen, known, enough = (
            seen_by(rule, x, spec, range, chunks, chosen),
            length_of(chosen.out),
            most_bins(rule, spec.size),
        )
        between = range or (supposed_range(seen.low.dtype) if is_dry() else (seen.low, seen.high))
        # A dry run that only refuses supposes one bin, so that nothing is refused which may do.
        supposed = known or (enough if must_suffice() else 1)
        number = supposed if is_dry() else number_of_bins(rule, seen, range)
        found = _edges(spec, number, between)
        target.describe((len(found) - 1,), result, None)
        try:
            hist = execute(counted(number, between, found))
        except BudgetError:
            if number <= enough:
                raise
            hist = counted_in_parts(found, enough)
        if must_suffice() and known is None and rule == "fd":  # which may give any number of bins
            counted_in_parts(found, enough)
        return hist, found

    def counted_in_parts(edges: np.ndarray, least: int) -> Any:
        def part(first: int, number: int, at: Options) -> Request:
            some = edges[first : first + number + 1].copy()
            if first + number + 1 == len(edges):  # whose right edge is in the last bin
                some[-1] = np.nextafter(some[-1], np.inf)
            return Request(over_everything(_counted_between(some), chunks), arrays, at)

        def after(element: Any) -> int:
            bin = int(np.searchsorted(edges, element, side="right")) - 1
            return min(bin, len(edges) - 2) if element <= edges[-1] else bin

        with in_parts(part, after, len(edges) - 1, np.dtype(np.intp), 0, least, target, chosen) as (hist, at_once):
            return stored(_as_density(hist, edges) if density else hist, target, chosen, at_once)

    def expressions(array: Callable[[Node], Any]) -> tuple[Any, Any]:
        if rule is not None:  # the number of bins is part of a shape
            seen = seen_by(rule, x, spec, range, chunks, Options())
            number, between = number_of_bins(rule, seen, range), range or (seen.low, seen.high)
            return cast(tuple[Any, Any], histogram(x, number, between, density, chunks=chunks))
        low, high = (mapped(numbers, extreme(array(node_of(x)))) for extreme in (least, greatest))

        # The extremes are results of a pass of their own, which the counts and the edges share.
        def run(x: Any, low: Any, high: Any, *weights: Any, **options: Any) -> Any:
            chosen = Options(**options)
            between = supposed_range(node_of(low).spec.dtype) if is_dry() else values_of((low, high), chosen)
            found = _edges_between(spec, bins, between)
            tally = _histogram_of_blocks(bins, between, found, wtype, density)
            return execute(Request(over_everything(tally, chunks, HISTOGRAM), (x, *weights), chosen))

        def unrolled() -> Node:
            tally = _histogram_between(spec, int(bins), wtype)
            of = (array(node_of(x)), *arrays[1:], low, high)
            counts = array(op_node(Request(over_everything(tally, chunks, HISTOGRAM), of, Options()), "histogram"))
            return node_of(counts / np.diff(found).astype("f8") / counts.sum() if density else counts)

        found = applied(bin_edges, (np.arange(len(edges)), low, high), {}, {"bins": int(bins)})
        nodes = [node_of(a) for a in (x, low, high, *arrays[1:])]
        told = ArraySpec("histogram", (len(edges) - 1,), result)
        counts = MultiPassNode("histogram", run, nodes, told, streams=True, unroll=unrolled)
        return array(counts), found

    return MultiPass(arrays, run, chosen, expressions=expressions)


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """As `numpy.histogram_bin_edges`, of an expression: NumPy's array where they are known, else an expression."""
    return histogram(a, bins, range, weights=weights)[1]


@operation
def bincount(
    x: Any, weights: Any = None, minlength: int = 0, *, chunks: Chunks = None, **options: Unpack[RunOptions]
) -> MultiPass:
    """How often each integer from 0 on is in an array.

    A first pass finds the largest one, unless the integers have at most 16 bits and no sign. If the budget holds fewer
    counts than there are, they are made in several passes, each of which skips the integers that there are none of.
    Where integers are few and large, or negative, `chunkflow.unique` with ``return_counts=True`` counts those that
    there are. The largest one tells the length of the result, so that expressions are counted at once, too.

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`, of one dimension and integers that are not negative.
    weights : array_like, str or path, optional
        Real source of the shape of `x`: what each element adds, instead of 1.
    minlength : int
        Of the result.

    Returns
    -------
    array
        Counts (int64) or sums of weights (float64) of 0 up to the largest element: `out`, opened where it was a
        path.

    Raises
    ------
    ArgumentError
        Negative elements or `minlength`, several dimensions, weights of another shape than `x`.
    ArgumentTypeError
        `x` is not of integers; weights are complex.
    BudgetError
        Not even the smallest block, with the result, fits the budget.

    Examples
    --------
    >>> cf.bincount(np.array([0, 1, 1, 3, 2, 1, 7]), device="cpu")
    array([1, 3, 1, 1, 0, 0, 0, 1])
    """
    spec = stores.spec_of(x)
    if len(spec.shape) != 1:
        raise ArgumentError(f"bincount takes an array of one dimension, not of shape {spec.shape}: reshape it")
    if spec.dtype.kind not in "biu":
        raise ArgumentTypeError(f"bincount takes integers, not {spec.dtype}: convert {spec.name}, or use histogram")
    least = check_int("minlength", minlength, 0)
    if weights is not None:
        wspec = stores.spec_of(weights)
        if wspec.shape != spec.shape:
            raise ArgumentError(f"weights have the shape {wspec.shape} and x has {spec.shape}: they must be the same")
        if wspec.dtype.kind == "c":
            raise ArgumentTypeError(
                f"weights are complex ({wspec.dtype}): count with their real and imaginary parts, one at a time"
            )
    block_sides(chunks, spec.shape)
    chosen = Options(**options)
    target = stores.open_target(chosen.out, overwrite=chosen.overwrite)
    arrays = (x,) if weights is None else (x, weights)

    possible = 1 << 8 * spec.dtype.itemsize

    def tally(first: int, number: int, beyond: bool, every: bool = True) -> Tally:
        # Elements may be beyond: where not every integer is counted, and in a dry run others than supposed.
        safe = beyond or not every or (is_dry() and spec.size > 0)

        def count(block: Any, weights: Any = None) -> Value:
            if weights is not None:
                weights = weights.astype("f8", copy=False)
            if safe:
                return counts_from(block, weights, first, number)[: 1 + beyond]
            # Elements of a trial on made-up numbers may be larger than all that there are.
            return (np.bincount(block.astype(np.intp, copy=False), weights, number)[:number],)

        return Tally(count, counts_added, number=number, fewer=lambda few: tally(first, few, beyond, False))

    def counted(first: int, number: int, at: Options, *, beyond: bool = True) -> Request:
        return Request(over_everything(tally(first, number, beyond), chunks), arrays, at)

    def counted_in_parts(first: int, length: int, least: int) -> Any:
        dtype = np.dtype(np.int64 if weights is None else np.float64)
        with in_parts(counted, int, length, dtype, first, least, target, chosen) as (counts, at_once):
            return stored(counts, target, chosen, at_once)

    def counted_at_once() -> Any:
        """Counts of all numbers that there can be: those of few bits need not be looked at first."""
        counts = execute(counted(0, max(least, possible), chosen, beyond=False))
        used = np.flatnonzero(counts[:possible])
        return counts[: max(least, used[-1] + 1 if used.size else 0)].copy()

    few = spec.dtype.kind in "bu" and max(least, possible) <= FEW and weights is None and chosen.out is None

    def run() -> Any:
        length, first = least, 0
        if spec.size and few:
            with suppress(BudgetError):
                return counted_at_once()
        # Whoever counts has more elements than different ones, as a rule. Other counts may be made in parts.
        known, enough = length_of(chosen.out), max(least, 1, min(spec.size, possible))
        if spec.size:
            low, high = (int(a[0]) for a in _extremes(x, chunks, chosen))
            if is_dry():
                low, high = 0, (known or enough) - 1 if must_suffice() else 0
            if low < 0:
                raise ArgumentError(f"bincount takes integers of at least 0, and {spec.name} holds {low}: shift them")
            length, first = max(length, high + 1), low
        check_room(length, f"bincount up to {length - 1}")
        try:
            found = execute(counted(0, length, chosen, beyond=False))
        except BudgetError:
            if length <= enough:
                raise
            found = counted_in_parts(first, length, enough)
        if must_suffice() and spec.size and known is None and enough < possible:
            counted_in_parts(0, enough, enough)
        return found

    return MultiPass(arrays, run, chosen, alone=few)


# -- Expressions of a histogram whose range is not known before -------------------------------------------------


def values_of(arrays: Sequence[Any], options: Options) -> tuple[Any, ...]:
    """Elements of arrays without dimensions, or of expressions of them."""
    nodes = [node_of(array) for array in arrays]
    with ExitStack() as stack:
        whole = Evaluation(Options(budget=options.budget, device=options.device))
        done = whole.run(dict.fromkeys(nodes), stack)
    return tuple(np.asarray(done[node])[()] for node in nodes)


def bin_edges(places: Any, low: Any, high: Any, bins: int) -> Any:
    """The edges at some places between the extremes of an array."""
    dtype = low.dtype
    edges = _edges_between(ArraySpec("", (), dtype), bins, ends_of(low, high))
    return np.asarray(edges, like=places)[places]


# -- Declarations -------------------------------------------------------------------------------------------


def _extremes(x: Any, chunks: Chunks, options: Options) -> Any:
    """Smallest and largest element of an array that has any, each in an array of one; of bools, 0 and 1."""
    tally = Tally(lambda block: extremes(numbers(block)), outermost)
    return execute(Request(over_everything(tally, chunks), (x,), in_memory(options)))


def _histogram_of_blocks(bins: Any, range: Any, edges: np.ndarray, wtype: np.dtype, density: bool | None) -> Tally:
    """Histogram of each block, in the bins of the whole array."""
    wide = np.result_type(wtype, "f8") if wtype.kind in "fc" else wtype

    def count(block: Any, weights: Any = None) -> Value:
        if weights is not None:
            weights = weights.astype(wide, copy=False)
        return (histogrammed(numbers(block), bins, range, edges, weights),)

    def result(value: Value) -> Any:
        (hist,) = value
        if not density:
            return hist.astype(wtype, copy=False)
        return _as_density(hist, edges)

    def fewer(number: int) -> Tally:
        some = edges[: number + 1]
        return _histogram_of_blocks(some if np.ndim(bins) else number, range, some, wtype, density)

    return Tally(count, result=result, number=len(edges) - 1, fewer=fewer)


def _histogram_between(spec: ArraySpec, bins: int, wtype: np.dtype) -> Tally:
    """The same, in so many bins between the extremes of the array: these are the last two blocks."""

    def count(block: Any, *beside: Any) -> Value:
        *weights, low, high = beside
        between = ends_of(low, high)
        tally = _histogram_of_blocks(bins, between, _edges_between(spec, bins, between), wtype, None)
        return tally.count(block, *weights)

    def result(value: Value) -> Any:
        return value[0].astype(wtype, copy=False)

    return Tally(count, result=result, number=bins, fewer=lambda few: _histogram_between(spec, few, wtype))


def ends_of(low: Any, high: Any, dtype: np.dtype | None = None) -> tuple[Any, Any]:
    """The extremes in two blocks; in a trial, where they are not known yet, some that are supposed."""
    dtype = dtype or low.dtype
    return supposed_range(dtype) if is_dry() or is_trial() else (dtype.type(low.item()), dtype.type(high.item()))


def _counted_between(edges: np.ndarray) -> Tally:
    """Counts of the elements in each bin, and the least one beyond all bins."""
    return Tally(
        lambda block: counts_between(numbers(block), edges),
        counts_added,
        number=len(edges) - 1,
        fewer=lambda few: _counted_between(edges[: few + 1]),
    )


def _as_density(hist: Any, edges: np.ndarray) -> Any:
    with np.errstate(all="ignore"):  # nothing may have been counted, in the trial call for one
        return hist / np.asarray(np.diff(edges).astype("f8"), like=hist) / hist.sum()


def _edges(spec: ArraySpec, bins: Any, range: Any) -> np.ndarray:
    """Edges of the bins, as NumPy makes them for elements of this dtype; its errors under our names."""
    dtype = np.dtype("u1") if spec.dtype.kind == "b" else spec.dtype
    if isinstance(bins, int | np.integer):
        check_room(int(bins), f"bins={bins!r}")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return finite(np.histogram_bin_edges(np.empty(0, dtype), bins, range), bins)
    except ValueError as error:
        raise ArgumentError(f"bins={bins!r}, range={range!r}: {error}") from None
    except TypeError as error:
        raise ArgumentTypeError(f"bins={bins!r}, range={range!r}: {error}") from None


def _edges_between(spec: ArraySpec, bins: int, between: tuple[Any, Any]) -> np.ndarray:
    """Edges of bins between the extremes of the elements, which may be NaN or infinite."""
    if not all(map(np.isfinite, between)):
        low, high = between
        raise ArgumentError(
            f"bins={bins}: the elements lie between {low} and {high}, which is not finite: give range=(low, high), "
            "or edges"
        )
    return _edges(spec, bins, between)


def check_room(number: int, asked: str) -> None:
    """Refuse more counts than host memory could hold."""
    room = available_memory() or 1 << 46
    if 8 * number > room:
        raise ArgumentError(
            f"{asked} makes {number} counts of 8 bytes each, and {format_bytes(room)} of host memory are available: "
            "use fewer and wider bins"
        )
