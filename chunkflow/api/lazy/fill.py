"""Expressions that replace elements: all by one number or another array, or NaN alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from chunkflow.api.operation import check_stretch
from chunkflow.api.rearrange.move import check_order
from chunkflow.core.axes import as_axes
from chunkflow.core.grid import Shape
from chunkflow.core.units import as_dtype
from chunkflow.errors import ArgumentError, UnsupportedError, ValueRangeError
from chunkflow.graph.create import filled
from chunkflow.graph.elementwise import argument, mapped
from chunkflow.kernels.map import is_scalar


def filling(fill: Any) -> Callable[..., Any]:
    """``zeros_like`` and so on."""

    def call(x: Any, dtype: Any = None, order: str = "K", *, shape: Any = None, device: Any = None) -> Any:
        check_layout(order, device)
        sides = x.shape if shape is None else sides_of(shape)
        return constant(type(x), sides, fill, x.dtype if dtype is None else dtype)

    return call


def full_like(
    x: Any, fill_value: Any, dtype: Any = None, order: str = "K", *, shape: Any = None, device: Any = None
) -> Any:
    """As `numpy.full_like`."""
    if isinstance(fill_value, str | bytes):
        raise ArgumentError(f"fill_value={fill_value!r} is no number: give one, or an array of them")
    sides = x.shape if shape is None else sides_of(shape)
    check_stretch("fill_value", np.shape(fill_value), sides)
    if is_scalar(fill_value):
        return filling(fill_value)(x, dtype, order, shape=shape, device=device)
    check_layout(order, device)
    wanted = number_dtype(x.dtype if dtype is None else dtype)
    like = constant(type(x), sides, 0, wanted)
    return mapped(_second, like, argument(fill_value), dtype=wanted)


def _second(block: Any, value: Any, dtype: np.dtype) -> Any:
    found = np.empty_like(block)
    found[...] = value.astype(dtype)
    return found


def constant(kind: type[Any], shape: Shape, value: Any, dtype: Any = None) -> Any:
    """An expression of one number, of a kind of arrays."""
    number = number_of(value, None if dtype is None else number_dtype(dtype))
    number_dtype(number.dtype)
    return filled(kind, shape, number)


def number_of(value: Any, dtype: np.dtype | None) -> np.ndarray:
    """A number as NumPy casts it to a dtype, by default its own.

    Raises
    ------
    ValueRangeError
        It is one of Python's, and the dtype does not hold it.
    """
    try:
        return np.full((), value, dtype)
    except OverflowError as error:
        raise ValueRangeError(f"{value!r} is no number that {dtype} holds ({error}): give a wider dtype") from None


def number_dtype(dtype: Any, kinds: str = "biufc") -> np.dtype:
    """A dtype of an expression's elements, in the native byte order."""
    wanted: np.dtype = as_dtype(dtype).newbyteorder("=")
    if wanted.kind not in kinds:
        raise UnsupportedError(f"dtype={dtype!r}: the elements of an expression are numbers")
    return wanted


def sides_of(shape: Any) -> Shape:
    """A checked shape, from an int or several."""
    sides = tuple(as_axes(shape, "shape"))
    if shape is None or any(n < 0 for n in sides):
        raise ArgumentError(f"shape={shape!r} must be an int or several, none of them negative")
    return sides


def check_layout(order: Any, device: Any = None) -> None:
    """Check arguments that change no value: results are in C order, in the host's memory."""
    check_order(order)
    if device not in (None, "cpu"):
        raise ArgumentError(
            f"device={device!r} must be None or 'cpu', for results are in host memory: give compute(device=) the "
            "device that computes them"
        )


def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """As `numpy.nan_to_num`, of a copy."""
    given = {"nan": nan, "posinf": posinf, "neginf": neginf}
    for name, value in given.items():
        check_stretch(name, np.shape(value), x.shape)
    return mapped(np.nan_to_num if all(map(is_scalar, given.values())) else _replaced, x, **given)


def _replaced(block: Any, **given: Any) -> Any:
    """`numpy.nan_to_num` with arrays for the replacements, which CuPy's does not take."""
    if block.dtype.kind == "c":
        found = np.empty_like(block)
        found.real, found.imag = _replaced(block.real, **given), _replaced(block.imag, **given)
        return found
    arrays = {name: value for name, value in given.items() if not is_scalar(value)}
    others: dict[str, Any] = {name: value for name, value in given.items() if name not in arrays}
    found = np.nan_to_num(block, **others)
    if block.dtype.kind != "f":
        return found  # integers have no such elements
    masks = {"nan": np.isnan(block), "posinf": block == np.inf, "neginf": block == -np.inf}
    for name, value in arrays.items():
        np.copyto(found, value, where=masks[name])
    return found


def without_nan(x: Any, fill: int) -> Any:
    """The array with a number in place of NaN."""
    return mapped(_numbers, x, fill=fill)


def _numbers(block: Any, fill: int) -> Any:
    return np.where(np.isnan(block), block.dtype.type(fill), block)
