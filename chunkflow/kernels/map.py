"""``map``: a function of aligned blocks. Arrays broadcast as in NumPy; axes may go, come or resize."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, shape_of
from chunkflow.core.nest import Along, Blockwise, Operand, Output
from chunkflow.errors import ArgumentError, ArgumentTypeError


def normalize_axes(axes: int | Sequence[int] | None, ndim: int, name: str) -> tuple[int, ...]:
    """Sorted non-negative axes, each named once.

    >>> normalize_axes((-1, 0), 3, "drop_axis")
    (0, 2)
    """
    found = []
    for axis in as_axes(axes, name):
        if not -ndim <= axis < ndim:
            raise ArgumentError(f"{name}={axis} is out of bounds for {ndim} dimensions")
        found.append(axis % ndim)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{name}={axes!r} names an axis twice")
    return tuple(sorted(found))


def as_axes(axes: int | Sequence[int] | None, name: str) -> list[int]:
    """Axes as a list, whatever way they were written."""
    if axes is None:
        return []
    listed = list(axes) if isinstance(axes, Iterable) and not isinstance(axes, str) else [axes]
    for axis in listed:
        if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
            raise ArgumentTypeError(f"{name} must be an int or ints, not {axes!r}")
    return [int(axis) for axis in listed]


def nest(shapes: Sequence[Shape], drop: int | Sequence[int] | None = None) -> Blockwise:
    """Loop nest of arrays that broadcast together, without its outputs; dropped axes are not cut.

    Raises
    ------
    ArgumentError
        The shapes do not broadcast.
    """
    try:
        extents = np.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise ArgumentError(
            f"arrays of shapes {listed} do not broadcast: aligned from the right, extents must be equal or 1"
        ) from None
    operands = []
    for shape in shapes:
        first = len(extents) - len(shape)
        operands.append(
            Operand(tuple(None if n == 1 and extents[first + i] != 1 else first + i for i, n in enumerate(shape)))
        )
    whole = normalize_axes(drop, len(extents), "drop_axis")
    return Blockwise(tuple(extents), tuple(operands), (), frozenset(whole))


def output_axes(
    ndim: int, drop: int | Sequence[int] | None = None, new: int | Sequence[int] | None = None
) -> tuple[int | None, ...]:
    """For each dimension of a result the axis of the nest that it follows, None for a new one.

    >>> output_axes(2, drop=0, new=0)
    (None, 1)
    """
    dropped = normalize_axes(drop, ndim, "drop_axis")
    kept: list[int | None] = [a for a in range(ndim) if a not in dropped]
    for axis in normalize_axes(new, len(kept) + len(as_axes(new, "new_axis")), "new_axis"):
        kept.insert(axis, None)
    return tuple(kept)


@dataclass(frozen=True)
class Kernel:
    """The user's function with everything but the blocks filled in.

    Attributes
    ----------
    fn : callable
        The user's function.
    args : tuple
        Its positional arguments; `SLOT` stands where the next array's block goes.
    kwargs : mapping
        Its keyword arguments.
    axes : tuple
        For each dimension of its results the axis of the nest that it follows, None for a new one.
    dtypes : tuple of numpy.dtype
        Of its results, as far as known: one None before the trial call.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    axes: tuple[int | None, ...]
    dtypes: tuple[np.dtype | None, ...] = (None,)
    wants: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wants", _named(self.fn, ("block_id", "block_info")) - set(self.kwargs))

    def __call__(
        self, blocks: Sequence[Any], nest: Blockwise, grid: Grid, index: Shape, box: Region
    ) -> tuple[Any, ...] | Any:
        """Call the function on the blocks of one box of the nest."""
        given = iter(blocks)
        args = [next(given) if a is SLOT else a for a in self.args]
        extra: dict[str, Any] = {}
        if "block_id" in self.wants:
            extra["block_id"] = tuple(0 if a is None else index[a] for a in self.axes)
        if "block_info" in self.wants:
            extra["block_info"] = self._block_info(nest, grid, index, box)
        return self.fn(*args, **self.kwargs, **extra)

    def informed(self, nest: Blockwise, dtypes: tuple[np.dtype, ...]) -> Kernel:
        """See `chunkflow.kernels.protocol.Informed`."""
        return replace(self, dtypes=dtypes)

    def _block_info(self, nest: Blockwise, grid: Grid, index: Shape, box: Region) -> dict[int | None, dict[str, Any]]:
        """What dask's ``map_blocks`` passes: one entry for each array argument, and None for the result.

        In the trial call, when results are not known yet, they are taken to have their blocks' shape.
        """
        info: dict[int | None, dict[str, Any]] = {}
        places = [i for i, a in enumerate(self.args) if a is SLOT]
        for place, operand in zip(places, nest.operands, strict=True):
            info[place] = {
                "shape": operand.shape(nest.extents),
                "num-chunks": operand.shape(grid.counts),
                "array-location": [(s.start, s.stop) for s in operand.region(box)],
                "chunk-location": tuple(0 if a is None else index[a] for a in operand.axes),
            }
        outputs = nest.outputs or (outputs_like(self.axes, [None] * len(self.axes)),)
        results = [
            {
                "shape": out.shape(nest.extents),
                "num-chunks": tuple(1 if a is None else grid.counts[a] for a in self.axes),
                "array-location": [(s.start, s.stop) for s in out.region(box)],
                "chunk-location": tuple(0 if a is None else index[a] for a in self.axes),
                "chunk-shape": shape_of(out.region(box)),
                "dtype": dtype,
            }
            for out, dtype in zip(outputs, self.dtypes, strict=True)
        ]
        info[None] = results[0] if len(results) == 1 else {"outputs": results}
        return info


class _Slot:
    """Marks the place of an array among a function's arguments."""

    def __repr__(self) -> str:
        return "SLOT"

    def __reduce__(self) -> str:
        return "SLOT"  # the one that there is, in another process too


SLOT = _Slot()


def _named(fn: Callable[..., Any], names: tuple[str, ...]) -> frozenset[str]:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # ufuncs and some built-ins have no signature
        return frozenset()
    return frozenset(n for n in names if n in parameters)


def outputs_like(axes: Sequence[int | None], lengths: Sequence[Along | int | None]) -> Output:
    """Output that follows `axes`; `lengths` gives what differs: a new one's length, a resized one's ratio."""
    dims: list[Along | int] = []
    for axis, length in zip(axes, lengths, strict=True):
        if length is not None:
            dims.append(length)
        else:
            dims.append(1 if axis is None else Along(axis))
    return Output(tuple(dims))
