"""The `reduce` of ufuncs that can be applied in any grouping and order."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from chunkflow.api.reductions import sums
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError
from chunkflow.graph.elementwise import mapped
from chunkflow.kernels.twins import suited

ASSOCIATIVE = frozenset(
    (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.fmin, np.fmax, np.gcd, np.lcm, np.logaddexp, np.logaddexp2)
)


def reduced(
    fn: np.ufunc,
    x: Any,
    axis: Any = 0,
    dtype: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
) -> Any:
    """As `numpy.ufunc.reduce`."""
    axes = tuple(range(x.ndim)) if axis is None else normalize_axes(axis, x.ndim, "axis")
    found_dtype = fn.resolve_dtypes((x.dtype, x.dtype, None))[-1] if dtype is None else np.dtype(dtype)
    if where is not True:
        if fn.identity is None and initial is None:
            raise ArgumentError("with where= the first element is not known: give initial=")
        x = mapped(np.where, where, x, found_dtype.type(fn.identity if fn.identity is not None else initial))
    if any(not x.shape[a] for a in axes) and fn.identity is None and initial is None:
        raise ArgumentError(f"no element along axis {axis} of shape {x.shape}: give initial=")
    whole = partial(_halved, fn=fn, dtype=found_dtype)
    found = sums.reduction(x, whole, whole, axis=axes, keepdims=keepdims, dtype=found_dtype) if axes else x
    return found if initial is None else mapped(fn, found, found_dtype.type(initial))


def _halved(block: Any, axis: tuple[int, ...], keepdims: bool, *, fn: np.ufunc, dtype: np.dtype) -> Any:
    """A block reduced by halves: devices have the ufunc, and not each its `reduce`."""
    found = block.astype(dtype, copy=False)
    for along in axis:
        before = (slice(None),) * along
        while (n := found.shape[along]) > 1:
            one, other = found[(*before, slice(n // 2))], found[(*before, slice(n // 2, n // 2 * 2))]
            joined = suited(fn, (one, other))(one, other)
            rest = found[(*before, slice(n // 2 * 2, n))]
            found = np.concatenate([joined, rest], axis=along) if n % 2 else joined
    return found if keepdims else found.reshape([n for a, n in enumerate(found.shape) if a not in axis])
