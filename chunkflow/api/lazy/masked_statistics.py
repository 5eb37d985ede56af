"""Statistics of what is not masked: medians and quantiles, weighted means, histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.api.lazy import numpy_functions
from chunkflow.api.lazy.handlers import Function, Handler
from chunkflow.api.lazy.masked_parts import Masked, data_of, either, mask_of
from chunkflow.api.lazy.masked_rules import as_masked, as_one, is_masked, lines_of, only, reduced, refusal, too_few
from chunkflow.api.reductions import extremes, sums
from chunkflow.api.statistics import quantile
from chunkflow.errors import ArgumentError
from chunkflow.graph.elementwise import mapped


def median(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """The median of the others, as `numpy.ma.median`: NaN where one of them is NaN."""
    x, how = only(places, named), lines_of(named)
    return _skipping(x, quantile.nanmedian(_with_nan(x), **how), how)


def quantiles(skipping: Function) -> Handler:
    """Quantiles of the others, by a function that skips NaN; NaN where one of them is NaN."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        x = only(places, named)
        dtype = ours(data_of(x), *places[1:], **named).dtype  # what is refused of any array is refused here
        if dtype.kind in "iu" and dtype.itemsize == 8:
            raise refusal("a quantile", f"by method={named['method']!r} has no {dtype}, which NaN cannot stand beside")
        how = lines_of(named)
        found = _skipping(x, skipping(_with_nan(x), *places[1:], **named), how)
        data, hidden = found.parts()
        return found if data.dtype == dtype else x.kept(mapped(_cast, data, hidden, dtype=dtype), hidden)

    return call


def _cast(block: Any, hidden: Any, dtype: np.dtype) -> Any:
    return np.where(hidden, block.dtype.type(0), block).astype(dtype)


def _with_nan(x: Masked) -> Any:
    """The elements, as floats, with NaN in the masked places."""
    data, mask = x.parts()
    data = data.astype("f8") if data.dtype.kind in "biu" else data
    return mapped(np.where, mask, data.dtype.type(np.nan), data)


def _skipping(x: Masked, found: Any, how: dict[str, Any]) -> Any:
    """What was made of elements that are not NaN: NaN where one is that is not masked."""
    data, taken = data_of(x), ~mask_of(x)
    if data.dtype.kind not in "biu":
        lost = extremes.any(mapped(np.isnan, data), **how, where=taken)
        found = mapped(np.where, lost, found.dtype.type(np.nan), found)
    return x.kept(found, too_few(taken, 0, how))


def average(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.average`: a masked weight is left out with its element."""
    x, how = places[0], lines_of(named)
    weights, returned = named.get("weights"), named.get("returned", False)
    if weights is None:
        mean = reduced()(sums.mean, [x], how)
        return (mean, x.count(**how).astype(mean.dtype)) if returned else mean
    kind = type(x) if isinstance(x, Masked) else type(weights)
    x, bare = (each if isinstance(each, Masked) else as_masked(kind, each) for each in (x, weights))
    along = sums.weighed(x.shape, bare.shape, how.get("axis"))
    order = np.argsort(along).tolist()
    wider = tuple(slice(None) if a in along else None for a in range(len(x.shape)))
    weight, hidden = (numpy_functions.broadcast_to(p.transpose(order)[wider], x.shape) for p in bare.parts())
    data, taken = data_of(x), ~either(mask_of(x), hidden)
    dtype = np.result_type(data.dtype, weight.dtype, *(["f8"] if data.dtype.kind in "biu" else []))
    total = sums.sum(weight, dtype=dtype, where=taken, **how)
    found = sums.sum(mapped(np.multiply, data, weight, dtype=dtype), where=taken, **how) / total
    missing = too_few(taken, 0, how) | (total == 0)
    mean = x.kept(found, missing)
    return (mean, mean.kept(total, missing)) if returned else mean


def histogram(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Of the elements that are not masked; a masked weight is left out with its element."""
    return _counted(ours, places, named, 1, None)


def bincount(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Of the elements that are not masked; a masked weight is left out with its element."""
    return _counted(ours, places, named, 1, 1)


def histogram2d(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Of the pairs of which neither is masked."""
    return _counted(ours, places, named, 2, 1)


def histogramdd(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """Of the samples of which nothing is masked."""
    (sample,) = places
    columns = list(sample) if isinstance(sample, list | tuple) else [sample[:, d] for d in range(sample.shape[1])]

    def count(*arrays: Any, **others: Any) -> Any:
        return ours(list(arrays), **others)

    return _counted(count, columns, named, len(columns), 1)


def _counted(ours: Function, places: list[Any], named: dict[str, Any], number: int, dims: int | None) -> Any:
    """What counts elements, of the first `number` arguments: where one is masked all are left out."""
    weights, others = named.get("weights"), {key: value for key, value in named.items() if key != "weights"}
    if is_masked([*places[number:], *others.values()]):
        raise refusal("a count", "has no masked bins or ranges")
    given = [as_one(value) for value in (*places[:number], *([] if weights is None else [weights]))]
    shape = np.shape(given[0])
    if any(np.shape(value) != shape or (dims or len(shape)) != len(shape) for value in given):
        shapes = ", ".join(str(np.shape(value)) for value in given)
        raise ArgumentError(f"arrays and weights of shapes {shapes}: give arrays of {dims or 'any'} axes, of one shape")
    kind = next(type(value) for value in given if isinstance(value, Masked))
    taken = ~either(*(mask_of(value) for value in given if isinstance(value, Masked)))
    arrays = [data_of(value if isinstance(value, Masked) else as_masked(kind, value)) for value in given]
    kept = [array[taken] for array in arrays] if shape else [array.reshape(1)[taken.reshape(1)] for array in arrays]
    more = {} if weights is None else {"weights": kept[-1]}
    return ours(*kept[:number], *places[number:], **others, **more)
