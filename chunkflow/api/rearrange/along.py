"""Elements at places that differ from line to line along an axis: what `numpy.take_along_axis` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import ArraySpec, Declared, Options, Request, RunOptions, operation
from chunkflow.api.rearrange.move import Flat, one_axis
from chunkflow.core.cuts import AxisCut, AxisPlaces, AxisSlice
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy, node_of
from chunkflow.graph.reshaping import reshaped
from chunkflow.graph.slicing import Slice, sliced
from chunkflow.kernels.index_notation import spanned
from chunkflow.kernels.taken_along import TakenAlong
from chunkflow.stores import spec_of

FEW = 1 << 10
"""Places along an axis that lines are reduced to: these are held, beside the budget's blocks."""


@operation
def take_along_axis(arr: Any, indices: Any, axis: int | None = -1, **options: Unpack[RunOptions]) -> Request:
    """Take the elements of each line along an axis at places of its own, as `numpy.take_along_axis`.

    It follows what gives places: sorted orders, `argmax` with ``keepdims=True``, the lowest level under the ground. A
    block has lines of `arr` along the axis, whole ones if the budget holds them: places are read again for each of the
    others' parts. Of the lines it has only what places in memory ask for, if these are a thousand at most.

    Parameters
    ----------
    arr : array_like, str or path
        The array: see `chunkflow.open`.
    indices : array_like, str or path
        Places along the axis, integers. Negative ones count from the end. Other axes are broadcast against those of
        `arr`.
    axis : int, optional
        Along which; None for the flattened array, in C order, and `indices` of one dimension.

    Returns
    -------
    array
        In the shape of `indices`, where `arr` is not longer, and the dtype of `arr`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Places that are no integers, arrays of different numbers of dimensions, or that do not broadcast.
    IndexError
        A place outside of the array, when it is read.
    BudgetError
        A chunk does not fit the budget.

    Examples
    --------
    >>> x = np.array([[3, 1, 2], [7, 9, 8]])
    >>> cf.take_along_axis(x, x.argsort(axis=1), axis=1, device="cpu")
    array([[1, 2, 3],
           [7, 8, 9]])
    >>> lazy = cf.open(x)
    >>> np.take_along_axis(lazy, np.argmax(lazy, axis=1, keepdims=True), axis=1).compute(device="cpu")
    array([[3],
           [9]])
    """
    places, shape = spec_of(indices), spec_of(arr).shape
    if places.dtype.kind not in "iu":
        raise ArgumentTypeError(f"indices are of {places.dtype}, and must be integers: convert them")
    if axis is None:
        if len(places.shape) != 1:
            raise ArgumentError(f"axis=None takes indices of 1 dimension, not of {len(places.shape)}")
        if len(shape) != 1:
            arr = type(arr)(reshaped(node_of(arr), (-1,))) if isinstance(arr, Lazy) else Flat([arr])
        axis, shape = 0, spec_of(arr).shape
    if len(shape) != len(places.shape):
        raise ArgumentError(f"indices have {len(places.shape)} dimensions and arr has {len(shape)}: give as many")
    along = one_axis(axis, len(shape))
    for d, (n, other) in enumerate(zip(shape, places.shape, strict=True)):
        if d != along and 1 not in (n, other) and n != other:
            raise ArgumentError(
                f"indices of shape {places.shape} do not broadcast to arr of shape {shape} along axis {d}"
            )
    if isinstance(indices, np.ndarray):
        arr, indices = _those_wanted(arr, indices, along)
        shape = spec_of(arr).shape
    names = tuple(range(len(shape)))
    line = (*names[:along], "line", *names[along + 1 :])

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op, axes = spanned(names, [(line, specs[0].shape), (names, specs[1].shape)], {}, whole=False)
        return Declared(replace(op, looked_up=frozenset({len(names)})), TakenAlong(along), axes)

    return Request(declare, (arr, indices), Options(**options))


def _those_wanted(arr: Any, places: np.ndarray, along: int) -> tuple[Any, np.ndarray]:
    """The lines without what no place asks for, if they ask for little, and the places in what is left."""
    n = spec_of(arr).shape[along]
    counted = places.astype(np.intp)
    counted[counted < 0] += n
    wanted = np.unique(counted) if counted.size else np.zeros(1, np.intp)
    if len(wanted) > min(FEW, n // 2) or wanted[0] < 0 or wanted[-1] >= n:
        return arr, places
    whole = [AxisSlice(0, m, 1) for m in spec_of(arr).shape]
    cuts: list[AxisCut] = [*whole[:along], AxisPlaces(wanted), *whole[along + 1 :]]
    lines = type(arr)(sliced(node_of(arr), cuts)) if isinstance(arr, Lazy) else Slice([arr], tuple(cuts))
    return lines, np.searchsorted(wanted, counted)
