"""Buffers of blocks wait for what reads them, however many kernels do."""

from __future__ import annotations

from chunkflow.devices import resolve
from chunkflow.engine.buffers import DeviceBuffer


def test_of_each_lane_that_reads_a_block_the_latest_event_is_kept() -> None:
    device = resolve("cpu")
    buffer = DeviceBuffer(8, [])
    events = [device.event() for _ in range(1000)]
    for number, event in enumerate(events):
        buffer.read_until(event, number % 2)
    assert buffer.readers == events[-2:]
    buffer.readers = []  # another block comes
    buffer.read_until(events[0], 0)
    assert buffer.readers == events[:1]
