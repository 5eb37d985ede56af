"""Functions of the array API standard that differ from NumPy's of the same name, or that make arrays.

The standard is at https://data-apis.org/array-api/2024.12. `chunkflow.array_api` has them beside NumPy's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from chunkflow.api.lazy import creation, numpy_functions, numpy_shapes
from chunkflow.api.lazy.array import Array
from chunkflow.api.lazy.compute import compute
from chunkflow.api.lazy.fill import check_layout
from chunkflow.api.lazy.open import open as opened
from chunkflow.api.rearrange import rearrange
from chunkflow.api.statistics import sort as order
from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, UnsupportedError
from chunkflow.graph.nodes import Lazy, node_of

# -- Creation --------------------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """An array of numbers, lists or another array; an expression stays what it is, for it never changes.

    Raises
    ------
    ArgumentError
        `copy` is False where the elements of a list or of another dtype have to be copied.
    """
    check_layout("K", device)
    if isinstance(obj, Lazy):
        return numpy_functions.astype(obj, dtype or node_of(obj).spec.dtype)  # type: ignore[no-any-return]
    try:
        return opened(np.asarray(obj, dtype, copy=copy))  # type: ignore[no-any-return]
    except ValueError as error:
        raise ArgumentError(f"asarray of a {type(obj).__name__}: {error}") from None


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array of another library, in the host's memory."""
    check_layout("K", device)
    return x if isinstance(x, Array) else opened(np.from_dlpack(x, copy=copy))


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.arange`."""
    check_layout("K", device)
    return creation.arange(start, stop, step, dtype)  # type: ignore[no-any-return]


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.empty`."""
    return zeros(shape, dtype=dtype, device=device)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.zeros`."""
    return full(shape, 0, dtype=dtype or np.float64, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.ones`."""
    return full(shape, 1, dtype=dtype or np.float64, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.full`."""
    check_layout("K", device)
    return creation.full(shape, fill_value, dtype)  # type: ignore[no-any-return]


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.eye`."""
    check_layout("K", device)
    return creation.eye(n_rows, n_cols, k, dtype or np.float64)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Array:
    """See `chunkflow.linspace`."""
    check_layout("K", device)
    return creation.linspace(start, stop, num, endpoint, dtype=dtype)  # type: ignore[no-any-return]


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Array]:
    """See `chunkflow.meshgrid`."""
    return list(numpy_shapes.meshgrid(*map(asarray, arrays), indexing=indexing))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.fft.fftfreq`."""
    check_layout("K", device)
    return numpy_functions.astype(creation.fftfreq(n, d), dtype or np.float64)  # type: ignore[no-any-return]


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """See `chunkflow.fft.rfftfreq`."""
    check_layout("K", device)
    return numpy_functions.astype(creation.rfftfreq(n, d), dtype or np.float64)  # type: ignore[no-any-return]


# -- Dtypes ----------------------------------------------------------------------------------------------------------


def _dtype_of(x: Any) -> np.dtype:
    if isinstance(x, Lazy):
        return node_of(x).spec.dtype
    return x.dtype if isinstance(x, np.ndarray | np.generic) else np.dtype(x)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether an array, or a dtype, can be cast to another dtype without loss."""
    return bool(np.can_cast(_dtype_of(from_), to))


def finfo(type: Any, /) -> np.finfo:
    """Limits of a dtype of floating-point numbers, or of an array's."""
    return np.finfo(_dtype_of(type))


def iinfo(type: Any, /) -> np.iinfo:
    """Limits of a dtype of integers, or of an array's."""
    return np.iinfo(_dtype_of(type))


# -- Order and places ------------------------------------------------------------------------------------------------


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Sorted elements along an axis."""
    found = order.sort(x, axis)
    return rearrange.flip(found, axis) if descending else found  # type: ignore[no-any-return]


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Places of the sorted elements along an axis."""
    if not descending:
        return order.argsort(x, axis, stable=stable)  # type: ignore[no-any-return]
    (along,) = normalize_axes(axis, x.ndim, "axis")
    found = order.argsort(rearrange.flip(x, along), along, stable=stable)
    return x.shape[along] - 1 - rearrange.flip(found, along)  # type: ignore[no-any-return]


def _known(x: Any) -> Any:
    """An array in memory; an expression is computed at once."""
    return compute(x) if isinstance(x, Lazy) else x


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Elements at places along an axis. Places that are an expression are computed at once."""
    if axis is None and x.ndim != 1:
        raise ArgumentError(f"axis=None of {x.ndim} dimensions: say along which")
    return np.take(x, _known(indices), 0 if axis is None else axis)  # type: ignore[no-any-return]


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Elements at a place of their own for each line along an axis."""
    return np.take_along_axis(x, indices, axis)  # type: ignore[return-value]


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each element several times. How often, if it is an expression, is computed at once."""
    return np.repeat(x, _known(repeats), axis)  # type: ignore[return-value]


def searchsorted(x1: Any, x2: Any, /, *, side: Any = "left", sorter: Any = None) -> Array:
    """Places at which elements would be put into a sorted line, which is computed at once if it is an expression."""
    return np.searchsorted(_known(x1), x2, side, _known(sorter))  # type: ignore[no-any-return]


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Whether elements are among others, which are computed at once if they are an expression."""
    return np.isin(x1, _known(x2), invert=invert)  # type: ignore[return-value]


# -- Distinct values, at once ----------------------------------------------------------------------------------------


class UniqueAll(NamedTuple):
    """What `unique_all` gives."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` gives."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` gives."""

    values: Array
    inverse_indices: Array


def unique_all(x: Any, /) -> UniqueAll:
    """Distinct elements, where each is first, which of them each element is, and how often each comes."""
    if _dtype_of(x).kind == "f":
        raise UnsupportedError("unique_all of floats: which of several NaN is first is not told; use unique_counts")
    return UniqueAll(*map(opened, np.unique(x, return_index=True, return_inverse=True, return_counts=True)))


def unique_counts(x: Any, /) -> UniqueCounts:
    """Distinct elements, and how often each comes."""
    return UniqueCounts(*map(opened, np.unique(x, return_counts=True, equal_nan=False)))


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Distinct elements, and which of them each element is. NaN are one element here."""
    return UniqueInverse(*map(opened, np.unique(x, return_inverse=True)))


def unique_values(x: Any, /) -> Array:
    """Distinct elements."""
    return opened(np.unique(x, equal_nan=False))  # type: ignore[no-any-return]


# -- The library itself ----------------------------------------------------------------------------------------------

_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]


class ArrayNamespaceInfo:
    """What the standard asks a library about itself."""

    def capabilities(self) -> dict[str, Any]:
        """What it can do: masks and lengths that only values tell are computed at once."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Where results are: in the host's memory. `compute` says what computes them."""
        return "cpu"

    def devices(self) -> list[str]:
        """All such places."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Dtypes of new arrays."""
        check_layout("K", device)
        found = {"real floating": "f8", "complex floating": "c16", "integral": "i8", "indexing": "i8"}
        return {kind: np.dtype(name) for kind, name in found.items()}

    def dtypes(self, *, device: Any = None, kind: str | Sequence[str] | None = None) -> dict[str, np.dtype]:
        """Dtypes of a kind, or of several."""
        check_layout("K", device)
        kinds = ("bool", "numeric") if kind is None else (kind,) if isinstance(kind, str) else tuple(kind)
        if unknown := [each for each in kinds if each not in _KINDS]:
            raise ArgumentError(f"kind={unknown[0]!r} is none of {', '.join(_KINDS)}")
        return {name: np.dtype(name) for each in kinds for name in _KINDS[each]}


def namespace_info() -> ArrayNamespaceInfo:
    """What the standard asks a library about itself."""
    return ArrayNamespaceInfo()
