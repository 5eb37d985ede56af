"""Stencils for the tests of iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

import chunkflow as cf


def shifted(block: Any, axis: int, by: int) -> Any:
    """Each element's neighbour; the block's last one beyond its end."""
    n = block.shape[axis]
    by = max(-(n - 1), min(by, n - 1))
    inside = (slice(None),) * axis
    if by > 0:
        return np.concatenate([block[(*inside, slice(by, None))]] + [block[(*inside, slice(-1, None))]] * by, axis)
    return np.concatenate([block[(*inside, slice(0, 1))]] * -by + [block[(*inside, slice(0, n + by))]], axis)


def box(block: Any, depth: Any) -> Any:
    """A weighted mean over a box of neighbours, each with a weight of its own, in the block's dtype."""
    for axis, (before, after) in enumerate(depth):
        weights = range(1, before + after + 2)
        total = sum(w * shifted(block, axis, by) for w, by in zip(weights, range(-before, after + 1), strict=True))
        block = total / block.dtype.type(sum(weights)) if block.dtype.kind in "fc" else total
    return block


def one_by_one(n: int, fn: Any, x: Any, *others: Any, **options: Any) -> Any:
    """So many passes, each one's result the next one's first array."""
    for _ in range(n):
        x = cf.map_overlap(fn, x, *others, **options)
    return x
