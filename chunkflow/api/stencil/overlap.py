"""Stencils: functions of blocks that overlap their neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chunkflow.api.mapping import block_operation
from chunkflow.api.operation import (
    ArraySpec,
    BudgetLike,
    Chunks,
    Declare,
    Declared,
    MultiPass,
    Options,
    ProgressLike,
    Request,
    check_int,
    check_passed,
    description_of,
)
from chunkflow.api.stencil.iterate import Iteration
from chunkflow.api.stencil.steps_per_pass import IterationPlan
from chunkflow.core.nest import nest, output_axes
from chunkflow.engine.dry_run import named
from chunkflow.errors import ArgumentError, ArgumentTypeError, AxisError
from chunkflow.kernels.stencil.overlap import Overlap, boundaries, depths, each, with_halo


@block_operation
def map_overlap(
    fn: Callable[..., Any],
    *arrays: Any,
    depth: Any,
    boundary: Any = "none",
    trim: bool = True,
    iterations: int = 1,
    steps_per_pass: int | None = None,
    out: Any = None,
    budget: BudgetLike = None,
    dtype: Any = None,
    chunks: Chunks = None,
    workspace: float | None = None,
    device: Any = None,
    progress: ProgressLike = None,
    overwrite: bool = False,
    sync: bool | None = None,
    resume: bool = False,
    name: str | None = None,
    checksum: bool | None = None,
    **kwargs: Any,
) -> Request | MultiPass:
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
        If values of a small block show that it is not enough, a `BlockEdgeWarning` names one that is.
    boundary : str, number, tuple, dict or list
        What lies beyond the edges of an array, for all axes, each axis, or by axis; a list for each array:

        ============  ====================  =====================  =======================
        boundary      a b c d, depth 2      `numpy.pad` mode       `scipy.ndimage` mode
        ============  ====================  =====================  =======================
        "none"        nothing beyond edges  none                   none
        a number k    k k a b c d k k       ``"constant"``         ``"constant"``
        "nearest"     a a a b c d d d       ``"edge"``             ``"nearest"``
        "reflect"     b a a b c d d c       ``"symmetric"``        ``"reflect"``
        "mirror"      c b a b c d c b       ``"reflect"``          ``"mirror"``
        "periodic"    c d a b c d a b       ``"wrap"``             ``"grid-wrap"``
        ============  ====================  =====================  =======================

        "reflect" and "none" are dask's words for the same; dask has no "mirror".
        With "none" blocks at the edge are smaller.
    trim : bool
        Whether the halo is cut from what `fn` returns: as deep as the deepest array's along each axis, and
        not beyond an edge whose boundary is "none".
    iterations : int
        How often `fn` is applied, as a simulation is stepped: each time to the last result instead of the first array,
        to the others as they are. The result is that of so many calls, to the bit. It needs `trim`, one result of
        the first array's shape, and a dtype that is the same from the first step on.
    steps_per_pass : int, optional
        Iterations in one pass over the arrays. Blocks are then read with a halo that many times as deep. The array is
        read and written less often, and elements near a block's border are computed by both neighbours. By default the
        number that the model predicts to be fastest, which `iteration_plan` shows; never so many that a periodic axis
        is wrapped around twice. Between passes the array is kept in temporary files beside a path in `out`; otherwise
        in host memory, where an array in `out` is one of the two that are written alternately.
    chunks : int or tuple, optional
        Shape of the blocks without their halos, as for `map`.
    out : array, str, path, tuple of these, or None
        As for `map`; it may not be one of the inputs: neighbours are still to read it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        A depth or boundary that is none, or a depth larger than the array with "reflect" (n), "mirror" (n - 1)
        or "periodic" (n). Less than one iteration, or several without `trim`.

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

    Heat that spreads for ten steps:

    >>> def step(u):
    ...     return u + 0.25 * laplacian(u)
    >>> z = cf.map_overlap(step, x, depth={0: 1}, boundary="periodic", iterations=10, device="cpu")
    >>> bool(np.abs(z).max() < np.abs(x).max())
    True
    """
    if not callable(fn):
        raise ArgumentTypeError(f"fn must be callable, not a {type(fn).__name__}: the function comes before the arrays")
    check_passed("map_overlap", kwargs, fn)
    options = Options(
        out, budget, dtype, chunks, workspace, device, overwrite, progress, None, sync, resume, name, checksum
    )
    once = Request(
        declare_overlap(fn, kwargs, depth, boundary, trim=trim, chosen=True), arrays, options, fn=fn, keeps=True
    )
    steps = None if steps_per_pass is None else check_int("steps_per_pass", steps_per_pass, 1)
    if check_int("iterations", iterations, 1) == 1:
        return once
    if not trim:
        raise ArgumentError("iterations need trim=True: each step's result is the next one's array, without its halo")
    return Iteration(fn, kwargs, depth, boundary, arrays, options, int(iterations), steps).described(once)


def iteration_plan(fn: Callable[..., Any], *arrays: Any, iterations: int, **options: Any) -> IterationPlan:
    """Plan of `map_overlap` with several iterations. Nothing is written.

    Parameters
    ----------
    fn, *arrays, iterations, **options
        As for `map_overlap`.

    Returns
    -------
    IterationPlan
        Steps of each pass, bytes read and written in all, and each pass's plan; ``str()`` of it is meant for people.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BudgetError
        As for `map_overlap`; less than two iterations, of which `explain` shows the plan.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = np.ones((100, 100))
    >>> plan = cf.iteration_plan(np.copy, x, depth=1, boundary=0, iterations=8, steps_per_pass=4, device="cpu")
    >>> plan.passes, plan.bytes_read == 2 * x.nbytes
    (2, True)
    """
    asked = description_of(map_overlap, (fn, *arrays), {"iterations": iterations, **options})
    if not isinstance(asked, MultiPass) or asked.plan is None:
        raise ArgumentError(f"iterations={iterations} make one pass: use chunkflow.explain, which shows its plan")
    plan = named(asked.plan, asked.options, asked.plan_all)
    assert isinstance(plan, IterationPlan)
    return plan


def declare_overlap(
    fn: Callable[..., Any], kwargs: dict[str, Any], depth: Any, boundary: Any, *, trim: bool, chosen: bool = False
) -> Declare:
    """Declare `map_overlap`, and functions of ours that are one."""

    def declare(specs: Sequence[ArraySpec], args: tuple[Any, ...]) -> Declared:
        op = nest([s.shape for s in specs])
        wanted, operands = [], []
        both = zip(each(depth, len(specs), "depth"), each(boundary, len(specs), "boundary"), strict=True)
        for number, ((deep, kind), spec, operand) in enumerate(zip(both, specs, op.operands, strict=True)):
            try:
                halo = depths(deep, len(spec.shape))
            except AxisError as error:
                which = f"of array {number} ({spec.name}); a list in depth= has one for each array"
                raise AxisError(f"{error}, {which}") from None
            wanted.append(halo)
            operands.append(with_halo(operand, spec, halo, boundaries(kind, spec)))
        cut = [(0, 0)] * len(op.extents)
        for operand, halo in zip(operands, wanted, strict=True):
            for axis, (before, after) in zip(operand.axes, halo, strict=True):
                if axis is not None:
                    cut[axis] = max(cut[axis][0], before), max(cut[axis][1], after)
        axes = output_axes(len(op.extents))
        kernel = Overlap(fn, args, kwargs, axes, depth=tuple(wanted), trim=tuple(cut) if trim else None, chosen=chosen)
        return Declared(replace(op, operands=tuple(operands)), kernel, axes, tiles=not kernel.wants)

    return declare
