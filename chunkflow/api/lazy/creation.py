"""Arrays that are made where they are computed, of their shape alone: they are never stored, nor sent to the device."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.lazy import fill, numpy_functions, numpy_shapes
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.open import open as opened
from chunkflow.api.operation import check_int
from chunkflow.api.rearrange import join
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.create import integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy
from chunkflow.kernels.map import is_scalar


def places(shape: Sequence[int]) -> list[Array]:
    """For each axis the places along it, shaped to broadcast against those of the others."""
    ndim = len(shape)
    return [
        integers(Array, 0, n)[tuple(slice(None) if a == axis else None for a in range(ndim))]
        for axis, n in enumerate(shape)
    ]


def full(shape: int | Sequence[int], fill_value: Any, dtype: Any = None) -> Array:
    """An array of one number, or of an array that is broadcast, as `numpy.full`.

    Parameters
    ----------
    shape : int or sequence of int
        Its shape.
    fill_value : number or array_like
        The number; an array must broadcast to the shape, and may be an expression.
    dtype : dtype_like, optional
        Its dtype; by default that of `fill_value`.

    Returns
    -------
    Array
        An expression, which takes no memory: blocks of it are made where they are needed.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnsupportedError
        A shape that is none, an array that does not broadcast to it, or a dtype of no numbers.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.full((2, 3), 7).sum().compute(device="cpu")
    np.int64(42)
    """
    sides = fill.sides_of(shape)
    if is_scalar(fill_value):
        return fill.constant(Array, sides, fill_value, dtype)  # type: ignore[no-any-return]
    array: Any = fill_value if isinstance(fill_value, Lazy) else opened(np.asarray(fill_value))
    array = array if dtype is None else numpy_functions.astype(array, dtype)
    return numpy_functions.broadcast_to(array, sides)  # type: ignore[no-any-return]


def zeros(shape: int | Sequence[int], dtype: Any = float) -> Array:
    """Zeros, as `numpy.zeros`; see `full`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.zeros((1000, 1000, 1000)).nbytes, cf.zeros(2).compute(device="cpu")
    (8000000000, array([0., 0.]))
    """
    return full(shape, 0, np.dtype(dtype))


def ones(shape: int | Sequence[int], dtype: Any = float) -> Array:
    """Ones, as `numpy.ones`; see `full`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.ones((2, 2), "i4").compute(device="cpu")
    array([[1, 1],
           [1, 1]], dtype=int32)
    """
    return full(shape, 1, np.dtype(dtype))


def empty(shape: int | Sequence[int], dtype: Any = float) -> Array:
    """As `zeros`: an expression has nothing that is not set.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    """Numbers that are `step` apart, as `numpy.arange`.

    Parameters
    ----------
    start, stop, step : number
        As NumPy's: with one number, those from 0 to it.
    dtype : dtype_like, optional
        Of integers or floats; by default that of the numbers.

    Returns
    -------
    Array
        An expression, which takes no memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnsupportedError
        A step of 0, what is no number, or a dtype of other elements.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.arange(2, 10, 3).compute(device="cpu")
    array([2, 5, 8])
    """
    start, stop = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    for name, value in (("start", start), ("stop", stop), ("step", step)):
        if not is_scalar(value) or value is None or np.result_type(value).kind not in "biuf":
            raise ArgumentTypeError(f"{name}={value!r} must be a real number")
    if step == 0:
        raise ArgumentError("step=0 must not be 0: numbers that are equal have no end")
    wanted = fill.number_dtype(np.result_type(start, stop, step) if dtype is None else dtype, "iuf")
    whole = all(isinstance(v, int | np.integer) for v in (start, stop, step))
    start, stop, step = (int(v) if whole else v for v in (start, stop, step))
    if not np.isfinite(length := (stop - start) / step):
        raise ArgumentError(f"start={start}, stop={stop} and step={step}: from one to the other are {length} steps")
    if length > 1 << 62:
        raise ArgumentError(f"{length:.3g} steps from start to stop are more elements than an array has")
    number = max(0, -((start - stop) // step) if whole else math.ceil(length))
    if whole and wanted.kind in "biu" and max(abs(start), abs(stop)) < 1 << 62:
        found = integers(Array, start, number, step)
        return found if wanted == found.dtype else numpy_functions.astype(found, wanted)  # type: ignore[no-any-return]
    # NumPy casts the first two numbers, and adds up from them.
    first, second = (np.asarray(v).astype(wanted)[()] for v in (start, start + step))
    wide = np.result_type(wanted, np.float32) if wanted.kind == "f" else wanted
    first, second = wide.type(first), wide.type(second)
    return mapped(_evenly, integers(Array, 0, number), first=first, step=second - first, dtype=wanted)  # type: ignore[no-any-return]


def _evenly(block: Any, first: Any, step: Any, dtype: np.dtype) -> Any:
    return (first + block.astype(first.dtype) * step).astype(dtype, copy=False)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None
) -> Any:
    """`num` numbers that are evenly apart, as `numpy.linspace`.

    Parameters
    ----------
    start, stop : number
        The first number, and the last one, which is left out unless `endpoint`.
    num : int, default 50
        How many there are.
    endpoint : bool, default True
        Whether `stop` is the last of them.
    retstep : bool, default False
        Whether to return the distance too.
    dtype : dtype_like, optional
        By default that of floats. For one of integers numbers are rounded down.

    Returns
    -------
    Array, or Array and float
        An expression, which takes no memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnsupportedError
        A negative number of them, arrays for the ends, or a dtype of no numbers.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.linspace(0, 1, 5).compute(device="cpu")
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    for name, value in (("start", start), ("stop", stop)):
        if not is_scalar(value) or value is None:
            raise ArgumentTypeError(f"{name} must be a number, not a {type(value).__name__}: broadcast numbers instead")
    number = fill.sides_of((num,))[0]
    inner = np.result_type(start, stop, float(number))
    wanted = fill.number_dtype(inner if dtype is None else dtype)
    parts = number - 1 if endpoint else number
    delta = inner.type(stop) - inner.type(start)
    step = delta / parts if parts > 0 else inner.type(np.nan)
    # Of a single number there is no step; of a step that underflows NumPy divides first.
    each, over = (delta, 1) if parts < 1 else (step, 1) if step != 0 else (delta, parts)
    last = number - 1 if endpoint and number > 1 else -1
    found = mapped(
        _spaced,
        integers(Array, 0, number),
        first=inner.type(start),
        each=each,
        over=over,
        stop=inner.type(stop),
        last=last,
        dtype=wanted,
    )
    return (found, step) if retstep else found


def _spaced(block: Any, first: Any, each: Any, over: int, stop: Any, last: int, dtype: np.dtype) -> Any:
    found = np.where(block == last, stop, block.astype(first.dtype) / over * each + first)
    return (np.floor(found) if dtype.kind in "iu" else found).astype(dtype, copy=False)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float) -> Array:  # noqa: N803
    """Ones on a diagonal and zeros elsewhere, as `numpy.eye`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.eye(2, 3, k=1).compute(device="cpu")
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """
    rows, columns = places(fill.sides_of((N, N if M is None else M)))
    return _as(mapped(np.equal, rows + operator.index(k), columns), dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float) -> Array:  # noqa: N803
    """Ones on a diagonal and below, as `numpy.tri`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.tri(2, 3).compute(device="cpu")
    array([[1., 0., 0.],
           [1., 1., 0.]])
    """
    rows, columns = places(fill.sides_of((N, N if M is None else M)))
    return _as(mapped(np.greater_equal, rows + operator.index(k), columns), dtype)


def _as(x: Any, dtype: Any) -> Array:
    return numpy_functions.astype(x, fill.number_dtype(dtype))  # type: ignore[no-any-return]


def indices(dimensions: Sequence[int], dtype: Any = int, sparse: bool = False) -> Any:
    """The places along each axis, as `numpy.indices`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> rows, columns = cf.indices((1000, 1000))
    >>> (rows + columns).max().compute(device="cpu")
    np.int64(1998)
    """
    sides = fill.sides_of(dimensions)
    along = [_as(each, dtype) for each in places(sides)]
    if sparse:
        return tuple(along)
    return join.stack([numpy_functions.broadcast_to(each, sides) for each in along])


def fromfunction(function: Callable[..., Any], shape: Sequence[int], *, dtype: Any = float, **kwargs: Any) -> Array:
    """A function of the places of elements, as `numpy.fromfunction`.

    Parameters
    ----------
    function : callable
        Is called with a block of places for each axis, on the device that computes, and gives a block of that shape.
        No element may depend on other ones.
    shape : sequence of int
        Shape of the result.
    dtype : dtype_like, default float
        Of the places. The result has the dtype that `function` gives.
    **kwargs
        Passed on to `function`.

    Returns
    -------
    Array
        An expression, which takes no memory.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.fromfunction(lambda i, j: 10 * i + j, (2, 3), dtype=int).compute(device="cpu")
    array([[ 0,  1,  2],
           [10, 11, 12]])
    """
    sides = fill.sides_of(shape)
    if not sides:
        raise ArgumentError(f"shape={shape!r} has no axis: an element has no place without one")
    along = [numpy_functions.broadcast_to(_as(each, dtype), sides) for each in places(sides)]
    return mapping.map(function, *along, **kwargs)  # type: ignore[no-any-return]


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of a grid from those of its axes, as `numpy.meshgrid`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> x, y = cf.meshgrid(cf.arange(3), cf.linspace(0, 1, 2))
    >>> x.shape, y.compute(device="cpu")[:, 0]
    ((2, 3), array([0., 1.]))
    """
    given = [x if isinstance(x, Lazy) else opened(np.asarray(x)) for x in xi]
    return numpy_shapes.meshgrid(*given, copy=copy, sparse=sparse, indexing=indexing)


def fftfreq(n: int, d: float = 1.0) -> Array:
    """The frequencies of the elements of a transform, as `numpy.fft.fftfreq`.

    Parameters
    ----------
    n : int
        Length of the line that is transformed.
    d : float
        Distance of its samples; frequencies are in cycles per unit of it.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.fft.fftfreq(5, 0.2).compute(device="cpu")
    array([ 0.,  1.,  2., -2., -1.])
    """
    number = check_int("n", n, 1)
    return mapped(_frequency, integers(Array, 0, number), n=number, d=d)  # type: ignore[no-any-return]


def rfftfreq(n: int, d: float = 1.0) -> Array:
    """The frequencies of the elements of a transform of real numbers, as `numpy.fft.rfftfreq`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.fft.rfftfreq(4, 0.25).compute(device="cpu")
    array([0., 1., 2.])
    """
    number = check_int("n", n, 1)
    return integers(Array, 0, number // 2 + 1) * (1.0 / (number * d))  # type: ignore[no-any-return]


def _frequency(places: Any, n: int, d: float) -> Any:
    return np.where(places < (n + 1) // 2, places, places - n) * (1.0 / (n * d))
