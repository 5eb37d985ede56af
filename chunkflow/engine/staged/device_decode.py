"""Blocks whose chunks are decoded on the device, all of a block as one batch, for it takes as long for one as for many.

Feeders (`chunkflow.engine.staged.encoded_upload`) upload encoded chunks to a buffer. When all of a block's are on their
way they are decoded on a lane of its own, put together again if they were shuffled, and put in their places in the
block, while the next block's chunks come to a second buffer.
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
from chunkflow.engine.staged.encoded_upload import ChunkBox, EncodedFeeders, EncodedTransfer, run
from chunkflow.engine.trace import Trace
from chunkflow.engine.transfer import Loaded
from chunkflow.errors import ReadError
from chunkflow.planner.decode_batch import TURNS, Batch, shared
from chunkflow.planner.plan import Plan
from chunkflow.planner.step import Step
from chunkflow.stores.protocol import Source
from chunkflow.system.interrupts import Since


class DecodeBuffer:
    """A buffer for a block's encoded chunks, and the table that says where each lies and what came of it."""

    def __init__(self, batch: Batch, device: Device, pool: Pool, fillers: int, timed: bool) -> None:
        self.batch = batch
        self.slot = DeviceBuffer(batch.encoded, [device.event() for _ in range(fillers)])
        self.table = DeviceBuffer(batch.table, [])
        self.host = pool.host_buffers(1, batch.table)
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.tabled: Tabled  # of the latest batch
        self.facts = 0  # where in the table, in bytes, the chunks' layouts are
        self.order = 0  # of the batches
        self.transfer: EncodedTransfer | None = None
        self.pending: Pending[None] | None = None
        for slot in (self.slot, self.table):
            device.host_writes(slot)

    def fill(self, pool: Pool) -> None:
        """Take the memory."""
        for slot in (self.slot, self.table):
            slot.fill(pool)

    def numbers(self) -> np.ndarray:
        """The table as the host sees it."""
        return self.host[0].array[: self.batch.table].view(np.uint64)

    def release(self, pool: Pool) -> None:
        """Give the memory back."""
        self.transfer = self.pending = None
        self.slot.release(pool)
        self.table.release(pool)
        pool.release_host(self.host)


class UnpackedBlock(Loaded):
    """A block that is decoded on the device, as soon as all of its chunks are on their way."""

    __slots__ = ("decode",)

    decode: partial[Pending[None]] | None

    def enqueued(self) -> None:
        """See `Loaded.enqueued`."""
        super().enqueued()
        if self.decode is not None:
            decode, self.decode = self.decode, None
            self.calls.append(decode())


class DeviceDecoder:
    """Decodes blocks on a lane of its own, in order. A loop of the caller's gets only what was seen to be right."""

    def __init__(self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_in is not None
        self._plan, self._sources, self._device, self._pool, self._trace = plan, sources, device, pool, trace
        self._since, self._batches = Since(), itertools.count(1)
        self._at_once = not plan.outputs
        self._decoded, self._plain, self._temporary = (DeviceBuffer(n, []) for n in shared(plan.batches.values()))
        self._decoders: dict[int, Decoder] = {}
        self._turns: dict[int, list[DecodeBuffer]] = {}
        self._lane: Lane | None = None
        try:
            for i, batch in plan.batches.items():
                decoder = device.decoder(batch.codec)
                assert decoder is not None
                self._decoders[i], self._turns[i] = decoder, []
                for _ in range(TURNS):
                    self._turns[i].append(DecodeBuffer(batch, device, pool, plan.ring_in.threads, trace.timed))
                    self._turns[i][-1].fill(pool)
            for slot in (self._decoded, self._plain, self._temporary):
                device.host_writes(slot)
                slot.fill(pool)
            self._lane = device.lane()
        except BaseException:
            self.close()
            raise

    def load(
        self, step: Step, operand: int, slot: DeviceBuffer, block: Block, readers: list[Event], crew: EncodedFeeders
    ) -> Loaded:
        """Let a crew read and upload a block's chunks. It goes to `slot`, of which the `readers` are still to end."""
        turn = self._turns[operand][step.loads[operand] % len(self._turns[operand])]
        spec, batch = self._plan.operands[operand], turn.batch
        assert spec.chunks is not None
        parts: list[ChunkBox] = []
        indices: list[Shape] = []
        for region, place in step.parts(operand, self._plan.op.operands[operand]):
            if all(shape_of(region)):
                parts.append(ChunkBox(region, place, spec.chunks, len(indices)))
                indices += parts[-1].indices
        assert len(indices) <= batch.number
        buffer = turn.slot.block((0,))
        turn.slot.place(buffer, np.dtype(np.uint8), (turn.slot.nbytes,), self._pool)
        pieces = tuple([run(n, min(batch.group, len(indices) - n)) for n in range(0, len(indices), batch.group)])
        transfer = EncodedTransfer(
            self._sources[operand],
            (),
            buffer,
            self._device.latch(1),
            turn.slot.readers,
            slot=turn.slot,
        )
        transfer.indices, transfer.parts, transfer.operand, transfer.order = indices, parts, operand, block.order
        transfer.target, transfer.readers, transfer.plain = block, readers, []
        places = transfer.store.places(indices)
        transfer.packed = Packed(places, batch.codec, batch.nbytes, batch.items, batch.room)
        turn.slot.readers, turn.slot.fillers = [], set()
        # The decoding writes all of the slot: it waits for whatever is done there before, which is noted in this list.
        loaded = UnpackedBlock(block, step.sources[operand], slot, [transfer], after=transfer.readers)
        loaded.decode = partial(self._decode, turn, transfer, slot)
        crew.publish(transfer, crew.share_packed(transfer, batch.group), pieces)
        return loaded

    def _decode(self, turn: DecodeBuffer, transfer: EncodedTransfer, slot: DeviceBuffer) -> Pending[None]:
        """Enqueue the decoding of a block whose chunks are all on their way."""
        self._settle(turn)
        lane = self._lane
        assert lane is not None
        lane.wait([turn.slot.uploaded[filler] for filler in sorted(turn.slot.fillers)], Edge.UPLOADED)
        lane.wait(transfer.readers, Edge.OVERWRITE)
        if turn.begun is not None:
            lane.record(turn.begun)
        used = self._tabulate(turn, transfer)
        table = Block(turn.table.buffer, (0,), turn.table)
        lane.upload(turn.host[0], table, run(0, used), None)
        turn.order, turn.transfer = next(self._batches), transfer
        turn.pending = pending = lane.call(
            partial(self._unpack, turn, transfer),
            reads=(turn.slot,),
            writes=(turn.table, self._decoded, self._plain, self._temporary, slot),
        )
        lane.record(slot.uploaded[0])
        slot.fillers = {0}
        number = turn.tabled.decoded
        if number:
            lane.download(table, run((ROWS - FILLED) * number * 8, FILLED * number * 8), turn.host[0], None)
        lane.record(turn.done)
        turn.slot.readers = [turn.done]
        if self._at_once:
            self._settle(turn)
        return pending

    def _tabulate(self, turn: DecodeBuffer, transfer: EncodedTransfer) -> int:
        """Fill the table of a batch; the bytes of it that are used."""
        turn.host[0].pin()
        self._device.host_writes(turn.host[0].owner)
        begin, there = (self._device.address(slot.buffer) for slot in (turn.slot, self._decoded))
        together = turn.batch.shuffled
        turn.tabled = tabled = transfer.packed.tabulate(turn.numbers(), begin, there, together=together)
        turn.facts = (ROWS * tabled.decoded + tabled.items) * 8
        return turn.facts + FACTS * transfer.packed.number * 8 if together else ROWS * tabled.decoded * 8

    def _unpack(self, turn: DecodeBuffer, transfer: EncodedTransfer) -> None:
        """Decode a batch, and put what is wanted of each chunk in its place; in the lane's turn."""
        batch, block, dtype = turn.batch, transfer.target.array, transfer.target.array.dtype
        device, number, chunks = self._device, turn.tabled.decoded, transfer.packed.number
        table, decoded = device.address(turn.table.buffer), self._decoded.buffer
        with self._pool.active():
            if number:
                temporary = device.address(self._temporary.buffer)
                self._decoders[transfer.operand](number, number, table, temporary, batch.temporary)
            if len(transfer.plain) < chunks:
                if batch.shuffled:
                    assert device.unshuffle is not None
                    decoded = self._plain.buffer
                    words = shaped(decoded, np.dtype(np.uint32), (chunks * batch.nbytes // 4,), None)
                    device.unshuffle(table + ROWS * number * 8, table + turn.facts, batch.nbytes, words)
                whole = shaped(decoded, dtype, (batch.number, batch.nbytes // dtype.itemsize), None)
                for part in transfer.parts:
                    part.spread(whole, block, transfer.order)
            for which, start in transfer.plain:
                region, place = transfer.chunk(which)
                shape, flat = permuted(shape_of(region), transfer.order), turn.slot.buffer[start:]
                block[(*place, ...)] = shaped(flat, dtype, shape, transfer.target.inverse)

    def _settle(self, turn: DecodeBuffer) -> None:
        """Wait until a turn's latest batch has ended, if there was one, and see what came of it.

        Raises
        ------
        ReadError
            A chunk could not be decoded.
        """
        transfer, turn.transfer = turn.transfer, None
        pending, turn.pending = turn.pending, None
        if transfer is None or pending is None:
            return
        turn.done.synchronize(Edge.LANDED)
        pending.result()
        if turn.begun is not None:
            nbytes = transfer.packed.number * turn.batch.nbytes
            self._trace.span("decode", turn.begun.seconds(), turn.done.seconds(), nbytes)
        self._device.host_reads(turn.host[0].owner)
        tabled, number = turn.tabled, turn.tabled.decoded
        sizes, statuses, sums = turn.numbers()[: FILLED * number].reshape(FILLED, number)
        results = statuses.view(np.int32)[:number]
        wrong = (results != 0) | (sizes != tabled.sizes.astype(np.uint64))
        wrong |= (tabled.checksums >= 0) & (sums.view(np.uint32)[:number] != tabled.checksums)
        bad = np.flatnonzero(wrong)
        if bad.size:
            self._refuse(transfer, int(np.searchsorted(tabled.ends, bad[0], "right")), int(results[bad[0]]))

    def _refuse(self, transfer: EncodedTransfer, which: int, status: int) -> None:
        """Raise what is wrong with a chunk, as the host says; or that the host finds nothing."""
        source, spec = self._sources[transfer.operand], self._plan.operands[transfer.operand]
        region, _ = transfer.chunk(which)
        source.read(region, np.empty(shape_of(region), spec.dtype))
        raise ReadError(
            f"cannot read {describe(region)} of {spec.name}: the device's {spec.storage.codec} decoder fails on the "
            f"chunk {transfer.indices[which]} (status {status}), and the host's does not: CHUNKFLOW_NVCOMP=0 leaves "
            "all to that",
            path=spec.name,
            region=region,
        )

    def close(self) -> None:
        """End what is enqueued, see what came of it unless the run has failed already, and give everything back."""
        turns = sorted(itertools.chain.from_iterable(self._turns.values()), key=lambda turn: turn.order)
        try:
            if self._lane is not None:
                lane, self._lane = self._lane, None
                lane.close()
                if not self._since.failed:
                    for turn in turns:
                        self._settle(turn)
        finally:
            for turn in turns:
                turn.release(self._pool)
            for slot in (self._decoded, self._plain, self._temporary):
                slot.release(self._pool)
            self._turns.clear()
