"""Some elements of arrays and of expressions along each axis: only these are computed.

A slice of an elementwise operation is the operation on slices of its inputs. Any other slice is a view of a result
that is stored. The same holds for elements at places along an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from chunkflow.core.cuts import AxisCut, AxisPlaces, AxisSlice, cut_again, is_whole, places_of, split
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.options import Options
from chunkflow.graph.create import line
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import ItemNode, Lazy, Node, OpNode, SourceNode, ViewNode, interned, key_of
from chunkflow.graph.request import Request
from chunkflow.kernels.create import Line
from chunkflow.kernels.declare import Stretched, declare_broadcast, declare_widened
from chunkflow.kernels.map import SLOT, MapKernel
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.views.sliced import SlicedSource, sliced_spec
from chunkflow.stores.views.taken import PointsSource, TakenSource, pointed_spec, taken_spec

FIRST = AxisSlice(0, 1, 1)
"""The one element of an axis of length 1."""


@dataclass(frozen=True)
class Slice:
    """A `View` of some elements of an array along each axis."""

    arrays: Sequence[Any]
    cuts: tuple[AxisCut, ...]

    def on(self, arrays: Sequence[Any]) -> Slice:
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return _cut_spec(spec_of(self.arrays[0]), self.cuts)

    def __chunkflow_source__(self) -> Source:
        source = open_source(self.arrays[0])
        slices, places = split(self.cuts, source.spec.shape)
        if not all(map(is_whole, slices, source.spec.shape)):
            source = SlicedSource(source, slices)
        return source if all(p is None for p in places) else TakenSource(source, places)

    @property
    def still(self) -> tuple[bool, ...]:
        """For each axis whether elements have the places along it that they have in the array."""
        return tuple(map(is_whole, self.cuts, spec_of(self.arrays[0]).shape))


def _cut_spec(spec: ArraySpec, cuts: Sequence[AxisCut]) -> ArraySpec:
    """Spec of some elements of an array along each axis."""
    slices, places = split(cuts, spec.shape)
    found = sliced_spec(spec, slices)
    return found if all(p is None for p in places) else taken_spec(found, places)


@dataclass(frozen=True)
class Points:
    """A `View` of the elements of an array at points, as `chunkflow.stores.views.taken.PointsSource` has them."""

    arrays: Sequence[Any]
    axes: tuple[int, ...]
    points: np.ndarray
    at: int

    def on(self, arrays: Sequence[Any]) -> Points:
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return pointed_spec(spec_of(self.arrays[0]), self.axes, self.points, self.at)

    def __chunkflow_source__(self) -> Source:
        return PointsSource(open_source(self.arrays[0]), self.axes, self.points, self.at)


def sliced(node: Node, cuts: Sequence[AxisCut]) -> Node:
    """The node of some of an array's elements along each axis. Slices of slices give the node of the composed slice."""
    of, known = node, tuple[AxisCut, ...](AxisSlice(0, n, 1) for n in node.shape)
    if isinstance(node, Sliced):
        of, known = node.origin, node.cuts
    elif isinstance(node, ViewNode) and isinstance(node.view, Slice):
        of, known = node.inputs[0], node.view.cuts
    exact = tuple(map(cut_again, known, cuts))
    if all(map(is_whole, exact, of.shape)):
        return of
    if isinstance(of, OpNode) and isinstance(kernel := of.declared.kernel, Line):
        return _cut_line(kernel, exact[0])
    key = (Slice, of, exact)
    if isinstance(of, OpNode) and (emptied := _emptied(of, exact)) is not None:
        return interned(key, lambda: Sliced(of, exact, emptied))
    if isinstance(of, ItemNode) and _emptied(of.op, exact) == ():
        op = sliced(of.op, exact)
        assert isinstance(op, OpNode)
        return op.item(of.item)
    view = Slice([Lazy(of)], exact)
    return interned(key, lambda: ViewNode(f"{of.name}[...]", view, [of], view.__chunkflow_spec__()))


def _cut_line(kernel: Line, cut: AxisCut) -> Node:
    """Some of a line of integers: another line, or those integers in memory."""
    if isinstance(cut, AxisSlice):
        return line(kernel.start + kernel.step * cut.start, cut.number, kernel.step * cut.step, kernel.dtype)
    return SourceNode((kernel.start + kernel.step * places_of(cut)).astype(kernel.dtype, copy=False))


def _emptied(op: OpNode, cuts: Sequence[AxisCut]) -> Shape | None:
    """Which of the dimensions that only the result has are cut: to nothing, or to copies of their one element.

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
    cut = tuple(d for d, (new, n) in enumerate(sides) if new and not is_whole(cuts[d], n))
    return cut if all(sides[d][1] == 1 for d in cut) else None


class Sliced(OpNode):
    """A slice of the operation `origin`: the same operation on slices of its inputs.

    The inputs are sliced only when they are asked for. An expression may be sliced step by step, as in a difference
    equation: then only the last step's slices are needed, and every step would slice all inputs below it again.
    """

    def __init__(self, origin: OpNode, cuts: tuple[AxisCut, ...], emptied: Shape) -> None:
        self.origin, self.cuts, self.emptied = origin, cuts, emptied
        self.name, self.dtype_known = origin.name, origin.dtype_known
        self.args = origin.args
        self.request = replace(origin.request, arrays=())
        if emptied:  # a new axis has length 1 whatever the inputs are: the rest is broadcast to the shape
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
        found = tuple(_cut_spec(spec, self.cuts) for spec in self.origin.specs)
        self.dtype_known = True
        return found

    @property
    def shape(self) -> Shape:
        return tuple(cut.number for cut in self.cuts)


def view_of(array: Lazy) -> Any:
    """The view that an expression is of others, as of those of which it is a slice; None for any other."""
    node = array._node
    if isinstance(node, Sliced):
        return Slice([Lazy(node.origin)], node.cuts)
    return node.view if isinstance(node, ViewNode) else None


def pointed(node: Node, axes: Sequence[int], points: np.ndarray, at: int) -> Node:
    """The node of an array's elements at points: along the axis `at`, in the place of some axes.

    Of an elementwise operation only these are computed, of any other one those at the places along each axis.
    """
    op = node.op if isinstance(node, ItemNode) else node
    if isinstance(op, OpNode) and op.request.elementwise and not (isinstance(op, Sliced) and op.emptied):
        parts = iter([Lazy(_pointed_part(part, len(node.shape), axes, points, at)) for part in op.inputs])
        arrays = [next(parts) if a is SLOT else a for a in op.args]
        made = op_node(replace(op.request, arrays=arrays), op.name)
        return made.item(node.item) if isinstance(node, ItemNode) else made
    if not isinstance(node, SourceNode | ViewNode):  # it is stored, and then read at the points
        found = [np.unique(own, return_inverse=True) for own in points]
        cuts: list[AxisCut] = [AxisSlice(0, n, 1) for n in node.shape]
        for axis, (places, _) in zip(axes, found, strict=True):
            cuts[axis] = AxisPlaces(places)
        node, points = sliced(node, cuts), np.stack([inverse for _, inverse in found])
    view = Points([Lazy(node)], tuple(axes), points, at)
    key = (Points, node, view.axes, tuple(map(AxisPlaces, points)), at)
    return interned(key, lambda: ViewNode(f"{node.name}[...]", view, [node], view.__chunkflow_spec__()))


def _pointed_part(part: Node, ndim: int, axes: Sequence[int], points: np.ndarray, at: int) -> Node:
    """The node of an array's elements at the points of one of `ndim` dimensions that it is broadcast to."""
    missing = ndim - len(part.shape)
    own = [(axis - missing, places) for axis, places in zip(axes, points, strict=True) if axis >= missing]
    left, after = len(part.shape) - len(own), ndim - len(axes) - at  # dimensions of the result: its own, the last ones
    if not own:
        return part if left <= after else _widened(part, [left - after])
    places = np.stack([along if part.shape[axis] > 1 else np.zeros_like(along) for axis, along in own])
    made = pointed(part, [axis for axis, _ in own], places, max(left - after, 0))
    return _widened(made, range(1, 1 + after - left))


def _widened(node: Node, new: Sequence[int]) -> Node:
    return viewed(node, declare_widened(new), "expand_dims", tuple(new)) if new else node


def viewed(node: Node, declare: Any, name: str, given: Any) -> Node:
    """The node of an array with other axes."""
    request = Request(declare, [Lazy(node)], Options(), shapes_only=True)
    made = op_node(request, name, key_of(name, (Lazy(node), given), {}))
    made.check()
    return made


def unsqueezed(node: Node, axis: int) -> Node | None:
    """The node of which this one lacks an axis of length 1, as an item does; None of any other node."""
    if not isinstance(node, OpNode) or len(node.inputs) != 1:
        return None
    kernel = node.declared.kernel
    if not isinstance(kernel, MapKernel) or kernel.fn is not np.squeeze or kernel.kwargs.get("axis") != (axis,):
        return None
    return node.inputs[0]


def untransposed(node: Node) -> tuple[Node, Shape]:
    """The node of which transpositions are taken, and its axes in their order."""
    axes: Shape = tuple(range(len(node.shape)))
    while (order := _transposed_by(node)) is not None:
        axes = tuple([order[a] for a in axes])
        (node,) = node.inputs
    return node, axes


def _transposed_by(node: Node) -> Shape | None:
    """The order of the axes of a transposition of one array; None of anything else, as a user's function of blocks."""
    if (
        not isinstance(node, OpNode)
        or len(node.inputs) != 1
        or not isinstance(kernel := node.declared.kernel, MapKernel)
    ):
        return None
    nest, order = node.declared.nest, kernel.kwargs.get("axes")
    if kernel.fn is not np.transpose or len(nest.operands) != 1 or not isinstance(order, tuple):
        return None
    places = tuple([order.index(a) if a in order else None for a in range(len(order))])
    return order if nest.operands[0].axes == places else None
