"""Elements of one array or of another, as a condition says."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import ChunkedRunOptions, Options, Request, operation
from chunkflow.kernels.declare import declare_map


@operation
def where(condition: Any, x: Any, y: Any, /, **options: Unpack[ChunkedRunOptions]) -> Request:
    """Take elements of `x` where a condition holds, and of `y` elsewhere, as `numpy.where` of three arguments.

    Parameters
    ----------
    condition, x, y : array_like, str or path
        Arrays that are broadcast together: see `chunkflow.open`. A condition that is not of bools holds where it is
        not 0. Numbers of Python's do not widen the result.

    Returns
    -------
    array
        Of their common shape, and of the dtype that NumPy gives `x` and `y`.

    Raises
    ------
    ArgumentError
        Shapes that do not broadcast together.

    Examples
    --------
    >>> x = np.arange(6).reshape(2, 3)
    >>> cf.where(x > 3, x, 0, device="cpu")
    array([[0, 0, 0],
           [0, 4, 5]])
    >>> lazy = cf.open(x)
    >>> cf.where(lazy % 2 == 0, lazy, -lazy).compute(device="cpu")
    array([[ 0, -1,  2],
           [-3,  4, -5]])
    """
    return Request(declare_map(np.where, {}), (condition, x, y), Options(**options), keeps=True, elementwise=True)
