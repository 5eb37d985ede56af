"""``map_overlap``: the kernel of a function of overlapping blocks, and its arguments `depth`, `boundary` and `trim`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.axes import normalize_axes
from chunkflow.core.grid import Grid, Region, Shape, within
from chunkflow.core.halo import BOUNDARIES, Boundary
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.spec import ArraySpec
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError, ValueRangeError
from chunkflow.kernels.map import MapKernel

Halo = tuple[int, int]

DEEPEST = 1 << 40
"""Most elements of a halo, which keeps the arithmetic of shapes in range."""

OTHERS = {
    "constant": "a number",
    "edge": "'nearest'",
    "grid-constant": "a number",
    "grid-mirror": "'reflect'",
    "grid-wrap": "'periodic'",
    "symmetric": "'reflect'",
    "wrap": "'periodic'",
}
"""What boundaries are called by NumPy and SciPy."""


def each(value: Any, number: int, name: str) -> list[Any]:
    """An argument for each array: a list has one for each, any other value holds for all."""
    if not isinstance(value, list):
        return [value] * number
    if len(value) != number:
        raise ArgumentError(f"{name} is a list of {len(value)} and there are {number} arrays: give one for each")
    return value


def depths(depth: Any, ndim: int) -> tuple[Halo, ...]:
    """Elements before and after a block, for each of `ndim` axes.

    >>> depths(1, 2), depths({-1: (2, 0)}, 2), depths((1, 3), 2)
    (((1, 1), (1, 1)), ((0, 0), (2, 0)), ((1, 1), (3, 3)))
    """
    return tuple(_halo(entry, depth) for entry in _per_axis(depth, ndim, "depth", 0))


def _halo(entry: Any, depth: Any) -> Halo:
    pair = tuple(entry) if isinstance(entry, Sequence) and not isinstance(entry, str) else (entry, entry)
    if len(pair) != 2:
        raise ArgumentError(f"depth={depth!r}: {entry!r} is neither a length nor a pair (before, after)")
    for n in pair:
        if isinstance(n, bool) or not isinstance(n, int | np.integer):
            raise ArgumentTypeError(f"depth={depth!r}: {n!r} is no length; use ints, or pairs (before, after) of ints")
        if n < 0:
            raise ArgumentError(f"depth={depth!r}: {n} is negative; a depth is a number of elements, at least 0")
        if n > DEEPEST:
            raise ArgumentError(f"depth={depth!r}: {n} elements are more than any block could hold ({DEEPEST})")
    return int(pair[0]), int(pair[1])


def boundaries(boundary: Any, spec: ArraySpec) -> tuple[Boundary, ...]:
    """The boundary of each axis of an array."""
    found = _per_axis(boundary, len(spec.shape), "boundary", "none")
    return tuple(_boundary(entry, spec) for entry in found)


def _boundary(entry: Any, spec: ArraySpec) -> Boundary:
    if entry is None:
        return "none"
    if isinstance(entry, str):
        if entry not in BOUNDARIES:
            known = f", and {OTHERS[entry]} is here what others call so" if entry in OTHERS else ""
            raise ArgumentError(f"boundary={entry!r} is none of {', '.join(map(repr, BOUNDARIES))}, or a number{known}")
        return entry
    if not isinstance(entry, bool | int | float | complex | np.generic):
        raise ArgumentTypeError(f"boundary={entry!r} is neither a name nor a number")
    value = np.asarray(entry)
    if value.dtype.kind == "O" or not np.can_cast(value.dtype, spec.dtype, "unsafe"):
        raise ValueRangeError(f"boundary={entry!r} is too large a number for {spec.name}, whose dtype is {spec.dtype}")
    with np.errstate(all="ignore"):
        cast = (value.real if value.dtype.kind == "c" and spec.dtype.kind != "c" else value).astype(spec.dtype)
    exact = cast == value or (value != value and spec.dtype.kind in "fc")
    rounded = spec.dtype.kind in "fc" and bool(np.isfinite(cast) == np.isfinite(value))
    if not exact and (not rounded or np.iscomplexobj(entry) > (spec.dtype.kind == "c")):
        raise ValueRangeError(
            f"boundary={entry!r} cannot be stored as {spec.dtype}, the dtype of {spec.name}: give a value that it holds"
        )
    return cast.item()  # type: ignore[no-any-return]


def _per_axis(value: Any, ndim: int, name: str, default: Any) -> list[Any]:
    if isinstance(value, Mapping):
        found = [default] * ndim
        named: list[int] = []
        for axis, entry in value.items():
            named += normalize_axes(axis, ndim, f"{name} for axis")
            found[named[-1]] = entry
        if len(set(named)) != len(named):
            raise ArgumentError(f"{name}={value!r} names an axis twice")
        return found
    if isinstance(value, tuple):
        if len(value) != ndim:
            raise ArgumentError(
                f"{name}={value!r} has {len(value)} entries for an array of {ndim} dimensions: give one for each "
                "axis, or a dict from axis to entry"
            )
        return list(value)
    return [value] * ndim


def with_halo(operand: Operand, spec: ArraySpec, halo: Sequence[Halo], boundary: Sequence[Boundary]) -> Operand:
    """An operand whose blocks have a halo; an array too small to be mirrored or wrapped so is an `ArgumentError`."""
    found = []
    for axis, (n, (before, after), kind) in enumerate(zip(spec.shape, halo, boundary, strict=True)):
        if operand.axes[axis] is None:
            before = after = 0
        most = {"reflect": n, "mirror": n - 1, "periodic": n}.get(kind) if isinstance(kind, str) else None
        deepest = max(before, after)
        if most is not None and n and deepest > most:
            raise ArgumentError(
                f"depth {deepest} along axis {axis} of {spec.name} is larger than boundary {kind!r} can make of its "
                f"{n} elements, at most {max(most, 0)}: use a smaller depth, or 'nearest', 'none' or a constant"
            )
        # Mirrored elements are in the array itself: a block must hold as many as lie beyond the edge.
        found.append((deepest, deepest) if kind in ("reflect", "mirror") else (before, after))
    if not any(map(sum, found)):
        return operand
    return replace(operand, halo=tuple(found), extents=spec.shape, boundary=tuple(boundary))


@dataclass(frozen=True)
class Overlap(MapKernel):
    """The user's function of overlapping blocks.

    It sees `depth` elements before and after a block, for each array and each of its dimensions. Of its results `trim`
    elements are cut along each axis of the nest; None if the function cuts them.
    """

    depth: tuple[tuple[Halo, ...], ...] = ()
    trim: tuple[Halo, ...] | None = None

    def __call__(self, blocks: Sequence[Any], nest: LoopNest, grid: Grid, index: Shape, box: Region) -> Any:
        seen = [
            narrowed(block, operand, wanted, box)
            for block, operand, wanted in zip(blocks, nest.operands, self.depth, strict=True)
        ]
        results = super().__call__(seen, nest, grid, index, box)
        if self.trim is None:
            return results
        if isinstance(results, tuple):
            return tuple([self._trimmed(result, nest, box) for result in results])
        return self._trimmed(results, nest, box)

    def _trimmed(self, result: Any, nest: LoopNest, box: Region) -> Any:
        assert self.trim is not None
        shape = tuple(getattr(result, "shape", ()))
        clipped = {
            a
            for o in nest.operands
            if o.halo
            for a, deep, kind in zip(o.axes, o.halo, o.boundary, strict=True)
            if kind == "none" and any(deep)
        }
        region, expected = [], []
        for axis, (before, after) in enumerate(self.trim):
            side = box[axis]
            if axis in clipped:
                before, after = min(before, side.start), min(after, nest.extents[axis] - side.stop)
            inner = side.stop - side.start
            region.append(slice(before, before + inner))
            expected.append(before + inner + after)
        if shape != tuple(expected):
            raise ResultError(
                f"fn returned shape {shape} for a block with its halo; expected {tuple(expected)}, from which the halo "
                "is cut. If fn cuts it itself, say so with trim=False"
            )
        return result[(*region, ...)]


def narrowed(block: Any, operand: Operand, wanted: Sequence[Halo], box: Region) -> Any:
    """The block with the halo that was asked for. More is loaded for mirrored boundaries, or to read chunks once."""
    if not operand.halo:
        return block
    seen = replace(operand, halo=tuple(wanted), ahead=()).region(box)
    region = operand.region(box)
    return block if seen == region else block[within(seen, region)]
