"""What the contract suites of devices start from: a device with a pool and lanes, and errands with them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import pytest

from chunkflow.core.grid import Shape, permuted
from chunkflow.core.memory import uncounted
from chunkflow.core.pieces import Piece, pieces
from chunkflow.devices.protocol import Block, Device, HostBuffer, Lane, Pool, shaped

MIB = 1 << 20


class Bench:
    """A device with a pool and lanes, and the errands that most tests run."""

    def __init__(self, device: Device, pool: Pool, stack: ExitStack) -> None:
        self.device, self.pool, self._stack = device, pool, stack
        self._buffers: list[HostBuffer] = []
        self._scratch: list[object] = []

    def lane(self) -> Lane:
        """A lane that is closed after the test."""
        lane = self.device.lane()
        self._stack.callback(lane.close)
        return lane

    def block(self, shape: Shape, dtype: Any, order: Shape | None = None) -> Block:
        """A block of device memory."""
        order = order or tuple(range(len(shape)))
        dtype = np.dtype(dtype)
        buffer = self.pool.allocate(math.prod(shape) * dtype.itemsize)
        block = Block(None, order, [buffer])
        block.array = shaped(buffer, dtype, permuted(shape, order), block.inverse)
        return block

    def host_buffers(self, cut: tuple[Piece, ...], dtype: np.dtype) -> list[HostBuffer]:
        """A host buffer for each piece."""
        buffers = self.pool.host_buffers(len(cut), max(piece.size for piece in cut) * dtype.itemsize)
        self._buffers += buffers
        for buffer in buffers:
            buffer.pin()
        return buffers

    def close(self) -> None:
        """Give the memory back, once the lanes are closed."""
        self._scratch.clear()
        self.pool.release_host(self._buffers)
        self.pool.close()

    def scratch(self, cut: tuple[Piece, ...], dtype: np.dtype) -> Any:
        """A landing place for any of the pieces, where there are scattered ones."""
        if all(piece.offset is not None for piece in cut):
            return None
        scratch = self.pool.allocate(max(piece.size for piece in cut) * dtype.itemsize)
        self._scratch.append(scratch)  # a lane may be using it long after this
        return scratch

    def upload(self, lane: Lane, array: np.ndarray, block: Block, cut: tuple[Piece, ...] | None = None) -> None:
        """Enqueue the upload of a whole array."""
        cut = cut or pieces(array.shape, tuple(range(array.ndim)), max(array.size, 1))
        buffers, scratch = self.host_buffers(cut, array.dtype), self.scratch(cut, array.dtype)
        for buffer, piece in zip(buffers, cut, strict=True):
            self.device.host_writes(buffer.owner)
            buffer.view(array.dtype, piece, block.inverse)[...] = array[piece.region]
            lane.upload(buffer, block, piece, scratch)

    def download(self, lane: Lane, block: Block, cut: tuple[Piece, ...] | None = None) -> np.ndarray:
        """Copy a block to the host, after what is enqueued on the lane."""
        out = np.empty(block.array.shape, block.array.dtype)
        cut = cut or pieces(out.shape, tuple(range(out.ndim)), max(out.size, 1))
        buffers, scratch = self.host_buffers(cut, out.dtype), self.scratch(cut, out.dtype)
        for buffer, piece in zip(buffers, cut, strict=True):
            self.device.host_writes(buffer.owner)
            lane.download(block, piece, buffer, scratch)
        lane.synchronize()
        for buffer, piece in zip(buffers, cut, strict=True):
            self.device.host_reads(buffer.owner)
            out[piece.region] = buffer.view(out.dtype, piece, block.inverse)
        return out

    def assign(self, lane: Lane, block: Block, value: int) -> None:
        """Enqueue the filling of a block."""
        lane.call(lambda: block.array.fill(value), writes=(block.owner,))


def in_threads(number: int, work: Callable[[], None]) -> None:
    """Let threads do the same; raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


class DeviceSuite:
    """Tests of one device, and what they may expect of it. Subclasses override `make`."""

    dtypes: ClassVar[tuple[str, ...]] = ("?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16")
    limits_functions: ClassVar[bool] = False
    """Whether an active pool limits what the array module allocates."""
    keeps_host_slots: ClassVar[bool] = False
    """Whether a pool hands out the host buffers again that were given back."""

    def make(self) -> Device:
        """The device."""
        raise NotImplementedError

    @pytest.fixture
    def device(self) -> Iterator[Device]:
        device = self.make()
        with device.attach():
            yield device

    @pytest.fixture
    def bench(self, device: Device) -> Iterator[Bench]:
        with ExitStack() as stack:
            bench = Bench(device, self.pool(device, 256 * MIB), stack)
            stack.callback(bench.close)
            yield bench

    def pool(self, device: Device, nbytes: int) -> Pool:
        """A pool with so many bytes besides what libraries took."""
        return device.pool(device.reserve + uncounted(device.machine.page) + nbytes)
