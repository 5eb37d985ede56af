"""Names of the dimensions of an expression, as far as its axes are those of arrays that have such names."""

from __future__ import annotations

import warnings
from contextlib import closing

from chunkflow.errors import ChunkflowError, CodingWarning
from chunkflow.graph.nodes import ItemNode, Node, OpNode, SourceNode
from chunkflow.stores import open_source
from chunkflow.stores.new_array import labels_of

Names = tuple[str | None, ...]


def names_of(node: Node) -> Names:
    """A name for each axis of a node; None where nothing is known of it, or where inputs have different names."""
    return _names(node, {})


def _names(node: Node, known: dict[Node, Names]) -> Names:
    if node not in known:
        op = node.op if isinstance(node, ItemNode) else node
        if isinstance(op, OpNode):
            found = _of_operation(op, node.item if isinstance(node, ItemNode) else 0, known)
        else:
            found = _of_source(node) if isinstance(node, SourceNode) else ()
        known[node] = found if len(found) == len(node.shape) else (None,) * len(node.shape)
    return known[node]


def _of_source(node: SourceNode) -> Names:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodingWarning)  # which was given when it was opened
        try:
            with closing(open_source(node.source)) as source:
                return labels_of(source).dimension_names or ()
        except ChunkflowError:  # the run will say so
            return ()


def _of_operation(op: OpNode, item: int, known: dict[Node, Names]) -> Names:
    """Names of the axes that an operation keeps: it walks along them with its inputs."""
    declared = op.declared
    if op.request.options.chunks is not None:
        return ()
    found: dict[int, set[str]] = {}
    for node, operand in zip(op.inputs, declared.nest.operands, strict=True):
        for name, axis, n in zip(_names(node, known), operand.axes, node.shape, strict=True):
            if axis is not None and name is not None and n == declared.nest.extents[axis]:
                found.setdefault(axis, set()).add(name)
    names = [found.get(axis, set()) if axis is not None else set() for axis in declared.axes_of(item)]
    return tuple(next(iter(each)) if len(each) == 1 else None for each in names)
