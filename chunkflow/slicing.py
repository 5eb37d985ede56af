"""Slices of arrays and of expressions: what is not asked for is not computed.

A slice of what elements alone decide is that of what feeds it; any other is one of what is stored for it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chunkflow.declare import Stretched, declare_broadcast, declare_squeezed, declare_widened
from chunkflow.errors import UnsupportedError
from chunkflow.graph import Item, Lazy, Node, Op, Request, Seen, interned, key_of
from chunkflow.grid import Shape
from chunkflow.passes import learn
from chunkflow.prepare import Options
from chunkflow.spec import ArraySpec
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.sliced import Cut, SlicedSource, sliced_spec


@dataclass(frozen=True)
class Slice:
    """Every so many elements of an array along each axis, when it is opened; see `chunkflow.given.View`."""

    arrays: Sequence[Any]
    cuts: tuple[Cut, ...]

    def on(self, arrays: Sequence[Any]) -> Slice:
        """The same of another array."""
        return replace(self, arrays=arrays)

    def __chunkflow_spec__(self) -> ArraySpec:
        """See `chunkflow.stores.spec_of`."""
        return sliced_spec(spec_of(self.arrays[0]), self.cuts)

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`."""
        return SlicedSource(open_source(self.arrays[0]), self.cuts)


def indexed(node: Node, index: Any) -> Node:
    """The node of ``array[index]``: integers, slices, an ellipsis and new axes.

    Raises
    ------
    IndexError
        There is no such element or axis.
    UnsupportedError
        An index that is an array, whose result's shape, or order, only its elements tell.
    """
    cuts, gone, new = _parsed(index, node.shape)
    found = sliced(node, cuts)
    if gone:
        found = viewed(found, declare_squeezed(gone), "squeeze", gone)
    return viewed(found, declare_widened(new), "expand_dims", new) if new else found


def _parsed(index: Any, shape: Shape) -> tuple[tuple[Cut, ...], tuple[int, ...], tuple[int, ...]]:
    """Cuts of all axes; the axes that integers remove; and the places of new ones in the result."""
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
    if used > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions and {used} were indexed")
    if not ellipses:
        entries.append(Ellipsis)
    at = next(i for i, entry in enumerate(entries) if entry is Ellipsis)
    entries[at : at + 1] = [slice(None)] * (len(shape) - used)
    cuts: list[Cut] = []
    gone: list[int] = []
    new: list[int] = []
    place = 0
    for entry in entries:
        if entry is None:
            new.append(place)
            place += 1
            continue
        axis, n = len(cuts), shape[len(cuts)]
        if isinstance(entry, slice):
            start, stop, step = entry.indices(n)
            cuts.append((start, len(range(start, stop, step)), step))
            place += 1
            continue
        i = operator.index(entry)
        if not -n <= i < n:
            raise IndexError(f"index {i} is out of bounds for axis {axis} with {n} elements")
        cuts.append((i % n, 1, 1))
        gone.append(axis)
    return tuple(cuts), tuple(gone), tuple(new)


def sliced(node: Node, cuts: Sequence[Cut]) -> Node:
    """The node of some of an array's elements along each axis."""
    known: dict[tuple[Node, tuple[Cut, ...]], Node] = {}
    wanted = (node, tuple(cuts))
    stack = [wanted]
    while stack:  # deep expressions would be too deep for recursion
        this = stack[-1]
        below = _below(*this)
        missing = [one for one in below or () if one not in known]
        if missing and this not in known:
            stack += reversed(missing)
            continue
        stack.pop()
        if this not in known:
            known[this] = _cut(*this, None if below is None else [known[one] for one in below])
    return known[wanted]


def _below(node: Node, cuts: tuple[Cut, ...]) -> list[tuple[Node, tuple[Cut, ...]]] | None:
    """What a slice of a node is made of; None where it is one of what is stored for the node, or the node itself."""
    if _is_whole(node, cuts):
        return None
    if isinstance(node, Item) and node.op.aligned:
        return [(node.op, cuts)] if _below(node.op, cuts) is not None else None
    if not isinstance(node, Op) or not node.aligned:
        return None
    declared = node.declared
    if any(operand.halo for operand in declared.nest.operands) or getattr(declared.kernel, "wants", None):
        return None
    along = dict(zip(declared.axes, cuts, strict=True))
    return [
        (child, tuple((0, 1, 1) if a is None else along[a] for a in operand.axes))
        for child, operand in zip(node.inputs, declared.nest.operands, strict=True)
    ]


def _is_whole(node: Node, cuts: tuple[Cut, ...]) -> bool:
    return all(cut == (0, n, 1) for cut, n in zip(cuts, node.shape, strict=True))


def _cut(node: Node, cuts: tuple[Cut, ...], below: Sequence[Node] | None) -> Node:
    """The node of a slice, given those of what it is made of."""
    if _is_whole(node, cuts):
        return node
    if isinstance(node, Seen) and isinstance(node.view, Slice):  # of a slice: of what it is one of
        pairs = zip(node.view.cuts, cuts, strict=True)
        return _cut(node.inputs[0], tuple((a + i * s, n, s * t) for (a, _, s), (i, n, t) in pairs), None)
    key = (Slice, node, cuts)
    if below is None:
        view = Slice([Lazy(node)], cuts)
        return interned(key, lambda: Seen(f"{node.name}[...]", view, [node], view.__chunkflow_spec__()))
    if isinstance(node, Item):
        op = below[0]
        assert isinstance(op, Op)
        return interned(key, lambda: Item(op, node.item))
    assert isinstance(node, Op)
    children = iter(below)
    arrays = [Lazy(next(children)) if given is node.slot else given for given in node.args]
    request = replace(node.request, arrays=arrays)
    if isinstance(node.declared.kernel, Stretched):
        request = replace(request, declare=declare_broadcast(tuple(number for _, number, _ in cuts)))
    made = interned(key, lambda: Op(request, node.name, learn))
    assert isinstance(made, Op)
    made.check()  # from below upwards: all at once would be too deep
    return made


def viewed(node: Node, declare: Any, name: str, given: Any) -> Node:
    """A node whose axes are others."""
    request = Request(declare, [Lazy(node)], Options(), loose=True)
    made = interned(key_of(name, (Lazy(node), given), {}), lambda: Op(request, name, learn))
    assert isinstance(made, Op)
    made.check()
    return made
