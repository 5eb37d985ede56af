"""Arrays that are made where they are computed, of their shape alone: they are never stored, nor sent to the device."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.compound import Compound
from chunkflow.api.lazy import fill, numpy_functions, numpy_shapes
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.open import open as opened
from chunkflow.api.lazy.times import TimeArray
from chunkflow.api.operation import check_eager, check_int
from chunkflow.api.rearrange import join
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, ArgumentTypeError, refused_by
from chunkflow.graph.create import filled, integers
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import Lazy
from chunkflow.kernels.map import is_scalar
from chunkflow.stores import array_of


def places(shape: Sequence[int]) -> list[Array]:
    """For each axis the places along it, shaped to broadcast against those of the others."""
    ndim = len(shape)
    return [
        integers(Array, 0, n)[tuple(slice(None) if a == axis else None for a in range(ndim))]
        for axis, n in enumerate(shape)
    ]


def full(
    shape: int | Sequence[int], fill_value: Any, dtype: Any = None, order: str = "C", *, device: Any = None
) -> Any:
    """An array of one number, or of an array that is broadcast, as `numpy.full`.

    Parameters
    ----------
    shape : int or sequence of int
        Its shape.
    fill_value : number, time or array_like
        The number; an array must broadcast to the shape, and may be an expression.
    dtype : dtype_like, optional
        Its dtype; by default that of `fill_value`.
    order, device : optional
        They change no value: results are in C order, in the host's memory.

    Returns
    -------
    Array or TimeArray
        An expression, which takes no memory: blocks of it are made where they are needed.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnsupportedError
        A shape that is none, an array that does not broadcast to it, a number that the dtype does not hold, or a dtype
        of neither numbers nor times.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.full((2, 3), 7).sum().compute(device="cpu")
    np.int64(42)
    """
    fill.check_layout(order, device)
    sides, is_lazy = fill.sides_of(shape), isinstance(fill_value, Lazy | Compound)
    of_times = isinstance(fill_value, np.datetime64 | np.timedelta64) if dtype is None else _is_of_times(dtype)
    if of_times and not is_lazy:
        with refused_by(f"full of fill_value={fill_value!r}"):
            fill_value = np.asarray(fill_value, dtype)[()]
        if not fill_value.ndim:
            return TimeArray(filled(Array, sides, np.asarray(fill_value).view("i8")), fill_value.dtype)
    elif is_scalar(fill_value):
        return fill.constant(Array, sides, fill_value, dtype)
    array = fill_value if is_lazy else opened(array_of(fill_value))
    return np.broadcast_to(array if dtype is None else array.astype(dtype), sides)


def _is_of_times(dtype: Any) -> bool:
    return as_dtype(dtype).kind in "mM"


def zeros(shape: int | Sequence[int], dtype: Any = float, order: str = "C", *, device: Any = None) -> Any:
    """Zeros, as `numpy.zeros`; see `full`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.zeros((1000, 1000, 1000)).nbytes, cf.zeros(2).compute(device="cpu")
    (8000000000, array([0., 0.]))
    """
    return full(shape, 0, as_dtype(dtype), order, device=device)


def ones(shape: int | Sequence[int], dtype: Any = float, order: str = "C", *, device: Any = None) -> Any:
    """Ones, as `numpy.ones`; see `full`.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.ones((2, 2), "i4").compute(device="cpu")
    array([[1, 1],
           [1, 1]], dtype=int32)
    """
    return full(shape, 1, as_dtype(dtype), order, device=device)


def empty(shape: int | Sequence[int], dtype: Any = float, order: str = "C", *, device: Any = None) -> Any:
    """As `zeros`: an expression has nothing that is not set.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.empty((2, 3)).shape
    (2, 3)
    """
    return zeros(shape, dtype, order, device=device)


def arange(start: Any = None, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Numbers or times that are `step` apart, as `numpy.arange`.

    Parameters
    ----------
    start, stop, step : number, datetime64 or timedelta64
        As NumPy's: with one number, those from 0 to it.
    dtype : dtype_like, optional
        By default that of the numbers, which is at least int64, as NumPy has it.
    device : optional
        It changes no value: results are in the host's memory.

    Returns
    -------
    Array or TimeArray
        An expression, which takes no memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnsupportedError
        A step of 0, what is neither a number nor a time, or a dtype of other elements.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> cf.arange(2, 10, 3).compute(device="cpu")
    array([2, 5, 8])
    >>> cf.arange(np.datetime64("2024-02-28"), np.datetime64("2024-03-02")).shape
    (3,)
    """
    fill.check_layout("C", device)
    start, stop = (None, start) if stop is None else (start, stop)
    start, stop, step = (v[()] if isinstance(v, np.ndarray) and not v.ndim else v for v in (start, stop, step))
    if (dtype is not None and _is_of_times(dtype)) or any(map(_is_time, (start, stop, step))):
        return _times_apart(start, stop, step, dtype)
    start, step = 0 if start is None else start, 1 if step is None else step
    kinds = "biuf" if dtype is not None and as_dtype(dtype).kind != "c" else "biufc"
    for name, value in (("start", start), ("stop", stop), ("step", step)):
        if not is_scalar(value) or value is None or np.asarray(value).dtype.kind not in kinds:
            raise ArgumentTypeError(f"{name}={value!r} must be a {'' if 'c' in kinds else 'real '}number")
    if step == 0:
        raise ArgumentError("step=0 must not be 0: numbers that are equal have no end")
    if sum(isinstance(value, np.bool_) for value in (start, stop, step)) > 1:
        raise ArgumentTypeError(
            f"start={start}, stop={stop} and step={step}: NumPy's bools have no difference: give ints"
        )
    # NumPy's result is at least of its default integers, and it takes the dtypes of Python's numbers for theirs.
    found = np.result_type(np.intp, *(np.asarray(v).dtype for v in (start, stop, step)))
    wanted = fill.number_dtype(found if dtype is None else dtype)
    whole = all(isinstance(v, int | np.integer | np.bool_) for v in (start, stop, step))
    start, stop, step = (int(v) if whole or isinstance(v, np.bool_) else v for v in (start, stop, step))
    if not np.isfinite(length := (stop - start) / step):
        raise ArgumentError(f"start={start}, stop={stop} and step={step}: from one to the other are {length} steps")
    least = float(min(length.real, length.imag) if isinstance(length, complex | np.complexfloating) else length)
    if least > 1 << 62:
        raise ArgumentError(f"{least:.3g} steps from start to stop are more elements than an array has")
    number = max(0, -((start - stop) // step) if whole else math.ceil(least))
    # NumPy casts the first two numbers, and adds up from them.
    first, second = (fill.number_of(v, wanted)[()] for v in ((start, start + step) if number > 1 else (start, start)))
    if wanted.kind == "b":
        if number > 2:
            raise ArgumentTypeError(f"{number} bools from start={start} to stop={stop}: 2 are the most: cast ints")
        return opened(np.array([first, second][:number], bool))
    if whole and wanted.kind in "iu" and max(abs(start), abs(stop)) < 1 << 62:
        return numpy_functions.astype(integers(Array, start, number, step), wanted)
    # Where each is a floating point number exactly, they are made as such at once.
    if whole and wanted.kind == "f" and max(abs(start), abs(stop)) <= min(2 << int(np.finfo(wanted).nmant), 1 << 62):
        return integers(Array, start, number, step, wanted.newbyteorder("="))
    wide = np.result_type(wanted, np.float32) if wanted.kind == "f" else wanted
    first, second = wide.type(first), wide.type(second)
    return mapped(_evenly, integers(Array, 0, number), first=first, step=second - first, dtype=wanted)


def _is_time(value: Any) -> bool:
    return isinstance(value, np.datetime64 | np.timedelta64 | date | timedelta)


def _times_apart(start: Any, stop: Any, step: Any, dtype: Any) -> TimeArray:
    """`arange` of times. NumPy finds the unit, and what is wrong, of such arguments that are no time apart."""
    with refused_by(f"arange of times with start={start}, stop={stop} and step={step}"):
        ends, each = [_time_of(v) for v in (start, stop)], _time_of(step)
        epochs: list[Any] = [*(_epoch(v) for v in ends), each, dtype]
        unit = np.arange(*epochs).dtype
        if unit.kind not in "mM":
            raise ArgumentTypeError(f"dtype={dtype!r} is none of times: give datetime64 or timedelta64, or none")
        spans = unit.str.replace("M", "m")
        first, last = (np.asarray(0 if v is None else v) for v in ends)
        begin = first.astype(unit)
        end = last.astype(unit) if unit.kind == "m" or last.dtype.kind == "M" else begin + last.astype(spans)
        here, there, apart = (
            int(v.astype("i8")) for v in (begin, end, np.asarray(1 if each is None else each).astype(spans))
        )
    return TimeArray(integers(Array, here, max(0, -((here - there) // apart)), apart), unit)


def _time_of(value: Any) -> Any:
    """One of NumPy's times, of a text or one of Python's; numbers and None as they are."""
    if isinstance(value, date | str):
        return np.datetime64(value)
    return np.timedelta64(value) if isinstance(value, timedelta) else value


def _epoch(value: Any) -> Any:
    """No time in the unit of one; missing is what was."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value if np.isnat(value) else np.zeros((), value.dtype)[()]
    return value if value is None else 0


def _evenly(block: Any, first: Any, step: Any, dtype: np.dtype) -> Any:
    x = block.astype(first.dtype)
    x *= step
    x += first
    return x.astype(dtype, copy=False)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers that are evenly apart, as `numpy.linspace`.

    Parameters
    ----------
    start, stop : number or array_like
        The first number, and the last one, which is left out unless `endpoint`. Of arrays in memory there is a line of
        numbers for each pair of elements.
    num : int, default 50
        How many there are.
    endpoint : bool, default True
        Whether `stop` is the last of them.
    retstep : bool, default False
        Whether to return the distance too.
    dtype : dtype_like, optional
        By default that of floats. For one of integers numbers are rounded down.
    axis : int
        Where lines lie among the axes of arrays.
    device : optional
        It changes no value: results are in the host's memory.

    Returns
    -------
    Array, or Array and float or array
        An expression, which takes no memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnsupportedError
        A negative number of them, expressions for the ends, or a dtype of no numbers.

    Examples
    --------
    >>> import chunkflow as cf
    >>> cf.linspace(0, 1, 5).compute(device="cpu")
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    fill.check_layout("C", device)
    check_eager("linspace", start=start, stop=stop)
    for name, value in (("start", start), ("stop", stop)):
        if array_of(value).dtype.kind not in "biufc":
            raise ArgumentTypeError(f"{name}={value!r} must be a number, or an array of them")
    start, stop = (v if is_scalar(v) else np.asarray(v) for v in (start, stop))
    number = check_int("num", num, 0)
    inner = np.result_type(start, stop, float(number))
    wanted = fill.number_dtype(inner if dtype is None else dtype)
    parts = number - 1 if endpoint else number
    start, stop = (np.asarray(v).astype(inner) for v in (start, stop))
    with refused_by(f"linspace of start={start.tolist()!r} and stop={stop.tolist()!r}"):
        delta = (stop - start)[()]
    step = delta / parts if parts > 0 else np.nan
    # Of a single number there is no step; of a step that underflows NumPy divides first.
    each, over = (delta, 1) if parts < 1 else (step, 1) if np.all(step != 0) else (delta, parts)
    last = number - 1 if endpoint and number > 1 else -1
    places = integers(Array, 0, number)[(slice(None), *(None,) * np.ndim(delta))]
    ends = {"first": start[()], "each": each, "stop": stop[()]}
    found = mapped(_spaced, places, **ends, over=over, last=last, dtype=wanted)
    found = numpy_functions.moveaxis(found, 0, axis) if axis else found
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
    given = [x if isinstance(x, Lazy) else opened(array_of(x)) for x in xi]
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
