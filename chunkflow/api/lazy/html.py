"""A lazy array as notebooks show it. Nothing is computed for it."""

from __future__ import annotations

from contextlib import suppress

from chunkflow.cluster.partition import passes_of
from chunkflow.core import markup
from chunkflow.core.drawing import svg
from chunkflow.core.units import format_bytes
from chunkflow.errors import ChunkflowError
from chunkflow.graph.nodes import Node, SourceNode

SOURCES = 4
"""Sources that are named at most."""


def described(node: Node) -> str:
    """What is known of it: shape, dtype, bytes, chunks, where it comes from, in how many passes; and a drawing."""
    shape, rows = node.shape, [("array", node.name), ("shape", str(node.shape))]
    chunks = None
    if node.dtype_known:
        rows += [("dtype", str(node.spec.dtype)), ("bytes", format_bytes(node.spec.nbytes))]
        chunks = node.spec.chunks
    else:
        rows.append(("dtype", "known when a block has been computed"))
    if chunks is not None:
        rows.append(("chunks", str(chunks)))
    found = _sources(node)
    if isinstance(node, SourceNode):
        rows += [("stored", node.spec.storage.how)] if node.spec.storage.how else []
    else:
        names = [f"{source.spec.name} {source.shape}" for source in found[:SOURCES]]
        rows.append(("sources", "; ".join(names) + (f"; {more} more" if (more := len(found) - SOURCES) > 0 else "")))
        with suppress(ChunkflowError):  # of some operations it is known when they run
            rows.append(("passes", str(len(passes_of([node])))))
    return (
        '<div style="display: flex; flex-wrap: wrap; gap: 2em; align-items: center">'
        f"{markup.table((), rows)}{svg(shape, chunks)}</div>"
    )


def _sources(node: Node) -> list[SourceNode]:
    """The sources that it comes from, each once."""
    found: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = None
            waiting += one.inputs
    return [one for one in found if isinstance(one, SourceNode)]
