"""Indices as NumPy has them: integers, slices, new axes, and arrays of places or bools."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from chunkflow.core.cuts import AxisCut, AxisPlaces, AxisSlice
from chunkflow.core.grid import Shape
from chunkflow.engine.dry_run import apart
from chunkflow.engine.options import Options
from chunkflow.errors import PlaceError, UnsupportedError
from chunkflow.graph.live import refuse_picked
from chunkflow.graph.masks import counted, marked, wanted_places
from chunkflow.graph.nodes import Lazy, Node
from chunkflow.graph.reshaping import before_copy, reshaped
from chunkflow.graph.slicing import pointed, sliced, viewed
from chunkflow.kernels.declare import declare_permuted, declare_squeezed, declare_widened
from chunkflow.stores import is_dask_array, spec_of
from chunkflow.stores.checks import elements_of

_LISTS = (list, tuple, range)
"""What stands for an array of places."""
AT_ONCE = 1 << 14
"""Places that are checked together."""


@dataclass(frozen=True)
class ParsedIndex:
    """An index, entry by entry: the elements along each axis, and what becomes of the axes.

    Attributes
    ----------
    cuts : list of AxisCut
        For each axis; all of it where there is an array of places.
    arrays : dict of int to numpy.ndarray
        Places by axes, as they were given: `places` and `points` check them.
    single : list of int
        Axes with an integer.
    order : list of int or None
        The entries: their axes, None for a new one.
    shape : tuple of int
        Of the array.
    apart : int, optional
        The number of entries before an ellipsis that stands for no axis: it still parts arrays of places.
    """

    cuts: list[AxisCut]
    arrays: dict[int, np.ndarray]
    single: list[int]
    order: list[int | None]
    shape: Shape
    apart: int | None = None

    @cached_property
    def common(self) -> Shape:
        """The shape to which arrays of places are broadcast; `IndexError` if there is none."""
        try:
            return np.broadcast_shapes(*(a.shape for a in self.arrays.values()))
        except ValueError:
            shapes = " ".join(str(a.shape) for a in self.arrays.values())
            raise IndexError(
                f"shape mismatch: indexing arrays could not be broadcast together with shapes {shapes}"
            ) from None

    @cached_property
    def wanted(self) -> list[int | None]:
        """For each axis of the result that of the array, None for a new one, `~d` for one of the places.

        The places' own axes are first, or where the arrays are if these follow one another.
        """
        if not self.arrays:
            return [axis for axis in self.order if axis not in self.single or axis is None]
        placed = [place for place, axis in enumerate(self.order) if axis in self.arrays or axis in self.single]
        together = placed[-1] - placed[0] + 1 == len(placed)
        if self.apart is not None and placed[0] < self.apart <= placed[-1]:
            together = False
        first = placed[0] if together else 0
        rest = [axis for axis in self.order[first:] if axis is None or axis not in (*self.arrays, *self.single)]
        return [*self.order[:first], *(~d for d in range(len(self.common))), *rest]

    def places(self, axis: int) -> np.ndarray:
        """The places along an axis."""
        return checked(self.arrays[axis], self.shape[axis], axis)

    def points(self) -> np.ndarray:
        """The places as points: a column for each. No other copy of them is made."""
        found = np.empty((len(self.arrays), math.prod(self.common)), np.int64)
        for row, axis in zip(found, sorted(self.arrays), strict=True):
            _check_into(row, np.broadcast_to(self.arrays[axis], self.common), self.shape[axis], axis, "raise")
        return found


def indexed(node: Node, index: Any, *, outer: bool = False) -> Node:
    """The node of ``array[index]``, as NumPy has it, or if `outer`, of each axis for itself.

    Raises
    ------
    IndexError
        There is no such element or axis.
    UnsupportedError
        The index is dask's array, or an expression that is too large to be computed at once.
    """
    refuse_picked(node, index)
    if (alone := mask_alone(index, node.shape)) is not None:
        mask, at = alone
        with apart():
            return marked(node, counted(mask, Options()), at)
    parsed = parsed_index(index, node.shape, Options(), outer)
    if not parsed.arrays:
        return _basic(node, parsed)
    if outer:
        cuts = list(parsed.cuts)
        for axis in parsed.arrays:
            cuts[axis] = AxisPlaces(parsed.places(axis))
        return _basic(node, replace(parsed, cuts=cuts, arrays={}))
    return _advanced(node, parsed)


def mask_alone(index: Any, shape: Shape) -> tuple[Node, int] | None:
    """The one entry of an index that is an expression of bools, and its first axis; None if it is not so.

    Along one axis of several a mask becomes places.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    lazy = [entry for entry in entries if isinstance(entry, Lazy)]
    if len(lazy) != 1 or lazy[0]._node.spec.dtype != bool:
        return None
    mask = lazy[0]._node
    others = [entry for entry in entries if entry is not lazy[0]]
    if not mask.shape or (len(mask.shape) == 1 < len(shape)) or not all(map(_is_everything, others)):
        return None
    before = entries[: [entry is lazy[0] for entry in entries].index(True)]
    width = len(others) - others.count(Ellipsis) + len(mask.shape)
    if others.count(Ellipsis) > 1 or width > len(shape):
        return None  # which is refused as of any array
    at = len(before) - before.count(Ellipsis) + (len(shape) - width if Ellipsis in before else 0)
    check_fits(mask.shape, shape, at)
    return mask, at


def _is_everything(entry: Any) -> bool:
    return entry is Ellipsis or (isinstance(entry, slice) and entry == slice(None))


def check_fits(mask: Shape, shape: Shape, at: int) -> None:
    """Refuse a mask of another shape than the axes of an array from `at` on have."""
    for axis, n in enumerate(mask, at):
        if n != shape[axis]:
            raise IndexError(
                f"boolean index did not match indexed array along axis {axis}; size of axis is {shape[axis]} but size "
                f"of corresponding boolean axis is {n}"
            )


def _basic(node: Node, index: ParsedIndex) -> Node:
    """Elements along each axis, without the axes of integers, and with new ones."""
    found = sliced(*_of_rows(node, index.cuts))
    if index.single:
        found = viewed(found, declare_squeezed(index.single), "squeeze", tuple(index.single))
    new = tuple(place for place, axis in enumerate(index.wanted) if axis is None)
    return viewed(found, declare_widened(new), "expand_dims", new) if new else found


def _of_rows(node: Node, cuts: Sequence[AxisCut]) -> tuple[Node, Sequence[AxisCut]]:
    """A flattened array and how it is cut, without the rows in which no wanted element lies: these are not read."""
    before, cut = before_copy(node), cuts[0] if cuts else None
    if before is None or len(node.shape) != 1 or not isinstance(cut, AxisSlice) or not cut.number:
        return node, cuts
    if len(before.shape) < 2:
        return node, cuts
    n, row = before.shape[0], math.prod(before.shape[1:])
    first, last = cut.hull[0] // row, cut.hull[-1] // row + 1
    if (first, last) == (0, n) and n > 1:
        return node, cuts
    rows = sliced(before, (AxisSlice(first, last - first, 1), *(AxisSlice(0, m, 1) for m in before.shape[1:])))
    if last - first == 1:
        rows = viewed(rows, declare_squeezed((0,)), "squeeze", (0,))
    return _of_rows(reshaped(rows, (-1,)), (AxisSlice(cut.start - first * row, cut.number, cut.step),))


def _advanced(node: Node, index: ParsedIndex) -> Node:
    """Elements at places."""
    common, wanted = index.common, index.wanted
    found, made = _picked(node, index, common)
    gone = tuple(place for place, axes in enumerate(made) if not axes)
    if any(len(axes) > 1 for axes in made):
        sides = [
            [n] if len(axes) == 1 else [common[~a] for a in axes] for n, axes in zip(found.shape, made, strict=True)
        ]
        found = reshaped(found, [n for part in sides for n in part])
    elif gone:
        found = viewed(found, declare_squeezed(gone), "squeeze", gone)
    axes = [axis for part in made for axis in part]
    order = tuple(axes.index(axis) for axis in wanted if axis in axes)
    if order != tuple(range(len(order))):
        found = viewed(found, declare_permuted(order), "transpose", order)
    new = tuple(place for place, axis in enumerate(wanted) if axis not in axes)
    return viewed(found, declare_widened(new), "expand_dims", new) if new else found


def _picked(node: Node, index: ParsedIndex, common: Shape) -> tuple[Node, list[list[int]]]:
    """The elements, and for each axis what it holds of the result: an axis of the array, or `~d` of the places."""
    arrays = index.arrays
    along = {axis: [len(common) - a.ndim + d for d, n in enumerate(a.shape) if n != 1] for axis, a in arrays.items()}
    every = [d for dims in along.values() for d in dims]
    if len(set(every)) == len(every):  # each axis for itself
        cuts: list[AxisCut] = [
            AxisPlaces(index.places(axis).reshape(-1)) if axis in arrays else cut for axis, cut in enumerate(index.cuts)
        ]
        made = [[~d for d in along[axis]] if axis in arrays else [axis] for axis in range(len(cuts))]
        for axis in index.single:
            made[axis] = []
        return sliced(node, cuts), made
    axes = sorted(arrays)
    points = index.points()
    kept = [axis for axis in range(len(index.cuts)) if axis not in axes]
    at = sum(axis < axes[0] for axis in kept)
    made = [[] if axis in index.single else [axis] for axis in kept]
    made.insert(at, [~d for d in range(len(common))])
    return pointed(sliced(node, index.cuts), axes, points, at), made


def parsed_index(index: Any, shape: Shape, options: Options, outer: bool = False) -> ParsedIndex:
    """An index of an array of a shape, entry by entry. Expressions in it are computed, as the options say."""
    cuts: list[AxisCut] = []
    arrays: dict[int, np.ndarray] = {}
    single: list[int] = []
    order: list[int | None] = []
    apart = None
    for entry in _entries(index, shape, options):
        if entry is Ellipsis:
            apart = len(order)
            continue
        if entry is None:
            order.append(None)
            continue
        axis = len(cuts)
        n = shape[axis]
        order.append(axis)
        if isinstance(entry, slice):
            start, stop, step = entry.indices(n)
            start, stop = n - (n - start), n - (n - stop)  # of an unknown length what is near its end is unknown too
            cuts.append(AxisSlice(start, max(0, -((start - stop) // step)), step))
        elif isinstance(entry, np.ndarray):
            if outer and entry.ndim != 1:
                raise IndexError(f"an index of {entry.ndim} dimensions along axis {axis}: oindex takes lists")
            arrays[axis] = entry
            cuts.append(AxisSlice(0, n, 1))
        else:
            cuts.append(AxisSlice(int(checked(np.asarray(operator.index(entry)), n, axis)), 1, 1))
            single.append(axis)
    return ParsedIndex(cuts, arrays, single, order, shape, apart)


def checked(places: np.ndarray, n: int, axis: int, mode: str = "raise") -> np.ndarray:
    """Places along an axis of `n` elements, which are not negative; others are a `PlaceError`, or brought in.

    The caller's own may change, so this is a copy, and the only one: there may be more places than blocks are long.
    """
    found = np.empty(places.shape, np.int64)
    _check_into(found.reshape(-1), places, n, axis, mode)
    return found


def _check_into(into: np.ndarray, places: np.ndarray, n: int, axis: int, mode: str) -> None:
    """Put places into an array of one dimension, checked as by `checked`."""
    for start in range(0, into.size, AT_ONCE):
        some, own = places.flat[start : start + AT_ONCE], into[start : start + AT_ONCE]
        if mode != "raise":
            own[:] = some % max(n, 1) if mode == "wrap" else some.clip(0, max(n - 1, 0))
            continue
        least, most = int(some.min()), int(some.max())
        if least < -n or most >= n:
            raise PlaceError(f"index {least if least < -n else most} is out of bounds for axis {axis} with size {n}")
        own[:] = some
        if least < 0:
            own[own < 0] += n


def _entries(index: Any, shape: Shape, options: Options) -> list[Any]:
    """The entries of an index: integers, slices, None, and arrays of integers. Ellipsis and bools are resolved."""
    entries: list[Any] = []
    for entry in index if isinstance(index, tuple) else [index]:
        entries += _entry(entry)
    ellipses = sum(entry is Ellipsis for entry in entries)
    if ellipses > 1:
        raise IndexError("an index can only have one ellipsis ('...')")
    used = sum(_width(entry) for entry in entries)
    if used > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions and {used} were indexed")
    if not ellipses:
        entries.append(Ellipsis)
    at = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
    whole: list[Any] = [slice(None)] * (len(shape) - used)
    entries[at : at + 1] = whole or [Ellipsis]
    axis = 0
    for entry in entries:
        if _is_of_bools(entry):
            check_fits(entry.shape, shape, axis)
        axis += _width(entry)
    with apart():  # the index fits so far: now it is computed
        return [part for entry in entries for part in _places(entry, options)]


def _is_of_bools(entry: Any) -> bool:
    return isinstance(entry, np.ndarray | Lazy) and spec_of(entry).dtype == bool


def _places(entry: Any, options: Options) -> Sequence[Any]:
    """An entry without bools and expressions."""
    if isinstance(entry, Lazy):
        return wanted_places(entry._node, options) if _is_of_bools(entry) else _entry(computed(entry, options))
    return entry.nonzero() if _is_of_bools(entry) else [entry]


def computed(value: Any, options: Options) -> np.ndarray:
    """The elements of an expression, in memory."""
    found: np.ndarray = value._unasked(budget=options.budget, device=options.device, progress=options.progress)
    return found


def _width(entry: Any) -> int:
    """How many axes an entry is for."""
    if entry is None or entry is Ellipsis:
        return 0
    if isinstance(entry, Lazy):
        return len(entry._node.shape) if entry._node.spec.dtype == bool else 1
    return entry.ndim if isinstance(entry, np.ndarray) and entry.dtype == bool else 1


def _entry(entry: Any) -> Sequence[Any]:
    """An entry of an index, arrays of places or bools as NumPy's."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return [entry]
    if is_dask_array(entry):
        raise UnsupportedError(f"x[...] with dask's array of dtype {entry.dtype}: give chunkflow.from_dask(index)")
    if isinstance(entry, Lazy) and entry._node.shape:
        return [entry]
    listed = isinstance(entry, _LISTS)
    if listed or (hasattr(entry, "__array__") and np.ndim(entry)):
        found = elements_of(entry)
        if listed and not found.size:
            found = found.astype(np.int64)
        if found.dtype.kind not in "iub":
            raise PlaceError(f"an index of dtype {found.dtype}: arrays of places are of integers, masks of bools")
        return [found]
    if isinstance(entry, bool | np.bool_) or getattr(getattr(entry, "dtype", None), "kind", "") == "b":
        raise UnsupportedError("x[...] with one bool: it adds an axis; use x[None], or x[:0] for nothing")
    if not hasattr(entry, "__index__"):
        what = f"dtype {entry.dtype}" if hasattr(entry, "dtype") else type(entry).__name__
        raise IndexError(f"an index of {what}: integers, slices, ..., None, and arrays of integers or bools are valid")
    return [entry]
