"""Products and moments of masked expressions, as numpy.ma has them: masked elements take no part."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.handlers import Function, Handler
from chunkflow.api.lazy.masked_parts import Masked, data_of, either, elementwise, mask_of
from chunkflow.api.lazy.masked_rules import as_masked, as_one, first_masked, reduced, refusal
from chunkflow.api.linalg import product
from chunkflow.api.rearrange import join
from chunkflow.api.reductions import sums
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import SourceNode


def dot(ours: Function, places: list[Any], named: dict[str, Any], *, strict: bool = False) -> Any:
    """As `numpy.ma.dot`, and alike of matrices: masked where no pair of factors is there, or where `strict` lacks one.

    numpy.ma has no product of matrices of its own: NumPy's gives a mask of another shape, or fails.
    """
    arrays = list(map(_factor, places))
    first = first_masked(arrays)
    factors = list(map(_with_zeros, arrays))
    whole = strict and all(np.ndim(value) for value in arrays)
    least = max(1, np.shape(arrays[0])[-1]) if whole else 1
    there = [
        mapped(np.logical_not, mask_of(value)).astype("f8")
        if isinstance(value, Masked)
        else np.broadcast_to(1.0, np.shape(value))
        for value in arrays
    ]
    return first.kept(ours(*factors, **named), ours(*there) < least)


def inner(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.ma.inner`: masked elements are zeros, and nothing is masked."""
    arrays = list(map(_factor, places))
    return type(first_masked(arrays)).unmasked(ours(*map(_with_zeros, arrays), **named))


def _factor(value: Any) -> Any:
    """A masked expression, or something else that has a shape."""
    if isinstance(value, str | os.PathLike):
        return Array(SourceNode(value))
    return value if isinstance(value, Masked) else data_of(as_one(value))


def _with_zeros(value: Any) -> Any:
    return value.filled(0) if isinstance(value, Masked) else value


def moments(*, normalized: bool) -> Handler:
    """As `numpy.ma.cov` and `corrcoef`: each pair of variables has the samples that are there of both."""

    def call(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
        if strange := named.keys() - {"y", "rowvar", "bias", "ddof"}:
            raise refusal("a covariance", f"takes no {', '.join(sorted(strange))}, and numpy.ma.cov has none")
        given = [as_one(value) for value in (*places, named.get("y")) if value is not None]
        kind = type(first_masked(given))
        arrays = [_lines(value if isinstance(value, Masked) else as_masked(kind, value)) for value in given]
        by_rows = bool(named.get("rowvar", True)) or arrays[0].shape[0] == 1
        ddof = named.get("ddof")
        ddof = (0 if named.get("bias") else 1) if ddof is None else ddof
        if ddof != int(ddof):
            raise ArgumentError(f"ddof={ddof!r} must be an integer")
        masks = [mask_of(x) for x in arrays]
        if len({x.shape for x in arrays}) == 1:  # a sample that one of two such arrays lacks is left out of both
            masks = [either(*masks)] * len(masks)
        elif len({x.shape[int(by_rows)] for x in arrays}) > 1:
            shapes = " and ".join(str(x.shape) for x in arrays)
            raise ArgumentError(f"arrays of shapes {shapes}: they must have as many samples")
        parts = ([x.parts()[0] for x in arrays], masks)
        data, mask = (join.concatenate(part, 1 - by_rows) if len(part) > 1 else part[0] for part in parts)
        found = _covariance(kind(data, mask), by_rows, ddof)
        return _scaled(found) if normalized else found

    return call


def _lines(x: Masked) -> Any:
    """An array of two dimensions, of floats."""
    data, mask = x.parts()
    if data.dtype.kind == "c":
        raise refusal("a covariance", f"is of real numbers, not {data.dtype}: numpy.ma.cov takes x.real alone, or")
    if data.ndim > 2:
        raise refusal("a covariance", f"is of one or two dimensions, not {data.ndim}")
    shape = (1,) * (2 - data.ndim) + data.shape
    return type(x)(data.astype("f8").reshape(shape), mask.reshape(shape))


def _covariance(x: Any, by_rows: bool, ddof: int) -> Any:
    mean = reduced()(sums.mean, [x], {"axis": int(by_rows), "keepdims": True})
    rest = elementwise(partial(mapped, np.subtract), (x, mean), {}).filled(0)
    there = (~mask_of(x)).astype("f8")
    total, number = (product.matmul(a, a.T) if by_rows else product.matmul(a.T, a) for a in (rest, there))
    freedom = number - ddof
    found = x.kept(total / freedom, freedom <= 0)
    return found if found.shape != (1, 1) else found.reshape(())


def _scaled(covariance: Any) -> Any:
    if not covariance.shape:  # as numpy.ma has it of a single variable
        return covariance.kept(covariance.data, mask_of(covariance) | True)
    spread = np.sqrt(np.diagonal(covariance))
    return covariance / (spread[:, None] * spread[None])


def trapezoid(ours: Function, places: list[Any], named: dict[str, Any]) -> Any:
    """As `numpy.trapezoid` of numpy.ma's arrays: what lies beside a masked element is left out."""
    y, x, axis = as_one(places[0]), as_one(named.get("x")), named.get("axis", -1)
    (along,) = normalize_axes(axis, np.ndim(y), "axis")
    before, after = ((*(slice(None),) * along, part) for part in (slice(None, -1), slice(1, None)))
    width: Any = named.get("dx", 1.0)
    if x is not None:
        width = np.diff(x, axis=along if np.ndim(x) > 1 else 0)
        width = width[(..., *(None,) * (np.ndim(y) - along - 1))] if np.ndim(x) == 1 else width
    return np.sum(width * (y[after] + y[before]) / 2.0, axis=along)
