"""Exact quantiles, with NumPy's names, arguments, methods and results.

Where lines along the reduced axes fit a block, and `chunks` does not cut them, the array is read once and each line
is partitioned. Otherwise order statistics are found digit by digit. The first pass counts how often each pattern of the
highest bits occurs. The counts give these bits of every order statistic, and its rank among the elements that share
them. The next passes do the same for the lower bits. This is a radix selection, with counting in place of moving (D. E.
Knuth, "The Art of Computer Programming" 3, 1998, section 5.2.5).

A pass determines sixteen bits of a single line, and fewer if the budget does not hold the counts. These say, too, how
many elements begin with the bits that are known: once they take a small part of the budget, the next pass gathers them
and is the last one. So numbers of 64 bits take two passes as a rule, and four if most of them begin alike; of 32 bits
two; of 16 bits one. A pass determines eight bits of each of several lines. Where an error is allowed (`approx`) the low
bits of the mantissa are left out, and up to twenty bits take one pass.

Of all elements of a long array in memory, or of a file without chunks, a sample is read first: about one in 256, in
short strips. It tells between which elements each order statistic likely lies. If few enough do, one pass gathers these
and counts those below, and is the last one, unless the sample was wrong (`chunkflow.api.statistics.sampled`).

As tasks of dask's (`chunkflow.Array.to_dask`) they are counted to the last bit, whatever the budget is: in four passes
of numbers of 64 bits.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    MultiPass,
    Options,
    Request,
    RunOptions,
    check_eager,
    family,
)
from chunkflow.api.reductions.request import Axis, reduced_axes
from chunkflow.api.statistics.order_statistics import (
    Make,
    check_numbers,
    checked_q,
    median_of,
    of_nothing,
    of_whole_lines,
    quantile_of,
    reduced,
)
from chunkflow.api.statistics.quantile_graph import counted
from chunkflow.api.statistics.weighted_quantile import weighted
from chunkflow.api.stencil.windows import Slid, declare_windows, slid
from chunkflow.core.axes import as_axes
from chunkflow.core.unknown import is_known
from chunkflow.core.windows import Windows
from chunkflow.errors import ArgumentError
from chunkflow.kernels.statistics.quantile import WholeLines
from chunkflow.kernels.stencil.window_ranks import LONGEST, ByRank
from chunkflow.kernels.stencil.windows import ByLine
from chunkflow.stores import spec_of

quantile_operation = family(
    """Quantiles of an array along axes.

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`, of real numbers.
    axis : int or sequence of int, optional
        Along which; all by default.
    method : str
        One of NumPy's: nine from Hyndman and Fan, "Sample quantiles in statistical packages", The American
        Statistician 50(4), 1996, and "lower", "higher", "midpoint", "nearest".
    keepdims : bool
        Whether reduced axes stay, with one element.
    weights : array_like, str or path, optional
        A source of the shape of `x`, or of that of the reduced axes: how often each element counts. For
        ``method="inverted_cdf"``; no block cuts a line then, so the budget must hold one.
    approx : float, optional
        A relative error that is allowed, between 0 and 1, for fewer passes. The elements between which a quantile lies
        are taken with fewer digits: each differs by at most `approx` times its absolute value (below the smallest
        normal number, times that), before they are interpolated. By 0.004 or more, quantiles of all elements take one
        pass, if the budget has 134 MB for each core. What takes one pass anyway is exact, and so are tasks of dask's.
    overwrite_input : bool
        NumPy's, which has no effect: `x` is never written to.

    Returns
    -------
    array or scalar
        One quantile, or along a first axis all of them: `out`, opened where it was a path. NaN where a line has
        a NaN.

    Raises
    ------
    ArgumentError
        `q` beyond its range or of several dimensions, an unknown method, lines without elements, a bad axis;
        weights of another shape or with another method, negative ones, or of a line all zero.
    ArgumentTypeError
        Complex numbers, which have no order; bools, with a method that interpolates; `q` that is no number.
    BudgetError
        Not even the smallest block, with the counts, fits the budget.
    """
)


@quantile_operation
def quantile(
    x: Any,
    q: Any,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    approx: float | None = None,
    overwrite_input: bool = False,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass | Request:
    """Exact quantiles of all elements, or along axes.

    Equal to ``numpy.quantile`` to the bit, also where it takes the difference of two integers in their own dtype, which
    wraps around if they are far apart: convert integers to floats first if they may be. Where zeros of both signs are
    among the data, NumPy leaves open which of them comes first; in several passes it is the negative one.

    Parameters
    ----------
    q : float or sequence of float
        Which quantiles, from 0 to 1.

    Examples
    --------
    >>> x = np.array([[10, 7, 4], [3, 2, 1]])
    >>> cf.quantile(x, 0.5, device="cpu")
    np.float64(3.5)
    >>> cf.quantile(x, [0, 0.5], axis=0, device="cpu")
    array([[3. , 2. , 1. ],
           [6.5, 4.5, 2.5]])
    """
    return _asked("quantile", x, q, 1, axis, method, keepdims, weights, approx, chunks, Options(**options))


@quantile_operation
def percentile(
    x: Any,
    q: Any,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    approx: float | None = None,
    overwrite_input: bool = False,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass | Request:
    """Exact percentiles of all elements, or along axes: quantiles, with `q` from 0 to 100.

    Parameters
    ----------
    q : float or sequence of float
        Which percentiles, from 0 to 100.

    Examples
    --------
    >>> cf.percentile(np.arange(11.0), [10, 99], method="nearest", device="cpu")
    array([ 1., 10.])
    """
    return _asked("percentile", x, q, 100, axis, method, keepdims, weights, approx, chunks, Options(**options))


@quantile_operation
def median(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    overwrite_input: bool = False,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass | Request:
    """Exact median of all elements, or along axes, as ``numpy.median``.

    Returns
    -------
    array or scalar
        The element in the middle or the mean of the two there: `out`, opened where it was a path. NaN where a line
        has a NaN, or no element.

    Examples
    --------
    >>> cf.median(np.array([[10, 7, 4], [3, 2, 1]]), axis=1, device="cpu")
    array([7., 2.])
    """
    return _quantiles("median", median_of, x, axis, keepdims, chunks, Options(**options))


@quantile_operation
def nanquantile(
    x: Any,
    q: Any,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    approx: float | None = None,
    overwrite_input: bool = False,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass | Request:
    """Exact quantiles of the elements that are not NaN, as `numpy.nanquantile`; see `quantile`.

    It takes as many passes as `quantile`: the first one finds how many numbers each line has.

    Parameters
    ----------
    q : float or sequence of float
        Which quantiles, from 0 to 1.

    Returns
    -------
    array or scalar
        As of `quantile`; NaN where all of a line is NaN, or where it has no element.

    Examples
    --------
    >>> x = np.array([[10, 7, 4], [3, np.nan, 1]])
    >>> cf.nanquantile(x, 0.5, axis=1, device="cpu")
    array([7., 2.])
    """
    return _asked(
        "nanquantile", x, q, 1, axis, method, keepdims, weights, approx, chunks, Options(**options), skip=True
    )


@quantile_operation
def nanpercentile(
    x: Any,
    q: Any,
    axis: Axis = None,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: Any = None,
    approx: float | None = None,
    overwrite_input: bool = False,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass | Request:
    """Exact percentiles of the elements that are not NaN, as `numpy.nanpercentile`; see `nanquantile`.

    Parameters
    ----------
    q : float or sequence of float
        Which percentiles, from 0 to 100.

    Returns
    -------
    array or scalar
        As of `percentile`; NaN where all of a line is NaN, or where it has no element.

    Examples
    --------
    >>> cf.nanpercentile(np.array([np.nan, 1.0, 5.0, 2.0]), [0, 50], device="cpu")
    array([1., 2.])
    """
    return _asked(
        "nanpercentile", x, q, 100, axis, method, keepdims, weights, approx, chunks, Options(**options), skip=True
    )


@quantile_operation
def nanmedian(
    x: Any,
    axis: Axis = None,
    keepdims: bool = False,
    *,
    overwrite_input: bool = False,
    chunks: Chunks = None,
    **options: Unpack[RunOptions],
) -> MultiPass | Request:
    """Exact median of the elements that are not NaN, as `numpy.nanmedian`; see `median`.

    Returns
    -------
    array or scalar
        As of `median`; NaN where all of a line is NaN, or where it has no element.

    Examples
    --------
    >>> cf.nanmedian(np.array([[10, np.nan, 4], [3, 2, 1]]), axis=1, device="cpu")
    array([7., 2.])
    """
    make = functools.partial(median_of, skip=True)
    return _quantiles("nanmedian", make, x, axis, keepdims, chunks, Options(**options), nan=True)


def _asked(
    name: str,
    x: Any,
    q: Any,
    whole: int,
    axis: Axis,
    method: str,
    keepdims: bool,
    weights: Any,
    approx: float | None,
    chunks: Chunks,
    options: Options,
    *,
    skip: bool = False,
) -> MultiPass | Request:
    """Quantiles `q`, which are from 0 to `whole`; `skip` leaves NaN out."""
    check_eager("quantiles", q=q)
    if approx is not None and not (isinstance(approx, int | float | np.number) and 0 < approx < 1):
        raise ArgumentError(f"approx={approx!r} must be a relative error, a number between 0 and 1")
    make = quantile_of(q, whole, method, skip=skip)
    wanted = checked_q(q, whole)[1]
    if weights is not None:
        found = weighted(x, weights, wanted, method, axis, keepdims, chunks, options, skip=skip)
        if wanted.size and spec_of(x).nbytes:  # an empty result has no weights
            return found
    return _quantiles(name, make, x, axis, keepdims, chunks, options, nan=skip, tolerance=approx, levels=wanted)


def _quantiles(
    name: str,
    make: Make,
    x: Any,
    axis: Axis,
    keepdims: bool,
    chunks: Chunks,
    options: Options,
    *,
    nan: bool = False,
    tolerance: float | None = None,
    levels: np.ndarray | None = None,
) -> MultiPass | Request:
    """Quantiles as passes, within a relative `tolerance`; with `nan` those of lines without elements are NaN.

    `levels` are the coordinates of several quantiles of a labelled array.
    """
    which = None if axis is None or chunks is not None else slid(x, as_axes(axis, "axis"))
    if which is not None:
        return _of_windows(make, type(x)(which.node), which, keepdims, options)

    def spec() -> ArraySpec:
        given = spec_of(x)
        check_numbers(given)
        axes = reduced_axes(axis, len(given.shape))
        kept = [1 if a in axes else n for a, n in enumerate(given.shape) if keepdims or a not in axes]
        wanted = make(given.dtype)
        if not given.size:
            of_nothing(wanted, given, axes, keepdims, nan=nan)  # where there is no result, it is refused at once
        found = np.asarray(wanted.numpys(np.ones(1, given.dtype)))
        return ArraySpec("quantile", (*found.shape, *kept), found.dtype)

    def once() -> Request | None:
        shape = spec_of(x).shape
        axes = reduced_axes(axis, len(shape))
        along_rows = 0 in axes or not is_known(shape[a] for a in axes)
        return None if along_rows else of_whole_lines(make, x, axis, keepdims, chunks, options)

    return MultiPass(
        (x,),
        lambda: reduced(make, x, axis, keepdims, chunks, options, nan=nan, tolerance=tolerance),
        options,
        spec,
        unroll=lambda: counted(make, x, axis, keepdims, name),
        once=once,
        streams=True,
        name=lambda labels, result: labels.reduced(result, axis, levels),
    )


def _of_windows(make: Make, x: Any, which: Slid, keepdims: bool, options: Options) -> Request:
    """Quantiles of windows: each long one is copied to a line of its own."""
    given = spec_of(x)
    check_numbers(given)
    wanted, number = make(given.dtype), math.prod(which.windows.widths)
    lines = WholeLines(wanted.rule(number), which.windows.dims, wanted.single, False, wanted.of_lines)
    first = () if wanted.single else (None,)

    def of(spec: ArraySpec, windows: Windows) -> ByRank | ByLine:
        return ByRank(lines, windows) if 0 < number <= LONGEST else ByLine(lines, windows)

    return Request(declare_windows(of, which, keepdims, first), (x,), options)
