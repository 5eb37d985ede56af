"""An array with some elements set: what ``x[index] = values`` leaves, as a new array."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import Options, Request, RunOptions, operation
from chunkflow.errors import ArgumentTypeError, ValueRangeError, refused_by
from chunkflow.graph.assigning import assignment
from chunkflow.kernels.declare import declare_map
from chunkflow.stores import spec_of


@operation
def put(x: Any, index: Any, values: Any, **options: Unpack[RunOptions]) -> Request:
    """Set the elements that an index picks: a new array, as ``x[index] = values`` makes of a copy.

    NumPy's own `put` counts places in the flattened array, and changes it.

    Parameters
    ----------
    x : array_like, str or path
        The array: see `chunkflow.open`. It stays as it is.
    index : int, slice, array_like, or tuple of these
        As NumPy's: integers, slices, ``...``, and arrays of integers or bools. A mask may be an expression of the
        shape of `x`, of any size. Of elements that come twice the last value counts.
    values : scalar, array_like, str or path
        Broadcast to what the index picks, and cast to the dtype of `x`, as NumPy's. For an index with lists or arrays,
        but for a mask of the shape of `x`, they are to fit into memory.

    Returns
    -------
    array
        Of the shape and dtype of `x`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Values that do not broadcast to what the index picks; a number that the dtype of `x` does not hold.
    IndexError
        There is no such element or axis.

    Examples
    --------
    >>> x = np.arange(6).reshape(2, 3)
    >>> cf.put(x, (slice(None), [0, 2]), [[7], [8]], device="cpu")
    array([[7, 1, 7],
           [8, 4, 8]])
    >>> lazy = cf.open(x)
    >>> cf.put(lazy, lazy > 3, 0).compute(device="cpu")
    array([[0, 1, 2],
           [3, 0, 0]])
    """
    spec = spec_of(x)
    chosen = replace(Options(**options), dtype=spec.dtype)
    early = Options(budget=chosen.budget, device=chosen.device, progress=chosen.progress)
    with refused_by("put"):
        if isinstance(values, int | float | complex | np.floating):
            _check_held(values, spec.dtype)
        which, given = assignment(index, spec.shape, spec.dtype, values, early)
    return Request(declare_map(_put, {}), (x, which, given), chosen, shapes_only=True, keeps=True, elementwise=True)


def _check_held(value: Any, dtype: np.dtype) -> None:
    """Refuse a number that a dtype does not hold."""
    advice = f"{dtype}, the array's dtype, does not hold {value!r}: convert the array by .astype, or give another value"
    try:  # by Python's numbers: NumPy's would become any integer
        np.empty((), dtype)[...] = float(value) if isinstance(value, np.floating) else value
    except TypeError:
        raise ArgumentTypeError(f"put: {advice}") from None
    except (OverflowError, ValueError):
        raise ValueRangeError(f"put: {advice}") from None


def _put(block: Any, wanted: Any, values: Any) -> Any:
    return np.where(wanted, np.asarray(values, like=block).astype(block.dtype), block)
