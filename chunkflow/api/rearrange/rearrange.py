"""Copies from store to store, and NumPy's functions that move elements and compute nothing.

Blocks keep the chunks of the output whole, and those of the source where the budget allows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.operation import (
    ArraySpec,
    ChunkedRunOptions,
    Chunks,
    Options,
    PlacedOptions,
    Request,
    check_eager,
    description_of,
)
from chunkflow.api.rearrange.move import Arranged, Composition, check_order, flat, moved, one_axis, rearrangement
from chunkflow.api.rearrange.take import line_of, picked
from chunkflow.core import arrangement
from chunkflow.core.axes import as_axes, normalize_axes, ordered_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of

LONGEST_ROW = 64 << 10
"""Bytes of the longest rows that blocks hold whole so that a device flips them."""


@rearrangement
def copy(
    x: Any, out: Any = None, *, order: str = "K", chunks: Chunks = None, **options: Unpack[PlacedOptions]
) -> Request:
    """Copy an array into another store, format or chunk shape; its dtype is kept.

    Each byte is written once, and read once where a block of whole chunks of both stores fits the budget;
    `chunkflow.rechunk` sees to it where it does not. Among zarr, HDF5 and netCDF a new array keeps attributes
    and names of dimensions, and from HDF5 to HDF5 the filters, unless `chunkflow.NewArray` says others.

    Parameters
    ----------
    order : {"C", "F", "A", "K"}
        NumPy's, which changes no element: results that the run creates are in C order.

    Returns
    -------
    array
        `out`, opened where it was a path; a NumPy array without it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An output of another shape, or of a dtype that cannot hold the elements.

    Examples
    --------
    >>> cf.copy(np.arange(4)[::-1], device="cpu")
    array([3, 2, 1, 0])
    """
    check_order(order)
    return moved(x, Options(out, chunks=chunks, **options))


@rearrangement
def transpose(x: Any, axes: Sequence[int] | None = None, **options: Unpack[ChunkedRunOptions]) -> Request:
    """Permute an array's axes.

    Parameters
    ----------
    axes : sequence of int, optional
        Which axis of `x` each axis of the result is; by default their order is reversed.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `axes` is no permutation of the axes of `x`; as for `copy`.

    Examples
    --------
    >>> cf.transpose(np.arange(6).reshape(2, 3), device="cpu")
    array([[0, 3],
           [1, 4],
           [2, 5]])
    """
    ndim = len(spec_of(x).shape)
    order = tuple(reversed(range(ndim)))
    if axes is not None:
        order = tuple(ordered_axes(axes, ndim, "axes"))
        if len(order) != ndim:
            raise ArgumentError(f"axes={axes!r} must name each of the {ndim} axes once")
    return moved(x, Options(**options), order=order)


@rearrangement
def flip(x: Any, axis: int | Sequence[int] | None = None, **options: Unpack[ChunkedRunOptions]) -> Request:
    """Reverse the order of elements along some axes, all of them by default.

    Parameters
    ----------
    axis : int or sequence of int, optional
        Along which.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, or that is named twice; as for `copy`.

    Examples
    --------
    >>> cf.flip(np.arange(6).reshape(2, 3), axis=1, device="cpu")
    array([[2, 1, 0],
           [5, 4, 3]])
    """

    def arrange(specs: Sequence[ArraySpec]) -> Arranged:
        shape = specs[0].shape
        along = range(len(shape)) if axis is None else normalize_axes(axis, len(shape), "axis")
        axes = [arrangement.flipped(n) if a in along else arrangement.straight(n) for a, n in enumerate(shape)]
        return Arranged(arrangement.Separable(tuple(axes)), specs[0].chunks)

    by_blocks = _flipped_by_blocks if _flips_rows(spec_of(x), axis) else None
    return moved(Composition((x,), arrange, by_blocks=by_blocks), Options(**options))


def _flips_rows(spec: ArraySpec, axis: Any) -> bool:
    """Whether rows are flipped that are no longer than blocks, and nothing else: cores read them from their ends."""
    last = len(spec.shape) - 1
    if last < 1 or axis is None or spec.shape[-1] * spec.dtype.itemsize > LONGEST_ROW:
        return False
    return normalize_axes(axis, last + 1, "axis") == (last,) and spec.dtype.kind in "biufc"


def _flipped_by_blocks(arrays: Sequence[Any]) -> Request:
    """The request of an array whose rows are flipped block by block."""
    (x,) = arrays
    spec = spec_of(x)
    chunks = (*["auto"] * (len(spec.shape) - 1), -1)
    asked = description_of(mapping.map, (_flipped, x), {"chunks": chunks, "dtype": spec.dtype, "workspace": 0.0})
    assert isinstance(asked, Request)
    return asked


def _flipped(block: Any) -> Any:
    return block[..., ::-1].copy()


@rearrangement
def roll(
    x: Any, shift: int | Sequence[int], axis: int | Sequence[int] | None = None, **options: Unpack[ChunkedRunOptions]
) -> Request:
    """Move elements on along axes; those that leave at the end come back at the beginning.

    Parameters
    ----------
    shift : int or sequence of int
        By how many places, for each axis. Without axes several add up.
    axis : int or sequence of int, optional
        Along which; shifts along the same one add up. By default the flattened array is moved, in C order, and has
        its shape again afterwards.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have; shifts and axes of different numbers; as for `copy`.

    Examples
    --------
    >>> x = np.arange(6).reshape(2, 3)
    >>> cf.roll(x, 1, axis=1, device="cpu"), cf.roll(x, 1, device="cpu")
    (array([[2, 0, 1],
           [5, 3, 4]]), array([[5, 0, 1],
           [2, 3, 4]]))
    """

    def arrange(specs: Sequence[ArraySpec]) -> Arranged:
        shape, shifts = specs[0].shape, as_axes(shift, "shift")
        if axis is None:
            return Arranged(arrangement.Carried(shape, sum(shifts) % max(math.prod(shape), 1)), specs[0].chunks)
        axes = [normalize_axes(a, len(shape), "axis")[0] for a in as_axes(axis, "axis")]
        if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
            raise ArgumentError(f"shift={shift!r} and axis={axis!r} must have the same number of entries")
        number = 0 if not (shifts and axes) else max(len(shifts), len(axes))
        sums = [0] * len(shape)
        for i in range(number):
            sums[axes[i % len(axes)]] += shifts[i % len(shifts)]
        made = tuple(arrangement.rolled(n, by) for n, by in zip(shape, sums, strict=True))
        return Arranged(arrangement.Separable(made), specs[0].chunks)

    return moved(Composition((x,), arrange), Options(**options))


@rearrangement
def repeat(
    x: Any, repeats: int | Sequence[int], axis: int | None = None, **options: Unpack[ChunkedRunOptions]
) -> Request:
    """Repeat each element along an axis.

    Parameters
    ----------
    repeats : int or sequence of int
        How often each comes; one number for all, or one for each place along the axis.
    axis : int, optional
        Along which. By default the elements of the flattened array are repeated, in C order.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `repeats` is negative or of no ints, or not as long as the axis; an axis that `x` does not have; as for `copy`.

    Examples
    --------
    >>> cf.repeat(np.array([[1, 2], [3, 4]]), 2, axis=1, device="cpu")
    array([[1, 1, 2, 2],
           [3, 3, 4, 4]])
    """
    check_eager("repeat", repeats=repeats)
    counts = elements_of(repeats)
    if (counts.dtype.kind not in "biu" and counts.size) or counts.ndim > 1 or isinstance(repeats, bool):
        raise ArgumentTypeError(f"repeats={repeats!r} must be an int, or one for each place along the axis")
    counts = counts.astype(np.int64)
    if (counts < 0).any():
        raise ArgumentError(f"repeats={repeats} must be at least 0: it says how often each element comes")
    if counts.size != 1:
        x, along = line_of(x, axis)
        n = spec_of(x).shape[along]
        if len(counts) != n:
            raise ArgumentError(f"{len(counts)} numbers of repeats for {n} places along the axis: give one for each")
        found = Options(**options)
        return moved(picked(x, along, np.repeat(np.arange(n), counts), found), found)
    times = counts.item()

    def arrange(specs: Sequence[ArraySpec]) -> Arranged:
        shape, sides = specs[0].shape, specs[0].chunks
        along = 0 if axis is None else one_axis(axis, len(shape))
        axes = [arrangement.repeated(n, times) if a == along else arrangement.straight(n) for a, n in enumerate(shape)]
        if sides is not None:  # a block then ends with the last of an element's repeats
            sides = tuple(side * max(times, 1) if a == along else side for a, side in enumerate(sides))
        return Arranged(arrangement.Separable(tuple(axes)), sides)

    return moved(Composition((flat(x) if axis is None else x,), arrange), Options(**options))
