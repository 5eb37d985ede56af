"""Blocks whose chunks are decoded on the device, all of a block as one batch, for it takes as long for one as for many.

Feeders (`chunkflow.encoded`) upload encoded chunks to a buffer. When all of a block's are on their way they are decoded
on a lane of its own, and put in their places in the block, while the next block's chunks come to a second buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np

from chunkflow.batches import ROWS, Batch
from chunkflow.crews import Feeders
from chunkflow.devices.base import Block, Decoder, Device, Edge, Event, Lane, Pending, Pool, shaped
from chunkflow.encoded import Chunk, EncodedTransfer, Part, run
from chunkflow.errors import ReadError
from chunkflow.grid import describe, permuted, shape_of
from chunkflow.interrupts import Since
from chunkflow.plan import Plan, Step
from chunkflow.staging import Loaded, Slot
from chunkflow.stores.base import Source
from chunkflow.trace import Trace


class Turn:
    """A buffer for a block's encoded chunks, and the table that says where each lies and what came of it."""

    def __init__(self, batch: Batch, device: Device, pool: Pool, fillers: int, timed: bool) -> None:
        self.batch = batch
        self.slot = Slot(batch.encoded, [device.event() for _ in range(fillers)])
        self.table = Slot(batch.table, [])
        self.host = pool.host_slots(1, batch.table)
        self.done = device.event(timed=timed)
        self.begun = device.event(timed=True) if timed else None
        self.order = 0  # of the batches
        self.transfer: EncodedTransfer | None = None
        self.pending: Pending[None] | None = None
        for slot in (self.slot, self.table):
            device.host_writes(slot)

    def fill(self, pool: Pool) -> None:
        """Take the memory."""
        for slot in (self.slot, self.table):
            slot.fill(pool)

    def rows(self) -> np.ndarray:
        """The table as the host sees it."""
        return self.host[0].array[: self.batch.table].view(np.uint64).reshape(ROWS, self.batch.number)

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
            self.pending = decode()


class Unpacker:
    """Decodes blocks on a lane of its own, in order. A loop of the caller's gets only what was seen to be right."""

    def __init__(self, plan: Plan, sources: Sequence[Source], device: Device, pool: Pool, trace: Trace) -> None:
        assert plan.ring_in is not None
        self._plan, self._sources, self._device, self._pool, self._trace = plan, sources, device, pool, trace
        self._since, self._batches = Since(), itertools.count(1)
        self._at_once = not plan.outputs
        most = plan.batches.values()
        self._decoded = Slot(max(b.decoded for b in most), [])
        self._temporary = Slot(max(1, *(b.temporary for b in most)), [])
        self._decoders: dict[int, Decoder] = {}
        self._turns: dict[int, list[Turn]] = {}
        self._lane: Lane | None = None
        try:
            for i, batch in plan.batches.items():
                decoder = device.decoder(batch.codec)
                assert decoder is not None
                self._decoders[i], self._turns[i] = decoder, []
                for _ in range(batch.turns):
                    self._turns[i].append(Turn(batch, device, pool, plan.ring_in.threads, trace.timed))
                    self._turns[i][-1].fill(pool)
            for slot in (self._decoded, self._temporary):
                device.host_writes(slot)
                slot.fill(pool)
            self._lane = device.lane()
        except BaseException:
            self.close()
            raise

    def load(
        self, step: Step, operand: int, slot: Slot, block: Block, readers: Sequence[Event], crew: Feeders
    ) -> Loaded:
        """Let a crew read and upload a block's chunks. It goes to `slot`, of which the `readers` are still to end."""
        turn = self._turns[operand][step.loads[operand] % len(self._turns[operand])]
        spec, batch = self._plan.operands[operand], turn.batch
        assert spec.chunks is not None
        parts: list[Part] = []
        chunks: list[Chunk] = []
        for region, place in step.parts(operand, self._plan.op.operands[operand]):
            if all(shape_of(region)):
                parts.append(Part(region, place, spec.chunks, len(chunks)))
                chunks += parts[-1].chunks()
        assert len(chunks) <= batch.number
        buffer = turn.slot.block((0,))
        turn.slot.place(buffer, np.dtype(np.uint8), (turn.slot.nbytes,), self._pool)
        pieces = tuple([run(n, min(batch.group, len(chunks) - n)) for n in range(0, len(chunks), batch.group)])
        transfer = EncodedTransfer(
            self._sources[operand],
            (),
            buffer,
            self._device.latch(1),
            self._device.latch(len(pieces)),
            turn.slot.readers,
            slot=turn.slot,
        )
        transfer.chunks, transfer.parts, transfer.operand, transfer.order = chunks, parts, operand, block.order
        transfer.target, transfer.readers, transfer.room = block, readers, batch.room
        turn.slot.readers, turn.slot.fillers = [], set()
        loaded = UnpackedBlock(block, step.sources[operand], slot, [transfer])
        loaded.decode = partial(self._decode, turn, transfer, slot)
        crew.publish(transfer, None, pieces)
        return loaded

    def _decode(self, turn: Turn, transfer: EncodedTransfer, slot: Slot) -> Pending[None]:
        """Enqueue the decoding of a block whose chunks are all on their way."""
        self._settle(turn)
        lane = self._lane
        assert lane is not None
        lane.wait([turn.slot.uploaded[filler] for filler in sorted(turn.slot.fillers)], Edge.UPLOADED)
        lane.wait(transfer.readers, Edge.OVERWRITE)
        if turn.begun is not None:
            lane.record(turn.begun)
        number = self._tabulate(turn, transfer)
        everything = run(0, turn.batch.table)
        table = Block(turn.table.buffer, (0,), turn.table)
        lane.upload(turn.host[0], table, everything, None)
        unpack = partial(self._unpack, turn, transfer, number)
        shared = (turn.table, self._decoded, self._temporary)
        turn.order, turn.transfer = next(self._batches), transfer
        turn.pending = pending = lane.call(unpack, reads=(turn.slot,), writes=(*shared, slot))
        lane.record(slot.uploaded[0])
        slot.fillers = {0}
        lane.download(table, everything, turn.host[0], None)
        lane.record(turn.done)
        turn.slot.readers = [turn.done]
        if self._at_once:
            self._settle(turn)
        return pending

    def _tabulate(self, turn: Turn, transfer: EncodedTransfer) -> int:
        """Fill the table of a batch; number of chunks to be decoded."""
        turn.host[0].pin()
        self._device.host_writes(turn.host[0].owner)
        rows, nbytes = turn.rows(), turn.batch.nbytes
        rows[...] = 0xFFFFFFFFFFFFFFFF  # no success
        numbers = [n for n, chunk in enumerate(transfer.chunks) if chunk.length]
        begin, there = (self._device.address(slot.buffer) for slot in (turn.slot, self._decoded))
        rows[0, : len(numbers)] = [begin + transfer.chunks[n].start for n in numbers]
        rows[1, : len(numbers)] = [transfer.chunks[n].length for n in numbers]
        rows[2, : len(numbers)] = nbytes
        rows[3, : len(numbers)] = [there + n * nbytes for n in numbers]
        return len(numbers)

    def _unpack(self, turn: Turn, transfer: EncodedTransfer, number: int) -> None:
        """Decode a batch, and put what is wanted of each chunk in its place; in the lane's turn."""
        batch, block, dtype = turn.batch, transfer.target.array, transfer.target.array.dtype
        with self._pool.active():
            if number:
                address = self._device.address
                table, temporary = address(turn.table.buffer), address(self._temporary.buffer)
                self._decoders[transfer.operand](number, batch.number, table, temporary, batch.temporary)
                size = batch.nbytes // dtype.itemsize
                decoded = shaped(self._decoded.buffer, dtype, (batch.number, size), None)
                for part in transfer.parts:
                    part.spread(decoded, block, transfer.order)
            for chunk in transfer.chunks:
                if not chunk.length:
                    shape = permuted(shape_of(chunk.region), transfer.order)
                    flat = turn.slot.buffer[chunk.start :]
                    block[(*chunk.place, ...)] = shaped(flat, dtype, shape, transfer.target.inverse)

    def _settle(self, turn: Turn) -> None:
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
            nbytes = len(transfer.chunks) * turn.batch.nbytes
            self._trace.span("decode", turn.begun.seconds(), turn.done.seconds(), nbytes)
        self._device.host_reads(turn.host[0].owner)
        rows = turn.rows()
        chunks = [chunk for chunk in transfer.chunks if chunk.length]
        sizes, statuses = rows[4, : len(chunks)], rows[5].view(np.int32)[: len(chunks)]
        bad = np.flatnonzero((statuses != 0) | (sizes != turn.batch.nbytes))
        if bad.size:
            self._refuse(transfer, chunks[int(bad[0])], int(statuses[bad[0]]))

    def _refuse(self, transfer: EncodedTransfer, chunk: Chunk, status: int) -> None:
        """Raise what is wrong with a chunk, as the host says; or that the host finds nothing."""
        source, spec = self._sources[transfer.operand], self._plan.operands[transfer.operand]
        source.read(chunk.region, np.empty(shape_of(chunk.region), spec.dtype))
        raise ReadError(
            f"cannot read {describe(chunk.region)} of {spec.name}: the device's {spec.codec} decoder fails on the "
            f"chunk {chunk.index} (status {status}), and the host's does not: CHUNKFLOW_NVCOMP=0 leaves all to that",
            path=spec.name,
            region=chunk.region,
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
            self._decoded.release(self._pool)
            self._temporary.release(self._pool)
            self._turns.clear()
