"""What a masked expression is made of: its elements, a mask of their places, and the value that fills these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NoReturn, Self

import numpy as np

from chunkflow.api.lazy import numpy_functions
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.together import Together
from chunkflow.api.reductions import sums
from chunkflow.api.reductions.request import Axis
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.nodes import SourceNode, node_of
from chunkflow.stores import Source, is_labelled

WAYS_OUT = "x.filled(value) or x.compressed() gives an expression without a mask, x.data and x.mask are its two parts"

NUMPY_MA = (
    "numpy.ma's own functions take no expressions: NumPy's of the same names do, and chunkflow's, as np.sum(x) for "
    "np.ma.sum(x) and chunkflow.masked_where for np.ma.masked_where"
)
"""What to say where one of numpy.ma's functions may have asked: they have no protocol that tells which."""


class Masked(Together):
    """Two expressions of one shape: elements, and whether each is masked."""

    __slots__ = ("_elements", "_fill_value", "_hidden")  # other names than numpy.ma looks for
    storable = "x.filled(value), or x.data and x.mask, or use x.to_zarr(path)"

    def __init__(self, data: Array, mask: Array, fill_value: Any = None) -> None:
        if mask.dtype != bool:
            raise ArgumentTypeError(f"mask= is of {mask.dtype}, and a mask is of bools: give mask != 0, say")
        if mask.shape != data.shape:
            raise ArgumentError(f"mask= has the shape {mask.shape}, and the array {data.shape}: give one of its shape")
        self._elements, self._hidden = data, mask
        self._fill_value = None if fill_value is None else checked_fill(fill_value, data.dtype)

    @classmethod
    def of(cls, array: np.ma.MaskedArray) -> Self:
        """The expression of an array of numpy.ma's."""
        mask = np.broadcast_to(np.False_, array.shape) if array.mask is np.ma.nomask else array.mask
        given = np.ma.array(array, subok=False).fill_value  # which notes it there: ``numpy.ma.masked`` takes no notes
        is_default = bool(given == np.ma.array(np.empty(0, array.dtype)).fill_value)
        data = np.ma.getdata(array)
        return cls(Array(SourceNode(data)), Array(SourceNode(mask)), None if is_default else given)

    @classmethod
    def unmasked(cls, array: Array) -> Self:
        """An expression of which nothing is masked."""
        return cls(array, Array(SourceNode(mask_of(array))))

    def kept(self, data: Any, mask: Any) -> Self:
        """Others in the place of elements and mask, which is broadcast; the fill value stays if the dtype has it."""
        stays = self._fill_value is not None and _has(data.dtype, self._fill_value)
        return type(self)(data, numpy_functions.broadcast_to(mask, data.shape), self._fill_value if stays else None)

    def parts(self) -> tuple[Array, Array]:
        """Elements and mask."""
        return self._elements, self._hidden

    def assembled(self, results: Sequence[Any]) -> Any:
        """The array of numpy.ma's; without dimensions a scalar, or ``numpy.ma.masked``."""
        data, mask = results
        found: Any = np.ma.array(data, mask=mask, fill_value=self._fill_value)
        return found if found.ndim else found[()]

    @property
    def shape(self) -> Shape:
        """Elements along each axis, masked ones included."""
        return self._elements.shape

    @property
    def size(self) -> int:
        """Number of elements, masked ones included."""
        return self._elements.size

    @property
    def fill_value(self) -> np.generic:
        """What `filled` puts in masked places: what was given, else NumPy's for the dtype."""
        return checked_fill(self._fill_value, self._elements.dtype)

    def count(self, axis: Axis = None, keepdims: bool = False) -> Array:
        """Number of elements along axes that are not masked, as `numpy.ma.count`.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.masked_equal(np.array([[3.0, -1.0], [4.0, 5.0]]), -1)
        >>> x.count(axis=0).compute(device="cpu")
        array([2, 1])
        """
        return sums.sum(~self._hidden, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]

    def compressed(self) -> Array:
        """The elements that are not masked, in one dimension: the mask is computed and counted at once.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.masked_equal(np.array([[3.0, -1.0], [4.0, 5.0]]), -1)
        >>> x.compressed().compute(device="cpu")
        array([3., 4., 5.])
        """
        elements, hidden = (part if part.ndim else part.reshape(1) for part in self.parts())
        return elements[~hidden]

    def filled(self, fill_value: Any = None) -> Array:
        """The elements, and a value in the masked places: by default the array's own, as `numpy.ma.filled`.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.masked_equal(np.array([[3.0, -1.0], [4.0, 5.0]]), -1)
        >>> x.filled(0).compute(device="cpu")
        array([[3., 0.],
               [4., 5.]])
        """
        dtype = self._elements.dtype
        value = self._fill_value if fill_value is None else fill_value
        return mapped(np.where, self._hidden, checked_fill(value, dtype), self._elements)  # type: ignore[no-any-return]

    def __chunkflow_spec__(self) -> ArraySpec:
        self._refuse("the source of an operation")

    def __chunkflow_source__(self) -> Source:
        self._refuse("the source of an operation")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._refuse("an array of NumPy's", f". {NUMPY_MA}")

    def _refuse(self, what: str, more: str = "") -> NoReturn:
        raise ArgumentTypeError(f"{self!r} as {what} would lose its mask: {WAYS_OUT}{more}")


def checked_fill(value: Any, dtype: np.dtype) -> np.generic:
    """A fill value in the dtype of the elements, as NumPy casts it; without one NumPy's of that dtype.

    >>> checked_fill(2.5, np.dtype("i2")), checked_fill(None, np.dtype("f4"))
    (np.int16(2), np.float32(1e+20))
    """
    if np.ndim(value):
        raise ArgumentTypeError(f"fill_value={value!r} has the shape {np.shape(value)}: give one number")
    try:
        found: np.generic = dtype.type(np.ma.array(np.empty(0, dtype), fill_value=value).fill_value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentTypeError(f"fill_value={value!r} of elements of {dtype}: {error}") from None
    return found


def _has(dtype: np.dtype, value: np.generic) -> bool:
    """Whether a dtype of numbers has a value, which floats round.

    >>> [_has(np.dtype("f4"), np.float64(value)) for value in (0.1, 1e300)]
    [True, False]
    >>> [_has(np.dtype("i2"), np.float64(value)) for value in (7.0, 0.1)]
    [True, False]
    """
    if dtype == value.dtype or dtype.kind not in "iufc" or value.dtype.kind not in "iufc":
        return bool(dtype == value.dtype)
    with np.errstate(all="ignore"):
        cast = np.asarray(value.real if dtype.kind != "c" else value).astype(dtype)
    if dtype.kind in "iu" or (value.dtype.kind == "c" and dtype.kind == "f"):
        return bool(cast == value)
    return bool(np.isfinite(cast) == np.isfinite(value))


def opened(kind: type[Masked], value: Any) -> Any:
    """Arguments with masked expressions in the place of arrays of numpy.ma's."""
    if isinstance(value, np.ma.MaskedArray):
        return kind.of(value)
    if isinstance(value, Mapping):
        return {key: opened(kind, each) for key, each in value.items()}
    return type(value)(opened(kind, each) for each in value) if type(value) in (list, tuple) else value


def data_of(value: Any) -> Any:
    """The elements of an argument."""
    if is_labelled(value):
        raise UnsupportedError(f"labelled arrays beside masked ones have no mask: give .data of them, and {WAYS_OUT}")
    if isinstance(value, Masked):
        return value.parts()[0]
    return [data_of(each) for each in value] if isinstance(value, list | tuple) else value


def mask_of(value: Any) -> Any:
    """The mask of an argument, in which no element of an array without one is masked."""
    if isinstance(value, Masked):
        return value.parts()[1]
    if isinstance(value, list | tuple):
        return [mask_of(each) for each in value]
    return np.broadcast_to(np.False_, np.shape(value))


def either(*masks: Any) -> Any:
    """Where one of several masks holds."""
    distinct = {node_of(mask): mask for mask in masks}
    return reduce(lambda one, other: mapped(np.logical_or, one, other), distinct.values())


def paired(first: Masked, data: Any, mask: Any) -> Any:
    """Masked expressions of elements and masks, which may be lists of them."""
    if isinstance(data, list | tuple):
        return type(data)(paired(first, one, other) for one, other in zip(data, mask, strict=True))
    return first.kept(data, mask)


def elementwise(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an elementwise function gives: masked where an argument is."""
    found = fn(*map(data_of, args), **{key: data_of(value) for key, value in kwargs.items()})
    return masked_with((*args, *kwargs.values()), found)


def masked_with(args: Sequence[Any], found: Any, *more: Any) -> Any:
    """A result of elements, or several: masked where an argument is, or one of `more` masks holds."""
    given = [value for value in args if isinstance(value, Masked)]
    mask = either(*map(mask_of, given), *more)
    return paired(given[0], found, (mask,) * len(found) if isinstance(found, tuple) else mask)
