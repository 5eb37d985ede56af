"""A plan: a pass with block shape, slots, loop order and bytes. Everything about a run but the data.

Pure: knows no device and no store. `chunkflow.planner.search` makes plans, `chunkflow.engine.pipeline` runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from chunkflow.core import grid as _grid
from chunkflow.core.grid import ONE_BY_ONE, Grid, Interleave, Region, Shape
from chunkflow.core.halo import kept
from chunkflow.core.machine import Machine
from chunkflow.core.markup import Printed
from chunkflow.core.memory import Projection, Ring, rounded
from chunkflow.core.nest import Along, LoopNest
from chunkflow.core.spec import ArraySpec
from chunkflow.core.units import format_bytes, numbered
from chunkflow.planner.cost import Estimate, Traffic
from chunkflow.planner.decode_batch import TURNS, Batch
from chunkflow.planner.step import FoldPosition, Step
from chunkflow.planner.transfer_cut import Cut

AHEAD = 8
"""Blocks a lane, of which a slow one may be overtaken where any lane may compute any."""

CRUMBS, MOSTLY = 100_000, 0.5
"""More blocks than that are crumbs, where what each costs besides is more than that share of the predicted time."""

AGAIN, MUCH = 8, 1 << 28
"""How often elements are read, and bytes that are read in all, from which on they are said to be read too often, where
reading bounds the run."""

AROUND = 32
"""Elements computed for each of an array's, and `MUCH` of their bytes, from which on halos are most of a run."""

LONG = 5.0
"""Seconds of the predicted time, and more than `MOSTLY` of it, from which on sources are said to be asked too often."""

CUT = 1.2
"""Bytes of chunks that are read, for each byte that blocks are given of them, from which on that is said."""

SMALL = 128
"""Bytes of partial results, of all that an operation gives, up to which there are so many chains for each lane."""


def chains(op: LoopNest, lanes: int, deals: bool) -> int:
    """See `Plan.chains`. Whatever the blocks: or smaller ones could take more memory, and plans be missed."""
    return lanes * AHEAD if deals and lanes > 1 and 0 < op.holds(op.extents) <= SMALL else lanes


def private(machine: Machine, spec: ArraySpec, loads: int, blocks: int, stored: bool) -> bool:
    """Whether a block belongs to the lane that computes it, which reads and stores it too.

    So it is where the host's memory is shared, unless several steps use the block: then another lane may read
    it ahead of them. So it may where the block comes over a network.
    """
    return not (machine.staged or spec.storage.remote) and stored and loads == blocks


def recycled(
    op: LoopNest, operands: Sequence[ArraySpec], outputs: Sequence[ArraySpec], own: Sequence[bool]
) -> int | None:
    """Operand whose block takes the result's place, tile after tile, which then needs no memory of its own.

    `own` says of each operand whether a lane has its blocks for itself. Elements lie alike in both, and a tile's result
    depends on the same tile alone.
    """
    every = tuple(range(len(op.extents)))
    if len(outputs) != 1 or op.folds or op.scan is not None or op.has_halo:
        return None
    (out,) = outputs
    if out.storage.remote or op.outputs[0].dims != tuple(Along(a) for a in every):
        return None
    for i, (operand, spec) in enumerate(zip(op.operands, operands, strict=True)):
        alike = (spec.dtype, spec.order) == (out.dtype, out.order)
        if own[i] and not spec.storage.in_memory and operand.axes == every and alike:
            return i
    return None


def in_place(machine: Machine, op: LoopNest, operands: Sequence[ArraySpec], outputs: Sequence[ArraySpec]) -> bool:
    """Whether results are the blocks that are read, and lie in memory: each is read to where its result belongs."""
    if machine.staged or not op.views or any(spec.storage.remote for spec in operands):
        return False
    return recycled(op, operands, outputs, [True] * len(operands)) is not None and outputs[0].storage.in_memory


@dataclass(frozen=True)
class Plan(Printed):
    """A pass with its block shape, slots, loop order and bytes: everything but the data.

    ``str(plan)`` describes it for people. Sizes are in bytes, times in seconds. Blocks are what is loaded and
    stored; the kernel computes them tile by tile where that keeps it in the cache. Where there are fewer lanes than
    cores, each has `coders` threads for the chunks of its blocks. Of a `resident` operand every block is loaded once,
    and stays; the while, tiles of a product take `turns`, block by block. Of an operand that is `kept` the next block
    finds chunks that were decoded for the one before. Where it is slow for its blocks, the `remedy` says why, and what
    to do about it. Where chunks are read again since none fits, `whole` is the budget in which they do. Of several
    passes like it, so many `times`, it is the first. Of a live source of unknown length it is that of a `batch` of so
    many rows. Plans are made by the rates of the machine alone; where a few
    calls have shown more, `predicted` are the seconds that they let expect.

    Examples
    --------
    >>> import numpy as np, chunkflow as cf
    >>> plan = cf.explain(np.sqrt, np.ones((64, 64)), chunks=(16, -1), device="cpu")
    >>> plan.block, plan.grid.counts, plan.bytes_in, plan.rereads
    ((16, 64), (4, 1), 32768, 1.0)
    """

    op: LoopNest
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    machine: Machine
    budget: int
    block: Shape
    tile: Shape
    walk: Shape
    depth: int
    cuts_in: tuple[Cut, ...]
    cuts_out: tuple[Cut, ...]
    ring_in: Ring | None
    ring_out: Ring | None
    memory: Projection
    traffic: Traffic
    estimate: Estimate
    notes: tuple[str, ...] = ()
    coders: int = 1
    resident: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    turns: Interleave = ONE_BY_ONE
    remedy: str = ""
    whole: int | None = None
    times: int = 1
    predicted: float | None = None
    batch: int | None = None

    @cached_property
    def batches(self) -> dict[int, Batch]:
        """Of operands whose chunks the device decodes, how it does."""
        return {i: cut.batch for i, cut in enumerate(self.cuts_in) if cut.batch is not None}

    @cached_property
    def grid(self) -> Grid:
        """The loop nest cut into blocks."""
        return Grid(self.op.extents, self.block, self.turns.heads)

    @property
    def is_crumbs(self) -> bool:
        """Whether there are so many small blocks that handling them takes most of the time."""
        return len(self.grid) > CRUMBS and self.estimate.handed > MOSTLY * self.estimate.seconds

    @property
    def is_read_again(self) -> bool:
        """Whether so much is read so many times that the run takes several times as long as it need."""
        bound = self.estimate.bound_by in ("read", "upload")
        return bound and self.times * self.bytes_in >= MUCH and self.rereads >= AGAIN

    @property
    def is_asked_often(self) -> bool:
        """Whether most of the time goes by in asking sources for so few elements at a time."""
        asking = self.estimate.asking
        return self.times * asking >= LONG and asking > MOSTLY * self.estimate.seconds

    @property
    def is_mostly_around(self) -> bool:
        """Whether blocks are given many times as many neighbours as they have elements of their own."""
        return self.op.has_halo and self.times * self.bytes_given >= MUCH and self.overlap >= AROUND

    @property
    def is_slow(self) -> bool:
        """Whether it is slow for its blocks."""
        return self.is_crumbs or self.is_read_again or self.is_asked_often or self.is_mostly_around

    @property
    def warning(self) -> str:
        """What is said of a slow plan before it is run: of crumbs, reads again or slow reads; nothing of others."""
        if self.is_crumbs:
            return (
                f"{len(self.grid):,} blocks of {self.block}: handling them is most of the "
                f"{self.estimate.seconds:.3g} s that the run is predicted to take, since {self.remedy}"
            )
        each = f" in each of {self.times} passes" if self.times > 1 else ""
        if self.is_read_again and self.remedy:
            return (
                f"{len(self.grid):,} blocks of {self.block} read elements {self.rereads:,.0f} times, "
                f"{format_bytes(self.bytes_in)}{each or ' in all'}{self._at_least}, since {self.remedy}"
            )
        if self.is_mostly_around and self.remedy:
            return (
                f"{len(self.grid):,} blocks of {self.block} are computed with their neighbours, {self.overlap:,.0f} "
                f"elements for each of the array's{each}{self._at_least}, since {self.remedy}"
            )
        if self.is_asked_often and self.remedy:
            return (
                f"{len(self.grid):,} blocks of {self.block}: asking sources for parts of them, each of which takes "
                f"long however small it is, is most of the {self.estimate.seconds:.3g} s that the run is predicted to "
                f"take{each}, since {self.remedy}"
            )
        return ""

    @property
    def _at_least(self) -> str:
        """How long a run takes in which a function only passes over its elements, if that is long."""
        seconds = self.times * self.estimate.seconds
        return f", which takes {seconds:,.0f} s or more" if seconds >= 1 else ""

    @property
    def seconds(self) -> float:
        """Predicted seconds."""
        return self.estimate.seconds if self.predicted is None else self.predicted

    @property
    def bytes_given(self) -> int:
        """Bytes of the elements that blocks are given: without what lies in the same chunks, and is read with them."""
        return self.traffic.given

    @property
    def bytes_in(self) -> int:
        """Bytes that will be read from the sources, repeats counted."""
        return self.traffic.read

    @property
    def bytes_out(self) -> int:
        """Bytes that will be written to the sinks."""
        return self.traffic.write

    @property
    def rereads(self) -> float:
        """Bytes read for each byte of the arrays."""
        return self.bytes_in / max(sum(s.nbytes for s in self.operands), 1)

    @property
    def overlap(self) -> float:
        """Bytes of elements that blocks are given, for each byte of the arrays: more than 1 for halos."""
        return self.bytes_given / max(sum(s.nbytes for s in self.operands), 1)

    @property
    def excess(self) -> float:
        """Bytes that are read for each byte of elements that blocks are given: more than 1 where they cut chunks."""
        return self.bytes_in / max(self.bytes_given, 1)

    @property
    def spills(self) -> bool:
        """Whether blocks that are read are too large for the cache: they are written to memory and read again."""
        return any(
            math.prod(self.slot_shape(i)) * spec.dtype.itemsize > self.machine.cache > 0
            for i, (operand, spec) in enumerate(zip(self.op.operands, self.operands, strict=True))
            if operand.padded or not spec.storage.in_memory
        )

    @property
    def read_again(self) -> str:
        """What is said of chunks that are read again; nothing where they are hardly."""
        if self.whole is None and self.excess < CUT:
            return ""
        why = "blocks or their halos cut them"
        if self.whole is not None:
            why = f"whole ones fit a budget of about {format_bytes(self.whole)}"
        return f"chunks are read {numbered(self.rereads)} times: {why}"

    @property
    def reading(self) -> list[str]:
        """What is said in a report of elements and chunks that are read again, each by its cause."""
        notes = [f"blocks overlap: they are given {self.overlap:.2f} times the arrays' bytes"] * self.op.has_halo
        if self.read_again:
            read, given = format_bytes(self.bytes_in), format_bytes(self.bytes_given)
            notes.append(f"{self.read_again}; {read} for the {given} that blocks are given")
        return notes

    @cached_property
    def lanes(self) -> int:
        """Blocks that compute at the same time."""
        return max(1, min(self.machine.lanes, self.depth, self.rows))

    @cached_property
    def rows(self) -> int:
        """See `LoopNest.rows`."""
        return self.op.rows(self.grid.counts)

    @cached_property
    def _combined(self) -> int:
        """Blocks that give one result, at least."""
        return min([math.prod(self.grid.counts[a] for a in part.folded) for part in self.op.parts], default=1)

    def waiting(self, step: Step) -> int:
        """Results that may wait to be stored while a step is computed.

        Where blocks are combined, only few give a result, and that may be copied before it is stored. (What products
        copy is counted with what they hold.) Of tiles that were computed together, those that are done leave room.
        """
        if self.deals:
            return AHEAD * self.lanes  # they are stored already, but for a slow one that must not stop the others
        if not self.machine.staged or self._combined == 1:
            return self.depth - 1
        copied = bool(step.stores) and not self.op.is_product
        together = self.turns.together
        done = min(step.index[self.op.across(self.grid.counts)[0]], together - 1) if together > 1 else 0
        return -(-self.depth // self._combined) - copied + done

    def _order(self) -> Iterator[Shape]:
        """Indices of blocks: of a scan each lane has a row; while a resident operand is loaded, tiles take turns."""
        if self.op.scan is not None:
            return self.grid.abreast(self.walk, self.op.scan, self.lanes)
        if self.turns.together == 1:
            return self.grid.walk(self.walk)
        return self.grid.in_turn(self.walk, self.op.across(self.grid.counts)[0], self.turns.together)

    def _abreast(self, number: int) -> int:
        """Which of the rows that take turns at a scan a step has."""
        assert self.op.scan is not None
        group, place = divmod(number, self.lanes * self.grid.counts[self.op.scan])
        return place % min(self.lanes, self.rows - group * self.lanes)

    @property
    def results(self) -> tuple[int, ...]:
        """Bytes of each result that a lane holds at once, or of each partial one where blocks are combined.

        In pieces of their size memory stays usable: behind a smaller one, at an array's end, no other one begins, and
        what is kept between blocks divides no room of temporaries.
        """
        if self.lanes > 1:
            return ()
        if self._combined > 1:
            kept = 0 if self.op.is_product else rounded(self.op.holds(self.block), self.machine.page)
            return (kept,) * (self.memory.partials // kept) if kept else ()
        shapes = [output.shape(self.block) for output in self.op.outputs]
        each = [
            rounded(math.prod(shape) * spec.dtype.itemsize, self.machine.page)
            for shape, spec in zip(shapes, self.outputs, strict=True)
        ]
        return tuple(each) * (self.memory.outputs // max(sum(each), 1))

    def slots(self, operand: int) -> int:
        """Blocks of an operand that the device holds at once, those in memory already left out."""
        if operand in self.resident:
            return self.loads(operand)
        return min(self.lanes if self.private(operand) else self.depth, max(self.loads(operand), 1))

    def private(self, operand: int) -> bool:
        """Whether each block of an operand is one lane's alone, from its reading on."""
        shared = bool(self.op.operands[operand].halo) or not self.outputs
        return private(self.machine, self.operands[operand], self.loads(operand), len(self.grid), not shared)

    @cached_property
    def recycled(self) -> int | None:
        """Operand whose block takes the result's place, tile after tile."""
        if self.tile == self.block:
            return None
        own = [self.private(i) for i in range(len(self.operands))]
        return recycled(self.op, self.operands, self.outputs, own)

    @cached_property
    def apart(self) -> bool:
        """Whether blocks are read, or results stored, by others than the lane that computes them, at their own time."""
        return not self.machine.staged and any(spec.storage.remote for spec in (*self.operands, *self.outputs))

    @cached_property
    def chains(self) -> int:
        """Values to which blocks are added in turn, in the end to be merged: several a lane where they are small."""
        return chains(self.op, self.lanes, self.deals)

    @cached_property
    def deals(self) -> bool:
        """Whether any lane may compute a block: each reads and stores what it computes, and nothing passes on."""
        return not self.machine.staged and not self.apart and self.op.scan is None

    @cached_property
    def in_place(self) -> bool:
        """Whether blocks are read to where their results belong."""
        return in_place(self.machine, self.op, self.operands, self.outputs)

    @property
    def lends(self) -> bool:
        """Whether results lie in their operand's block, and take no memory of their own."""
        return self.recycled is not None or (self.op.views and not self.machine.staged and not self.apart)

    def slot_shape(self, operand: int) -> Shape:
        """Extents of the slot that takes any block of an operand."""
        return self.op.operands[operand].shape(self.block)

    def slot_shapes(self, operand: int) -> list[Shape]:
        """Extents of each slot of an operand: those of a resident one are as large as the blocks that stay there."""
        if operand not in self.resident:
            return [self.slot_shape(operand)] * self.slots(operand)
        nest = self.op.operands[operand]
        own = tuple([n if a in nest.axes else 1 for a, n in enumerate(self.grid.counts)])
        indices = Grid(own, (1,) * len(own)).walk(self.walk)
        return [_grid.shape_of(nest.region(self.grid.region(index))) for index in indices]

    @property
    def reuses(self) -> bool:
        """Whether halos are copied from the block before, which must still be there then."""
        return self.op.has_halo and self.depth > 1

    @property
    def ahead(self) -> int:
        """Steps whose blocks are loaded ahead."""
        return min(self.depth, TURNS) if self.batches else self.depth

    def loads(self, operand: int) -> int:
        """Number of loads of an operand in the whole run."""
        if operand in self.resident:
            return self.op.operands[operand].different(self.grid.counts)
        return self.op.loads(self.op.operands[operand], self.grid.counts, self.walk)

    def steps(self, pick: Callable[[int], int] | None = None, start: int = 0) -> Iterator[Step]:
        """The run, block by block, made as it is asked for; `pick` chooses a block's lane, given whose turn it is.

        It begins with the step number `start`, to which nothing is on the device.
        """
        nest = self.op
        used = [tuple(a for a in operand.axes if a is not None) for operand in nest.operands]
        there: list[dict[Shape, int]] = [{} for _ in used]  # loads, by block, of which these are on the device:
        loaded: list[set[int]] = [set() for _ in used]
        before: list[Region | None] = [None] * len(used)
        loads, made = [-1] * len(used), [0] * len(used)
        counts, lanes = self.grid.counts, self.lanes
        folding = [(i, p.kept, tuple(p.folded)) for i, p in enumerate(nest.parts) if p.folded]
        if nest.scan is not None:
            folding = [(0, tuple(a for a in range(len(counts)) if a != nest.scan), (nest.scan,))]
        for number, index in enumerate(self._order()):
            box = self.grid.region(index)
            turns = tuple(
                [
                    FoldPosition(
                        i,
                        tuple([index[a] for a in kept]),
                        all(index[a] == 0 for a in along),
                        all(index[a] == counts[a] - 1 for a in along),
                    )
                    for i, kept, along in folding
                ]
            )
            fresh = []
            for i, axes in enumerate(used):
                key = tuple([index[a] for a in axes])
                if key not in there[i]:
                    if i not in self.resident:
                        there[i].clear()
                        loaded[i].clear()
                    there[i][key] = made[i]
                    made[i] += 1
                loads[i] = there[i][key]
                fresh.append(loads[i] not in loaded[i])
                if number >= start:
                    loaded[i].add(loads[i])
            if number < start:
                continue
            turn = number % lanes if nest.scan is None else self._abreast(number)
            regions = tuple([operand.region(box) for operand in nest.operands])
            known: list[Region | None] = [None] * len(used)
            if self.reuses:
                for i, operand in enumerate(nest.operands):
                    if operand.halo and fresh[i]:
                        known[i] = kept(regions[i], before[i])
                        before[i] = regions[i]
            yield Step(
                number,
                index,
                box,
                tuple(loads),
                tuple(fresh),
                regions,
                self._stores(box, turns),
                turns,
                turn if pick is None else pick(turn),
                turn if nest.scan is not None else number % self.chains,
                tuple(known),
            )

    def _stores(self, box: Region, turns: Sequence[FoldPosition]) -> tuple[tuple[int, Region], ...]:
        nest = self.op
        waiting = {turn.part for turn in turns if not turn.last} if nest.scan is None else ()
        return tuple(
            [
                (i, nest.outputs[i].region(box))
                for number, part in enumerate(nest.parts)
                if number not in waiting
                for i in part.numbers
            ]
        )

    def _where(self, operand: int) -> str:
        """Where an operand's chunks are decoded, if there might be a choice."""
        codec = self.operands[operand].storage.codec
        if operand in self.batches:
            return ", decoded on the device"
        if not codec or not self.machine.staged:
            return ""
        why = "products' are" if self.op.is_product else "the model prefers"
        return f", decoded on the host, as {why if self.machine.decoding(codec) else 'the device has no decoder'}"

    def __str__(self) -> str:
        def line(word: str, spec: ArraySpec, shape: Shape, where: str = "") -> str:
            chunks = f" in chunks {spec.chunks}" if spec.chunks else ""
            how = f", {spec.storage.how}{where}" if spec.storage.how else ""
            return f"  {word:<8}{spec.name}: {spec.dtype} {spec.shape}{chunks}, by blocks of {shape}{how}"

        counts, e = self.grid.counts, self.estimate
        block = " x ".join(map(str, self.block)) or "one element"
        slots = "slot" if self.depth == 1 else "slots"
        lines = [
            f"{len(self.grid)} blocks of {block} (grid {counts}, {self.depth} {slots}, {self.lanes} computing at once)",
            *([f"  first   {self.turns.together} tiles in turn"] if self.turns.together > 1 else []),
            *([f"  compute by tiles of {self.tile}"] if self.tile != self.block else []),
            *(line("read", s, self.slot_shape(i), self._where(i)) for i, s in enumerate(self.operands)),
            *(line("write", s, o.shape(self.block)) for s, o in zip(self.outputs, self.op.outputs, strict=True)),
            f"  memory  {self.memory} of {format_bytes(self.budget)}",
            f"  traffic reads {format_bytes(self.bytes_in)}, writes {format_bytes(self.bytes_out)}"
            + (f", {self.rereads:.2f} times the arrays" if self.op.has_halo else "")
            + (
                f"; link in {format_bytes(self.traffic.upload)}, out {format_bytes(self.traffic.download)}"
                if self.machine.staged
                else ""
            ),
            f"  model   {self.seconds:.3g} s, bound by {e.bound_by}",
        ]
        rings = [r.nbytes for r in (self.ring_in, self.ring_out) if r]
        if rings:
            lines.append(f"  pinned  {format_bytes(sum(rings))} of host memory")
        notes = [*self.notes, *([self.warning] if self.warning else [])]
        if self.batch is not None:
            rows = "one row" if self.batch == 1 else f"{self.batch} rows"
            notes.append(f"of each batch of {rows}, at most: the length of the live source is not known")
        return "\n".join(lines + [f"  note    {n}" for n in notes])
