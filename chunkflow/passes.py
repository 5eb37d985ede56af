"""From expressions to passes and results: what is computed together, what is stored in between, in what order.

Nodes whose inputs are there are computed together where they have the same nest and read a source in common: then
that is read once. What another operation needs whole (a sum, a product, a sorted order) is stored first, in
memory if it is small, and otherwise in a temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from chunkflow import grid, host, interrupts
from chunkflow.errors import ArgumentError, BudgetError
from chunkflow.fusing import MustBeStoredError, Pass, fed, fused, nest_of, source_of, sources_of, unstored
from chunkflow.graph import Item, Later, Lazy, Node, Op
from chunkflow.grid import Grid
from chunkflow.launch import launched
from chunkflow.plan import Plan
from chunkflow.prepare import Options, prepared
from chunkflow.spec import ArraySpec
from chunkflow.trace import Trace

SHARE = 16
"""What is stored in between stays in memory if it takes no more than one part in so many of what is free."""


_around: ContextVar[Mapping[Node, Any]] = ContextVar("chunkflow_around", default=MappingProxyType({}))
"""What the evaluation has stored of which this one is a part."""


@dataclass
class Evaluation:
    """The passes of some nodes.

    Attributes
    ----------
    options : Options
        Budget and device of every pass; and of the nodes that are asked for, `overwrite`, `dtype` and `chunks`.
    stored : dict
        Where the nodes are that have been computed.
    """

    options: Options
    watch: Trace = field(default_factory=lambda: Trace([]))
    stored: dict[Node, Any] = field(default_factory=lambda: dict(_around.get()))
    _needs: dict[Node, frozenset[Node]] = field(default_factory=dict)

    def run(self, wanted: Mapping[Node, Any], stack: ExitStack) -> dict[Node, Any]:
        """Compute nodes; `wanted` says where each goes. Temporary files live as long as `stack`."""
        folder: list[Path] = []

        def place(node: Node) -> Any:
            if node in wanted:
                return wanted[node]
            if (isinstance(node, Op) and len(node.specs) > 1) or _is_small(node.spec):
                return None
            if not folder:
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix="chunkflow-", ignore_cleanup_errors=True))
                folder.append(Path(made))
            return str(folder[0] / f"{len(self.stored)}.npy")

        for group in self.groups(list(wanted)):
            self._compute(group, place)
        return {node: self.stored[node] for node in wanted}

    def plans(self, wanted: Mapping[Node, Any]) -> list[tuple[tuple[str, ...], Plan | str]]:
        """What `run` would do: for each pass the names of its results, and its plan.

        What is stored in between is made up, of the right shape and dtype: it is not there yet.
        """
        found: list[tuple[tuple[str, ...], Plan | str]] = []
        for group in self.groups(list(wanted)):
            names = tuple(node.name for node in group)
            if isinstance(group[0], Later):
                found.append((names, "several passes of its own"))
            else:
                for part, plan in self._planned(group, [wanted.get(node) for node in group]):
                    found.append((tuple(node.name for node in part), plan))
            self.stored.update(made_up(group))
        return found

    def groups(self, wanted: Sequence[Node]) -> Iterator[list[Node]]:
        """Nodes that are computed together, in an order in which each one's inputs are there."""
        todo: list[Node] = []
        stack = list(reversed(wanted))
        while stack:
            node = stack.pop()
            if node not in todo and node not in self.stored:
                todo.append(node)
                stack += self._needed(node)
        done: set[Node] = set(self.stored)
        while todo:
            ready = [node for node in todo if self._needed(node) <= done]
            assert ready, "expressions have no cycles"
            yield from self._together(ready)
            done |= set(ready)
            todo = [node for node in todo if node not in done]

    def _together(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Nodes by the nest that they have in common, as far as they read the same."""
        found: list[tuple[Any, set[Any], list[Node]]] = []
        for node in nodes:
            if isinstance(node, Later) or (isinstance(node, Op) and not (node.aligned or node.folds)):
                found.append((None, set(), [node]))
                continue
            extents, reads = nest_of(node, self.stored), sources_of(node, self.stored)
            joined = [entry for entry in found if entry[0] == extents and entry[1] & reads]
            members = [member for _, _, some in joined for member in some]
            for _, more, _ in joined:
                reads |= more
            found = [entry for entry in found if entry not in joined]
            found.append((extents, reads, [*members, node]))
        return [members for _, _, members in found]

    def _needed(self, node: Node) -> frozenset[Node]:
        """Nodes that must be stored before this one can be computed."""
        if node not in self._needs:
            stored = dict(self.stored)
            needed: set[Node] = set()
            while True:
                try:
                    self._pass([node], stored)
                    break
                except MustBeStoredError as error:
                    missing = (
                        error.node.op if isinstance(error.node, Item) and not error.node.op.aligned else error.node
                    )
                    needed.add(missing)
                    stored.update(made_up([missing]))
            self._needs[node] = frozenset(needed)
        return self._needs[node]

    @staticmethod
    def _pass(group: Sequence[Node], stored: Mapping[Node, Any]) -> Pass | None:
        node = group[0]
        if isinstance(node, Later):
            for child in node.inputs:
                if source_of(child, stored) is None:
                    if not node.streams:
                        raise MustBeStoredError(unstored([child], stored))
                    fused([child], stored)  # it is computed in each of the passes, and what it needs but once
            return None
        if isinstance(node, Op) and not (node.aligned or node.folds):
            return fed(node, stored)
        return fused(group, stored)

    def _compute(self, group: Sequence[Node], place: Callable[[Node], Any]) -> None:
        node = group[0]
        if isinstance(node, Later):
            arrays = [Lazy(c) if (s := source_of(c, self.stored)) is None else s for c in node.inputs]
            options = {"budget": self.options.budget, "device": self.options.device}
            out = place(node)
            given = {} if out is None else {"out": out, "overwrite": self.options.overwrite}
            token = _around.set(self.stored)
            try:
                self.stored[node] = node.run(*arrays, **options, **given)
            finally:
                _around.reset(token)
            return
        made = self._pass(group, self.stored)
        assert made is not None
        outs = [place(member) for member in group]
        try:
            with interrupts.deferred(), self._prepared(made, outs) as run:
                results = launched(run, self.watch)
        except BudgetError:
            if len(group) == 1:
                raise
            for half in (group[: len(group) // 2], group[len(group) // 2 :]):
                self._compute(half, place)
            return
        left = list(results)
        for member in group:
            number = len(member.specs) if isinstance(member, Op) and member.folds else 1
            if len(group) == 1:
                number = len(left)
            some, left = left[:number], left[number:]
            self.stored[member] = some[0] if number == 1 else tuple(some)

    def _planned(self, group: Sequence[Node], outs: Sequence[Any]) -> Iterator[tuple[Sequence[Node], Plan]]:
        try:
            made = self._pass(group, self.stored)
            assert made is not None
            with interrupts.deferred(), self._prepared(made, outs) as run:
                plan = run.plan
        except BudgetError:
            if len(group) == 1:
                raise
            middle = len(group) // 2
            yield from self._planned(group[:middle], outs[:middle])
            yield from self._planned(group[middle:], outs[middle:])
            return
        yield group, plan

    def _prepared(self, made: Pass, outs: Sequence[Any]) -> Any:
        """The pass, with its results' places."""
        node = made.nodes[0]
        alone = len(made.nodes) == 1
        options = replace(self.options, out=None, dtype=None, chunks=None, workspace=None)
        if alone and isinstance(node, Op):
            own = node.request.options
            options = replace(options, chunks=own.chunks, workspace=own.workspace)
            if not (node.aligned or node.folds):  # in a program the dtypes are its own affair
                options = replace(options, dtype=own.dtype)
        if alone and self.options.chunks is not None:
            options = replace(options, chunks=self.options.chunks)
        if any(out is not None for out in outs):
            number = sum(len(n.specs) if isinstance(n, Op) and n.folds else 1 for n in made.nodes)
            if number != len(outs):
                raise ArgumentError(f"{node.name} gives several arrays: give a tuple of outputs, one for each")
            options = replace(options, out=outs[0] if alone else tuple(outs))
        return prepared(lambda specs, args: made.declared, made.sources, options)


def made_up(nodes: Sequence[Node]) -> dict[Node, Any]:
    """Sources in place of what is not there yet: ones, of no memory."""

    def ones(spec: ArraySpec) -> Any:
        return np.broadcast_to(np.ones((), spec.dtype), spec.shape)

    return {
        node: tuple(map(ones, node.specs)) if isinstance(node, Op) and len(node.specs) > 1 else ones(node.spec)
        for node in nodes
    }


def _is_small(spec: ArraySpec) -> bool:
    free = host.available_memory()
    return free is None or spec.nbytes * SHARE <= free


# -- What an operation gives ------------------------------------------------------------------------------------------


def learn(op: Op) -> tuple[ArraySpec, ...]:
    """Specs of an operation's results: from what it says, from a call on made-up elements, or on real ones.

    Functions of the user's own are never called on what is made up.
    """
    declared, options = op.declared, op.request.options
    dtype = options.dtype
    if dtype is not None and options.chunks is None and None not in declared.axes and not declared.each:
        shape = tuple(declared.nest.extents[a] for a in declared.axes if a is not None)
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
        return tuple(ArraySpec(op.name, shape, np.dtype(d)) for d in dtypes)
    if op.is_known:
        return _imagined(op)
    evaluation = Evaluation(Options())
    evaluation.stored.update({node: made_up([node])[node] for node in evaluation._needed(op)})
    return next(plan.outputs for _, plan in evaluation._planned([op], [None]))


def _imagined(op: Op) -> tuple[ArraySpec, ...]:
    """Specs of the results of one of our own operations, from a block of ones."""
    declared = op.declared
    nest = declared.nest
    sides = tuple(n if a in nest.whole else min(n, 1) for a, n in enumerate(nest.extents))
    box = grid.whole(sides)
    blocks = [
        np.ones(grid.shape_of(operand.region(box)), node.spec.dtype)
        for node, operand in zip(op.inputs, nest.operands, strict=True)
    ]
    assert declared.kernel is not None
    with np.errstate(all="ignore"):
        values = declared.kernel(blocks, nest, Grid(nest.extents, sides), (0,) * len(box), box)
    dtype = op.request.options.dtype
    found = []
    for i, value in enumerate(values if isinstance(values, tuple) else (values,)):
        value = np.asarray(value)
        axes = declared.axes_of(i)
        shape = tuple(
            n if a is None else n * nest.extents[a] // max(sides[a], 1) for a, n in zip(axes, value.shape, strict=True)
        )
        found.append(ArraySpec(op.name, shape, value.dtype if dtype is None else np.dtype(dtype)))
    return tuple(found)
