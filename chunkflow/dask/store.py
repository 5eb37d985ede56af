"""Stores the results of a cluster: each task writes its own partition, and the output appears when all are done."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from typing import Any

import dask
import dask.local
import dask.multiprocessing
import dask.threaded
import numpy as np
from dask.delayed import Delayed

from chunkflow import devices
from chunkflow.api.lazy.compute import places_by_node
from chunkflow.cluster.kept import KeptResults
from chunkflow.cluster.partition import PARTITION, pass_of, passes_of
from chunkflow.cluster.resources import asking
from chunkflow.cluster.task_graph import Builder, Settings
from chunkflow.cluster.tasks import Opened
from chunkflow.core.grid import Shape
from chunkflow.core.spec import ArraySpec
from chunkflow.core.spelling import meant
from chunkflow.engine.budget import bytes_left
from chunkflow.engine.dry_run import planned
from chunkflow.engine.named_dimensions import name_dimensions
from chunkflow.engine.options import Options, check_named
from chunkflow.engine.passes import Passes
from chunkflow.engine.resume import BOOT, boot, check_resume, said_of, versions
from chunkflow.errors import ArgumentError, ArgumentTypeError, BudgetError, ChunkflowError, UnsupportedError
from chunkflow.graph.evaluate import Evaluation
from chunkflow.graph.nodes import Node
from chunkflow.graph.outputs import check_clear, leaves, places_of
from chunkflow.graph.recognition import recognized
from chunkflow.kernels.digest import outline
from chunkflow.kernels.users import users_function
from chunkflow.planner.plan import Plan
from chunkflow.stores import (
    ExistingArray,
    NewArray,
    Sink,
    Target,
    is_dask_array,
    is_new,
    open_source,
    open_target,
    spec_of,
)
from chunkflow.stores.checksums import asked
from chunkflow.stores.commit import commit_all
from chunkflow.stores.file.memmap import mapped_file
from chunkflow.stores.file.strided import Strided
from chunkflow.stores.identity import Guard, release
from chunkflow.stores.named import takes_names
from chunkflow.stores.protocol import guards_of, written_by
from chunkflow.stores.publication.claim import Claim
from chunkflow.stores.publication.mark import Mark
from chunkflow.stores.publication.settle import finish
from chunkflow.stores.views.shared import Mapped
from chunkflow.system import interrupts


def store(
    arrays: Any,
    outs: Any,
    *,
    partition: str | int = PARTITION,
    chunks: tuple[int, ...] | None = None,
    budget: Any = None,
    device: Any = None,
    overwrite: bool = False,
    sync: bool | None = None,
    checksum: bool | None = None,
    resume: bool = False,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Compute lazy arrays into stores by dask's workers, which all must reach the stores by the same names.

    Each task streams a partition from its sources to the output, in whole chunks of it, so nothing but partial results
    of what is reduced passes between tasks. The output has its name when all of them are done; if one fails, nothing
    appears. A task that is run again, because its worker is gone, writes the same once more.

    Parameters
    ----------
    arrays : Array or sequence of Array
        What is computed; see `chunkflow.open`.
    outs : str, path, NewArray, ExistingArray, zarr.Array, numpy.memmap, or sequence of these
        Where each goes: the path of a zarr array or ``.npy`` file to create, a `chunkflow.NewArray` that says more of
        it, or an array that is there; a `chunkflow.ExistingArray` of zarr's that begins with a chunk, or of a ``.npy``
        file.
    partition : str or int
        Bytes that a task reads, as ``"64GB"``.
    chunks : tuple of int, optional
        Of a zarr array that is created. By default they are chosen, and get smaller until a block of whole ones fits a
        `budget` that is given. Not with `resume`, nor where dask's arrays or functions of one's own are computed, which
        are not tried before a worker does.
    budget : int, str or float, optional
        Device memory of each worker, as for `chunkflow.map`. Tasks of one process share it, and take turns.
        Where none is given, half of the worker's memory limit on the CPU.
    device : str or int, optional
        As for `chunkflow.map`, on the worker.
    overwrite : bool
        Whether a path that exists may be replaced.
    sync : bool, optional
        Whether what is new is on the client's disk at the end, as for `chunkflow.map`.
    checksum : bool, optional
        As for `chunkflow.map`.
    resume : bool
        Whether what is done when a call ends early is left beside the first of the outputs, which are new paths, and
        the same call goes on with it: see ``docs/crashes.md``. Workers keep what each task gives in files there. Each
        partition is then read once for each result.
    name : str, optional
        As for `chunkflow.map`: a name that stands for the functions.
    **options
        For ``dask.compute``: a scheduler, say.

    Returns
    -------
    array or tuple of arrays
        The outputs, opened where they were paths.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        An unknown option; another number of outputs than of arrays; what is no expression; an output that other
        processes cannot open, or that overlaps a source.
    OutputExistsError
        As for `chunkflow.map`.
    ResumeError
        What is left is of another call.
    UnsupportedError
        As for `chunkflow.Array.to_dask`; `resume` and an output that is no new path.
    Exception
        What went wrong in a task, with the region of its partition, and of the block, as notes.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> from chunkflow.dask import store
    >>> x = cf.open(np.arange(1000.0).reshape(10, 100))
    >>> store(x + 1, "y.npy", partition="2kB", device="cpu", scheduler="sync").sum()
    np.float64(500500.0)
    """
    _check_options(options)
    wanted = places_by_node(arrays, outs)
    builder = Builder(Settings(partition, budget, device))
    check_named(resume, name)
    with (
        interrupts.deferred(),
        asked(checksum, outs),
        _taken_up(wanted, builder, chunks, name) if resume else nullcontext() as left,
    ):
        if left is not None and left.published is not None:
            results = left.published
        else:
            check_clear(places_of(wanted, overwrite=overwrite).values(), list(wanted))
            results = _stored(wanted, builder, chunks, overwrite, sync, left, options)
    return results if isinstance(arrays, list | tuple) else results[0]


def _stored(
    wanted: dict[Node, Any],
    builder: Builder,
    chunks: Shape | None,
    overwrite: bool,
    sync: bool | None,
    left: _Left | None,
    options: dict[str, Any],
) -> tuple[Any, ...]:
    """The outputs, once all tasks are done."""
    sinks: list[Sink] = []
    marks: list[Any] = []
    try:
        finished = []
        guards = _guards(wanted)
        claims = [None] * len(wanted) if left is None else left.claims(overwrite)
        fitting = _fitting(wanted, builder.settings, overwrite) if chunks is None and left is None else {}
        with asking(builder.settings.device):
            for (node, place), claim in zip(wanted.items(), claims, strict=True):
                sink, opened = _opened(node, place, chunks, fitting.get(node), overwrite, claim)
                sinks.append(sink)
                finished.append(builder.stored(node, opened))
            release(
                guards,
                written_by([open_target(place) for place in wanted.values() if not is_new(place)]),
            )
            graph = builder.graph()
        with interrupts.allowed():
            dask.compute(*(Delayed(key, graph, layer=key[0]) for key in finished), **options)
        for guard in guards:  # each task looks after what it reads itself; here, after what all of them read
            guard.check()
        marks += [] if left is None else [left.mark()]
        return commit_all([*marks, *sinks], sync=sync)[len(marks) :]
    except BaseException:
        for sink in (*marks, *sinks):
            if left is not None and sink in sinks and left.has_begun:
                sink.leave()
            else:
                sink.abort()
        raise


class _Left:
    """What an earlier call has left, and a later one may: see `chunkflow.engine.passes`.

    `published` has the outputs if the earlier call had only to clean up.
    """

    def __init__(self, places: Sequence[Any], targets: Sequence[Target], passes: Passes, kept: KeptResults) -> None:
        self._places, self._targets, self._passes, self._kept = places, targets, passes, kept
        names = [target.name for target in targets]
        finish(self._path)
        there = set(names) <= passes.published(())
        self.published = tuple(target.opened(spec_of(target.name)) for target in targets) if there else None  # type: ignore[attr-defined]

    @property
    def _path(self) -> str:
        return os.path.join(self._passes.folder, "all.done")

    @property
    def has_begun(self) -> bool:
        """Whether some tasks are done."""
        return not self._kept.is_empty

    def claims(self, overwrite: bool) -> list[Claim]:
        """Claims on the outputs; those that are left if all are, and belong to this call."""
        targets: list[Any] = [open_target(place, overwrite=overwrite) for place in self._places]
        found: list[Claim] = [target.claim() for target in targets]
        if not (self._passes.is_begun and all(claim.is_left for claim in found)):
            for claim in found:
                claim.end()
            self._kept.clear()
            found = [target.claim() for target in targets]
        return found

    def mark(self) -> Mark:
        """What says that the outputs are published, together with them."""
        return Mark(self._path, self._targets[0].name, [target.name for target in self._targets])


@contextmanager
def _taken_up(wanted: dict[Node, Any], builder: Builder, chunks: Shape | None, name: str | None) -> Iterator[_Left]:
    """A context for a call that takes up what an earlier one left."""
    places = list(wanted.values())
    targets = [open_target(place, overwrite=True) for place in places]
    check_resume(True, targets)
    for target in targets:
        if hasattr(target, "is_made"):
            raise UnsupportedError(
                f"resume=True is for .npy files and zarr arrays in local directories, not for {target.name}: write to "
                "one of those, or leave resume= out"
            )
    nodes, arrays = recognized(wanted, named=name is not None)
    call = {
        **versions(),
        "the function and its arguments": outline(("dask.store", name, nodes, chunks)),
        **arrays,
        **{f"output {i}": target.name for i, target in enumerate(targets)},
        **said_of(targets),
        "partition=, budget=, device=": str(builder.settings),
        BOOT: boot(),
    }
    passes = Passes.open(targets, call, lambda: 0)
    builder.kept = KeptResults(passes.folder, name is not None, tuple(passes.read))
    try:
        yield _Left(places, targets, passes, builder.kept)
    except BaseException:
        passes.is_begun = not builder.kept.is_empty
        passes.stop()
        raise
    passes.end()


def _guards(nodes: Iterable[Node]) -> list[Guard]:
    """Guards of the arrays that nodes are computed of."""
    found: list[Guard] = []
    for leaf in {leaf.key: leaf for node in nodes for leaf in leaves(node, ())}.values():
        if not is_dask_array(leaf.source):
            with closing(open_source(leaf.source)) as source:
                found += guards_of([source])
    return found


def _check_options(options: dict[str, Any]) -> None:
    """Refuse what is no option of ``dask.compute`` or of a scheduler: they ignore what they do not know.

    Raises
    ------
    ArgumentTypeError
        It names the options, and those that there are.
    """
    takers: list[Any] = [dask.compute, dask.threaded.get, dask.multiprocessing.get, dask.local.get_async]
    if "distributed" in sys.modules:
        takers.append(sys.modules["distributed"].Client.get)
    parameters = [p for taker in takers for p in inspect.signature(taker).parameters.values()]
    known = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    known = known - {"self", "dsk", "keys", "result", "submit"} | {"scheduler", "pool", "num_workers", "get"}
    if unknown := sorted(options.keys() - known):
        own = [name for name, p in inspect.signature(store).parameters.items() if p.kind is p.KEYWORD_ONLY]
        close = next(filter(None, (meant(name, (*own, *sorted(known))) for name in unknown)), "")
        raise ArgumentTypeError(
            f"unknown arguments {', '.join(unknown)}{close}: store takes {', '.join(own)}, and for dask.compute "
            f"{', '.join(sorted(known))}"
        )


def _shared(place: ExistingArray, target: Target, spec: ArraySpec) -> Any:
    """What workers open of a part or an end of an array."""
    shared = target.shared(spec.shape) if hasattr(target, "shared") else None
    if isinstance(shared, Strided):
        return Mapped(shared.path, shared.offset, shared.shape, shared.strides, shared.dtype)
    if shared is None:
        raise ArgumentTypeError(
            f"several workers cannot write to a part or an end of the output {target.name}: use chunkflow.store, or "
            "give a zarr array, a .npy file, or an np.memmap of mode 'r+'"
        )
    first = tuple(side.start for side in shared.region)
    if spec.chunks is not None and any(at % side for at, side in zip(first, spec.chunks, strict=True)):
        nearest = tuple(at - at % side for at, side in zip(first, spec.chunks, strict=True))
        raise ArgumentError(
            f"what is written of {target.name} begins at {first}, inside of a chunk of {spec.chunks}, which several "
            f"tasks would change: begin at {nearest}, say, or store it by chunkflow.store"
        )
    return shared


ROOMY = 64
"""A budget of so many times the bytes of a chunk holds blocks of whole ones, whatever is computed."""


def _fitting(wanted: dict[Node, Any], settings: Settings, overwrite: bool) -> dict[Node, Shape]:
    """Chunks of new arrays in a budget that is given, as a run in this process would choose them.

    None where that is not known: blocks of dask's and functions of the user's are computed by workers, which may have
    what they need, and not tried here. Nor where the budget is roomy.
    """
    new = {node: place for node, place in wanted.items() if is_new(place)}
    if settings.budget is None or any(is_dask_array(leaf.source) for node in new for leaf in leaves(node, ())):
        return {}
    described = [open_target(p, overwrite=overwrite).describe(n.shape, n.spec.dtype, None) for n, p in new.items()]
    largest = max([math.prod(spec.chunks or ()) * spec.dtype.itemsize for spec in described], default=0)
    with suppress(ChunkflowError):
        if not largest or ROOMY * largest <= bytes_left(settings.budget, devices.resolve(settings.device)):
            return {}
    try:
        if any(users_function(made.declared.kernel) is not None for made, _ in passes_of(list(new)).values()):
            return {}
    except UnsupportedError:  # some are unrolled later
        return {}
    options = Options(budget=settings.budget, device=settings.device, overwrite=overwrite)
    try:
        plans = planned(lambda: Evaluation(options).plan_all(new))
    except BudgetError:  # a task may need less: of a run in several passes here, say
        return {}
    found = {spec.name: spec.chunks for plan in plans if isinstance(plan, Plan) for spec in plan.outputs}
    chunks = {node: found.get(open_target(place, overwrite=overwrite).name) for node, place in new.items()}
    return {node: sides for node, sides in chunks.items() if sides is not None}


def _name(target: Any, node: Node, spec: ArraySpec) -> None:
    """Name the dimensions of a new array, as a run in this process would. What workers compute before has no names."""
    made, awaited = pass_of(node)
    if awaited or not takes_names(target) or len(made.declared.each) > 1:
        return
    with ExitStack() as stack:
        sources = [stack.enter_context(closing(open_source(source))) for source in made.sources]
        name_dimensions([target], made.declared, made.declared.nest, sources, [spec])


def _opened(
    node: Node, place: Any, chunks: Shape | None, fitting: Shape | None, overwrite: bool, claim: Claim | None = None
) -> tuple[Sink, Opened]:
    """The sink of a node, and what workers need to open it; with a `claim` one that a later call goes on with.

    Where no `chunks` are asked for, they are those that are `fitting`.
    """
    target = open_target(place, overwrite=overwrite)
    if chunks is None:
        specs = [spec_of(source) for source in pass_of(node)[0].sources]
        chunks = next((spec.chunks for spec in specs if spec.chunks and spec.shape == node.shape), None)
    spec = target.describe(node.shape, node.spec.dtype, chunks)
    if fitting is not None and fitting != spec.chunks:
        spec = target.describe(node.shape, node.spec.dtype, fitting)
    _name(target, node, spec)
    array = getattr(target, "array", None)
    if isinstance(array, np.ndarray) and (found := mapped_file(array)) is not None:
        return target.open(spec), Opened(Mapped(*found, array.shape, array.strides, array.dtype), spec)
    if isinstance(place, ExistingArray):
        shared = _shared(place, target, spec) if spec.size else place  # of nothing no worker opens it
        return target.open(spec), Opened(shared, spec)
    if not is_new(place):
        if isinstance(place, np.ndarray) or not hasattr(place, "store"):
            kind = "NewArray of a group or store" if isinstance(place, NewArray) else type(place).__name__
            raise ArgumentTypeError(
                f"the output is a {kind}, which other processes cannot write to: give the path of a "
                ".zarr or .npy, or a zarr.Array, or an np.memmap of mode 'r+', in a place that all workers reach"
            )
        return target.open(spec), Opened(place, spec)
    sink = target.open(spec) if claim is None else target.open(spec, claim)  # type: ignore[call-arg]
    if not hasattr(sink, "shared"):
        sink.abort()
        raise ArgumentTypeError(
            f"the output {target.name} is created by one process alone: give a local path that ends in .zarr or .npy, "
            "or a zarr.Array, made before, in a store that all workers reach"
        )
    return sink, Opened(sink.shared, spec)
