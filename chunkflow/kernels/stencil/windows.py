"""Reductions of windows that slide along axes. No array of all windows is made: each block is worked on in parts.

What is combined from parts is found by doubling. Results of windows of one element are merged with those beside them
to results of two, and so on. A window of six is two of three, one of seven is one of one and one of six. So a window
of w elements takes at most 2 log2(w) steps, each over all windows at once, and no step depends on elements
beyond the window: an infinity or NaN stays in the windows that have it, and sums lose no digits to what has left.
Short windows NumPy reduces in one call.

The method is Hillis and Steele's, "Data Parallel Algorithms" (1986), for windows in the place of prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from chunkflow.core.grid import Grid, Region, Shape, fit, regions, shape_of, whole
from chunkflow.core.nest import LoopNest
from chunkflow.core.windows import Windows, strided
from chunkflow.kernels.protocol import Kernel, is_trial
from chunkflow.kernels.reductions import double_sums
from chunkflow.kernels.reductions.aggregation import Aggregation, Each, Value
from chunkflow.kernels.reductions.tiled import STRIP
from chunkflow.kernels.stencil.overlap import Halo, narrowed
from chunkflow.kernels.stencil.window_ranks import ByRank

PART = 256 << 10
"""Elements of a part on the CPU. Smaller ones fit the cache, but then threads wait for Python's lock at each step."""

SHORT = 8
"""Elements of a window up to which one call of NumPy's reduces it, in the place of several that double."""

MIDDLING = 32
"""Elements of a window up to which compiled loops add each element anew, rather than partial results."""

LONG = 8
"""Elements of a window from which on sums of products are left to BLAS."""

LONG_LINE = 512
"""Windows of a line beside which a call of Python's for it costs little."""

SHORTEST = 64
"""Elements along the fastest axis that a part keeps, if there are as many: shorter runs are slow."""


@dataclass(frozen=True)
class ByDoubling:
    """An aggregation of windows, whose partial results tell nothing of places."""

    how: Aggregation
    windows: Windows

    @property
    def data_independent(self) -> bool:
        """See `Kernel.data_independent`."""
        return self.how.data_independent

    @property
    def size(self) -> int:
        """Elements of an array for which it takes memory, for one of a part: merges of several steps take more."""
        return 1 if isinstance(self.how.merge, Each) else 2

    def __call__(self, x: Any) -> Any:
        """Results of an array's windows; several are a tuple."""
        ndim, skips = x.ndim, self.how.skips
        with np.errstate(all="ignore"):
            found = None if skips is None or is_trial() else window_moments(x, self.windows, skip=skips)
            if found is not None:
                number, mean, squares = found
                return self.how.aggregate(number, squares, mean)
            pairs = [*zip(self.windows.axes, self.windows.widths, strict=True)]
            seen = x[..., None]
            if self.how.in_doubles and isinstance(x, np.ndarray) and pairs[0][1] <= MIDDLING:
                view = sliding_window_view(x, pairs[0][1], pairs[0][0])
                if double_sums.is_quick(view, (ndim,)):
                    seen, pairs = view, pairs[1:]
            value = self.how.chunk(seen, (ndim,), whole(seen.shape))
            for axis, width in pairs:
                value = _merged(value, self.how.merge, axis, width)
            found = self.how.aggregate(*value)
        return tuple([one[..., 0] for one in found]) if isinstance(found, tuple) else found[..., 0]


def _merged(value: Value, merge: Callable[[Value, Value], Value], axis: int, width: int) -> Value:
    """Partial results of windows of `width`, along an axis, from those of single elements."""
    if width > SHORT or not isinstance(merge, Each) or not all(isinstance(part, np.ndarray | None) for part in value):
        return _doubled(value, _anew(merge), axis, width)
    return tuple(
        [
            None if part is None else ufunc.reduce(np.moveaxis(sliding_window_view(part, width, axis), -1, 0), axis=0)
            for ufunc, part in zip(merge.ufuncs, value, strict=False)
        ]
    )


def _doubled(value: Value, merge: Callable[[Value, Value], Value], axis: int, width: int) -> Value:
    """See `_merged`; `merge` overwrites none."""
    if width == 1:
        return value
    first = 1 if width % 2 else width // 2
    rest = _doubled(value, merge, axis, width - first)
    beside = _part(rest, axis, slice(first, None))
    number = next((part.shape[axis] for part in beside if _is_array(part)), 0)
    return merge(_part(value if first == 1 else rest, axis, slice(0, number)), beside)


def _part(value: Value, axis: int, side: slice) -> Value:
    """Partial results of some places along an axis."""
    return tuple([part[(*_before(axis), side)] if _is_array(part) else part for part in value])


def _anew(merge: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """The merge of an aggregation, of parts that it must not overwrite."""
    if isinstance(merge, Each):
        return merge.anew
    return lambda left, right: merge(left, tuple([part.copy() if _is_array(part) else part for part in right]))


def _is_array(part: Any) -> bool:
    return bool(getattr(part, "ndim", 0))


def _before(axis: int) -> tuple[slice, ...]:
    return (slice(None),) * axis


@dataclass(frozen=True)
class ByPlace:
    """An aggregation of windows along one axis, whose partial results tell of places."""

    how: Aggregation
    windows: Windows

    @property
    def data_independent(self) -> bool:
        """See `Kernel.data_independent`."""
        return self.how.data_independent

    @property
    def size(self) -> int:
        """See `ByDoubling.size`."""
        return math.prod(self.windows.widths)

    def __call__(self, x: Any) -> Any:
        """Results of an array's windows."""
        found = strided(x, self.windows, self.windows.widths)
        with np.errstate(all="ignore"):
            value = self.how.chunk(found, self.windows.dims, whole(found.shape))
            return self.how.aggregate(*value).squeeze(self.windows.dims)


@dataclass(frozen=True, eq=False)
class ByLine:
    """A function of windows that are copied, each to a line of its own: quantiles, or one of the user's."""

    fn: Callable[[Any], Any]
    windows: Windows

    data_independent = False

    @property
    def size(self) -> int:
        """See `ByDoubling.size`."""
        return math.prod(self.windows.widths)

    def __call__(self, x: Any) -> Any:
        """What the function gives of an array's windows: it leaves their axes out, and may add a first one."""
        return self.fn(strided(x, self.windows, self.windows.widths))


@dataclass(frozen=True, eq=False)
class ByWeights:
    """Weighted sums of windows. An element takes part in the sums of those windows alone that have it.

    Attributes
    ----------
    weights : numpy.ndarray
        Of the windows' widths.
    windows : Windows
    dtype, result : numpy.dtype
        In which sums are added up, and of the results.
    """

    weights: np.ndarray
    windows: Windows
    dtype: np.dtype
    result: np.dtype

    data_independent = True
    size = 2
    """See `ByDoubling.size`."""

    def __call__(self, x: Any) -> Any:
        """The sums of an array's windows: those along the last of their axes, added up over the others."""
        x, weights = x.astype(self.dtype, copy=False), self.weights.astype(self.dtype)
        *others, axis = self.windows.axes
        shape = [n - more for n, more in zip(x.shape, self.windows.reach, strict=True)]
        shape[axis] += weights.shape[-1] - 1
        total = None
        with np.errstate(all="ignore"):
            for place in np.ndindex(*weights.shape[:-1]):
                first = [0] * x.ndim
                for other, at in zip(others, place, strict=True):
                    first[other] += at
                part = x[tuple([slice(at, at + n) for at, n in zip(first, shape, strict=True)])]
                found = weighted(part, axis, weights[place])
                total = found if total is None else np.add(total, found, out=total)
        assert total is not None
        return total.astype(self.result, copy=False)


@singledispatch
def window_moments(x: Any, windows: Windows, *, skip: bool) -> tuple[Any, Any, Any] | None:
    """Of each window the number of elements, their mean, and the sum of squares about it, as float64.

    With `skip` NaN are left out; of no elements the mean is 0. None where nothing does all of it at once. Devices with
    arrays of their own register what does it there.
    """
    return None


@singledispatch
def weighted(x: Any, axis: int, weights: np.ndarray) -> Any:
    """Weighted sums of windows along an axis. Devices with arrays of their own register what does it there.

    Of long ones BLAS makes each sum: as a product of those beside one another along the array's fastest axis, or line
    by line where that is the windows' own. Else shifted arrays are added up.
    """
    width, before = len(weights), _before(axis)
    number = x.shape[axis] - width + 1
    if width >= LONG and x.dtype.kind in "fc" and number:
        fastest = min(range(x.ndim), key=lambda a: abs(x.strides[a]))
        if fastest != axis:
            lines = np.moveaxis(sliding_window_view(x, width, axis), fastest, -2)
            return np.moveaxis(lines @ weights, -1, fastest)
        if number >= LONG_LINE:
            x = np.moveaxis(x, axis, -1)
            found = np.empty((*x.shape[:-1], number), x.dtype)
            for place in np.ndindex(*x.shape[:-1]):
                found[place] = np.correlate(x[place], weights.conj(), "valid")
            return np.moveaxis(found, -1, axis)
    total = x[(*before, slice(number))] * weights[0]
    product = None
    for at in range(1, width):
        product = np.multiply(x[(*before, slice(at, at + number))], weights[at], out=product)
        total = np.add(total, product, out=total)
    return total


@dataclass(frozen=True)
class WindowKernel(Kernel):
    """A function of windows of blocks, part by part.

    Attributes
    ----------
    of : callable
        Gives the results of the windows of an array; a further axis may come first.
    windows : Windows
    depth : tuple of (int, int)
        Elements before and after a block, along each axis, that windows have.
    keepdims : bool
        Whether the windows' axes stay, with one element.
    """

    of: ByDoubling | ByPlace | ByLine | ByRank | ByWeights
    windows: Windows
    depth: tuple[Halo, ...]
    keepdims: bool = False

    @property
    def data_independent(self) -> bool:
        return self.of.data_independent

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        x = narrowed(blocks[0], nest.operands[0], self.depth, box)
        reach = self.windows.reach
        shape = tuple([n - more for n, more in zip(x.shape, reach, strict=True)])
        results: list[Any] = []
        several = False
        for part in self._parts(x, shape):
            sides = zip(part, reach, strict=True)
            found = self.of(x[tuple([slice(side.start, side.stop + more) for side, more in sides])])
            several = isinstance(found, tuple)
            each = found if several else (found,)
            if shape_of(part) == shape:
                results = list(each)
                break
            for i, one in enumerate(each):
                first = one.shape[: one.ndim - len(shape)]
                if len(results) == i:
                    results.append(np.empty_like(one, shape=(*first, *shape)))
                results[i][(*(slice(None),) * len(first), *part)] = one
            del found, each
        if self.keepdims:
            results = [one.reshape((*one.shape, *(1,) * len(self.windows.dims))) for one in results]
        return tuple(results) if several else results[0]

    def _parts(self, x: Any, shape: Shape) -> Iterator[Region]:
        """Parts of the results that are found at once: long along the windows, or most would be found again."""
        size = (PART if isinstance(x, np.ndarray) else STRIP) // self.of.size
        if math.prod(shape) <= size:
            return iter([whole(shape)])
        reach, fastest = self.windows.reach, min(range(x.ndim), key=lambda a: abs(x.strides[a]))
        least = [max(4 * more, SHORTEST if a == fastest else 1) if more else 1 for a, more in enumerate(reach)]
        if not reach[fastest]:
            least[fastest] = SHORTEST
        units = [min(n, least[a]) for a, n in enumerate(shape)]
        order = sorted(range(x.ndim), key=lambda a: (bool(reach[a]), -abs(x.strides[a])))
        return regions(shape, fit(shape, units, order, size))
