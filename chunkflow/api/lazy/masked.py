"""Masked expressions: NumPy's masked arrays of any size, of which the mask is streamed as a second array."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.lazy import masked_functions, numpy_functions
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.compute import compute
from chunkflow.api.lazy.masked_parts import NUMPY_MA, WAYS_OUT, Masked, checked_fill
from chunkflow.api.lazy.numpy_signature import check_no_out
from chunkflow.cluster.partition import PARTITION
from chunkflow.core.elsewhere import ATTRIBUTES
from chunkflow.engine.options import BudgetLike
from chunkflow.errors import ArgumentError, ArgumentTypeError, MissingAttributeError, UnsupportedError, ValueRangeError
from chunkflow.stores import NewArray


def _operator(fn: Callable[..., Any], *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, *other: Any) -> Any:
        if any(getattr(each, "__array_ufunc__", True) is None for each in other):
            return NotImplemented
        return masked_functions.operated(fn, (*other, self) if reflected else (self, *other), type(self))

    method.__doc__ = f"As `numpy.{fn.__name__}`."
    return method


def _number(kind: type[Any]) -> Callable[[Any], Any]:
    """A conversion of the one element, which is computed at once."""

    def method(self: Any) -> Any:
        return kind(self.item())

    return method


def _reflected(fn: Callable[..., Any]) -> Callable[..., Any]:
    return _operator(fn, reflected=True)


def _function(fn: Any) -> Callable[..., Any]:
    """A method that is NumPy's function of the array, with its arguments."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return masked_functions.function(type(self), fn, (self, *args), kwargs)

    method.__name__, method.__doc__ = fn.__name__, f"As `numpy.ma.{fn.__name__}`; see `numpy.{fn.__name__}`."
    return method


def _of_both(name: str) -> Callable[..., Any]:
    """A method that does to the mask what it does to the elements."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.kept(*(getattr(part, name)(*args, **kwargs) for part in self.parts()))

    method.__name__, method.__doc__ = name, f"As `numpy.ma.MaskedArray.{name}`; see `chunkflow.Array.{name}`."
    return method


def _of_data(name: str) -> property:
    """What is known of the elements alone."""
    return property(lambda self: getattr(self.data, name), doc=f"As `chunkflow.Array.{name}`, of the elements.")


class MaskedArray(Masked):
    """A masked expression: elements, and a mask that is true where they are missing.

    It is to `numpy.ma.MaskedArray` what `chunkflow.Array` is to NumPy's arrays. Operators, ufuncs and NumPy's functions
    give masked expressions; reductions skip what is masked; `compute` gives an array of numpy.ma's. Elements and mask
    are two expressions, computed in the same passes. What lies in masked places is not defined: what `data` has there
    need not be what NumPy's has. `chunkflow.open` and `chunkflow.masked_array` make one.

    Attributes
    ----------
    data, mask : Array
        Its two parts, of one shape.
    fill_value : scalar
        What `filled` puts in masked places. It stays as long as the dtype does.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 3))
    >>> (x + 1).compute(device="cpu")
    masked_array(
      data=[[1.0, 2.0, 3.0],
            [4.0, --, --]],
      mask=[[False, False, False],
            [False,  True,  True]],
      fill_value=1e+20)
    >>> cf.compute(x.mean(), x.count(axis=0), device="cpu")
    (np.float64(1.5), array([2, 1, 1]))
    """

    __slots__ = ()
    __array_priority__ = 101
    __hash__ = None  # type: ignore[assignment]

    # -- What it is -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> Array:
        """The elements, with whatever lies in masked places."""
        return self._elements

    @property
    def mask(self) -> Array:
        """Whether each element is masked."""
        return self._hidden

    @property
    def _mask(self) -> Array:
        """The mask, for `numpy.ma`'s own functions: where they find none, they take it that nothing is masked."""
        return self._hidden

    dtype, ndim, nbytes, itemsize = map(_of_data, ("dtype", "ndim", "nbytes", "itemsize"))

    def __len__(self) -> int:
        return len(self._elements)

    def __repr__(self) -> str:
        return repr(self._elements).replace("chunkflow.Array", "chunkflow.MaskedArray")

    def __iter__(self) -> Iterator[Any]:
        return (self.kept(*parts) for parts in zip(*self.parts(), strict=True))

    def __contains__(self, value: Any) -> bool:
        return bool(np.any((self == value).filled(False)))

    __bool__, __float__, __int__, __complex__ = map(_number, (bool, float, int, complex))

    def item(self, *place: Any) -> Any:
        """The one element, or that at a place, as Python's number, computed at once; see `Array.item`.

        Raises
        ------
        ArgumentError, PlaceError
            It is masked, or there are several elements, or none, and no place; or there is no such place.
        """
        if place:
            return numpy_functions.element(self, place).item()
        data, mask = compute(*self.parts()) if self._elements.size == 1 else (self._elements, None)
        if mask:
            raise ArgumentError(f"the one element of {self!r} is masked: filled(value) gives it a value")
        return data.item()

    def __matmul__(self, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            return NotImplemented
        return masked_functions.ufunc(type(self), np.matmul, "__call__", (self, other), {})

    def __rmatmul__(self, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            return NotImplemented
        return masked_functions.ufunc(type(self), np.matmul, "__call__", (other, self), {})

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and (hasattr(Array, name) or hasattr(np.ma.MaskedArray, name)):
            asked = f". {NUMPY_MA}" if name == "view" else ""
            raise MissingAttributeError(f"a masked expression has no {name}: {WAYS_OUT}{asked}")
        if name in ATTRIBUTES:
            raise MissingAttributeError(f"a masked expression has no {name}: {ATTRIBUTES[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- Who asks it ----------------------------------------------------------------------------------------------

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return masked_functions.ufunc(type(self), ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return masked_functions.function(type(self), func, args, kwargs)

    def operated(self, operation: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one of chunkflow's operations gives of masked expressions."""
        return masked_functions.operation(type(self), operation, args, kwargs)

    # -- Operators ------------------------------------------------------------------------------------------------

    __neg__, __pos__ = _operator(operator.neg), _operator(operator.pos)
    __abs__, __invert__ = _operator(operator.abs), _operator(operator.invert)
    __add__, __radd__ = _operator(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _operator(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _operator(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _operator(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _operator(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _operator(operator.mod), _reflected(operator.mod)
    __divmod__, __rdivmod__ = _operator(divmod), _reflected(divmod)
    __pow__, __rpow__ = _operator(operator.pow), _reflected(operator.pow)
    __lshift__, __rlshift__ = _operator(operator.lshift), _reflected(operator.lshift)
    __rshift__, __rrshift__ = _operator(operator.rshift), _reflected(operator.rshift)
    __and__, __rand__ = _operator(operator.and_), _reflected(operator.and_)
    __or__, __ror__ = _operator(operator.or_), _reflected(operator.or_)
    __xor__, __rxor__ = _operator(operator.xor), _reflected(operator.xor)
    __lt__, __le__ = _operator(operator.lt), _operator(operator.le)
    __gt__, __ge__ = _operator(operator.gt), _operator(operator.ge)
    __eq__, __ne__ = _operator(operator.eq), _operator(operator.ne)

    def __getitem__(self, index: Any) -> MaskedArray:
        return self.kept(self._elements[index], self._hidden[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        raise UnsupportedError("an expression never changes: chunkflow.masked_where(condition, x) makes a new one")

    # -- Methods --------------------------------------------------------------------------------------------------

    @property
    def T(self) -> MaskedArray:  # noqa: N802
        """The array with its axes reversed."""
        return self.transpose()  # type: ignore[no-any-return]

    @property
    def real(self) -> MaskedArray:
        """Real part."""
        return self.kept(self._elements.real, self._hidden)

    @property
    def imag(self) -> MaskedArray:
        """Imaginary part."""
        return self.kept(self._elements.imag, self._hidden)

    transpose, reshape, ravel, flatten, copy = map(_of_both, ("transpose", "reshape", "ravel", "flatten", "copy"))
    sum, prod, mean, var, std, ptp = map(_function, (np.sum, np.prod, np.mean, np.var, np.std, np.ptp))
    min, max, any, all = map(_function, (np.min, np.max, np.any, np.all))
    argmin, argmax, argsort, cumsum, cumprod = map(_function, (np.argmin, np.argmax, np.argsort, np.cumsum, np.cumprod))
    trace, diagonal, nonzero, take = map(_function, (np.trace, np.diagonal, np.nonzero, np.take))
    choose = _function(np.choose)
    squeeze, swapaxes, repeat, clip, round = map(_function, (np.squeeze, np.swapaxes, np.repeat, np.clip, np.round))
    conj = conjugate = _operator(np.conjugate)

    def dot(self, b: Any, out: None = None, strict: bool = False) -> MaskedArray:
        """Dot product, as `numpy.ma.MaskedArray.dot`.

        Parameters
        ----------
        b : array_like or Array
            The other factor; `np.dot` and ``@`` take a first one without a mask, too.
        out : None
            Expressions are stored by `chunkflow.store` and `to_zarr`.
        strict : bool
            Whether one masked element of a row, or of a column, masks what is made of it. Else masked elements are
            zeros, and masked is what has no pair of others.

        Returns
        -------
        MaskedArray
            Nothing is read yet.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.masked_equal(np.array([[1, -1], [2, 3]]), -1)
        >>> cf.compute(x @ [10, 1], x.dot([10, 1], strict=True).filled(0), device="cpu")
        (masked_array(data=[10, 23],
                     mask=[False, False],
               fill_value=-1), array([ 0, 23]))
        """
        check_no_out("dot", out)
        return masked_functions.multiplied(type(self), "dot", (self, b), strict=strict)  # type: ignore[no-any-return]

    def compress(self, condition: Any, axis: int | None = None) -> MaskedArray:
        """Elements, or slices along an axis, where a condition holds, as `numpy.ma.MaskedArray.compress`."""
        compressed: Any = np.compress
        return compressed(condition, self, axis=axis)  # type: ignore[no-any-return]

    def astype(self, dtype: Any, casting: str = "unsafe") -> MaskedArray:
        """Elements in another dtype, as `numpy.ma.MaskedArray.astype`."""
        return self.kept(self._elements.astype(dtype, casting=casting), self._hidden)

    # -- What runs it ---------------------------------------------------------------------------------------------

    def to_zarr(self, path: Any, *, fill_value: Any = None, **options: Any) -> Any:
        """Store the array in a zarr array as xarray and netCDF have missing values: by a value that stands for them.

        Parameters
        ----------
        path : str, path or NewArray
            Where.
        fill_value : number, optional
            Of integers and bools what stands for masked elements, by default the fill value that the array was given.
            It is noted as the attribute ``_FillValue``. No element that is not masked may be equal to it.
            Of floats and complex numbers NaN stands for them, without an attribute.
        **options
            Those of `Array.to_zarr`.

        Returns
        -------
        zarr.Array
            The array that was written.

        Raises
        ------
        ArgumentTypeError
            The dtype has no NaN and no fill value was given, or it has and one was.
        ValueRangeError
            An element that is not masked is equal to the fill value: it would be read as missing.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.masked_equal(np.arange(-1, 3), -1)
        >>> stored = x.to_zarr("counts.zarr", device="cpu")
        >>> stored[...], dict(stored.attrs)
        (array([-1,  0,  1,  2]), {'_FillValue': -1})
        >>> cf.open("counts.zarr", decode="cf").compute(device="cpu")
        array([nan,  0.,  1.,  2.])
        """
        dtype = self._elements.dtype
        if dtype.kind in "fc":
            if fill_value is not None and fill_value == fill_value:
                raise ArgumentTypeError(
                    f"fill_value={fill_value!r} of {dtype}: masked floats are stored as NaN, which all that reads them "
                    "takes for missing; x.filled(value).to_zarr(path) stores another value"
                )
            return self.filled(np.nan).to_zarr(path, **options)
        given = self._fill_value if fill_value is None else fill_value
        if given is None:
            raise ArgumentTypeError(f"elements of {dtype} have no NaN: give fill_value=, a number that none of them is")
        value = checked_fill(given, dtype)
        place = path if isinstance(path, NewArray) else NewArray(path)
        attributes = {**(place.attributes or {}), "_FillValue": value.item()}
        filled = mapping.map(partial(_filled, value=value), self._hidden, self._elements, dtype=dtype)
        return filled.to_zarr(replace(place, attributes=attributes), **options)

    def to_dask(self, partition: str | int = PARTITION, *, budget: BudgetLike = None, device: Any = None) -> Any:
        """The array as a `dask.array.Array` of masked blocks; see `chunkflow.Array.to_dask`."""
        data, mask = (part.to_dask(partition, budget=budget, device=device) for part in self.parts())
        meta = np.ma.array(np.empty((0,) * len(self.shape), data.dtype))
        return data.map_blocks(_masked_block, mask.rechunk(data.chunks), fill_value=self._fill_value, meta=meta)


def _filled(hidden: Any, elements: Any, *, value: np.generic) -> Any:
    """A block with the value that stands for masked elements; none of the others may be equal to it."""
    if bool(((elements == value) & ~hidden).any()):
        raise ValueRangeError(
            f"fill_value={value.item()!r}: an element that is not masked is equal to it, and would be read as missing; "
            "give a number that none of them is"
        )
    return np.where(hidden, value, elements)


def _masked_block(data: np.ndarray, mask: np.ndarray, fill_value: Any) -> Any:
    return np.ma.array(data, mask=mask, fill_value=fill_value)
