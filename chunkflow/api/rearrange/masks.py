"""Elements where a mask holds, and the places of these: what `numpy.extract`, `nonzero` and the like give.

A mask may be an array of any size. It is gone through once, and a bit is kept for each of its elements. Then it is
known how many are wanted, and a second pass reads these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from chunkflow.api.operation import ChunkedRunOptions, MultiPass, Options, Request, execute
from chunkflow.api.rearrange.move import moved, rearrangement
from chunkflow.api.rearrange.take import compress
from chunkflow.errors import ArgumentError
from chunkflow.graph.indexing import indexed
from chunkflow.graph.masks import Marked, counted
from chunkflow.graph.masks import nonzero as is_nonzero
from chunkflow.graph.masks import places as places_of
from chunkflow.graph.nodes import Lazy, Node, first_lazy, node_of
from chunkflow.stores import spec_of
from chunkflow.stores.views.marked import Marks, WantedPlaces


@rearrangement
def extract(condition: Any, arr: Any, **options: Unpack[ChunkedRunOptions]) -> Request | MultiPass:
    """Take the elements where a condition holds, as `numpy.extract`: in C order, in one dimension.

    The condition is gone through first, and a bit kept for each of its elements: in memory if that is little of the
    budget, else in a temporary file. Then only chunks that hold a wanted element are read.

    Parameters
    ----------
    condition : array_like, str or path
        A source, or an expression, of the shape of `arr`; elements other than zero are taken. One of another shape is
        to be in memory, and both are then meant in C order.
    arr : array_like, str or path
        The array: see `chunkflow.open`.

    Returns
    -------
    array
        Of one dimension. Where an argument is an expression it is one too, and `condition` is computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A condition that is not in memory, of another shape than `arr`; as for `copy`.

    Examples
    --------
    >>> x = np.arange(6).reshape(2, 3)
    >>> cf.extract(x % 2 == 0, x, device="cpu")
    array([0, 2, 4])
    >>> lazy = cf.open(x)
    >>> lazy[lazy > 2].sum().compute(device="cpu")
    np.int64(12)
    """
    shape, wanted = spec_of(arr).shape, spec_of(condition).shape
    if shape != wanted or not shape:
        if isinstance(condition, Lazy) or not hasattr(condition, "__array__"):
            raise ArgumentError(f"a condition of shape {wanted} for an array of shape {shape}: reshape one of them")
        return compress.__wrapped__(condition.reshape(-1), arr, None, **options)  # type: ignore[attr-defined, no-any-return]

    def expressions(kind: Callable[[Node], Any]) -> Any:
        return kind(indexed(node_of(arr), kind(is_nonzero(node_of(condition)))))

    return _marked(condition, (condition, arr), lambda marks: Marked([arr], marks, 0), Options(**options), expressions)


@rearrangement
def flatnonzero(a: Any, **options: Unpack[ChunkedRunOptions]) -> MultiPass:
    """Places of the elements that are not zero, as `numpy.flatnonzero`: of the flattened array, in C order.

    The array is read once. A bit is kept for each element, in memory if that is little of the budget, else in a
    temporary file.

    Parameters
    ----------
    a : array_like, str or path
        The array: see `chunkflow.open`. An expression is computed at once.

    Returns
    -------
    array of int64
        Of one dimension.

    Examples
    --------
    >>> cf.flatnonzero(np.array([[0, 5], [7, 0]]), device="cpu")
    array([1, 2])
    """
    if not spec_of(a).shape:
        raise ArgumentError("flatnonzero of an array without dimensions: give one of 1 at least")
    return _places(a, Options(**options), axes=False)


@rearrangement
def argwhere(a: Any, **options: Unpack[ChunkedRunOptions]) -> MultiPass:
    """Places of the elements that are not zero along each axis, as `numpy.argwhere`.

    The array is read once. A bit is kept for each element, in memory if that is little of the budget, else in a
    temporary file.

    Parameters
    ----------
    a : array_like, str or path
        The array: see `chunkflow.open`. An expression is computed at once.

    Returns
    -------
    array of int64
        A row for each such element, in C order, with its place along each axis.

    Examples
    --------
    >>> cf.argwhere(np.array([[0, 5], [7, 0]]), device="cpu")
    array([[0, 1],
           [1, 0]])
    """
    if not spec_of(a).shape:
        raise ArgumentError("argwhere of an array without dimensions: give one of 1 at least")
    return _places(a, Options(**options), axes=True)


def nonzero(a: Any) -> tuple[Any, ...]:
    """As `numpy.nonzero`, of an expression: one of places for each axis."""
    found = argwhere(a)
    return tuple(found[:, axis] for axis in range(len(spec_of(a).shape)))


def _places(a: Any, options: Options, *, axes: bool) -> MultiPass:
    def expressions(kind: Callable[[Node], Any]) -> Any:
        return kind(places_of(counted(is_nonzero(node_of(a)), Options()), axes=axes))

    return _marked(a, (a,), lambda marks: WantedPlaces(marks, axes=axes), options, expressions)


def _marked(
    mask: Any,
    arrays: tuple[Any, ...],
    view: Callable[[Marks], Any],
    options: Options,
    expressions: Callable[[Callable[[Node], Any]], Any],
) -> MultiPass:
    """Two passes: one that counts, and one that moves what a view of the marks has."""

    def run() -> Any:
        count = Options(budget=options.budget, device=options.device, progress=options.progress)
        return execute(moved(view(counted(is_nonzero(node_of(mask)), count)), options))

    return MultiPass(arrays, run, options, expressions=expressions if first_lazy(*arrays) is not None else None)
