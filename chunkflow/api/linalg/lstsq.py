"""Least squares of an expression: what `np.linalg.lstsq` gives, in one pass over it."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.api.linalg import product
from chunkflow.api.reductions import sums
from chunkflow.errors import ArgumentError, UnsupportedError
from chunkflow.graph.nodes import Lazy


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
    matrix = np.asarray(a)
    if matrix.ndim != 2 or b.ndim not in (1, 2) or len(matrix) != b.shape[0]:
        raise ArgumentError(
            f"np.linalg.lstsq of shapes {matrix.shape} and {b.shape}: they must be (m, n), and (m,) or (m, k)"
        )
    common = np.result_type(matrix, b.dtype, "f4")
    u, s, v = np.linalg.svd(matrix.astype(np.result_type(common, "f8")), full_matrices=False)
    least = np.finfo(common).eps * max(matrix.shape) if rcond is None else rcond if rcond >= 0 else np.finfo(common).eps
    rank = np.int32(np.count_nonzero(s > least * s.max(initial=0)))
    back = v[:rank].conj().T / s[:rank]
    x = product.matmul(back, product.matmul(u[:, :rank].conj().T, b)).astype(common)
    if rank < matrix.shape[1] or len(matrix) <= matrix.shape[1]:
        return x, np.empty(0, s.dtype), rank, s.astype(np.empty(0, common).real.dtype)
    left = abs(b - product.matmul(matrix, x)) ** 2
    residuals = sums.sum(left, 0, keepdims=b.ndim == 1).astype(left.dtype)
    return x, residuals, rank, s.astype(np.empty(0, common).real.dtype)
