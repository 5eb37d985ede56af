"""Declarations: the loop nest, kernel and result axes of an operation on arrays of known shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.grid import Grid, Region, Shape, shape_of
from chunkflow.core.nest import NO_STRIPS, LoopNest, Operand, Strips, nest, output_axes
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.kernels.index_notation import CombinedBlocks, Index, Widened, as_index, spanned
from chunkflow.kernels.map import SLOT, MapKernel, is_scalar
from chunkflow.kernels.protocol import Kernel, Kind


@dataclass(frozen=True)
class Blocking:
    """Fixed blocks: their shape, the tile for one call of the kernel, and how many are in flight."""

    block: Shape
    tile: Shape
    depth: int


@dataclass(frozen=True)
class Declared:
    """An operation on arrays whose shapes are known.

    Attributes
    ----------
    nest : LoopNest
        The pass, without its outputs: these follow from a trial call of the kernel.
    kernel : Kernel or None
        Computes a box of the nest; None if only the blocks are wanted.
    axes : tuple of int or None
        For each dimension of the results the axis of the nest that it follows; None for a dimension that every
        block has in full.
    each : tuple of such tuples, optional
        The axes of each result, if they differ; `axes` are then those of the first one.
    block : tuple of int or None, optional
        Sides of the blocks, as far as they are fixed.
    chunked : bool
        Whether a new output has chunks like these, where nothing else says which.
    tiles : bool
        Whether the kernel may be called on parts of a block.
    strips : Strips
        Most elements of a block that the kernel works on at a time, which limits its temporaries: on the CPU, and on a
        device with memory of its own; 0 for all of them.
    blocking : Blocking, optional
        Blocks that do not depend on the kernel's memory, so that sums are added up in one order.
    copies : float or tuple of float
        How many partial results a lane holds at once while it combines two: one number for all parts of the kernel,
        or one for each.
    is_copy : bool
        Whether the result is the first array, so that a new one is labelled as that is.
    times : int
        How many passes like this one the call makes, of which it is the first; 1 for the others.
    """

    nest: LoopNest
    kernel: Kernel | None
    axes: tuple[int | None, ...]
    block: tuple[int | None, ...] | None = None
    chunked: bool = True
    tiles: bool = False
    strips: Strips = NO_STRIPS
    copies: float | tuple[float, ...] = 3.0
    each: tuple[tuple[int | None, ...], ...] = ()
    blocking: Blocking | None = None
    is_copy: bool = False
    times: int = 1

    def held(self, state: Sequence[float]) -> tuple[float, ...]:
        """Bytes that a lane holds for each part, given the bytes of one partial result."""
        copies = self.copies if isinstance(self.copies, tuple) else (self.copies,) * len(state)
        return tuple(c * s for c, s in zip(copies, state, strict=True)) if state else ()

    @property
    def kind(self) -> Kind:
        """How the engine runs the kernel."""
        return Kind.MAP if self.kernel is None else self.kernel.kind

    @property
    def wants(self) -> frozenset[str]:
        return frozenset() if self.kernel is None else self.kernel.wants

    def axes_of(self, result: int) -> tuple[int | None, ...]:
        """Axes of the nest that a result's dimensions follow."""
        return self.each[result] if self.each else self.axes


class Stretched(Kernel):
    """Broadcasts a block to its box."""

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        return np.broadcast_to(blocks[0], shape_of(box))


Declare = Callable[[Sequence[ArraySpec], tuple[Any, ...]], Declared]
"""Declares an operation from the arrays' specs and its arguments, in which `SLOT` takes the place of each array."""


def declare_map(
    fn: Callable[..., Any],
    kwargs: dict[str, Any],
    drop: int | Sequence[int] | None = None,
    new: int | Sequence[int] | None = None,
    *,
    chosen: bool = False,
) -> Declare:
    """Declare `map`: `blockwise` with the axes aligned from the right, as arrays broadcast.

    `chosen` says whether the user chose the function.
    """
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}: the function comes before the arrays")

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shapes = [s.shape for s in specs]
        ndim = len(nest(shapes, drop).extents)
        out = tuple((place, "new") if a is None else a for place, a in enumerate(output_axes(ndim, drop, new)))
        added: dict[Hashable, int] = {index: 1 for index in out if isinstance(index, tuple)}
        op, axes = spanned(out, [(tuple(range(ndim - len(s), ndim)), s) for s in shapes], added, whole=True)
        kernel = MapKernel(fn, args, kwargs, axes, chosen=chosen)
        return Declared(op, kernel, axes, tiles=not kernel.wants)

    return declare


def declare_blockwise(
    fn: Callable[..., Any],
    kwargs: dict[str, Any],
    out_ind: Any,
    pairs: Sequence[Any],
    combine: Callable[[Any, Any], Any] | None,
    new_axes: Mapping[Any, int] | None,
) -> tuple[Declare, list[Any]]:
    """Declare `blockwise`: the declaration, and the arrays among its arguments."""
    for name, function in (("fn", fn), ("combine", combine)):
        if not callable(function) and (function is not None or name == "fn"):
            raise ArgumentTypeError(f"{name} must be callable, not a {type(function).__name__}")
    if len(pairs) % 2:
        raise ArgumentError(
            f"arrays and indices come in pairs, and {len(pairs)} of them were given: an index follows each array, "
            "None where the argument is passed on as it is"
        )
    out, new = as_index(out_ind, "out_ind"), _lengths(new_axes)
    arrays: list[Any] = []
    arguments: list[Any] = []
    operands: list[Index] = []
    for value, names in zip(pairs[::2], pairs[1::2], strict=True):
        index = None if names is None else as_index(names, "an index")
        if index and is_scalar(value):
            raise ArgumentTypeError(f"{value!r} has no dimension for the index {index!r}: give None, to pass it on")
        if index is None or is_scalar(value):
            arguments.append(value)
        else:
            arguments.append(SLOT)
            arrays.append(value)
            operands.append(index)

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shapes = [(index, spec.shape) for index, spec in zip(operands, specs, strict=True)]
        op, axes = spanned(out, shapes, new, whole=combine is None)
        call = MapKernel(fn, tuple(arguments), kwargs, axes, chosen=True)
        lengths = tuple(new.get(name) for name in out)
        kernel: Kernel = call
        if combine is not None and len(set(axes) - {None}) < len(op.extents):
            kernel = CombinedBlocks(call, lengths, combine)
        elif new:
            kernel = Widened(call, lengths)
        return Declared(op, kernel, axes, tiles=not call.wants and kernel.kind is Kind.MAP)

    return declare, arrays


def declare_permuted(axes: Shape) -> Declare:
    """Declare a transposition: the axes of the array in the result's order."""
    return _declare_view(lambda ndim: axes, np.transpose, {"axes": axes})


def declare_widened(new: Sequence[int]) -> Declare:
    """Declare new axes of length 1, at these places of the result."""

    def sources(ndim: int) -> tuple[int | None, ...]:
        own = iter(range(ndim))
        return tuple(None if a in new else next(own) for a in range(ndim + len(new)))

    return _declare_view(sources, np.expand_dims, {"axis": tuple(new)})


def declare_squeezed(gone: Sequence[int]) -> Declare:
    """Declare that these axes, of length 1, are removed."""

    def sources(ndim: int) -> Shape:
        return tuple(a for a in range(ndim) if a not in gone)

    return _declare_view(sources, np.squeeze, {"axis": tuple(gone)})


def _declare_view(
    sources: Callable[[int], tuple[int | None, ...]], fn: Callable[..., Any], kwargs: dict[str, Any]
) -> Declare:
    """Declare a view of an array; `sources` gives for each axis of the result that of the array, None for a new one."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        shape = specs[0].shape
        axes = sources(len(shape))
        places = tuple(axes.index(a) if a in axes else None for a in range(len(shape)))
        op = LoopNest(tuple(1 if a is None else shape[a] for a in axes), (Operand(places),), ())
        every = output_axes(len(axes))
        return Declared(op, MapKernel(fn, args, kwargs, every), every)

    return declare


def declare_broadcast(shape: Shape) -> Declare:
    """Declare that an array is broadcast to a shape."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        given = specs[0].shape
        first = len(shape) - len(given)
        if first < 0 or any(n not in (1, shape[first + i]) for i, n in enumerate(given)):
            raise ArgumentError(f"an array of shape {given} does not broadcast to {shape}")
        op = LoopNest(shape, nest([given, shape]).operands[:1], ())
        return Declared(op, Stretched(), output_axes(len(shape)))

    return declare


def _lengths(new_axes: Mapping[Any, int] | None) -> dict[Any, int]:
    """Checked lengths of new axes."""
    if new_axes is not None and not isinstance(new_axes, Mapping):
        raise ArgumentTypeError(f"new_axes must be a dict of lengths by index, not {new_axes!r}")
    for name, n in (new_axes or {}).items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise ArgumentTypeError(f"new_axes: the length of {name!r} must be an int, not {n!r}")
        if n < 0:
            raise ArgumentError(f"new_axes: the length of {name!r} must be at least 0, not {n}")
    return {name: int(n) for name, n in (new_axes or {}).items()}


def declare_blocks(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
    """Declare that the blocks of one array are wanted, without a kernel."""
    op = nest([s.shape for s in specs])
    return Declared(op, None, output_axes(len(op.extents)))
