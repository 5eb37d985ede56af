"""Where the results of expressions go, and what must not be in their way."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkflow.errors import ArgumentError
from chunkflow.graph import Leaf, Node, Op
from chunkflow.stores import Target, open_target
from chunkflow.stores.base import Footprint


@dataclass(frozen=True)
class Place:
    """Where a result goes: its target, and its path if it has one."""

    target: Target
    path: str

    def holds(self, footprint: Footprint | None, path: object) -> bool:
        """Whether it shares bytes with what lies there."""
        mine = self.target.footprint
        both = mine is not None and footprint is not None and mine.overlaps(footprint)
        return both or self.path == path != ""


def places_of(wanted: Mapping[Node, Any], *, overwrite: bool) -> dict[Node, Place]:
    """Places of the nodes that have an output, checked as far as may be before anything runs.

    Raises
    ------
    ArgumentError, ArgumentTypeError, OutputExistsError
        An output of another shape or dtype, one that may not be replaced, or two that overlap.
    """
    places: dict[Node, Place] = {}
    for node, out in wanted.items():
        if out is None or isinstance(out, tuple | list):
            continue
        target = open_target(out, overwrite=overwrite)
        if node.told and not (isinstance(node, Op) and len(node.specs) > 1):
            target.describe(node.spec.shape, node.spec.dtype, None)
        place = Place(target, os.path.realpath(out) if isinstance(out, str | os.PathLike) else "")
        for other in places.values():
            if other.holds(target.footprint, place.path):
                raise ArgumentError(
                    f"the outputs {other.target.name} and {target.name} overlap: give each its own place"
                )
        places[node] = place
    return places


def check_clear(written: Iterable[Place], nodes: Sequence[Node]) -> None:
    """Refuse outputs that lie where sources of nodes do, which are read after they are written.

    Raises
    ------
    ArgumentError
        One does.
    """
    places = list(written)
    for leaf in {leaf for node in nodes for leaf in leaves(node)} if places else ():
        for place in places:
            if place.holds(leaf.footprint, leaf.key):
                raise ArgumentError(
                    f"the output {place.target.name} overlaps the input {leaf.name}, which a later pass reads again: "
                    "write to another array"
                )


def leaves(node: Node) -> Iterator[Leaf]:
    """The sources that a node is made of, however far below."""
    stack, seen = [node], {node}
    while stack:
        this = stack.pop()
        if isinstance(this, Leaf):
            yield this
        new = [child for child in this.inputs if child not in seen]
        seen.update(new)
        stack += new
