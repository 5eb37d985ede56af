"""Partitions: large parts of a pass, which machines compute independently of each other.

Pure: reads no data. How a pass is cut depends only on its arrays and on the partition size, never on the number of
machines. So sums are equal on any number of machines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chunkflow.core import grid
from chunkflow.core.grid import Region, Shape
from chunkflow.core.halo import parts
from chunkflow.core.markup import Printed
from chunkflow.core.nest import Operand
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes, parse_bytes
from chunkflow.errors import UnsupportedError
from chunkflow.graph.fusion import MustBeStoredError, Pass, single_pass
from chunkflow.graph.nodes import ItemNode, MultiPassNode, Node, OpNode
from chunkflow.graph.sources import View
from chunkflow.kernels.declare import Declared
from chunkflow.kernels.fusion.program import Fused
from chunkflow.stores import spec_of

PARTITION = "4GB"
"""Default number of bytes that a task reads."""

PARTIAL = 4 << 20
"""Most elements of a reduction's result in one task, since they are sent from machine to machine."""


@dataclass(frozen=True)
class Partitioning:
    """The loop nest of a pass (`declared`), cut into partitions with these `sides`; the last ones may be shorter.

    Results follow the axes `kept`. The axes `folded` are cut but not followed: along them partitions are combined.
    A partition reads at most `nbytes`, without halos.
    """

    declared: Declared
    sides: Shape
    kept: frozenset[int]
    folded: frozenset[int]
    nbytes: int

    @property
    def extents(self) -> Shape:
        """Extents of the whole nest."""
        return self.declared.nest.extents

    @property
    def counts(self) -> Shape:
        """Number of partitions along each axis."""
        return tuple(max(1, grid.count(n, side)) for n, side in zip(self.extents, self.sides, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def __iter__(self) -> Iterator[Shape]:
        return itertools.product(*map(range, self.counts))

    def box(self, index: Shape) -> Region:
        """The box of a partition in the nest."""
        places = zip(index, self.sides, self.extents, strict=True)
        return tuple(slice(i * side, min((i + 1) * side, n)) for i, side, n in places)

    def chunks(self, shape: Shape, item: int = 0) -> tuple[Shape, ...]:
        """Lengths of the parts of a result along each of its dimensions, as dask's chunks."""
        return tuple(
            (n,)
            if a is None or self.counts[a] == 1  # all of it, of which a flattened result has more than the nest
            else tuple(min(self.sides[a], n - i * self.sides[a]) for i in range(self.counts[a]))
            for a, n in zip(self.declared.axes_of(item), shape, strict=True)
        )

    def place(self, index: Shape, item: int = 0) -> Shape:
        """Index of the part of a result that a partition computes or contributes to."""
        return tuple(0 if a is None else index[a] for a in self.declared.axes_of(item))

    def region(self, index: Shape, shape: Shape, item: int = 0) -> Region:
        """The region of that part in a result of this shape."""
        box = self.box(index)
        axes = self.declared.axes_of(item)
        sides = zip(axes, shape, strict=True)
        return tuple(slice(0, n) if a is None or self.counts[a] == 1 else box[a] for a, n in sides)


@dataclass(frozen=True)
class Awaited:
    """Placeholder for the result of another task: the one with this number among those that a pass waits for."""

    number: int
    spec: ArraySpec

    def __chunkflow_spec__(self) -> ArraySpec:
        return self.spec

    def reshape(self, shape: Shape) -> Awaited:
        """The same result in another shape."""
        return Awaited(self.number, ArraySpec(self.spec.name, shape, self.spec.dtype))


def filled(source: Any, arrays: Sequence[Any]) -> Any:
    """A source in which arrays have replaced the `Awaited` placeholders."""
    if isinstance(source, Awaited):
        found = arrays[source.number]
        return found.reshape(source.spec.shape) if isinstance(found, np.ndarray) else found
    if isinstance(source, View) and has_awaited(source):
        return source.on([filled(array, arrays) for array in source.arrays])
    return source


def has_awaited(source: Any) -> bool:
    """Whether a source is or contains an `Awaited` placeholder."""
    return isinstance(source, Awaited) or (isinstance(source, View) and any(map(has_awaited, source.arrays)))


def read_by(operand: Operand, box: Region) -> Region | None:
    """The region of an operand that a partition reads; None if it wraps around and is several regions."""
    if not operand.halo:
        return operand.region(box)
    found = parts(operand.region(box), operand.extents, operand.boundary)
    return found[0][0] if len(found) == 1 else None


def pass_of(node: Node) -> tuple[Pass, list[Node]]:
    """The pass that computes a node, and the nodes that must be stored before it.

    In the pass's sources each of these is an `Awaited` placeholder. `UnsupportedError` if one takes several passes,
    each of which depends on the result before it.
    """
    awaited: list[Node] = []
    stored: dict[Node, Any] = {}
    target = _unrolled(node).producer

    def lacking(missing: Node) -> None:
        op = missing.producer
        _unrolled(op)
        results: list[Node] = [op]
        if isinstance(op, OpNode) and len(op.specs) > 1:
            results = [op.item(i) for i in range(len(op.specs))]
        stands = tuple(Awaited(len(awaited) + i, result.spec) for i, result in enumerate(results))
        stored[op] = stands if len(stands) > 1 else stands[0]
        awaited.extend(results)

    while True:
        known = len(awaited)
        try:
            made = single_pass([target], stored, lacking)
        except MustBeStoredError as error:
            lacking(error.node)
        if len(awaited) == known:
            return made, awaited


def item_of(node: Node) -> int:
    """Number of a node among the results of its pass."""
    return node.item if isinstance(node, ItemNode) and node.producer is not node else 0


def _unrolled(node: Node) -> Node:
    """The node, or an equal node of passes that are known beforehand."""
    if not isinstance(node, MultiPassNode):
        return node
    if node.unrolled is not None:
        return node.unrolled
    if not all(one.spec.size for one in (node, *node.inputs)):
        why = f"{node.name} of no elements, or for no result, is no graph of tasks: compute() it"
        raise UnsupportedError(why) from None
    raise UnsupportedError(
        f"{node.name} makes several passes, each of which decides on the next, and is no graph of tasks: compute() it "
        "first, or to_zarr() it, and go on with the result"
    ) from None


def partitioned(made: Pass, partition: str | int, sink: Shape | None = None) -> Partitioning:
    """Cut a pass into partitions that read about `partition` bytes each (as ``"64GB"``).

    They consist of whole chunks of the output array, if `sink` is the shape of its chunks.
    """
    declared = made.declared
    nest, kernel = declared.nest, declared.kernel
    assert kernel is not None
    axes = [{a for a in declared.axes_of(i) if a is not None} for i in range(max(1, len(declared.each)))]
    kept, used = set.intersection(*axes), set.union(*axes)
    folds = any(kernel.parts)
    folded = {a for a in range(len(nest.extents)) if folds and a not in used and not nest.is_product}
    fixed = {a for a, n in enumerate(declared.block or ()) if n is not None}
    free = (kept | folded) - nest.whole - nest.looked_up - {nest.scan} - fixed
    if not all(nest.extents) or any(_is_particular(node) for node in made.nodes):
        free = set()
    specs = [spec_of(source) for source in made.sources]
    units = _units(declared, specs, sink, free)

    def nbytes(sides: Sequence[int]) -> int:
        shapes = (tuple(1 if a is None else sides[a] for a in operand.axes) for operand in nest.operands)
        return sum(math.prod(shape) * spec.dtype.itemsize for shape, spec in zip(shapes, specs, strict=True))

    target = parse_bytes(partition)
    sides = [max(1, n) for n in nest.extents]
    if folded & free:
        most = int(PARTIAL / kernel.state_size)
        _shrink(sides, units, sorted(kept & free), most, lambda sides: math.prod(sides[a] for a in kept))
    order = sorted(free)
    if nest.is_product:
        while nbytes(sides) > target:  # a square tile of a product reads the least
            longest = max(order, key=lambda a: sides[a] if sides[a] > units[a] else 0, default=None)
            if longest is None or sides[longest] <= units[longest]:
                break
            sides[longest] = -(-sides[longest] // (2 * units[longest])) * units[longest]
    else:
        _shrink(sides, units, order, target, nbytes)
    cut = frozenset(a for a in folded if sides[a] < nest.extents[a])
    read = nbytes([min(side, n) for side, n in zip(sides, nest.extents, strict=True)])
    return Partitioning(declared, tuple(sides), frozenset(kept), cut, read)


def read_together(made: Pass, awaited: Sequence[Node], cut: Partitioning) -> tuple[Any, ...] | None:
    """A key that is equal for passes that can share one read of each partition; None for a pass that cannot share.

    Such passes have the same operands and partitions, and fold the same axes or none. So each gives the same bits as it
    would alone.
    """
    kernel = made.declared.kernel
    own = [node.request.options.workspace for node in made.nodes if isinstance(node, OpNode)]
    if not isinstance(kernel, Fused) or own not in ([], [None]) or any(map(_is_particular, made.nodes)):
        return None
    folds = {part is not None for part in kernel.parts}
    origins = [origin.token if isinstance(origin, Node) else origin for origin in made.origins]
    whole = cut.kept, cut.folded, cut.sides, cut.extents
    return (*origins, made.declared.nest.operands, tuple(other.token for other in awaited), folds == {True}, *whole)


def _is_particular(node: Node) -> bool:
    """Whether a function depends on the cut of the whole array: it has fixed blocks, or asks for their positions."""
    stack, seen = [node], set()
    while stack:
        this = stack.pop()
        if this in seen:
            continue
        seen.add(this)
        stack += this.inputs
        if isinstance(this, OpNode) and (this.request.options.chunks is not None or this.declared.wants):
            return True
    return False


def _units(declared: Declared, specs: Sequence[ArraySpec], sink: Shape | None, free: set[int]) -> list[int]:
    """What the sides should be multiples of: the sink's chunks, and the sources' where both are possible."""
    nest = declared.nest
    units = [1] * len(nest.extents)
    for axis, chunk in zip(declared.axes, sink or (), strict=False):
        if axis is not None:
            units[axis] = chunk
    for spec, operand in zip(specs, nest.operands, strict=True):
        for axis, chunk in zip(operand.axes, spec.chunks or (), strict=False):
            if axis in free:
                both = math.lcm(units[axis], chunk)
                units[axis] = both if both <= nest.extents[axis] else units[axis]
    return units


def _shrink(
    sides: list[int], units: Sequence[int], order: Sequence[int], target: int, size: Callable[[Sequence[int]], int]
) -> None:
    """Shorten sides, the slowest axis first, until the size is at most `target` or no side can be shortened."""
    for axis in order:
        now = size(sides)
        if now <= target:
            return
        fits = sides[axis] * target // now // units[axis] * units[axis]
        sides[axis] = min(sides[axis], max(fits, units[axis]))


@dataclass(frozen=True)
class ClusterPlan(Printed):
    """The predicted tasks and time on several machines; print it.

    Attributes
    ----------
    workers : int
    parts : tuple of (str, Partitioning)
        Names of the results of each pass, and how it is cut.
    seconds : float
        Predicted time if every machine is like this one, and the store is fast enough for all of them.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> x = cf.open(np.zeros((64, 100)))
    >>> plan = cf.explain(x.mean(axis=0), workers=2, partition="20kB", device="cpu")
    >>> plan.workers, plan.tasks > 1
    (2, True)
    """

    workers: int
    parts: tuple[tuple[str, Partitioning], ...]
    seconds: float

    @property
    def tasks(self) -> int:
        """Number of tasks that stream a partition."""
        return sum(len(cut) for _, cut in self.parts)

    def __str__(self) -> str:
        lines = [f"{self.tasks} tasks on {self.workers} workers: {self.seconds:.3g} s"]
        for name, cut in self.parts:
            whole = " x ".join(map(str, cut.sides)) or "one element"
            merged = ", combined in a tree" if cut.folded else ""
            lines.append(f"  {name}: {len(cut)} tasks of {whole}, {format_bytes(cut.nbytes)} each{merged}")
        return "\n".join(lines)


def passes_of(nodes: Sequence[Node]) -> dict[Node, tuple[Pass, list[Node]]]:
    """The passes of nodes and of all nodes that they wait for, in order of dependence."""
    found: dict[Node, tuple[Pass, list[Node]]] = {}

    def add(node: Node) -> None:
        if node not in found:
            made, awaited = pass_of(node)
            for other in awaited:
                add(other)
            found[node] = made, awaited

    for node in nodes:
        add(node)
    return found


def cluster_plan(
    passes: Mapping[Node, tuple[Pass, list[Node]]], workers: int, partition: str | int, seconds: Mapping[Node, float]
) -> ClusterPlan:
    """The plan of passes on several machines, given the seconds that each would take on one.

    Passes that share a read take as long as the slowest of them.
    """
    parts, total = [], 0.0
    groups: dict[Any, list[tuple[Node, Partitioning]]] = {}
    for node, (made, awaited) in passes.items():
        cut = partitioned(made, partition)
        alike = read_together(made, awaited, cut)
        groups.setdefault(node if alike is None else alike, []).append((node, cut))
    for group in groups.values():
        cut = group[0][1]
        parts.append((", ".join(node.name for node, _ in group), cut))
        total += max(seconds[node] for node, _ in group) * math.ceil(len(cut) / workers) / len(cut)
    return ClusterPlan(workers, tuple(parts), total)
