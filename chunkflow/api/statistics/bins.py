"""Rules that choose the bins of a histogram, with NumPy's names. They need a pass over the elements.

The number of elements, their range and their moments are accumulated block by block. Quartiles are exact order
statistics (see `chunkflow.api.statistics.quantile`). The widths are those of ``numpy.histogram_bin_edges``, which names
their sources, computed in the same order. So the bins are NumPy's. The one exception are "scott" and "doane": moments
are added up in another order, and the rounding may move the number of bins across an integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow import devices
from chunkflow.api.operation import ArraySpec, Chunks, Declare, Declared, Options, Request, execute
from chunkflow.api.statistics.order_statistics import order_statistics, quantile_of
from chunkflow.core.chunking import block_sides
from chunkflow.core.nest import nest
from chunkflow.engine.budget import bytes_left
from chunkflow.engine.dry_run import is_dry
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.protocol import Kernel
from chunkflow.kernels.statistics.bins import Within
from chunkflow.kernels.statistics.histogram import Tally
from chunkflow.stores import is_new

RULES = ("auto", "doane", "fd", "rice", "scott", "sqrt", "sturges")
"""Names of the rules."""

MOMENTS, QUARTILES = ("doane", "scott"), ("auto", "fd")
"""Rules that need moments, and rules that need quartiles."""


@dataclass(frozen=True)
class SampleFacts:
    """What a rule needs to know of the elements within a range: how many, the smallest, the largest ...

    `std` is in NumPy's dtype of it; the skewness is the third central moment in units of its cube.
    """

    size: int
    low: Any
    high: Any
    std: Any = 0.0
    skewness: Any = 0.0
    quartiles: tuple[Any, Any] = (0.0, 0.0)


def check_rule(bins: str, dtype: np.dtype, weighted: bool) -> None:
    """Refuse a rule that is unknown, or that cannot be used for these elements."""
    if bins == "stone":
        raise ArgumentError(
            "bins='stone' would try every number of bins up to the root of the number of elements, with a pass over "
            "them each: use 'scott', of which it is a generalization, or 'auto', or choose bins from a sample"
        )
    if bins not in RULES:
        raise ArgumentError(f"bins={bins!r} is none of {', '.join(RULES)}: name one, or give a number, or edges")
    if weighted:
        raise ArgumentTypeError(
            f"bins={bins!r} with weights: rules that choose the bins know of no weights; give a number of bins or edges"
        )
    if bins in QUARTILES and dtype.itemsize > 8:
        raise ArgumentTypeError(
            f"bins={bins!r} of {dtype}: quartiles are of numbers of at most 64 bits; convert it, or use 'sturges'"
        )


def number_of_bins(bins: str, seen: SampleFacts, range: tuple[Any, Any] | None) -> int:
    """Number of bins that a rule gives for a range, or between the extremes."""
    if not seen.size:
        return 1
    first, last = (seen.low, seen.high) if range is None else range
    if not (np.isfinite(first) and np.isfinite(last)):
        raise ArgumentError(f"bins={bins!r}: autodetected range of [{first}, {last}] is not finite; give range=")
    with np.errstate(all="ignore"):
        width = _width(bins, seen)
        if seen.low.dtype.kind in "iu" and width and width < 1:  # quartiles' difference may wrap around, below 0
            width = 1
        first, last = _outer(first, last)
        number = np.ceil(_difference(last, first) / width) if width else 1
    if not math.isfinite(number):
        raise ArgumentError(
            f"bins={bins!r} wants bins of a width of {width} from {first} to {last}, more than can be counted: give a "
            "number of bins"
        )
    return int(number)


def seen_by(
    bins: str,
    x: Any,
    spec: ArraySpec,
    range: tuple[Any, Any] | None,
    chunks: Chunks,
    options: Options,
) -> SampleFacts:
    """What a rule needs to know of an array with elements: from one pass, and a few more for quartiles."""
    within = Within(None if range is None else _outer(*range), bins in MOMENTS)
    tally = Tally(lambda block: within.count(numbers(block)), within.merge)
    count, below, low, high, *moments = (
        np.asarray(a)[0] for a in execute(Request(over_everything(tally, chunks), (x,), in_memory(options)))
    )
    size, dtype = spec.size if is_dry() else int(count), low.dtype
    if not size or not (np.isfinite(low) and np.isfinite(high)) or bins not in (*MOMENTS, *QUARTILES):
        return SampleFacts(size, low, high)
    if bins in MOMENTS:
        _, squares, cubes = moments
        with np.errstate(all="ignore"):
            std = np.sqrt(squares / size)
            skewness = cubes / size / std**3
        return SampleFacts(size, low, high, std.astype(np.std(np.zeros(1, dtype)).dtype), skewness)
    rule = quantile_of([75, 25], 100, "linear")(dtype).rule(size)
    ranks = rule.ranks()
    run = devices.resolve(options.device)
    room = bytes_left(options.budget, run) - run.reserve
    axes, block = tuple(np.arange(len(spec.shape)).tolist()), block_sides(chunks, spec.shape)
    found, _ = order_statistics(x, spec, axes, ranks + int(below), block, run, room, options)
    found = found.view("u1") if found.dtype.kind == "b" else found
    upper, lower = rule.result(lambda wanted: found[np.searchsorted(ranks, wanted)])
    return SampleFacts(size, low, high, quartiles=(lower, upper))


def supposed_range(dtype: np.dtype) -> tuple[Any, Any]:
    """Of a dry run, the range of elements that are not known: a wide one, since all elements are within it."""
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).min), dtype.type(np.iinfo(dtype).max)
    return dtype.type(np.finfo(dtype).min / 4), dtype.type(np.finfo(dtype).max / 4)


def most_bins(bins: str, size: int) -> int:
    """The most bins that a rule gives for so many elements, where that is bounded; else what is most for "auto"."""
    most: dict[str, float] = {"scott": size ** (5 / 6), "rice": 2 * size ** (1 / 3), "sqrt": math.sqrt(size)}
    few = 2 * math.log2(max(size, 1)) + 2
    return math.ceil(max(few, most.get(bins, 2 * math.sqrt(size) if bins in QUARTILES else 0))) + 1


def length_of(out: Any) -> int | None:
    """Length of an output that there is already: the result has it too, or is refused."""
    if out is None or is_new(out) or len(out.shape) != 1:
        return None
    return int(out.shape[0])


def finite(edges: np.ndarray, bins: Any) -> np.ndarray:
    """The edges of a number of bins. Between ends that are too far apart for their dtype there are none: ValueError."""
    if np.ndim(bins) == 0 and not np.isfinite(edges).all():
        raise ValueError(f"the range is wider than {edges.dtype} holds: give edges")
    return edges


def in_memory(options: Options) -> Options:
    """The same options for a pass whose result is not the caller's."""
    return replace(options, out=None, overwrite=False, resume=False, name=None)


def over_everything(kernel: Kernel, chunks: Chunks, copies: float = 3.0) -> Declare:
    """Declare a fold over all elements, with results of one dimension; of `copies` see `Declared`."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = nest([s.shape for s in specs])
        return Declared(op, kernel, (None,), block_sides(chunks, op.extents), tiles=False, copies=copies)

    return declare


def numbers(block: Any) -> Any:
    """Bools as 0 and 1, as NumPy's histogram takes them."""
    return block.view("u1") if block.dtype.kind == "b" else block


# -- Widths --------------------------------------------------------------------------------------------------


def _outer(first: Any, last: Any) -> tuple[Any, Any]:
    """Outer edges that differ, as NumPy moves them apart."""
    return (first - 0.5, last + 0.5) if first == last else (first, last)


def _difference(high: Any, low: Any) -> Any:
    """Difference of two numbers. That of integers is unsigned, so that it always fits their size."""
    dtype = np.result_type(high, low)
    if dtype.kind != "i":
        return np.subtract(high, low, dtype=dtype)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.subtract(np.asarray(high, dtype), np.asarray(low, dtype), casting="unsafe", dtype=unsigned)


def _width(rule: str, seen: SampleFacts) -> Any:
    """Width of the bins that a rule wants."""
    size = seen.size
    if rule == "auto":
        return min(max(_width("fd", seen), _width("sqrt", seen) / 2), _width("sturges", seen))
    if rule == "fd":
        lower, upper = seen.quartiles
        return 2.0 * np.subtract(upper, lower) * size ** (-1.0 / 3.0)
    if rule == "scott":
        return (24.0 * np.pi**0.5 / size) ** (1.0 / 3.0) * seen.std
    span = _difference(seen.high, seen.low)
    if rule == "sqrt":
        return span / np.sqrt(size)
    if rule == "sturges":
        return span / (np.log2(size) + 1.0)
    if rule == "rice":
        return span / (2.0 * size ** (1.0 / 3))
    if size <= 2 or not seen.std > 0:  # "doane"
        return 0.0
    deviation = np.sqrt(6.0 * (size - 2) / ((size + 1.0) * (size + 3)))
    return span / (1.0 + np.log2(size) + np.log2(1.0 + abs(seen.skewness) / deviation))
