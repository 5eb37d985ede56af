"""One block shape tried: the plan that it gives, in bytes and seconds, whether it fits the budget or not.

Pure: touches no data and knows no device and no store. `chunkflow.planner.search` chooses among such plans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chunkflow.core import grid as _grid
from chunkflow.core.grid import ONE_BY_ONE, Grid, Interleave, Shape
from chunkflow.core.machine import Machine
from chunkflow.core.memory import ALIGNMENT, Projection, Ring, rounded, shared_page, temporaries
from chunkflow.core.nest import LoopNest, Operand
from chunkflow.core.product_nest import ProductNest
from chunkflow.core.spec import ArraySpec
from chunkflow.planner.codec_threads import LATENCY, Coding, best_coding
from chunkflow.planner.cost import Traffic, estimate
from chunkflow.planner.decode_batch import batch_of, device_bytes
from chunkflow.planner.loop_order import _best_walk, _decoded, _loaded, _reading_ahead
from chunkflow.planner.plan import Plan, chains, private, recycled
from chunkflow.planner.transfer_cut import Cut, cut_of, keeps_whole

TILE = 0.25
"""Share of the cache that a tile's working set may take: a tile costs less than a block does, and its
temporaries are memory that no budget sees."""

BOTH = 2 / 3
"""Share of the threads that each direction of a product has: with more, those that wait slow those that copy."""

GATHERED = 256 << 10
"""Bytes that a lane has on their way to a file as which they do not lie, where results have no memory of their own."""

SPREAD = 3
"""Pages that what a lane holds in a product may waste: it lies in several buffers."""


@dataclass(frozen=True)
class PlanProblem:
    """What stays the same while block shapes are tried. Chunks of the `unpacked` operands are decoded on the device."""

    op: LoopNest
    operands: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    machine: Machine
    budget: int
    workspace: float
    reserve: int
    tiled: frozenset[int]
    order: Shape
    strips: tuple[int, int] = (0, 0)
    unpacked: frozenset[int] = frozenset()

    def plan(
        self,
        block: Shape,
        depth: int,
        resident: frozenset[int] = frozenset(),
        turns: Interleave = ONE_BY_ONE,
    ) -> Plan:
        """The plan with this block and this many slots, whether it fits the budget or not.

        While resident operands are loaded tiles take `turns`.
        """
        op, machine, page = self.op, self.machine, self.machine.page
        grid = Grid(op.extents, block, turns.heads)
        blocks, counts = len(grid), grid.counts
        walk = _best_walk(op, self.operands, grid, depth, resident)
        if op.has_halo and depth > 1:
            op = _reading_ahead(op, self.operands, grid, walk)
        batches = {i: batch_of(self.operands[i], op.operands[i], block, op.extents, machine) for i in self.unpacked}
        cuts_in = tuple(
            cut_of(
                s, machine, strict=False, batch=batches.get(i), whole=keeps_whole(s.chunks, o.axes, block, op.extents)
            )
            for i, (s, o) in enumerate(zip(self.operands, op.operands, strict=True))
        )
        cuts_out = tuple(cut_of(s, machine, strict=True, whole=True) for s in self.outputs)
        in_shapes, out_shapes = ([o.shape(block) for o in arrays] for arrays in (op.operands, op.outputs))
        written = sum(s.nbytes for s in self.outputs)
        in_bytes, out_bytes = _bytes(in_shapes, self.operands), _bytes(out_shapes, self.outputs)
        lanes = max(1, min(machine.lanes, depth, blocks))
        inputs = upload = read = decode = 0
        unpacking = chunks = 0.0
        privates = []
        for i, (spec, operand, nbytes) in enumerate(zip(self.operands, op.operands, in_bytes, strict=True)):
            different = operand.different(counts)
            loads = different if i in resident else op.loads(operand, counts, walk)
            privates.append(private(machine, spec, loads, blocks, bool(self.outputs) and not operand.halo))
            if machine.staged or not spec.storage.in_memory or operand.padded:
                if i in resident:
                    inputs += _resident(operand, spec, grid, page)
                else:
                    inputs += min(lanes if privates[-1] else depth, max(loads, 1)) * rounded(nbytes, page)
            repeats = loads // max(different, 1) if blocks else 0
            touched = _decoded(spec, operand, grid, walk, depth) * repeats
            read += touched
            if spec.chunks:  # of one in a shard it must first be seen where it lies
                chunks += (1 + spec.storage.sharded) * touched / (math.prod(spec.chunks) * spec.dtype.itemsize)
            if i in batches:  # how much shorter encoded chunks are nobody knows before
                upload += touched
                unpacking += loads * batches[i].seconds
                continue
            upload += _loaded(spec, operand, grid, walk, depth) * repeats
            known = machine.decoding(spec.storage.codec)
            if spec.chunks is not None and not spec.storage.raw:
                decode += math.ceil(touched / (known.host if known else 1))
        outputs = partials = 0
        stored = list[tuple[int, bool, bool]]()
        late = machine.staged or any(spec.storage.remote for spec in self.outputs)
        for part in op.parts:
            stores = math.prod(n for a, n in enumerate(counts) if a not in part.folded)
            stored += [(stores, False, False)] * len(part.numbers)
            # Only the last of the steps that are combined gives a result: of `depth` steps on their way, so many do.
            waiting = -(-depth // max(blocks // max(stores, 1), 1)) if late else lanes
            outputs += min(waiting, max(stores, 1)) * sum(rounded(out_bytes[i], page) for i in part.numbers)
        kept = op.holds(block)
        own = not (late or any(spec.storage.remote for spec in self.operands))
        values = chains(op, lanes, own and op.scan is None)
        if len(op.parts) == 1:
            partials = values * turns.together * rounded(kept, page) if kept else 0
        else:
            held = [(p.holds(block), p.alive(counts, walk)) for p in op.parts]
            partials = values * sum(alive * rounded(n, page) for n, alive in held if n)
        if isinstance(op, ProductNest) and kept > page and not op.tile_alone:
            partials += lanes * SPREAD * page
        held_bytes = sum(in_bytes) + sum(out_bytes)
        tile = self._tile(block, held_bytes)
        if tile != block and recycled(op, self.operands, self.outputs, privates) is not None:
            outputs = 0
        if op.views and own:  # see `Plan.lends`
            outputs = min(outputs, lanes * GATHERED)
        share = math.prod(tile) / max(math.prod(block), 1)
        volume = op.volume(tile)
        temporary = math.ceil(self.workspace * min(volume, self.strips[machine.staged] or volume))
        if share < 1:
            temporary += math.ceil(sum(out_bytes) * share)  # a tile's results, before they are in their places
        largest = max([*in_bytes, *out_bytes], default=0)
        spare = temporaries(temporary, largest, page)
        if temporary > page > ALIGNMENT and not op.folds:
            # Before there is a result, more is temporary by as much. That fits in its place if it is as large as they.
            sizes = {rounded(n, page) for n in out_bytes}
            spare += sum(rounded(n, page) for n in out_bytes) if sizes != {rounded(largest, page)} else 0
        ring_in = ring_out = None
        share_in = 1.0
        if machine.staged:
            share_in = upload / max(upload + written, 1)
            slow = any(s.storage.separate for s in self.outputs)  # a thread makes files slowly
            share_out = 1.0 if slow else 1 - share_in
            if isinstance(op, ProductNest):  # tiles are large, and come while the next one's panels are loaded
                share_in = share_out = BOTH
            elif op.folded:  # results are small
                share_in = 1.0
            pairs = zip(op.operands, self.operands, strict=True)
            spread = [(blocks, o.spreads(s.order, counts), o.wraps(s.order)) for o, s in pairs]
            ring_in = self._ring(self.operands, cuts_in, in_shapes, spread, share_in, loads=True)
            ring_out = self._ring(self.outputs, cuts_out, out_shapes, stored, share_out)
        staging = sum(r.device_bytes(page) for r in (ring_in, ring_out) if r)
        coding = Coding()
        if not machine.staged:
            free = self.budget - inputs - outputs - partials - lanes * spare - self.reserve
            coded_in = [*zip(cuts_in, in_shapes, self.operands, strict=True)]
            coded_out = [*zip(cuts_out, out_shapes, self.outputs, strict=True)]
            coding = best_coding(coded_in, coded_out, lanes, machine.lanes // lanes, free)
            staging = lanes * coding.nbytes

        times = math.prod(op.extents) / max(math.prod(block), 1)
        working = held_bytes + kept + math.ceil(self.workspace * op.volume(block))
        compute = int((2 * working - held_bytes - kept) * times)
        if isinstance(op, ProductNest) and op.single and machine.accumulates:
            compute = int(sum(in_bytes) * times)  # the tile is read and written while its elements are computed
        spilled = 0
        if machine.cache and working > machine.cache:  # a tile's temporaries stay there; its results come back to be
            again = sum(out_bytes) * (2 if outputs else 1)  # stored, and go to places of their own where they have some
            spilled = compute if tile == block else int((held_bytes + again) * times)
        encode = sum(s.nbytes for s in self.outputs if s.chunks is not None and not s.storage.separate)
        work = op.work if isinstance(op, ProductNest) else 0
        passing = tuple([n * (turns.together if a in op.across(counts) else 1) for a, n in enumerate(block)])
        sides = [head[0] if head else n for head, n in zip(turns.heads, block, strict=True)] if turns.heads else block
        first = sum(_bytes([o.shape(sides) for o in op.operands], self.operands))
        first += sum(self._awaited(i, passing, upload, work) for i in resident)
        ends = grid.region(tuple([n - 1 for n in counts])) if blocks else ()
        last = sum(_bytes([_grid.shape_of(o.region(ends)) for o in op.outputs], self.outputs)) if blocks else 0
        created = sum(s.nbytes for s in self.outputs if s.storage.fresh)
        separate = sum(s.nbytes for s in self.outputs if s.storage.separate)
        traffic = Traffic(read, upload, compute, written, written, decode, encode, first, last, created, separate)
        waits = blocks * coding.waits * LATENCY + chunks * machine.handling
        decoders: float = coding.decoders
        if ring_in and any(cut.through for cut in cuts_in):  # large chunks, of which few are read at once
            decoders = ring_in.threads / self._threads(share_in)
        seconds = estimate(machine, traffic, blocks, depth, spilled, work, decoders, coding.encoders, waits, unpacking)
        fixed, unpacked = self.reserve + shared_page(page), device_bytes(batches.values(), page)
        return Plan(
            op=op,
            operands=self.operands,
            outputs=self.outputs,
            machine=machine,
            budget=self.budget,
            block=block,
            tile=tile,
            walk=walk,
            depth=depth,
            cuts_in=cuts_in,
            cuts_out=cuts_out,
            ring_in=ring_in,
            ring_out=ring_out,
            memory=Projection(inputs, outputs, partials, lanes * spare, staging, fixed, unpacked),
            traffic=traffic,
            estimate=seconds,
            coders=coding.threads,
            resident=resident,
            turns=turns,
        )

    def _awaited(self, operand: int, block: Shape, upload: int, work: int) -> int:
        """Bytes that a product waits for: a resident operand is loaded while it first passes, computed or not."""
        axes, own = self.op.operands[operand].axes, self.operands[operand].nbytes
        sides = zip(block, self.op.extents, strict=True)
        share = math.prod(min(s / n, 1) for a, (s, n) in enumerate(sides) if a not in axes)
        loaded = own + (upload - own) * share
        return max(0, math.ceil(loaded - work * share / self.machine.products * self.machine.upload))

    def _threads(self, share: float) -> int:
        """Threads that a direction would have: half of all at least, for what is rarely moved comes all at once."""
        return math.ceil(self.machine.threads * max(share, 0.5))

    def _tile(self, block: Shape, held_bytes: int) -> Shape:
        """Largest part of a block whose working set stays in a core's cache, cut along the free axes only."""
        size, cache = math.prod(block), self.machine.cache
        if self.machine.staged or not cache or not size or not self.tiled:
            return block
        per_element = max(held_bytes / size + self.workspace, 1e-9)
        if cache >= per_element * size:
            return block
        units = [1 if a in self.tiled else n for a, n in enumerate(block)]
        sides = zip(block, _grid.fit(block, units, self.order, int(TILE * cache / per_element)), strict=True)
        return tuple([-(-n // _grid.count(n, side)) for n, side in sides])  # as many as need be, and none a mere rest

    def _ring(
        self,
        specs: Sequence[ArraySpec],
        cuts: Sequence[Cut],
        shapes: Sequence[Shape],
        moved: Sequence[tuple[int, bool, bool]],
        share: float,
        *,
        loads: bool = False,
    ) -> Ring | None:
        """Ring for one direction, which moves this `share` of all bytes.

        `moved` says of each array how many blocks of it are, whether its pieces are scattered by its halo, and whether
        some are of short rows.
        """
        if not specs:
            return None
        largest = pieces = room = decoded = 0
        landing = grouped = False
        for spec, cut, shape, (blocks, apart, short) in zip(specs, cuts, shapes, moved, strict=True):
            if cut.batch is not None:
                nbytes = cut.batch.piece
                if cut.batch.nbytes > self.machine.most:
                    room, nbytes = max(room, nbytes), self.machine.piece
                largest = max(largest, nbytes)
                grouped = grouped or cut.batch.group > 1
                pieces += blocks * -(-cut.batch.number // cut.batch.group)
                continue
            box = cut.box(shape)
            # Not the full block's piece: a ragged block, narrower, may be cut into larger ones.
            nbytes = min(cut.limit, math.prod(shape)) * spec.dtype.itemsize
            if cut.through:
                decoded = max(decoded, cut.decoded(spec, shape))
                through = cut.through * spec.dtype.itemsize
                if nbytes > through:
                    room, nbytes = max(room, nbytes), through
            largest = max(largest, nbytes)
            pieces += blocks * math.prod(_grid.count(n, b) for n, b in zip(shape, box, strict=True))
            if apart or cut.scatters(shape):
                landing = landing or short or cut.lands(shape, spec.dtype.itemsize)
        limit = self.machine.host_limit
        if landing:  # a tight budget is for blocks: fewer threads, then
            limit = min(limit, self.budget // 8)
        scratch = largest if landing else 0  # where any pieces land, those of other arrays' ragged blocks may too
        threads = self._threads(share)
        if room or decoded:  # that memory is in no budget; by fewer than two nothing would be decoded side by side
            threads = min(threads, max(2, self.machine.host_limit // (room + decoded)))
        # Of large chunks one a thread stays in the cache, and other threads' are copied while it is filled.
        slots = 1 if loads and not (grouped or room) and 2 * largest > 3 * self.machine.piece else self.machine.slots
        return Ring.sized(pieces, largest, threads, slots, limit, scratch, room)


def _bytes(shapes: Sequence[Shape], specs: Sequence[ArraySpec]) -> list[int]:
    """Bytes of a block of each array."""
    return [math.prod(n) * s.dtype.itemsize for n, s in zip(shapes, specs, strict=True)]


def _resident(operand: Operand, spec: ArraySpec, grid: Grid, page: int) -> int:
    """Bytes of all blocks of an operand, each in memory of its own."""
    sides = [grid.sides(a) if a in operand.axes else {1: 1} for a in range(len(grid.extents))]
    return sum(
        math.prod(times) * rounded(math.prod(operand.shape(shape)) * spec.dtype.itemsize, page)
        for shape, times in (zip(*chosen, strict=True) for chosen in itertools.product(*(s.items() for s in sides)))
    )
