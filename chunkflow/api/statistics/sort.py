"""Sorting along an axis, with NumPy's names, arguments and results: blocks have whole lines, or pieces are merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import MultiPass, Options, Request, RunOptions, check_eager, family, operation
from chunkflow.api.rearrange.move import flat, one_axis
from chunkflow.api.statistics.merge_sort import is_long, merged
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy, has_lazy, node_of
from chunkflow.graph.reshaping import reshaped
from chunkflow.kernels.declare import declare_blockwise
from chunkflow.kernels.statistics.sorting import of_lines
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of

sorting = family(
    """Sorted lines along an axis.

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`.
    axis : int, optional
        Along which; None for the flattened array, in C order.
    kind : str, optional
        NumPy's "quicksort", "mergesort", "heapsort" or "stable". A GPU's is always stable.
    order : None
        NumPy's, for arrays with fields.
    stable : bool, optional
        Whether equal elements keep their order, instead of `kind`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, an unknown `kind`, or both `kind` and `stable`.
    BudgetError
        The budget does not do for the shortest runs that lines are merged of: it names the one that does.
    """
)


@sorting
def sort(
    x: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: None = None,
    *,
    stable: bool | None = None,
    **options: Unpack[RunOptions],
) -> Request | MultiPass:
    """Sort each line along an axis, as `numpy.sort`: NaN come last.

    A block has whole lines. Lines that do not fit the budget are sorted in pieces, which are kept in memory where the
    result is, else in temporary files beside it, and merged. On a GPU negative zeros may come before the others, even
    if `stable`.

    Returns
    -------
    array
        In the shape of `x`, or of one dimension: `out`, opened where it was a path.

    Examples
    --------
    >>> cf.sort(np.array([[3.0, np.nan, 1.0], [2.0, 9.0, 4.0]]), device="cpu")
    array([[ 1.,  3., nan],
           [ 2.,  4.,  9.]])
    """
    return _of_lines(np.sort, x, axis, {"kind": kind, "order": order, "stable": stable}, Options(**options))


@sorting
def argsort(
    x: Any,
    axis: int | None = -1,
    kind: str | None = None,
    order: None = None,
    *,
    stable: bool | None = None,
    **options: Unpack[RunOptions],
) -> Request | MultiPass:
    """Places of the elements of each line along an axis in sorted order, as `numpy.argsort`.

    `chunkflow.take_along_axis` takes the elements of this and of other arrays in that order.

    Returns
    -------
    array
        Integers (``numpy.intp``) in the shape of `x`, or of one dimension: `out`, opened where it was a path.

    Examples
    --------
    >>> cf.argsort(np.array([[3.0, np.nan, 1.0], [2.0, 9.0, 4.0]]), device="cpu")
    array([[2, 0, 1],
           [0, 2, 1]])
    """
    return _of_lines(np.argsort, x, axis, {"kind": kind, "order": order, "stable": stable}, Options(**options))


@operation
def partition(
    x: Any,
    kth: Any,
    axis: int | None = -1,
    kind: str = "introselect",
    order: None = None,
    **options: Unpack[RunOptions],
) -> Request | MultiPass:
    """As `numpy.partition`; lines that do not fit the budget are sorted."""
    return _of_lines(np.partition, x, axis, {"kth": kth, "kind": kind, "order": order}, Options(**options))


@operation
def argpartition(
    x: Any,
    kth: Any,
    axis: int | None = -1,
    kind: str = "introselect",
    order: None = None,
    **options: Unpack[RunOptions],
) -> Request | MultiPass:
    """As `numpy.argpartition`; lines that do not fit the budget are sorted."""
    return _of_lines(np.argpartition, x, axis, {"kth": kth, "kind": kind, "order": order}, Options(**options))


def _of_lines(
    fn: Callable[..., Any], x: Any, axis: int | None, how: dict[str, Any], options: Options
) -> Request | MultiPass:
    """What one of NumPy's functions gives of each line, with these arguments."""
    if axis is None:
        x, axis = type(x)(reshaped(node_of(x), (-1,))) if isinstance(x, Lazy) else flat(x), 0
    spec = spec_of(x)
    shape, dtype = spec.shape, spec.dtype.newbyteorder("=")
    along = one_axis(axis, len(shape))
    n = shape[along]
    _check(fn, n, dtype, how)

    places = fn in (np.argsort, np.argpartition)
    order = {"kind": None, "order": None, "stable": None} if "kth" in how else how  # in order is partitioned anywhere

    def several(options: Options) -> Callable[..., Any] | None:
        return run if is_long(spec, along, options, of_expression=has_lazy(x)) else None

    def run(x: Any, **running: Any) -> Any:
        passes = merged(x, along, order, Options(**running), places=places)
        return passes.plan_all() if is_dry() else passes.run()

    if not has_lazy(x) and several(options) is not None:
        return merged(x, along, order, options, places=places)
    names = tuple(range(len(shape)))
    line, sorted_line = ((*names[:along], name, *names[along + 1 :]) for name in ("line", "sorted"))
    given = {"fn": fn, "axis": along, "how": how}
    declare, arrays = declare_blockwise(of_lines, given, sorted_line, (x, line), None, {"sorted": n})
    result = np.dtype(np.intp) if places else dtype
    return Request(declare, arrays, replace(options, dtype=result), shapes_only=True, several=several)


def _check(fn: Callable[..., Any], length: int, dtype: np.dtype, how: dict[str, Any]) -> None:
    """Refuse what NumPy refuses of a line of this length."""
    check_eager(fn.__name__, kth=how.get("kth"))
    kth = elements_of(how.get("kth", 0))
    try:
        few = how if "kth" not in how else how | {"kth": 0}
        fn(np.zeros(1, dtype), **few)
    except (ValueError, TypeError) as error:
        raise (ArgumentTypeError if isinstance(error, TypeError) else ArgumentError)(str(error)) from None
    if "kth" not in how:
        return
    if kth.dtype.kind not in "iu" or kth.ndim > 1:
        raise ArgumentTypeError(f"kth={how['kth']!r} must be an int, or a sequence of them")
    if length and not ((kth >= -length) & (kth < length)).all():
        raise ArgumentError(f"kth={how['kth']!r} is out of bounds: lines have {length} elements")
