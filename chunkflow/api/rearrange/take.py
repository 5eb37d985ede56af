"""Elements by their places: what `numpy.take` and `numpy.compress` give, of arrays of any size.

Chunks that hold no wanted element are never read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from chunkflow import devices
from chunkflow.api.core_axes import whole_axes
from chunkflow.api.operation import ArraySpec, ChunkedRunOptions, Options, Request, check_eager
from chunkflow.api.rearrange.move import ROWS, Flat, moved, one_axis, rearrangement, row_of_chunks
from chunkflow.core.cuts import AxisCut, AxisPlaces, AxisSlice, cut_again
from chunkflow.core.grid import Shape
from chunkflow.engine.budget import bytes_left
from chunkflow.errors import ArgumentError, ArgumentTypeError, PlaceError, UnsupportedError
from chunkflow.graph.elementwise import applied
from chunkflow.graph.indexing import checked, indexed
from chunkflow.graph.live import refuse_picked
from chunkflow.graph.nodes import Lazy, as_source, first_lazy, node_of, source_of
from chunkflow.graph.reshaping import reshaped
from chunkflow.graph.slicing import Points, Slice
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.checks import elements_of
from chunkflow.stores.views.reshaped import ReshapedSource

MODES = ("raise", "wrap", "clip")
"""What `numpy.take` does with places outside of the array."""

SPARSE = 64
"""Elements of a flattened expression for each one that is picked, from which on they are read as points of it."""


@rearrangement
def take(
    x: Any, indices: Any, axis: int | None = None, *, mode: str = "raise", **options: Unpack[ChunkedRunOptions]
) -> Request:
    """Take elements at places along an axis, as `numpy.take`.

    Only chunks that hold one of them are read. Where places are sorted, each is read once, or once more for each block
    that cuts it; in any other order each block reads the chunks that it needs. The places themselves take eight bytes
    each of the host's memory, which count in a budget on the CPU.

    Parameters
    ----------
    indices : int, array_like of int, or expression
        Places, in any order and number. Negative ones count from the end. Where they are an expression, `x` is a table
        in which each of its elements is looked up: a number, or along an axis a row of several dimensions. Each block
        has the whole table. Where that is too large, ``x[indices]`` computes the places at once, and reads by them.
    axis : int, optional
        Along which. By default those of the flattened array are meant, in C order.
    mode : {"raise", "wrap", "clip"}
        What is done with places outside of the array, as NumPy's.

    Returns
    -------
    array
        The shape of `x`, with that of `indices` in the place of the axis.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Places that are no integers; an axis that `x` does not have; as for `copy`.
    IndexError
        A place outside of the array, by `mode="raise"`.

    Examples
    --------
    >>> x = np.arange(12).reshape(3, 4)
    >>> cf.take(x, [2, 0, 0], axis=0, device="cpu")
    array([[ 8,  9, 10, 11],
           [ 0,  1,  2,  3],
           [ 0,  1,  2,  3]])
    >>> labels = cf.open(np.array([[0, 2], [2, 1]], "u1"))
    >>> cf.take([10.0, 20.0, 30.0], labels).compute(device="cpu")
    array([[10., 30.],
           [30., 20.]])
    """
    if mode not in MODES:
        raise ArgumentError(f"mode={mode!r} is none of {', '.join(MODES)}")
    if isinstance(indices, Lazy):
        return moved(looked_up(x, [indices], axis, mode), Options(**options))
    check_eager("take", indices=indices)
    found, of = Options(**options), spec_of(x)
    if axis is None and isinstance(x, Lazy) and len(of.shape) > 1:
        places = within(indices, of.size, 0, mode)
        if places.size <= of.size // SPARSE:
            return moved(type(x)(indexed(node_of(x), np.unravel_index(places, of.shape))), found)
    x, along = line_of(x, axis)
    return moved(picked(x, along, within(indices, spec_of(x).shape[along], along, mode), found), found)


@rearrangement
def compress(condition: Any, a: Any, axis: int | None = None, **options: Unpack[ChunkedRunOptions]) -> Request:
    """Take the elements along an axis where a condition holds, as `numpy.compress`.

    Parameters
    ----------
    condition : array_like of bool, or expression
        One for each place along the axis. If it is shorter, the rest is left out. An expression is computed at once.
    a : array_like, str or path
        The array: see `chunkflow.open`.
    axis : int, optional
        Along which. By default those of the flattened array are meant, in C order.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A condition of several dimensions; an axis that `a` does not have; as for `copy`.
    IndexError
        The condition holds for a place outside of the array.

    Examples
    --------
    >>> cf.compress([True, False, True], np.arange(6).reshape(2, 3), axis=1, device="cpu")
    array([[0, 2],
           [3, 5]])
    """
    if isinstance(condition, Lazy) and axis in (None, 0) and condition._node.shape == spec_of(a).shape:
        whole = type(condition)(indexed(node_of(a), condition))
        return moved(whole, Options(**options))
    a = as_source(a, options.get("out"))
    if isinstance(a, Lazy):
        refuse_picked(node_of(a), condition)
    holds = elements_of(condition)
    if holds.ndim != 1:
        raise ArgumentError(f"condition has {holds.ndim} dimensions: give one of 1 dimension, or use x[condition]")
    return take.__wrapped__(a, np.flatnonzero(holds), axis, **options)  # type: ignore[attr-defined, no-any-return]


def line_of(x: Any, axis: int | None) -> tuple[Any, int]:
    """An array, flat if no axis is given, and the axis."""
    shape = spec_of(x).shape
    if axis is not None:
        return x, one_axis(axis, len(shape))
    if len(shape) == 1:
        return x, 0
    return type(x)(reshaped(node_of(x), (-1,))) if isinstance(x, Lazy) else Flat([x]), 0


COPIES = 3
"""Bytes of the budget for each byte of a row of chunks of which elements are picked."""


def picked(x: Any, along: int, places: np.ndarray, options: Options) -> Any:
    """A view of the elements at places along an axis."""
    if isinstance(x, Lazy):
        return type(x)(indexed(node_of(x), (*(slice(None),) * along, places if places.ndim else int(places))))
    shape = spec_of(x).shape
    if isinstance(x, Flat) and _are_points(of := spec_of(x.arrays[0]), places, options):
        points = np.stack(np.unravel_index(places.reshape(-1), of.shape))
        found: Any = Points(x.arrays, tuple(range(len(of.shape))), points, 0)
        return found if places.ndim == 1 else Shaped([found], places.shape)
    cuts: list[AxisCut] = [AxisSlice(0, n, 1) for n in shape]
    cuts[along] = cut_again(cuts[along], AxisPlaces(places.reshape(-1)))
    view: Any = Slice([x], tuple(cuts))
    return view if places.ndim == 1 else Shaped([view], (*shape[:along], *places.shape, *shape[along + 1 :]))


def _are_points(of: ArraySpec, places: np.ndarray, options: Options) -> bool:
    """Whether places of a flattened array are read as points of it, chunk by chunk, since a row of chunks is too large.

    Points take memory for each axis.
    """
    row = row_of_chunks(of) * of.dtype.itemsize
    if not row:
        return False
    device = devices.resolve(options.device)
    room = bytes_left(options.budget, device) - device.reserve
    large = row > ROWS or COPIES * row + places.nbytes > room
    return large and COPIES * len(of.shape) * places.nbytes < room


def within(indices: Any, n: int, axis: int, mode: str) -> np.ndarray:
    """Places along an axis of `n` elements, checked, or brought into the array by the mode."""
    if isinstance(indices, str | os.PathLike):
        raise ArgumentTypeError(
            f"indices are the path {os.fspath(indices)!r}: open it, np.take(chunkflow.open(x), chunkflow.open(indices))"
        )
    places = elements_of(indices)
    if not places.size and places.dtype.kind == "f" and not hasattr(indices, "dtype"):
        places = places.astype(np.int64)
    if places.dtype.kind not in "iub":
        raise ArgumentTypeError(f"indices are of {places.dtype}, and must be integers: convert them")
    if places.size and not n:
        raise PlaceError(f"cannot take elements of axis {axis}, which has none")
    places = places.astype(np.int64) if places.dtype.kind == "b" else places
    return checked(places, n, axis, mode)


@dataclass(frozen=True)
class Shaped:
    """A source that has the elements of another array in another shape, in C order."""

    arrays: tuple[Any, ...] | list[Any]
    shape: Shape

    def on(self, arrays: Any) -> Shaped:
        """The same of another array."""
        return replace(self, arrays=arrays)

    def __chunkflow_source__(self) -> Source:
        return ReshapedSource(open_source(self.arrays[0]), self.shape)

    def __chunkflow_spec__(self) -> ArraySpec:
        spec = spec_of(self.arrays[0])
        return ArraySpec(spec.name, self.shape, spec.dtype)


# -- Tables ----------------------------------------------------------------------------------------------------------

LARGEST = 1 << 30
"""Most bytes of a table in memory that each block has on the device without being counted."""


def in_memory(x: Any, what: str) -> np.ndarray:
    """The array of a table; one that is no array in memory is refused."""
    found = source_of(node_of(x)) if isinstance(x, Lazy) else x
    if isinstance(x, Lazy) and not isinstance(found, np.ndarray):
        raise UnsupportedError(f"{what} is to be in memory: compute() it first")
    table = elements_of(found)
    if table.nbytes > LARGEST:
        raise UnsupportedError(f"{what} has at most {LARGEST} bytes, and this one {table.nbytes}")
    return table


def looked_up(x: Any, indices: Sequence[Any], axis: int | None, mode: str = "raise") -> Any:
    """The expression of a table's elements at the places that expressions have along the axes from one on.

    A table that is an expression, or large, is an operand, which each block has whole: the budget counts it.
    """
    table: Any = source_of(node_of(x)) if isinstance(x, Lazy) else elements_of(x)
    table = table if isinstance(table, np.ndarray) else x
    if axis is None:
        table, axis = table.reshape(-1), 0
    axis = one_axis(axis, table.ndim)
    after = table.shape[axis + len(indices) :]
    kind: Any = type(first_lazy(*indices))
    number = np.broadcast_shapes(
        *(spec_of(index).shape if isinstance(index, Lazy) else np.shape(index) for index in indices)
    )
    if 0 in number:  # nothing is looked up, whatever the table has
        return kind(node_of(np.empty((*table.shape[:axis], *number, *after), table.dtype)))
    places: Any = None
    for d, index in enumerate(indices, axis):
        dtype = spec_of(index).dtype if isinstance(index, Lazy) else elements_of(index).dtype
        if dtype.kind not in "iub":
            raise ArgumentTypeError(f"indices are of {dtype}, and must be integers: convert them")
        array = index if isinstance(index, Lazy) else kind(node_of(elements_of(index)))
        own = applied(_within_table, (array,), {}, {"number": table.shape[d], "mode": mode})
        step = math.prod(table.shape[d + 1 :])
        own = own if step == 1 else own * step
        places = own if places is None else places + own
    before = (*(None for _ in range(axis)), ..., *(None for _ in after))
    if axis or after:
        places = places[before]
    if after:
        places = places + np.arange(math.prod(after)).reshape(after)
    if axis:
        size = math.prod(table.shape[axis:])
        front = np.arange(math.prod(table.shape[:axis])).reshape(*table.shape[:axis], *[1] * (places.ndim - axis))
        places = places + front * size
    table = table.reshape(-1)
    table = table if table.size else np.empty(0, table.dtype)
    if isinstance(table, np.ndarray) and table.nbytes <= LARGEST:
        return applied(_found, (places,), {}, {"table": table})
    return whole_axes(_found, "take", [(places, ()), (table, ("table",))], (), table.dtype)


def _within_table(block: Any, number: int, mode: str) -> Any:
    if not number:
        raise IndexError("a table without elements has none to look up")
    if block.dtype == np.uint64:
        block = block % np.uint64(number) if mode == "wrap" else np.minimum(block, np.uint64(2**63 - 1))
    block = block.astype(np.int64)
    if mode == "wrap":
        return block % number
    if mode == "clip":
        return block.clip(0, number - 1)
    if not block.size:
        return block
    least, most = int(block.min()), int(block.max())
    if least < -number or most >= number:  # arrays of a GPU wrap
        outside = least if least < -number else most
        raise IndexError(f"index {outside} is out of bounds for a table of {number} elements")
    return np.where(block < 0, block + number, block) if least < 0 else block


def _found(block: Any, table: np.ndarray) -> Any:
    return np.asarray(table, like=block)[block]
