"""Slices of arrays and of expressions: only the elements that a slice picks are computed.

A slice of an elementwise operation is the operation on slices of its inputs. Any other slice is a view of a result
that is stored.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.options import Options
from chunkflow.errors import UnsupportedError
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import ItemNode, Lazy, Node, OpNode, ViewNode, interned, key_of
from chunkflow.graph.request import Request
from chunkflow.kernels.declare import Stretched, declare_broadcast, declare_squeezed, declare_widened
from chunkflow.kernels.map import SLOT
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.footprint import AxisSlice
from chunkflow.stores.views.sliced import SlicedSource, sliced_spec

FIRST = AxisSlice(0, 1, 1)
"""The one element of an axis of length 1."""


@dataclass(frozen=True)
class Slice:
    """A `View` of every n-th element of an array along each axis."""

    arrays: Sequence[Any]
    cuts: tuple[AxisSlice, ...]

    def on(self, arrays: Sequence[Any]) -> Slice:
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return sliced_spec(spec_of(self.arrays[0]), self.cuts)

    def __chunkflow_source__(self) -> Source:
        return SlicedSource(open_source(self.arrays[0]), self.cuts)


def indexed(node: Node, index: Any) -> Node:
    """The node of ``array[index]``: integers, slices, an ellipsis and new axes.

    Raises
    ------
    IndexError
        There is no such element or axis.
    UnsupportedError
        The index is an array: the shape or order of the result depends on its elements.
    """
    cuts: list[AxisSlice] = []
    removed: list[int] = []
    new: list[int] = []
    shape = node.shape
    for entry in _entries(index, len(shape)):
        if entry is None:
            new.append(len(cuts) - len(removed) + len(new))
            continue
        axis, n = len(cuts), shape[len(cuts)]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(n)
            cuts.append(AxisSlice(start, len(range(start, stop, step)), step))
            continue
        i = operator.index(entry)
        if not -n <= i < n:
            raise IndexError(f"index {i} is out of bounds for axis {axis} with {n} elements")
        cuts.append(AxisSlice(i % n, 1, 1))
        removed.append(axis)
    found = sliced(node, cuts)
    if removed:
        found = viewed(found, declare_squeezed(removed), "squeeze", tuple(removed))
    return viewed(found, declare_widened(new), "expand_dims", tuple(new)) if new else found


def _entries(index: Any, ndim: int) -> list[Any]:
    """The checked entries of an index of an array with so many dimensions, slices in the place of an ellipsis."""
    entries = list(index) if isinstance(index, tuple) else [index]
    for entry in entries:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            continue
        if isinstance(entry, bool | np.bool_) or not hasattr(entry, "__index__") or getattr(entry, "shape", ()) != ():
            what = f"dtype {entry.dtype}" if hasattr(entry, "dtype") else type(entry).__name__
            raise UnsupportedError(
                f"x[...] with an index of {what}: integers, slices, ... and None are supported. For a mask use "
                "np.where(mask, x, other), or where= of a reduction; for a list of places compute(), then index"
            )
    ellipses = sum(entry is Ellipsis for entry in entries)
    if ellipses > 1:
        raise IndexError("an index can only have one ellipsis ('...')")
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > ndim:
        raise IndexError(f"too many indices: the array has {ndim} dimensions and {used} were indexed")
    if not ellipses:
        entries.append(Ellipsis)
    at = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
    entries[at : at + 1] = [slice(None)] * (ndim - used)
    return entries


def sliced(node: Node, cuts: Sequence[AxisSlice]) -> Node:
    """The node of some of an array's elements along each axis. Slices of slices give the node of the composed slice."""
    of, known = node, None
    if isinstance(node, Sliced):
        of, known = node.origin, node.cuts
    elif isinstance(node, ViewNode) and isinstance(node.view, Slice):
        of, known = node.inputs[0], node.view.cuts
    then = zip(known or [AxisSlice(0, n, 1) for n in node.shape], cuts, strict=True)
    composed = [(a + i * s, n, s * t) for (a, _, s), (i, n, t) in then]
    exact = tuple(AxisSlice(*((i, n, t) if n > 1 else (i, 1, 1) if n else (0, 0, 1))) for i, n, t in composed)
    if all(cut == (0, n, 1) for cut, n in zip(exact, of.shape, strict=True)):
        return of
    key = (Slice, of, exact)
    if isinstance(of, OpNode) and (emptied := _emptied(of, exact)) is not None:
        return interned(key, lambda: Sliced(of, exact, emptied))
    if isinstance(of, ItemNode) and _emptied(of.op, exact) == ():
        op = sliced(of.op, exact)
        assert isinstance(op, OpNode)
        return op.item(of.item)
    view = Slice([Lazy(of)], exact)
    return interned(key, lambda: ViewNode(f"{of.name}[...]", view, [of], view.__chunkflow_spec__()))


def _emptied(op: OpNode, cuts: Sequence[AxisSlice]) -> Shape | None:
    """Which of the dimensions that only the result has are cut to nothing by a slice.

    None if the slice cannot be computed from slices of the inputs.
    """
    if not op.aligned:
        return None
    declared, nest = op.declared, op.declared.nest
    if any(operand.halo for operand in nest.operands) or declared.wants:
        return None
    if isinstance(declared.kernel, Stretched):
        return ()
    followed = {a for operand in nest.operands for a in operand.axes}
    sides = [(a not in followed, nest.extents[a]) for a in declared.axes if a is not None]
    cut = tuple(d for d, (new, n) in enumerate(sides) if new and cuts[d] != (0, n, 1))
    return cut if all(sides[d][1] == 1 for d in cut) else None


class Sliced(OpNode):
    """A slice of the operation `origin`: the same operation on slices of its inputs.

    The inputs are sliced only when they are asked for. An expression may be sliced step by step, as in a difference
    equation: then only the last step's slices are needed, and every step would slice all inputs below it again.
    """

    def __init__(self, origin: OpNode, cuts: tuple[AxisSlice, ...], emptied: Shape) -> None:
        self.origin, self.cuts, self.emptied = origin, cuts, emptied
        self.name, self.dtype_known = origin.name, origin.dtype_known
        self.args = origin.args
        self.request = replace(origin.request, arrays=())
        if emptied:  # a new axis has length 1 whatever the inputs are: the rest is broadcast to the empty shape
            self.args = (SLOT,)
            self.request = Request(declare_broadcast(self.shape), (), Options(), shapes_only=True)
        elif isinstance(origin.declared.kernel, Stretched):
            self.request = replace(self.request, declare=declare_broadcast(self.shape))

    @cached_property
    def inputs(self) -> tuple[Node, ...]:  # type: ignore[override]
        if self.emptied:
            cuts = [FIRST if d in self.emptied else cut for d, cut in enumerate(self.cuts)]
            return (sliced(self.origin, cuts),)
        declared = self.origin.declared
        along = dict(zip(declared.axes, self.cuts, strict=True))
        pairs = zip(self.origin.inputs, declared.nest.operands, strict=True)
        return tuple(sliced(child, [FIRST if a is None else along[a] for a in o.axes]) for child, o in pairs)

    @cached_property
    def specs(self) -> tuple[ArraySpec, ...]:
        """See `OpNode.specs`. There is no other trial: a slice's specs are those of its origin, cut."""
        found = tuple(sliced_spec(spec, self.cuts) for spec in self.origin.specs)
        self.dtype_known = True
        return found

    @property
    def shape(self) -> Shape:
        return tuple(number for _, number, _ in self.cuts)


def viewed(node: Node, declare: Any, name: str, given: Any) -> Node:
    """The node of an array with other axes."""
    request = Request(declare, [Lazy(node)], Options(), shapes_only=True)
    made = op_node(request, name, key_of(name, (Lazy(node), given), {}))
    made.check()
    return made
