"""Assignment to elements by an index, as ``x[index] = values``: two arrays that say what is set, and to which value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape, whole
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.dry_run import apart
from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError
from chunkflow.graph.indexing import ParsedIndex, computed, mask_alone, parsed_index
from chunkflow.graph.masks import counted
from chunkflow.graph.nodes import Lazy, Node, SourceNode, first_lazy, source_of
from chunkflow.graph.slicing import viewed
from chunkflow.kernels.declare import declare_widened
from chunkflow.stores import Source, array_of, open_source, spec_of
from chunkflow.stores.checks import elements_of
from chunkflow.stores.views.assigned import AssignedMask, AssignedValues, MarkedMask, MarkedValues, Picked
from chunkflow.stores.views.marked import Marks


def assignment(index: Any, shape: Shape, dtype: np.dtype, values: Any, options: Options) -> tuple[Any, Any]:
    """Which elements an assignment sets, and their values; both broadcast to the array. One value is a scalar.

    The options are those by which expressions in the index, and values for lists, are computed.

    Raises
    ------
    ArgumentError
        The values do not broadcast to what the index picks.
    IndexError
        There is no such element or axis.
    """
    if isinstance(values, list | tuple):
        values = array_of(values)
    if isinstance(values, np.ndarray) and values.shape == (1,):
        values = values[0]
    if not isinstance(values, str | os.PathLike | Lazy) and np.ndim(values) == 0:
        values = np.full((), values, dtype)[()]
    is_mask = isinstance(index, np.ndarray) and index.dtype == bool
    if (alone := mask_alone(Lazy(SourceNode(index)) if is_mask else index, shape)) is not None:
        mask, at = alone
        if isinstance(values, np.generic):
            wide = _widened(mask, len(shape) - at - len(mask.shape))
            lazy = first_lazy(index)
            return wide if lazy is None or not isinstance(wide, Node) else type(lazy)(wide), values
        if mask.shape == shape:
            return _by_marks(mask, values, options)
    return _by_places(parsed_index(index, shape, options), shape, dtype, values, options)


def _widened(mask: Node, number: int) -> Any:
    """A mask with further axes of length 1."""
    source = source_of(mask)
    if isinstance(source, np.ndarray):
        return source.reshape(*mask.shape, *[1] * number)
    new = tuple(range(len(mask.shape), len(mask.shape) + number))
    return viewed(mask, declare_widened(new), "expand_dims", new) if new else mask


def _by_marks(mask: Node, values: Any, options: Options) -> tuple[Any, Any]:
    with apart():
        marks = counted(mask, options)
    given = spec_of(values).shape
    if given in ((), (1,)):
        return _Assigned(marks), _in_memory(values, options).reshape(())[()]
    if given != (marks.number,):
        raise ArgumentError(
            f"values of shape {given} for the {marks.number} elements that a mask picks: give one value, or one for "
            "each"
        )
    return _Assigned(marks), _Values([values], marks)


def _by_places(index: ParsedIndex, shape: Shape, dtype: np.dtype, values: Any, options: Options) -> tuple[Any, Any]:
    wanted = index.wanted
    picked = tuple(
        1 if axis is None else index.common[~axis] if axis < 0 else index.cuts[axis].number for axis in wanted
    )
    axes = tuple(sorted(index.arrays))
    common = index.common
    points = index.points() if axes else np.empty((0, 0), np.int64)
    order: slice | np.ndarray = slice(None)
    if len(axes) == 1 and isinstance(values, np.generic):
        points.sort()
    elif axes and not bool((points[0, 1:] >= points[0, :-1]).all()):
        order = np.argsort(points[0], kind="stable")
        for row in points:
            row[:] = row[order]
    places = Picked(shape, tuple(index.cuts), axes, points)  # type: ignore[arg-type]
    if isinstance(values, np.generic):
        return _Assigned(places), values
    if not axes:
        given = spec_of(values).shape
        _check(given, picked)
        lead = len(picked) - len(given)
        along: list[int | None] = [None] * len(shape)
        for d, axis in enumerate(wanted):
            if axis is not None and d >= lead:
                along[axis] = d - lead
        return _Assigned(places), _Values([values], places, tuple(along))
    array = _in_memory(values, options)
    _check(array.shape, picked)
    array = array.reshape(array.shape[max(0, array.ndim - len(picked)) :])
    array = array.reshape((1,) * (len(picked) - array.ndim) + array.shape)
    # The places' axes come first, as one, and then the axes of the array.
    moved = [wanted.index(~d) for d in range(len(common))]
    rest = [(axis, wanted.index(axis)) for axis in range(len(shape)) if axis not in axes and axis not in index.single]
    array = np.transpose(array, [*moved, *(d for _, d in rest), *(d for d, a in enumerate(wanted) if a is None)])
    front = np.broadcast_to(array, (*common, *array.shape[len(common) :]))
    front = front.reshape(points.shape[1], *array.shape[len(common) : len(common) + len(rest)])[order]
    kept = iter(front.shape[1:])
    ends = [1 if axis in index.single else next(kept) for axis in range(len(shape)) if axis not in axes]
    values = front.reshape(points.shape[1], *ends).astype(dtype, copy=isinstance(order, slice))  # not the caller's own
    return _Assigned(places), _Assigned(places, values)


def _in_memory(values: Any, options: Options) -> np.ndarray:
    """Values as an array; of an expression they are computed, unless it is too large."""
    if isinstance(values, Lazy):
        with apart():
            return computed(values, options)
    if hasattr(values, "__array__"):
        return elements_of(values)
    with closing(open_source(values)) as source:
        found = np.empty(source.spec.shape, source.spec.dtype)
        source.read(whole(found.shape), found)
    return found


def _check(given: Shape, picked: Shape) -> None:
    """Refuse values that do not broadcast to what an index picks. They may have more axes of length 1 in front."""
    own = given[max(0, len(given) - len(picked)) :]
    fits = all(n in (1, side) for n, side in zip(reversed(own), reversed(picked), strict=False))
    if not fits or any(n != 1 for n in given[: len(given) - len(own)]):
        raise ArgumentError(f"values of shape {given} do not broadcast to the shape {picked} that the index picks")


@dataclass(frozen=True)
class _Assigned:
    """Which elements are set, or with `values`, which are in memory, to what."""

    how: Picked | Marks
    values: np.ndarray | None = field(default=None)

    def __chunkflow_source__(self) -> Source:
        if isinstance(self.how, Marks):
            return MarkedMask(self.how)
        return AssignedMask(self.how) if self.values is None else AssignedValues(self.how, self.values)


@dataclass(frozen=True)
class _Values:
    """A `View` of values at the places of the elements that are set."""

    arrays: Sequence[Any]
    how: Picked | Marks
    along: tuple[int | None, ...] = ()

    def on(self, arrays: Sequence[Any]) -> _Values:
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return ArraySpec("values", self.how.shape, spec_of(self.arrays[0]).dtype)

    def __chunkflow_source__(self) -> Source:
        source = open_source(self.arrays[0])
        if isinstance(self.how, Marks):
            return MarkedValues(self.how, source)
        return AssignedValues(self.how, source, self.along)
