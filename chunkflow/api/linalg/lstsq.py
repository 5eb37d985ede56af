"""Least squares of an expression: what `np.linalg.lstsq` gives, in one pass over it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from chunkflow.api.linalg import product
from chunkflow.api.rearrange.join import stack
from chunkflow.api.reductions import sums
from chunkflow.errors import ArgumentError, UnsupportedError
from chunkflow.graph.nodes import Lazy, SourceNode, node_of
from chunkflow.graph.reshaping import unmerged
from chunkflow.stores.checks import elements_of

FEW = 8
"""Columns of a matrix up to which its products with an expression are sums of products by element."""


def lstsq(a: Any, b: Any, rcond: float | None = None) -> tuple[Any, Any, np.int32, np.ndarray]:
    """As `numpy.linalg.lstsq`, of a matrix in memory and an expression that has a row for each of its rows.

    The matrix is decomposed in memory, ``a = u s v``, and the expression is read once, for ``u.T @ b``. Where the
    residuals are computed too, it is read once more.

    Parameters
    ----------
    a : array_like
        Matrix of shape (m, n), of which a copy in double precision fits the memory.
    b : Array
        Expression of shape (m,) or (m, k).
    rcond : float, optional
        Singular values below this share of the largest one count as 0; by default the precision times the longer side.

    Returns
    -------
    x, residuals, rank, s
        As NumPy's; the first two are expressions, and the residuals an empty array where NumPy's are.

    Raises
    ------
    ArgumentError
        Shapes that do not fit.
    UnsupportedError
        `a` is an expression.
    """
    if isinstance(a, Lazy):
        raise UnsupportedError(
            "np.linalg.lstsq: the matrix is decomposed in memory, and it is an expression: compute() it"
        )
    matrix = elements_of(a)
    if matrix.ndim != 2 or b.ndim not in (1, 2) or len(matrix) != b.shape[0]:
        raise ArgumentError(
            f"np.linalg.lstsq of shapes {matrix.shape} and {b.shape}: they must be (m, n), and (m,) or (m, k)"
        )
    if b.ndim == 2 and (before := unmerged(node_of(b))) is not None:
        x, residuals, *more = _solved(matrix, type(b)(before), rcond)
        return x.reshape((matrix.shape[1], b.shape[1])), residuals.reshape(-1), *more
    return _solved(matrix, b, rcond)


def _solved(matrix: np.ndarray, b: Any, rcond: float | None) -> tuple[Any, Any, np.int32, np.ndarray]:
    """The same, of an expression of any number of further axes."""
    common = np.result_type(matrix, b.dtype, "f4")
    u, s, v = np.linalg.svd(matrix.astype(np.result_type(common, "f8")), full_matrices=False)
    least = np.finfo(common).eps * max(matrix.shape) if rcond is None else rcond if rcond >= 0 else np.finfo(common).eps
    rank = np.int32(np.count_nonzero(s > least * s.max(initial=0)))
    back = v[:rank].conj().T / s[:rank]
    x = product.tensordot(back, _times(u[:, :rank].conj().T, b), 1).astype(common)
    if rank < matrix.shape[1] or len(matrix) <= matrix.shape[1]:
        return x, np.empty(0, s.dtype), rank, s.astype(np.empty(0, common).real.dtype)
    left = abs(b - _fitted(matrix, x)) ** 2
    residuals = sums.sum(left, 0, keepdims=b.ndim == 1).astype(left.dtype)
    return x, residuals, rank, s.astype(np.empty(0, common).real.dtype)


def _times(matrix: np.ndarray, b: Any) -> Any:
    """A matrix with few rows times an expression, which is read once for all of them, and not stored."""
    if not 0 < len(matrix) <= FEW or isinstance(node_of(b), SourceNode):
        return product.tensordot(matrix, b, 1)
    return stack([product.tensordot(row, b, 1) for row in matrix])


def _fitted(matrix: np.ndarray, x: Any) -> Any:
    """A matrix with few columns times a few rows, by element: as large as what was fitted, it is not stored."""
    if not 0 < matrix.shape[1] <= FEW:
        return product.tensordot(matrix, x, 1)
    columns = [column.reshape(-1, *(1,) * (x.ndim - 1)) for column in matrix.T]
    return functools.reduce(operator.add, [column * x[i] for i, column in enumerate(columns)])
