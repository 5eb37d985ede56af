"""Ranks of the elements of whole lines."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.kernels.statistics.counting import counted
from chunkflow.kernels.statistics.sorting import order_along


def ranked(block: Any, axis: int) -> Any:
    """Rank of each element in its line, from 1 on: equal ones share the mean of theirs, and NaN has none.

    >>> ranked(np.array([5.0, 2.0, np.nan, 5.0]), 0)
    array([2.5, 1. , nan, 2.5])
    """
    if not block.size:
        return np.empty_like(block, "f8")
    moved = np.moveaxis(block, axis, -1)
    lines = moved.reshape(-1, moved.shape[-1])
    order = order_along(lines)
    ordered = np.take_along_axis(lines, order, -1)
    begins = np.ones_like(ordered, bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    line = np.arange(len(lines), like=lines)[:, None] * lines.shape[-1]
    group = np.cumsum(begins, axis=-1) - 1 + line  # of equal elements; no two lines have one in common
    size = counted(group, lines.size).reshape(lines.shape)
    middle = np.cumsum(size, axis=-1) - (size - 1) / 2
    ranks = np.take_along_axis(middle.reshape(-1)[group], order_along(order), -1)
    if lines.dtype.kind == "f":
        ranks = np.where(np.isnan(lines), np.nan, ranks)
    return np.moveaxis(ranks.reshape(moved.shape), -1, axis)


ranked.any_length = True  # type: ignore[attr-defined]
