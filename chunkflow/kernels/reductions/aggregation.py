"""Reductions as three functions: partial results of a block, the merge of two, and the final result.

Partial results keep the reduced axes at length 1. Floating-point sums run in double precision, by tiles, so that no
temporary is as large as a block. A new reduction is one function that returns an `Aggregation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape
from chunkflow.core.nest import LoopNest
from chunkflow.errors import ArgumentError, ZeroWeightsError
from chunkflow.kernels.protocol import Fold
from chunkflow.kernels.reductions import double_sums
from chunkflow.kernels.reductions.tiled import STRIP, UFUNCS, Axes, reduce, summed, without

Value = tuple[Any, ...]

_DOUBLE = np.dtype("f8")


@dataclass(frozen=True, init=False)
class Each:
    """Merges partial results one by one, each with its own ufunc; what is None stays so."""

    ufuncs: tuple[Any, ...]

    def __init__(self, *ufuncs: Any) -> None:
        object.__setattr__(self, "ufuncs", ufuncs)

    def __call__(self, left: Value, right: Value) -> Value:
        pairs = zip(self.ufuncs, left, right, strict=False)
        return tuple([None if b is None else f(a, b, out=b) for f, a, b in pairs])

    def anew(self, left: Value, right: Value) -> Value:
        """Overwrites neither: they may be views of the same results."""
        return tuple([None if b is None else f(a, b) for f, a, b in zip(self.ufuncs, left, right, strict=False)])


@dataclass(frozen=True)
class Aggregation:
    """A reduction as three functions.

    Attributes
    ----------
    chunk : callable
        ``chunk(*blocks, axes, box)``: partial results of one block; `box` is its place in the array.
    merge : callable
        ``merge(left, right)``: merged partial results; it may overwrite `right`. Chains take blocks in turn, so
        neither need lie before the other in the array.
    aggregate : callable
        ``aggregate(*value)``: the result, with the reduced axes still at length 1.
    copies : float
        How many partial results a lane holds while it merges two of them, including temporaries.
    strip : int
        Most elements of a block that it works on at a time on a device with memory of its own; 0 for all.
    data_independent : bool
        See `chunkflow.kernels.protocol.Kernel.data_independent`.
    placeless : bool
        Whether `merge` works elementwise, and partial results do not depend on a block's place: so that partial results
        of single elements are merged to those of windows.
    brief : Aggregation, optional
        The same for few elements, where it is another: the rounding errors of sums are not kept.
    skips : bool, optional
        Whether NaN are left out, if `aggregate` needs no more than the number of elements, the sum of squares about
        their mean, and the mean, in double precision: a device may find these at once.
    in_doubles : bool
        Whether `chunk` does no more than to add elements, or their squares, in double precision.
    """

    chunk: Callable[..., Value]
    merge: Callable[[Value, Value], Value]
    aggregate: Callable[..., Any]
    copies: float = 2.0
    strip: int = 0
    data_independent: bool = False
    placeless: bool = True
    brief: Aggregation | None = None
    skips: bool | None = None
    in_doubles: bool = False


@dataclass(frozen=True)
class Reduction(Fold):
    """An aggregation along `axes` as a kernel; `keepdims` says whether results keep those axes at length 1."""

    how: Aggregation
    axes: Axes
    keepdims: bool

    @property
    def data_independent(self) -> bool:
        return self.how.data_independent

    def fold(
        self, value: Value | None, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region
    ) -> Value:
        with np.errstate(all="ignore"):
            found = self.how.chunk(*blocks, self.axes, box)
            return found if value is None else self.how.merge(value, found)

    def combine(self, left: Value, right: Value) -> Value:
        with np.errstate(all="ignore"):
            return self.how.merge(left, right)

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        with np.errstate(all="ignore"):
            result = self.how.aggregate(*value)
        if self.keepdims or not self.axes:
            return result
        if isinstance(result, tuple):
            return tuple([each.squeeze(self.axes) for each in result])
        return result.squeeze(self.axes)


# -- The reductions ------------------------------------------------------------------------------------------
# Cached, so that equal reductions are the same object: then their trials are remembered. With `masked` the blocks of a
# mask come after the array's: elements where it is false are left out.


class Begin(NamedTuple):
    """The number with which a reduction begins, by its bytes: equal ones are the same to the bit."""

    number: bytes
    dtype: np.dtype

    @property
    def value(self) -> Any:
        """The number, as a NumPy scalar."""
        return np.frombuffer(self.number, self.dtype)[0]


@lru_cache
def extreme(name: str, of: Callable[[Any], Any] | None = None) -> Aggregation:
    """``min`` or ``max``, of a function of the elements; or ``fmin``, ``fmax``, which skip NaN."""
    return Aggregation(
        lambda x, axes, box: (reduce(name, x if of is None else of(x), axes),),
        Each(UFUNCS[name]),
        lambda found: found,
        data_independent=True,
    )


@lru_cache
def begun_extreme(name: str, begin: Begin, *, masked: bool) -> Aggregation:
    """As `extreme`, of the elements and the one with which it begins, which needs no other."""
    ufunc, first = UFUNCS[name], begin.value

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        if not math.prod(x.shape[a] for a in axes):
            return (np.full_like(x, first, shape=tuple([1 if a in axes else n for a, n in enumerate(x.shape)])),)
        found = reduce(name, without(x, first, where, skip=False)[0], axes)
        return (ufunc(found, first),)

    return Aggregation(_of(chunk, masked), Each(ufunc), lambda found: found, data_independent=True)


@lru_cache
def truth(name: str, *, masked: bool) -> Aggregation:
    """``any`` or ``all``."""
    neutral = name == "all"

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        return (reduce(name, without(x, neutral, where, skip=False)[0], axes),)

    return Aggregation(_of(chunk, masked), Each(UFUNCS[name]), lambda found: found, data_independent=True)


@lru_cache
def spread() -> Aggregation:
    """Greatest minus least element."""
    return Aggregation(
        lambda x, axes, box: (reduce("min", x, axes), reduce("max", x, axes)),
        Each(np.minimum, np.maximum),
        lambda least, most: most - least,
        data_independent=True,
    )


@lru_cache
def nonzero() -> Aggregation:
    """Number of elements that are not zero."""
    return Aggregation(
        lambda x, axes, box: (_count(x != 0, axes),), Each(np.add), lambda found: found, data_independent=True
    )


@lru_cache
def product(
    wide: np.dtype, result: np.dtype, *, skip: bool = False, masked: bool = False, begin: Begin | None = None
) -> Aggregation:
    """Product; `skip` leaves NaN out."""

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        return (reduce("prod", without(x, 1, where, skip=skip)[0], axes, wide),)

    def aggregate(found: Any) -> Any:
        return (found if begin is None else found * begin.value.astype(wide)).astype(result)

    return Aggregation(_of(chunk, masked), Each(np.multiply), aggregate, data_independent=not skip)


@lru_cache
def total(
    wide: np.dtype,
    result: np.dtype,
    of: Callable[[Any], Any] | None = None,
    power: float = 1,
    *,
    skip: bool = False,
    masked: bool = False,
    begin: Begin | None = None,
    brief: bool = False,
) -> Aggregation:
    """Sum of the elements, or of a function of them, raised to a power; `skip` leaves NaN out."""
    tight = _is_tight(result) and not brief

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        if of is not None:
            return _begun(summed(of, (x,), axes, wide), tight)
        return _begun(reduce("sum", without(x, 0, where, skip=skip)[0], axes, wide), tight)

    def aggregate(found: Any, lost: Any) -> Any:
        found = _whole(found, lost)
        if begin is not None:
            found = found + begin.value.astype(wide)
        return (found if power == 1 else np.sqrt(found) if power == 0.5 else found**power).astype(result)

    copies, strip = 4.0 if tight else 2.0, 0 if of is None else STRIP
    less = total(wide, result, of, power, skip=skip, masked=masked, begin=begin, brief=True) if tight else None
    return Aggregation(
        _of(chunk, masked),
        _plus if tight else Each(np.add, np.add),
        aggregate,
        copies,
        strip,
        data_independent=not skip,
        brief=less,
        in_doubles=of is None and not (skip or masked) and wide == _DOUBLE,
    )


@lru_cache
def average(
    wide: np.dtype,
    result: np.dtype,
    count: int,
    *,
    skip: bool = False,
    masked: bool = False,
    counted: bool = False,
    brief: bool = False,
) -> Aggregation:
    """Mean of `count` elements; `skip` leaves NaN out. What is left out is not counted.

    With `counted` there is a second result, how many there are.
    """
    tight = _is_tight(result) and not brief

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        if not (skip or masked):
            return _begun(reduce("sum", x, axes, wide), tight)
        x, mask = without(x, 0, where, skip=skip)
        return *_begun(reduce("sum", x, axes, wide), tight), _number(x, mask, axes)

    def merge(left: Value, right: Value) -> Value:
        return *_plus(left[:2], right[:2]), *Each(np.add)(left[2:], right[2:])

    def aggregate(found: Any, lost: Any, number: Any = None) -> Any:
        mean = (_whole(found, lost) / (np.float64(count) if number is None else number)).astype(result)
        return (mean, np.full_like(mean, count)) if counted else mean

    copies = 4.0 if tight else 2.0
    less = None
    if tight:
        less = average(wide, result, count, skip=skip, masked=masked, counted=counted, brief=True)
    joined = merge if tight else Each(np.add, np.add, np.add)
    doubles = not (skip or masked) and wide == _DOUBLE
    chunks = _of(chunk, masked)
    return Aggregation(chunks, joined, aggregate, copies, data_independent=not skip, brief=less, in_doubles=doubles)


def weighted(
    wide: np.dtype, result: np.dtype, count: int, place: Callable[[Any], Any], summed_too: bool = False
) -> Aggregation:
    """Weighted mean of `count` elements; `place` aligns the weights with the array's axes.

    With `summed_too` there is a second result, the weights' sums.
    """

    def chunk(x: Any, weights: Any, axes: Axes, box: Region) -> Value:
        weights = place(weights)
        scale = reduce("sum", weights, axes, wide)
        number = math.prod(x.shape[a] for a in axes)
        found = summed(lambda x, w: np.multiply(x, w, dtype=wide), (x, weights), axes, wide)
        return *_begun(found, _is_tight(result)), *_begun(scale, _is_tight(result)), number

    def merge(left: Value, right: Value) -> Value:
        return *_plus(left[:2], right[:2]), *_plus(left[2:4], right[2:4]), left[4] + right[4]

    def aggregate(found: Any, lost: Any, scale: Any, less: Any, number: int) -> Any:
        scale = _whole(scale, less)
        if number == count and bool((scale == 0).any()):  # the trial call sees only some of them
            raise ZeroWeightsError("the weights sum to zero, so there is no average: give weights that do not")
        mean = (_whole(found, lost) / scale).astype(result)
        return (mean, np.broadcast_to(scale, mean.shape).astype(result)) if summed_too else mean

    return Aggregation(chunk, merge, aggregate, copies=5.0, strip=STRIP)


@lru_cache
def moments(
    wide: np.dtype, result: np.dtype, ddof: float, *, root: bool, skip: bool = False, masked: bool = False
) -> Aggregation:
    """Variance, or its square root, from the count, the mean in two parts, and the centred sum of squares.

    Blocks are centred on their own means and merged as in Chan, Golub and LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", Report STAN-CS-79-773, Stanford 1979. If the mean has no
    more bits than the result, its rounding error is kept too, or differences of large means would be wrong.
    """
    real = np.empty(0, wide).real.dtype
    fewer = skip or masked

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        clean, mask = without(x, 0, where, skip=skip)
        number = _number(x, mask, axes).astype("f8") if fewer else np.float64(math.prod(x.shape[a] for a in axes))
        divisor = np.maximum(number, 1)
        mean = reduce("sum", clean, axes, wide) / (divisor if fewer else number)
        if mask is None and isinstance(x, np.ndarray) and wide == _DOUBLE:
            sums = double_sums.centred(x, mean, axes, off=_is_tight(result))
            if sums is not None:
                return number, sums[0], mean, sums[1] / divisor if len(sums) > 1 else None
        blocks = (x, mean) if mask is None else (x, mean, mask)
        found = summed(lambda *b: squares(centred(*b)), blocks, axes, real)
        rest = summed(centred, blocks, axes, wide) / divisor if _is_tight(result) else None
        return number, found, mean, rest

    def centred(x: Any, mean: Any, mask: Any = None) -> Any:
        off = np.subtract(x, mean, dtype=wide)
        return off if mask is None else np.where(mask, wide.type(0), off)

    def merge(left: Value, right: Value) -> Value:
        (n, found, mean, rest), (m, more, other, remains) = left, right
        share = m / np.maximum(n + m, 1)
        off = np.subtract(other, mean, out=other)
        if rest is not None:
            off += remains - rest
        step = off * share
        middle = mean + step
        if rest is not None:
            rest = (mean - middle) + step + rest
        between = squares(off)
        between *= n * share
        more += found
        more += between
        return n + m, more, middle, rest

    def aggregate(number: Any, found: Any, mean: Any, rest: Any = None) -> Any:
        found = found / np.maximum(number - ddof, 0)
        if skip:
            found = np.where(number > ddof, found, np.nan)
        return (np.sqrt(found) if root else found).astype(result)

    strip, skips = 0 if fewer else STRIP, skip if wide == _DOUBLE and not masked else None
    doubles = not fewer and wide == _DOUBLE
    how = {"data_independent": not skip, "skips": skips, "in_doubles": doubles}
    return Aggregation(_of(chunk, masked), merge, aggregate, 3.0, strip, **how)  # type: ignore[arg-type]


@lru_cache
def about(mean: float, result: np.dtype, divisor: float, *, root: bool, brief: bool = False) -> Aggregation:
    """Variance about a mean that is known, or its square root: squared differences are summed, and divided."""
    tight = _is_tight(result) and not brief

    def chunk(x: Any, axes: Axes, box: Region) -> Value:
        if all(x.shape[a] == 1 for a in axes):
            return _begun(squares(np.subtract(x, mean, dtype=_DOUBLE)), tight)
        if isinstance(x, np.ndarray):
            means = np.full([1 if a in axes else n for a, n in enumerate(x.shape)], mean)
            sums = double_sums.centred(x, means, axes, off=False)
            if sums is not None:
                return _begun(sums[0], tight)
        return _begun(summed(lambda x: squares(np.subtract(x, mean, dtype=_DOUBLE)), (x,), axes, _DOUBLE), tight)

    def aggregate(found: Any, lost: Any) -> Any:
        found = _whole(found, lost) / np.float64(divisor)
        return (np.sqrt(found) if root else found).astype(result)

    less = about(mean, result, divisor, root=root, brief=True) if tight else None
    merge = _plus if tight else Each(np.add, np.add)
    copies = 4.0 if tight else 3.0  # an array of the means is one more
    return Aggregation(chunk, merge, aggregate, copies, STRIP, data_independent=True, brief=less)


def position(name: str, extents: Shape, count: int, *, flat: bool, skip: bool = False) -> Aggregation:
    """Position of the first ``min`` or ``max``: along the one reduced axis, or in the flattened array, in C order.

    `skip` ignores NaN, and refuses slices of NaN alone.
    """
    least, better = (np.inf, np.less) if name == "min" else (-np.inf, np.greater)

    def chunk(x: Any, axes: Axes, box: Region) -> Value:
        number, some = math.prod(x.shape[a] for a in axes), True
        if skip:
            x, mask = without(x, least, skip=True)
            some = True if mask is None else ~mask.all(axis=axes, keepdims=True)
        if not x.size:
            nothing = x.sum(axis=axes, keepdims=True)
            return nothing.astype(x.dtype), nothing.astype(np.intp), some, number
        if not flat:
            found = _first(name, x, axes[0])
            return np.take_along_axis(x, found, axes[0]), found + box[axes[0]].start, some, number
        rest, stride = _first(name, x.reshape(-1), 0)[0], 1
        place = rest * 0  # an array of the same module
        for axis in reversed(range(x.ndim)):
            place = place + (rest % x.shape[axis] + box[axis].start) * stride
            rest, stride = rest // x.shape[axis], stride * extents[axis]
        return reduce(name, x, axes), np.reshape(place, (1,) * x.ndim), some, number

    def merge(left: Value, right: Value) -> Value:
        (a, i, some, n), (b, j, others, m) = left, right
        none, nor = a != a, b != b  # NaN comes before everything else, as in NumPy
        first = ~none & (better(b, a) | nor) | ((a == b) | none & nor) & (j < i)
        return np.where(first, b, a), np.where(first, j, i), some | others, n + m

    def aggregate(found: Any, place: Any, some: Any, number: int) -> Any:
        if skip and some is not True and number == count and not bool(some.all()):
            raise ArgumentError(f"nanarg{name} of a slice of NaN alone has no result: replace its NaN, or leave it out")
        return place.astype(np.intp)

    return Aggregation(chunk, merge, aggregate, copies=4.0, placeless=False)


# -- Shared functions -----------------------------------------------------------------------------------------


def _of(chunk: Callable[[Any, Any, Axes, Region], Value], masked: bool) -> Callable[..., Value]:
    """A function of blocks, and of those of a mask if there is one."""
    return chunk if masked else lambda x, axes, box: chunk(x, None, axes, box)


def _first(name: str, x: Any, axis: int) -> Any:
    """Position of the first extreme along an axis, which stays. NaN is one, as in NumPy."""
    found = getattr(x, f"arg{name}")(axis=axis, keepdims=True)
    if isinstance(x, np.ndarray) or x.dtype.kind not in "fc":
        return found
    chosen = np.take_along_axis(x, found, axis)
    nan = (
        x != x
    )  # CuPy finds a NaN, but not the first one. To ask whether there is any would be to wait for the device.
    return np.where(chosen == chosen, found, nan.argmax(axis=axis, keepdims=True))


def squares(x: Any) -> Any:
    """Squared absolute values; may overwrite the array."""
    if x.dtype.kind == "c":
        return x.real * x.real + x.imag * x.imag
    x *= x
    return x


def _begun(found: Any, tight: bool) -> Value:
    """A sum and its rounding error; None if the sum is wider than the result, or of integers."""
    return found, np.zeros_like(found) if tight else None


def _is_tight(result: np.dtype) -> bool:
    """Whether a sum has no more bits than the result."""
    return result.kind in "fc" and np.finfo(result).bits >= 64


def _plus(left: Value, right: Value) -> Value:
    """Add two sums and their rounding errors by Knuth's TwoSum (The Art of Computer Programming 2, 4.2.2).

    So the error does not grow with the number of blocks.
    """
    (a, lost), (b, more) = left, right
    if lost is None:
        return np.add(a, b, out=b), None
    both = a + b
    back = both - a
    return both, lost + more + ((a - (both - back)) + (b - back))


def _whole(found: Any, lost: Any) -> Any:
    """A sum corrected by its rounding error, unless it is infinite or NaN."""
    return found if lost is None else np.where(np.isfinite(lost) & (lost != 0), found + lost, found)


def _count(mask: Any, axes: Axes) -> Any:
    """Number of true elements along axes."""
    if isinstance(mask, np.ndarray) and len(axes) == mask.ndim:
        return np.full((1,) * mask.ndim, np.count_nonzero(mask), np.intp)
    return reduce("sum", mask, axes, np.dtype(np.intp))


def _number(x: Any, mask: Any, axes: Axes) -> Any:
    """Number of elements along axes that are not NaN."""
    if mask is not None:
        return _count(~mask, axes)
    shape = tuple([1 if a in axes else n for a, n in enumerate(x.shape)])
    return np.full_like(x, math.prod(x.shape[a] for a in axes), dtype=np.intp, shape=shape)
