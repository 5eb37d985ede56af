"""Fusion: from nodes to one pass, which is a program and the sources that it reads.

Pure: reads no data. An elementwise operation or a stencil is computed in the pass that needs it. Each source is an
operand once, however many results it goes into.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from chunkflow.core.grid import Shape
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.errors import ChunkflowError
from chunkflow.graph.nodes import ItemNode, Node, OpNode, SourceNode, Sources, ViewNode, source_of
from chunkflow.kernels.declare import Declared
from chunkflow.kernels.fusion.program import (
    Axes,
    Call,
    Emit,
    Feeding,
    Folding,
    Fused,
    Instruction,
    Load,
    Pick,
    Window,
    read_by,
)

Lacking = Callable[[Node], None]
"""Called with a node that must be stored first; enters a placeholder for it into the sources."""


class MustBeStoredError(ChunkflowError):
    """A node has to be stored before the operation that reads it."""

    def __init__(self, node: Node) -> None:
        super().__init__(f"{node.name} is to be stored")
        self.node = node


@dataclass(frozen=True)
class Pass:
    """Nodes that are computed in one pass: its declaration, and the sources that it reads.

    `origins` identify the sources. They are known for a program whose operations may be cut anywhere.
    """

    nodes: tuple[Node, ...]
    declared: Declared
    sources: tuple[Any, ...]
    origins: tuple[Any, ...] = ()


def fused(nodes: Sequence[Node], stored: Sources, lacking: Lacking | None = None) -> Pass:
    """The pass that computes some nodes of one nest.

    A node that one of them needs and that must be stored first is a `MustBeStoredError`. With `lacking` all such nodes
    are found in one call; the pass can then not be run.
    """
    extents = nest_of(nodes[0], stored)
    program = _Program(extents, stored, lacking)
    parts: list[Folding | None] = []
    results: list[list[Axes]] = []
    copies: list[float] = []
    every = tuple(range(len(extents)))
    for number, node in enumerate(nodes):
        if isinstance(node, OpNode) and node.folds:
            declared = node.declared
            dtype = node.request.options.dtype
            assert isinstance(declared.copies, float)
            pairs = zip(node.inputs, declared.nest.operands, strict=True)
            registers = [program.compute(child, operand.axes, 0) for child, operand in pairs]
            parts.append(Folding(declared.kernel, declared.nest, _cast_to(dtype)))
            given = len(node.specs) if lacking is None else 1  # what is only looked into has no specs yet
            results.append([declared.axes_of(i) for i in range(given)])
            copies.append(declared.copies)
        else:
            registers = [program.compute(node, every, 0)]
            parts.append(None)
            results.append([every])
            copies.append(0.0)
        program.add(Emit(number, tuple(registers)))
    each = tuple(axes for some in results for axes in some)
    views = not program.calls and all(part is None for part in parts)
    nest = LoopNest(extents, program.operands(), (), together=tuple(map(len, results)), views=views)
    kernel = Fused(_freeing(program.code), tuple(program.windows), tuple(parts))
    declared = Declared(nest, kernel, each[0], tiles=program.calls, copies=tuple(copies), each=each)
    return Pass(tuple(nodes), declared, tuple(program.sources), tuple(origin for origin, _ in program._numbers))


def _cast_to(dtype: Any) -> Any:
    """What ``dtype=`` says of results: one dtype, a tuple of them, or None."""
    if dtype is None:
        return None
    return tuple(map(np.dtype, dtype)) if isinstance(dtype, tuple) else np.dtype(dtype)


def joined(several: Sequence[Declared]) -> Declared:
    """One pass instead of several that read the same operands. A call that occurs in several of them is made once."""
    if len(several) == 1:
        return several[0]
    code: list[Instruction] = []
    windows: dict[Window, int] = {}
    known: dict[Any, int] = {}
    parts: list[Folding | None] = []
    for declared in several:
        kernel = declared.kernel
        assert isinstance(kernel, Fused)
        window = [windows.setdefault(w, len(windows)) for w in kernel.windows]
        at: list[int] = []
        for old, _ in kernel.program:
            new, key = _moved(old, at, window, len(parts))
            if known.setdefault(key, len(code)) == len(code):
                code.append(new)
            at.append(known[key])
        parts += kernel.parts
    each = tuple(axes for declared in several for axes in declared.each)
    copies = tuple(c for declared in several if isinstance(declared.copies, tuple) for c in declared.copies)
    together = tuple(n for declared in several for n in declared.nest.together)
    nest = replace(several[0].nest, together=together, views=all(declared.nest.views for declared in several))
    whole = Fused(_freeing(code), tuple(windows), tuple(parts))
    return Declared(nest, whole, each[0], tiles=any(d.tiles for d in several), copies=copies, each=each)


def _moved(old: Instruction, at: Sequence[int], window: Sequence[int], part: int) -> tuple[Instruction, Any]:
    """An instruction with the numbers of another program, and a key that is equal for equal instructions."""
    if isinstance(old, Load):
        load = replace(old, window=window[old.window])
        return load, load
    if isinstance(old, Call):
        inputs = tuple((at[register], window[w]) for register, w in old.inputs)
        call = replace(old, inputs=inputs, window=window[old.window])
        return call, (call.token, call.axes, call.window)
    if isinstance(old, Pick):
        pick = replace(old, register=at[old.register])
        return pick, pick
    assert isinstance(old, Emit)
    emit = Emit(part + old.part, tuple(at[register] for register in old.registers))
    return emit, emit


def _freeing(code: Sequence[Instruction]) -> tuple[tuple[Instruction, tuple[int, ...]], ...]:
    """A program, with the registers that are free after each instruction."""
    last: dict[int, int] = {}
    for number, instruction in enumerate(code):
        last |= dict.fromkeys((number, *read_by(instruction)), number)
    spent: list[list[int]] = [[] for _ in code]
    for register, number in last.items():
        spent[number].append(register)
    return tuple((instruction, tuple(old)) for instruction, old in zip(code, spent, strict=True))


def single_pass(nodes: Sequence[Node], stored: Sources, lacking: Lacking | None = None) -> Pass:
    """The pass that computes some nodes of one nest, or one that has a pass of its own; `lacking` as for `fused`."""
    node = nodes[0]
    return (
        fed(node, stored, lacking) if isinstance(node, OpNode) and node.has_own_pass else fused(nodes, stored, lacking)
    )


def fed(node: OpNode, stored: Sources, lacking: Lacking | None = None) -> Pass:
    """The pass of an operation that shares it with no other result, and of its inputs."""
    declared = node.declared
    if all(source_of(child, stored) is not None for child in node.inputs):
        return Pass((node,), declared, tuple(source_of(child, stored) for child in node.inputs))
    if not node.conforms or declared.nest.is_product or any(o.halo for o in declared.nest.operands):
        raise MustBeStoredError(unstored(node.inputs, stored))
    program = _Program(declared.nest.extents, stored, lacking)
    for i, (child, operand) in enumerate(zip(node.inputs, declared.nest.operands, strict=True)):
        program.add(Emit(i, (program.compute(child, operand.axes, 0),)))
    feeds = Fused(_freeing(program.code), tuple(program.windows), (None,) * len(node.inputs))
    nest = replace(declared.nest, operands=program.operands())
    kernel = Feeding(feeds, declared.kernel, declared.nest)
    return Pass((node,), replace(declared, nest=nest, kernel=kernel, tiles=False), tuple(program.sources))


def nest_of(node: Node, stored: Sources) -> Shape:
    """Extents of the nest in which a node is computed."""
    if isinstance(node, OpNode) and (node.folds or not node.aligned):
        return node.declared.nest.extents
    return node.shape


def sources_of(node: Node, stored: Sources) -> set[Any]:
    """Identities of the sources that a node's pass would read."""
    found, stack, seen = set(), [node], set()
    while stack:
        this = stack.pop()
        if this in seen:
            continue
        seen.add(this)
        if this is not node and source_of(this, stored) is not None:
            found.add(_identity(this))
        else:
            stack += this.inputs
            if not this.inputs:
                found.add(_identity(this))
    return found


def unstored(nodes: Sequence[Node], stored: Sources) -> Node:
    """The first of some nodes that is not stored; for a view the array that it shows."""
    node = next(node for node in nodes if source_of(node, stored) is None)
    return unstored(node.inputs, stored) if isinstance(node, ViewNode) else node


def _identity(node: Node) -> Any:
    return node.key if isinstance(node, SourceNode) else node


class _Wanted(NamedTuple):
    """A node's value, the axes that its dimensions follow, and the window in which it is wanted."""

    node: Node
    axes: Axes
    window: int


class _Read(NamedTuple):
    """How a program reads an operand: for each dimension the halo, and whether it wraps around."""

    axes: Axes
    shape: Shape
    halo: list[list[int]]
    wraps: list[bool]


@dataclass
class _Program:
    """Instructions in the order in which they are added."""

    extents: Shape
    stored: Sources
    lacking: Lacking | None
    code: list[Instruction] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    calls: bool = False
    _grown: dict[Window, int] = field(default_factory=dict)
    _known: dict[Any, int] = field(default_factory=dict)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _reads: list[_Read] = field(default_factory=list)

    def __post_init__(self) -> None:
        nothing = ((0, 0),) * len(self.extents)
        self.windows.append(Window(nothing, nothing, (0,) * len(self.extents)))

    def add(self, instruction: Instruction) -> int:
        """Number of the register of a new instruction."""
        self.code.append(instruction)
        self.calls = self.calls or isinstance(instruction, Call)
        return len(self.code) - 1

    def compute(self, node: Node, axes: Axes, window: int) -> int:
        """Register of a node's value, whose dimensions follow `axes`, in a window."""
        wanted = _Wanted(node, axes, window)
        stack: list[tuple[_Wanted, list[_Wanted] | None]] = [(wanted, None)]
        while stack:  # deep expressions would be too deep for recursion
            this, below = stack.pop()
            if this in self._known:
                continue
            if below is not None or not (below := self._sought(this)):
                self._known[this] = self._emit(this, below)
            else:
                stack.append((this, below))
                stack += [(child, None) for child in reversed(below)]
        return self._known[wanted]

    def _sought(self, wanted: _Wanted) -> list[_Wanted]:
        """The inputs of a node's value. Reports all nodes that must be stored first to `lacking`."""
        while True:
            try:
                return self._below(*wanted)
            except MustBeStoredError as error:
                if self.lacking is None:
                    raise
                self.lacking(error.node)

    def _below(self, node: Node, axes: Axes, window: int) -> list[_Wanted]:
        if source_of(node, self.stored) is not None:
            return []
        if isinstance(node, ItemNode) and node.op.aligned:
            try:
                self._below(node.op, axes, window)
            except MustBeStoredError as error:
                raise MustBeStoredError(node if error.node is node.op else error.node) from None
            return [_Wanted(node.op, axes, window)]
        if isinstance(node, ViewNode):
            raise MustBeStoredError(unstored(node.inputs, self.stored))
        if not isinstance(node, OpNode) or not node.aligned:
            raise MustBeStoredError(node)
        found = []
        follows = self._follows(node, axes)
        for child, operand in zip(node.inputs, node.declared.nest.operands, strict=True):
            below = tuple(None if a is None else follows[a] for a in operand.axes)
            found.append(_Wanted(child, below, self._window(node, operand, below, window)))
        return found

    @staticmethod
    def _follows(node: OpNode, axes: Axes) -> Axes:
        """For each axis of a node's nest that of the program's."""
        follows: list[int | None] = [None] * len(axes)
        for own, axis in zip(node.declared.axes, axes, strict=True):
            assert own is not None
            follows[own] = axis
        return tuple(follows)

    def _window(self, node: OpNode, operand: Operand, axes: Axes, window: int) -> int:
        if not operand.halo:
            return window
        now = self.windows[window]
        clipped, wrapped, longer = list(now.clipped), list(now.wrapped), list(now.longer)
        for own, axis, halo, kind, n in zip(
            operand.axes, axes, operand.halo, operand.boundary, operand.extents, strict=True
        ):
            periodic = kind == "periodic"
            if axis is None:
                # The node has one place here, which is no axis of the program, and what is around it in the input is.
                if any(halo) and (periodic or n > 1):
                    raise MustBeStoredError(node)
                continue
            if any(wrapped[axis]) and not periodic:
                raise MustBeStoredError(node)  # beyond the edge its values are not those of the other side
            sides = wrapped if periodic else clipped
            sides[axis] = sides[axis][0] + halo[0], sides[axis][1] + halo[1]
            if own is not None:
                longer[axis] += n - node.declared.nest.extents[own]
            most = max(clipped[axis][0] + wrapped[axis][0], clipped[axis][1] + wrapped[axis][1])
            if any(wrapped[axis]) and most > self.extents[axis] + longer[axis]:
                raise MustBeStoredError(node)
        grown = Window(tuple(clipped), tuple(wrapped), tuple(longer))
        if grown == now:
            return window
        if grown not in self._grown:
            self._grown[grown] = len(self.windows)
            self.windows.append(grown)
        return self._grown[grown]

    def _emit(self, wanted: _Wanted, below: Sequence[_Wanted]) -> int:
        node, axes, window = wanted
        if source_of(node, self.stored) is not None:
            return self.add(Load(self._operand(node, axes, window), axes, window))
        registers = [self._known[child] for child in below]
        if isinstance(node, ItemNode):
            return self.add(Pick(registers[0], node.item))
        assert isinstance(node, OpNode)
        declared, dtype = node.declared, _cast_to(node.request.options.dtype)
        if dtype is None and node.request.number > 1 and not isinstance(node.request.fn, np.ufunc):
            dtype = (None,) * node.request.number
        inputs = tuple((register, child.window) for register, child in zip(registers, below, strict=True))
        lies = tuple(a for a in declared.axes if a is not None)
        foreign = not node.request.is_known
        follows = self._follows(node, axes)
        return self.add(Call(declared.kernel, declared.nest, follows, inputs, window, lies, dtype, foreign, node.token))

    def _operand(self, node: Node, axes: Axes, window: int) -> int:
        """Number of the operand of a source, along these axes and with at least this window."""
        # If it is periodic for one use and not for another, blocks hold the wrapped halo for both.
        key = (_identity(node), axes)
        if key not in self._numbers:
            self._numbers[key] = len(self.sources)
            self.sources.append(source_of(node, self.stored))
            self._reads.append(_Read(axes, node.shape, [[0, 0] for _ in axes], [False] * len(axes)))
        number = self._numbers[key]
        _, _, halo, wraps = self._reads[number]
        for dim, axis in enumerate(axes):
            if axis is not None:
                for end in (0, 1):
                    halo[dim][end] = max(halo[dim][end], self.windows[window].halos[axis][end])
                wraps[dim] = wraps[dim] or any(self.windows[window].wrapped[axis])
        return number

    def operands(self) -> tuple[Operand, ...]:
        """The operands, with the halos that windows ask for."""
        found = []
        for axes, shape, halo, wraps in self._reads:
            if any(map(any, halo)):
                kinds = tuple("periodic" if w else "none" for w in wraps)
                # A clipped halo of one use may be deeper than the wrapped halo of another: the whole extent is enough.
                most = [n if w else max(sides) for sides, n, w in zip(halo, shape, wraps, strict=True)]
                sums = tuple((min(b, n), min(a, n)) for (b, a), n in zip(halo, most, strict=True))
                found.append(Operand(axes, sums, shape, kinds))
            else:
                found.append(Operand(axes))
        return tuple(found)
