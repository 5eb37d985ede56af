"""Which function of a kernel is the user's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

import numpy as np

OURS = ("chunkflow", "numpy", "cupy")
"""Packages whose functions take no more memory for one block than for another, as far as kernels let them."""


def users_function(kernel: Any) -> Callable[..., Any] | None:
    """The first function in a kernel, or in what its functions close over, that the user has written.

    >>> from chunkflow.kernels.map import SLOT, MapKernel
    >>> users_function(MapKernel(len, (SLOT,), {}, (0,))), users_function(MapKernel(np.sqrt, (SLOT,), {}, (0,)))
    (None, None)
    """
    return None if getattr(kernel, "data_independent", False) else _found(kernel, set())


def _found(value: Any, met: set[int]) -> Callable[..., Any] | None:
    if id(value) in met:
        return None
    met.add(id(value))
    if isinstance(value, np.ufunc | BuiltinFunctionType | type):
        return None
    parts: Any = ()
    if isinstance(value, FunctionType):
        if not _is_ours(value):
            return cast(Callable[..., Any], value)
        parts = (cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell))
    elif isinstance(value, partial):
        parts = (value.func,)
    elif isinstance(value, np.vectorize):
        parts = (value.pyfunc,)
    elif isinstance(value, MethodType):
        parts = (value.__func__,)
    elif isinstance(value, tuple | list):
        parts = value if len(value) < _MANY else ()
    elif dataclasses.is_dataclass(value) and _is_ours(type(value)):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    elif callable(value) and not _is_ours(type(value)) and not isinstance(value, np.ndarray):
        return cast(Callable[..., Any], value)
    return next((fn for part in parts if (fn := _found(part, met)) is not None), None)


def called(kernel: Any) -> str:
    """How messages call what a kernel computes: the user's function by its name, and what is ours the operation.

    >>> from textwrap import dedent
    >>> from chunkflow.kernels.map import SLOT, MapKernel
    >>> called(MapKernel(dedent, (SLOT,), {}, (0,))), called(MapKernel(np.sqrt, (SLOT,), {}, (0,)))
    ('dedent', 'the operation')
    """
    fn = users_function(kernel)
    if fn is None and getattr(kernel, "chosen", False):
        fn = kernel.fn  # of NumPy's
    if fn is None:
        return "the operation"
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() else "fn"


_MANY = 1000


def _is_ours(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").split(".")[0] in OURS


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
