"""The largest or smallest elements along an axis, and where they are, with dask's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import (
    ArraySpec,
    Chunks,
    Declare,
    Declared,
    Options,
    Request,
    RunOptions,
    check_int,
    family,
)
from chunkflow.core.axes import normalize_axes
from chunkflow.core.chunking import block_sides
from chunkflow.core.nest import nest
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.statistics.topk import ArgTopK, TopK
from chunkflow.stores import spec_of

selection = family(
    """Largest or smallest elements along an axis.

    Parameters
    ----------
    x : array_like, str or path
        A source, as for `chunkflow.map`.
    k : int
        How many; if negative, the -k smallest. No more come than there are.
    axis : int
        Along which.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        `k` is 0 or no int; an axis that `x` does not have.
    """
)


@selection
def topk(x: Any, k: int, axis: int = -1, *, chunks: Chunks = None, **options: Unpack[RunOptions]) -> Request:
    """Largest elements along an axis, largest first; or the smallest ones, smallest first.

    As in NumPy's sorting NaN comes after every number, so it is among the largest.

    Returns
    -------
    array
        With `k` elements along `axis`: `out`, opened where it was a path.

    Examples
    --------
    >>> x = np.array([5, 1, 3, 6])
    >>> cf.topk(x, 2, device="cpu"), cf.topk(x, -2, device="cpu")
    (array([6, 5]), array([1, 3]))
    """
    # What is kept, what a block adds, both together, and NumPy's sorted copy of them.
    return Request(_along(TopK, k, axis, chunks, 6.0), (x,), Options(**options))


@selection
def argtopk(x: Any, k: int, axis: int = -1, *, chunks: Chunks = None, **options: Unpack[RunOptions]) -> Request:
    """Places of the largest elements along an axis, largest first; or of the smallest ones, smallest first.

    They are the places of what `topk` gives. Of equal elements those that come first are taken, and stand first: of the
    smallest as ``numpy.argsort(x, stable=True)`` has them. NaN are equal, and larger than every number.
    `chunkflow.take_along_axis` takes the elements of this and of other arrays there.

    Returns
    -------
    array
        Integers (``numpy.intp``), with `k` elements along `axis`: `out`, opened where it was a path.

    Raises
    ------
    ArgumentTypeError
        Besides, complex `x`.

    Examples
    --------
    >>> x = np.array([5, 1, 5, 6])
    >>> cf.argtopk(x, 2, device="cpu"), cf.argtopk(x, -2, device="cpu")
    (array([3, 0]), array([1, 0]))
    """
    spec = spec_of(x)
    if spec.dtype.kind == "c":
        raise ArgumentTypeError(f"{spec.name} is complex ({spec.dtype}), which has no order: take its real part, say")
    chosen = replace(Options(**options), dtype=np.dtype(np.intp))
    # Besides, elements of each; the order of places, masks, and what is counted of them.
    return Request(_along(ArgTopK, k, axis, chunks, 18.0), (x,), chosen)


def _along(kind: type[TopK | ArgTopK], k: int, axis: int, chunks: Chunks, copies: float) -> Declare:
    """Declare a selection along an axis; of `copies` see `Declared`."""
    check_int("axis", axis)
    if check_int("k", k) == 0:
        raise ArgumentError("k=0 selects nothing: give k > 0 for the largest elements, k < 0 for the smallest")

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        along = normalize_axes(axis, len(shape), "axis")[0]
        number = min(abs(int(k)), shape[along])
        axes = tuple(None if a == along else a for a in np.arange(len(shape)).tolist())
        kernel = kind(along, number if k > 0 else -number)
        return Declared(nest([shape]), kernel, axes, block_sides(chunks, shape), tiles=False, copies=copies)

    return declare
