"""dask's `map_blocks`, `map_overlap` and `reduction`, with each dask block streamed through the worker's device."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.array.core import _concatenate2
from dask.utils import getargspec

from chunkflow.api import chunk_stream, mapping
from chunkflow.api.stencil import overlap
from chunkflow.cluster.tasks import device_of, shared
from chunkflow.engine.budget import Budget
from chunkflow.errors import ArgumentTypeError, UnsupportedError
from chunkflow.graph.nodes import Lazy
from chunkflow.kernels.subnest import on_host


@dataclass(frozen=True)
class Streamed:
    """A function of a dask block that streams it. Its signature is that of `fn`.

    dask finds out dtypes by calls on blocks of one element or none: those call `fn` itself.
    """

    fn: Callable[..., Any]
    budget: Any
    device: Any
    options: dict[str, Any]
    run: Callable[..., Any] = mapping.map

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @property
    def __name__(self) -> str:
        return str(getattr(self.fn, "__name__", "streamed"))

    def __call__(self, *blocks: Any, **kwargs: Any) -> Any:
        if all(math.prod(np.shape(block)) <= 1 for block in blocks):
            return self.fn(*blocks, **kwargs)
        with shared(self.budget) as budget:
            return self.streamed(blocks, kwargs, budget)

    def streamed(self, blocks: Sequence[Any], kwargs: dict[str, Any], budget: Budget) -> Any:
        """The function's result of blocks, streamed."""
        # The lambda hides the parameters: block_id is dask's.
        fn, device = lambda *parts: self.fn(*parts, **kwargs), device_of(self.device)
        return self.run(fn, *blocks, budget=budget, device=device, **self.options)


class StreamedReduction(Streamed):
    """The first step of a reduction. `options` holds the second step, which combines the results of a block's parts."""

    def streamed(self, blocks: Sequence[Any], kwargs: dict[str, Any], budget: Budget) -> Any:
        axis, combine, concatenate = kwargs["axis"], self.options["combine"], self.options["concatenate"]
        sides = tuple("auto" if a in axis else -1 for a in range(np.ndim(blocks[0])))
        found = None
        with chunk_stream.chunks(blocks[0], chunks=sides, budget=budget, device=device_of(self.device)) as stream:
            for chunk in stream:
                one = on_host(self.fn(chunk.data, **kwargs))
                if found is None:
                    found = one
                    continue
                both: list[Any] = [found, one]
                for _ in axis[1:]:  # dask nests lists as deep as there are axes
                    both = [[entry] for entry in both]
                found = combine(
                    _concatenate2(both, axes=sorted(axis)) if concatenate else both, axis=axis, keepdims=True
                )
        return found


def _check(name: str, instead: str, *arrays: Any) -> None:
    """Refuse chunkflow's own lazy arrays."""
    for array in arrays:
        if isinstance(array, Lazy):
            raise ArgumentTypeError(
                f"{name} takes dask arrays, whose blocks it streams, and {array!r} is chunkflow's own: use {instead}, "
                "which makes tasks of its own on a cluster, or give x.to_dask()"
            )


def map_blocks(
    func: Callable[..., Any],
    *args: Any,
    budget: Any = None,
    device: Any = None,
    chunks: Any = None,
    drop_axis: Any = None,
    new_axis: Any = None,
    **kwargs: Any,
) -> da.Array:
    """`dask.array.map_blocks`, with each block streamed through the worker's device.

    Parameters
    ----------
    func : callable
        As for dask, but it sees parts of a dask block. As for `chunkflow.map`, its result for an element must not
        depend on how the array is cut. It sees whole blocks if `chunks` says that they are resized, or if it takes
        dask's ``block_id`` or ``block_info``.
    *args, chunks, drop_axis, new_axis, **kwargs
        As for dask.
    budget : int, str or float, optional
        Device memory of each worker, as for `chunkflow.map`. Tasks of one process share it, and take turns.
    device : str or int, optional
        As for `chunkflow.map`, on the worker.

    Returns
    -------
    dask.array.Array

    Raises
    ------
    ArgumentTypeError
        One of them is a `chunkflow.Array`.
    BudgetError
        When it is computed: not even the smallest part fits the budget.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> x = da.ones((1000, 1000), chunks=(500, 1000))
    >>> round(float(map_blocks(np.exp, x, budget="2MB", device="cpu").mean().compute()), 6)
    2.718282
    """
    _check("map_blocks", "x.map(fn)", *args)
    options: dict[str, Any] = {"drop_axis": drop_axis, "new_axis": new_axis}
    try:
        names = set(inspect.signature(func).parameters)
    except (TypeError, ValueError):  # ufuncs and some built-ins have no signature
        names = set()
    if chunks is not None or names & {"block_id", "block_info"}:
        options["chunks"] = -1
    given = {name: value for name, value in (("drop_axis", drop_axis), ("new_axis", new_axis)) if value is not None}
    streamed = Streamed(func, budget, device, options)
    return da.map_blocks(streamed, *args, chunks=chunks, **given, **kwargs)


def map_overlap(
    func: Callable[..., Any],
    *args: Any,
    depth: Any = None,
    boundary: Any = None,
    trim: bool = True,
    budget: Any = None,
    device: Any = None,
    **kwargs: Any,
) -> da.Array:
    """`dask.array.map_overlap`, with each block and its halo streamed through the worker's device.

    Parameters
    ----------
    func : callable
        As for dask; it sees parts of a dask block, with `depth` elements around them.
    *args, depth, boundary, **kwargs
        As for dask. `dtype` is found by dask.
    trim : bool
        Must be true.
    budget, device
        As for `map_blocks`.

    Returns
    -------
    dask.array.Array

    Raises
    ------
    ArgumentTypeError
        As `map_blocks`.
    UnsupportedError
        `func` is to trim its blocks or to change their axes.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> x = da.arange(1000.0, chunks=100)
    >>> y = map_overlap(lambda u: np.convolve(u, np.ones(3) / 3, "same"), x, depth=1, boundary="reflect", device="cpu")
    >>> np.allclose(y[1:-1].compute(), np.arange(1.0, 999.0))
    True
    """
    _check("map_overlap", "x.map_overlap(fn, depth=...)", *args)
    asked = [name for name in ("chunks", "drop_axis", "new_axis") if kwargs.get(name) is not None]
    if not trim or asked:
        what = "trim=False" if not trim else ", ".join(asked)
        raise UnsupportedError(f"map_overlap with {what} cannot be cut further: use dask.array.map_overlap")
    streamed = Streamed(func, budget, device, {"depth": 0 if depth is None else depth}, overlap.map_overlap)
    return da.map_overlap(streamed, *args, depth=depth, boundary=boundary, **kwargs)


def reduction(
    x: da.Array,
    chunk: Callable[..., Any],
    aggregate: Callable[..., Any],
    axis: Any = None,
    keepdims: bool = False,
    dtype: Any = None,
    combine: Callable[..., Any] | None = None,
    concatenate: bool = True,
    *,
    budget: Any = None,
    device: Any = None,
    **kwargs: Any,
) -> da.Array:
    """`dask.array.reduction`, with each block streamed through the worker's device.

    Parameters
    ----------
    x, chunk, aggregate, axis, keepdims, dtype, combine, concatenate, **kwargs
        As for dask. `chunk` sees parts of a dask block, whose results `combine` (or `aggregate`) merges on the host.
    budget, device
        As for `map_blocks`. What `chunk` allocates beside its block is its own affair.

    Returns
    -------
    dask.array.Array

    Raises
    ------
    ArgumentTypeError
        As `map_blocks`.
    UnsupportedError
        With weights.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> x = da.arange(1000.0, chunks=100)
    >>> reduction(x, np.max, np.max, dtype="f8", device="cpu").compute()
    np.float64(999.0)
    """
    _check("reduction", "its own reductions, or chunkflow.reduction", x)
    if kwargs.get("weights") is not None:
        raise UnsupportedError(
            "reduction with weights= is not streamed: use dask.array.reduction, or chunkflow.average"
        )
    if "dtype" in getargspec(chunk).args:
        chunk = partial(chunk, dtype=dtype)
    how = {"combine": combine or aggregate, "concatenate": concatenate}
    streamed = StreamedReduction(chunk, budget, device, how)
    options = {"axis": axis, "keepdims": keepdims, "dtype": dtype, "combine": combine, "concatenate": concatenate}
    return da.reduction(x, streamed, aggregate, **options, **kwargs)
