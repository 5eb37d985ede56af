"""Expressions: graphs of nodes, each an array that can be computed. Building one reads no data.

The same operation on the same nodes gives the same node, so that it is computed once.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import written
from chunkflow.engine.options import Options
from chunkflow.errors import ArgumentError, ArgumentTypeError, ResultError
from chunkflow.graph.request import Request
from chunkflow.graph.sources import View, check_unchanged, identity, lasting
from chunkflow.kernels.declare import Declared
from chunkflow.kernels.map import SLOT, is_scalar
from chunkflow.kernels.protocol import Kind
from chunkflow.stores import Source, open_source, spec_of
from chunkflow.stores.protocol import guards_of, stored_chunks_of


class Node:
    """An array that can be computed.

    Attributes
    ----------
    name : str
        A description for people.
    title : str
        Another one, for what is read of a file and is not named by it.
    inputs : tuple of Node
        The nodes that it is computed from.
    dtype_known : bool
        Whether its dtype is known without calling a function of the user's own.
    has_own_pass : bool
        Whether it is an operation that shares a pass with no other result.
    made : MadeBy, optional
        The call that made it, by which another process makes it again.
    """

    name: str
    title: str = ""
    inputs: tuple[Node, ...] = ()
    dtype_known: bool = True
    has_own_pass: bool = False
    made: MadeBy | None = None
    _spec: ArraySpec

    @property
    def producer(self) -> Node:
        """The node that is stored when this one must be: for an item of a fold or a scan the whole operation."""
        return self

    @cached_property
    def token(self) -> str:
        """Identifies the node in any process."""
        return os.urandom(16).hex()

    @property
    def spec(self) -> ArraySpec:
        """Its shape and dtype."""
        return self._spec

    @property
    def shape(self) -> Shape:
        """Its shape, which may be known before its dtype."""
        return self.spec.shape


@dataclass(frozen=True)
class MadeBy:
    """A call that gives an expression, or several of which `item` is wanted.

    `sources` are arrays of the user's among the arguments, as they were given.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sources: tuple[Any, ...] = ()
    item: int | None = None


def remembered(result: Any, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], given: Any) -> Any:
    """The result of a call, of whose expressions it is noted that this call has made them.

    What is known already stays: so no expression is said to be made of itself, as one that is reshaped to its shape.
    Among the arrays that were `given` are those of the user's own.
    """
    found = result if isinstance(result, tuple) else (result,)
    for item, one in enumerate(found):
        node = one._node if isinstance(one, Lazy) else None
        if node is not None and node.made is None and not isinstance(node, SourceNode):
            node.made = MadeBy(
                fn, tuple(args), dict(kwargs), tuple(_own(given)), item if isinstance(result, tuple) else None
            )
    return result


def _own(given: Sequence[Any]) -> Iterator[Any]:
    """Arrays of the user's own, also those that views are made of."""
    for array in given:
        if isinstance(array, Lazy) or is_scalar(array):
            continue
        if isinstance(array, View):
            yield from _own(array.arrays)
        else:
            yield array


class SourceNode(Node):
    """A source that a user gave. `key` is equal for equal sources."""

    def __init__(self, source: Any) -> None:
        source = np.asarray(source) if isinstance(source, np.generic) else source
        opened = open_source(source)
        self._spec, self.footprint = opened.spec, opened.footprint
        self.identities = [guard.identity for guard in guards_of([opened])]
        self.stored_chunks = stored_chunks_of(opened)
        opened.close()
        self.name, self.key = self._spec.name, identity(source, self._spec)
        self._source = lasting(source, self._spec)

    @property
    def source(self) -> Any:
        """The source to open, checked against its spec."""
        if isinstance(self._source, np.ndarray):  # it may have been reshaped in place
            check_unchanged(self._spec, self._source)
        return self._source


class OpNode(Node):
    """An operation on some arrays; `chunkflow.graph.evaluate.op_node` makes one. `infer` finds its results' specs."""

    def __init__(self, request: Request, name: str, infer: Callable[[OpNode], tuple[ArraySpec, ...]]) -> None:
        self.request, self.name, self._infer = request, name, infer
        self.args: tuple[Any, ...] = tuple(a if is_scalar(a) else SLOT for a in request.arrays)
        self.inputs = tuple(node_of(a) for a in request.arrays if not is_scalar(a))
        below = all(node.dtype_known for node in self.inputs)
        self.dtype_known = request.options.dtype is not None or (below and request.is_known)

    @cached_property
    def declared(self) -> Declared:
        """The declaration of the operation on these inputs."""
        loose = self.request.shapes_only
        specs = [
            node.spec if node.dtype_known or not loose else ArraySpec(node.name, node.shape, ANY)
            for node in self.inputs
        ]
        return self.request.declare(specs, self.args)

    def check(self) -> None:
        """Raise errors of the arguments that can be found without calling the user's own function."""
        if all(node.dtype_known for node in self.inputs):
            _ = self.specs if self.request.is_known else self.declared
        elif self.request.shapes_only:
            _ = self.declared

    @cached_property
    def specs(self) -> tuple[ArraySpec, ...]:
        """Specs of all its results. For a function of the user's own this takes a trial call."""
        found = self._infer(self)
        self.check_number(len(found))
        self.dtype_known = True
        return found

    def check_number(self, number: int) -> None:
        """Raise if it gives another number of results than an expression has been made for."""
        if number != self.request.number and not self.request.is_known:
            raise ResultError(
                f"fn returned a tuple of {number} arrays: in an expression dtype= must say so, with one for each"
            )

    def item(self, number: int) -> ItemNode:
        """One of its results."""
        node = interned((ItemNode, self, number), lambda: ItemNode(self, number))
        assert isinstance(node, ItemNode)
        return node

    @property
    def spec(self) -> ArraySpec:
        return self.specs[0]

    @property
    def shape(self) -> Shape:
        declared = self.declared
        resized = self.request.options.chunks is not None or None in declared.axes or declared.nest.scan is not None
        if resized or (self.dtype_known and self.request.is_known):
            return self.spec.shape
        return tuple(declared.nest.extents[a] for a in declared.axes if a is not None)

    @cached_property
    def conforms(self) -> bool:
        """Whether places along each operand are those along the nest's axes that it follows, so that regions agree.

        With a halo an operand may be longer than the nest.
        """
        nest = self.declared.nest
        return all(
            n == (1 if a is None else nest.extents[a]) or (bool(operand.halo) and a is not None and n > nest.extents[a])
            for node, operand in zip(self.inputs, nest.operands, strict=True)
            for n, a in zip(node.shape, operand.axes, strict=True)
        )

    @cached_property
    def aligned(self) -> bool:
        """Whether each element of the result depends only on its own place, or the neighbourhood of it.

        Such an operation is computed in the pass that needs it, and not stored.
        """
        declared = self.declared
        return (
            self._is_free(declared.nest)
            and self.conforms
            and declared.kind is Kind.MAP
            and sorted(a for a in declared.axes if a is not None) == list(range(len(declared.nest.extents)))
            and None not in declared.axes
        )

    @cached_property
    def folds(self) -> bool:
        """Whether it is a fold that may share a pass with any other operation on the same nest."""
        return self._is_free(self.declared.nest) and self.conforms and self.declared.kind is Kind.FOLD

    @cached_property
    def has_own_pass(self) -> bool:  # type: ignore[override]
        return not (self.aligned or self.folds)

    def _is_free(self, nest: LoopNest) -> bool:
        """Whether the nest may be cut and walked in any way."""
        fixed = self.declared.block is not None and any(n is not None for n in self.declared.block)
        options = self.request.options
        return not (fixed or nest.whole or nest.looked_up or nest.scan is not None or options.chunks or nest.is_product)


class ItemNode(Node):
    """One of several results of an operation."""

    def __init__(self, op: OpNode, item: int) -> None:
        self.op, self.item, self.name, self.dtype_known = op, item, op.name, op.dtype_known
        self.inputs = (op,)

    @property
    def producer(self) -> Node:
        return self if self.op.aligned else self.op

    @property
    def spec(self) -> ArraySpec:
        return self.op.specs[self.item]


class MultiPassNode(Node):
    """The result of a function of several passes: `run` computes it from arrays in the place of `inputs`, and options.

    If it `streams`, `run` takes expressions too, so that its inputs need not be stored. `unroll` gives an equal node of
    passes that are all known beforehand, or None. `said` is what it does, for `chunkflow.kernels.digest`: by default
    what `run` closes over.
    """

    def __init__(
        self,
        name: str,
        run: Callable[..., Any],
        inputs: Sequence[Node],
        spec: ArraySpec,
        *,
        streams: bool = False,
        unroll: Callable[[], Node | None] = lambda: None,
        said: Any = None,
    ) -> None:
        self.name, self.run, self.inputs, self._spec, self.streams = name, run, tuple(inputs), spec, streams
        self._unroll, self.said = unroll, run if said is None else said

    @cached_property
    def unrolled(self) -> Node | None:
        """An equal node of passes that are known beforehand, if there is one."""
        return self._unroll()


class ViewNode(Node):
    """A view of sources, which takes no pass."""

    def __init__(self, name: str, view: View, inputs: Sequence[Node], spec: ArraySpec) -> None:
        self.name, self.view, self.inputs, self._spec = name, view, tuple(inputs), spec
        self.dtype_known = all(node.dtype_known for node in inputs)


class Lazy:
    """The user's handle of a node: `chunkflow.Array` is a subclass."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __chunkflow_spec__(self) -> ArraySpec:
        return self._node.spec

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`: an expression has no elements yet."""
        if (source := source_of(self._node)) is not None:
            return open_source(source)
        raise ArgumentTypeError(
            f"{self._node.name} is an expression, which only other expressions read before it is computed: compute it "
            "first, to an array or with to_zarr() to a file, and pass that"
        )


Sources = Mapping[Node, Any]
"""Where nodes are stored."""


def source_of(node: Node, stored: Sources = MappingProxyType({})) -> Any:
    """Where a node's elements are, if they are stored or given."""
    if node in stored:
        return stored[node]
    if isinstance(node, SourceNode):
        return node.source
    if isinstance(node, ItemNode) and node.op in stored:
        return stored[node.op][node.item]
    if isinstance(node, ViewNode):
        below = [source_of(child, stored) for child in node.inputs]
        return None if any(source is None for source in below) else node.view.on(below)
    return None


ANY = np.dtype("f8")
"""Stands for an unknown dtype where a declaration depends on shapes only."""

_known: weakref.WeakValueDictionary[Hashable, Node] = weakref.WeakValueDictionary()


def interned(key: Hashable, make: Callable[[], Node]) -> Node:
    """The node with this key, made if there is none yet. Without a key a new one is made."""
    node = None if key is None else _known.get(key)
    if node is None:
        node = make()
        if key is not None:
            _known[key] = node
    return node


def key_of(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """A key that is equal for equal calls of a function; None if an argument cannot be compared reliably."""
    try:
        return (fn, _frozen(args), _frozen(kwargs))
    except TypeError:
        return None


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Lazy):
        return value._node
    if isinstance(value, tuple | list):
        return (type(value), *map(_frozen, value))
    if isinstance(value, Mapping):
        return tuple((name, _frozen(entry)) for name, entry in value.items())
    if is_scalar(value):
        return (type(value), repr(value))  # 1, 1.0 and True are equal, but of different types
    if value is Ellipsis or isinstance(value, str | type | np.dtype | np.ufunc | FunctionType | BuiltinFunctionType):
        return value
    if isinstance(value, slice):
        return (slice, _frozen((value.start, value.stop, value.step)))
    raise TypeError(type(value))


PLAIN = (int, float, complex, str, np.generic, np.ndarray)
"""What holds no expression. Lists may have millions of them, and to ask each whether it is a `View` takes long."""


def has_lazy(value: Any) -> bool:
    """Whether an argument is or contains an expression."""
    return first_lazy(value) is not None


def first_lazy(*values: Any) -> Lazy | None:
    """The first expression in some arguments."""
    return _first_lazy(values)


def _first_lazy(values: Iterable[Any]) -> Lazy | None:
    for value in values:
        if isinstance(value, Lazy):
            return value
        if isinstance(value, PLAIN):
            continue
        inner = value if isinstance(value, list | tuple) else value.arrays if isinstance(value, View) else ()
        if (found := _first_lazy(inner)) is not None:
            return found
    return None


def node_of(value: Any) -> Node:
    """The node of an expression, or of a source."""
    if isinstance(value, Lazy):
        return value._node
    if isinstance(value, View) and has_lazy(value):
        return ViewNode(type(value).__name__.lower(), value, [node_of(a) for a in value.arrays], spec_of(value))
    return SourceNode(value)


def as_source(array: Any, out: Any) -> Any:
    """An array for an operation with this output: what was opened, or a part of it, is a source, and is run at once."""
    found = source_of(node_of(array)) if out is not None and has_lazy(array) else None
    return array if found is None else found


def check_lazily(options: Options, name: str, *, several: bool = False) -> None:
    """Refuse options of a run for an expression, which is not run yet, with an `ArgumentError`.

    Where the operation gives `several` values the line that runs it takes them all, or names the first one.
    """
    given = {
        "out": options.out,
        "budget": options.budget,
        "device": options.device,
        "overwrite": options.overwrite or None,
        "sync": options.sync,
        "resume": options.resume or None,
        "name": options.name,
        "checksum": options.checksum,
        "progress": options.progress or None,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if asked:
        call = f"{name}(...)" if name.isidentifier() and name != "copy" else "x"
        if options.out is None:
            words = written({key: value for key, value in asked.items() if key in ("budget", "device", "progress")})
            line = f"chunkflow.compute({call}, {words})" if several else f"{call}.compute({words})"
        else:
            chunks = {} if options.chunks is None else {"chunks": options.chunks}
            words = written(chunks | {key: value for key, value in asked.items() if key != "out"})
            line = f"chunkflow.store({call}, {written({'': options.out})}{words and ', '}{words})"
            if several and not isinstance(options.out, tuple):
                line = f"result, *_ = {call}; {line.replace(call, 'result')}"
        raise ArgumentError(
            f"{name} of an expression is not run at once, and was given {', '.join(asked)}: give that to compute(), "
            f"to_zarr(), to_npy() or store(), which run it, as {line}"
        )
