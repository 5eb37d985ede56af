"""Means of counts of time, of which the least integer is none: exact, whatever their sum.

Counts are summed with their sign turned over: so they are not negative, and the one that is none is zero. A sum has
128 bits, in two parts of 64.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.kernels.reductions import double_sums
from chunkflow.kernels.reductions.aggregation import Aggregation, Value
from chunkflow.kernels.reductions.tiled import STRIP, Axes, reduce, summed, without
from chunkflow.system.native import sums as loops

MOST = 1 << 40
"""Means are of fewer elements: the division has digits of 22 bits, and a remainder beside one has 64."""

AT_ONCE = 1 << 32
"""Fewer elements than these may be added to one sum of a block."""

_NONE = np.iinfo("i8").min
_SIGN = np.uint64(1 << 63)
_HALF = np.uint64(32)
_WORD, _COUNT = np.dtype("u8"), np.dtype("i8")
_DIGITS = [(22, 42), (22, 20), (20, 0)]
"""Digits of 64 bits, the highest first: how many bits, and the place of the lowest."""


@lru_cache
def mean(count: int, *, skip: bool, masked: bool = False) -> Aggregation:
    """The mean of `count` counts of time, as int64, rounded towards zero as NumPy's of timedelta64.

    It is none where there is no count, and without `skip` where one is none. With `masked` the blocks of a mask come
    after the array's: elements where it is false are left out.
    """

    def chunk(x: Any, where: Any, axes: Axes, box: Region) -> Value:
        x = x.astype("i8", copy=False)  # in the processor's order of bytes
        if where is None:
            return _sums(x, axes)
        x, out = without(x, _NONE, where, skip=False)
        return *_sums(x, axes), reduce("sum", ~out, axes, _COUNT)

    def merge(left: Value, right: Value) -> Value:
        return *_plus(left[:3], right[:3]), *[a + b for a, b in zip(left[3:], right[3:], strict=True)]

    def aggregate(low: Any, high: Any, number: Any, seen: Any = None) -> Any:
        none = number == 0
        if not skip:
            none = none | (number != (count if seen is None else seen))
        return np.where(none, np.int64(_NONE), _quotient(low, high, np.maximum(number, 1).astype(_WORD)))

    chunks = chunk if masked else lambda x, axes, box: chunk(x, None, axes, box)
    return Aggregation(chunks, merge, aggregate, 3.0, STRIP, data_independent=True)


def _sums(x: Any, axes: Axes) -> Value:
    """The sum of what is there in two parts, the lower first, and how many there are."""
    if math.prod(x.shape[a] for a in axes) >= AT_ONCE:
        longest = max(axes, key=lambda a: x.shape[a])
        before, middle = (slice(None),) * longest, x.shape[longest] // 2
        return _plus(*(_sums(x[(*before, half)], axes) for half in (slice(0, middle), slice(middle, None))))
    low, upper, number = _compiled(x, axes) or _by_numpy(x, axes)
    lower = low - (upper << _HALF)  # of the lower halves, which wrap around in the sum, but not by themselves
    return low, (upper + (lower >> _HALF)) >> _HALF, number


def _compiled(x: Any, axes: Axes) -> Value | None:
    """The sum's lower 64 bits, the sum of the upper halves, and how many there are; None of what the loops leave."""
    layout = double_sums.layout_of(x, axes, words=3) if isinstance(x, np.ndarray) else None
    if layout is None or loops is None:
        return None
    held = np.empty((3, *layout.held), _WORD)
    for place, call in layout.calls(x):
        loops.add_exactly(layout.along, *call, *(part.ctypes.data + place for part in held))
    low, upper, number = (layout.placed(part, x, axes) for part in held)
    return low, upper, number.view(_COUNT)


def _by_numpy(x: Any, axes: Axes) -> Value:
    """As `_compiled`. The signs are turned over in the sums, where this takes no array of the block's size."""
    count = math.prod(x.shape[a] for a in axes)
    low = reduce("sum", x.view(_WORD), axes, _WORD) + np.uint64((count << 63) % (1 << 64))
    upper = summed(lambda x: x >> np.int64(32), (x,), axes, _COUNT).astype(_WORD) + np.uint64(count << 31)
    return low, upper, summed(lambda x: x != _NONE, (x,), axes, _COUNT)


def _plus(left: Value, right: Value) -> Value:
    """Two sums of two parts, added, and their numbers; neither is overwritten."""
    (a, high, number), (b, more, others) = left, right
    low = a + b
    return low, high + more + (low < a).astype(_WORD), number + others


def _quotient(low: Any, high: Any, number: Any) -> Any:
    """The sum divided by how many it is of: long division. The quotient's sign is turned back."""
    if isinstance(low, np.ndarray) and loops is not None:
        parts = [np.ascontiguousarray(part) for part in (low, high, number)]
        mean = np.empty(low.shape, _COUNT)
        loops.divide(low.size, *(part.ctypes.data for part in (*parts, mean)))
        return mean
    found, rest = np.zeros_like(low), high
    for bits, place in _DIGITS:
        dividend = (rest << np.uint64(bits)) + ((low >> np.uint64(place)) & np.uint64((1 << bits) - 1))
        digit = dividend // number
        found = (found << np.uint64(bits)) + digit
        rest = dividend - digit * number
    mean = (found ^ _SIGN).view(_COUNT)
    return mean + ((rest != 0) & (mean < 0))
