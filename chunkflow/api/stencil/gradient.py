"""Gradients: differences of neighbours over their distance, with NumPy's arguments and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from chunkflow.api.operation import Declare, Options, Request, RunOptions, check_eager, operation
from chunkflow.api.stencil.overlap import declare_overlap
from chunkflow.core.axes import ordered_axes
from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of

Spacing = int | float | complex | np.generic | np.ndarray


@operation
def gradient(
    f: Any, *varargs: Any, axis: int | Sequence[int] | None = None, edge_order: int = 1, **options: Unpack[RunOptions]
) -> Request:
    """Gradient of an array, as `numpy.gradient`, along all axes in one pass.

    Central differences inside of the array, one-sided ones at its edges. Blocks are read with `edge_order` elements of
    their neighbours.

    Parameters
    ----------
    f : array_like, str or path
        The array: see `chunkflow.open`.
    *varargs : number or array_like
        Distances of neighbours, in the unit of the axis: one for all axes, or one for each. In place of a number the
        places of the elements along the axis, in the host's memory. By default 1.
    axis : int or sequence of int, optional
        Along which; all by default.
    edge_order : {1, 2}
        Order of the differences at the edges.

    Returns
    -------
    array or tuple of arrays
        Of the shape of `f`, one for each axis; `out` is then a tuple of as many.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Distances that do not suit the axes, bools, an array with too few elements along an axis.

    Examples
    --------
    >>> x = np.array([1.0, 2.0, 4.0, 7.0, 11.0])
    >>> cf.gradient(x, device="cpu")
    array([1. , 1.5, 2.5, 3.5, 4. ])
    >>> cf.gradient(x, [0.0, 1.0, 3.0, 6.0, 10.0], edge_order=2, device="cpu")
    array([1., 1., 1., 1., 1.])
    """
    check_eager("gradient", varargs=list(varargs), axis=axis, edge_order=edge_order)
    shape = spec_of(f).shape
    axes = axes_of(axis, len(shape))
    if not axes:
        raise ArgumentError(f"a gradient of shape {shape} along axis={axis!r} is along no axis: give one at least")
    if edge_order not in (1, 2):
        raise ArgumentError(f"edge_order={edge_order!r} must be 1 or 2")
    for a in axes:
        if shape[a] < edge_order + 1:
            raise ArgumentError(
                f"axis {a} has {shape[a]} elements: a gradient of edge_order={edge_order} needs {edge_order + 1}"
            )
    given = spacings(varargs, axes, shape)
    places = [(i, a) for i, a in enumerate(given) if isinstance(a, np.ndarray)]
    arrays = [a.reshape([-1 if d == axes[i] else 1 for d in range(len(shape))]) for i, a in places]
    how = {
        "spacing": [None if isinstance(a, np.ndarray) else a for a in given],
        "axes": tuple(axes),
        "edge_order": int(edge_order),
    }
    depth = [dict.fromkeys(axes, int(edge_order)), *({axes[i]: int(edge_order)} for i, _ in places)]
    over = declare_overlap(_gradients, how, depth, "none", trim=True)
    return Request(_of_numbers(over), (f, *arrays), Options(**options), keeps=True, results=max(len(axes), 1))


def _of_numbers(over: Declare) -> Declare:
    def declare(specs: Any, args: Any) -> Any:
        if specs[0].dtype.kind == "b":
            raise ArgumentTypeError("a gradient of bools: there is no difference of two; convert them")
        return over(specs, args)

    return declare


def axes_of(axis: int | Sequence[int] | None, ndim: int) -> list[int]:
    """Along which axes the gradients are, in their order."""
    return list(range(ndim)) if axis is None else list(ordered_axes(axis, ndim, "axis"))


def spacings(varargs: Sequence[Any], axes: Sequence[int], shape: Shape) -> list[Spacing]:
    """The distance, or the places of the elements, for each axis. Equal distances are a number, as in NumPy."""
    given = [elements_of(value) for value in varargs]
    if any(value.dtype.kind not in "biufc" for value in given):
        raise ArgumentTypeError(f"distances {varargs!r} must be numbers, or arrays of them")
    if not given:
        return [1.0] * len(axes)
    if len(given) == 1 and not given[0].ndim:
        return [varargs[0]] * len(axes)
    if len(given) != len(axes):
        raise ArgumentTypeError(f"there are {len(given)} distances and {len(axes)} axes: give one, or one for each")
    found: list[Spacing] = []
    for value, plain, axis in zip(given, varargs, axes, strict=True):
        if not value.ndim:
            found.append(plain)
            continue
        if value.shape != (shape[axis],):
            raise ArgumentError(
                f"places along axis {axis} have the shape {value.shape}, and there are {shape[axis]} elements along it"
            )
        value = value.astype("f8") if value.dtype.kind in "biu" else value
        steps = np.diff(value)
        found.append(steps[0] if (steps == steps[0]).all() else value)
    return found


def _gradients(block: Any, *places: Any, spacing: Sequence[Any], axes: tuple[int, ...], edge_order: int) -> Any:
    rest = iter(places)
    given = [next(rest).reshape(-1) if step is None else step for step in spacing]
    found: Any = np.gradient(block, *given, axis=axes, edge_order=edge_order)  # type: ignore[call-overload]
    return tuple(found) if isinstance(found, list | tuple) else found
