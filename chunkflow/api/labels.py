"""Labels of xarray's arrays: names of dimensions, coordinates and attributes.

Operations see plain arrays. This module takes the labels off their arguments and puts them on their results.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from chunkflow.core.axes import normalize_axes
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy
from chunkflow.graph.slicing import view_of
from chunkflow.kernels.declare import Declared
from chunkflow.stores import is_labelled, is_new
from chunkflow.stores.foreign.xarray import held, stored
from chunkflow.stores.named import with_names

Dims = tuple[Hashable, ...]


class Labels:
    """The labelled `arrays` among an operation's arguments, those given by position first.

    `given` are the arguments by position. `args` and `kwargs` are all of them with plain arrays in their place. For a
    function that takes an axis (`by_axis`), they hold ``axis`` in place of ``dim``.
    """

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, by_axis: bool, aligned: Collection[str | int] = ()
    ) -> None:
        self._given = self.given = args
        self.arrays = [a for a in (*args, *(a for name, a in kwargs.items() if name != "out")) if is_labelled(a)]
        self._mask = kwargs["where"] if is_labelled(kwargs.get("where")) else None
        self._dims: list[tuple[Any, Dims]] = []
        self.args = tuple(self._plain(a, None) for a in args)
        self.kwargs = {name: self._plain(a, None) for name, a in kwargs.items() if name != "dim" or not by_axis}
        if by_axis and kwargs.get("dim") is not None:
            if self.kwargs.get("axis") is not None:
                raise ArgumentError(f"dim={kwargs['dim']!r} and axis={kwargs['axis']!r} say the same: give one of them")
            self.kwargs["axis"] = axis_of(self.arrays[0], kwargs["dim"])
        if aligned and len(self.arrays) > 1:
            self._align(args, kwargs, aligned)

    def _align(self, args: Sequence[Any], kwargs: Mapping[str, Any], aligned: Collection[str | int]) -> None:
        """Lay out arrays that go with elements of the first one, as weights and groups, by their dimensions' names.

        They have the first array's dimensions, or those of its axes that are reduced.
        """
        _ = self.coords
        first, axis = self.arrays[0], self.kwargs.get("axis")
        reduced = first.dims if axis is None else tuple(first.dims[a] for a in _axes(axis))
        positional = [self._beside(a, reduced) if i in aligned else self.args[i] for i, a in enumerate(args)]
        self.args = tuple(positional)
        self.kwargs |= {name: self._beside(a, reduced) for name, a in kwargs.items() if name in aligned}

    def _beside(self, array: Any, reduced: Dims) -> Any:
        first = self.arrays[0]
        if not is_labelled(array) or array is first:
            return self._plain(array, None)
        if lacking := [d for d in array.dims if d not in first.dims]:
            raise ArgumentError(
                f"{lacking[0]!r} is a dimension of an array that goes with elements of one with {first.dims}: it has "
                f"dimensions of that one only, and this has {array.dims}"
            )
        dims = reduced if set(array.dims) <= set(reduced) else first.dims
        found = self._plain(array, tuple(dims))
        sizes = dict(zip(first.dims, first.shape, strict=True))
        shape = tuple(sizes[d] for d in dims)
        return np.broadcast_to(found, shape) if isinstance(found, np.ndarray) and found.shape != shape else found

    def _plain(self, value: Any, dims: Dims | None) -> Any:
        if not is_labelled(value):
            return value
        array = held(getattr(value, "variable", value), dims)
        self._dims.append((array, value.dims if dims is None else dims))
        return array

    @cached_property
    def coords(self) -> Any:
        """Coordinates of all arrays, checked to agree. None if all arrays are variables, which have none."""
        return coordinates(self.arrays)

    def match(self) -> None:
        """Lay out the arrays given by position, and a mask, so that they broadcast by their dimensions' names."""
        _ = self.coords
        matched = (*self._given, *([] if self._mask is None else [self._mask]))
        union = tuple(dict.fromkeys(d for a in matched if is_labelled(a) for d in a.dims))
        self.args = tuple(self._plain(a, laid(a.dims, union) if is_labelled(a) else None) for a in self._given)
        if self._mask is not None:
            self.kwargs["where"] = self._plain(self._mask, laid(self._mask.dims, union))

    def grouped(self, result: Any, axes: Collection[int], groups: Sequence[Any], levels: Any, closed: str) -> Any:
        """The result of a reduction of the first argument by groups of those that follow, with labels.

        `axes` are those that are reduced, and `groups` the labels of each key's groups, of bins their edges. A further
        first dimension is that of quantiles.
        """
        if not is_labelled(self.given[0]):
            return result
        if isinstance(result, tuple):
            return tuple(self.grouped(each, axes, groups, levels, closed) for each in result)
        kept = [d for a, d in enumerate(self.given[0].dims) if a not in axes]
        dims: list[Hashable] = list(kept)
        for key, found in zip(self.given[1:], groups, strict=True):
            own = getattr(key, "name", None) if is_labelled(key) else None
            name = f"{'group' if own is None else own}{'_bins' * (np.ndim(found) == 2)}"
            dims.append(name if name not in dims else f"{name}_{len(dims) - len(kept) + 1}")
        several = np.ndim(result) > len(dims)
        first: list[Hashable] = ["quantile"] if several else []
        labelled = wrapped(result, [*first, *dims], kept, self.arrays[:1], self.coords)
        if self.coords is None:
            return labelled
        coords: dict[Hashable, Any] = dict(
            zip(dims[len(kept) :], (_index(found, closed) for found in groups), strict=True)
        )
        if several:
            coords["quantile"] = np.asarray(levels)
        return labelled.assign_coords(coords)

    def onto(self, result: Any, declared: Declared, arrays: Sequence[Any]) -> Any:
        """The results of an operation on plain arrays, with labels."""
        if isinstance(result, tuple):
            return tuple(self._named(r, declared, declared.axes_of(i), arrays) for i, r in enumerate(result))
        return self._named(result, declared, declared.axes_of(0), arrays)

    def outputs(self, out: Any, declared: Declared, arrays: Sequence[Any]) -> Any:
        """Where results go, with the names of their dimensions for new arrays of which nothing else is said."""
        if isinstance(out, tuple):
            return tuple(self._place(o, declared, declared.axes_of(i), arrays) for i, o in enumerate(out))
        return self._place(out, declared, declared.axes_of(0), arrays)

    def _place(self, out: Any, declared: Declared, axes: Sequence[int | None], arrays: Sequence[Any]) -> Any:
        if not is_new(out) or self.kwargs.get("chunks") is not None or not axes:
            return out
        names = [None if name is None else str(name) for name in self._followed(declared, axes, arrays)[0]]
        shape = tuple(0 if a is None else declared.nest.extents[a] for a in axes)
        return with_names(out, names, shape)

    def _followed(
        self, declared: Declared, axes: Sequence[int | None], arrays: Sequence[Any]
    ) -> tuple[list[Hashable | None], set[Hashable]]:
        """The dimensions that the axes of a result have from the arrays, and those along which elements were moved."""
        names: dict[int, Hashable] = {}
        moved: set[Hashable] = set()
        for array, operand in zip(arrays, declared.nest.operands, strict=True):
            for (name, still), axis in zip(self._dims_of(array), operand.axes, strict=False):
                if axis is not None:
                    names.setdefault(axis, name)
                    moved |= set() if still else {name}
        return [None if a is None else names.get(a) for a in axes], moved

    def _named(self, result: Any, declared: Declared, axes: Sequence[int | None], arrays: Sequence[Any]) -> Any:
        followed, moved = self._followed(declared, axes, arrays)
        if followed and not any(name is not None for name in followed) and not self.kwargs.get("keepdims"):
            return result  # of which nothing is known
        dims = [f"dim_{i}" if name is None else name for i, name in enumerate(followed)]
        if self.kwargs.get("keepdims"):
            dims = list(self.arrays[0].dims)
        return wrapped(result, dims, {d for d in followed if d is not None} - moved, self.arrays, self.coords)

    def _dims_of(self, array: Any) -> list[tuple[Hashable, bool]]:
        """The dimensions of a plain array, and whether its elements have their places along each.

        One that is made of others has those of the first, if it has as many.
        """
        for known, dims in reversed(self._dims):
            if known is array or (isinstance(array, Lazy) and getattr(known, "_node", None) is array._node):
                return [(name, True) for name in dims]
        view = view_of(array) if isinstance(array, Lazy) else array
        still = getattr(view, "still", ())
        found = next(filter(None, map(self._dims_of, view.arrays)), []) if still else []
        return [(name, kept) for (name, _), kept in zip(found, still, strict=True)] if len(found) == len(still) else []

    def reduced(self, result: Any, axis: int | Sequence[int] | None, levels: Any = None) -> Any:
        """The result of a reduction of the first array, with labels. A further first dimension is that of quantiles."""
        dims = self.arrays[0].dims
        gone = range(len(dims)) if axis is None else normalize_axes(axis, len(dims), "axis")
        kept = [d for a, d in enumerate(dims) if a not in gone]
        names = list(dims) if self.kwargs.get("keepdims") else kept
        several = np.ndim(result) > len(names)
        found = wrapped(result, ["quantile", *names] if several else names, kept, self.arrays[:1], self.coords)
        if levels is None or self.coords is None:
            return found
        return found.assign_coords(quantile=levels if several else levels.reshape(()))


def labels_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Labels | None:
    """The labelled arrays among a function's arguments; None if there is none: then ``dim`` is refused."""
    labelled = "xarray" in sys.modules and any(map(is_labelled, (*args, *kwargs.values())))
    if not labelled and "dim" not in kwargs:
        return None
    by_axis = "axis" in inspect.signature(fn).parameters
    aligned = _aligned(fn)
    if labelled and (labels := Labels(args, kwargs, by_axis=by_axis, aligned=aligned)).arrays:
        return labels
    if by_axis and "dim" in kwargs:
        raise ArgumentTypeError(
            f"dim={kwargs['dim']!r} names a dimension of an xarray.DataArray, and {fn.__name__} got none: use axis="
        )
    return None


ALIGNED = {"weights", "by", "fweights", "aweights"}
"""Parameters whose arrays go with elements of the first one, or of some of its axes."""

MANY = 16
"""Most arrays by position that a parameter of several takes."""


@cache
def _aligned(fn: Callable[..., Any]) -> frozenset[str | int]:
    """Such parameters of a function, by name, and by place where they are given by position."""
    found: set[str | int] = set()
    for place, (name, parameter) in enumerate(inspect.signature(fn).parameters.items()):
        if name in ALIGNED:
            several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            found |= set(range(place, place + MANY)) if several else {name, place}
    return frozenset(found)


def _axes(axis: int | Sequence[int]) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int | np.integer) else tuple(axis)


def axis_of(array: Any, dim: Any) -> int | tuple[int, ...] | None:
    """Axes of the dimensions with these names; None for all of them."""
    if dim is ... or dim is None:
        return None
    several = isinstance(dim, Iterable) and not isinstance(dim, str) and dim not in array.dims
    for name in dim if several else (dim,):
        if name not in array.dims:
            raise ArgumentError(f"dim={dim!r}: there is no dimension {name!r}, the array has {array.dims}")
    return tuple(array.dims.index(name) for name in dim) if several else int(array.dims.index(dim))


def laid(dims: Sequence[Hashable], union: Dims) -> Dims:
    """The dimensions that an array must have to broadcast with the others: all from its first one on."""
    first = min((union.index(d) for d in dims), default=len(union))
    return union[first:]


def coordinates(arrays: Sequence[Any], exclude: Collection[Hashable] = ()) -> Any:
    """Coordinates of all labelled arrays together; None if they are variables, which have none.

    They may differ along `exclude`, and must not differ along other dimensions: xarray would align the arrays.
    """
    found: Any = None
    for array in arrays:
        own = getattr(array, "coords", None)
        if own is None:
            continue
        own = _without(own, [name for name, c in own.items() if set(exclude) & set(c.dims)])
        try:
            found = own if found is None else found.merge(own).coords
        except ValueError as error:
            why = str(error).splitlines()[0]
            raise ArgumentError(f"coordinates of the arrays differ: {why}. Align them first (xarray.align)") from error
    return found


def wrapped(
    result: Any, dims: Sequence[Hashable], lasting: Collection[Hashable], arrays: Sequence[Any], coords: Any
) -> Any:
    """A result with dimensions `dims`, the first array's attributes, and the arrays' name if all have the same one.

    Coordinates along `lasting`, the dimensions that it has from the arrays, are kept if the length is the same. If
    `coords` is None, the result is a variable.
    """
    xarray = sys.modules["xarray"]
    if not isinstance(result, np.ndarray | np.generic | Lazy):
        result = stored(result)
    if coords is None:
        return xarray.Variable(dims, result, arrays[0].attrs)
    sizes = {d: n for d, n in zip(dims, result.shape, strict=True) if d in lasting}
    gone = [name for name, c in coords.items() if any(sizes.get(d) != n for d, n in c.sizes.items())]
    names = {a.name for a in arrays if isinstance(a, xarray.DataArray)}
    return xarray.DataArray(
        result, _without(coords, gone), dims, names.pop() if len(names) == 1 else None, arrays[0].attrs
    )


def _index(groups: Any, closed: str) -> Any:
    """Labels of groups as a coordinate; of bins pandas' intervals, as xarray has them."""
    if np.ndim(groups) == 1:
        return groups
    return sys.modules["pandas"].IntervalIndex.from_arrays(groups[:, 0], groups[:, 1], closed=closed)


def _without(coords: Any, names: Sequence[Hashable]) -> Any:
    return coords.to_dataset().drop_vars(names).coords
