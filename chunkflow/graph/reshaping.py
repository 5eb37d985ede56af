"""Reshaping. An array in memory or a ``.npy`` file in C order is not copied; any other one is."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core.axes import as_axes
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError
from chunkflow.graph.evaluate import op_node
from chunkflow.graph.nodes import Lazy, Node, OpNode, SourceNode, ViewNode, interned
from chunkflow.graph.request import Request
from chunkflow.graph.sources import Unchanged
from chunkflow.kernels.declare import declare_map
from chunkflow.stores import Source, open_source
from chunkflow.stores.views.reshaped import ReshapedSource


def reshaped(node: Node, shape: Any) -> Node:
    """The node of the same elements, in C order, in another shape; another number of them is an `ArgumentError`."""
    wanted = _full(shape, node.shape)
    if wanted == node.shape:
        return node
    spec = ArraySpec(f"{node.name} reshaped", wanted, node.spec.dtype)
    held = node if isinstance(node, SourceNode) and _is_plain(node) else _copied(node)
    return interned(("reshape", held, wanted), lambda: ViewNode(spec.name, _Reshaped([Lazy(held)], spec), [held], spec))


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
    request = Request(declare_map(_same, {}), [Lazy(node)], Options(), shapes_only=True)
    return op_node(request, f"a copy of {node.name}", ("copied", node))


def _same(block: Any) -> Any:
    return block


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
