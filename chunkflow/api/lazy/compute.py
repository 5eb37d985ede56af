"""Computes, stores and explains expressions: several together, in as few passes as possible."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from chunkflow import devices
from chunkflow.api import mapping
from chunkflow.api.compound import Compound
from chunkflow.api.operation import check_passed, is_operation, plan_of
from chunkflow.api.rearrange.move import Composition
from chunkflow.cluster.partition import PARTITION, ClusterPlan, cluster_plan, filled, passes_of
from chunkflow.core import chunking
from chunkflow.core.chunking import Chunks
from chunkflow.core.markup import Printed
from chunkflow.core.spelling import spelt
from chunkflow.core.units import LONG, format_bytes
from chunkflow.engine.dry_run import named
from chunkflow.engine.observe.analysis import Analysis, analyzed
from chunkflow.engine.observe.progress import watching
from chunkflow.engine.options import BudgetLike, Options, ProgressLike
from chunkflow.engine.passes import call_of_passes, current, going_on, refuse_left
from chunkflow.engine.prepare import prepared
from chunkflow.engine.resume import check_resume
from chunkflow.errors import ArgumentError, ArgumentTypeError
from chunkflow.graph.evaluate import Evaluation, op_node, placeholders
from chunkflow.graph.live import lives_below
from chunkflow.graph.nodes import ItemNode, Lazy, Node, OpNode, ViewNode, node_of, source_of
from chunkflow.graph.recognition import recognized
from chunkflow.graph.reshaping import of_same_elements
from chunkflow.kernels.digest import outline
from chunkflow.planner.plan import Plan
from chunkflow.stores import Published, is_labelled, open_target
from chunkflow.stores.checksums import asked
from chunkflow.stores.foreign.xarray import held
from chunkflow.stores.named import with_names
from chunkflow.system import interrupts


@spelt()
def compute(*values: Any, budget: BudgetLike = None, device: Any = None, progress: ProgressLike = None) -> Any:
    """Compute expressions, all of them in as few passes over their sources as there can be.

    Parameters
    ----------
    *values
        Lazy arrays, xarray's that hold one, or tuples, lists and dicts of these; anything else is given back as it is.
    budget, device, progress
        As for `chunkflow.map`: each pass keeps within the budget.

    Returns
    -------
    array, scalar or structure of them
        NumPy arrays, and NumPy scalars where there are no dimensions, in the places of the lazy ones. A tuple if
        several values are given.

    Raises
    ------
    BudgetError
        Not even the smallest block of a pass fits the budget.
    HostMemoryError
        A result does not fit the host's memory: give it a place, with `store`.
    ResultError, ResultTypeError, ReadError
        As for `chunkflow.map`.
    ArgumentTypeError
        A path is given: `chunkflow.open` makes an expression of one.

    Examples
    --------
    Three results from one read of `x`:

    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.arange(6.0).reshape(2, 3))
    >>> cf.compute(x.mean(), (x**2).sum(axis=0), x.max(), device="cpu")
    (np.float64(2.5), array([ 9., 17., 29.]), np.float64(5.0))
    """
    for value in values:
        if isinstance(value, str | os.PathLike):
            raise ArgumentTypeError(
                f"compute takes expressions, and {value!r} is none: chunkflow.open makes one of a path, and "
                "chunkflow's operations, as chunkflow.mean, take paths themselves"
            )
    found = list(_lazies(values))
    done = _evaluated(dict.fromkeys(node_of(a) for a in found), Options(budget=budget, device=device), progress)
    results = _replaced(values, done)
    return results[0] if len(values) == 1 else results


@spelt()
def store(
    arrays: Any,
    outs: Any,
    *,
    chunks: Chunks = None,
    budget: BudgetLike = None,
    device: Any = None,
    progress: ProgressLike = None,
    overwrite: bool = False,
    sync: bool | None = None,
    resume: bool = False,
    name: str | None = None,
    checksum: bool | None = None,
) -> Any:
    """Compute expressions into outputs, in as few passes over their sources as there can be.

    New outputs appear together, when the last pass is complete: where one fails, none is there.

    Parameters
    ----------
    arrays : Array, xarray.DataArray that holds one, or sequence of these
        What is computed. Names of dimensions are stored, too, in formats that have them; coordinates are not: xarray's
        own ``to_zarr`` and ``to_netcdf`` store these.
    outs : array, str, path, NewArray, ExistingArray, or sequence of these
        Where each goes, as `out` of `chunkflow.map`.
    chunks : int or tuple, optional
        Of a zarr array that is created, of one expression alone: for each axis a length, -1 for the whole axis, or
        "auto". Blocks hold whole chunks.
    budget, device, progress, overwrite, sync, resume, name, checksum
        As for `chunkflow.map`.

    Returns
    -------
    array or tuple of arrays
        The outputs, opened where they were paths.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Another number of outputs than of arrays, what is no expression, one that is given twice; `chunks` that do not
        suit it.
    UnsupportedError
        `chunks` of an operation that makes several passes of its own.
    BudgetError, OutputExistsError, ReadError, WriteError
        As for `chunkflow.map`.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x, y = cf.open(np.arange(4.0)), np.empty(4)
    >>> _ = cf.store(x * x, y, device="cpu")
    >>> y
    array([0., 1., 4., 9.])
    """
    wanted = _wanted(arrays, outs, chunks)
    kept: dict[str, Any] = {"overwrite": overwrite, "sync": sync, "resume": resume, "name": name}
    options = Options(budget=budget, device=device, out_chunks=chunks, **kept)
    with interrupts.deferred(), asked(checksum, outs):  # files are opened from here on
        results = tuple((_gone_on_with if resume else _evaluated)(wanted, options, progress).values())
    return results if isinstance(arrays, list | tuple) else results[0]


def _wanted(arrays: Any, outs: Any, chunks: Chunks) -> dict[Node, Any]:
    """Where each expression goes, with the `chunks` that are asked for checked."""
    wanted = places_by_node(arrays, outs)
    if chunks is not None and len(wanted) > 1:
        raise ArgumentError(f"chunks={chunks!r} of {len(wanted)} expressions: store each with chunks of its own")
    if chunks is not None:
        (node,) = wanted
        chunking.lengths(chunks, len(node.shape))
        chunking.check_sums(chunks, node.shape)
    return wanted


def _plan_to_store(arrays: Any, outs: Any, *, chunks: Chunks = None, checksum: bool | None = None, **given: Any) -> Any:
    """The plan of `store` with these arguments."""
    wanted = _wanted(arrays, outs, chunks)
    known = {name: given[name] for name in ("budget", "device", "overwrite") if name in given}
    if strange := set(given) - {*known, "progress", "sync", "resume", "name"}:
        raise ArgumentTypeError(f"store has no argument {', '.join(sorted(strange))}")
    options = Options(out_chunks=chunks, **known)
    with asked(checksum, outs):
        return _plan_of(wanted, options)


def _plan_of(wanted: dict[Node, Any], options: Options) -> PassesPlan:
    whole, targets = Evaluation(options), dict(_targets(wanted, options.device).values())
    return PassesPlan(tuple(named(lambda: whole.plans(targets), options, lambda: whole.plan_all(targets))))


def places_by_node(arrays: Any, outs: Any) -> dict[Node, Any]:
    """Where each expression goes: the arguments of `store`, checked."""
    listed, places = (list(arrays), list(outs)) if isinstance(arrays, list | tuple) else ([arrays], [outs])
    if len(listed) != len(places):
        raise ArgumentError(f"{len(listed)} arrays and {len(places)} outputs were given: give one output for each")
    for number, (array, place) in enumerate(zip(listed, places, strict=True)):
        if isinstance(array, Compound):
            if (found := array.stored_as(place)) is not None:
                listed[number], places[number] = found
                continue
            raise ArgumentTypeError(
                f"store takes expressions of one array of numbers each, not {array!r}: give {array.storable}"
            )
        if is_labelled(array) and isinstance(expression := held(getattr(array, "variable", array)), Lazy):
            listed[number] = expression
            places[number] = with_names(place, [str(name) for name in array.dims], array.shape)
        elif not isinstance(array, Lazy):
            kind = type(array).__name__
            raise ArgumentTypeError(
                f"store takes expressions, which this {kind} is not: see chunkflow.open and from_dask"
            )
    wanted: dict[Node, Any] = {}
    for number, (array, place) in enumerate(zip(listed, places, strict=True)):
        node = node_of(array)
        if node in wanted:
            first = list(wanted).index(node)
            raise ArgumentError(
                f"an expression is given twice, as arrays[{first}] and arrays[{number}]: store it in outs[{first}] "
                f"alone, and then copy what is stored there, by chunkflow.copy(stored, outs[{number}])"
            )
        wanted[node] = place
    return wanted


def _evaluated(wanted: dict[Node, Any], options: Options, progress: ProgressLike) -> dict[Node, Any]:
    """Results of nodes, as their users get them."""
    found = _targets(wanted, options.device)
    targets = dict(found.values())
    with interrupts.deferred(), ExitStack() as stack:
        refuse_left(tuple(wanted.values()))
        whole = Evaluation(options, watching(progress))
        done = named(lambda: whole.run(targets, stack), options, lambda: whole.plan_all(targets))
    return {node: _finished(node, target, done[target], wanted[node]) for node, (target, _) in found.items()}


def _gone_on_with(wanted: dict[Node, Any], options: Options, progress: ProgressLike) -> dict[Node, Any]:
    """As `_evaluated`, of passes of which an earlier call may have made some."""
    targets = [open_target(out, overwrite=True) for out in wanted.values()]
    check_resume(options.resume, targets)
    nodes, arrays = recognized(wanted, named=options.name is not None)
    said = outline(("store", options.name, nodes, options.out_chunks))
    device = devices.resolve(options.device)
    call = call_of_passes(said, arrays, targets, options.budget, device)
    with going_on(targets, call, options.budget, device) as budget:
        passes = current()
        there = set[str]() if passes is None else passes.published(targets)
        known = {target.name: Published(target.name) for target in targets if target.name in there}
        places = {node: known.get(t.name, out) for (node, out), t in zip(wanted.items(), targets, strict=True)}
        return _evaluated(places, replace(options, budget=budget, resume=False, name=None), progress)


def _targets(wanted: dict[Node, Any], device: Any) -> dict[Node, tuple[Node, Any]]:
    """For each node the one that is computed for it, and where that goes.

    For one of several results of a fold it is the fold; for a reshaped one in memory, what has the same elements; for
    what a device of its own composes faster than the host, a function of blocks.
    """
    staged = any(isinstance(node, ViewNode) for node in wanted) and devices.resolve(device).machine.staged
    found = {node: (_by_blocks(node) if staged else _of_fold(node), out) for node, out in wanted.items()}
    taken = {target for target, _ in found.values()}
    for node, out in wanted.items():
        same = of_same_elements(node, out)
        if same is not None and same[0] not in taken:  # two results would share memory
            found[node] = same
            taken.add(same[0])
    return found


def _by_blocks(node: Node) -> Node:
    view = node.view if isinstance(node, ViewNode) else None
    if isinstance(view, Composition) and view.by_blocks is not None and not lives_below([node], {}):
        return op_node(view.by_blocks(view.arrays), node.name)
    return _of_fold(node)


def _of_fold(node: Node) -> Node:
    return node.op if isinstance(node, ItemNode) and not node.op.aligned else node


def _finished(node: Node, target: Node, result: Any, out: Any) -> Any:
    """A node's result, of that of its target."""
    if isinstance(node, ViewNode) and target is not node:
        if out is not None:
            return out
        result = result.reshape(node.shape)
    if isinstance(node, ItemNode) and not node.op.aligned:
        result = result[node.item]
    if out is not None:
        return result
    if isinstance(node, OpNode) and node.request.finish is not None:
        return node.request.finish(result)
    return result[()] if isinstance(result, np.ndarray) and result.ndim == 0 else result


def _lazies(values: Any) -> Iterator[Lazy]:
    if isinstance(values, Lazy):
        yield values
    elif isinstance(values, Compound):
        yield from values.parts()
    elif is_labelled(values):
        yield from _lazies(held(getattr(values, "variable", values)))
    elif isinstance(values, dict):
        yield from _lazies(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _lazies(value)


def _replaced(values: Any, done: dict[Node, Any]) -> Any:
    if isinstance(values, Lazy):
        return done[node_of(values)]
    if isinstance(values, Compound):
        return values.assembled([done[node_of(part)] for part in values.parts()])
    if is_labelled(values):
        array = held(getattr(values, "variable", values))
        return values.copy(deep=False, data=np.asarray(done[node_of(array)])) if isinstance(array, Lazy) else values
    if isinstance(values, dict):
        return {key: _replaced(value, done) for key, value in values.items()}
    if isinstance(values, list):
        return [_replaced(value, done) for value in values]
    if isinstance(values, tuple):
        found = [_replaced(value, done) for value in values]
        return type(values)(*found) if hasattr(values, "_fields") else tuple(found)
    return values


@dataclass(frozen=True)
class PassesPlan(Printed):
    """The passes that expressions would take: for each the names of its results and its plan; print it.

    Of an operation that makes several passes of its own they are those of elements with which it takes most, as far as
    that is known beforehand.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.ones((64, 64)))
    >>> plan = cf.explain((x - x.mean()).max(), device="cpu")
    >>> [names for names, _ in plan.passes], plan.bytes_in >= 2 * x.nbytes
    ([('mean',), ('max',)], True)
    """

    passes: tuple[tuple[tuple[str, ...], Plan | str], ...]

    @property
    def plans(self) -> list[Plan]:
        """The plans that are known."""
        return [plan for _, plan in self.passes if isinstance(plan, Plan)]

    @property
    def bytes_in(self) -> int:
        """Bytes that will be read, by the passes whose plans are known."""
        return sum(plan.bytes_in for plan in self.plans)

    @property
    def bytes_out(self) -> int:
        """Bytes that will be written, by the passes whose plans are known."""
        return sum(plan.bytes_out for plan in self.plans)

    @property
    def rereads(self) -> float:
        """Bytes read for each byte of the arrays, in the pass that reads its own most often."""
        return max((plan.rereads for plan in self.plans), default=0.0)

    @property
    def peak(self) -> int:
        """Bytes of device memory that any of them takes at most, as projected, of those whose plans are known."""
        return max((plan.memory.total for plan in self.plans), default=0)

    def __len__(self) -> int:
        return len(self.passes)

    def __str__(self) -> str:
        several = "1 pass" if len(self) == 1 else f"{len(self)} passes"
        moved = f"{format_bytes(self.bytes_in)} read, {format_bytes(self.bytes_out)} written"
        taken = f"{moved}, {format_bytes(self.peak)} of device memory at most"
        if len(self.plans) < len(self):
            taken = f"{taken}, beside passes that are planned when they run" if self.plans else "planned when they run"
        lines = [f"{several}: {taken}"]
        for number, (names, plan) in enumerate(self.passes, 1):
            lines.append(f"pass {number}: {', '.join(names)}")
            lines += ["  " + line for line in str(plan).splitlines()]
        return "\n".join(lines)


@overload
def explain(
    fn: Lazy | Compound | tuple[Any, ...] | list[Any] | dict[Any, Any],
    *arrays: Any,
    analyze: Literal[False] = False,
    **options: Any,
) -> PassesPlan: ...


@overload
def explain(fn: Any, *arrays: Any, analyze: Literal[True], **options: Any) -> Analysis: ...


@overload
def explain(fn: Callable[..., Any], *arrays: Any, **options: Any) -> Any: ...


def explain(fn: Any, *arrays: Any, analyze: bool = False, **options: Any) -> Any:
    """Plan of an operation, or of expressions, before anything runs: print it. Nothing is written.

    A function of the user's own is called once on a small block, unless ``dtype=`` and ``workspace=`` are given. A few
    more calls show how long it takes. Where the host computes, a few chunks and copies of results do so for them, in
    budgets of 64 MiB or more. Arrays that are computed when they are read are not read for it.

    Parameters
    ----------
    fn : callable or Array
        One of chunkflow's operations, or `chunkflow.store`, or a function that `map` is to apply; or an expression.
    *arrays, **options
        As for the operation, or for `map`; or further expressions, and ``budget=`` and ``device=``.
    workers, partition : int and str, optional
        Of expressions: the tasks that as many of dask's workers would be given, as `Array.to_dask` makes them.
    analyze : bool
        Whether to run it all the same, as it is asked for (with its `out`), and show what it took beside what was
        predicted. Where the host computes, a few more calls of the function show what that takes.

    Returns
    -------
    Analysis
        With `analyze`.
    Plan or PassesPlan, ClusterPlan, RechunkPlan, TransformPlan or IterationPlan
        Blocks, slots, loop order, bytes and predicted seconds, for expressions of each pass; of `rechunk`, transforms
        and iterated stencils their passes, and what lies between them. ``str()`` of it is meant for people.

    Raises
    ------
    ArgumentTypeError
        An operation of several passes of which one decides on the next, as quantiles are found.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> plan = cf.explain(np.sqrt, np.ones((100, 100)), budget="1MB", device="cpu")
    >>> plan.memory.total <= plan.budget
    True
    >>> x = cf.open(np.ones((100, 100)))
    >>> len(cf.explain(x.mean(), x.max(), device="cpu")), len(cf.explain((x - x.mean()).max(), device="cpu"))
    (1, 2)
    >>> [run.plan.bytes_in for run in cf.explain(x.mean(), analyze=True, device="cpu").runs]
    [80000]
    >>> cf.explain(cf.store, x + 1, "sum.npy", device="cpu").bytes_out
    80000
    >>> cf.explain(x.mean(), workers=2, partition="20kB", device="cpu").tasks
    4
    """
    if fn is store:
        return analyzed(lambda: store(*arrays, **options)) if analyze else _plan_to_store(*arrays, **options)
    if callable(fn) and not isinstance(fn, Lazy) and not is_operation(fn):  # it is mapped
        mapped = inspect.signature(mapping.map).parameters
        check_passed("explain", {name: value for name, value in options.items() if name not in mapped}, fn)
    if callable(fn) and not isinstance(fn, Lazy) and any(source_of(node_of(lazy)) is None for lazy in _lazies(arrays)):
        placed = {name: options.pop(name) for name in ("budget", "device", "workers", "partition") if name in options}
        is_whole = is_operation(fn) or str(getattr(fn, "__module__", "")).partition(".")[0] == "numpy"
        made_of = fn if is_whole else partial(mapping.map, fn)
        expressions = made_of(*arrays, **options)
        several = expressions if isinstance(expressions, tuple) else (expressions,)
        return explain(*several, analyze=analyze, **placed)
    if analyze and not list(_lazies(fn)):
        work, given = (fn, arrays) if is_operation(fn) else (mapping.map, (fn, *arrays))
        made: list[Any] = []
        analysis = analyzed(lambda: made.append(work(*given, **options)))
        return explain(*made, analyze=True) if list(_lazies(made)) else analysis  # an expression has not run yet
    if callable(fn) and not isinstance(fn, Lazy):
        return plan_of(fn, arrays, options) if is_operation(fn) else plan_of(mapping.map, (fn, *arrays), options)
    values = (fn, *arrays)
    lazies = list(_lazies(values))
    workers, partition = options.pop("workers", None), options.pop("partition", PARTITION)
    if not lazies or set(options) - {"budget", "device"}:
        raise ArgumentTypeError(
            "explain takes an operation with its arguments, as explain(chunkflow.mean, 'x.zarr', axis=0), or "
            "expressions with budget= and device=, as explain(x.mean(), budget='4GB'): given was "
            + ", ".join(text if len(text := repr(value)) <= LONG else f"a {type(value).__name__}" for value in values)
            + "".join(f", {name}={value!r}" for name, value in options.items())
        )
    if workers is not None:
        return _cluster_plan([node_of(lazy) for lazy in lazies], workers, partition, Options(**options))
    if analyze:
        return analyzed(lambda: compute(*values, **options))
    return _plan_of(dict.fromkeys(map(node_of, lazies)), Options(**options))


def _cluster_plan(nodes: Sequence[Node], workers: int, partition: str | int, options: Options) -> ClusterPlan:
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ArgumentError(f"workers={workers!r} must be a whole number of them, at least 1")
    seconds, passes = {}, passes_of(nodes)
    for node, (made, awaited) in passes.items():
        stands = placeholders(awaited)
        sources = [filled(source, [stands[other] for other in awaited]) for source in made.sources]
        declared = made.declared
        with interrupts.deferred(), prepared(lambda specs, args: declared, sources, options) as run:  # noqa: B023
            seconds[node] = run.plan.estimate.seconds
    return cluster_plan(passes, workers, partition, seconds)
