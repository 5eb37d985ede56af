"""Least squares of lines that have missing values, each from the elements that it has."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.kernels.protocol import is_trial


def fitted(block: Any, matrix: np.ndarray, rcond: float | None = None, *, residuals: bool = False) -> Any:
    """Coefficients of the columns of `matrix` in each line along the first axis, or the sums of squares that are left.

    They are those of `numpy.linalg.lstsq` for the rows whose elements are not NaN: the ones of least norm where the
    rows do not determine them, and then no sum of squares. Lines of NaN alone have NaN.

    >>> line, x = np.array([1.0, np.nan, 5.0, 7.0]), np.arange(4.0)
    >>> fitted(line, np.stack([x, np.ones(4)], axis=1)).round(6)
    array([2., 1.])
    """
    length, order = matrix.shape
    if is_trial():  # of shorter lines
        length, matrix = len(block), matrix[: len(block)]
    lines = block.reshape(length, -1).T.astype("f8")
    rows = np.asarray(matrix, "f8", like=lines)
    missing = np.isnan(lines)
    found = np.full_like(lines, np.nan, shape=(len(lines), 1 if residuals else order))
    none, every = missing.any(axis=1), missing.all(axis=1)
    # A trial, which measures memory, takes all lines for the kind that takes most.
    whole, some = np.flatnonzero(~none & (not is_trial())), np.flatnonzero((none & ~every) | is_trial())
    if len(whole):
        found[whole] = _solved(rows, lines[whole], rcond, length, residuals)
    step = max(len(lines) // (4 * order), 1)  # their matrices take no more than the block
    for start in range(0, len(some), step):
        these = some[start : start + step]
        there = ~missing[these]
        own = rows * there[..., None]
        found[these] = _solved(own, np.where(there, lines[these], 0), rcond, there.sum(axis=1), residuals)
    return found.T.reshape((*(() if residuals else (order,)), *block.shape[1:]))


fitted.any_length = True  # type: ignore[attr-defined]


def _solved(rows: Any, lines: Any, rcond: float | None, count: Any, residuals: bool) -> Any:
    """Least squares for each line by the rows for all of them, or by its own; `count` of them are not 0."""
    order = rows.shape[-1]
    u, s, v = np.linalg.svd(rows, full_matrices=False)
    least = np.finfo("f8").eps * max(rows.shape[-2:]) if rcond is None else rcond
    kept = s > least * s.max(axis=-1, keepdims=True)
    inverse = np.where(kept, 1 / np.where(kept, s, 1), 0)
    weights = np.einsum("...ij,...i->...j", u, lines) * inverse
    solution = np.einsum("...ji,...j->...i", v, weights)
    if not residuals:
        return solution
    left = lines - np.einsum("...ij,...j->...i", rows, solution)
    determined = (kept.sum(axis=-1) == order) & (count > order)
    return np.where(determined, (left * left).sum(axis=-1), np.nan)[:, None]
