"""NumPy's ufuncs and functions of masked expressions: those that numpy.ma has, with what it gives.

A row of the table says how the elements and the mask of a result come about. Elements and mask are expressions, so
that what is asked for together is computed in the same passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api.lazy import numpy_dispatch, numpy_functions
from chunkflow.api.lazy.array import Array
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
    paired,
)
from chunkflow.api.rearrange import masks, where
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.statistics import quantile, unique
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import UnsupportedError
from chunkflow.graph.elementwise import mapped


def _refusal(name: str, why: str = "is not supported") -> UnsupportedError:
    return UnsupportedError(f"{name} of a masked expression {why}: {WAYS_OUT}")


def _only(places: Sequence[Any], named: Mapping[str, Any], at: int = 0) -> Masked:
    """The one masked argument, which has this place."""
    others = [*places[:at], *places[at + 1 :], *named.values()]
    if not isinstance(places[at], Masked) or any(isinstance(other, Masked) for other in others):
        raise UnsupportedError(f"an argument is masked that must not be: {WAYS_OUT}")
    found: Masked = places[at]
    return found


# -- How elements and mask come about --------------------------------------------------------------------------------


def _moved(at: int) -> Handler:
    """The mask is moved as the elements are; `at` is the place of the array among the arguments."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = _only(places, named, at)
        found, mask = (ours(*places[:at], part, *places[at + 1 :], **named) for part in x.parts())
        return paired(x, found, mask)

    return call


def _filled_like(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Arrays of one number keep the mask; of another shape too, where that has as many elements."""
    if named.get("shape") is None:
        return elementwise(ours, places, named)
    x = _only(places, named)
    found = ours(data_of(x), *places[1:], **named)
    return x.kept(found, mask_of(x if found.size == x.size else type(x).unmasked(found)).reshape(found.shape))


def _joined(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Arrays are joined: of those without a mask nothing is masked."""
    first = _first(places)
    of_bools = {key: value for key, value in named.items() if key not in ("dtype", "casting")}
    return paired(first, ours(*map(data_of, places), **named), ours(*map(mask_of, places), **of_bools))


def _alike(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Arrays that are changed alike: each gives a result, so each becomes a masked expression."""
    kind = type(_first(places))
    return _joined(ours, [value if isinstance(value, Masked) else _unmasked(kind, value) for value in places], named)


def _unmasked(kind: type[Masked], value: Any) -> Masked:
    return kind.unmasked(value) if isinstance(value, Array) else kind.of(np.ma.asarray(value))


def _appended(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    return _joined(ours, [np.asarray(value) if isinstance(value, list | tuple) else value for value in places], named)


def _first(values: Any) -> Masked:
    """The first masked expression in lists of them: there is one."""
    found = [each for value in values for each in ([value] if isinstance(value, Masked) else _inner(value))]
    return found[0]


def _inner(value: Any) -> list[Masked]:
    return [_first(value)] if isinstance(value, list | tuple) and _is_masked(value) else []


def _is_masked(value: Any) -> bool:
    return isinstance(value, Masked) or (isinstance(value, list | tuple) and any(map(_is_masked, value)))


def _of_data(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """What is known of the elements alone."""
    return ours(*map(data_of, places), **named)


def _of_filled(neutral: Callable[[np.dtype], Any]) -> Handler:
    """A plain result, of the elements with something neutral in the masked places."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = _only(places, named)
        return ours(x.filled(neutral(data_of(x).dtype)), *places[1:], **named)

    return call


def _accumulated(neutral: int) -> Handler:
    """Masked places change nothing, and stay masked."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = _only(places, named)
        mask = mask_of(x) if named.get("axis") is not None else mask_of(x).reshape(-1)
        return x.kept(ours(x.filled(neutral), **named), mask)

    return call


def _lines(named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that say along which axes an array is reduced."""
    return {key: named[key] for key in ("axis", "keepdims") if key in named}


def _reduced(neutral: Callable[[np.dtype], Any] | None = None) -> Handler:
    """Masked elements are left out by ``where=``. Masked is what has too few others; an extreme begins with `neutral`.

    Whether there are is found in the same pass.
    """

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = _only(places, named)
        data, taken = data_of(x), ~mask_of(x)
        if ours is sums.mean and named.get("dtype") is not None and np.dtype(named["dtype"]).kind in "biu":
            raise _refusal("a mean", f"has no dtype={named['dtype']!r}, which loses fractions: round it, or")
        if "where" in named:
            taken = mapped(np.logical_and, taken, named["where"])
        begun = {} if neutral is None else {"initial": neutral(data.dtype)}
        found = ours(data, **{**begun, **named, "where": taken})
        return x.kept(found, _too_few(taken, named.get("correction", named.get("ddof", 0)), _lines(named)))

    return call


def _too_few(taken: Any, least: float, how: Mapping[str, Any]) -> Any:
    """Whether no more elements than `least` are taken along the axes."""
    return sums.sum(taken, **how) <= least if least else extremes.all(~taken, **how)


# -- Functions by themselves -----------------------------------------------------------------------------------------

_highest, _lowest = np.ma.minimum_fill_value, np.ma.maximum_fill_value
"""What numpy.ma puts in masked places where the least, and the greatest, is looked for."""


def _last(dtype: np.dtype) -> Any:
    """What is sorted behind all else."""
    return np.full((), np.nan, dtype)[()] if dtype.kind in "fc" else _highest(dtype)


def _spread(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x = _only(places, named)
    high, low = (_reduced(start)(fn, [x], named) for fn, start in ((extremes.max, _lowest), (extremes.min, _highest)))
    return elementwise(partial(mapped, np.subtract), (high, low), {})


def _sorted(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Masked elements come last, also behind NaN."""
    x = _only(places, named)
    return x.kept(ours(x.filled(_last(data_of(x).dtype)), **named), ours(mask_of(x), **named))


def _differences(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    x = _only(places, named)
    if named.keys() & {"prepend", "append"}:
        raise _refusal("diff", "takes no prepend= and append=, join them before")
    found, mask = ours(data_of(x), **named), mask_of(x)
    (along,) = normalize_axes(named.get("axis", -1), mask.ndim, "axis")
    before = (slice(None),) * along
    for _ in range(named.get("n", 1)):
        mask = mask[(*before, slice(1, None))] | mask[(*before, slice(None, -1))]
    return x.kept(found, mask)


def _chosen(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.where`: masked where the condition is, or the element that it takes."""
    if len(places) == 1:
        return masks.nonzero(_only(places, named).filled(False))
    first, (condition, *branches) = _first(places), places
    found = ours(*map(data_of, places), **named)
    if _is_masked(branches):
        mask = either(mapped(np.where, data_of(condition), *map(mask_of, branches)), *_masks(condition))
    else:
        mask = mask_of(condition)
    return type(first)(found, numpy_functions.broadcast_to(mask, found.shape))


def _masks(*values: Any) -> list[Any]:
    return [mask_of(value) for value in values if isinstance(value, Masked)]


def _median(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """The median of the others, as `numpy.ma.median`: NaN where one of them is NaN."""
    x, how = _only(places, named), _lines(named)
    data, taken = data_of(x), ~mask_of(x)
    exact = data.dtype.kind in "biu"
    data = data.astype("f8") if exact else data
    found = quantile.nanmedian(mapped(np.where, taken, data, data.dtype.type(np.nan)), **how)
    if not exact:
        lost = extremes.any(mapped(np.isnan, data), **how, where=taken)
        found = mapped(np.where, lost, found.dtype.type(np.nan), found)
    return x.kept(found, _too_few(taken, 0, how))


def _average(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.average`: a masked weight is left out with its element."""
    x, how = places[0], _lines(named)
    weights, returned = named.get("weights"), named.get("returned", False)
    if weights is None:
        mean = _reduced()(sums.mean, [x], how)
        return (mean, x.count(**how).astype(mean.dtype)) if returned else mean
    bare = weights if isinstance(weights, Masked) else _unmasked(type(x), weights)
    along = sums.weighed(x.shape, bare.shape, how.get("axis"))
    order = np.argsort(along).tolist()
    wider = tuple(slice(None) if a in along else None for a in range(len(x.shape)))
    weight, hidden = (numpy_functions.broadcast_to(p.transpose(order)[wider], x.shape) for p in bare.parts())
    data, taken = data_of(x), ~either(mask_of(x), hidden)
    dtype = np.result_type(data.dtype, weight.dtype, *(["f8"] if data.dtype.kind in "biu" else []))
    total = sums.sum(weight, dtype=dtype, where=taken, **how)
    found = sums.sum(mapped(np.multiply, data, weight, dtype=dtype), where=taken, **how) / total
    missing = _too_few(taken, 0, how) | (total == 0)
    mean = x.kept(found, missing)
    return (mean, mean.kept(total, missing)) if returned else mean


def _close(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.allclose`, to which masked places are equal."""
    same = elementwise(partial(mapped, np.isclose), places, named)
    return extremes.all(data_of(same), where=~mask_of(same))


def _distinct(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.unique`: the masked places are one more value, and last."""
    x = _only(places, named)
    if strange := named.keys() - {"equal_nan", "sorted", "chunks", "budget", "device", "progress"}:
        raise _refusal("unique", f"takes no {', '.join(sorted(strange))}")
    present = x.compressed()
    values = ours(present, **named)
    if present.size == x.size:
        return np.ma.array(values)
    return np.ma.array(np.append(values, x.fill_value), mask=np.arange(len(values) + 1) == len(values))


# -- Tables ----------------------------------------------------------------------------------------------------------


def _rows(names: str, handler: Handler, numpys: Any = np) -> dict[Any, Handler]:
    """Rows for functions of NumPy's. An older NumPy may lack some."""
    return {vars(numpys)[name]: handler for name in names.split() if name in vars(numpys)}


FUNCTIONS: dict[Any, Handler] = {
    **_rows("angle around round clip fix i0 imag iscomplex isclose isneginf isposinf isreal real sinc", elementwise),
    **_rows("nan_to_num astype digitize isin interp", elementwise),
    **_rows("zeros_like ones_like full_like empty_like", _filled_like),
    **_rows("transpose flip roll repeat copy reshape ravel squeeze expand_dims moveaxis swapaxes", _moved(0)),
    **_rows("broadcast_to tile split array_split hsplit vsplit dsplit rot90 fliplr flipud unstack", _moved(0)),
    **_rows("take take_along_axis delete matrix_transpose", _moved(0)),
    **_rows("sliding_window_view", _moved(0), np.lib.stride_tricks),
    **_rows("compress extract", _moved(1)),
    **_rows("concatenate stack hstack vstack dstack column_stack block", _joined),
    **_rows("broadcast_arrays atleast_1d atleast_2d atleast_3d meshgrid", _alike),
    **_rows("append", _appended),
    **_rows("sum prod mean var std any all", _reduced()),
    **_rows("min amin", _reduced(_highest)),
    **_rows("max amax", _reduced(_lowest)),
    **_rows("argmin", _of_filled(_highest)),
    **_rows("argmax", _of_filled(_lowest)),
    **_rows("argsort", _of_filled(_last)),
    **_rows("count_nonzero nonzero flatnonzero argwhere", _of_filled(lambda dtype: 0)),
    **_rows("cumsum", _accumulated(0)),
    **_rows("cumprod", _accumulated(1)),
    **_rows("shape ndim size iscomplexobj isrealobj result_type", _of_data),
    np.ptp: _spread,
    np.unique: _distinct,
    np.sort: _sorted,
    np.diff: _differences,
    np.where: _chosen,
    np.median: _median,
    np.average: _average,
    np.allclose: _close,
}
"""How NumPy's functions of masked expressions give what numpy.ma's do."""

OPERATIONS: dict[Any, Handler] = {
    **{numpy_dispatch.FUNCTIONS[fn]: handler for fn, handler in FUNCTIONS.items()},
    where.where: _chosen,
    unique.unique: _distinct,
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
    if method != "__call__" or fn.signature is not None:
        raise _refusal(f"np.{fn.__name__}" if method == "__call__" else f"np.{fn.__name__}.{method}")
    given = opened(kind, list(inputs))
    if any(isinstance(value, Masked) for value in kwargs.values()) or not _is_masked(given):
        raise UnsupportedError(f"np.{fn.__name__}: an argument is masked that must not be: {WAYS_OUT}")
    arrays, hidden = defined(fn, data_of(given))
    return masked_with(given, numpy_dispatch.ufunc(fn, method, arrays, kwargs), *hidden)


HANDLERS = Handlers(FUNCTIONS, OPERATIONS, _refusal)


def function(kind: type[Masked], fn: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of NumPy's functions gives of masked expressions."""
    return HANDLERS.function(fn, opened(kind, list(args)), opened(kind, kwargs))


def operation(kind: type[Masked], ours: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What one of chunkflow's operations gives of masked expressions."""
    return HANDLERS.operation(ours, opened(kind, list(args)), opened(kind, kwargs))


def operated(operator: Function, operands: Sequence[Any], kind: type[Masked]) -> Any:
    """What one of Python's operators gives of masked expressions, as of arrays of numpy.ma's."""
    given = opened(kind, [np.asarray(each) if isinstance(each, list | tuple) else each for each in operands])
    arrays, hidden = defined(operator, data_of(given))
    found = operator(*arrays)
    return masked_with(given, found, *hidden, *not_finite(operator, found))
