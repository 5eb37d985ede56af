"""Histograms of several variables, with NumPy's names, arguments and results: one pass over all arrays.

Without `range` a pass before finds the extremes. The counts are a list of boxes, which gets its shape at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from chunkflow import stores
from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    Declared,
    MultiPass,
    Options,
    Request,
    RunOptions,
    check_eager,
    execute,
    op_node,
    operation,
)
from chunkflow.api.reductions.extremes import max as greatest
from chunkflow.api.reductions.extremes import min as least
from chunkflow.api.statistics.bins import finite, in_memory, numbers, supposed_range
from chunkflow.api.statistics.histogram import HISTOGRAM, check_room, ends_of, values_of
from chunkflow.api.statistics.order_statistics import stored
from chunkflow.core.chunking import block_sides
from chunkflow.core.grid import Shape
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.elementwise import applied
from chunkflow.graph.nodes import MultiPassNode, Node, node_of
from chunkflow.graph.reshaping import reshaped
from chunkflow.kernels.index_notation import spanned
from chunkflow.kernels.map import is_scalar
from chunkflow.kernels.statistics.histogram import Tally, Value, counts_in_boxes, extremes, outermost


@operation
def histogram2d(
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: Any = None,
    *,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass:
    """Histogram of two variables, as `numpy.histogram2d`.

    Both arrays are read in one pass. With a number of bins and without `range`, a pass before finds the smallest and
    the largest elements; of expressions the edges are then expressions too.

    Parameters
    ----------
    x, y : array_like, str or path
        Sources, as for `chunkflow.map`, of one shape. It may have several dimensions.
    bins : int, array_like or pair of them
        Number of bins of equal width, or edges, of both variables or of each.
    range : pair of (float, float), optional
        Lowest and highest edge of each variable, or None for its extremes; elements outside are left out.
    density : bool, optional
        Whether the result is the density, of which the integral over the bins is 1.
    weights : array_like, str or path, optional
        Real source of the shape of `x`: what each point adds to its bin, instead of 1.
    out : array, str, path or None
        As for `chunkflow.map`; it takes the counts.

    Returns
    -------
    hist : array
        Float64, of shape (nx, ny): `out`, opened where it was a path.
    x_edges, y_edges : numpy.ndarray
        Of the bins, one more than there are bins.

    Raises
    ------
    ArgumentError
        Arrays of different shapes, bins that do not increase, a range that is not finite.
    ArgumentTypeError
        Complex arrays, bins that are no numbers.
    BudgetError
        Not even the smallest block, with the counts, fits the budget.

    Examples
    --------
    >>> x, y = np.array([1, 1, 2, 4]), np.array([0.5, 1.5, 1.5, 9.0])
    >>> cf.histogram2d(x, y, bins=[[0, 2, 4], [0, 1, 2]], device="cpu")
    (array([[1., 1.],
           [0., 1.]]), array([0, 2, 4]), array([0, 1, 2]))
    """
    check_eager("histogram2d", bins=bins, range=range)
    each = bins if _is_number(bins) or len(bins) in (1, 2) else [bins, bins]

    def arranged(hist: Any, edges: list[Any]) -> Any:
        return hist, *edges

    return _histogram("histogram2d", [x, y], each, range, density, weights, chunks, Options(**options), arranged)


@operation
def histogramdd(
    sample: Any,
    bins: Any = 10,
    range: Any = None,
    density: bool | None = None,
    weights: Any = None,
    *,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass:
    """Histogram of several variables, as `numpy.histogramdd`.

    All arrays are read in one pass. With a number of bins and without `range`, a pass before finds the smallest and
    the largest elements; of expressions the edges are then expressions too.

    Parameters
    ----------
    sample : array_like, str, path or sequence of them
        A source of shape (N, D), as for `chunkflow.map`: N points of D variables. Or a list with a source for each
        variable, all of one shape, which may have several dimensions.
    bins : int or sequence
        Number of bins of equal width for all variables, or for each one a number or edges.
    range : sequence of (float, float), optional
        Lowest and highest edge of each variable, or None for its extremes; elements outside are left out.
    density : bool, optional
        Whether the result is the density, of which the integral over the bins is 1.
    weights : array_like, str or path, optional
        Real source of shape (N,), or that of the variables: what each point adds to its bin, instead of 1.
    out : array, str, path or None
        As for `chunkflow.map`; it takes the counts.

    Returns
    -------
    hist : array
        Float64, with an axis for each variable: `out`, opened where it was a path.
    edges : list of numpy.ndarray
        Of the bins of each variable, one more than there are bins.

    Raises
    ------
    ArgumentError
        Arrays of different shapes, bins that do not increase or not one entry for each variable, a range that is not
        finite.
    ArgumentTypeError
        Complex arrays, bins that are no numbers.
    BudgetError
        Not even the smallest block, with the counts, fits the budget.

    Examples
    --------
    >>> points = np.array([[1.0, 0.5, 3.0], [2.0, 0.5, 1.0], [2.0, 0.5, 1.0]])
    >>> hist, edges = cf.histogramdd(points, bins=(2, 1, 2), device="cpu")
    >>> hist.tolist(), edges[0]
    ([[[0.0, 1.0]], [[2.0, 0.0]]], array([1. , 1.5, 2. ]))
    """
    check_eager("histogramdd", bins=bins, range=range)

    def arranged(hist: Any, edges: list[Any]) -> Any:
        return hist, edges

    return _histogram("histogramdd", sample, bins, range, density, weights, chunks, Options(**options), arranged)


@dataclass(frozen=True)
class Variables:
    """How blocks hold the variables of points: in one array of shape (N, D), or in D of one shape; the common dtype."""

    points: Shape
    number: int
    dtype: np.dtype
    in_columns: bool

    @property
    def arrays(self) -> int:
        """Number of arrays before the weights."""
        return 1 if self.in_columns else self.number

    def of(self, blocks: Sequence[Any]) -> list[Any]:
        """The variables of a block, in their common dtype."""
        columns = list(blocks[0].T) if self.in_columns else blocks[: self.arrays]
        return [numbers(column.astype(self.dtype, copy=False)) for column in columns]

    def folded(self, tally: Tally, chunks: Chunks, copies: float) -> Callable[..., Declared]:
        """Declare a fold over all points, whose blocks have all variables."""

        def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
            names = [tuple(range(len(spec.shape))) for spec in specs]
            op, _ = spanned((), [(n, s.shape) for n, s in zip(names, specs, strict=True)], {}, whole=False)
            block = block_sides(chunks, self.points)
            if self.in_columns:
                op, block = replace(op, whole=frozenset({1})), None if block is None else (*block, None)
            return Declared(op, tally, (None,), block, copies=copies)

        return declare


def _variables(name: str, sample: Any) -> tuple[list[Any], Variables]:
    """Arrays of a sample, and how they hold the variables."""
    if isinstance(sample, list | tuple) and not all(map(is_scalar, sample)):
        arrays = [np.asarray(a) if isinstance(a, list | tuple) else a for a in sample]
    else:
        arrays = [np.asarray(sample) if isinstance(sample, list | tuple) else sample]
    specs = [stores.spec_of(a) for a in arrays]
    shape, number, in_columns = specs[0].shape, len(arrays), False
    if any(spec.shape != shape for spec in specs):
        raise ArgumentError(f"{name}: arrays have the shapes {', '.join(str(s.shape) for s in specs)}: give one shape")
    if not isinstance(sample, list | tuple) and len(shape) > 1:
        if len(shape) > 2:
            raise ArgumentError(
                f"{name}: sample has the shape {shape}: it is (N, D), or a list with an array of each variable"
            )
        number, in_columns = shape[1], True
    dtype = np.result_type(*(spec.dtype for spec in specs))
    if dtype.kind == "c":
        raise ArgumentTypeError(f"{name}: arrays are complex ({dtype}), and bins need an order: take real parts, say")
    return arrays, Variables(shape[:1] if in_columns else shape, number, dtype, in_columns)


def _histogram(
    name: str,
    sample: Any,
    bins: Any,
    range: Any,
    density: bool | None,
    weights: Any,
    chunks: Chunks,
    options: Options,
    arranged: Callable[[Any, list[Any]], Any],
) -> MultiPass:
    sources, variables = _variables(name, sample)
    each = [bins] * variables.number if _is_number(bins) else list(bins)
    between = [None] * variables.number if range is None else list(range)
    for argument, given in (("bins", each), ("range", between)):
        if len(given) != variables.number:
            raise ArgumentError(
                f"{name}: {argument} has {len(given)} entries, and there are {variables.number} variables: give one "
                "for each"
            )
    weights = np.asarray(weights) if isinstance(weights, list | tuple) else weights
    if weights is not None:
        wspec = stores.spec_of(weights)
        if wspec.shape != variables.points:
            raise ArgumentError(f"{name}: weights have the shape {wspec.shape}, and points {variables.points}")
        if not np.can_cast(wspec.dtype, "f8", "safe"):
            raise ArgumentTypeError(f"{name}: weights are of {wspec.dtype}, which float64 does not hold: convert them")
    dtype = numbers(np.empty(0, variables.dtype)).dtype
    edges = [_edges(name, dtype, b, r) for b, r in zip(each, between, strict=True)]
    shape = tuple(len(e) - 1 for e in edges)
    check_room(math.prod(shape), f"bins={bins!r}")
    unknown = [i for i, (b, r) in enumerate(zip(each, between, strict=True)) if r is None and np.ndim(b) == 0]
    unknown = unknown if math.prod(variables.points) else []
    block_sides(chunks, variables.points)
    target = stores.open_target(options.out, overwrite=options.overwrite)
    target.describe(shape, np.dtype("f8"), None)
    arrays = [*sources, *([] if weights is None else [weights])]

    def found(ends: Sequence[Any]) -> list[np.ndarray]:
        """All edges, given pairs of extremes for those that are not known before."""
        some = list(edges)
        for i, pair in zip(unknown, ends, strict=True):
            some[i] = _edges(name, dtype, each[i], tuple(dtype.type(end) for end in pair))
        return some

    def counted(edges: list[np.ndarray], arrays: Sequence[Any], at: Options) -> Request:
        return Request(variables.folded(_boxes(variables, edges, density), chunks, HISTOGRAM), arrays, at)

    def run() -> Any:
        some = edges
        if unknown:
            tally = Tally(lambda *blocks: _extremes(variables.of(blocks)), _outermost)
            ends = execute(Request(variables.folded(tally, chunks, 3.0), sources, in_memory(options)))
            pairs = [(ends[2 * i][0], ends[2 * i + 1][0]) for i in unknown]
            some = found([supposed_range(dtype)] * len(unknown) if is_dry() else pairs)
        flat = execute(counted(some, arrays, in_memory(options)))
        return arranged(flat if is_dry() else stored(flat.reshape(shape), target, options), some)

    def expressions(array: Callable[[Node], Any]) -> Any:
        length = math.prod(shape)
        if not unknown:
            node: Node = op_node(counted(edges, arrays, options), name)
            return arranged(array(reshaped(node, shape)), edges)
        first = [array(node_of(a)) for a in sources]
        columns = [first[0][:, i] if variables.in_columns else first[i] for i in unknown]
        ends = [extreme(column) for column in columns for extreme in (least, greatest)]

        def run_later(*given: Any, **kwargs: Any) -> Any:
            at, ends = Options(**kwargs), given[: 2 * len(unknown)]
            if is_dry():
                pairs: list[Any] = [supposed_range(dtype)] * len(unknown)
            else:
                values = values_of(ends, at)
                pairs = list(zip(values[::2], values[1::2], strict=True))
            return execute(counted(found(pairs), given[2 * len(unknown) :], at))

        def unrolled() -> Node:
            def between(ends: Sequence[Any]) -> list[np.ndarray]:
                return found([ends_of(*pair, dtype=dtype) for pair in zip(ends[::2], ends[1::2], strict=True)])

            tally = _boxes_between(variables, between, shape, weights is not None)
            of = (*[array(node_of(a)) for a in arrays], *ends)
            counts = array(op_node(Request(variables.folded(tally, chunks, HISTOGRAM), of, Options()), name))
            if not density:
                return node_of(counts)
            hist = counts.reshape(shape)
            for axis, places in enumerate(lazy):
                hist = hist / np.diff(places).reshape([-1 if a == axis else 1 for a in np.arange(len(shape)).tolist()])
            return node_of((hist / counts.sum()).reshape(-1))

        nodes = [node_of(a) for a in (*ends, *arrays)]
        told = ArraySpec(name, (length,), np.dtype("f8"))
        flat = MultiPassNode(name, run_later, nodes, told, streams=True, unroll=unrolled)
        lazy: list[Any] = list(edges)
        for place, i in enumerate(unknown):
            low, high = ends[2 * place : 2 * place + 2]
            given = {"bins": int(each[i]), "dtype": dtype, "name": name}
            lazy[i] = applied(edges_at, (np.arange(len(edges[i])), low, high), {}, given)
        return arranged(array(reshaped(flat, shape)), lazy)

    return MultiPass(arrays, run, options, expressions=expressions)


def edges_at(places: Any, low: Any, high: Any, bins: int, dtype: np.dtype, name: str) -> Any:
    """The edges at some places between the extremes of a variable."""
    return np.asarray(_edges(name, dtype, bins, ends_of(low, high, dtype)), like=places)[places]


def _is_number(bins: Any) -> bool:
    return is_scalar(bins) or (hasattr(bins, "ndim") and bins.ndim == 0)


def _edges(name: str, dtype: np.dtype, bins: Any, range: Any) -> np.ndarray:
    """Edges of a variable's bins, as NumPy makes them; its errors under our names."""
    if isinstance(bins, int | np.integer):
        check_room(int(bins), f"bins={bins!r}")
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return finite(np.histogramdd(np.empty((0, 1), dtype), [bins], [range])[1][0], bins)
    except ValueError as error:
        raise ArgumentError(f"{name}: bins={bins!r}, range={range!r}: {error}") from None
    except TypeError as error:
        raise ArgumentTypeError(f"{name}: bins={bins!r}, range={range!r}: {error}") from None


def _boxes(variables: Variables, edges: list[np.ndarray], density: bool | None, number: int | None = None) -> Tally:
    """Counts of the points in each box, or in the first `number` ones."""
    shape = tuple(len(e) - 1 for e in edges)
    every = math.prod(shape) if number is None else number

    def count(*blocks: Any) -> Value:
        weights = blocks[-1].astype("f8", copy=False) if len(blocks) > variables.arrays else None
        return (counts_in_boxes(variables.of(blocks), edges, weights, every),)

    def result(value: Value) -> Any:
        hist = value[0].astype("f8", copy=False)
        if not density or number is not None:
            return hist
        total, hist = hist.sum(), hist.reshape(shape)
        with np.errstate(all="ignore"):  # nothing may have been counted
            for axis, ends in enumerate(edges):
                wide = np.diff(ends).reshape(tuple(-1 if a == axis else 1 for a in np.arange(len(shape)).tolist()))
                hist = hist / np.asarray(wide, like=hist)
            return (hist / total).reshape(-1)

    return Tally(count, result=result, number=every, fewer=lambda few: _boxes(variables, edges, density, few))


def _boxes_between(
    variables: Variables, edges: Callable[[Sequence[Any]], list[np.ndarray]], shape: Shape, weighted: bool
) -> Tally:
    """The same, where the last blocks are extremes of variables, which tell the `edges`."""

    def count(*blocks: Any) -> Value:
        known = variables.arrays + weighted
        weights = blocks[known - 1].astype("f8", copy=False) if weighted else None
        return (counts_in_boxes(variables.of(blocks), edges(blocks[known:]), weights, math.prod(shape)),)

    return Tally(count, result=lambda value: value[0].astype("f8", copy=False))


def _extremes(columns: Sequence[Any]) -> Value:
    return tuple([end for column in columns for end in extremes(column)])


def _outermost(left: Value, right: Value) -> Value:
    pairs = [outermost(left[i : i + 2], right[i : i + 2]) for i in np.arange(0, len(left), 2).tolist()]
    return tuple([end for pair in pairs for end in pair])
