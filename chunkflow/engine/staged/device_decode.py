"""Blocks whose chunks are decoded on the device: all of a block in one batch, which takes as long as a single chunk.

Upload workers (`chunkflow.engine.staged.encoded_upload`) copy encoded chunks to a buffer. When all uploads of a block
are enqueued, the chunks are decoded on a lane of its own, unshuffled if need be, and copied to their places in the
block. Meanwhile the next block's chunks are uploaded to a second buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np

from chunkflow.core.encoded_chunks import FACTS, FILLED, ROWS, Packed, Tabled
from chunkflow.core.grid import Shape, describe, permuted, shape_of
from chunkflow.devices.protocol import Block, Decoder, Device, Edge, Event, Lane, Pending, Pool, shaped
from chunkflow.engine.buffers import DeviceBuffer
from chunkflow.engine.staged.encoded_upload import ChunkBox, EncodedTransfer, EncodedUploadWorkers, run
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Loaded
from chunkflow.errors import ReadError
from chunkflow.planner.decode_batch import TURNS, Batch, shared
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Source
from chunkflow.system.interrupts import Since


class DecodeBuffer:
    """A buffer for the encoded chunks of a block, and the table with the place and the outcome of each chunk."""

    def __init__(self, batch: Batch, device: Device, pool: Pool, fillers: int, timed: bool) -> None:
        self.batch = batch
        self.encoded = DeviceBuffer(batch.encoded, [device.event() for _ in range(fillers)])
        self.table = DeviceBuffer(batch.table, [])
        self.host = pool.host_buffers(1, batch.table)
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.tabled: Tabled  # of the latest batch
        self.facts = 0  # offset of the chunks' layouts in the table, in bytes
        self.order = 0  # place in the sequence of batches
        self.transfer: EncodedTransfer | None = None
        self.pending: Pending[None] | None = None
        for buffer in (self.encoded, self.table):
            device.host_writes(buffer)

    def fill(self, pool: Pool) -> None:
        """Take the memory."""
        for buffer in (self.encoded, self.table):
            buffer.fill(pool)

    def numbers(self) -> np.ndarray:
        """The table as the host sees it."""
        return self.host[0].array[: self.batch.table].view(np.uint64)

    def release(self, pool: Pool) -> None:
        """Give the memory back."""
        self.transfer = self.pending = None
        self.encoded.release(pool)
        self.table.release(pool)
        pool.release_host(self.host)


class DecodedBlock(Loaded):
    """A block that is decoded on the device, once the uploads of all its chunks are enqueued."""

    __slots__ = ("decode",)

    decode: partial[Pending[None]] | None

    def enqueued(self) -> None:
        super().enqueued()
        if self.decode is not None:
            decode, self.decode = self.decode, None
            self.calls.append(decode())


class DeviceDecoder:
    """Decodes blocks on a lane of its own, in order. A loop of the caller's gets only blocks that are checked."""

    def __init__(self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_in is not None
        self._plan, self._sources, self._device, self._pool, self._trace = plan, sources, device, pool, trace
        self._since, self._batches = Since(), itertools.count(1)
        self._at_once = not plan.outputs
        self._decoded, self._plain, self._temporary = (DeviceBuffer(n, []) for n in shared(plan.batches.values()))
        self._decoders: dict[int, Decoder] = {}
        self._buffers: dict[int, list[DecodeBuffer]] = {}
        self._lane: Lane | None = None
        try:
            for i, batch in plan.batches.items():
                decoder = device.decoder(batch.codec)
                assert decoder is not None
                self._decoders[i], self._buffers[i] = decoder, []
                for _ in range(TURNS):
                    self._buffers[i].append(DecodeBuffer(batch, device, pool, plan.ring_in.threads, trace.timed))
                    self._buffers[i][-1].fill(pool)
            for shared_buffer in (self._decoded, self._plain, self._temporary):
                device.host_writes(shared_buffer)
                shared_buffer.fill(pool)
            self._lane = device.lane()
        except BaseException:
            self.close()
            raise

    def load(
        self,
        step: Step,
        operand: int,
        target: DeviceBuffer,
        block: Block,
        readers: list[Event],
        workers: EncodedUploadWorkers,
    ) -> Loaded:
        """Let the workers upload a block's chunks, to be decoded into `target` after its present `readers`."""
        buffer = self._buffers[operand][step.loads[operand] % len(self._buffers[operand])]
        spec, batch = self._plan.operands[operand], buffer.batch
        assert spec.chunks is not None
        parts: list[ChunkBox] = []
        indices: list[Shape] = []
        for region, place in step.parts(operand, self._plan.op.operands[operand]):
            if all(shape_of(region)):
                parts.append(ChunkBox(region, place, spec.chunks, len(indices)))
                indices += parts[-1].indices
        assert len(indices) <= batch.number
        encoded = buffer.encoded.block((0,))
        buffer.encoded.place(encoded, np.dtype(np.uint8), (buffer.encoded.nbytes,), self._pool)
        pieces = tuple([run(n, min(batch.group, len(indices) - n)) for n in range(0, len(indices), batch.group)])
        transfer = EncodedTransfer(
            self._sources[operand],
            (),
            encoded,
            self._device.latch(1),
            buffer.encoded.readers,
            buffer=buffer.encoded,
        )
        transfer.indices, transfer.parts, transfer.operand, transfer.order = indices, parts, operand, block.order
        transfer.target, transfer.readers, transfer.plain = block, readers, []
        places = transfer.store.places(indices)
        how = {"since": transfer.store.since, "checked": transfer.store.checked}
        transfer.packed = Packed(places, batch.codec, batch.nbytes, batch.items, batch.room, **how)
        buffer.encoded.readers, buffer.encoded.fillers = [], set()
        # Decoding writes the whole buffer, so it waits for all earlier work there, which is listed in `after`.
        loaded = DecodedBlock(block, step.sources[operand], target, [transfer], after=transfer.readers)
        loaded.decode = partial(self._decode, buffer, transfer, target)
        workers.publish(transfer, workers.share_packed(transfer, batch.group), pieces)
        return loaded

    def _decode(self, buffer: DecodeBuffer, transfer: EncodedTransfer, target: DeviceBuffer) -> Pending[None]:
        """Enqueue the decoding of a block, after the uploads of its chunks."""
        self._settle(buffer)
        lane = self._lane
        assert lane is not None
        lane.wait([buffer.encoded.uploaded[filler] for filler in sorted(buffer.encoded.fillers)], Edge.UPLOADED)
        lane.wait(transfer.readers, Edge.OVERWRITE)
        if buffer.begun is not None:
            lane.record(buffer.begun)
        used = self._tabulate(buffer, transfer)
        table = Block(buffer.table.memory, (0,), buffer.table)
        lane.upload(buffer.host[0], table, run(0, used), None)
        buffer.order, buffer.transfer = next(self._batches), transfer
        buffer.pending = pending = lane.call(
            partial(self._unpack, buffer, transfer),
            reads=(buffer.encoded,),
            writes=(buffer.table, self._decoded, self._plain, self._temporary, target),
        )
        lane.record(target.uploaded[0])
        target.fillers = {0}
        number = buffer.tabled.decoded
        if number:
            lane.download(table, run((ROWS - FILLED) * number * 8, FILLED * number * 8), buffer.host[0], None)
        lane.record(buffer.done)
        buffer.encoded.readers = [buffer.done]
        if self._at_once:
            self._settle(buffer)
        return pending

    def _tabulate(self, buffer: DecodeBuffer, transfer: EncodedTransfer) -> int:
        """Fill the table of a batch; return the bytes of it that are used."""
        buffer.host[0].pin()
        self._device.host_writes(buffer.host[0].owner)
        begin, there = (self._device.address(found.memory) for found in (buffer.encoded, self._decoded))
        together = buffer.batch.shuffled
        buffer.tabled = tabled = transfer.packed.tabulate(buffer.numbers(), begin, there, together=together)
        buffer.facts = (ROWS * tabled.decoded + tabled.items) * 8
        return buffer.facts + FACTS * transfer.packed.number * 8 if together else ROWS * tabled.decoded * 8

    def _unpack(self, buffer: DecodeBuffer, transfer: EncodedTransfer) -> None:
        """Decode a batch and copy what is wanted of each chunk to its place. Called by the lane."""
        batch, block, dtype = buffer.batch, transfer.target.array, transfer.target.array.dtype
        device, number, chunks = self._device, buffer.tabled.decoded, transfer.packed.number
        table, decoded = device.address(buffer.table.memory), self._decoded.memory
        with self._pool.active():
            if number:
                temporary = device.address(self._temporary.memory)
                self._decoders[transfer.operand](number, number, table, temporary, batch.temporary)
            if len(transfer.plain) < chunks:
                if batch.shuffled:
                    assert device.unshuffle is not None
                    decoded = self._plain.memory
                    words = shaped(decoded, np.dtype(np.uint32), (chunks * batch.nbytes // 4,), None)
                    device.unshuffle(table + ROWS * number * 8, table + buffer.facts, batch.nbytes, words)
                whole = shaped(decoded, dtype, (batch.number, batch.nbytes // dtype.itemsize), None)
                for part in transfer.parts:
                    part.spread(whole, block, transfer.order)
            for which, start in transfer.plain:
                region, place = transfer.chunk(which)
                shape, flat = permuted(shape_of(region), transfer.order), buffer.encoded.memory[start:]
                block[(*place, ...)] = shaped(flat, dtype, shape, transfer.target.inverse)

    def _settle(self, buffer: DecodeBuffer) -> None:
        """Wait until a buffer's latest batch has ended, if there was one, and raise if a chunk could not be decoded."""
        transfer, buffer.transfer = buffer.transfer, None
        pending, buffer.pending = buffer.pending, None
        if transfer is None or pending is None:
            return
        buffer.done.synchronize(Edge.LANDED)
        pending.result()
        if buffer.begun is not None:
            nbytes = transfer.packed.number * buffer.batch.nbytes
            self._trace.span("decode", buffer.begun.seconds(), buffer.done.seconds(), nbytes)
        self._device.host_reads(buffer.host[0].owner)
        tabled, number = buffer.tabled, buffer.tabled.decoded
        sizes, statuses, sums = buffer.numbers()[: FILLED * number].reshape(FILLED, number)
        results = statuses.view(np.int32)[:number]
        wrong = (results != 0) | (sizes != tabled.sizes.astype(np.uint64))
        wrong |= (tabled.checksums >= 0) & (sums.view(np.uint32)[:number] != tabled.checksums)
        bad = np.flatnonzero(wrong)
        if bad.size:
            self._refuse(transfer, int(np.searchsorted(tabled.ends, bad[0], "right")), int(results[bad[0]]))

    def _refuse(self, transfer: EncodedTransfer, which: int, status: int) -> None:
        """Raise the error that the host finds in a chunk, or say that it finds none."""
        source, spec = self._sources[transfer.operand], self._plan.operands[transfer.operand]
        region, _ = transfer.chunk(which)
        source.read(region, np.empty(shape_of(region), spec.dtype))
        raise ReadError(
            f"cannot read {describe(region)} of {spec.name}: the device's {spec.storage.codec} decoder fails on the "
            f"chunk {transfer.indices[which]} (status {status}), and the host's does not: CHUNKFLOW_NVCOMP=0 decodes "
            "all chunks on the host",
            path=spec.name,
            region=region,
        )

    def close(self) -> None:
        """Finish what is enqueued, check it unless the run has failed already, and give everything back."""
        buffers = sorted(itertools.chain.from_iterable(self._buffers.values()), key=lambda buffer: buffer.order)
        try:
            if self._lane is not None:
                lane, self._lane = self._lane, None
                lane.close()
                if not self._since.failed:
                    for buffer in buffers:
                        self._settle(buffer)
        finally:
            for buffer in buffers:
                buffer.release(self._pool)
            for shared_buffer in (self._decoded, self._plain, self._temporary):
                shared_buffer.release(self._pool)
            self._buffers.clear()
