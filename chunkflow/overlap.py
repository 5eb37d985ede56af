"""Stencils: functions of blocks that overlap their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chunkflow.budget import BudgetLike
from chunkflow.chunking import Chunks
from chunkflow.declare import Declare, Declared
from chunkflow.errors import ArgumentTypeError
from chunkflow.ops.map import nest, output_axes
from chunkflow.ops.overlap import Overlap, boundaries, depths, each, with_halo
from chunkflow.prepare import Options
from chunkflow.progress import ProgressLike
from chunkflow.run import Request, operation
from chunkflow.spec import ArraySpec


@operation
def map_overlap(
    fn: Callable[..., Any],
    *arrays: Any,
    depth: Any,
    boundary: Any = "none",
    trim: bool = True,
    out: Any = None,
    budget: BudgetLike = None,
    dtype: Any = None,
    chunks: Chunks = None,
    workspace: float | None = None,
    device: Any = None,
    progress: ProgressLike = False,
    overwrite: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply a function to blocks that overlap: stencils, filters, derivatives.

    Each block is handed to `fn` with `depth` elements of its neighbours around it. Elements that the block
    before has on the device already are copied there, not read again: where blocks are slabs, every element
    is read once. Where a full plane does not fit the budget, blocks are cut so that as little as possible is
    read twice; `explain` and the report say how much.

    Parameters
    ----------
    fn : callable
        Called as ``fn(*blocks, **kwargs)`` with blocks and their halos. With `trim` it returns an array (or a
        tuple) of its blocks' shape, from which the halo is cut; otherwise it does so itself. See `map`.
    *arrays
        As for `map`; they broadcast.
    depth : int, tuple, dict or list
        Elements of the neighbours that `fn` sees: for all axes, for each axis, or by axis (others have none); each
        an int or a pair ``(before, after)``. A list has one of these for each array. It may be larger than a block.
    boundary : str, number, tuple, dict or list
        What lies beyond the edges of an array, for all axes, each axis, or by axis; a list for each array:

        ============  ====================  =====================  =======================
        boundary      a b c d, depth 2      `numpy.pad` mode       `scipy.ndimage` mode
        ============  ====================  =====================  =======================
        ``"none"``    nothing: blocks at the edge are smaller
        a number k    k k a b c d k k       ``"constant"``         ``"constant"``
        "nearest"     a a a b c d d d       ``"edge"``             ``"nearest"``
        "reflect"     b a a b c d d c       ``"symmetric"``        ``"reflect"``
        "mirror"      c b a b c d c b       ``"reflect"``          ``"mirror"``
        "periodic"    c d a b c d a b       ``"wrap"``             ``"grid-wrap"``
        ============  ====================  =====================  =======================

        "reflect" and "none" are dask's words for the same; dask has no "mirror".
    trim : bool
        Whether the halo is cut from what `fn` returns: as deep as the deepest array's along each axis, and
        not beyond an edge whose boundary is "none".
    chunks : int or tuple, optional
        Shape of the blocks without their halos, as for `map`.
    out, budget, dtype, workspace, device, progress, overwrite, **kwargs
        As for `map`. `out` may not be one of the inputs: neighbours are still to read it.

    Returns
    -------
    array or tuple of arrays
        `out`, opened where it was a path.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A depth or boundary that is none, or a depth larger than the array with "reflect" (n), "mirror" (n - 1)
        or "periodic" (n).
    BudgetError, ResultError, ReadError, WriteError
        As for `map`.

    Examples
    --------
    A second difference along the first axis, of a field that is periodic:

    >>> import numpy as np, chunkflow as cf
    >>> x = np.sin(np.linspace(0, 2 * np.pi, 100, endpoint=False))[:, None] * np.ones(50)
    >>> def laplacian(u):
    ...     return np.roll(u, 1, 0) - 2 * u + np.roll(u, -1, 0)
    >>> y = cf.map_overlap(laplacian, x, depth={0: 1}, boundary="periodic", device="cpu")
    >>> np.allclose(y, laplacian(x))
    True
    """
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}")
    options = Options(out, budget, dtype, chunks, workspace, device, overwrite)
    return Request(_declare(fn, kwargs, depth, boundary, trim), arrays, options, progress)


def _declare(fn: Callable[..., Any], kwargs: dict[str, Any], depth: Any, boundary: Any, trim: bool) -> Declare:
    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = nest([s.shape for s in specs])
        wanted, operands = [], []
        both = zip(each(depth, len(specs), "depth"), each(boundary, len(specs), "boundary"), strict=True)
        for (deep, kind), spec, operand in zip(both, specs, op.operands, strict=True):
            halo = depths(deep, len(spec.shape))
            wanted.append(halo)
            operands.append(with_halo(operand, spec, halo, boundaries(kind, spec)))
        cut = [(0, 0)] * len(op.extents)
        for operand, halo in zip(operands, wanted, strict=True):
            for axis, (before, after) in zip(operand.axes, halo, strict=True):
                if axis is not None:
                    cut[axis] = max(cut[axis][0], before), max(cut[axis][1], after)
        axes = output_axes(len(op.extents))
        kernel = Overlap(fn, args, kwargs, axes, depth=tuple(wanted), trim=tuple(cut) if trim else None)
        return Declared(replace(op, operands=tuple(operands)), kernel, axes, tiles=not kernel.wants)

    return declare
