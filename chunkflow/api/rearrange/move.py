"""Requests that move elements and compute nothing: copies, and arrays that are composed of others while they are read.

`rearrange`, `join` and `rechunk` use them. There is no trial call, so a run reads each element exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.api.operation import ArraySpec, Declared, Options, Request, check_int, family
from chunkflow.core.arrangement import Arrangement
from chunkflow.core.axes import normalize_axes
from chunkflow.core.grid import Shape
from chunkflow.core.nest import nest
from chunkflow.errors import ArgumentError
from chunkflow.graph.nodes import as_source, has_lazy
from chunkflow.kernels.declare import declare_permuted
from chunkflow.kernels.map import MapKernel
from chunkflow.stores import Source, open_source, open_target, spec_of
from chunkflow.stores.views.composed import ComposedSource
from chunkflow.stores.views.reshaped import ReshapedSource

ROWS = 32 << 20
"""Most bytes of a row of chunks that a flattened array is read by."""

RUN = 4096
"""Bytes of a contiguous write, if the output's elements lie in another order than the source's."""

rearrangement = family(
    """A copy, or an operation that moves elements and computes nothing.

    Parameters
    ----------
    chunks : int or sequence of int, optional
        Chunk shape of a zarr output that the run creates: one length for all axes, or one for each, -1 for a whole
        axis. By default the source's chunks, where they suit the result.
    out : array, str, path or None
        Where the result goes: an array with slice assignment, or the path of a ``.npy`` file or zarr array, or the URL
        of one, to create, which appears under its name only when complete. None makes a NumPy array. It may overlap a
        source only where elements keep their places: others would be overwritten before they are read.
    device : str, int or None
        The CPU by default: nothing is computed, so a GPU would only be a detour.
    """
)


@dataclass(frozen=True)
class Arranged:
    """An arrangement of sources whose specs are known.

    Boxes of `chunks` can be read without reading a chunk twice. `new` is an axis of the result that the sources lack.
    """

    arrangement: Arrangement
    chunks: Shape | None = None
    new: int | None = None


def promoted(dtypes: Sequence[np.dtype]) -> np.dtype:
    """The dtype that holds the elements of all, as NumPy's."""
    return np.result_type(*dtypes)


class Padding(NamedTuple):
    """What was added to an array: how many elements before and after along each axis, by which mode of NumPy's."""

    mode: str
    widths: tuple[tuple[int, int], ...]
    values: np.ndarray
    """Constants, before and after along each axis."""


@dataclass(frozen=True)
class Composition:
    """A source that is composed of other arrays when it is opened, in the dtype to which `cast` says they are cast.

    `padding` says that it is one array with elements around it. ``by_blocks(arrays)`` asks for it as a function of
    their blocks: a device of its own composes single elements faster than the host.
    """

    arrays: Sequence[Any]
    arrange: Callable[[Sequence[ArraySpec]], Arranged]
    cast: Callable[[Sequence[np.dtype]], np.dtype] = promoted
    padding: Padding | None = None
    by_blocks: Callable[[Sequence[Any]], Request] | None = None

    def __chunkflow_source__(self) -> Source:
        with ExitStack() as stack:
            sources = []
            for array in self.arrays:
                sources.append(open_source(array))
                stack.callback(sources[-1].close)
            specs = [source.spec for source in sources]
            found = self.arrange(specs)
            dtype = self.cast([spec.dtype for spec in specs])
            composed = ComposedSource(sources, found.arrangement, dtype, found.chunks, found.new)
            stack.pop_all()
        return composed

    def on(self, arrays: Sequence[Any]) -> Composition:
        """The same composition of other arrays."""
        return replace(self, arrays=arrays)

    @property
    def still(self) -> tuple[bool, ...]:
        """For each axis whether elements have the places along it that they have in the first array."""
        specs = [spec_of(array) for array in self.arrays]
        return self.arrange(specs).arrangement.still(specs[0].shape)

    def __chunkflow_spec__(self) -> ArraySpec:
        specs = [spec_of(array) for array in self.arrays]
        found = self.arrange(specs)
        dtype = self.cast([spec.dtype for spec in specs])
        return ArraySpec(specs[0].name, found.arrangement.shape, dtype, found.chunks)


@dataclass(frozen=True)
class Flat:
    """A source that has the elements of another array in one dimension, in C order."""

    arrays: Sequence[Any]

    def on(self, arrays: Sequence[Any]) -> Flat:
        """The same of another array."""
        return replace(self, arrays=arrays)

    def __chunkflow_source__(self) -> Source:
        (array,) = self.arrays
        if isinstance(array, np.ndarray) and array.flags.c_contiguous:
            return open_source(array.reshape(-1))
        source = open_source(array)
        return ReshapedSource(source, (source.spec.size,), _rows(source.spec))

    def __chunkflow_spec__(self) -> ArraySpec:
        spec = spec_of(self.arrays[0])
        return ArraySpec(spec.name, (spec.size,), spec.dtype, _rows(spec))


def _rows(spec: ArraySpec) -> Shape | None:
    """Elements of a row of whole chunks, unless they are many: then chunks are cut, and read again."""
    number = row_of_chunks(spec)
    return (number,) if 0 < number * spec.dtype.itemsize <= ROWS else None


def row_of_chunks(spec: ArraySpec) -> int:
    """Elements of the chunks with an index along the first axis; 0 of an array without chunks."""
    if spec.chunks is None or not spec.shape:
        return 0
    return min(spec.chunks[0], spec.shape[0]) * math.prod(spec.shape[1:])


def flat(x: Any) -> Any:
    """An array in one dimension."""
    return x if len(spec_of(x).shape) == 1 else Flat([x])


def moved(x: Any, options: Options, *, order: Shape | None = None, block: Shape | None = None) -> Request:
    """Request of a copy of an array, with its axes in another `order` if one is given.

    `options.chunks` are the chunks of the output, and do not fix the blocks; `block` may.
    """
    spec = spec_of(x)
    every = tuple(range(len(spec.shape)))
    axes = every if order is None else order
    x = as_source(x, options.out)
    if has_lazy(x):  # nothing is moved: whatever needs the result reads the array itself
        asked = replace(options, chunks=None) if options.out is None else options  # which is refused
        return Request(declare_permuted(axes), (x,), asked, is_view=axes == every, keeps=True)
    sides = block or _sides(spec, axes, options)
    if options.chunks is None and spec.chunks is not None and axes != every:
        options = replace(options, chunks=tuple(spec.chunks[a] for a in axes))

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = replace(nest([specs[0].shape]), views=True)
        kernel = MapKernel(
            _unchanged if axes == every else _transposed, args, {} if axes == every else {"axes": axes}, axes
        )
        return Declared(op, kernel, axes, sides, tiles=False, is_copy=axes == every)

    # There is no trial call: dtype and workspace are known.
    device = "cpu" if options.device is None else options.device
    known = replace(options, dtype=spec.dtype, workspace=0.0, device=device)
    return Request(declare, (x,), known, keeps=True)


def _sides(spec: ArraySpec, axes: Shape, options: Options) -> tuple[int | None, ...]:
    """Sides of the blocks along the nest's axes; None leaves a side to the planner, which follows the source's order.

    That would write single elements to a sink without chunks whose fastest axis is another one.
    """
    sides: list[int | None] = [None] * len(axes)
    if len(axes) < 2 or options.chunks is not None or isinstance(options.out, tuple | list):
        return tuple(sides)
    target = open_target(options.out, overwrite=options.overwrite)
    sink = target.describe(tuple(spec.shape[a] for a in axes), spec.dtype, None)
    fast = axes[sink.order[-1]]
    if sink.chunks is None and fast != spec.order[-1]:
        unit = 1 if spec.chunks is None else spec.chunks[fast]
        wanted = max(1, RUN // spec.dtype.itemsize)
        sides[fast] = max(1, min(-(-wanted // unit) * unit, spec.shape[fast]))
    return tuple(sides)


def check_order(order: Any) -> None:
    """Check an argument that changes no element: results are in C order."""
    if order not in tuple("CFAK"):
        raise ArgumentError(f"order={order!r} must be 'C', 'F', 'A' or 'K'")


def one_axis(axis: Any, ndim: int) -> int:
    """Non-negative number of an axis."""
    return normalize_axes(check_int("axis", axis), ndim, "axis")[0]


def _unchanged(block: Any) -> Any:
    return block


def _transposed(block: Any, axes: Shape) -> Any:
    return block.transpose(axes)
