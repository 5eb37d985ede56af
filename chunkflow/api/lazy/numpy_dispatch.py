"""NumPy's ufuncs and functions of lazy arrays: tables of those that are supported, and advice for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api import scan
from chunkflow.api.fourier import functions
from chunkflow.api.lazy import (
    fill,
    folding,
    gufunc,
    numpy_at_once,
    numpy_diagonals,
    numpy_functions,
    numpy_linalg,
    numpy_pad,
    numpy_shapes,
    numpy_values,
    tables,
)
from chunkflow.api.lazy.numpy_functions import require_dims
from chunkflow.api.lazy.numpy_signature import bound, check_taken
from chunkflow.api.linalg import gram, lstsq, product
from chunkflow.api.operation import check_int
from chunkflow.api.rearrange import along, join, masks, rearrange
from chunkflow.api.rearrange import take as places
from chunkflow.api.reductions import extremes, nan, sums
from chunkflow.api.statistics import histogram, histogramdd, quantile, sort
from chunkflow.api.stencil import gradient, windows
from chunkflow.errors import UnsupportedError, refused_by
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy, node_of
from chunkflow.stores.checks import check_unmasked, numeric_dtype

Function = Callable[..., Any]

# -- Ufuncs ----------------------------------------------------------------------------------------------------------

_PRODUCTS: dict[np.ufunc, Function] = {np.matmul: product.matmul, np.vecdot: product.vecdot}
_REDUCE: dict[np.ufunc, Function] = {
    np.add: sums.sum,
    np.multiply: sums.prod,
    np.minimum: extremes.min,
    np.maximum: extremes.max,
    np.logical_and: numpy_functions.beginning(extremes.all, np.logical_and),
    np.logical_or: numpy_functions.beginning(extremes.any, np.logical_or),
    np.subtract: folding.subtracted,
    **{fn: partial(folding.reduced, fn) for fn in folding.ASSOCIATIVE},
}
_ACCUMULATE: dict[np.ufunc, Function] = {
    np.add: scan.cumsum,
    np.multiply: scan.cumprod,
    np.maximum: scan.maximum_accumulate,
    np.minimum: scan.minimum_accumulate,
    np.subtract: folding.subtractions,
    **{fn: partial(scan.accumulate, ufunc=fn) for fn in folding.ASSOCIATIVE},
}
_METHODS = {"reduce": _REDUCE, "accumulate": _ACCUMULATE}
_INSTEAD = {
    "at": "an expression never changes: chunkflow.put makes a new one, chunkflow.groupby_reduce sums by places",
    "reduceat": "chunkflow.groupby_reduce reduces groups, np.split gives slices",
}
"""What to use in the place of methods that no ufunc has of expressions."""


def ufunc(fn: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a ufunc gives of expressions."""
    check_unmasked(*inputs, *kwargs.values())
    chosen = method == "__call__" and kwargs.get("where", True) is not True
    if kwargs.get("out") is not None:
        if chosen:
            raise UnsupportedError(
                f"np.{fn.__name__}: out= is not for expressions: what it would be with where=mask is "
                f"np.where(mask, np.{fn.__name__}(...), out)"
            )
        raise UnsupportedError(
            f"np.{fn.__name__}: out= is not for expressions: leave it out, and give the output to store() or to_zarr()"
        )
    given = {key: value for key, value in kwargs.items() if key != "out" and not (key == "dtype" and value is None)}
    if method == "__call__":
        given.pop("where", None)
        if chosen:
            raise UnsupportedError(
                f"np.{fn.__name__}: where= leaves elements undefined: np.where(mask, np.{fn.__name__}(...), other) "
                "says what they are"
            )
        if fn in _PRODUCTS:
            check_taken(_PRODUCTS[fn], f"np.{fn.__name__}", given)
            with refused_by(f"np.{fn.__name__}", inputs):
                return _PRODUCTS[fn](*map(numpy_functions.from_list, inputs), **given)
        if "dtype" in given:
            numeric_dtype(given["dtype"], "the result")
        if fn.signature is not None:
            with refused_by(f"np.{fn.__name__}"):
                return gufunc.generalized(fn, inputs, given)
        return mapped(fn, *inputs, **given)
    if method == "outer" and fn.nin == 2 and fn.signature is None:
        if given:
            raise UnsupportedError(
                f"np.{fn.__name__}.outer of expressions takes no {', '.join(given)}: leave that out, and cast the "
                "result with np.astype"
            )
        return numpy_shapes.outer(fn, *inputs)
    table = _METHODS.get(method, {})
    if fn not in table:
        known = ", ".join(sorted(f"np.{u.__name__}" for u in table))
        instead = _INSTEAD.get(method, f"{method} of these is: {known}. compute() first")
        raise UnsupportedError(f"np.{fn.__name__}.{method} of an expression is not supported: {instead}")
    if not isinstance(inputs[0], Lazy):  # NumPy's own functions call this too, and expect an array
        raise UnsupportedError(
            f"np.{fn.__name__}.{method} of an array in memory with where= that is an expression: give it "
            "chunkflow.open(array)"
        )
    check_taken(table[fn], f"np.{fn.__name__}.{method}", given)
    with refused_by(f"np.{fn.__name__}.{method}"):
        if method == "accumulate":  # there is no order of several axes
            check_int("axis", given.get("axis", 0))
        return table[fn](inputs[0], **{"axis": 0, **given})


# -- Functions -------------------------------------------------------------------------------------------------------


def function(fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of NumPy's functions gives of expressions; if it is not supported, an error says what to use instead."""
    if fn not in FUNCTIONS:
        raise UnsupportedError(f"{name_of(fn)} of an expression is not supported: {advice(fn)}")
    check_unmasked(*args, *kwargs.values())
    name, ours = name_of(fn), FUNCTIONS[fn]
    places, named = bound(fn, name, args, kwargs)
    check_taken(ours, name, named)
    with refused_by(name, (*args, *kwargs.values())):
        if fn in _OF_TWO:
            places[:2] = map(numpy_functions.from_list, places[:2])
            named = {key: numpy_functions.from_list(value) if key == "y" else value for key, value in named.items()}
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


def _alike(numpys: Any, ours: Any, names: str) -> dict[Any, Function]:
    """Functions of two modules that have the same names. An older NumPy may lack some."""
    return {vars(numpys)[name]: getattr(ours, name) for name in names.split() if name in vars(numpys)}


def _plane(transform: Function) -> Function:
    """A transform of several axes as one of the last two."""

    def call(a: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
        return transform(a, s, axes, norm)

    return call


def _turned(norm: str | None) -> str | None:
    """The direction that is scaled where the other transform is asked for."""
    return {None: "forward", "backward": "forward", "forward": "backward"}.get(norm, norm)


def _of_no_memory(x: Any) -> np.ndarray:
    """An array in memory of the same shape, for what asks for nothing else."""
    return np.broadcast_to(np.uint8(0), x.shape)


_UNIQUE: dict[str, dict[str, bool]] = {
    "unique_values": {},
    "unique_counts": {"return_counts": True},
    "unique_inverse": {"return_inverse": True},
}
"""NumPy's functions of distinct values, and what else they tell."""


_QUANTILES = ("quantile", "percentile", "nanquantile", "nanpercentile")

_OF_TWO = {
    *(np.dot, np.tensordot, np.inner, np.cov, np.corrcoef),
    *(vars(np.linalg)[name] for name in ("matmul", "vecdot", "tensordot", "outer") if name in vars(np.linalg)),
}
"""Functions of two arrays, either of which may be a list of numbers."""

FUNCTIONS: dict[Any, Function] = {
    **{fn: partial(mapped, fn) for fn in _SAME},
    **_alike(np, sums, "sum prod mean average"),
    np.var: numpy_values.spread(sums.var, root=False),
    np.std: numpy_values.spread(sums.std, root=True),
    np.nanvar: numpy_values.spread(nan.nanvar, root=False, skips_nan=True),
    np.nanstd: numpy_values.spread(nan.nanstd, root=True, skips_nan=True),
    **_alike(np, extremes, "min max any all ptp argmin argmax count_nonzero"),
    **_alike(np.lib.stride_tricks, windows, "sliding_window_view"),
    **_alike(np, nan, "nansum nanprod nanmean nanmin nanmax nanargmin nanargmax"),
    **_alike(np, quantile, "median nanmedian"),
    **{vars(np)[name]: numpy_values.quantiles(getattr(quantile, name)) for name in _QUANTILES},
    **_alike(np, histogram, "histogram histogram_bin_edges"),
    **_alike(np, histogramdd, "histogram2d histogramdd"),
    **_alike(np, sort, "sort argsort partition argpartition"),
    **_alike(np, scan, "cumsum cumprod diff"),
    **_alike(np, product, "dot tensordot"),
    **_alike(np.linalg, product, "matmul vecdot outer tensordot"),
    **_alike(np, gram, "cov corrcoef"),
    **_alike(np, gradient, "gradient"),
    **_alike(np.linalg, lstsq, "lstsq"),
    **_alike(np, windows, "convolve correlate"),
    **_alike(np, rearrange, "transpose flip roll repeat copy"),
    **_alike(np, join, "concatenate stack"),
    **_alike(np, numpy_pad, "pad"),
    **_alike(np, numpy_diagonals, "diagonal trace diag diagflat einsum"),
    **_alike(np, numpy_values, "unwrap piecewise array_equiv vdot polyfit apply_along_axis resize packbits unpackbits"),
    **_alike(np, numpy_values, "lexsort sort_complex outer"),
    **_alike(np, numpy_at_once, "unique union1d intersect1d trim_zeros real_if_close save"),
    **_alike(np.linalg, numpy_linalg, "norm vector_norm matrix_norm matrix_rank cond multi_dot solve svdvals"),
    **_alike(np, fill, "full_like nan_to_num"),
    **_alike(np, numpy_functions, "where astype allclose array_equal moveaxis swapaxes trapezoid"),
    **_alike(np, numpy_functions, "reshape squeeze expand_dims broadcast_to broadcast_arrays tile split"),
    **_alike(np, numpy_functions, "array_split append select rot90 column_stack unstack inner"),
    **_alike(np, places, "take compress"),
    **_alike(np, along, "take_along_axis"),
    **_alike(np, masks, "extract nonzero flatnonzero argwhere"),
    **_alike(np, tables, "unravel_index ravel_multi_index choose searchsorted interp digitize isin"),
    **_alike(
        np, numpy_shapes, "tril triu block delete insert ediff1d polyval vander meshgrid kron cross apply_over_axes"
    ),
    **_alike(np.fft, functions, "fft ifft rfft irfft fftn ifftn rfftn irfftn"),
    **_alike(np.fft, numpy_shapes, "fftshift ifftshift"),
    **{
        vars(np.linalg)[name]: numpy_linalg.of_matrices(vars(np.linalg)[name])
        for name in ["cholesky", "det", "inv", "slogdet", "eigh", "eigvalsh", "matrix_power"]
    },
    **{fn: numpy_linalg.of_matrices(fn, square=False) for fn in (np.linalg.svd, np.linalg.qr, np.linalg.pinv)},
    np.linalg.diagonal: lambda x, offset=0: numpy_diagonals.diagonal(x, offset, -2, -1),
    np.linalg.trace: lambda x, offset=0, dtype=None: numpy_diagonals.trace(x, offset, -2, -1, dtype),
    **{vars(np)[name]: numpy_at_once.unique_as(vars(np)[name], **told) for name, told in _UNIQUE.items()},
    **{fn: numpy_at_once.of_sets(fn) for fn in (np.setdiff1d, np.setxor1d)},
    np.bincount: lambda x, weights=None, minlength=0: histogram.bincount(x, weights, minlength),
    np.rollaxis: numpy_functions.rollaxis,
    np.common_type: lambda *a: np.common_type(*(np.empty(0, node_of(x).spec.dtype) for x in a)),
    np.min_scalar_type: lambda a: a.dtype if a.ndim else np.min_scalar_type(a.item()),
    np.diag_indices_from: lambda x: np.diag_indices_from(_of_no_memory(x)),
    np.tril_indices_from: lambda x, k=0: np.tril_indices_from(_of_no_memory(x), k),
    np.triu_indices_from: lambda x, k=0: np.triu_indices_from(_of_no_memory(x), k),
    np.linalg.cross: lambda x1, x2, axis=-1: numpy_shapes.cross(x1, x2, axis=axis, lengths=(3,)),
    **{
        getattr(np.fft, f"{name}2"): _plane(getattr(functions, f"{name}n")) for name in ("fft", "ifft", "rfft", "irfft")
    },
    np.fft.hfft: lambda a, n=None, axis=-1, norm=None: functions.irfft(mapped(np.conjugate, a), n, axis, _turned(norm)),
    np.fft.ihfft: lambda a, n=None, axis=-1, norm=None: mapped(np.conjugate, functions.rfft(a, n, axis, _turned(norm))),
    np.zeros_like: fill.filling(0),
    np.ones_like: fill.filling(1),
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x, axis=None: np.size(np.broadcast_to(np.uint8(0), x.shape), axis),
    np.iscomplexobj: lambda x: x.dtype.kind == "c",
    np.isrealobj: lambda x: x.dtype.kind != "c",
    np.result_type: lambda *a: np.result_type(*(node_of(v).spec.dtype if isinstance(v, Lazy) else v for v in a)),
    **_alike(np, numpy_functions, "cumulative_sum cumulative_prod"),
    np.matrix_transpose: lambda x: numpy_functions.swapaxes(x, -1, -2),
    np.ravel: lambda x, order="C": numpy_functions.reshape(x, -1, order),
    np.atleast_1d: numpy_functions.at_least(1),
    np.atleast_2d: numpy_functions.at_least(2),
    np.atleast_3d: numpy_functions.at_least(3),
    np.fliplr: lambda x: rearrange.flip(require_dims(x, 2), 1),
    np.flipud: lambda x: rearrange.flip(require_dims(x, 1), 0),
    np.hstack: numpy_functions.joined(1, 1),
    np.vstack: numpy_functions.joined(0, 2),
    np.dstack: numpy_functions.joined(2, 3),
    np.amax: extremes.max,
    np.amin: extremes.min,
    np.hsplit: lambda x, parts: numpy_functions.split(require_dims(x, 1), parts, 1 if x.ndim > 1 else 0),
    np.vsplit: lambda x, parts: numpy_functions.split(require_dims(x, 2), parts, 0),
    np.dsplit: lambda x, parts: numpy_functions.split(require_dims(x, 3), parts, 2),
    np.nancumsum: lambda x, axis=None, dtype=None: scan.cumsum(fill.without_nan(x, 0), axis, dtype),
    np.nancumprod: lambda x, axis=None, dtype=None: scan.cumprod(fill.without_nan(x, 1), axis, dtype),
    np.empty_like: fill.filling(0),
    np.linalg.matrix_transpose: lambda x: numpy_functions.swapaxes(x, -1, -2),
}

_ADVICE = {
    "unique_all": "use np.unique: which of equal NaN is first is not told",
    "asarray asanyarray array": "compute() first",
    "put putmask place copyto fill_diagonal put_along_axis": "use chunkflow.put: it makes a new array",
    "savez savez_compressed savetxt": "use to_npy() or to_zarr()",
    "array_repr array_str array2string": "use repr(x), or compute() first",
    "eig eigvals": "whether its results are complex depends on the values: use chunkflow.apply_gufunc with dtype=",
}


def advice(fn: Function) -> str:
    """What could be used instead of a function that is not supported."""
    found = next((text for names, text in _ADVICE.items() if fn.__name__ in names.split()), None)
    if found is None and name_of(fn).startswith("np.linalg."):
        found = "use chunkflow.map on blocks of whole matrices"
    return found or "use chunkflow.map for what works on blocks, or compute() first"


def takes_expressions(name: str) -> bool:
    """Whether NumPy has a public function of this name that takes expressions.

    >>> takes_expressions("tile"), takes_expressions("exp"), takes_expressions("fromfile")
    (True, True, False)
    """
    fn = None if name.startswith("_") else vars(np).get(name)
    return isinstance(fn, np.ufunc) or (callable(fn) and fn in FUNCTIONS)
