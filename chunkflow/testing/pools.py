"""Contract suite of a device's memory: the pool, its limit, and host memory for staging."""

from __future__ import annotations

from typing import Any

import pytest

from chunkflow.devices.protocol import Device
from chunkflow.testing.device_bench import MIB, Bench, DeviceSuite


class PoolContract(DeviceSuite):
    """What every device's `Pool` does."""

    def test_the_pool_counts(self, device: Device) -> None:
        pool = self.pool(device, 16 * MIB)
        assert pool.used == 0
        first = pool.allocate(4 * MIB)
        assert first.nbytes == 4 * MIB
        second = pool.allocate(2 * MIB)
        assert pool.used == 6 * MIB
        pool.free(second)
        del second
        assert pool.used == 4 * MIB
        pool.free(first)
        del first
        assert pool.used == 0
        assert 6 * MIB <= pool.peak <= pool.limit
        pool.close()

    def test_the_pool_refuses_more_than_its_limit(self, device: Device) -> None:
        pool = self.pool(device, 16 * MIB)
        kept = pool.allocate(8 * MIB)
        with pytest.raises(Exception) as caught:  # noqa: PT011 (each device has an error of its own)
            pool.allocate(10 * MIB)
        assert device.is_out_of_memory(caught.value)
        del caught
        again = pool.allocate(8 * MIB)
        assert pool.used == 16 * MIB
        assert pool.peak <= pool.limit
        del kept, again
        pool.close()

    def test_other_errors_are_not_for_want_of_memory(self, device: Device) -> None:
        assert device.is_out_of_memory(MemoryError())
        assert not device.is_out_of_memory(ValueError("memory"))

    def test_adopted_arrays_count_until_they_are_freed(self, bench: Bench) -> None:
        pool = bench.pool
        with pool.active():
            result = bench.device.xp.ones(2 * MIB, "u1")
        pool.adopt(result)
        assert pool.used == 2 * MIB
        assert pool.peak >= 2 * MIB
        pool.free(result)
        del result
        assert pool.used == 0

    def test_an_active_pool_limits_functions(self, device: Device) -> None:
        if not self.limits_functions:
            pytest.skip("the array module allocates where it likes")
        pool = self.pool(device, 16 * MIB)
        with pool.active():
            kept = device.xp.ones(8 * MIB, "u1")
            assert pool.used == 8 * MIB
            with pytest.raises(Exception) as caught:  # noqa: PT011 (each device has an error of its own)
                device.xp.ones(10 * MIB, "u1")
        assert device.is_out_of_memory(caught.value)
        del kept, caught
        assert pool.used == 0
        pool.close()

    def test_a_measured_call_is_limited_as_well(self, device: Device) -> None:
        """By what the driver gives: the arrays fill little more than half of each of their pages."""
        if not self.limits_functions:
            pytest.skip("the array module allocates where it likes")
        pool, free = self.pool(device, 32 * MIB), list[int]()

        def fn() -> None:
            kept = []
            while True:
                kept.append(device.xp.ones(MIB + 1024, "u1"))
                free.append(device.free_memory())

        with pool.active():
            pool.measure(lambda: device.xp.ones(2, "u1"))  # kernels are loaded
            before = device.free_memory()
            with pytest.raises(Exception) as caught:  # noqa: PT011 (each device has an error of its own)
                pool.measure(fn)
        assert device.is_out_of_memory(caught.value)
        assert len(free) > 10, "most of it may be taken"
        assert before - min(free) <= 32 * MIB
        assert pool.peak <= pool.limit
        del caught
        pool.close()

    def test_measuring_finds_the_peak_of_a_call(self, bench: Bench) -> None:
        xp, nbytes = bench.device.xp, 2 * MIB

        def fn() -> Any:
            first = xp.ones(nbytes // 4, "f4")
            second = first + 1
            third = first * second
            del first, second
            return third + 1

        with bench.pool.active():
            result, peak = bench.pool.measure(fn)
            assert tuple(result.shape) == (nbytes // 4,)
            assert 3 * nbytes <= peak <= 3.5 * nbytes
            # Once more: what one measurement leaves behind is no part of the next.
            assert 3 * nbytes <= bench.pool.measure(fn)[1] <= 3.5 * nbytes

    def test_measuring_passes_errors_on(self, bench: Bench) -> None:
        with bench.pool.active():
            with pytest.raises(ZeroDivisionError):
                bench.pool.measure(lambda: 1 // 0)
            assert bench.pool.measure(lambda: 7)[0] == 7

    def test_host_slots_are_apart_and_large_enough(self, bench: Bench) -> None:
        buffers = bench.pool.host_buffers(3, 1000)
        assert len(buffers) == 3
        for i, buffer in enumerate(buffers):
            buffer.pin()
            assert buffer.array.nbytes >= 1000
            assert buffer.pointer == buffer.array.ctypes.data
            buffer.array[...] = i
        assert [buffer.array.min() for buffer in buffers] == [0, 1, 2]
        assert [buffer.array.max() for buffer in buffers] == [0, 1, 2]
        bench.pool.release_host(buffers)

    def test_host_slots_serve_again(self, bench: Bench) -> None:
        pool = bench.pool
        buffers = pool.host_buffers(2, MIB)
        for buffer in buffers:
            buffer.pin()
        pointers = {buffer.pointer for buffer in buffers}
        del buffer
        pool.release_host(buffers)
        again = pool.host_buffers(3, MIB)
        assert len({buffer.pointer for buffer in again}) == 3
        if self.keeps_host_slots:
            assert pointers < {buffer.pointer for buffer in again}
        pool.release_host(again)
        larger = pool.host_buffers(1, 2 * MIB)
        assert larger[0].array.nbytes >= 2 * MIB
        larger[0].pin()
        larger[0].array[...] = 1
        pool.release_host(larger)

    def test_closing_a_pool_returns_its_memory(self, device: Device) -> None:
        for _ in range(2):  # the first round loads what the device itself keeps
            before = device.free_memory()
            pool = self.pool(device, 64 * MIB)
            array = pool.allocate(48 * MIB)
            buffers = pool.host_buffers(2, MIB)
            for buffer in buffers:
                buffer.pin()
            pool.free(array)
            del array, buffer
            pool.release_host(buffers)
            pool.close()
            pool.close()
            assert pool.used == 0
        if self.limits_functions:  # elsewhere the memory is the host's, of which others take and give too
            assert device.free_memory() >= before - 4 * MIB
