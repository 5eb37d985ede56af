"""NumPy's vocabulary for lazy arrays: which of its functions are which of ours, and what to use for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow import (
    covariance,
    equivalents,
    extremes,
    fft,
    filling,
    histograms,
    joining,
    linalg,
    nanreductions,
    quantiles,
    rearrange,
    reductions,
    scans,
)
from chunkflow.elementwise import mapped
from chunkflow.errors import UnsupportedError
from chunkflow.graph import Lazy

Function = Callable[..., Any]

# -- Ufuncs ----------------------------------------------------------------------------------------------------------

_PRODUCTS: dict[np.ufunc, Function] = {np.matmul: linalg.matmul, np.vecdot: linalg.vecdot}
_REDUCE: dict[np.ufunc, Function] = {
    np.add: equivalents.masked(reductions.sum, 0),
    np.multiply: equivalents.masked(reductions.prod, 1),
    np.minimum: equivalents.masked(extremes.min, None),
    np.maximum: equivalents.masked(extremes.max, None),
    np.logical_and: equivalents.masked(extremes.all, 1),
    np.logical_or: equivalents.masked(extremes.any, 0),
}
_ACCUMULATE: dict[np.ufunc, Function] = {
    np.add: scans.cumsum,
    np.multiply: scans.cumprod,
    np.maximum: scans.maximum_accumulate,
    np.minimum: scans.minimum_accumulate,
}


def ufunc(fn: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a ufunc gives of expressions.

    Raises
    ------
    UnsupportedError
        A method, or an argument, that expressions have no use for.
    """
    if kwargs.get("out") is not None:
        raise UnsupportedError(f"np.{fn.__name__}: out= is where a result goes: store() or to_zarr() the expression")
    given = {key: value for key, value in kwargs.items() if key != "out"}
    if method == "__call__":
        if "where" in given:
            raise UnsupportedError(f"np.{fn.__name__}: where= leaves elements undefined; use np.where(mask, a, b)")
        if fn in _PRODUCTS and not given:
            return _PRODUCTS[fn](*inputs)
        if fn.signature is not None:
            raise UnsupportedError(
                f"np.{fn.__name__} works on whole rows: use chunkflow.map with chunks= that keep them whole"
            )
        return mapped(fn, *inputs, **given)
    table = {"reduce": _REDUCE, "accumulate": _ACCUMULATE}.get(method, {})
    if fn not in table:
        known = ", ".join(f"np.{u.__name__}" for u in table) or "none"
        raise UnsupportedError(f"np.{fn.__name__}.{method} is not supported ({method} of these is: {known})")
    if not isinstance(inputs[0], Lazy):  # NumPy's own functions come here too, and take what they get for an array
        raise UnsupportedError(
            f"np.{fn.__name__}.{method} of an array in memory with where= that is an expression: give it "
            "chunkflow.open(array)"
        )
    axis = given.pop("axis", 0)
    return table[fn](inputs[0], axis=axis, **given)


# -- Functions -------------------------------------------------------------------------------------------------------


def function(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of NumPy's functions gives of expressions.

    Raises
    ------
    UnsupportedError
        It is none of ours; the message says what could be used instead.
    """
    if fn not in FUNCTIONS:
        raise UnsupportedError(f"{name_of(fn)} of an expression is not supported: {advice(fn)}")
    if kwargs.get("out") is not None:
        raise UnsupportedError(f"{name_of(fn)}: out= is where a result goes: store() or to_zarr() the expression")
    given = {key: value for key, value in kwargs.items() if key != "out" and value is not np._NoValue}
    try:
        return FUNCTIONS[fn](*args, **given)
    except TypeError as error:
        if isinstance(error, UnsupportedError) or "unexpected keyword argument" not in str(error):
            raise
        argument = str(error).rpartition(" ")[2]  # what is ours calls itself otherwise than the user does
        raise UnsupportedError(f"{name_of(fn)} of an expression takes no {argument}: leave it out") from None


def name_of(fn: Function) -> str:
    """A function's name as its users write it."""
    module = fn.__module__.replace("numpy._core", "numpy").removeprefix("numpy").strip(".")
    public = module if module in ("linalg", "fft") else ""
    return ".".join(filter(None, ("np", public, fn.__name__)))


_SAME = (
    *(np.angle, np.around, np.round, np.clip, np.fix, np.i0, np.imag, np.iscomplex, np.isclose, np.isneginf),
    *(np.isposinf, np.isreal, np.real, np.sinc),
)
FUNCTIONS: dict[Any, Function] = {
    **{fn: equivalents.elementwise(fn) for fn in _SAME},
    np.where: equivalents.where,
    np.interp: equivalents.interp,
    np.digitize: equivalents.digitize,
    np.isin: equivalents.isin,
    np.astype: equivalents.astype,
    np.zeros_like: filling.filling(0),
    np.ones_like: filling.filling(1),
    np.full_like: filling.full_like,
    np.nan_to_num: filling.nan_to_num,
    np.copy: lambda x: x,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: x.size if axis is None else x.shape[axis],
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.result_type: lambda *a: np.result_type(*(v._node.spec.dtype if isinstance(v, Lazy) else v for v in a)),
    # Reductions
    np.sum: equivalents.masked(reductions.sum, 0),
    np.prod: equivalents.masked(reductions.prod, 1),
    np.mean: equivalents.mean,
    np.min: equivalents.masked(extremes.min, None),
    np.max: equivalents.masked(extremes.max, None),
    np.any: equivalents.masked(extremes.any, 0),
    np.all: equivalents.masked(extremes.all, 1),
    np.var: reductions.var,
    np.std: reductions.std,
    np.average: reductions.average,
    np.ptp: extremes.ptp,
    np.argmin: extremes.argmin,
    np.argmax: extremes.argmax,
    np.count_nonzero: extremes.count_nonzero,
    np.linalg.norm: extremes.norm,
    np.nansum: nanreductions.nansum,
    np.nanprod: nanreductions.nanprod,
    np.nanmean: nanreductions.nanmean,
    np.nanvar: nanreductions.nanvar,
    np.nanstd: nanreductions.nanstd,
    np.nanmin: nanreductions.nanmin,
    np.nanmax: nanreductions.nanmax,
    np.nanargmin: nanreductions.nanargmin,
    np.nanargmax: nanreductions.nanargmax,
    np.allclose: equivalents.allclose,
    np.array_equal: equivalents.array_equal,
    np.quantile: quantiles.quantile,
    np.percentile: quantiles.percentile,
    np.median: quantiles.median,
    np.histogram: histograms.histogram,
    # Scans
    np.cumsum: scans.cumsum,
    np.cumprod: scans.cumprod,
    np.cumulative_sum: lambda x, axis=None, dtype=None: scans.cumsum(x, axis, dtype),
    np.cumulative_prod: lambda x, axis=None, dtype=None: scans.cumprod(x, axis, dtype),
    np.diff: scans.diff,
    # Products
    np.dot: linalg.dot,
    np.outer: linalg.outer,
    np.tensordot: linalg.tensordot,
    np.einsum: linalg.einsum,
    np.linalg.matmul: linalg.matmul,
    np.linalg.vecdot: linalg.vecdot,
    np.linalg.outer: linalg.outer,
    np.linalg.tensordot: linalg.tensordot,
    np.cov: covariance.cov,
    np.corrcoef: covariance.corrcoef,
    # Shapes
    np.transpose: rearrange.transpose,
    np.matrix_transpose: lambda x: equivalents.swapaxes(x, -1, -2),
    np.moveaxis: equivalents.moveaxis,
    np.swapaxes: equivalents.swapaxes,
    np.reshape: equivalents.reshape,
    np.ravel: lambda x, order="C": equivalents.reshape(x, -1, order),
    np.squeeze: equivalents.squeeze,
    np.expand_dims: equivalents.expand_dims,
    np.broadcast_to: equivalents.broadcast_to,
    np.atleast_1d: equivalents.at_least(1),
    np.atleast_2d: equivalents.at_least(2),
    np.atleast_3d: equivalents.at_least(3),
    np.flip: rearrange.flip,
    np.fliplr: lambda x: rearrange.flip(x, 1),
    np.flipud: lambda x: rearrange.flip(x, 0),
    np.roll: rearrange.roll,
    np.repeat: equivalents.repeat,
    np.tile: equivalents.tile,
    np.concatenate: joining.concatenate,
    np.stack: joining.stack,
    np.hstack: equivalents.joined(1, 1),
    np.vstack: equivalents.joined(0, 2),
    np.dstack: equivalents.joined(2, 3),
    np.pad: joining.pad,
    np.split: equivalents.split,
    np.array_split: equivalents.array_split,
    np.take: equivalents.take,
    np.amax: equivalents.masked(extremes.max, None),
    np.amin: equivalents.masked(extremes.min, None),
    np.append: equivalents.append,
    np.select: equivalents.select,
    np.rot90: equivalents.rot90,
    np.hsplit: lambda x, parts: equivalents.split(x, parts, 1 if x.ndim > 1 else 0),
    np.vsplit: lambda x, parts: equivalents.split(x, parts, 0),
    np.dsplit: lambda x, parts: equivalents.split(x, parts, 2),
    np.unstack: lambda x, axis=0: tuple(equivalents.take(x, i, axis) for i in np.arange(x.shape[axis]).tolist()),
    np.column_stack: equivalents.column_stack,
    np.nancumsum: lambda x, axis=None, dtype=None: scans.cumsum(filling.without_nan(x, 0), axis, dtype),
    np.nancumprod: lambda x, axis=None, dtype=None: scans.cumprod(filling.without_nan(x, 1), axis, dtype),
    np.broadcast_arrays: equivalents.broadcast_arrays,
    np.inner: lambda a, b: linalg.tensordot(a, b, axes=(-1, -1)),
    np.empty_like: filling.filling(0),
    np.linalg.matrix_transpose: lambda x: equivalents.swapaxes(x, -1, -2),
    # Transforms
    np.fft.fft: fft.fft,
    np.fft.ifft: fft.ifft,
    np.fft.rfft: fft.rfft,
    np.fft.irfft: fft.irfft,
    np.fft.fftn: fft.fftn,
    np.fft.ifftn: fft.ifftn,
    np.fft.rfftn: fft.rfftn,
    np.fft.irfftn: fft.irfftn,
}

_ADVICE = {
    "sort argsort partition argpartition lexsort sort_complex": "use chunkflow.quantile, or chunkflow.topk",
    "unique unique_all unique_counts unique_inverse unique_values": "use chunkflow.unique, which runs at once",
    "bincount": "use chunkflow.bincount, which runs at once",
    "searchsorted": "use np.digitize(x, bins) for places of x's elements",
    "gradient": "use map_overlap with depth=1",
    "fft2 ifft2 rfft2 irfft2": "use np.fft.fftn and the like, with axes=(-2, -1)",
    "hfft ihfft": "use np.fft.irfft of the conjugate, or np.fft.rfft",
    "fftshift ifftshift": "use np.roll(x, n // 2, axis)",
    "convolve correlate": "use chunkflow.fft.convolve, or map_overlap",
    "nonzero argwhere flatnonzero extract compress": "its length is not known before: use np.where(mask, x, other)",
    "nanmedian nanquantile nanpercentile": "use chunkflow.quantile of what has no NaN",
    "put putmask place copyto fill_diagonal put_along_axis": "expressions do not change: use np.where(mask, value, x)",
    "save savez savez_compressed savetxt": "use to_npy() or to_zarr()",
    "array_repr array_str array2string": "use repr(x), or compute() first",
    "inv solve det eig eigh svd qr cholesky lstsq pinv matrix_rank": "use chunkflow.map on blocks of whole matrices",
}


def advice(fn: Function) -> str:
    """What could be used instead of a function that is not supported."""
    found = next((text for names, text in _ADVICE.items() if fn.__name__ in names.split()), None)
    if found is None and name_of(fn).startswith("np.linalg."):
        found = "use chunkflow.map on blocks of whole matrices"
    return found or "use chunkflow.map for what works on blocks, or compute() first"
