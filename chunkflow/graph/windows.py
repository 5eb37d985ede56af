"""Windows of arrays and of expressions. An elementwise function of windows is the windows of the function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from chunkflow.core.spec import ArraySpec
from chunkflow.core.windows import Windows
from chunkflow.graph.nodes import Lazy, Node, ViewNode, interned
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.views.windowed import WindowedSource, windowed_spec


@dataclass(frozen=True)
class Sliding:
    """A `View` of the windows of an array."""

    arrays: Sequence[Any]
    windows: Windows

    def on(self, arrays: Sequence[Any]) -> Sliding:
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        return windowed_spec(spec_of(self.arrays[0]), self.windows)

    def __chunkflow_source__(self) -> Source:
        return WindowedSource(open_source(self.arrays[0]), self.windows)


def windowed(node: Node, windows: Windows) -> Node:
    """The node of the windows of an array."""
    view = Sliding([Lazy(node)], windows)
    key = (Sliding, node, windows)
    return interned(key, lambda: ViewNode(f"windows of {node.name}", view, [node], view.__chunkflow_spec__()))


def windows_of(x: Any) -> tuple[Node, Windows] | None:
    """The array of which an expression has the windows, and these; None of any other."""
    if not isinstance(x, Lazy) or not isinstance(x._node, ViewNode) or not isinstance(x._node.view, Sliding):
        return None
    return x._node.inputs[0], x._node.view.windows
