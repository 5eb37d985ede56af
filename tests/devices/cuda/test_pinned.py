"""Pinned host memory: registered once, kept for later runs up to a limit, and given back."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from chunkflow.devices.cuda.pinned import HostBufferPool, RegisteredBuffer

MIB = 1 << 20


class Driver:
    """What is registered, by address."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def register(self, address: int, nbytes: int, flags: int) -> None:
        assert address not in self.pinned
        self.pinned[address] = nbytes

    def unregister(self, address: int) -> None:
        del self.pinned[address]

    def buffer(self, nbytes: int) -> RegisteredBuffer:
        return RegisteredBuffer(nbytes, nullcontext, self.register, self.unregister)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_slot_is_pinned_when_asked_for_and_once(driver: Driver) -> None:
    buffer = driver.buffer(MIB)
    buffer.array[:3] = 1, 2, 3  # it may hold a piece already
    assert driver.pinned == {}
    buffer.pin()
    buffer.pin()
    assert driver.pinned == {buffer.pointer: MIB}
    assert buffer.array[:3].tolist() == [1, 2, 3]
    buffer.close()
    buffer.close()
    assert driver.pinned == {}


def test_a_slot_that_nobody_knows_any_more_is_not_pinned(driver: Driver) -> None:
    buffer = driver.buffer(MIB)
    buffer.pin()
    del buffer
    assert driver.pinned == {}


def test_those_used_last_are_kept_up_to_a_limit(driver: Driver) -> None:
    kept = HostBufferPool(driver.buffer, 4 * MIB)
    small, large = kept.take(3, MIB), kept.take(2, 2 * MIB)
    for buffer in (*small, *large):
        buffer.pin()
    pointers = [buffer.pointer for buffer in large]
    kept.keep(small)
    del buffer
    assert len(driver.pinned) == 5
    kept.keep(large)
    assert sorted(driver.pinned) == sorted(pointers)
    again = kept.take(3, MIB)
    assert set(pointers) < {buffer.pointer for buffer in again}
    kept.keep(again)


def test_the_smallest_that_will_do_are_taken_first(driver: Driver) -> None:
    kept = HostBufferPool(driver.buffer, 64 * MIB)
    large, small = kept.take(1, 8 * MIB), kept.take(1, MIB)
    pointer = small[0].pointer
    kept.keep(large)
    kept.keep(small)
    assert [buffer.pointer for buffer in kept.take(1, MIB // 2)] == [pointer]


def test_what_comes_back_after_the_end_is_given_back(driver: Driver) -> None:
    kept = HostBufferPool(driver.buffer, 64 * MIB)
    buffers, others = kept.take(2, MIB), kept.take(1, MIB)
    for buffer in (*buffers, *others):
        buffer.pin()
    del buffer
    kept.keep(buffers)
    kept.close()
    assert len(driver.pinned) == 1
    kept.keep(others)
    assert driver.pinned == {}
