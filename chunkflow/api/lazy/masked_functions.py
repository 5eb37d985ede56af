"""NumPy's ufuncs and functions of masked expressions: those that numpy.ma has, with what it gives.

A row of the table says how the elements and the mask of a result come about. Elements and mask are expressions, so
that what is asked for together is computed in the same passes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api.lazy import masked_products, masked_statistics, numpy_dispatch, numpy_functions
from chunkflow.api.lazy.handlers import Function, Handler, Handlers
from chunkflow.api.lazy.masked_domains import defined, not_finite
from chunkflow.api.lazy.masked_parts import (
    WAYS_OUT,
    Masked,
    data_of,
    either,
    elementwise,
    mask_of,
    masked_with,
    opened,
)
from chunkflow.api.lazy.masked_rules import (
    accumulated,
    alike,
    appended,
    as_masked,
    as_one,
    filled_like,
    first_masked,
    is_masked,
    joined,
    lines_of,
    moved,
    of_data,
    of_elements,
    of_filled,
    only,
    reduced,
    refusal,
    too_few,
)
from chunkflow.api.lazy.numpy_signature import check_no_out, check_taken
from chunkflow.api.linalg import product
from chunkflow.api.rearrange import join, masks, where
from chunkflow.api.reductions import extremes
from chunkflow.api.statistics import histogram, quantile, sort, unique
from chunkflow.api.stencil import gradient
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import UnsupportedError, refused_by
from chunkflow.graph.elementwise import mapped
from chunkflow.stores import array_of

# -- Functions by themselves -----------------------------------------------------------------------------------------

_highest, _lowest = np.ma.minimum_fill_value, np.ma.maximum_fill_value
"""What numpy.ma puts in masked places where the least, and the greatest, is looked for."""


def _last(dtype: np.dtype) -> Any:
    """What is sorted behind all else."""
    return np.full((), np.nan, dtype)[()] if dtype.kind in "fc" else _highest(dtype)


def _spread(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x = only(places, named)
    high, low = (reduced(start)(fn, [x], named) for fn, start in ((extremes.max, _lowest), (extremes.min, _highest)))
    return elementwise(partial(mapped, np.subtract), (high, low), {})


def _sorted(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Masked elements come last, also behind NaN."""
    x = only(places, named)
    return x.kept(ours(x.filled(_last(data_of(x).dtype)), **named), ours(mask_of(x), **named))


def _partitioned(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Sorted: that is a partition at each place, of which the mask is known."""
    x, how = only(places, named), {key: value for key, value in named.items() if key == "axis"}
    ours(data_of(x), *places[1:], **named)  # what is refused of any array is refused here
    if ours is sort.argpartition:
        return sort.argsort(x.filled(_last(data_of(x).dtype)), **how)
    return _sorted(sort.sort, [x], how)


def _differences(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x = only(places, named)
    if named.keys() & {"prepend", "append"}:
        raise refusal("diff", "takes no prepend= and append=, join them before")
    found, mask = ours(data_of(x), **named), mask_of(x)
    (along,) = normalize_axes(named.get("axis", -1), mask.ndim, "axis")
    before = (slice(None),) * along
    for _ in range(named.get("n", 1)):
        mask = mask[(*before, slice(1, None))] | mask[(*before, slice(None, -1))]
    return x.kept(found, mask)


def _chosen(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.where`: masked where the condition is, or the element that it takes."""
    if len(places) == 1:
        return masks.nonzero(only(places, named).filled(False))
    first, (condition, *branches) = first_masked(places), places
    found = ours(*map(data_of, places), **named)
    if is_masked(branches):
        mask = either(mapped(np.where, data_of(condition), *map(mask_of, branches)), *_masks(condition))
    else:
        mask = mask_of(condition)
    return type(first)(found, numpy_functions.broadcast_to(mask, found.shape))


def _masks(*values: Any) -> list[Any]:
    return [mask_of(value) for value in values if isinstance(value, Masked)]


def _selected(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Masked where the choice is, or the first condition that may hold."""
    conditions, choices, default = *map(list, places), named.get("default", 0)
    first = first_masked([conditions, choices, [default]])
    found = ours(data_of(conditions), data_of(choices), default=data_of(default))
    maybe = [elementwise(partial(mapped, np.asarray), [c], {}).filled(True) if is_masked(c) else c for c in conditions]
    hidden = [
        mapped(np.logical_or, mask_of(choice), mask_of(condition)) if is_masked(condition) else mask_of(choice)
        for condition, choice in zip(conditions, choices, strict=True)
    ]
    mask = ours(maybe, hidden, default=mask_of(default))
    return type(first)(found, numpy_functions.broadcast_to(mask, found.shape))


def _chosen_by_number(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.choose`: masked where the number is, or the choice."""
    which, choices = places[0], list(places[1])
    first = first_masked([which, choices])
    numbers = which.filled(0) if isinstance(which, Masked) else which
    found, mask = (ours(numbers, list(map(part, choices)), **named) for part in (data_of, mask_of))
    if isinstance(which, Masked):
        mask = mapped(np.logical_or, mask, mask_of(which))
    return type(first)(found, numpy_functions.broadcast_to(mask, found.shape))


def _inserted(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    arr, obj, values = places
    if is_masked(obj):
        raise refusal("insert", "takes no masked places")
    kind = type(first_masked([arr, values]))
    x, values = (arr if isinstance(arr, Masked) else as_masked(kind, arr)), as_one(values)
    return x.kept(*(ours(part(x), obj, part(values), **named) for part in (data_of, mask_of)))


def _padded(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """What is put beside the array is masked where it is a masked element's image; a constant is not."""
    x, mode = only(places, named), named.get("mode", "constant")
    if mode not in (*join.MODES, "empty") or named.get("reflect_type", "even") != "even":
        raise refusal(
            "pad", f"has no mode={mode!r}, reflect_type='odd' or function: NumPy's computes with masked elements"
        )
    images = {key: value for key, value in named.items() if key not in ("constant_values", "value")}
    return x.kept(ours(data_of(x), *places[1:], **named), ours(mask_of(x), *places[1:], **images))


def _neighbours(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """A gradient is masked where one of the elements is of which it is made."""
    x, order = only(places, named), named.get("edge_order", 1)
    found, shape = ours(data_of(x), *places[1:], **named), data_of(x).shape
    axes = gradient.axes_of(named.get("axis"), len(shape))
    uniform = [not isinstance(step, np.ndarray) for step in gradient.spacings(places[1:], axes, shape)]
    several = isinstance(found, tuple | list)
    results = found if several else [found]
    mask = mask_of(x)
    hidden = [_beside(mask, *how, order) if mask.size else mask for how in zip(axes, uniform, strict=True)]
    given = [x.kept(*parts) for parts in zip(results, hidden, strict=True)]
    return type(found)(given) if several else given[0]


def _beside(mask: Any, axis: int, is_uniform: bool, edge_order: int) -> Any:
    """Whether one of the elements is masked of which the differences along an axis are made."""

    def at(start: int | None, stop: int | None) -> Any:
        return mask[(*(slice(None),) * axis, slice(start, stop))]

    inner = [at(None, -2), at(2, None), *([] if is_uniform else [at(1, -1)])]
    first, last = [at(0, 1), at(1, 2)], [at(-1, None), at(-2, -1)]
    if edge_order == 2:
        first, last = [*first, at(2, 3)], [*last, at(-3, -2)]
    return join.concatenate([either(*part) for part in (first, inner, last) if part[0].size], axis)


def _ends(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.ediff1d`."""
    values = {key: as_one(value) for key, value in named.items()}
    x = next(value for value in (*places, *values.values()) if isinstance(value, Masked))
    first = mask_of(as_masked(type(x), as_one(places[0]))) if not is_masked(places[0]) else mask_of(places[0])
    flat = first.reshape(-1)
    between = either(flat[1:], flat[:-1])
    ends = {key: mask_of(value).reshape(-1) for key, value in values.items()}
    parts = [ends.get("to_begin"), between, ends.get("to_end")]
    found = ours(data_of(as_one(places[0])), **{key: data_of(value) for key, value in values.items()})
    return x.kept(found, join.concatenate([part for part in parts if part is not None]))


def _totals(neutral: int) -> Handler:
    """`cumulative_sum` and so on: what they begin with is not masked."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named)
        found, mask = ours(x.filled(neutral), **named), mask_of(x)
        if found.shape != mask.shape:  # which begins with `neutral`
            (along,) = normalize_axes(named.get("axis") or 0, mask.ndim, "axis")
            before = np.zeros((*mask.shape[:along], 1, *mask.shape[along + 1 :]), bool)
            mask = join.concatenate([before, mask], along)
        return x.kept(found, mask)

    return call


def _outer(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.outer`: masked where either is."""
    arrays = list(map(as_one, places))
    one, other = (mask_of(value).reshape(-1) for value in arrays)
    found = ours(*map(data_of, arrays), **named)
    return first_masked(arrays).kept(found, mapped(np.logical_or, one[:, None], other[None]))


def _weighed(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.convolve` and `correlate`: masked where a masked element is weighed, even by zero."""
    at = 0 if isinstance(places[0], Masked) else 1
    x, beside = only(places, named, at), as_one(places[1 - at])

    def both(line: Any, weights: Any) -> Any:
        return ours(*((line, weights) if at == 0 else (weights, line)), **named)

    hidden = both(mask_of(x).astype(np.int64), np.ones(np.shape(beside), np.int64))
    return x.kept(both(x.filled(0), beside), hidden > 0)


def _close(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.allclose`, to which masked places are equal."""
    same = elementwise(partial(mapped, np.isclose), places, named)
    return extremes.all(data_of(same), where=~mask_of(same))


def _distinct(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.unique`: the masked places are one more value, and last."""
    x = only(places, named)
    if strange := named.keys() - {"equal_nan", "sorted", "chunks", "budget", "device", "progress"}:
        raise refusal("unique", f"takes no {', '.join(sorted(strange))}")
    present = x.compressed()
    values = ours(present, **named)
    if present.size == x.size:
        return np.ma.array(values)
    return _with_one_masked(values, x.fill_value)


def _of_sets(fn: Function, keeps: Function) -> Handler:
    """A set function, of which what is masked is one more value; `keeps` says whether the result has it.

    numpy.ma sorts it among the greatest numbers of the dtype, and takes one for another there: here it is apart.
    """

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        if named.pop("return_indices", False):
            raise refusal("intersect1d", "takes no return_indices")
        distinct: list[Any] = [np.unique(x) for x in map(as_one, places)]
        found = fn(*(x.compressed() if isinstance(x, np.ma.MaskedArray) else x for x in distinct))
        return _with_one_masked(found, np.zeros(1)) if keeps(*map(np.ma.is_masked, distinct)) else np.ma.array(found)

    return call


def _with_one_masked(values: np.ndarray, hidden: Any) -> Any:
    """Values, and behind them one that is masked."""
    mask = np.arange(len(values) + 1) == len(values)
    return np.ma.array(np.append(values, np.asarray(hidden).astype(values.dtype)), mask=mask)


def _contained(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Masked where the element is; what is masked among the others is equal to none."""
    first, (x, others) = first_masked(places), map(as_one, places)
    x = x if isinstance(x, Masked) else as_masked(type(first), x)
    return x.kept(ours(data_of(x), others.compressed() if isinstance(others, Masked) else others, **named), mask_of(x))


def _skipping_nan(fn: Function) -> Handler:
    """NaN are left out beside what is masked; where there can be none it is the function that has them."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named)
        data, mask = x.parts()
        if data.dtype.kind not in "fc":
            return FUNCTIONS[fn](numpy_dispatch.FUNCTIONS[fn], places, named)
        found = ours(mapped(np.where, mask, data.dtype.type(np.nan), data), *places[1:], **named)
        if fn in (np.argmin, np.argmax):
            return found
        taken = mapped(np.logical_and, ~mask, named["where"]) if "where" in named else ~mask
        return x.kept(found, too_few(taken, named.get("correction", named.get("ddof", 0)), lines_of(named)))

    return call


# -- Tables ----------------------------------------------------------------------------------------------------------


def _rows(names: str, handler: Handler, numpys: Any = np) -> dict[Any, Handler]:
    """Rows for functions of NumPy's. An older NumPy may lack some."""
    return {vars(numpys)[name]: handler for name in names.split() if name in vars(numpys)}


FUNCTIONS: dict[Any, Handler] = {
    **_rows("angle around round clip fix i0 imag iscomplex isclose isneginf isposinf isreal real sinc", elementwise),
    **_rows("nan_to_num astype", elementwise),
    **_rows("digitize interp", of_elements(0)),
    **_rows("searchsorted polyval", of_elements(1)),
    **_rows("zeros_like ones_like full_like empty_like", filled_like),
    **_rows("transpose flip roll repeat copy reshape ravel squeeze expand_dims moveaxis swapaxes", moved(0)),
    **_rows("broadcast_to tile split array_split hsplit vsplit dsplit rot90 fliplr flipud unstack", moved(0)),
    **_rows("take take_along_axis delete matrix_transpose rollaxis resize", moved(0)),
    **_rows("diagonal diag diagflat tril triu", moved(0)),
    **_rows("diagonal matrix_transpose", moved(0), np.linalg),
    **_rows("fftshift ifftshift", moved(0), np.fft),
    **_rows("sliding_window_view", moved(0), np.lib.stride_tricks),
    **_rows("compress extract", moved(1)),
    **_rows("concatenate stack hstack vstack dstack column_stack block", joined),
    **_rows("broadcast_arrays atleast_1d atleast_2d atleast_3d meshgrid", alike),
    **_rows("append", appended),
    **_rows("sum prod mean var std any all", reduced()),
    **_rows("min amin", reduced(_highest)),
    **_rows("max amax", reduced(_lowest)),
    **_rows("argmin", of_filled(_highest)),
    **_rows("argmax", of_filled(_lowest)),
    **_rows("argsort", of_filled(_last)),
    **_rows("count_nonzero nonzero flatnonzero argwhere", of_filled(lambda dtype: 0)),
    **_rows("trace", of_filled(lambda dtype: 0)),
    **_rows("trace", of_filled(lambda dtype: 0), np.linalg),
    **_rows("partition argpartition", _partitioned),
    **_rows("quantile", masked_statistics.quantiles(quantile.nanquantile)),
    **_rows("percentile", masked_statistics.quantiles(quantile.nanpercentile)),
    **_rows("histogram histogram_bin_edges", masked_statistics.histogram),
    **_rows("cumulative_sum", _totals(0)),
    **_rows("cumulative_prod", _totals(1)),
    **_rows("outer", _outer),
    **_rows("outer", _outer, np.linalg),
    **_rows("convolve correlate", _weighed),
    **_rows("cumsum", accumulated(0)),
    **_rows("cumprod", accumulated(1)),
    **_rows("shape ndim size iscomplexobj isrealobj result_type common_type min_scalar_type", of_data),
    **_rows("diag_indices_from tril_indices_from triu_indices_from", of_data),
    **{
        getattr(np, f"nan{fn.__name__}"): _skipping_nan(fn)
        for fn in (
            *(np.sum, np.prod, np.mean, np.var, np.std, np.min, np.max),
            *(np.argmin, np.argmax, np.median, np.quantile, np.percentile),
        )
    },
    **_rows("nancumsum", accumulated(0)),
    **_rows("nancumprod", accumulated(1)),
    np.union1d: _of_sets(np.union1d, operator.or_),
    np.intersect1d: _of_sets(np.intersect1d, operator.and_),
    np.setdiff1d: _of_sets(np.setdiff1d, operator.gt),
    np.setxor1d: _of_sets(np.setxor1d, operator.xor),
    np.isin: _contained,
    np.dot: masked_products.dot,
    **_rows("matmul", masked_products.dot, np.linalg),
    np.inner: masked_products.inner,
    np.cov: masked_products.moments(normalized=False),
    np.corrcoef: masked_products.moments(normalized=True),
    **_rows("trapezoid", masked_products.trapezoid),
    np.histogramdd: masked_statistics.histogramdd,
    np.ptp: _spread,
    np.unique: _distinct,
    np.sort: _sorted,
    np.diff: _differences,
    np.where: _chosen,
    np.median: masked_statistics.median,
    np.average: masked_statistics.average,
    np.allclose: _close,
    np.select: _selected,
    np.choose: _chosen_by_number,
    np.insert: _inserted,
    np.pad: _padded,
    np.gradient: _neighbours,
    np.ediff1d: _ends,
    np.bincount: masked_statistics.bincount,
    np.histogram2d: masked_statistics.histogram2d,
}
"""How NumPy's functions of masked expressions give what numpy.ma's do."""

OPERATIONS: dict[Any, Handler] = {
    **{numpy_dispatch.FUNCTIONS[fn]: handler for fn, handler in FUNCTIONS.items()},
    where.where: _chosen,
    unique.unique: _distinct,
    join.pad: _padded,
    quantile.quantile: masked_statistics.quantiles(quantile.nanquantile),
    quantile.percentile: masked_statistics.quantiles(quantile.nanpercentile),
    histogram.bincount: masked_statistics.bincount,
}
"""The same by functions of chunkflow's."""

_REDUCE: dict[Any, Function] = {
    np.add: np.sum,
    np.multiply: np.prod,
    np.minimum: np.min,
    np.maximum: np.max,
    np.logical_and: np.all,
    np.logical_or: np.any,
}


def ufunc(kind: type[Masked], fn: np.ufunc, method: str, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a ufunc gives of masked expressions: where it is not defined, its result is masked as numpy.ma's is."""
    if method == "reduce" and fn in _REDUCE:
        return function(kind, _REDUCE[fn], inputs, {"axis": 0, **kwargs})
    if method == "__call__" and fn is np.matmul:
        check_no_out("np.matmul", kwargs.get("out"))
        check_taken(product.matmul, "np.matmul", {key: value for key, value in kwargs.items() if value is not None})
        return multiplied(kind, "matmul", inputs)
    if method != "__call__" or fn.signature is not None:
        raise refusal(f"np.{fn.__name__}" if method == "__call__" else f"np.{fn.__name__}.{method}")
    given = opened(kind, list(inputs))
    if any(isinstance(value, Masked) for value in kwargs.values()) or not is_masked(given):
        raise UnsupportedError(f"np.{fn.__name__}: an argument is masked that must not be: {WAYS_OUT}")
    arrays, hidden = defined(fn, data_of(given))
    return masked_with(given, numpy_dispatch.ufunc(fn, method, arrays, kwargs), *hidden)


def multiplied(kind: type[Masked], name: str, factors: Sequence[Any], *, strict: bool = False) -> Any:
    """What a product of two arrays gives, of NumPy's of this name."""
    with refused_by(f"np.{name}", factors):
        return masked_products.dot(getattr(product, name), opened(kind, list(factors)), {}, strict=strict)


_IGNORANT = {"np.lexsort": "is not supported: NumPy's sorts by what lies under the mask"}
"""Why functions are refused that numpy.ma lacks, and of which NumPy's ignores the mask."""


def _unlisted(name: str) -> UnsupportedError:
    return refusal(name, _IGNORANT[name]) if name in _IGNORANT else refusal(name)


HANDLERS = Handlers(FUNCTIONS, OPERATIONS, _unlisted)


def function(kind: type[Masked], fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of NumPy's functions gives of masked expressions."""
    return HANDLERS.function(fn, opened(kind, list(args)), opened(kind, kwargs))


def operation(kind: type[Masked], ours: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of chunkflow's operations gives of masked expressions."""
    return HANDLERS.operation(ours, opened(kind, list(args)), opened(kind, kwargs))


def operated(operator: Function, operands: Sequence[Any], kind: type[Masked]) -> Any:
    """What one of Python's operators gives of masked expressions, as of arrays of numpy.ma's."""
    given = opened(kind, [array_of(each) if isinstance(each, list | tuple) else each for each in operands])
    arrays, hidden = defined(operator, data_of(given))
    found = operator(*arrays)
    return masked_with(given, found, *hidden, *not_finite(operator, found))
