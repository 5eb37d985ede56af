"""Expressions as messages to other processes: the calls that made them, and the names of the arrays that they read.

A message is made of plain values, for whatever pickles them: functions travel as that has it, by their names or by
their code. Arrays that have a name are opened again where the message arrives, and must be what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.settings import setting
from chunkflow.core.units import format_bytes
from chunkflow.errors import ArgumentTypeError, ReadError
from chunkflow.graph.nodes import Lazy, MadeBy, Node, SourceNode, interned
from chunkflow.graph.sources import Unchanged, View, check_unchanged
from chunkflow.stores.file.memmap import mapped_file
from chunkflow.stores.identity import Identity
from chunkflow.stores.registry import named_source
from chunkflow.stores.views.shared import Mapped


@dataclass(frozen=True)
class Ref:
    """Stands for an expression among the arguments of a call: a step's number, and the class of its handle."""

    step: int
    kind: Callable[[Node], Lazy]


@dataclass(frozen=True)
class SentSource:
    """An array that an expression reads: what opens it, what it was, and what was known of its files."""

    what: Any
    shape: Shape
    dtype: str
    identities: tuple[dict[str, Any], ...]

    def opened(self) -> SourceNode:
        """The node of the array here.

        Raises
        ------
        ReadError
            It is another array, or its files were changed.
        """
        what = self.what.array() if isinstance(self.what, SentMemory) else self.what
        node = SourceNode(what)
        was = replace(node.spec, shape=self.shape, dtype=np.dtype(self.dtype), order=())
        check_unchanged(was, node.spec)
        for known, now in zip(map(Identity.from_json, self.identities), node.identities, strict=False):
            if differs := _comparable(known).difference(_comparable(now)):
                raise ReadError(
                    f"{node.name} is not what it was when the expression was made: {differs}. Open it again, and make "
                    "the expression anew",
                    path=node.name,
                )
        return cast(SourceNode, interned((SentSource, node.key), lambda: node))  # one node for messages of one array


@dataclass(frozen=True)
class SentMemory:
    """An array in memory, of whose axes of stride 0 one element travels."""

    values: np.ndarray
    shape: Shape

    def array(self) -> np.ndarray:
        """The array."""
        return np.broadcast_to(self.values, self.shape)


SentStep = SentSource | MadeBy


def _comparable(known: Identity) -> Identity:
    """What is the same on each machine that sees a file. Inodes and times of change differ on some."""
    return known.without("inode").without("changed")


def packed(node: Node) -> tuple[SentStep, ...]:
    """The steps that make a node, the last of which gives it.

    Raises
    ------
    ArgumentTypeError
        It reads an array that has no name and is too large to travel, or a function of it has none.
    """
    steps: list[SentStep] = []
    numbers: dict[Any, int] = {}
    stack: list[Any] = [node]
    while stack:
        this = stack[-1]
        below = [child for child in _below(this) if _key(child) not in numbers]
        if below:
            stack += reversed(below)
            continue
        stack.pop()
        if _key(this) not in numbers:
            numbers[_key(this)] = len(steps)
            steps.append(_step(this, numbers))
    return tuple(steps)


def _key(this: Any) -> Any:
    return this if isinstance(this, Node) else id(this)


def _below(this: Any) -> Iterator[Any]:
    """Expressions and arrays of the user's among the arguments of the call that made a node."""
    if isinstance(this, Node) and this.made is not None:
        yield from _arrays((this.made.args, this.made.kwargs), this.made.sources)


def _arrays(value: Any, sources: tuple[Any, ...]) -> Iterator[Any]:
    if isinstance(value, Lazy):
        yield value._node
    elif any(value is source for source in sources):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _arrays(each, sources)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _arrays(each, sources)


def _step(this: Any, numbers: Mapping[Any, int]) -> SentStep:
    if not isinstance(this, Node):
        return _sent(SourceNode(this))
    if isinstance(this, SourceNode):
        return _sent(this)
    made = this.made
    if made is None:
        raise ArgumentTypeError(
            f"{this.name} cannot be pickled: it is not known what call made it. Store it, with to_zarr(), and pickle "
            "an expression of that file"
        )
    handle = next((a for a in _handles(made.args) if isinstance(a, Lazy)), None)
    kind = Lazy if handle is None else type(handle)

    def referred(value: Any) -> Any:
        if isinstance(value, Lazy):
            return Ref(numbers[value._node], type(value))
        if any(value is source for source in made.sources):
            return Ref(numbers[id(value)], kind)
        if isinstance(value, Mapping):
            return {key: referred(each) for key, each in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(map(referred, value))
        return value

    return MadeBy(made.fn, referred(made.args), referred(made.kwargs), (), made.item)


def _handles(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _handles(each)
    elif isinstance(value, Mapping):
        yield from _handles(list(value.values()))
    else:
        yield value


def _sent(node: SourceNode) -> SentSource:
    source = node.source
    while isinstance(source, Unchanged):
        source = source.arrays[0]
    spec = node.spec
    identities = tuple(identity.to_json() for identity in node.identities)
    return SentSource(_named(source), spec.shape, spec.dtype.str, identities)


def _named(source: Any) -> Any:
    """What opens an array in another process."""
    if isinstance(source, View):
        return source.on([_named(array) for array in source.arrays])
    if not isinstance(source, np.ndarray):
        return named_source(source)
    if (found := mapped_file(source)) is not None:
        return Mapped(*found, source.shape, source.strides, source.dtype)
    values = source[tuple(slice(None) if step else slice(0, 1) for step in source.strides)]
    most = setting("message_limit")
    if values.nbytes > most:
        raise ArgumentTypeError(
            f"an expression of an array of {format_bytes(values.nbytes)} in memory is not pickled: each message would "
            f"hold the array. Save it, by np.save or to_zarr(), and open the file in its place. Up to "
            f"{format_bytes(most)} are pickled; chunkflow.config.set(message_limit=) sets another limit"
        )
    return source if values.shape == source.shape else SentMemory(values.copy(), source.shape)


def restored(kind: Callable[[Node], Lazy], steps: tuple[SentStep, ...]) -> Lazy:
    """The expression of a message.

    Raises
    ------
    ReadError
        An array is another one than it was.
    """
    nodes: list[Node] = []

    def filled(value: Any) -> Any:
        if isinstance(value, Ref):
            return value.kind(nodes[value.step])
        if isinstance(value, Mapping):
            return {key: filled(each) for key, each in value.items()}
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(map(filled, value))
        return value

    for step in steps:
        if isinstance(step, SentSource):
            nodes.append(step.opened())
            continue
        result = step.fn(*filled(step.args), **filled(step.kwargs))
        made = result if step.item is None else result[step.item]
        nodes.append(made._node)
    return kind(nodes[-1])
