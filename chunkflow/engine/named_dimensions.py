"""New outputs have the names of the dimensions of what they are made of, as far as their axes are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from chunkflow.core import chunking
from chunkflow.core.chunking import Chunks
from chunkflow.core.nest import LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.kernels.declare import Declared
from chunkflow.stores.named import name_axes, takes_names
from chunkflow.stores.new_array import labels_of
from chunkflow.stores.protocol import Source, Target

Names = list[str | None]
"""Names of an array's axes, as far as they are known."""


def name_dimensions(
    targets: Sequence[Target],
    declared: Declared,
    nest: LoopNest,
    sources: Sequence[Source],
    outputs: Sequence[ArraySpec],
    chunks: Chunks = None,
) -> None:
    """Name the axes of new outputs after those of the sources along which the operation walks with them.

    The rest is as for `names_of`.
    """
    if any(map(takes_names, targets)):
        found = names_of(declared, nest, sources, outputs, chunks)
        for target, names, output in zip(targets, found, outputs, strict=True):
            name_axes(target, names, output.shape)


def names_of(
    declared: Declared,
    nest: LoopNest,
    sources: Sequence[Source],
    outputs: Sequence[ArraySpec],
    chunks: Chunks = None,
) -> Iterator[Names]:
    """The names of each output's axes.

    An axis has no name where nothing is known of it, where its length is another, or where sources have different
    names. A function that gets an axis whole, by its `chunks`, may have made another one of it: a transform does.
    """
    extents = nest.extents
    lengths = zip(declared.axes, chunking.lengths(chunks, len(declared.axes)), strict=True)
    whole = {a for a, n in lengths if a is not None and (n == "whole" or (n != "auto" and n >= extents[a]))}
    unknown = set() if _keeps_axes(declared.kernel) else whole
    found: dict[int, set[str]] = {}
    for source, operand in zip(sources, nest.operands, strict=True):
        known = labels_of(source).dimension_names or ()
        for name, axis, n in zip(known, operand.axes, source.spec.shape, strict=False):
            if axis is not None and axis not in unknown and name is not None and n == extents[axis]:
                found.setdefault(axis, set()).add(name)
    for i, output in enumerate(outputs):
        axes = declared.axes_of(i)
        walked = zip(axes, output.shape, strict=True) if len(axes) == len(output.shape) else ()
        each = [found.get(a, set()) if a is not None and n == extents[a] else set() for a, n in walked]
        yield [next(iter(some)) if len(some) == 1 else None for some in each]


def _keeps_axes(kernel: Any) -> bool:
    """Whether a function is known to leave axes what they are: one of NumPy's of elements, or one of ours."""
    fn = getattr(getattr(kernel, "kernel", kernel), "fn", None)
    fn = fn.func if isinstance(fn, partial) else fn
    return fn is None or isinstance(fn, np.ufunc) or str(getattr(fn, "__module__", "")).startswith("chunkflow.")
