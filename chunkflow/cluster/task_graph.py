"""Task graphs for dask: each task streams a partition, and partial results are combined in a tree.

The tree depends only on the partitions, so sums have the same bits on any number of workers.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import dask.array as da
import dask.base
import dask.threaded
import numpy as np
from dask._task_spec import DataNode, List, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph

from chunkflow.cluster import reports
from chunkflow.cluster.kept import KeptResults, run_and_keep, taken
from chunkflow.cluster.partition import PARTITION, Awaited, item_of, partitioned, pass_of, read_by, read_together
from chunkflow.cluster.resources import asking
from chunkflow.cluster.shared_reads import Reading, meeting
from chunkflow.cluster.tasks import Opened, Program, assemble, combine, finish, run
from chunkflow.core.grid import Shape
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.engine.budget import Budget, said
from chunkflow.engine.options import Options
from chunkflow.errors import UnsupportedError
from chunkflow.graph.live import refuse_tasks
from chunkflow.graph.nodes import Node, OpNode
from chunkflow.graph.sources import View
from chunkflow.stores import spec_of
from chunkflow.stores.file.memmap import mapped_file
from chunkflow.stores.views.shared import Mapped

ARITY = 8
"""Number of partial results that one task combines."""

TRAVELS = 256 << 20
"""Most bytes of an intermediate result that dask passes to tasks."""


CARRIED = 1 << 20
"""Most bytes of arrays in memory that are part of each task; larger ones are sent once to each worker."""


@dataclass(frozen=True)
class Settings:
    """Size of partitions, and budget and device on the workers.

    Without a budget it is the one in force where the graph is made: workers know of no `Budget` of the client's.
    """

    partition: str | int = PARTITION
    budget: Any = None
    device: Any = None

    def __post_init__(self) -> None:
        parse_bytes(self.partition)
        if self.budget is None:
            object.__setattr__(self, "budget", said())
        else:
            Budget(self.budget)  # an invalid budget is refused here, and not by every worker


@dataclass
class Builder:
    """Builds the tasks of nodes; shared inputs are computed once."""

    settings: Settings
    layers: dict[str, Mapping[Any, Any]] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)
    graphs: dict[str, HighLevelGraph] = field(default_factory=dict)
    kept: KeptResults | None = None
    """Results that an earlier call has left; then each result has its own tasks, which share no reads."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Those of each layer that are still to be computed."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def graph(self) -> HighLevelGraph:
        """The graph of all that has been added."""
        reports.announce(self.partitions)
        layers: dict[str, Any] = dict(self.layers)
        needs: dict[str, set[str]] = dict(self.needs)
        for other in self.graphs.values():
            layers.update(other.layers)
            needs.update(other.dependencies)
        return HighLevelGraph(layers, needs)

    def add(self, node: Node, out: Opened | None = None) -> str:
        """Add a node's tasks. Returns the name of their layer, whose keys are those of a dask array's blocks."""
        name = name_of(node, self.settings) if out is None else f"{name_of(node, self.settings)}-{uuid.uuid4().hex}"
        if name in self.layers:
            return name
        refuse_tasks(node)
        made, awaited = pass_of(node)
        cut = partitioned(made, self.settings.partition, None if out is None else out.spec.chunks)
        reads = f"{name}-part" if cut.folded else name
        needs: set[str] = set()
        whole = [self._whole(other, needs) for other in awaited]
        regional: dict[int, tuple[int, Shape]] = {}
        blocks: dict[int, Any] = {}
        sources = []
        for operand, source in enumerate(made.sources):
            if isinstance(source, da.Array):
                number = len(whole) + len(blocks)
                blocks[number], regional[number] = source, (operand, source.shape)
                source = Awaited(number, spec_of(source))
            sources.append(_sent(source))
        item, options = item_of(node), self._options(made.nodes[0])
        alike = read_together(made, awaited, cut)
        kernel = cut.declared.kernel
        steady = alike is not None and kernel is not None and any(kernel.parts)
        if self.kept is not None:
            alike = None
        known = "" if self.kept is None else self.kept.of(node, next(self._numbers))
        program = Program(cut, node.name, tuple(sources), options, item, regional, out, steady)
        # Each task has its own copy of the program: dask would run all tasks where a shared one is stored.
        common = f"{name}-program"
        layer: dict[Any, Any] = {common: DataNode(common, program)}
        what: Any = program if sum(map(_in_memory, sources)) <= CARRIED else TaskRef(common)
        indices: dict[Any, Shape] = {}
        arrays: dict[Shape, tuple[Any, ...]] = {}
        gathered: dict[Shape, list[Any]] = {}
        for index in cut:
            found = list(whole)
            for number, array in blocks.items():
                region = read_by(cut.declared.nest.operands[regional[number][0]], cut.box(index))
                found.append(self._block(array, region, needs))
            arrays[index] = tuple(found)
            key = (reads, *(index if cut.folded else cut.place(index, item)))
            layer[key] = self._task(key, what, index, found, known)
            indices[key] = index
            gathered.setdefault(cut.place(index, item), []).append((key, index))
        self.partitions[name] = len(cut) - sum(getattr(task, "func", None) is taken for task in layer.values())
        if alike is None:
            if what is program:
                del layer[common]
            self.layers[reads], self.needs[reads] = layer, needs
        else:
            shared = meeting(_shared_name(alike, self.settings), arrays)
            self.layers[shared.name], self.needs[shared.name] = shared, needs
            reading = Reading(layer, common, indices, shared, what is program)
            self.layers[reads], self.needs[reads] = reading, {shared.name, *needs}
        if cut.folded:
            ends: dict[Any, Any] = {}
            for place, parts in gathered.items():
                keys = _tree(ends, what, name, place, [key for key, _ in parts])
                end = (name, *place)
                ends[end] = Task(end, finish, what, List(*map(TaskRef, keys)), parts[0][1])
            self.layers[name], self.needs[name] = ends, {reads}
        return name

    def _task(self, key: Any, what: Any, index: Shape, arrays: Sequence[Any], known: str) -> Any:
        """The task of a partition; what takes its result, if that is kept."""
        found = List(*map(TaskRef, arrays))
        if self.kept is None:
            return Task(key, run, what, index, found, _data_producer=True)
        path = self.kept.path(known, index)
        if os.path.exists(path):
            return Task(key, taken, path)
        since = DataNode(None, self.kept.read)
        return Task(key, run_and_keep, what, index, found, path, socket.gethostname(), since, _data_producer=True)

    def _options(self, node: Node) -> Options:
        """Options of a node's pass on a worker."""
        options = Options(budget=self.settings.budget, device=self.settings.device)
        if not isinstance(node, OpNode):
            return options
        own = node.request.options
        dtype = own.dtype if node.has_own_pass else None  # a program casts by itself
        return replace(options, chunks=own.chunks, workspace=own.workspace, dtype=dtype)

    def stored(self, node: Node, out: Opened) -> Any:
        """Add tasks that write a node's parts to an output. Returns the key that is done when all of them are."""
        name = self.add(node, out)
        key = (f"{name}-stored",)
        refs = [TaskRef(part) for part in self.layers[name] if part[0] == name]
        self.layers[key[0]] = {key: Task(key, len, List(*refs))}
        self.needs[key[0]] = {name}
        return key

    def _whole(self, node: Node, needs: set[str]) -> Any:
        """Key of a whole array that tasks wait for. Its layer is added to `needs`."""
        if node.spec.nbytes > TRAVELS:
            raise UnsupportedError(
                f"{node.name} takes {format_bytes(node.spec.nbytes)}, all of which is needed before the next pass, and "
                f"tasks hand on at most {format_bytes(TRAVELS)}: store it first, with to_zarr(), and go on from there"
            )
        name = self.add(node)
        cut_chunks = chunks_of(node, self.settings)
        places = list(itertools.product(*(range(len(sides)) for sides in cut_chunks)))
        if len(places) == 1:
            needs.add(name)
            return (name, *places[0])
        key, regions = f"{name}-whole", da.core.slices_from_chunks(cut_chunks)
        refs = List(*(TaskRef((name, *place)) for place in places))
        self.layers[key] = {key: Task(key, assemble, refs, DataNode(None, regions), node.shape)}
        self.needs[key] = {name}
        needs.add(key)
        return key

    def _block(self, array: Any, region: Any, needs: set[str]) -> Any:
        """Key of a region of a dask array, computed by dask."""
        part = (array if region is None else array[region]).rechunk(-1)
        if part.name not in self.graphs:
            self.graphs[part.name] = part.__dask_graph__()
        needs.add(part.name)
        return (part.name, *(0,) * part.ndim)


def _sent(source: Any) -> Any:
    """A source as other processes can open it: by its absolute path, or as a mapped file."""
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path if "://" in path else os.path.abspath(path)
    if isinstance(source, np.ndarray) and (found := mapped_file(source)) is not None:
        return Mapped(*found, source.shape, source.strides, source.dtype)
    if isinstance(source, View):
        return source.on([_sent(array) for array in source.arrays])
    if isinstance(source, da.Array):  # each task would have to get all of it
        raise UnsupportedError(
            f"tasks cannot read a view of the dask array {source.name}: take the view before from_dask()"
        )
    return source


def _in_memory(source: Any) -> int:
    """Bytes of a source that must be sent to workers."""
    if isinstance(source, View):
        return sum(map(_in_memory, source.arrays))
    return source.nbytes if isinstance(source, np.ndarray) else 0


def _tree(layer: dict[Any, Any], program: Any, name: str, place: Shape, keys: list[Any]) -> list[Any]:
    """Add tasks that combine partial results until at most `ARITY` are left. Returns their keys."""
    level = 0
    while len(keys) > ARITY:
        groups = [keys[i : i + ARITY] for i in range(0, len(keys), ARITY)]
        keys = [(f"{name}-combine", *place, level, i) for i in range(len(groups))]
        for key, group in zip(keys, groups, strict=True):
            layer[key] = Task(key, combine, program, List(*map(TaskRef, group)))
        level += 1
    return keys


def _shared_name(alike: Any, settings: Settings) -> str:
    """Name of the layer that is shared by all results with the same reads and annotations."""
    token = dask.base.tokenize(alike, settings.partition, settings.budget, str(settings.device), dask.get_annotations())
    return f"chunkflow_read-{token}"


def name_of(node: Node, settings: Settings) -> str:
    """Name of a node's layer: the same for the same expression and settings."""
    word = re.sub(r"\W+", "_", os.path.basename(node.name)).strip("_") or "array"
    token = dask.base.tokenize(node.token, settings.partition, settings.budget, str(settings.device))
    return f"chunkflow_{word}-{token}"


def chunks_of(node: Node, settings: Settings) -> tuple[Shape, ...]:
    """Lengths of the parts of a node, as dask's chunks."""
    made, _ = pass_of(node)
    return partitioned(made, settings.partition).chunks(node.shape, item_of(node))


def keys_of(node: Node, settings: Settings) -> Any:
    """Keys of a node's parts, nested as dask nests them."""
    return persisted({}, name_of(node, settings), chunks_of(node, settings), node.spec.dtype).__dask_keys__()


def as_dask(node: Node, settings: Settings) -> da.Array:
    """A node as a dask array."""
    builder = Builder(settings)
    with asking(settings.device):
        name = builder.add(node)
        graph = builder.graph()
    meta = np.empty((0,) * len(node.shape), node.spec.dtype)
    return da.Array(graph, name, chunks_of(node, settings), meta=meta)


def computed(results: Any) -> Any:
    """One array or scalar from the parts that dask computed."""
    found = da.core.finalize(results)
    return found[()] if isinstance(found, np.ndarray) and not found.ndim else found


def persisted(graph: Mapping[Any, Any], name: str, chunks: Any, dtype: Any, rename: Any = None) -> da.Array:
    """A dask array of parts that are stored on the workers."""
    return da.Array(graph, (rename or {}).get(name, name), chunks, dtype=dtype)


optimize = da.Array.__dask_optimize__
"""dask's own optimizer for arrays: dask confuses the order of collections whose optimizers differ."""

scheduler = dask.threaded.get
"""Default scheduler, as for dask's arrays."""
