"""Blocks of a device that shares the host's memory: the lane that computes a block reads and stores it too.

Nothing is staged and nothing handed from thread to thread, so a block stays in one core's cache. Sources
in memory are not even read: the function gets a read-only view.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import partial

from chunkflow.devices.base import Block, Device, Edge, Lane, Pool
from chunkflow.grid import shape_of, shift
from chunkflow.plan import Plan, Step
from chunkflow.staging import Loaded, Result, Slot, make_slots
from chunkflow.stores.base import Sink, Source
from chunkflow.trace import Trace


class DirectFeeder:
    """Reads blocks on the lanes that will compute them."""

    def __init__(self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace) -> None:
        self.ahead = 1  # a lane reads a block when it is about to compute it
        self._plan, self._sources, self._pool, self._trace = plan, sources, pool, trace
        # Decoding takes memory of its own, at other times than the block: each is given back in turn.
        self._fleeting = [cut.units is not None and plan.private(i) for i, cut in enumerate(plan.cuts_in)]
        self._slots: list[list[Slot]] = [
            [] if spec.in_memory else make_slots(plan, device, pool, i, 1) for i, spec in enumerate(plan.operands)
        ]

    def load(self, step: Step, operand: int, lane: Lane) -> Loaded:
        """Hand out a view, or enqueue the read of an operand's block."""
        region, source = step.sources[operand], self._sources[operand]
        spec, slots = self._plan.operands[operand], self._slots[operand]
        if not slots:
            return Loaded(Block(source.view(region), spec.order, source))
        slot = slots[step.loads[operand] % len(slots)]
        block = slot.block(spec.order)
        start = [side.start for side in region]
        for event in slot.readers:
            lane.wait(event, Edge.OVERWRITE)
        slot.readers = []

        def read() -> None:
            begin = time.perf_counter()
            slot.place(block, spec.dtype, shape_of(region), self._pool)
            for piece in self._plan.cuts_in[operand].in_units(region):
                source.read(shift(piece.region, start), block.array[(*piece.region, ...)])
            block.array.flags.writeable = False
            self._trace.span("read", begin, time.perf_counter(), block.array.nbytes)

        pending = lane.call(read, writes=(slot,))
        lane.record(slot.uploaded[0])
        slot.fillers = {0}
        return Loaded(block, slot, pending=pending, fleeting=self._fleeting[operand])

    def close(self) -> None:
        """Nothing runs here: the lanes are the engine's."""
        for slot in itertools.chain.from_iterable(self._slots):
            slot.release(self._pool)


class DirectDrainer:
    """Stores results on the lanes that computed them."""

    def __init__(self, plan: Plan, sinks: Sequence[Sink], device: Device, pool: Pool, trace: Trace) -> None:
        self._plan, self._sinks, self._device, self._pool, self._trace = plan, sinks, device, pool, trace

    def store(self, result: Result, lane: Lane) -> None:
        """Enqueue the writing of a result."""
        assert result.pending is not None
        stored = self._device.event()
        result.wait = partial(stored.synchronize, Edge.STORED)

        def write() -> None:
            pending = result.pending
            assert pending is not None
            try:
                result.arrays = pending.result()
                for array in result.arrays:
                    self._pool.adopt(array)
                cuts = self._plan.cuts_out
                for sink, cut, region, array in zip(self._sinks, cuts, result.step.stores, result.arrays, strict=False):
                    begin, start = time.perf_counter(), [side.start for side in region]
                    for piece in cut.in_units(region):
                        sink.write(shift(piece.region, start), array[(*piece.region, ...)])
                    self._trace.span("write", begin, time.perf_counter(), array.nbytes)
            except BaseException as error:
                result.error = error
            finally:
                # Earlier blocks may still be on other lanes: what waits for them to land must hold no memory.
                result.release(self._pool)

        lane.wait(result.done, Edge.COMPUTED)
        lane.call(write, reads=(result,))
        lane.record(stored)

    def close(self) -> None:
        """Nothing runs here."""
