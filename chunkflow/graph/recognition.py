"""What expressions are, in terms that hold in another process: by them a later call knows those of an earlier one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from chunkflow.engine.resume import identity
from chunkflow.graph.nodes import ItemNode, MultiPassNode, Node, OpNode, SourceNode, ViewNode, has_lazy
from chunkflow.kernels.digest import without_functions
from chunkflow.stores import open_source


def recognized(
    nodes: Iterable[Node], identities: dict[Node, str] | None = None, *, named: bool = False
) -> tuple[list[Any], dict[str, str]]:
    """What some nodes compute, for `chunkflow.kernels.digest`, and what the arrays are that they read.

    In `identities` the latter are noted, and looked up. If `named`, a name stands for the functions.
    """
    identities = {} if identities is None else identities
    wanted, numbers, said, arrays = list(nodes), dict[Node, int](), list[Any](), dict[str, str]()
    stack = list(reversed(wanted))
    while stack:
        node = stack[-1]
        below = [child for child in _inputs(node) if child not in numbers]
        if below:
            stack += reversed(below)
            continue
        stack.pop()
        if node in numbers:
            continue
        numbers[node] = len(numbers)
        if isinstance(node, SourceNode):
            name = f"array {len(arrays)} ({node.name})"
            if node not in identities:
                with closing(open_source(node.source)) as source:
                    identities[node] = identity(source)
            arrays[name] = identities[node]
            said.append(name)
        else:
            own = without_functions(_own(node)) if named and not isinstance(node, ViewNode) else _own(node)
            said.append((own, [numbers[child] for child in _inputs(node)]))
    return [said, [numbers[node] for node in wanted]], arrays


def _inputs(node: Node) -> tuple[Node, ...]:
    return (node.op,) if isinstance(node, ItemNode) else node.inputs


def _own(node: Node) -> Any:
    """What a node does to those below it."""
    if isinstance(node, OpNode):
        options, declared = node.request.options, node.declared
        return declared.kernel, declared.nest, declared.axes, options.dtype, options.chunks
    if isinstance(node, ItemNode):
        return "item", node.item
    if isinstance(node, MultiPassNode):
        return node.name, node.said
    assert isinstance(node, ViewNode)
    view = node.view
    parts = (
        {f.name: getattr(view, f.name) for f in dataclasses.fields(view)}
        if dataclasses.is_dataclass(view)
        else vars(view)
    )
    return type(view).__name__, {k: v for k, v in parts.items() if not has_lazy(v) and v is not view.arrays}
