"""Windows that slide along axes: which elements each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, Shape


@dataclass(frozen=True)
class Windows:
    """Windows of an array of `ndim` dimensions: ``windows[i, j] = x[i + j]`` along each axis that they slide along.

    Attributes
    ----------
    ndim : int
        Dimensions of the array, which come first in the array of windows.
    axes : tuple of int
        For each further dimension the axis along which it lies; an axis may come several times.
    widths : tuple of int
        Elements along each further dimension.

    >>> w = Windows(2, (0,), (3,))
    >>> w.reach, w.shape((10, 4)), w.behind((slice(2, 5), slice(0, 4), slice(0, 3)))
    ((2, 0), (8, 4, 3), (slice(2, 7, None), slice(0, 4, None)))
    """

    ndim: int
    axes: Shape
    widths: Shape

    @property
    def reach(self) -> Shape:
        """Elements along each axis of the array that a window has beside its first one."""
        return tuple(
            sum(w - 1 for a, w in zip(self.axes, self.widths, strict=True) if a == d) for d in range(self.ndim)
        )

    @property
    def dims(self) -> Shape:
        """The further dimensions of the array of windows."""
        return tuple(range(self.ndim, self.ndim + len(self.axes)))

    def shape(self, shape: Shape) -> Shape:
        """Shape of all windows of an array of this shape."""
        return (*(n - more for n, more in zip(shape, self.reach, strict=True)), *self.widths)

    def behind(self, region: Region) -> Region:
        """The part of the array that has the elements of a region of the windows."""
        sides = [[side.start, side.stop] for side in region[: self.ndim]]
        for axis, side in zip(self.axes, region[self.ndim :], strict=True):
            sides[axis][0] += side.start
            sides[axis][1] += max(side.stop - 1, side.start)
        return tuple(slice(*side) for side in sides)


def strided(x: Any, windows: Windows, widths: Shape) -> Any:
    """Windows of these widths of an array: a view in which elements come several times."""
    if 0 in widths:
        return np.empty_like(x, shape=(*x.shape, *widths))
    return np.lib.stride_tricks.sliding_window_view(x, widths, windows.axes)
