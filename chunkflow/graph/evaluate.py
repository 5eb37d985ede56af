"""Evaluation of expressions: which nodes share a pass, which results are stored in between, and in what order.

Nodes that are ready are computed together if they have the same nest and read a source in common, so that it is read
once. Intermediate results that a later step needs in full (a sum, a product, a sorted order) are kept in memory if
they are small, otherwise in a temporary file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from chunkflow import devices
from chunkflow.core import grid
from chunkflow.core.grid import Grid, Shape
from chunkflow.core.settings import temporary_directory
from chunkflow.core.spec import ArraySpec
from chunkflow.engine.batches import LivePass, planned_batches, run_batches
from chunkflow.engine.budget import lease
from chunkflow.engine.completion import PendingOutput, settled, together
from chunkflow.engine.dry_run import apart, is_dry, is_stand_in, placeholder, planned, refuse_ahead, stand_ins
from chunkflow.engine.named_dimensions import Names, names_of
from chunkflow.engine.observe.analysis import forecast
from chunkflow.engine.options import Options
from chunkflow.engine.outputs import check_overlap
from chunkflow.engine.passes import current
from chunkflow.engine.prepare import Prepared, prepared
from chunkflow.engine.run import launched
from chunkflow.engine.trace import Trace
from chunkflow.engine.trial import shortened, tried
from chunkflow.errors import ArgumentError, BudgetError, ResultError, UnsupportedError
from chunkflow.graph.fusion import (
    Lacking,
    MustBeStoredError,
    Pass,
    fed,
    fused,
    nest_of,
    single_pass,
    sources_of,
    unstored,
)
from chunkflow.graph.live import check_ends, check_once, filled, lives, lives_below, only_live, rebuilt, sampled
from chunkflow.graph.nodes import Lazy, MultiPassNode, Node, OpNode, SourceNode, interned, source_of
from chunkflow.graph.outputs import OutputPlace, check_clear, check_parts, check_whole, places_of
from chunkflow.graph.request import Request
from chunkflow.graph.sources import with_axis_names, without_axis_names
from chunkflow.kernels.protocol import Became, trial
from chunkflow.planner.plan import Plan
from chunkflow.stores import open_source, open_target
from chunkflow.stores.live import Live
from chunkflow.system import host, interrupts
from chunkflow.system.context import run_variable

SHARE, LEAST = 16, 64 << 10
"""An intermediate result stays in memory up to one part in `SHARE` of the free memory, and on the CPU of the budget;
or up to `LEAST` bytes."""

TOGETHER = 4
"""So many such parts stay in memory at a time: later passes need room."""


_around: ContextVar[Mapping[Node, Any]] = run_variable("chunkflow_around", MappingProxyType({}))
"""Stored nodes of the evaluation that this one is a part of."""

_device: ContextVar[Any] = run_variable("chunkflow_device", None)
"""Where the functions of an evaluation are tried: on the device on which it runs them."""


MANY, BUSY = 64, 0.3
"""A pass of several results is split if it has more than `MANY` blocks, and their overhead takes more than the share
`BUSY` of the predicted time."""


@dataclass
class Evaluation:
    """The passes of some nodes, and where the computed ones are `stored`.

    The `options` have the budget and device of every pass, and `overwrite` and `out_chunks` of the wanted nodes.
    """

    options: Options
    watch: Trace = field(default_factory=lambda: Trace([]))
    stored: dict[Node, Any] = field(default_factory=lambda: dict(_around.get()))
    _unread: dict[Node, Any] = field(default_factory=dict)
    """Results that no later pass may read: in outputs of other dtypes, or in those that have no names yet."""
    _needs: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    _runs: dict[Node, Callable[..., Any] | None] = field(default_factory=dict)
    _asked: set[Node] = field(default_factory=set)
    """What the caller gets."""
    _staying: dict[Node, bool] = field(default_factory=dict)
    """Which intermediate results stay in memory."""

    def __post_init__(self) -> None:
        self._given = frozenset(self.stored)

    def run(self, wanted: Mapping[Node, Any], stack: ExitStack) -> dict[Node, Any]:
        """Compute nodes into the places that `wanted` gives. Temporary files live as long as `stack`.

        An output that overlaps another one, or a source that a later pass reads, is an `ArgumentError`.
        """
        stack.callback(_device.reset, _device.set(self.options.device))
        places = self._dry_run(wanted)
        if not is_dry():
            self._refuse_ahead(wanted)
        folder: list[Path] = []
        numbers, passes = itertools.count(), current()
        self._asked |= set(wanted)

        hidden = {node: place.target for node, place in places.items() if place.path is not None and len(wanted) > 1}
        later: set[Node] = set()

        def place(node: Node) -> Any:
            if node in wanted and node not in later:
                return wanted[node]
            if self._stays(node):
                return None
            if passes is not None:
                return passes.place(ArraySpec(node.name, node.spec.shape, node.spec.dtype))
            if not folder:
                import tempfile  # not at the top: it takes 2 ms

                options: dict[str, Any] = {"prefix": "chunkflow-", "ignore_cleanup_errors": True}
                made = stack.enter_context(tempfile.TemporaryDirectory(dir=temporary_directory(), **options))
                folder.append(Path(made))
            return str(folder[0] / f"{next(numbers)}.npy")

        given = set(self.stored)
        with together([*hidden.values()], self.options.sync):
            for group, wanting in self.groups(list(wanted)):
                later |= {node for node in group if node in wanting and node in hidden and _waits(places[node])}
                self._asked -= later
                self._compute(group, wanted, place)
                for node in set(self.stored) - given - wanting - set(wanted):
                    old = without_axis_names(self.stored.pop(node))  # no later pass needs it
                    if isinstance(old, np.memmap) and passes is None:
                        Path(str(old.filename)).write_bytes(b"")
            found = {node: self._unread[node] if node in self._unread else self.stored[node] for node in wanted}
            for node in later:
                copied = SourceNode(found[node])
                found[node] = self.run({copied: wanted[node]}, stack)[copied]
        return {node: settled(result) for node, result in found.items()}

    @cached_property
    def _room(self) -> int:
        """Most bytes of an intermediate result that stays in memory."""
        passes = current()
        return room(self.options) if passes is None else max(LEAST, int(passes.limit) // SHARE)

    def _stays(self, node: Node) -> bool:
        """Whether an intermediate result stays in memory, beside those that are there."""
        if isinstance(node, OpNode) and len(node.specs) > 1:
            return True
        if node not in self._staying:
            there = sum(other.spec.nbytes for other, stays in self._staying.items() if stays and other in self.stored)
            nbytes = node.spec.nbytes
            self._staying[node] = nbytes <= self._room and there + nbytes <= max(LEAST, TOGETHER * self._room)
        return self._staying[node]

    def _keeping(self, group: Sequence[Node]) -> AbstractContextManager[None]:
        """A context in which intermediate results in memory count, with those that a pass makes of these nodes."""
        device = devices.resolve(self.options.device)
        if device.machine.staged:
            return nullcontext()
        kept = {*self.stored, *group} - self._given - self._asked
        return device.keeping(sum(spec.nbytes for node in kept if self._stays(node) for spec in _specs(node)))

    def plan_all(self, wanted: Mapping[Node, Any]) -> None:
        """Plan all passes, in a dry run."""
        with ExitStack() as stack:
            Evaluation(self.options, stored=dict(self.stored), _needs=self._needs).run(wanted, stack)

    def _refuse_ahead(self, wanted: Mapping[Node, Any]) -> None:
        """Refuse a budget in which a later pass does not fit, before the first one runs."""
        todo = self._todo(list(wanted))
        if len(todo) > 1 or any(map(self._several, todo)):
            nbytes = sum(spec.nbytes for node in todo for spec in _specs(node)) + _given(todo)
            refuse_ahead(lambda: self.plan_all(wanted), self.options, nbytes)

    def _dry_run(self, wanted: Mapping[Node, Any]) -> dict[Node, OutputPlace]:
        """Go through all passes without running them, and refuse outputs that cannot be written or that conflict.

        An output may conflict with another one, or with an array that a later pass reads. Gives the outputs' places.
        """
        places = places_of(wanted, overwrite=self.options.overwrite)
        written: dict[Node, OutputPlace] = {}
        # Both start with the same stored nodes, so the run need not find again which nodes each one needs.
        dry = Evaluation(self.options, stored=dict(self.stored), _needs=self._needs)
        once: set[Live] = set()
        for passes, (group, wanting) in enumerate(dry.groups(list(wanted), dry_run=True)):
            check_once(once, group, dry.stored, several=any(map(self._several, group)))
            check_ends(group, wanting)
            if self.options.resume and current() is None and (passes or any(map(self._several, group))):
                raise UnsupportedError(
                    f"resume=: {group[0].name} takes more than one pass over the arrays, and only runs of one pass "
                    "can be resumed: store what it reads first, by a call of its own"
                )
            check_clear(written.values(), group)
            by_passes = any(map(self._several, group))
            if by_passes and self.options.out_chunks is not None and group[0] in wanted:
                raise UnsupportedError(
                    f"chunks={self.options.out_chunks!r}: {group[0].name} makes several passes of its own, and chooses "
                    "the chunks of an array that it creates: store it into a zarr array that has them"
                )
            # The output of a single pass is checked when it is prepared.
            if (len(places) > 1 or by_passes) and any(node in places for node in group):
                dry._check_pass(group, places, wanted)
            written |= {node: places[node] for node in group if node in places}
            read = [node for node in group if node in places and node in wanting]
            check_whole({node: places[node] for node in read if not _waits(places[node])})
        return places

    def _check_pass(
        self, group: Sequence[Node], places: Mapping[Node, OutputPlace], wanted: Mapping[Node, Any]
    ) -> None:
        """Refuse outputs that overlap what their own pass reads, unless it works in place and needs one pass only."""
        made = self._pass(group, self.stored)
        if made is None:  # several passes
            check_clear([places[node] for node in group], group, self.stored)
            return
        numbers = itertools.accumulate(map(_results, group), initial=0)
        targets = {number: places[node].target for number, node in zip(numbers, group, strict=False) if node in places}
        with ExitStack() as stack:
            sources = [stack.enter_context(closing(open_source(source))) for source in made.sources]
            check_overlap(made.declared, sources, targets)
            held = {source.footprint for source in sources} - {None}
        if len(group) > 1 and not held.isdisjoint(target.footprint for target in targets.values()):
            check_parts(self._parts(group, wanted), places)

    def plans(self, wanted: Mapping[Node, Any]) -> list[tuple[tuple[str, ...], Plan | str]]:
        """What `run` would do: for each pass the names of its results, and its plan.

        Intermediate results are not there yet: placeholders of their shape and dtype take their place.
        """
        found: list[tuple[tuple[str, ...], Plan | str]] = []
        self._asked |= set(wanted)
        for group, _ in self.groups(list(wanted), dry_run=True):
            for part in self._parts(group, wanted):
                names = tuple(node.name for node in part)
                if (run := self._several(part[0])) is None:
                    found.append((names, self._plan(part, wanted, expect=forecast)))
                    continue
                several = [] if is_dry() else planned(partial(self._run, part[0], run, wanted.get))
                found += [(names, plan) for plan in several] or [(names, "several passes of its own")]
        return found

    def groups(self, wanted: Sequence[Node], *, dry_run: bool = False) -> Iterator[tuple[list[Node], set[Node]]]:
        """Groups of nodes that are computed together, each after its inputs, and the nodes that later groups need.

        The caller stores a group before it asks for the next one. In a dry run placeholders are stored instead.
        """
        todo = self._todo(wanted)
        done: set[Node] = set(self.stored)
        while todo:
            ready = [node for node in todo if done.issuperset(self._needed(node))]
            assert ready, "expressions have no cycles"
            done |= set(ready)
            for group in self._together(ready):
                for node in group:
                    del todo[node]
                wanting = {needed for node in todo for needed in self._needed(node)}
                yield group, wanting
                if dry_run:
                    self.stored.update(placeholders([node for node in group if node in wanting]))

    def _todo(self, wanted: Sequence[Node]) -> dict[Node, None]:
        """The nodes that are computed, with those that they need."""
        todo: dict[Node, None] = {}
        stack = list(reversed(wanted))
        while stack:
            node = stack.pop()
            if node not in todo and node not in self.stored:
                todo[node] = None
                stack += self._needed(node)
        return todo

    def _together(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Groups of nodes that have the same nest and, directly or through others, a source in common."""
        found: list[tuple[Any, set[Any], list[Node]]] = []
        for node in nodes:
            if node.has_own_pass or self._several(node) is not None:
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

    def _needed(self, node: Node) -> tuple[Node, ...]:
        """Nodes that must be stored before this one can be computed, in the order in which they are met.

        In the same order each time, the calls of a pass are too, and its kernels are compiled once.
        """
        if node not in self._needs:
            stored = dict(self.stored)
            needed: dict[Node, None] = {}

            def lacking(missing: Node) -> None:
                needed[missing.producer] = None
                stored.update(placeholders([missing.producer]))

            while True:
                try:
                    self._pass([node], stored, lacking)
                    break
                except MustBeStoredError as error:
                    lacking(error.node)
            self._needs[node] = tuple(needed)
        return self._needs[node]

    def _several(self, node: Node) -> Callable[..., Any] | None:
        """What makes a node's result by passes of its own: always, or where one does not fit the budget."""
        if isinstance(node, MultiPassNode):
            return node.run
        if node not in self._runs:
            self._runs[node] = node.request.several(self.options) if isinstance(node, OpNode) else None
        return self._runs[node]

    def _pass(self, group: Sequence[Node], stored: Mapping[Node, Any], lacking: Lacking | None = None) -> Pass | None:
        node = group[0]
        if self._several(node) is not None:
            for child in node.inputs:
                if source_of(child, stored) is None:
                    if isinstance(node, MultiPassNode) and not node.streams:
                        raise MustBeStoredError(unstored([child], stored))
                    fused([child], stored, lacking)  # each pass computes it, from results that are stored once
            return None
        return single_pass(group, stored, lacking)

    def _parts(self, group: Sequence[Node], wanted: Mapping[Node, Any]) -> list[Sequence[Node]]:
        """A group, cut into parts if it does not fit the budget or is faster in several passes.

        If a node alone does not fit, the `BudgetError` names the smallest budget for all of them.
        """
        if len(group) == 1 or lives_below(group, self.stored):  # which has one pass only
            return [group]
        halves = group[: len(group) // 2], group[len(group) // 2 :]
        try:
            whole = self._plan(group, wanted)
            if not _is_busy(whole):
                return [group]
            parts = [part for half in halves for part in self._parts(half, wanted)]
            seconds = sum(self._plan(part, wanted).estimate.seconds for part in parts)
            return [group] if whole.estimate.seconds <= seconds else parts
        except BudgetError:
            errors, parts = [], []
            for half in halves:
                try:
                    parts += self._parts(half, wanted)
                    for part in parts[-1:]:
                        self._plan(part, wanted)
                except BudgetError as error:
                    errors.append(error)
            if errors:
                raise max(errors, key=lambda error: error.smallest or error.needed or 0) from None
            return parts

    def _compute(self, group: Sequence[Node], wanted: Mapping[Node, Any], place: Callable[[Node], Any]) -> None:
        """Compute a group, in as many passes as it takes."""
        if (run := self._several(group[0])) is not None:
            self._run(group[0], run, place)
            return
        try:
            if self._launch(group, place, busy=len(group) > 1):
                return
        except BudgetError:
            if len(group) == 1 or lives_below(group, self.stored):  # which has one pass only
                raise
        parts = self._parts(group, wanted)
        mine = {node: wanted[node] for node in group if node in wanted}
        check_parts(parts, places_of(mine, overwrite=self.options.overwrite))
        for part in parts:
            self._launch(part, place)

    def _run(self, node: Node, run: Callable[..., Any], place: Callable[[Node], Any]) -> None:
        """Compute a node by several passes of its own, which `run` makes."""
        arrays = [Lazy(c) if (s := source_of(c, self.stored)) is None else s for c in node.inputs]
        options = {"budget": self.options.budget, "device": self.options.device}
        out = place(node)
        given = {} if out is None else {"out": out, "overwrite": self.options.overwrite, "sync": self.options.sync}
        token = _around.set(self.stored)
        try:
            with self._keeping([node]):
                result = run(*arrays, **options, **given)
            if is_dry() and not is_stand_in(result):  # whose chunks are those that the file would have
                target = open_target(out, overwrite=self.options.overwrite)
                result = stand_ins([target.describe(node.spec.shape, node.spec.dtype, None)])[0]
            self._store(node, result)
        finally:
            _around.reset(token)

    def _launch(self, group: Sequence[Node], place: Callable[[Node], Any], *, busy: bool = False) -> bool:
        """Run a pass, and say so. With `busy` it is not run if the overhead of its blocks is large."""
        made = self._pass(group, self.stored)
        assert made is not None
        places = [place(member) for member in group]
        names: list[Names] = []
        if (live := only_live(made.sources)) is not None:
            with interrupts.deferred(), self._keeping(group):
                found = run_batches(self._live_pass(live, made), self._options(made, places), self.watch)
            left, outputs, dtypes = list(found.results), found.outputs, found.dtypes
        else:
            with interrupts.deferred(), self._keeping(group), self._prepared(made, places) as run:
                if busy and current() is None and _is_busy(run.plan):
                    return False
                _check_promises(group, [spec.shape for spec in run.plan.outputs], run.dtypes)
                outputs, dtypes = run.plan.outputs, run.dtypes
                if not self._asked.issuperset(group):
                    chunks = self._options(made, places).chunks
                    names = list(names_of(made.declared, run.plan.op, run.sources, outputs, chunks))
                left = list(launched(run, self.watch))
        same = [spec.dtype == dtype for spec, dtype in zip(outputs, dtypes, strict=False)]
        for member in group:
            number = len(left) if len(group) == 1 else _results(member)
            some, left = left[:number], left[number:]
            if names and member not in self._asked:  # later passes name their results after these
                some = list(map(with_axis_names, some, names))
            names = names[number:]
            whole, same = all(same[:number]), same[number:]
            self._store(member, some[0] if number == 1 else tuple(some), whole=whole)
        return True

    def _store(self, node: Node, result: Any, *, whole: bool = True) -> None:
        """Keep a result, for the caller and for later passes if it is the `whole` of what the node gives."""
        pending = any(isinstance(one, PendingOutput) for one in (result if isinstance(result, tuple) else (result,)))
        if pending or not whole:
            self._unread[node] = result
        if whole and not pending:
            # As a source NumPy's scalars would pass for scalar arguments.
            self.stored[node] = np.asarray(result) if isinstance(result, np.generic) else result
        elif whole and getattr(result, "source", None) is not None:
            self.stored[node] = result.source

    def _plan(
        self, group: Sequence[Node], wanted: Mapping[Node, Any], expect: Callable[[Prepared], Plan] | None = None
    ) -> Plan:
        made = self._pass(group, self.stored)
        assert made is not None
        places = [wanted.get(node) for node in group]
        live = only_live(made.sources)
        with interrupts.deferred(), self._keeping(group), self._prepared(made, places, live) as run:
            plan: Plan = run.plan if expect is None else expect(run)
        return plan

    def _live_pass(self, live: Live, made: Pass) -> LivePass:
        """A pass that reads a live source, of which more rows are known from batch to batch."""

        def with_stand(stand: Any) -> Any:
            this = made
            if live.length is None:
                known: dict[Node, Node] = {}
                nodes = [rebuilt(node, live, stand, known) for node in made.nodes]
                this = single_pass(nodes, {known.get(node, node): source for node, source in self.stored.items()})
            return lambda specs, args: this.declared, [filled(source, live, stand) for source in this.sources]

        return LivePass(live, with_stand, next(i for i, s in enumerate(made.sources) if live in lives(s)))

    @contextmanager
    def _prepared(self, made: Pass, outs: Sequence[Any], live: Live | None = None) -> Iterator[Prepared]:
        """The prepared run of a pass, with the places of its results. A refused budget says which operations ask.

        Of a `live` source it is as the batches are.
        """
        with ExitStack() as stack:
            arrays, options = sampled(made.sources), self._options(made, outs)
            try:
                if live is not None:
                    run = stack.enter_context(planned_batches(self._live_pass(live, made), options))
                else:
                    run = stack.enter_context(prepared(lambda specs, args: made.declared, arrays, options))
            except BudgetError as error:
                names = list(dict.fromkeys(node.name for node in made.nodes))
                more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
                error.add_note(f"chunkflow: in the pass of {', '.join(names[:MOST_NAMED])}{more}")
                raise
            yield run

    def _options(self, made: Pass, outs: Sequence[Any]) -> Options:
        """How a pass is run, with the places of its results."""
        node = made.nodes[0]
        alone = len(made.nodes) == 1
        options = replace(self.options, out=None, dtype=None, chunks=None, workspace=None)
        if current() is not None:  # which sees to all of its passes
            options = replace(options, resume=False, name=None)
        if not any(out is not None for out in outs):
            options = replace(options, out_chunks=None)
        if alone and isinstance(node, OpNode):
            own = node.request.options
            options = replace(options, chunks=own.chunks, workspace=own.workspace)
            if node.has_own_pass:  # a program casts by itself
                options = replace(options, dtype=own.dtype)
        if any(out is not None for out in outs):
            number = sum(map(_results, made.nodes))
            if number != len(outs):
                raise ArgumentError(
                    f"{node.name} gives {number} arrays, and {len(outs)} outputs were given: give a tuple with one "
                    "for each"
                )
            options = replace(options, out=outs[0] if alone else tuple(outs))
        return options


def _specs(node: Node) -> tuple[ArraySpec, ...]:
    return node.specs if isinstance(node, OpNode) else (node.spec,)


def _given(nodes: Iterable[Node]) -> int:
    """Bytes of the sources that nodes are computed from."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.inputs
    return sum(node.spec.nbytes for node in found if isinstance(node, SourceNode))


def _waits(place: OutputPlace) -> bool:
    """Whether nobody can read an output before it has its name: then it is made elsewhere, and copied at the end."""
    return place.path is not None and not hasattr(place.target, "grows")


def _results(node: Node) -> int:
    """How many results a node has in a pass."""
    return len(node.specs) if isinstance(node, OpNode) and node.folds else 1


def _check_promises(group: Sequence[Node], shapes: Sequence[Shape], dtypes: Sequence[np.dtype]) -> None:
    """Raise if a pass gives something else than what was said of its nodes, before it is stored.

    A function of an intermediate result is tried on ones, and may do something else to the real elements.
    """
    real = iter(zip(shapes, dtypes, strict=True))
    for node in group:
        found = list(real) if len(group) == 1 else list(itertools.islice(real, _results(node)))
        if isinstance(node, OpNode):
            node.check_number(len(found))
        if isinstance(node, OpNode) and "specs" not in vars(node):
            continue  # nobody has asked
        said = node.specs if isinstance(node, OpNode) else (node.spec,)
        for promised, (shape, dtype) in zip(said, found, strict=False):
            if (promised.shape, promised.dtype) != (shape, dtype):
                raise ResultError(
                    f"{node.name} gives shape {shape} and dtype {dtype}, and for elements of 1 it gave shape "
                    f"{promised.shape} and dtype {promised.dtype}: its results must not depend on the elements. dtype= "
                    "says what they are cast to"
                )


def _is_busy(plan: Plan) -> bool:
    """Whether a plan has so many blocks that fewer results in a pass may be faster."""
    blocks = len(plan.grid)
    return blocks > MANY and blocks * plan.machine.overhead > BUSY * plan.estimate.seconds


def placeholders(nodes: Sequence[Node]) -> dict[Node, Any]:
    """Sources in place of nodes that are not computed yet: placeholders, which take no memory."""

    def ones(spec: ArraySpec) -> Any:
        return np.broadcast_to(placeholder(spec.dtype), spec.shape)

    return {
        node: tuple(map(ones, node.specs)) if isinstance(node, OpNode) and len(node.specs) > 1 else ones(node.spec)
        for node in nodes
    }


def room(options: Options) -> int:
    """Most bytes of an intermediate result that stays in the host's memory."""
    device, free = devices.resolve(options.device), host.available_memory()
    limits = [] if free is None else [free]
    if not device.machine.staged:
        with lease(options.budget, device) as leased:
            limits += [leased.budget.limit_on(device), *([] if (cap := leased.cap) is None else [cap])]
    return max(LEAST, min(limits, default=1 << 62) // SHARE)


# -- Specs of results ---------------------------------------------------------------------------------------------


def op_node(request: Request, name: str, key: Hashable = None) -> OpNode:
    """The node of an operation; with a key the node that has it, if there is one already."""
    node = interned(key, lambda: OpNode(request, name, infer_specs))
    assert isinstance(node, OpNode)
    return node


MOST_NAMED = 5
"""Most operations of a pass that a message names."""


FEW = 64
"""Most counts, and elements of a line, that are made to find their dtype."""


def infer_specs(op: OpNode) -> tuple[ArraySpec, ...]:
    """Specs of an operation's results: from its declaration, a call on placeholders, or a trial call on real elements.

    The user's own functions are never called on made-up elements, but on identity matrices where they need an inverse.
    """
    declared, options = op.declared, op.request.options
    dtype = options.dtype
    if dtype is not None and options.chunks is None and None not in declared.axes and not declared.each:
        shape = tuple(declared.nest.extents[a] for a in declared.axes if a is not None)
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,)
        return tuple(ArraySpec(op.name, shape, np.dtype(d)) for d in dtypes)
    if op.request.is_known:
        return _specs_of_ones(op)
    with apart():
        evaluation = Evaluation(Options(device=_device.get()))
        evaluation.stored.update({node: placeholders([node])[node] for node in evaluation._needed(op)})
        # A pass of its own tells how many results a fold gives, and the dtype of each of several.
        alone = op.folds or op.request.number > 1
        made = fed(op, evaluation.stored) if alone else single_pass([op], evaluation.stored)
        with interrupts.deferred(), evaluation._prepared(made, [None]) as run:
            outputs: tuple[ArraySpec, ...] = run.plan.outputs
        if dtype is None:
            return outputs
        dtypes = dtype if isinstance(dtype, tuple) else (dtype,) * len(outputs)
        return tuple(replace(spec, dtype=np.dtype(d)) for spec, d in zip(outputs, dtypes, strict=True))


def _specs_of_ones(op: OpNode) -> tuple[ArraySpec, ...]:
    """Specs of the results of one of our own operations, from a block of placeholders."""
    declared, kernel = op.declared, op.declared.kernel
    assert kernel is not None
    nest = declared.nest
    flat = kernel.flat  # then the only thing that counts of whole axes is their number of elements
    shapes = kernel.shapes(nest)
    numbers: Became = {}
    if kernel.most_counts > FEW:
        kernel, (numbers,) = kernel.with_fewer(FEW / kernel.most_counts)
    short, lines = shortened(nest, FEW), kernel
    if (few := kernel.shortened(nest, short)) is not None:
        kernel, nest = few, short  # whole lines may be as long as the array
    full = not flat and shapes is None
    sides = tuple(n if a in nest.whole and full else min(n, 1) for a, n in enumerate(nest.extents))
    box = grid.whole(sides)
    places = op.request.elementwise  # elements may be places in tables; others may be weights, which are not all 0
    blocks = [
        np.full(grid.shape_of(operand.region(box)), placeholder(node.spec.dtype) if places else 1, node.spec.dtype)
        for node, operand in zip(op.inputs, nest.operands, strict=True)
    ]
    with np.errstate(all="ignore"), trial():
        values = tried(lambda given: kernel(given, nest, Grid(nest.extents, sides), (0,) * len(box), box), blocks)
    dtype = op.request.options.dtype
    found = []
    for i, value in enumerate(values if isinstance(values, tuple) else (values,)):
        value = np.asarray(value)
        axes = declared.axes_of(i)
        (seen,) = lines.of_whole_lines([value.shape]) if nest is short else [value.shape]
        shape = tuple(
            numbers.get(n, n) if a is None else n * nest.extents[a] // max(sides[a], 1)
            for a, n in zip(axes, seen, strict=True)
        )
        shape = shape if shapes is None else shapes[i]
        shape = (math.prod(nest.extents),) if flat else shape
        found.append(ArraySpec(op.name, shape, value.dtype if dtype is None else np.dtype(dtype)))
    return tuple(found)
