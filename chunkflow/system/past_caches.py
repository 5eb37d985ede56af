"""Copies of much memory that nobody reads soon: past the caches, which keep what is read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chunkflow.system import native

MUCH = 16 << 20
"""Bytes that no cache keeps until they are read again."""

LEAST_ROW = 512
"""Bytes of rows that compiled loops copy; NumPy is as fast with shorter ones."""

TURNED = (1, 2, 4, 8, 16)
"""Bytes of the items whose rows they can turn round."""


def copy(out: np.ndarray, array: np.ndarray) -> None:
    """As `numpy.copyto`, of arrays of one shape.

    A line of the cache that is written whole is not fetched first, and rows are copied several side by side, so that a
    core waits for more of memory at once. Rows that lie the other way round are turned. What overlaps, or lies in short
    rows, is left to NumPy.

    >>> copy(out := np.zeros((2, 3)), np.arange(6.0).reshape(2, 3))
    >>> out
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    forwards: Any = (*[slice(None, None, -1 if step < 0 else 1) for step in out.strides], ...)
    out, array = out[forwards], array[forwards]
    alike = out.dtype == array.dtype and not np.may_share_memory(out, array)
    found = _rows(out.shape, out.strides, array.strides, out.itemsize) if alike else None
    if found is None or native.staging is None:
        np.copyto(out, array, casting="same_kind")
        return
    width, turned, axes = found
    native.staging.copy(out.ctypes.data, array.ctypes.data, width, turned, np.array(axes, np.int64))


def _rows(
    shape: Sequence[int], out: Sequence[int], array: Sequence[int], itemsize: int
) -> tuple[int, int, list[list[int]]] | None:
    """Bytes of the rows that two arrays have in common, and length and steps of the axes along which they lie.

    Between them are the bytes of an item if those of the second array lie the other way round; else 0. None if rows
    are short.

    >>> _rows((2, 600), (600, 1), (700, 1), 1), _rows((2, 600), (600, 1), (600, 1), 1)
    ((600, 0, [[2, 600, 700]]), (1200, 0, [[1, 1200, 1200]]))
    >>> _rows((2, 600), (600, 1), (600, -1), 1)
    (600, 1, [[2, 600, 600]])
    """
    width, way, axes = itemsize, 0, list[list[int]]()
    for n, *steps in sorted(zip(shape, out, array, strict=True), key=lambda axis: abs(axis[1])):
        if n == 1:
            continue
        if not axes and steps[0] == width and abs(steps[1]) == width and steps[1] * way >= 0:
            width, way = width * n, steps[1]
        elif axes and steps == [axes[0][0] * step for step in axes[0][1:]]:
            axes[0][0] *= n
        else:
            axes.insert(0, [n, *steps])
    if width < LEAST_ROW or 0 in shape or (way < 0 and itemsize not in TURNED):
        return None
    return width, itemsize if way < 0 else 0, axes or [[1, width, width]]
