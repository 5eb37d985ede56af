"""Arrays that are concatenated, stacked or padded, with NumPy's names, arguments and results.

Parts are read directly from
their stores while the result is written: there is no copy in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np

from chunkflow.api import mapping
from chunkflow.api.operation import ArraySpec, ChunkedRunOptions, Options, Request, check_eager, description_of
from chunkflow.api.rearrange.move import Arranged, Composition, Padding, flat, moved, one_axis, promoted, rearrangement
from chunkflow.core import arrangement
from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentError, ArgumentTypeError, UnsupportedError, ValueRangeError, refused_by
from chunkflow.graph.live import lives_below
from chunkflow.graph.nodes import Lazy, source_of
from chunkflow.graph.slicing import unsqueezed
from chunkflow.kernels.map import is_scalar
from chunkflow.stores import array_of, spec_of
from chunkflow.stores.checks import elements_of

Mode = Literal["constant", "edge", "symmetric", "reflect", "wrap"]
MODES = ("constant", "edge", "symmetric", "reflect", "wrap")
"""Modes of `pad`."""

CASTING = ("no", "equiv", "safe", "same_kind", "unsafe")
"""NumPy's rules of what may be cast."""


@rearrangement
def concatenate(
    arrays: Sequence[Any],
    axis: int | None = 0,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
    **options: Unpack[ChunkedRunOptions],
) -> Request:
    """Join arrays along an axis that they have.

    Parameters
    ----------
    arrays : list or tuple
        Sources, as for `chunkflow.map`, or numbers and lists of them, equally long along all other axes.
    axis : int, optional
        Along which. None joins the flattened arrays, of any shapes, in C order.
    dtype : dtype, optional
        Of the result; by default the arrays' dtypes are promoted as in NumPy.
    casting : str
        NumPy's rule of what may be cast to that.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No array; arrays whose shapes do not fit; an axis that they do not have; a dtype that `casting` rules out.

    Examples
    --------
    >>> cf.concatenate([np.array([[1, 2]]), np.array([[3.5, 4], [5, 6]])], device="cpu")
    array([[1. , 2. ],
           [3.5, 4. ],
           [5. , 6. ]])
    """
    parts = _listed(arrays)
    if axis is None:
        parts, axis = [flat(part) for part in parts], 0
    return moved(joined(parts, axis, _common(dtype, casting)), Options(**options))


@rearrangement
def stack(
    arrays: Sequence[Any],
    axis: int = 0,
    *,
    dtype: Any = None,
    casting: str = "same_kind",
    **options: Unpack[ChunkedRunOptions],
) -> Request:
    """Join arrays of one shape along a new axis.

    Parameters
    ----------
    arrays : list or tuple
        Sources, as for `chunkflow.map`, or numbers and lists of them. Of opened ones, as in
        ``cf.stack([cf.open(frame) for frame in memmaps])``, the result is an expression, which copies nothing; of
        others, memmaps too, it is computed.
    axis : int
        Place of the new axis in the result.
    dtype, casting
        As for `concatenate`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        No array; arrays of different shapes; an axis that the result does not have; a dtype that `casting` rules out.

    Examples
    --------
    >>> cf.stack([np.array([1, 2, 3]), np.array([4, 5, 6])], axis=1, device="cpu")
    array([[1, 4],
           [2, 5],
           [3, 6]])
    """
    parts = _listed(arrays)
    if (longer := _before_items(parts, axis)) is not None:
        return moved(joined(longer, axis, _common(dtype, casting)), Options(**options))
    if not options and _are_computed_together(parts):
        return _stacked_as_computed(parts, axis, _common(dtype, casting))

    def arrange(specs: Sequence[ArraySpec]) -> Arranged:
        first, sides = specs[0].shape, _chunks(specs)
        along = one_axis(axis, len(first) + 1)
        for number, spec in enumerate(specs):
            if spec.shape != first:
                raise ArgumentError(
                    f"array {number} has the shape {spec.shape}, and the first one {first}: all must have the same "
                    "shape; chunkflow.concatenate joins those that follow one another along an axis"
                )
        axes = [arrangement.straight(n) for n in first]
        axes.insert(along, arrangement.joined([1] * len(specs)))
        if sides is not None:
            sides = (*sides[:along], 1, *sides[along:])
        return Arranged(arrangement.Separable(tuple(axes)), sides, along)

    common = _common(dtype, casting)
    by_blocks = partial(_stacked_as_computed, axis=axis, cast=common) if _in_short_rows(parts, axis) else None
    return moved(Composition(parts, arrange, common, by_blocks=by_blocks), Options(**options))


@rearrangement
def pad(
    x: Any, pad_width: Any, mode: Mode = "constant", *, constant_values: Any = 0, **options: Unpack[ChunkedRunOptions]
) -> Request:
    """Add elements at the edges.

    Parameters
    ----------
    pad_width : int or sequence
        How many: one number for all edges, ``(before, after)`` for all axes, or a pair for each axis.
    mode : {'constant', 'edge', 'symmetric', 'reflect', 'wrap'}
        What they are: a constant; the outermost element; the mirror image with it, or without it; the other end.
    constant_values : number or sequence
        The constants, in the forms of `pad_width`; cast to the dtype of `x`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A negative or uneven `pad_width`, an unknown mode, an axis of no element that has nothing to be padded with.

    Examples
    --------
    >>> cf.pad(np.array([1, 2, 3]), (2, 1), device="cpu")
    array([0, 0, 1, 2, 3, 0])
    >>> cf.pad(np.array([1, 2, 3]), 2, "reflect", device="cpu")
    array([3, 2, 1, 2, 3, 2, 1])
    """
    if mode not in MODES:
        raise ArgumentError(
            f"mode={mode!r} is unknown: use one of {', '.join(MODES)}. np.pad of chunkflow.open(x) has all of NumPy's"
        )
    check_eager("pad", pad_width=pad_width, constant_values=constant_values)
    if mode != "constant" and np.any(np.asarray(constant_values) != 0):
        raise ArgumentError(f"constant_values={constant_values!r} has no meaning in mode={mode!r}: leave it out")
    kind = np.asarray(pad_width).dtype.kind if not isinstance(pad_width, dict) else "O"
    if kind not in "iu":
        raise ArgumentTypeError(f"pad_width must be an int, a pair of them or a pair for each axis, not {pad_width!r}")

    def arrange(specs: Sequence[ArraySpec]) -> Arranged:
        (spec,) = specs
        widths = _pairs(np.asarray(pad_width), len(spec.shape), f"pad_width={pad_width!r}")
        if (widths < 0).any():
            raise ArgumentError(f"pad_width={pad_width!r} must not be negative: slice the array to make it smaller")
        values = _constants(constant_values, spec)
        axes = []
        for axis, (n, (before, after), ends) in enumerate(zip(spec.shape, widths.tolist(), values, strict=True)):
            if mode != "constant" and not n and before + after:
                raise ArgumentError(f"axis {axis} has no element to pad it with in mode={mode!r}: use 'constant'")
            axes.append(arrangement.padded(n, before, after, mode, (ends[0], ends[1])))
        return Arranged(arrangement.Separable(tuple(axes)), spec.chunks)

    view = Composition((x,), arrange)
    if isinstance(x, Lazy):
        spec = spec_of(x)
        arrange([spec])  # which checks the widths
        widths = _pairs(np.asarray(pad_width), len(spec.shape), "pad_width").tolist()
        view = replace(view, padding=Padding(mode, tuple(map(tuple, widths)), _constants(constant_values, spec)))
    return moved(view, Options(**options))


def joined(parts: Sequence[Any], axis: int, cast: Callable[[Sequence[np.dtype]], np.dtype] = promoted) -> Composition:
    """Arrays one after another along an axis, as a source; a shape that does not fit is an `ArgumentError`."""

    def arrange(specs: Sequence[ArraySpec]) -> Arranged:
        first = specs[0].shape
        if not first:
            raise ArgumentError("arrays without axes cannot be concatenated: stack them")
        along = one_axis(axis, len(first))
        for number, spec in enumerate(specs):
            other = (*spec.shape[:along], *first[along : along + 1], *spec.shape[along + 1 :])
            if len(spec.shape) != len(first) or other != first:
                raise ArgumentError(
                    f"array {number} of shape {spec.shape} does not fit the first one's {first}: all axes but "
                    f"axis {along} must have the same lengths"
                )
        axes = [arrangement.straight(n) for n in first]
        axes[along] = arrangement.joined([spec.shape[along] for spec in specs])
        return Arranged(arrangement.Separable(tuple(axes)), _chunks(specs))

    return Composition(parts, arrange, cast)


# -- Arguments -----------------------------------------------------------------------------------------------


def _before_items(parts: Sequence[Any], axis: Any) -> list[Any] | None:
    """Arrays of which the parts are items, as frames of a movie: to stack items is to join these. None of others.

    The items would be stored before they are stacked, as what a composition reads is not computed on the way.
    """
    if not all(isinstance(part, Lazy) for part in parts) or not isinstance(axis, int | np.integer):
        return None
    nodes = [part._node for part in parts]
    if len({node.shape for node in nodes}) > 1 or not -len(nodes[0].shape) <= axis + 1 <= len(nodes[0].shape) + 1:
        return None
    along = int(axis) % (len(nodes[0].shape) + 1)
    found = [unsqueezed(node, along) for node in nodes]
    return (
        [type(part)(node) for part, node in zip(parts, found, strict=True) if node is not None] if all(found) else None
    )


FEW = 16
"""Most expressions that are computed in one pass to be stacked: each has its own blocks in memory."""


def _are_computed_together(parts: Sequence[Any]) -> bool:
    """Whether one pass may compute all parts, as components of a vector, in place of one that stores each before."""
    if len(parts) > FEW or not all(isinstance(part, Lazy) for part in parts):
        return False
    nodes = [part._node for part in parts]
    if any(source_of(node) is not None or node.spec.dtype.kind not in "biufc" for node in nodes):
        return False
    return len({node.shape for node in nodes}) == 1 and not lives_below(nodes, {})


SHORT_ROW = 64
"""Bytes of rows that the host moves slowly one by one."""


def _in_short_rows(parts: Sequence[Any], axis: Any) -> bool:
    """Whether stacked parts alternate in short rows, as single elements do along a last axis."""
    if len(parts) > FEW or not isinstance(axis, int | np.integer):
        return False
    spec = spec_of(parts[0])
    inner = spec.shape[int(axis) % (len(spec.shape) + 1) :]
    return spec.dtype.kind in "biufc" and math.prod(inner) * spec.dtype.itemsize < SHORT_ROW


def _stacked_as_computed(parts: Sequence[Any], axis: Any, cast: Callable[[Sequence[np.dtype]], np.dtype]) -> Request:
    """The request of expressions that are stacked block by block."""
    ndim, dtype = len(parts[0].shape), cast([part.dtype for part in parts])
    along = one_axis(axis, ndim + 1)
    chunks: list[Any] = ["auto"] * ndim
    chunks.insert(along, len(parts))
    beside = float(sum(dtype.itemsize for part in parts if part.dtype != dtype))
    how = {"new_axis": along, "chunks": tuple(chunks), "dtype": dtype, "workspace": beside}
    asked = description_of(mapping.map, (partial(_stacked, axis=along, dtype=dtype), *parts), how)
    assert isinstance(asked, Request)
    return asked


def _stacked(*blocks: Any, axis: int, dtype: np.dtype) -> Any:
    return np.stack([block.astype(dtype, copy=False) for block in blocks], axis)


def _listed(arrays: Any) -> Sequence[Any]:
    if not isinstance(arrays, list | tuple):
        raise ArgumentTypeError(f"arrays must be a list or tuple of them, not a {type(arrays).__name__}")
    if not arrays:
        raise ArgumentError("arrays is empty: at least one is needed")
    return [array_of(a) if isinstance(a, list | tuple) or is_scalar(a) else a for a in arrays]


def _common(dtype: Any, casting: Any) -> Callable[[Sequence[np.dtype]], np.dtype]:
    """The dtype of joined arrays: the one asked for, or that to which they are promoted."""
    with refused_by(f"dtype={dtype!r}"):
        wanted = None if dtype is None else np.dtype(dtype).newbyteorder("=")
    if wanted is not None and wanted.kind not in "biufc":
        raise UnsupportedError(f"dtype={dtype!r}: the elements of joined arrays are numbers; give a dtype of numbers")
    if casting not in CASTING:
        raise ArgumentError(f"casting={casting!r} must be one of {', '.join(CASTING)}")

    def common(dtypes: Sequence[np.dtype]) -> np.dtype:
        found = np.result_type(*dtypes) if wanted is None else wanted
        for given in dtypes:
            if not np.can_cast(given, found, casting):
                raise ArgumentTypeError(
                    f"elements of {given} cannot be cast to {found} according to the rule casting={casting!r}: give "
                    "another dtype, or casting='unsafe'"
                )
        return found

    return common


def _chunks(specs: Sequence[ArraySpec]) -> Shape | None:
    """Chunks of the first array that has any."""
    return next((spec.chunks for spec in specs if spec.chunks is not None), None)


def _pairs(values: np.ndarray, ndim: int, what: str) -> np.ndarray:
    """Values as a pair for each axis."""
    try:
        return np.broadcast_to(values, (ndim, 2))
    except ValueError:
        raise ArgumentError(
            f"{what} does not suit {ndim} axes: give one value, a pair for all axes or a pair for each"
        ) from None


def _constants(given: Any, spec: ArraySpec) -> np.ndarray:
    """Constants to pad with, before and after along each axis."""
    values = elements_of(given)
    if values.dtype.kind == "O" and all(isinstance(value, int) for value in values.flat):
        values = values.astype(float)  # integers beyond 64 bits
    if values.dtype.kind not in "biufc" or (values.dtype.kind == "c" and spec.dtype.kind != "c"):
        raise ArgumentTypeError(f"constant_values={given!r} cannot be stored as {spec.dtype}, the dtype of {spec.name}")
    if values.dtype.kind == "b":
        values = values.astype(int)  # bools do not compare with integers beyond 64 bits
    with np.errstate(invalid="ignore", over="ignore"):
        cast = values.astype(spec.dtype)
    if spec.dtype.kind in "iu":
        info = np.iinfo(spec.dtype)
        held = (values > info.min - 1) & (values < info.max + 1)  # fractions are cut off, as by NumPy
    else:
        held = np.isfinite(cast) | ~np.isfinite(values)
    if not held.all():
        raise ValueRangeError(
            f"constant_values={given!r} is more than {spec.dtype} holds, the dtype of {spec.name}: pad "
            "x.astype(...) of a dtype that holds it"
        )
    return _pairs(cast, len(spec.shape), f"constant_values={given!r}")
