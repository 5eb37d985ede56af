"""NumPy's functions of expressions that take diagonals, or make matrices of them, with NumPy's signatures."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from chunkflow.api.lazy import fill, numpy_functions
from chunkflow.api.linalg import product
from chunkflow.api.linalg.subscripts import diagonal_of, from_lists
from chunkflow.api.rearrange import join
from chunkflow.api.reductions import sums
from chunkflow.core.axes import normalize_axes
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.create import integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """As `numpy.diagonal`. Chunks that hold no element of it are not read."""
    numpy_functions.require_dims(a, 2)
    one, other = (normalize_axes(axis, a.ndim, "axis")[0] for axis in (axis1, axis2))
    if one == other:
        raise ArgumentError(f"axis1={axis1} and axis2={axis2} must be two different axes")
    return diagonal_of(a, one, other, operator.index(offset))


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """As `numpy.trace`."""
    return sums.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def diag(v: Any, k: int = 0) -> Any:
    """As `numpy.diag`."""
    if v.ndim not in (1, 2):
        raise ArgumentError(f"the array has {v.ndim} dimensions: a diagonal is of 2, and a matrix is made of 1")
    if v.ndim == 2:
        return diagonal(v, k)
    before, after = max(-operator.index(k), 0), max(operator.index(k), 0)
    column = join.pad(v, (before, after))[:, None]
    rows, columns = (integers(type(v), 0, column.shape[0]) for _ in range(2))
    return mapped(_kept, column, rows[:, None] + k, columns)


def _kept(block: Any, rows: Any, columns: Any) -> Any:
    return np.where(rows == columns, block, block.dtype.type(0))


def diagflat(v: Any, k: int = 0) -> Any:
    """As `numpy.diagflat`."""
    return diag(numpy_functions.reshape(v, -1), k)


def einsum(*operands: Any, optimize: Any = False, **given: Any) -> Any:
    """As `numpy.einsum`."""
    dtype, casting = given.pop("dtype", None), given.pop("casting", "safe")
    fill.check_layout(given.pop("order", "K"))
    if given:
        raise ArgumentTypeError(f"np.einsum takes no {', '.join(given)}")
    subscripts, arrays = from_lists(operands)
    arrays = [numpy_functions.from_list(array) for array in arrays]
    if dtype is not None:
        for array in arrays:
            if not np.can_cast(np.result_type(array), dtype, casting):
                raise ArgumentTypeError(
                    f"dtype={dtype!r}: {np.result_type(array)} is not cast to it by casting={casting!r}: give another"
                )
        arrays = [
            mapped(_cast, a, dtype=as_dtype(dtype)) if isinstance(a, Lazy) else np.asarray(a, dtype) for a in arrays
        ]
    return product.einsum(subscripts, *arrays)


def _cast(block: Any, dtype: np.dtype) -> Any:
    return block.astype(dtype)
