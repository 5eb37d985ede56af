"""Windows that slide along axes, and their reductions: stencils, for which no array of all windows is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from chunkflow.api.operation import (
    ArraySpec,
    ChunkedRunOptions,
    Declare,
    Declared,
    Options,
    Request,
    check_eager,
    op_node,
)
from chunkflow.api.rearrange.join import pad
from chunkflow.api.rearrange.move import Composition, Padding, moved, rearrangement
from chunkflow.core.axes import as_axes
from chunkflow.core.grid import Shape
from chunkflow.core.halo import Boundary
from chunkflow.core.nest import nest
from chunkflow.core.windows import Windows
from chunkflow.errors import ArgumentError, ArgumentTypeError, AxisError
from chunkflow.graph.create import filled
from chunkflow.graph.nodes import Lazy, Node, ViewNode, node_of, remembered
from chunkflow.graph.windows import Sliding, windowed, windows_of
from chunkflow.kernels.linalg.gemm import working
from chunkflow.kernels.reductions.aggregation import Aggregation
from chunkflow.kernels.stencil.overlap import Halo, with_halo
from chunkflow.kernels.stencil.window_ranks import ByRank
from chunkflow.kernels.stencil.windows import ByDoubling, ByLine, ByPlace, ByWeights, WindowKernel
from chunkflow.stores import spec_of
from chunkflow.stores.checks import elements_of

BOUNDARY = {"edge": "nearest", "symmetric": "reflect", "reflect": "mirror", "wrap": "periodic"}
"""For modes of `chunkflow.pad` the boundaries of stencils that are the same."""


@rearrangement
def sliding_window_view(
    x: Any,
    window_shape: int | Sequence[int],
    axis: int | Sequence[int] | None = None,
    *,
    subok: bool = False,
    writeable: bool = False,
    **options: Unpack[ChunkedRunOptions],
) -> Request:
    """Windows that slide along axes, as `numpy.lib.stride_tricks.sliding_window_view`.

    Of an expression it is an expression, and what is made of it decides what is computed. A reduction along just the
    windows' axes is a stencil: blocks are read with as many elements of their neighbours as a window has, and no array
    of all windows is made. So ``sliding_window_view(x, 7, axis=0).mean(axis=-1)`` is a moving average, in one pass. The
    same holds for sums, products, extremes and their places, variances, ``any``, ``all``, medians, quantiles, and those
    of them that pass over NaN, also of elementwise functions of the windows, and of an array that was padded before;
    and for sums that are weighed, by a product (``@``, `einsum`, `tensordot`) with weights in memory or by `average`.
    Anything else gets its windows block by block. At once, windows are all written.

    Parameters
    ----------
    window_shape : int or sequence of int
        Elements of a window along each of the axes.
    axis : int or sequence of int, optional
        Axes along which windows slide. By default all, and `window_shape` has an entry for each. One may come twice.
    subok, writeable : bool
        NumPy's, which have no effect: the result is an array, and no view.

    Returns
    -------
    array
        The shape of `x`, along each axis as much shorter as its windows have elements beside their first one, and then
        `window_shape`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A window that is larger than the array or negative, or that is not given for each axis.

    Examples
    --------
    >>> x = cf.open(np.array([2.0, 4.0, 9.0, 5.0]))
    >>> windows = cf.sliding_window_view(x, 2)
    >>> windows.shape, windows.mean(axis=-1).compute(device="cpu")
    ((3, 2), array([3. , 6.5, 7. ]))
    >>> cf.sliding_window_view(np.arange(4), 3, device="cpu")
    array([[0, 1, 2],
           [1, 2, 3]])
    """
    spec = spec_of(x)
    windows = _windows(spec.shape, window_shape, axis)
    if 0 in windows.widths:  # there is no element in any
        shape, nothing = windows.shape(spec.shape), np.zeros((), spec.dtype)
        empty = filled(type(x), shape, nothing) if isinstance(x, Lazy) else np.broadcast_to(nothing, shape)
        return moved(empty, Options(**options))
    view: Any = type(x)(windowed(node_of(x), windows)) if isinstance(x, Lazy) else Sliding([x], windows)
    return moved(view, Options(**options))


def _windows(shape: Shape, window_shape: Any, axis: Any) -> Windows:
    """The windows that are asked for, of an array of this shape."""
    ndim, widths = len(shape), as_axes(window_shape, "window_shape")
    axes = list(range(ndim)) if axis is None else as_axes(axis, "axis")
    if len(axes) != len(widths):
        what = f"the array has {ndim} axes" if axis is None else f"there are {len(axes)} axes"
        raise ArgumentError(f"window_shape={window_shape!r} has {len(widths)} entries, and {what}: give one for each")
    for a in axes:
        if not -ndim <= a < ndim:
            raise AxisError(f"axis={a} is out of bounds for {ndim} dimensions")
    if any(w < 0 for w in widths):
        raise ArgumentError(f"window_shape={window_shape!r} must not be negative")
    left = list(shape)
    for a, width in zip(axes, widths, strict=True):
        if width > left[a]:
            raise ArgumentError(f"window_shape={window_shape!r} is larger than the array, whose shape is {shape}")
        left[a] -= width - 1
    return Windows(ndim, tuple(a % ndim for a in axes), tuple(widths))


class Slid(NamedTuple):
    """An array whose windows are reduced, with what was padded to it before windows were made."""

    node: Node
    windows: Windows
    widths: tuple[Halo, ...]
    boundary: tuple[Boundary, ...]

    def spec(self, spec: ArraySpec) -> ArraySpec:
        """Spec of the windows of the padded array."""
        shape = tuple(n + sum(pair) for n, pair in zip(spec.shape, self.widths, strict=True))
        return ArraySpec(f"windows of {spec.name}", self.windows.shape(shape), spec.dtype)


def slid(x: Any, axes: Sequence[int] | None) -> Slid | None:
    """The array that is read for a reduction of windows along just their own axes; None for any other array."""
    found = windows_of(x)
    if found is None or axes is None:
        return None
    node, windows = found
    ndim = len(windows.dims) + windows.ndim
    if sorted(a % ndim for a in axes) != list(windows.dims) or not windows.dims:
        return None
    nothing = ((0, 0),) * windows.ndim
    if isinstance(node, ViewNode) and isinstance(node.view, Composition) and node.view.padding is not None:
        boundary = _boundary(node.view.padding, node.inputs[0].shape, windows)
        if boundary is not None:
            return Slid(node.inputs[0], windows, node.view.padding.widths, boundary)
    return Slid(node, windows, nothing, ("none",) * windows.ndim)


def _boundary(padding: Padding, shape: Shape, windows: Windows) -> tuple[Boundary, ...] | None:
    """The boundary along each axis that is the same as what was padded; None if there is none."""
    found: list[Boundary] = []
    for n, (before, after), values, reach in zip(shape, padding.widths, padding.values, windows.reach, strict=True):
        deepest = max(before, reach - before)
        if before + after > reach or n + before + after <= reach:
            return None
        if not before + after:
            found.append("none")
        elif padding.mode == "constant":
            same = [value for value, width in zip(values, (before, after), strict=True) if width]
            if any(value.tobytes() != same[0].tobytes() for value in same):
                return None
            found.append(same[0].item())
        elif deepest > n - (padding.mode == "reflect"):
            return None
        else:
            found.append(BOUNDARY[padding.mode])
    return tuple(found)


def reduced_by(how: Aggregation, windows: Windows) -> ByDoubling | ByPlace:
    """What reduces windows, by an aggregation."""
    return ByDoubling(how.brief or how, windows) if how.placeless else ByPlace(how, windows)


def declare_windows(
    of: Callable[[ArraySpec, Windows], ByDoubling | ByPlace | ByLine | ByRank | ByWeights],
    which: Slid,
    keepdims: bool = False,
    first: tuple[None, ...] = (),
) -> Declare:
    """Declare a reduction of windows, given the spec of all windows; a result may have dimensions of its own `first`.

    It is a stencil: the result's place along an axis is that of the window's first element.
    """

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        (spec,) = specs
        windows = which.windows
        halo = [(before, more - before) for (before, _), more in zip(which.widths, windows.reach, strict=True)]
        extents = which.spec(spec).shape[: windows.ndim]
        every = tuple(range(windows.ndim))
        operand = with_halo(replace(nest([spec.shape]).operands[0], axes=every), spec, halo, which.boundary)
        op = replace(nest([extents]), operands=(operand,))
        kernel = WindowKernel(of(which.spec(spec), windows), windows, tuple(halo), keepdims)
        axes = (*first, *every, *((None,) * len(windows.dims) if keepdims else ()))
        return Declared(op, kernel, axes)

    return declare


def added(x: Any, axis: int) -> Any:
    """Sums of neighbours along an axis, in the array's own dtype, where there are any."""
    node = node_of(x)
    if node.shape[axis] < 2:
        before = (slice(None),) * axis
        return x[(*before, slice(0, 0))]
    which = slid(type(x)(windowed(node, Windows(len(node.shape), (axis,), (2,)))), (len(node.shape),))
    assert which is not None
    pairs = declare_windows(lambda spec, of: ByLine(_sum_of_two, of), which)
    request = Request(pairs, (type(x)(which.node),), Options())
    found = type(x)(op_node(request, "add", ("added", node, axis)))
    return remembered(found, added, (x, axis), {}, ())


def _sum_of_two(pairs: Any) -> Any:
    return pairs[..., 1] + pairs[..., 0]


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """As `numpy.convolve`, of a line and one in memory."""
    a, v = (v, a) if isinstance(v, Lazy) and not isinstance(a, Lazy) else (a, v)
    check_eager("np.convolve", v=v)
    return remembered(_weighed("convolve", a, elements_of(v)[::-1], mode), convolve, (a, v, mode), {}, ())


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """As `numpy.correlate`, of a line and one in memory."""
    check_eager("np.correlate", v=v)
    return remembered(_weighed("correlate", a, elements_of(v).conj(), mode), correlate, (a, v, mode), {}, ())


def _weighed(name: str, a: Any, weights: np.ndarray, mode: str) -> Any:
    """Sums of a line's windows, weighed: each in the order of its elements, so that integers are exact."""
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"mode={mode!r} must be 'full', 'same' or 'valid'")
    if len(a.shape) != 1 or weights.ndim != 1:
        raise ArgumentError(f"np.{name} takes arrays of 1 dimension, not of {len(a.shape)} and {weights.ndim}")
    n, k = a.shape[0], len(weights)
    if not (n and k):
        raise ArgumentError(f"np.{name} of {n} elements and {k} in memory: neither can be empty")
    if weights.dtype.kind not in "biufc" or not np.isfinite(weights).all():
        raise ArgumentTypeError(f"np.{name}: the array in memory must hold finite numbers")
    if k > n:  # the same line with zeros behind it, without what these add
        first, number = {
            "full": (0, n + k - 1),
            "same": (n // 2 if name == "correlate" else (n - 1) // 2, k),
            "valid": (n - 1, k - n + 1),
        }[mode]
        return _weighed(name, pad(a, (0, k - n)), weights, "full")[first : first + number]
    before = {"full": k - 1, "same": k // 2, "valid": 0}[mode]
    after = {"full": k - 1, "same": k - 1 - k // 2, "valid": 0}[mode]
    padded = pad(a, (before, after)) if before + after else a
    windows = type(a)(windowed(node_of(padded), Windows(1, (0,), (k,))))
    which = slid(windows, (1,))
    assert which is not None
    key = (name, node_of(a), mode, weights.dtype, weights.tobytes())
    return type(a)(op_node(weighted(which, weights, type(a), Options()), name, key))


def weighted(which: Slid, weights: np.ndarray, kind: Callable[[Node], Any], options: Options) -> Request:
    """Request of the sums of windows' elements, weighed: as products of them with the weights, which are in memory."""

    def of(spec: ArraySpec, windows: Windows) -> ByWeights:
        result = np.result_type(spec.dtype, weights.dtype)
        return ByWeights(weights, windows, working(result), result)

    return Request(declare_windows(of, which), (kind(which.node),), options)
