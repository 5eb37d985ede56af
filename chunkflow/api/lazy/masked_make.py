"""Functions that make masked expressions, with numpy.ma's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from chunkflow.api.lazy import numpy_functions
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.masked import MaskedArray
from chunkflow.api.lazy.masked_parts import data_of, either, opened
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import SourceNode
from chunkflow.stores import array_of


def masked_array(data: Any, mask: Any = None, fill_value: Any = None) -> MaskedArray:
    """Make a masked expression of elements and a mask, as `numpy.ma.masked_array`.

    Parameters
    ----------
    data : array_like, str, path or Array
        The elements, as for `chunkflow.open`. What is masked in a masked array stays so.
    mask : array_like, str, path or Array, optional
        Of bools, true where an element is masked; it is broadcast to the shape of `data`. By default none is.
    fill_value : number, optional
        What `MaskedArray.filled` puts in masked places, by default NumPy's for the dtype.

    Returns
    -------
    MaskedArray
        Nothing is read yet.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A mask that is not of bools, or does not broadcast; a fill value that the dtype cannot hold.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.masked_array(np.array([1, 2, 30]), [False, False, True])
    >>> cf.compute(x.sum(), x.filled(0), device="cpu")
    (np.int64(3), array([1, 2, 0]))
    """
    given = _opened(data)
    more = numpy_functions.broadcast_to(_opened(np.False_ if mask is None else mask), given.shape)
    if not isinstance(given, MaskedArray):
        return MaskedArray(given, more, fill_value)
    return MaskedArray(given.data, either(given.mask, more), given._fill_value if fill_value is None else fill_value)


def masked_where(condition: Any, x: Any) -> MaskedArray:
    """Mask an array where a condition holds, as `numpy.ma.masked_where`.

    Parameters
    ----------
    condition : array_like or Array
        It holds where it is not zero, or masked.
    x : array_like, str, path or Array
        The elements; see `masked_array`.

    Returns
    -------
    MaskedArray
        Nothing is read yet.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.arange(4))
    >>> cf.masked_where(x > 2, x).max().compute(device="cpu")
    np.int64(2)
    """
    held = _opened(condition)
    held = held.filled(True) if isinstance(held, MaskedArray) else held
    return masked_array(x, held if held.dtype == bool else held != 0)


def masked_equal(x: Any, value: Any) -> MaskedArray:
    """Mask the elements that are a value, which becomes the fill value, as `numpy.ma.masked_equal`.

    So missing values of files are masked, of which `chunkflow.open` with ``decode="cf"`` makes NaN.

    Parameters
    ----------
    x : array_like, str, path or Array
        The elements; see `masked_array`.
    value : number
        The value.

    Returns
    -------
    MaskedArray
        Nothing is read yet.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> cf.masked_equal(np.array([3, -999, 5]), -999).mean().compute(device="cpu")
    np.float64(4.0)
    """
    given = _opened(x)
    return masked_array(given, mapped(np.equal, data_of(given), value), value)


def masked_invalid(x: Any) -> MaskedArray:
    """Mask NaN and infinities, as `numpy.ma.masked_invalid`.

    Parameters
    ----------
    x : array_like, str, path or Array
        The elements; see `masked_array`.

    Returns
    -------
    MaskedArray
        Nothing is read yet.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> cf.masked_invalid(np.array([1.0, np.nan, np.inf])).count().compute(device="cpu")
    np.int64(1)
    """
    given = _opened(x)
    return masked_array(given, ~mapped(np.isfinite, data_of(given)))


def _opened(x: Any) -> Any:
    """An expression, with a mask where the array has one."""
    given = opened(MaskedArray, x)
    if isinstance(given, Array | MaskedArray):
        return given
    return Array(SourceNode(array_of(x) if isinstance(x, list | tuple | bool | int | float) else x))
