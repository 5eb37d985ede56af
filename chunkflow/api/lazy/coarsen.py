"""Coarsening: reductions of neighbouring elements, so many along each axis, that do not overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from chunkflow.api import mapping
from chunkflow.api.lazy import numpy_dispatch
from chunkflow.api.operation import (
    BudgetLike,
    Chunks,
    MultiPass,
    Options,
    ProgressLike,
    Request,
    check_eager,
    check_int,
    check_passed,
    description_of,
    is_operation,
    operation,
)
from chunkflow.api.rearrange.move import moved
from chunkflow.core.axes import normalize_axes
from chunkflow.core.cuts import AxisCut, AxisSlice
from chunkflow.core.grid import Shape
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.nodes import Lazy, as_source
from chunkflow.graph.reshaping import Split
from chunkflow.graph.slicing import Slice
from chunkflow.stores import spec_of


@operation
def coarsen(
    reduction: Callable[..., Any],
    x: Any,
    axes: Mapping[int, int],
    trim_excess: bool = False,
    *,
    chunks: Chunks = None,
    out: Any = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = None,
    overwrite: bool = False,
    sync: bool | None = None,
    resume: bool = False,
    name: str | None = None,
    checksum: bool | None = None,
    **kwargs: Any,
) -> Request | MultiPass:
    """Reduce boxes of neighbours that do not overlap, as `dask.array.coarsen`: a smaller array of the same kind.

    The array is read once, and is not copied.

    Parameters
    ----------
    reduction : callable
        A reduction of NumPy's or chunkflow's, such as ``np.mean``, or a function ``fn(block, axis=axes, **kwargs)`` of
        one's own, which gets blocks with twice the axes: those of the boxes, and `axes` within them.
    axes : dict of int to int
        Elements of a box along each axis; along others boxes have one.
    trim_excess : bool
        Whether elements that fill no box are left out; else they are refused.
    **kwargs
        Passed to `reduction`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An axis that `x` does not have, boxes of no element, an axis that boxes do not fill.

    Examples
    --------
    >>> cf.coarsen(np.mean, np.arange(10.0), {0: 4}, trim_excess=True, device="cpu")
    array([1.5, 5.5])
    """
    if not callable(reduction):
        raise ArgumentTypeError(f"reduction must be callable, not a {type(reduction).__name__}")
    check_eager("coarsen", axes=axes)
    ours = numpy_dispatch.FUNCTIONS.get(reduction, reduction)
    check_passed("coarsen", kwargs, ours)
    run = {"out": out, "budget": budget, "device": device, "overwrite": overwrite, "progress": progress}
    run |= {"sync": sync, "resume": resume, "name": name, "checksum": checksum}
    parts = _boxes(spec_of(x).shape, axes, trim_excess=bool(trim_excess))
    within = [sum(map(len, parts[: a + 1])) - 1 for a, part in enumerate(parts) if len(part) > 1]
    named = {"axis": within[0] if len(within) == 1 else tuple(within), **kwargs}
    if not is_operation(ours):
        named = {"drop_axis": tuple(within)}
        reduction = functools.partial(reduction, axis=tuple(within), **kwargs)
        ours = functools.partial(mapping.map, reduction)
    given = named if chunks is None else {**named, "chunks": chunks}
    cuts: list[AxisCut] = [AxisSlice(0, part[0] * part[-1] if len(part) > 1 else part[0], 1) for part in parts]
    x = as_source(x, out)
    if isinstance(x, Lazy):
        trimmed: Any = x[tuple([slice(0, cut.number) for cut in cuts])]  # type: ignore[index]
        return moved(ours(trimmed.reshape([n for part in parts for n in part]), **given), Options(**run))
    view = Split([Slice([x], tuple(cuts))], parts)
    if isinstance(ours, functools.partial):
        return description_of(mapping.map, (reduction, view), {**given, **run})
    return description_of(ours, (view,), {**given, **run})


def _boxes(shape: Shape, axes: Any, *, trim_excess: bool) -> tuple[Shape, ...]:
    """For each axis the number of boxes and the elements of one; the latter are left out where boxes have one."""
    if not isinstance(axes, Mapping):
        raise ArgumentTypeError(f"axes={axes!r} must be a dict from axis to number of elements, as {{0: 4}}")
    found: list[Shape] = [(n,) for n in shape]
    for axis, number in axes.items():
        (along,) = normalize_axes(axis, len(shape), "axes")
        n = shape[along]
        box = check_int(f"axes[{axis}]", number, 1)
        if len(found[along]) > 1:
            raise ArgumentError(f"axes={axes!r} names an axis twice")
        if n % box and not trim_excess:
            raise ArgumentError(
                f"boxes of {box} do not fill the {n} elements of axis {along}: trim_excess=True leaves {n % box} out"
            )
        found[along] = (n // box, box)
    return tuple(found)
