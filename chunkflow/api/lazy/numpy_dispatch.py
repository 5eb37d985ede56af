"""NumPy's ufuncs and functions of lazy arrays: tables of those that are supported, and advice for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chunkflow.api import scan
from chunkflow.api.fourier import functions
from chunkflow.api.lazy import fill, numpy_functions
from chunkflow.api.lazy.numpy_functions import at_least_dims as at_least
from chunkflow.api.lazy.numpy_signature import bound, check_taken
from chunkflow.api.linalg import gram, product
from chunkflow.api.rearrange import join, rearrange
from chunkflow.api.reductions import extremes, nan, sums
from chunkflow.api.statistics import histogram, quantile
from chunkflow.errors import UnsupportedError
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy, node_of

Function = Callable[..., Any]

# -- Ufuncs ----------------------------------------------------------------------------------------------------------

_PRODUCTS: dict[np.ufunc, Function] = {np.matmul: product.matmul, np.vecdot: product.vecdot}
_REDUCE: dict[np.ufunc, Function] = {
    np.add: numpy_functions.masked(sums.sum, 0),
    np.multiply: numpy_functions.masked(sums.prod, 1),
    np.minimum: numpy_functions.masked(extremes.min, None),
    np.maximum: numpy_functions.masked(extremes.max, None),
    np.logical_and: numpy_functions.masked(extremes.all, 1),
    np.logical_or: numpy_functions.masked(extremes.any, 0),
}
_ACCUMULATE: dict[np.ufunc, Function] = {
    np.add: scan.cumsum,
    np.multiply: scan.cumprod,
    np.maximum: scan.maximum_accumulate,
    np.minimum: scan.minimum_accumulate,
}


def ufunc(fn: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a ufunc gives of expressions.

    Raises
    ------
    UnsupportedError
        A method or argument that is not supported.
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
    if not isinstance(inputs[0], Lazy):  # NumPy's own functions call this too, and expect an array
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
        It is not supported. The message says what could be used instead.
    """
    if fn not in FUNCTIONS:
        raise UnsupportedError(f"{name_of(fn)} of an expression is not supported: {advice(fn)}")
    name, ours = name_of(fn), FUNCTIONS[fn]
    places, named = bound(fn, name, args, kwargs)
    check_taken(ours, name, named)
    return ours(*places, **named)


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
    **{fn: numpy_functions.elementwise(fn) for fn in _SAME},
    np.where: numpy_functions.where,
    np.interp: numpy_functions.interp,
    np.digitize: numpy_functions.digitize,
    np.isin: numpy_functions.isin,
    np.astype: numpy_functions.astype,
    np.zeros_like: fill.filling(0),
    np.ones_like: fill.filling(1),
    np.full_like: fill.full_like,
    np.nan_to_num: fill.nan_to_num,
    np.copy: lambda x: x,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: np.size(np.broadcast_to(np.uint8(0), x.shape), axis),
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.result_type: lambda *a: np.result_type(*(node_of(v).spec.dtype if isinstance(v, Lazy) else v for v in a)),
    # Reductions
    np.sum: numpy_functions.masked(sums.sum, 0),
    np.prod: numpy_functions.masked(sums.prod, 1),
    np.mean: numpy_functions.mean,
    np.min: numpy_functions.masked(extremes.min, None),
    np.max: numpy_functions.masked(extremes.max, None),
    np.any: numpy_functions.masked(extremes.any, 0),
    np.all: numpy_functions.masked(extremes.all, 1),
    np.var: sums.var,
    np.std: sums.std,
    np.average: numpy_functions.average,
    np.ptp: extremes.ptp,
    np.argmin: extremes.argmin,
    np.argmax: extremes.argmax,
    np.count_nonzero: extremes.count_nonzero,
    np.linalg.norm: extremes.norm,
    np.nansum: nan.nansum,
    np.nanprod: nan.nanprod,
    np.nanmean: nan.nanmean,
    np.nanvar: nan.nanvar,
    np.nanstd: nan.nanstd,
    np.nanmin: nan.nanmin,
    np.nanmax: nan.nanmax,
    np.nanargmin: nan.nanargmin,
    np.nanargmax: nan.nanargmax,
    np.allclose: numpy_functions.allclose,
    np.array_equal: numpy_functions.array_equal,
    np.quantile: quantile.quantile,
    np.percentile: quantile.percentile,
    np.median: quantile.median,
    np.histogram: histogram.histogram,
    # Scans
    np.cumsum: scan.cumsum,
    np.cumprod: scan.cumprod,
    np.cumulative_sum: lambda x, axis=None, dtype=None: scan.cumsum(x, axis, dtype),
    np.cumulative_prod: lambda x, axis=None, dtype=None: scan.cumprod(x, axis, dtype),
    np.diff: numpy_functions.diff,
    # Products
    np.dot: product.dot,
    np.outer: product.outer,
    np.tensordot: product.tensordot,
    np.einsum: product.einsum,
    np.linalg.matmul: product.matmul,
    np.linalg.vecdot: product.vecdot,
    np.linalg.outer: product.outer,
    np.linalg.tensordot: product.tensordot,
    np.cov: gram.cov,
    np.corrcoef: gram.corrcoef,
    # Shapes
    np.transpose: rearrange.transpose,
    np.matrix_transpose: lambda x: numpy_functions.swapaxes(x, -1, -2),
    np.moveaxis: numpy_functions.moveaxis,
    np.swapaxes: numpy_functions.swapaxes,
    np.reshape: numpy_functions.reshape,
    np.ravel: lambda x, order="C": numpy_functions.reshape(x, -1, order),
    np.squeeze: numpy_functions.squeeze,
    np.expand_dims: numpy_functions.expand_dims,
    np.broadcast_to: numpy_functions.broadcast_to,
    np.atleast_1d: numpy_functions.at_least(1),
    np.atleast_2d: numpy_functions.at_least(2),
    np.atleast_3d: numpy_functions.at_least(3),
    np.flip: rearrange.flip,
    np.fliplr: lambda x: rearrange.flip(at_least(x, 2), 1),
    np.flipud: lambda x: rearrange.flip(at_least(x, 1), 0),
    np.roll: rearrange.roll,
    np.repeat: numpy_functions.repeat,
    np.tile: numpy_functions.tile,
    np.concatenate: numpy_functions.concatenate,
    np.stack: numpy_functions.stack,
    np.hstack: numpy_functions.joined(1, 1),
    np.vstack: numpy_functions.joined(0, 2),
    np.dstack: numpy_functions.joined(2, 3),
    np.pad: join.pad,
    np.split: numpy_functions.split,
    np.array_split: numpy_functions.array_split,
    np.take: numpy_functions.take,
    np.amax: numpy_functions.masked(extremes.max, None),
    np.amin: numpy_functions.masked(extremes.min, None),
    np.append: numpy_functions.append,
    np.select: numpy_functions.select,
    np.rot90: numpy_functions.rot90,
    np.hsplit: lambda x, parts: numpy_functions.split(at_least(x, 1), parts, 1 if x.ndim > 1 else 0),
    np.vsplit: lambda x, parts: numpy_functions.split(at_least(x, 2), parts, 0),
    np.dsplit: lambda x, parts: numpy_functions.split(at_least(x, 3), parts, 2),
    np.unstack: numpy_functions.unstack,
    np.column_stack: numpy_functions.column_stack,
    np.nancumsum: lambda x, axis=None, dtype=None: scan.cumsum(fill.without_nan(x, 0), axis, dtype),
    np.nancumprod: lambda x, axis=None, dtype=None: scan.cumprod(fill.without_nan(x, 1), axis, dtype),
    np.broadcast_arrays: numpy_functions.broadcast_arrays,
    np.inner: numpy_functions.inner,
    np.empty_like: fill.filling(0),
    np.linalg.matrix_transpose: lambda x: numpy_functions.swapaxes(x, -1, -2),
    # Transforms
    np.fft.fft: functions.fft,
    np.fft.ifft: functions.ifft,
    np.fft.rfft: functions.rfft,
    np.fft.irfft: functions.irfft,
    np.fft.fftn: functions.fftn,
    np.fft.ifftn: functions.ifftn,
    np.fft.rfftn: functions.rfftn,
    np.fft.irfftn: functions.irfftn,
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
