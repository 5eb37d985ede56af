"""Live sources: arrays whose slabs come one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from chunkflow.api.operation import check_int
from chunkflow.errors import ArgumentTypeError
from chunkflow.stores.checks import numeric_dtype
from chunkflow.stores.live import Live, is_queue


def live(
    slabs: Iterable[Any] | Any,
    *,
    frames: bool = False,
    length: int | None = None,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    batch: int | None = None,
) -> Live:
    """An array whose slabs come one after the other: frames of a detector, steps of a simulation.

    It is a source for one pass: of `map`, of reductions, of `copy`, or of the expressions that one `compute` or
    `store` is given (see `open`). Slabs are put together in batches, and each batch is computed before more slabs
    are asked for. Nothing is taken before the pass, but for the first slab, where that has to tell shape and dtype or
    a function is tried on it.

    Parameters
    ----------
    slabs : iterable or queue
        A generator, an iterator, any iterable, or a queue (what has ``get`` and ``put``). Each slab is an array, whose
        first axis is that along which slabs follow one another; all else of their shapes is the same. A queue ends
        with None, or when it is shut down, and an exception that was put into it is raised. What has to be closed at
        the end is a generator's own `finally`: the pass ends it, also where it fails.
    frames : bool
        Whether each slab is a single frame, without that axis.
    length : int, optional
        Of the first axis, if it is known. Then outputs are of this length from the beginning, and appear when all is
        complete, as of other sources. If it is not known, outputs that are zarr arrays or ``.npy`` files grow: after
        each batch they are complete as far as they go, and stay so if a later slab fails.
    shape : sequence of int, optional
        Lengths of the other axes: the shape of a frame. The first slab tells by default.
    dtype : dtype, optional
        Of the elements. The first slab tells by default.
    batch : int, optional
        Most rows of a batch, so that results are there sooner. By default it may have a quarter of the budget (on a GPU
        an eighth of the host's free memory, if that is more), and at most 1 GiB. Where outputs have chunks, it has
        whole ones.

    Returns
    -------
    Live
        The source. The host's memory holds one batch and one slab of it at most.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        What is no iterable of slabs, an array, a wrong length.
        Of the pass: a second one, or an operation that does not take the rows in order.
    ReadError
        Of the pass: a slab of another shape or dtype, or one too many; fewer rows than was said.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> def frames():
    ...     for number in range(5):
    ...         yield np.full((2, 3), number)
    >>> cf.mean(cf.live(frames(), frames=True), axis=(1, 2), device="cpu")
    array([0., 1., 2., 3., 4.])
    >>> x = cf.open(cf.live(frames(), frames=True, length=5))
    >>> cf.compute(x.sum(axis=0), x.max(), device="cpu")
    (array([[10, 10, 10],
           [10, 10, 10]]), np.int64(4))
    >>> _ = cf.map(np.sqrt, cf.live(frames(), frames=True, batch=2), out="roots.zarr", device="cpu")
    """
    if isinstance(slabs, np.ndarray | str | os.PathLike) or hasattr(slabs, "dtype"):
        raise ArgumentTypeError(
            f"live takes a generator, an iterator or a queue of slabs, not a {type(slabs).__name__}: arrays and paths "
            "are sources as they are"
        )
    if not is_queue(slabs) and not hasattr(slabs, "__iter__"):
        called = ": call the function, which gives the generator" if callable(slabs) else ""
        raise ArgumentTypeError(f"live takes an iterable or a queue of slabs, not a {type(slabs).__name__}{called}")
    if not isinstance(frames, bool):
        raise ArgumentTypeError(f"frames={frames!r} must be True or False: whether a slab is one frame")
    known = None if length is None else check_int("length", length, 0)
    most = None if batch is None else check_int("batch", batch, 1)
    if shape is not None and not isinstance(shape, Sequence):
        raise ArgumentTypeError(f"shape={shape!r} must be a tuple: the shape of a frame, without the first axis")
    rest = None if shape is None else tuple(check_int("a side of shape=", n, 0) for n in shape)
    given = None if dtype is None else numeric_dtype(dtype, "dtype=")
    return Live(slabs, rest, given, known, most, frames=frames)
