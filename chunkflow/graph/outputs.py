"""Output targets of an evaluation, and the checks that they overlap neither each other nor a source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from chunkflow.core.unknown import is_known
from chunkflow.engine.growing import refuse_fixed
from chunkflow.errors import ArgumentError, ChunkflowError
from chunkflow.graph.nodes import Node, OpNode, SourceNode
from chunkflow.stores import Target, is_new, open_target
from chunkflow.stores.footprint import Footprint
from chunkflow.stores.paths import refuse_nested
from chunkflow.stores.registry import open_path


@dataclass(frozen=True)
class OutputPlace:
    """Where a result goes; `old` is the footprint of the array at its path, which is replaced."""

    target: Target
    path: str | None = None
    old: Footprint | None = None

    @classmethod
    def of(cls, out: Any, *, overwrite: bool) -> OutputPlace:
        """The place of an output that the user gave."""
        target = open_target(out, overwrite=overwrite)
        if not is_new(out):
            return cls(target)
        old = None
        if overwrite:
            with suppress(ChunkflowError):  # an array that cannot be opened is no source of this evaluation
                source = open_path(target.name)  # nothing is read
                old = source.footprint
                source.close()
        return cls(target, target.name, old)

    def holds(self, footprint: Footprint | None) -> bool:
        """Whether it shares bytes with a footprint."""
        own = (self.target.footprint, self.old)
        return footprint is not None and any(mine is not None and mine.overlaps(footprint) for mine in own)


def places_of(wanted: Mapping[Node, Any], *, overwrite: bool) -> dict[Node, OutputPlace]:
    """Places of the nodes that have an output, with all checks that are possible before anything runs.

    Raises
    ------
    ArgumentError, ArgumentTypeError, OutputExistsError
        An output has another shape or dtype, or must not be replaced; or two overlap, or one lies inside the other.
    """
    places: dict[Node, OutputPlace] = {}
    for node, out in wanted.items():
        if out is None or isinstance(out, tuple | list):
            continue
        place = OutputPlace.of(out, overwrite=overwrite)
        target = place.target
        if node.dtype_known and not (isinstance(node, OpNode) and len(node.specs) > 1):
            if not is_known(node.spec.shape):
                refuse_fixed(out)
            target.describe(node.spec.shape, node.spec.dtype, None)
        for other in places.values():
            if other.holds(target.footprint) or place.holds(other.target.footprint):
                raise ArgumentError(
                    f"the outputs {other.target.name} and {target.name} overlap: give each its own place"
                )
        places[node] = place
    refuse_nested([place.path for place in places.values() if place.path is not None])
    return places


def check_clear(written: Iterable[OutputPlace], nodes: Sequence[Node], stored: Collection[Node] = ()) -> None:
    """Refuse written outputs that overlap a source that the nodes read later, with an `ArgumentError`.

    Sources below `stored` nodes are not read again.
    """
    places = list(written)
    for leaf in {leaf for node in nodes for leaf in leaves(node, stored)} if places else ():
        for place in places:
            if place.holds(leaf.footprint):
                raise ArgumentError(
                    f"the output {place.target.name} overlaps the input {leaf.name}, which a later pass reads again: "
                    "write to another array"
                )


def check_parts(parts: Sequence[Sequence[Node]], places: Mapping[Node, OutputPlace]) -> None:
    """Refuse outputs of a part that overlap sources of later parts, with an `ArgumentError`."""
    for number, part in enumerate(parts):
        later = [node for rest in parts[number + 1 :] for node in rest]
        check_clear([places[node] for node in part if node in places], later)


def check_whole(needed: Mapping[Node, OutputPlace]) -> None:
    """Refuse outputs of another dtype than a node that a later pass reads, with an `ArgumentError`.

    Even a wider dtype is another one: int64 loses digits in float64, and what is computed of it has another dtype.
    """
    for node, place in needed.items():
        spec = node.spec
        held = place.target.describe(spec.shape, spec.dtype, None).dtype
        if held.newbyteorder("=") != spec.dtype:
            raise ArgumentError(
                f"the output {place.target.name} has dtype {held}, and a later pass reads {node.name} from it, of "
                f"dtype {spec.dtype}: give an output of dtype {spec.dtype}, or store it by a call of its own"
            )


def leaves(node: Node, stored: Collection[Node]) -> Iterator[SourceNode]:
    """All sources below a node, except those below stored nodes."""
    stack, seen = [node], {node}
    while stack:
        this = stack.pop()
        if isinstance(this, SourceNode):
            yield this
        new = [child for child in this.inputs if child not in seen and child not in stored]
        seen.update(new)
        stack += new
