"""Loading and storing where the device shares the host's memory: one lane reads, computes and stores a block.

Nothing is staged or handed from thread to thread, so a block stays in the cache of one core. Of a source in memory
nothing is read: the function gets a read-only view. What is copied to memory is read to where it belongs. Remote arrays
have lanes of their own, which fetch the next block and store the last one while a lane computes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from chunkflow.core.grid import Region, shape_of, shift
from chunkflow.core.nest import Operand
from chunkflow.core.pieces import Piece
from chunkflow.core.spec import ArraySpec
from chunkflow.devices.protocol import Block, Device, Edge, Lane, Pool
from chunkflow.engine.buffers import DeviceBuffer, device_buffers
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Loaded, Result
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.caches.fetch_buffer import Kept, keeping
from chunkflow.stores.protocol import Sink, Source, keep_chunks, place_of
from chunkflow.system.thread_pool import in_threads


class _Coders:
    """Threads that encode or decode the chunks of a block side by side, where there are fewer lanes than cores.

    A lane and its helpers are always as many threads as the plan has `coders`.
    """

    def __init__(self, plan: Plan, kept: Kept | None = None) -> None:
        self._number = plan.coders
        self._keeping = nullcontext if kept is None else partial(keeping, kept)

    def each(self, work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
        """Do the work on every piece; see `in_threads`."""

        def one(piece: Piece) -> None:
            with self._keeping():
                work(piece)

        in_threads(one, pieces, self._number)


def _apart(plan: Plan, specs: Sequence[ArraySpec], device: Device) -> list[Lane]:
    """Further lanes, beside those that compute, if any of the arrays is remote."""
    return [device.lane() for _ in range(plan.lanes)] if any(spec.storage.remote for spec in specs) else []


def _beyond(region: Region, nest: Operand) -> bool:
    """Whether a block reaches beyond the array's edges."""
    return bool(nest.halo) and any(s.start < 0 or s.stop > n for s, n in zip(region, nest.extents, strict=True))


def _place(plan: Plan, sinks: Sequence[Sink], step: Step) -> np.ndarray | None:
    """Where the result of a step belongs, if its block is to be read there."""
    if not plan.in_place:
        return None
    ((number, region),) = step.stores
    return place_of(sinks[number], region)


class DirectFeeder:
    """Reads blocks on the lanes that will compute them."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[Source],
        device: Device,
        pool: Pool,
        trace: Trace,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.ahead = 1  # a lane reads a block when it is about to compute it
        self._plan, self._sources, self._device, self._pool, self._trace = plan, sources, device, pool, trace
        self._sinks = sinks
        self._lanes = _apart(plan, plan.operands, device)
        # If several arrays have codecs, each needs memory at another time, so it is freed after each block. If there is
        # only one, its memory is kept, for its blocks and its encoded chunks.
        alone = sum(cut.units is not None for cut in (*plan.cuts_in, *plan.cuts_out)) == 1
        self._coders = _Coders(plan, Kept() if alone else None)
        self._private = [plan.private(i) for i in range(len(plan.operands))]
        self._fleeting = [
            cut.units is not None and not alone and own for cut, own in zip(plan.cuts_in, self._private, strict=True)
        ]
        self._chunks = [DecodedChunks(1) for _ in plan.kept]
        for i, chunks in zip(sorted(plan.kept), self._chunks, strict=True):
            keep_chunks(sources[i], chunks)
        self._buffers: list[list[DeviceBuffer]] = [
            [] if spec.storage.in_memory and not plan.op.operands[i].padded else device_buffers(plan, device, i, 1)
            for i, spec in enumerate(plan.operands)
        ]

    def load(self, step: Step, operand: int, lane: Lane) -> Loaded:
        """Return a view, or enqueue the read of an operand's block."""
        region, source = step.sources[operand], self._sources[operand]
        spec, buffers = self._plan.operands[operand], self._buffers[operand]
        nest = self._plan.op.operands[operand]
        if spec.storage.in_memory and not _beyond(region, nest):
            return Loaded(Block(source.view(region), spec.order, source), region)
        if (place := _place(self._plan, self._sinks, step)) is not None:
            block = Block(place, spec.order, object())
            pending = lane.call(partial(self._read, step, operand, block), writes=(block.owner,))
            return Loaded(block, region, pending=pending)
        if spec.storage.remote:
            lane = self._lanes[step.loads[operand] % len(self._lanes)]
        buffer = buffers[step.lane if self._private[operand] else step.loads[operand] % len(buffers)]
        buffer.renew(self._device, self._pool)
        block = buffer.block(spec.order)
        lane.wait(buffer.readers, Edge.OVERWRITE)
        buffer.readers = []
        pending = lane.call(partial(self._read, step, operand, block, buffer), writes=(buffer,))
        lane.record(buffer.uploaded[0])
        buffer.fillers = {0}
        return Loaded(block, region, buffer, pending=pending, fleeting=self._fleeting[operand])

    def _read(self, step: Step, operand: int, block: Block, buffer: DeviceBuffer | None = None) -> None:
        """Read a block, into the buffer if one is given."""
        begin = time.perf_counter()
        spec, nest, source = self._plan.operands[operand], self._plan.op.operands[operand], self._sources[operand]
        if buffer is not None:
            buffer.place(block, spec.dtype, shape_of(step.sources[operand]), self._pool)
        for part, place in step.parts(operand, nest):
            start = [side.start for side in part]

            def read_piece(piece: Piece, start: Sequence[int] = start, into: Sequence[int] = place) -> None:
                source.read(shift(piece.region, start), block.array[(*shift(piece.region, into), ...)])

            self._coders.each(read_piece, self._plan.cuts_in[operand].in_units(part))
        if not nest.halo:
            block.array.flags.writeable = False
        nbytes = step.nbytes(operand, nest, spec.dtype.itemsize)
        self._trace.span("read", begin, time.perf_counter(), nbytes, step.number)

    def finish(self) -> None:
        """Nothing to do at the end of the blocks."""

    def close(self) -> None:
        """Give everything back. The computing lanes have finished."""
        for lane in self._lanes:
            lane.close()
        for chunks in self._chunks:
            chunks.clear()
        for buffer in itertools.chain.from_iterable(self._buffers):
            buffer.release(self._pool)


class DirectDrainer:
    """Stores results on the lanes that computed them."""

    def __init__(self, plan: Plan, sinks: Sequence[Sink], device: Device, pool: Pool, trace: Trace) -> None:
        self._plan, self._sinks, self._device, self._pool, self._trace = plan, sinks, device, pool, trace
        self._coders, self._lanes = _Coders(plan), _apart(plan, plan.outputs, device)

    def store(self, result: Result, lane: Lane) -> None:
        """Enqueue the writing of a result."""
        assert result.pending is not None
        stored = self._device.event()
        result.stored, result.wait = stored, partial(stored.synchronize, Edge.STORED)

        def write() -> None:
            pending = result.pending
            assert pending is not None
            try:
                arrays = pending.result()
                if not self._plan.lends or arrays[0].base is None:  # else they are views of a buffer
                    result.arrays = arrays
                for array in result.arrays:
                    self._pool.adopt(array)
                cuts = self._plan.cuts_out
                for (i, region), array in zip(result.step.stores, arrays, strict=True):
                    if _place(self._plan, self._sinks, result.step) is not None:
                        continue  # it was read there
                    begin, start = time.perf_counter(), [side.start for side in region]

                    def write_piece(
                        piece: Piece,
                        sink: Sink = self._sinks[i],
                        start: Sequence[int] = tuple(start),
                        array: Any = array,
                    ) -> None:
                        sink.write(shift(piece.region, start), array[(*piece.region, ...)])

                    self._coders.each(write_piece, cuts[i].in_units(region))
                    self._trace.span("write", begin, time.perf_counter(), array.nbytes, result.step.number)
            except BaseException as error:
                result.error = error
            finally:
                # Earlier blocks may still be on other lanes: a result that waits for them must hold no memory.
                result.release(self._pool)

        if self._lanes:
            lane = self._lanes[result.step.lane]
        lane.wait([result.done], Edge.COMPUTED)
        lane.call(write, reads=(result,))
        lane.record(stored)

    def finish(self) -> None:
        """Nothing to do at the end of the results."""

    def close(self) -> None:
        """Give the threads back. The computing lanes have finished."""
        for lane in self._lanes:
            lane.close()
