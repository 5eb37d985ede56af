"""Live sources in passes and expressions: which there are, what takes their places, and how often they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chunkflow.core.grid import Shape
from chunkflow.core.unknown import is_known
from chunkflow.engine.batches import WORKS, LivePass
from chunkflow.errors import ArgumentError, UnsupportedError
from chunkflow.graph.nodes import Lazy, MultiPassNode, Node, OpNode, SourceNode, Sources
from chunkflow.graph.request import Request
from chunkflow.graph.sources import Unchanged, View
from chunkflow.kernels.map import is_scalar
from chunkflow.stores.live import Live


def lives(source: Any) -> Iterator[Live]:
    """The live sources that an array is, or shows."""
    if isinstance(source, Live):
        yield source
    elif isinstance(source, View):
        for array in source.arrays:
            yield from lives(array)


def filled(source: Any, live: Live, stand: Any) -> Any:
    """An array with something else in the place of a live source."""
    if source is live:
        return stand
    if live not in lives(source):
        return source
    arrays = [filled(array, live, stand) for array in source.arrays]
    return arrays[0] if isinstance(source, Unchanged) else source.on(arrays)


def only_live(arrays: Sequence[Any]) -> Live | None:
    """The live source among a pass's arrays; None if there is none.

    Raises
    ------
    ArgumentError
        There are several, or one is not read in the order of its rows.
    """
    found = list(dict.fromkeys(live for array in arrays for live in lives(array)))
    if not found:
        return None
    if len(found) > 1:
        raise ArgumentError(
            f"{len(found)} live sources in one pass: zip them to one, whose slabs have another axis for them, as "
            "chunkflow.live(np.stack(pair, -1) for pair in zip(first, second))"
        )
    if not all(map(_in_order, arrays)):
        raise ArgumentError(
            "a live source gives all of its rows in order, and a part of them is wanted, or another order: leave them "
            "out in the generator, or store it first, by chunkflow.copy(live, 'slabs.zarr')"
        )
    return found[0]


def _in_order(source: Any) -> bool:
    """Whether the rows of an array are those of the live source that it shows."""
    if not any(lives(source)) or isinstance(source, Live):
        return True
    if isinstance(source, Unchanged):
        return _in_order(source.arrays[0])
    still = getattr(source, "still", None)  # of a slice: which axes it leaves alone
    return still is not None and bool(still[0]) and _in_order(source.arrays[0])


def pass_of_request(request: Request) -> LivePass | None:
    """The pass of a call on a live source; None if there is none among its arrays."""
    arrays = [a for a in request.arrays if not is_scalar(a)]
    if (live := only_live(arrays)) is None:
        return None

    def with_stand(stand: Any) -> Any:
        return request.declare, [filled(array, live, stand) for array in request.arrays]

    return LivePass(live, with_stand, _first(arrays, live))


def _first(arrays: Sequence[Any], live: Live) -> int:
    return next(i for i, array in enumerate(arrays) if live in lives(array))


def sampled(arrays: Sequence[Any]) -> list[Any]:
    """Arrays of a pass that is only tried and planned: samples take the place of live sources."""
    for live in dict.fromkeys(live for array in arrays for live in lives(array)):
        length = live.spec.shape[0]
        arrays = [filled(array, live, live.sample(length, length)) for array in arrays]
    return list(arrays)


def lives_below(nodes: Iterable[Node], stored: Sources) -> list[Live]:
    """The live sources that are read to compute some nodes."""
    found: dict[Live, None] = {}
    stack, seen = list(nodes), set()
    while stack:
        this = stack.pop()
        if this in seen or this in stored:
            continue
        seen.add(this)
        stack += this.inputs
        if isinstance(this, SourceNode):
            found |= dict.fromkeys(lives(this.source))
    return list(found)


def known_shape(node: Node) -> Shape:
    """The shape of a node.

    Raises
    ------
    UnsupportedError
        It has the length of a live source that is not known yet.
    """
    if not is_known(node.shape):
        raise UnsupportedError(
            f"the shape of {node.name} is {node.shape}: the length of the live source is not known before its "
            "end. Give live(..., length=), or compute first what does not need it"
        )
    return node.shape


def check_ends(group: Sequence[Node], wanting: Iterable[Node]) -> None:
    """Refuse a later pass over a result that is as long as a live source of unknown length."""
    for node in wanting:
        if node in group and not is_known(node.shape):
            axes = max([len(live.shape) for live in lives_below([node], {})], default=1)
            chunks = ("auto", *[-1] * (axes - 1))
            raise ArgumentError(
                f"{node.name} grows with a live source of unknown length, and a later pass reads it. Give "
                "live(..., length=), if it is known; or let one function do all of this to whole rows, as "
                f"chunkflow.map(fn, live, chunks={chunks}); or store it first, and compute the rest from what is stored"
            )


def check_once(read: set[Live], group: Sequence[Node], stored: Sources, *, several: bool) -> None:
    """Refuse a second pass over a live source, before the first one; what was `read` is noted."""
    for live in lives_below(group, stored):
        live.check_unread()
        if live in read or several:
            raise ArgumentError(_once(group[0].name, "several passes" if several else "a pass of its own"))
        read.add(live)


def reads_live(*arrays: Any) -> set[Live]:
    """The live sources that arrays and expressions read."""
    expressions = [array._node for array in arrays if isinstance(array, Lazy)]
    return {*lives_below(expressions, {}), *(live for array in arrays for live in lives(array))}


def refuse_several(name: str, arrays: Sequence[Any]) -> None:
    """Refuse an operation of several passes over a live source."""
    if reads_live(*arrays):
        raise ArgumentError(_once(name, "several passes"))


def refuse_picked(node: Node, index: Any) -> None:
    """Refuse elements of an expression at places that another pass over the same live source finds."""
    places = [entry for entry in (index if isinstance(index, tuple) else (index,)) if isinstance(entry, Lazy)]
    if places and not reads_live(Lazy(node)).isdisjoint(reads_live(*places)):
        raise ArgumentError(_once(f"an index of {node.name} that is computed from it", "two passes"))


def refuse_blocks(array: Any) -> None:
    """Refuse a loop over the blocks of a live source."""
    if reads_live(array):
        raise ArgumentError(
            "chunks of a live source, which gives its slabs once and in order: loop over the slabs themselves, in the "
            "generator's place; or store it first, by chunkflow.copy(live, 'slabs.zarr'), and take chunks of that"
        )


def refuse_tasks(node: Node) -> None:
    """Refuse tasks of other processes that would read a live source."""
    if lives_below([node], {}):
        raise ArgumentError(
            f"{node.name} reads a live source, which gives its slabs once, in this process: compute() it here, or "
            "store the source first, by chunkflow.copy(live, 'slabs.zarr'), and make tasks of that"
        )


def _once(name: str, passes: str) -> str:
    return (
        f"{name} needs {passes} over a live source, which gives its slabs once: store it first, by "
        "chunkflow.copy(live, 'slabs.zarr'), and read that. One call gives several results of one pass, as "
        f"chunkflow.compute(x.mean(axis=0), x.max()). {WORKS}"
    )


def rebuilt(node: Node, live: Live, stand: Any, known: dict[Node, Node]) -> Node:
    """The node with another source in the place of a live one, made by the same calls.

    Raises
    ------
    UnsupportedError
        It is not known what call made it.
    """
    if node not in known:
        known[node] = _rebuilt(node, live, stand, known)
    return known[node]


def _rebuilt(node: Node, live: Live, stand: Any, known: dict[Node, Node]) -> Node:
    if live not in lives_below([node], {}):
        return node
    if isinstance(node, SourceNode):
        return known.setdefault(_SOURCE, SourceNode(stand))

    def replaced(value: Any) -> Any:
        if isinstance(value, Lazy):
            return type(value)(rebuilt(value._node, live, stand, known))
        if isinstance(value, Mapping):
            return {key: replaced(each) for key, each in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(map(replaced, value))
        return filled(value, live, stand)

    if (made := node.made) is not None:
        result = made.fn(*replaced(made.args), **replaced(made.kwargs))
        found: Node = (result if made.item is None else result[made.item])._node
        if not isinstance(found, MultiPassNode):
            return found
    if isinstance(node, OpNode):  # of an operation that runs at once, or takes one pass of a live source only
        return OpNode(replace(node.request, arrays=replaced(tuple(node.request.arrays))), node.name, node._infer)
    raise UnsupportedError(
        f"{node.name} of a live source of unknown length: no call is known that makes it. Give live(..., length=)"
    )


_SOURCE = Node()
"""Stands for the live source's own node, of which there may be several."""
