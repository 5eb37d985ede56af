"""New outputs have the names of the dimensions of what they are made of, as far as their axes are the same."""

from __future__ import annotations

from collections.abc import Sequence

from chunkflow.core.nest import LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.kernels.declare import Declared
from chunkflow.stores.named import name_axes, takes_names
from chunkflow.stores.new_array import labels_of
from chunkflow.stores.protocol import Source, Target


def name_dimensions(
    targets: Sequence[Target],
    declared: Declared,
    nest: LoopNest,
    sources: Sequence[Source],
    outputs: Sequence[ArraySpec],
) -> None:
    """Name the axes of new outputs after those of the sources along which the operation walks with them.

    An axis has no name where nothing is known of it, where its length is another, or where sources have different
    names.
    """
    if not any(map(takes_names, targets)):
        return
    extents = nest.extents
    found: dict[int, set[str]] = {}
    for source, operand in zip(sources, nest.operands, strict=True):
        names = labels_of(source).dimension_names or ()
        for name, axis, n in zip(names, operand.axes, source.spec.shape, strict=False):
            if axis is not None and name is not None and n == extents[axis]:
                found.setdefault(axis, set()).add(name)
    for i, (target, output) in enumerate(zip(targets, outputs, strict=True)):
        axes = declared.axes_of(i)
        if len(axes) == len(output.shape):
            walked = zip(axes, output.shape, strict=True)
            each = [found.get(a, set()) if a is not None and n == extents[a] else set() for a, n in walked]
            name_axes(target, [next(iter(names)) if len(names) == 1 else None for names in each], output.shape)
