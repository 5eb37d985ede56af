"""Blocks moved through a ring of pinned buffers, for a device with memory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from chunkflow.core.grid import Region, Shape, shape_of
from chunkflow.core.pieces import placed
from chunkflow.devices.protocol import Block, Device, Edge, Lane, Latch, Pool
from chunkflow.engine.buffers import device_buffers
from chunkflow.engine.staged.device_decode import DeviceDecoder
from chunkflow.engine.staged.encoded_upload import EncodedUploadWorkers
from chunkflow.engine.staged.workers import DownloadWorkers, Pieces
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Loaded, Result, Transfer
from chunkflow.planner.decode_batch import keeps_chunks
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.planner.transfer_cut import Cut
from chunkflow.stores.caches.decoded_chunks import DecodedChunks
from chunkflow.stores.protocol import Sink, Source, boxes_of, keep_chunks, make_pages


class _MovedPart(NamedTuple):
    """A part of a block: its region of the array, where it begins in the block, its pieces, and their places there."""

    region: Region
    start: Shape
    pieces: Pieces
    places: Pieces

    @classmethod
    def of(cls, region: Region, start: Shape, cut: Cut, shape: Shape) -> _MovedPart:
        """Of a block of this `shape`."""
        pieces = cut.pieces(region)
        whole = shape_of(region) == shape
        return cls(region, start, pieces, pieces if whole else placed(pieces, start, shape, cut.order))


class RingFeeder:
    """Loads blocks through the pinned ring."""

    def __init__(self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_in is not None
        self.ahead = plan.ahead
        self._plan, self._sources, self._device, self._pool = plan, sources, device, pool
        threads = [1 if i in plan.batches else plan.ring_in.threads for i in range(len(plan.operands))]
        self._buffers = [device_buffers(plan, device, i, number) for i, number in enumerate(threads)]
        for source, spec, operand, cut in zip(sources, plan.operands, plan.op.operands, plan.cuts_in, strict=True):
            if cut.through or keeps_chunks(spec, operand, plan.grid, plan.walk, plan.depth):
                keep_chunks(source, DecodedChunks())
        self._decoder: DeviceDecoder | None = None
        try:
            for buffer in itertools.chain.from_iterable(self._buffers):  # before the function takes their memory
                buffer.fill(pool)
            if plan.batches:
                self._decoder = DeviceDecoder(plan, sources, device, pool, trace)
            self._workers = EncodedUploadWorkers(device, pool, plan.ring_in, trace)
        except BaseException:
            self._release()
            raise

    def load(self, step: Step, operand: int, lane: Lane) -> Loaded:
        """Publish the pieces of an operand's block."""
        buffers = self._buffers[operand]
        buffer = buffers[step.loads[operand] % len(buffers)]
        region = step.sources[operand]
        cut, spec = self._plan.cuts_in[operand], self._plan.operands[operand]
        buffer.renew(self._device, self._pool)
        block = buffer.block(cut.order)
        buffer.place(block, spec.dtype, shape_of(region), self._pool)
        readers, buffer.readers, buffer.fillers = buffer.readers, [], set()
        if operand in self._plan.batches:
            assert self._decoder is not None
            return self._decoder.load(step, operand, buffer, block, readers, self._workers)
        transfers = []
        for part in self._parts(step, operand):
            share = self._workers.share(self._sources[operand], part.region, block, part.pieces, part.places)
            transfer = Transfer(
                self._sources[operand],
                tuple([s.start - at for s, at in zip(part.region, part.start, strict=True)]),
                block,
                self._device.latch(1),
                readers,
                buffer=buffer,
            )
            self._workers.publish(transfer, share, part.places)
            transfers.append(transfer)
        return Loaded(block, region, buffer, transfers, after=[*readers])

    def _parts(self, step: Step, operand: int) -> Iterator[_MovedPart]:
        """Parts of a block that are moved apart, such as boxes of rearranged arrays."""
        cut, source = self._plan.cuts_in[operand], self._sources[operand]
        shape = shape_of(step.sources[operand])
        for region, start in step.parts(operand, self._plan.op.operands[operand]):
            found = [_MovedPart.of(region, start, cut, shape)]
            if self._workers.jobs is not None and cut.units is None and len(boxes := boxes_of(source, region)) > 1:
                starts = (
                    tuple([b.start - s.start + at for b, s, at in zip(box, region, start, strict=True)])
                    for box in boxes
                )
                apart = [_MovedPart.of(box, at, cut, shape) for box, at in zip(boxes, starts, strict=True)]
                scattered = any(place.lands(1, landing=False) for part in apart for place in part.places)
                found = found if scattered else apart
            yield from found

    def finish(self) -> None:
        """Say that no block follows: threads may end."""
        self._workers.finish()

    def close(self) -> None:
        """Drop what is queued, finish pending copies, and give threads and memory back."""
        self._workers.stopping = True
        try:
            self._workers.close()
        finally:
            self._release()

    def _release(self) -> None:
        try:
            if self._decoder is not None:
                self._decoder.close()
        finally:
            for buffer in itertools.chain.from_iterable(self._buffers):
                buffer.release(self._pool)


class RingDrainer:
    """Stores results through the pinned ring."""

    def __init__(self, plan: Plan, sinks: Sequence[Sink], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_out is not None
        self._plan, self._sinks, self._device, self._pool = plan, sinks, device, pool
        make_pages(sinks)
        self._workers = DownloadWorkers(device, pool, plan.ring_out, trace)

    def store(self, result: Result, lane: Lane) -> None:
        """Publish the pieces of a result."""
        assert result.pending is not None
        result.arrays = result.pending.result()
        for array in result.arrays:
            self._pool.adopt(array)
        if not result.step.stores:
            result.wait = partial(result.done.synchronize, Edge.STORED)
            return
        found = []
        for (i, region), array in zip(result.step.stores, result.arrays, strict=True):
            cut, sink, start = self._plan.cuts_out[i], self._sinks[i], tuple([side.start for side in region])
            block, pieces = Block(array, cut.order, result), cut.pieces(region) if array.size else ()
            share = self._workers.share(sink, region, block, pieces, pieces)
            transfer = Transfer(sink, start, block, self._device.latch(1), (result.done,), result=result)
            found.append((transfer, share, pieces))
        stored: list[Latch] = []

        def wait() -> None:
            for latch in stored:
                latch.wait(Edge.STORED)

        result.wait = wait
        result.blocks += [transfer.block for transfer, _, _ in found]
        for transfer, share, pieces in found:
            self._workers.publish(transfer, share, pieces)
            stored.append(transfer.left)

    def finish(self) -> None:
        """Say that no result follows: threads may end."""
        self._workers.finish()

    def close(self) -> None:
        """Store what is queued, and give threads and memory back."""
        self._workers.close()
