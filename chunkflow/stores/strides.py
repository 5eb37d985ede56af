"""Where the elements of a strided array lie. Pure arithmetic on shapes and strides, in bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Region, Shape
from chunkflow.core.spec import ByteRun

LEAST_ROW = 256
"""Bytes of rows that are worth being moved one by one."""


def part(array: np.ndarray, region: Region) -> np.ndarray:
    """View of a region; an array, not a scalar, even where the region has no axes.

    >>> part(np.array(5), ())
    array(5)
    """
    index: tuple[Any, ...] = (*region, ...)
    found: np.ndarray = array[index]
    return found


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> Shape:
    """Axes from the slowest to the fastest varying.

    Axes of length 1 and repeated ones (stride 0) lie anywhere: they keep their place in an array that
    is otherwise in C order, and are the slowest in any other.

    >>> memory_order((3, 4), (4, 12)), memory_order((3, 1, 4), (-16, 4, 4))
    ((1, 0), (0, 1, 2))
    """
    axes = range(len(shape))
    loose = [axis for axis in axes if shape[axis] == 1 or strides[axis] == 0]
    placed = [axis for axis in axes if axis not in loose]
    ranked = sorted(placed, key=lambda axis: -abs(strides[axis]))
    return tuple(axes) if ranked == placed else (*loose, *ranked)


def bounds(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Bytes used, from the first to behind the last, relative to the element at index 0.

    >>> bounds((3, 4), (16, -4), 4)
    (-12, 36)
    """
    if 0 in shape:
        return 0, 0
    reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    return sum(r for r in reach if r < 0), sum(r for r in reach if r > 0) + itemsize


def paged(shape: Sequence[int], strides: Sequence[int], itemsize: int, page: int) -> int:
    """Bytes of the pages that hold an array's elements, at most. What lies in gaps within a page comes with them.

    >>> [paged(*array, 4, 4096) for array in (((8, 99), (9_999, 4)), ((8, 99), (9_999, 99)), ((50, 10), (0, 4)))]
    [35936, 79699, 40]
    """
    low, high = bounds(shape, strides, itemsize)
    run, number = itemsize, 1
    for stride, n in sorted((abs(stride), n) for n, stride in zip(shape, strides, strict=True) if n > 1 and stride):
        if number == 1 and stride <= run + page:
            run += (n - 1) * stride
        else:
            number *= n
    return min(high - low, number * (run + page))


def is_packed(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether the elements follow one another without a gap, the last axis fastest.

    >>> is_packed((3, 1, 4), (16, 99, 4), 4), is_packed((3, 4), (20, 4), 4)
    (True, False)
    """
    step = itemsize
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether two indices may share a byte (a few odd but sound layouts are called overlapping too).

    >>> overlaps_itself((3, 4), (0, 4), 4), overlaps_itself((3, 4), (16, 4), 4)
    (True, False)
    """
    if 0 in shape:
        return False
    reach = itemsize
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += (n - 1) * stride
    return False


def longest_run(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes that follow one another without a gap, at the least, wherever one starts.

    >>> longest_run((3, 4), (20, 4), 4), longest_run((3, 4), (16, 4), 4)
    (16, 48)
    """
    run = itemsize
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride != run:
            break
        run *= n
    return run


def shared_run(shape: Sequence[int], one: Sequence[int], other: Sequence[int], itemsize: int) -> int:
    """Bytes that follow one another without a gap in two arrays of a shape, the last axis fastest in both.

    >>> shared_run((3, 4), (16, 4), (20, 4), 4), shared_run((3, 1, 4), (16, 0, 4), (16, 8, 4), 4)
    (16, 48)
    """
    run = itemsize
    for n, a, b in zip(reversed(shape), reversed(one), reversed(other), strict=True):
        if n != 1:
            if a != run or b != run:
                break
            run *= n
    return run


class PitchedRows(NamedTuple):
    """Rows of `width` bytes at a distance of `pitch`, and after `height` of them the next plane, `plane` bytes on."""

    width: int
    height: int = 1
    pitch: int = 0
    plane: int = 0


@lru_cache(256)  # most of a run's blocks have the same shape
def rows(shape: Shape, strides: Shape, itemsize: int) -> PitchedRows | None:
    """Rows of a region, the last axis fastest; None where it has more levels than that. Distances may be below 0.

    >>> rows((2, 3, 4), (48, 16, 4), 4), rows((2, 3, 4), (400, 20, 4), 4)
    (PitchedRows(width=96, height=1, pitch=0, plane=0), PitchedRows(width=16, height=3, pitch=20, plane=400))
    >>> rows((6, 4), (-8, 2), 2)
    PitchedRows(width=8, height=6, pitch=-8, plane=0)
    """
    levels = [[1, itemsize]]
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        inner = levels[-1]
        if n == 1:
            continue
        if stride == inner[0] * inner[1]:
            inner[0] *= n
        elif len(levels) < 3:
            levels.append([n, stride])
        else:
            return None
    (n, size), *outer = levels
    return PitchedRows(n * size, *(outer[0] if outer else ()), *(outer[1][1:] if len(outer) > 1 else ()))


def run_in_memory(array: np.ndarray, order: Sequence[int], repeats: Sequence[int] = ()) -> ByteRun | None:
    """Where the elements of an array in memory lie, each as often as `repeats` says along each axis."""
    shape, steps = [], []
    for axis in order:
        shape += [array.shape[axis], repeats[axis] if repeats else 1]
        steps += [array.strides[axis], 0]
    found = rows(tuple(shape), tuple(steps), array.itemsize)
    return None if found is None else ByteRun(array.__array_interface__["data"][0], *found, swap=swapped(array.dtype))


def merged_view(array: np.ndarray, shape: Shape, numbers: Sequence[int]) -> np.ndarray | None:
    """A view in which so many axes at a time are one, of these lengths; None if the elements do not lie so.

    >>> x = np.zeros((2, 3, 4))
    >>> merged_view(x, (2, 12), (1, 2)).shape, merged_view(x[:, :, :2], (2, 6), (1, 2))
    ((2, 12), None)
    """
    strides, first = [], 0
    for number in numbers:
        step, length = array.itemsize, 1
        for n, stride in list(zip(array.shape, array.strides, strict=True))[first : first + number][::-1]:
            if n == 1:
                continue
            if length > 1 and stride != step * length:
                return None
            step, length = stride if length == 1 else step, length * n
        strides.append(step)
        first += number
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def swapped(dtype: np.dtype) -> int:
    """Bytes of a number whose order is the other one; 0 where it is the machine's.

    >>> swapped(np.dtype(">c8" if np.little_endian else "<c8")), swapped(np.dtype("f4"))
    (4, 0)
    """
    return 0 if dtype.isnative else dtype.itemsize // (2 if dtype.kind == "c" else 1)


def position(start: int, region: Region, strides: Sequence[int]) -> int:
    """Byte of a region's first element, in an array whose element at index 0 lies at byte `start`."""
    for side, stride in zip(region, strides, strict=True):
        start += side.start * stride
    return start


def packed_strides(shape: Sequence[int], itemsize: int, *, fortran: bool = False) -> Shape:
    """Strides of a gapless array in C or Fortran order.

    >>> packed_strides((3, 4), 4), packed_strides((3, 4), 4, fortran=True)
    ((16, 4), (4, 12))
    """
    if fortran:
        return tuple(itemsize * math.prod(shape[:axis]) for axis in range(len(shape)))
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
