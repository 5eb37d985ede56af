"""Lazy arrays of sources: where expressions begin."""

from __future__ import annotations

from typing import Any

from chunkflow.errors import ArgumentTypeError
from chunkflow.graph import Leaf
from chunkflow.lazy import Array


def open(source: Any) -> Array:
    """Open an array of any size as an expression, from which others are made. Nothing is read yet.

    Parameters
    ----------
    source : array_like, str or path
        A source, as for `chunkflow.map`.

    Returns
    -------
    Array
        To be used as a NumPy array is.

    Raises
    ------
    SourceNotFoundError, ArgumentError, ArgumentTypeError
        There is no such array, or it is of a kind that cannot be read.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.arange(12.0).reshape(3, 4))
    >>> np.sqrt(x).sum(axis=0).compute(device="cpu").shape
    (4,)
    """
    return source if isinstance(source, Array) else Array(Leaf(source))


def from_dask(array: Any) -> Array:
    """As `open`, for a dask array alone: its blocks are computed as they are read, by the caller's scheduler.

    As many are computed at once as a run reads ahead. Where the expression becomes a graph of tasks
    (`Array.to_dask`, ``dask.compute``), they are part of it.

    Raises
    ------
    ArgumentTypeError
        It is no dask array, or its shape is not known.

    Examples
    --------
    >>> import dask.array as da, chunkflow as cf
    >>> (cf.from_dask(da.arange(10, chunks=5)) ** 2).sum().compute(device="cpu")
    np.int64(285)
    """
    if not hasattr(array, "__dask_graph__") or isinstance(array, Array):
        raise ArgumentTypeError(f"from_dask takes a dask array, not a {type(array).__name__}: see open")
    return open(array)
