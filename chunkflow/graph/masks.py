"""Masks that are expressions: computed and counted at once, since the number of elements decides on the shape.

What is kept of a mask is a bit for each of its elements. A later pass reads the wanted elements by these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.spec import ArraySpec
from chunkflow.engine.dry_run import is_dry
from chunkflow.engine.observe.progress import watching
from chunkflow.engine.options import Options
from chunkflow.graph.elementwise import mapped
from chunkflow.graph.evaluate import Evaluation, op_node, room
from chunkflow.graph.live import known_shape
from chunkflow.graph.nodes import ItemNode, Lazy, Node, OpNode, SourceNode, ViewNode, interned, source_of
from chunkflow.graph.unasked import check_unasked
from chunkflow.kernels.map import SLOT
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.views.marked import MarkedSource, Marks, WantedPlaces, marked_spec
from chunkflow.system import interrupts


def counted(mask: Node, options: Options) -> Marks:
    """The marks of a mask: one pass over what it is computed from. In a dry run all elements are wanted."""
    known_shape(mask)
    nbytes = room(options)
    with interrupts.deferred(), ExitStack() as stack:
        marks = Marks(mask.shape, nbytes, dry=is_dry())
        Evaluation(options, watching(options.progress)).run({mask: marks}, stack)
    if is_dry():
        marks.number = math.prod(mask.shape)
        return marks
    return marks.counted()


def wanted_places(mask: Node, options: Options) -> tuple[np.ndarray, ...]:
    """The places along each axis of the elements that a mask wants, in memory."""
    marks = counted(mask, options)
    nbytes = marks.number * len(mask.shape) * np.dtype(np.int64).itemsize
    why = "because the mask stands beside other indices: index by the mask alone, and then by these"
    check_unasked(f"places of {marks.number} elements that a mask picks,", nbytes, why)
    every = [np.empty(0, np.int64), *marks.places(0, marks.number)]
    return np.unravel_index(np.concatenate(every), mask.shape)


def nonzero(node: Node) -> Node:
    """The mask of the elements that are not zero."""
    if node.spec.dtype == bool:
        return node
    found: Lazy = mapped(np.not_equal, Lazy(node), 0)
    return found._node


@dataclass(frozen=True)
class Marked:
    """A `View` of the wanted elements of an array, as `chunkflow.stores.views.marked.MarkedSource` has them."""

    arrays: Sequence[Any]
    marks: Marks
    at: int

    def on(self, arrays: Sequence[Any]) -> Marked:
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return marked_spec(spec_of(self.arrays[0]), self.marks, self.at)

    def __chunkflow_source__(self) -> Source:
        return MarkedSource(open_source(self.arrays[0]), self.marks, self.at)


def marked(node: Node, marks: Marks, at: int) -> Node:
    """The node of the wanted elements of an array, whose axes from `at` on are those of the marks.

    Of an elementwise operation it is the operation on wanted elements. Any other result is stored, and then read.
    """
    if isinstance(node, ItemNode) and isinstance(op := _operated(node.op, marks, at), OpNode):
        return op.item(node.item)
    if isinstance(node, OpNode) and (found := _operated(node, marks, at)) is not None:
        return found
    view = Marked([Lazy(node)], marks, at)
    name = f"{node.name}[{marks.number} of {math.prod(marks.shape)}]"
    return interned((Marked, node, marks, at), lambda: ViewNode(name, view, [node], view.__chunkflow_spec__()))


def _operated(op: OpNode, marks: Marks, at: int) -> OpNode | None:
    """An elementwise operation on the wanted elements of its inputs; None if it is another one."""
    if not (op.request.elementwise and op.aligned):
        return None
    inputs = []
    for child in op.inputs:
        found = _input(child, marks, at - len(op.shape) + len(child.shape), op)
        if found is None:
            return None
        inputs.append(found)
    given = iter(inputs)
    arrays = [Lazy(next(given)) if arg is SLOT else arg for arg in op.args]
    return op_node(replace(op.request, arrays=arrays), op.name, (Marked, op, marks, at))


def _input(child: Node, marks: Marks, at: int, op: OpNode) -> Node | None:
    """The wanted elements of an input, whose axes from `at` on are broadcast to those of the marks."""
    if at + len(marks.shape) <= 0:
        return child
    if at >= 0 and child.shape[at : at + len(marks.shape)] == marks.shape:
        return marked(child, marks, at)
    array = source_of(child)
    if not isinstance(array, np.ndarray):
        return None
    return marked(SourceNode(np.broadcast_to(array, op.shape)), marks, at + len(op.shape) - len(child.shape))


def places(marks: Marks, *, axes: bool) -> Node:
    """The node of the places of the wanted elements, in C order, or with `axes` a row of places along each axis."""
    return SourceNode(WantedPlaces(marks, axes=axes))
