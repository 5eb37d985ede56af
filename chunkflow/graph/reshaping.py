"""Reshaping. An array in memory or a ``.npy`` file in C order is not copied, nor is one whose axes are split.

Any other one is. An elementwise operation in a shape that splits axes is the operation on its inputs in that shape.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.core.axes import as_axes
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.live import lives_below
from chunkflow.graph.nodes import Lazy, Node, OpNode, SourceNode, ViewNode, interned, source_of
from chunkflow.graph.outputs import leaves, places_of
from chunkflow.graph.request import Request
from chunkflow.graph.sources import Unchanged
from chunkflow.kernels.declare import declare_map
from chunkflow.kernels.map import SLOT
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.views.reshaped import ReshapedSource
from chunkflow.stores.views.split import SplitSource, split_axes, split_spec


def reshaped(node: Node, shape: Any) -> Node:
    """The node of the same elements, in C order, in another shape; another number of them is an `ArgumentError`."""
    wanted = _full(shape, node.shape)
    if wanted == node.shape:
        return node
    parts = split_axes(node.shape, wanted)
    if parts is not None and (found := _split(node, parts)) is not None:
        return found
    spec = ArraySpec(f"{node.name} reshaped", wanted, node.spec.dtype)
    held = node if isinstance(node, SourceNode) and _is_plain(node) else _copied(node)
    return interned(("reshape", held, wanted), lambda: ViewNode(spec.name, _Reshaped([Lazy(held)], spec), [held], spec))


def unmerged(node: Node) -> Node | None:
    """The node of which a matrix has all axes but the first as one; None of another node.

    What works on each column may work on that one, whose elements need not be stored in another shape.
    """
    before = before_copy(node)
    is_merged = before is not None and len(before.shape) > len(node.shape) == 2 and before.shape[0] == node.shape[0]
    return before if is_merged else None


def before_copy(node: Node) -> Node | None:
    """The node whose elements are stored to be seen in another shape; None of a node that is no such view."""
    if not isinstance(node, ViewNode) or not isinstance(node.view, _Reshaped):
        return None
    (held,) = node.inputs
    return held.inputs[0] if isinstance(held, OpNode) and held.request.declare is _COPY else None


def of_same_elements(node: Node, out: Any) -> tuple[Node, Any] | None:
    """For a reshaped node that has an output in memory, the node that has the same elements, and `out` in its shape.

    None for any other node or output, and one that overlaps what is read: elements are stored first, then copied.
    """
    if not isinstance(node, ViewNode) or not isinstance(node.view, _Reshaped):
        return None
    (held,) = node.inputs
    if source_of(held) is not None or not isinstance(held, OpNode) or lives_below([held], {}):
        return None
    if out is None:
        return held, None
    if not isinstance(out, np.ndarray) or out.shape != node.shape or not out.flags.c_contiguous:
        return None
    shaped = out.reshape(held.shape)
    place = places_of({held: shaped}, overwrite=True)[held]
    return None if any(place.holds(leaf.footprint) for leaf in leaves(held, ())) else (held, shaped)


def _split(node: Node, parts: tuple[Shape, ...]) -> Node | None:
    """The node of an array with split axes; None if its elements are to be stored first."""
    if isinstance(node, OpNode):
        return _of_inputs(node, parts) if node.aligned and node.request.elementwise else None
    if source_of(node) is None or (isinstance(node, SourceNode) and _is_plain(node)):
        return None
    view = Split([Lazy(node)], parts)
    return interned(
        (Split, node, parts), lambda: ViewNode(f"{node.name} split", view, [node], view.__chunkflow_spec__())
    )


def _of_inputs(op: OpNode, parts: tuple[Shape, ...]) -> Node:
    """An elementwise operation on inputs with split axes."""
    given: list[Any] = []
    inputs = iter(op.inputs)
    for arg in op.args:
        if arg is not SLOT:
            given.append(arg)
            continue
        child = next(inputs)
        own = parts[len(parts) - len(child.shape) :]
        shape = [m for n, part in zip(child.shape, own, strict=True) for m in (part if n != 1 else (1,) * len(part))]
        given.append(Lazy(reshaped(child, shape)))
    request = replace(op.request, arrays=given)
    return op_node(request, op.name, ("split", op, parts))


@dataclass(frozen=True)
class Split:
    """A `View` of an array with split axes."""

    arrays: Sequence[Any]
    parts: tuple[Shape, ...]

    def on(self, arrays: Sequence[Any]) -> Split:
        """See `View.on`."""
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return split_spec(spec_of(self.arrays[0]), self.parts)

    def __chunkflow_source__(self) -> Source:
        return SplitSource(open_source(self.arrays[0]), self.parts)


@dataclass(frozen=True)
class _Reshaped:
    """A `View` of an array in another shape."""

    arrays: Sequence[Any]
    spec: ArraySpec

    def on(self, arrays: Sequence[Any]) -> Any:
        """See `View.on`. The array is in C order, or an output of the user's."""
        (array,) = arrays
        if isinstance(array, Unchanged):
            array = array.mapped()
        return array.reshape(self.spec.shape) if hasattr(array, "reshape") else _Moved(arrays, self.spec)

    def __chunkflow_spec__(self) -> ArraySpec:
        return self.spec


@dataclass(frozen=True)
class _Moved(_Reshaped):
    """The same of an array that has no other shape, as a zarr array in which a result has been stored."""

    def __chunkflow_source__(self) -> Source:
        return ReshapedSource(open_source(self.arrays[0]), self.spec.shape)


def _copied(node: Node) -> Node:
    """A node whose elements will be stored in C order, in memory or in a temporary file."""
    if isinstance(node, OpNode) and not node.aligned:
        return node
    request = Request(_COPY, [Lazy(node)], Options(), shapes_only=True)
    return op_node(request, f"a copy of {node.name}", ("copied", node))


def _same(block: Any) -> Any:
    return block


_COPY = declare_map(_same, {})


def _is_plain(node: SourceNode) -> bool:
    """Whether an array is in memory, or can be mapped there, in C order."""
    if isinstance(node.source, Unchanged):
        path, in_order = node.source.arrays[0], node.spec.order == tuple(range(len(node.shape)))
        is_npy = isinstance(path, str | os.PathLike) and os.fspath(path).endswith(".npy")
        return bool(is_npy and in_order and node.spec.size)
    return isinstance(node.source, np.ndarray) and node.source.flags.c_contiguous


def _full(shape: Any, given: Shape) -> Shape:
    """A shape in which -1 is replaced by the length that fits."""
    sides, size = as_axes(shape, "shape"), math.prod(given)
    unknown = [i for i, n in enumerate(sides) if n == -1]
    known = math.prod(n for n in sides if n != -1)
    if len(unknown) == 1 and known and size % known == 0:
        sides[unknown[0]] = size // known
    if any(n < 0 for n in sides) or math.prod(sides) != size:
        raise ArgumentError(f"{size} elements of shape {given} do not fit the shape {shape}")
    return tuple(sides)
