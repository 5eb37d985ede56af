"""Lazy arrays: NumPy on arrays of any size, computed in as few passes as possible when a result is asked for."""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.compound import Compound, first_compound
from chunkflow.api.lazy import numpy_dispatch, numpy_functions
from chunkflow.api.lazy.compute import compute, store
from chunkflow.api.lazy.dask_protocol import Collection
from chunkflow.api.lazy.fill import check_layout
from chunkflow.api.lazy.html import described
from chunkflow.api.lazy.in_place import InPlace
from chunkflow.api.lazy.numpy_signature import check_no_out
from chunkflow.api.rearrange import rearrange, take
from chunkflow.api.stencil import overlap
from chunkflow.core.chunking import Chunks
from chunkflow.core.elsewhere import attribute
from chunkflow.core.grid import Shape
from chunkflow.core.spelling import near, spelt
from chunkflow.engine.options import BudgetLike, ProgressLike
from chunkflow.errors import ArgumentError, ArgumentTypeError, MissingAttributeError, UnsupportedError, refused_by
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.indexing import indexed
from chunkflow.graph.live import known_shape
from chunkflow.graph.messages import packed, restored
from chunkflow.graph.nodes import Lazy, SourceNode, remembered, source_of
from chunkflow.graph.unasked import check_unasked
from chunkflow.kernels.fusion.codegen import power
from chunkflow.stores import NewArray
from chunkflow.stores.paths import format_beside_zarr
from chunkflow.stores.times import is_time
from chunkflow.system.deferred import at

times_called = at("chunkflow.api.lazy.times:called")

VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""Versions of the array API standard."""


def _computed(ufunc: Callable[..., Any], *args: Any) -> Any:
    """What a ufunc gives of an expression of numbers and something else: of times where that is one."""
    if any(map(is_time, args)):
        return times_called(ufunc, args)
    return mapped(ufunc, *args)


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return mapped(ufunc, self)

    return method


def _binary(ufunc: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return NotImplemented if _defers(other) else _computed(ufunc, self, other)

    return method


def _reflected(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return NotImplemented if _defers(other) else _computed(ufunc, other, self)

    return method


def _power(operator: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """An operator that a third number, the modulus of Python's `pow`, leaves undefined, as NumPy does."""
    return lambda self, other, modulus=None: operator(self, other) if modulus is None else NotImplemented


def _function(fn: Any) -> Callable[..., Any]:
    """A method that is NumPy's function of the array, with its arguments."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return numpy_dispatch.function(fn, (self, *args), kwargs)

    method.__name__, method.__doc__ = fn.__name__, f"As `numpy.ndarray.{fn.__name__}`; see `numpy.{fn.__name__}`."
    with suppress(ValueError):  # some of NumPy's functions tell none
        method.__dict__["__signature__"] = inspect.signature(fn)
    return method


def _functions() -> list[str]:
    """The functions of the package, as soon as it is imported."""
    package = sys.modules.get("chunkflow")
    return [name for name in getattr(package, "__all__", ()) if name[0].islower()]


def _number(kind: type[Any]) -> Callable[[Any], Any]:
    """A conversion of the one element, which is computed at once."""

    def method(self: Any) -> Any:
        if kind is not bool and self.size != 1:  # a TypeError, as NumPy's
            raise ArgumentTypeError(f"{self!r} has {self.size} elements, and a number is one, as x.item(place) is")
        return kind(self.item())

    return method


def _defers(other: Any) -> bool:
    """Whether another operand has its own operators: of several expressions, or by ``__array_ufunc__ = None``."""
    return isinstance(other, Compound) or getattr(other, "__array_ufunc__", True) is None


class Array(InPlace, Collection):
    """A lazy array: a source, or an expression of other arrays.

    It has NumPy's operators, ufuncs, methods and functions (``docs/numpy.md`` lists them), and `map` and `map_overlap`
    for functions of one's own. Nothing runs until `compute`, `to_zarr`, `to_npy`, ``np.asarray`` or `chunkflow.store`:
    these take ``budget=``, ``device=`` and ``progress=``, which operations on expressions refuse. What has a length
    that only the values tell runs at once, and takes them: `chunkflow.unique`, `bincount` and `label_statistics`.
    ``float(x)``, ``bool(x)`` and others of one element compute it at once. `chunkflow.open` makes one. Indices are
    NumPy's, lists and masks included: chunks that hold no wanted element are never read. An index that is an expression
    is computed at once, where it is given: of ``x[x > 3]`` the shape is known then. Of such a mask a bit is kept for
    each element, in memory or in a temporary file, and of any other index the array. A ``with chunkflow.Budget(...)``
    around it bounds that run. ``np.mean(x, where=x > 3)`` counts nothing: it reads `x` once, where ``x[x > 3].mean()``
    reads it twice.

    Attributes
    ----------
    shape, dtype, ndim, size, nbytes
        As NumPy's. The dtype of a user's function is found by a call on a small block, unless ``dtype=`` is given.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.arange(12.0).reshape(3, 4))
    >>> y = (x[:, ::2] ** 2).mean(axis=0)
    >>> y.shape, y.dtype
    ((2,), dtype('float64'))
    >>> y.compute(device="cpu")
    array([26.66666667, 46.66666667])
    """

    __slots__ = ()
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    # -- What it is -----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Elements along each axis."""
        return known_shape(self._node)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the elements."""
        return self._node.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._node.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """Bytes that all elements take."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __delitem__(self, place: Any) -> NoReturn:
        raise ArgumentError(
            "elements of an expression cannot be deleted: np.delete(x, places, axis) is one without them"
        )

    def __repr__(self) -> str:
        node = self._node
        known = f", {self.dtype}" if node.dtype_known else ""
        chunks = f", chunks {node.stored_chunks}" if isinstance(node, SourceNode) and node.stored_chunks else ""
        return f"<chunkflow.Array {node.title or node.name}: {node.shape}{known}{chunks}>"

    def _repr_html_(self) -> str:
        return described(self._node)

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over an array without dimensions")
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        """Whether an element is equal, as of NumPy's arrays: it is computed at once, in one pass."""
        return bool(np.any(self == value))

    def __bytes__(self) -> NoReturn:
        raise ArgumentTypeError("the bytes of an expression are those of its elements: compute().tobytes() has them")

    __bool__, __float__, __int__, __complex__ = map(_number, (bool, float, int, complex))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise ArgumentTypeError(f"{self!r} is no index: its elements are no integers")
        if self.shape:
            raise ArgumentTypeError(f"{self!r} is no index: it has dimensions. Take an element of it, or compute() it")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and (there := attribute(name, _functions(), numpy_dispatch.takes_expressions)):
            raise MissingAttributeError(f"an expression has no {name}: {there}")
        if not name.startswith("_") and hasattr(np.ndarray, name):
            raise MissingAttributeError(
                f"an expression has no {name}: use NumPy's functions that docs/numpy.md lists, or compute() first"
            )
        known = [each for each in dir(type(self)) if not each.startswith("_")]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near(name, known)}")

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: Any) -> Array:
        return self  # expressions never change

    def __reduce__(self) -> Any:
        return restored, (type(self), packed(self._node))

    # -- NumPy's protocols ----------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} is computed anew, and cannot be given without a copy")
        return np.asarray(self._unasked(), dtype)

    def item(self, *place: Any) -> Any:
        """The one element, or that at a place, as Python's number, computed at once, as `numpy.ndarray.item`.

        Raises
        ------
        ArgumentError, PlaceError
            There are several elements, or none, and no place; or there is no such place.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.open(np.arange(6.0).reshape(2, 3))
        >>> x.max().item(), x.item(1, 0)
        (5.0, 3.0)
        """
        if place:
            return numpy_functions.element(self, place).item()
        if self.size != 1:
            raise ArgumentError(
                f"{self!r} has {self.size} elements, and one is asked for: any(), all() and other reductions give one"
            )
        return self._unasked().item()

    def _unasked(self, **options: Any) -> np.ndarray:
        """Its elements, for what needs them at once."""
        asks = "because NumPy, an index or another library asks for an array"
        instead = "a function of another library, as a filter of SciPy's, runs in chunkflow.map or map_overlap"
        why = f"{asks}: compute() does so, to_zarr() and to_npy() store it, and {instead}"
        check_unasked(repr(self), self.nbytes, why)
        return np.asarray(self.compute(**options))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if first_compound((*inputs, *kwargs.values())) is not None:
            return NotImplemented
        if method == "__call__" and any(map(is_time, inputs)):
            return times_called(ufunc, inputs, kwargs)
        return numpy_dispatch.ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(issubclass(kind, Compound) for kind in types):
            return NotImplemented
        return numpy_dispatch.function(func, args, kwargs)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions of the array API standard: `chunkflow.array_api`."""
        if api_version not in (None, *VERSIONS):
            raise ArgumentError(f"api_version={api_version!r} is none of {', '.join(VERSIONS)}")
        return importlib.import_module("chunkflow.array_api")

    @property
    def device(self) -> str:
        """Where results are: "cpu", the host's memory. ``compute(device=)`` says what computes them."""
        return "cpu"

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """The array itself, where the device is "cpu"."""
        check_layout("K", device)
        return self

    def __dlpack__(self, **options: Any) -> Any:
        return self._unasked().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.empty(0).__dlpack_device__()

    # -- Operators ------------------------------------------------------------------------------------------------

    __neg__, __pos__, __abs__, __invert__ = map(_unary, (np.negative, np.positive, np.absolute, np.invert))
    __add__, __radd__ = _binary(np.add), _reflected(np.add)
    __sub__, __rsub__ = _binary(np.subtract), _reflected(np.subtract)
    __mul__, __rmul__ = _binary(np.multiply), _reflected(np.multiply)
    __truediv__, __rtruediv__ = _binary(np.true_divide), _reflected(np.true_divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _binary(np.remainder), _reflected(np.remainder)
    __divmod__, __rdivmod__ = _binary(np.divmod), _reflected(np.divmod)
    __pow__, __rpow__ = _power(_binary(power)), _power(_reflected(np.power))
    __lshift__, __rlshift__ = _binary(np.left_shift), _reflected(np.left_shift)
    __rshift__, __rrshift__ = _binary(np.right_shift), _reflected(np.right_shift)
    __and__, __rand__ = _binary(np.bitwise_and), _reflected(np.bitwise_and)
    __or__, __ror__ = _binary(np.bitwise_or), _reflected(np.bitwise_or)
    __xor__, __rxor__ = _binary(np.bitwise_xor), _reflected(np.bitwise_xor)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __eq__ = _binary(np.equal)
    __ne__ = _binary(np.not_equal)

    def __matmul__(self, other: Any) -> Any:
        return NotImplemented if _defers(other) else numpy_dispatch.ufunc(np.matmul, "__call__", (self, other), {})

    def __rmatmul__(self, other: Any) -> Any:
        return NotImplemented if _defers(other) else numpy_dispatch.ufunc(np.matmul, "__call__", (other, self), {})

    def __getitem__(self, index: Any) -> Array:
        with refused_by(f"an index of an array of shape {self._node.shape}", [index]):
            found = self._looked_up(index)
            found = type(self)(indexed(self._node, index)) if found is None else found
        return remembered(found, operator.getitem, (self, index), {}, ())  # type: ignore[no-any-return]

    def _looked_up(self, index: Any) -> Array | None:
        """The elements of an array in memory at the places that expressions of integers have; None if it is not so."""
        entries = list(index) if isinstance(index, tuple) else [index]
        axes = [
            axis
            for axis, entry in enumerate(entries)
            if isinstance(entry, Lazy) and entry._node.spec.dtype.kind in "iu"
        ]
        table = source_of(self._node) if axes else None
        if not isinstance(table, np.ndarray) or table.nbytes > take.LARGEST or axes[-1] - axes[0] >= len(axes):
            return None
        others = [entry for axis, entry in enumerate(entries) if axis not in axes]
        if len(entries) > self.ndim or any(not isinstance(entry, slice) or entry != slice(None) for entry in others):
            return None
        return take.looked_up(self, [entries[axis] for axis in axes], axes[0])  # type: ignore[no-any-return]

    @property
    def oindex(self) -> _Outer:
        """Elements by an index for each axis, as zarr's ``oindex``: lists of several axes are no points.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.open(np.arange(12).reshape(3, 4))
        >>> x.oindex[[0, 2], [1, 3]].compute(device="cpu")
        array([[ 1,  3],
               [ 9, 11]])
        """
        return _Outer(self)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise UnsupportedError("an expression never changes: chunkflow.put(x, index, values) makes a new one")

    # -- Methods --------------------------------------------------------------------------------------------------

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def mT(self) -> Array:  # noqa: N802
        """The array with its last two axes exchanged."""
        return numpy_functions.swapaxes(self, -1, -2)  # type: ignore[no-any-return]

    @property
    def T(self) -> Array:  # noqa: N802
        """The array with its axes reversed."""
        return self.transpose()

    @property
    def real(self) -> Array:
        """Real part."""
        return self if self.dtype.kind != "c" else mapped(np.real, self)

    @property
    def imag(self) -> Array:
        """Imaginary part."""
        return mapped(np.imag, self)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> Array:
        """Axes in another order, reversed by default, as `numpy.ndarray.transpose`."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int | np.integer) else axes or None
        return rearrange.transpose(self, given)  # type: ignore[no-any-return]

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
    ) -> Array:
        """Elements in another dtype, as `numpy.ndarray.astype`."""
        with refused_by("astype"):
            return numpy_functions.astype(self, dtype, casting=casting, order=order)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
        """As `numpy.ndarray.reshape`."""
        if not shape:
            raise ArgumentTypeError("reshape got no shape: give one, as x.reshape(3, -1)")
        with refused_by("reshape"):
            return numpy_functions.reshape(self, shape[0] if len(shape) == 1 else shape, order)  # type: ignore[no-any-return]

    def ravel(self, order: str = "C") -> Array:
        """The elements in one dimension, as `numpy.ndarray.ravel`."""
        return self.reshape(-1, order=order)

    def flatten(self, order: str = "C") -> Array:
        """The same, as `numpy.ndarray.flatten`: an expression is no view."""
        return self.reshape(-1, order=order)

    def conj(self) -> Array:
        """Complex conjugate; bools stay bools, as with NumPy's method, where the function makes them integers."""
        return self if self.dtype == bool else mapped(np.conjugate, self)

    def conjugate(self) -> Array:
        """The same, as `numpy.ndarray.conjugate`."""
        return self.conj()

    def clip(self, min: Any = None, max: Any = None, out: None = None, **kwargs: Any) -> Array:
        """Elements within limits, as `numpy.ndarray.clip`."""
        check_no_out("clip", out)
        with refused_by("clip"):
            return mapped(np.clip, self, min, max, **kwargs)  # type: ignore[no-any-return]

    def round(self, decimals: int = 0, out: None = None) -> Array:
        """Rounded elements, as `numpy.ndarray.round`."""
        check_no_out("round", out)
        with refused_by("round"):
            return mapped(np.round, self, decimals)  # type: ignore[no-any-return]

    def copy(self, order: str = "C") -> Array:
        """The same expression: nothing can change it."""
        return rearrange.copy(self, order=order)  # type: ignore[no-any-return]

    sum, prod, mean, var, std = map(_function, (np.sum, np.prod, np.mean, np.var, np.std))
    min, max, any, all = map(_function, (np.min, np.max, np.any, np.all))
    argsort, argpartition = map(_function, (np.argsort, np.argpartition))
    argmin, argmax, cumsum, cumprod = map(_function, (np.argmin, np.argmax, np.cumsum, np.cumprod))
    nonzero, searchsorted, choose = map(_function, (np.nonzero, np.searchsorted, np.choose))
    diagonal, trace, take = map(_function, (np.diagonal, np.trace, np.take))
    squeeze, swapaxes, repeat, dot = map(_function, (np.squeeze, np.swapaxes, np.repeat, np.dot))

    def map(self, fn: Callable[..., Any], *arrays: Any, **kwargs: Any) -> Any:
        """``chunkflow.map(fn, self, *arrays, **kwargs)``.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> def halved(block):
        ...     return block / 2
        >>> cf.open(np.arange(3)).map(halved).sum().compute(device="cpu")
        np.float64(1.5)
        """
        return mapping.map(fn, self, *arrays, **kwargs)

    def map_overlap(self, fn: Callable[..., Any], *arrays: Any, **kwargs: Any) -> Any:
        """``chunkflow.map_overlap(fn, self, *arrays, **kwargs)``.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> def above(block):  # of each element the one before it
        ...     return np.roll(block, 1)
        >>> cf.open(np.arange(4)).map_overlap(above, depth=1, boundary="nearest").compute(device="cpu")
        array([0, 0, 1, 2])
        """
        return overlap.map_overlap(fn, self, *arrays, **kwargs)

    # -- What runs it ---------------------------------------------------------------------------------------------

    @spelt()
    def compute(self, *, budget: BudgetLike = None, device: Any = None, progress: ProgressLike = None) -> Any:
        """The result as a NumPy array, or scalar; see `chunkflow.compute`.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.open(np.arange(6.0).reshape(2, 3))
        >>> (x * 2).sum(axis=0).compute(budget="8MB", device="cpu")
        array([ 6., 10., 14.])
        """
        return compute(self, budget=budget, device=device, progress=progress)

    @spelt()
    def to_zarr(
        self,
        path: Any,
        *,
        chunks: Chunks = None,
        budget: BudgetLike = None,
        device: Any = None,
        progress: ProgressLike = None,
        overwrite: bool = False,
        sync: bool | None = None,
        resume: bool = False,
        name: str | None = None,
        checksum: bool | None = None,
    ) -> Any:
        """Compute the array into a zarr array; see `chunkflow.store`.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.open(np.arange(6.0).reshape(2, 3))
        >>> stored = (x + 1).to_zarr("more.zarr", chunks=(1, 3), device="cpu")
        >>> stored.shape, stored.chunks, stored[1, 2]
        ((2, 3), (1, 3), array(6.))
        """
        if isinstance(path, str | os.PathLike) and (other := format_beside_zarr(os.fspath(path))):
            raise ArgumentTypeError(f"{path!r} ends as {other} does: to_zarr writes zarr, chunkflow.store any format")
        options: dict[str, Any] = {
            "progress": progress,
            "overwrite": overwrite,
            "sync": sync,
            "resume": resume,
            "name": name,
            "checksum": checksum,
        }
        return store(self, path, chunks=chunks, budget=budget, device=device, **options)

    @spelt()
    def to_npy(
        self,
        path: Any,
        *,
        budget: BudgetLike = None,
        device: Any = None,
        progress: ProgressLike = None,
        overwrite: bool = False,
        sync: bool | None = None,
        resume: bool = False,
        name: str | None = None,
    ) -> Any:
        """Compute the array into a ``.npy`` file; see `chunkflow.store`.

        Examples
        --------
        >>> import numpy as np, chunkflow as cf
        >>> x = cf.open(np.arange(6.0).reshape(2, 3))
        >>> _ = np.sqrt(x).to_npy("root.npy", device="cpu")
        >>> np.load("root.npy")[0]
        array([0.        , 1.        , 1.41421356])
        """
        where, format = (path.path, path.format) if isinstance(path, NewArray) else (path, None)
        if format != "npy" and not str(where).endswith(".npy"):
            raise ArgumentTypeError(f"{path!r} does not end in .npy: use to_zarr or chunkflow.store for other formats")
        options: dict[str, Any] = {
            "progress": progress,
            "overwrite": overwrite,
            "sync": sync,
            "resume": resume,
            "name": name,
        }
        return store(self, path, budget=budget, device=device, **options)


class _Outer:
    """``x.oindex``.

    >>> import chunkflow as cf
    >>> x = cf.open(np.arange(12).reshape(3, 4))
    >>> x.oindex[[2, 0], [1, 3]].compute(device="cpu"), x[[2, 0], [1, 3]].compute(device="cpu")
    (array([[ 9, 11],
           [ 1,  3]]), array([9, 3]))
    """

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        self._array = array

    def __getitem__(self, index: Any) -> Array:
        with refused_by(f"an outer index of an array of shape {self._array._node.shape}", [index]):
            found = type(self._array)(indexed(self._array._node, index, outer=True))
        return remembered(found, outer_index, (self._array, index), {}, ())  # type: ignore[no-any-return]


def outer_index(array: Array, index: Any) -> Array:
    """``array.oindex[index]``."""
    return array.oindex[index]
