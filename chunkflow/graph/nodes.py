"""Expressions: arrays that are known by what would make them. Building one reads nothing.

Asking for the same operation on the same nodes gives the node that there is: what occurs twice is computed once.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.options import Options, ProgressLike
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.request import Request
from chunkflow.graph.sources import View, current, identity, lasting
from chunkflow.kernels.declare import Declared
from chunkflow.kernels.map import SLOT, is_scalar
from chunkflow.kernels.protocol import Kind
from chunkflow.stores import Source, open_source, spec_of


class Node:
    """An array that something would make.

    Attributes
    ----------
    name : str
        What it is, for people.
    inputs : tuple of Node
        What it is made of.
    told : bool
        Whether its dtype is known without a call of a function of the user's own.
    """

    name: str
    inputs: tuple[Node, ...] = ()
    dtype_known: bool = True

    @cached_property
    def token(self) -> str:
        """What tells it from any other node, in whatever process."""
        return uuid.uuid4().hex

    @property
    def spec(self) -> ArraySpec:
        """Its shape and dtype."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """Its shape, which may be known before its dtype."""
        return self.spec.shape


class SourceNode(Node):
    """A source, as its user gave it. `key` is the same for the same source."""

    def __init__(self, source: Any) -> None:
        source = np.asarray(source) if isinstance(source, np.generic) else source
        opened = open_source(source)
        self._spec, self.footprint = opened.spec, opened.footprint
        opened.close()
        self.name, self.key = self._spec.name, identity(source, self._spec)
        self._source = lasting(source, self._spec)

    @property
    def source(self) -> Any:
        """What is opened to read it."""
        return current(self._source, self._spec)

    @property
    def spec(self) -> ArraySpec:
        """See `Node.spec`."""
        return self._spec


class OpNode(Node):
    """What an operation gives of some arrays. `learn` finds out the specs of its results when they are asked for."""

    def __init__(self, request: Request, name: str, infer: Callable[[OpNode], tuple[ArraySpec, ...]]) -> None:
        self.request, self.name, self._infer = request, name, infer
        self.args: tuple[Any, ...] = tuple(a if is_scalar(a) else SLOT for a in request.arrays)
        self.inputs = tuple(node_of(a) for a in request.arrays if not is_scalar(a))
        below = all(node.dtype_known for node in self.inputs)
        self.dtype_known = request.options.dtype is not None or (below and request.is_known)

    @cached_property
    def declared(self) -> Declared:
        """What the operation says of itself."""
        loose = self.request.shapes_only
        specs = [
            node.spec if node.dtype_known or not loose else ArraySpec(node.name, node.shape, ANY)
            for node in self.inputs
        ]
        return self.request.declare(specs, self.args)

    def check(self) -> None:
        """Raise what is wrong with the arguments, as far as that is known without a call of the user's own function."""
        if all(node.dtype_known for node in self.inputs):
            _ = self.specs if self.request.is_known else self.declared
        elif self.request.shapes_only:
            _ = self.declared

    @cached_property
    def specs(self) -> tuple[ArraySpec, ...]:
        """Of all its results. Of a function whose results nobody knows a trial call has to tell."""
        found = self._infer(self)
        self.dtype_known = True
        return found

    def item(self, number: int) -> ItemNode:
        """One of its results."""
        node = interned((ItemNode, self, number), lambda: ItemNode(self, number))
        assert isinstance(node, ItemNode)
        return node

    @property
    def spec(self) -> ArraySpec:
        """See `Node.spec`."""
        return self.specs[0]

    @property
    def shape(self) -> Shape:
        """See `Node.shape`."""
        declared = self.declared
        resized = self.request.options.chunks is not None or None in declared.axes or declared.nest.scan is not None
        if resized or (self.dtype_known and self.request.is_known):
            return self.spec.shape
        return tuple(declared.nest.extents[a] for a in declared.axes if a is not None)

    @cached_property
    def conforms(self) -> bool:
        """Whether its operands extend as its nest does, so that a region of the one is one of the other."""
        nest = self.declared.nest
        return all(
            n == (1 if a is None else nest.extents[a])
            for node, operand in zip(self.inputs, nest.operands, strict=True)
            for n, a in zip(node.shape, operand.axes, strict=True)
        )

    @cached_property
    def aligned(self) -> bool:
        """Whether each element of the result depends on its own place, or its neighbourhood, alone.

        Such an operation is computed where it is needed, and need not be stored.
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
        """Whether it combines blocks, in any order and with any other operation of its nest."""
        return self._is_free(self.declared.nest) and self.conforms and self.declared.kind is Kind.FOLD

    def _is_free(self, nest: LoopNest) -> bool:
        """Whether nothing is said of how the nest is to be cut or walked."""
        fixed = self.declared.block is not None and any(n is not None for n in self.declared.block)
        options = self.request.options
        return not (fixed or nest.whole or nest.scan is not None or options.chunks or nest.is_product)


class ItemNode(Node):
    """One of several arrays that an operation gives."""

    def __init__(self, op: OpNode, item: int) -> None:
        self.op, self.item, self.name, self.dtype_known = op, item, op.name, op.dtype_known
        self.inputs = (op,)

    @property
    def spec(self) -> ArraySpec:
        """See `Node.spec`."""
        return self.op.specs[self.item]


class MultiPassNode(Node):
    """What a function of several passes gives: `run` takes the arrays that its inputs are then, and options.

    `streams` says that it takes expressions too, so that what feeds it need not be stored. `unroll` gives a node that
    is the same in passes that are known beforehand, or None.
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
    ) -> None:
        self.name, self.run, self.inputs, self._spec, self.streams = name, run, tuple(inputs), spec, streams
        self._unroll = unroll

    @cached_property
    def unrolled(self) -> Node | None:
        """The same in passes that are known beforehand, if it can be had."""
        return self._unroll()

    @property
    def spec(self) -> ArraySpec:
        """See `Node.spec`."""
        return self._spec


class ViewNode(Node):
    """Sources seen in another way, which takes no pass: `view` says how."""

    def __init__(self, name: str, view: View, inputs: Sequence[Node], spec: ArraySpec) -> None:
        self.name, self.view, self.inputs, self._spec = name, view, tuple(inputs), spec
        self.dtype_known = all(node.dtype_known for node in inputs)

    def on(self, sources: Sequence[Any]) -> Any:
        """The source that it is, given those of its inputs."""
        return self.view.on(sources)

    @property
    def spec(self) -> ArraySpec:
        """See `Node.spec`."""
        return self._spec


class Lazy:
    """An array of the user's that stands for a node."""

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __chunkflow_spec__(self) -> ArraySpec:
        """See `chunkflow.stores.spec_of`."""
        return self._node.spec

    def __chunkflow_source__(self) -> Source:
        """See `chunkflow.stores.open_source`: an expression has no elements yet."""
        source = plain_source(self._node)
        if source is not None:
            return open_source(source)
        raise ArgumentTypeError(
            f"{self._node.name} is an expression, and its elements are wanted one block at a time by what is no "
            "expression itself: compute it first, to an array or with to_zarr() to a file, and pass that"
        )


def plain_source(node: Node) -> Any:
    """The source that a node is, or shows; None for one that is yet to be computed."""
    if isinstance(node, SourceNode):
        return node.source
    if isinstance(node, ViewNode):
        below = [plain_source(child) for child in node.inputs]
        return None if any(source is None for source in below) else node.on(below)
    return None


ANY = np.dtype("f8")
"""Stands for a dtype that nobody knows yet, where a declaration asks for shapes alone."""

_known: weakref.WeakValueDictionary[Hashable, Node] = weakref.WeakValueDictionary()


def interned(key: Hashable, make: Callable[[], Node]) -> Node:
    """The node with this key, made if there is none; without a key it is always made."""
    node = None if key is None else _known.get(key)
    if node is None:
        node = make()
        if key is not None:
            _known[key] = node
    return node


def key_of(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """What tells one call of a function from another; None where nothing reliable does."""
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
        return (type(value), repr(value))  # 1, 1.0 and True are equal, and do not mean the same
    if value is Ellipsis or isinstance(value, str | type | np.dtype | np.ufunc | FunctionType | BuiltinFunctionType):
        return value
    if isinstance(value, slice):
        return (slice, _frozen((value.start, value.stop, value.step)))
    raise TypeError(type(value))


def has_lazy(value: Any) -> bool:
    """Whether there is an expression in an argument."""
    if isinstance(value, list | tuple):
        return any(map(has_lazy, value))
    return isinstance(value, Lazy) or (isinstance(value, View) and has_lazy(list(value.arrays)))


def first_lazy(*values: Any) -> Lazy | None:
    """The first expression in some arguments."""
    for value in values:
        if isinstance(value, Lazy):
            return value
        if isinstance(value, list | tuple) and (found := first_lazy(*value)) is not None:
            return found
        if isinstance(value, View) and (found := first_lazy(*value.arrays)) is not None:
            return found
    return None


def node_of(value: Any) -> Node:
    """The node of an expression, or of a source."""
    if isinstance(value, Lazy):
        return value._node
    if has_lazy(value):
        return ViewNode(type(value).__name__.lower(), value, [node_of(a) for a in value.arrays], spec_of(value))
    return SourceNode(value)


def check_lazily(options: Options, progress: ProgressLike, name: str) -> None:
    """Refuse what belongs to running where nothing runs.

    Raises
    ------
    ArgumentError
        One of the options is given.
    """
    given = {
        "out": options.out,
        "budget": options.budget,
        "device": options.device,
        "overwrite": options.overwrite or None,
        "progress": progress or None,
    }
    asked = [key for key, value in given.items() if value is not None]
    if asked:
        raise ArgumentError(
            f"{name} of an expression is not run at once, and was given {', '.join(asked)}: give that to "
            "compute(), to_zarr(), to_npy() or store(), which run it"
        )
