"""Expressions of datetime64 and timedelta64, of any size: integers that are streamed, and the unit that they count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from chunkflow.api.lazy import numpy_functions, times_functions, times_ufuncs, times_units
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.fill import check_layout
from chunkflow.api.lazy.times_parts import WAYS_OUT, Times
from chunkflow.api.lazy.times_units import is_nat
from chunkflow.cluster.partition import PARTITION
from chunkflow.core.elsewhere import ATTRIBUTES
from chunkflow.core.units import as_dtype
from chunkflow.engine.options import BudgetLike
from chunkflow.errors import ArgumentError, ArgumentTypeError, MissingAttributeError, UnsupportedError
from chunkflow.graph.unasked import check_unasked
from chunkflow.stores import NewArray, format_of, is_new
from chunkflow.stores.cf_times import encoding_of


def _operator(ufunc: np.ufunc, *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, *other: Any) -> Any:
        if any(getattr(each, "__array_ufunc__", True) is None for each in other):
            return NotImplemented
        return times_ufuncs.called(type(self), ufunc, (*other, self) if reflected else (self, *other), {})

    return method


def _reflected(ufunc: np.ufunc) -> Callable[..., Any]:
    return _operator(ufunc, reflected=True)


def _function(fn: Any) -> Callable[..., Any]:
    """A method that is NumPy's function of the array, with its arguments."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return times_functions.function(fn, (self, *args), kwargs)

    method.__name__, method.__doc__ = fn.__name__, f"As `numpy.ndarray.{fn.__name__}`; see `numpy.{fn.__name__}`."
    return method


def _of_counts(name: str) -> Callable[..., Any]:
    """A method that moves the integers."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.kept(getattr(self.parts()[0], name)(*args, **kwargs))

    method.__name__, method.__doc__ = name, f"As `numpy.ndarray.{name}`; see `chunkflow.Array.{name}`."
    return method


class TimeArray(Times):
    """An expression of datetime64 or timedelta64.

    It is to NumPy's arrays of times what `chunkflow.Array` is to those of numbers. Operators, ufuncs and NumPy's
    functions give what NumPy's do: differences of dates are spans, comparisons are `chunkflow.Array` of bools. What is
    streamed, and computed on the device, are the integers that count the unit. NaT is what NaN is among floats: a
    reduction that meets it gives it, it comes last in any order, and ``np.nanmin`` and others leave it out. Where
    NumPy's integers would wrap around when a unit is converted, the result is NaT, or an error for what is in memory.
    `chunkflow.open` makes one of an array or a path, and ``x.astype("M8[s]")`` of an expression of numbers.

    Attributes
    ----------
    shape, dtype, ndim, size, nbytes
        As NumPy's.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.array(["2024-02-28", "NaT", "2024-03-01"], "M8[D]"))
    >>> (x - np.datetime64("2024-02-01")).compute(device="cpu")
    array([   27, 'NaT',    29], dtype='timedelta64[D]')
    >>> cf.compute(np.nanmax(x), np.nanmean(x), (x > np.datetime64("2024-03")).sum(), device="cpu")
    (np.datetime64('2024-03-01'), np.datetime64('2024-02-29'), np.int64(0))
    >>> (x.astype("M8[M]").view("i8") % 12 + 1).compute(device="cpu")
    array([2, 5, 3])
    """

    __slots__ = ()
    __array_priority__ = 101
    __hash__ = None  # type: ignore[assignment]

    # -- What it is -----------------------------------------------------------------------------------------------

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._counts.size

    @property
    def nbytes(self) -> int:
        """Bytes that all elements take."""
        return self._counts.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self._counts.itemsize

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        head, _, tail = repr(self._counts).replace("chunkflow.Array", "chunkflow.TimeArray").rpartition("int64")
        return f"{head}{self.dtype}{tail}"

    def __iter__(self) -> Iterator[Any]:
        return map(self.kept, self._counts)

    def __contains__(self, value: Any) -> bool:
        return bool(np.any(self == value))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and (hasattr(Array, name) or hasattr(np.ndarray, name)):
            raise MissingAttributeError(f"an expression of times has no {name}: {WAYS_OUT}")
        if name in ATTRIBUTES:
            raise MissingAttributeError(f"an expression of times has no {name}: {ATTRIBUTES[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __bool__(self) -> bool:
        return bool(self._one())

    def __float__(self) -> float:
        return float(self._one())

    def item(self, *place: Any) -> Any:
        """The one element, or that at a place, as Python's date, time or span, as `numpy.ndarray.item`.

        Of finer units than Python's it is an integer.

        Raises
        ------
        ArgumentError, PlaceError
            There are several elements, or none, and no place; or there is no such place.
        """
        return (numpy_functions.element(self, place) if place else self)._one().item()

    def _one(self) -> Any:
        if self.size != 1:
            raise ArgumentError(f"{self!r} has {self.size} elements, and one is asked for: min() and others give one")
        return np.asarray(self.compute()).reshape(-1)[0]

    # -- Who asks it ----------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} is computed anew, and cannot be given without a copy")
        asks = "because NumPy or another library asks for an array"
        check_unasked(repr(self), self.nbytes, f"{asks}: compute() does so, to_zarr() stores it")
        return np.asarray(self.compute(), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__":
            return times_ufuncs.called(type(self), ufunc, inputs, kwargs)
        return times_functions.reduced(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return times_functions.function(func, args, kwargs)

    def operated(self, operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one of chunkflow's operations gives of times."""
        return times_functions.operation(operation, args, kwargs)

    # -- Operators ------------------------------------------------------------------------------------------------

    __neg__, __pos__, __abs__ = _operator(np.negative), _operator(np.positive), _operator(np.absolute)
    __add__, __radd__ = _operator(np.add), _reflected(np.add)
    __sub__, __rsub__ = _operator(np.subtract), _reflected(np.subtract)
    __mul__, __rmul__ = _operator(np.multiply), _reflected(np.multiply)
    __truediv__, __rtruediv__ = _operator(np.true_divide), _reflected(np.true_divide)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _operator(np.remainder), _reflected(np.remainder)
    __divmod__, __rdivmod__ = _operator(np.divmod), _reflected(np.divmod)
    __lt__, __le__ = _operator(np.less), _operator(np.less_equal)
    __gt__, __ge__ = _operator(np.greater), _operator(np.greater_equal)
    __eq__, __ne__ = _operator(np.equal), _operator(np.not_equal)

    def __getitem__(self, index: Any) -> TimeArray:
        return self.kept(self._counts[index])  # type: ignore[no-any-return]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise UnsupportedError("an expression never changes: np.where(condition, value, x) makes a new one")

    # -- Methods --------------------------------------------------------------------------------------------------

    @property
    def T(self) -> TimeArray:  # noqa: N802
        """The array with its axes reversed."""
        return self.transpose()  # type: ignore[no-any-return]

    transpose, reshape, ravel, flatten, copy = map(_of_counts, ("transpose", "reshape", "ravel", "flatten", "copy"))
    min, max, ptp, sum, mean = map(_function, (np.min, np.max, np.ptp, np.sum, np.mean))
    argmin, argmax, argsort, cumsum = map(_function, (np.argmin, np.argmax, np.argsort, np.cumsum))
    squeeze, swapaxes, repeat, clip, take = map(_function, (np.squeeze, np.swapaxes, np.repeat, np.clip, np.take))

    def view(self, dtype: Any) -> Any:
        """The same integers as an `Array` of int64, or as times of another dtype; see `numpy.ndarray.view`.

        Raises
        ------
        ArgumentTypeError
            Any other dtype.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> cf.open(np.array(["1970-01-03"], "M8[D]")).view("i8").compute(device="cpu")
        array([2])
        """
        wanted = as_dtype(dtype)
        if wanted == np.dtype("i8"):
            return self._counts
        if wanted.kind not in "mM" or not wanted.isnative or np.datetime_data(wanted)[0] == "generic":
            raise ArgumentTypeError(f"view({dtype!r}) of times: give 'i8', or a dtype of times; astype converts")
        return type(self)(self._counts, wanted)

    def astype(self, dtype: Any, order: str = "K", casting: str = "unsafe", **hints: Any) -> Any:
        """Times in another unit, rounded down, or numbers, as `numpy.ndarray.astype`.

        Of NaT floats are NaN, where NumPy's are the lowest integer. What the unit does not reach becomes NaT.

        Raises
        ------
        ArgumentTypeError
            The rule of `casting` forbids it; dates would become spans, or spans dates; or spans of months or years
            others, whose length is fixed.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> cf.open(np.array(["2024-02-29T12", "NaT"], "M8[h]")).astype("M8[M]").compute(device="cpu")
        array(['2024-02',     'NaT'], dtype='datetime64[M]')
        """
        wanted = as_dtype(dtype)
        if not np.can_cast(self.dtype, wanted, casting):  # type: ignore[arg-type]
            raise ArgumentTypeError(
                f"{self.dtype} cannot be cast to {wanted} according to the rule casting={casting!r}"
            )
        if strange := hints.keys() - {"copy", "subok", "device"}:
            raise ArgumentTypeError(f"astype of times has no {', '.join(sorted(strange))}: give dtype and casting")
        check_layout(order, hints.get("device"))
        if wanted.kind in "mM" and wanted.kind != self.dtype.kind:
            raise ArgumentTypeError(
                f"{self.dtype} does not become {wanted}: dates less a date are spans, and a date and spans are dates"
            )
        if wanted.kind in "mM":
            wanted = wanted if np.datetime_data(wanted)[0] != "generic" else self.dtype
            return type(self)(times_units.in_unit(self._counts, self.dtype, wanted), wanted)
        found = self._counts.astype(wanted)
        return np.where(is_nat(self._counts), wanted.type(np.nan), found) if wanted.kind in "fc" else found

    # -- What runs it ---------------------------------------------------------------------------------------------

    def to_zarr(self, path: Any, **options: Any) -> Any:
        """Store the times in a zarr array as xarray and netCDF have them: integers with ``units``.

        ``units`` is an attribute such as "nanoseconds since 1970-01-01" of dates, and "nanoseconds" of spans.
        ``_FillValue`` says which integer stands for NaT. ``chunkflow.open(path, decode="cf")`` reads the times.

        Parameters
        ----------
        path : str, path or NewArray
            Where.
        **options
            Those of `Array.to_zarr`.

        Returns
        -------
        zarr.Array
            The array that was written.

        Raises
        ------
        ArgumentTypeError
            A unit that CF has no name for: months, years, and what is finer than nanoseconds.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> stored = cf.open(np.array(["2024-02-29", "NaT"], "M8[D]")).to_zarr("days.zarr", device="cpu")
        >>> int(stored[0]), stored.attrs["units"]
        (19782, 'days since 1970-01-01')
        >>> cf.open("days.zarr", decode="cf").compute(device="cpu")
        array(['2024-02-29',        'NaT'], dtype='datetime64[D]')
        """
        counts, place = self._encoded(path if isinstance(path, NewArray) else NewArray(path))
        return counts.to_zarr(place, **options)

    def stored_as(self, place: Any) -> tuple[Array, NewArray] | None:
        """Integers, in a new array of a format that has attributes: these say what the integers mean."""
        if not is_new(place):
            return None
        out = place if isinstance(place, NewArray) else NewArray(place)
        return self._encoded(out) if format_of(out) in ("zarr", "hdf5") else None

    def _encoded(self, place: NewArray) -> tuple[Array, NewArray]:
        """The integers that are stored, and where, with the attributes that say what they mean."""
        plain, attributes = encoding_of(self.dtype)
        return self.astype(plain).view("i8"), replace(place, attributes={**(place.attributes or {}), **attributes})

    def to_dask(self, partition: str | int = PARTITION, *, budget: BudgetLike = None, device: Any = None) -> Any:
        """The array as a `dask.array.Array` of times; see `chunkflow.Array.to_dask`."""
        counts = self._counts.to_dask(partition, budget=budget, device=device)
        return counts.map_blocks(_block_of_times, self.dtype, dtype=self.dtype)


def called(ufunc: np.ufunc, inputs: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """What a ufunc gives of expressions of numbers, and of times in memory."""
    return times_ufuncs.called(TimeArray, ufunc, inputs, kwargs)


def times_of(numbers: Array, dtype: np.dtype, casting: str = "unsafe", **kwargs: Any) -> TimeArray:
    """Numbers as times of a dtype, as `numpy.astype`: cut to integers, NaT for NaN and what is too large."""
    if not np.can_cast(numbers.dtype, dtype, casting):  # type: ignore[arg-type]
        raise ArgumentTypeError(f"{numbers.dtype} cannot be cast to {dtype} according to the rule casting={casting!r}")
    if strange := kwargs.keys() - {"copy", "order", "device"}:
        raise ArgumentTypeError(f"astype of an expression has no {', '.join(strange)}: give dtype and casting")
    return TimeArray(times_ufuncs.whole(numbers) if numbers.dtype.kind == "f" else numbers.astype("i8"), dtype)


def _block_of_times(counts: Any, dtype: np.dtype) -> Any:
    return np.asarray(counts).view(dtype)
