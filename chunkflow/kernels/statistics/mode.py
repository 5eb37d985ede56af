"""The most frequent element of an array, or of whole lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chunkflow.core.grid import Region
from chunkflow.core.nest import LoopNest
from chunkflow.errors import ChunkflowError, UnsupportedError
from chunkflow.kernels.protocol import is_trial
from chunkflow.kernels.statistics.distinct import Distinct, Value
from chunkflow.kernels.statistics.radix_keys import from_keys, to_keys
from chunkflow.kernels.statistics.sorting import in_order


@dataclass(frozen=True)
class ModeOfLines:
    """The most frequent elements of blocks that have the reduced axes in full, and their counts: a function for `map`.

    Of equally frequent ones it is the smallest. All NaN are one value, larger than any number; if they are left out
    (`omit`), the mode of a line of NaN alone is NaN, and its count 0.
    """

    axes: tuple[int, ...]
    keepdims: bool
    omit: bool
    any_length: ClassVar[bool] = True

    def __call__(self, block: Any) -> tuple[Any, Any]:
        kept = tuple(a for a in np.arange(block.ndim).tolist() if a not in self.axes)
        x = block + block.dtype.type(0) if block.dtype.kind == "f" else block  # both zeros are one value
        lines, length = [block.shape[a] for a in kept], math.prod(block.shape[a] for a in self.axes)
        keys = in_order(to_keys(x.transpose((*kept, *self.axes))).reshape(math.prod(lines), length))
        first = np.ones_like(keys, dtype=bool)
        if not is_trial():  # where all differ, which takes most
            first[:, 1:] = keys[:, 1:] != keys[:, :-1]
        starts = np.flatnonzero(first)
        counts = np.zeros_like(keys, dtype="i8", shape=(keys.size,))
        counts[starts[:-1]] = starts[1:] - starts[:-1]
        counts[starts[-1:]] = keys.size - starts[-1:]
        counts = counts.reshape(keys.shape)
        if self.omit and x.dtype.kind == "f":
            counts[keys == ~keys.dtype.type(0)] = 0  # the key of NaN
        best = counts.argmax(-1).reshape(-1, 1)
        shape = [1 if a in self.axes else n for a, n in enumerate(block.shape) if self.keepdims or a not in self.axes]
        values, counts = (np.take_along_axis(a, best, -1).reshape(shape) for a in (keys, counts))
        return from_keys(values, x.dtype), counts


@dataclass(frozen=True)
class MostFrequent(Distinct):
    """A fold over all elements to the key of the most frequent one and its count, as an array of two.

    Of equally frequent ones it is the smallest. `omit` leaves NaN out.
    """

    omit: bool = False

    def finish(self, value: Value, nest: LoopNest, box: Region) -> Any:
        return np.concatenate([a.astype("u8") for a in most_frequent(value[0], value[1], self.omit)])

    def too_many(self, number: int) -> ChunkflowError:
        return UnsupportedError(
            f"mode: there are more different elements than a task has room for ({number}, where {self.room} are): "
            "compute() it in one process, with a budget for them"
        )


def most_frequent(keys: Any, counts: Any, omit: bool) -> tuple[Any, Any]:
    """The key of the most frequent element and its count, each in an array of one, given sorted keys of elements."""
    if omit:
        counts = np.where(keys == ~keys.dtype.type(0), 0, counts)  # the key of NaN
    best = counts.argmax().reshape(1)
    return keys[best], counts[best]
