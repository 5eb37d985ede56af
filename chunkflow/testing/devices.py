"""Contract suite that every device passes.

A device's test subclasses it, says in `make` how to get at the device, and inherits every test:

    class TestMyDevice(DeviceContract):
        def make(self):
            return MyDevice()

The tests use the protocol alone, so that a device wrapped in another one (a race detector, say) passes them too.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest

from chunkflow.core.encoded_chunks import BITS, BYTES, PLAIN, ROWS
from chunkflow.core.grid import Shape, permuted
from chunkflow.core.machine import Machine
from chunkflow.core.pieces import pieces, placed
from chunkflow.devices.protocol import Block, Device, Edge
from chunkflow.testing.arrays import filled
from chunkflow.testing.device_bench import MIB, Bench, in_threads
from chunkflow.testing.pools import PoolContract

SHAPE = (7, 6, 5)
ORDERS = list(itertools.permutations(range(3)))
# Elements of a piece, and the units it keeps whole: with the second each piece is scattered in every order.
CUTS: list[tuple[int, Shape | None]] = [(35, None), (12, (2, 3, 2)), (7 * 6 * 5, None)]


class DeviceContract(PoolContract):
    """What every `Device` does, its memory included. Subclasses override `make`."""

    # What it says of itself

    def test_it_describes_itself(self, device: Device) -> None:
        assert device.name
        assert isinstance(device.machine, Machine)
        assert list(device.machine.depths) == sorted(set(device.machine.depths), reverse=True)
        assert min(device.machine.depths) >= 1
        assert device.free_memory() > 0
        assert device.reserve >= 0

    def test_it_supports_common_dtypes(self, device: Device) -> None:
        assert all(device.supports(np.dtype(dtype)) for dtype in self.dtypes)

    def test_declared_accesses_are_accepted(self, device: Device) -> None:
        owner = object()
        device.host_writes(owner)
        device.host_reads(owner, "part")
        device.host_writes(owner, "part")

    # Arrays

    @pytest.mark.parametrize("shape", [(), (3,), (4, 5)])
    def test_host_arrays_become_its_own(self, bench: Bench, shape: Shape) -> None:
        array = filled(shape, "f4")
        with bench.pool.active():
            found = bench.device.to_device(array)
            assert bench.device.is_array(found)
            assert (tuple(found.shape), found.dtype) == (array.shape, array.dtype)
            copy = bench.device.xp.array(found)
        lane = bench.lane()
        bench.device.caller_lane().synchronize()
        block = Block(copy, tuple(range(array.ndim)), [copy])
        np.testing.assert_array_equal(bench.download(lane, block), array)

    def test_other_things_are_not_its_arrays(self, device: Device) -> None:
        for value in ([1.0], 1.0, None, "array", memoryview(b"x")):
            assert not device.is_array(value)
        if device.xp is not np:
            assert not device.is_array(np.ones(3))

    # Lanes

    def test_a_lane_runs_in_order(self, bench: Bench) -> None:
        lane, block, seen = bench.lane(), bench.block((1000,), "i8"), list[int]()
        bench.assign(lane, block, 0)
        for i in range(30):

            def step(i: int = i) -> None:
                seen.append(i)
                block.array[...] = block.array * 2 + i

            lane.call(step, writes=(block.owner,))
        value = 0
        for i in range(30):
            value = 2 * value + i
        assert (bench.download(lane, block) == value).all()
        assert seen == list(range(30))

    def test_closing_a_lane_finishes_what_is_enqueued(self, device: Device) -> None:
        seen: list[int] = []
        lane = device.lane()
        for i in range(10):
            lane.call(lambda i=i: seen.append(i))  # type: ignore[misc]
        lane.close()
        assert seen == list(range(10))

    def test_a_call_returns_its_value(self, bench: Bench) -> None:
        assert bench.lane().call(lambda: 7).result() == 7

    def test_a_call_raises_its_error_and_the_lane_goes_on(self, bench: Bench) -> None:
        lane, block = bench.lane(), bench.block((10,), "f4")
        failed = lane.call(lambda: 1 // 0)
        bench.assign(lane, block, 5)
        with pytest.raises(ZeroDivisionError):
            failed.result()
        assert (bench.download(lane, block) == 5).all()

    def test_the_callers_lane_is_where_its_own_code_runs(self, bench: Bench) -> None:
        block = bench.block((1000,), "f4")
        block.array[...] = 3
        lane, event, other = bench.device.caller_lane(), bench.device.event(), bench.lane()
        lane.call(lambda: None, writes=(block.owner,))
        lane.record(event)
        other.wait([event], Edge.COMPUTED)
        assert (bench.download(other, block) == 3).all()

    def test_a_lane_is_used_from_another_thread(self, bench: Bench) -> None:
        lane, array = bench.lane(), filled((50, 40), "f4")
        block, found = bench.block(array.shape, "f4"), list[np.ndarray]()

        def work() -> None:
            with bench.device.attach():
                bench.upload(lane, array, block)
                found.append(bench.download(lane, block))

        in_threads(1, work)
        np.testing.assert_array_equal(found[0], array)

    # Events

    def test_events_order_lanes(self, bench: Bench) -> None:
        up, kernel, down = bench.lane(), bench.lane(), bench.lane()
        array = filled((4 * MIB // 4,), "f4")
        given, got = bench.block(array.shape, "f4"), bench.block(array.shape, "f4")
        uploaded, computed = bench.device.event(), bench.device.event()
        bench.upload(up, array, given)
        up.record(uploaded)
        kernel.wait([uploaded], Edge.UPLOADED)

        def double() -> None:
            got.array[...] = given.array * 2

        kernel.call(double, reads=(given.owner,), writes=(got.owner,))
        kernel.record(computed)
        down.wait([computed], Edge.COMPUTED)
        np.testing.assert_array_equal(bench.download(down, got), array * 2)

    def test_what_takes_long_is_waited_for(self, bench: Bench) -> None:
        first, second, event = bench.lane(), bench.lane(), bench.device.event()
        go, seen = threading.Event(), list[str]()

        def take_long() -> None:
            go.wait(0.05)  # nobody sets it: a lane that runs calls at once goes on as well
            seen.append("first")

        first.call(take_long)
        first.record(event)
        second.wait([event], Edge.COMPUTED)
        second.call(lambda: seen.append("second")).result()
        assert seen == ["first", "second"]
        first.call(take_long)
        first.record(event)
        event.synchronize(Edge.LANDED)
        assert seen == ["first", "second", "first"]

    def test_a_thread_waits_for_an_event(self, bench: Bench) -> None:
        lane, array = bench.lane(), filled((1000,), "f4")
        block, event = bench.block(array.shape, "f4"), bench.device.event()
        bench.upload(lane, array, block)
        [piece] = pieces(array.shape, (0,), array.size)
        [buffer] = bench.host_buffers((piece,), array.dtype)
        lane.download(block, piece, buffer, None)
        lane.record(event)
        event.synchronize(Edge.LANDED)
        bench.device.host_reads(buffer)
        np.testing.assert_array_equal(buffer.view(array.dtype, piece, None), array)

    def test_an_event_that_was_never_recorded_holds_up_nothing(self, bench: Bench) -> None:
        lane, event = bench.lane(), bench.device.event()
        lane.wait([event], Edge.UPLOADED)
        event.synchronize(Edge.UPLOADED)
        assert lane.call(lambda: 1).result() == 1

    def test_an_event_means_its_latest_mark(self, bench: Bench) -> None:
        first, second = bench.lane(), bench.lane()
        block, event = bench.block((1000,), "i4"), bench.device.event()
        for value in range(5):
            bench.assign(first, block, value)
            first.record(event)
        second.wait([event], Edge.UPLOADED)
        assert (bench.download(second, block) == 4).all()

    def test_events_go_back_and_forth(self, bench: Bench) -> None:
        lanes, events = [bench.lane(), bench.lane()], [bench.device.event(), bench.device.event()]
        block = bench.block((1000,), "i4")
        bench.assign(lanes[1], block, 0)
        lanes[1].record(events[1])

        def increase() -> None:
            block.array[...] += 1

        for turn in range(20):
            lane, own, other = lanes[turn % 2], events[turn % 2], events[1 - turn % 2]
            lane.wait([other], Edge.COMPUTED)
            lane.call(increase, writes=(block.owner,))
            lane.record(own)
        assert (bench.download(lanes[1], block) == 20).all()

    def test_timed_events_are_in_order(self, bench: Bench) -> None:
        lane, block = bench.lane(), bench.block((1000,), "f4")
        begin = time.perf_counter()
        events = [bench.device.event(timed=True) for _ in range(4)]
        for event in events:
            bench.assign(lane, block, 1)
            lane.record(event)
        for event in events:
            event.synchronize(Edge.LANDED)
        seconds = [event.seconds() for event in events]
        assert seconds == sorted(seconds)
        # The scale is the host clock's: a minute's tolerance tells it from any other.
        assert begin - 60 < seconds[0] <= seconds[-1] < time.perf_counter() + 60

    # Latches

    def test_a_latch_of_nothing_is_open(self, device: Device) -> None:
        device.latch(0).wait(Edge.STORED)

    @pytest.mark.parametrize("number", [1, 5])
    def test_a_latch_opens_with_the_last_arrival(self, device: Device, number: int) -> None:
        latch, arrived, seen = device.latch(number), list[int](), list[int]()

        def wait() -> None:
            latch.wait(Edge.STORED)
            seen.append(len(arrived))

        def arrive() -> None:
            arrived.append(1)
            latch.arrive()

        waiting = threading.Thread(target=wait)
        waiting.start()
        in_threads(number - 1, arrive)
        waiting.join(0.01)  # a latch that opens too early might show it by now; a sound one never does
        assert not seen
        arrive()
        waiting.join()
        assert seen == [number]

    # Copies

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize(("limit", "units"), CUTS)
    def test_pieces_make_the_round_trip(self, bench: Bench, order: Shape, limit: int, units: Shape | None) -> None:
        cut = pieces(SHAPE, order, limit, units, (1, 1, 1) if units else None)
        assert any(piece.offset is None for piece in cut) == (units is not None)
        lane = bench.lane()
        for dtype in self.dtypes:
            array = filled(SHAPE, dtype)
            block = bench.block(SHAPE, dtype, order)
            bench.upload(lane, array, block, cut)
            np.testing.assert_array_equal(bench.download(lane, block, cut), array)
            # The same by pieces of another shape, so that no two mistakes cancel.
            np.testing.assert_array_equal(bench.download(lane, block, pieces(SHAPE, order, 10)), array)

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("limit", [700, 3000, 100_000])
    def test_a_part_of_long_rows_makes_the_round_trip(self, bench: Bench, order: Shape, limit: int) -> None:
        shape = tuple((5, 6, 700)[order.index(axis)] for axis in range(3))  # rows lie along the fastest axis
        inside = tuple((3, 4, 600)[order.index(axis)] for axis in range(3))
        start = tuple((1, 2, 50)[order.index(axis)] for axis in range(3))
        cut = placed(pieces(inside, order, limit), start, shape, order)
        assert all(piece.offset is None or limit == 700 for piece in cut)
        lane, block, array = bench.lane(), bench.block(shape, "f4", order), filled(shape, "f4")
        bench.upload(lane, np.zeros_like(array), block, pieces(shape, order, 10_000))
        bench.upload(lane, array, block, cut)
        expected, part = np.zeros_like(array), tuple(slice(s, s + n) for s, n in zip(start, inside, strict=True))
        expected[part] = array[part]
        np.testing.assert_array_equal(bench.download(lane, block, pieces(shape, order, 10_000)), expected)
        np.testing.assert_array_equal(bench.download(lane, block, cut)[part], array[part])

    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_a_single_element_makes_the_round_trip(self, bench: Bench, shape: Shape) -> None:
        lane, array = bench.lane(), filled(shape, "c16")
        block = bench.block(shape, "c16")
        bench.upload(lane, array, block)
        np.testing.assert_array_equal(bench.download(lane, block), array)

    @pytest.mark.parametrize("order", ORDERS)
    def test_a_block_lies_in_its_order(self, bench: Bench, order: Shape) -> None:
        block = bench.block(SHAPE, "f4", order)
        assert tuple(block.array.shape) == SHAPE
        assert block.array.transpose(order).flags.c_contiguous
        if order == (0, 1, 2):
            assert block.inverse is None
        else:
            assert block.inverse is not None
            assert permuted(permuted(SHAPE, order), block.inverse) == SHAPE

    # Decoders

    def test_it_decodes_what_it_says(self, bench: Bench) -> None:
        device, number = bench.device, 5
        if not device.machine.decodings:
            pytest.skip("the host decodes")
        for decoding in device.machine.decodings:
            decode = device.decoder(decoding.codec)
            assert decode is not None
            name = decoding.codec.removeprefix("blosc-")  # whose items are chunks to the decoder
            codec = numcodecs.get_codec({"id": name})
            plain = np.stack([filled((700,), "u2") % (i + 2) for i in range(number)])
            raw = [np.frombuffer(codec.encode(row), np.uint8)[4 * (name == "lz4") :] for row in plain]
            coded, out = bench.block((sum(map(len, raw)),), "u1"), bench.block(plain.shape, "u2")
            room = decoding.temporary(number, plain[0].nbytes, plain.nbytes)
            table, temporary = bench.block((ROWS, number), "u8"), bench.block((max(room, 1),), "u1")
            starts = np.cumsum([0, *map(len, raw[:-1])])
            rows = np.full((ROWS, number), 1 << 63, "u8")
            rows[0], rows[1] = device.address(coded.array) + starts, [len(r) for r in raw]
            rows[2], rows[3] = plain[0].nbytes, device.address(out.array) + plain[0].nbytes * np.arange(number)
            lane = bench.lane()
            bench.upload(lane, np.concatenate(raw), coded)
            bench.upload(lane, rows, table)
            places = device.address(table.array), device.address(temporary.array)

            def call(decode: Any = decode, places: Any = places, room: int = room) -> None:
                decode(number, number, *places, room)

            pending = lane.call(call, reads=(coded.owner,), writes=(table.owner, temporary.owner, out.owner))
            np.testing.assert_array_equal(bench.download(lane, out), plain)
            pending.result()
            found = bench.download(lane, table)
            assert (found[4] == plain[0].nbytes).all()
            assert (found[5].view(np.int32)[:number] == 0).all()
            if name == "gzip":
                assert found[6].view(np.uint32)[:number].tolist() == [zlib.crc32(row) for row in plain]

    @pytest.mark.parametrize("shuffled", [PLAIN, BYTES, BITS])
    @pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16])
    @pytest.mark.parametrize(("side", "items"), [(96, 1), (480, 4), (1000, 1), (528, 1)])
    def test_it_puts_chunks_together(self, bench: Bench, shuffled: int, width: int, side: int, items: int) -> None:
        device, number, nbytes = bench.device, 3, 1000
        if device.unshuffle is None:
            pytest.skip("the host does")
        plain = filled((number, nbytes), "u1")
        blocks = [row[at : at + side] for row in plain for at in range(0, nbytes, side)]
        sizes = [n for b in blocks for n in ([len(b) // items] * items if len(b) == side else [len(b)])]
        block, out = bench.block((plain.size,), "u1"), bench.block((plain.size // 4,), "u4")
        places = device.address(block.array) + np.cumsum([0, *sizes[:-1]])
        facts = [[len(sizes) // number * n, side, items, width, shuffled] for n in range(number)]
        table = np.concatenate([places, np.ravel(facts)]).astype("u8")
        tables, lane = bench.block(table.shape, "u8"), bench.lane()
        bench.upload(lane, np.concatenate([shuffle(b, width, shuffled) for b in blocks]), block)
        bench.upload(lane, table, tables)
        where = device.address(tables.array)
        call = partial(device.unshuffle, where, where + 8 * len(sizes), nbytes, out.array)
        pending = lane.call(call, reads=(block.owner, tables.owner), writes=(out.owner,))
        np.testing.assert_array_equal(bench.download(lane, out).view("u1").reshape(plain.shape), plain)
        pending.result()

    # Threads

    def test_any_thread_may_attach(self, bench: Bench) -> None:
        def work() -> None:
            with bench.device.attach(), bench.pool.active():
                lane, array = bench.device.lane(), filled((30, 20), "f4")
                block = bench.block(array.shape, "f4")
                bench.upload(lane, array, block)
                assert bench.device.is_array(bench.device.xp.ones(3))
                np.testing.assert_array_equal(bench.download(lane, block), array)
                lane.close()

        in_threads(4, work)


def shuffle(block: np.ndarray, width: int, shuffled: int) -> np.ndarray:
    """A block's bytes as blosc stores them (see `chunkflow.core.encoded_chunks`)."""
    number = len(block) // width
    if shuffled == PLAIN or (shuffled == BITS and number % 8):
        return block
    elements, rest = block[: number * width].reshape(number, width), block[number * width :]
    if shuffled == BYTES:
        return np.concatenate([elements.T.ravel(), rest])
    bits = np.unpackbits(elements, axis=1, bitorder="little").T
    return np.concatenate([np.packbits(bits, axis=1, bitorder="little").ravel(), rest])
