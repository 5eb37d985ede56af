"""Checks of dtypes and shapes that every store makes before a byte is read or written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.system.deferred import instance_of

_KINDS = "biufc"


class TimesError(ArgumentTypeError):
    """An array of datetime64 or timedelta64 where numbers are wanted: `dtype` is its own."""

    def __init__(self, name: str, dtype: np.dtype) -> None:
        super().__init__(
            f"{name} has dtype {dtype}, and numbers are wanted: chunkflow.open(array) makes an expression of times, "
            f"and array.view('i8') has numbers that count in {np.datetime_data(dtype)[0]} (NaT is the lowest)"
        )
        self.name, self.dtype = name, dtype

    def __reduce__(self) -> Any:
        return TimesError, (self.name, self.dtype)


def numeric_dtype(dtype: Any, name: str) -> np.dtype:
    """`dtype` in native byte order; of the integers that C has two names for, the usual one.

    Raises
    ------
    ArgumentTypeError
        It is no boolean, integer, floating-point or complex dtype of NumPy's.

    Examples
    --------
    >>> numeric_dtype(">f4", "volume.npy") == np.dtype("f4")
    True
    """
    if "bfloat16" in str(dtype):
        raise ArgumentTypeError(
            f"{name} has dtype {dtype}, which NumPy does not have: convert it, with .float() where it is torch's, or "
            "with .astype('float32')"
        )
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(
            f"{name} has dtype {dtype!r}, which is not a NumPy dtype: pass it as a NumPy array"
        ) from None
    if found.kind in "mM":
        raise TimesError(name, found)
    if found.kind not in _KINDS:
        raise ArgumentTypeError(
            f"{name} has dtype {found}: only booleans, integers, floats and complex numbers can be processed"
            f"{_as_numbers(found)}"
        )
    native: np.dtype = found.newbyteorder("=")
    return np.dtype(native.str) if native.char in "qQ" else native  # zarr does not take C's long long for int64


is_dask_array = instance_of("dask.array", "Array")
"""Whether an object is a `dask.array.Array`."""

is_labelled = instance_of("xarray", "DataArray", "Variable")
"""Whether an object is a `DataArray` or `Variable` of xarray."""


def _unlabelled(value: Any) -> Any:
    """The array that a labelled one holds, if that is in chunks: others are loaded when they are asked for it."""
    return value.data if is_labelled(value) and value.chunks is not None else value


def loaded(value: Any) -> Any:
    """An argument that is to be in memory: an array of dask's computed. `ArgumentTypeError` if that is masked.

    Its blocks may be masked whatever it has said of itself, and what NumPy makes of it has lost the mask.
    """
    array = _unlabelled(value)
    if not is_dask_array(array):
        return value
    found = array.compute()
    if np.ma.is_masked(found):
        check_unmasked(found)
    return found


def elements_of(value: Any) -> np.ndarray:
    """The array of an argument that is to be in memory, as `loaded`."""
    return np.asarray(loaded(value))


def check_unmasked(*values: Any) -> None:
    """Refuse masked arrays, NumPy's and dask's, among arguments and in lists: who takes their elements loses the mask.

    Raises
    ------
    ArgumentTypeError
        One of them is masked.
    """
    _check_unmasked(values)


def _check_unmasked(values: Iterable[Any]) -> None:
    for value in map(_unlabelled, values):
        if isinstance(value, np.ma.MaskedArray) or isinstance(getattr(value, "_meta", None), np.ma.MaskedArray):
            raise ArgumentTypeError(
                "a masked array would lose its mask: chunkflow.open(array) makes an expression that has it; "
                "or pass array.filled(value) or array.data, of dask's da.ma.filled(array, value)"
            )
        if isinstance(value, list | tuple):
            _check_unmasked(value)


def _as_numbers(dtype: np.dtype) -> str:
    """How an array of another dtype is given as numbers, as the end of a sentence; empty if there is no way."""
    if dtype.names:
        names = ", ".join(map(repr, dtype.names))
        return f". Pass one field, as x[{dtype.names[0]!r}] (its fields: {names})"
    if dtype.kind in "USTO":
        return ". Where it holds numbers, pass x.astype(float); np.unique(x, return_inverse=True) numbers its values"
    if dtype.kind == "V":
        return ". Pass x.view(dtype) with the dtype of the numbers that its bytes are"
    return ""


def conversion(dtype: Any) -> str:
    """Advice for users on how to convert a result to a dtype. Storing an expression takes no ``dtype=``."""
    return f"convert it, an expression by .astype({str(dtype)!r}), what is run at once by dtype= where that is taken"


def check_cast(dtype: np.dtype, spec: ArraySpec) -> None:
    """Refuse a result whose dtype an array that exists cannot hold, by NumPy's ``same_kind`` rule."""
    if not np.can_cast(dtype, spec.dtype, "same_kind"):
        raise ArgumentTypeError(
            f"the result has dtype {dtype}, which the output {spec.name} of dtype {spec.dtype} cannot hold: "
            f"{conversion(spec.dtype)}, or give another output"
        )


class ExistingTarget:
    """What targets share that are arrays of the user's."""

    _spec: ArraySpec

    def describe(self, shape: Shape, dtype: np.dtype, chunks: Shape | None) -> ArraySpec:
        spec = self._spec
        if tuple(shape) != spec.shape:
            raise ArgumentError(f"the result has shape {tuple(shape)}, but the output {spec.name} has {spec.shape}")
        check_cast(dtype, spec)
        return spec
