"""Quantiles of lines whose elements have weights, as NumPy's method "inverted_cdf" defines them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chunkflow.errors import ArgumentError
from chunkflow.kernels.protocol import is_trial
from chunkflow.kernels.statistics.quantile import along_first
from chunkflow.kernels.statistics.sorting import order_along


@dataclass(frozen=True, eq=False)
class WeightedLines:
    """Quantiles `q` of blocks that have the reduced axes in full: a function of them and their weights for `map`.

    Attributes
    ----------
    q : numpy.ndarray
        In one dimension.
    axes : tuple of int
        The reduced ones, sorted.
    follow : tuple of int
        For each dimension of the weights the axis that it follows.
    scalar, keepdims : bool
        Whether there is one quantile, without an axis for it, and whether reduced axes stay.
    skip : bool
        Whether NaN are left out, with their weights.
    """

    q: np.ndarray
    axes: tuple[int, ...]
    follow: tuple[int, ...]
    scalar: bool
    keepdims: bool
    skip: bool
    any_length: ClassVar[bool] = True

    def __call__(self, block: Any, weights: Any) -> Any:
        """Quantiles of one block, along a new first axis unless `scalar`."""
        kept = tuple(a for a in range(block.ndim) if a not in self.axes)
        turn, sides = (*kept, *self.axes), (*[block.shape[a] for a in kept], -1)
        lines = block.transpose(turn).reshape(sides)
        lines = lines.astype(block.dtype.newbyteorder("="), copy=False)
        order = order_along(lines)
        lines = np.take_along_axis(lines, order, -1)
        missing = np.isnan(lines[..., -1]) if lines.dtype.kind == "f" else None
        share = np.take_along_axis(self._laid(weights, block).transpose(turn).reshape(sides).astype("f8"), order, -1)
        del order
        if bool((share < 0).any()):
            raise ArgumentError("weights must not be negative")
        if missing is not None and self.skip:
            share[np.isnan(lines)] = 0
            missing = np.isnan(lines[..., 0])
        with np.errstate(all="ignore"):
            share = share.cumsum(-1)
            share /= share[..., -1:].copy()
        wrong = np.isnan(share[..., -1])
        if missing is not None and self.skip:
            wrong &= ~missing
        if bool(wrong.any()) and not is_trial():
            raise ArgumentError(
                "the weights of a line are all zero, or have NaN or infinities, so there is no quantile: give finite "
                "weights of which some are positive"
            )
        if self.q.dtype.kind == "f":
            share = share.astype(self.q.dtype)
        share[share == 0] = -1  # the quantile 0 is the first element that has a weight
        ranks = np.stack([(share < one).sum(-1) for one in self.q])
        found = along_first(lines, np.minimum(ranks, lines.shape[-1] - 1))
        if missing is not None:
            found = np.where(missing, found.dtype.type(np.nan), found)
        shape = [1 if a in self.axes else n for a, n in enumerate(block.shape) if self.keepdims or a not in self.axes]
        return found.reshape(shape if self.scalar else (found.shape[0], *shape))

    def _laid(self, weights: Any, block: Any) -> Any:
        """The weights, broadcast to a block."""
        turned = weights.transpose([self.follow.index(a) for a in sorted(self.follow)])
        places = [n if a in self.follow else 1 for a, n in enumerate(block.shape)]
        return np.broadcast_to(turned.reshape(places), block.shape)
