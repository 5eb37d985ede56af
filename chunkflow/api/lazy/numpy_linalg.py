"""NumPy's functions of stacks of matrices: blocks have whole matrices, and the device's library computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from chunkflow.api.core_axes import whole_axes
from chunkflow.api.lazy import numpy_functions
from chunkflow.api.linalg import product
from chunkflow.api.operation import check_eager
from chunkflow.api.reductions import extremes, sums
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, LinAlgError
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy
from chunkflow.stores.checks import elements_of

Function = Callable[..., Any]


def of_matrices(fn: Any, *, square: bool = True) -> Function:
    """One of NumPy's functions of matrices. Of several results each is computed by itself."""

    def call(a: Any, *args: Any, **kwargs: Any) -> Any:
        check_eager(fn.__name__, **{f"argument {place}": value for place, value in enumerate(args, 2)}, **kwargs)
        x = _matrices(a, square=square, as_it_is=fn is np.linalg.matrix_power)
        rows, columns = x.shape[-2:]
        # A small matrix of such a shape tells dtypes, and which side of the matrix each axis of a result is as long as.
        small = tuple(3 if n == min(rows, columns) else 5 for n in (rows, columns))
        lengths = dict(zip(small, (rows, columns), strict=True))
        like = fn(np.eye(*small, dtype=x.dtype), *args, **kwargs)
        found = []
        for item, part in enumerate(like if isinstance(like, tuple) else [like]):
            work = partial(_result, fn=fn, item=item, args=args, kwargs=kwargs)
            shape = [lengths[n] for n in np.shape(part)]
            found.append(whole_axes(work, fn.__name__, [(x, ("rows", "columns"))], shape, np.asarray(part).dtype))
        if not isinstance(like, tuple):
            return found[0]
        kind: Any = type(like)
        return tuple(found) if kind is tuple else kind(*found)

    return call


def _matrices(a: Any, *, square: bool, as_it_is: bool = False) -> Any:
    if a.ndim < 2:
        raise LinAlgError(f"an array of shape {a.shape} is no matrix: matrices have two axes, the last ones")
    if square and a.shape[-1] != a.shape[-2]:
        raise LinAlgError(f"matrices of {a.shape[-2]} rows and {a.shape[-1]} columns: they must be square")
    return a if as_it_is or a.dtype.kind in "fc" else numpy_functions.astype(a, np.float64)


def _array(x: Any) -> Any:
    """An expression, or an array in memory."""
    return x if isinstance(x, Lazy) else elements_of(x)


def _result(block: Any, fn: Any, item: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = fn(block, *args, **kwargs)
    return found[item] if isinstance(found, tuple) else found


def solve(a: Any, b: Any) -> Any:
    """As `numpy.linalg.solve`."""
    matrices, right = map(_array, (a, b))
    if matrices.ndim < 2 or not right.ndim or matrices.shape[-1] != matrices.shape[-2]:
        raise ArgumentError(f"np.linalg.solve of shapes {matrices.shape} and {right.shape}: (n, n), and (n,) or (n, k)")
    is_line = right.ndim == 1
    right = right[:, None] if is_line else right
    dtype = np.linalg.solve(np.eye(1, dtype=matrices.dtype), np.eye(1, dtype=right.dtype)).dtype
    inputs = [(matrices, ("rows", "columns")), (right, ("rows", "each"))]
    found = whole_axes(np.linalg.solve, "solve", inputs, (matrices.shape[-1], right.shape[-1]), dtype)
    return found[..., 0] if is_line else found


def svdvals(x: Any) -> Any:
    """As `numpy.linalg.svdvals`."""
    return of_matrices(_singular_values, square=False)(x)


def _singular_values(block: Any) -> Any:
    return np.linalg.svd(block, compute_uv=False)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """As `numpy.linalg.norm`. For the orders 2, -2 and nuc of matrices a block has whole ones."""
    axes = tuple(range(x.ndim)) if axis is None else normalize_axes(axis, x.ndim, "axis")
    if len(axes) != 2 or ord not in _OF_SINGULAR_VALUES:
        return extremes.norm(x, ord, axis, keepdims)
    found = _OF_SINGULAR_VALUES[ord](svdvals(numpy_functions.moveaxis(x, axes, (-2, -1))), axis=-1)
    return numpy_functions.expand_dims(found, axes) if keepdims else found


_OF_SINGULAR_VALUES: dict[Any, Function] = {2: extremes.max, -2: extremes.min, "nuc": sums.sum}


def vector_norm(x: Any, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """As `numpy.linalg.vector_norm`: of all elements along the axes."""
    axes = tuple(range(x.ndim)) if axis is None else normalize_axes(axis, x.ndim, "axis")
    if len(axes) == 1:
        return extremes.norm(x, ord, axes[0], keepdims)
    if not axes:
        found = abs(x) if ord else mapped(np.not_equal, x, 0)
        return numpy_functions.astype(found, abs(x).dtype if x.dtype.kind in "fc" else np.float64)
    others = [a for a in range(x.ndim) if a not in axes]
    flat = numpy_functions.moveaxis(x, others, list(range(len(others))))
    flat = numpy_functions.reshape(flat, (*flat.shape[: len(others)], -1))
    found = extremes.norm(flat, ord, -1)
    return numpy_functions.expand_dims(found, axes) if keepdims else found


def matrix_norm(x: Any, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """As `numpy.linalg.matrix_norm`."""
    return norm(numpy_functions.require_dims(x, 2), ord, (-2, -1), keepdims)


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:  # noqa: N803
    """As `numpy.linalg.matrix_rank`."""
    if A.ndim < 2:
        return numpy_functions.astype(extremes.any(mapped(np.not_equal, A, 0)), np.int64)
    if tol is not None and rtol is not None:
        raise ArgumentError("give tol or rtol, not both: limits of singular values, or of their share of the largest")
    values = abs(of_matrices(np.linalg.eigvalsh)(A)) if hermitian else svdvals(A)
    if tol is None:
        share = max(A.shape[-2:]) * np.finfo(values.dtype).eps if rtol is None else _array(rtol)[..., None]
        limit = extremes.max(values, axis=-1, keepdims=True) * share
    else:
        limit = _array(tol)[..., None]
    return extremes.count_nonzero(mapped(np.greater, values, limit), axis=-1)


def cond(x: Any, p: Any = None) -> Any:
    """As `numpy.linalg.cond`."""
    check_eager("np.linalg.cond", p=p)
    if p in (None, 2, -2):
        x = _matrices(x, square=False)
        values = svdvals(x)
        ends = extremes.max(values, axis=-1), extremes.min(values, axis=-1)
        top, bottom = ends if p != -2 else ends[::-1]
        found = mapped(_ratio, top, bottom)
    else:
        x = _matrices(x, square=True)
        inverse = whole_axes(_inverses, "inv", [(x, ("rows", "columns"))], x.shape[-2:], x.dtype)
        found = norm(x, p, (-2, -1)) * norm(inverse, p, (-2, -1))
    return mapped(_of_singular, found, extremes.any(mapped(np.isnan, x), axis=(-2, -1)))


def _ratio(top: Any, bottom: Any) -> Any:
    with np.errstate(all="ignore"):
        return top / bottom


def _inverses(block: Any) -> Any:
    """Inverses of matrices: NaN of those that have none."""
    try:
        return np.linalg.inv(block)
    except np.linalg.LinAlgError:
        if block.ndim == 2:
            return np.full_like(block, np.nan)
    return np.stack([_inverses(part) for part in block])


def _of_singular(found: Any, has_nan: Any) -> Any:
    """The condition of a matrix without an inverse is infinite; of one that has NaN it is NaN."""
    return np.where(np.isnan(found) & ~has_nan, found.dtype.type(np.inf), found)


def multi_dot(arrays: Sequence[Any]) -> Any:
    """As `numpy.linalg.multi_dot`, in the order of fewest products of numbers."""
    given = [_array(x) for x in arrays]
    if len(given) < 2:
        raise ArgumentError(f"np.linalg.multi_dot of {len(given)} arrays: give at least two")
    first, last = given[0].ndim == 1, given[-1].ndim == 1
    given[0] = given[0][None] if first else given[0]
    given[-1] = given[-1][:, None] if last else given[-1]
    if any(x.ndim != 2 for x in given):
        raise ArgumentError("np.linalg.multi_dot: arrays must be matrices, the first and last may be vectors")
    sides = [x.shape[0] for x in given] + [given[-1].shape[1]]

    @cache
    def best(start: int, stop: int) -> tuple[int, int]:
        """Products of numbers for some of the arrays, and where they are cut in two."""
        if stop - start == 1:
            return 0, start
        ways = (
            (best(start, cut)[0] + best(cut, stop)[0] + sides[start] * sides[cut] * sides[stop], cut)
            for cut in range(start + 1, stop)
        )
        return min(ways)

    def multiplied(start: int, stop: int) -> Any:
        if stop - start == 1:
            return given[start]
        cut = best(start, stop)[1]
        left, right = multiplied(start, cut), multiplied(cut, stop)
        if isinstance(left, Lazy) or isinstance(right, Lazy):
            return product.matmul(left, right)
        return left @ right

    found = multiplied(0, len(given))
    found = found[0] if first else found
    return found[..., 0] if last else found
